//! A simulated device that says it is something else.

use std::sync::Arc;
use terrane_device::{Device, DeviceError, DeviceInfo, DeviceKind, SimDevice, ZoneReport};
use terrane_wire::ZoneIdx;

/// A simulated device that reports another kind.
struct Disk(SimDevice, DeviceInfo);

pub fn disk(device: &SimDevice, kind: DeviceKind) -> Arc<dyn Device> {
    Arc::new(Disk(device.clone(), DeviceInfo { kind, ..device.info().clone() }))
}

impl Device for Disk {
    fn info(&self) -> &DeviceInfo {
        &self.1
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.0.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0.write(zone, offset, data)
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.0.reset(zone)
    }

    fn keep_space(&self) {}

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.0.finish(zone)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.0.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
}
