//! Changes of the leaves of the table, in one sync.
//!
//! Changes come sorted by address, so each leaf is read and written once. A leaf that became too large is split,
//! and one that became small is joined with the next.

use super::stored::{
    Entry, GROUP_LEAVES, LEAF_BYTES_MIN, LEAF_BYTES_SPLIT, SharedLeaf, TABLE_BLOCK_BYTES, encode_leaf,
    index_block, parse_leaf, slot_of, split,
};
use crate::error::ObjectError;
use crate::object::Object;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use terrane_pool::references::SharedRanges;
use terrane_store::PoolError;
use terrane_wire::Corrupt;

/// Where a leaf is, and what it spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub block: u64,
    pub last: u64,
    pub entries: u32,
}

/// The leaves of a table in memory: some 100 bytes for thousands of entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaves {
    /// By first address.
    by_first: BTreeMap<u64, Leaf>,
    /// First addresses by block.
    by_block: BTreeMap<u64, u64>,
    ranges: Arc<SharedRanges>,
}

/// New content of blocks of the table; `None`: freed.
pub(super) type TableBlocks = BTreeMap<u64, Option<Vec<u8>>>;

impl Leaves {
    pub fn ranges(&self) -> &Arc<SharedRanges> {
        &self.ranges
    }

    pub fn count(&self) -> u64 {
        self.by_first.len() as u64
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, Leaf)> + '_ {
        self.by_first.iter().map(|(first, leaf)| (*first, *leaf))
    }

    /// The leaf that spans an address.
    pub fn spanning(&self, addr: u64) -> Option<Leaf> {
        let (_, leaf) = self.by_first.range(..=addr).next_back()?;
        (addr <= leaf.last).then_some(*leaf)
    }

    /// The leaf that an address belongs into, and the first address of the next one.
    pub fn home_of(&self, addr: u64) -> (Option<(u64, Leaf)>, u64) {
        let home = self.by_first.range(..=addr).next_back().or_else(|| self.by_first.iter().next());
        let home = home.map(|(first, leaf)| (*first, *leaf));
        let after = home.map_or(addr, |(first, _)| first.max(addr));
        (home, self.next(after).map_or(u64::MAX, |(first, _)| first))
    }

    /// The first leaf that begins behind an address.
    fn next(&self, addr: u64) -> Option<(u64, Leaf)> {
        self.by_first.range((Excluded(addr), Unbounded)).next().map(|(first, leaf)| (*first, *leaf))
    }

    /// Adds a leaf. Refused if it overlaps another.
    pub fn insert(&mut self, first: u64, leaf: Leaf, at: &str) -> Result<(), Corrupt> {
        let before = self.by_first.range(..=leaf.last).next_back();
        if let Some((other, found)) = before.filter(|(_, before)| before.last >= first) {
            let found = format_args!("{other:#x} to {:#x}", found.last);
            return Err(Corrupt::new(at, "span of a leaf", "separate from others", found));
        }
        self.by_first.insert(first, leaf);
        self.by_block.insert(leaf.block, first);
        Arc::make_mut(&mut self.ranges).insert(first, leaf.last);
        Ok(())
    }

    fn remove(&mut self, first: u64) {
        if let Some(leaf) = self.by_first.remove(&first) {
            self.by_block.remove(&leaf.block);
            Arc::make_mut(&mut self.ranges).remove(&first);
        }
    }

    /// The lowest block that is no leaf, at or after `from`.
    fn free_block(&self, from: u64) -> u64 {
        let mut block = from;
        while slot_of(block).is_none() || self.by_block.contains_key(&block) {
            block += 1;
        }
        block
    }

    /// The content of an index block. `None`: it describes nothing.
    fn encode_index(&self, index: u64) -> Option<Vec<u8>> {
        let mut raw = vec![0; GROUP_LEAVES as usize * SharedLeaf::SIZE];
        let mut is_empty = true;
        for (block, first) in self.by_block.range(index + 1..index + 1 + GROUP_LEAVES) {
            let Some(leaf) = self.by_first.get(first) else { continue };
            let at = (block - index - 1) as usize * SharedLeaf::SIZE;
            let slot = SharedLeaf { first: *first, last: leaf.last, entries: leaf.entries, reserved: 0 };
            if let Some(place) = raw.get_mut(at..at + SharedLeaf::SIZE) {
                place.copy_from_slice(&slot.encode());
                is_empty = false;
            }
        }
        (!is_empty).then_some(raw)
    }
}

/// The leaves as one sync changes them.
pub(super) struct LeafEdit<'a> {
    object: &'a Object,
    pub leaves: Leaves,
    blocks: TableBlocks,
    /// Where the search for a free block begins.
    free_from: u64,
}

/// Some leaves, and the entries in them.
pub(super) struct Opened {
    firsts: Vec<u64>,
    pub entries: Vec<Entry>,
    /// They are the home of addresses below this one.
    pub end: u64,
}

/// Reads a leaf.
pub(super) fn read_leaf(object: &Object, first: u64, leaf: Leaf) -> Result<Vec<Entry>, ObjectError> {
    let raw = object.read_block(leaf.block)?;
    let at = format!("table of shared blocks, block {}", leaf.block);
    Ok(parse_leaf(&raw, (first, leaf.last, leaf.entries), &at).map_err(PoolError::from)?)
}

