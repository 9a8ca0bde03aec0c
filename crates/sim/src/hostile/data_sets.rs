//! The data sets of an image, and everything that can be done with them.

use super::walk;
use crate::machine::{Machine, ROOT, USER};
use crate::workload::Workload;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrane_dataset::{Dataset, DatasetError, Datasets};
use terrane_device::SimDevice;
use terrane_object::ObjectSets;
use terrane_oracle::{Failure, failed};
use terrane_posix::{Fs, WriteFlags};
use terrane_wire::Prng;

/// Names of the data sets of an image. Those of a forged one may be others.
const PATHS: [&str; 4] = ["", "a", "a/below", "clone"];
/// Txgs after which everything that was destroyed is freed.
const TXGS_MAX: u32 = 300;
/// Txgs of a forged pool that still frees. Each frees a bounded number of blocks, but a tree whose pointers repeat has no end.
const FORGED_TXGS_MAX: u32 = 4;
/// Data sets and snapshots of a small image.
const SETS_MAX: usize = 200;

/// Writes half of the files `0` to `files` of a data set anew.
fn write(fs: &Fs, files: u64, random: &mut Prng) -> Result<(), Failure> {
    for file in 0..files {
        if random.one_in(2) {
            continue;
        }
        let name = format!("file {file}");
        let found = fs.lookup(fs.root(), name.as_bytes()).map(|attr| attr.ino);
        let create = |_| fs.create(fs.root(), name.as_bytes(), 0o644, &USER).map(|attr| attr.ino);
        let ino = found.or_else(create).map_err(failed("create"))?;
        let len = 1 + random.below(6000) as usize;
        let bytes = random.random_bytes(len);
        fs.write(ino, random.below(9000), &bytes, WriteFlags::default()).map_err(failed("write"))?;
        fs.forget(ino, 1);
    }
    fs.sync().map_err(failed("sync"))
}

/// Clones records of files to the next ones, so that a snapshot, another file or both refer to a block too.
fn share(fs: &Fs, files: u64) -> Result<(), Failure> {
    let find = |file: u64| fs.lookup(fs.root(), format!("file {file}").as_bytes()).map(|attr| attr.ino);
    for file in (1..files).step_by(3) {
        let (Ok(from), Ok(to)) = (find(file - 1), find(file)) else { continue };
        fs.copy_range(from, 0, to, 0, 12 << 10).map_err(failed("clone"))?;
        fs.forget(from, 1);
        fs.forget(to, 1);
    }
    fs.sync().map_err(failed("sync"))
}

/// Runs txgs until nothing waits to be freed.
fn settle(machine: &Machine, txgs_max: u32) -> Result<(), Failure> {
    for _ in 0..txgs_max {
        let pool = &machine.pool;
        pool.commit_txg(pool.open_txg()).map_err(failed("commit"))?;
        if !pool.has_work_left() {
            return Ok(());
        }
    }
    Err(Failure("the pool never comes to rest".into()))
}

/// Adds data sets, snapshots that share blocks, a clone, dead lists of several parts, a hold, a bookmark. At last a data set is
/// destroyed, and the image ends before the txg that would end it.
pub(super) fn add(workload: &mut Workload) -> Result<(), Failure> {
    let datasets = Datasets::open(&workload.machine.objects).map_err(failed("data sets"))?;
    let mut random = Prng::new(7);
    let take = |path: &str, name: &str| datasets.snapshot(&[(path, name)]).map_err(failed("snapshot"));
    let open = |path: &str| {
        let dataset = datasets.open_dataset(path).map_err(failed("open"))?;
        Fs::open(dataset).map_err(failed("mount"))
    };
    let create = |path: &str| {
        let mut format = |dataset: &Dataset, tx: &terrane_pool::Tx| Fs::format_in(dataset, tx, &ROOT);
        datasets.create(path, &[("recordsize", "4K")], &mut format).map_err(failed("create"))
    };
    take("", "root1")?;
    for _ in 0..12 {
        workload.step()?;
    }
    workload.sync()?;
    take("", "root2")?;
    create("a")?;
    create("a/below")?;
    {
        let fs = open("a")?;
        for name in ["s1", "s2", "s3", "s4"] {
            write(&fs, 60, &mut random)?;
            share(&fs, 60)?;
            take("a", name)?;
        }
        write(&fs, 60, &mut random)?;
        write(&*open("a/below")?, 4, &mut random)?;
        // Its list becomes a part of the next one.
        datasets.destroy_snapshots("a", &["s2"]).map_err(failed("destroy"))?;
        datasets.clone_snapshot("a", "s1", "clone").map_err(failed("clone"))?;
        let clone = open("clone")?;
        write(&clone, 60, &mut random)?;
        take("clone", "c1")?;
        write(&clone, 60, &mut random)?;
        for fs in [fs, clone] {
            fs.forget_all();
        }
    }
    datasets.hold("a", "s3", "tag").map_err(failed("hold"))?;
    datasets.bookmark("a", "s3", "mark").map_err(failed("bookmark"))?;
    create("gone")?;
    {
        let fs = open("gone")?;
        write(&fs, 4, &mut random)?;
        fs.forget_all();
    }
    settle(&workload.machine, TXGS_MAX)?;
    datasets.destroy("gone").map_err(failed("destroy"))?;
    let pool = &workload.machine.pool;
    pool.commit_txg(pool.open_txg()).map_err(failed("commit")).map(drop)
}

