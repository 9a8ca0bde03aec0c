//! Block 0 of a fat ZAP: geometry, counts, and the position of the pointer table.
//!
//! Later code divides, shifts and indexes by these fields, so they are validated here, once. Position and size of the
//! table are checked against each other and against the object's blocks, and the high-water mark against both.
//!
//! Invariant of a parsed header: every block that it names is below `freeblk`. And `freeblk` is past the object's end
//! only as far as a table being filled explains. So a damaged number cannot make the object grow without bound.

use crate::bytes::put;
use crate::error::Error;
use crate::hash::{Flags, HashBits};
use crate::key::KeyRef;
use crate::norm::NormFlags;
use terrane_wire::{Corrupt, layout};

pub(crate) const BLOCK_TYPE: u64 = 0x8000_0000_0000_0001;
const MAGIC: u64 = 0x2_F52A_B2AB;

layout! {
    /// The start of block 0 of a fat ZAP. The second half of the block is the embedded pointer table.
    FatHeader, 104 bytes {
        0  block_type: u64,
        8  magic: u64,
        16 table_blk: u64,
        24 table_numblks: u64,
        32 table_shift: u64,
        40 table_nextblk: u64,
        48 table_blks_copied: u64,
        56 freeblk: u64,
        64 num_leafs: u64,
        72 num_entries: u64,
        80 salt: u64,
        88 normflags: u64,
        96 flags: u64,
    }
}

/// Sizes that follow from the block size alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// The block size as a power of two, 9..=20.
    pub block_shift: u32,
}

pub(crate) const BLOCK_SHIFT_MIN: u32 = 9;
/// Chunk numbers have 16 bits, which limits a leaf to 1 MiB.
pub(crate) const BLOCK_SHIFT_MAX: u32 = 20;

impl Geometry {
    pub fn of_block(bytes: usize) -> Result<Geometry, Corrupt> {
        let block_shift = bytes.trailing_zeros();
        if !bytes.is_power_of_two() || !(BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&block_shift) {
            let expected = "a power of two, 512 bytes to 1 MiB";
            return Err(Corrupt::new("block 0", "block size of a fat ZAP", expected, bytes));
        }
        Ok(Geometry { block_shift })
    }

    pub fn block_bytes(self) -> usize {
        1 << self.block_shift
    }

    /// Hash buckets of a leaf.
    pub fn buckets(self) -> usize {
        1 << (self.block_shift - 5)
    }

    pub fn bucket_bits(self) -> u32 {
        self.block_shift - 5
    }

    /// Chunks of a leaf: the space that the hash table and the 48-byte header (two chunks) leave.
    pub fn chunks(self) -> usize {
        (self.block_bytes() - 2 * self.buckets()) / 24 - 2
    }

    /// Pointers of the embedded table, as a power of two.
    pub fn embedded_shift(self) -> u32 {
        self.block_shift - 4
    }

    /// Pointers of a whole table block, as a power of two.
    pub fn table_block_shift(self) -> u32 {
        self.block_shift - 3
    }
}

/// A fat ZAP's header, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub geometry: Geometry,
    /// First block of the external table; 0 while the table is embedded.
    pub table_blk: u64,
    /// Blocks of the external table, a power of two; 0 while the table is embedded.
    pub table_numblks: u64,
    /// Pointers of the table, as a power of two.
    pub table_shift: u32,
    /// First block of the next table, of twice the size, while it is being filled; else 0.
    pub table_nextblk: u64,
    /// Blocks of the table that are copied into the next one.
    pub table_blks_copied: u64,
    /// The first block that was never used.
    pub freeblk: u64,
    pub num_leafs: u64,
    pub num_entries: u64,
    pub salt: u64,
    pub norm: NormFlags,
    pub flags: Flags,
}

impl Header {
    /// The header of a new ZAP: an embedded table that points at one leaf, block 1.
    pub fn new(geometry: Geometry, salt: u64, flags: Flags, norm: NormFlags) -> Header {
        Header {
            geometry,
            table_blk: 0,
            table_numblks: 0,
            table_shift: geometry.embedded_shift(),
            table_nextblk: 0,
            table_blks_copied: 0,
            freeblk: 2,
            num_leafs: 1,
            num_entries: 0,
            salt,
            norm,
            flags,
        }
    }

    /// Parses and validates block 0 of an object with `block_count` blocks.
    pub fn parse(raw: &[u8], block_count: u64) -> Result<Header, Error<Corrupt>> {
        let geometry = Geometry::of_block(raw.len())?;
        let phys = FatHeader::decode(raw)
            .ok_or_else(|| Corrupt::new("block 0", "header length", FatHeader::SIZE, raw.len()))?;
        if phys.block_type != BLOCK_TYPE {
            return Err(damage("block type", format_args!("{BLOCK_TYPE:#x}"), phys.block_type).into());
        }
        if phys.magic != MAGIC {
            return Err(damage("magic", format_args!("{MAGIC:#x}"), format_args!("{:#x}", phys.magic)).into());
        }
        let norm = NormFlags::parse(phys.normflags)?;
        let flags = Flags::parse(phys.flags)?;
        if flags.has(Flags::UINT64_KEY) && !norm.is_none() {
            let found = format_args!("{:#x}", phys.normflags);
            return Err(damage("normalization", "none for word keys", found).into());
        }
        if phys.salt == 0 {
            return Err(damage("salt", "not 0", 0).into());
        }
        let table_shift = validate_table(&phys, geometry, flags.hash_bits())?;
        validate_blocks(&phys, block_count)?;
        Ok(Header {
            geometry,
            table_blk: phys.table_blk,
            table_numblks: phys.table_numblks,
            table_shift,
            table_nextblk: phys.table_nextblk,
            table_blks_copied: phys.table_blks_copied,
            freeblk: phys.freeblk,
            num_leafs: phys.num_leafs,
            num_entries: phys.num_entries,
            salt: phys.salt,
            norm,
            flags,
        })
    }

