//! `terrane pool import` and `export`: adds a pool to this machine's registry, and removes it.
//!
//! A pool's label holds its name. Importing opens the pool once, as a mount would, and records where it lies.
//! So after an import every command takes the name, and recovery after a crash is done. Exporting is the
//! reverse.

use super::super::{daemon_for_reading, daemon_of, print, shell_word};
use super::refuse_known_name;
use crate::bucket_note;
use crate::clock;
use crate::control::{Command, ExitingDaemon, GREETING_TIMEOUT, SURVEY_TIMEOUT, StopMode};
use crate::failure::{Failure, Outcome};
use crate::inspect;
use crate::members;
use crate::open_pool::{self, OpenPool};
use crate::query::{self, Query};
use crate::registry::{Registry, is_name};
use crate::suggest;
use crate::table::{Listing, OutputFormat, count, printable, text};
use crate::target::{self, Target};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrane_bucket::location::is_url;
use terrane_device::{Backing, Device, OpenMode, PathKind};
use terrane_format::Feature;
use terrane_format::label::Label;
use terrane_posix::WholeReplay;
use terrane_wire::Txg;

pub const HELP: &str = "\
Without a pool it searches for labels, on the disks of this machine or where -d says, lists what it finds and changes nothing.
With one it imports the pool, which completes crash recovery, and registers its name.

A copy of a pool (cp, dd, a snapshot of the disk below) has the id of its original, and cannot be mounted beside it. With --new-id
and --name it becomes a pool of its own. Its cache and log
devices stay with the original.

A pool in an object store is known by its URL, s3://BUCKET/PREFIX or file:///DIR. If another machine has it open, --take-over
takes it from there: that machine cannot commit any more, and is told so.

States:
  ready         can be imported
  imported      its name is known here
  mounted       by this user
  in use        by another process or user
  unsupported   a newer version made it
  damaged       it has no uberblock that can be read, or is cut short
  incomplete    some of its devices were not found
";

#[derive(Args)]
#[command(group = clap::ArgGroup::new("pool_or_dirs").args(["pool", "dirs"]).multiple(true))]
pub struct Import {
    /// A pool, by name, id, device or URL (default: list all pools that are found)
    #[arg(value_name = "NAME|ID|DEVICE|URL")]
    pool: Option<String>,
    /// Search here: a directory, a file or a device; may be given several times
    #[arg(short, long = "dir", value_name = "DIR|FILE")]
    dirs: Vec<PathBuf>,
    /// Import all pools that are ready
    #[arg(short, long, conflicts_with_all = ["pool", "rewind"])]
    all: bool,
    /// Check that it can be imported, and write nothing to it
    #[arg(short, long)]
    read_only: bool,
    /// Give it this name instead of its own
    #[arg(long, value_name = "NAME", conflicts_with_all = ["all", "read_only"], requires = "pool_or_dirs")]
    name: Option<String>,
    /// Make a copy of a pool a pool of its own, with a new id; if it has several devices, name each with -d
    #[arg(long, conflicts_with_all = ["all", "read_only", "rewind"], requires = "pool_or_dirs")]
    new_id: bool,
    /// Rewind to this txg, and discard all later changes (with --read-only: only check that it works)
    #[arg(long, value_name = "TXG", requires = "pool")]
    rewind: Option<u64>,
    /// Give up the intent log: what was synced after the last commit is lost
    #[arg(long, requires = "pool", conflicts_with = "read_only")]
    discard_log: bool,
    /// Take a pool in an object store from a machine that did not export it, and that cannot write to it any more
    #[arg(long, requires = "pool", conflicts_with = "read_only")]
    take_over: bool,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Args)]
pub struct Export {
    /// Pools, by name or by device
    #[arg(required_unless_present = "all")]
    pools: Vec<String>,
    /// All known pools
    #[arg(short, long, conflicts_with = "pools")]
    all: bool,
}

#[derive(Args)]
pub struct Forget {
    /// Pools, by name
    #[arg(required = true, value_name = "NAME")]
    pools: Vec<String>,
}

