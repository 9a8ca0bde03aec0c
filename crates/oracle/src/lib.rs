//! The oracle: the simplest correct file system, maps of maps in memory.
//!
//! Tests run each operation on it and on Terrane, compare the answers including error numbers, and then the
//! trees. The model test of `terrane-posix` does so in memory, the simulator with crashes and faults. A rule
//! of POSIX is written down once, here.
//!
//! Modules, in reading order: `model` (the expected tree), [`compare`](Model::compare) (compares it with a
//! file system), and [`Failure`] (a difference, described in text).

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod compare;
mod failure;
mod model;

pub use compare::xattr_names;
pub use failure::{Failure, ensure, failed};
pub use model::{Content, Model, Node, Outcome, Xattrs};
