//! Data sets: listing, creating, renaming and destroying them, and their properties.

use super::Setting;
use super::properties::{self, PropertyRow};
use super::question::Selection;
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::figures::Facts;
use crate::open_pool::OpenPool;
use crate::sys;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_dataset::{Bookmark, Dataset, DatasetError, DatasetInfo, Snapshot};
use terrane_posix::{Cred, Fs};

/// A data set or a snapshot.
#[derive(Serialize)]
pub(super) struct DatasetRow {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    used: u64,
    available: Option<u64>,
    referenced: u64,
    objects: Option<u64>,
    mountpoint: Option<String>,
    /// Seconds since 1970.
    creation: Option<u64>,
    guid: Option<u64>,
    origin: Option<String>,
    written: Option<u64>,
    /// The requested properties and their values, as words.
    properties: BTreeMap<String, String>,
}

/// The data set or snapshot that a command changed.
#[derive(Serialize)]
pub(super) struct Changed {
    pub name: String,
}

/// The error, with names in the form that users write.
pub fn named(open_pool: &OpenPool, error: DatasetError) -> Failure {
    let pool = open_pool.pool.name();
    let full = |name: String| full_name(&pool, &name);
    match error {
        DatasetError::Unknown { name, nearest } => {
            let hint = nearest.map(|nearest| format!("; did you mean '{}'?", full(nearest)));
            let name = full(name);
            Failure(format!(
                "unknown data set '{name}'; see `terrane fs list -r {pool}`{}",
                hint.unwrap_or_default()
            ))
        }
        DatasetError::Exists { name } => DatasetError::Exists { name: full(name) }.into(),
        DatasetError::InvalidName { name } => DatasetError::InvalidName { name: full(name) }.into(),
        DatasetError::InUse { name, by } => DatasetError::InUse { name: full(name), by }.into(),
        DatasetError::OverLimit { name, quota_of, limit, used, need } => {
            let (name, quota_of) = (full(name), quota_of.map(full));
            DatasetError::OverLimit { name, quota_of, limit, used, need }.into()
        }
        DatasetError::Partly { done, all, error } => {
            let Failure(error) = named(open_pool, *error);
            Failure(format!(
                "{done} of {all} snapshots destroyed, then: {error}; the others are there, so try again"
            ))
        }
        error => error.into(),
    }
}

/// The selected data sets, each after the one above it.
fn selected(open_pool: &OpenPool, of: &Selection) -> Outcome<Vec<DatasetInfo>> {
    let all = open_pool.datasets.list().map_err(|error| named(open_pool, error))?;
    if of.paths.is_empty() {
        let is_shown = |info: &DatasetInfo| of.recursive || info.path.is_empty();
        return Ok(all.into_iter().filter(is_shown).collect());
    }
    for path in &of.paths {
        // Fails if there is none, and names the most similar one.
        open_pool.datasets.branch(path).map_err(|error| named(open_pool, error))?;
    }
    let is_below = |path: &str, above: &str| {
        above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
    };
    let is_selected = |info: &DatasetInfo| {
        of.paths.iter().any(|path| info.path == *path || of.recursive && is_below(&info.path, path))
    };
    Ok(all.into_iter().filter(is_selected).collect())
}

fn facts(open_pool: &OpenPool, info: DatasetInfo) -> Outcome<Facts> {
    let usage = open_pool.datasets.usage(&info.path)?;
    let creation = open_pool.datasets.creation(&info.path)?;
    let origin = info.origin.as_ref().map(|origin| full_name(&open_pool.pool.name(), origin));
    Ok(Facts { usage, creation, guid: info.guid, origin })
}

pub(super) fn open(open_pool: &OpenPool, path: &str) -> Outcome<Arc<Dataset>> {
    open_pool.datasets.open_dataset(path).map_err(|error| named(open_pool, error))
}

pub(super) fn get(open_pool: &OpenPool, of: &Selection, names: &[String]) -> Outcome<Vec<PropertyRow>> {
    let mut rows = Vec::new();
    for info in selected(open_pool, of)? {
        let (path, dataset) = (info.path.clone(), open(open_pool, &info.path)?);
        let facts = facts(open_pool, info)?;
        rows.extend(properties::rows_of(open_pool, &path, &dataset, &facts, names)?);
    }
    Ok(rows)
}

/// The facts of the root data set.
pub(super) fn root_facts(open_pool: &OpenPool) -> Outcome<Facts> {
    let root = Selection { paths: vec![String::new()], ..Selection::default() };
    let info = selected(open_pool, &root)?.into_iter().next();
    facts(open_pool, info.ok_or_else(|| Failure("the pool has no root data set".to_owned()))?)
}

