//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod births;
mod free_policy;
mod model;
mod nopwrite;
mod opening;
mod parallel;
mod recode;
mod support;
mod undecodable;
