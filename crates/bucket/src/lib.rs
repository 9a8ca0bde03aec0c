//! A bucket as a zoned device: zones whose content lies in objects of a store.
//!
//! Objects are immutable and zones are append-only, so they fit. A zone's content is a run of objects of some MiB. One
//! object, the root, is replaced by compare-and-swap: it names the content of each zone and holds the labels and
//! uberblocks. All above see a device like any other.
//!
//! Read [`store`] first (what is asked of a store), then `filling` (how zones become objects), `root` (what is
//! replaced), `requests` (failures are waited for, with `tally`, which counts them) and `device`. [`location`] opens a store by its URL.
//! [`dir`] is a store in a directory, `s3` one that speaks S3 (with `credentials`), [`memory`] one for
//! tests, with faults. [`promises`] finds out whether a store keeps its word.
//!
//! Invariant: a process that has lost its pool to another never acknowledges anything again.

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]

mod ahead;
#[cfg(feature = "s3")]
mod credentials;
mod device;
pub mod dir;
mod filling;
pub mod location;
pub mod memory;
pub mod promises;
mod requests;
mod root;
#[cfg(feature = "s3")]
mod s3;
pub mod store;
mod tally;

pub use device::{BucketDevice, Options, erase};
pub use dir::DirStore;
pub use location::Location;
pub use memory::MemoryStore;
pub use root::{Geometry, ROOT, ROOT_VERSION, Root, encode_table, parse_table};
pub use store::{Listed, Store, StoreError, Version};
