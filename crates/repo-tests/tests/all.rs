//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod arrows;
mod circles;
mod contributing;
mod diagram;
mod format;
mod prose;
mod tidy;
