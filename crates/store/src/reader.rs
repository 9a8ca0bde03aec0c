//! Reads: from a pointer to content.
//!
//! A block comes from memory, a cache device or the pool's zones, in this order. A block from any device is verified against its
//! pointer. A damaged copy is replaced: the good bytes are queued, and the next txg appends them under the old address, as a moved
//! block.
//!
//! Invariant: if two readers read one block, it is decoded once, and the second reader waits for the first.

use crate::PoolError;
use crate::cache_devices::{CacheDevices, PERIOD};
use crate::l2cache::CacheDevice;
use crate::pinned_zone::StoredBytes;
use crate::pipeline::{DecodeContext, Pipeline, PreEncoded};
use crate::prefetch_queue::PrefetchQueue;
use crate::read_retry::ReadAttempts;
use crate::reports::{Reports, owner_text};
use crate::zone_store::ZoneStore;
use parking_lot::Mutex;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_cache::blocks::{BlockCache, CacheHit, Packed, Source, StoredBlock};
use terrane_cache::reads_in_flight::ReadsInFlight;
use terrane_codec::{Compression, compute};
use terrane_device::Device;
use terrane_format::addr::Addr;
use terrane_format::block_ptr::{BlockPtr, Key, Normal};
use terrane_format::directory::Owner;
use terrane_wire::{Corrupt, Txg};

mod prefetch;
mod stored_form;

pub use stored_form::StoredForm;

/// Most heals that wait for the next txg. More are dropped, and found again by later reads.
const HEALS_MAX: usize = 256;

/// Good bytes of a block whose copy at `addr` is damaged, or lies in the zone of another copy.
pub struct Heal {
    /// Birthplace of the copy to append again.
    pub addr: Addr,
    /// The good stored bytes.
    pub bytes: Vec<u8>,
    /// The txg in which the block was born.
    pub birth: Txg,
    /// The owner, for the directory entry.
    pub owner: Owner,
    /// Addresses of the other copies.
    pub other_copies: Vec<Addr>,
    /// The copy is damaged. False: it is intact, but lies in the zone of another copy.
    pub is_damaged: bool,
}

/// The blocks of a pool, as readers see them.
pub struct BlockReader {
    /// The zones, with their devices.
    pub store: Arc<ZoneStore>,
    /// Decoding and checksums.
    pub pipeline: Pipeline,
    /// Decoded blocks in memory.
    pub cache: Arc<BlockCache>,
    /// Blocks that memory evicted.
    pub cache_devices: CacheDevices,
    /// Reads ahead of their readers.
    pub prefetch_queue: PrefetchQueue,
    reads_in_flight: ReadsInFlight,
    heals: Mutex<Vec<Heal>>,
    reports: Arc<Reports>,
}

impl BlockReader {
    /// With `threads`, blocks are prefetched into the cache.
    pub fn new(
        store: Arc<ZoneStore>,
        pipeline: Pipeline,
        reports: Arc<Reports>,
        cache: Arc<BlockCache>,
        threads: bool,
    ) -> BlockReader {
        BlockReader {
            cache_devices: CacheDevices::new(store.pool),
            store,
            pipeline,
            cache,
            prefetch_queue: PrefetchQueue::new(threads),
            reads_in_flight: ReadsInFlight::default(),
            heals: Mutex::default(),
            reports,
        }
    }

    /// Takes the queued heals: damaged copies and copies to be separated, with good bytes. The caller must append them again.
    pub fn take_heals(&self) -> Vec<Heal> {
        std::mem::take(&mut *self.heals.lock())
    }

    /// Queues a copy to be appended again by the next txg. The bound on heals does not apply.
    pub fn requeue_heal(&self, heal: Heal) {
        self.heals.lock().push(heal);
    }

    /// Whether a copy waits to be appended again.
    pub fn has_heals(&self) -> bool {
        !self.heals.lock().is_empty()
    }

    /// Attaches a cache device of this pool. Its index is built in the background, or now in a pool without threads.
    pub fn use_cache_device(self: &Arc<Self>, device: Arc<dyn Device>, id: u64) {
        let level = self.cache_devices.push(device, id, self.cache.budget());
        self.cache.keep_evicted(true);
        if !self.prefetch_queue.has_threads() {
            level.load();
            return;
        }
        let reader = Arc::downgrade(self);
        self.cache_devices.start_feeder(move || {
            while let Some(reader) = reader.upgrade().filter(|reader| reader.reports.stop_reason().is_none())
            {
                reader.cache_devices.load();
                reader.feed_cache_devices();
                drop(reader);
                std::thread::park_timeout(PERIOD);
            }
        });
    }

