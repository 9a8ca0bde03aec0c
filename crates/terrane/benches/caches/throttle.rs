//! A device of a given speed.

use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_device::{Device, DeviceError, Layer, Layered};
use terrane_wire::ZoneIdx;

/// The latency of a request, and the rate of its bytes.
#[derive(Clone, Copy)]
pub struct Speed {
    pub latency: Duration,
    pub bytes_per_second: u64,
}

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

/// Requests that this thread has made.
pub fn own_requests() -> u64 {
    REQUESTS.get()
}

/// Bytes of requests are transferred one after the other, their latencies overlap; the caller sleeps until
/// its request is done.
pub struct Throttle {
    speed: Speed,
    /// When all requested bytes are transferred.
    idle_at: Mutex<Instant>,
}

pub fn throttled(below: Arc<dyn Device>, speed: Speed) -> Layered<Throttle> {
    Layered::wrap(below, Throttle { speed, idle_at: Mutex::new(Instant::now()) })
}

impl Throttle {
    fn serve<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        REQUESTS.set(REQUESTS.get() + 1);
        let takes = Duration::from_secs_f64(bytes as f64 / self.speed.bytes_per_second as f64);
        let done = {
            let mut free = self.idle_at.lock();
            *free = (*free).max(Instant::now()) + takes;
            *free + self.speed.latency
        };
        let outcome = work();
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
        outcome
    }
}

impl Layer for Throttle {
    fn on_read(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.serve(buf.len(), || below.read(zone, offset, buf))
    }

    fn on_write(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        self.serve(data.len(), || below.write(zone, offset, data))
    }

    fn on_order(&self, below: &dyn Device) -> Result<(), DeviceError> {
        self.on_flush(below)
    }

    fn on_flush(&self, _below: &dyn Device) -> Result<(), DeviceError> {
        // The layer below is memory of the host; a real drive of this speed would only flush its own cache.
        Ok(())
    }
}
