//! Log devices of a pool: add, attach, remove, retry.
//!
//! The label names them, so that an import knows which devices to look for. A commit record names the zones on them that hold records of
//! the intent log. Only while it does, an import needs them.
//!
//! Invariant: a device is not forgotten before a durable commit names no zone on it, and no batch goes to it before the label names it.

use crate::create::{check_zones, random_id, wipe};
use crate::pool::Pool;
use std::sync::Arc;
use terrane_device::Device;
use terrane_format::features::{Feature, FeatureState};
use terrane_format::label::{DEVICE_NAME_BYTES_MAX, LOG_DEVICES_MAX, LogDeviceRow};
use terrane_format::log::{LOG_COPIES_MAX, LogHome};
use terrane_store::PoolError;
use terrane_store::devices::open_limit;
use terrane_store::log::NewZone;
use terrane_store::log_devices::{HEAD_ZONES, LogDevice, LogDeviceStats, id_in, wipe_head, write_head};

/// Minimum zones of a log device: its head, the two that a commit names, the two that it may name next.
const ZONES_MIN: u32 = HEAD_ZONES + 4;
/// Fewest open zones that a drive must allow: those of the log, while a commit takes it from one to the next.
const OPEN_ZONES_MIN: u32 = 4;
/// Commits after which the log has left a device: one that contains its records, and one that names other zones.
const COMMITS_TO_LEAVE: usize = 8;

/// A log device as the label names it, with its statistics if it is attached.
#[derive(Clone, Debug)]
pub struct LogDeviceStatus {
    /// Its id, as the label names it.
    pub id: u64,
    /// Name of the device when it joined.
    pub name: String,
    /// Its statistics. `None`: it is missing.
    pub stats: Option<LogDeviceStats>,
}

/// Whether a new pool can have these log devices, before anything is written.
///
/// # Errors
/// `Refused`.
pub fn check_new_log_devices(
    members: &[Arc<dyn Device>],
    log_devices: &[Arc<dyn Device>],
) -> Result<(), PoolError> {
    if log_devices.len() > LOG_DEVICES_MAX {
        let (expected, found) = (format!("at most {LOG_DEVICES_MAX} log devices"), log_devices.len());
        return Err(PoolError::refused("pool", expected, found, "leave some out"));
    }
    log_devices.iter().try_for_each(|device| check_log_device(members, device.as_ref()))
}

/// Whether a device can be a log device of a pool with these members.
fn check_log_device(members: &[Arc<dyn Device>], device: &dyn Device) -> Result<(), PoolError> {
    check_zones(device, ZONES_MIN)?;
    let info = device.info();
    let limit = open_limit(info);
    if (1..OPEN_ZONES_MIN).contains(&limit) {
        let expected = format_args!("at least {OPEN_ZONES_MIN} zones that may be open at once");
        return Err(PoolError::refused(&info.name, expected, limit, "use another drive"));
    }
    // They are found by their paths, and a copy of the pool is told by them.
    let mut names = members.iter().map(|member| &member.info().name).chain([&info.name]);
    if let Some(long) = names.find(|name| name.len() > DEVICE_NAME_BYTES_MAX) {
        let expected = format_args!("a path of at most {DEVICE_NAME_BYTES_MAX} bytes, as the label keeps it");
        let found = format_args!("one of {} bytes", long.len());
        return Err(PoolError::refused(
            long,
            expected,
            found,
            "move it: a pool with a log device needs short paths",
        ));
    }
    Ok(())
}

