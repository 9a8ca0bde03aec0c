//! A cache device: blocks evicted from memory, on a device that is faster than the pool's (ZFS: L2ARC).
//!
//! The device is one ring of zones, appended to in batches. When it is full, the zone that was filled longest ago is reset. Blocks are
//! kept in the form in which the pool stores them, and are verified by their pointers in the same way. A block that is damaged, lost or
//! stale is read from the pool instead, which costs only time. So the device is never flushed, and no error here stops anything. A
//! block's key is never reused. So an entry found after a restart is right or useless, even if the pool was meanwhile used without the
//! device.
//!
//! Each batch begins with its table of contents. After a restart, the index is rebuilt from these in the background.
//!
//! Invariants: the index takes at most an eighth of the cache's memory. A batch is in the index only once it was written. Nothing is
//! written to a device after it was detached.

use crate::devices::smallest_capacity;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use terrane_cache::blocks::Packed;
use terrane_device::{AlignedBuf, Counted, Device, DeviceError, DeviceInfo, IoCounts, ZoneState};
use terrane_format::addr::granule_bytes;
use terrane_format::block_ptr::Key;
use terrane_format::cache_device::{
    BATCH_HEAD_MAX, Batch, BatchHead, CacheExtent, CacheGeometry, encode_head, parse_batch,
};
use terrane_wire::meter::Counter;
use terrane_wire::{IdMap, ZoneIdx};

/// The geometry in the head of a cache device.
pub fn cache_geometry(info: &DeviceInfo) -> CacheGeometry {
    CacheGeometry { write_unit: info.write_unit, zone_size: info.zone_size, zone_count: info.zone_count }
}

/// Fraction of the cache's memory for the index of one device.
pub const INDEX_DIVISOR: usize = 8;
/// Zone 0 holds the head, which identifies the device.
pub const HEAD_ZONES: u32 = 1;
/// Bytes of blocks in a full batch.
const BATCH_BYTES: u64 = 1 << 20;
/// Most blocks of a batch.
const BATCH_BLOCKS: usize = 4096;
/// Most bytes per second that are written to the device.
pub const FEED_RATE: u64 = 64 << 20;
/// Consecutive failed writes after which a device is no longer fed.
const FAILURES_MAX: u32 = 4;
/// Memory of one index entry, in bytes.
const ENTRY_BYTES: usize = 96;
/// Dropped keys that may stay in the zone lists, beside a quarter of those in the index.
const LISTED_SPARE: usize = 1024;

/// The index, and the state of the ring.
#[derive(Default)]
struct RingState {
    index: IdMap<Key, CacheExtent>,
    /// The keys written to each zone. Some may have been dropped from the index.
    keys: Vec<Vec<Key>>,
    /// The total length of `keys`.
    listed: usize,
    /// Zones with blocks, without the open one. The zone that was filled longest ago comes first.
    full: VecDeque<ZoneIdx>,
    free: VecDeque<ZoneIdx>,
    /// The zone being written, and its next offset.
    open: Option<(ZoneIdx, u64)>,
    next_lap: u64,
    lap: u64,
    held_bytes: u64,
    failures: u32,
    rate_budget: RateBudget,
}

/// A rate limit: how many bytes may be written now.
#[derive(Debug, Default)]
struct RateBudget {
    bytes: u64,
    updated_ns: u64,
}

impl RateBudget {
    /// Unused budget accumulates for at most one second.
    fn refill(&mut self, now_ns: u64, rate: u64) -> u64 {
        let passed_ns =
            if self.updated_ns == 0 { 1_000_000_000 } else { now_ns.saturating_sub(self.updated_ns) };
        self.updated_ns = now_ns;
        let more = u64::try_from(u128::from(passed_ns) * u128::from(rate) / 1_000_000_000).unwrap_or(rate);
        self.bytes = self.bytes.saturating_add(more).min(rate);
        self.bytes
    }
}

/// Blocks that fit into an index of this many bytes.
fn index_capacity(index_bytes: usize) -> usize {
    (index_bytes / ENTRY_BYTES).max(1)
}

/// A cache device in use.
pub struct CacheDevice {
    /// Its id, as the pool's label names it.
    pub id: u64,
    pool: u64,
    device: Counted,
    ring: Mutex<RingState>,
    /// Held by the thread that writes to the device. True once the device was detached.
    detached: Mutex<bool>,
    /// The index was built.
    loaded: AtomicBool,
    entries_max: AtomicUsize,
    /// Most bytes of a batch and of one block: a quarter of a zone.
    batch_bytes: u64,
    hits: Counter,
    hit_bytes: Counter,
    fed_bytes: Counter,
    damaged: Counter,
}

