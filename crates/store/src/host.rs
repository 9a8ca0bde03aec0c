//! Devices that are files in a host file system which may become full.
//!
//! A sparse file takes space of the host file system when its zones are filled. A full host is not a defect of the zone: the write
//! waits and is retried twice a second. Meanwhile the pool is *suspended*. Writers get `ENOSPC`, operations that free space continue in
//! memory, and reserved space waits for its commit.
//!
//! Invariant: a write that failed because the host was full has changed nothing, so it can be repeated.

use crate::env::Env;
use crate::patience::Suspension;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrane_device::{Device, DeviceError, DeviceInfo, Identity, ZoneReport};
use terrane_wire::ZoneIdx;

/// The pause between two retries.
const PAUSE: Duration = Duration::from_millis(500);

/// Shared by all devices of a pool: whether one of them waits for space on the host.
pub struct HostRoom {
    env: Arc<dyn Env>,
    full: Mutex<Option<Suspension>>,
    is_full: AtomicBool,
    /// The pool stops, so waiting ends.
    stopped: AtomicBool,
}

impl HostRoom {
    pub fn new(env: Arc<dyn Env>) -> Arc<HostRoom> {
        let full = Mutex::default();
        Arc::new(HostRoom { env, full, is_full: AtomicBool::new(false), stopped: AtomicBool::new(false) })
    }

    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    pub fn suspension(&self) -> Option<Suspension> {
        self.full.lock().clone()
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Sleeps before the next retry. False: there is none.
    fn waits(&self, error: &DeviceError) -> bool {
        // Without threads the caller would wait for ever.
        if self.env.workers() == 0 || self.stopped.load(Ordering::Relaxed) {
            return false;
        }
        let mut full = self.full.lock();
        if full.is_none() {
            log::error!("suspended: {error}; writers get ENOSPC until there is room");
            *full = Some(Suspension { since_ns: self.env.wall_ns(), reason: error.to_string() });
            self.is_full.store(true, Ordering::Relaxed);
        }
        drop(full);
        self.env.sleep(PAUSE);
        true
    }

    fn came_through(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        if self.full.lock().take().is_some() {
            log::warn!("resumed: there is room again in the file system below");
        }
    }
}

/// A device whose writes wait for space on the host.
pub struct OnHost {
    device: Arc<dyn Device>,
    room: Arc<HostRoom>,
}

impl OnHost {
    pub fn new(device: Arc<dyn Device>, room: Arc<HostRoom>) -> OnHost {
        OnHost { device, room }
    }
}

impl Device for OnHost {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.device.report(zone)
    }

    fn ask(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.device.ask(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut has_waited = false;
        loop {
            match self.device.write(zone, offset, data) {
                Err(error @ DeviceError::Full { .. }) if self.room.waits(&error) => has_waited = true,
                outcome => {
                    if has_waited {
                        self.room.came_through();
                    }
                    return outcome;
                }
            }
        }
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.device.reset(zone)
    }

    fn keep_space(&self) {
        self.device.keep_space();
    }

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.device.finish(zone)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.device.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }

    fn room_below(&self) -> Option<u64> {
        self.device.room_below()
    }

    fn identity(&self) -> Option<Identity> {
        self.device.identity()
    }

    fn trouble(&self) -> Option<String> {
        self.device.trouble()
    }

    fn unlock(&self) {
        self.device.unlock();
    }
}
