//! The thread that writes batches to devices, in queue order.
//!
//! On one processor a writer thread only overlaps with the device's own latency. If the device takes a batch as fast as memory, the
//! calling thread writes it itself, which saves two context switches.

use super::{Batch, IN_FLIGHT};
use crate::PoolError;
use crate::counters::Counters;
use crate::devices::Devices;
use flume::{Sender, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use terrane_device::Device;
use terrane_format::record::Home;

/// Only batches of at least this many bytes are used to measure a device.
const MEASURED_BYTES_MIN: u64 = 256 << 10;
/// Below this time per MiB, in nanoseconds, a handover to the writer costs more than it saves.
const QUICK_NS: u64 = 2_000_000;

/// Work items of the writer, done in queue order.
pub(super) enum Work {
    Write(Batch),
    /// The zone is full: the drive need not keep it open.
    Finish(Home),
}

/// The writer's completion: a batch and its result, or `None` for a finished zone.
pub(super) type Done = Option<(Batch, Result<(), PoolError>)>;

/// The thread that writes batches. Dropping it waits for the thread to end, because the thread holds the devices, and a held device
/// stays locked. An import right after the last handle of a pool is dropped must find them unlocked.
pub(super) struct Writer {
    /// Work for the thread. `None` only while the writer is dropped.
    pub queue: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    /// There is one processor.
    is_single_cpu: bool,
    pace: Arc<Pace>,
}

/// Moving average of the device's time per MiB, in nanoseconds. 0: unknown.
#[derive(Default)]
pub(super) struct Pace(AtomicU64);

impl Pace {
    /// Adds a measurement, with a weight of one quarter. Short batches are ignored.
    pub fn note(&self, bytes: u64, ns: u64) {
        if bytes >= MEASURED_BYTES_MIN {
            let now = u128::from(ns) * (1 << 20) / u128::from(bytes);
            let now = u64::try_from(now).unwrap_or(u64::MAX).max(1);
            let last = self.0.load(Ordering::Relaxed);
            self.0.store(if last == 0 { now } else { last - last / 4 + now / 4 }, Ordering::Relaxed);
        }
    }

    fn is_quick(&self) -> bool {
        (1..QUICK_NS).contains(&self.0.load(Ordering::Relaxed))
    }
}

impl Writer {
    /// `is_single_cpu`: there is one processor.
    pub fn start(
        done: &Sender<Done>,
        devices: &Arc<Devices>,
        counters: &Arc<Counters>,
        (is_single_cpu, pace): (bool, Arc<Pace>),
    ) -> Writer {
        let (queue, work) = bounded::<Work>(IN_FLIGHT);
        let (done, devices, counters, own) = (done.clone(), devices.clone(), counters.clone(), pace.clone());
        let thread = std::thread::Builder::new()
            .name("terrane-write".into())
            .spawn(move || {
                for work in work {
                    if done.send(execute(work, &devices, &counters, &own)).is_err() {
                        return;
                    }
                }
            })
            .expect("a thread can be started when a pool is opened");
        Writer { queue: Some(queue), thread: Some(thread), is_single_cpu, pace }
    }

    /// Whether the calling thread writes a batch sooner than this thread would.
    pub fn is_slower_than_caller(&self) -> bool {
        self.is_single_cpu && self.pace.is_quick()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        // A thread that panicked has ended as well.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Always returns a completion. A panic of the device counts as a failed write, or the caller would wait for ever.
pub(super) fn execute(work: Work, devices: &Devices, counters: &Counters, pace: &Pace) -> Done {
    match work {
        Work::Write(batch) => {
            let written = catch_unwind(AssertUnwindSafe(|| write(devices, &batch, counters, pace)));
            let panicked = || Err(PoolError::Failed { reason: "a write panicked".into() });
            Some((batch, written.unwrap_or_else(|_| panicked())))
        }
        Work::Finish(home) => {
            if catch_unwind(AssertUnwindSafe(|| finish(devices, home))).is_err() {
                log::error!("{home}: finish panicked");
            }
            None
        }
    }
}

/// Finishes the zone, which frees the drive's open zone. A failure is only logged: it does no harm.
fn finish(devices: &Devices, home: Home) {
    let finished = devices.get(home.device).and_then(|device| Ok(device.finish(home.zone)?));
    if let Err(error) = finished {
        log::warn!("{home}: finish failed: {error}");
    }
}

fn write(devices: &Devices, batch: &Batch, counters: &Counters, pace: &Pace) -> Result<(), PoolError> {
    let device = devices.get(batch.home.device)?;
    let began_ns = counters.now_ns();
    let outcome = device.write(batch.home.zone, batch.start, &batch.data);
    let ns = counters.now_ns().saturating_sub(began_ns);
    counters.device_write.record_ns(ns);
    pace.note(batch.data.len() as u64, ns);
    if outcome.is_err() {
        counters.write_errors.add(1);
    }
    Ok(outcome?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_batches_measure_device_speed() {
        let pace = Pace::default();
        assert!(!pace.is_quick(), "nothing is known");
        pace.note(1 << 20, 300_000);
        assert!(pace.is_quick());
        pace.note(4 << 10, 5_000_000);
        assert!(pace.is_quick(), "a small one says how long the way is");
        for _ in 0..8 {
            pace.note(512 << 10, 2_500_000);
        }
        assert!(!pace.is_quick(), "a disk");
        for _ in 0..16 {
            pace.note(1 << 20, 300_000);
        }
        assert!(pace.is_quick());
    }
}