/// Reads all data sets and snapshots. Returns what failed first.
pub(super) fn walk_all(objects: &Arc<ObjectSets>) -> Result<Option<String>, Failure> {
    let mut first = None;
    let mut note = |what: &dyn std::fmt::Display, error: &dyn std::fmt::Display| {
        first.get_or_insert_with(|| format!("{what}: {error}"));
    };
    let datasets = match Datasets::open(objects) {
        Ok(datasets) => datasets,
        Err(error) => return Ok(Some(format!("data sets: {error}"))),
    };
    let listed = datasets.list().unwrap_or_else(|error| {
        note(&"list", &error);
        Vec::new()
    });
    let paths: BTreeSet<String> =
        listed.into_iter().map(|info| info.path).chain(PATHS.map(String::from)).collect();
    for path in paths.into_iter().take(SETS_MAX) {
        let mut read = |name: &str, opened: Result<Arc<Dataset>, DatasetError>| {
            let opened = opened.map_err(|error| error.to_string());
            let mounted = opened.and_then(|set| Fs::open(set).map_err(|error| error.to_string()));
            match mounted {
                Ok(fs) => match walk(&fs, None)? {
                    0 => {}
                    errors => note(&name, &format_args!("{errors} reads failed")),
                },
                Err(error) => note(&name, &error),
            }
            Ok::<(), Failure>(())
        };
        read(&path, datasets.open_dataset(&path))?;
        let snapshots = datasets.snapshots(&path).unwrap_or_default();
        for snapshot in snapshots.iter().take(SETS_MAX) {
            read(&format!("{path}@{}", snapshot.name), datasets.open_snapshot(&path, &snapshot.name))?;
        }
        let names: Vec<&str> = snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
        let asked = [
            ("snapshots", datasets.snapshots(&path).map(drop)),
            ("usage", datasets.usage(&path).map(drop)),
            ("holds", datasets.holds(&path).map(drop)),
            ("bookmarks", datasets.bookmarks(&path).map(drop)),
            ("reclaimable", datasets.reclaimable(&path, &names).map(drop)),
            ("written", names.iter().try_for_each(|name| datasets.written_since(&path, name).map(drop))),
        ];
        for (what, outcome) in asked {
            if let Err(error) = outcome {
                note(&format_args!("{what} of {path}"), &error);
            }
        }
    }
    Ok(first)
}

/// Does everything that can be done with data sets and snapshots, and checks the pool. Operations may fail or the pool may stop,
/// but each ends.
pub(super) fn live(device: &SimDevice) -> Result<(), Failure> {
    let Ok(machine) = Machine::import(device, 1, false) else { return Ok(()) };
    let Ok(datasets) = Datasets::open(&machine.objects) else { return Ok(()) };
    let mut paths: Vec<String> =
        datasets.list().unwrap_or_default().into_iter().map(|info| info.path).collect();
    paths.extend(PATHS.map(String::from));
    paths.sort_unstable();
    paths.dedup();
    paths.truncate(SETS_MAX);
    let mut random = Prng::new(3);
    for path in &paths {
        if let Ok(fs) = datasets.open_dataset(path).and_then(Fs::open) {
            let _ = write(&fs, 12, &mut random);
            fs.forget_all();
        }
        let _ = datasets.snapshot(&[(path, "new")]);
        let _ = datasets.rename_snapshot(path, "new", "newer");
        let _ = datasets.hold(path, "newer", "tag").and_then(|()| datasets.release(path, "newer", "tag"));
        let _ = datasets.bookmark(path, "newer", "own");
        let _ = datasets.usage(path);
    }
    let _ = datasets.promote("clone");
    let mut format = |dataset: &Dataset, tx: &terrane_pool::Tx| Fs::format_in(dataset, tx, &ROOT);
    let _ = datasets.create("a/made", &[], &mut format);
    let _ = datasets.rename("a/made", "made");
    for path in &paths {
        let snapshots = datasets.snapshots(path).unwrap_or_default();
        let names: Vec<&str> =
            snapshots.iter().map(|snapshot| snapshot.name.as_str()).take(SETS_MAX).collect();
        if let Some(first) = names.first() {
            let _ = datasets.clone_snapshot(path, first, "taken").and_then(Fs::open);
            let _ = datasets.destroy("taken");
        }
        if let Some(name) = names.get(names.len() / 2) {
            let _ = datasets.rollback(path, name, true);
        }
        if let Some(first) = names.first() {
            let _ = datasets.destroy_snapshots(path, &[first]);
        }
        for name in &names {
            let _ = datasets.release(path, name, "tag");
        }
        let _ = datasets.destroy_snapshots(path, &names);
        for name in names {
            let _ = datasets.destroy_snapshots(path, &[name]);
        }
    }
    for path in paths.iter().rev() {
        let _ = datasets.destroy(path);
    }
    let _ = settle(&machine, FORGED_TXGS_MAX);
    let _ = terrane_check::check(&machine.objects, &mut |_| {});
    Ok(())
}
