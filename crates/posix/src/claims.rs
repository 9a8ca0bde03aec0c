//! What an operation reserves, once in each transaction group.
//!
//! An operation reserves its worst case before it joins a group, and the group keeps that until it was committed. But a
//! dnode, a directory's only block or a file's record that was dirtied in a group is written once, however often it
//! changes before the commit: 32 writes of 4 KiB into one record dirty one record. So each inode remembers what was
//! reserved for it in the newest group, and asks for the difference only. And 32 dnodes share a block, which is written once
//! as well, so those blocks are remembered too. Without that, small changes would fill groups with reservations thirty times
//! larger than what is written, and each of these groups costs two flushes.
//!
//! Invariant: what is claimed in a group was reserved by a transaction of that group. The block of a new dnode is a
//! guess until the object has its number; when the guess was wrong the rest is reserved then.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use parking_lot::Mutex;
use std::ops::Range;
use terrane_dataset::ChangeCost;
use terrane_object::{Cost, ObjectId, Tx, slot_of};
use terrane_wire::NumberSet;

/// A block of dnodes, and one above it.
const DNODE_META_BLOCKS: u32 = 2;
/// Pointers to a file's blocks that one block above them holds.
const POINTERS: u64 = 128;
const SHARDS: usize = 16;

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
#[derive(Debug)]
pub(crate) struct Claims {
    /// `None`: an object that is still to be made.
    ino: Option<Ino>,
    claimed: Mutex<Claimed>,
}

impl Claims {
    pub fn of(ino: Ino) -> Self {
        Claims { ino: Some(ino), claimed: Mutex::default() }
    }

    /// Of every object that is about to be made.
    pub fn of_new() -> Self {
        Claims { ino: None, claimed: Mutex::default() }
    }

