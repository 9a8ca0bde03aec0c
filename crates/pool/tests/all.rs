//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod cache_devices;
mod damaged_labels;
mod devices;
mod false_failures;
mod far;
mod features;
mod gc_request;
mod history;
mod holds;
mod hosts;
mod index_bound;
mod limits;
mod log;
mod log_devices;
mod many_runs;
mod nopwrite;
mod panics;
mod removal;
mod shortage;
mod space_for_commits;
mod support;
mod totals;
mod toy;
mod transient_read_errors;
mod work_in_steps;
mod wrong_frees;