impl Forget {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        for name in &self.pools {
            let target = target::find_known(&registry, name)?;
            if let Some(daemon) = daemon_for_reading(&registry, &target, GREETING_TIMEOUT)? {
                let dir = daemon.greeting.mountpoint.display().to_string();
                return Err(Failure(format!("pool {name} is mounted on {dir}; unmount it first")));
            }
            registry.forget(name)?;
        }
        Ok(())
    }
}

/// Adds a remedy to the failure: a known pool that cannot be opened would stay known until it is forgotten.
pub(super) fn suggest_forget(failure: Failure, target: &Target) -> Failure {
    match target.id {
        None => Failure(format!("{failure}; `terrane pool forget {}` forgets only the name", target.name)),
        Some(_) => failure,
    }
}

const FOUND: Listing = Listing {
    command: "pool import",
    key: "pools",
    columns: &[
        text("NAME", "name"),
        text("ID", "id"),
        text("STATE", "state"),
        count("TXG", "txg"),
        text("COMMITTED", "committed"),
        text("CLEAN", "clean"),
        text("DEVICE", "device"),
        text("COMMAND", "action"),
    ],
};

/// A pool, or the devices of it that were found.
struct FoundPool {
    /// The path of the device by which it is opened.
    path: PathBuf,
    /// All of its devices that were found.
    paths: Vec<PathBuf>,
    /// The newest label.
    label: Label,
    newest: Option<NewestTxg>,
    state: &'static str,
    reason: Option<String>,
}

