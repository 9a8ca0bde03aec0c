//! Roots that are kept.
//!
//! A pool holds numbered objects in numbered object sets; a *data set* is what gives one of them a name,
//! properties and a life of its own. Today there is one, the root data set, and what a pool needs to find it
//! again: object 1 of the meta object set is the *pool directory*, a ZAP with the entries `root_dataset` (the
//! object whose bonus holds the root of the object set) and `root_props` (a ZAP: property name to number).
//!
//! In the data set itself object 1 is the *master ZAP*, through which the floor above finds its own objects.
//!
//! Invariant: a property that is not in the properties ZAP has its default; one that is there is obeyed by the
//! object set from the moment [`Dataset::set`] or [`Dataset::open_root`] returns; two wait for the latter, see [`Dataset::set`].

mod attributes;
mod dataset;
mod directory;
mod dnode_blocks;
mod error;
mod error_log;
mod naming;
pub mod props;
mod snapshots;
mod zap_handle;
mod zap_policy;
mod zap_store;
pub mod zaps;

pub use attributes::{AclType, DnodeSize, XattrHome};
pub use dataset::{Dataset, MASTER};
pub use directory::POOL_DIRECTORY;
pub use dnode_blocks::{ClaimedBlocks, DNODE_BLOCK_BYTES, DnodeBlocks};
pub use error::{DatasetError, ZapError};
pub use naming::Naming;
pub use props::{AccessTime, PROPERTIES, Property, PropertyValue, Source};
pub use snapshots::open_set;
pub use zap_handle::{Batch, Work, ZapHandle};
pub use zap_policy::ZapPolicy;
pub use zap_store::{BLOCK_BYTES_FIRST, ChangeCost, ObjectStore, ObjectZap};
pub use zaps::{ZapSpec, Zaps};
