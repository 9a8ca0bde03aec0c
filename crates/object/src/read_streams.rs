//! Read prediction: which blocks of a file to prefetch.
//!
//! A reader that proceeds forward, backward, or in equal steps is a *stream*. Each file has several. Requests
//! do not identify their reader, so streams are distinguished by position. Blocks are prefetched up to a stream's
//! window. It starts at twice the request and doubles each time its half is used up. It halves when blocks were
//! evicted before they were read. A wrong guess costs time only.
//!
//! Pure code: offsets in, block numbers out.

use std::collections::VecDeque;
use std::ops::Range;

const STREAMS_MAX: usize = 8;
/// Number of remembered reads that belong to no stream: four in equal steps become one.
const UNMATCHED_MAX: usize = 8;
/// Maximum of ranges prefetched at once.
const RANGES_MAX: u64 = 256;

/// Bounds of prefetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchBounds {
    pub block_bytes: u64,
    /// Blocks of the file.
    pub block_count: u64,
    /// Maximum window in bytes.
    pub window_max: u64,
    /// Number of blocks evicted before they were read, ever.
    pub wasted: u64,
}

impl PrefetchBounds {
    fn end(&self) -> u64 {
        self.block_bytes.saturating_mul(self.block_count)
    }

    fn round_down(&self, at: u64) -> u64 {
        at / self.block_bytes * self.block_bytes
    }

    fn round_up(&self, at: u64) -> u64 {
        at.checked_next_multiple_of(self.block_bytes).unwrap_or(at).min(self.end())
    }

    fn blocks(&self, bytes: Range<u64>) -> Range<u64> {
        self.round_down(bytes.start) / self.block_bytes..self.round_up(bytes.end) / self.block_bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
    /// In steps of so many bytes, with gaps.
    Strided(i64),
}

#[derive(Debug)]
struct ReadStream {
    direction: Direction,
    /// The last read. Pieces of one read, and reads that overtook each other, count as one.
    last: Range<u64>,
    /// End of what was prefetched: above `last`, or below it. In steps: start of the last step.
    prefetched_to: u64,
    /// In bytes.
    window: u64,
    wasted: u64,
}

impl ReadStream {
    fn new(direction: Direction, last: Range<u64>, bounds: &PrefetchBounds) -> ReadStream {
        let prefetched_to = match direction {
            Direction::Forward => last.end,
            Direction::Backward | Direction::Strided(_) => last.start,
        };
        let len = (last.end - last.start).max(bounds.block_bytes);
        ReadStream { direction, last, prefetched_to, window: 2 * len, wasted: bounds.wasted }
    }

    /// Whether `read` is the expected next read, or close to it: requests may overtake each other.
    fn is_continued_by(&self, read: &Range<u64>) -> bool {
        match self.direction {
            Direction::Forward => {
                read.end > self.last.end
                    && (self.last.start..=self.prefetched_to.max(self.last.end)).contains(&read.start)
            }
            Direction::Backward => {
                read.start < self.last.start
                    && (self.prefetched_to.min(self.last.start)..=self.last.end).contains(&read.end)
            }
            Direction::Strided(step) => (1..=4)
                .any(|count| Some(read.start) == step_from(self.last.start, step.saturating_mul(count))),
        }
    }

    /// Whether `read` was covered by the last read or closely precedes it.
    fn has_covered(&self, read: &Range<u64>) -> bool {
        match self.direction {
            Direction::Forward => read.end <= self.last.end && read.end + self.window >= self.last.end,
            Direction::Backward => read.start >= self.last.start && read.start <= self.last.end + self.window,
            Direction::Strided(_) => read.start >= self.last.start && read.end <= self.last.end,
        }
    }

    /// Continues with `read`. Returns the ranges to prefetch, nearest first.
    fn advance(&mut self, read: Range<u64>, bounds: &PrefetchBounds) -> Vec<Range<u64>> {
        self.last = read;
        if bounds.wasted > self.wasted {
            self.wasted = bounds.wasted;
            self.window /= 2;
        }
        let len = self.last.end - self.last.start;
        self.window = self.window.clamp(bounds.block_bytes.min(bounds.window_max), bounds.window_max);
        let ranges = match self.direction {
            Direction::Forward => self.prefetch_forward(bounds),
            Direction::Backward => self.prefetch_backward(bounds),
            Direction::Strided(step) => self.prefetch_strided(step, len, bounds),
        };
        if !ranges.is_empty() {
            self.window = self.window.saturating_mul(2).min(bounds.window_max);
        }
        ranges
    }