impl Import {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        if self.all || self.pool.is_some() || self.new_id {
            // A pool that cannot be added to the registry is not touched.
            drop(registry.lock()?);
        }
        if self.all {
            let found = self.search(&registry)?;
            let ready = found.into_iter().filter(|found| found.state == "ready");
            let failures: Vec<String> = ready
                .filter_map(|found| self.import(&registry, found).err())
                .map(|failure| failure.0)
                .collect();
            return if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) };
        }
        if self.new_id && self.pool.is_none() {
            let found = self.find_copy()?;
            return self.import(&registry, found);
        }
        match &self.pool {
            Some(word) => {
                let found = self.find(&registry, word)?;
                self.import(&registry, found)
            }
            None => self.list(&registry),
        }
    }

    fn list(&self, registry: &Registry) -> Outcome {
        let found = self.search(registry)?;
        let plain = !self.output.json && !self.output.no_header;
        if found.is_empty() && plain {
            let place = if self.dirs.is_empty() {
                "on the disks of this machine; -d DIR searches files"
            } else {
                "there"
            };
            return print(&format!("no pools found {place}\n"));
        }
        let rows: Vec<Value> = found.iter().map(FoundPool::row).collect();
        print(&FOUND.render(&rows, self.output))?;
        let reasons =
            found.iter().filter(|_| plain).filter_map(|found| Some((found, found.reason.as_ref()?)));
        reasons
            .into_iter()
            .map(|(found, reason)| printable(&format!("{}: {reason}", found.path.display())))
            .try_for_each(|line| print(&format!("{line}\n")))
    }

    fn search(&self, registry: &Registry) -> Outcome<Vec<FoundPool>> {
        let paths =
            if self.dirs.is_empty() { default_search_paths(registry)? } else { search_paths(&self.dirs)? };
        Ok(merge_pools(paths.iter().filter_map(|path| probe_pool(registry, path)).collect()))
    }

    /// A path means the device there; any other word is a name or an id that the search finds.
    fn find(&self, registry: &Registry, word: &str) -> Outcome<FoundPool> {
        if is_url(word) {
            let path = bucket_note::note_of(registry, &bucket_note::location(word, &[])?)?;
            return probe_pool(registry, &path).map(with_others).ok_or_else(|| no_pool(&path));
        }
        let path = Path::new(word);
        if word.contains('/') || (self.dirs.is_empty() && path.symlink_metadata().is_ok()) {
            let path = path.canonicalize().map_err(Failure::io("finding", path))?;
            return probe_pool(registry, &path).map(with_others).ok_or_else(|| no_pool(&path));
        }
        let all = self.search(registry)?;
        let names: Vec<String> = all.iter().map(|found| found.label.name.clone()).collect();
        let is_meant =
            |found: &FoundPool| found.label.name == word || found.id() == word.to_ascii_lowercase();
        let mut meant: Vec<FoundPool> = all.into_iter().filter(is_meant).collect();
        match meant.len() {
            1 => Ok(meant.remove(0)),
            0 => {
                let hint = suggest::hint(word, names.iter().map(String::as_str));
                Err(Failure(format!(
                    "no pool {word:?} found; name its device, or where to search: -d DIR{hint}"
                )))
            }
            _ => {
                let places: Vec<String> =
                    meant.iter().map(|found| format!("{} on {}", found.id(), found.path.display())).collect();
                let remedy = "name the device";
                Err(Failure::refused(format_args!("pool {word}"), "one", places.join(" and "), remedy))
            }
        }
    }

    /// The pool of which all devices were named, whatever else they could be taken for. If power failed while
    /// a new id was being written, some devices have it and some do not.
    fn find_copy(&self) -> Outcome<FoundPool> {
        let paths = search_paths(&self.dirs)?;
        let labels: Vec<(PathBuf, Label)> = paths
            .into_iter()
            .filter_map(|path| Some((members::label_at(&path)?, path)))
            .map(|(label, path)| (path, label))
            .collect();
        let label = labels.iter().map(|(_, label)| label).max_by_key(|label| label.generation).cloned();
        let label = label.ok_or_else(|| Failure("no pool found there".to_owned()))?;
        let (at, remedy) =
            (format!("pool {}", label.name), "name each device of the copy with -d, and nothing else");
        let own: Vec<&(PathBuf, Label)> =
            labels.iter().filter(|(_, found)| found.pool == label.pool).collect();
        for (index, row) in label.members() {
            let count = own.iter().filter(|(_, found)| found.device == row.device).count();
            if count != 1 {
                let expected = format!("device {index} once");
                return Err(Failure::refused(at, expected, format!("it {count} times"), remedy));
            }
        }
        if own.len() != labels.len() {
            return Err(Failure::refused(at, "devices of one pool", "others as well", remedy));
        }
        let paths: Vec<PathBuf> = label
            .members()
            .filter_map(|(_, row)| own.iter().find(|(_, found)| found.device == row.device))
            .map(|(path, _)| path.clone())
            .collect();
        let path = paths.first().cloned().unwrap_or_default();
        Ok(FoundPool { path, paths, label, newest: None, state: "ready", reason: None })
    }

    fn import(&self, registry: &Registry, found: FoundPool) -> Outcome {
        let (old, name) = (&found.label.name, self.name.as_ref().unwrap_or(&found.label.name));
        if !is_name(name) {
            let (expected, remedy) = ("a pool with a valid name", "give it another: --name NAME");
            return Err(Failure::refused(found.path.display(), expected, format!("{name:?}"), remedy));
        }
        if found.state == "mounted" {
            let reason = found.reason.unwrap_or_default();
            return Err(Failure(format!("pool {name} is imported already: {reason}")));
        }
        let remedy = match self.new_id {
            true => "give the copy another: --name NAME",
            false => "export that one first, or make this one a pool of its own: --new-id --name NAME",
        };
        refuse_known_name(registry, name, &found.path, remedy)?;
        let mode = if self.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let mut options = open_pool::tool_options(mode);
        options.rewind = self.rewind.map(Txg);
        options.discard_log = self.discard_log;
        options.takes_over = self.take_over;
        options.is_copy = self.new_id;
        let open_pool = OpenPool::of_devices(&found.path, self.devices(&found, mode)?, &options)?;
        let open_pool = open_pool.replayed(&mut WholeReplay)?;
        // A pool that cannot be mounted must not look as if it could.
        let opened = open_pool.fs().map(drop);
        let renamed = match opened.is_ok() && (self.new_id || name != old) {
            true => open_pool.pool.rename(name, self.new_id).map_err(Failure::from),
            false => Ok(()),
        };
        let txg = open_pool.pool.synced_txg();
        let boot_mounts = query::boot_mounts_of(&open_pool);
        let closed = open_pool.export();
        opened?;
        renamed?;
        closed?;
        registry.register(name, &found.path)?;
        registry.record_boot_mounts(name, || boot_mounts).unwrap_or_else(|failure| {
            log::warn!("pool {name}: mounts at boot not recorded: {failure}");
        });
        if name != old && registry.pools()?.get(old) == Some(&found.path) {
            registry.forget(old)?;
        }
        if let Some(newest) = found.newest.filter(|newest| self.rewind.is_some() && newest.txg > txg.0) {
            let lost = format!("txgs up to {} of {}", newest.txg, newest.committed);
            let text = if self.read_only { "would be lost" } else { "are discarded" };
            return print(&format!("pool {name}: txg {txg} can be imported; {lost} {text}\n"));
        }
        Ok(())
    }
}

