//! Where the bytes of a pool are: its devices, what is appended to them, and how blocks are made ready for that.
//!
//! Nothing here knows what a transaction group means.
//!
//! Rooms, in reading order: [`env`] (clock, randomness, threads), [`devices`] and [`host`] (the devices, and the file systems that hold
//! them), [`prepare`] and [`workers`] (compression and checksums), [`append`] (batches, writes, what happens when one fails), [`patience`]
//! (reads that wait for a device), [`counters`] (what is counted where it happens).

pub mod append;
pub mod counters;
pub mod devices;
pub mod env;
mod error;
pub mod host;
pub mod patience;
pub mod prepare;
pub mod workers;

pub use error::PoolError;
