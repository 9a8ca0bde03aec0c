//! Where the bytes of a pool are: its devices, what is appended to them, and the way from a pointer to content and back.
//!
//! Nothing here knows what a transaction group means.
//!
//! Rooms, in reading order: [`env`] (clock, randomness, threads), [`devices`] and [`host`] (the devices, and the file systems that hold
//! them), [`pipeline`] and [`workers`] (compression and checksums), [`append`] (batches, writes, what happens when one fails),
//! [`zone_store`] and [`held`] (bytes of logical zones), [`explain`] and `newest` (whether their directories tell the truth), [`bootstrap`]
//! (blocks that are named by place), [`commit_point`] and [`anchors`] (which group is the newest), [`reader`] and [`ahead`] (blocks as
//! readers see them), [`cache_devices`] and [`second`] (blocks that left memory), [`errors`], [`reports`] and [`patience`] (what went
//! wrong, and reads that wait for a device), [`counters`] (what is counted where it happens).

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
