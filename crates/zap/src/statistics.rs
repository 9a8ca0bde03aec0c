//! Statistics of a whole ZAP, for people who look at one: what zdb prints of it.
//!
//! Everything is read, and damage is counted instead of returned, so that a damaged ZAP can be looked at as well.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::Leaf;
use crate::fat::table;
use crate::hash::Flags;
use crate::norm::NormFlags;
use crate::slots::{self, BlockKind, Slots};
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use terrane_wire::Corrupt;

/// Further damage is counted and not kept.
const DAMAGE_KEPT: usize = 20;

/// How often each number occurs.
pub type Histogram = BTreeMap<u64, u64>;

/// What the blocks of a ZAP hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Size of each block in bytes.
    pub block_bytes: usize,
    /// Blocks up to the last one written.
    pub blocks: u64,
    /// Start value of every hash; 0 if the ZAP has no block.
    pub salt: u64,
    /// How names are normalized.
    pub norm: NormFlags,
    /// Which keys the ZAP takes.
    pub flags: Flags,
    /// The layout of the blocks.
    pub layout: Contents,
}

/// The entries, by the layout of the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// No block was ever written.
    Nothing,
    /// Micro or tiny.
    Slots(SlotStatistics),
    /// Fat.
    Fat(Box<FatStatistics>),
}

/// The slots of a micro or tiny ZAP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotStatistics {
    /// Size of each slot in bytes.
    pub slot_bytes: usize,
    /// Words per value.
    pub value_ints: usize,
    /// Longest name that a slot holds, in bytes.
    pub name_bytes_max: usize,
    /// Longest name that there is, in bytes.
    pub name_bytes: usize,
    /// Slots in the block.
    pub slots: usize,
    /// Slots with an entry, damaged ones included.
    pub used: usize,
    /// Slots in use whose bytes are damaged.
    pub damage: Damage,
}

/// Table and leaves of a fat ZAP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FatStatistics {
    /// Pointers of the table, as a power of two.
    pub table_shift: u32,
    /// First block of the table; 0 if it lies in block 0.
    pub table_block: u64,
    /// Blocks of the table; 0 if it lies in block 0.
    pub table_blocks: u64,
    /// First block of the table of twice the size that is being filled; 0 if there is none.
    pub next_table_block: u64,
    /// Blocks of the table that are copied into the next one.
    pub table_blocks_copied: u64,
    /// The first block that was never used.
    pub free_block: u64,
    /// Leaves by the header.
    pub header_leaves: u64,
    /// Entries by the header.
    pub header_entries: u64,
    /// Leaves that were read.
    pub leaves: u64,
    /// Entries in them.
    pub entries: u64,
    /// Chunks of all leaves that were read.
    pub chunks: u64,
    /// Of them: free.
    pub chunks_free: u64,
    /// Leaves by the length of their prefix in bits: their depth.
    pub depth: Histogram,
    /// Leaves by the binary logarithm of the number of pointers to each.
    pub pointers: Histogram,
    /// Leaves by the tenths of their chunks that are in use, rounded down.
    pub fill: Histogram,
    /// Leaves by their number of entries, rounded down to a multiple of 5.
    pub leaf_entries: Histogram,
    /// Entries by their number of chunks.
    pub entry_chunks: Histogram,
    /// Hash buckets by the length of their chain.
    pub chains: Histogram,
    /// Pointers, leaves and chains that are damaged or could not be read.
    pub damage: Damage,
}

/// Damage that was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The number of all findings.
    pub count: u64,
    /// The first of them.
    pub first: Vec<Corrupt>,
}

impl Damage {
    fn add(&mut self, damage: Corrupt) {
        self.count = self.count.saturating_add(1);
        if self.first.len() < DAMAGE_KEPT {
            self.first.push(damage);
        }
    }
}

fn count(histogram: &mut Histogram, at: u64) {
    let count = histogram.entry(at).or_default();
    *count = count.saturating_add(1);
}