/// Sets properties. An invalid value is refused before the first is set.
pub(super) fn set(open_pool: &OpenPool, paths: &[String], settings: &[Setting]) -> Outcome<Vec<String>> {
    for setting in settings {
        properties::validate_setting(setting, open_pool.pool.max_block())?;
    }
    let datasets = paths.iter().map(|path| open(open_pool, path)).collect::<Outcome<Vec<_>>>()?;
    for dataset in &datasets {
        settings.iter().try_for_each(|setting| properties::set_one(dataset, setting))?;
    }
    open_pool.pool.commit()?;
    Ok(pending(open_pool, &datasets, settings.iter().map(|setting| &setting.name)))
}

pub(super) fn inherit(
    open_pool: &OpenPool,
    of: &Selection,
    names: &[String],
    received: bool,
) -> Outcome<Vec<String>> {
    let chosen = selected(open_pool, of)?;
    let datasets = chosen.iter().map(|info| open(open_pool, &info.path)).collect::<Outcome<Vec<_>>>()?;
    for (dataset, index) in datasets.iter().zip(0..) {
        for name in names {
            match properties::reset_one(dataset, name, received) {
                // With -r, a property of the whole pool applies to the first data set, and the others are skipped.
                Err(DatasetError::PoolWide { .. }) if of.recursive && index > 0 => {}
                done => done?,
            }
        }
    }
    open_pool.pool.commit()?;
    Ok(pending(open_pool, &datasets, names.iter()))
}

/// Properties that take effect only at the next mount of a data set.
fn pending<'a>(
    open_pool: &OpenPool,
    datasets: &[Arc<Dataset>],
    names: impl Iterator<Item = &'a String>,
) -> Vec<String> {
    let waits = |name: &&String| datasets.iter().any(|dataset| dataset.is_pending(name));
    names.filter(|name| open_pool.is_served() && waits(name)).cloned().collect()
}

pub(super) fn list(open_pool: &OpenPool, of: &Selection, names: &[String]) -> Outcome<Vec<DatasetRow>> {
    let wants = |kind: &str| of.kinds.iter().any(|wanted| wanted == kind || wanted == "all");
    let pool = open_pool.pool.name();
    let mut rows = Vec::new();
    for info in selected(open_pool, of)? {
        let path = info.path.clone();
        if of.kinds.is_empty() || wants("filesystem") {
            rows.push(dataset_row(open_pool, &pool, info, names)?);
        }
        if wants("snapshot") {
            rows.extend(snapshot_rows(open_pool, &pool, &path)?);
        }
        if wants("bookmark") {
            rows.extend(bookmark_rows(open_pool, &pool, &path)?);
        }
    }
    Ok(rows)
}

/// The snapshots of a data set, oldest first.
fn snapshot_rows(open_pool: &OpenPool, pool: &str, path: &str) -> Outcome<Vec<DatasetRow>> {
    let snapshots = open_pool.datasets.snapshots(path)?;
    if snapshots.is_empty() {
        return Ok(Vec::new());
    }
    let space = open_pool.datasets.space(path)?;
    let by_name: BTreeMap<&str, _> =
        space.snapshots.iter().map(|usage| (usage.name.as_str(), usage)).collect();
    let row = |snapshot: Snapshot| {
        let usage = by_name.get(snapshot.name.as_str()).map(|usage| (*usage).clone()).unwrap_or_default();
        DatasetRow {
            name: format!("{}@{}", full_name(pool, path), snapshot.name),
            kind: "snapshot",
            used: usage.used,
            available: None,
            referenced: usage.referenced,
            objects: None,
            mountpoint: None,
            creation: Some(snapshot.info.time_ns / 1_000_000_000),
            guid: Some(snapshot.info.guid),
            origin: None,
            written: Some(usage.written),
            properties: BTreeMap::new(),
        }
    };
    Ok(snapshots.into_iter().map(row).collect())
}

fn bookmark_rows(open_pool: &OpenPool, pool: &str, path: &str) -> Outcome<Vec<DatasetRow>> {
    let row = |bookmark: Bookmark| DatasetRow {
        name: format!("{}#{}", full_name(pool, path), bookmark.name),
        kind: "bookmark",
        used: 0,
        available: None,
        referenced: 0,
        objects: None,
        mountpoint: None,
        creation: Some(bookmark.time_ns / 1_000_000_000),
        guid: Some(bookmark.guid),
        origin: None,
        written: None,
        properties: BTreeMap::new(),
    };
    Ok(open_pool.datasets.bookmarks(path)?.into_iter().map(row).collect())
}

