//! Chooses an open zone for a block when the zone of its slot is full.
//!
//! Space for what four txgs bring is kept for each copy of metadata, at most an eighth of a zone. It lies in the zone that is open for
//! that copy, or in an empty zone that nothing else takes. So both copies fit into different zones, whatever was written before.

use super::{ENTRY_BYTES_MAX, OpenZone, Streams};
use crate::PoolError;
use crate::append::ZoneSource;
use terrane_format::addr::granule_bytes;
use terrane_format::directory::PartEncoder;
use terrane_format::record::ZoneClass;
use terrane_wire::{DeviceIdx, Txg, ZoneSeq};

impl Streams {
    /// A slot whose open zone takes `len` more bytes. That is this slot, with a new zone if needed, or any other if no zone is empty.
    /// `near`: zones that hold other copies of the block. `NoSpace`: no slot takes it, and nothing has changed.
    pub(super) fn slot_with_space(
        &mut self,
        slot: usize,
        (class, is_metadata): (ZoneClass, bool),
        (txg, len): (Txg, u64),
        near: &[ZoneSeq],
        source: &mut dyn ZoneSource,
    ) -> Result<usize, PoolError> {
        if !near.is_empty()
            && let Some(other) = self.slot_for_copy(slot, near, len)
        {
            return Ok(other);
        }
        if self.free_bytes(slot) >= len + self.metadata_reserve() {
            return Ok(slot);
        }
        let mut target = (slot, class);
        let mut is_unwritable = false;
        loop {
            let empty = if is_unwritable { 0 } else { source.empty_zones(&self.other_open_devices(&[slot])) };
            // Each copy of metadata has space in an open zone, or an empty zone that nothing else takes.
            let short = self.slots_short_of_space(slot);
            let is_own = is_metadata && self.layout().meta().contains(&slot);
            let to_spare = empty > if is_own { 0 } else { short.len() };
            let kept = if to_spare || is_metadata { 0 } else { self.metadata_reserve() };
            if self.free_bytes(slot) >= len + kept {
                return Ok(slot);
            }
            if !to_spare {
                let spaces = (0..self.open.len()).map(|other| (self.free_bytes(other), other));
                // The slot with the most free space. If even that has only what is kept for metadata, the block may use it.
                let (free, other) = spaces.clone().max().unwrap_or_default();
                let enough = if empty > 0 { len + kept } else { len };
                if free >= enough {
                    return Ok(self.slot_for_copy(other, near, enough).unwrap_or(other));
                }
                // The empty zones may lie on a drive that has reached its open limit. Then the fullest zone on that drive is closed.
                let may_open = |slots: &[usize]| source.empty_zones(&self.other_open_devices(slots)) > 0;
                if empty > 0 {
                    // Open the zone that is kept for metadata in the slot that lacks space. The block goes there as well.
                    target =
                        short.into_iter().find(|(short, _)| may_open(&[*short])).unwrap_or((slot, class));
                } else {
                    let others = spaces.filter(|(_, other)| may_open(&[slot, *other]));
                    let fullest = if is_unwritable { None } else { others.min() };
                    let Some((_, other)) = fullest else {
                        return Err(PoolError::NoSpace { need: len, free });
                    };
                    self.close_slot(other, txg)?;
                }
            }
            match self.open_zone(target.0, target.1, txg, source) {
                Ok(()) => break,
                // The zones that counted as empty take no more writes.
                Err(PoolError::NoSpace { .. }) => (is_unwritable, target) = (true, (slot, class)),
                Err(error) => return Err(error),
            }
        }
        let (slot, free_bytes) = (target.0, self.free_bytes(target.0));
        if free_bytes < len {
            return Err(PoolError::refused(
                "a block",
                format_args!("at most {free_bytes} bytes, the free space of a zone"),
                format_args!("{len} bytes"),
                "use a smaller record size",
            ));
        }
        Ok(slot)
    }

