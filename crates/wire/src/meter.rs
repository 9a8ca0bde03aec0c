//! Counters and latency histograms that cost next to nothing.
//!
//! Counters only grow; a reader takes differences. A [`Counter`] is spread over cache lines by thread, so threads
//! that count do not contend for one line. Durations go to a [`Histogram`] with buckets of powers of two, from a
//! microsecond to half a minute. That tells a cache hit from a disk read, and a disk read from a stall, with one
//! increment.
//!
//! Invariant: nothing here waits, fails or allocates after its creation. A snapshot is not atomic: sums of several
//! counters may differ by what happened while they were read.

#![expect(clippy::indexing_slicing, reason = "indices are below the length of the arrays")]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Cache lines of a counter; threads share them round robin.
const LANES: usize = 8;

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    LANE.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed) % LANES);
        }
        lane.get()
    })
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Lane(AtomicU64);

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter {
    lanes: [Lane; LANES],
}

impl Counter {
    /// Adds to the calling thread's lane: one relaxed atomic addition.
    pub fn add(&self, more: u64) {
        self.lanes[lane()].0.fetch_add(more, Ordering::Relaxed);
    }

    /// The sum over all lanes; it may miss additions in progress.
    pub fn get(&self) -> u64 {
        self.lanes.iter().fold(0, |sum, lane| sum.wrapping_add(lane.0.load(Ordering::Relaxed)))
    }
}

/// Buckets of a histogram. The last takes every longer duration.
pub const BUCKETS: usize = 26;
/// Upper bound of the first bucket; each next bound is twice as large.
const FIRST_BOUND_NS: u64 = 1 << 10;

/// A histogram of durations, with their sum and maximum.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn record_ns(&self, ns: u64) {
        let bits = (u64::BITS - (ns.saturating_sub(1) / FIRST_BOUND_NS).leading_zeros()) as usize;
        self.buckets[bits.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        // A new maximum is rare, so this is mostly one load.
        if ns > self.longest_ns.load(Ordering::Relaxed) {
            self.longest_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Copies buckets, sum and maximum with relaxed loads. It is not atomic: a concurrent
    /// [`record_ns`](Self::record_ns) may be in the buckets and not yet in the sum.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let buckets = std::array::from_fn(|index| self.buckets[index].load(Ordering::Relaxed));
        let longest_ns = self.longest_ns.load(Ordering::Relaxed);
        HistogramSnapshot { buckets, sum_ns: self.sum_ns.load(Ordering::Relaxed), longest_ns }
    }
}

/// A snapshot of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Bucket `i` counts durations of at most `bound_ns(i)`, and longer than `bound_ns(i - 1)`: see
    /// [`HistogramSnapshot::bound_ns`].
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations; it wraps.
    pub sum_ns: u64,
    /// The maximum since the histogram was made, also in a difference.
    pub longest_ns: u64,
}

impl HistogramSnapshot {
    /// The upper bound of a bucket; `None` for the last, which has none.
    pub fn bound_ns(index: usize) -> Option<u64> {
        (index + 1 < BUCKETS).then(|| FIRST_BOUND_NS << index)
    }

    /// The number of durations, summed over all buckets.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The mean duration; 0 if nothing was measured.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count()).unwrap_or(0)
    }

    /// The quantile `share` (0 to 1), rounded up to the bound of its bucket. `None` if nothing was measured, or if it
    /// lies in the last bucket.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let rank = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let index = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        HistogramSnapshot::bound_ns(index)
    }

    /// The durations recorded since an earlier snapshot.
    pub fn since(&self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let buckets = std::array::from_fn(|at| self.buckets[at].wrapping_sub(earlier.buckets[at]));
        let sum_ns = self.sum_ns.wrapping_sub(earlier.sum_ns);
        HistogramSnapshot { buckets, sum_ns, longest_ns: self.longest_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_over_threads() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..1000).for_each(|_| counter.add(3)));
            }
        });
        assert_eq!(counter.get(), 60_000);
    }

    #[test]
    fn each_time_falls_into_the_first_bucket_that_is_not_shorter() {
        for ns in [0, 1, 1023, 1024, 1025, 2048, 2049, 1_000_000, 17_179_869_184, 17_179_869_185, u64::MAX] {
            let histogram = Histogram::default();
            histogram.record_ns(ns);
            let times = histogram.snapshot();
            let fits = |index: &usize| HistogramSnapshot::bound_ns(*index).is_none_or(|bound| ns <= bound);
            let first = (0..BUCKETS).find(fits).unwrap();
            assert_eq!(times.buckets[first], 1, "{ns}");
            assert_eq!((times.count(), times.sum_ns, times.longest_ns), (1, ns, ns));
        }
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile_ns(0.99), None);
        let before = histogram.snapshot();
        (0..99).for_each(|_| histogram.record_ns(5_000));
        histogram.record_ns(40_000_000);
        let times = histogram.snapshot();
        assert_eq!(times.quantile_ns(0.5), Some(8192));
        assert_eq!(times.quantile_ns(0.99), Some(8192));
        assert_eq!(times.quantile_ns(1.0), Some(FIRST_BOUND_NS << 16));
        assert_eq!(times.since(&before), times);
        assert_eq!(
            times.since(&times),
            HistogramSnapshot { longest_ns: 40_000_000, ..HistogramSnapshot::default() }
        );
    }
}