fn dataset_row(open_pool: &OpenPool, pool: &str, info: DatasetInfo, names: &[String]) -> Outcome<DatasetRow> {
    let path = info.path.clone();
    let facts = facts(open_pool, info)?;
    let dataset = open(open_pool, &path)?;
    let mut properties = BTreeMap::new();
    if !names.is_empty() {
        for row in properties::rows_of(open_pool, &path, &dataset, &facts, names)? {
            properties.insert(row.property, row.value);
        }
    }
    let mountpoint =
        open_pool.mounts.list().into_iter().find(|mount| mount.path == path).map(|mount| mount.dir);
    Ok(DatasetRow {
        name: full_name(pool, &path),
        kind: "filesystem",
        used: facts.usage.used,
        available: Some(facts.usage.available),
        referenced: facts.usage.space.referenced,
        objects: Some(dataset.object_set().usage().objects),
        mountpoint: mountpoint.map(|dir| dir.display().to_string()),
        creation: facts.creation,
        guid: facts.guid,
        origin: facts.origin,
        written: Some(facts.usage.space.written),
        properties,
    })
}

pub(super) fn create(
    open_pool: &OpenPool,
    path: &str,
    parents: bool,
    settings: &[Setting],
) -> Outcome<Vec<Changed>> {
    properties::refuse_limits(settings, "data set")?;
    for setting in settings {
        properties::validate_setting(setting, open_pool.pool.max_block())?;
    }
    let pool = open_pool.pool.name();
    let mut done = Vec::new();
    let above: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
    for at in above.into_iter().filter(|_| parents) {
        let parent = path.get(..at).unwrap_or_default();
        match open_pool.datasets.branch(parent) {
            Ok(_) => {}
            Err(DatasetError::Unknown { .. }) => done.push(create_one(open_pool, &pool, parent, &[])?),
            Err(error) => return Err(named(open_pool, error)),
        }
    }
    if parents && open_pool.datasets.branch(path).is_ok() {
        return Ok(done);
    }
    let settings: Vec<(&str, &str)> =
        settings.iter().map(|set| (set.name.as_str(), set.value.as_str())).collect();
    done.push(create_one(open_pool, &pool, path, &settings)?);
    Ok(done)
}

fn create_one(open_pool: &OpenPool, pool: &str, path: &str, settings: &[(&str, &str)]) -> Outcome<Changed> {
    let sys::ProcessUser { uid, gid } = sys::process_user()?;
    let owner = Cred { uid, gid, umask: 0 };
    let made =
        open_pool.datasets.create(path, settings, &mut |dataset, tx| Fs::format_in(dataset, tx, &owner));
    made.map_err(|error| named(open_pool, error))?;
    open_pool.pool.commit()?;
    Ok(Changed { name: full_name(pool, path) })
}

/// Something that was or would be destroyed.
#[derive(Serialize)]
pub(super) struct DestroyedRow {
    pub name: String,
    /// Only on the first row of the snapshots of each data set: bytes that they free together.
    pub reclaim: Option<u64>,
}

/// Destroys a data set; with `recursive` also its snapshots, and all data sets below. All is checked before the first is
/// destroyed.
pub(super) fn destroy(
    open_pool: &OpenPool,
    path: &str,
    (recursive, dry_run): (bool, bool),
) -> Outcome<Vec<DestroyedRow>> {
    let datasets = &open_pool.datasets;
    let pool = open_pool.pool.name();
    let named = |error| named(open_pool, error);
    let mut doomed = vec![path.to_owned()];
    if recursive {
        let mut tree = datasets.list().map_err(named)?;
        tree.retain(|info| info.path == path || is_below(&info.path, path));
        if !tree.is_empty() {
            doomed = in_order_of_destruction(&tree).map_err(named)?;
        }
        check_not_mounted(open_pool, path)?;
        datasets.check_destroy_all(&doomed).map_err(named)?;
    } else {
        datasets.check_destroy(path).map_err(named)?;
    }
    let mut rows = Vec::new();
    for path in &doomed {
        if recursive {
            let known = datasets.snapshots(path).map_err(named)?;
            let names = known.into_iter().map(|snapshot| snapshot.name).collect();
            destroy_snapshots(open_pool, path, names, dry_run, &mut rows)?;
        }
        if !dry_run {
            datasets.destroy(path).map_err(named)?;
        }
        rows.push(DestroyedRow { name: full_name(&pool, path), reclaim: None });
    }
    if !dry_run {
        open_pool.pool.commit()?;
    }
    Ok(rows)
}