    /// Detaches a cache device. The feeder may still be writing a batch to it.
    pub fn drop_cache_device(&self, id: u64) -> Option<Arc<CacheDevice>> {
        self.cache_devices.remove(id, |is_wanted| self.cache.keep_evicted(is_wanted))
    }

    /// Writes evicted blocks to the cache devices, at the feed rate. A thread of the pool calls this; in a pool without threads its
    /// owner does.
    pub fn feed_cache_devices(&self) {
        self.cache_devices.feed(|| self.cache.take_evicted(), || self.store.counters.now_ns());
    }

    /// Stops feeding. The devices are closed when this returns.
    pub fn stop_cache_devices(&self) {
        self.cache.keep_evicted(false);
        self.cache_devices.stop();
    }

    fn decode(&self, context: &DecodeContext, stored: &[u8]) -> Result<Vec<u8>, PoolError> {
        let content = self.pipeline.decode(context, stored);
        content.map_err(|corrupt| self.reports.note_block_damage(context.owner, corrupt))
    }

    /// The content of the block behind a pointer, verified and decompressed: `lsize` bytes. A hole reads as zeros. Logs name `owner`.
    pub fn read(&self, ptr: &BlockPtr, owner: Owner) -> Result<Arc<Vec<u8>>, PoolError> {
        match ptr {
            BlockPtr::Hole(hole) => Ok(Arc::new(vec![0; hole.lsize as usize])),
            BlockPtr::Embedded(embedded) => {
                Ok(Arc::new(self.decode(&DecodeContext::embedded(owner, embedded), &embedded.payload)?))
            }
            BlockPtr::Normal(normal) => {
                let (key, kind) = (Key::of(normal), Kind::of(normal));
                let mut found = self.find_cached(key, kind);
                if let Some(CacheHit::Plain(block)) = found {
                    return self.check_length(normal, owner, block);
                }
                // Held until the block is in the cache.
                let claim = self.reads_in_flight.claim(key);
                if claim.is_none() {
                    found = self.cache.get(key, kind);
                }
                if let Some(CacheHit::Plain(block)) = found {
                    return self.check_length(normal, owner, block);
                }
                let context = DecodeContext::stored(owner, normal);
                if let Some(CacheHit::Packed(packed) | CacheHit::Prefetched(packed)) = found {
                    let block = Arc::new(self.decode(&context, packed.bytes())?);
                    self.cache.insert_plain(key, &block);
                    return Ok(block);
                }
                let (stored, source) = self.fetch(normal, owner)?;
                let block = Arc::new(self.decode(&context, &stored)?);
                // An uncompressed block shares its memory with the cache entry.
                let packed = match is_uncompressed(normal) {
                    true => Packed::Content(block.clone()),
                    false => packed(normal, &stored),
                };
                let stored = StoredBlock { packed, source, lsize: normal.lsize };
                self.cache.insert(key, kind, stored, Some(block.clone()));
                Ok(block)
            }
        }
    }

    /// Like [`read`](BlockReader::read), into the caller's memory of exactly the block's size. For whole blocks whose content is not
    /// expected to be read again. On an error the content of the memory is undefined.
    pub fn read_into(&self, ptr: &BlockPtr, owner: Owner, out: &mut [u8]) -> Result<(), PoolError> {
        let BlockPtr::Normal(normal) = ptr else {
            out.copy_from_slice(&self.read(ptr, owner)?);
            return Ok(());
        };
        let (key, kind) = (Key::of(normal), Kind::of(normal));
        let context = DecodeContext::stored(owner, normal);
        let unpack = |stored: &[u8], out: &mut [u8]| {
            self.pipeline
                .decode_into(&context, stored, out)
                .map_err(|corrupt| self.reports.note_block_damage(context.owner, corrupt))
        };
        match self.find_cached(key, kind) {
            Some(CacheHit::Plain(block)) => out.copy_from_slice(&self.check_length(normal, owner, block)?),
            Some(CacheHit::Prefetched(packed)) => unpack(packed.bytes(), out)?,
            Some(CacheHit::Packed(packed)) => {
                unpack(packed.bytes(), out)?;
                // The block was read a second time after all: cache its content.
                if self.cache.wants_plain(key, kind, out.len()) {
                    self.cache.insert_plain(key, &Arc::new(out.to_vec()));
                }
            }
            None => {
                let (stored, source) = self.fetch(normal, owner)?;
                unpack(&stored, out)?;
                let plain = self.cache.is_plain_only().then(|| Arc::new(out.to_vec()));
                let stored = StoredBlock { packed: packed(normal, &stored), source, lsize: normal.lsize };
                self.cache.insert(key, kind, stored, plain);
            }
        }
        Ok(())
    }