    fn prefetch_forward(&mut self, bounds: &PrefetchBounds) -> Vec<Range<u64>> {
        let from = bounds.round_up(self.prefetched_to.max(self.last.end));
        if from.saturating_sub(self.last.end) > self.window / 2 {
            return Vec::new();
        }
        let to = bounds.round_up(self.last.end.saturating_add(self.window));
        self.prefetched_to = to.max(from);
        if to > from { vec![bounds.blocks(from..to)] } else { Vec::new() }
    }

    fn prefetch_backward(&mut self, bounds: &PrefetchBounds) -> Vec<Range<u64>> {
        let to = bounds.round_down(self.prefetched_to.min(self.last.start));
        if self.last.start.saturating_sub(to) > self.window / 2 {
            return Vec::new();
        }
        let from = bounds.round_down(self.last.start.saturating_sub(self.window));
        self.prefetched_to = from.min(to);
        if to > from { vec![bounds.blocks(from..to)] } else { Vec::new() }
    }

    fn prefetch_strided(&mut self, step: i64, len: u64, bounds: &PrefetchBounds) -> Vec<Range<u64>> {
        let is_behind = if step > 0 {
            self.prefetched_to < self.last.start
        } else {
            self.prefetched_to > self.last.start
        };
        if is_behind {
            self.prefetched_to = self.last.start;
        }
        // A read costs whole blocks.
        let cost = len.max(1).next_multiple_of(bounds.block_bytes);
        let steps = (self.window / cost).clamp(1, RANGES_MAX);
        let steps_done = self.prefetched_to.abs_diff(self.last.start) / step.unsigned_abs().max(1);
        if steps_done > steps / 2 {
            return Vec::new();
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for _ in steps_done..steps {
            let Some(next) = step_from(self.prefetched_to, step).filter(|next| *next < bounds.end()) else {
                break;
            };
            self.prefetched_to = next;
            let blocks = bounds.blocks(next..next.saturating_add(len));
            // Small steps hit a block more than once.
            if ranges.last() != Some(&blocks) {
                ranges.push(blocks);
            }
        }
        ranges
    }
}

fn step_from(at: u64, step: i64) -> Option<u64> {
    at.checked_add_signed(step)
}

/// The streams of one file.
#[derive(Debug, Default)]
pub(crate) struct ReadStreams {
    /// Ordered by use, the most recent last.
    streams: VecDeque<ReadStream>,
    unmatched: VecDeque<Range<u64>>,
}

impl ReadStreams {
    /// Records a read. Returns the blocks to prefetch, nearest first.
    pub fn record_read(&mut self, read: Range<u64>, bounds: &PrefetchBounds) -> Vec<Range<u64>> {
        if read.is_empty() || bounds.window_max < bounds.block_bytes {
            return Vec::new();
        }
        if let Some(at) = self.streams.iter().rposition(|stream| stream.is_continued_by(&read)) {
            return self
                .streams
                .remove(at)
                .map_or_else(Vec::new, |stream| self.continue_stream(stream, read, bounds));
        }
        if self.streams.iter().any(|stream| stream.has_covered(&read)) {
            return Vec::new();
        }
        if let Some(direction) = self.detect_direction(&read) {
            self.unmatched.clear();
            return self.continue_stream(ReadStream::new(direction, read.clone(), bounds), read, bounds);
        }
        if self.unmatched.len() >= UNMATCHED_MAX {
            self.unmatched.pop_front();
        }
        self.unmatched.push_back(read);
        Vec::new()
    }

    fn continue_stream(
        &mut self,
        mut stream: ReadStream,
        read: Range<u64>,
        bounds: &PrefetchBounds,
    ) -> Vec<Range<u64>> {
        let ranges = stream.advance(read, bounds);
        if self.streams.len() >= STREAMS_MAX {
            self.streams.pop_front();
        }
        self.streams.push_back(stream);
        ranges
    }

    /// The direction of the stream that this read forms with remembered ones.
    fn detect_direction(&self, read: &Range<u64>) -> Option<Direction> {
        if self.unmatched.iter().any(|before| read.start == before.end) {
            return Some(Direction::Forward);
        }
        if self.unmatched.iter().any(|before| read.end == before.start) {
            return Some(Direction::Backward);
        }
        let begins_before = |end: usize, at: Option<u64>| {
            self.unmatched.iter().take(end).rposition(|before| Some(before.start) == at)
        };
        // Four in equal steps: three occur by chance in small files, and in long random reads.
        let step_of = |(at, before): (usize, &Range<u64>)| {
            let step = i64::try_from(read.start).ok()?.checked_sub(i64::try_from(before.start).ok()?)?;
            let second = begins_before(at, step_from(before.start, -step)).filter(|_| step != 0)?;
            let second_start = step_from(before.start, -step)?;
            begins_before(second, step_from(second_start, -step)).map(|_| step)
        };
        self.unmatched.iter().enumerate().rev().find_map(step_of).map(Direction::Strided)
    }
}

#[cfg(test)]
mod tests;