    /// The slots, with their classes, for the copies of a commit record of `len` bytes. Each copy is a batch of its own. The result is
    /// two zones, one zone for both copies, or one zone for a single copy. `NoSpace`: not even one copy fits.
    pub fn slots_for_record(
        &mut self,
        txg: Txg,
        len: u64,
        source: &mut dyn ZoneSource,
    ) -> Result<Vec<(usize, ZoneClass)>, PoolError> {
        let len = granule_bytes(len);
        let [a, b] = self.layout().meta();
        let mut slots = [(a, ZoneClass::MetaA), (b, ZoneClass::MetaB)];
        let mut near = Vec::new();
        for (slot, class) in &mut slots {
            *slot = self.slot_with_space(*slot, (*class, true), (txg, len), &near, source)?;
            near.extend(self.zone_of(*slot));
        }
        let [first, second] = &mut slots;
        // Making space for the second copy may have closed the zone of the first.
        if self.free_bytes(first.0) < len {
            first.0 = second.0;
        }
        if first.0 == second.0 {
            let both = self.single_batch_bytes(len) + len;
            match self.slot_with_space(second.0, (second.1, true), (txg, both), &[], source) {
                Ok(slot) => second.0 = slot,
                Err(PoolError::NoSpace { .. }) => return Ok(vec![*first]),
                Err(error) => return Err(error),
            }
        }
        Ok(slots.to_vec())
    }

    /// From now on a moved block is refused with `NoSpace` unless open and empty zones still have space behind it for `bytes` bytes, and
    /// for the directory parts of the blocks that have moved. 0: no bound.
    pub fn set_commit_floor(&mut self, bytes: u64) {
        self.commit_floor = bytes;
    }

    /// Refuses a moved block of `len` bytes that would take the space of the commit. Returns whether empty zones are needed for that.
    pub(super) fn check_commit_floor(&self, len: u64, source: &dyn ZoneSource) -> Result<bool, PoolError> {
        let needed = len + 2 * ENTRY_BYTES_MAX + self.commit_floor + self.unwritten_part_bytes();
        let open: u64 = (0..self.open.len()).map(|slot| self.free_bytes(slot)).sum();
        if open >= needed {
            return Ok(false);
        }
        // If the drive allows no more open zones, an open zone is finished for each empty one that is opened.
        let empty = source.empty_zones(&[]) as u64;
        let zone_bytes = self.metadata.zone_bytes;
        match open + empty * (zone_bytes - zone_bytes / 64) >= needed {
            true => Ok(true),
            false => Err(PoolError::NoSpace { need: len, free: 0 }),
        }
    }

    /// Bytes of zones for the ends of batches that are being gathered, and for the second copies of parts that list moved blocks.
    fn unwritten_part_bytes(&self) -> u64 {
        let of_batch = |open: &OpenZone| {
            // The part does not list the last block yet.
            let last_moved = open.entries.last().is_some_and(|last| last.is_moved(open.seq));
            let has_copy = open.part.lists_moved_blocks() || last_moved;
            self.unit + if has_copy { open.part.stored_bytes() + ENTRY_BYTES_MAX + self.unit } else { 0 }
        };
        let gathered = self.open.iter().flatten().filter(|open| !open.entries.is_empty());
        let sealed = self.txg_totals.moved_parts.iter().map(|(.., part)| granule_bytes(part.len() as u64));
        gathered.map(of_batch).chain(sealed).sum()
    }

    /// Most bytes that a block of `len` bytes takes of a zone when it is written alone.
    fn single_batch_bytes(&self, len: u64) -> u64 {
        let part = PartEncoder::new(0).stored_bytes() + 2 * ENTRY_BYTES_MAX;
        (len + part).next_multiple_of(self.unit)
    }

    /// If a copy of the block lies in the zone of `slot`: the slot with the most free space whose zone holds no copy.
    fn slot_for_copy(&self, slot: usize, near: &[ZoneSeq], len: u64) -> Option<usize> {
        let is_near = |slot: usize| self.zone_of(slot).is_some_and(|zone| near.contains(&zone));
        let others = (0..self.open.len()).filter(|other| is_near(slot) && !is_near(*other));
        let spaces = others.map(|other| (self.free_bytes(other), other));
        spaces.filter(|(free, _)| *free >= len).max().map(|(_, other)| other)
    }

    /// The metadata slots, except `but`, whose zones have less space than is kept for metadata, with their classes. The least space
    /// first.
    fn slots_short_of_space(&self, but: usize) -> Vec<(usize, ZoneClass)> {
        let slots = self.layout().meta().into_iter().zip([ZoneClass::MetaA, ZoneClass::MetaB]);
        let mut short: Vec<_> = slots
            .filter(|(slot, _)| *slot != but && self.free_bytes(*slot) < self.metadata_reserve())
            .collect();
        short.sort_by_key(|(slot, _)| self.free_bytes(*slot));
        short
    }

    /// The devices on which the zones of all slots except `but` are open.
    pub(super) fn other_open_devices(&self, but: &[usize]) -> Vec<DeviceIdx> {
        let open = self.open.iter().enumerate().filter(|(slot, _)| !but.contains(slot));
        open.filter_map(|(_, open)| Some(open.as_ref()?.home.device)).collect()
    }
}
