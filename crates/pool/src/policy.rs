//! Where blocks should go and which zones should be emptied: decisions without input or output.
//!
//! Blocks that die together should lie together, and then collection has little to copy. What is decided here is decided from a
//! few numbers, without a device and without a lock, so that the simulator of large pools runs the same code.
//!
//! Rooms: [`hint`] (what somebody said about life times), `placement` (what is known of a block's file).
//!
//! Invariant: no decision here can lose data. The worst that a wrong one costs is copying.

pub mod hint;
mod placement;

pub use hint::{Hint, Match};
pub use placement::Placement;
