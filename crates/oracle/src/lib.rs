//! The plainest file system that is right: maps of maps, in memory.
//!
//! Tests carry out each operation on it and on ours, compare the answers, error numbers included, and then the trees. The model test of
//! `terrane-posix` does so in memory, the simulator with crashes and faults; a rule of POSIX is written down once, here.
//!
//! Rooms, in reading order: [`model`] (what the tree should be), [`compare`](Model::compare) (whether it is), and what went wrong, in
//! words: [`Failure`].

mod compare;
mod failure;
mod model;

pub use compare::xattr_names;
pub use failure::{Failure, ensure, failed};
pub use model::{Content, Model, Node, Outcome, Xattrs};
