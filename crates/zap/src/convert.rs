//! From one kind of ZAP to another.
//!
//! Entries keep their hash and differentiator, so cursors stay valid. What a conversion gives is built in memory
//! first: an entry that does not fit, or a slot that turns out to be damaged, leaves the ZAP as it was.

use crate::error::Error;
use crate::fat::{self, Mode};
use crate::hash::Flags;
use crate::key::KeyRef;
use crate::slots::{self, Shape, Slots};
use crate::store::{MemStore, Store, edit};
use crate::value::ValueRef;
use terrane_wire::Corrupt;

/// The same entries in slots of another shape, without gaps, in a block of so many bytes.
pub(crate) fn to_shape(from: &Slots<'_>, shape: Shape, bytes: usize) -> Result<Vec<u8>, Corrupt> {
    let mut raw = vec![0; bytes];
    slots::init(&mut raw, from.salt, from.norm, shape);
    for (number, used) in from.used_slots().enumerate() {
        let (_, slot) = used?;
        slots::put_slot(&mut raw, shape, number, slot.name(), slot.cd(), slot.words());
    }
    Ok(raw)
}

/// The same entries as a fat ZAP in blocks of 2^`block_shift` bytes, and one more stored in it; says whether that
/// one's name is new.
pub(crate) fn to_fat(
    from: &Slots<'_>,
    block_shift: u32,
    (key, value): (KeyRef<'_>, ValueRef<'_>),
    mode: Mode,
) -> Result<(MemStore, bool), Error<Corrupt>> {
    let mut fat_zap = MemStore::new();
    fat_zap.set_block_size(1 << block_shift)?;
    fat::create(&mut fat_zap, from.salt, Flags::NONE, from.norm)?;
    let mut words = Vec::new();
    for used in from.used_slots() {
        let (_, slot) = used?;
        words.clear();
        words.extend(slot.words());
        let key = KeyRef::Name(slot.name());
        fat::put(&mut fat_zap, key, ValueRef::U64s(&words), Mode::AddWithCd(slot.cd()))?;
    }
    let is_new = fat::put(&mut fat_zap, key, value, mode)?;
    Ok((fat_zap, is_new))
}

/// Replaces an object of at most one block by what was built.
pub(crate) fn install<S: Store + ?Sized>(store: &mut S, built: &MemStore) -> Result<(), Error<S::Error>> {
    store.set_block_size(built.block_size())?;
    for (block, bytes) in built.blocks() {
        edit(store, block, |raw| {
            raw.copy_from_slice(bytes);
            Ok(())
        })?;
    }
    Ok(())
}
