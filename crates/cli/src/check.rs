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

use crate::failure::{Failure, Outcome};
use crate::open_pool::{self, OpenPool};
use crate::progress::Progress;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_check::{Counts, Finding, Report, Stage};
use terrane_dataset::Dataset;
use terrane_device::{Device, DeviceError, DeviceInfo, OpenMode, ZoneReport};
use terrane_format::Feature;
use terrane_object::ObjectSets;
use terrane_object::objset::HEADER;
use terrane_pool::Pool;
use terrane_posix::Fs;
use terrane_store::env::{Env, SystemEnv};
use terrane_txg::feature_uses::WalkStart;
use terrane_wire::ZoneIdx;

/// How often a check of a busy pool is started before it is given up.
const ATTEMPTS_MAX: usize = 3;
/// Maximum number of findings whose files are named by path; further ones show object numbers.
const PATHS_MAX: usize = 100;

/// A device that another import writes: read only, and never given hints.
struct ReadOnlyDevice(Arc<dyn Device>);

impl ReadOnlyDevice {
    fn refuse<T>(zone: ZoneIdx, op: &'static str) -> Result<T, DeviceError> {
        let (expected, found) = ("a read-only device".to_owned(), op.to_owned());
        Err(DeviceError::Rule { zone, op, expected, found })
    }
}

