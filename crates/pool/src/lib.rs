//! Appended, counted, moved, committed.
//!
//! The pool turns zones into a store of immutable blocks that commits in groups. Upper floors hand it dirty blocks when a group
//! syncs and get pointers back; it appends, counts what is live, finds blocks by birthplace wherever they are now, and makes
//! the whole group durable with one uberblock.
//!
//! Rooms, in reading order: [`addr`] and [`block_ptr`] (how blocks are named), [`label`] (how a pool is found), [`features`] (what it
//! may hold), [`record`] and [`zones`] (its books), [`directory`] (what zones tell of themselves), [`policy`] (where blocks go),
//! `fates` (how files fared), `append` and `read` (the way down and up), `ahead` (what is read before somebody asks), `txg`, [`group`] and
//! `nopwrite` (the commit), `gc` (room again), [`second`] (blocks that left memory), `pool` (create, import, export), [`stats`] (what all
//! of them have done so far), [`totals`] (what they did since the pool was made) and `trace` (what was born and died, for a replay).

pub mod addr;
mod ahead;
mod alloc;
mod anchors;
mod apart;
pub mod append;
pub mod block_ptr;
pub mod cache;
mod cost;
pub mod create;
pub mod dead;
mod devices;
pub mod directory;
pub mod env;
mod error;
pub mod errors;
mod fates;
pub mod features;
mod flights;
mod frees;
mod gc;
pub mod gone;
pub mod group;
pub mod hold;
mod host;
mod identity;
pub mod import;
pub mod inspect;
mod judge;
pub mod label;
pub mod leaving;
pub mod levels;
pub mod membership;
mod newest;
mod nopwrite;
mod parts;
pub mod policy;
pub mod pool;
mod prepare;
pub mod read;
mod rebirth;
mod rebuild;
pub mod record;
mod reset;
mod room;
pub mod seal;
pub mod second;
pub mod stats;
pub mod suspend;
pub mod totals;
mod trace;
mod turns;
pub mod txg;
mod workers;
pub mod zone_header;
pub mod zones;

pub use addr::{Addr, GRANULE, Place, granule_bytes};
pub use anchors::overwrite_labels;
pub use block_ptr::BlockPtr;
pub use cost::Cost;
pub use create::CreateOptions;
pub use directory::Owner;
pub use env::{Env, SeededEnv, SystemEnv};
pub use error::PoolError;
pub use errors::{DamagedBlock, DeviceErrors, ErrorLog, Errors, LossCause, LostFile};
pub use features::{FEATURES, Feature};
pub use gc::{GcMode, GcProgress, GcRest, Victim};
pub use group::{Group, Stream, WriteRequest};
pub use import::{ImportOptions, Probe, probe};
pub use levels::{LevelShare, Levels, Method};
pub use membership::Member;
pub use policy::{CollectionOptions, Hint, IdleWindow, Placement, SiblingKey, VictimPolicy};
pub use pool::{Client, MemoryBounds, Pool, Status};
pub use prepare::Made;
pub use rebirth::{RebirthCursor, Relic};
pub use rebuild::Index;
pub use stats::{DeviceStats, Stats};
pub use suspend::{FailMode, Patience, Suspension};
pub use terrane_device as device;
pub use totals::{Spent, Totals};
pub use txg::Tx;
