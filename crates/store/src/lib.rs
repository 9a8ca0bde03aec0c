//! Bytes of a pool: its devices, appends to them, and the way from a pointer to content and back.
//!
//! This crate does not know what a transaction group (txg) means.
//!
//! Modules, in reading order:
//!
//! * [`mod@env`]: clock, randomness, threads
//! * [`devices`] and [`host_space`]: the devices, and the file systems that hold them
//! * [`pipeline`] and [`workers`]: compression and checksums
//! * [`append`]: batches, writes, and what happens when a write fails
//! * [`zone_store`] and [`pinned_zone`]: bytes of logical zones
//! * [`explain`] and `newest`: whether zone directories agree with the tables; [`occupant`]: what lies at an address
//! * [`bootstrap`]: blocks that are named by place
//! * [`commit_point`] and [`anchors`]: which txg is the newest
//! * [`reader`] and [`prefetch_queue`]: reads and prefetch
//! * [`log`], [`log_devices`] and [`log_reader`]: the intent log
//! * [`cache_devices`] and [`l2cache`]: evicted blocks on cache devices (ZFS: L2ARC)
//! * [`errors`], [`reports`] and [`read_retry`]: errors, and reads that wait for a device
//! * [`counters`] of what devices did

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(missing_docs)]

pub mod anchors;
pub mod append;
pub mod bootstrap;
pub mod cache_devices;
pub mod commit_point;
pub mod counters;
pub mod devices;
pub mod env;
mod error;
pub mod errors;
pub mod explain;
pub mod host_space;
pub mod l2cache;
pub mod log;
pub mod log_devices;
pub mod log_reader;
mod newest;
pub mod occupant;
pub mod pinned_zone;
pub mod pipeline;
pub mod prefetch_queue;
pub mod read_retry;
pub mod reader;
pub mod reports;
pub mod workers;
pub mod zone_store;

pub use error::PoolError;