impl Device for ReadOnlyDevice {
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
pub fn check_mounted(open_pool: &OpenPool, progress: Progress<'_>) -> Outcome<CheckResult> {
    for attempt in 1..=ATTEMPTS_MAX {
        open_pool.pool.commit()?;
        let before = open_pool.pool.synced_txg();
        // The state committed now stays on the device, while writers continue.
        let hold = open_pool.pool.hold_zones();
        let devices = open_pool.device_handles().into_iter().map(read_only_view).collect();
        let outcome = check(devices, progress);
        let was_held = hold.is_whole();
        drop(hold);
        let (report, paths) = match outcome {
            // Zones that it began with may have been reset during the check.
            Err(_) if !was_held && attempt < ATTEMPTS_MAX => continue,
            Err(_) if !was_held => break,
            outcome => outcome?,
        };
        let is_sure = open_pool.pool.synced_txg() == before || (was_held && attempt == ATTEMPTS_MAX);
        if report.is_clean() || is_sure {
            if report.explained_zones > 0 {
                // By the pool's own tables: what a check beside it saw may be old.
                open_pool.pool.recheck_suspects();
                open_pool.pool.commit_txg(open_pool.pool.open_txg())?;
            }
            log_findings(open_pool, &report, &paths);
            return Ok(CheckResult::of(&report, &paths));
        }
    }
    Ok(CheckResult::cut_short())
}

/// Counts the uses of features in a pool that this process has open, as a check does. Returns what was known when
/// the walk began.
pub fn count_uses(
    open_pool: &OpenPool,
    progress: Progress<'_>,
) -> Outcome<(WalkStart, BTreeMap<Feature, u64>)> {
    let mut last = Failure("the pool changes too fast for a walk; try again when it is less busy".into());
    for _ in 0..ATTEMPTS_MAX {
        let start = open_pool.pool.begin_use_walk();
        open_pool.pool.commit()?;
        let hold = open_pool.pool.hold_zones();
        let devices = open_pool.device_handles().into_iter().map(read_only_view).collect();
        let outcome = check(devices, progress);
        let was_held = hold.is_whole();
        drop(hold);
        // A wrong count is what is repaired here.
        let is_other = |finding: &&Finding| finding.kind != terrane_check::kind::FEATURE;
        match outcome.map(|(report, _)| report) {
            Ok(report) if report.findings.iter().filter(is_other).count() == 0 => {
                return Ok((start, report.uses));
            }
            // If zones that it began with were reset, that says nothing.
            Ok(report) if was_held => {
                let (name, count) = (open_pool.pool.name(), report.findings_count);
                last =
                    Failure(format!("pool {name}: uses not counted, {count} findings; see `terrane check`"));
            }
            Err(error) if was_held => last = error,
            _ => {}
        }
    }
    Err(last)
}

/// Records what was found as damage, which `pool status` shows from then on.
fn log_findings(open_pool: &OpenPool, report: &Report, paths: &FindingPaths) {
    for finding in &report.findings {
        let path = paths.get(&finding.location).map(|path| format!("{path}: ")).unwrap_or_default();
        open_pool.pool.error_log().note_finding(format_args!("{path}{finding}"));
    }
}

fn read_only_view(device: Arc<dyn Device>) -> Arc<dyn Device> {
    Arc::new(ReadOnlyDevice(device))
}

/// Checks the pool on devices that no process writes.
pub fn check_unmounted(devices: Vec<Arc<dyn Device>>, progress: Progress<'_>) -> Outcome<CheckResult> {
    check(devices, progress).map(|(report, paths)| CheckResult::of(&report, &paths))
}

/// Rebuilds the zone tables of a pool that is not imported anywhere.
pub fn rebuild(devices: &[Arc<dyn Device>], progress: Progress<'_>) -> Outcome<()> {
    let options = open_pool::tool_options(OpenMode::ReadWrite);
    let env: Arc<dyn Env> = Arc::new(SystemEnv::new());
    let mut on_progress = |now: terrane_check::Progress| progress(stage_text(now.stage), now.done, now.total);
    Ok(terrane_check::rebuild_index(devices, &env, &options, &mut on_progress)?)
}

/// Paths of the files that have findings, by the location of the finding.
type FindingPaths = BTreeMap<String, String>;

fn check(devices: Vec<Arc<dyn Device>>, progress: Progress<'_>) -> Outcome<(Report, FindingPaths)> {
    let options = open_pool::tool_options(OpenMode::ReadOnly);
    let pool = Pool::import(devices, Arc::new(SystemEnv::new()), &options)?;
    let found = ObjectSets::open(Arc::clone(&pool)).map(|objects| {
        let mut on_progress =
            |now: terrane_check::Progress| progress(stage_text(now.stage), now.done, now.total);
        let report = terrane_check::check(&objects, &mut on_progress);
        let paths = paths(&objects, &report);
        (report, paths)
    });
    // Abandoned, not exported: there is nothing to commit.
    pool.abandon();
    Ok(found?)
}

/// Paths as far as a damaged pool can still be read. Finding one path reads whole directories, so not all are
/// looked up.
fn paths(objects: &Arc<ObjectSets>, report: &Report) -> FindingPaths {
    let mut paths = FindingPaths::new();
    if report.is_clean() {
        return paths;
    }
    let Ok(dataset) = Dataset::open_root(objects) else { return paths };
    let set = dataset.object_set().id().0;
    let Ok(fs) = Fs::open(Arc::new(dataset)) else { return paths };
    for finding in &report.findings {
        if let Some(ino) = inode_of(&finding.location, set)
            && paths.len() < PATHS_MAX
        {
            paths.entry(finding.location.clone()).or_insert_with(|| fs.path_of(ino));
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

fn stage_text(stage: Stage) -> &'static str {
    match stage {
        Stage::Blocks => "reading blocks",
        Stage::Zones => "reading zones",
        Stage::Names => "following names",
    }
}

/// The result of a check.
#[derive(Serialize)]
pub struct CheckResult {
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

impl CheckResult {
    fn cut_short() -> CheckResult {
        CheckResult {
            complete: false,
            findings: Vec::new(),
            findings_count: None,
            explained_zones: None,
            seen: Seen { counts: None },
        }
    }

    fn of(report: &Report, paths: &FindingPaths) -> CheckResult {
        let row = |finding: &Finding| FindingRow {
            kind: finding.kind,
            place: finding.location.clone(),
            path: paths.get(&finding.location).cloned(),
            expected: finding.expected.clone(),
            found: finding.found.clone(),
            text: finding.to_string(),
        };
        let Counts { blocks, bytes, objects, directories, .. } = report.counts;
        CheckResult {
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
    fn inodes_are_found_in_places() {
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
