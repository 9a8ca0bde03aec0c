//! Counters of a mount: requests, latencies and errors by operation.
//!
//! A latency begins when a thread takes up the request, and ends when its answer is built, before the kernel
//! gets it. The time that a request waited for a thread ([`crate::session`] parks those that may wait) is
//! measured separately.
//!
//! Invariant: nothing here waits or fails; see [`terrane_wire::meter`].

use crate::proto::{Opcode, Request};
use crate::reply::Reply;
use crate::session::Call;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_posix::Errno;
use terrane_wire::meter::{Counter, Histogram, HistogramSnapshot};

#[derive(Debug, Default)]
struct Operation {
    latency: Histogram,
    errors: AtomicU64,
}

/// Counters of one mount, updated by the threads that answer requests.
#[derive(Debug)]
pub struct Metrics {
    /// By opcode.
    operations: Box<[Operation]>,
    parked: Histogram,
    read_bytes: Counter,
    written_bytes: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let count = Opcode::ALL.iter().map(|opcode| opcode.number()).max().map_or(0, |last| last + 1);
        Metrics {
            operations: (0..count).map(|_| Operation::default()).collect(),
            parked: Histogram::default(),
            read_bytes: Counter::default(),
            written_bytes: Counter::default(),
        }
    }
}

/// A snapshot of one operation's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStats {
    /// The operation, such as `lookup`.
    pub name: String,
    /// Time from a thread taking up the request until its answer was built, for each answer.
    pub latency: HistogramSnapshot,
    /// Answers with an error. Not counted: `ENOSYS`, which tells the kernel not to ask again, and a
    /// GETXATTR's `ENODATA`.
    pub errors: u64,
}

/// A mount's counters since it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountStats {
    /// Operations that were requested at least once, by opcode.
    pub operations: Vec<OperationStats>,
    /// Requests that were parked until a thread that may wait was free, and for how long.
    pub parked: HistogramSnapshot,
    /// Bytes of file contents that the kernel read.
    pub read_bytes: u64,
    /// Bytes of file contents that the kernel wrote.
    pub written_bytes: u64,
}

impl Metrics {
    pub(crate) fn record_answer(&self, call: &Call<'_>, outcome: Result<(), Errno>, reply: &Reply, ns: u64) {
        let Some(operation) = self.operations.get(call.header.opcode as usize) else { return };
        operation.latency.record_ns(ns);
        match (outcome, call.request) {
            (Err(Errno(libc::ENOSYS)), _) => {}
            // The kernel asks for the capabilities of every file that is written, and hardly any file has
            // some.
            (Err(Errno(libc::ENODATA)), Request::Getxattr { .. }) => {}
            (Err(_), _) => {
                operation.errors.fetch_add(1, Ordering::Relaxed);
            }
            (Ok(()), Request::Read(_)) => self.read_bytes.add(reply.len() as u64),
            (Ok(()), Request::Write(write)) => self.written_bytes.add(write.data.len() as u64),
            _ => {}
        }
    }

    pub(crate) fn record_parked(&self, ns: u64) {
        self.parked.record_ns(ns);
    }

    /// Requests answered so far. If it changed, the mount was in use.
    pub fn answered_count(&self) -> u64 {
        self.operations.iter().map(|operation| operation.latency.snapshot().count()).sum()
    }

    /// Copies all counters. Requests go on meanwhile, so the counters may differ by a few requests.
    pub fn snapshot(&self) -> MountStats {
        let stats = |opcode: &Opcode| {
            let operation = self.operations.get(opcode.number() as usize)?;
            let times = operation.latency.snapshot();
            let errors = operation.errors.load(Ordering::Relaxed);
            let name = format!("{opcode:?}").to_lowercase();
            (times.count() > 0).then_some(OperationStats { name, latency: times, errors })
        };
        MountStats {
            operations: Opcode::ALL.iter().filter_map(stats).collect(),
            parked: self.parked.snapshot(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
        }
    }
}
