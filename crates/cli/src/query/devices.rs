//! The devices of a pool: shows, adds and removes them.

use crate::device_probe::{DeviceOptions, DevicePurpose};
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use crate::progress::Progress;
use serde::Serialize;
use std::path::Path;
use terrane_format::label::{DeviceState, Role};
use terrane_pool::{CacheDeviceStatus, LogDeviceStatus};
use terrane_store::errors::DeviceErrors;
use terrane_txg::members::Member;

/// A device of the pool.
#[derive(Serialize)]
pub(super) struct DeviceRow {
    index: u16,
    id: String,
    device: String,
    role: &'static str,
    state: &'static str,
    zone_size: u64,
    zones: u64,
    zones_empty: u64,
    zones_used: u64,
    live: u64,
    trouble: Option<String>,
    read_errors: u64,
    write_errors: u64,
    checksum_errors: u64,
}

impl DeviceRow {
    fn of(member: &Member, errors: DeviceErrors) -> DeviceRow {
        DeviceRow {
            index: member.index.0,
            id: format!("{:016x}", member.id),
            device: member.name.clone(),
            role: match member.role {
                Role::Data => "data",
                Role::Special => "special",
            },
            state: match (member.state, &member.uberblock_error) {
                (_, Some(_)) => "troubled",
                (DeviceState::Normal, None) => "normal",
                (DeviceState::Leaving, None) => "leaving",
            },
            zone_size: member.zone_size,
            zones: member.zones,
            zones_empty: member.zones_empty,
            zones_used: member.zones_used,
            live: member.live_bytes,
            trouble: member.uberblock_error.clone(),
            read_errors: errors.read,
            write_errors: errors.write,
            checksum_errors: errors.checksum,
        }
    }
}

impl DeviceRow {
    /// The size of its zones, their number, and of them the empty and the used ones.
    pub fn zones_by_state(&self) -> (u64, u64, u64, u64) {
        (self.zone_size, self.zones, self.zones_empty, self.zones_used)
    }
}

/// Each device of the pool.
pub(super) fn rows(open_pool: &OpenPool) -> Vec<DeviceRow> {
    let errors = open_pool.pool.errors().devices;
    let row = |member: &Member| DeviceRow::of(member, errors.get(&member.index).copied().unwrap_or_default());
    open_pool.pool.members().iter().map(row).collect()
}

/// A cache device, with counters if it is present.
#[derive(Serialize)]
pub(super) struct CacheRow {
    id: String,
    device: String,
    role: &'static str,
    state: &'static str,
    size: Option<u64>,
    held: Option<u64>,
    blocks: Option<u64>,
    hits: Option<u64>,
    damaged: Option<u64>,
}

impl CacheRow {
    pub fn of(cache: &CacheDeviceStatus) -> CacheRow {
        let stats = cache.stats.as_ref();
        CacheRow {
            id: format!("{:016x}", cache.id),
            device: cache.name.clone(),
            role: "cache",
            state: stats.map_or("missing", |stats| if stats.is_loading { "loading" } else { "normal" }),
            size: stats.map(|stats| stats.size_bytes),
            held: stats.map(|stats| stats.held_bytes),
            blocks: stats.map(|stats| stats.blocks),
            hits: stats.map(|stats| stats.hits),
            damaged: stats.map(|stats| stats.damaged),
        }
    }
}

/// A log device, with counters if it is present.
#[derive(Serialize)]
pub(super) struct LogDeviceRow {
    id: String,
    device: String,
    role: &'static str,
    state: &'static str,
    size: Option<u64>,
    zones_used: Option<u64>,
    written: Option<u64>,
    trouble: Option<String>,
}

impl LogDeviceRow {
    pub fn of(device: &LogDeviceStatus) -> LogDeviceRow {
        let stats = device.stats.as_ref();
        LogDeviceRow {
            id: format!("{:016x}", device.id),
            device: device.name.clone(),
            role: "log",
            state: match stats.map(|stats| stats.failure.is_some()) {
                None => "missing",
                Some(true) => "failed",
                Some(false) => "normal",
            },
            size: stats.map(|stats| stats.size_bytes),
            zones_used: stats.map(|stats| stats.busy_zones),
            written: stats.map(|stats| stats.io.written_bytes),
            trouble: stats.and_then(|stats| stats.failure.clone()),
        }
    }
}

