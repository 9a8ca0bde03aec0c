//! Appended, counted, moved, committed.
//!
//! The pool turns zones into a store of immutable blocks that commits in groups. Upper floors hand it dirty blocks when a group
//! syncs and get pointers back; it appends, counts what is live, finds blocks by birthplace wherever they are now, and makes the
//! whole group durable with one uberblock.
//!
//! The bytes of all this are `terrane_format`'s, the books of zones and the choice of places `terrane_space`'s, what stays in memory
//! `terrane_cache`'s; devices, appends and reads are `terrane_store`'s. Rooms, in reading order: `features` (what may be written), `fates`
//! (how files fared), [`read`] (what goes on to the reader), [`txg`], [`group`] and `nopwrite` (the commit), `gc` (room again), `caches`
//! (cache devices), [`pool`] (create, import, export), `reports` (what was found wrong), [`stats`] (what all of them have done so far) and
//! `trace` (what was born and died, for a replay).

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
mod state;
pub mod stats;
mod trace;
pub mod txg;

pub use caches::{CacheDevice, is_cache_of};
pub use create::CreateOptions;
pub use import::{ImportOptions, Probe, probe};
pub use pool::{Client, Group, MemoryBounds, Pool, Status, Stream, Tx, WriteRequest};
pub use rebirth::{RebirthCursor, Relic};
pub use rebuild::Index;
pub use state::by_hand::{GcMode, GcProgress, Victim};
pub use state::cost::Cost;
pub use state::hold::ZoneHold;
pub use state::levels::{LevelShare, Levels, Method};
pub use state::members::Member;
pub use state::unread::GcRest;
pub use stats::{DeviceStats, Stats};
