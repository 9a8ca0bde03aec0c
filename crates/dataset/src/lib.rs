//! Data sets: object sets with a name, properties, ZAPs, and an error log for the pool.
//!
//! A pool has numbered objects in numbered object sets. A *data set* gives one object set a name, properties,
//! snapshots, and a place in a tree of data sets. The pool finds the root data set through object 1 of the meta
//! object set (MOS), the *pool directory*. That is a ZAP with the entries `root_dataset` and `root_props`. The
//! first names the object whose bonus holds the root of the object set. The second names the ZAP of its
//! properties. Other data sets are found through the tree ([`Datasets`]).
//!
//! Object 1 of the data set is the *master ZAP*, through which the layer above finds its objects.
//!
//! Invariant: a property without an entry in the properties ZAP is inherited or has its default. The object set
//! obeys the others once [`Dataset::set`] or [`Dataset::open_root`] returns. Two of them wait for the latter; see
//! [`Dataset::set`].

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]

mod attributes;
mod branch;
mod chain;
mod dataset;
mod dead_list;
mod directory;
mod dnode_blocks;
mod error;
mod error_log;
mod feature_counts;
mod free_policy;
mod limits;
mod mos_zap;
mod naming;
mod node;
mod obeyed;
mod owner_walk;
mod owners;
pub mod props;
pub mod quota;
mod snapshot_info;
pub mod stored;
mod tree;
mod zap_form;
mod zap_handle;
mod zap_policy;
mod zap_store;
pub mod zaps;

pub use attributes::{AclType, DnodeSize, XattrPlacement};
pub use branch::{Branch, OwnUsage};
pub use chain::{Chain, ChainUsage, Link};
pub use dataset::{Dataset, MASTER};
pub use dead_list::{DeadEntry, PartInfo};
pub use directory::{ENTRIES_OF_TREE, ENTRY_WORD_COUNT, ENTRY_WORDS_MAX, POOL_DIRECTORY};
pub use dnode_blocks::{ClaimedBlocks, DNODE_BLOCK_BYTES, DnodeBlocks};
pub use error::{DatasetError, ZapError};
pub use naming::Naming;
pub use owners::FLAG_PROJECT;
pub use props::{AccessTime, PROPERTIES, Property, PropertyValue, Props, Scope, SnapDir, Source, SyncMode};
pub use quota::{Charge, Limits, OverQuota, OwnerUsage, Promise, QuotaName, QuotaUnit, Quotas};
pub use snapshot_info::SnapshotInfo;
pub use tree::{Bookmark, DatasetInfo, DatasetUsage, Datasets, Hold, Snapshot, SpaceUsage, open_any_set};
pub use zap_handle::{Batch, BatchPlan, ZapHandle};
pub use zap_policy::ZapPolicy;
pub use zap_store::{ChangeCost, INITIAL_BLOCK_BYTES, ObjectStore, ObjectZap};
pub use zaps::{ZapSpec, Zaps};
