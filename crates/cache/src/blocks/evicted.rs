//! Evicted blocks, and metadata that is not evicted yet, for the cache devices.

use super::cached_block::{CachedBlock, Packed, Source};
use crate::Kind;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use terrane_format::block_ptr::Key;

/// Most memory of the buffer, in bytes.
const BYTES_MAX: usize = 16 << 20;
/// Memory of an entry beside the block's bytes.
const ENTRY_BYTES: usize = 64;

/// A buffer of evicted blocks for the cache devices. Blocks that do not fit are dropped.
#[derive(Default)]
pub(super) struct EvictedBlocks {
    /// Memory of prefetched, unread blocks that are cached.
    unread_bytes: AtomicUsize,
    /// Prefetched blocks that were evicted unread.
    wasted_prefetches: AtomicU64,
    is_wanted: AtomicBool,
    is_metadata_wanted: AtomicBool,
    bytes_max: AtomicUsize,
    /// The blocks, and their bytes.
    blocks: Mutex<(Vec<(Key, Packed)>, usize)>,
}

impl EvictedBlocks {
    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes.load(Ordering::Relaxed)
    }

    /// Notes a prefetched block.
    pub fn count_unread(&self, bytes: usize) {
        self.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that a prefetched block was read or dropped.
    pub fn count_read(&self, bytes: usize) {
        self.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Prefetched blocks that were evicted unread.
    pub fn wasted_prefetches(&self) -> u64 {
        self.wasted_prefetches.load(Ordering::Relaxed)
    }

    /// Sets the bound for a cache of `budget` bytes.
    pub fn set_limit(&self, budget: usize) {
        self.bytes_max.store((budget / 8).min(BYTES_MAX), Ordering::Relaxed);
    }

    pub fn set_wanted(&self, is_wanted: bool) {
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
    }

    pub fn set_metadata_wanted(&self, is_wanted: bool) {
        self.is_metadata_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// The stored form of a metadata block that is about to be cached, if it is wanted at once.
    pub fn copy_of(&self, cached: &CachedBlock, kind: Kind) -> Option<Packed> {
        let is_wanted = self.is_metadata_wanted.load(Ordering::Relaxed);
        (is_wanted && kind == Kind::Metadata && cached.source == Source::Pool).then(|| cached.packed.clone())
    }

    /// The blocks since the last call.
    pub fn take(&self) -> Vec<(Key, Packed)> {
        std::mem::take(&mut *self.blocks.lock()).0
    }

    pub fn add(&self, cached: CachedBlock) {
        if cached.is_prefetched {
            self.count_read(cached.bytes());
            self.wasted_prefetches.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.push(cached.key, cached.packed);
    }

    pub fn push(&self, key: Key, packed: Packed) {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let bytes = packed.memory() + ENTRY_BYTES;
        let mut blocks = self.blocks.lock();
        if blocks.1 + bytes <= self.bytes_max.load(Ordering::Relaxed) {
            blocks.1 += bytes;
            blocks.0.push((key, packed));
        }
    }
}
