//! From one kind of ZAP to another.
//!
//! Entries keep their hash and differentiator, so cursors stay valid. So far there is one direction, micro to
//! fat; what each conversion needs is a way to list what was there and a way to add it with its differentiator.

use crate::error::Error;
use crate::fat::leaf::{array_chunks, top_bits};
use crate::fat::{self, Mode};
use crate::hash::{Flags, HashBits};
use crate::index::Index;
use crate::key::KeyRef;
use crate::micro::Micro;
use crate::store::Store;
use crate::value::ValueRef;
use terrane_wire::Corrupt;

/// Makes a micro ZAP, of which `micro` is a copy, fat in blocks of 2^`block_shift` bytes. Changes nothing if it would
/// not fit.
pub(crate) fn micro_to_fat<S: Store + ?Sized>(
    store: &mut S,
    micro: &Micro<'_>,
    index: &Index,
    block_shift: u32,
) -> Result<(), Error<S::Error>> {
    judge_room(micro, index, fat::header::Geometry { block_shift }).map_err(Error::lift)?;
    store.set_block_size(1 << block_shift)?;
    fat::create(store, micro.salt, Flags::NONE)?;
    for used in micro.used_slots() {
        let (_, slot) = used.map_err(Error::damage)?;
        let (key, value) = (KeyRef::Name(slot.name()), [slot.value]);
        fat::put(store, key, ValueRef::U64s(&value), Mode::AddWithCd(slot.cd))?;
    }
    Ok(())
}

/// Entries whose hashes no table can tell apart end in one leaf. A micro ZAP written by others may hold more of
/// them than a leaf does; found out half way, its entries would be lost.
fn judge_room(
    micro: &Micro<'_>,
    index: &Index,
    geometry: fat::header::Geometry,
) -> Result<(), Error<Corrupt>> {
    let bits = HashBits::Bits28.table_shift_max();
    let (mut prefix, mut chunks) = (None, 0);
    for indexed in index.from(0, 0) {
        if prefix.replace(top_bits(indexed.hash, bits)) != Some(top_bits(indexed.hash, bits)) {
            chunks = 0;
        }
        chunks += 2 + array_chunks(micro.indexed_slot(indexed.slot)?.name().len() + 1);
        if chunks > geometry.chunks() {
            return Err(Error::Full);
        }
    }
    Ok(())
}
