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
//! [`meter`] and [`Dice`] parse nothing. They are here because every crate, or its tests, needs them.
//!
//! Invariant: nothing here panics on stored bytes, or allocates by a number that came from them.

#![deny(missing_docs)]

mod corrupt;
mod dice;
pub mod layout;
pub mod meter;
mod numbers;
mod reader;
mod units;
mod writer;

pub use corrupt::Corrupt;
pub use dice::{Dice, mixed, scattered};
pub use layout::{Field, Row};
pub use numbers::{NumberHasher, NumberMap, NumberSet};
pub use reader::{Reader, Truncated};
pub use units::{BlockNo, DeviceIdx, ObjectId, ObjsetId, Txg, ZoneIdx, ZoneSeq};
pub use writer::Writer;
