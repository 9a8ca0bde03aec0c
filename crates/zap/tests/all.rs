//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod byte_order;
mod colliders;
mod collisions;
mod faulty_store;
mod flood;
mod golden;
mod headers;
mod hostile;
mod listing;
mod lives;
mod merge;
mod model;
mod normalized;
mod oracle;
mod padded;
mod shrink;
mod statistics;
mod swapped;
mod unreadable;
