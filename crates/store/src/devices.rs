//! The devices of a pool, by their index in its label.
//!
//! An index names a device for the life of the pool: places, homes and records hold it. So the index of a removed device is not given
//! to another one. Devices join and leave while the pool is mounted, so callers look the device up each time.

use crate::PoolError;
use crate::env::Env;
use crate::host_space::{HostSpace, host_backed};
use crate::log_devices::LogDevices;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_device::{Counted, Device, DeviceInfo, DeviceKind, ZoneReport, ZoneState};
use terrane_format::label::{ANCHORS, DEVICES_MAX, Geometry};
use terrane_format::log::LogHome;
use terrane_format::record::Home;
use terrane_space::policy::Layout;
use terrane_space::replicas::Replicas;
use terrane_wire::{Corrupt, DeviceIdx, ZoneIdx};

/// Fewest open zones that a drive must allow: one anchor, the slots that cannot be shared, and one to spare.
pub const OPEN_ZONES_MIN: u32 = 4;

/// Zones that the intent log may have open on a drive.
const LOG_OPEN_ZONES: u32 = 2;
/// Fewest open zones that a drive must allow to hold an intent log.
const OPEN_ZONES_WITH_LOG: u32 = 8;

/// Zones that the intent log may have open on this device. 0: none, because the drive allows too few.
pub fn log_zones(info: &DeviceInfo) -> u32 {
    match open_limit(info) {
        1..OPEN_ZONES_WITH_LOG => 0,
        _ => LOG_OPEN_ZONES,
    }
}

/// Open zones that a drive allows, by the lower of its two limits. 0: no limit.
pub fn open_limit(info: &DeviceInfo) -> u32 {
    [info.max_open, info.max_active].into_iter().filter(|limit| *limit > 0).min().unwrap_or(0)
}

/// All devices by index. A removed device leaves a hole.
pub struct Devices {
    members: RwLock<Vec<Option<Member>>>,
    /// A bit for each device that is leaving.
    leaving: AtomicU64,
    /// A bit for each device whose free space is not promised: those leaving, or about to leave if all promises fit the other devices.
    withheld: AtomicU64,
    host: Arc<HostSpace>,
    /// The log devices, which have no index.
    pub log_devices: LogDevices,
}

#[derive(Clone)]
struct Member {
    device: Arc<Counted>,
    /// Smallest capacity of its writable zones, in bytes: what can be counted on.
    capacity: u64,
    /// The last result of [`Device::host_free_bytes`], or all ones.
    host_free_bytes: Arc<AtomicU64>,
}

/// The columns of a device's label row that the device itself decides.
pub fn geometry(info: &DeviceInfo) -> Geometry {
    Geometry { zone_size: info.zone_size, zone_count: info.zone_count, write_unit: info.write_unit }
}

/// The zones of a device that hold blocks: all but the anchors.
pub fn homes(device: DeviceIdx, zone_count: u32) -> impl Iterator<Item = Home> {
    (ANCHORS..zone_count).map(move |zone| Home { device, zone: ZoneIdx(zone) })
}

fn is_unwritable(report: ZoneReport) -> bool {
    matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline)
}

/// Whether a zone takes writes, now or after a reset.
pub fn takes_writes(device: &dyn Device, zone: ZoneIdx) -> bool {
    device.report(zone).is_ok_and(|report| !is_unwritable(report))
}

/// Smallest capacity of the device's writable zones, in bytes. 0: no zone takes writes.
pub fn smallest_capacity(device: &dyn Device) -> u64 {
    let zones = (ANCHORS..device.info().zone_count).map(ZoneIdx).filter(|zone| takes_writes(device, *zone));
    let reports = zones.filter_map(|zone| device.report(zone).ok());
    reports.map(|report| report.capacity).min().unwrap_or(0)
}

