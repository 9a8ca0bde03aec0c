//! Storage pool: block allocation, I/O, garbage collection and transaction groups.
//!
//! The pool turns zones into a store of immutable blocks that commits in transaction groups. Upper layers
//! hand it dirty blocks when a txg syncs, and get pointers back. It appends them, counts live bytes, and
//! finds blocks by birthplace wherever they are now. One uberblock makes the whole txg durable.
//!
//! `terrane_format` has the on-disk structures, `terrane_space` the accounting of zones and placement, and
//! `terrane_cache` the caches in memory. `terrane_store` has devices, appends and reads, and `terrane_txg`
//! the states of transaction groups.
//!
//! Modules, in reading order:
//!
//! * `features`: what may be written; `lifetimes`: lifetimes of files; [`read`]: calls of the reader;
//! * [`txg`], [`txg_sync`] and `nopwrite`: the commit; `mover` and `gc`: relocation; `cache_devices` and `log_devices`;
//! * [`pool`]: state, export and shutdown; [`create`] and [`import`]; `reports`: errors; [`stats`]: counters;
//! * `trace`: births and frees, for a replay.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(missing_docs)]

mod anchors;
mod cache_devices;
mod colocated;
pub mod create;

mod features;
mod found_log;
mod frees;
mod gc;
mod hold;
mod identity;
pub mod import;
pub mod inspect;
mod levels;
mod lifetimes;
pub mod log;
mod log_devices;
pub mod membership;
mod mover;
mod nopwrite;
pub mod pool;
pub mod read;
mod rebuild;
pub mod references;
pub mod removal;
mod reports;
mod reset;
mod rewrite;
pub mod stats;
mod trace;
pub mod txg;
pub mod txg_sync;
mod validate;
mod warming;

pub use cache_devices::{CacheDeviceStatus, is_cache_of};
pub use create::CreateOptions;
pub use import::{EarlierState, ImportOptions, Probe, probe};
pub use log::LogSummary;
pub use log_devices::{LogDeviceStatus, check_new_log_devices};
pub use pool::{Client, MemoryBounds, Pool, Status, Stream, Tx, TxgSync, WriteRequest};
pub use rebuild::IndexSource;
pub use rewrite::{RelocatedBlock, RewriteCursor, needed as rewrites_needed};
pub use stats::{DeviceStats, KeptSpace, Stats};
