//! Notes: files that stand for pools in object stores.
//!
//! Everywhere else a pool is found by the path of a device, locked by it, and told from others by its identity. A pool
//! in an object store has none of these on this machine. So the state directory holds a *note* for each: a small file
//! with the URL. It is made where the URL is first used, and may be removed at any time while the pool is not in use.
//!
//! Invariant: a note holds no credentials, and nothing is lost with it.

use crate::device_probe::DeviceOptions;
use crate::failure::{Failure, Outcome};
use crate::registry::{Registry, replace_file};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terrane_bucket::{BucketDevice, Geometry, Location, Options, ROOT, erase, promises};
use terrane_device::{Backing, Device, OpenMode};
use terrane_format::label::{ANCHORS, Label};
use terrane_store::anchors::Roots;
use terrane_store::env::{Env, SystemEnv};
use terrane_wire::ZoneIdx;

/// The first line of a note.
const FIRST_LINE: &str = "terrane: a pool in an object store\n";
/// How long a label may be used that was read before.
const LABEL_PERIOD: Duration = Duration::from_secs(1);
/// Longest note that is read, in bytes.
const BYTES_MAX: u64 = 8 << 10;

/// The note at a path; `None`: something else is there.
pub fn read(path: &Path) -> Option<Location> {
    let meta = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    if meta.len() > BYTES_MAX {
        return None;
    }
    let mut text = String::new();
    File::open(path).ok()?.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    Location::decode(text.strip_prefix(FIRST_LINE)?).ok()
}

/// The location that a URL on a command line means.
///
/// # Errors
/// If it is none.
pub fn location(url: &str, settings: &[(String, String)]) -> Outcome<Location> {
    Location::parse(url, settings).map_err(Failure)
}

/// The note of a location. It is written if it is missing.
///
/// # Errors
/// If it has other settings than were given: it may stand for a pool on another server.
pub fn note_of(registry: &Registry, location: &Location) -> Outcome<PathBuf> {
    let path = registry.note_path(&location.file_name())?;
    match read(&path) {
        Some(note) if location.settings.is_empty() || note == *location => {}
        Some(note) => {
            let text = |location: &Location| location.encode().trim_end().replace('\n', ", ");
            let remedy = format!("if no pool here needs the other settings, remove {}", path.display());
            return Err(Failure::refused(&location.url, text(&note), text(location), remedy));
        }
        None => replace_file(&path, format!("{FIRST_LINE}{}", location.encode()).as_bytes())?,
    }
    Ok(path)
}

/// Refuses to destroy a pool that another machine has open, as far as its newest uberblock tells.
pub fn refuse_open_elsewhere(device: &Arc<dyn Device>) -> Outcome {
    let here = SystemEnv::new().host_id();
    let roots = Roots::read(std::slice::from_ref(device));
    let newest = roots.candidates().first().map(|candidate| candidate.uber);
    match newest.filter(|uber| !uber.clean && ![0, here].contains(&uber.host) && here != 0) {
        None => Ok(()),
        Some(_) => Err(Failure::refused(
            &device.info().name,
            "a pool that no other machine has open",
            "one that another machine has not exported",
            "unmount it there; if that machine is gone: terrane pool import --take-over URL",
        )),
    }
}

/// Makes the device of a new pool, after a trial of the store.
///
/// # Errors
/// If the store breaks a promise, or holds a pool and `--force` was not given.
pub fn create(location: &Location, zone_size: u64, options: &DeviceOptions) -> Outcome<Arc<dyn Device>> {
    let url = &location.url;
    let store = location.open(true).map_err(|error| Failure(format!("{url}: {error}")))?;
    let present = store.find(ROOT).map_err(|error| Failure(format!("{url}: {error}")))?;
    if present.is_some() && !options.force {
        let remedy = "use another prefix, or --force to overwrite it";
        return Err(Failure::refused(url, "no pool", "one", remedy));
    }
    if present.is_some() {
        // One that cannot be read is no pool that any machine has open.
        let threadless = Options { threads: 0, ..Options::default() };
        if let Ok(device) = BucketDevice::open(Arc::clone(&store), OpenMode::ReadOnly, &threadless) {
            refuse_open_elsewhere(&(Arc::new(device) as Arc<dyn Device>))?;
        }
    }
    promises::verify(store.as_ref()).map_err(|breach| {
        let remedy = "use a store that keeps it: a pool there could lose data when two machines open it";
        Failure::refused(url, "a store that keeps its promises", breach, remedy)
    })?;
    if present.is_some() {
        erase(store.as_ref()).map_err(|error| Failure(format!("{url}: {error}")))?;
    }
    let zone_count = u32::try_from(options.bucket_size() / zone_size).unwrap_or(u32::MAX);
    let geometry = Geometry { write_unit: 4096, zone_size, zone_count };
    Ok(Arc::new(BucketDevice::create(store, geometry, &Options::default())?))
}

/// Opens the device for which the note at `path` stands, and locks the note.
pub fn open(path: &Path, location: &Location, mode: OpenMode) -> Outcome<Arc<dyn Device>> {
    let lock = Backing::open(path, mode)?;
    let store = location.open(false).map_err(|error| Failure(format!("{}: {error}", location.url)))?;
    let identity = lock.identity();
    Ok(Arc::new(BucketDevice::open(store, mode, &Options::default())?.locked_by(identity, lock)))
}

/// Deletes all objects of a destroyed pool, and the note.
pub fn remove(path: &Path, location: &Location) -> Outcome {
    let erased = location.open(false).and_then(|store| erase(store.as_ref()));
    erased.map_err(|error| Failure(format!("{}: {error}", location.url)))?;
    std::fs::remove_file(path).map_err(Failure::io("removing", path))
}

/// The label of the pool for which a note stands. One command asks for it several times, which costs a request each.
pub fn label_at(location: &Location) -> Outcome<Label> {
    static LAST: Mutex<Option<(Location, Label, Instant)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((of, label, read_at)) = &*last
        && of == location
        && read_at.elapsed() < LABEL_PERIOD
    {
        return Ok(label.clone());
    }
    let store = location.open(false).map_err(|error| Failure(format!("{}: {error}", location.url)))?;
    let options = Options { threads: 0, ..Options::default() };
    let label = label_of(&BucketDevice::open(store, OpenMode::ReadOnly, &options)?)?;
    *last = Some((location.clone(), label.clone(), Instant::now()));
    Ok(label)
}

/// The label in the anchors of an open device.
pub fn label_of(device: &dyn Device) -> Outcome<Label> {
    let zone_size = device.info().zone_size;
    let mut read = |offset: u64, buf: &mut [u8]| {
        let zone = u32::try_from(offset / zone_size).ok().filter(|zone| *zone < ANCHORS);
        zone.is_some_and(|zone| device.read(ZoneIdx(zone), offset % zone_size, buf).is_ok())
    };
    match terrane_pool::probe(&mut read, zone_size.saturating_mul(u64::from(ANCHORS))) {
        Some(probe) => Ok(probe.label),
        None => Err(Failure::refused(&device.info().name, "a Terrane pool", "no label", "check the URL")),
    }
}
