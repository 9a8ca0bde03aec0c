//! Devices whose files lie in a file system that runs full.
//!
//! A sparse file takes room of the file system below it when its zones are filled. That it finds none there is no defect of a zone: the
//! write waits, and is tried again each second. The pool is *suspended* meanwhile. Writers get `ENOSPC`, what frees space goes on in
//! memory, and what was promised waits for its commit.
//!
//! Invariant: a write that found no room below has changed nothing, so the same write can follow.

use crate::env::Env;
use crate::patience::Suspension;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrane_device::{Device, DeviceError, DeviceInfo, Identity, ZoneReport};
use terrane_wire::ZoneIdx;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// What all devices of a pool share: whether one waits for room below.
pub struct HostRoom {
    env: Arc<dyn Env>,
    full: Mutex<Option<Suspension>>,
    is_full: AtomicBool,
    /// The pool stops: nobody waits any more.
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

    /// Whether there is to be another try.
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

/// A device whose writes wait for room below.
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
