//! Counters, incremented where the event happens: relaxed and lock-free.
//!
//! Invariant: no decision depends on a counter. A pool behaves the same if all of them are wrong.

use crate::env::Env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_format::directory::{Entry, PartTrailer};
use terrane_format::record::ZoneClass;
use terrane_format::totals::{Totals, WritePurpose, split_batch};
use terrane_wire::ZoneSeq;
use terrane_wire::meter::{Counter, Histogram};

/// Why a change waited before it joined a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The open txg was changing: its holders had to leave first.
    Quiesce = 0,
    /// Delayed, because dirty data nears its bound.
    Throttle = 1,
    /// Dirty data was at its bound: waited for the txg to sync.
    Sync = 2,
    /// Waited for free space in the pool.
    Space = 3,
}

impl WaitFor {
    /// All reasons, in the order of [`Counters::waits`].
    pub const ALL: [WaitFor; 4] = [WaitFor::Quiesce, WaitFor::Throttle, WaitFor::Sync, WaitFor::Space];

    /// The name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            WaitFor::Quiesce => "txg-change",
            WaitFor::Throttle => "throttle",
            WaitFor::Sync => "sync",
            WaitFor::Space => "space",
        }
    }
}

/// I/O to zones of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Requests to the device.
    pub operations: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Bytes on the device, directory parts and padding included.
    pub bytes: u64,
}

/// Counters of I/O to zones of one class; [`Io`] is their snapshot.
#[derive(Debug, Default)]
pub struct IoCounters {
    /// Requests to the device.
    pub operations: Counter,
    /// Blocks in them.
    pub blocks: Counter,
    /// Bytes on the device, directory parts and padding included.
    pub bytes: Counter,
}

impl IoCounters {
    /// The present values. Requests that are counted meanwhile may be in some of them only.
    pub fn snapshot(&self) -> Io {
        Io { operations: self.operations.get(), blocks: self.blocks.get(), bytes: self.bytes.get() }
    }
}

/// A sum that only one thread at a time adds to.
#[derive(Debug, Default)]
pub struct Sum(AtomicU64);

impl Sum {
    /// Adds to the sum.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters of an imported pool.
pub struct Counters {
    env: Arc<dyn Env>,
    /// When the counters began, by the monotonic clock.
    pub began_ns: u64,
    reads: [IoCounters; ZoneClass::ALL.len()],
    writes: [IoCounters; ZoneClass::ALL.len()],
    /// Duration of reads from the pool's devices, each retry counted.
    pub device_read: Histogram,
    /// Duration of batch writes to the pool's devices.
    pub device_write: Histogram,
    /// Duration of flushes, one for each device.
    pub flush: Histogram,
    /// Bytes that users wrote.
    pub user_bytes: Counter,
    /// Bytes of written blocks before compression, holes and embedded blocks included.
    pub logical_bytes: Sum,
    /// Bytes of appended blocks after compression, each block counted once.
    pub stored_bytes: Sum,
    /// Overwrites that changed nothing, so that the old blocks were kept.
    pub nopwrite_blocks: Sum,
    /// Bytes of those blocks before compression.
    pub nopwrite_bytes: Sum,
    written_by_purpose: [Sum; WritePurpose::ALL.len()],
    /// Duration of commits, from the end of quiescing until the txg was durable.
    pub txg_sync: Histogram,
    /// Time for which operations could not join while a txg quiesced.
    pub quiesce: Histogram,
    /// Bytes that txgs sent to the devices.
    pub txg_bytes: Sum,
    /// Total waiting time of operations that could not join a txg at once.
    pub begin: Histogram,
    /// Waits before joining a txg, by [`WaitFor::ALL`].
    pub waits: [Histogram; WaitFor::ALL.len()],
    /// Operations that were refused with `NoSpace`.
    pub no_space: Sum,
    /// Victims from which GC moved all that it could move.
    pub collected_zones: Sum,
    /// Stored bytes that GC moved.
    pub collected_bytes: Sum,
    /// Bytes that the resets of emptied victims give, garbage and moved blocks alike.
    pub reclaimed_bytes: Sum,
    /// Bytes that had to be moved out of those victims.
    pub reclaim_moved_bytes: Sum,
    /// Zones that were reset.
    pub reset_zones: Sum,
    /// Copies that were read but did not match their checksum.
    pub checksum_errors: Sum,
    /// Failed reads, each retry counted.
    pub read_errors: Sum,
    /// Failed batch writes.
    pub write_errors: Sum,
    /// Reads that no copy could serve.
    pub lost_blocks: Sum,
    /// Damaged copies that were replaced by good bytes.
    pub healed_blocks: Sum,
    /// Blocks of which a scrub read every copy.
    pub scrubbed_blocks: Counter,
    /// Stored bytes of blocks that were rewritten to keep the relocation index within its bound.
    pub rewritten_bytes: Counter,
    /// Commits that took in resets after their other frees were collected. Only a shortage of space causes that.
    pub late_resets: Counter,
}

impl Counters {
    /// Zeros, from now on by the clock of `env`.
    pub fn new(env: Arc<dyn Env>) -> Counters {
        let began_ns = env.monotonic_ns();
        Counters {
            env,
            began_ns,
            reads: Default::default(),
            writes: Default::default(),
            device_read: Histogram::default(),
            device_write: Histogram::default(),
            flush: Histogram::default(),
            user_bytes: Counter::default(),
            logical_bytes: Sum::default(),
            stored_bytes: Sum::default(),
            nopwrite_blocks: Sum::default(),
            nopwrite_bytes: Sum::default(),
            written_by_purpose: Default::default(),
            txg_sync: Histogram::default(),
            quiesce: Histogram::default(),
            txg_bytes: Sum::default(),
            begin: Histogram::default(),
            waits: Default::default(),
            no_space: Sum::default(),
            collected_zones: Sum::default(),
            collected_bytes: Sum::default(),
            reclaimed_bytes: Sum::default(),
            reclaim_moved_bytes: Sum::default(),
            reset_zones: Sum::default(),
            checksum_errors: Sum::default(),
            read_errors: Sum::default(),
            write_errors: Sum::default(),
            lost_blocks: Sum::default(),
            healed_blocks: Sum::default(),
            scrubbed_blocks: Counter::default(),
            rewritten_bytes: Counter::default(),
            late_resets: Counter::default(),
        }
    }

