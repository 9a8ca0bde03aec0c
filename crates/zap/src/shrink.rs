//! Shrinking a ZAP: fat -> tiny -> micro -> no block, smaller slots, a shorter block.
//!
//! A removal never moves other names. So the owner of a ZAP asks once per txg that removed names whether it pays to
//! rewrite the remaining entries:
//!
//! 1. [`Zap::shrink_due`] after a removal: a comparison or two, and block 0.
//! 2. [`Zap::plan_shrink`] reads the remaining entries and builds the smaller ZAP in memory. It takes `&self`, so
//!    readers go on.
//! 3. [`Zap::apply_shrink`] replaces the old ZAP, unless that was changed in between.
//!
//! [`Zap::shrink`] does all three for a caller with exclusive access. Entries keep their hashes and differentiators,
//! and the ZAP its salt, so cursors stay valid.
//!
//! **Hysteresis.** A ZAP must not oscillate around a limit. So it shrinks only into half of the space that it has or
//! may have. A scan of all its entries must be earned by removals: after a conversion, or a scan that gained nothing,
//! at least half as many names must be removed as there were entries. In a fat ZAP, a value that takes another width counts
//! as a removal: after it, all values may have one width.

use crate::convert;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::leaf::top_bits;
use crate::fat::{self, Entry, SHIFT_ALWAYS_ALLOWED, header::Geometry};
use crate::hash::Flags;
use crate::norm::NormFlags;
use crate::options::ZapOptions;
use crate::shrink_trigger::ShrinkTrigger;
use crate::slots::{self, BlockKind, Shape, Slots, Widest};
use crate::store::{MemStore, Store};
use crate::zap::Zap;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_wire::Corrupt;

/// Entries of a fat ZAP that are read at once: each value may have 8 KiB.
const READ_BATCH_ENTRIES: usize = 32;

/// A smaller ZAP that is built, but not installed.
#[derive(Debug)]
pub struct ShrinkPlan {
    /// Without any block if no entry is left.
    built: MemStore,
    state: Arc<()>,
}

impl ShrinkPlan {
    /// Bytes that [`Zap::apply_shrink`] writes. Otherwise it only frees blocks.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.built)
    }
}

/// The outcome of reading all entries.
enum Scan {
    Built(MemStore),
    /// No smaller ZAP has these entries.
    NoGain {
        /// See [`ShrinkTrigger::reset_after_scan`].
        changes_needed: u64,
    },
}

fn bytes_of(built: &MemStore) -> usize {
    built.blocks().map(|(_, bytes)| bytes.len()).sum()
}

impl Zap {
    /// Whether [`plan_shrink`](Zap::plan_shrink) is worthwhile. It is cheap: to be called after each removal, or once
    /// per txg. False if nothing was removed, nor a value's width changed, since this `Zap` was opened.
    pub fn shrink_due<S: Store + ?Sized>(&self, store: &S) -> Result<bool, Error<S::Error>> {
        if !self.shrink_trigger.is_reached() || store.block_count() == 0 {
            return Ok(false);
        }
        let block_0 = store.read(0)?;
        match slots::block_kind(&block_0).map_err(Error::lift)? {
            BlockKind::Slots => {
                let slots = Slots::parse(&block_0, store.block_count()).map_err(Error::lift)?;
                let (shape, used) = (slots.shape, self.slot_cache.len(&slots));
                let words = if self.options.padding.is_some() { 1 } else { shape.value_ints() };
                let smallest = Shape::smallest(words, 1, self.options.tiny);
                let has_smaller = smallest.is_some_and(|smallest| smallest != shape);
                Ok(used == 0 && self.can_recreate(slots.norm)
                    || used > 0 && (has_smaller || is_halved(&slots, used)))
            }
            BlockKind::Fat => {
                let header = fat::header(store)?;
                let entries = usize::try_from(header.num_entries).unwrap_or(usize::MAX);
                let fits =
                    Shape::MICRO.bytes_for(entries.saturating_mul(2)) <= self.options.slots_bytes_max();
                Ok(header.flags == Flags::NONE
                    && if entries == 0 { self.can_recreate(header.norm) } else { fits })
            }
        }
    }

