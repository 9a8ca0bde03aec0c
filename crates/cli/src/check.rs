//! Runs `terrane_check` on a pool and reports as JSON.
//!
//! A check compares all structures with each other, so nothing may change while it runs. A pool that is not
//! mounted is imported read-only. For a mounted pool, everything is committed first. Then the committed state
//! is imported a second time, beside the pool in use. That state stays complete until zones that were emptied
//! since are reset. None is reset while the check holds them, unless writers need the space. So a clean
//! report is valid whatever happened meanwhile.
//!
//! Findings are valid if no txg was committed meanwhile. If one was, the check begins again. Only findings of
//! the last try, over zones that were held throughout, are reported. If they were not held, the check was cut
//! short, and the report says so.

use crate::failure::Outcome;
use crate::live::{self, Live};
use crate::progress::Progress;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_check::{Counts, Finding, Phase, Report};
use terrane_dataset::Dataset;
use terrane_device::{Device, DeviceError, DeviceInfo, OpenMode, ZoneReport};
use terrane_object::Objects;
use terrane_object::objset::HEADER;
use terrane_pool::Pool;
use terrane_posix::Fs;
use terrane_store::env::{Env, SystemEnv};
use terrane_wire::ZoneIdx;

/// How often a check of a busy pool is started before it is given up.
const TRIES: usize = 3;
/// Maximum number of findings whose files are named by path; further ones show object numbers.
const PATHS_MAX: usize = 100;

/// A device that another import writes: read only, and never given hints.
struct Beside(Arc<dyn Device>);

impl Beside {
    fn refuse<T>(zone: ZoneIdx, op: &'static str) -> Result<T, DeviceError> {
        let (expected, found) = ("a pool that is only read".to_owned(), op.to_owned());
        Err(DeviceError::Rule { zone, op, expected, found })
    }
}

