//! Counters, incremented where the event happens: relaxed and lock-free.
//!
//! Invariant: no decision depends on a counter. A pool behaves the same if all of them are wrong.

use crate::env::Env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_format::directory::{Entry, PartTrailer};
use terrane_format::record::Class;
use terrane_format::totals::{Spent, Totals, split};
use terrane_wire::ZoneSeq;
use terrane_wire::meter::{Counter, Histogram};

/// Why a change waited before it joined a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The open txg was changing: its holders had to leave first.
    Change = 0,
    /// Delayed, because dirty data nears its bound.
    Throttle = 1,
    /// Dirty data was at its bound: waited for the txg to sync.
    Sync = 2,
    /// Waited for free space in the pool.
    Space = 3,
}

impl WaitFor {
    pub const ALL: [WaitFor; 4] = [WaitFor::Change, WaitFor::Throttle, WaitFor::Sync, WaitFor::Space];

    pub fn name(self) -> &'static str {
        match self {
            WaitFor::Change => "group-change",
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

#[derive(Debug, Default)]
pub struct IoCounters {
    pub operations: Counter,
    pub blocks: Counter,
    pub bytes: Counter,
}

impl IoCounters {
    pub fn snapshot(&self) -> Io {
        Io { operations: self.operations.get(), blocks: self.blocks.get(), bytes: self.bytes.get() }
    }
}

/// A sum that only one thread at a time adds to.
#[derive(Debug, Default)]
pub struct Sum(AtomicU64);

impl Sum {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters of an imported pool.
pub struct Counters {
    env: Arc<dyn Env>,
    pub began_ns: u64,
    reads: [IoCounters; Class::ALL.len()],
    writes: [IoCounters; Class::ALL.len()],
    pub device_read: Histogram,
    pub device_write: Histogram,
    pub flush: Histogram,
    /// Bytes that users wrote.
    pub user_bytes: Counter,
    pub logical_bytes: Sum,
    pub stored_bytes: Sum,
    pub nopwrite_blocks: Sum,
    pub nopwrite_bytes: Sum,
    spent: [Sum; Spent::ALL.len()],
    pub group: Histogram,
    pub quiesce: Histogram,
    pub group_bytes: Sum,
    pub begin: Histogram,
    pub waits: [Histogram; WaitFor::ALL.len()],
    pub no_space: Sum,
    pub collected_zones: Sum,
    pub collected_bytes: Sum,
    pub reset_zones: Sum,
    pub checksum_errors: Sum,
    pub read_errors: Sum,
    pub write_errors: Sum,
    pub lost_blocks: Sum,
    pub healed_blocks: Sum,
    pub scrubbed_blocks: Counter,
    pub reborn_bytes: Counter,
    pub late_resets: Counter,
}

impl Counters {
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
            spent: Default::default(),
            group: Histogram::default(),
            quiesce: Histogram::default(),
            group_bytes: Sum::default(),
            begin: Histogram::default(),
            waits: Default::default(),
            no_space: Sum::default(),
            collected_zones: Sum::default(),
            collected_bytes: Sum::default(),
            reset_zones: Sum::default(),
            checksum_errors: Sum::default(),
            read_errors: Sum::default(),
            write_errors: Sum::default(),
            lost_blocks: Sum::default(),
            healed_blocks: Sum::default(),
            scrubbed_blocks: Counter::default(),
            reborn_bytes: Counter::default(),
            late_resets: Counter::default(),
        }
    }

    pub fn reads(&self, class: Class) -> &IoCounters {
        &self.reads[class.index()]
    }

    pub fn writes(&self, class: Class) -> &IoCounters {
        &self.writes[class.index()]
    }

    /// Counts a batch that goes to zone `seq` and ends with `part`.
    pub fn spend(&self, seq: ZoneSeq, batch_bytes: u64, entries: &[Entry], part: &[u8]) {
        let trailer =
            part.len().checked_sub(PartTrailer::SIZE).and_then(|at| PartTrailer::decode(&part[at..]));
        let trailer = trailer.expect("every part ends with its trailer");
        let entry_bytes = trailer.entry_bytes + PartTrailer::SIZE as u64;
        for (sum, bytes) in self.spent.iter().zip(split(seq, batch_bytes, entries, entry_bytes)) {
            sum.add(bytes);
        }
    }

    /// Counts the bytes of labels and uberblocks.
    pub fn spend_on_anchors(&self, bytes: usize) {
        self.spent[Spent::Anchor as usize].add(bytes as u64);
    }

    /// Totals since import.
    pub fn totals(&self) -> Totals {
        Totals {
            user_bytes: self.user_bytes.get(),
            logical_bytes: self.logical_bytes.get(),
            stored_bytes: self.stored_bytes.get(),
            reset_zones: self.reset_zones.get(),
            collected_zones: self.collected_zones.get(),
            spent: std::array::from_fn(|at| self.spent[at].get()),
        }
    }

    pub fn waited(&self, reason: WaitFor, ns: u64) {
        self.waits[reason as usize].record_ns(ns);
    }

    pub fn now_ns(&self) -> u64 {
        self.env.monotonic_ns()
    }

    /// Runs `work` and records its duration.
    pub fn timed<R>(&self, times: &Histogram, work: impl FnOnce() -> R) -> R {
        let began = self.now_ns();
        let outcome = work();
        times.record_ns(self.now_ns().saturating_sub(began));
        outcome
    }
}