    /// The masked hash of a key. The caller must first check by [`KeyRef::fits`] that the ZAP can have such a key.
    pub fn hash(&self, key: KeyRef<'_>) -> u64 {
        self.norm.hash(self.flags, self.salt, key)
    }

    /// The flags of every leaf. If names are normalized, they say that chains are in the order of their
    /// differentiators. Terrane's chains always are; OpenZFS keeps the order only with the flag.
    pub fn leaf_flags(&self) -> u8 {
        u8::from(!self.norm.is_none())
    }

    pub fn hash_bits(&self) -> HashBits {
        self.flags.hash_bits()
    }

    /// Whether a larger table is being filled.
    pub fn is_growing(&self) -> bool {
        self.table_nextblk != 0
    }

    /// Whether a block belongs to the table being filled, from its first step on.
    pub fn is_next_table(&self, block: u64) -> bool {
        let past = self.table_nextblk.saturating_add(self.table_numblks.saturating_mul(2));
        self.is_growing() && (self.table_nextblk..past).contains(&block)
    }

    /// The index of the pointer for a hash.
    pub fn table_index(&self, hash: u64) -> u64 {
        hash.checked_shr(64 - self.table_shift).unwrap_or(0)
    }

    pub fn store(&self, raw: &mut [u8]) {
        let phys = FatHeader {
            block_type: BLOCK_TYPE,
            magic: MAGIC,
            table_blk: self.table_blk,
            table_numblks: self.table_numblks,
            table_shift: u64::from(self.table_shift),
            table_nextblk: self.table_nextblk,
            table_blks_copied: self.table_blks_copied,
            freeblk: self.freeblk,
            num_leafs: self.num_leafs,
            num_entries: self.num_entries,
            salt: self.salt,
            normflags: self.norm.to_u64(),
            flags: self.flags.to_u64(),
        };
        put(raw, 0, &phys.encode());
    }

    /// Allocates `blocks` blocks at the high-water mark.
    pub fn allocate(&mut self, blocks: u64) -> Result<u64, Corrupt> {
        let first = self.freeblk;
        // Far above any object, far below overflow of `freeblk * block size`.
        let end = first.checked_add(blocks).filter(|end| *end < 1 << 40);
        self.freeblk = end.ok_or_else(|| damage("freeblk", "below 2^40", first))?;
        Ok(first)
    }
}

fn damage(what: &'static str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Corrupt {
    Corrupt::new("block 0", what, expected, found)
}

/// Validates the table's size: it must follow from the table's position, and hashes of this ZAP must have the bits
/// for it.
fn validate_table(phys: &FatHeader, geometry: Geometry, hash_bits: HashBits) -> Result<u32, Corrupt> {
    let shift_max = hash_bits.table_shift_max();
    let numblks = phys.table_numblks;
    let expected = if phys.table_blk == 0 {
        if numblks != 0 || phys.table_nextblk != 0 {
            return Err(damage("blocks of an embedded table", 0, numblks.max(phys.table_nextblk)));
        }
        geometry.embedded_shift()
    } else {
        if !numblks.is_power_of_two() || numblks > 1 << shift_max {
            return Err(damage("table block count", "a power of two within the hash", numblks));
        }
        geometry.table_block_shift() + numblks.trailing_zeros()
    };
    if phys.table_shift != u64::from(expected) {
        return Err(damage("table shift", expected, phys.table_shift));
    }
    if expected > shift_max {
        return Err(damage("table shift", format_args!("at most {shift_max}"), expected));
    }
    if phys.table_nextblk == 0 && phys.table_blks_copied != 0 {
        return Err(damage("table blocks copied", "0 when no table is being filled", phys.table_blks_copied));
    }
    if phys.table_nextblk != 0 && phys.table_blks_copied >= numblks {
        return Err(damage("table blocks copied", format_args!("below {numblks}"), phys.table_blks_copied));
    }
    if phys.table_nextblk != 0 && expected >= shift_max {
        return Err(damage("table being filled", "none for the largest shift", phys.table_nextblk));
    }
    Ok(expected)
}

fn validate_blocks(phys: &FatHeader, block_count: u64) -> Result<(), Corrupt> {
    let within = |what: &'static str, first: u64, count: u64, end: u64| match first.checked_add(count) {
        Some(past) if past <= end => Ok(past),
        _ => Err(damage(what, format_args!("{count} blocks before block {end}"), first)),
    };
    let freeblk = phys.freeblk;
    within("block of the table", phys.table_blk, phys.table_numblks, block_count.min(freeblk))?;
    let mut explained = block_count;
    if phys.table_nextblk != 0 {
        within("block of the next table", phys.table_nextblk, 1, block_count)?;
        // Both counts were validated: this is at most 2^47.
        let past = within("block of the next table", phys.table_nextblk, 2 * phys.table_numblks, freeblk)?;
        let (table, next) = (phys.table_blk, phys.table_nextblk);
        if next < table + phys.table_numblks && table < past {
            return Err(damage("block of the next table", "outside of the table", next));
        }
        explained = explained.max(past);
    }
    if freeblk < 2 || freeblk > explained {
        return Err(damage("freeblk", format_args!("2 to {explained}"), freeblk));
    }
    Ok(())
}