/// What a cache device holds, and its statistics since it was opened.
#[derive(Clone, Debug)]
pub struct CacheDeviceStats {
    /// The path, or another name of the device.
    pub name: String,
    /// Its id, as the pool's label names it.
    pub id: u64,
    /// Its capacity in bytes.
    pub size_bytes: u64,
    /// Blocks in its index.
    pub blocks: u64,
    /// Stored bytes of those blocks.
    pub held_bytes: u64,
    /// Memory of its index, in bytes.
    pub index_bytes: u64,
    /// Reads that it served, and their bytes.
    pub hits: u64,
    /// Stored bytes of the blocks that it served.
    pub hit_bytes: u64,
    /// Bytes of blocks written to it.
    pub fed_bytes: u64,
    /// Blocks that did not match their pointer, or could not be read.
    pub damaged: u64,
    /// Its index is still being built.
    pub is_loading: bool,
    /// I/O of the device.
    pub io: IoCounts,
}

impl CacheDevice {
    /// An empty device. `index_bytes` bounds the memory of its index.
    pub fn new(device: Arc<dyn Device>, (pool, id): (u64, u64), index_bytes: usize) -> CacheDevice {
        let zones = device.info().zone_count;
        let batch_bytes = smallest_capacity(device.as_ref()) / 4;
        let ring = RingState {
            keys: vec![Vec::new(); zones as usize],
            free: (HEAD_ZONES..zones).map(ZoneIdx).collect(),
            next_lap: 1,
            ..RingState::default()
        };
        CacheDevice {
            id,
            pool,
            device: Counted::new(device),
            ring: Mutex::new(ring),
            detached: Mutex::new(false),
            loaded: AtomicBool::new(false),
            entries_max: AtomicUsize::new(index_capacity(index_bytes)),
            batch_bytes,
            hits: Counter::default(),
            hit_bytes: Counter::default(),
            fed_bytes: Counter::default(),
            damaged: Counter::default(),
        }
    }

    /// The device, with its I/O counted.
    pub fn device(&self) -> &dyn Device {
        &self.device
    }

    /// Whether the index was built from what the device held.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// Sets the memory bound of the index. If the index exceeds it, the oldest zones are dropped at once.
    pub fn bound_index(&self, index_bytes: usize) {
        let entries_max = index_capacity(index_bytes);
        self.entries_max.store(entries_max, Ordering::Relaxed);
        self.ring.lock().shrink(entries_max);
    }

    /// The place of a block. `None`: the device does not hold it.
    pub fn find(&self, key: Key) -> Option<CacheExtent> {
        self.ring.lock().index.get(&key).copied()
    }

    /// Notes a read of a block at `extent`, and whether it was intact.
    pub fn note_read(&self, key: Key, extent: CacheExtent, is_whole: bool) {
        if is_whole {
            self.hits.add(1);
            self.hit_bytes.add(extent.psize.into());
            return;
        }
        let mut ring = self.ring.lock();
        // The zone may have been reset meanwhile.
        if ring.index.get(&key) == Some(&extent) {
            ring.forget(key);
            self.damaged.add(1);
        }
    }

    /// Drops a freed block from the index.
    pub fn forget(&self, key: Key) {
        self.ring.lock().forget(key);
    }

    /// Detaches the device: once this has returned, nothing is written to it.
    pub fn detach(&self) {
        *self.detached.lock() = true;
    }

    /// Statistics at this moment. Takes the lock of the index.
    pub fn stats(&self) -> CacheDeviceStats {
        let info = self.device.info();
        let ring = self.ring.lock();
        CacheDeviceStats {
            name: info.name.clone(),
            id: self.id,
            size_bytes: u64::from(info.zone_count.saturating_sub(HEAD_ZONES)) * info.zone_size,
            blocks: ring.index.len() as u64,
            held_bytes: ring.held_bytes,
            index_bytes: (ring.index.len() * ENTRY_BYTES) as u64,
            hits: self.hits.get(),
            hit_bytes: self.hit_bytes.get(),
            fed_bytes: self.fed_bytes.get(),
            damaged: self.damaged.get(),
            is_loading: !self.is_loaded(),
            io: self.device.counts(),
        }
    }

