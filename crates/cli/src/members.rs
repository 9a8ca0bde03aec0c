//! Finds the devices of a pool.
//!
//! A command line, or the registry, names one of them. Its label names the others by id, and by their last
//! known paths. Paths change, so a device that is missing there is searched for: beside the named device, and
//! among the disks of this machine.
//!
//! Invariant: only the id decides whether a device belongs to the pool, never its path.

use crate::bucket_note;
use crate::device_probe::log_device_in;
use crate::failure::{Failure, Outcome};
use crate::target::{self, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrane_device::{Backing, Device, Identity, OpenMode, PathKind, UnlockedReader};
use terrane_format::label::{Label, LogDeviceRow};
use terrane_format::log_device::LogDeviceHead;

/// The label at a path, if a device of a pool is there; read without a lock.
pub fn label_at(path: &Path) -> Option<Label> {
    let probe = terrane_device::probe(path).ok()?;
    let is_device = matches!(probe.kind, PathKind::Regular | PathKind::Block);
    if is_device { target::probe_label(path, probe.size) } else { None }
}

/// The path of a device that has no name any more, for the process that has it open.
pub const FD_DIR: &str = "/proc/self/fd";

/// The current path of a mount's device; `path`: where it was. If the device was replaced, what took its
/// place is not it.
pub fn locate_device(device: &File, path: &Path) -> Outcome<PathBuf> {
    let identity = Identity::of_file(device)?;
    let is_it = |path: &Path| Identity::of(path).is_ok_and(|found| found == identity);
    if is_it(path) {
        return path.canonicalize().map_err(Failure::io("finding", path));
    }
    let open = Path::new(FD_DIR).join(device.as_raw_fd().to_string());
    match fs::read_link(&open).ok().filter(|moved| is_it(moved)) {
        Some(moved) => {
            log::warn!("{}: device of the mount moved to {}", path.display(), moved.display());
            Ok(moved)
        }
        None => {
            log::error!(
                "{}: device of the mount removed or replaced; its data is lost at the unmount: copy it before",
                path.display()
            );
            // For as long as this process lives.
            Ok(Path::new(FD_DIR).join(device.try_clone()?.into_raw_fd().to_string()))
        }
    }
}

/// The disks and partitions that the kernel lists.
pub fn disks() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

/// The devices of the pool that has one at `path`; that one first. Those that are not found are left out; an
/// import names them.
///
/// # Errors
/// If a device exists twice: one is a copy, and importing a device with another state would destroy the pool.
pub fn paths(path: &Path, label: &Label) -> Outcome<Vec<PathBuf>> {
    if label.members().count() == 1 {
        return Ok(vec![path.to_owned()]);
    }
    refuse_copied(path, label)?;
    paths_of_known(path, label)
}

/// The same of a device that is known to be no copy.
fn paths_of_known(path: &Path, label: &Label) -> Outcome<Vec<PathBuf>> {
    let mut found = BTreeMap::from([(label.device, (path.to_owned(), label.clone()))]);
    // The newest label decides which devices belong to the pool.
    let mut newest = label.clone();
    let mut scope = SearchScope::LabelPaths;
    loop {
        let missing: BTreeMap<u64, String> = newest
            .members()
            .filter(|(_, row)| !found.contains_key(&row.device))
            .map(|(_, row)| (row.device, row.name.clone()))
            .collect();
        if missing.is_empty() || scope == SearchScope::Exhausted {
            break;
        }
        for candidate in scope.candidates(path, &missing) {
            let Some(label) = label_at(&candidate) else { continue };
            if label.id() != newest.id() || label.pool != newest.pool || !missing.contains_key(&label.device)
            {
                continue;
            }
            if label.generation > newest.generation {
                newest = label.clone();
            }
            match found.get(&label.device) {
                Some((known, _)) if are_distinct(known, &candidate) => {
                    return Err(duplicate_device(&newest.name, known, &candidate));
                }
                Some(_) => {}
                None => drop(found.insert(label.device, (candidate, label))),
            }
        }
        scope = scope.next();
    }
    let own = label.device;
    let others = newest.members().filter(|(_, row)| row.device != own);
    let others = others.filter_map(|(_, row)| found.get(&row.device)).map(|(path, _)| path.clone());
    Ok(std::iter::once(path.to_owned()).chain(others).collect())
}

/// The label says where the device was. If it is still there, the device at `path` is a copy of it. The other
/// devices and the log devices, found by their paths, would be those of the original.
fn refuse_copied(path: &Path, label: &Label) -> Outcome {
    let own = label.members().find(|(_, row)| row.device == label.device);
    let known = own.and_then(|(_, row)| Path::new(&row.name).canonicalize().ok());
    let Some(known) = known.filter(|known| are_distinct(known, path)) else { return Ok(()) };
    let is_there = label_at(&known).is_some_and(|there| {
        (there.pool, there.id(), there.device) == (label.pool, label.id(), label.device)
    });
    if is_there { Err(duplicate_device(&label.name, &known, path)) } else { Ok(()) }
}

fn are_distinct(one: &Path, other: &Path) -> bool {
    let identities = (Identity::of(one), Identity::of(other));
    matches!(identities, (Ok(one), Ok(other)) if one != other)
}

fn duplicate_device(name: &str, known: &Path, other: &Path) -> Failure {
    Failure::refused(
        format_args!("pool {name}"),
        "each of its devices once",
        format_args!(
            "the same one at {} and at {}: one is a copy of the other",
            known.display(),
            other.display()
        ),
        "make the copies a pool of their own: terrane pool import --new-id --name NAME -d FILE -d FILE, with all of them; \
         or put them out of reach",
    )
}

/// Where to search, the nearest places first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchScope {
    LabelPaths,
    SameDirAndDisks,
    Exhausted,
}

