//! Checks a device that shall join a pool: may it be overwritten, and does it fit?
//!
//! All checks come before any change; the only thing that is created is a missing file.

use crate::failure::{Failure, Outcome};
use crate::size;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use terrane_device::{Backing, Device, OpenMode, PathKind};
use terrane_format::addr;
use terrane_format::cache_device::CacheHead;
use terrane_format::log_device::LogDeviceHead;
use terrane_pool::create::{ZONE_BYTES_MIN, ZONES_MIN, zone_size_for};

/// Default size of a file that is created for a pool.
const SIZE_DEFAULT: u64 = 16 << 30;

/// Default size of a pool in an object store, which takes no space before it is used.
const BUCKET_SIZE_DEFAULT: u64 = 1 << 40;
/// Zones of a pool in an object store, unless they get larger than this many bytes. Reads and writes in order wait where a zone ends.
const BUCKET_ZONES_TARGET: u64 = 4096;
const BUCKET_ZONE_BYTES_MAX: u64 = 256 << 20;

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DevicePurpose {
    Data,
    Special,
    Cache,
    Log,
}

/// Options for devices that join.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Size of a file that is created (16G)
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Zone size: a power of two, at least 1M (64M, less on small devices)
    #[arg(long, value_parser = size::parse)]
    pub zone_size: Option<u64>,
    /// Overwrite existing data
    #[arg(short, long)]
    pub force: bool,
}

/// A device that may be overwritten, locked.
pub struct NewDevice {
    backing: Backing,
    zone_size: u64,
    /// It was created for this.
    pub is_created: bool,
}

impl NewDevice {
    pub fn into_device(self) -> Outcome<Arc<dyn Device>> {
        Ok(self.backing.into_device(self.zone_size)?)
    }
}

impl DeviceOptions {
    /// Refuses words that were probably not meant as a device: words that mean something else in other
    /// programs at this place, and words for which a file would be created.
    ///
    /// # Errors
    /// `Refused`, by name. A word that exists as a path, has a slash or a dot, or comes with a size is
    /// accepted.
    pub fn reject_keyword(&self, given: &Path) -> Outcome {
        let word = given.to_str().unwrap_or("/");
        if word.contains('/') {
            return Ok(());
        }
        let is_level = |rest: &str| rest.is_empty() || rest.starts_with([':', '1', '2', '3']);
        let remedy = match word {
            "mirror" => "omit it: data has one copy, metadata has two, on two devices where there are two",
            "spare" => "omit it: there are no spares",
            "dedup" => "omit it: there are no such devices",
            "log" => "use --log DEVICE; `terrane pool add` adds one later",
            "special" => "use --special DEVICE; `terrane pool add` adds one later",
            "cache" => "add it afterwards: terrane pool add POOL cache DEVICE",
            _ if ["raidz", "draid"].iter().any(|kind| word.strip_prefix(kind).is_some_and(is_level)) => {
                "omit it: there is no parity; data has one copy, metadata has two"
            }
            _ if word.contains('.') || self.size.is_some() || given.symlink_metadata().is_ok() => {
                return Ok(());
            }
            _ => {
                let (expected, found) = ("a device or file", "a word that is no path");
                let remedy = format!("for a new file use ./{word}, or give its --size");
                return Err(Failure::refused(format_args!("{word:?}"), expected, found, remedy));
            }
        };
        let found = "a keyword of zpool";
        let remedy = format!("{remedy}; a file of that name is ./{word}");
        Err(Failure::refused(format_args!("{word:?}"), "a device", found, remedy))
    }

    /// Opens and locks the device at `path`; a missing file is created, sparse. `validate` checks the zone size
    /// before anything is created.
    ///
    /// # Errors
    /// If it is not a device, is in use, holds data and `--force` was not given, or does not fit the options.
    /// Then nothing was created.
    pub fn open(&self, path: &Path, validate: &dyn Fn(u64) -> Outcome) -> Outcome<NewDevice> {
        if let Some(zone_size) = self.zone_size {
            validate_zone_size(zone_size)?;
        }
        let name = path.display().to_string();
        let size = self.size.unwrap_or(SIZE_DEFAULT);
        if path.symlink_metadata().is_err() {
            let absolute = std::path::absolute(path).map_err(Failure::io("finding", path))?;
            if absolute.starts_with("/dev") && !absolute.starts_with("/dev/shm") {
                // A typing error must not fill memory with a file where a disk was meant.
                return Err(Failure::refused(
                    path.display(),
                    "a device",
                    "no such device",
                    "check the device's name",
                ));
            }
            // Before the file is created, so that a wrong number leaves nothing behind.
            let zone_size = self.choose_zone_size(&name, size, (None, zone_size_for(size)), validate)?;
            return Ok(NewDevice { backing: Backing::create(path, size)?, zone_size, is_created: true });
        }
        let probe = terrane_device::probe(path)?;
        if probe.kind == PathKind::Regular && probe.size == 0 {
            let Some(size) = self.size else {
                return Err(Failure::refused(
                    name,
                    "a device or file that is not empty",
                    "an empty file",
                    "give it a size: --size 16G",
                ));
            };
            let zone_size = self.choose_zone_size(&name, size, (None, zone_size_for(size)), validate)?;
            let backing = Backing::open(path, OpenMode::ReadWrite)?;
            backing.file().set_len(size).map_err(Failure::io("growing", path))?;
            drop(backing);
            let backing = Backing::open(path, OpenMode::ReadWrite)?;
            return Ok(NewDevice { backing, zone_size, is_created: false });
        }
        let backing = Backing::open(path, OpenMode::ReadWrite)?;
        if let Some(size) = self.size.filter(|size| *size != backing.size()) {
            let found = format!(
                "{} of {}",
                if probe.kind == PathKind::Block { "a device" } else { "a file" },
                size::format(backing.size())
            );
            let expected = format!("--size {}", size::format(size));
            return Err(Failure::refused(
                name,
                expected,
                found,
                "omit --size: an existing device or file keeps its size",
            ));
        }
        if !self.force
            && let Some(found) = existing_content(&backing)
        {
            let remedy = "use another device, or --force to overwrite it";
            return Err(Failure::refused(name, "an empty device", found, remedy));
        }
        let bytes = backing.size();
        let zones = (backing.zone_size(), zone_size_for(bytes));
        let zone_size = self.choose_zone_size(&name, bytes, zones, validate)?;
        Ok(NewDevice { backing, zone_size, is_created: false })
    }

