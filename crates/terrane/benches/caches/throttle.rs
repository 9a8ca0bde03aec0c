//! A device that is as slow as it is told to be.

use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_device::{Device, DeviceError, Layer, Layered};
use terrane_wire::ZoneIdx;

/// What a device takes for a request, and for its bytes.
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

/// Bytes of requests go one after the other, their latencies beside each other; who asked sleeps until its turn is over.
pub struct Throttle {
    speed: Speed,
    /// When all bytes that were asked for have passed.
    free: Mutex<Instant>,
}

pub fn throttled(below: Arc<dyn Device>, speed: Speed) -> Layered<Throttle> {
    Layered::over(below, Throttle { speed, free: Mutex::new(Instant::now()) })
}

impl Throttle {
    fn serve<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        REQUESTS.set(REQUESTS.get() + 1);
        let takes = Duration::from_secs_f64(bytes as f64 / self.speed.bytes_per_second as f64);
        let done = {
            let mut free = self.free.lock();
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

    fn on_flush(&self, _below: &dyn Device) -> Result<(), DeviceError> {
        // What is below is memory of the host; a drive of this speed would be asked for its own cache alone.
        Ok(())
    }
}
