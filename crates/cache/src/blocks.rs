//! The block cache (ZFS: ARC): blocks in stored form, keyed by birthplace. Blocks in use are kept decompressed as well, in one byte
//! budget.
//!
//! A block that is compressed on the device stays compressed here, so the same memory holds several times as much. A hit costs a
//! decompression, which is far cheaper than a device read. Blocks that were written or read again also keep their decompressed form.
//! When memory is short, decompressed forms go first, until each kind has a quarter of the budget left. Idle ones of data go further,
//! down to a 32nd. So do those of metadata, as evicted blocks return. Only then are blocks evicted, by [`retention`],
//! with separate lists for data and metadata. The share of metadata follows returning ghosts of both kinds, and is at least a quarter.
//!
//! An address never changes and never repeats within a birth txg, so an entry is never stale. Freed blocks are dropped explicitly.
//!
//! Invariant ([`BlockCache::check`]): the bytes held, ghosts and tables included, never exceed the budget.

mod cached_block;
mod evicted;
mod index;
mod shard;

use crate::Kind;
use crate::retention;
use cached_block::CachedBlock;
pub use cached_block::{Packed, Source, StoredBlock};
use evicted::EvictedBlocks;
use parking_lot::Mutex;
use shard::Shard;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use terrane_format::block_ptr::Key;
use terrane_wire::{IdHasher, shard};

const SHARDS: usize = 16;
/// Prefetched blocks that no reader has asked for keep this fraction of the budget.
const UNREAD_DIVISOR: usize = 8;

fn key_hash(key: Key) -> u64 {
    let mut hasher = IdHasher::default();
    hasher.write_u64(key.addr.raw());
    hasher.write_u64(key.birth.0);
    hasher.finish()
}

fn tag(key: Key) -> u32 {
    retention::tag(key_hash(key))
}

/// A cached block.
#[derive(Clone, Debug)]
pub enum CacheHit {
    /// Its content.
    Plain(Arc<Vec<u8>>),
    /// Its stored form, to be decompressed.
    Packed(Packed),
    /// Like `Packed`, at the first read of a prefetched block.
    Prefetched(Packed),
}

/// The block cache. Shared by threads: each shard has its own lock.
pub struct BlockCache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: AtomicUsize,
    plain_only: AtomicBool,
    evicted: EvictedBlocks,
}

/// Content and statistics of the cache, for one kind of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Memory, decompressed forms included.
    pub bytes: u64,
    /// Memory of decompressed forms.
    pub plain_bytes: u64,
    /// Memory of stored forms.
    pub stored_bytes: u64,
    /// Bytes of the contents of all cached blocks: what they would take decompressed.
    pub logical_bytes: u64,
    /// Cached blocks.
    pub blocks: u64,
    /// Reads that found the block.
    pub hits: u64,
    /// Reads that did not find the block.
    pub misses: u64,
    /// Evicted blocks that were read again while their ghost existed.
    pub ghost_hits: u64,
    /// Evicted blocks.
    pub evictions: u64,
    /// Prefetched blocks.
    pub prefetched: u64,
    /// Prefetched blocks that were read.
    pub prefetched_hits: u64,
}

impl std::iter::Sum for CacheStats {
    fn sum<I: Iterator<Item = CacheStats>>(all: I) -> CacheStats {
        all.fold(CacheStats::default(), |sum, one| CacheStats {
            bytes: sum.bytes + one.bytes,
            plain_bytes: sum.plain_bytes + one.plain_bytes,
            stored_bytes: sum.stored_bytes + one.stored_bytes,
            logical_bytes: sum.logical_bytes + one.logical_bytes,
            blocks: sum.blocks + one.blocks,
            hits: sum.hits + one.hits,
            misses: sum.misses + one.misses,
            ghost_hits: sum.ghost_hits + one.ghost_hits,
            evictions: sum.evictions + one.evictions,
            prefetched: sum.prefetched + one.prefetched,
            prefetched_hits: sum.prefetched_hits + one.prefetched_hits,
        })
    }
}

impl BlockCache {
    /// A cache of at most `budget` bytes.
    pub fn new(budget: usize) -> BlockCache {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let shard_bytes = AtomicUsize::new(budget / SHARDS);
        let cache = BlockCache {
            shards,
            shard_bytes,
            plain_only: AtomicBool::new(false),
            evicted: EvictedBlocks::default(),
        };
        cache.evicted.set_limit(cache.budget());
        cache
    }

    /// The budget, in bytes.
    pub fn budget(&self) -> usize {
        self.shard_bytes.load(Ordering::Relaxed) * SHARDS
    }

