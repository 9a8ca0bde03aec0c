//! Operations on a micro or tiny ZAP, with its index in memory.
//!
//! The block alone suffices to answer everything, slowly. Three things make it fast: an [`Index`], a hint where free
//! slots are, and a count of scans without an index. All of them can be dropped at any time. They are wrong once
//! another writer has changed the block, and unknown once the store failed in the middle of a change. Then they are
//! dropped too.
//!
//! Invariant: an existing index equals one built anew from the block.

use crate::convert;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::leaf::top_bits;
use crate::fat::{Entry, Integers, Mode, SHIFT_ALWAYS_ALLOWED, VisitedEntry, header::Geometry};
use crate::index::{Index, IndexedSlot};
use crate::key::{Key, KeyRef};
use crate::options::ZapOptions;
use crate::slots::{self, Shape, Slot, Slots};
use crate::store::{FirstBlock, Store, edit};
use crate::value::ValueRef;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use terrane_wire::Corrupt;

/// So few slots are scanned faster than a name is hashed.
const SLOTS_NEVER_INDEXED: usize = 15;
/// Indexing a slot costs as much as scanning it this many times. Lookups build the index once their scans have cost
/// that.
const SCANS_WORTH_AN_INDEX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct SlotCache {
    index: OnceLock<Index>,
    /// Slots scanned by lookups without an index.
    slots_scanned: AtomicUsize,
    /// Whether the index serves more than listings.
    index_wanted: AtomicBool,
    /// Where the search for a free slot begins.
    slot_hint: usize,
}

/// The result of storing an entry.
pub(crate) enum PutOutcome {
    /// It is stored; `is_new` says whether its name is new.
    Stored { is_new: bool },
    /// It is stored, and all other entries were laid out anew. `is_new` says whether its name is new.
    Reshaped { is_new: bool, entries: usize },
    /// No block of slots can hold it, or not with the present entries. Nothing was changed.
    NeedsFat,
}

/// An entry to be stored, compared with the present ones.
struct Placement {
    found: Option<IndexedSlot>,
    /// Entries that no split of a fat ZAP could separate from it.
    inseparable: usize,
    /// The lowest differentiator that is free for its hash.
    lowest_cd: u32,
}

impl SlotCache {
    /// The index, if it is built.
    pub fn index(&self) -> Option<&Index> {
        self.index.get()
    }

    /// Drops the index; it is built again only when that pays.
    pub fn drop_index(&mut self) {
        self.index = OnceLock::new();
        *self.slots_scanned.get_mut() = 0;
        *self.index_wanted.get_mut() = false;
    }

    /// Ends a listing: an index that only listings used is dropped.
    pub fn end_listing(&mut self) {
        if !*self.index_wanted.get_mut() {
            self.index = OnceLock::new();
        }
    }

    /// Takes an index of the block as it is, unless one exists.
    pub fn adopt(&self, index: Index) {
        let _ = self.index.set(index);
    }

    /// The index, built if necessary.
    fn index_of(&self, slots: &Slots<'_>) -> Result<&Index, Corrupt> {
        match self.index.get() {
            Some(index) => Ok(index),
            None => {
                let built = Index::build(slots)?;
                Ok(self.index.get_or_init(|| built))
            }
        }
    }

    /// The number of entries; a scan of all slots if there is no index.
    pub fn len(&self, slots: &Slots<'_>) -> usize {
        let counted = || slots.slots().filter(|slot| !slot.is_free()).count();
        self.index.get().map_or_else(counted, Index::len)
    }