    /// Caches a block that was just written.
    pub fn cache_written(
        &self,
        key: Key,
        kind: Kind,
        (compression, bytes): (u8, &Arc<Vec<u8>>),
        content: &Arc<Vec<u8>>,
    ) {
        let packed = if compression == Compression::Off.id() && bytes.capacity() == bytes.len() {
            Packed::Content(bytes.clone())
        } else {
            // The compression buffer has the worst-case size, so copy what was used.
            Packed::copy_of(compression, bytes)
        };
        let plain = self.cache.wants_plain(key, kind, content.len()).then(|| content.clone());
        let lsize = u32::try_from(content.len()).unwrap_or(u32::MAX);
        self.cache.insert(key, kind, StoredBlock { packed, source: Source::Pool, lsize }, plain);
    }

    /// Reads and verifies every copy of a block, past the cache. Returns the damaged copies. For `check`.
    pub fn verify(&self, ptr: &BlockPtr) -> Vec<(Addr, PoolError)> {
        let BlockPtr::Normal(normal) = ptr else { return Vec::new() };
        let copies: Vec<Addr> = normal.copies().collect();
        copies
            .into_iter()
            .filter_map(|addr| self.store.read_copy(normal, addr).err().map(|error| (addr, error)))
            .collect()
    }

    /// Reads every copy of a block, and queues damaged ones for repair in the next txg. Returns how many were damaged.
    pub fn scrub(&self, normal: &Normal, owner: Owner) -> usize {
        self.store.counters.scrubbed_blocks.add(1);
        let copies: Vec<Addr> = normal.copies().collect();
        let read: Vec<_> = copies.iter().map(|addr| self.store.read_copy(normal, *addr)).collect();
        let Some(good) = read.iter().find_map(|read| read.as_ref().ok()) else {
            read.iter()
                .take(1)
                .flat_map(|read| read.as_ref().err())
                .for_each(|e| self.reports.log.note_block(owner, e));
            return copies.len();
        };
        let bad = copies.iter().zip(&read).filter(|(_, read)| read.is_err());
        bad.map(|(addr, _)| self.queue_heal(*addr, good, normal, owner)).count()
    }

    /// The stored bytes of a block, from a cache device if one has them.
    fn fetch(&self, normal: &Normal, owner: Owner) -> Result<(StoredBytes, Source), PoolError> {
        if let Some(stored) = self.read_cached(normal) {
            return Ok((stored, Source::CacheDevice));
        }
        Ok((self.read_verified(normal, owner)?, Source::Pool))
    }

    /// Cached content, if its length matches this pointer. Two damaged pointers may name one birthplace.
    fn check_length(
        &self,
        normal: &Normal,
        owner: Owner,
        block: Arc<Vec<u8>>,
    ) -> Result<Arc<Vec<u8>>, PoolError> {
        if block.len() == normal.lsize as usize {
            return Ok(block);
        }
        let corrupt = Corrupt::new(normal.addrs[0], "logical size", block.len(), normal.lsize);
        Err(self.reports.note_block_damage(owner, corrupt))
    }

    /// Reads a block from a cache device. `None`: no device has it, or it is damaged there and was dropped.
    pub fn read_cached(&self, normal: &Normal) -> Option<StoredBytes> {
        let key = Key::of(normal);
        let (cache, extent) = self.cache_devices.find(key)?;
        let unit = u64::from(cache.device().info().write_unit);
        let from = extent.offset / unit * unit;
        let start = (extent.offset - from) as usize;
        let end = start + extent.psize as usize;
        let mut stored = StoredBytes::new(start..end, end.next_multiple_of(unit as usize));
        let was_read = cache.device().read(extent.zone, from, stored.buf_mut()).is_ok();
        let is_whole = was_read
            && extent.psize == normal.psize
            && compute(normal.checksum_kind, &stored) == normal.checksum;
        cache.note_read(key, extent, is_whole);
        is_whole.then_some(stored)
    }