impl Import {
    /// The devices that were found, unless others have to be searched for.
    fn devices(&self, found: &FoundPool, mode: OpenMode) -> Outcome<Vec<Arc<dyn Device>>> {
        if self.new_id && self.pool.is_some() && found.label.members().count() > 1 {
            let (expected, remedy) = ("all devices of the copy", "name them: -d FILE -d FILE");
            let found = "only one of them";
            return Err(Failure::refused("--new-id", expected, found, remedy));
        }
        if self.dirs.is_empty() && !self.new_id {
            let (name, id) = (found.label.name.clone(), Some(found.label.id()));
            let target = Target { name, path: found.path.clone(), id };
            return members::open_all(&target, mode);
        }
        let mut devices = members::open_paths(&found.paths, mode)?;
        let mut paths = search_paths(&self.dirs)?;
        if self.new_id {
            // They stay with the original.
            devices.extend(members::open_log_devices_among(&paths, &found.label, OpenMode::ReadOnly));
            return Ok(devices);
        }
        if members::may_open_log_devices(&found.path, &found.label, mode)? {
            paths.extend(found.label.log_devices.iter().map(|row| PathBuf::from(&row.name)));
            devices.extend(members::open_log_devices_among(&paths, &found.label, mode));
        }
        Ok(devices)
    }
}

/// The newest txg.
struct NewestTxg {
    txg: u64,
    committed: String,
    clean: bool,
}

impl NewestTxg {
    fn of_device(device: &Arc<dyn Device>) -> Option<NewestTxg> {
        let uber = inspect::newest_uberblock(std::slice::from_ref(device))?;
        let committed = clock::utc((uber.time_ns / 1_000_000_000) as i64);
        Some(NewestTxg { txg: uber.txg.0, committed, clean: uber.clean })
    }

    fn of_status(status: &Value) -> Option<NewestTxg> {
        let committed = status["committed"].as_str()?.to_owned();
        Some(NewestTxg { txg: status["txg"].as_u64()?, committed, clean: status["clean"].as_bool()? })
    }
}

/// A failure that says what is at the path instead.
fn no_pool(path: &Path) -> Failure {
    match target::read_label(path) {
        Err(failure) => failure,
        Ok(_) => Failure(format!("{}: changed during the check; try again", path.display())),
    }
}

impl FoundPool {
    fn id(&self) -> String {
        format!("{:016x}", self.label.id())
    }

    fn row(&self) -> Value {
        let path = self.path.display().to_string();
        let action = match self.state {
            "ready" => Some(format!("terrane pool import {}", shell_word(&path))),
            "imported" => Some(format!("terrane mount {} DIR", self.label.name)),
            _ => None,
        };
        json!({
            "name": self.label.name,
            "id": self.id(),
            "device": path,
            "devices": self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "size": self.label.members().map(|(_, row)| row.zone_size.saturating_mul(row.zone_count.into())).sum::<u64>(),
            "state": self.state,
            "txg": self.newest.as_ref().map(|newest| newest.txg),
            "committed": self.newest.as_ref().map(|newest| &newest.committed),
            "clean": self.newest.as_ref().map(|newest| newest.clean),
            "reason": self.reason,
            "action": action,
        })
    }
}

/// Merges devices of one pool, in the pool's order. Devices that the newest label does not name are left out.
fn merge_pools(devices: Vec<FoundPool>) -> Vec<FoundPool> {
    let mut pools: BTreeMap<u64, Vec<FoundPool>> = BTreeMap::new();
    for found in devices {
        pools.entry(found.label.id()).or_default().push(found);
    }
    // A pool that is being renamed has two names for a moment.
    let mut pools: Vec<FoundPool> = pools.into_values().flat_map(merge_devices).collect();
    pools.sort_by(|a, b| a.label.name.cmp(&b.label.name));
    pools
}

