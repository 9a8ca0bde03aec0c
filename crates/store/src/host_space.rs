//! Devices that are files in a host file system which may become full.
//!
//! A sparse file takes space of the host file system when its zones are filled. A full host is not a defect of the zone: the write
//! waits and is retried twice a second. Meanwhile the pool is *suspended*. Writers get `ENOSPC`, operations that free space continue in
//! memory, and reserved space waits for its commit.
//!
//! Invariant: a write that failed because the host was full has changed nothing, so it can be repeated.

use crate::env::Env;
use crate::read_retry::Suspension;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrane_device::{Device, DeviceError, Layer, Layered};
use terrane_wire::ZoneIdx;

/// The pause between two retries.
const PAUSE: Duration = Duration::from_millis(500);

/// Shared by all devices of a pool: whether one of them waits for space on the host.
pub struct HostSpace {
    env: Arc<dyn Env>,
    suspended: Mutex<Option<Suspension>>,
    is_full: AtomicBool,
    /// The pool stops, so waiting ends.
    stopped: AtomicBool,
}

impl HostSpace {
    /// No device waits yet. Waiting sleeps on `env`.
    pub fn new(env: Arc<dyn Env>) -> Arc<HostSpace> {
        let suspended = Mutex::default();
        Arc::new(HostSpace {
            env,
            suspended,
            is_full: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        })
    }

    /// Whether a write waits for the host now. Does not lock.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// The present wait, if there is one.
    pub fn suspension(&self) -> Option<Suspension> {
        self.suspended.lock().clone()
    }

    /// Ends all waiting: writes that the full host refuses fail from now on.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Sleeps before the next retry. False: there is none.
    fn wait_for_space(&self, error: &DeviceError) -> bool {
        // Without threads the caller would wait for ever.
        if self.env.workers() == 0 || self.stopped.load(Ordering::Relaxed) {
            return false;
        }
        let mut suspended = self.suspended.lock();
        if suspended.is_none() {
            log::error!("suspended: {error}; writers get ENOSPC until the host has space");
            *suspended = Some(Suspension { since_ns: self.env.wall_ns(), reason: error.to_string() });
            self.is_full.store(true, Ordering::Relaxed);
        }
        drop(suspended);
        self.env.sleep(PAUSE);
        true
    }

    fn note_success(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        if self.suspended.lock().take().is_some() {
            log::warn!("resumed: the host file system has space again");
        }
    }
}

/// The layer whose writes wait for space on the host.
pub struct WaitsForSpace(Arc<HostSpace>);

/// A device whose writes wait for space on the host. All devices of a pool share one `host_space`.
pub fn host_backed(device: Arc<dyn Device>, host_space: Arc<HostSpace>) -> Layered<WaitsForSpace> {
    Layered::wrap(device, WaitsForSpace(host_space))
}

impl Layer for WaitsForSpace {
    fn on_write(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let mut has_waited = false;
        loop {
            match below.write(zone, offset, data) {
                Err(error @ DeviceError::Full { .. }) if self.0.wait_for_space(&error) => has_waited = true,
                outcome => {
                    if has_waited {
                        self.0.note_success();
                    }
                    return outcome;
                }
            }
        }
    }
}