impl Device for Beside {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.0.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, _offset: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Self::refuse(zone, "write")
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        Self::refuse(zone, "reset")
    }

    fn keep_space(&self) {}

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        Self::refuse(zone, "finish")
    }

    // The writer knows the write pointer.
    fn resume(&self, _zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        Ok(pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Checks a pool that this process has mounted.
pub fn beside(live: &Live, progress: Progress<'_>) -> Outcome<Checked> {
    for attempt in 1..=TRIES {
        live.pool.commit()?;
        let before = live.pool.synced_txg();
        // The state committed now stays on the device, while writers continue.
        let hold = live.pool.hold_zones();
        let devices = live.pool.device_handles().into_iter().map(beside_writer).collect();
        let outcome = check(devices, progress);
        let was_held = hold.is_whole();
        drop(hold);
        let (report, paths) = match outcome {
            // Zones that it began with may have been reset during the check.
            Err(_) if !was_held && attempt < TRIES => continue,
            Err(_) if !was_held => break,
            outcome => outcome?,
        };
        let is_sure = live.pool.synced_txg() == before || (was_held && attempt == TRIES);
        if report.is_clean() || is_sure {
            if report.explained_zones > 0 {
                // By the pool's own tables: what a check beside it saw may be old.
                live.pool.explain_suspects();
                live.pool.commit_txg(live.pool.open_txg())?;
            }
            remember(live, &report, &paths);
            return Ok(Checked::of(&report, &paths));
        }
    }
    Ok(Checked::cut_short())
}

/// Records what was found as damage, which `pool status` shows from then on.
fn remember(live: &Live, report: &Report, paths: &Paths) {
    for finding in &report.findings {
        let path = paths.get(&finding.place).map(|path| format!("{path}: ")).unwrap_or_default();
        live.pool.error_log().note_finding(format_args!("{path}{finding}"));
    }
}

fn beside_writer(device: Arc<dyn Device>) -> Arc<dyn Device> {
    Arc::new(Beside(device))
}

/// Checks the pool on devices that no process writes.
pub fn alone(devices: Vec<Arc<dyn Device>>, progress: Progress<'_>) -> Outcome<Checked> {
    check(devices, progress).map(|(report, paths)| Checked::of(&report, &paths))
}

/// Rebuilds the zone tables of a pool that is not imported anywhere.
pub fn rebuild(devices: &[Arc<dyn Device>], progress: Progress<'_>) -> Outcome<()> {
    let options = live::tool_options(OpenMode::ReadWrite);
    let env: Arc<dyn Env> = Arc::new(SystemEnv::new());
    let mut tell = |now: terrane_check::Progress| progress(phase_text(now.phase), now.done, now.total);
    Ok(terrane_check::rebuild_index(devices, &env, &options, &mut tell)?)
}

/// Paths of the files that have findings, by the location of the finding.
type Paths = BTreeMap<String, String>;

fn check(devices: Vec<Arc<dyn Device>>, progress: Progress<'_>) -> Outcome<(Report, Paths)> {
    let options = live::tool_options(OpenMode::ReadOnly);
    let pool = Pool::import(devices, Arc::new(SystemEnv::new()), &options)?;
    let found = Objects::open(Arc::clone(&pool)).map(|objects| {
        let mut tell = |now: terrane_check::Progress| progress(phase_text(now.phase), now.done, now.total);
        let report = terrane_check::check(&objects, &mut tell);
        let paths = paths(&objects, &report);
        (report, paths)
    });
    // Abandoned, not exported: there is nothing to commit.
    pool.abandon();
    Ok(found?)
}

/// Paths as far as a damaged pool can still be read. Finding one path reads whole directories, so not all are
/// looked up.
fn paths(objects: &Arc<Objects>, report: &Report) -> Paths {
    let mut paths = Paths::new();
    if report.is_clean() {
        return paths;
    }
    let Ok(dataset) = Dataset::open_root(objects) else { return paths };
    let set = dataset.objects().id().0;
    let Ok(fs) = Fs::open(Arc::new(dataset)) else { return paths };
    for finding in &report.findings {
        if let Some(ino) = inode_of(&finding.place, set)
            && paths.len() < PATHS_MAX
        {
            paths.entry(finding.place.clone()).or_insert_with(|| fs.path_of(ino));
        }
    }
    paths
}

/// The inode in `object set 2 object 7 level 0 block 3`, if `set` is that object set.
fn inode_of(place: &str, set: u64) -> Option<u64> {
    let (found, rest) = place.strip_prefix("object set ")?.split_once(" object ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    let ino = digits.parse().ok().filter(|ino| (1..HEADER).contains(ino))?;
    (found == set.to_string()).then_some(ino)
}

fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Blocks => "reading blocks",
        Phase::Zones => "reading zones",
        Phase::Names => "following names",
    }
}

/// The result of a check.
#[derive(Serialize)]
pub struct Checked {
    /// False: it was cut short.
    complete: bool,
    findings: Vec<FindingRow>,
    findings_count: Option<u64>,
    explained_zones: Option<u64>,
    seen: Seen,
}

#[derive(Serialize)]
struct FindingRow {
    kind: &'static str,
    place: String,
    path: Option<String>,
    expected: String,
    found: String,
    text: String,
}

/// What one try found; nothing if it was cut short.
#[derive(Serialize)]
struct Seen {
    #[serde(flatten)]
    counts: Option<SeenCounts>,
}

#[derive(Serialize)]
struct SeenCounts {
    blocks: u64,
    bytes: u64,
    objects: u64,
    directories: u64,
}

impl Checked {
    fn cut_short() -> Checked {
        Checked {
            complete: false,
            findings: Vec::new(),
            findings_count: None,
            explained_zones: None,
            seen: Seen { counts: None },
        }
    }

    fn of(report: &Report, paths: &Paths) -> Checked {
        let row = |finding: &Finding| FindingRow {
            kind: finding.kind,
            place: finding.place.clone(),
            path: paths.get(&finding.place).cloned(),
            expected: finding.expected.clone(),
            found: finding.found.clone(),
            text: finding.to_string(),
        };
        let Counts { blocks, bytes, objects, directories, .. } = report.counts;
        Checked {
            complete: true,
            findings: report.findings.iter().map(row).collect(),
            findings_count: Some(report.findings_count),
            explained_zones: Some(report.explained_zones),
            seen: Seen { counts: Some(SeenCounts { blocks, bytes, objects, directories }) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::inode_of;

    #[test]
    fn inodes_are_told_from_places() {
        for (place, ino) in [
            ("object set 2 object 7 level 0 block 3", Some(7)),
            ("object set 2 object 17", Some(17)),
            ("object set 2 object 17, bonus", Some(17)),
            ("object set 1 object 7", None),
            ("object set 2 object 0 level 0 block 3", None),
            ("object set 2 object 18446744073709551615", None),
            ("object set 2", None),
            ("zone 7", None),
        ] {
            assert_eq!(inode_of(place, 2), ino, "{place}");
        }
    }
}
