//! `terrane pool`: where the device is made a pool, found again, watched, and unmade.

mod import;
mod iostat;
mod upgrade;

use super::{ask, daemon_that_stays, print};
use crate::failure::{Failure, Outcome};
use crate::live::{self, Target};
use crate::query::{self, Query, Setting, property_help};
use crate::registry::{Registry, is_name};
use crate::table::{Listing, Shape, count, envelope, size as size_column, text};
use crate::{size, sys};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrane_dataset::Dataset;
use terrane_device::{Backing, OpenMode, PathKind, ZoneState};
use terrane_object::Objects;
use terrane_pool::create::{ZONE_BYTES_MIN, ZONES_MIN, zone_size_for};
use terrane_pool::label::{ANCHORS, LABEL_BYTES};
use terrane_pool::{CreateOptions, ImportOptions, Pool, SystemEnv, addr};
use terrane_posix::{Cred, Fs};
use terrane_wire::ZoneIdx;

/// Size of a file that is made for a pool, unless said otherwise.
const SIZE_DEFAULT: u64 = 16 << 30;

#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool
    #[command(after_help = property_help())]
    Create(Create),
    /// Look for pools on devices, and make one known here by its name
    #[command(after_help = import::HELP)]
    Import(import::Import),
    /// Commit and unmount a pool, and forget its name: its device can go to another machine
    Export(import::Export),
    /// List pools
    List(List),
    /// Show one pool in detail, or all
    Status(Status),
    /// Show operations and bandwidth of devices, since the import and then for each interval
    #[command(after_help = iostat::HELP)]
    Iostat(iostat::Iostat),
    /// Make a pool unrecognisable: its labels are wiped, and with them everything in it is lost
    Destroy(Destroy),
    /// Show format version and feature flags of pools, and bring them up to date
    #[command(after_help = upgrade::HELP)]
    Upgrade(upgrade::Upgrade),
}

#[derive(Args)]
pub struct Create {
    /// A letter, then letters, digits and _ - . :
    name: String,
    /// A block device, or a file; one that does not exist is made, sparse
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Size of a file that is made (16G)
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// A power of two, at least 1M (64M, less on small devices)
    #[arg(long, value_parser = size::parse)]
    zone_size: Option<u64>,
    /// Set a property of the root data set
    #[arg(short = 'o', value_parser = query::setting, value_name = "PROPERTY=VALUE")]
    properties: Vec<Setting>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// Give no space back while the pool is made: a file or disk that was written in full stays so
    #[arg(long)]
    no_discard: bool,
    /// Without the features that came after the first version, so that older versions can import it
    #[arg(long)]
    no_features: bool,
}

#[derive(Args)]
pub struct Status {
    /// Pools, by name or by device; without any: all that are known
    pools: Vec<String>,
    /// Name the files whose blocks could not be read
    #[arg(short, long)]
    verbose: bool,
    /// JSON
    #[arg(short, long)]
    json: bool,
    /// Exact numbers instead of rounded ones
    #[arg(short, long)]
    parsable: bool,
}

#[derive(Args)]
pub struct List {
    /// Pools, by name or by device; without any: all that are known
    pools: Vec<String>,
    /// Which columns, in which order; separated by commas
    #[arg(short = 'o', value_delimiter = ',', value_name = "COLUMNS", value_parser =
        ["name", "size", "used", "avail", "cap", "state", "mountpoint"])]
    columns: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Args)]
pub struct Destroy {
    /// A pool, by name or by device
    pool: String,
    /// Remove the file as well
    #[arg(long)]
    delete: bool,
}

const POOLS: Listing = Listing {
    command: "pool list",
    key: "pools",
    columns: &[
        text("NAME", "name"),
        size_column("SIZE", "size"),
        size_column("USED", "used"),
        size_column("AVAIL", "available"),
        count("CAP%", "capacity_percent"),
        text("STATE", "state"),
        text("MOUNTPOINT", "mountpoint"),
    ],
};

impl PoolCommand {
    pub fn run(&self) -> Outcome {
        match self {
            PoolCommand::Create(create) => create.run(),
            PoolCommand::Import(import) => import.run(),
            PoolCommand::Export(export) => export.run(),
            PoolCommand::Status(status) => status.run(),
            PoolCommand::Iostat(iostat) => iostat.run(),
            PoolCommand::Upgrade(upgrade) => upgrade.run(),
            PoolCommand::List(list) => {
                let (rows, failed) = statuses(&Registry::of_this_user()?, &list.pools)?;
                print(&POOLS.render_chosen(&list.columns, &rows, list.shape))?;
                failed
            }
            PoolCommand::Destroy(destroy) => destroy.run(),
        }
    }
}