impl Pool {
    /// Empties the device and makes it a log device of the pool (a SLOG, in ZFS terms). Returns its id. The log goes on there from one
    /// of the next commits on.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` if the device is too small, there are too many, or the pool has no intent log; `Failed` if the label could
    /// not be written.
    pub fn add_log_device(self: &Arc<Self>, device: Arc<dyn Device>) -> Result<u64, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        self.validate_log_device(device.as_ref())?;
        wipe(device.as_ref())?;
        let (id, info) = (random_id(self.env.as_ref()), device.info().clone());
        write_head(device.as_ref(), self.store.pool, id)?;
        let mut st = self.sync.lock();
        self.reports.check_running()?;
        // Another one may have joined meanwhile.
        if let Err(error) = self.refuse_surplus_log_device() {
            drop(st);
            wipe_head(device.as_ref())?;
            return Err(error);
        }
        let members = self.store.devices.all();
        {
            let mut label = self.membership.label_mut();
            // Names of the members tell a copy of the pool, which must leave the device alone.
            label.features.enable(Feature::Devices);
            for (index, member) in members {
                if let Some(Some(row)) = label.devices.get_mut(usize::from(index.0)) {
                    row.set_name(&member.info().name);
                }
            }
            label.features.enable(Feature::LogDevices);
            label.generation += 1;
            let mut row = LogDeviceRow { device: id, zone_size: info.zone_size, name: String::new() };
            row.set_name(&info.name);
            label.log_devices.push(row);
        }
        self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
        self.membership.put_in_force([Feature::Devices, Feature::LogDevices].into_iter());
        self.store.devices.log_devices.attach(LogDevice::new(device, (self.store.pool, id)));
        self.store.log.leave_zones();
        drop(st);
        log::info!("pool {}: log device {id:016x} added: {}", self.name(), info.name);
        Ok(id)
    }

    fn validate_log_device(&self, device: &dyn Device) -> Result<(), PoolError> {
        let pool = format!("pool {}", self.name());
        if self.feature_state(Feature::Log) == FeatureState::Disabled {
            let expected = format_args!("feature {}", Feature::Log.row().name);
            let remedy = format!("terrane pool upgrade {}", self.name());
            return Err(PoolError::refused(pool, expected, "no intent log", remedy));
        }
        let members: Vec<Arc<dyn Device>> =
            self.store.devices.all().into_iter().map(|(_, member)| member as Arc<dyn Device>).collect();
        check_log_device(&members, device)?;
        self.refuse_surplus_log_device()
    }

    fn refuse_surplus_log_device(&self) -> Result<(), PoolError> {
        if self.label().log_devices.len() < LOG_DEVICES_MAX {
            return Ok(());
        }
        let (at, expected) =
            (format!("pool {}", self.name()), format!("at most {LOG_DEVICES_MAX} log devices"));
        Err(PoolError::refused(at, expected, "that many already", "remove one first"))
    }

    /// Attaches a log device that the label names, and that was missing until now.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` if the device is no log device of this pool.
    pub fn attach_log_device(self: &Arc<Self>, device: Arc<dyn Device>) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let _st = self.sync.lock();
        self.reports.check_running()?;
        let Some(id) = id_in(device.as_ref(), &self.label()) else {
            return Err(PoolError::refused(
                &device.info().name,
                format_args!("a log device of pool {}", self.name()),
                "another device",
                "add it with `terrane pool add`, or leave it out",
            ));
        };
        if self.store.devices.log_devices.get(id).is_some() {
            return Ok(());
        }
        let device = LogDevice::new(device, (self.store.pool, id));
        // Commits may name zones on it.
        let mut homes = self.log.found.lock().as_ref().map_or_else(Vec::new, |log| log.homes().collect());
        homes.extend(self.store.log.zones().into_iter().flat_map(|zone| zone.homes));
        for home in homes {
            if let LogHome::Own { device: of, zone, .. } = home
                && of == id
            {
                device.keep(zone);
            }
        }
        device.reset_left_zones();
        self.store.devices.log_devices.attach(device);
        self.store.log.leave_zones();
        Ok(())
    }

    /// Uses log devices again that had failed. Returns how many there are.
    pub fn retry_log_devices(&self) -> usize {
        let _st = self.sync.lock();
        let retried =
            self.store.devices.log_devices.all().into_iter().filter(|device| device.retry()).count();
        if retried > 0 {
            self.store.log.leave_zones();
        }
        retried
    }

    /// Removes a log device, also one that is missing. Commits first, until no commit leads to records on it.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` if no log device has this id, or its records are not replayed; the error of a commit.
    pub fn remove_log_device(self: &Arc<Self>, id: u64) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        if !self.label().log_devices.iter().any(|row| row.device == id) {
            let (at, expected) = (format!("pool {}", self.name()), "one of its log devices");
            return Err(PoolError::refused(
                at,
                expected,
                format_args!("{id:016x}"),
                "see `terrane pool status`",
            ));
        }
        let mut st = loop {
            self.leave_log_devices(&|device| device == id)?;
            let st = self.sync.lock();
            self.reports.check_running()?;
            // It may have been attached, and got a zone, since it was left.
            if !self.has_log_zone(&|home| home.log_device() == Some(id)) {
                break st;
            }
        };
        {
            let mut label = self.membership.label_mut();
            label.log_devices.retain(|row| row.device != id);
            label.generation += 1;
        }
        self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
        drop(st);
        if let Some(removed) = self.store.devices.log_devices.detach(id) {
            let device = removed.device();
            if let Err(error) = wipe_head(device.as_ref()) {
                log::warn!("{}: wiping the head of a log device failed: {error}", device.info().name);
            }
            device.unlock();
        }
        log::info!("pool {}: log device {id:016x} removed", self.name());
        Ok(())
    }

    /// Takes the log from these devices, and keeps it from them.
    pub(crate) fn leave_log_devices(
        self: &Arc<Self>,
        is_left: &dyn Fn(u64) -> bool,
    ) -> Result<(), PoolError> {
        let left = || {
            let all = self.store.devices.log_devices.all();
            all.into_iter().filter(|device| is_left(device.id))
        };
        left().for_each(|device| device.set_leaving(true));
        let outcome = self.leave_log_zones(&|home| home.log_device().is_some_and(is_left));
        if outcome.is_err() {
            left().for_each(|device| device.set_leaving(false));
        }
        outcome
    }

    /// Commits until the newest durable commit names none of these zones.
    fn leave_log_zones(self: &Arc<Self>, is_one: &dyn Fn(&LogHome) -> bool) -> Result<(), PoolError> {
        for _ in 0..COMMITS_TO_LEAVE {
            {
                let _st = self.sync.lock();
                self.reports.check_running()?;
                if !self.has_log_zone(is_one) {
                    return Ok(());
                }
                self.store.log.leave_zones();
            }
            self.commit_txg(self.admission.open())?;
        }
        let (at, expected) = (format!("pool {}", self.name()), "an intent log that can be committed");
        Err(PoolError::refused(at, expected, "records that are not replayed", "try again"))
    }

    /// Whether the newest commit names one of these zones. No commit may be under way.
    fn has_log_zone(&self, is_one: &dyn Fn(&LogHome) -> bool) -> bool {
        let is_found =
            self.log.found.lock().as_ref().is_some_and(|log| log.homes().any(|home| is_one(&home)));
        is_found || self.store.log.has_zone(is_one)
    }

    /// The log devices that the label names.
    pub fn log_devices(&self) -> Vec<LogDeviceStatus> {
        let device = |row: LogDeviceRow| LogDeviceStatus {
            id: row.device,
            stats: self.store.devices.log_devices.get(row.device).map(|device| device.stats()),
            name: row.name,
        };
        self.label().log_devices.into_iter().map(device).collect()
    }

    /// Handles of the log devices, for reading.
    pub fn log_device_handles(&self) -> Vec<Arc<dyn Device>> {
        let all = self.store.devices.log_devices.all();
        all.into_iter().map(|device| device.device().clone() as Arc<dyn Device>).collect()
    }

    /// A zone for the log on log devices: in two copies if two of them work. `None`: none takes it.
    pub(crate) fn open_log_zone(&self, most: &dyn Fn(&dyn Device) -> u64) -> Option<NewZone> {
        if !self.has(Feature::LogDevices) {
            return None;
        }
        let unit = self.store.log.next_unit();
        let (mut homes, mut capacity) = (Vec::new(), u64::MAX);
        for device in self.store.devices.log_devices.all() {
            let is_fit = device.is_usable() && u64::from(device.device().info().write_unit) <= unit;
            if !is_fit || homes.len() >= LOG_COPIES_MAX {
                continue;
            }
            let filling = self.env.random_u64();
            let Some((zone, bytes)) = device.open_zone(filling, unit) else { continue };
            capacity = capacity.min(bytes).min(most(device.device().as_ref()));
            homes.push(LogHome::Own { device: device.id, zone, filling });
        }
        (!homes.is_empty()).then_some(NewZone { homes, start: unit, unit, capacity })
    }
}
