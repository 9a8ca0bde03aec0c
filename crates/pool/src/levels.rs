//! `zstd-auto` in a pool: what the controller of [`terrane_codec::auto`] is told, and what it chose.
//!
//! One for each data set that asks for it. With every block the group says how much is dirty, how quickly more comes and whether somebody
//! waits; the worker that compressed the block says how long that took.

use crate::prepare::Made;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_codec::Compression;
use terrane_codec::auto::{Auto, AutoRange, Load, STEPS, compression_of, step_of};
use terrane_wire::Txg;

/// How a block is to be compressed.
#[derive(Clone, Debug)]
pub enum Method {
    As(Compression),
    /// As these say when its turn comes.
    Auto(Arc<Levels>),
    /// It is compressed already.
    Made(Made),
}

impl From<Compression> for Method {
    fn from(compression: Compression) -> Self {
        Method::As(compression)
    }
}

/// The controller, and what became of its choices since it was made.
#[derive(Debug)]
pub struct Levels {
    steering: Mutex<Steering>,
    taken: [Taken; STEPS],
}

#[derive(Debug)]
struct Steering {
    auto: Auto,
    /// The group that asked last, and when it began to sync.
    group: Option<(Txg, u64)>,
    inflow_bytes_per_s: f64,
}

/// A group that syncs, and what waits behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    pub txg: Txg,
    pub began_ns: u64,
    /// Bytes that were dirty in it, and those of them that are written.
    pub syncing_bytes: u64,
    pub written_bytes: u64,
    /// Bytes that are dirty in the next one.
    pub open_bytes: u64,
    /// How many bytes may be dirty.
    pub limit_bytes: u64,
    /// Somebody waits for this group.
    pub is_awaited: bool,
    pub workers: usize,
}

/// What came in over so many seconds counts about half.
const INFLOW_S: f64 = 1.0;

impl Steering {
    fn load(&mut self, backlog: &Backlog) -> Load {
        if self.group.is_none_or(|(txg, _)| txg != backlog.txg) {
            if let Some((_, before_ns)) = self.group {
                let seconds = (backlog.began_ns.saturating_sub(before_ns).max(1)) as f64 / 1e9;
                let found = backlog.syncing_bytes as f64 / seconds;
                self.inflow_bytes_per_s +=
                    (found - self.inflow_bytes_per_s) * (1.0 - (-seconds / INFLOW_S).exp());
            }
            self.group = Some((backlog.txg, backlog.began_ns));
        }
        let left = backlog.syncing_bytes.saturating_sub(backlog.written_bytes);
        Load {
            backlog_bytes: left + backlog.open_bytes,
            limit_bytes: backlog.limit_bytes,
            inflow_bytes_per_s: self.inflow_bytes_per_s,
            awaited_bytes: if backlog.is_awaited { left } else { 0 },
            workers: u32::try_from(backlog.workers).unwrap_or(u32::MAX),
        }
    }
}

#[derive(Debug, Default)]
struct Taken {
    blocks: AtomicU64,
    logical_bytes: AtomicU64,
    stored_bytes: AtomicU64,
}

/// What one step of the ladder took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelShare {
    pub compression: Compression,
    pub blocks: u64,
    /// Bytes before compression.
    pub logical_bytes: u64,
    /// Bytes after it; those of blocks that did not shrink are their content's.
    pub stored_bytes: u64,
}

impl Levels {
    pub fn new(range: AutoRange) -> Arc<Levels> {
        let steering = Steering { auto: Auto::new(range), group: None, inflow_bytes_per_s: 0.0 };
        Arc::new(Levels { steering: Mutex::new(steering), taken: Default::default() })
    }

    /// Other bounds. What was learned and counted stays.
    pub fn set_range(&self, range: AutoRange) {
        self.steering.lock().auto.set_range(range);
    }

    /// How the next block of `bytes` is compressed.
    pub(crate) fn choose(&self, backlog: &Backlog, bytes: u64) -> Compression {
        let mut steering = self.steering.lock();
        let load = steering.load(backlog);
        steering.auto.choose(&load, bytes)
    }

    /// A worker took `ns` to make `stored_bytes` of `bytes`.
    pub(crate) fn measured(&self, compression: Compression, (bytes, stored_bytes): (u64, u64), ns: u64) {
        self.steering.lock().auto.measured(compression, bytes, ns);
        let Some(taken) = step_of(compression).and_then(|step| self.taken.get(step)) else { return };
        taken.blocks.fetch_add(1, Ordering::Relaxed);
        taken.logical_bytes.fetch_add(bytes, Ordering::Relaxed);
        taken.stored_bytes.fetch_add(stored_bytes, Ordering::Relaxed);
    }

    /// The steps that were taken, from the lowest on.
    pub fn shares(&self) -> Vec<LevelShare> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shares = self.taken.iter().enumerate().map(|(step, taken)| LevelShare {
            compression: compression_of(step),
            blocks: number(&taken.blocks),
            logical_bytes: number(&taken.logical_bytes),
            stored_bytes: number(&taken.stored_bytes),
        });
        shares.filter(|share| share.blocks > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn backlog(txg: u64, second: u64, syncing_bytes: u64) -> Backlog {
        Backlog {
            txg: Txg(txg),
            began_ns: second * 1_000_000_000,
            syncing_bytes,
            written_bytes: 0,
            open_bytes: 0,
            limit_bytes: 128 * MB,
            is_awaited: false,
            workers: 2,
        }
    }

    #[test]
    fn what_comes_in_is_what_groups_brought_since_the_one_before() {
        let mut steering =
            Steering { auto: Auto::new(AutoRange::default()), group: None, inflow_bytes_per_s: 0.0 };
        for (txg, second) in [(1, 5), (2, 10), (3, 15), (4, 20)] {
            steering.load(&backlog(txg, second, 10 * MB));
        }
        assert!((steering.inflow_bytes_per_s - 2e6).abs() < 1e5, "{}", steering.inflow_bytes_per_s);
        let again =
            Backlog { written_bytes: 4 * MB, open_bytes: MB, is_awaited: true, ..backlog(4, 20, 10 * MB) };
        let load = steering.load(&again);
        assert_eq!((load.backlog_bytes, load.awaited_bytes), (7 * MB, 6 * MB));
        assert!((load.inflow_bytes_per_s - 2e6).abs() < 1e5, "a group counts once");
    }

    #[test]
    fn what_was_chosen_is_counted() {
        let levels = Levels::new(AutoRange::default());
        let calm = backlog(1, 5, 20 * MB);
        let full = Backlog { open_bytes: 100 * MB, ..calm };
        let (mut logical_bytes, mut steps) = (0, Vec::new());
        for at in 0..200 {
            let chosen = levels.choose(if at < 100 { &calm } else { &full }, 128 << 10);
            levels.measured(chosen, (128 << 10, 64 << 10), 1_000_000);
            logical_bytes += 128 << 10;
            steps.push(step_of(chosen));
        }
        assert!(steps[99] > steps[0] && steps[199] == Some(0), "{steps:?}");
        let shares = levels.shares();
        assert_eq!(shares.iter().map(|share| share.logical_bytes).sum::<u64>(), logical_bytes);
        assert_eq!(shares.iter().map(|share| share.stored_bytes).sum::<u64>(), logical_bytes / 2);
        assert_eq!(shares[0].compression, Compression::Lz4);
        assert!(shares[0].blocks >= 100);
    }
}
