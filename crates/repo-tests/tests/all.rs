//! All tests of this crate in one program: one for each file would take most of the time of a build.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod arrows;
mod circles;
mod contributing;
mod diagram;
mod format;
mod prose;
mod tidy;
