//! What operations reserve, counted once per inode and txg.
//!
//! An operation reserves its worst case before it joins a txg, and the txg keeps that until it commits. But a
//! dnode, a small directory or a record that is dirtied often in a txg is written once. For example, 32 writes
//! of 4 KiB into one record dirty one record. So each inode remembers what the newest txg has reserved for it,
//! and asks for the difference only.
//!
//! Shared blocks are remembered too: 32 dnodes share a block, and 32 or 128 records share an indirect block.
//! Otherwise small changes would fill txgs with reservations 30 times larger than what is written. Each such
//! txg costs two flushes.
//!
//! Above small records indirect blocks are small as well, so each is counted with its own size.
//!
//! Invariant: what is claimed in a txg was reserved by a transaction of that txg. The block of a new dnode is a
//! guess until the object has its number. If the guess was wrong, the rest is reserved then.

use crate::types::Ino;
use parking_lot::Mutex;
use std::ops::{Range, RangeInclusive};
use terrane_dataset::ChangeCost;
use terrane_object::Object;
use terrane_txg::cost::{Cost, META_DIRTY_BYTES};

/// A dnode block, and one indirect block above it.
pub(crate) const DNODE_META_BLOCKS: u32 = 2;
/// Bytes of a block pointer.
const POINTER_BYTES: u64 = 128;

/// Worst case of one operation on one inode. Its attributes are always included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Need {
    /// Cost of adding, replacing or removing a name.
    pub names: Option<ChangeCost>,
    /// Byte range of the file that is dirtied, in whole blocks.
    pub data: Range<u64>,
    /// Block size of the file in bytes; 0 without data.
    pub block_bytes: u64,
    /// Bytes of an indirect block above them.
    pub pointer_block_bytes: u64,
    /// Size of the file afterwards in bytes. It decides the height of the tree.
    pub file_bytes: u64,
}

/// An indirect block: file, level from 1 on, and index in its level.
pub(crate) type PointerBlock = (Ino, u32, u64);

#[derive(Debug, Default)]
struct Claimed {
    /// 0: none yet.
    txg: u64,
    /// Bytes of blocks for names.
    names: u64,
    data: Range<u64>,
}

impl Claimed {
    fn missing_names(&self, need: &Need) -> u64 {
        need.names.map_or(0, |cost| cost.missing(self.names))
    }
}

/// What one inode has claimed in the newest txg. A leaf lock.
#[derive(Debug)]
pub(crate) struct Claims {
    /// `None`: an object that is not created yet.
    pub ino: Option<Ino>,
    claimed: Mutex<Claimed>,
}

impl Claims {
    /// Claims of an existing object; nothing is claimed yet.
    pub fn of(ino: Ino) -> Self {
        Claims { ino: Some(ino), claimed: Mutex::default() }
    }

    /// Claims shared by all objects that are not created yet.
    pub fn of_new() -> Self {
        Claims { ino: None, claimed: Mutex::default() }
    }

    /// What is not claimed yet in this txg, except for the dnode's block. `objects` is 1 if the dnode is
    /// missing.
    pub fn missing(&self, txg: u64, need: &Need) -> Cost {
        let claimed = self.claimed.lock();
        let nothing = Claimed::default();
        let is_first = claimed.txg != txg;
        let claimed = if is_first { &nothing } else { &*claimed };
        let both =
            need.data.end.min(claimed.data.end).saturating_sub(need.data.start.max(claimed.data.start));
        let (bytes, names) = (len(&need.data) - both, claimed.missing_names(need));
        Cost {
            write_bytes: bytes,
            meta_blocks: 0,
            meta_bytes: names,
            rare_meta_bytes: names,
            names_bytes: need.names.map(|cost| cost.expected(names)),
            objects: u32::from(is_first || self.ino.is_none()),
            ..Cost::NOTHING
        }
    }

