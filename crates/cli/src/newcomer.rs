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
use terrane_pool::create::{ZONE_BYTES_MIN, ZONES_MIN, zone_size_for};

/// Default size of a file that is created for a pool.
const SIZE_DEFAULT: u64 = 16 << 30;

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Data,
    Special,
    Cache,
}

/// What was said about devices that join.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Size of a file that is made (16G)
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// A power of two, at least 1M (64M, less on small devices)
    #[arg(long, value_parser = size::parse)]
    pub zone_size: Option<u64>,
    /// Overwrite what is there
    #[arg(short, long)]
    pub force: bool,
}

/// A device that may be overwritten, locked.
pub struct Newcomer {
    backing: Backing,
    zone_size: u64,
    /// It was created for this.
    pub is_made: bool,
}

impl Newcomer {
    pub fn into_device(self) -> Outcome<Arc<dyn Device>> {
        Ok(self.backing.into_device(self.zone_size)?)
    }
}

impl Terms {
    /// Refuses words that were probably not meant as a device: words that mean something else in other
    /// programs at this place, and words for which a file would be created.
    ///
    /// # Errors
    /// `Refused`, by name. A word that exists as a path, has a slash or a dot, or comes with a size is
    /// accepted.
    pub fn judge_word(&self, given: &Path) -> Outcome {
        let word = given.to_str().unwrap_or("/");
        if word.contains('/') {
            return Ok(());
        }
        let is_level = |rest: &str| rest.is_empty() || rest.starts_with([':', '1', '2', '3']);
        let remedy = match word {
            "mirror" => {
                "leave it out: data has one copy, metadata has two, on two devices where there are two"
            }
            "spare" => "leave it out: there are no spares",
            "log" | "dedup" => "leave it out: there are no such devices",
            "special" => "say --special DEVICE; `terrane pool add` adds one later",
            "cache" => "add it afterwards: terrane pool add POOL cache DEVICE",
            _ if ["raidz", "draid"].iter().any(|kind| word.strip_prefix(kind).is_some_and(is_level)) => {
                "leave it out: there is no parity; data has one copy, metadata has two"
            }
            _ if word.contains('.') || self.size.is_some() || given.symlink_metadata().is_ok() => {
                return Ok(());
            }
            _ => {
                let (expected, found) = ("a device, or the name of a file", "a word that is neither");
                let remedy = format!("for a new file say ./{word}, or its --size");
                return Err(Failure::refused(format_args!("{word:?}"), expected, found, remedy));
            }
        };
        let found = "a word of other programs for what devices are for";
        let remedy = format!("{remedy}; a file of that name is ./{word}");
        Err(Failure::refused(format_args!("{word:?}"), "a device", found, remedy))
    }

    /// Opens and locks the device at `path`; a missing file is created, sparse. `judge` checks the zone size
    /// before anything is created.
    ///
    /// # Errors
    /// If it is not a device, is in use, holds data and `--force` was not given, or does not fit the options.
    /// Then nothing was created.
    pub fn open(&self, path: &Path, judge: &dyn Fn(u64) -> Outcome) -> Outcome<Newcomer> {
        if let Some(zone_size) = self.zone_size {
            judge_zone_size(zone_size)?;
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
                    "nothing",
                    "check the device's name",
                ));
            }
            // Before the file is created, so that a wrong number leaves nothing behind.
            let zone_size = self.judge_geometry(&name, size, None, judge)?;
            return Ok(Newcomer { backing: Backing::create(path, size)?, zone_size, is_made: true });
        }
        let probe = terrane_device::probe(path)?;
        if probe.kind == PathKind::Regular && probe.size == 0 {
            let Some(size) = self.size else {
                return Err(Failure::refused(
                    name,
                    "a device with room",
                    "an empty file",
                    "give it a size: --size 16G",
                ));
            };
            let zone_size = self.judge_geometry(&name, size, None, judge)?;
            let backing = Backing::open(path, OpenMode::ReadWrite)?;
            backing.file().set_len(size).map_err(Failure::io("growing", path))?;
            drop(backing);
            let backing = Backing::open(path, OpenMode::ReadWrite)?;
            return Ok(Newcomer { backing, zone_size, is_made: false });
        }
        let backing = Backing::open(path, OpenMode::ReadWrite)?;
        if let Some(size) = self.size.filter(|size| *size != backing.size()) {
            let found = format!(
                "{} of {}",
                if probe.kind == PathKind::Block { "a device" } else { "a file" },
                size::print(backing.size())
            );
            let expected = format!("--size {}", size::print(size));
            return Err(Failure::refused(
                name,
                expected,
                found,
                "leave --size out: what exists keeps its size",
            ));
        }
        if !self.force
            && let Some(found) = occupant(&backing)
        {
            let remedy = "use another device, or --force to overwrite it";
            return Err(Failure::refused(name, "an empty device", found, remedy));
        }
        let zone_size = self.judge_geometry(&name, backing.size(), backing.zone_size(), judge)?;
        Ok(Newcomer { backing, zone_size, is_made: false })
    }

    /// The zone size of a device of this size; `own`: that of a zoned drive.
    fn judge_geometry(
        &self,
        name: &str,
        bytes: u64,
        own: Option<u64>,
        judge: &dyn Fn(u64) -> Outcome,
    ) -> Outcome<u64> {
        if let (Some(own), Some(asked)) = (own, self.zone_size)
            && own != asked
        {
            let (expected, found) = (format!("--zone-size {}", size::print(asked)), size::print(own));
            let found = format!("a zoned drive with zones of {found}");
            return Err(Failure::refused(name, expected, found, "leave --zone-size out"));
        }
        let zone_size = own.or(self.zone_size).unwrap_or_else(|| zone_size_for(bytes));
        own.map(judge_zone_size).transpose()?;
        if bytes / zone_size < u64::from(ZONES_MIN) {
            let expected = format!("room for at least {ZONES_MIN} zones of {}", size::print(zone_size));
            let remedy = match zone_size {
                _ if own.is_some() => "use a larger drive",
                ZONE_BYTES_MIN => "give it more space",
                _ => "give it more space, or smaller zones: --zone-size",
            };
            return Err(Failure::refused(name, expected, size::print(bytes), remedy));
        }
        judge(zone_size)?;
        Ok(zone_size)
    }
}

fn judge_zone_size(bytes: u64) -> Outcome {
    if bytes.is_power_of_two() && (ZONE_BYTES_MIN..=addr::ZONE_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let (min, max) = (size::print(ZONE_BYTES_MIN), size::print(addr::ZONE_BYTES_MAX));
    Err(Failure::refused(
        "zone size",
        format!("a power of two from {min} to {max}"),
        size::print(bytes),
        "choose another",
    ))
}

/// What would be lost.
fn occupant(backing: &Backing) -> Option<String> {
    let mut read = |offset: u64, buf: &mut [u8]| backing.read_at(offset, buf).is_ok();
    match terrane_pool::probe(&mut read, backing.size()) {
        Some(probe) => Some(format!("the Terrane pool {:?}", probe.label.name)),
        None => terrane_device::identify_foreign(backing),
    }
}
