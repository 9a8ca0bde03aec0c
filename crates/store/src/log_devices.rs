//! Log devices: devices that hold the intent log and nothing else (ZFS: SLOG).
//!
//! A log device is no member of the pool: no commit writes to it. So one that fails costs only speed. The batch that failed is committed
//! instead, and the log goes on elsewhere. A failed device takes nothing more until it is [retried](LogDevice::retry).
//!
//! Invariants:
//! * A device has one request at a time, also a flush. An error of a flush is told once, and whoever gets it notes the failure before
//!   another flush can seem to succeed.
//! * A zone that the log has is not given to it again before it was [freed](LogDevice::free).

use crate::counters::Counters;
use crate::devices::takes_writes;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use terrane_device::{AlignedBuf, Counted, Device, DeviceError, DeviceInfo, IoCounts, ZoneState};
use terrane_format::label::Label;
use terrane_format::log_device::{LogDeviceHead, LogZoneHead};
use terrane_wire::ZoneIdx;

/// Zones in front of those for the log: one, with the head of the device.
pub const HEAD_ZONES: u32 = 1;

/// A log device in use.
pub struct LogDevice {
    /// Its id, as the label names it.
    pub id: u64,
    pool: u64,
    device: Arc<Counted>,
    state: Mutex<State>,
    /// Held during each request that changes something.
    io: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Zones that the log has.
    busy: BTreeSet<ZoneIdx>,
    /// The error after which nothing more is written.
    failure: Option<String>,
    is_leaving: bool,
}

/// What a log device did since it was attached.
#[derive(Clone, Debug)]
pub struct LogDeviceStats {
    /// Its capacity in bytes.
    pub size_bytes: u64,
    /// Zones that the log has.
    pub busy_zones: u64,
    /// The error after which it takes nothing more. `None`: it works.
    pub failure: Option<String>,
    /// I/O of the device.
    pub io: IoCounts,
}

/// The head of a log device, if it has one.
///
/// # Errors
/// When the device cannot be read.
pub fn head_of(device: &dyn Device) -> Result<Option<LogDeviceHead>, DeviceError> {
    let mut raw = AlignedBuf::new();
    raw.prepare(device.info().write_unit as usize);
    device.read(ZoneIdx(0), 0, &mut raw)?;
    Ok(LogDeviceHead::parse(&raw))
}

/// Writes the head of a device that was emptied, durably.
///
/// # Errors
/// When the device cannot be written.
pub fn write_head(device: &dyn Device, pool: u64, id: u64) -> Result<(), DeviceError> {
    let info = device.info();
    let head = LogDeviceHead::of(pool, id, (info.write_unit, info.zone_size, info.zone_count));
    let mut raw = AlignedBuf::from(head.encode().as_slice());
    raw.resize(info.write_unit as usize);
    let first = ZoneIdx(0);
    device.reset(first)?;
    device.write(first, 0, &raw)?;
    device.finish(first)?;
    device.flush()
}

/// Wipes the head.
///
/// # Errors
/// When the device cannot be written.
pub fn wipe_head(device: &dyn Device) -> Result<(), DeviceError> {
    device.reset(ZoneIdx(0))?;
    if device.info().hardware_pointers {
        return Ok(());
    }
    // A reset may leave all bytes unchanged.
    let zeros = AlignedBuf::from(vec![0; device.info().write_unit as usize].as_slice());
    device.write(ZoneIdx(0), 0, &zeros)?;
    device.flush()
}

/// The id of a log device that the label names, if `device` is one.
pub fn id_in(device: &dyn Device, label: &Label) -> Option<u64> {
    let (info, head) = (device.info(), head_of(device).ok()??);
    let is_named = |head: &LogDeviceHead| label.log_devices.iter().any(|row| row.device == head.device);
    let is_same = |info: &DeviceInfo| {
        head.zone_size == info.zone_size
            && head.zone_count <= info.zone_count
            && head.write_unit >= info.write_unit
    };
    (head.pool == label.pool && is_named(&head) && is_same(info)).then_some(head.device)
}