impl SearchScope {
    fn next(self) -> SearchScope {
        match self {
            SearchScope::LabelPaths => SearchScope::SameDirAndDisks,
            SearchScope::SameDirAndDisks | SearchScope::Exhausted => SearchScope::Exhausted,
        }
    }

    fn candidates(self, path: &Path, missing: &BTreeMap<u64, String>) -> BTreeSet<PathBuf> {
        let canonical = |path: PathBuf| path.canonicalize().ok();
        match self {
            SearchScope::LabelPaths => missing.values().map(PathBuf::from).filter_map(canonical).collect(),
            SearchScope::SameDirAndDisks => {
                let dir = path.parent().filter(|dir| !dir.starts_with("/dev"));
                let entries = dir.and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
                entries.map(|entry| entry.path()).chain(disks()).filter_map(canonical).collect()
            }
            SearchScope::Exhausted => BTreeSet::new(),
        }
    }
}

/// What may be destroyed if the first of these devices was named. That is all of them, or only that one if
/// the newest label does not name it: it left the pool, which exists without it.
pub fn devices_to_destroy(
    mut devices: Vec<(PathBuf, Arc<dyn Device>)>,
) -> Outcome<Vec<(PathBuf, Arc<dyn Device>)>> {
    let labels = devices.iter().map(|(path, _)| target::read_label(path)).collect::<Outcome<Vec<Label>>>()?;
    let newest = labels.iter().max_by_key(|label| label.generation);
    if let (Some(newest), Some(named)) = (newest, labels.first())
        && !newest.members().any(|(_, row)| row.device == named.device)
    {
        devices.truncate(1);
    }
    Ok(devices)
}

/// Warns of files of the pool at `path` that users other than their owner may read or write: the files
/// contain everything that modes in the pool protect.
pub fn warn_of_access(path: &Path) {
    let Some(label) = label_at(path) else { return };
    let caches = label.caches.iter().map(|row| PathBuf::from(&row.name));
    let caches = caches.chain(label.log_devices.iter().map(|row| PathBuf::from(&row.name)));
    // Where devices cannot be told apart the mount reports it.
    for path in paths(path, &label).unwrap_or_default().into_iter().chain(caches) {
        let Ok(meta) = path.metadata() else { continue };
        let may = match (meta.mode() & 0o022, meta.mode() & 0o044) {
            (0, 0) => continue,
            (0, _) => "read",
            _ => "write",
        };
        if meta.is_file() {
            eprintln!(
                "terrane: warning: {}: mode {:04o} lets others {may} all that is in the pool; chmod 600 it",
                crate::table::printable(&path.display().to_string()),
                meta.mode() & 0o7777
            );
        }
    }
}

/// Opens and locks all devices of a pool, with the path of each; the named one first. The zone size is the
/// label's.
///
/// # Errors
/// If a device that exists cannot be opened, or the named one is not of this pool. A missing one is left out.
pub fn open(target: &Target, mode: OpenMode) -> Outcome<Vec<(PathBuf, Arc<dyn Device>)>> {
    open_by(target, mode, paths)
}

/// The same of a device that is known to be no copy.
pub fn open_known(target: &Target, mode: OpenMode) -> Outcome<Vec<(PathBuf, Arc<dyn Device>)>> {
    open_by(target, mode, paths_of_known)
}

fn open_by(
    target: &Target,
    mode: OpenMode,
    paths: fn(&Path, &Label) -> Outcome<Vec<PathBuf>>,
) -> Outcome<Vec<(PathBuf, Arc<dyn Device>)>> {
    let (first, label) = open_one(&target.path, mode)?;
    if label.name != target.name {
        let (expected, found) = (format!("pool {}", target.name), format!("pool {}", label.name));
        return Err(Failure::refused(target.path.display(), expected, found, "name the device by its path"));
    }
    let mut devices = vec![(target.path.clone(), first)];
    for path in paths(&target.path, &label)?.into_iter().skip(1) {
        let (device, found) = open_one(&path, mode)?;
        // Between the search and the lock it may have become part of another pool.
        if (found.pool, found.id()) == (label.pool, label.id()) {
            devices.push((path, device));
        }
    }
    Ok(devices)
}