    /// What is not claimed yet in this group, but for the dnode's block; `objects` says whether its dnode is.
    fn missing(&self, group: u64, need: &Need) -> Cost {
        let claimed = self.claimed.lock();
        let nothing = Claimed::default();
        let is_first = claimed.group != group;
        let claimed = if is_first { &nothing } else { &*claimed };
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
            objects: u32::from(is_first || self.ino.is_none()),
            frees: false,
        }
    }

    fn add(&self, group: u64, need: &Need) {
        let mut claimed = self.claimed.lock();
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

/// Blocks of dnodes that the newest group has claimed. Leaf locks.
#[derive(Debug, Default)]
pub(crate) struct DnodeBlocks([Mutex<(u64, NumberSet<u64>)>; SHARDS]);

impl DnodeBlocks {
    fn shard(&self, ino: Ino) -> (&Mutex<(u64, NumberSet<u64>)>, u64) {
        let (block, _) = slot_of(ObjectId(ino));
        let shard = usize::try_from(block % SHARDS as u64).unwrap_or(0);
        (self.0.get(shard).expect("the remainder is below the number of shards"), block)
    }

    fn is_claimed(&self, group: u64, ino: Ino) -> bool {
        let (shard, block) = self.shard(ino);
        let claimed = shard.lock();
        claimed.0 == group && claimed.1.contains(&block)
    }

    /// True: it was not claimed before in this group.
    fn claim(&self, group: u64, ino: Ino) -> bool {
        let (shard, block) = self.shard(ino);
        let mut claimed = shard.lock();
        if claimed.0 < group {
            claimed.0 = group;
            claimed.1.clear();
        }
        claimed.0 == group && claimed.1.insert(block)
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
    costs.into_iter().fold(Cost::NOTHING, |total, cost| Cost {
        write_bytes: total.write_bytes.saturating_add(cost.write_bytes),
        meta_blocks: total.meta_blocks.saturating_add(cost.meta_blocks),
        objects: total.objects.saturating_add(cost.objects),
        frees: total.frees || cost.frees,
    })
}

/// An operation that gives space back, and may use the reserve for it.
pub(crate) const FREES: Cost = Cost { frees: true, ..Cost::NOTHING };
/// One that may put an object into the delete queue, which changes a block there.
pub(crate) const FREES_LINK: Cost = Cost { meta_blocks: UNLINKED_META_BLOCKS, ..FREES };
/// Given back when the object goes before its group ends.
pub(crate) const UNLINKED_META_BLOCKS: u32 = 1;

impl Fs {
    fn missing(&self, group: u64, claims: &Claims, need: &Need, ino: Ino) -> Cost {
        let mut missing = claims.missing(group, need);
        if missing.objects > 0 && !self.dnode_blocks.is_claimed(group, ino) {
            missing.meta_blocks = missing.meta_blocks.saturating_add(DNODE_META_BLOCKS);
        }
        missing
    }

    /// Begins a transaction that has room for `extra` and for what these inodes need. May wait: no lock may be held,
    /// and no other transaction.
    pub(crate) fn begin(&self, extra: Cost, needs: &[(&Claims, Need)]) -> Result<Tx, Errno> {
        let makes = needs.iter().any(|(claims, _)| claims.ino.is_none());
        let guess = if makes { self.set.likely_number().0 } else { 0 };
        let missing = |group| {
            let needs = needs.iter();
            let costs =
                needs.map(|(claims, need)| self.missing(group, claims, need, claims.ino.unwrap_or(guess)));
            sum(costs.chain([extra]))
        };
        let mut group = self.set.open_txg().0;
        loop {
            let asked = missing(group);
            let tx = self.set.begin(asked)?;
            if tx.txg().0 != group {
                // The group changed meanwhile: what was claimed in the old one does not count in the new one.
                group = tx.txg().0;
                let now = missing(group);
                if now.write_bytes > asked.write_bytes || now.meta_blocks > asked.meta_blocks {
                    continue;
                }
            }
            for (claims, need) in needs {
                claims.add(group, need);
                self.dnode_blocks.claim(group, claims.ino.unwrap_or(guess));
            }
            return Ok(tx);
        }
    }

    /// An object was made and has this number: room for its dnode's block was reserved if the guess was right.
    pub(crate) fn claim_new(&self, tx: &Tx, ino: Ino) {
        if self.dnode_blocks.claim(tx.txg().0, ino) {
            tx.reserve_more(DNODE_META_BLOCKS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(data: Range<u64>) -> Need {
        Need { data, block_bytes: 4096, ..Need::default() }
    }

    #[test]
    fn a_block_of_dnodes_is_claimed_once_in_a_group() {
        let blocks = DnodeBlocks::default();
        assert!(!blocks.is_claimed(7, 33));
        assert!(blocks.claim(7, 33));
        assert!(blocks.is_claimed(7, 63) && !blocks.claim(7, 63), "its neighbour lies in the same block");
        assert!(blocks.claim(7, 64) && !blocks.is_claimed(8, 64));
        // A shard forgets an old group, and is not taken back to it.
        assert!(blocks.claim(8, 33) && !blocks.is_claimed(7, 33) && !blocks.claim(7, 33));
    }

    fn missing(claims: &Claims, group: u64, need: &Need) -> (u64, u32) {
        let cost = claims.missing(group, need);
        (cost.write_bytes, cost.meta_blocks)
    }

    #[test]
    fn one_block_is_claimed_once_in_a_group() {
        let claims = Claims::of(9);
        assert_eq!(missing(&claims, 7, &data(0..4096)), (4096, 0));
        claims.add(7, &data(0..4096));
        assert_eq!(missing(&claims, 7, &data(0..4096)), (0, 0));
        assert_eq!(missing(&claims, 7, &data(0..8192)), (4096, 2));
        assert_eq!(missing(&claims, 8, &data(0..4096)), (4096, 0));
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
        let claims = Claims::of(9);
        let small = ChangeCost { meta_blocks: 1, repeats_are_free: true };
        let large = ChangeCost { meta_blocks: 6, repeats_are_free: false };
        claims.add(3, &Need::names(small));
        assert_eq!(missing(&claims, 3, &Need::names(small)), (0, 0));
        assert_eq!(missing(&claims, 3, &Need::names(ChangeCost { meta_blocks: 2, ..small })), (0, 1));
        claims.add(3, &Need::names(large));
        assert_eq!(missing(&claims, 3, &Need::names(large)), (0, 6));
    }
}