    /// Writes the blocks that are not in the index yet, as the rate allows. The rest is dropped. One thread at a time.
    pub fn feed(&self, blocks: Vec<(Key, Packed)>, now_ns: u64, rate: u64) {
        let detached = self.detached.lock();
        if *detached {
            return;
        }
        let allowed = self.ring.lock().rate_budget.refill(now_ns, rate);
        let mut left = allowed;
        let mut batch: Vec<(Key, Packed)> = Vec::new();
        let mut bytes = 0u64;
        for (key, packed) in blocks {
            let len = granule_bytes(packed.bytes().len() as u64);
            if len > left.min(self.batch_bytes) || self.find(key).is_some() {
                continue;
            }
            left -= len;
            bytes += len;
            batch.push((key, packed));
            if bytes >= self.batch_bytes.min(BATCH_BYTES) || batch.len() >= BATCH_BLOCKS {
                self.write(&std::mem::take(&mut batch));
                bytes = 0;
            }
        }
        if !batch.is_empty() {
            self.write(&batch);
        }
        self.ring.lock().rate_budget.bytes = left;
    }

    fn write(&self, blocks: &[(Key, Packed)]) {
        if self.ring.lock().failures >= FAILURES_MAX {
            return;
        }
        if let Err(error) = self.try_write(blocks) {
            let mut ring = self.ring.lock();
            ring.failures += 1;
            // The next import finds what is in the zone.
            if let Some((zone, _)) = ring.open.take() {
                ring.full.push_back(zone);
            }
            let last =
                if ring.failures >= FAILURES_MAX { "; feeding stopped until the next import" } else { "" };
            log::warn!("{}: cache write failed: {error}{last}", self.device.info().name);
        }
    }

    fn try_write(&self, blocks: &[(Key, Packed)]) -> Result<(), DeviceError> {
        let unit = u64::from(self.device.info().write_unit);
        let sizes: Vec<(Key, u32)> =
            blocks.iter().map(|(key, packed)| (*key, packed.bytes().len() as u32)).collect();
        let head_bytes = BatchHead::bytes_for(sizes.len(), unit);
        let content: u64 = sizes.iter().map(|(_, psize)| granule_bytes((*psize).into())).sum();
        let bytes = (head_bytes + content).next_multiple_of(unit);
        let Some((zone, at)) = self.zone_for_batch(bytes)? else { return Ok(()) };
        let lap = self.ring.lock().lap;
        let seed = (self.pool, self.id, lap);
        let (head, extents) = encode_head(seed, (zone, at), &sizes, (head_bytes, bytes));
        let mut raw = AlignedBuf::new();
        raw.extend_from_slice(&head);
        for ((_, packed), extent) in blocks.iter().zip(&extents) {
            raw.resize((extent.offset - at) as usize);
            raw.extend_from_slice(packed.bytes());
        }
        raw.resize(bytes as usize);
        self.device.write(zone, at, &raw)?;
        let mut ring = self.ring.lock();
        ring.open = Some((zone, at + bytes));
        ring.failures = 0;
        for ((key, _), extent) in sizes.iter().zip(extents) {
            ring.insert(*key, extent);
            self.fed_bytes.add(extent.psize.into());
        }
        ring.shrink(self.entries_max.load(Ordering::Relaxed));
        Ok(())
    }

    /// The place of a batch of `bytes` bytes: the open zone, or the next zone of the ring, which is emptied. `None`: no zone takes it.
    fn zone_for_batch(&self, bytes: u64) -> Result<Option<(ZoneIdx, u64)>, DeviceError> {
        let open = self.ring.lock().open;
        if let Some((zone, at)) = open {
            if at + bytes <= self.device.report(zone)?.capacity {
                return Ok(open);
            }
            self.device.finish(zone)?;
            let mut ring = self.ring.lock();
            ring.full.push_back(zone);
            ring.open = None;
        }
        for _ in HEAD_ZONES..self.device.info().zone_count {
            let Some(zone) = self.ring.lock().next_zone() else { break };
            let outcome = self.device.reset(zone).and_then(|()| self.device.report(zone));
            match outcome {
                Ok(report) if report.state == ZoneState::Empty && report.capacity >= bytes => {
                    let mut ring = self.ring.lock();
                    ring.lap = ring.next_lap;
                    ring.next_lap += 1;
                    ring.open = Some((zone, 0));
                    return Ok(Some((zone, 0)));
                }
                // The zone is skipped until the next import.
                Ok(report) => {
                    log::warn!("{}: cache zone {zone} skipped: {report:?}", self.device.info().name)
                }
                Err(error) => log::warn!("{}: cache zone {zone} skipped: {error}", self.device.info().name),
            }
        }
        Ok(None)
    }

