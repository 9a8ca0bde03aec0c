//! Creates a pool on devices.
//!
//! All checks come before the first change of a device. Then each device is emptied. The uberblock of the
//! first txg, behind a label on each device, makes them a pool.

use crate::import::{ImportOptions, assemble, check_name, keep_space};
use crate::pool::{Pool, SyncState};
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_cache::parts::{PART_CACHE_DIVISOR, PartCache};
use terrane_device::{Device, DeviceInfo, ZoneState};
use terrane_format::block_ptr::{BLOCK_BYTES_MAX, BlockPtr};
use terrane_format::features::Feature;
use terrane_format::features::Features;
use terrane_format::label::{ANCHORS, DEVICES_MAX, DeviceRow, Label, Role};
use terrane_format::record::{Home, SectionPtr};
use terrane_format::totals::Totals;
use terrane_space::alloc::Allocator;
use terrane_space::policy::NopwriteSampling;
use terrane_space::section_rotation::SectionRotation;
use terrane_space::zones::Tables;
use terrane_store::PoolError;
use terrane_store::anchors::{Anchor, Anchors, overwrite_labels};
use terrane_store::append::Streams;
use terrane_store::counters::Counters;
use terrane_store::devices::geometry;
use terrane_store::devices::{Devices, OPEN_ZONES_MIN, homes, open_limit, smallest_capacity, takes_writes};
use terrane_store::env::Env;
use terrane_txg::collector::Collector;
use terrane_txg::history::History;
use terrane_wire::{DeviceIdx, Txg, ZoneIdx};

/// Minimum zones of a device, anchors included.
pub const ZONES_MIN: u32 = 32;
/// Minimum zone size, in bytes.
pub const ZONE_BYTES_MIN: u64 = 1 << 20;
const ZONE_BYTES_DEFAULT: u64 = 64 << 20;
const ZONES_TARGET: u64 = 256;

/// Zone size for a device without zones of its own: 64 MiB, smaller on small pools.
pub fn zone_size_for(device_bytes: u64) -> u64 {
    let aim = (device_bytes / ZONES_TARGET).max(1);
    let power = 1u64 << (63 - aim.leading_zeros());
    power.clamp(ZONE_BYTES_MIN, ZONE_BYTES_DEFAULT)
}

/// How a pool is created.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The pool's name.
    pub name: String,
    /// Features of the new pool, which older versions may not know.
    pub features: Vec<Feature>,
    /// Roles of the devices, in their order. Devices without a role here are for data.
    pub roles: Vec<Role>,
}

impl CreateOptions {
    /// A pool of this name with the features that new pools have.
    pub fn named(name: &str) -> Self {
        CreateOptions { name: name.to_owned(), features: Feature::defaults(), roles: Vec::new() }
    }
}

impl Pool {
    /// Creates a pool and leaves it open. The content of the devices is lost. The first device has index 0.
    ///
    /// # Errors
    /// `Refused`, with the name of the device, if a device or its zones are too small. Also `Refused` if
    /// there are too many devices, or none for data.
    pub fn create(
        devices: Vec<Arc<dyn Device>>,
        create: &CreateOptions,
        env: Arc<dyn Env>,
        options: &ImportOptions,
    ) -> Result<Arc<Pool>, PoolError> {
        let roles = create.roles.iter().copied().chain(std::iter::repeat(Role::Data));
        let members: Vec<(Arc<dyn Device>, Role)> = devices.iter().cloned().zip(roles).collect();
        check_name(&create.name)?;
        if !members.iter().any(|(_, role)| *role == Role::Data) || members.len() > DEVICES_MAX {
            let found = format!("{} devices", members.len());
            let expected = format!("1 to {DEVICES_MAX} devices, not all of them special");
            return Err(PoolError::refused("new pool", expected, found, "change the list of devices"));
        }
        members.iter().try_for_each(|(device, _)| validate_device(device.info()))?;
        keep_space(&devices, options);
        let capacities =
            devices.iter().map(|device| wipe(device.as_ref())).collect::<Result<Vec<u64>, _>>()?;
        let capacity = capacities.into_iter().min().unwrap_or(ZONE_BYTES_MIN);
        let max_block = (capacity / 4).min(u64::from(BLOCK_BYTES_MAX)) as u32;
        let pool = env.random_u64();
        let mut features = Features::default();
        for feature in &create.features {
            features.enable(*feature);
        }
        if members.len() > 1 {
            features.enable(Feature::Devices);
        }
        let row = |(device, role): &(Arc<dyn Device>, Role)| {
            let mut row = DeviceRow::of(random_id(env.as_ref()), geometry(device.info()), *role);
            if members.len() > 1 {
                row.set_name(&device.info().name);
            }
            row
        };
        let rows: Vec<DeviceRow> = members.iter().map(row).collect();
        let zones: u32 = rows.iter().map(DeviceRow::block_zones).fold(0, u32::saturating_add);
        let mut alloc = Allocator::new(1);
        let mut anchors = Vec::new();
        for ((index, row), device) in (0u16..).map(DeviceIdx).zip(&rows).zip(&devices) {
            alloc.add_device(index, row.role == Role::Special, row.block_zones());
            let usable = |home: &Home| takes_writes(device.as_ref(), home.zone);
            homes(index, row.zone_count).filter(usable).for_each(|home| alloc.put(home));
            anchors.push(Anchor::fresh(index));
        }
        alloc.raise_lease();
        let label = Label {
            pool,
            identity: None,
            name: create.name.clone(),
            device: rows[0].device,
            generation: 1,
            anchor_generation: 0,
            zone_size: rows[0].zone_size,
            zone_count: rows[0].zone_count,
            write_unit: rows[0].write_unit,
            max_block,
            sections: (zones.saturating_add(ANCHORS) / 16).clamp(1, 1024),
            features,
            devices: rows.into_iter().map(Some).collect(),
            caches: Vec::new(),
            log_devices: Vec::new(),
        };
        let sections = (0..label.sections).map(SectionPtr::unwritten).collect();
        let counters = Arc::new(Counters::new(env.clone()));
        let devices = Arc::new(Devices::new(devices.into_iter().map(Some).collect(), env.clone()));
        let layout = devices.layout(label.has_special())?;
        let state = SyncState {
            streams: Streams::new(
                (pool, 1),
                devices.clone(),
                capacity,
                layout,
                env.workers(),
                counters.clone(),
                Arc::new(PartCache::new(options.cache_bytes / PART_CACHE_DIVISOR)),
            ),
            alloc,
            lease_txg: FIRST_LEASE,
            incarnation: 1,
            commit_point: Box::new(Anchors::new(devices.clone(), counters.clone(), anchors)),
            history: History {
                chain: VecDeque::new(),
                newest: None,
                recent: VecDeque::new(),
                imported: Txg(0),
                oldest: Txg(1),
            },
            sections,
            section_rotation: SectionRotation::new(label.sections, false),
            root: BlockPtr::default(),
            resets_done: Vec::new(),
            suspects: Vec::new(),
            colocated: VecDeque::new(),
            collector: Collector::new(label.block_bytes()),
            nopwrite_sampling: NopwriteSampling::default(),
        };
        let in_force: Vec<Feature> = label.features.known().collect();
        let pool = assemble(
            (label, None),
            devices,
            (Tables::default(), None),
            (Txg(1), Txg(0)),
            state,
            (env, counters, Totals::default()),
            options,
        );
        pool.run_txg()?;
        pool.membership.put_in_force(in_force.into_iter());
        pool.start(options);
        Ok(pool)
    }
}

