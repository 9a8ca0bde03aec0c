//! What an operation reserves, once in each transaction group.
//!
//! An operation reserves its worst case before it joins a group, and the group keeps that until it was committed. But a
//! dnode, a directory's only block or a file's record that was dirtied in a group is written once, however often it
//! changes before the commit: 32 writes of 4 KiB into one record dirty one record. So each inode remembers what was
//! reserved for it in the newest group, and asks for the difference only. Without that, small writes would fill groups with
//! reservations thirty times larger than what is written, and each of these groups costs two flushes.
//!
//! Invariant: what an inode has claimed in a group was reserved by a transaction of that group.

use crate::errno::Errno;
use crate::fs::Fs;
use parking_lot::Mutex;
use std::ops::Range;
use terrane_dataset::ChangeCost;
use terrane_object::{Cost, Tx};

/// A dnode's block, and one above it.
const ATTRS_META_BLOCKS: u32 = 2;
/// Pointers to a file's blocks that one block above them holds.
const POINTERS: u64 = 128;

/// What one operation needs of one inode (always its attributes), at the worst.
#[derive(Clone, Debug, Default)]
pub(crate) struct Need {
    /// A name is added, replaced or removed.
    pub names: Option<ChangeCost>,
    /// Bytes of the file that are dirtied, whole blocks.
    pub data: Range<u64>,
    /// Bytes of one of these blocks; 0 without data.
    pub block_bytes: u64,
}

#[derive(Debug, Default)]
struct Claimed {
    /// 0: none yet.
    group: u64,
    /// Blocks for names, where repeated changes dirty the same ones.
    names: u32,
    data: Range<u64>,
}

/// What one inode has claimed in the newest group. A leaf lock.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Claimed>);

impl Claims {
    /// What is not claimed yet in this group.
    fn missing(&self, group: u64, need: &Need) -> Cost {
        let claimed = self.0.lock();
        if claimed.group != group {
            return need.all();
        }
        let names = need.names.map_or(0, |names| match names.repeats_are_free {
            true => names.meta_blocks.saturating_sub(claimed.names),
            false => names.meta_blocks,
        });
        let both =
            need.data.end.min(claimed.data.end).saturating_sub(need.data.start.max(claimed.data.start));
        let bytes = len(&need.data) - both;
        Cost {
            write_bytes: bytes,
            meta_blocks: names.saturating_add(need.pointer_blocks(bytes)),
            frees: false,
        }
    }

    fn add(&self, group: u64, need: &Need) {
        let mut claimed = self.0.lock();
        if claimed.group > group {
            // Somebody was faster, in the next group.
            return;
        }
        if claimed.group < group {
            *claimed = Claimed { group, ..Claimed::default() };
        }
        if let Some(names) = need.names.filter(|names| names.repeats_are_free) {
            claimed.names = claimed.names.max(names.meta_blocks);
        }
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
    pub fn attrs() -> Self {
        Need::default()
    }

    pub fn names(names: ChangeCost) -> Self {
        Need { names: Some(names), ..Need::default() }
    }

    fn all(&self) -> Cost {
        let bytes = len(&self.data);
        let names = self.names.map_or(0, |names| names.meta_blocks);
        let meta_blocks = ATTRS_META_BLOCKS.saturating_add(names).saturating_add(self.pointer_blocks(bytes));
        Cost { write_bytes: bytes, meta_blocks, frees: false }
    }

    /// Blocks of pointers above `bytes` of data.
    fn pointer_blocks(&self, bytes: u64) -> u32 {
        if bytes == 0 || self.data.end <= self.block_bytes {
            return 0;
        }
        let blocks = bytes / self.block_bytes.max(1);
        u32::try_from(blocks / POINTERS).unwrap_or(u32::MAX).saturating_add(2)
    }
}

/// Costs of several steps in one transaction.
fn sum(costs: impl IntoIterator<Item = Cost>) -> Cost {
    costs.into_iter().fold(Cost { write_bytes: 0, meta_blocks: 0, frees: false }, |total, cost| Cost {
        write_bytes: total.write_bytes.saturating_add(cost.write_bytes),
        meta_blocks: total.meta_blocks.saturating_add(cost.meta_blocks),
        frees: total.frees || cost.frees,
    })
}

/// What one new dnode may dirty, beside other things.
pub(crate) const COST_NEW: Cost = Cost { write_bytes: 0, meta_blocks: 1, frees: false };
/// An operation that gives space back, and may use the reserve for it.
pub(crate) const FREES: Cost = Cost { write_bytes: 0, meta_blocks: 0, frees: true };
pub(crate) const COST_NOTHING: Cost = Cost { write_bytes: 0, meta_blocks: 0, frees: false };

impl Fs {
    /// Begins a transaction that has room for `extra` and for what these inodes need. May wait: no lock may be held,
    /// and no other transaction.
    pub(crate) fn begin(&self, extra: Cost, needs: &[(&Claims, Need)]) -> Result<Tx, Errno> {
        let group = self.set.open_txg().0;
        let missing = sum(needs.iter().map(|(claims, need)| claims.missing(group, need)).chain([extra]));
        let all = sum(needs.iter().map(|(_, need)| need.all()).chain([extra]));
        let mut tx = self.set.begin(missing)?;
        if tx.txg().0 != group
            && (missing.write_bytes, missing.meta_blocks) != (all.write_bytes, all.meta_blocks)
        {
            // The group changed meanwhile: what was claimed in the old one does not count in the new one.
            drop(tx);
            tx = self.set.begin(all)?;
        }
        for (claims, need) in needs {
            claims.add(tx.txg().0, need);
        }
        Ok(tx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(data: Range<u64>) -> Need {
        Need { data, block_bytes: 4096, ..Need::default() }
    }

    fn missing(claims: &Claims, group: u64, need: &Need) -> (u64, u32) {
        let cost = claims.missing(group, need);
        (cost.write_bytes, cost.meta_blocks)
    }

    #[test]
    fn one_block_is_claimed_once_in_a_group() {
        let claims = Claims::default();
        assert_eq!(missing(&claims, 7, &data(0..4096)), (4096, ATTRS_META_BLOCKS));
        claims.add(7, &data(0..4096));
        assert_eq!(missing(&claims, 7, &data(0..4096)), (0, 0));
        assert_eq!(missing(&claims, 7, &data(0..8192)), (4096, 2));
        assert_eq!(missing(&claims, 8, &data(0..4096)), (4096, ATTRS_META_BLOCKS));
        claims.add(7, &data(4096..8192));
        assert_eq!(missing(&claims, 7, &data(0..8192)), (0, 0), "neighbours join");
        claims.add(7, &data(40_960..45_056));
        assert_eq!(missing(&claims, 7, &data(0..4096)), (4096, 0), "what lies apart is forgotten");
        claims.add(9, &Need::attrs());
        claims.add(8, &data(0..4096));
        assert_eq!(missing(&claims, 9, &data(0..4096)), (4096, 0), "an older group changes nothing");
    }

    #[test]
    fn names_in_one_block_are_free_after_the_first() {
        let claims = Claims::default();
        let small = ChangeCost { meta_blocks: 1, repeats_are_free: true };
        let large = ChangeCost { meta_blocks: 6, repeats_are_free: false };
        claims.add(3, &Need::names(small));
        assert_eq!(missing(&claims, 3, &Need::names(small)), (0, 0));
        assert_eq!(missing(&claims, 3, &Need::names(ChangeCost { meta_blocks: 2, ..small })), (0, 1));
        claims.add(3, &Need::names(large));
        assert_eq!(missing(&claims, 3, &Need::names(large)), (0, 6));
    }
}
