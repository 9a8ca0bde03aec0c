//! Bytes that may lie: tools that parse untrusted input.
//!
//! A device returns what was once written by this version, by an older or newer version, by a failing disk, or by an
//! attacker. So no stored byte is trusted. This crate has the few tools that parse such bytes:
//!
//! * [`Reader`], a cursor that cannot run past its end, and [`Writer`] for the other direction;
//! * [`layout!`] for structures of fixed layout;
//! * [`Corrupt`], a finding of damage;
//! * the unit types, which keep one kind of number from being taken for another.
//!
//! [`meter`] and [`Prng`] parse nothing. They are here because every crate, or its tests, needs them.
//!
//! Invariant: nothing here panics on stored bytes, or allocates by a number that came from them.

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]

mod corrupt;
mod id_map;
pub mod layout;
pub mod meter;
mod prng;
mod reader;
mod units;
mod writer;

pub use corrupt::Corrupt;
pub use id_map::{IdHasher, IdMap, IdSet, shard};
pub use layout::{Field, Row};
pub use prng::{Prng, mix64, splitmix64};
pub use reader::{Reader, Truncated};
pub use units::{BlockNo, DeviceIdx, ObjectId, ObjsetId, Txg, ZoneIdx, ZoneSeq};
pub use writer::Writer;