    /// Finds a name: by a scan of the slots, or by the index once that pays.
    pub fn find<'a>(&self, slots: &Slots<'a>, name: &[u8]) -> Result<Option<Slot<'a>>, Corrupt> {
        if name.len() > slots.shape.name_bytes_max() {
            return Ok(None);
        }
        if self.index.get().is_none() {
            let count = slots.slot_count();
            let scanned = match count <= SLOTS_NEVER_INDEXED {
                true => 0,
                false => self.slots_scanned.fetch_add(count, Ordering::Relaxed),
            };
            if scanned < count.saturating_mul(SCANS_WORTH_AN_INDEX) {
                return Ok(slots.scan(name));
            }
        }
        self.index_wanted.store(true, Ordering::Relaxed);
        Ok(find_indexed(slots, self.index_of(slots)?, name)?.map(|(_, slot)| slot))
    }

    /// Up to `max` entries from the cursor on.
    pub fn list(&self, slots: &Slots<'_>, from: Cursor, max: usize) -> Result<Vec<Entry>, Corrupt> {
        let place = |i: &IndexedSlot| (i.hash, u32::from(i.cd));
        let after = self.index_of(slots)?.from(from.hash, 0).skip_while(|i| place(i) < (from.hash, from.cd));
        after.take(if from.is_end() { 0 } else { max }).map(|i| read_indexed(slots, i)).collect()
    }

    /// Passes entries from the cursor on to `each` until it returns false. Returns true if the last entry was passed.
    pub fn visit(
        &self,
        slots: &Slots<'_>,
        from: Cursor,
        each: &mut dyn FnMut(VisitedEntry<'_>) -> bool,
    ) -> Result<bool, Corrupt> {
        if from.is_end() {
            return Ok(true);
        }
        let place = |i: &IndexedSlot| (i.hash, u32::from(i.cd));
        for indexed in self.index_of(slots)?.from(from.hash, 0) {
            if place(&indexed) < (from.hash, from.cd) {
                continue;
            }
            let slot = slots.indexed_slot(indexed.slot)?;
            let (key, after) = (KeyRef::Name(slot.name()), Cursor::after(indexed.hash, slot.cd()));
            let integers = Integers::Words(slot.words_raw());
            if !each(VisitedEntry { key, first_integer: Some(slot.first_word()), integers, after }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Stores a value under a name, and grows the block or changes its shape if needed.
    pub fn put<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        first: FirstBlock,
        options: &ZapOptions,
        (name, value): (&[u8], ValueRef<'_>),
        mode: Mode,
    ) -> Result<PutOutcome, Error<S::Error>> {
        let outcome = self.try_put(store, first, options, (name, value), mode);
        self.reset_on_error(&outcome);
        outcome
    }

    fn try_put<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        (block_0, block_count): FirstBlock,
        options: &ZapOptions,
        (name, value): (&[u8], ValueRef<'_>),
        mode: Mode,
    ) -> Result<PutOutcome, Error<S::Error>> {
        *self.index_wanted.get_mut() = true;
        let parsed = Slots::parse(&block_0, block_count).map_err(Error::lift)?;
        parsed.norm.validate(KeyRef::Name(name)).map_err(Error::lift)?;
        let (shape, slots) = (parsed.shape, parsed.slot_count());
        let index = self.index_of(&parsed).map_err(Error::damage)?;
        let hash = parsed.hash(name);
        let placement = find_placement(&parsed, index, name, hash).map_err(Error::damage)?;
        // Before anything grows: a refused name changes nothing.
        if placement.found.is_some() && mode == Mode::Add {
            return Err(Error::Exists);
        }
        if let Some(only) = placement.found.filter(|_| index.len() == 1)
            && let Some(words) = value.words().filter(|words| words.len() != shape.value_ints())
        {
            let target = Shape::smallest(words.len(), name.len(), options.tiny);
            // A fat ZAP that it may become later needs a leaf for it.
            let chunks_max = Geometry { block_shift: options.fat_block_shift }.chunks();
            let Some(target) = target.filter(|target| target.leaf_chunks_max() < chunks_max) else {
                return Ok(PutOutcome::NeedsFat);
            };
            return self.replace_only(store, (block_0, block_count), target, (name, only.cd.into(), words));
        }
        // Even if the name exists and needs no slot: OpenZFS does so, and bytes depend on it.
        let is_full = index.len() >= slots;
        let grown = if is_full { block_0.len() + slots::GROWTH_BYTES } else { block_0.len() };
        if is_full && grown > options.slots_bytes_max() {
            return Ok(PutOutcome::NeedsFat);
        }
        let entry = (name.len(), value);
        let shaped =
            shape_for(&parsed, (index.len(), placement.found), entry, options).map_err(Error::damage)?;
        let Some((words, target)) = shaped else { return Ok(PutOutcome::NeedsFat) };
        // All entries that no split can separate must fit into one leaf if the ZAP becomes fat later. OpenZFS does
        // not check that when an update adds a name, nor in tiny ZAPs.
        let chunks_max = Geometry { block_shift: options.fat_block_shift }.chunks();
        let is_new = placement.found.is_none();
        let is_crowd = (placement.inseparable + usize::from(is_new)) * target.leaf_chunks_max() >= chunks_max;
        // Words may be longer than those that they replace, although the slots have space for them.
        if is_crowd && target == shape && options.padding.is_some() && value.num_ints() > 1 {
            return Ok(PutOutcome::NeedsFat);
        }
        if let Some(indexed) = placement.found
            && target == shape
        {
            drop(block_0);
            grow(store, is_full, grown)?;
            let slot = usize::from(indexed.slot);
            change(store, |raw| {
                if is_full {
                    // The end of the block becomes a slot, whatever its bytes were.
                    slots::clear_slot(raw, shape, slots);
                }
                slots::put_value(raw, shape, slot, words.iter().copied());
            })?;
            return Ok(PutOutcome::Stored { is_new: false });
        }
        if is_crowd {
            return Ok(PutOutcome::NeedsFat);
        }
        if target != shape {
            let used = index.len();
            let bytes = target.bytes_for(used + usize::from(is_new)).max(grown);
            if bytes > options.slots_bytes_max().max(grown) {
                return Ok(PutOutcome::NeedsFat);
            }
            let mut raw = convert::to_shape(&parsed, target, bytes).map_err(Error::damage)?;
            match placement.found {
                // Slots keep their order.
                Some(indexed) => {
                    let before =
                        parsed.slots().take(usize::from(indexed.slot)).filter(|slot| !slot.is_free());
                    slots::put_value(&mut raw, target, before.count(), words.iter().copied());
                }
                None => {
                    slots::put_slot(&mut raw, target, used, name, placement.lowest_cd, words.iter().copied())
                }
            }
            drop(block_0);
            grow(store, true, bytes)?;
            change(store, |block| block.copy_from_slice(&raw))?;
            self.slot_hint = hint_after(used, target.slot_count(bytes));
            self.index = OnceLock::new();
            return Ok(PutOutcome::Reshaped { is_new, entries: used });
        }
        let slot = if is_full { Some(slots) } else { parsed.free_slot(self.slot_hint) };
        let slot_damage =
            || Error::damage(Corrupt::new("block 0", "free slots", "at least 1 by the index", "none"));
        let slot = slot.ok_or_else(slot_damage)?;
        let cd = placement.lowest_cd;
        drop(block_0);
        grow(store, is_full, grown)?;
        change(store, |raw| slots::put_slot(raw, shape, slot, name, cd, words.iter().copied()))?;
        self.slot_hint = hint_after(slot, shape.slot_count(grown));
        match (self.index.get_mut(), u16::try_from(cd), u16::try_from(slot)) {
            (Some(index), Ok(cd), Ok(slot)) => index.insert(hash, cd, slot),
            _ => self.index = OnceLock::new(),
        }
        Ok(PutOutcome::Stored { is_new: true })
    }

    /// Replaces the only entry by one of another width, in slots of this shape: without it the ZAP is empty, and an empty
    /// one takes any shape. The name keeps its differentiator, so cursors stay valid. The block keeps its size, which
    /// is enough for one slot of any shape.
    fn replace_only<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        (block_0, block_count): FirstBlock,
        target: Shape,
        (name, cd, words): (&[u8], u32, &[u64]),
    ) -> Result<PutOutcome, Error<S::Error>> {
        let parsed = Slots::parse(&block_0, block_count).map_err(Error::lift)?;
        let mut raw = vec![0; block_0.len()];
        slots::init(&mut raw, parsed.salt, parsed.norm, target);
        slots::put_slot(&mut raw, target, 0, name, cd, words.iter().copied());
        self.slot_hint = hint_after(0, target.slot_count(raw.len()));
        drop(block_0);
        change(store, |block| block.copy_from_slice(&raw))?;
        self.index = OnceLock::new();
        Ok(PutOutcome::Stored { is_new: false })
    }

    /// Removes a name; returns whether it existed.
    pub fn remove<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        first: FirstBlock,
        name: &[u8],
    ) -> Result<bool, Error<S::Error>> {
        let outcome = self.try_remove(store, first, name);
        self.reset_on_error(&outcome);
        outcome
    }

    fn try_remove<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        (block_0, block_count): FirstBlock,
        name: &[u8],
    ) -> Result<bool, Error<S::Error>> {
        *self.index_wanted.get_mut() = true;
        let parsed = Slots::parse(&block_0, block_count).map_err(Error::lift)?;
        let shape = parsed.shape;
        let index = self.index_of(&parsed).map_err(Error::damage)?;
        let Some((indexed, _)) = find_indexed(&parsed, index, name).map_err(Error::damage)? else {
            return Ok(false);
        };
        drop(block_0);
        change(store, |raw| slots::clear_slot(raw, shape, usize::from(indexed.slot)))?;
        if let Some(index) = self.index.get_mut() {
            index.remove(indexed);
        }
        Ok(true)
    }

    /// After a failure the store may or may not have changed the block, so the state in memory is dropped.
    fn reset_on_error<T, E>(&mut self, outcome: &Result<T, Error<E>>) {
        if matches!(outcome, Err(Error::Store(_))) {
            *self = SlotCache::default();
        }
    }
}

