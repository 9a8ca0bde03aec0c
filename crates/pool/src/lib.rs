//! Appended, counted, moved, committed.
//!
//! The pool turns zones into a store of immutable blocks that commits in groups. Upper floors hand it dirty blocks when a group
//! syncs and get pointers back; it appends, counts what is live, finds blocks by birthplace wherever they are now, and makes the
//! whole group durable with one uberblock.
//!
//! `terrane_format` has the bytes of all this, `terrane_space` the accounting of zones and the choice of places, `terrane_cache` what stays
//! in memory, `terrane_store` devices, appends and reads, and `terrane_txg` the states of transaction groups. Modules, in reading order:
//! `features` (what may be written), `fates` (lifetimes of files), [`read`] (calls of the reader), [`txg`], [`group`] and `nopwrite` (the
//! commit), `mover` and `gc` (relocation), `caches` (cache devices), [`pool`] (create, import, export), `reports` (errors), [`stats`]
//! (counters), and `trace` (births and deaths, for a replay).

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
