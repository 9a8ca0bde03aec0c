//! The layout of a cache device: its head, and batches with their tables of contents. FORMAT.md section 10.

use crate::addr::{Addr, GRANULE, granule_bytes};
use crate::block_ptr::{BLOCK_BYTES_MAX, Key};
use crate::seal::{Seed, seal};
use terrane_wire::{Reader, Txg, Writer, ZoneIdx, layout};

pub const CACHE_MAGIC: u64 = u64::from_le_bytes(*b"TERRCACH");
pub const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"TERRCBAT");
const CACHE_VERSION: u32 = 1;
/// Largest batch head, in bytes.
pub const BATCH_HEAD_MAX: u64 = 1 << 20;

/// The place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub zone: ZoneIdx,
    /// In bytes.
    pub offset: u64,
    pub psize: u32,
}

/// The geometry of a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGeometry {
    /// In bytes.
    pub write_unit: u32,
    pub zone_size: u64,
    pub zone_count: u32,
}

layout! {
    /// Begins zone 0 of a cache device.
    CacheHead, 64 bytes {
        0  magic: u64,
        8  version: u32,
        12 write_unit: u32,
        16 pool: u64,
        24 cache: u64,
        32 zone_size: u64,
        40 zone_count: u32,
        44 reserved: u32,
        48 seal: [u8; 16],
    }
}

layout! {
    /// Begins a batch. Its entries follow, then the blocks.
    BatchHead, 64 bytes {
        0  magic: u64,
        8  pool: u64,
        16 cache: u64,
        /// Number of this filling of the zone: one more than that of the zone filled before.
        24 turn: u64,
        32 count: u32,
        36 head_bytes: u32,
        40 bytes: u64,
        48 seal: [u8; 16],
    }
}

layout! {
    /// A block in a batch.
    BatchEntry, 24 bytes {
        0  addr: u64,
        8  birth: Txg,
        16 psize: u32,
        20 reserved: u32,
    }
}

impl CacheHead {
    /// The head for a device with id `cache`.
    pub fn of(pool: u64, cache: u64, info: &CacheGeometry) -> CacheHead {
        let mut head = CacheHead {
            magic: CACHE_MAGIC,
            version: CACHE_VERSION,
            write_unit: info.write_unit,
            pool,
            cache,
            zone_size: info.zone_size,
            zone_count: info.zone_count,
            reserved: 0,
            seal: [0; 16],
        };
        head.seal = head.seal_of_rest();
        head
    }

    fn seal_of_rest(&self) -> [u8; 16] {
        let raw = self.encode();
        let sealed = raw.split_last_chunk::<16>().map_or(&[][..], |(rest, _)| rest);
        seal(Seed { pool: self.pool, life: self.cache, offset: 0, incarnation: 0 }, &[sealed])
    }

    /// Parses the head at the start of a device. `None`: there is none.
    pub fn parse(raw: &[u8]) -> Option<CacheHead> {
        let head = CacheHead::decode(raw)?;
        let is_one = head.magic == CACHE_MAGIC && head.version == CACHE_VERSION;
        (is_one && head.seal == head.seal_of_rest()).then_some(head)
    }
}

impl BatchHead {
    /// Bytes of the head with its entries, rounded up to write units.
    pub fn bytes_for(count: usize, unit: u64) -> u64 {
        ((BatchHead::SIZE + count * BatchEntry::SIZE) as u64).next_multiple_of(unit)
    }
}

/// A decoded batch head.
pub struct Batch {
    pub turn: u64,
    /// From the start of this batch to the next one.
    pub bytes: u64,
    pub blocks: Vec<(Key, Spot)>,
}

fn seed((pool, cache, turn): (u64, u64, u64), (zone, at): (ZoneIdx, u64)) -> Seed {
    // No zone is larger than 2^32 bytes.
    Seed { pool, life: cache, offset: u64::from(zone.0) << 32 | at, incarnation: turn }
}

