//! Reads of spill blocks, and prefetch of their neighbours.
//!
//! A commit appends the spills of neighbouring dnodes one after the other, so one request can read many of them.
//! The second spill that a caller misses in a dnode block is therefore read with the others, on the caller's thread.
//! Callers often proceed in the order of the numbers, so other threads prefetch the spills of the next dnode blocks.
//!
//! The prediction is a guess. It is kept in bounded memory, and a wrong guess costs a few reads.

use super::ObjectSet;
use crate::dnode::{SLOTS_PER_BLOCK, slot_of, spill_pointers};
use crate::error::ObjectError;
use crate::object::{Object, UnreadSpill};
use crate::read_streams::{PrefetchBounds, ReadStreams};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Dnode blocks that are remembered because a spill of theirs was read.
const RECENT_MAX: usize = 64;
/// The second miss in a dnode block reads its other spills. If they are evicted again, further misses repeat that.
const MISSES_BEFORE_PREFETCH: u32 = 2;
const MISSES_PER_PREFETCH: u32 = 4;
/// Most bytes to prefetch for one reader, and by one job. The reader waits until the job has read all of them.
const WINDOW_BYTES_MAX: u64 = 1 << 20;
const JOB_BYTES: u64 = 128 << 10;
/// The caller's thread reads at most so many bytes that the caller did not ask for.
const INLINE_BYTES_MAX: u64 = 256 << 10;

/// Recent reads of spills, by dnode block.
#[derive(Debug, Default)]
pub(super) struct SpillReads {
    streams: ReadStreams,
    /// Dnode blocks with recent misses, newest last, and the number of those.
    recent: VecDeque<(u64, u32)>,
    last: Option<u64>,
}

impl SpillReads {
    /// Records a read. Returns whether the other spills of its block are needed now, and the blocks whose spills
    /// will be needed next, nearest first.
    fn record(&mut self, block: u64, is_cached: bool, bounds: &PrefetchBounds) -> (bool, Vec<Range<u64>>) {
        let next = match self.last.replace(block) {
            Some(last) if last == block => Vec::new(),
            _ => self.streams.record_read(block..block + 1, bounds),
        };
        if is_cached {
            return (false, next);
        }
        let known = self.recent.iter_mut().rev().find(|(known, _)| *known == block);
        if let Some((_, misses)) = known {
            *misses = misses.wrapping_add(1);
            return (*misses % MISSES_PER_PREFETCH == MISSES_BEFORE_PREFETCH, next);
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((block, 1));
        (false, next)
    }
}

impl ObjectSet {
    /// The spill of an object of this set, as [`Object::spill`]. Spills of neighbouring objects may be prefetched.
    pub fn spill_of(&self, object: &Object) -> Result<Option<Arc<Vec<u8>>>, ObjectError> {
        if let Some(spill) = object.unread_spill() {
            self.prefetch_spills(slot_of(object.id()).block, spill);
        }
        object.spill()
    }

    /// Prefetches the spills that will probably be read after this one, whose dnode is in this block.
    fn prefetch_spills(&self, block: u64, spill: UnreadSpill) {
        // As if all dnodes of a block had one slot and such a spill.
        let block_bytes = spill.stored_bytes.saturating_mul(SLOTS_PER_BLOCK as u32);
        let window_bytes = self.pool.prefetch_max(block_bytes);
        if window_bytes == 0 {
            return;
        }
        let in_blocks = |bytes: u64| (bytes / u64::from(block_bytes).max(1)).max(1);
        let bounds = PrefetchBounds {
            block_bytes: 1,
            block_count: self.dnodes.block_count(),
            window_max: in_blocks(window_bytes.min(WINDOW_BYTES_MAX)),
            wasted: self.pool.prefetch_wasted(),
        };
        let is_cached = self.pool.is_cached(spill.key);
        let (is_block_needed, next) = self.spill_reads.lock().record(block, is_cached, &bounds);
        let job_blocks = in_blocks(JOB_BYTES);
        for mut range in next {
            while !range.is_empty() {
                let job = range.start..range.end.min(range.start + job_blocks);
                range.start = job.end;
                self.queue_spills(job);
            }
        }
        match is_block_needed {
            // This thread needs one of them now, and a request for all takes little longer.
            true if u64::from(block_bytes) <= INLINE_BYTES_MAX => self.read_spills(block..block + 1),
            true => self.queue_spills(block..block + 1),
            false => {}
        }
    }

