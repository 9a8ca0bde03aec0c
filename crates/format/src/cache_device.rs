//! The layout of a cache device: its head, and batches with their tables of contents. FORMAT.md section 10.

use crate::addr::{Addr, GRANULE, granule_bytes};
use crate::block_ptr::{BLOCK_BYTES_MAX, Key};
use crate::seal::{Seed, seal};
use terrane_wire::{Reader, Txg, Writer, ZoneIdx, layout};

/// `magic` of a [`CacheHead`].
pub const CACHE_MAGIC: u64 = u64::from_le_bytes(*b"TERRCACH");
/// `magic` of a [`BatchHead`].
pub const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"TERRCBAT");
const CACHE_VERSION: u32 = 1;
/// Largest batch head, in bytes.
pub const BATCH_HEAD_MAX: u64 = 1 << 20;

/// The place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheExtent {
    /// Zone of the cache device.
    pub zone: ZoneIdx,
    /// In bytes.
    pub offset: u64,
    /// Stored bytes, exact.
    pub psize: u32,
}

/// The geometry of a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGeometry {
    /// In bytes.
    pub write_unit: u32,
    /// In bytes.
    pub zone_size: u64,
    /// Zone 0 included.
    pub zone_count: u32,
}

layout! {
    /// Begins zone 0 of a cache device.
    CacheHead, 64 bytes {
        /// [`CACHE_MAGIC`].
        0  magic: u64,
        /// Of this layout: 1.
        8  version: u32,
        /// In bytes.
        12 write_unit: u32,
        /// Id of the pool whose blocks the device holds.
        16 pool: u64,
        /// The device's id in the label.
        24 cache: u64,
        /// In bytes, at most 4 GiB.
        32 zone_size: u64,
        /// Zone 0 included.
        40 zone_count: u32,
        /// Ignored.
        44 reserved: u32,
        /// Over the rest. Scope: the device's id. Offset and incarnation: 0.
        48 seal: [u8; 16],
    }
}

layout! {
    /// Begins a batch. Its entries follow, then the blocks.
    BatchHead, 64 bytes {
        /// [`BATCH_MAGIC`].
        0  magic: u64,
        /// As in the head of the device.
        8  pool: u64,
        /// As in the head of the device.
        16 cache: u64,
        /// Number of this filling of the zone: one more than that of the zone filled before.
        24 lap: u64,
        /// Entries.
        32 count: u32,
        /// From the start of the batch to its first block.
        36 head_bytes: u32,
        /// From the start of the batch to its end, in whole write units.
        40 bytes: u64,
        /// Over the rest of the head, then the entries.
        48 seal: [u8; 16],
    }
}

layout! {
    /// A block in a batch.
    BatchEntry, 24 bytes {
        /// The block's birthplace: the first address in its pointer.
        0  addr: u64,
        /// The txg that wrote the block.
        8  birth: Txg,
        /// Stored bytes: 1 to 16 MiB.
        16 psize: u32,
        /// Ignored.
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
        seal(Seed { pool: self.pool, scope: self.cache, offset: 0, incarnation: 0 }, &[sealed])
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
    /// Number of the filling of the zone.
    pub lap: u64,
    /// From the start of this batch to the next one.
    pub bytes: u64,
    /// The blocks in stored order, with their places on the device.
    pub blocks: Vec<(Key, CacheExtent)>,
}

fn seed((pool, cache, lap): (u64, u64, u64), (zone, at): (ZoneIdx, u64)) -> Seed {
    // No zone is larger than 2^32 bytes.
    Seed { pool, scope: cache, offset: u64::from(zone.0) << 32 | at, incarnation: lap }
}

/// Encodes the head of a batch of a pool, device and lap, at an offset in a zone. Returns the head, padded to `head_bytes`, and the
/// places of the blocks, consecutive and aligned to granules.
pub fn encode_head(
    ids: (u64, u64, u64),
    (zone, at): (ZoneIdx, u64),
    sizes: &[(Key, u32)],
    (head_bytes, bytes): (u64, u64),
) -> (Vec<u8>, Vec<CacheExtent>) {
    let (pool, cache, lap) = ids;
    let mut entries = Writer::with_capacity(sizes.len() * BatchEntry::SIZE);
    let mut extents = Vec::with_capacity(sizes.len());
    let mut offset = at + head_bytes;
    for (key, psize) in sizes {
        let entry = BatchEntry { addr: key.addr.raw(), birth: key.birth, psize: *psize, reserved: 0 };
        entries.bytes(&entry.encode());
        extents.push(CacheExtent { zone, offset, psize: *psize });
        offset += granule_bytes((*psize).into());
    }
    let count = u32::try_from(sizes.len()).expect("a batch lies in a zone");
    let head_len = u32::try_from(head_bytes).expect("a batch lies in a zone");
    let mut head =
        BatchHead { magic: BATCH_MAGIC, pool, cache, lap, count, head_bytes: head_len, bytes, seal: [0; 16] };
    let raw = head.encode();
    let sealed = raw.split_last_chunk::<16>().map_or(&[][..], |(rest, _)| rest);
    head.seal = seal(seed(ids, (zone, at)), &[sealed, entries.as_bytes()]);
    let mut raw = head.encode().to_vec();
    raw.extend_from_slice(entries.as_bytes());
    raw.resize(usize::try_from(head_bytes).expect("a batch head fits into memory"), 0);
    (raw, extents)
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
    if head.seal != seal(seed((pool, cache, head.lap), (zone, at)), &[sealed, entries]) {
        return None;
    }
    let unit = u64::from(info.write_unit);
    let end = at.checked_add(head.bytes).filter(|end| *end <= info.zone_size)?;
    let head_bytes = u64::from(head.head_bytes);
    let fits = head_bytes >= (BatchHead::SIZE + entry_bytes) as u64 && head_bytes.is_multiple_of(GRANULE);
    if !fits || head.bytes == 0 || !head.bytes.is_multiple_of(unit) || head.lap >= 1 << 62 {
        return None;
    }
    let mut offset = at.checked_add(head_bytes)?;
    let mut entries = Reader::new(entries);
    let mut blocks = Vec::new();
    for _ in 0..head.count {
        let entry = BatchEntry::decode(entries.bytes(BatchEntry::SIZE).ok()?)?;
        let extent = CacheExtent { zone, offset, psize: entry.psize };
        offset = offset.checked_add(granule_bytes(entry.psize.into())).filter(|next| *next <= end)?;
        if entry.psize == 0 || entry.psize > BLOCK_BYTES_MAX {
            return None;
        }
        blocks.push((Key { addr: Addr::from_raw(entry.addr), birth: entry.birth }, extent));
    }
    Some(Batch { lap: head.lap, bytes: head.bytes, blocks })
}
