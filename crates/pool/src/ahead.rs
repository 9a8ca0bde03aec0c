//! Blocks that somebody will ask for soon, brought into the cache by threads of their own.
//!
//! What lies side by side on the device is read by one request. Whoever asks for a block that is on its way waits for it, rather than read
//! it twice. Nothing here is anybody's only way to a block: what cannot be read, is damaged or finds no place is left to who asks.
//!
//! Invariants: nobody waits for a request that was not sent yet; what was read ahead and not asked for is at most a quarter of the
//! cache.

use crate::pool::Pool;
use crate::read::packed;
use crate::state::ahead::{Ahead, GAP_BYTES_MAX, RUN_BYTES_MAX, UNREAD_DIVISOR, WINDOW_DIVISOR, WINDOW_MAX};
use crate::state::pinned::Held;
use std::ops::Range;
use std::sync::atomic::Ordering;
use terrane_cache::Kind;
use terrane_cache::blocks::{Found, Source};
use terrane_codec::compute;
use terrane_format::block_ptr::Key;
use terrane_format::block_ptr::Normal;

/// Blocks of one request, on their way until this is dropped.
struct OnWay<'a> {
    ahead: &'a Ahead,
    keys: Vec<Key>,
}

impl<'a> OnWay<'a> {
    /// Without those that others have on their way.
    fn new(ahead: &'a Ahead, blocks: &mut Vec<Block<'_>>) -> OnWay<'a> {
        let mut on_way = ahead.on_way.lock();
        blocks.retain(|block| on_way.insert(block.key));
        ahead.on_way_count.store(on_way.len(), Ordering::Release);
        OnWay { ahead, keys: blocks.iter().map(|block| block.key).collect() }
    }
}

impl Drop for OnWay<'_> {
    fn drop(&mut self) {
        let mut on_way = self.ahead.on_way.lock();
        self.keys.iter().for_each(|key| {
            on_way.remove(key);
        });
        self.ahead.on_way_count.store(on_way.len(), Ordering::Release);
        self.ahead.arrived.notify_all();
    }
}

/// A block that is not in memory, and where it is.
struct Block<'a> {
    key: Key,
    normal: &'a Normal,
    held: Held,
    offset: u64,
}

impl Block<'_> {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.normal.psize)
    }
}

impl Pool {
    /// Has `job` run by another thread soon, or not at all: for what fills the cache before somebody asks. A pool without threads of
    /// its own never runs it.
    pub fn offer(&self, job: impl FnOnce() + Send + 'static) {
        self.ahead.offer(job);
    }

    /// How far a reader of blocks of so many bytes may be read ahead of, in bytes: 0 if not at all.
    pub fn read_ahead_max(&self, block_bytes: u32) -> u64 {
        if !self.ahead.has_threads || !self.ahead.is_on.load(Ordering::Relaxed) {
            return 0;
        }
        WINDOW_MAX.max(2 * u64::from(block_bytes)).min(self.cache.budget() as u64 / WINDOW_DIVISOR)
    }

    /// Blocks that were read ahead and left the cache before somebody asked for them.
    pub fn read_ahead_wasted(&self) -> u64 {
        self.cache.wasted()
    }

    /// Whether files are read ahead: to compare with, in benchmarks.
    #[doc(hidden)]
    pub fn set_read_ahead(&self, is_on: bool) {
        self.ahead.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Brings blocks into the cache, in this thread: those of [`offer`](Pool::offer).
    pub fn read_ahead(&self, blocks: &[Normal]) {
        let mut there: Vec<Block<'_>> = Vec::with_capacity(blocks.len());
        for normal in blocks {
            let key = Key::of(normal);
            if self.cache.holds(key) {
                continue;
            }
            if let Some(stored) = self.read_cached(normal) {
                self.keep_ahead(key, normal, &stored, Source::CacheDevice);
            } else if let Ok((held, offset)) = self.locate(normal.addrs[0], normal.psize) {
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

    /// Reads neighbours by one request.
    fn read_run(&self, mut blocks: Vec<Block<'_>>) {
        let unread_max = self.cache.budget() / UNREAD_DIVISOR;
        let on_way = OnWay::new(&self.ahead, &mut blocks);
        let Some((first, last)) = blocks.first().zip(blocks.last()) else { return };
        let bytes: Range<u64> = first.offset..last.end();
        let Ok(len) = u32::try_from(bytes.end - bytes.start) else { return };
        if self.cache.unread_bytes() + len as usize > unread_max {
            return;
        }
        if let Ok(stored) = self.read_stored(&first.held, bytes.start, len) {
            self.counters.reads(first.held.class).blocks.add(blocks.len() as u64);
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

    /// A block in the cache, or on its way there.
    pub(crate) fn find_cached(&self, key: Key, kind: Kind) -> Option<Found> {
        let found = self.cache.get(key, kind);
        if found.is_none() && self.ahead.wait_for(key) { self.cache.get(key, kind) } else { found }
    }
}

/// Whether a block is worth no request of its own after these.
fn is_near(first: &Block<'_>, last: &Block<'_>, next: &Block<'_>) -> bool {
    let gap = next.offset.checked_sub(last.end());
    last.held.seq == next.held.seq
        // What is gathered for the device is in memory, piece by piece.
        && next.held.unwritten.as_ref().is_none_or(|gather| gather.has_written(next.end()))
        && gap.is_some_and(|gap| gap <= GAP_BYTES_MAX)
        && next.end() - first.offset <= RUN_BYTES_MAX
}
