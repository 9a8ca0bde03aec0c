//! Dnodes and their block trees.
//!
//! An *object* is an array of blocks with a few bytes of its own (the *bonus*), described by a *dnode*; an *object set* is an array of
//! dnodes, itself described by a dnode in its header. Changes are kept as dirty blocks in memory until their
//! group syncs; then new blocks are written, the trees above them are rewritten from the leaves up, and the old
//! blocks are released.
//!
//! Modules, in reading order: `kind` and [`dnode`] (bytes as stored), `account` (what a set takes), [`entry`] (who a set is), [`waiting`]
//! and `freeing` (how blocks leave it), `dirty` (what a group changed), `tree` (from changed blocks to a new root), `outlook` (what is
//! known of life times), `streams` (what readers will ask for next), [`object`] (one object, alive), `numbers` (which are free),
//! [`objset`] (many objects), [`objects`] (all sets of a pool, and their sync). Each knows only those before it.

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