    /// Builds the index from the device, newest batches first, until the index is full.
    pub fn load(&self) {
        let detached = self.detached.lock();
        if *detached {
            return;
        }
        let info = self.device.info().clone();
        let mut zones: Vec<(u64, ZoneIdx)> = (HEAD_ZONES..info.zone_count)
            .map(ZoneIdx)
            .filter_map(|zone| Some((self.batch_at(zone, 0)?.lap, zone)))
            .collect();
        zones.sort_unstable();
        for (_, zone) in &zones {
            let is_open = self.device.report(*zone).is_ok_and(|report| report.state == ZoneState::Open);
            let capacity = self.device.report(*zone).map_or(0, |report| report.capacity);
            let outcome = match is_open {
                true => self.device.finish(*zone),
                false => self.device.resume(*zone, capacity).map(drop),
            };
            if let Err(error) = outcome {
                log::warn!("{}: cache zone {zone} not resumed: {error}", info.name);
            }
        }
        for (lap, zone) in zones.iter().rev() {
            let mut at = 0;
            while let Some(batch) = self.batch_at(*zone, at).filter(|batch| batch.lap == *lap) {
                let mut ring = self.ring.lock();
                for (key, extent) in batch.blocks {
                    if ring.index.len() < self.entries_max.load(Ordering::Relaxed)
                        && !ring.index.contains_key(&key)
                    {
                        ring.insert(key, extent);
                    }
                }
                at += batch.bytes;
            }
        }
        let mut ring = self.ring.lock();
        ring.free.retain(|zone| !zones.iter().any(|(_, full)| full == zone));
        ring.next_lap = zones.last().map_or(0, |(lap, _)| *lap) + 1;
        ring.full = zones.into_iter().map(|(_, zone)| zone).collect();
        drop(ring);
        self.loaded.store(true, Ordering::Release);
    }

    /// The batch that begins at this offset, if there is one.
    fn batch_at(&self, zone: ZoneIdx, at: u64) -> Option<Batch> {
        let info = self.device.info();
        let unit = u64::from(info.write_unit);
        let mut raw = AlignedBuf::new();
        raw.prepare(unit as usize);
        if at + unit > info.zone_size || self.device.read(zone, at, &mut raw).is_err() {
            return None;
        }
        let head_bytes = u64::from(BatchHead::decode(&raw)?.head_bytes);
        if head_bytes > unit && head_bytes <= BATCH_HEAD_MAX && at + head_bytes <= info.zone_size {
            raw.prepare(head_bytes.next_multiple_of(unit) as usize);
            self.device.read(zone, at, &mut raw).ok()?;
        }
        parse_batch(&raw, (self.pool, self.id), (zone, at), &cache_geometry(info))
    }
}

impl RingState {
    fn insert(&mut self, key: Key, extent: CacheExtent) {
        self.forget(key);
        self.held_bytes += u64::from(extent.psize);
        self.index.insert(key, extent);
        if let Some(keys) = self.keys.get_mut(extent.zone.0 as usize) {
            keys.push(key);
            self.listed += 1;
        }
        self.clear_lists();
    }

    /// Removes dropped keys from the zone lists, once there are many.
    fn clear_lists(&mut self) {
        if self.listed <= self.index.len() + self.index.len() / 4 + LISTED_SPARE {
            return;
        }
        let index = &self.index;
        for (zone, keys) in (0..).map(ZoneIdx).zip(&mut self.keys) {
            keys.retain(|key| index.get(key).is_some_and(|extent| extent.zone == zone));
            keys.shrink_to_fit();
        }
        self.listed = self.keys.iter().map(Vec::len).sum();
    }

    fn forget(&mut self, key: Key) {
        if let Some(extent) = self.index.remove(&key) {
            self.held_bytes -= u64::from(extent.psize);
        }
    }

    /// Drops all blocks of a zone.
    fn drop_zone(&mut self, zone: ZoneIdx) {
        let keys = self.keys.get_mut(zone.0 as usize).map(std::mem::take).unwrap_or_default();
        self.listed -= keys.len();
        for key in keys {
            // The block may have been written again, elsewhere.
            if self.index.get(&key).is_some_and(|extent| extent.zone == zone) {
                self.forget(key);
            }
        }
    }

    /// The next zone to fill. Its blocks are dropped.
    fn next_zone(&mut self) -> Option<ZoneIdx> {
        let zone = self.free.pop_front().or_else(|| self.full.pop_front())?;
        self.drop_zone(zone);
        Some(zone)
    }

    /// Drops the oldest zones until the index is within its bound.
    fn shrink(&mut self, entries_max: usize) {
        while self.index.len() > entries_max
            && let Some(zone) = self.full.pop_front()
        {
            self.drop_zone(zone);
            self.free.push_back(zone);
        }
    }
}

#[cfg(test)]
mod tests;