/// One pool of several devices. Devices that seem to exist twice are shown one by one.
fn merge_devices(mut devices: Vec<FoundPool>) -> Vec<FoundPool> {
    let age = |found: &FoundPool| {
        let newest = found.newest.as_ref();
        (found.label.generation, newest.map(|newest| newest.txg))
    };
    let Some(label) = devices.iter().max_by_key(|found| age(found)).map(|found| found.label.clone()) else {
        return devices;
    };
    let ids: Vec<u64> = devices.iter().map(|found| found.label.device).collect();
    let has_twins = ids.iter().any(|id| ids.iter().filter(|other| *other == id).count() > 1);
    if has_twins || (devices.len() == 1 && label.members().count() == 1) {
        return devices;
    }
    let position = |found: &FoundPool| label.members().position(|(_, row)| row.device == found.label.device);
    devices.retain(|found| position(found).is_some());
    devices.sort_by_key(|found| position(found));
    let paths = devices.iter().map(|found| found.path.clone()).collect();
    let ids: Vec<u64> = devices.iter().map(|found| found.label.device).collect();
    let missing: Vec<String> = label
        .members()
        .filter(|(_, row)| !ids.contains(&row.device))
        .map(|(index, row)| format!("device {index}, last known as {}", row.name))
        .collect();
    // The state of one device is that of the pool.
    let state = devices.iter().find(|found| !matches!(found.state, "ready" | "imported"));
    let state = state.or_else(|| devices.iter().find(|found| found.state == "imported"));
    let known = state.map(|found| (found.state, found.reason.clone()));
    // The newest txg that any of the devices holds.
    let newest = devices.iter_mut().filter_map(|found| found.newest.take()).max_by_key(|newest| newest.txg);
    let path = state_path(&devices);
    let (state, reason) = match known {
        Some(known) if missing.is_empty() || known.0 == "mounted" => known,
        _ if !missing.is_empty() => ("incomplete", Some(format!("missing: {}", missing.join("; ")))),
        _ => ("ready", None),
    };
    path.map(|path| FoundPool { path, paths, label, newest, state, reason }).into_iter().collect()
}

/// The device by which the pool is opened: the one in the registry, or the first.
fn state_path(devices: &[FoundPool]) -> Option<PathBuf> {
    let known = devices.iter().find(|found| matches!(found.state, "imported" | "mounted"));
    known.or(devices.first()).map(|found| found.path.clone())
}

/// Adds the other devices of a pool of which one was named.
fn with_others(found: FoundPool) -> FoundPool {
    // Where they cannot be told from copies the import reports it.
    let paths = members::paths(&found.path, &found.label).unwrap_or_else(|_| found.paths.clone());
    FoundPool { paths, ..found }
}