    /// Claims what this operation has reserved in the txg.
    pub fn add(&self, txg: u64, need: &Need) {
        let mut claimed = self.claimed.lock();
        if claimed.txg > txg {
            // Another thread has already claimed in the next txg.
            return;
        }
        if claimed.txg < txg {
            *claimed = Claimed { txg, ..Claimed::default() };
        }
        claimed.names += claimed.missing_names(need);
        let (new, old) = (&need.data, &claimed.data);
        if new.is_empty() {
            return;
        }
        // One range is enough: writers go forward, or jump.
        let touches = new.start <= old.end && old.start <= new.end && !old.is_empty();
        claimed.data = if touches { new.start.min(old.start)..new.end.max(old.end) } else { new.clone() };
    }
}

fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

impl Need {
    /// Attributes only.
    pub fn attrs() -> Self {
        Need::default()
    }

    /// Whole records of a file of `file_bytes` bytes, and the indirect blocks above them.
    pub fn records(object: &Object, data: Range<u64>, record_bytes: u32, file_bytes: u64) -> Self {
        let pointer_block_bytes = object.indirect_bytes(record_bytes).into();
        Need { data, block_bytes: record_bytes.into(), pointer_block_bytes, file_bytes, names: None }
    }

    /// A change of names at this cost, and attributes.
    pub fn names(names: ChangeCost) -> Self {
        Need { names: Some(names), ..Need::default() }
    }

    /// The indirect blocks above the data: level, and range of indices in it.
    pub fn pointer_blocks(&self) -> impl Iterator<Item = (u32, RangeInclusive<u64>)> + use<> {
        let block_bytes = self.block_bytes.max(1);
        let has_any = !self.data.is_empty() && self.file_bytes.max(self.data.end) > block_bytes;
        let (first, last) = (self.data.start / block_bytes, self.data.end.saturating_sub(1) / block_bytes);
        let blocks = self.file_bytes.max(self.data.end).div_ceil(block_bytes);
        let pointers = (self.pointer_block_bytes / POINTER_BYTES).max(2);
        let span = move |level: u32| pointers.saturating_pow(level);
        // The level that fits into one block is the root.
        let levels = (1..).take_while(move |level| has_any && (*level == 1 || span(level - 1) < blocks));
        levels.map(move |level| (level, first / span(level)..=last / span(level)))
    }
}

/// Total cost of several steps in one transaction.
pub(crate) fn sum(costs: impl IntoIterator<Item = Cost>) -> Cost {
    costs.into_iter().fold(Cost::NOTHING, |total, cost| Cost {
        write_bytes: total.write_bytes.saturating_add(cost.write_bytes),
        meta_blocks: total.meta_blocks.saturating_add(cost.meta_blocks),
        meta_bytes: total.meta_bytes.saturating_add(cost.meta_bytes),
        rare_meta_bytes: total.rare_meta_bytes.saturating_add(cost.rare_meta_bytes),
        names_bytes: match (total.names_bytes, cost.names_bytes) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        },
        objects: total.objects.saturating_add(cost.objects),
        frees: total.frees || cost.frees,
        writes_back: total.writes_back || cost.writes_back,
        file_reservation: total.file_reservation.saturating_add(cost.file_reservation),
        from_file_reservation: total.from_file_reservation.max(cost.from_file_reservation),
        shared_bytes: total.shared_bytes.saturating_add(cost.shared_bytes),
    })
}

