//! Snapshots, clones, holds and bookmarks.

use super::datasets::{
    Changed, DestroyedRow, check_snapshots_not_mounted, destroy_snapshots, is_below, named,
};
use super::value;
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use terrane_dataset::Snapshot;
use terrane_posix::{ChangeKind, Fs, mode};
use terrane_wire::Txg;

/// A question about snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum SnapshotAction {
    /// Takes snapshots: path of the data set, and name.
    Take {
        snapshots: Vec<(String, String)>,
        /// Include all data sets below.
        recursive: bool,
    },
    /// Destroys snapshots of a data set: names, and ranges `FIRST%LAST`.
    Destroy {
        path: String,
        names: Vec<String>,
        /// Include snapshots of the same names of all data sets below.
        recursive: bool,
        /// Only report what would be freed.
        dry_run: bool,
    },
    Rename {
        path: String,
        name: String,
        to: String,
    },
    Rollback {
        path: String,
        name: String,
        /// Destroys newer snapshots.
        newer: bool,
    },
    Clone {
        path: String,
        name: String,
        target: String,
    },
    Promote {
        path: String,
    },
    Hold {
        path: String,
        name: String,
        tag: String,
    },
    Release {
        path: String,
        name: String,
        tag: String,
    },
    /// Holds on the snapshots of a data set, or on one.
    Holds {
        path: String,
        name: Option<String>,
    },
    Bookmark {
        path: String,
        name: String,
        bookmark: String,
    },
    /// Lists what changed since snapshot `from`, until snapshot `to`, or until now.
    Diff {
        path: String,
        from: String,
        to: Option<String>,
    },
    #[serde(rename = "destroy bookmark")]
    DestroyBookmark {
        path: String,
        bookmark: String,
    },
}

impl SnapshotAction {
    /// Whether it needs a writable pool.
    pub fn is_change(&self) -> bool {
        let is_dry = matches!(self, SnapshotAction::Destroy { dry_run: true, .. });
        !is_dry && !matches!(self, SnapshotAction::Holds { .. } | SnapshotAction::Diff { .. })
    }

    pub(super) fn answer(&self, open_pool: &OpenPool) -> Outcome<serde_json::Value> {
        match self {
            SnapshotAction::Take { snapshots, recursive } => {
                Ok(value(&take(open_pool, snapshots, *recursive)?))
            }
            SnapshotAction::Destroy { path, names, recursive, dry_run } => {
                Ok(value(&destroy(open_pool, path, names, (*recursive, *dry_run))?))
            }
            SnapshotAction::Diff { path, from, to } => {
                Ok(value(&diff(open_pool, path, from, to.as_deref())?))
            }
            SnapshotAction::Holds { path, name } => Ok(value(&holds(open_pool, path, name.as_deref())?)),
            other => Ok(value(&other.change(open_pool)?)),
        }
    }

    fn change(&self, open_pool: &OpenPool) -> Outcome<Vec<Changed>> {
        check_mounted_snapshots_stay(open_pool, self)?;
        let datasets = &open_pool.datasets;
        let pool = open_pool.pool.name();
        let (outcome, name) = match self {
            SnapshotAction::Rename { path, name, to } => {
                (datasets.rename_snapshot(path, name, to), format!("{}@{to}", full_name(&pool, path)))
            }
            SnapshotAction::Rollback { path, name, newer } => {
                (open_pool.rollback(path, name, *newer), full_name(&pool, path))
            }
            SnapshotAction::Clone { path, name, target } => {
                (datasets.clone_snapshot(path, name, target).map(drop), full_name(&pool, target))
            }
            SnapshotAction::Promote { path } => (datasets.promote(path), full_name(&pool, path)),
            SnapshotAction::Hold { path, name, tag } => {
                (datasets.hold(path, name, tag), format!("{}@{name}", full_name(&pool, path)))
            }
            SnapshotAction::Release { path, name, tag } => {
                (datasets.release(path, name, tag), format!("{}@{name}", full_name(&pool, path)))
            }
            SnapshotAction::Bookmark { path, name, bookmark } => {
                (datasets.bookmark(path, name, bookmark), format!("{}#{bookmark}", full_name(&pool, path)))
            }
            SnapshotAction::DestroyBookmark { path, bookmark } => {
                (datasets.destroy_bookmark(path, bookmark), format!("{}#{bookmark}", full_name(&pool, path)))
            }
            SnapshotAction::Take { .. }
            | SnapshotAction::Destroy { .. }
            | SnapshotAction::Diff { .. }
            | SnapshotAction::Holds { .. } => {
                return Err(Failure("this question is answered elsewhere".to_owned()));
            }
        };
        outcome.map_err(|error| named(open_pool, error))?;
        open_pool.pool.commit()?;
        Ok(vec![Changed { name }])
    }
}

