//! Bytes that may lie.
//!
//! Everything Terrane reads back from a device was once written by somebody: by us, by an older or newer
//! us, by a disk that forgot half of it, or by an attacker. This crate holds the few tools with which such
//! bytes are taken apart without trusting them: a [`Reader`] that cannot run past its end, a [`Writer`] for
//! the other direction, [`layout!`] for fixed structures, [`Corrupt`] for what was found instead of what
//! was expected, and the unit types that keep one kind of number from being taken for another.
//!
//! [`meter`] and [`Dice`] stand here too, although nothing in them comes from a device: every floor, or its tests, needs them.
//!
//! Invariant: nothing here panics or allocates by a number that came from the bytes.

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
