//! The devices of a pool, by their index in its label.
//!
//! An index names a device for as long as the pool lives: places, homes and records hold it, so that of a device that was removed is
//! not given to the others. Devices come and go while a pool is mounted, so everybody asks here, each time.

use crate::PoolError;
use crate::env::Env;
use crate::host::{HostRoom, OnHost};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_device::{Counted, Device, DeviceInfo, ZoneReport, ZoneState};
use terrane_format::label::{ANCHORS, DEVICES_MAX, Geometry};
use terrane_format::record::Home;
use terrane_space::policy::Layout;
use terrane_space::replicas::Replicas;
use terrane_wire::{Corrupt, DeviceIdx, ZoneIdx};

/// The fewest zones that a drive must let be open at once: an anchor, and those whose roles cannot be shared, and one to spare.
pub const OPEN_MIN: u32 = 4;

/// How many zones of a drive may be open at once, by whichever of its limits is reached first; 0: as many as one likes.
pub fn open_limit(info: &DeviceInfo) -> u32 {
    [info.max_open, info.max_active].into_iter().filter(|limit| *limit > 0).min().unwrap_or(0)
}

/// Every device, or the hole that one left.
pub struct Devices {
    slots: RwLock<Vec<Option<Member>>>,
    /// One bit for each that leaves.
    leaving: AtomicU64,
    /// One bit for each whose room is promised to nobody: those that leave, or will if what was promised fits the others.
    withheld: AtomicU64,
    host: Arc<HostRoom>,
}

#[derive(Clone)]
struct Member {
    device: Arc<Counted>,
    /// The smallest of its zones that can be written, in bytes: what can be counted on.
    capacity: u64,
    /// What [`Device::room_below`] said last, or all ones.
    room_below: Arc<AtomicU64>,
}

/// The part of a device's row in the label that the device decides.
pub fn geometry(info: &DeviceInfo) -> Geometry {
    Geometry { zone_size: info.zone_size, zone_count: info.zone_count, write_unit: info.write_unit }
}

/// The zones of a device that are for blocks.
pub fn homes(device: DeviceIdx, zone_count: u32) -> impl Iterator<Item = Home> {
    (ANCHORS..zone_count).map(move |zone| Home { device, zone: ZoneIdx(zone) })
}

fn is_dead(report: ZoneReport) -> bool {
    matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline)
}

/// Whether anything can be written to a zone, now or after a reset.
pub fn takes_writes(device: &dyn Device, zone: ZoneIdx) -> bool {
    device.report(zone).is_ok_and(|report| !is_dead(report))
}

/// What the zone of a device that takes least takes, of those that take anything, in bytes; 0: none does.
pub fn smallest_capacity(device: &dyn Device) -> u64 {
    let zones = (ANCHORS..device.info().zone_count).map(ZoneIdx).filter(|zone| takes_writes(device, *zone));
    let reports = zones.filter_map(|zone| device.report(zone).ok());
    reports.map(|report| report.capacity).min().unwrap_or(0)
}

impl Member {
    fn new(device: Arc<dyn Device>, host: &Arc<HostRoom>) -> Member {
        let capacity = smallest_capacity(device.as_ref());
        let device = Arc::new(OnHost::new(device, host.clone()));
        Member {
            device: Arc::new(Counted::new(device)),
            capacity,
            room_below: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }
}

// The bits of a word are enough.
const _: () = assert!(DEVICES_MAX <= 64);

impl Devices {
    pub fn new(devices: Vec<Option<Arc<dyn Device>>>, env: Arc<dyn Env>) -> Devices {
        let host = HostRoom::new(env);
        let member = |device: Option<Arc<dyn Device>>| device.map(|device| Member::new(device, &host));
        let slots = RwLock::new(devices.into_iter().map(member).collect());
        Devices { slots, leaving: AtomicU64::new(0), withheld: AtomicU64::new(0), host }
    }

    pub fn host(&self) -> &HostRoom {
        &self.host
    }