    /// Sets the budget, in bytes. Excess entries are evicted at once.
    pub fn set_budget(&self, budget: usize) {
        self.shard_bytes.store(budget / SHARDS, Ordering::Relaxed);
        self.evicted.set_limit(self.budget());
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.shrink_to_budget(budget / SHARDS, &self.evicted);
            shard.compact();
        }
    }

    /// Whether only decompressed content is kept, as in earlier versions. For comparison.
    pub fn set_plain_only(&self, plain_only: bool) {
        self.plain_only.store(plain_only, Ordering::Relaxed);
        self.clear();
    }

    /// The value that was set.
    pub fn is_plain_only(&self) -> bool {
        self.plain_only.load(Ordering::Relaxed)
    }

    /// Whether the caller should pass the content of a block to [`insert`](BlockCache::insert). Always for metadata; for data only
    /// while
    /// `bytes` more fit without eviction.
    pub fn wants_plain(&self, key: Key, kind: Kind, bytes: usize) -> bool {
        if kind == Kind::Metadata || self.is_plain_only() {
            return true;
        }
        let held = self.shard(key).lock().bytes();
        held + 2 * bytes <= self.shard_bytes.load(Ordering::Relaxed)
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[shard(key_hash(key), SHARDS)]
    }

    /// A cached block, for a reader. Counts as a hit or a miss of `kind`.
    pub fn get(&self, key: Key, kind: Kind) -> Option<CacheHit> {
        self.shard(key).lock().get(key, kind, &self.evicted)
    }

    /// Whether the block is cached. This does not count as a use.
    pub fn holds(&self, key: Key) -> bool {
        self.shard(key).lock().source_of(key).is_some()
    }

    /// Whether the block is cached and was intact at its own place in the pool.
    pub fn holds_from_pool(&self, key: Key) -> bool {
        self.shard(key).lock().source_of(key) == Some(Source::Pool)
    }

    /// Caches a block, and its content if given.
    pub fn insert(
        &self,
        key: Key,
        kind: Kind,
        StoredBlock { packed, source, lsize }: StoredBlock,
        plain: Option<Arc<Vec<u8>>>,
    ) {
        let (packed, plain) = match plain {
            Some(block) if self.is_plain_only() => (Packed::Content(block), None),
            plain => (packed, plain),
        };
        self.admit(
            kind,
            CachedBlock { key, packed, plain: None, lsize, is_prefetched: false, source },
            plain,
        );
    }

    /// Caches a prefetched block: its first read does not count as a second use.
    pub fn insert_prefetched(&self, key: Key, kind: Kind, block: StoredBlock) {
        let StoredBlock { packed, source, lsize } = block;
        self.admit(kind, CachedBlock { key, packed, plain: None, lsize, is_prefetched: true, source }, None);
    }

    /// Memory of prefetched blocks that were not read yet.
    pub fn unread_bytes(&self) -> usize {
        self.evicted.unread_bytes()
    }

    /// Prefetched blocks that were evicted unread.
    pub fn wasted_prefetches(&self) -> u64 {
        self.evicted.wasted_prefetches()
    }

    fn admit(&self, kind: Kind, cached: CachedBlock, plain: Option<Arc<Vec<u8>>>) {
        let (key, bytes) = (cached.key, cached.bytes());
        let budget = self.shard_bytes.load(Ordering::Relaxed);
        let mut shard = self.shard(key).lock();
        if bytes > budget / 2 || shard.source_of(key).is_some() {
            return;
        }
        if cached.is_prefetched {
            self.evicted.count_unread(bytes);
        }
        let copy = self.evicted.copy_of(&cached, kind);
        shard.admit(key, kind, cached, budget);
        if let Some(packed) = copy {
            self.evicted.push(key, packed);
        }
        if let Some(block) = plain {
            shard.put_plain(key, block, false);
        }
        shard.shrink_to_budget(budget, &self.evicted);
    }

    /// Adds the content of a block that was found in stored form.
    pub fn insert_plain(&self, key: Key, block: &Arc<Vec<u8>>) {
        let mut shard = self.shard(key).lock();
        shard.put_plain(key, block.clone(), true);
        shard.shrink_to_budget(self.shard_bytes.load(Ordering::Relaxed), &self.evicted);
    }

    /// Drops the content of a block that is also cached in stored form: its owner is about to change it, so it will hardly be read
    /// again. If no reader holds the content, the owner can then change it in place.
    pub fn release_plain(&self, key: Key) {
        self.shard(key).lock().release_plain(key);
    }

    /// Drops a freed block.
    pub fn forget(&self, key: Key) {
        let cached = self.shard(key).lock().forget(key);
        if let Some(cached) = cached.filter(|cached| cached.is_prefetched) {
            self.evicted.count_read(cached.bytes());
        }
    }

    /// Whether [`take_evicted`](BlockCache::take_evicted) returns metadata also when it is cached, and not only when it is evicted. For
    /// pools whose devices are far.
    pub fn keep_metadata(&self, is_wanted: bool) {
        self.evicted.set_metadata_wanted(is_wanted);
    }

    /// Whether evicted blocks are kept for [`take_evicted`](BlockCache::take_evicted).
    pub fn keep_evicted(&self, is_wanted: bool) {
        self.evicted.set_wanted(is_wanted && !self.is_plain_only());
        if !is_wanted {
            self.take_evicted();
        }
    }

    /// Blocks evicted since the last call, as far as they fit their buffer.
    pub fn take_evicted(&self) -> Vec<(Key, Packed)> {
        self.evicted.take()
    }

    /// Drops everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.evicted.count_read(shard.unread_bytes());
            shard.clear();
        }
    }

    /// By [`Kind::ALL`].
    pub fn stats(&self) -> [CacheStats; Kind::ALL.len()] {
        let of = |kind: Kind| self.shards.iter().map(|shard| shard.lock().stats(kind)).sum();
        Kind::ALL.map(of)
    }

    /// Checks the invariant above.
    pub fn check(&self) -> Result<(), String> {
        self.shards.iter().try_for_each(|shard| shard.lock().check(self.shard_bytes.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests;