    /// Bytes that a pool in an object store may take.
    pub fn bucket_size(&self) -> u64 {
        self.size.unwrap_or(BUCKET_SIZE_DEFAULT)
    }

    /// The zone size of a pool in an object store.
    pub fn bucket_zone_size(&self, url: &str, validate: &dyn Fn(u64) -> Outcome) -> Outcome<u64> {
        self.zone_size.map(validate_zone_size).transpose()?;
        let bytes = self.bucket_size();
        let aim = 1 << (bytes / BUCKET_ZONES_TARGET).max(1).ilog2();
        let usual = zone_size_for(bytes).max(aim).min(BUCKET_ZONE_BYTES_MAX);
        self.choose_zone_size(url, bytes, (None, usual), validate)
    }

    /// The zone size of a device of this size; `own`: that of a zoned drive; `usual`: if nobody asks for another.
    fn choose_zone_size(
        &self,
        name: &str,
        bytes: u64,
        (own, usual): (Option<u64>, u64),
        validate: &dyn Fn(u64) -> Outcome,
    ) -> Outcome<u64> {
        if let (Some(own), Some(asked)) = (own, self.zone_size)
            && own != asked
        {
            let (expected, found) = (format!("--zone-size {}", size::format(asked)), size::format(own));
            let found = format!("a zoned drive with zones of {found}");
            return Err(Failure::refused(name, expected, found, "omit --zone-size"));
        }
        let zone_size = own.or(self.zone_size).unwrap_or(usual);
        own.map(validate_zone_size).transpose()?;
        if bytes / zone_size < u64::from(ZONES_MIN) {
            let expected = format!("space for at least {ZONES_MIN} zones of {}", size::format(zone_size));
            let remedy = match zone_size {
                _ if own.is_some() => "use a larger drive",
                ZONE_BYTES_MIN => "give it more space",
                _ => "give it more space, or smaller zones: --zone-size",
            };
            return Err(Failure::refused(name, expected, size::format(bytes), remedy));
        }
        validate(zone_size)?;
        Ok(zone_size)
    }
}

fn validate_zone_size(bytes: u64) -> Outcome {
    if bytes.is_power_of_two() && (ZONE_BYTES_MIN..=addr::ZONE_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let (min, max) = (size::format(ZONE_BYTES_MIN), size::format(addr::ZONE_BYTES_MAX));
    Err(Failure::refused(
        "zone size",
        format!("a power of two from {min} to {max}"),
        size::format(bytes),
        "choose another",
    ))
}

/// The head of a log device.
pub fn log_device_in(read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<LogDeviceHead> {
    let mut raw = vec![0; LogDeviceHead::SIZE];
    if read(0, &mut raw) { LogDeviceHead::parse(&raw) } else { None }
}

/// What would be lost.
fn existing_content(backing: &Backing) -> Option<String> {
    let mut read = |offset: u64, buf: &mut [u8]| backing.read_at(offset, buf).is_ok();
    match terrane_pool::probe(&mut read, backing.size()) {
        Some(probe) => Some(format!("the Terrane pool {:?}", probe.label.name)),
        None if log_device_in(&mut read).is_some() => Some("a log device of a Terrane pool".to_owned()),
        None => terrane_device::identify_foreign(backing),
    }
}

/// Removes a file that was made for a pool, unless it has become a device of one, or is in use.
pub fn remove_unused(path: &Path) {
    let Ok(backing) = Backing::open(path, OpenMode::ReadWrite) else { return };
    let mut raw = vec![0; CacheHead::SIZE];
    let is_cache = backing.read_at(0, &mut raw).is_err() || CacheHead::parse(&raw).is_some();
    if !is_cache && existing_content(&backing).is_none() {
        // While it is locked.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use terrane_format::cache_device::CacheGeometry;

    #[test]
    fn a_file_that_belongs_to_a_pool_is_not_removed() {
        let path = std::env::temp_dir().join(format!("terrane-unused-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let backing = Backing::create(&path, 8 << 20).unwrap();
        remove_unused(&path);
        assert!(path.exists(), "it is locked");
        let geometry = CacheGeometry { zone_size: 1 << 20, zone_count: 8, write_unit: 4096 };
        backing.file().write_all_at(&CacheHead::of(1, 2, &geometry).encode(), 0).unwrap();
        drop(backing);
        remove_unused(&path);
        assert!(path.exists(), "it is a cache device");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&LogDeviceHead::of(1, 2, (4096, 1 << 20, 8)).encode(), 0).unwrap();
        remove_unused(&path);
        assert!(path.exists(), "it is a log device");
        file.write_all_at(&[0; 4096], 0).unwrap();
        remove_unused(&path);
        assert!(!path.exists());
    }
}
