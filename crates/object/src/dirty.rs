//! Changes of one object in one txg.
//!
//! Dirty blocks are whole blocks in memory, possibly without trailing zeros, or [parts](crate::part) of large ones. Freed blocks are
//! kept as ranges, so that truncating a terabyte costs nothing until the sync. A clone is a dirty block too, with a pointer
//! instead of bytes. So readers, writers, truncation and the sync see one state, in one map.
//!
//! Invariants: a block in `blocks` was written after any free that covers it. No free of its txg covers a part, whose old content is the
//! stored block. A block in `restored` is also in
//! `blocks`, with unchanged content.

use crate::dnode::Dnode;
use crate::part::Part;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use terrane_format::block_ptr::Normal;
use terrane_store::pipeline::PreEncoded;
use terrane_wire::Txg;

/// Block numbers as sorted, disjoint `first..end` ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    pub fn add(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let (mut first, mut end) = (first, end);
        while let Some((&old_first, &old_end)) = self.ends.range(..=end).next_back() {
            if old_end < first {
                break;
            }
            self.ends.remove(&old_first);
            first = first.min(old_first);
            end = end.max(old_end);
        }
        self.ends.insert(first, end);
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn contains(&self, at: u64) -> bool {
        self.ends.range(..=at).next_back().is_some_and(|(_, end)| at < *end)
    }

    /// The end of the range that contains `at`.
    pub fn end_of(&self, at: u64) -> Option<u64> {
        self.ends.range(..=at).next_back().map(|(_, end)| *end).filter(|end| at < *end)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ends.iter().map(|(first, end)| (*first, *end))
    }
}

/// A block of an object's tree. The order is by level, then by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TreeBlock {
    /// 0: content.
    pub level: u8,
    /// Index in its level.
    pub index: u64,
}

/// New content of a block.
#[derive(Clone, Debug)]
pub(crate) enum DirtyBlock {
    /// Bytes to store.
    Data(Arc<Vec<u8>>),
    /// A stored block of another place, to be shared. It is in a tree as of the last sync, and no syncing txg
    /// removes it from there.
    Given(Arc<Normal>),
    /// New bytes for a part of the stored block.
    Part(Arc<Part>),
}

impl DirtyBlock {
    pub fn data(&self) -> Option<&Arc<Vec<u8>>> {
        match self {
            DirtyBlock::Data(data) => Some(data),
            DirtyBlock::Given(_) | DirtyBlock::Part(_) => None,
        }
    }

    pub fn given(&self) -> Option<&Arc<Normal>> {
        match self {
            DirtyBlock::Data(_) | DirtyBlock::Part(_) => None,
            DirtyBlock::Given(ptr) => Some(ptr),
        }
    }

    pub fn part(&self) -> Option<&Arc<Part>> {
        match self {
            DirtyBlock::Data(_) | DirtyBlock::Given(_) => None,
            DirtyBlock::Part(part) => Some(part),
        }
    }
}

/// Dirty blocks by number, and the sums of their bytes. Every answer with a file's attributes asks for the sums, and a file
/// may have thousands of dirty blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtyBlocks {
    blocks: BTreeMap<u64, DirtyBlock>,
    /// Bytes in memory of what is to be stored.
    data_bytes: u64,
    /// Allocated bytes of stored blocks that are to be shared.
    given_bytes: u64,
}

impl DirtyBlocks {
    /// Bytes in memory of what is to be stored.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    fn sum_of(&mut self, block: &DirtyBlock) -> (&mut u64, u64) {
        match block {
            DirtyBlock::Data(data) => (&mut self.data_bytes, data.len() as u64),
            DirtyBlock::Given(ptr) => (&mut self.given_bytes, ptr.allocated_bytes()),
            DirtyBlock::Part(part) => (&mut self.data_bytes, part.bytes()),
        }
    }

    pub fn insert(&mut self, block: u64, new: DirtyBlock) {
        let (sum, bytes) = self.sum_of(&new);
        *sum += bytes;
        if let Some(old) = self.blocks.insert(block, new) {
            let (sum, bytes) = self.sum_of(&old);
            *sum -= bytes;
        }
    }

    pub fn remove(&mut self, block: u64) -> Option<DirtyBlock> {
        let old = self.blocks.remove(&block)?;
        let (sum, bytes) = self.sum_of(&old);
        *sum -= bytes;
        Some(old)
    }

    /// Changes the bytes of a block in place. Returns `change` if there are none: the block is not dirty, or a clone.
    pub fn change<F: FnOnce(&mut Arc<Vec<u8>>)>(&mut self, block: u64, change: F) -> Result<(), F> {
        let Some(DirtyBlock::Data(data)) = self.blocks.get_mut(&block) else { return Err(change) };
        let before = data.len() as u64;
        change(data);
        self.data_bytes = self.data_bytes - before + data.len() as u64;
        Ok(())
    }
}

