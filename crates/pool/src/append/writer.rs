//! The thread that writes batches to devices, in the order in which they were handed over.

use super::{Batch, IN_FLIGHT};
use crate::devices::Devices;
use crate::error::PoolError;
use crate::record::Home;
use crate::stats::Counters;
use flume::{Sender, bounded};
use std::sync::Arc;
use std::thread::JoinHandle;
use terrane_device::Device;

/// What the writer does, in this order.
pub(super) enum Work {
    Write(Batch),
    /// The zone takes no more: its drive need not keep it open.
    Finish(Home),
}

/// The writer's answer: a batch and how it went, or that a zone was finished.
pub(super) type Done = Option<(Batch, Result<(), PoolError>)>;

/// The thread that writes batches. Whoever drops it waits for its end, because it holds the devices, and a device that is held stays
/// locked: an import right after the last handle of a pool has gone must find it free.
pub(super) struct Writer {
    pub queue: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(done: &Sender<Done>, devices: &Arc<Devices>, counters: &Arc<Counters>) -> Writer {
        let (queue, work) = bounded::<Work>(IN_FLIGHT);
        let (done, devices, counters) = (done.clone(), devices.clone(), counters.clone());
        let thread = std::thread::Builder::new()
            .name("terrane-write".into())
            .spawn(move || {
                for work in work {
                    if done.send(carry_out(work, &devices, &counters)).is_err() {
                        return;
                    }
                }
            })
            .expect("a thread can be started when a pool is opened");
        Writer { queue: Some(queue), thread: Some(thread) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        // One that panicked has ended as well.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub(super) fn carry_out(work: Work, devices: &Devices, counters: &Counters) -> Done {
    match work {
        Work::Write(batch) => {
            let result = write(devices, &batch, counters);
            Some((batch, result))
        }
        Work::Finish(home) => {
            finish(devices, home);
            None
        }
    }
}

/// Frees the drive's slot; that it fails harms nobody.
fn finish(devices: &Devices, home: Home) {
    let finished = devices.get(home.device).and_then(|device| Ok(device.finish(home.zone)?));
    if let Err(error) = finished {
        log::warn!("{home}: {error}");
    }
}

fn write(devices: &Devices, batch: &Batch, counters: &Counters) -> Result<(), PoolError> {
    let device = devices.get(batch.home.device)?;
    let outcome =
        counters.timed(&counters.device_write, || device.write(batch.home.zone, batch.start, &batch.data));
    if outcome.is_err() {
        counters.write_errors.add(1);
    }
    Ok(outcome?)
}