    /// Reads the remaining entries and builds a smaller ZAP, if shrinking is [due](Zap::shrink_due) and a smaller one
    /// exists. It reads and builds at most as many bytes as a tiny ZAP may have. A plan belongs to one state of the
    /// ZAP, so it must be made under the lock that readers share.
    pub fn plan_shrink<S: Store + ?Sized>(&self, store: &S) -> Result<Option<ShrinkPlan>, Error<S::Error>> {
        if !self.shrink_due(store)? {
            return Ok(None);
        }
        let entries = self.len(store)?;
        let scan = match entries {
            0 if self.is_empty(store)? => Scan::Built(MemStore::new()),
            _ => self.build_smaller(store)?,
        };
        match scan {
            Scan::Built(built) => {
                Ok(Some(ShrinkPlan { built, state: Arc::clone(&self.shrink_trigger.state) }))
            }
            Scan::NoGain { changes_needed } => {
                self.shrink_trigger.reset_after_scan(entries, changes_needed);
                Ok(None)
            }
        }
    }

    /// Installs a plan: frees all blocks of the ZAP and writes [`ShrinkPlan::bytes`]. An empty ZAP then has no block and
    /// is [`Kind::Nothing`](crate::Kind::Nothing).
    ///
    /// Returns false, and does nothing, if the ZAP was changed since or is another one. Then a new plan must be made,
    /// if shrinking is still due.
    pub fn apply_shrink<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        plan: ShrinkPlan,
    ) -> Result<bool, Error<S::Error>> {
        if !Arc::ptr_eq(&plan.state, &self.shrink_trigger.state) {
            return Ok(false);
        }
        self.drop_state();
        self.shrink_trigger = ShrinkTrigger::default();
        convert::install(store, &plan.built)?;
        Ok(true)
    }

    /// Shrinks the ZAP if it is due, and returns whether it did. The caller needs exclusive access.
    pub fn shrink<S: Store + ?Sized>(&mut self, store: &mut S) -> Result<bool, Error<S::Error>> {
        match self.plan_shrink(store)? {
            Some(plan) => self.apply_shrink(store, plan),
            None => Ok(false),
        }
    }

    /// Whether the options suffice to create the same ZAP again.
    fn can_recreate(&self, norm: NormFlags) -> bool {
        self.options.salt != 0 && self.options.norm == norm
    }

    fn build_smaller<S: Store + ?Sized>(&self, store: &S) -> Result<Scan, Error<S::Error>> {
        let block_0 = store.read(0)?;
        match slots::block_kind(&block_0).map_err(Error::lift)? {
            BlockKind::Slots => {
                let from = Slots::parse(&block_0, store.block_count()).map_err(Error::lift)?;
                let built = smaller_slots(&from, &self.options).map_err(Error::damage)?;
                Ok(built.map_or(Scan::NoGain { changes_needed: 0 }, Scan::Built))
            }
            BlockKind::Fat => {
                let header = fat::header(store)?;
                let entries = entries_for_slots(store, &self.options)?;
                let built = slots_of_entries(&entries, (header.salt, header.norm), &self.options);
                // Long values in small blocks may need less space than slots that are all as wide as the widest.
                let blocks = header.num_leafs.saturating_add(header.table_numblks).saturating_add(1);
                let is_smaller = |built: &MemStore| {
                    bytes_of(built) as u64 <= blocks.saturating_mul(store.block_size() as u64)
                };
                let changes_needed = changes_to_one_width(&entries);
                Ok(built.filter(is_smaller).map_or(Scan::NoGain { changes_needed }, Scan::Built))
            }
        }
    }
}