    /// Asks what bounds the devices beside their zones: what [`room_below`](Self::room_below) says until the next time.
    pub fn ask_room_below(&self) {
        for member in self.slots.read().iter().flatten() {
            member.room_below.store(member.device.room_below().unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Bytes that the file system below a device still has; all ones where there is none.
    pub fn room_below(&self, device: DeviceIdx) -> u64 {
        let slots = self.slots.read();
        let member = slots.get(usize::from(device.0)).and_then(Option::as_ref);
        member.map_or(u64::MAX, |member| member.room_below.load(Ordering::Relaxed))
    }

    pub fn get(&self, device: DeviceIdx) -> Result<Arc<Counted>, PoolError> {
        let slots = self.slots.read();
        let member = slots.get(usize::from(device.0)).and_then(Option::as_ref);
        member.map(|member| member.device.clone()).ok_or_else(|| {
            Corrupt::new("zone tables", "device", format_args!("one of {}", slots.len()), device).into()
        })
    }

    /// Those that are there.
    pub fn all(&self) -> Vec<(DeviceIdx, Arc<Counted>)> {
        let slots = self.slots.read();
        let present = (0u16..).zip(slots.iter());
        let device = |(index, slot): (u16, &Option<Member>)| {
            slot.as_ref().map(|member| (DeviceIdx(index), member.device.clone()))
        };
        present.filter_map(device).collect()
    }

    /// What the zones of each device that gives room take at least, in bytes.
    pub fn capacities(&self) -> Vec<(DeviceIdx, u64)> {
        let slots = self.slots.read();
        let present = (0u16..).zip(slots.iter());
        let all = present.filter_map(|(index, slot)| Some((DeviceIdx(index), slot.as_ref()?.capacity)));
        all.filter(|(device, _)| self.gives_room(*device)).collect()
    }

    /// One more, behind all that ever were.
    pub fn push(&self, device: Arc<dyn Device>) {
        self.slots.write().push(Some(Member::new(device, &self.host)));
    }

    /// Nobody is promised its room from now on.
    pub fn withhold(&self, device: DeviceIdx) {
        self.withheld.fetch_or(1 << device.0, Ordering::Release);
    }

    /// It takes nothing new from now on.
    pub fn leaves(&self, device: DeviceIdx) {
        self.withhold(device);
        self.leaving.fetch_or(1 << device.0, Ordering::Release);
    }

    /// It stays after all.
    pub fn stays(&self, device: DeviceIdx) {
        self.leaving.fetch_and(!(1 << device.0), Ordering::Release);
        self.withheld.fetch_and(!(1 << device.0), Ordering::Release);
    }

    pub fn gives_room(&self, device: DeviceIdx) -> bool {
        self.withheld.load(Ordering::Acquire) & 1u64.checked_shl(device.0.into()).unwrap_or(0) == 0
    }

    pub fn any_gives_none(&self) -> bool {
        self.withheld.load(Ordering::Acquire) != 0
    }

    pub fn is_leaving(&self, device: DeviceIdx) -> bool {
        self.leaving.load(Ordering::Acquire) & 1u64.checked_shl(device.0.into()).unwrap_or(0) != 0
    }

    /// Whether a zone lies on a device that leaves.
    pub fn any_leaves_of(&self, replicas: &Replicas) -> bool {
        replicas.iter().any(|home| self.is_leaving(home.device))
    }

    pub fn any_leaves(&self) -> bool {
        self.leaving.load(Ordering::Acquire) != 0
    }

    /// Leaves a hole.
    pub fn let_go(&self, device: DeviceIdx) -> Option<Arc<Counted>> {
        let gone = self.slots.write().get_mut(usize::from(device.0)).and_then(Option::take);
        self.stays(device);
        gone.map(|member| member.device)
    }

    /// How the roles of open zones are shared out: by the zones there are, and by how many the drives let be open, one of each for its
    /// anchor. Where a device is special, metadata shares no zone with data.
    pub fn layout(&self, has_special: bool) -> Result<Layout, PoolError> {
        let devices = self.all();
        let limits: Vec<u32> = devices.iter().map(|(_, device)| open_limit(device.info())).collect();
        let zones = devices.iter().map(|(_, device)| u64::from(device.info().zone_count)).sum();
        let open_max = if limits.contains(&0) { 0 } else { limits.iter().map(|limit| limit - 1).sum() };
        let layout = Layout::new(zones, open_max);
        let layout = layout.map(|layout| if has_special { layout.with_metadata_apart() } else { layout });
        layout.ok_or_else(|| {
            PoolError::refused(
                devices.first().map_or("a pool".into(), |(_, device)| device.info().name.clone()),
                format_args!("at least {OPEN_MIN} zones that may be open at once"),
                format_args!("{limits:?}"),
                "use another drive",
            )
        })
    }

    /// Whether one more zone may be open on a device, beside those that are open on these, and its anchor.
    pub fn may_open(&self, device: DeviceIdx, open: &[DeviceIdx]) -> bool {
        let limit = self.get(device).map_or(0, |device| open_limit(device.info()) as usize);
        limit == 0 || open.iter().filter(|other| **other == device).count() + 1 < limit
    }

    /// Whether a zone takes writes, as far as its device knows.
    pub fn take_writes(&self, home: Home) -> bool {
        self.get(home.device).is_ok_and(|device| takes_writes(device.as_ref(), home.zone))
    }

    /// A replica of a full zone that will never take writes again, as its device says, which is asked.
    pub fn dead_of(&self, replicas: &Replicas) -> Option<Home> {
        let died =
            |home: &Home| self.get(home.device).is_ok_and(|device| device.ask(home.zone).is_ok_and(is_dead));
        replicas.iter().find(died)
    }

    /// The largest write unit of all: what is written in two copies must be padded alike on every device.
    pub fn write_unit(&self) -> u64 {
        self.all().iter().map(|(_, device)| u64::from(device.info().write_unit)).max().unwrap_or(4096)
    }
}
