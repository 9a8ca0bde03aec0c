//! What a mount was asked, how often, how long each answer took, and what failed.
//!
//! A time begins when a thread takes the request up and ends when its answer stands, before it is handed to the kernel. What a
//! request waited for such a thread ([`crate::session`] parks those that may wait) is measured apart.
//!
//! Invariant: nothing here waits or fails; see [`terrane_wire::meter`].

use crate::proto::{Opcode, Request};
use crate::reply::Reply;
use crate::session::Call;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_posix::Errno;
use terrane_wire::meter::{Counter, Histogram, Times};

#[derive(Debug, Default)]
struct Operation {
    times: Histogram,
    errors: AtomicU64,
}

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

/// One kind of request, as it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStats {
    /// Such as `lookup`.
    pub name: String,
    pub times: Times,
    /// Answered with an error; `ENOSYS`, which tells the kernel not to ask again, is none, nor is a GETXATTR's `ENODATA`.
    pub errors: u64,
}

/// A mount's figures since it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountStats {
    /// Kinds of requests that came at least once, by opcode.
    pub operations: Vec<OperationStats>,
    /// Requests that had to wait for a thread which may wait.
    pub parked: Times,
    /// Bytes of file contents the kernel was given, and gave.
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl Metrics {
    pub(crate) fn answered(&self, call: &Call<'_>, outcome: Result<(), Errno>, reply: &Reply, ns: u64) {
        let Some(operation) = self.operations.get(call.header.opcode as usize) else { return };
        operation.times.record_ns(ns);
        match (outcome, call.request) {
            (Err(Errno(libc::ENOSYS)), _) => {}
            // The kernel asks every file that is written for its capabilities, and nearly none has any.
            (Err(Errno(libc::ENODATA)), Request::Getxattr { .. }) => {}
            (Err(_), _) => {
                operation.errors.fetch_add(1, Ordering::Relaxed);
            }
            (Ok(()), Request::Read(_)) => self.read_bytes.add(reply.len() as u64),
            (Ok(()), Request::Write(write)) => self.written_bytes.add(write.data.len() as u64),
            _ => {}
        }
    }

    pub(crate) fn parked(&self, ns: u64) {
        self.parked.record_ns(ns);
    }

    /// Requests that were answered so far: another number means that somebody wanted something.
    pub fn answered_count(&self) -> u64 {
        self.operations.iter().map(|operation| operation.times.snapshot().count()).sum()
    }

    pub fn snapshot(&self) -> MountStats {
        let stats = |opcode: &Opcode| {
            let operation = self.operations.get(opcode.number() as usize)?;
            let times = operation.times.snapshot();
            let errors = operation.errors.load(Ordering::Relaxed);
            let name = format!("{opcode:?}").to_lowercase();
            (times.count() > 0).then_some(OperationStats { name, times, errors })
        };
        MountStats {
            operations: Opcode::ALL.iter().filter_map(stats).collect(),
            parked: self.parked.snapshot(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
        }
    }
}