/// A snapshot that was taken.
#[derive(Serialize)]
pub(super) struct TakenRow {
    name: String,
    guid: u64,
    /// Seconds since 1970.
    creation: u64,
}

fn take(open_pool: &OpenPool, snapshots: &[(String, String)], recursive: bool) -> Outcome<Vec<TakenRow>> {
    let datasets = &open_pool.datasets;
    let mut wanted = snapshots.to_vec();
    if recursive {
        let all = datasets.list()?;
        for (path, name) in snapshots {
            for info in all.iter().filter(|info| is_below(&info.path, path)) {
                let below = (info.path.clone(), name.clone());
                if !wanted.contains(&below) {
                    wanted.push(below);
                }
            }
        }
    }
    let words: Vec<(&str, &str)> = wanted.iter().map(|(path, name)| (path.as_str(), name.as_str())).collect();
    let taken = datasets.snapshot(&words).map_err(|error| named(open_pool, error))?;
    let pool = open_pool.pool.name();
    // Each reports the losses of its own data set.
    let reported = open_pool.file_systems().into_iter().map(|fs| fs.report_losses());
    if reported.fold(Ok(()), Result::and).is_err() {
        let at = format!("pool {pool}: snapshots taken, but damage made a commit drop changes of files");
        return Err(Failure(format!("{at}; see `terrane pool status -v {pool}`")));
    }
    let row = |((path, _), taken): (&(String, String), Snapshot)| TakenRow {
        name: format!("{}@{}", full_name(&pool, path), taken.name),
        guid: taken.info.guid,
        creation: taken.info.time_ns / 1_000_000_000,
    };
    Ok(wanted.iter().zip(taken).map(row).collect())
}

/// The position of each snapshot, by its name.
fn positions(known: &[Snapshot]) -> BTreeMap<&str, usize> {
    known.iter().enumerate().map(|(at, snapshot)| (snapshot.name.as_str(), at)).collect()
}

/// The positions of the snapshots that a word means. A word is a name, or a range whose ends may be missing.
fn expand(known: &BTreeMap<&str, usize>, word: &str) -> Result<Range<usize>, String> {
    let position = |name: &str| known.get(name).copied();
    let Some((first, last)) = word.split_once('%') else {
        let at = position(word).ok_or_else(|| word.to_owned())?;
        return Ok(at..at + 1);
    };
    let end = known.len().checked_sub(1).ok_or_else(|| word.to_owned())?;
    let find = |name: &str, missing: usize| {
        if name.is_empty() { Ok(missing) } else { position(name).ok_or_else(|| name.to_owned()) }
    };
    Ok(find(first, 0)?..find(last, end)? + 1)
}

/// The snapshots that words mean, in their order, for each data set that has any. Each word must mean one.
fn choose(
    open_pool: &OpenPool,
    path: &str,
    words: &[String],
    recursive: bool,
) -> Outcome<BTreeMap<String, Vec<String>>> {
    let datasets = &open_pool.datasets;
    let mut known =
        vec![(path.to_owned(), datasets.snapshots(path).map_err(|error| named(open_pool, error))?)];
    if recursive {
        for info in datasets.list()?.into_iter().filter(|info| is_below(&info.path, path)) {
            let snapshots = datasets.snapshots(&info.path)?;
            known.push((info.path, snapshots));
        }
    }
    let mut chosen: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let by_name: Vec<_> = known.iter().map(|(path, snapshots)| (path, positions(snapshots))).collect();
    for word in words {
        let (mut is_known, mut missing) = (false, None);
        for (path, positions) in &by_name {
            match expand(positions, word) {
                Ok(range) if !range.is_empty() => {
                    is_known = true;
                    chosen.entry(path.to_string()).or_default().extend(range);
                }
                Ok(_) => {}
                Err(name) => missing = Some(name),
            }
        }
        if is_known {
            continue;
        }
        if let Some(name) = missing.filter(|_| !recursive) {
            // Fails, and names the most similar one.
            datasets.find_snapshot(path, &name).map_err(|error| named(open_pool, error))?;
        }
        let pool = open_pool.pool.name();
        return Err(Failure(format!(
            "{}@{word}: no such snapshot; see `terrane fs list -t snapshot -r {pool}`",
            full_name(&pool, path)
        )));
    }
    let names = |snapshots: Vec<Snapshot>, chosen: &BTreeSet<usize>| {
        let all = snapshots.into_iter().enumerate();
        all.filter(|(at, _)| chosen.contains(at)).map(|(_, snapshot)| snapshot.name).collect()
    };
    let of_each = known.into_iter().filter_map(|(path, snapshots)| {
        let chosen = chosen.get(&path)?;
        Some((path, names(snapshots, chosen)))
    });
    Ok(of_each.collect())
}