/// The entries of a fat ZAP. Empty if one of them fits no slot, or if there are more than half a block may have. It
/// stops at the first such entry: values could take a thousand times the space of slots.
fn entries_for_slots<S: Store + ?Sized>(
    store: &S,
    options: &ZapOptions,
) -> Result<Vec<Entry>, Error<S::Error>> {
    let entries_max = Shape::MICRO.slot_count(options.slots_bytes_max()) / 2;
    let fits = |entry: &Entry| {
        let name_bytes = entry.key.name().map_or(usize::MAX, <[u8]>::len);
        entry.value.int_size() == 8
            && Shape::smallest(entry.value.num_ints(), name_bytes, options.tiny).is_some()
    };
    let (mut entries, mut from) = (Vec::new(), Cursor::START);
    loop {
        let batch = fat::list(store, from, READ_BATCH_ENTRIES)?;
        let Some(last) = batch.last() else { return Ok(entries) };
        from = last.cursor_after();
        if entries.len() + batch.len() > entries_max || !batch.iter().all(fits) {
            return Ok(Vec::new());
        }
        entries.extend(batch);
    }
}

/// Whether the block has space for twice the remaining entries, and for one step of growth.
fn is_halved(slots: &Slots<'_>, used: usize) -> bool {
    let room = slots.shape.bytes_for(used.saturating_mul(2)).saturating_add(slots::GROWTH_BYTES);
    room <= slots.bytes()
}

fn smaller_slots(from: &Slots<'_>, options: &ZapOptions) -> Result<Option<MemStore>, Corrupt> {
    let (used, Widest { words, name_bytes }) =
        (from.used_slots().count(), from.widest(options.padding, None)?);
    let shape = Shape::smallest(words, name_bytes, options.tiny).unwrap_or(from.shape);
    if shape == from.shape && !is_halved(from, used) {
        return Ok(None);
    }
    let raw = convert::to_shape(from, shape, shape.bytes_for(used))?;
    Ok(Some(MemStore::from_image(&raw, raw.len())))
}

/// `None` if these entries have no shape of slots in common, or if their block would exceed half of the limit.
fn slots_of_entries(
    entries: &[Entry],
    (salt, norm): (u64, NormFlags),
    options: &ZapOptions,
) -> Option<MemStore> {
    let is_padded = options.padding.is_some();
    let (mut ints, mut name_bytes) = (entries.first()?.value.num_ints(), 0);
    for entry in entries {
        let count = entry.value.num_ints();
        name_bytes = entry.key.name()?.len().max(name_bytes);
        if entry.value.int_size() != 8 || count != ints && !is_padded {
            return None;
        }
        // Padding would hide that words are missing.
        let counted =
            options.padding.zip(entry.value.first_integer()).map(|(count, first)| count.words(first));
        if is_padded && counted.is_none_or(|counted| counted > count) {
            return None;
        }
        ints = ints.max(count);
    }
    let shape = Shape::smallest(ints, name_bytes, options.tiny)?;
    let inseparable_fit = inseparable_max(entries).saturating_mul(shape.leaf_chunks_max())
        < Geometry { block_shift: options.fat_block_shift }.chunks();
    let half_fits = shape.bytes_for(entries.len().saturating_mul(2)) <= options.slots_bytes_max();
    let cds_fit = entries.iter().all(|entry| entry.cd <= u32::from(u16::MAX));
    if !(inseparable_fit && half_fits && cds_fit) {
        return None;
    }
    let raw = convert::to_slots(entries, salt, norm, shape);
    Some(MemStore::from_image(&raw, raw.len()))
}

/// How many values must change at least before all have one width and count.
fn changes_to_one_width(entries: &[Entry]) -> u64 {
    let mut widths = BTreeMap::<_, usize>::new();
    for entry in entries {
        *widths.entry((entry.value.int_size(), entry.value.num_ints())).or_default() += 1;
    }
    entries.len().saturating_sub(widths.into_values().max().unwrap_or(0)) as u64
}

/// The maximum number of entries that a fat ZAP might be unable to separate. The entries are in the order of their
/// hashes.
fn inseparable_max(entries: &[Entry]) -> usize {
    let near = |hash| top_bits(hash, SHIFT_ALWAYS_ALLOWED);
    let groups = entries.chunk_by(|a, b| near(a.hash) == near(b.hash));
    groups.map(<[Entry]>::len).max().unwrap_or(0)
}
