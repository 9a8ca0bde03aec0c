//! Objects: dnodes and their block trees.
//!
//! An *object* is an array of blocks with a few bytes of its own (the *bonus*), described by a *dnode*. An
//! *object set* is an array of dnodes, described by a dnode in the set's header. Changes stay in memory as
//! dirty blocks until their txg syncs. The sync writes new blocks, rewrites the trees above them from
//! the leaves up, and frees the old blocks.
//!
//! Modules, in reading order; each uses only those before it:
//!
//! | module | what it is about |
//! |---|---|
//! | `kind`, [`dnode`], [`owner_header`] | bytes as stored |
//! | `account` | space that a set takes |
//! | [`entry`] | identity of a set |
//! | [`queued_subtree`], `free_policy`, `mos_change` | how blocks leave a set |
//! | `dirty` | what a txg changed |
//! | `tree` | from changed blocks to a new root |
//! | `lifetime_hints` | expected lifetimes |
//! | `read_streams` | prediction of reads, for prefetch |
//! | [`object`] | one object, alive |
//! | [`owners`] | counts by user, group and project |
//! | `object_alloc` | free object numbers |
//! | [`objset`] | many objects |
//! | [`shared`] | blocks with several references |
//! | [`object_sets`] | all sets of a pool, and their sync |

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]

mod account;
mod dirty;
pub mod dnode;
pub mod entry;
mod error;
mod free_policy;
mod kind;
mod lifetime_hints;
mod mos_change;
pub mod object;
mod object_alloc;
pub mod object_sets;
pub mod objset;
pub mod owner_header;
pub mod owners;
mod part;
pub mod queued_subtree;
mod read_streams;
pub mod shared;
mod tree;

pub use account::Account;
pub use dnode::slot_of;
pub use entry::Identity;
pub use error::ObjectError;
pub use free_policy::{FreeDecision, FreePolicy};
pub use kind::ObjectKind;
pub use mos_change::{MosChange, MosUpdate};
pub use object::{MetadataRewrite, Object, OccupiedBytes};
pub use object_sets::ObjectSets;
pub use objset::{DataPolicy, HeaderCounts, Join, ObjectSet, ObjectSpec, SpaceBound, Usage};
pub use owner_header::OwnerKind;
pub use owners::Owners;