impl Deref for DirtyBlocks {
    type Target = BTreeMap<u64, DirtyBlock>;

    fn deref(&self) -> &Self::Target {
        &self.blocks
    }
}

impl FromIterator<(u64, DirtyBlock)> for DirtyBlocks {
    fn from_iter<I: IntoIterator<Item = (u64, DirtyBlock)>>(blocks: I) -> Self {
        let mut all = DirtyBlocks::default();
        blocks.into_iter().for_each(|(block, new)| all.insert(block, new));
        all
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Dirty {
    pub txg: Txg,
    pub blocks: DirtyBlocks,
    /// Those blocks whose content is unchanged.
    pub restored: BTreeMap<u64, Restored>,
    pub freed: Ranges,
    /// Indirect blocks to rewrite even if nothing below them changes.
    pub forced_indirect: BTreeSet<TreeBlock>,
    pub spill: SpillChange,
    /// The block size changed: no pointer may stay, not even a hole's.
    pub is_resized: bool,
    pub destroyed: bool,
    /// Stored bytes that this txg frees, as estimated before the sync.
    pub freeing: u64,
}

/// A block that is rewritten with the same content.
#[derive(Clone, Debug)]
pub(crate) struct Restored {
    /// Txg in which its content was born.
    pub birth: Txg,
    /// The stored form to use; `None`: compress it as usual.
    pub encoded: Option<PreEncoded>,
}

/// What the sync takes from an object: its changes, and the dnode as that txg leaves it, with the old tree.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub dirty: Dirty,
    pub dnode: Dnode,
}

impl Frozen {
    /// Whether the tree changes even if no block of it was written.
    pub fn changes_tree(&self) -> bool {
        let is_freed = !self.dirty.freed.is_empty() && !self.dnode.root.is_hole();
        is_freed || !self.dirty.forced_indirect.is_empty()
    }

    /// Replaces the whole content by these blocks.
    pub fn replace_content(&mut self, blocks: Vec<Vec<u8>>) {
        self.dnode.block_count = blocks.len() as u64;
        self.dirty.restored.clear();
        self.dirty.freed.add(0, u64::MAX);
        let blocks = blocks.into_iter().map(|content| DirtyBlock::Data(Arc::new(content)));
        self.dirty.blocks = (0..).zip(blocks).collect();
    }

    /// Replaces these blocks. Frees those whose content is `None`.
    pub fn replace_blocks(&mut self, blocks: BTreeMap<u64, Option<Vec<u8>>>) {
        for (block, content) in blocks {
            match content {
                Some(content) => {
                    self.dnode.block_count = self.dnode.block_count.max(block.saturating_add(1));
                    self.dirty.restored.remove(&block);
                    self.dirty.blocks.insert(block, DirtyBlock::Data(Arc::new(content)));
                }
                None => self.dirty.free(block, block.saturating_add(1)),
            }
        }
    }
}

/// Change of the spill block.
#[derive(Clone, Debug, Default)]
pub(crate) enum SpillChange {
    #[default]
    Unchanged,
    New(Arc<Vec<u8>>),
    Removed,
}

/// What a txg knows of a block.
pub(crate) enum DirtyContent {
    Data(Arc<Vec<u8>>),
    /// The content of this stored block.
    Given(Arc<Normal>),
    /// The stored block, with these new bytes.
    Part(Arc<Part>),
    Zeros,
    Unchanged,
}

impl Dirty {
    pub fn new(txg: Txg) -> Dirty {
        Dirty { txg, ..Dirty::default() }
    }

