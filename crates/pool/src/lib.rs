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
//! * `features`: what may be written; `fates`: lifetimes of files; [`read`]: calls of the reader;
//! * [`txg`], [`group`] and `nopwrite`: the commit; `mover` and `gc`: relocation; `caches`: cache devices;
//! * [`pool`]: state, export and shutdown; [`create`] and [`import`]; `reports`: errors; [`stats`]: counters;
//! * `trace`: births and frees, for a replay.

mod anchors;
mod apart;
mod caches;
pub mod create;

mod fates;
mod features;
mod frees;
mod gc;
pub mod group;
mod hold;
mod identity;
pub mod import;
pub mod inspect;
mod judge;
pub mod leaving;
mod levels;
pub mod membership;
mod mover;
mod nopwrite;
pub mod pool;
pub mod read;
mod rebirth;
mod rebuild;
mod reports;
mod reset;
pub mod stats;
mod trace;
pub mod txg;

pub use caches::{CacheDevice, is_cache_of};
pub use create::CreateOptions;
pub use import::{ImportOptions, Probe, probe};
pub use pool::{Client, Group, MemoryBounds, Pool, Status, Stream, Tx, WriteRequest};
pub use rebirth::{RebirthCursor, Relic};
pub use rebuild::Index;
pub use stats::{DeviceStats, Stats};