/// The disks and partitions that the kernel lists, and the pools of the registry.
fn default_search_paths(registry: &Registry) -> Outcome<Vec<PathBuf>> {
    let known: Vec<PathBuf> = registry.pools()?.into_values().collect();
    let labels = known.iter().filter_map(|path| Some((members::label_at(path)?, path)));
    let others = labels.filter_map(|(label, path)| members::paths(path, &label).ok());
    let mut paths: Vec<PathBuf> = others.flatten().collect();
    paths.extend(members::disks());
    paths.extend(known);
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// The named files and devices, and those in named directories, without subdirectories.
fn search_paths(named: &[PathBuf]) -> Outcome<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for path in named {
        let path = path.canonicalize().map_err(Failure::io("finding", path))?;
        if path.is_dir() {
            let entries = fs::read_dir(&path).map_err(Failure::io("reading", &path))?;
            for entry in entries {
                let entry = entry.map_err(Failure::io("reading", &path))?;
                // Links may lead anywhere, and several to the same path.
                paths.extend(entry.path().canonicalize().ok());
            }
        } else {
            paths.push(path);
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// The device at this path, if it belongs to a pool. One that cannot be opened could not be imported either.
fn probe_pool(registry: &Registry, path: &Path) -> Option<FoundPool> {
    let probe = terrane_device::probe(path).ok()?;
    if !matches!(probe.kind, PathKind::Regular | PathKind::Block) {
        return None;
    }
    let label = target::probe_label(path, probe.size)?;
    let (path_of_it, paths) = (path.to_owned(), vec![path.to_owned()]);
    let mut found = FoundPool { path: path_of_it, paths, label, newest: None, state: "ready", reason: None };
    let target = Target { name: found.label.name.clone(), path: path.to_owned(), id: Some(found.label.id()) };
    let known = registry.pools().ok().and_then(|pools| pools.get(&target.name).cloned());
    // A daemon that does not answer has its device locked, which is detected below.
    if let Ok(Some(daemon)) = daemon_for_reading(registry, &target, SURVEY_TIMEOUT) {
        let dir = daemon.greeting.mountpoint.display().to_string();
        (found.state, found.reason) = ("mounted", Some(format!("mounted on {dir}")));
        let status = daemon.ask_within(&Query::Status, SURVEY_TIMEOUT).ok();
        found.newest = status.as_ref().and_then(NewestTxg::of_status);
        return Some(found);
    }
    let opened = match bucket_note::read(path) {
        Some(location) => bucket_note::open(path, &location, OpenMode::ReadOnly),
        None => Backing::open(path, OpenMode::ReadOnly)
            .and_then(|backing| backing.into_device(found.label.zone_size))
            .map_err(Failure::from),
    };
    let device = match opened {
        Ok(device) => device,
        Err(Failure(error)) => {
            (found.state, found.reason) = ("in use", Some(error));
            return Some(found);
        }
    };
    found.newest = NewestTxg::of_device(&device);
    found.set_state(device.as_ref(), known.is_some_and(|known| known == path));
    Some(found)
}

impl FoundPool {
    fn set_state(&mut self, device: &dyn Device, is_known: bool) {
        let unknown = self.label.features.incompatible.iter().find(|name| Feature::from_name(name).is_none());
        let zones = device.info().zone_count;
        (self.state, self.reason) = if let Some(name) = unknown {
            ("unsupported", Some(format!("unsupported feature {name:?}; use a newer version")))
        } else if self.newest.is_none() {
            ("damaged", Some("no uberblock can be read".to_owned()))
        } else if zones < self.label.zone_count {
            let text = format!("it has {zones} zones of {}: it was cut short", self.label.zone_count);
            ("damaged", Some(text))
        } else {
            (if is_known { "imported" } else { "ready" }, None)
        };
    }
}

impl Export {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let pools = if self.all { registry.pools()?.into_keys().collect() } else { self.pools.clone() };
        let failures: Vec<String> =
            pools.iter().filter_map(|word| export(&registry, word).err()).map(|failure| failure.0).collect();
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
    }
}

fn export(registry: &Registry, word: &str) -> Outcome {
    let target = target::find(registry, word)?;
    let label = members::label_at(&target.path);
    let paths = label.and_then(|label| members::paths(&target.path, &label).ok());
    let paths = paths.unwrap_or_else(|| vec![target.path.clone()]);
    // A mounted pool has its devices open, whatever their paths are now.
    if let Some(daemon) = daemon_of(registry, &target)? {
        let leaving = ExitingDaemon::of(&daemon.greeting, &registry.supervisor_socket(&target.name));
        daemon.ask(
            &Command::Stop { how: StopMode::WhenIdle, seconds: None, dataset: None },
            &mut |_, _, _| {},
        )?;
        leaving.wait();
    } else if target.path.symlink_metadata().is_err() {
        eprintln!(
            "terrane: pool {}: device {} not found; name forgotten",
            target.name,
            target.path.display()
        );
        return registry.forget(&target.name);
    } else if !is_clean(&target).map_err(|failure| suggest_forget(failure, &target))? {
        OpenPool::open(&target, &open_pool::tool_options(OpenMode::ReadWrite))?.export()?;
    }
    registry.forget_at(&target.name, &paths)
}

fn is_clean(target: &Target) -> Outcome<bool> {
    let devices = members::open_read_only(target)?;
    Ok(inspect::newest_uberblock(&devices).is_some_and(|uber| uber.clean))
}