/// The status of the named pools, or of all. Of a known pool that cannot be opened there is a row that says so; a pool that was
/// asked for by name and cannot be opened makes the second half a failure.
pub fn statuses(registry: &Registry, words: &[String]) -> Outcome<(Vec<Value>, Outcome)> {
    let known = registry.pools()?;
    let all: Vec<String> = if words.is_empty() { known.keys().cloned().collect() } else { words.to_vec() };
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for word in all {
        match ask(registry, &word, &Query::Status) {
            Ok(status) => rows.push(status),
            Err(Failure(reason)) => {
                let device = known.get(&word).map(|path| path.display().to_string());
                rows.push(query::unavailable(&word, device, &reason));
                if !words.is_empty() {
                    failures.push(reason);
                }
            }
        }
    }
    let failed = if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) };
    Ok((rows, failed))
}

impl Status {
    fn run(&self) -> Outcome {
        let (rows, failed) = statuses(&Registry::of_this_user()?, &self.pools)?;
        let out = match self.json {
            true => format!("{:#}\n", envelope("pool status", json!({"pools": rows}))),
            false if rows.is_empty() => {
                "no pools are known here; `terrane pool import` looks for some\n".to_owned()
            }
            false => rows.iter().map(|row| self.describe(row)).collect::<Vec<_>>().join("\n"),
        };
        print(&out)?;
        failed
    }
}

impl Status {
    /// What users wrote, and what devices were given for it.
    fn written(&self, row: &Value) -> String {
        let bytes = |key: &str| {
            let bytes = row["totals"][key].as_u64().unwrap_or(0);
            if self.parsable { bytes.to_string() } else { size::print(bytes) }
        };
        let times = |key: &str| row[key].as_f64().map(|times| format!("{times:.2}"));
        let lately = [("amplification_minute", "minute"), ("amplification_ten_minutes", "ten minutes")]
            .map(|(key, window)| times(key).map(|times| format!(", {times} in the last {window}")));
        let lately: String = lately.into_iter().flatten().collect();
        let amplification = times("amplification").map(|times| format!(" ({times} times as much{lately})"));
        format!(
            "{} by users, {} to devices{}",
            bytes("user_bytes"),
            bytes("device_bytes"),
            amplification.unwrap_or_default()
        )
    }

