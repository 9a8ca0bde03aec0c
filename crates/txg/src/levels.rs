//! Compression method of blocks, and what `zstd-auto` chose.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_codec::Compression;
use terrane_codec::auto::{Auto, AutoRange, BlockTime, STEPS, compression_of, step_of};
use terrane_store::pipeline::PreEncoded;

/// How to compress a block.
#[derive(Clone, Debug)]
pub enum Method {
    /// This algorithm and level.
    Fixed(Compression),
    /// The controller chooses the level when a worker takes the block.
    Auto(Arc<Levels>),
    /// The block is already compressed.
    PreEncoded(PreEncoded),
}

impl From<Compression> for Method {
    fn from(compression: Compression) -> Self {
        Method::Fixed(compression)
    }
}

/// The `zstd-auto` controller, and the results of its choices since it was created.
#[derive(Debug)]
pub struct Levels {
    /// The controller, locked for each choice and each measurement.
    pub auto: Mutex<Auto>,
    /// Results by level, lowest first.
    pub totals: [LevelTotals; STEPS],
}

/// Bytes that wait for compression while a txg syncs.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// Dirty bytes of the open and the syncing txg that are not yet compressed.
    pub bytes: u64,
    /// Those of them that a caller waits for.
    pub awaited_bytes: u64,
    /// Rate at which memory gets dirty.
    pub inflow_bytes_per_s: f64,
}

/// Counters of one level; [`LevelShare`] is their snapshot.
#[derive(Debug, Default)]
pub struct LevelTotals {
    /// Blocks that were compressed.
    pub blocks: AtomicU64,
    /// Bytes before compression.
    pub logical_bytes: AtomicU64,
    /// Bytes after compression.
    pub stored_bytes: AtomicU64,
}

/// Results of one compression level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelShare {
    /// The algorithm and level.
    pub compression: Compression,
    /// Blocks that were compressed.
    pub blocks: u64,
    /// Bytes before compression.
    pub logical_bytes: u64,
    /// Bytes after compression. Blocks that did not shrink count with their uncompressed size.
    pub stored_bytes: u64,
}

impl Levels {
    /// A controller without measurements, for these levels.
    pub fn new(range: AutoRange) -> Arc<Levels> {
        Arc::new(Levels { auto: Mutex::new(Auto::new(range)), totals: Default::default() })
    }

    /// Sets the range of levels. Measurements and counts stay.
    pub fn set_range(&self, range: AutoRange) {
        self.auto.lock().set_range(range);
    }

    /// Records the time that a worker took to compress `bytes` to `stored_bytes`.
    pub fn measured(&self, compression: Compression, (bytes, stored_bytes): (u64, u64), took: BlockTime) {
        self.auto.lock().record_time(compression, bytes, took);
        let Some(level) = step_of(compression).and_then(|step| self.totals.get(step)) else { return };
        level.blocks.fetch_add(1, Ordering::Relaxed);
        level.logical_bytes.fetch_add(bytes, Ordering::Relaxed);
        level.stored_bytes.fetch_add(stored_bytes, Ordering::Relaxed);
    }

    /// Levels that were used, lowest first.
    pub fn shares(&self) -> Vec<LevelShare> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shares = self.totals.iter().enumerate().map(|(step, level)| LevelShare {
            compression: compression_of(step),
            blocks: number(&level.blocks),
            logical_bytes: number(&level.logical_bytes),
            stored_bytes: number(&level.stored_bytes),
        });
        shares.filter(|share| share.blocks > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_counted() {
        let levels = Levels::new(AutoRange::default());
        let took = BlockTime { wall_ns: 1_000_000, processor_ns: 1_000_000 };
        for word in ["lz4", "zstd-9", "zstd-9"] {
            levels.measured(word.parse().unwrap(), (128 << 10, 64 << 10), took);
        }
        let share = |word: &str, blocks| LevelShare {
            compression: word.parse().unwrap(),
            blocks,
            logical_bytes: blocks * (128 << 10),
            stored_bytes: blocks * (64 << 10),
        };
        assert_eq!(levels.shares(), [share("lz4", 1), share("zstd-9", 2)]);
    }
}
