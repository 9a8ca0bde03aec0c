//! Work on a micro ZAP, with what is remembered about it.
//!
//! The block alone is enough to answer everything, slowly; an [`Index`] of it, a hint where free slots are, and a
//! count of the work done without an index make it fast. All of this can be forgotten at any time. It is wrong
//! once anybody else changed the block, and unknown once the store failed in the middle of a change, so then it
//! is forgotten too.
//!
//! Invariant: an index that is there equals one built anew from the block.

use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::{Entry, Mode, header::Geometry};
use crate::hash::Flags;
use crate::index::{Index, Indexed};
use crate::key::{Key, KeyRef};
use crate::micro::{self, Micro};
use crate::store::{Store, edit};
use crate::value::{Value, ValueRef};
use crate::zap::ZapOptions;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrane_wire::Corrupt;

/// A micro ZAP of so few slots is searched faster than a name is hashed.
const SLOTS_NEVER_INDEXED: usize = 15;
/// To index a slot costs as much as to look at it this many times: lookups build the index when they have cost
/// that.
const SCANS_WORTH_AN_INDEX: usize = 8;
/// Chunks an entry of a micro ZAP takes in a leaf, at most: itself, three for 50 bytes of name, one for a `u64`.
const ENTRY_CHUNKS: usize = 5;

#[derive(Debug, Default)]
pub(crate) struct Remembered {
    index: OnceLock<Index>,
    /// Slots looked at by lookups that went without an index.
    slots_scanned: AtomicUsize,
    /// Where the search for a free slot begins.
    slot_hint: usize,
}

/// What became of an entry to be stored.
pub(crate) enum Put {
    /// It is stored; whether its name is new.
    Stored { is_new: bool },
    /// No micro ZAP can hold it, or not beside what is there. Nothing was changed.
    Outgrown,
}

impl Remembered {
    /// The index, if there is one.
    pub fn index(&self) -> Option<&Index> {
        self.index.get()
    }

    /// The index, built if there is none.
    pub fn index_of(&self, micro: &Micro<'_>) -> Result<&Index, Corrupt> {
        match self.index.get() {
            Some(index) => Ok(index),
            None => {
                let built = Index::build(micro)?;
                Ok(self.index.get_or_init(|| built))
            }
        }
    }

    pub fn len(&self, micro: &Micro<'_>) -> usize {
        let counted = || micro.slots().filter(|slot| !slot.is_free()).count();
        self.index.get().map_or_else(counted, Index::len)
    }

    pub fn find(&self, micro: &Micro<'_>, name: &[u8]) -> Result<Option<u64>, Corrupt> {
        if name.len() > micro::NAME_BYTES_MAX {
            return Ok(None);
        }
        if self.index.get().is_none() {
            let slots = micro.slot_count();
            let scanned = match slots <= SLOTS_NEVER_INDEXED {
                true => 0,
                false => self.slots_scanned.fetch_add(slots, Ordering::Relaxed),
            };
            if scanned < slots.saturating_mul(SCANS_WORTH_AN_INDEX) {
                return Ok(micro.scan(name).map(|slot| slot.value));
            }
        }
        Ok(find_indexed(micro, self.index_of(micro)?, name)?.map(|(_, value)| value))
    }

    /// Up to `max` entries from the cursor on.
    pub fn list(&self, micro: &Micro<'_>, from: Cursor, max: usize) -> Result<Vec<Entry>, Corrupt> {
        let place = |i: &Indexed| (i.hash, u32::from(i.cd));
        let after = self.index_of(micro)?.from(from.hash, 0).skip_while(|i| place(i) < (from.hash, from.cd));
        after.take(if from.is_end() { 0 } else { max }).map(|i| read_indexed(micro, i)).collect()
    }

    /// Stores a value under a name, growing the block where needed.
    pub fn put<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        options: &ZapOptions,
        (name, value): (&[u8], ValueRef<'_>),
        mode: Mode,
    ) -> Result<Put, Error<S::Error>> {
        let outcome = self.try_put(store, options, (name, value), mode);
        self.forget_after(&outcome);
        outcome
    }