    fn describe(&self, row: &Value) -> String {
        let word = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let bytes = |key: &str| {
            let bytes = row[key].as_u64().unwrap_or(0);
            if self.parsable { bytes.to_string() } else { size::print(bytes) }
        };
        let mut out = String::new();
        let mut line = |key: &str, value: String| out.push_str(&format!("{key:>9}: {value}\n"));
        line("pool", word("name"));
        line("state", word("state"));
        line("device", word("device"));
        if let Some(reason) = row["reason"].as_str() {
            line("reason", reason.to_owned());
            return out;
        }
        let mounted = match (row["mountpoint"].as_str(), row["read_only"].as_bool()) {
            (None, _) => "no".to_owned(),
            (Some(dir), Some(true)) => format!("on {dir}, read-only"),
            (Some(dir), _) => format!("on {dir}"),
        };
        line("mounted", mounted);
        let closed = match (row["mountpoint"].is_null(), row["clean"].as_bool()) {
            (true, Some(false)) => ", not closed properly: nothing that was committed is lost",
            _ => "",
        };
        line("group", format!("{} of {}{closed}", row["txg"], word("committed")));
        line(
            "space",
            format!(
                "{} of {} used ({} %), {} available, {} objects",
                bytes("used"),
                bytes("size"),
                row["capacity_percent"],
                bytes("available"),
                row["objects"]
            ),
        );
        // What there should be none of.
        let trouble: Vec<String> =
            [("zones_suspect", "suspect"), ("zones_read_only", "read-only"), ("zones_offline", "offline")]
                .iter()
                .filter(|(key, _)| row[*key].as_u64().is_some_and(|zones| zones > 0))
                .map(|(key, word)| format!(", {} {word}", row[*key]))
                .collect();
        line(
            "zones",
            format!(
                "{} of {}: {} open, {} full, {} empty, {} waiting to be reset{}",
                row["zones"],
                bytes("zone_size"),
                row["zones_open"],
                row["zones_full"],
                row["zones_empty"],
                row["zones_waiting"],
                trouble.concat(),
            ),
        );
        line("moved", format!("{} runs, {} of index", row["runs"], bytes("run_index_bytes")));
        line("written", self.written(row));
        if let Some(waits) = row["waits"].as_object() {
            let seconds = |key: &str| waits.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            let said = match waits.get("count").and_then(Value::as_u64).unwrap_or(0) {
                0 => "none for room".to_owned(),
                count => format!(
                    "{count} for room, {:.3} s altogether, {:.3} s the longest",
                    seconds("seconds"),
                    seconds("longest_seconds")
                ),
            };
            line("waits", said);
        }
        let features = row["features"].as_array().map(Vec::as_slice).unwrap_or_default();
        let features: Vec<&str> = features.iter().filter_map(Value::as_str).collect();
        line("features", if features.is_empty() { "none".to_owned() } else { features.join(", ") });
        let damage = row["damage"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = damage.iter().chain([&row["failed"]]).filter_map(Value::as_str).map(str::to_owned);
        let mut found: Vec<String> = found.collect();
        let damaged = row["damaged"].as_array().map(Vec::as_slice).unwrap_or_default();
        let name = |block: &Value| {
            let text = |key: &str| block[key].as_str().unwrap_or("?").to_owned();
            match block["path"].as_str() {
                Some(path) => format!("{path}: {}", text("reason")),
                None => format!("{}: {}", text("owner"), text("reason")),
            }
        };
        match (self.verbose, damaged.len()) {
            (_, 0) => {}
            (true, _) => found.extend(damaged.iter().map(name)),
            (false, 1) => {
                found.push("a block could not be read; `terrane pool status -v` names it".to_owned())
            }
            (false, count) => {
                found.push(format!("{count} blocks could not be read; `terrane pool status -v` names them"))
            }
        }
        line("errors", if found.is_empty() { "none".to_owned() } else { found.join("\n           ") });
        out
    }
}

impl Create {
    fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let [path] = self.devices.as_slice() else {
            let names: Vec<String> = self.devices.iter().map(|path| path.display().to_string()).collect();
            let remedy = "pools of several devices come in a later version";
            return Err(Failure::refused("a pool", "one device", names.join(" and "), remedy));
        };
        if !is_name(&self.name) {
            let expected = "a letter, then letters, digits and _ - . :, at most 200";
            return Err(Failure::refused(
                "pool name",
                expected,
                format!("{:?}", self.name),
                "choose another",
            ));
        }
        // All that can be judged before anything is touched.
        if let Some(zone_size) = self.zone_size {
            judge_zone_size(zone_size)?;
        }
        refuse_known_name(&registry, &self.name, path, "choose another, or destroy that pool")?;
        let (backing, made) = self.open(path)?;
        let created = self.format(backing);
        if created.is_err() && made {
            // Ours, a moment old, and no pool.
            let _ = std::fs::remove_file(path);
        }
        created?;
        let path = path.canonicalize().map_err(Failure::io("finding", path))?;
        registry.remember(&self.name, &path)
    }