/// An operation that frees space, and so may use the GC reserve.
pub(crate) const FREES: Cost = Cost { frees: true, ..Cost::NOTHING };
/// An operation that may add an object to the delete queue, and so dirties a block there. A block has hundreds of entries.
pub(crate) const UNLINKED: Cost = Cost {
    meta_blocks: UNLINKED_META_BLOCKS,
    rare_meta_bytes: UNLINKED_META_BLOCKS as u64 * META_DIRTY_BYTES,
    ..Cost::NOTHING
};
/// Both.
pub(crate) const FREES_LINK: Cost = Cost { frees: true, ..UNLINKED };
/// Given back if the object is destroyed before its txg ends.
pub(crate) const UNLINKED_META_BLOCKS: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn data(data: Range<u64>) -> Need {
        Need { data, block_bytes: 4096, pointer_block_bytes: 16 << 10, ..Need::default() }
    }

    fn missing(claims: &Claims, txg: u64, need: &Need) -> u64 {
        claims.missing(txg, need).write_bytes
    }

    fn missing_names(claims: &Claims, txg: u64, cost: ChangeCost) -> u64 {
        claims.missing(txg, &Need::names(cost)).meta_bytes
    }

    #[test]
    fn a_record_is_claimed_once_per_txg() {
        let claims = Claims::of(9);
        assert_eq!(missing(&claims, 7, &data(0..4096)), 4096);
        claims.add(7, &data(0..4096));
        assert_eq!(missing(&claims, 7, &data(0..4096)), 0);
        assert_eq!(missing(&claims, 7, &data(0..8192)), 4096);
        assert_eq!(missing(&claims, 8, &data(0..4096)), 4096);
        claims.add(7, &data(4096..8192));
        assert_eq!(missing(&claims, 7, &data(0..8192)), 0, "neighbours join");
        claims.add(7, &data(40_960..45_056));
        assert_eq!(missing(&claims, 7, &data(0..4096)), 4096, "what lies apart is forgotten");
        claims.add(9, &Need::attrs());
        claims.add(8, &data(0..4096));
        assert_eq!(missing(&claims, 9, &data(0..4096)), 4096, "an older group changes nothing");
    }

    #[test]
    fn pointer_blocks_are_those_of_the_resulting_tree() {
        let blocks = |file_bytes: u64, data: Range<u64>| {
            let need = Need { file_bytes, ..self::data(data) };
            need.pointer_blocks().collect::<Vec<_>>()
        };
        let record = 4096;
        assert_eq!(blocks(4096, 0..4096), [], "a single block hangs from the dnode");
        assert_eq!(blocks(record * 128, 0..4096), [(1, 0..=0)]);
        assert_eq!(blocks(record * 129, record * 127..record * 129), [(1, 0..=1), (2, 0..=0)]);
        let far = record * 128 * 128 * 5;
        assert_eq!(blocks(far + record, far..far + record), [(1, 640..=640), (2, 5..=5), (3, 0..=0)]);
        assert_eq!(blocks(far, 0..0), [], "nothing is written");
        assert_eq!(blocks(0, far..far + record).len(), 3, "what is written makes the file longer");
        assert!(blocks(u64::MAX, 0..1).len() < 10);
        let small = Need { file_bytes: record * 33, pointer_block_bytes: 4096, ..data(0..4096) };
        assert_eq!(small.pointer_blocks().collect::<Vec<_>>(), [(1, 0..=0), (2, 0..=0)]);
    }

    #[test]
    fn directory_names_are_claimed_once_per_txg() {
        let claims = Claims::of(9);
        let small = ChangeCost { bytes: 1024, bytes_next: 1024, bytes_max: 1024, bytes_usual: 0 };
        let grown = ChangeCost { bytes: 1536, bytes_next: 1536, bytes_max: 1536, bytes_usual: 0 };
        let large = ChangeCost { bytes: 8000, bytes_next: 3000, bytes_max: 14_000, bytes_usual: 1000 };
        claims.add(3, &Need::names(small));
        assert_eq!(missing_names(&claims, 3, small), 0);
        assert_eq!(missing_names(&claims, 3, grown), 512, "it grows");
        assert_eq!(missing_names(&claims, 4, small), 1024);
        assert_eq!(missing_names(&claims, 3, large), 8000 - 1024, "it becomes fat");
        claims.add(3, &Need::names(large));
        assert_eq!(missing_names(&claims, 3, large), 3000);
        let dirty_of = |cost| claims.missing(3, &Need::names(cost)).dirty_bytes();
        assert_eq!(dirty_of(large), 1000, "no leaf splits");
        claims.add(3, &Need::names(large));
        claims.add(3, &Need::names(large));
        assert_eq!(missing_names(&claims, 3, large), 0, "all there is, not more");
        assert_eq!((claims.missing(3, &Need::names(large)).dirty_bytes(), dirty_of(small)), (1000, 0));
        let grown = ChangeCost { bytes_max: 15_000, ..large };
        assert_eq!(missing_names(&claims, 3, grown), 1000, "there is more now");
    }
}