/// A device that was added.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Added {
    Member(DeviceRow),
    /// `None`: it was removed meanwhile.
    Cache(Option<CacheRow>),
    /// The same.
    Log(Option<LogDeviceRow>),
}

/// A device that was removed.
#[derive(Serialize)]
pub(super) struct Removed {
    name: String,
    /// The remaining devices.
    rest: Vec<String>,
}

/// Adds a device to the pool; returns its row.
pub(super) fn add(
    open_pool: &OpenPool,
    path: &Path,
    kind: DevicePurpose,
    device_options: &DeviceOptions,
) -> Outcome<Added> {
    // Under the path by which it will be searched for.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let device = device_options.open(&path, &|_| Ok(()))?.into_device()?;
    let role = match kind {
        DevicePurpose::Data => Role::Data,
        DevicePurpose::Special => Role::Special,
        DevicePurpose::Cache => {
            let id = open_pool.pool.add_cache(device)?;
            let added = open_pool.pool.caches().into_iter().find(|cache| cache.id == id);
            return Ok(Added::Cache(added.as_ref().map(CacheRow::of)));
        }
        DevicePurpose::Log => {
            let id = open_pool.pool.add_log_device(device)?;
            let added = open_pool.pool.log_devices().into_iter().find(|device| device.id == id);
            return Ok(Added::Log(added.as_ref().map(LogDeviceRow::of)));
        }
    };
    let index = open_pool.pool.add_device(device, role)?;
    let members = open_pool.pool.members();
    let member = members.iter().find(|member| member.index == index);
    let row = |member| Added::Member(DeviceRow::of(member, DeviceErrors::default()));
    member.map(row).ok_or_else(|| Failure("device removed while it was being added".to_owned()))
}

/// Empties a device and removes it from the pool.
pub(super) fn remove(open_pool: &OpenPool, word: &str, progress: Progress<'_>) -> Outcome<Removed> {
    let members = open_pool.pool.members();
    let is_meant = |member: &&Member| {
        member.name == word || member.index.0.to_string() == word || format!("{:016x}", member.id) == word
    };
    let is_cache = |cache: &CacheDeviceStatus| cache.name == word || format!("{:016x}", cache.id) == word;
    if let Some(cache) = open_pool.pool.caches().into_iter().find(is_cache) {
        open_pool.pool.remove_cache(cache.id)?;
        let rest = members.into_iter().map(|member| member.name).collect();
        return Ok(Removed { name: open_pool.pool.name(), rest });
    }
    let is_for_log = |device: &LogDeviceStatus| device.name == word || format!("{:016x}", device.id) == word;
    if let Some(device) = open_pool.pool.log_devices().into_iter().find(is_for_log) {
        open_pool.pool.remove_log_device(device.id)?;
        let rest = members.into_iter().map(|member| member.name).collect();
        return Ok(Removed { name: open_pool.pool.name(), rest });
    }
    let Some(member) = members.iter().find(is_meant) else {
        let known: Vec<String> =
            members.iter().map(|member| format!("{} ({})", member.index, member.name)).collect();
        let (pool, remedy) = (format!("pool {}", open_pool.pool.name()), "name one of them");
        return Err(Failure::refused(pool, known.join(", "), format_args!("{word:?}"), remedy));
    };
    if open_pool.is_served() && Path::new(&member.name) == open_pool.path {
        // A server that follows this one opens the pool by that device.
        let remedy = "unmount it, and mount it by another of its devices";
        let expected = "a device by which the pool is not mounted";
        return Err(Failure::refused(format!("pool {}", open_pool.pool.name()), expected, word, remedy));
    }
    open_pool.pool.remove_device(member.index, &mut |done, total| {
        progress("reading live blocks", done, total);
    })?;
    let rest = open_pool.pool.members().into_iter().map(|member| member.name).collect();
    Ok(Removed { name: open_pool.pool.name(), rest })
}
