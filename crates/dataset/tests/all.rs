//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod error_log;
mod growth;
mod inheritance;
mod properties;
mod records;
mod root;
mod shown;
mod support;
mod zaps;