/// Reads the whole ZAP. An error: block 0 or a block of the table could not be read, or the header is damaged.
pub(crate) fn statistics<S: Store + ?Sized>(store: &S) -> Result<Statistics, Error<S::Error>> {
    let block_bytes = store.block_size();
    let Some((block_0, blocks)) = store.first_block()? else {
        let (norm, flags) = (NormFlags::NONE, Flags::NONE);
        return Ok(Statistics { block_bytes, blocks: 0, salt: 0, norm, flags, layout: Contents::Nothing });
    };
    match slots::block_kind(&block_0).map_err(Error::lift)? {
        BlockKind::Slots => {
            let slots = Slots::parse(&block_0, blocks).map_err(Error::lift)?;
            let layout = Contents::Slots(of_slots(&slots));
            Ok(Statistics {
                block_bytes,
                blocks,
                salt: slots.salt,
                norm: slots.norm,
                flags: Flags::NONE,
                layout,
            })
        }
        BlockKind::Fat => {
            let header = Header::parse(&block_0, blocks).map_err(Error::lift)?;
            let layout = Contents::Fat(Box::new(of_fat(store, &header)?));
            let Header { salt, norm, flags, .. } = header;
            Ok(Statistics { block_bytes, blocks, salt, norm, flags, layout })
        }
    }
}

fn of_slots(slots: &Slots<'_>) -> SlotStatistics {
    let shape = slots.shape;
    let mut found = SlotStatistics {
        slot_bytes: shape.chunk_bytes(),
        value_ints: shape.value_ints(),
        name_bytes_max: shape.name_bytes_max(),
        slots: slots.slot_count(),
        ..SlotStatistics::default()
    };
    for used in slots.used_slots() {
        found.used += 1;
        match used {
            Ok((_, slot)) => found.name_bytes = found.name_bytes.max(slot.name().len()),
            Err(damage) => found.damage.add(damage),
        }
    }
    found
}

fn of_fat<S: Store + ?Sized>(store: &S, header: &Header) -> Result<FatStatistics, Error<S::Error>> {
    let mut found = FatStatistics {
        table_shift: header.table_shift,
        table_block: header.table_blk,
        table_blocks: header.table_numblks,
        next_table_block: header.table_nextblk,
        table_blocks_copied: header.table_blks_copied,
        free_block: header.freeblk,
        header_leaves: header.num_leafs,
        header_entries: header.num_entries,
        ..FatStatistics::default()
    };
    let (mut seen, mut last) = (BTreeSet::new(), None);
    table::for_each_pointer(store, header, |index, pointer| {
        if last.replace(pointer) == Some(pointer) {
            return Ok(());
        }
        match table::validate_pointer(header, store.block_count(), index, pointer) {
            Ok(block) if seen.insert(block) => add_leaf(&mut found, store, header, block),
            Ok(_) => {}
            Err(damage) => found.damage.add(damage),
        }
        Ok(())
    })?;
    Ok(found)
}

fn add_leaf<S: Store + ?Sized>(found: &mut FatStatistics, store: &S, header: &Header, block: u64) {
    let Ok(raw) = store.read(block) else {
        found.damage.add(Corrupt::new(
            format_args!("block {block} (leaf)"),
            "block",
            "readable",
            "unreadable",
        ));
        return;
    };
    let leaf = match Leaf::parse(&raw, block, header) {
        Ok(leaf) => leaf,
        Err(damage) => return found.damage.add(damage),
    };
    let (chunks, used) = (leaf.geometry.chunks() as u64, leaf.used_chunks() as u64);
    let entries = leaf.nentries as u64;
    found.leaves += 1;
    found.entries = found.entries.saturating_add(entries);
    found.chunks = found.chunks.saturating_add(chunks);
    found.chunks_free = found.chunks_free.saturating_add(leaf.nfree as u64);
    count(&mut found.depth, leaf.prefix_len.into());
    count(&mut found.pointers, header.table_shift.saturating_sub(leaf.prefix_len).into());
    count(&mut found.fill, used.saturating_mul(10).checked_div(chunks).unwrap_or(0));
    count(&mut found.leaf_entries, entries / 5 * 5);
    // Damaged links may join chains: all together then have more entries than the leaf.
    let mut left = leaf.nentries;
    for bucket in 0..leaf.geometry.buckets() {
        let mut length = 0;
        for entry in leaf.chain(bucket) {
            match entry {
                Ok(entry) if left > 0 => {
                    left -= 1;
                    length += 1;
                    count(&mut found.entry_chunks, leaf.chunks_of(&entry.entry) as u64);
                }
                Ok(_) => return found.damage.add(leaf.damage("entries in chains", leaf.nentries, "more")),
                Err(damage) => {
                    found.damage.add(damage);
                    break;
                }
            }
        }
        count(&mut found.chains, length);
    }
}