    /// Drops a freed block from memory and cache devices.
    pub fn drop_cached(&self, key: Key) {
        self.cache.forget(key);
        self.cache_devices.forget(key);
    }

    /// The stored bytes of a block, from its first good copy. A commit waits for a failing device: see [`Reports`].
    pub fn read_verified(&self, normal: &Normal, owner: Owner) -> Result<StoredBytes, PoolError> {
        let mut tries = ReadAttempts::default();
        let outcome = loop {
            match self.read_any_copy(normal, owner) {
                Err(error) if error.is_transient() => {
                    if let Err(error) = self.reports.wait_for_device(&mut tries, error) {
                        break Err(error);
                    }
                }
                outcome => break outcome,
            }
        };
        self.reports.stop_waiting(&tries, outcome.is_ok());
        outcome.map_err(|error| {
            self.store.counters.lost_blocks.add(1);
            match error {
                PoolError::Corrupt(corrupt) => self.reports.note_block_damage(owner, corrupt),
                other => {
                    log::error!("read failed: {other}; {}", owner_text(owner));
                    self.reports.log.note_block(owner, &other);
                    other
                }
            }
        })
    }

    /// Tries the copies in order. A block is damaged only if all copies are: one that could not be read may be good.
    fn read_any_copy(&self, normal: &Normal, owner: Owner) -> Result<StoredBytes, PoolError> {
        let mut bad: Vec<(Addr, PoolError)> = Vec::new();
        for addr in normal.copies() {
            match self.store.read_copy(normal, addr) {
                Ok(stored) => {
                    for (addr, error) in &bad {
                        log::warn!("copy failed, using another: {error}; {}", owner_text(owner));
                        self.queue_heal(*addr, &stored, normal, owner);
                    }
                    return Ok(stored);
                }
                Err(error) => bad.push((addr, error)),
            }
        }
        let unread = bad.iter().position(|(_, error)| error.is_transient());
        let (_, error) = bad.swap_remove(unread.unwrap_or(0));
        Err(error)
    }

    fn queue_heal(&self, addr: Addr, stored: &[u8], normal: &Normal, owner: Owner) {
        let mut heals = self.heals.lock();
        if heals.len() < HEALS_MAX && !heals.iter().any(|heal| heal.addr == addr) {
            let other_copies = normal.copies().filter(|copy| *copy != addr).collect();
            heals.push(Heal {
                addr,
                bytes: stored.to_vec(),
                birth: normal.block_birth,
                owner,
                other_copies,
                is_damaged: true,
            });
        }
    }

    /// The stored bytes of a block, if every copy is intact on its device. Cache devices are not asked.
    pub fn read_all_copies(&self, old: &Normal, owner: Owner) -> Option<StoredBytes> {
        let mut whole = None;
        for addr in old.copies() {
            match self.store.read_copy(old, addr) {
                Ok(stored) => whole = Some(stored),
                Err(error) => {
                    log::warn!("copy failed, the block is rewritten: {error}; {}", owner_text(owner));
                    return None;
                }
            }
        }
        whole
    }

    /// The content of a data block and its stored form, for a rewrite. Bypasses the block cache, because no reader asked for it. A
    /// failed read is not noted as damage: the block may have been replaced and freed.
    pub fn read_for_rewrite(
        &self,
        normal: &Normal,
        owner: Owner,
    ) -> Result<(Arc<Vec<u8>>, PreEncoded), PoolError> {
        let stored = self.store.read_copy(normal, normal.addrs[0])?;
        let content = self.pipeline.decode(&DecodeContext::stored(owner, normal), &stored)?;
        Ok((Arc::new(content), PreEncoded::already_stored(normal.compression, stored.to_vec())))
    }
}

fn is_uncompressed(normal: &Normal) -> bool {
    normal.compression == Compression::Off.id()
}

/// The form of a block that the cache keeps. For uncompressed content that leaves out the padding zeros.
fn packed(normal: &Normal, stored: &[u8]) -> Packed {
    let content = stored.get(..normal.lsize as usize).filter(|_| is_uncompressed(normal));
    Packed::copy_of(normal.compression, content.unwrap_or(stored))
}