impl Member {
    fn new(device: Arc<dyn Device>, host: &Arc<HostSpace>) -> Member {
        let capacity = smallest_capacity(device.as_ref());
        let device = Arc::new(host_backed(device, host.clone()));
        Member {
            device: Arc::new(Counted::new(device)),
            capacity,
            host_free_bytes: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }
}

// One word holds a bit for each device.
const _: () = assert!(DEVICES_MAX <= 64);

impl Devices {
    /// The devices by index. `None` is the hole that a removed device left.
    pub fn new(devices: Vec<Option<Arc<dyn Device>>>, env: Arc<dyn Env>) -> Devices {
        let host = HostSpace::new(env);
        let member = |device: Option<Arc<dyn Device>>| device.map(|device| Member::new(device, &host));
        let members = RwLock::new(devices.into_iter().map(member).collect());
        Devices {
            members,
            leaving: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
            host,
            log_devices: LogDevices::default(),
        }
    }

    /// Whether a device waits for space on the file system below it.
    pub fn host(&self) -> &HostSpace {
        &self.host
    }

    /// Asks each device for the free space of the file system below it. [`host_free_bytes`](Self::host_free_bytes) returns the
    /// answer until the next call.
    pub fn query_host_free(&self) {
        for member in self.members.read().iter().flatten() {
            member
                .host_free_bytes
                .store(member.device.host_free_bytes().unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Free bytes of the file system below a device. All ones if there is none.
    pub fn host_free_bytes(&self, device: DeviceIdx) -> u64 {
        let members = self.members.read();
        let member = members.get(usize::from(device.0)).and_then(Option::as_ref);
        member.map_or(u64::MAX, |member| member.host_free_bytes.load(Ordering::Relaxed))
    }

    /// Looks up a device. `Corrupt` if no device has this index: only damaged tables name it.
    pub fn get(&self, device: DeviceIdx) -> Result<Arc<Counted>, PoolError> {
        let members = self.members.read();
        let member = members.get(usize::from(device.0)).and_then(Option::as_ref);
        member.map(|member| member.device.clone()).ok_or_else(|| {
            Corrupt::new("zone tables", "device", format_args!("one of {}", members.len()), device).into()
        })
    }

    /// The device of a zone of the log, and the zone on it.
    ///
    /// # Errors
    /// `Refused` if it is on a log device that is missing; else as for [`get`](Self::get).
    pub fn locate_log(&self, home: &LogHome) -> Result<(Arc<Counted>, ZoneIdx), PoolError> {
        match home {
            LogHome::Lent(home) => Ok((self.get(home.device)?, home.zone)),
            LogHome::Own { device, zone, .. } => match self.log_devices.get(*device) {
                Some(found) => Ok((found.device().clone(), *zone)),
                None => {
                    let what = format_args!("log device {device:016x}");
                    Err(PoolError::refused(what, "a device that is present", "none", "connect it"))
                }
            },
        }
    }

    /// The devices that are present.
    pub fn all(&self) -> Vec<(DeviceIdx, Arc<Counted>)> {
        let members = self.members.read();
        let present = (0u16..).zip(members.iter());
        let device = |(index, slot): (u16, &Option<Member>)| {
            slot.as_ref().map(|member| (DeviceIdx(index), member.device.clone()))
        };
        present.filter_map(device).collect()
    }

    /// Each device whose space may be promised, with the smallest capacity of its zones, in bytes.
    pub fn capacities(&self) -> Vec<(DeviceIdx, u64)> {
        let members = self.members.read();
        let present = (0u16..).zip(members.iter());
        let all = present.filter_map(|(index, slot)| Some((DeviceIdx(index), slot.as_ref()?.capacity)));
        all.filter(|(device, _)| self.gives_space(*device)).collect()
    }

    /// Adds a device at a new index.
    pub fn push(&self, device: Arc<dyn Device>) {
        self.members.write().push(Some(Member::new(device, &self.host)));
    }

    /// From now on its free space is not promised.
    pub fn withhold(&self, device: DeviceIdx) {
        self.withheld.fetch_or(1 << device.0, Ordering::Release);
    }

    /// From now on the device takes no new zones.
    pub fn mark_leaving(&self, device: DeviceIdx) {
        self.withhold(device);
        self.leaving.fetch_or(1 << device.0, Ordering::Release);
    }

    /// The removal was cancelled.
    pub fn cancel_removal(&self, device: DeviceIdx) {
        self.leaving.fetch_and(!(1 << device.0), Ordering::Release);
        self.withheld.fetch_and(!(1 << device.0), Ordering::Release);
    }

    /// Whether the device's free space may be promised.
    pub fn gives_space(&self, device: DeviceIdx) -> bool {
        self.withheld.load(Ordering::Acquire) & 1u64.checked_shl(device.0.into()).unwrap_or(0) == 0
    }

    /// Whether the free space of some device must not be promised.
    pub fn any_gives_no_space(&self) -> bool {
        self.withheld.load(Ordering::Acquire) != 0
    }

    /// Whether the device takes no new zones because it is being removed.
    pub fn is_leaving(&self, device: DeviceIdx) -> bool {
        self.leaving.load(Ordering::Acquire) & 1u64.checked_shl(device.0.into()).unwrap_or(0) != 0
    }

    /// Whether a replica lies on a leaving device.
    pub fn any_on_leaving(&self, replicas: &Replicas) -> bool {
        replicas.iter().any(|home| self.is_leaving(home.device))
    }

    /// Whether a device is being removed.
    pub fn any_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) != 0
    }

    /// Removes the device, and leaves a hole at its index.
    pub fn detach(&self, device: DeviceIdx) -> Option<Arc<Counted>> {
        let removed = self.members.write().get_mut(usize::from(device.0)).and_then(Option::take);
        self.cancel_removal(device);
        removed.map(|member| member.device)
    }

    /// Distributes the roles of open zones over slots, by the number of zones and the open limits of the drives. One open zone per
    /// drive is for its anchor, and two are for the intent log. With a special device, metadata shares no zone with data.
    pub fn layout(&self, has_special: bool) -> Result<Layout, PoolError> {
        let devices = self.all();
        let limits: Vec<u32> = devices.iter().map(|(_, device)| open_limit(device.info())).collect();
        let zones = devices.iter().map(|(_, device)| u64::from(device.info().zone_count)).sum();
        let for_blocks = |(_, device): &(DeviceIdx, Arc<Counted>)| {
            open_limit(device.info()).saturating_sub(1 + log_zones(device.info()))
        };
        let open_max = if limits.contains(&0) { 0 } else { devices.iter().map(for_blocks).sum() };
        let layout = Layout::new(zones, open_max);
        let layout = layout.map(|layout| if has_special { layout.with_metadata_slots() } else { layout });
        let layout = layout.map(|layout| layout.with_extra_slots(open_max));
        layout.ok_or_else(|| {
            PoolError::refused(
                devices.first().map_or("a pool".into(), |(_, device)| device.info().name.clone()),
                format_args!("at least {OPEN_ZONES_MIN} zones that may be open at once"),
                format_args!("{limits:?}"),
                "use another drive",
            )
        })
    }

    /// Whether the device allows one more open zone, beside its anchor and the zones open on the devices `open`.
    pub fn may_open(&self, device: DeviceIdx, open: &[DeviceIdx]) -> bool {
        let limit = self.get(device).map_or(0, |device| open_limit(device.info()) as usize);
        limit == 0 || open.iter().filter(|other| **other == device).count() + 1 < limit
    }

    /// Whether a zone takes writes, by the device's last report.
    pub fn zone_takes_writes(&self, home: Home) -> bool {
        self.get(home.device).is_ok_and(|device| takes_writes(device.as_ref(), home.zone))
    }

    /// A replica of a full zone that will never take writes again. This asks the device.
    pub fn unwritable_of(&self, replicas: &Replicas) -> Option<Home> {
        let died = |home: &Home| {
            self.get(home.device).is_ok_and(|device| device.query(home.zone).is_ok_and(is_unwritable))
        };
        replicas.iter().find(died)
    }

    /// Unit of a log that begins now, in bytes: it may go on on any member and on any log device.
    pub fn log_unit(&self) -> u64 {
        self.write_unit().max(self.log_devices.write_unit())
    }

    /// Whether one of them is an object store, each answer of which takes its time.
    pub fn are_far(&self) -> bool {
        self.all().iter().any(|(_, device)| device.info().kind == DeviceKind::Bucket)
    }

    /// The largest write unit of all devices: both copies of a block must be padded alike.
    pub fn write_unit(&self) -> u64 {
        self.all().iter().map(|(_, device)| u64::from(device.info().write_unit)).max().unwrap_or(4096)
    }
}