/// Encodes the head of a batch of a pool, device and turn, at an offset in a zone. Returns the head, padded to `head_bytes`, and the
/// places of the blocks, consecutive and aligned to granules.
pub fn encode_head(
    of: (u64, u64, u64),
    (zone, at): (ZoneIdx, u64),
    sizes: &[(Key, u32)],
    (head_bytes, bytes): (u64, u64),
) -> (Vec<u8>, Vec<Spot>) {
    let (pool, cache, turn) = of;
    let mut entries = Writer::with_capacity(sizes.len() * BatchEntry::SIZE);
    let mut spots = Vec::with_capacity(sizes.len());
    let mut offset = at + head_bytes;
    for (key, psize) in sizes {
        let entry = BatchEntry { addr: key.addr.raw(), birth: key.birth, psize: *psize, reserved: 0 };
        entries.bytes(&entry.encode());
        spots.push(Spot { zone, offset, psize: *psize });
        offset += granule_bytes((*psize).into());
    }
    let count = u32::try_from(sizes.len()).expect("a batch lies in a zone");
    let head_len = u32::try_from(head_bytes).expect("a batch lies in a zone");
    let mut head = BatchHead {
        magic: BATCH_MAGIC,
        pool,
        cache,
        turn,
        count,
        head_bytes: head_len,
        bytes,
        seal: [0; 16],
    };
    let raw = head.encode();
    let sealed = raw.split_last_chunk::<16>().map_or(&[][..], |(rest, _)| rest);
    head.seal = seal(seed(of, (zone, at)), &[sealed, entries.as_bytes()]);
    let mut raw = head.encode().to_vec();
    raw.extend_from_slice(entries.as_bytes());
    raw.resize(usize::try_from(head_bytes).expect("it is in memory"), 0);
    (raw, spots)
}

/// Parses the batch whose head begins `raw`, if it was written at this place, for this pool and device. `raw` holds the whole head, or
/// its first write unit.
pub fn parse_batch(
    raw: &[u8],
    (pool, cache): (u64, u64),
    (zone, at): (ZoneIdx, u64),
    info: &CacheGeometry,
) -> Option<Batch> {
    let head = BatchHead::decode(raw)?;
    if head.magic != BATCH_MAGIC || (head.pool, head.cache) != (pool, cache) {
        return None;
    }
    let entry_bytes = usize::try_from(head.count).ok()?.checked_mul(BatchEntry::SIZE)?;
    let entries = raw.get(BatchHead::SIZE..BatchHead::SIZE.checked_add(entry_bytes)?)?;
    let sealed = raw.get(..BatchHead::SIZE - 16)?;
    if head.seal != seal(seed((pool, cache, head.turn), (zone, at)), &[sealed, entries]) {
        return None;
    }
    let unit = u64::from(info.write_unit);
    let end = at.checked_add(head.bytes).filter(|end| *end <= info.zone_size)?;
    let head_bytes = u64::from(head.head_bytes);
    let fits = head_bytes >= (BatchHead::SIZE + entry_bytes) as u64 && head_bytes.is_multiple_of(GRANULE);
    if !fits || head.bytes == 0 || !head.bytes.is_multiple_of(unit) || head.turn >= 1 << 62 {
        return None;
    }
    let mut offset = at.checked_add(head_bytes)?;
    let mut entries = Reader::new(entries);
    let mut blocks = Vec::new();
    for _ in 0..head.count {
        let entry = BatchEntry::decode(entries.bytes(BatchEntry::SIZE).ok()?)?;
        let spot = Spot { zone, offset, psize: entry.psize };
        offset = offset.checked_add(granule_bytes(entry.psize.into())).filter(|next| *next <= end)?;
        if entry.psize == 0 || entry.psize > BLOCK_BYTES_MAX {
            return None;
        }
        blocks.push((Key { addr: Addr::from_raw(entry.addr), birth: entry.birth }, spot));
    }
    Some(Batch { turn: head.turn, bytes: head.bytes, blocks })
}
