//! Several devices on one power supply.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use terrane_device::sim::Survival;
use terrane_device::{Device, DeviceError, DeviceInfo, SimConfig, SimDevice, ZoneReport};
use terrane_wire::ZoneIdx;

/// Devices whose commands are counted together, and whose power fails at once.
#[derive(Clone)]
pub struct Joint {
    pub devices: Vec<SimDevice>,
    left: Arc<AtomicI64>,
}

impl Joint {
    pub fn new(devices: Vec<SimDevice>) -> Joint {
        Joint { devices, left: Arc::new(AtomicI64::new(i64::MAX)) }
    }

    /// Zones of 1 MiB, of 2 MiB, and so on. Odd devices are drives, even ones are files.
    pub fn of(seed: u64, zones: &[u32]) -> Joint {
        let device = |(index, zone_count): (usize, &u32)| {
            SimDevice::new(SimConfig {
                name: format!("sim {index}"),
                seed: seed + index as u64,
                zone_count: *zone_count,
                zone_size: 1 << (20 + index % 2),
                hardware_pointers: index % 2 == 1,
                write_unit: if index == 2 { 16384 } else { 4096 },
                ..SimConfig::default()
            })
            .unwrap()
        };
        Joint::new(zones.iter().enumerate().map(device).collect())
    }

    /// The power fails after this many commands.
    pub fn crash_after(&self, commands: i64) {
        self.left.store(commands, Ordering::SeqCst);
    }

    /// Handles of the devices, for a pool.
    pub fn handles(&self) -> Vec<Arc<dyn Device>> {
        (0..self.devices.len()).map(|index| self.handle(index)).collect()
    }

    pub fn handle(&self, index: usize) -> Arc<dyn Device> {
        Arc::new(Handle { device: self.devices[index].clone(), joint: self.clone() })
    }

    pub fn cut_power(&self) {
        self.devices.iter().for_each(SimDevice::cut_power);
    }

    /// The devices after a power loss, each with what it kept.
    pub fn restarted(&self, kept: impl Fn(usize) -> Survival) -> Joint {
        let restart = |(index, device): (usize, &SimDevice)| device.restarted(kept(index));
        Joint::new(self.devices.iter().enumerate().map(restart).collect())
    }
}

struct Handle {
    device: SimDevice,
    joint: Joint,
}

impl Handle {
    fn count(&self) -> &SimDevice {
        if self.joint.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.joint.cut_power();
        }
        &self.device
    }
}

impl Device for Handle {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.device.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.count().write(zone, offset, data)
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.count().reset(zone)
    }

    fn keep_space(&self) {
        self.device.keep_space();
    }

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.count().finish(zone)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.device.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.count().flush()
    }
}