/// The words of a value, and the slots that can hold it under a name of `name_bytes` bytes beside the `used` entries
/// of the block, one of which it may replace. `None` if there are none.
fn shape_for<'v>(
    from: &Slots<'_>,
    (used, replaced): (usize, Option<IndexedSlot>),
    (name_bytes, value): (usize, ValueRef<'v>),
    options: &ZapOptions,
) -> Result<Option<(&'v [u64], Shape)>, Corrupt> {
    let Some(words) = value.words() else { return Ok(None) };
    let (shape, tiny) = (from.shape, options.tiny);
    let fits_words = match options.padding {
        None => words.len() == shape.value_ints(),
        Some(_) => words.len() <= shape.value_ints(),
    };
    let target = match used {
        0 => Shape::smallest(words.len(), name_bytes, tiny),
        _ if fits_words && name_bytes <= shape.name_bytes_max() => Some(shape),
        _ if fits_words => Shape::smallest(shape.value_ints(), name_bytes, tiny),
        _ if options.padding.is_some() => {
            let longest = from.widest(options.padding, replaced.map(|indexed| indexed.slot))?.name_bytes;
            Shape::smallest(words.len(), name_bytes.max(longest), tiny)
        }
        _ => None,
    };
    Ok(target.map(|target| (words, target)))
}