/// Txgs that a new pool may write before its first lease.
const FIRST_LEASE: u64 = 4096;

/// A random device id. 0 is never used: it means no device.
pub(crate) fn random_id(env: &dyn Env) -> u64 {
    env.random_u64().max(1)
}

/// Refuses a device whose geometry no pool can use.
pub(crate) fn validate_device(info: &DeviceInfo) -> Result<(), PoolError> {
    if info.zone_count < ZONES_MIN || info.zone_size < ZONE_BYTES_MIN || !info.zone_size.is_power_of_two() {
        return Err(PoolError::refused(
            &info.name,
            format_args!("at least {ZONES_MIN} zones, their size a power of two and at least 1 MiB"),
            format_args!("{} zones of {} bytes", info.zone_count, info.zone_size),
            "use a larger device, or a smaller zone size",
        ));
    }
    let limit = open_limit(info);
    if limit > 0 && limit < OPEN_ZONES_MIN {
        return Err(PoolError::refused(
            &info.name,
            format_args!("at least {OPEN_ZONES_MIN} zones that may be open at once"),
            limit,
            "use another drive",
        ));
    }
    Ok(())
}

/// Refuses a device of fewer or smaller zones than a cache or log device needs.
pub(crate) fn check_zones(device: &dyn Device, zones_min: u32) -> Result<(), PoolError> {
    let (info, capacity) = (device.info(), smallest_capacity(device));
    if info.zone_count >= zones_min && capacity >= 1 << 20 && info.zone_size <= 1 << 32 {
        return Ok(());
    }
    Err(PoolError::refused(
        &info.name,
        format_args!("at least {zones_min} zones of 1 MiB to 4 GiB"),
        format_args!("{} zones, the smallest of {capacity} bytes", info.zone_count),
        "use a larger device, or another zone size",
    ))
}

/// Empties a device that joins a pool: all zones, and all old labels. Returns the smallest zone capacity, in
/// bytes.
pub(crate) fn wipe(device: &dyn Device) -> Result<u64, PoolError> {
    let info = device.info();
    let mut capacity = info.zone_size;
    for zone in (0..info.zone_count).map(ZoneIdx) {
        let before = device.report(zone)?.state;
        if zone.0 >= ANCHORS && matches!(before, ZoneState::ReadOnly | ZoneState::Offline) {
            log::warn!("{}: zone {zone} retired: read-only or offline", info.name);
            continue;
        }
        // A drive with hardware write pointers is trusted when it reports an empty zone. It has tens of
        // thousands of zones, and resets take time.
        if before != ZoneState::Empty || !info.hardware_pointers {
            device.reset(zone)?;
        }
        capacity = capacity.min(device.report(zone)?.capacity);
    }
    if capacity < ZONE_BYTES_MIN {
        let found = format!("a zone of {capacity} bytes");
        return Err(PoolError::refused(
            &info.name,
            "zone capacities of at least 1 MiB",
            found,
            "use another device",
        ));
    }
    if !info.hardware_pointers {
        // A reset may leave all bytes unchanged. Then import would find the labels of an old pool beside the
        // new ones.
        overwrite_labels(device)?;
        device.flush()?;
    }
    Ok(capacity)
}
