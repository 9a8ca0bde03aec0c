//! Bytes of a pool: its devices, appends to them, and the way from a pointer to content and back.
//!
//! This crate does not know what a transaction group (txg) means.
//!
//! Modules, in reading order:
//!
//! * [`mod@env`]: clock, randomness, threads
//! * [`devices`] and [`host`]: the devices, and the file systems that hold them
//! * [`pipeline`] and [`workers`]: compression and checksums
//! * [`append`]: batches, writes, and what happens when a write fails
//! * [`zone_store`] and [`held`]: bytes of logical zones
//! * [`explain`] and `newest`: whether zone directories agree with the tables
//! * [`bootstrap`]: blocks that are named by place
//! * [`commit_point`] and [`anchors`]: which txg is the newest
//! * [`reader`] and [`ahead`]: reads and prefetch
//! * [`cache_devices`] and [`second`]: evicted blocks on cache devices (ZFS: L2ARC)
//! * [`errors`], [`reports`] and [`patience`]: errors, and reads that wait for a device
//! * [`counters`] of what devices did

pub mod ahead;
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
pub mod held;
pub mod host;
mod newest;
pub mod patience;
pub mod pipeline;
pub mod reader;
pub mod reports;
pub mod second;
pub mod workers;
pub mod zone_store;

pub use error::PoolError;
