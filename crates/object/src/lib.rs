//! Objects: dnodes and their block trees.
//!
//! An *object* is an array of blocks with a few bytes of its own (the *bonus*), described by a *dnode*. An
//! *object set* is an array of dnodes, described by a dnode in the set's header. Changes stay in memory as
//! dirty blocks until their txg (group) syncs. The sync writes new blocks, rewrites the trees above them from
//! the leaves up, and frees the old blocks.
//!
//! Modules, in reading order; each uses only those before it:
//!
//! | module | what it is about |
//! |---|---|
//! | `kind`, [`dnode`] | bytes as stored |
//! | `account` | space that a set takes |
//! | [`entry`] | identity of a set |
//! | [`waiting`], `freeing` | how blocks leave a set |
//! | `dirty` | what a txg changed |
//! | `tree` | from changed blocks to a new root |
//! | `outlook` | expected lifetimes |
//! | `streams` | prediction of reads, for prefetch |
//! | [`object`] | one object, alive |
//! | `numbers` | free object numbers |
//! | [`objset`] | many objects |
//! | [`objects`] | all sets of a pool, and their sync |

mod account;
mod dirty;
pub mod dnode;
pub mod entry;
mod error;
mod freeing;
mod kind;
mod numbers;
pub mod object;
pub mod objects;
pub mod objset;
mod outlook;
mod streams;
mod tree;
pub mod waiting;

pub use account::Account;
pub use dnode::slot_of;
pub use entry::Identity;
pub use error::ObjectError;
pub use freeing::{FreePolicy, Verdict};
pub use kind::ObjectKind;
pub use object::{Again, Object};
pub use objects::Objects;
pub use objset::{DataPolicy, ObjectSet, ObjectSpec, StoredNumbers, Usage};