fn destroy(
    open_pool: &OpenPool,
    path: &str,
    words: &[String],
    (recursive, dry_run): (bool, bool),
) -> Outcome<Vec<DestroyedRow>> {
    let chosen = choose(open_pool, path, words, recursive)?;
    // All are checked before the first is destroyed.
    for (path, names) in &chosen {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check_snapshots_not_mounted(open_pool, path, names.iter().copied())?;
        open_pool.datasets.check_destroyable(path, &names).map_err(|error| named(open_pool, error))?;
    }
    let mut rows = Vec::new();
    for (path, names) in chosen {
        destroy_snapshots(open_pool, &path, names, dry_run, &mut rows)?;
    }
    if !dry_run {
        open_pool.pool.commit()?;
    }
    Ok(rows)
}

/// Refuses a rollback, a promotion or another name while a snapshot is mounted that this would destroy or rename. Mounts know
/// snapshots by name.
pub fn check_mounted_snapshots_stay(open_pool: &OpenPool, action: &SnapshotAction) -> Outcome {
    let datasets = &open_pool.datasets;
    let named = |error| named(open_pool, error);
    let (path, changed) = match action {
        SnapshotAction::Rename { path, name, .. } => (path.clone(), vec![name.clone()]),
        SnapshotAction::Rollback { path, name, .. } => {
            let known = datasets.snapshots(path).map_err(named)?.into_iter().map(|snapshot| snapshot.name);
            (path.clone(), known.skip_while(|known| known != name).skip(1).collect())
        }
        SnapshotAction::Promote { path } => {
            let origin = datasets
                .list()
                .map_err(named)?
                .into_iter()
                .find(|info| info.path == *path)
                .and_then(|info| info.origin);
            // The origin and all older snapshots move to the clone.
            let Some((source, name)) = origin.as_ref().and_then(|origin| origin.rsplit_once('@')) else {
                return Ok(());
            };
            let known = datasets.snapshots(source).map_err(named)?.into_iter().map(|snapshot| snapshot.name);
            let mut moved: Vec<String> = known.collect();
            let end = moved.iter().position(|known| known == name).map_or(moved.len(), |at| at + 1);
            moved.truncate(end);
            (source.to_owned(), moved)
        }
        _ => return Ok(()),
    };
    check_snapshots_not_mounted(open_pool, &path, changed.iter().map(String::as_str))
}

/// A file or directory that changed.
#[derive(Serialize)]
pub(super) struct DiffRow {
    change: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    /// The earlier path, if it was renamed.
    old_path: Option<String>,
    size: u64,
    /// Seconds since 1970.
    modified: i64,
}

fn diff(open_pool: &OpenPool, path: &str, from: &str, to: Option<&str>) -> Outcome<Vec<DiffRow>> {
    let datasets = &open_pool.datasets;
    let pool = open_pool.pool.name();
    if !open_pool.pool.is_read_only() {
        // Changes are found in stored trees, so all must be committed.
        open_pool.pool.commit()?;
    }
    let since = datasets.find_snapshot(path, from).map_err(|error| named(open_pool, error))?.info.created;
    let open = |name: &str| -> Outcome<Arc<Fs>> {
        let dataset = datasets.open_snapshot(path, name).map_err(|error| named(open_pool, error))?;
        Ok(Fs::open(dataset)?)
    };
    let old = open(from)?;
    let name = full_name(&pool, path);
    let Some(to) = to else {
        let head = open_pool.view(path)?;
        let rows = head.fs().and_then(|new| changes(&name, &old, new, since));
        // Or nothing could destroy the data set, or roll it back.
        head.release();
        return rows;
    };
    let newer = datasets.find_snapshot(path, to).map_err(|error| named(open_pool, error))?.info.created;
    if newer < since {
        let (expected, found) = (format_args!("a snapshot that is newer than {from}"), "an older one");
        let at = format_args!("{name}@{to}");
        return Err(Failure::refused(at, expected, found, "name the older one first"));
    }
    changes(&name, &old, open(to)?, since)
}