impl<'a> LeafEdit<'a> {
    pub fn new(object: &'a Object, leaves: Leaves) -> Self {
        LeafEdit { object, leaves, blocks: TableBlocks::new(), free_from: 2 }
    }

    /// The end of the addresses that belong to the same leaf as this one.
    pub fn home_end(&self, addr: u64) -> u64 {
        self.leaves.home_of(addr).1
    }

    /// Opens the leaf that an address belongs into.
    pub fn open(&self, addr: u64) -> Result<Opened, ObjectError> {
        let (home, end) = self.leaves.home_of(addr);
        let mut opened = Opened { firsts: Vec::new(), entries: Vec::new(), end };
        if let Some((first, leaf)) = home {
            opened.entries = match self.blocks.get(&leaf.block) {
                Some(Some(raw)) => parse_leaf(raw, (first, leaf.last, leaf.entries), "leaf of this sync")
                    .map_err(PoolError::from)?,
                _ => read_leaf(self.object, first, leaf)?,
            };
            opened.firsts.push(first);
        }
        Ok(opened)
    }

    /// Puts these entries in place of those that were opened.
    pub fn store(&mut self, mut opened: Opened, mut entries: Vec<Entry>) {
        if encode_leaf(&entries).len() < LEAF_BYTES_MIN
            && let Some((first, leaf)) = self.leaves.next(opened.end.saturating_sub(1))
            && let Some(mut after) = self.small_neighbour(first, leaf)
        {
            entries.append(&mut after);
            opened.firsts.push(first);
        }
        let mut reusable: Vec<u64> = Vec::new();
        for first in opened.firsts {
            reusable.extend(self.leaves.by_first.get(&first).map(|leaf| leaf.block));
            self.leaves.remove(first);
        }
        for part in split(&entries) {
            let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else { continue };
            let block = reusable.pop().unwrap_or_else(|| {
                self.free_from = self.leaves.free_block(self.free_from);
                self.free_from
            });
            let leaf = Leaf { block, last: *last, entries: part.len() as u32 };
            self.leaves
                .insert(*first, leaf, "table of shared blocks")
                .expect("entries ascend, and their home is their own");
            self.put(block, Some(encode_leaf(part)));
        }
        reusable.into_iter().for_each(|block| {
            self.put(block, None);
            self.free_from = self.free_from.min(block);
        });
    }

    /// The entries of a leaf, if it is so small that another one can take them. One that is unreadable, or was
    /// written in this sync, stays.
    fn small_neighbour(&self, first: u64, leaf: Leaf) -> Option<Vec<Entry>> {
        if self.blocks.contains_key(&leaf.block) {
            return None;
        }
        let entries = read_leaf(self.object, first, leaf).ok()?;
        (encode_leaf(&entries).len() <= LEAF_BYTES_SPLIT - LEAF_BYTES_MIN).then_some(entries)
    }

    fn put(&mut self, block: u64, content: Option<Vec<u8>>) {
        debug_assert!(content.as_ref().is_none_or(|raw| raw.len() <= TABLE_BLOCK_BYTES as usize));
        self.blocks.insert(block, content);
    }

    /// All changed blocks, with the index blocks of the changed leaves.
    pub fn finish(mut self) -> (Leaves, TableBlocks) {
        let indexes: BTreeSet<u64> =
            self.blocks.keys().filter_map(|block| Some(slot_of(*block)?.0)).collect();
        for index in indexes {
            let raw = self.leaves.encode_index(index);
            self.blocks.insert(index, raw);
        }
        (self.leaves, self.blocks)
    }
}

/// Loads the leaves of a stored table.
pub(super) fn load_leaves(object: &Object) -> Result<Leaves, ObjectError> {
    let mut leaves = Leaves::default();
    let block_bytes = u64::from(TABLE_BLOCK_BYTES);
    let mut next = 1;
    // Holes are skipped: the block count may be damaged, and huge.
    while let Some(at) = object.next_data(next * block_bytes)? {
        let group = (at / block_bytes).saturating_sub(1) / (GROUP_LEAVES + 1);
        let index = index_block(group);
        let raw = object.read_block(index)?;
        let before = leaves.count();
        for (slot, raw) in (0..GROUP_LEAVES).zip(raw.chunks_exact(SharedLeaf::SIZE)) {
            let at = format!("table of shared blocks, block {index}, slot {slot}");
            if let Some(leaf) = SharedLeaf::parse(raw, &at).map_err(PoolError::from)? {
                let SharedLeaf { first, last, entries, .. } = leaf;
                let leaf = Leaf { block: index + 1 + slot, last, entries };
                leaves.insert(first, leaf, &at).map_err(PoolError::from)?;
            }
        }
        if leaves.count() == before {
            // No writer stores one. If many pointers led to it, the search would not end.
            let at = format!("table of shared blocks, block {index}");
            return Err(PoolError::from(Corrupt::new(at, "index block", "slots of leaves", "none")).into());
        }
        next = index_block(group + 1);
    }
    Ok(leaves)
}
