//! `terrane pool destroy`: wipes the devices of a pool.

use super::super::{MountedDaemon, PoolMatch, lasting_daemon, match_pool, refuse_copy};
use super::import;
use crate::bucket_note;
use crate::failure::{Failure, Outcome};
use crate::members;
use crate::registry::Registry;
use crate::table::printable;
use crate::target;
use clap::Args;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrane_device::{Backing, Device, OpenMode, PathKind, ZoneState};
use terrane_format::label::ANCHORS;
use terrane_pool::is_cache_of;
use terrane_store::log_devices::head_of;
use terrane_wire::ZoneIdx;

#[derive(Args)]
pub struct Destroy {
    /// A pool, by name or by device
    pool: String,
    /// Also remove the files, including those of cache and log devices
    #[arg(long)]
    delete: bool,
}

impl Destroy {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let target = target::find(&registry, &self.pool)?;
        let mounted = lasting_daemon(&registry, &target, None)?;
        let matched =
            mounted.map(|MountedDaemon { daemon, .. }| (match_pool(&daemon.greeting, &target), daemon));
        if let Some((PoolMatch::Copy, daemon)) = &matched {
            return Err(refuse_copy(&daemon.greeting, &target));
        }
        if let Some((PoolMatch::Same, daemon)) = matched {
            let dir = daemon.greeting.mountpoint.display().to_string();
            return Err(Failure(format!("pool {} is mounted on {dir}; unmount it first", target.name)));
        }
        if target.path.symlink_metadata().is_err() {
            registry.forget(&target.name)?;
            return Err(Failure(format!(
                "pool {}: device {} not found; name forgotten",
                target.name,
                target.path.display()
            )));
        }
        let devices = members::open(&target, OpenMode::ReadWrite)
            .map_err(|failure| import::suggest_forget(failure, &target))?;
        let devices = members::devices_to_destroy(devices)?;
        let of_buckets = devices.iter().filter(|(path, _)| bucket_note::read(path).is_some());
        of_buckets.map(|(_, device)| device).try_for_each(bucket_note::refuse_open_elsewhere)?;
        let mut caches = open_caches(&target.path)?;
        caches.append(&mut open_log_devices(&target.path)?);
        for (path, _) in devices.iter().chain(&caches).filter(|_| self.delete) {
            if terrane_device::probe(path)?.kind != PathKind::Regular {
                let remedy = "omit --delete";
                return Err(Failure::refused(path.display(), "a file to delete", "a device", remedy));
            }
        }
        // The device by which the registry knows the pool goes last: until then the others can be found
        // again.
        for (path, device) in &caches {
            self.destroy_device(path, reset_zones(device.as_ref()))?;
        }
        for (path, device) in devices.iter().rev() {
            self.destroy_device(path, wipe(device.as_ref()))?;
        }
        let paths: Vec<PathBuf> = devices.into_iter().map(|(path, _)| path).collect();
        registry.forget_at(&target.name, &paths)
    }
}

impl Destroy {
    /// Ends one device. A file that is to be removed is removed even if emptying it failed.
    fn destroy_device(&self, path: &Path, emptied: Outcome) -> Outcome {
        if let Some(location) = bucket_note::read(path) {
            emptied?;
            return bucket_note::remove(path, &location);
        }
        if !self.delete {
            return emptied;
        }
        if let Err(failure) = emptied {
            eprintln!("terrane: {failure}; removing the file anyway");
        }
        std::fs::remove_file(path).map_err(Failure::io("removing", path))
    }
}

/// The cache devices that the label at `path` names, open: they hold copies of blocks. Prints those that are
/// not where they were.
fn open_caches(path: &Path) -> Outcome<Vec<(PathBuf, Arc<dyn Device>)>> {
    let label = target::read_label(path)?;
    let mut found = Vec::new();
    for row in &label.caches {
        let path = PathBuf::from(&row.name);
        let is_there = path.metadata().is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device());
        let device = is_there.then(|| Backing::open(&path, OpenMode::ReadWrite)).transpose()?;
        let device = device.map(|backing| backing.into_device(row.zone_size)).transpose()?;
        match device {
            Some(device) if is_cache_of(device.as_ref(), label.pool, row.cache)? => {
                found.push((path, device))
            }
            _ => eprintln!(
                "terrane: cache device {} not found: it still holds copies of blocks of pool {}",
                printable(&row.name),
                label.name
            ),
        }
    }
    Ok(found)
}

/// The same for log devices, which hold names and contents of files.
fn open_log_devices(path: &Path) -> Outcome<Vec<(PathBuf, Arc<dyn Device>)>> {
    let label = target::read_label(path)?;
    // That of a copy is the one of its original.
    let found = members::open_log_devices(path, OpenMode::ReadWrite).unwrap_or_default();
    for row in &label.log_devices {
        let is_it = |device: &Arc<dyn Device>| {
            head_of(device.as_ref()).is_ok_and(|head| head.is_some_and(|head| head.device == row.device))
        };
        if !found.iter().any(is_it) {
            let (device, pool) = (printable(&row.name), &label.name);
            eprintln!("terrane: log device {device} not found: it still holds records of pool {pool}");
        }
    }
    Ok(found.into_iter().map(|device| (PathBuf::from(&device.info().name), device)).collect())
}

/// Empties all zones.
fn reset_zones(device: &dyn Device) -> Outcome {
    for zone in (0..device.info().zone_count).map(ZoneIdx) {
        match device.report(zone)?.state {
            // Such a zone can no longer be reset.
            ZoneState::ReadOnly | ZoneState::Offline if zone.0 >= ANCHORS => {}
            _ => device.reset(zone)?,
        }
    }
    if !device.info().hardware_pointers {
        overwrite(device)?;
    }
    Ok(device.flush()?)
}

/// Empties both anchors and overwrites the labels: where space cannot be discarded, a reset leaves old bytes.
/// A zoned drive is left as it came, with all zones empty.
fn wipe(device: &dyn Device) -> Outcome {
    if device.info().hardware_pointers {
        return reset_zones(device);
    }
    (0..ANCHORS).try_for_each(|anchor| device.reset(ZoneIdx(anchor)))?;
    overwrite(device)?;
    Ok(device.flush()?)
}

/// If the underlying file system is full, discarded space may not be available again. It need not be
/// overwritten: it reads as zeros.
fn overwrite(device: &dyn Device) -> Outcome {
    match terrane_store::anchors::overwrite_labels(device) {
        Err(error) if !starts_with_zeros(device) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Reads where labels and headers of cache devices would be.
fn starts_with_zeros(device: &dyn Device) -> bool {
    let mut piece = vec![0; 64 << 10];
    (0..ANCHORS).map(ZoneIdx).all(|zone| {
        (0..4 << 20).step_by(piece.len()).all(|at| {
            at + piece.len() as u64 > device.info().zone_size
                || (device.read(zone, at, &mut piece).is_ok() && piece.iter().all(|byte| *byte == 0))
        })
    })
}
