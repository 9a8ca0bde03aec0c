//! `zstd-auto` in a pool: what the controller of [`terrane_codec::auto`] is told, and what it chose.
//!
//! One for each data set that asks for it. With every block the group says how much is dirty, how quickly more comes and whether somebody
//! waits; the worker that compressed the block says how long that took.

use crate::pool::Pool;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_codec::Compression;
use terrane_codec::auto::{Auto, AutoRange, Load, STEPS, Took, compression_of, step_of};
use terrane_store::prepare::{Made, Ready};
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
    auto: Mutex<Auto>,
    taken: [Taken; STEPS],
}

/// What waits to be compressed while a group syncs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    pub bytes: u64,
    /// Those of them that somebody waits for.
    pub awaited_bytes: u64,
    pub inflow_bytes_per_s: f64,
}

/// A block that waits for its turn.
pub(crate) struct Turn {
    levels: Arc<Levels>,
    pool: Arc<Pool>,
    txg: Txg,
    written_bytes: u64,
}

impl Turn {
    /// Its turn has come: a block of `bytes` is made ready by the step that is right now.
    pub fn prepare(self, bytes: u64, prepare: impl FnOnce(Compression) -> Ready) -> Ready {
        let Turn { levels, pool, txg, written_bytes } = self;
        let env = &pool.env;
        let compression = levels.auto.lock().choose(&pool.auto_load(txg, written_bytes), bytes);
        let (wall_ns, processor_ns) = (env.monotonic_ns(), env.thread_ns());
        let ready = prepare(compression);
        let took = Took {
            processor_ns: env.thread_ns().saturating_sub(processor_ns),
            wall_ns: env.monotonic_ns().saturating_sub(wall_ns),
        };
        if let Some(stored_bytes) = ready.stored_bytes() {
            levels.measured(compression, (bytes, stored_bytes), took);
        }
        ready
    }
}

impl Pool {
    fn auto_load(&self, txg: Txg, written_bytes: u64) -> Load {
        let (_, limit_bytes) = self.txg.dirty();
        let Backlog { bytes, awaited_bytes, inflow_bytes_per_s } =
            self.txg.backlog(txg, written_bytes, self.env.monotonic_ns());
        Load {
            backlog_bytes: bytes,
            limit_bytes,
            inflow_bytes_per_s,
            awaited_bytes,
            workers: u32::try_from(self.env.workers()).unwrap_or(u32::MAX),
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
        Arc::new(Levels { auto: Mutex::new(Auto::new(range)), taken: Default::default() })
    }

    /// Other bounds. What was learned and counted stays.
    pub fn set_range(&self, range: AutoRange) {
        self.auto.lock().set_range(range);
    }

    /// A block of `txg`, of which `written_bytes` were compressed before it was handed to the workers.
    pub(crate) fn turn(self: &Arc<Self>, pool: &Arc<Pool>, txg: Txg, written_bytes: u64) -> Turn {
        Turn { levels: self.clone(), pool: pool.clone(), txg, written_bytes }
    }

    /// What a worker took to make `stored_bytes` of `bytes`.
    fn measured(&self, compression: Compression, (bytes, stored_bytes): (u64, u64), took: Took) {
        self.auto.lock().measured(compression, bytes, took);
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

    #[test]
    fn what_was_chosen_is_counted() {
        let levels = Levels::new(AutoRange::default());
        let took = Took { wall_ns: 1_000_000, processor_ns: 1_000_000 };
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