    pub fn dirty_content(&self, block: u64) -> DirtyContent {
        match self.blocks.get(&block) {
            Some(DirtyBlock::Data(data)) => DirtyContent::Data(data.clone()),
            Some(DirtyBlock::Given(ptr)) => DirtyContent::Given(ptr.clone()),
            Some(DirtyBlock::Part(part)) => DirtyContent::Part(part.clone()),
            None if self.freed.contains(block) => DirtyContent::Zeros,
            None => DirtyContent::Unchanged,
        }
    }

    pub fn free(&mut self, first: u64, end: u64) {
        let inside: Vec<u64> = self.blocks.range(first..end).map(|(block, _)| *block).collect();
        for block in inside {
            self.blocks.remove(block);
            self.restored.remove(&block);
        }
        self.freed.add(first, end);
    }

    /// Whether the sync may change how many bytes the object has stored. Changes of the bonus area alone never do.
    pub fn changes_used(&self) -> bool {
        let is_spill_changed = !matches!(self.spill, SpillChange::Unchanged);
        is_spill_changed
            || self.destroyed
            || !(self.blocks.is_empty() && self.freed.is_empty() && self.forced_indirect.is_empty())
    }

    pub fn bytes(&self) -> u64 {
        self.written_bytes() + self.blocks.given_bytes
    }

    /// Bytes in memory of the blocks that the sync will write, without clones.
    pub fn written_bytes(&self) -> u64 {
        let spill = if let SpillChange::New(spill) = &self.spill { spill.len() as u64 } else { 0 };
        self.blocks.data_bytes + spill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(bytes: u32) -> Normal {
        let addr = |at| terrane_format::Addr::new(terrane_wire::ZoneSeq(5), at);
        Normal {
            addrs: [addr(0), addr(64), addr(128)],
            checksum: [0; 32],
            checksum_kind: terrane_codec::ChecksumKind::Blake3,
            compression: 2,
            kind: crate::ObjectKind::File as u8,
            level: 0,
            lsize: bytes,
            psize: bytes,
            logical_birth: Txg(3),
            block_birth: Txg(3),
            fill: 1,
            is_clone: false,
        }
    }

    #[test]
    fn sums_are_those_of_the_blocks() {
        use terrane_store::env::Env;
        let env = terrane_store::env::SeededEnv::new(5);
        let mut dirty = Dirty::new(Txg(1));
        let data = |len: u64| DirtyBlock::Data(Arc::new(vec![1; len as usize]));
        for _ in 0..3000 {
            let (block, len) = (env.random_u64() % 40, env.random_u64() % 300);
            match env.random_u64() % 6 {
                0 => dirty.free(block, block + len % 7),
                1 => _ = dirty.blocks.remove(block),
                2 => dirty.blocks.insert(block, DirtyBlock::Given(Arc::new(given(len as u32)))),
                3 => {
                    _ = dirty.blocks.change(block, |data| Arc::make_mut(data).resize(len as usize, 2)).is_ok()
                }
                _ => dirty.blocks.insert(block, data(len)),
            }
            let data = dirty.blocks.values().filter_map(DirtyBlock::data);
            let given = dirty.blocks.values().filter_map(DirtyBlock::given);
            let sums = (
                data.map(|data| data.len() as u64).sum(),
                given.map(|ptr| ptr.allocated_bytes()).sum::<u64>(),
            );
            assert_eq!((dirty.written_bytes(), dirty.bytes() - dirty.written_bytes()), sums);
        }
    }

    #[test]
    fn ranges_behave_like_flags() {
        let env = terrane_store::env::SeededEnv::new(3);
        use terrane_store::env::Env;
        for _ in 0..200 {
            let mut ranges = Ranges::default();
            let mut flags = [false; 64];
            for _ in 0..12 {
                let first = env.random_u64() % 60;
                let end = first + env.random_u64() % 5;
                ranges.add(first, end);
                flags[first as usize..end as usize].fill(true);
                for at in 0..64u64 {
                    assert_eq!(ranges.contains(at), flags[at as usize]);
                }
                assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0));
            }
        }
    }
}