    fn queue_spills(&self, blocks: Range<u64>) {
        let set = self.me.clone();
        self.pool.offer_prefetch(move || {
            if let Some(set) = set.upgrade() {
                set.read_spills(blocks);
            }
        });
    }

    /// Reads the stored spills of objects in these dnode blocks into the cache. Errors are ignored: a reader of the
    /// spill meets and reports the same one.
    fn read_spills(&self, blocks: Range<u64>) {
        let mut found = Vec::new();
        for block in blocks {
            let Ok(raw) = self.dnodes.read_block(block) else { break };
            found.extend(spill_pointers(&raw));
        }
        self.pool.prefetch(&found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: PrefetchBounds =
        PrefetchBounds { block_bytes: 1, block_count: 1000, window_max: 8, wasted: 0 };

    /// Reads spills that are not cached. Returns the dnode blocks whose spills are read for them.
    fn miss(reads: &mut SpillReads, blocks: &[u64]) -> Vec<u64> {
        let mut all = Vec::new();
        for block in blocks {
            let (is_needed, next) = reads.record(*block, false, &BOUNDS);
            all.extend(is_needed.then_some(*block).into_iter().chain(next.into_iter().flatten()));
        }
        all
    }

    #[test]
    fn the_second_miss_in_a_dnode_block_reads_the_others() {
        let mut reads = SpillReads::default();
        assert_eq!(miss(&mut reads, &[500]), []);
        assert_eq!(miss(&mut reads, &[500]), [500]);
        assert_eq!(reads.record(500, true, &BOUNDS), (false, Vec::new()));
        assert_eq!(miss(&mut reads, &[500, 500, 500]), [], "they are cached soon");
        assert_eq!(miss(&mut reads, &[500]), [500], "they were evicted");
        assert_eq!(miss(&mut reads, &[70, 900, 70]), [70], "other reads may lie between them");
    }

    /// Reads 32 spills in each of these blocks, in which prefetched ones are cached. Returns how many were not.
    fn walk(reads: &mut SpillReads, blocks: impl Iterator<Item = u64>) -> usize {
        let (mut cached, mut misses) = (vec![false; 200], 0);
        for block in blocks {
            for _ in 0..32 {
                let is_cached = cached[block as usize];
                misses += usize::from(!is_cached);
                let (is_needed, next) = reads.record(block, is_cached, &BOUNDS);
                cached[block as usize] |= is_needed;
                next.into_iter().flatten().for_each(|block| cached[block as usize] = true);
            }
        }
        misses
    }

    #[test]
    fn a_walk_in_order_misses_few_spills() {
        let mut reads = SpillReads::default();
        assert_eq!(walk(&mut reads, 10..100), 4, "two in each of the first two blocks");
        assert!(walk(&mut reads, (10..100).rev()) <= 40, "the other way");
        assert!(walk(&mut reads, 10..100) <= 40, "again, after all were evicted");
        assert!(walk(&mut reads, (10..100).map(|block| block * 37 % 90 + 10)) <= 4 * 90, "in another order");
    }

    #[test]
    fn reads_far_apart_read_little_and_memory_is_bounded() {
        let mut reads = SpillReads::default();
        let blocks: Vec<u64> = (0..5000u64).map(|at| at * at * 7 % 999_983).collect();
        assert!(miss(&mut reads, &blocks).len() < 50);
        assert!(reads.recent.len() <= RECENT_MAX);
    }
}
