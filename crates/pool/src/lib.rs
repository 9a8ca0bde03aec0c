//! Appended, counted, moved, committed.
//!
//! The pool turns zones into a store of immutable blocks that commits in groups. Upper floors hand it dirty blocks when a group
//! syncs and get pointers back; it appends, counts what is live, finds blocks by birthplace wherever they are now, and makes the
//! whole group durable with one uberblock.
//!
//! The bytes of all this are `terrane_format`'s, the books of zones and the choice of places `terrane_space`'s, what stays in memory
//! `terrane_cache`'s, devices and appends `terrane_store`'s. Rooms, in reading order: `features` (what may be written), `fates` (how files
//! fared), `read` (the way up), `ahead` (what is read before somebody asks), `txg`, [`group`] and `nopwrite` (the commit), `gc` (room
//! again), [`second`] (blocks that left memory), `pool` (create, import, export), [`errors`] (what was found wrong), [`stats`] (what all of
//! them have done so far) and `trace` (what was born and died, for a replay).

mod ahead;
mod anchors;
mod apart;
mod cost;
pub mod create;
pub mod errors;
mod fates;
mod features;
mod frees;
mod gc;
pub mod group;
pub mod hold;
mod identity;
pub mod import;
pub mod inspect;
mod judge;
pub mod leaving;
pub mod levels;
mod make;
pub mod membership;
mod newest;
mod nopwrite;
pub mod pool;
pub mod read;
mod rebirth;
mod rebuild;
mod reset;
mod room;
pub mod second;
pub mod stats;
pub mod suspend;
mod trace;
pub mod txg;

pub use anchors::overwrite_labels;
pub use cost::Cost;
pub use create::CreateOptions;
pub use errors::{DamagedBlock, DeviceErrors, ErrorLog, Errors, LossCause, LostFile};
pub use gc::{GcMode, GcProgress, GcRest, Victim};
pub use group::{Group, Stream, WriteRequest};
pub use import::{ImportOptions, Probe, probe};
pub use levels::{LevelShare, Levels, Method};
pub use membership::Member;
pub use pool::{Client, MemoryBounds, Pool, Status};
pub use rebirth::{RebirthCursor, Relic};
pub use rebuild::Index;
pub use stats::{DeviceStats, Stats};
pub use terrane_device as device;
pub use terrane_space::policy::{CollectionOptions, Hint, IdleWindow, Placement, SiblingKey, VictimPolicy};
pub use terrane_store::PoolError;
pub use terrane_store::counters::{Io, WaitFor};
pub use terrane_store::env::{Env, SeededEnv, SystemEnv};
pub use terrane_store::patience::{FailMode, Patience, Suspension};
pub use terrane_store::prepare::Made;
pub use txg::Tx;