    /// Reads from zones of this class.
    pub fn reads(&self, class: ZoneClass) -> &IoCounters {
        &self.reads[class.index()]
    }

    /// Writes to zones of this class.
    pub fn writes(&self, class: ZoneClass) -> &IoCounters {
        &self.writes[class.index()]
    }

    /// Counts a batch that goes to zone `seq` and ends with `part`.
    pub fn count_batch(&self, seq: ZoneSeq, batch_bytes: u64, entries: &[Entry], part: &[u8]) {
        let trailer =
            part.len().checked_sub(PartTrailer::SIZE).and_then(|at| PartTrailer::decode(&part[at..]));
        let trailer = trailer.expect("every part ends with its trailer");
        let entry_bytes = trailer.entry_bytes + PartTrailer::SIZE as u64;
        for (sum, bytes) in
            self.written_by_purpose.iter().zip(split_batch(seq, batch_bytes, entries, entry_bytes))
        {
            sum.add(bytes);
        }
    }

    /// Counts the bytes of labels and uberblocks.
    pub fn count_anchor_bytes(&self, bytes: usize) {
        self.written_by_purpose[WritePurpose::Anchor as usize].add(bytes as u64);
    }

    /// Counts the bytes of a batch of the intent log, with its padding.
    pub fn count_log_bytes(&self, bytes: usize) {
        self.written_by_purpose[WritePurpose::Log as usize].add(bytes as u64);
    }

    /// Totals since import.
    pub fn totals(&self) -> Totals {
        Totals {
            user_bytes: self.user_bytes.get(),
            logical_bytes: self.logical_bytes.get(),
            stored_bytes: self.stored_bytes.get(),
            reset_zones: self.reset_zones.get(),
            collected_zones: self.collected_zones.get(),
            by_purpose: std::array::from_fn(|at| self.written_by_purpose[at].get()),
        }
    }

    /// Records a wait of `ns` nanoseconds.
    pub fn record_wait(&self, reason: WaitFor, ns: u64) {
        self.waits[reason as usize].record_ns(ns);
    }

    /// The monotonic clock, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.env.monotonic_ns()
    }

    /// Runs `work` and records its duration.
    pub fn record_duration<R>(&self, times: &Histogram, work: impl FnOnce() -> R) -> R {
        let began = self.now_ns();
        let outcome = work();
        times.record_ns(self.now_ns().saturating_sub(began));
        outcome
    }
}