fn changes(name: &str, old: &Fs, new: Arc<Fs>, since: Txg) -> Outcome<Vec<DiffRow>> {
    let mut rows = Vec::new();
    terrane_posix::diff(old, &new, since, &mut |change| {
        rows.push(DiffRow {
            change: match change.kind {
                ChangeKind::Created => "created",
                ChangeKind::Removed => "removed",
                ChangeKind::Renamed => "renamed",
                ChangeKind::Modified => "modified",
            },
            kind: match change.attr.mode & mode::S_IFMT {
                mode::S_IFDIR => "directory",
                mode::S_IFREG => "file",
                mode::S_IFLNK => "symlink",
                _ => "special",
            },
            path: String::from_utf8_lossy(&change.path).into_owned(),
            old_path: change.old_path.map(|path| String::from_utf8_lossy(&path).into_owned()),
            size: change.attr.size,
            modified: change.attr.mtime.secs,
        });
    })
    .map_err(|errno| Failure(format!("{name}: changes not read: {errno}")))?;
    rows.sort_by(|a, b| (&a.path, a.change).cmp(&(&b.path, b.change)));
    Ok(rows)
}

/// A hold on a snapshot.
#[derive(Serialize)]
pub(super) struct HoldRow {
    name: String,
    tag: String,
    /// Seconds since 1970.
    time: u64,
}

fn holds(open_pool: &OpenPool, path: &str, name: Option<&str>) -> Outcome<Vec<HoldRow>> {
    let pool = open_pool.pool.name();
    if let Some(name) = name {
        open_pool.datasets.find_snapshot(path, name).map_err(|error| named(open_pool, error))?;
    }
    let holds = open_pool.datasets.holds(path).map_err(|error| named(open_pool, error))?;
    let is_wanted = |snapshot: &str| name.is_none_or(|name| name == snapshot);
    let row = |hold: terrane_dataset::Hold| HoldRow {
        name: format!("{}@{}", full_name(&pool, path), hold.snapshot),
        tag: hold.tag,
        time: hold.time,
    };
    Ok(holds.into_iter().filter(|hold| is_wanted(&hold.snapshot)).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_dataset::SnapshotInfo;
    use terrane_format::BlockPtr;
    use terrane_wire::ObjectId;

    #[test]
    fn words_name_snapshots_and_ranges() {
        let known: Vec<Snapshot> = ["a", "b", "c", "d"]
            .iter()
            .zip(1..)
            .map(|(name, txg)| Snapshot {
                name: (*name).to_owned(),
                info: SnapshotInfo {
                    id: ObjectId(txg),
                    root: BlockPtr::default(),
                    guid: txg,
                    created: Txg(txg),
                    time_ns: 0,
                    dead_list: ObjectId(9),
                    set: ObjectId(2),
                    referenced: terrane_object::Account::default(),
                },
            })
            .collect();
        let positions = positions(&known);
        let names = |word: &str| {
            expand(&positions, word)
                .map(|range| known[range].iter().map(|one| one.name.as_str()).collect::<String>())
        };
        assert_eq!(names("b").unwrap(), "b");
        assert_eq!(names("b%c").unwrap(), "bc");
        assert_eq!(names("%b").unwrap(), "ab");
        assert_eq!(names("c%").unwrap(), "cd");
        assert_eq!(names("%").unwrap(), "abcd");
        assert!(expand(&positions, "d%b").unwrap().is_empty());
        assert_eq!(names("x").unwrap_err(), "x");
        assert_eq!(names("a%x").unwrap_err(), "x");
    }

    #[test]
    fn paths_below_are_recognized() {
        assert!(is_below("home/ann", "home") && is_below("home", "") && is_below("home/ann", ""));
        assert!(!is_below("home", "home") && !is_below("homes", "home") && !is_below("", ""));
    }
}
