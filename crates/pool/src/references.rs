//! References to shared blocks, in one txg.
//!
//! A clone shares a block: two pointers name it, or more. The table of shared blocks, which the layer above
//! keeps, counts the references beyond the first. So whether a free ends a block or only a reference depends
//! on the table, and on the clones of the same txg.
//!
//! The two can come in any order. For example, a file is cloned and then overwritten, and the sync meets the
//! overwrite first. So nothing is decided while trees are rewritten. Frees of blocks that may be shared are
//! *deferred*. When all trees are done, the layer above takes frees and new references together, sorted by
//! address, and decides about each block once.
//!
//! A block may be shared if its address lies in a range of the table, or in a zone of which this txg shares
//! blocks. Other frees, nearly all, take one look-up in memory.
//!
//! Invariant: every free that the table could know is decided in the sync that frees, before the table is
//! stored.

use crate::pool::TxgSync;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_format::addr::{Addr, GRANULE, granule_bytes};
use terrane_format::block_ptr::{COPIES_MAX, Key, Normal};
use terrane_wire::{Corrupt, ZoneSeq};

/// Ranges of addresses in which blocks are shared: first to last, both as numbers, separate.
pub type SharedRanges = BTreeMap<u64, u64>;

/// Whether one of the ranges contains an address.
pub fn contains(ranges: &SharedRanges, addr: Addr) -> bool {
    ranges.range(..=addr.raw()).next_back().is_some_and(|(_, last)| addr.raw() <= *last)
}

/// References that one sync adds and frees.
#[derive(Default)]
pub(crate) struct References {
    ranges: Arc<SharedRanges>,
    /// Birth zones of the blocks that clones of this txg share.
    zones: BTreeSet<ZoneSeq>,
    added: Vec<Reference>,
    freed: Vec<Reference>,
    is_closed: bool,
}

/// A reference to a stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Addresses of the copies. Of a block on a dead list, one is known.
    pub addrs: [Addr; COPIES_MAX],
    /// Size of a copy.
    pub granules: u32,
    /// Name in the cache. `None`: unknown.
    key: Option<Key>,
}

impl Reference {
    /// The reference of a pointer.
    pub fn of(normal: &Normal) -> Reference {
        let granules = (granule_bytes(u64::from(normal.psize)) / GRANULE) as u32;
        Reference { addrs: normal.addrs, granules, key: Some(Key::of(normal)) }
    }

    /// Space of the block.
    pub fn bytes(&self) -> u64 {
        self.copies().count() as u64 * u64::from(self.granules) * GRANULE
    }

    fn copies(&self) -> impl Iterator<Item = Addr> + '_ {
        self.addrs.iter().copied().filter(|addr| !addr.is_none())
    }
}

/// What happens to a freed block.
pub(crate) enum FreedNow {
    /// It has no other reference.
    Block,
    /// The table decides.
    Deferred,
    /// It may be shared, and the table is stored already.
    TooLate,
}

impl References {
    pub fn note_freed(&mut self, normal: &Normal) -> FreedNow {
        let addr = normal.addrs[0];
        // Only records of one copy are shared. Metadata has two.
        let may_be_shared = normal.level == 0
            && normal.copies().count() == 1
            && (normal.is_clone || self.zones.contains(&addr.seq()) || contains(&self.ranges, addr));
        if !may_be_shared {
            return FreedNow::Block;
        }
        if self.is_closed {
            return FreedNow::TooLate;
        }
        self.freed.push(Reference::of(normal));
        FreedNow::Deferred
    }

    /// The same, of a copy on a dead list. Records have one copy, so it is that of their first address.
    pub fn note_freed_copy(&mut self, addr: Addr, granules: u32) -> FreedNow {
        if !self.zones.contains(&addr.seq()) && !contains(&self.ranges, addr) {
            return FreedNow::Block;
        }
        if self.is_closed {
            return FreedNow::TooLate;
        }
        self.freed.push(Reference { addrs: [addr, Addr::NONE, Addr::NONE], granules, key: None });
        FreedNow::Deferred
    }
}

impl TxgSync<'_> {
    /// Begins counting references. `ranges`: of the table. To be called before the first free.
    pub fn begin_references(&mut self, ranges: Arc<SharedRanges>) {
        self.references.ranges = ranges;
    }

    /// A clone of this txg may share blocks of this zone. To be called before the first free.
    pub fn note_shared_zone(&mut self, zone: ZoneSeq) {
        self.references.zones.insert(zone);
    }

    /// A tree refers to a block of an earlier txg from this txg on. Its zone was noted.
    pub fn add_reference(&mut self, normal: &Normal) {
        self.references.added.push(Reference::of(normal));
    }

    /// Frees that wait for [`take_references`](Self::take_references).
    pub fn deferred_frees(&self) -> u64 {
        self.references.freed.len() as u64
    }

    /// New references, and deferred frees. To be called once, when all blocks that may be shared are freed.
    pub fn take_references(&mut self) -> (Vec<Reference>, Vec<Reference>) {
        self.references.is_closed = true;
        (std::mem::take(&mut self.references.added), std::mem::take(&mut self.references.freed))
    }

    /// Frees a block whose last reference was freed.
    pub fn free_last_reference(&mut self, reference: &Reference) {
        self.uncached.extend(reference.key);
        reference.copies().for_each(|addr| self.commit.free_copy(addr, reference.granules));
    }

    /// The block stays allocated: at worst its space is lost, and a check finds it.
    pub(crate) fn report_late_free(&self, addr: Addr) {
        let (expected, found) = ("before the table of shared blocks is stored", "later; its space is lost");
        self.pool.report_damage(Corrupt::new(addr, "free of a block", expected, found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_their_ends() {
        let addr = |granule: u64| Addr::new(ZoneSeq(5), granule * 16);
        let ranges: SharedRanges =
            [(2, 4), (9, 9)].map(|(first, last)| (addr(first).raw(), addr(last).raw())).into();
        let found: Vec<u64> = (0..12).filter(|granule| contains(&ranges, addr(*granule))).collect();
        assert_eq!(found, [2, 3, 4, 9]);
        assert!(!contains(&SharedRanges::new(), addr(3)));
    }
}