impl LogDevice {
    /// A device of this pool with this id, whose zones are all free.
    pub fn new(device: Arc<dyn Device>, (pool, id): (u64, u64)) -> LogDevice {
        let device = Arc::new(Counted::new(device));
        LogDevice { id, pool, device, state: Mutex::default(), io: Mutex::default() }
    }

    /// The device, with its I/O counted.
    pub fn device(&self) -> &Arc<Counted> {
        &self.device
    }

    /// Its statistics.
    pub fn stats(&self) -> LogDeviceStats {
        let (info, state) = (self.device.info(), self.state.lock());
        LogDeviceStats {
            size_bytes: u64::from(info.zone_count - HEAD_ZONES) * info.zone_size,
            busy_zones: state.busy.len() as u64,
            failure: state.failure.clone(),
            io: self.device.counts(),
        }
    }

    /// Whether it takes new zones for the log.
    pub fn is_usable(&self) -> bool {
        let state = self.state.lock();
        state.failure.is_none() && !state.is_leaving
    }

    /// Whether it was failed. From now on it is used again.
    pub fn retry(&self) -> bool {
        let _io = self.io.lock();
        self.state.lock().failure.take().is_some()
    }

    /// From now on it takes no new zones, or does again.
    pub fn set_leaving(&self, is_leaving: bool) {
        self.state.lock().is_leaving = is_leaving;
    }

    /// Runs a request that changes something, unless an earlier one failed.
    fn change<T>(&self, request: impl FnOnce(&Counted) -> Result<T, DeviceError>) -> Option<T> {
        let _io = self.io.lock();
        if self.state.lock().failure.is_some() {
            return None;
        }
        match request(&self.device) {
            Ok(done) => Some(done),
            Err(error) => {
                log::warn!("log device {} failed, going on without: {error}", self.device.info().name);
                self.state.lock().failure = Some(error.to_string());
                None
            }
        }
    }

    /// Gives the log a zone that begins with a durable head of `head_bytes`. Returns the zone and its capacity in bytes.
    /// `None`: there is none, or the device has failed.
    pub fn open_zone(&self, filling: u64, head_bytes: u64) -> Option<(ZoneIdx, u64)> {
        let zones = (HEAD_ZONES..self.device.info().zone_count).map(ZoneIdx);
        let zone = {
            let state = self.state.lock();
            let is_free =
                |zone: &ZoneIdx| !state.busy.contains(zone) && takes_writes(self.device.as_ref(), *zone);
            zones.into_iter().find(is_free)?
        };
        let head = LogZoneHead::of((self.pool, self.id), zone, filling).encode();
        let mut raw = AlignedBuf::from(head.as_slice());
        raw.resize(usize::try_from(head_bytes).ok()?);
        let capacity = self.change(|device| {
            device.reset_for_reuse(zone)?;
            device.write(zone, 0, &raw)?;
            device.flush()?;
            Ok(device.report(zone)?.capacity)
        })?;
        self.state.lock().busy.insert(zone);
        Some((zone, capacity))
    }

    /// Appends a batch durably. Returns whether it is.
    pub fn append(&self, zone: ZoneIdx, offset: u64, raw: &[u8], counters: &Counters) -> bool {
        let stored = self.change(|device| {
            device.write(zone, offset, raw)?;
            counters.record_duration(&counters.flush, || device.flush())
        });
        stored.is_some()
    }

    /// The log has this zone, which an import found.
    pub fn keep(&self, zone: ZoneIdx) {
        self.state.lock().busy.insert(zone);
    }

    /// The log has this zone no longer. A drive counts it as active until it is reset.
    pub fn free(&self, zone: ZoneIdx) {
        if self.device.info().hardware_pointers {
            self.change(|device| device.reset(zone));
        }
        self.state.lock().busy.remove(&zone);
    }

    /// Resets the zones of a drive that the log does not have: a crash has left them.
    pub fn reset_left_zones(&self) {
        if !self.device.info().hardware_pointers {
            return;
        }
        let busy = self.state.lock().busy.clone();
        for zone in (HEAD_ZONES..self.device.info().zone_count).map(ZoneIdx) {
            let state = self.device.report(zone).map(|report| report.state);
            if !busy.contains(&zone) && matches!(state, Ok(ZoneState::Open | ZoneState::Full)) {
                self.change(|device| device.reset(zone));
            }
        }
    }
}

