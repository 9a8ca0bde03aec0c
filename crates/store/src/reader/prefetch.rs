//! Prefetch: loads blocks that a reader will ask for soon into the cache, on background threads.
//!
//! Neighbours on the device are read by one request. A reader of a block that is being prefetched waits for it, instead of reading it
//! twice. Prefetch is never the only way to a block: what it cannot read, finds damaged or cannot cache is left to the reader.
//!
//! Invariants: no reader waits for a request that was not sent yet. Blocks that were prefetched and not yet read take at most a quarter
//! of the cache.

use super::{BlockReader, packed};
use crate::pinned_zone::PinnedZone;
use crate::prefetch_queue::{
    EXTENT_BYTES_MAX, GAP_BYTES_MAX, InFlight, UNREAD_DIVISOR, WINDOW_DIVISOR, WINDOW_MAX,
};
use std::ops::Range;
use terrane_cache::Kind;
use terrane_cache::blocks::{CacheHit, Source, StoredBlock};
use terrane_codec::compute;
use terrane_format::block_ptr::{Key, Normal};

/// A block that is not in memory, and its place.
struct MissingBlock<'a> {
    key: Key,
    normal: &'a Normal,
    pinned: PinnedZone,
    offset: u64,
}

impl MissingBlock<'_> {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.normal.psize)
    }
}

impl BlockReader {
    /// Most bytes to prefetch for a reader of blocks of this size. 0: none.
    pub fn prefetch_max(&self, block_bytes: u32) -> u64 {
        if !self.prefetch_queue.is_on() {
            return 0;
        }
        WINDOW_MAX.max(2 * u64::from(block_bytes)).min(self.cache.budget() as u64 / WINDOW_DIVISOR)
    }

    /// Loads blocks into the cache on this thread: the body of a job for [`offer`](crate::prefetch_queue::PrefetchQueue::offer).
    pub fn prefetch(&self, blocks: &[Normal]) {
        let mut missing: Vec<MissingBlock<'_>> = Vec::with_capacity(blocks.len());
        for normal in blocks {
            let key = Key::of(normal);
            if self.cache.holds(key) {
                continue;
            }
            if let Some(stored) = self.read_cached(normal) {
                self.cache_prefetched(key, normal, &stored, Source::CacheDevice);
            } else if let Ok((pinned, offset)) = self.store.locate(normal.addrs[0], normal.psize) {
                missing.push(MissingBlock { key, normal, pinned, offset });
            }
        }
        missing.sort_by_key(|block| (block.pinned.seq, block.offset));
        let mut extent: Vec<MissingBlock<'_>> = Vec::new();
        for block in missing {
            if extent.first().zip(extent.last()).is_some_and(|(first, last)| !is_near(first, last, &block)) {
                self.read_extent(std::mem::take(&mut extent));
            }
            extent.push(block);
        }
        self.read_extent(extent);
    }

    /// Reads neighbouring blocks by one request.
    fn read_extent(&self, mut blocks: Vec<MissingBlock<'_>>) {
        let unread_max = self.cache.budget() / UNREAD_DIVISOR;
        let in_flight = InFlight::of(&self.prefetch_queue, &mut blocks, |block| block.key);
        let Some((first, last)) = blocks.first().zip(blocks.last()) else { return };
        let bytes: Range<u64> = first.offset..last.end();
        let Ok(len) = u32::try_from(bytes.end - bytes.start) else { return };
        if self.cache.unread_bytes() + len as usize > unread_max {
            return;
        }
        if let Ok(stored) = self.store.read_stored(&first.pinned, bytes.start, len) {
            self.store.counters.reads(first.pinned.class).blocks.add(blocks.len() as u64);
            for MissingBlock { key, normal, offset, .. } in &blocks {
                let from = (offset - bytes.start) as usize;
                let stored = stored.get(from..from + normal.psize as usize).unwrap_or_default();
                if compute(normal.checksum_kind, stored) == normal.checksum {
                    self.cache_prefetched(*key, normal, stored, Source::Pool);
                }
            }
        }
        drop(in_flight);
    }

    fn cache_prefetched(&self, key: Key, normal: &Normal, stored: &[u8], source: Source) {
        let stored = StoredBlock { packed: packed(normal, stored), source, lsize: normal.lsize };
        self.cache.insert_prefetched(key, Kind::of(normal), stored);
    }

    /// A block from the cache, if needed after waiting for its prefetch.
    pub(super) fn find_cached(&self, key: Key, kind: Kind) -> Option<CacheHit> {
        let found = self.cache.get(key, kind);
        if found.is_none() && self.prefetch_queue.wait_for(key) { self.cache.get(key, kind) } else { found }
    }
}

/// Whether the next block is near enough to share a request with these.
fn is_near(first: &MissingBlock<'_>, last: &MissingBlock<'_>, next: &MissingBlock<'_>) -> bool {
    let gap = next.offset.checked_sub(last.end());
    last.pinned.seq == next.pinned.seq
        // Gathered bytes that are not on the device yet are in memory already, in pieces.
        && next.pinned.unwritten.as_ref().is_none_or(|buffer| buffer.has_written(next.end()))
        && gap.is_some_and(|gap| gap <= GAP_BYTES_MAX)
        && next.end() - first.offset <= EXTENT_BYTES_MAX
}
