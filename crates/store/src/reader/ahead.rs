//! Prefetch: loads blocks that a reader will ask for soon into the cache, on background threads.
//!
//! Neighbours on the device are read by one request. A reader of a block that is being prefetched waits for it, instead of reading it
//! twice. Prefetch is never the only way to a block: what it cannot read, finds damaged or cannot cache is left to the reader.
//!
//! Invariants: no reader waits for a request that was not sent yet. Blocks that were prefetched and not yet read take at most a quarter
//! of the cache.

use super::{BlockReader, packed};
use crate::ahead::{GAP_BYTES_MAX, OnWay, RUN_BYTES_MAX, UNREAD_DIVISOR, WINDOW_DIVISOR, WINDOW_MAX};
use crate::held::HeldZone;
use std::ops::Range;
use terrane_cache::Kind;
use terrane_cache::blocks::{Found, Source};
use terrane_codec::compute;
use terrane_format::block_ptr::{Key, Normal};

/// A block that is not in memory, and its place.
struct Block<'a> {
    key: Key,
    normal: &'a Normal,
    held: HeldZone,
    offset: u64,
}

impl Block<'_> {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.normal.psize)
    }
}

impl BlockReader {
    /// Most bytes to prefetch for a reader of blocks of this size. 0: none.
    pub fn read_ahead_max(&self, block_bytes: u32) -> u64 {
        if !self.ahead.is_on() {
            return 0;
        }
        WINDOW_MAX.max(2 * u64::from(block_bytes)).min(self.cache.budget() as u64 / WINDOW_DIVISOR)
    }

    /// Loads blocks into the cache on this thread: the body of a job for [`offer`](crate::ahead::Ahead::offer).
    pub fn read_ahead(&self, blocks: &[Normal]) {
        let mut there: Vec<Block<'_>> = Vec::with_capacity(blocks.len());
        for normal in blocks {
            let key = Key::of(normal);
            if self.cache.holds(key) {
                continue;
            }
            if let Some(stored) = self.read_cached(normal) {
                self.keep_ahead(key, normal, &stored, Source::CacheDevice);
            } else if let Ok((held, offset)) = self.store.locate(normal.addrs[0], normal.psize) {
                there.push(Block { key, normal, held, offset });
            }
        }
        there.sort_by_key(|block| (block.held.seq, block.offset));
        let mut run: Vec<Block<'_>> = Vec::new();
        for block in there {
            if run.first().zip(run.last()).is_some_and(|(first, last)| !is_near(first, last, &block)) {
                self.read_run(std::mem::take(&mut run));
            }
            run.push(block);
        }
        self.read_run(run);
    }

    /// Reads neighbouring blocks by one request.
    fn read_run(&self, mut blocks: Vec<Block<'_>>) {
        let unread_max = self.cache.budget() / UNREAD_DIVISOR;
        let on_way = OnWay::of(&self.ahead, &mut blocks, |block| block.key);
        let Some((first, last)) = blocks.first().zip(blocks.last()) else { return };
        let bytes: Range<u64> = first.offset..last.end();
        let Ok(len) = u32::try_from(bytes.end - bytes.start) else { return };
        if self.cache.unread_bytes() + len as usize > unread_max {
            return;
        }
        if let Ok(stored) = self.store.read_stored(&first.held, bytes.start, len) {
            self.store.counters.reads(first.held.class).blocks.add(blocks.len() as u64);
            for Block { key, normal, offset, .. } in &blocks {
                let from = (offset - bytes.start) as usize;
                let stored = stored.get(from..from + normal.psize as usize).unwrap_or_default();
                if compute(normal.checksum_kind, stored) == normal.checksum {
                    self.keep_ahead(*key, normal, stored, Source::Pool);
                }
            }
        }
        drop(on_way);
    }

    fn keep_ahead(&self, key: Key, normal: &Normal, stored: &[u8], source: Source) {
        self.cache.insert_ahead(key, Kind::of(normal), (packed(normal, stored), source));
    }

    /// A block from the cache, if needed after waiting for its prefetch.
    pub(super) fn find_cached(&self, key: Key, kind: Kind) -> Option<Found> {
        let found = self.cache.get(key, kind);
        if found.is_none() && self.ahead.wait_for(key) { self.cache.get(key, kind) } else { found }
    }
}

/// Whether the next block is near enough to share a request with these.
fn is_near(first: &Block<'_>, last: &Block<'_>, next: &Block<'_>) -> bool {
    let gap = next.offset.checked_sub(last.end());
    last.held.seq == next.held.seq
        // Gathered bytes that are not on the device yet are in memory already, in pieces.
        && next.held.unwritten.as_ref().is_none_or(|gather| gather.has_written(next.end()))
        && gap.is_some_and(|gap| gap <= GAP_BYTES_MAX)
        && next.end() - first.offset <= RUN_BYTES_MAX
}