/// The log devices of a pool that are present.
#[derive(Default)]
pub struct LogDevices(RwLock<Vec<Arc<LogDevice>>>);

impl LogDevices {
    /// All of them.
    pub fn all(&self) -> Vec<Arc<LogDevice>> {
        self.0.read().clone()
    }

    /// The one with this id.
    pub fn get(&self, id: u64) -> Option<Arc<LogDevice>> {
        self.0.read().iter().find(|device| device.id == id).cloned()
    }

    /// Adds one, unless it is there.
    pub fn attach(&self, device: LogDevice) {
        let mut all = self.0.write();
        if all.iter().all(|known| known.id != device.id) {
            all.push(Arc::new(device));
        }
    }

    /// Removes one.
    pub fn detach(&self, id: u64) -> Option<Arc<LogDevice>> {
        let mut all = self.0.write();
        let at = all.iter().position(|device| device.id == id)?;
        Some(all.remove(at))
    }

    /// Their largest write unit. 0: there is none.
    pub fn write_unit(&self) -> u64 {
        let unit = |device: &Arc<LogDevice>| u64::from(device.device.info().write_unit);
        self.0.read().iter().map(unit).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SeededEnv;
    use terrane_device::{Fault, SimConfig, SimDevice};

    fn sim(hardware_pointers: bool) -> (SimDevice, LogDevice) {
        let config =
            SimConfig { zone_count: 5, zone_size: 1 << 20, hardware_pointers, ..SimConfig::default() };
        let device = SimDevice::new(config).unwrap();
        write_head(&device, 7, 9).unwrap();
        (device.clone(), LogDevice::new(Arc::new(device), (7, 9)))
    }

    fn counters() -> Counters {
        Counters::new(Arc::new(SeededEnv::new(1)))
    }

    #[test]
    fn zones_are_given_once_and_again_when_they_were_freed() {
        for is_drive in [false, true] {
            let (_, device) = sim(is_drive);
            let zones: Vec<u32> =
                std::iter::from_fn(|| device.open_zone(3, 4096)).map(|(zone, _)| zone.0).collect();
            assert_eq!(zones, [1, 2, 3, 4]);
            assert!(device.is_usable(), "that it is full is no failure");
            device.free(ZoneIdx(3));
            assert_eq!(device.open_zone(4, 4096).unwrap().0, ZoneIdx(3));
            let mut raw = vec![0; 4096];
            device.device().read(ZoneIdx(3), 0, &mut raw).unwrap();
            assert_eq!(LogZoneHead::parse(&raw, ZoneIdx(3)).unwrap().filling, 4);
        }
    }

    #[test]
    fn a_failed_device_takes_nothing_until_it_is_retried() {
        let (sim, device) = sim(false);
        let (zone, _) = device.open_zone(3, 4096).unwrap();
        let fault = sim.inject(Fault::WriteError { zone: Some(zone), one_in: 1, partial: false });
        assert!(!device.append(zone, 4096, &[1; 4096], &counters()));
        sim.disarm(fault);
        assert!(!device.append(zone, 4096, &[1; 4096], &counters()) && device.open_zone(4, 4096).is_none());
        assert!(device.stats().failure.is_some() && !device.is_usable());
        assert!(device.retry() && !device.retry());
        let (zone, _) = device.open_zone(5, 4096).unwrap();
        assert!(device.append(zone, 4096, &[1; 4096], &counters()));
    }

    #[test]
    fn a_drive_does_not_keep_zones_open_that_a_crash_has_left() {
        let (sim, device) = sim(true);
        let zones = [device.open_zone(3, 4096).unwrap().0, device.open_zone(3, 4096).unwrap().0];
        let device = LogDevice::new(Arc::new(sim.clone()), (7, 9));
        device.keep(zones[0]);
        device.reset_left_zones();
        let state = |zone: ZoneIdx| sim.report(zone).unwrap().state;
        assert_eq!(zones.map(state), [ZoneState::Open, ZoneState::Empty]);
    }
}