/// Opens and locks these devices of one pool, and searches for no others.
pub fn open_paths(paths: &[PathBuf], mode: OpenMode) -> Outcome<Vec<Arc<dyn Device>>> {
    paths.iter().map(|path| open_one(path, mode).map(|(device, _)| device)).collect()
}

/// Opens and locks all devices of a pool, also its log devices.
pub fn open_all(target: &Target, mode: OpenMode) -> Outcome<Vec<Arc<dyn Device>>> {
    let mut devices: Vec<_> = open(target, mode)?.into_iter().map(|(_, device)| device).collect();
    devices.extend(open_log_devices(&target.path, mode)?);
    Ok(devices)
}

/// The same, for commands that only read.
pub fn open_read_only(target: &Target) -> Outcome<Vec<Arc<dyn Device>>> {
    open_all(target, OpenMode::ReadOnly)
}

/// The head of the log device at a path, if there is one; read without a lock.
fn log_head_at(path: &Path) -> Option<LogDeviceHead> {
    let probe = terrane_device::probe(path).ok()?;
    if !matches!(probe.kind, PathKind::Regular | PathKind::Block) {
        return None;
    }
    let peek = UnlockedReader::open(path).ok()?;
    log_device_in(&mut |offset, buf| peek.read_at(offset, buf).is_ok())
}

/// Opens and locks the log devices of the pool that has a device at `path`: where its label says, else beside that device and among the
/// disks. One that is not found, or cannot be opened, is left out: an import says whether it needs it.
///
/// # Errors
/// There is no pool at `path`; or it is a copy that is to be changed, and would write into the log of its original.
pub fn open_log_devices(path: &Path, mode: OpenMode) -> Outcome<Vec<Arc<dyn Device>>> {
    let label = target::read_label(path)?;
    let may_open = may_open_log_devices(path, &label, mode)?;
    Ok(if may_open { find_log_devices(path, &label, mode) } else { Vec::new() })
}

/// Whether the pool with a device at `path` may use its log devices. A copy may not.
///
/// # Errors
/// It is a copy that is to be changed.
pub fn may_open_log_devices(path: &Path, label: &Label, mode: OpenMode) -> Outcome<bool> {
    match refuse_copied(path, label) {
        Err(failure) if mode == OpenMode::ReadWrite && !label.log_devices.is_empty() => Err(failure),
        outcome => Ok(outcome.is_ok()),
    }
}

/// The same of a device that is known to be no copy.
pub fn find_log_devices(path: &Path, label: &Label, mode: OpenMode) -> Vec<Arc<dyn Device>> {
    let mut found = Vec::new();
    for row in &label.log_devices {
        let missing = BTreeMap::from([(row.device, row.name.clone())]);
        let near = SearchScope::LabelPaths.candidates(path, &missing).into_iter();
        let mut far = SearchScope::SameDirAndDisks.candidates(path, &missing).into_iter();
        let mut all = near.chain(std::iter::from_fn(move || far.next()));
        found.extend(all.find_map(|candidate| open_log_device(&candidate, label, row, mode)));
    }
    found
}

/// Opens and locks the log devices of a pool that are at these paths.
pub fn open_log_devices_among(paths: &[PathBuf], label: &Label, mode: OpenMode) -> Vec<Arc<dyn Device>> {
    let open = |row: &LogDeviceRow| paths.iter().find_map(|path| open_log_device(path, label, row, mode));
    label.log_devices.iter().filter_map(open).collect()
}

fn open_log_device(
    path: &Path,
    label: &Label,
    row: &LogDeviceRow,
    mode: OpenMode,
) -> Option<Arc<dyn Device>> {
    log_head_at(path).filter(|head| (head.pool, head.device) == (label.pool, row.device))?;
    let opened = Backing::open(path, mode).and_then(|backing| backing.into_device(row.zone_size));
    opened
        .inspect_err(|error| {
            log::warn!("pool {}: log device {} not opened: {error}", label.name, path.display())
        })
        .ok()
}

fn open_one(path: &Path, mode: OpenMode) -> Outcome<(Arc<dyn Device>, Label)> {
    // First the lock, then the label: only the label of a locked device is valid.
    if let Some(location) = bucket_note::read(path) {
        let device = bucket_note::open(path, &location, mode)?;
        let label = bucket_note::label_of(device.as_ref())?;
        return Ok((device, label));
    }
    let backing = Backing::open(path, mode)?;
    let label = target::label_of(&backing)?;
    Ok((backing.into_device(label.zone_size)?, label))
}