    fn try_put<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        options: &ZapOptions,
        (name, value): (&[u8], ValueRef<'_>),
        mode: Mode,
    ) -> Result<Put, Error<S::Error>> {
        let block_0 = store.read(0)?;
        let parsed = Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?;
        let (bytes, slots) = (block_0.len(), parsed.slot_count());
        let index = self.index_of(&parsed).map_err(Error::damage)?;
        let found = find_indexed(&parsed, index, name).map_err(Error::damage)?.map(|(indexed, _)| indexed);
        // Before anything grows: a name that is refused changes nothing.
        if found.is_some() && mode == Mode::Add {
            return Err(Error::Exists);
        }
        // Also when the name is there and no slot is wanted: so does the reference, and bytes depend on it.
        let is_full = index.len() >= slots;
        let grown = if is_full { bytes + micro::GROWTH_BYTES } else { bytes };
        if is_full && grown > bytes_max(options) {
            return Ok(Put::Outgrown);
        }
        let (Some(value), true) = (value.single_u64(), name.len() <= micro::NAME_BYTES_MAX) else {
            return Ok(Put::Outgrown);
        };
        if let Some(indexed) = found {
            drop(block_0);
            if is_full {
                store.set_block_size(grown)?;
            }
            change(store, |raw| micro::put_value(raw, usize::from(indexed.slot), value))?;
            return Ok(Put::Stored { is_new: false });
        }
        let hash = Flags::NONE.hash(parsed.salt, KeyRef::Name(name));
        // All that collide must fit one leaf if the ZAP becomes fat later. The reference forgets to ask when a
        // name is added by an update.
        let chunks_max = Geometry { block_shift: options.fat_block_shift }.chunks();
        if (index.colliders(hash).count() + 1) * ENTRY_CHUNKS >= chunks_max {
            return Ok(Put::Outgrown);
        }
        let cd = index.lowest_cd(hash);
        let slot = if is_full { Some(slots) } else { parsed.free_slot(self.slot_hint) };
        let slot_damage =
            || Error::damage(Corrupt::new("block 0", "free slots", "some, by the index", "none"));
        let slot = slot.ok_or_else(slot_damage)?;
        drop(block_0);
        if is_full {
            store.set_block_size(grown)?;
        }
        change(store, |raw| micro::put_slot(raw, slot, name, cd, value))?;
        self.slot_hint = if slot + 1 >= micro::slot_count(grown) { 0 } else { slot + 1 };
        match (self.index.get_mut(), u16::try_from(cd), u16::try_from(slot)) {
            (Some(index), Ok(cd), Ok(slot)) => index.insert(hash, cd, slot),
            _ => self.index = OnceLock::new(),
        }
        Ok(Put::Stored { is_new: true })
    }

    /// Whether the name was there.
    pub fn remove<S: Store + ?Sized>(&mut self, store: &mut S, name: &[u8]) -> Result<bool, Error<S::Error>> {
        let outcome = self.try_remove(store, name);
        self.forget_after(&outcome);
        outcome
    }

    fn try_remove<S: Store + ?Sized>(&mut self, store: &mut S, name: &[u8]) -> Result<bool, Error<S::Error>> {
        let block_0 = store.read(0)?;
        let parsed = Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?;
        let index = self.index_of(&parsed).map_err(Error::damage)?;
        let Some((indexed, _)) = find_indexed(&parsed, index, name).map_err(Error::damage)? else {
            return Ok(false);
        };
        drop(block_0);
        change(store, |raw| micro::clear_slot(raw, usize::from(indexed.slot)))?;
        if let Some(index) = self.index.get_mut() {
            index.remove(indexed);
        }
        Ok(true)
    }

    /// A store that failed may or may not have changed the block: what was remembered can no longer be believed.
    fn forget_after<T, E>(&mut self, outcome: &Result<T, Error<E>>) {
        if matches!(outcome, Err(Error::Store(_))) {
            *self = Remembered::default();
        }
    }
}

fn change<S: Store + ?Sized>(store: &mut S, mut change: impl FnMut(&mut [u8])) -> Result<(), S::Error> {
    edit(store, 0, |raw| {
        change(raw);
        Ok(())
    })
}

fn bytes_max(options: &ZapOptions) -> usize {
    options.micro_max_bytes.min(micro::BYTES_LIMIT).next_multiple_of(micro::GROWTH_BYTES)
}

fn find_indexed(micro: &Micro<'_>, index: &Index, name: &[u8]) -> Result<Option<(Indexed, u64)>, Corrupt> {
    let hash = Flags::NONE.hash(micro.salt, KeyRef::Name(name));
    for indexed in index.colliders(hash) {
        let slot = micro.indexed_slot(indexed.slot)?;
        if slot.is_named(name) {
            return Ok(Some((indexed, slot.value)));
        }
    }
    Ok(None)
}

fn read_indexed(micro: &Micro<'_>, indexed: Indexed) -> Result<Entry, Corrupt> {
    let slot = micro.indexed_slot(indexed.slot)?;
    let key = Key::Name(slot.name().to_vec());
    Ok(Entry { key, value: Value::U64(slot.value), hash: indexed.hash, cd: slot.cd })
}