    /// The device, locked, and whether it was made.
    fn open(&self, path: &Path) -> Outcome<(Backing, bool)> {
        let size = self.size.unwrap_or(SIZE_DEFAULT);
        if path.symlink_metadata().is_err() {
            let absolute = std::path::absolute(path).map_err(Failure::io("finding", path))?;
            if absolute.starts_with("/dev") && !absolute.starts_with("/dev/shm") {
                // A slip of the fingers must not fill memory with a file where a disk was meant.
                return Err(Failure::refused(
                    path.display(),
                    "a device",
                    "nothing",
                    "check the device's name",
                ));
            }
            // Before the file is made, so that a wrong number leaves nothing behind.
            self.judge_geometry(&path.display().to_string(), size, None)?;
            return Ok((Backing::create(path, size)?, true));
        }
        let probe = terrane_device::probe(path)?;
        let name = path.display().to_string();
        if probe.kind == PathKind::Regular && probe.size == 0 {
            let Some(size) = self.size else {
                return Err(Failure::refused(
                    name,
                    "a device with room",
                    "an empty file",
                    "give it a size: --size 16G",
                ));
            };
            self.judge_geometry(&name, size, None)?;
            let backing = Backing::open(path, OpenMode::ReadWrite)?;
            backing.file().set_len(size).map_err(Failure::io("growing", path))?;
            drop(backing);
            return Ok((Backing::open(path, OpenMode::ReadWrite)?, false));
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
        self.judge_geometry(&name, backing.size(), backing.zone_size())?;
        Ok((backing, false))
    }

    /// `own`: that of a drive with zones of its own.
    fn zone_size(&self, bytes: u64, own: Option<u64>) -> u64 {
        own.or(self.zone_size).unwrap_or_else(|| zone_size_for(bytes))
    }

    fn judge_geometry(&self, name: &str, bytes: u64, own: Option<u64>) -> Outcome {
        if let (Some(own), Some(asked)) = (own, self.zone_size)
            && own != asked
        {
            let (expected, found) = (format!("--zone-size {}", size::print(asked)), size::print(own));
            let found = format!("a zoned drive with zones of {found}");
            return Err(Failure::refused(name, expected, found, "leave --zone-size out"));
        }
        let zone_size = self.zone_size(bytes, own);
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
        let max_block = u32::try_from(zone_size / 4).unwrap_or(u32::MAX);
        self.properties.iter().try_for_each(|setting| query::judge(setting, max_block))
    }

    fn format(&self, backing: Backing) -> Outcome {
        let zone_size = self.zone_size(backing.size(), backing.zone_size());
        let device = backing.into_device(zone_size)?;
        let options = ImportOptions { discard: !self.no_discard, ..live::tool_options(OpenMode::ReadWrite) };
        let mut create = CreateOptions::named(&self.name);
        if self.no_features {
            create.features.clear();
        }
        let pool = Pool::create(vec![device], &create, Arc::new(SystemEnv::new()), &options)?;
        let formatted = self.format_root(&pool);
        if formatted.is_err() {
            pool.abandon();
        }
        formatted?;
        Ok(pool.export()?)
    }

    fn format_root(&self, pool: &Arc<Pool>) -> Outcome {
        let objects = Objects::create(Arc::clone(pool))?;
        let properties: Vec<(&str, &str)> =
            self.properties.iter().map(|set| (set.name.as_str(), set.value.as_str())).collect();
        let dataset = Dataset::create_root(&objects, &properties)?;
        let (uid, gid) = sys::who()?;
        Fs::format(&dataset, &Cred { uid, gid, umask: 0 })?;
        // While `objects` lives: it is what a commit asks for dirty blocks.
        Ok(pool.commit().map(drop)?)
    }
}

/// A name means one pool: not another one that is still where it was.
fn refuse_known_name(registry: &Registry, name: &str, path: &Path, remedy: &str) -> Outcome {
    let Some(known) = registry.pools()?.remove(name) else { return Ok(()) };
    let same = path.canonicalize().is_ok_and(|path| path == known);
    let there = live::read_label(&known).is_ok_and(|label| label.name == name);
    if same || !there {
        return Ok(());
    }
    let found = format!("one on {}", known.display());
    Err(Failure::refused(format_args!("pool {name}"), "a new name", found, remedy))
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

impl Destroy {
    fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let target = live::find(&registry, &self.pool)?;
        if let Some((daemon, _)) = daemon_that_stays(&registry, &target)?
            && target.id.is_none_or(|id| id == daemon.greeting.id)
        {
            let dir = daemon.greeting.mountpoint.display().to_string();
            return Err(Failure(format!("pool {} is mounted on {dir}; unmount it first", target.name)));
        }
        if target.path.symlink_metadata().is_err() {
            registry.forget(&target.name)?;
            return Err(Failure(format!(
                "pool {}: its device {} is gone; the name is forgotten",
                target.name,
                target.path.display()
            )));
        }
        let is_file = terrane_device::probe(&target.path)?.kind == PathKind::Regular;
        if self.delete && !is_file {
            let remedy = "leave --delete out";
            return Err(Failure::refused(target.path.display(), "a file to delete", "a device", remedy));
        }
        wipe(&target)?;
        if self.delete {
            std::fs::remove_file(&target.path).map_err(Failure::io("removing", &target.path))?;
        }
        // A name may point elsewhere when the pool was named by its path.
        if registry.pools()?.get(&target.name) == Some(&target.path) {
            registry.forget(&target.name)?;
        }
        Ok(())
    }
}

/// Empties both anchors, and overwrites the labels: where space cannot be given back, a reset leaves old bytes. A drive with zones of
/// its own is left as it came, all of them empty.
fn wipe(target: &Target) -> Outcome {
    let device = live::open_device(target, OpenMode::ReadWrite)?;
    if device.info().hardware_pointers {
        for zone in (0..device.info().zone_count).map(ZoneIdx) {
            match device.report(zone)?.state {
                // Nobody can empty them any more.
                ZoneState::ReadOnly | ZoneState::Offline if zone.0 >= ANCHORS => {}
                _ => device.reset(zone)?,
            }
        }
        return Ok(device.flush()?);
    }
    let zeros = vec![0; LABEL_BYTES as usize];
    for anchor in (0..ANCHORS).map(ZoneIdx) {
        device.reset(anchor)?;
        device.write(anchor, 0, &zeros)?;
    }
    Ok(device.flush()?)
}