fn grow<S: Store + ?Sized>(store: &mut S, grows: bool, bytes: usize) -> Result<(), S::Error> {
    if grows { store.set_block_size(bytes) } else { Ok(()) }
}

fn change<S: Store + ?Sized>(store: &mut S, mut change: impl FnMut(&mut [u8])) -> Result<(), S::Error> {
    edit(store, 0, |raw| {
        change(raw);
        Ok(())
    })
}

/// The hint for the next search after this slot was taken.
fn hint_after(slot: usize, slots: usize) -> usize {
    if slot + 1 >= slots { 0 } else { slot + 1 }
}

/// Compares all entries that agree with a hash in as many bits as any fat ZAP can distinguish.
fn find_placement(slots: &Slots<'_>, index: &Index, name: &[u8], hash: u64) -> Result<Placement, Corrupt> {
    let bits = SHIFT_ALWAYS_ALLOWED;
    let mut placement = Placement { found: None, inseparable: 0, lowest_cd: 0 };
    let near = index.from(hash & !(u64::MAX >> bits), 0);
    for indexed in near.take_while(|i| top_bits(i.hash, bits) == top_bits(hash, bits)) {
        placement.inseparable += 1;
        if indexed.hash != hash {
            continue;
        }
        if u32::from(indexed.cd) == placement.lowest_cd {
            placement.lowest_cd += 1;
        }
        if placement.found.is_none() && slots.indexed_slot(indexed.slot)?.is_named(name) {
            placement.found = Some(indexed);
        }
    }
    Ok(placement)
}

fn find_indexed<'a>(
    slots: &Slots<'a>,
    index: &Index,
    name: &[u8],
) -> Result<Option<(IndexedSlot, Slot<'a>)>, Corrupt> {
    let hash = slots.hash(name);
    for indexed in index.colliders(hash) {
        let slot = slots.indexed_slot(indexed.slot)?;
        if slot.is_named(name) {
            return Ok(Some((indexed, slot)));
        }
    }
    Ok(None)
}

fn read_indexed(slots: &Slots<'_>, indexed: IndexedSlot) -> Result<Entry, Corrupt> {
    let slot = slots.indexed_slot(indexed.slot)?;
    let key = Key::Name(slot.name().to_vec());
    Ok(Entry { key, value: slot.value(), hash: indexed.hash, cd: slot.cd(), conflict: false })
}
