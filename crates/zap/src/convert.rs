//! Conversions from one kind of ZAP to another.
//!
//! Entries keep their hash and differentiator, so cursors stay valid. The result is built in memory first. So if an
//! entry does not fit, or a slot is damaged, the ZAP stays as it was.

use crate::bytes::put;
use crate::error::Error;
use crate::fat::{self, Entry, Mode};
use crate::hash::Flags;
use crate::key::KeyRef;
use crate::norm::NormFlags;
use crate::slots::{self, Shape, Slots};
use crate::store::{MemStore, Store, edit};
use crate::value::{CountBits, ValueRef};
use terrane_wire::Corrupt;

/// The same entries in slots of another shape, without gaps, in a block of `bytes` bytes. Words that the shape lacks
/// must be padding.
pub(crate) fn to_shape(from: &Slots<'_>, shape: Shape, bytes: usize) -> Result<Vec<u8>, Corrupt> {
    let mut raw = vec![0; bytes];
    slots::init(&mut raw, from.salt, from.norm, shape);
    for (number, used) in from.used_slots().enumerate() {
        let (_, slot) = used?;
        slots::put_slot(&mut raw, shape, number, slot.name(), slot.cd(), slot.words());
    }
    Ok(raw)
}

/// A block of slots with these entries in their order. Their values must have at most as many words as the shape, and
/// their names must fit.
pub(crate) fn to_slots(entries: &[Entry], salt: u64, norm: NormFlags, shape: Shape) -> Vec<u8> {
    let mut raw = vec![0; shape.bytes_for(entries.len())];
    slots::init(&mut raw, salt, norm, shape);
    for (number, entry) in entries.iter().enumerate() {
        let name = entry.key.name().unwrap_or_default();
        slots::put_slot(&mut raw, shape, number, name, entry.cd, entry.value.ints());
    }
    raw
}

/// The same entries as a fat ZAP in blocks of 2^`block_shift` bytes, and one more entry stored in it. Returns whether
/// the name of that one is new.
pub(crate) fn to_fat(
    from: &Slots<'_>,
    (block_shift, padding): (u32, Option<CountBits>),
    (key, value): (KeyRef<'_>, ValueRef<'_>),
    mode: Mode,
) -> Result<(MemStore, bool), Error<Corrupt>> {
    let mut fat_zap = MemStore::new();
    fat_zap.set_block_size(1 << block_shift)?;
    fat::create(&mut fat_zap, from.salt, Flags::NONE, from.norm)?;
    let mut words = Vec::new();
    for used in from.used_slots() {
        let (number, slot) = used?;
        words.clear();
        match slot.unpadded(padding) {
            Ok(unpadded) => words.extend(unpadded),
            // It is replaced below.
            Err(_) if key == KeyRef::Name(slot.name()) => words.extend(slot.words()),
            Err(damage) => return Err(damage.within(format_args!("block 0 slot {number}")).into()),
        }
        let key = KeyRef::Name(slot.name());
        fat::put(&mut fat_zap, key, ValueRef::U64s(&words), Mode::AddWithCd(slot.cd()))?;
    }
    let is_new = fat::put(&mut fat_zap, key, value, mode)?.is_new;
    Ok((fat_zap, is_new))
}

/// Replaces the whole object by the built ZAP.
pub(crate) fn install<S: Store + ?Sized>(store: &mut S, built: &MemStore) -> Result<(), Error<S::Error>> {
    if store.block_count() > 1 || built.block_count() == 0 {
        store.truncate(0)?;
    }
    let bytes = built.block_size();
    // A block replaced by a shorter one is written first and truncated then, so it is a whole ZAP at every moment.
    let is_cut = built.block_count() == 1 && store.block_count() == 1 && bytes < store.block_size();
    if !is_cut {
        store.set_block_size(bytes)?;
    }
    for (block, new) in built.blocks() {
        edit(store, block, |raw| {
            raw.fill(0);
            put(raw, 0, new);
            Ok(())
        })?;
    }
    if is_cut {
        store.set_block_size(bytes)?;
    }
    Ok(())
}
