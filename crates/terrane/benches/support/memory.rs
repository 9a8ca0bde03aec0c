//! Zones in memory, allocated when the device is made: what grows during a benchmark is the pool's.

use std::sync::RwLock;
use terrane_device::{Device, DeviceError, DeviceInfo, DeviceKind, ZoneReport, ZoneRules, ZoneState};
use terrane_wire::ZoneIdx;

pub struct Memory {
    info: DeviceInfo,
    rules: ZoneRules,
    zones: Vec<RwLock<Box<[u8]>>>,
}

impl Memory {
    /// `open_max`: how many zones may be open at once; 0 is no limit.
    pub fn new(zones: u32, zone_bytes: u64, open_max: u32) -> Memory {
        let info = DeviceInfo {
            name: "memory".into(),
            kind: DeviceKind::Simulator,
            write_unit: 4096,
            zone_count: zones,
            zone_size: zone_bytes,
            max_open: open_max,
            max_active: open_max,
            hardware_pointers: true,
        };
        let rules =
            ZoneRules::new(info.write_unit, open_max, (0..zones).map(|_| zone_bytes), ZoneState::Empty);
        // Not zero: untouched pages would be allocated later.
        let bytes = || RwLock::new(vec![0xa5; zone_bytes as usize].into_boxed_slice());
        Memory { info, rules, zones: (0..zones).map(|_| bytes()).collect() }
    }

    fn zone(&self, zone: ZoneIdx) -> &RwLock<Box<[u8]>> {
        self.zones.get(zone.0 as usize).unwrap()
    }
}

impl Device for Memory {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.rules.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.rules.check_read(zone, offset, buf.len())?;
        let bytes = self.zone(zone).read().unwrap();
        buf.copy_from_slice(bytes.get(offset as usize..offset as usize + buf.len()).unwrap());
        Ok(())
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let ticket = self.rules.begin_write(zone, offset, data.len())?;
        let mut bytes = self.zone(zone).write().unwrap();
        bytes.get_mut(offset as usize..offset as usize + data.len()).unwrap().copy_from_slice(data);
        ticket.wrote(data.len() as u64);
        Ok(())
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.rules.begin_reset(zone)?.done();
        Ok(())
    }

    fn keep_space(&self) {}

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.rules.finish(zone).map(|_| ())
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.rules.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