/// Destroys these snapshots of a data set, and appends their rows.
pub(super) fn destroy_snapshots(
    open_pool: &OpenPool,
    path: &str,
    names: Vec<String>,
    dry_run: bool,
    rows: &mut Vec<DestroyedRow>,
) -> Outcome {
    if names.is_empty() {
        return Ok(());
    }
    let datasets = &open_pool.datasets;
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut reclaim = Some(datasets.reclaimable(path, &words).map_err(|error| named(open_pool, error))?);
    if !dry_run {
        datasets.destroy_snapshots(path, &words).map_err(|error| named(open_pool, error))?;
    }
    let full = full_name(&open_pool.pool.name(), path);
    rows.extend(
        names
            .into_iter()
            .map(|name| DestroyedRow { name: format!("{full}@{name}"), reclaim: reclaim.take() }),
    );
    Ok(())
}

/// The paths of a tree, each after the data sets below it and after the clones of its snapshots.
fn in_order_of_destruction(tree: &[DatasetInfo]) -> Result<Vec<String>, DatasetError> {
    let places: BTreeMap<&str, usize> =
        tree.iter().enumerate().map(|(at, info)| (info.path.as_str(), at)).collect();
    let above = |info: &DatasetInfo| info.path.rsplit_once('/').and_then(|(above, _)| places.get(above));
    let source = |info: &DatasetInfo| {
        let (source, _) = info.origin.as_ref()?.rsplit_once('@')?;
        places.get(source)
    };
    let mut waits_for = vec![0; tree.len()];
    let later = |info: &DatasetInfo| above(info).into_iter().chain(source(info)).copied().collect::<Vec<_>>();
    for at in tree.iter().flat_map(&later) {
        waits_for[at] += 1;
    }
    let mut ready: Vec<usize> = (0..tree.len()).filter(|at| waits_for[*at] == 0).collect();
    let mut order = Vec::with_capacity(tree.len());
    while let Some(at) = ready.pop() {
        order.push(tree[at].path.clone());
        for at in later(&tree[at]) {
            waits_for[at] -= 1;
            if waits_for[at] == 0 {
                ready.push(at);
            }
        }
    }
    let is_left = |(at, info): &(usize, &DatasetInfo)| waits_for[*at] > 0 && source(info).is_some();
    match tree.iter().enumerate().find(is_left) {
        None => Ok(order),
        Some((_, clone)) => Err(DatasetError::InUse {
            name: clone.origin.clone().unwrap_or_default(),
            by: format!("cloned as {}, which lies above it: promote that first", clone.path),
        }),
    }
}

/// Whether a path lies below another.
pub(super) fn is_below(path: &str, above: &str) -> bool {
    let rest =
        if above.is_empty() { Some(path).filter(|path| !path.is_empty()) } else { path.strip_prefix(above) };
    rest.is_some_and(|rest| above.is_empty() || rest.starts_with('/'))
}

/// Refuses snapshots of a data set that are mounted.
pub(super) fn check_snapshots_not_mounted<'a>(
    open_pool: &OpenPool,
    path: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Outcome {
    let mounts = open_pool.mounts.list();
    for name in names {
        let whole = format!("{path}@{name}");
        if let Some(mount) = mounts.iter().find(|mount| mount.path == whole) {
            let (name, expected) =
                (full_name(&open_pool.pool.name(), &whole), "a snapshot that is not mounted");
            let found = format_args!("mounted on {}", mount.dir.display());
            return Err(Failure::refused(name, expected, found, "unmount it first"));
        }
    }
    Ok(())
}

/// Refuses a data set that is mounted, or with a mounted data set below it or a mounted snapshot of these. Mounts know data
/// sets by path.
fn check_not_mounted(open_pool: &OpenPool, path: &str) -> Outcome {
    let mounts = open_pool.mounts.list();
    let is_of = |mounted: &str| {
        mounted.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    let Some(mount) = mounts.iter().find(|mount| is_of(&mount.path)) else { return Ok(()) };
    let pool = open_pool.pool.name();
    let found = format_args!("{} on {}", full_name(&pool, &mount.path), mount.dir.display());
    Err(Failure::refused(full_name(&pool, path), "nothing of it mounted", found, "unmount it first"))
}

pub(super) fn rename(open_pool: &OpenPool, path: &str, to: &str) -> Outcome<Vec<Changed>> {
    check_not_mounted(open_pool, path)?;
    open_pool.datasets.rename(path, to).map_err(|error| named(open_pool, error))?;
    open_pool.pool.commit()?;
    Ok(vec![Changed { name: full_name(&open_pool.pool.name(), to) }])
}
