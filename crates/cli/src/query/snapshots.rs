//! Snapshots, clones, holds and bookmarks.

use super::datasets::{Changed, named};
use super::value;
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_dataset::Snapshot;
use terrane_posix::{ChangeKind, Fs, mode};

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
        let datasets = &open_pool.datasets;
        let pool = open_pool.pool.name();
        let (outcome, name) = match self {
            SnapshotAction::Rename { path, name, to } => {
                (datasets.rename_snapshot(path, name, to), format!("{}@{to}", full_name(&pool, path)))
            }
            SnapshotAction::Rollback { path, name, newer } => {
                (datasets.rollback(path, name, *newer), full_name(&pool, path))
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
    let row = |((path, _), taken): (&(String, String), Snapshot)| TakenRow {
        name: format!("{}@{}", full_name(&pool, path), taken.name),
        guid: taken.info.guid,
        creation: taken.info.time_ns / 1_000_000_000,
    };
    Ok(wanted.iter().zip(taken).map(row).collect())
}

fn is_below(path: &str, above: &str) -> bool {
    let rest =
        if above.is_empty() { Some(path).filter(|path| !path.is_empty()) } else { path.strip_prefix(above) };
    rest.is_some_and(|rest| above.is_empty() || rest.starts_with('/'))
}

/// A snapshot that was or would be destroyed.
#[derive(Serialize)]
pub(super) struct DestroyedRow {
    name: String,
    /// Only on the first row of each data set: bytes that all destroyed snapshots of this data set free together.
    reclaim: Option<u64>,
}

/// The names that words mean, in the order of the snapshots. A word is a name, or a range whose ends may be missing.
fn expand(known: &[Snapshot], words: &[String]) -> Result<Vec<String>, String> {
    let position = |name: &str| known.iter().position(|snapshot| snapshot.name == name);
    let mut chosen = vec![false; known.len()];
    for word in words {
        let (first, last) = match word.split_once('%') {
            None => {
                let at = position(word).ok_or_else(|| word.clone())?;
                (at, at)
            }
            Some((first, last)) => {
                let end = known.len().checked_sub(1).ok_or_else(|| word.clone())?;
                let find = |name: &str, missing: usize| {
                    if name.is_empty() { Ok(missing) } else { position(name).ok_or_else(|| name.to_owned()) }
                };
                (find(first, 0)?, find(last, end)?)
            }
        };
        chosen.iter_mut().take(last + 1).skip(first).for_each(|chosen| *chosen = true);
    }
    let names =
        known.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(snapshot, _)| snapshot.name.clone());
    Ok(names.collect())
}

fn destroy(
    open_pool: &OpenPool,
    path: &str,
    words: &[String],
    (recursive, dry_run): (bool, bool),
) -> Outcome<Vec<DestroyedRow>> {
    let datasets = &open_pool.datasets;
    let pool = open_pool.pool.name();
    let mut chosen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let known = datasets.snapshots(path).map_err(|error| named(open_pool, error))?;
    match expand(&known, words) {
        Ok(names) => drop(chosen.insert(path.to_owned(), names)),
        // Data sets below may have the snapshot.
        Err(_) if recursive => {}
        // Fails, and names the most similar one.
        Err(name) => {
            datasets.find_snapshot(path, &name).map_err(|error| named(open_pool, error))?;
        }
    }
    if recursive {
        for info in datasets.list()?.iter().filter(|info| is_below(&info.path, path)) {
            if let Ok(names) = expand(&datasets.snapshots(&info.path)?, words) {
                chosen.insert(info.path.clone(), names);
            }
        }
    }
    chosen.retain(|_, names| !names.is_empty());
    if chosen.is_empty() {
        let whole = format!("{}@{}", full_name(&pool, path), words.join(","));
        return Err(Failure(format!(
            "{whole}: no such snapshot; see `terrane fs list -t snapshot -r {pool}`"
        )));
    }
    let mounts = open_pool.mounts.list();
    for (path, name) in chosen.iter().flat_map(|(path, names)| names.iter().map(move |name| (path, name))) {
        let whole = format!("{path}@{name}");
        if let Some(mount) = mounts.iter().find(|mount| mount.path == whole).filter(|_| !dry_run) {
            let expected = "a snapshot that is not mounted";
            let found = format_args!("mounted on {}", mount.dir.display());
            return Err(Failure::refused(full_name(&pool, &whole), expected, found, "unmount it first"));
        }
    }
    // All are checked before the first is destroyed.
    for (path, names) in &chosen {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        datasets.check_destroyable(path, &names).map_err(|error| named(open_pool, error))?;
    }
    let mut rows = Vec::new();
    for (path, names) in &chosen {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut reclaim = Some(datasets.reclaimable(path, &names).map_err(|error| named(open_pool, error))?);
        for name in &names {
            rows.push(DestroyedRow {
                name: format!("{}@{name}", full_name(&pool, path)),
                reclaim: reclaim.take(),
            });
        }
        if !dry_run {
            datasets.destroy_snapshots(path, &names).map_err(|error| named(open_pool, error))?;
        }
    }
    if !dry_run {
        open_pool.pool.commit()?;
    }
    Ok(rows)
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
    let new = match to {
        None => open_pool.view(path)?.fs()?,
        Some(to) => {
            let newer =
                datasets.find_snapshot(path, to).map_err(|error| named(open_pool, error))?.info.created;
            if newer < since {
                let (expected, found) =
                    (format_args!("a snapshot that is newer than {from}"), "an older one");
                let at = format_args!("{}@{to}", full_name(&pool, path));
                return Err(Failure::refused(at, expected, found, "name the older one first"));
            }
            open(to)?
        }
    };
    let mut rows = Vec::new();
    terrane_posix::diff(open(from)?.as_ref(), &new, since, &mut |change| {
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
    .map_err(|errno| Failure(format!("{}: changes not read: {errno}", full_name(&pool, path))))?;
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
    use terrane_wire::{ObjectId, Txg};

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
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            expand(&known, &words).map(|names| names.concat())
        };
        assert_eq!(names(&["b"]).unwrap(), "b");
        assert_eq!(names(&["d", "a"]).unwrap(), "ad");
        assert_eq!(names(&["b%c"]).unwrap(), "bc");
        assert_eq!(names(&["%b", "d"]).unwrap(), "abd");
        assert_eq!(names(&["c%"]).unwrap(), "cd");
        assert_eq!(names(&["%"]).unwrap(), "abcd");
        assert_eq!(names(&["c%b"]).unwrap(), "");
        assert_eq!(names(&["x"]).unwrap_err(), "x");
        assert_eq!(names(&["a%x"]).unwrap_err(), "x");
    }

    #[test]
    fn paths_below_are_recognized() {
        assert!(is_below("home/ann", "home") && is_below("home", "") && is_below("home/ann", ""));
        assert!(!is_below("home", "home") && !is_below("homes", "home") && !is_below("", ""));
    }
}
