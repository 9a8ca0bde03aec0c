//! Data sets, snapshots and clones: random lives beside a model that keeps every snapshot, also when the power is cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_dataset::{Dataset, Datasets};
use terrane_device::SimDevice;
use terrane_format::features::{Feature, FeatureState};
use terrane_posix::{Fs, InodeFlags, ReadOptions, SetAttr, WriteFlags};
use terrane_sim::machine::{Machine, Plan, ROOT};
use terrane_wire::Prng;

/// Files of a data set by name.
type Files = BTreeMap<String, Vec<u8>>;

/// What the pool should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    heads: BTreeMap<String, Files>,
    /// By data set; of each its snapshots, oldest first.
    snapshots: BTreeMap<String, Vec<(String, Files)>>,
    /// Origins of clones: data set and snapshot.
    origins: BTreeMap<String, (String, String)>,
}

impl Model {
    fn promote(&mut self, clone: &str) {
        let (source, name) = self.origins.remove(clone).unwrap();
        let mut all = self.snapshots.remove(&source).unwrap();
        let at = all.iter().position(|(other, _)| *other == name).unwrap();
        let left = all.split_off(at + 1);
        let moved: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
        all.append(self.snapshots.entry(clone.to_string()).or_default());
        self.snapshots.insert(clone.to_string(), all);
        self.snapshots.insert(source.clone(), left);
        for (of, snapshot) in self.origins.values_mut() {
            if *of == source && moved.contains(snapshot) {
                *of = clone.to_string();
            }
        }
        if let Some(origin) = self.origins.remove(&source) {
            self.origins.insert(clone.to_string(), origin);
        }
        self.origins.insert(source, (clone.to_string(), name));
    }
}

struct World {
    machine: Machine,
    datasets: Arc<Datasets>,
    mounts: BTreeMap<String, Arc<Fs>>,
    model: Model,
    random: Prng,
    next: u64,
}

fn format(dataset: &Dataset, tx: &terrane_pool::Tx) -> Result<(), terrane_dataset::DatasetError> {
    Fs::format_in(dataset, tx, &ROOT)
}

fn files_of(fs: &Arc<Fs>) -> Files {
    let mut names = Vec::new();
    fs.readdir_as(fs.root(), 2, ReadOptions { keeps_atime: true, no_prefetch: true }, &mut |entry| {
        names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino));
        true
    })
    .unwrap();
    let content = |ino| {
        let (size, mut bytes) = (fs.getattr(ino).unwrap().size, Vec::new());
        fs.read(ino, 0, size as u32, &mut bytes).unwrap();
        bytes
    };
    names.into_iter().map(|(name, ino)| (name, content(ino))).collect()
}

impl World {
    fn new(seed: u64) -> World {
        let machine = Machine::create(&Plan::small(seed)).unwrap();
        let (random, model) = (Prng::new(seed), Model::default());
        let mut world = World::of(machine, model, random);
        world.model.heads.insert(String::new(), Files::new());
        world
    }

    fn of(machine: Machine, model: Model, random: Prng) -> World {
        let datasets = Datasets::open(&machine.objects).unwrap();
        World { machine, datasets, mounts: BTreeMap::new(), model, random, next: 0 }
    }

    fn import(device: &SimDevice, seed: u64, model: Model) -> World {
        World::of(Machine::import(device, seed, false).unwrap(), model, Prng::new(seed))
    }

    fn fs(&mut self, path: &str) -> Arc<Fs> {
        let datasets = &self.datasets;
        let open = || Fs::open(datasets.open_dataset(path).unwrap()).unwrap();
        Arc::clone(self.mounts.entry(path.to_string()).or_insert_with(open))
    }

    fn unmount(&mut self, path: &str) {
        if let Some(fs) = self.mounts.remove(path) {
            fs.forget_all();
        }
    }

    fn name(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    fn pick<T: Clone>(&mut self, from: Vec<T>) -> Option<T> {
        if from.is_empty() { None } else { Some(self.random.one_of(&from).clone()) }
    }

    /// A file to copy from: of the data set itself, of another, or of a snapshot.
    fn pick_source(&mut self, path: &str, target: &str) -> Option<(Arc<Fs>, String, Vec<u8>)> {
        let heads: Vec<String> = self.model.heads.keys().cloned().collect();
        let other = if self.random.one_in(2) { path.to_string() } else { self.pick(heads)? };
        let snapshots = self.model.snapshots.get(&other).cloned().unwrap_or_default();
        let (of, files) = match self.pick(snapshots).filter(|_| self.random.one_in(2)) {
            Some((name, files)) => {
                (Fs::open(self.datasets.open_snapshot(&other, &name).unwrap()).unwrap(), files)
            }
            None => (self.fs(&other), self.model.heads[&other].clone()),
        };
        let (name, content) = self.pick(files.into_iter().collect())?;
        // Ranges within one file may overlap.
        (of.is_read_only() || other != path || name != target).then_some((of, name, content))
    }

    fn change_files(&mut self, path: &str) {
        let fs = self.fs(path);
        for _ in 0..1 + self.random.below(5) {
            let known: Vec<String> = self.model.heads[path].keys().cloned().collect();
            let name = match self.random.below(3) {
                0 => self.name("f"),
                _ => self.pick(known.clone()).unwrap_or_else(|| self.name("f")),
            };
            let source = if self.random.one_in(2) { self.pick_source(path, &name) } else { None };
            let files = self.model.heads.get_mut(path).unwrap();
            let ino = fs.lookup(fs.root(), name.as_bytes()).map(|attr| attr.ino);
            if ino.is_ok() && self.random.one_in(5) {
                fs.unlink(fs.root(), name.as_bytes()).unwrap();
                files.remove(&name);
                continue;
            }
            let ino =
                ino.unwrap_or_else(|_| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino);
            if let Some((of, source, shared)) = source {
                let from = of.lookup(of.root(), source.as_bytes()).unwrap().ino;
                let (at, into, len) = if self.random.one_in(2) {
                    (0, 0, shared.len())
                } else {
                    // Mostly whole records.
                    let unit = if self.random.one_in(4) { 1000 } else { 8192 };
                    let [at, into, len] =
                        [40_000, 80_000, 60_000].map(|below| self.random.below(below) / unit * unit);
                    let at = (at as usize).min(shared.len());
                    (at, into as usize, (len as usize).min(shared.len() - at))
                };
                let copied = fs.clone_range_from(&of, (from, at as u64), ino, into as u64, len as u64);
                assert_eq!(copied.map(|copied| copied.bytes), Ok(len as u64));
                of.forget(from, 1);
                if len == 0 {
                    files.entry(name).or_default();
                    continue;
                }
                let content = files.entry(name).or_default();
                content.resize(content.len().max(into + len), 0);
                content[into..into + len].copy_from_slice(&shared[at..at + len]);
                continue;
            }
            let content = files.entry(name).or_default();
            let at = self.random.below(60_000) as usize;
            let len = 1 + self.random.below(20_000) as usize;
            let bytes = self.random.random_bytes(len);
            fs.write(ino, at as u64, &bytes, WriteFlags::default()).unwrap();
            if self.random.one_in(3) {
                // `check` compares the counts of owners, which snapshots, clones and rollbacks carry along.
                let owner =
                    SetAttr { uid: Some(self.random.below(60) as u32), gid: Some(7), ..SetAttr::default() };
                fs.setattr(ino, &owner, &ROOT).unwrap();
                fs.set_flags_and_project(ino, InodeFlags::default(), self.random.below(3) as u32).unwrap();
            }
            content.resize(content.len().max(at + bytes.len()), 0);
            content[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        self.machine.pool.commit().unwrap();
    }

    fn clones_of(&self, path: &str, name: &str) -> bool {
        self.model.origins.values().any(|(of, snapshot)| of == path && snapshot == name)
    }

    /// One change of the model and of the pool, durable on return.
    fn step(&mut self) {
        let paths: Vec<String> = self.model.heads.keys().cloned().collect();
        let path = self.pick(paths).unwrap();
        let snapshots: Vec<String> =
            self.model.snapshots.get(&path).into_iter().flatten().map(|(name, _)| name.clone()).collect();
        match self.random.below(20) {
            0..8 => self.change_files(&path),
            8..12 => {
                let name = self.name("s");
                self.datasets.snapshot(&[(&path, &name)]).unwrap();
                let files = self.model.heads[&path].clone();
                self.model.snapshots.entry(path).or_default().push((name, files));
            }
            12..15 => {
                let Some(name) = self.pick(snapshots).filter(|name| !self.clones_of(&path, name)) else {
                    return;
                };
                self.datasets.destroy_snapshots(&path, &[&name]).unwrap();
                self.model.snapshots.get_mut(&path).unwrap().retain(|(other, _)| *other != name);
            }
            15 if self.model.heads.len() < 6 => {
                let name = self.name(if path.is_empty() { "d" } else { "/d" });
                let child = format!("{path}{name}");
                self.datasets.create(&child, &[("recordsize", "8K")], &mut format).unwrap();
                self.model.heads.insert(child, Files::new());
            }
            16 if self.model.heads.len() < 6 => {
                let Some(name) = self.pick(snapshots) else { return };
                let target = self.name("c");
                self.datasets.clone_snapshot(&path, &name, &target).unwrap();
                let files =
                    self.model.snapshots[&path].iter().find(|(other, _)| *other == name).unwrap().1.clone();
                self.model.heads.insert(target.clone(), files);
                self.model.origins.insert(target, (path, name));
            }
            17 | 18 if !path.is_empty() => {
                let below = format!("{path}/");
                let has_children = self.model.heads.keys().any(|other| other.starts_with(&below));
                if has_children || snapshots.iter().any(|name| self.clones_of(&path, name)) {
                    return;
                }
                self.unmount(&path);
                let names: Vec<&str> = snapshots.iter().map(String::as_str).collect();
                // Two operations: a crash may come between them.
                self.datasets.destroy_snapshots(&path, &names).unwrap();
                self.model.snapshots.remove(&path);
                self.machine.pool.commit().unwrap();
                self.datasets.destroy(&path).unwrap();
                self.model.heads.remove(&path);
                self.model.origins.remove(&path);
            }
            15 | 16 => {
                let clones: Vec<String> = self.model.origins.keys().cloned().collect();
                let Some(clone) = self.pick(clones) else { return };
                self.datasets.promote(&clone).unwrap();
                self.model.promote(&clone);
            }
            19 => {
                let all = self.model.snapshots.get(&path).cloned().unwrap_or_default();
                let Some((name, files)) = self.pick(all.clone()) else { return };
                let kept = all.iter().take_while(|(other, _)| *other != name).count() + 1;
                let newer: Vec<String> = all.iter().skip(kept).map(|(name, _)| name.clone()).collect();
                if newer.iter().any(|name| self.clones_of(&path, name)) {
                    return;
                }
                self.unmount(&path);
                // Newer ones go in the same transaction.
                self.datasets.rollback(&path, &name, !newer.is_empty()).unwrap();
                self.model.snapshots.get_mut(&path).unwrap().truncate(kept);
                self.model.heads.insert(path, files);
            }
            _ => {}
        }
        self.machine.pool.commit().unwrap();
    }

    /// The names in the pool, and the content of the heads.
    fn found(&mut self) -> Model {
        let mut found = Model::default();
        let mut origins = BTreeMap::new();
        for info in self.datasets.list().unwrap() {
            let fs = self.fs(&info.path);
            found.heads.insert(info.path.clone(), files_of(&fs));
            let snapshots = self.datasets.snapshots(&info.path).unwrap();
            let named =
                snapshots.into_iter().map(|snapshot| (snapshot.name, Files::new())).collect::<Vec<_>>();
            if !named.is_empty() {
                found.snapshots.insert(info.path.clone(), named);
            }
            if let Some(origin) = info.origin {
                let (of, name) = origin.split_once('@').unwrap();
                origins.insert(info.path, (of.to_string(), name.to_string()));
            }
        }
        found.origins = origins;
        found
    }

    fn names_only(model: &Model) -> Model {
        let mut model = model.clone();
        model.snapshots.retain(|_, all| !all.is_empty());
        model.snapshots.values_mut().flatten().for_each(|(_, files)| files.clear());
        model
    }

    /// Reads every snapshot through a clone.
    fn check_snapshots(&mut self) {
        for (path, all) in self.model.snapshots.clone() {
            for (name, files) in all {
                self.datasets.clone_snapshot(&path, &name, "looked at").unwrap();
                let fs = self.fs("looked at");
                assert!(files_of(&fs) == files, "snapshot {path}@{name} holds something else");
                drop(fs);
                self.unmount("looked at");
                self.datasets.destroy("looked at").unwrap();
            }
        }
        self.machine.pool.commit().unwrap();
    }

    /// What is said of the space of snapshots is what their destruction frees.
    fn check_space(&mut self) {
        self.settle();
        // As a server that has just begun counts.
        let stored = Datasets::open(&self.machine.objects).unwrap();
        let paths: Vec<String> = self.model.heads.keys().cloned().collect();
        for path in paths {
            let usage = self.datasets.space(&path).unwrap();
            let all: Vec<String> = usage.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect();
            for (name, snapshot) in all.iter().zip(&usage.snapshots) {
                let alone = self.datasets.reclaimable(&path, &[name]).unwrap();
                if !self.clones_of(&path, name) {
                    assert_eq!(alone, snapshot.used, "{path}@{name}");
                }
            }
            let names: Vec<&str> = all.iter().map(String::as_str).collect();
            assert_eq!(self.datasets.reclaimable(&path, &names).unwrap(), usage.by_snapshots, "{path}");
            // What quotas count.
            let branch = self.datasets.branch(&path).unwrap();
            let (counted, shown) = (branch.used_bytes(), self.datasets.usage(&path).unwrap().used);
            let stored = stored.branch(&path).unwrap();
            assert_eq!(branch.own_usage(), stored.own_usage(), "{path}");
            assert_eq!(counted, stored.used_bytes(), "{path}");
            // Listings count the root block of the object set too, and of a clone without that of its origin. Tables
            // of owners change the size of root blocks.
            assert!(shown.abs_diff(counted) < 4096, "{path}: {shown} shown, {counted} counted");
            if let Some(last) = all.last() {
                assert_eq!(self.datasets.written_since(&path, last).unwrap(), usage.written, "{path}");
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            let pool = &self.machine.pool;
            pool.commit_txg(pool.open_txg()).unwrap();
            if !pool.has_work_left() && !self.datasets.is_freeing() {
                return;
            }
        }
        panic!("the pool never comes to rest");
    }
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let count = std::env::var("TERRANE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default);
    0..count
}

#[test]
fn lives_with_snapshots_equal_the_model() {
    for seed in seeds(6) {
        let mut world = World::new(seed);
        for step in 0..120 {
            world.step();
            if step % 10 == 9 {
                world
                    .machine
                    .check()
                    .unwrap_or_else(|failure| panic!("seed {seed} step {step}: {failure:?}"));
            }
            if step % 40 == 39 {
                world.check_space();
                world.check_snapshots();
                let expected = World::names_only(&world.model);
                assert!(world.found() == expected, "seed {seed} step {step}");
                // A crash loses nothing.
                let device = world.machine.device.after_power_loss(seed);
                let World { model, .. } = world;
                world = World::import(&device, seed + step, model);
                let next = 1000 * (step + 1);
                world.next = next;
            }
        }
        // Without snapshots and clones the pool holds the heads alone.
        for path in world.model.heads.keys().cloned().collect::<Vec<_>>() {
            world.unmount(&path);
        }
        // The root cannot be destroyed, nor what it is a clone of.
        while world.model.origins.contains_key("") {
            world.datasets.promote("").unwrap();
            world.model.promote("");
        }
        while world.model.heads.len() > 1 || world.model.snapshots.values().any(|all| !all.is_empty()) {
            let heads: Vec<String> = world.model.heads.keys().rev().cloned().collect();
            for path in heads {
                let all: Vec<String> = world
                    .model
                    .snapshots
                    .get(&path)
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| name.clone())
                    .collect();
                let free: Vec<&str> =
                    all.iter().filter(|name| !world.clones_of(&path, name)).map(String::as_str).collect();
                world.datasets.destroy_snapshots(&path, &free).unwrap();
                let is_bare = free.len() == all.len();
                let gone: Vec<String> = free.into_iter().map(String::from).collect();
                if let Some(all) = world.model.snapshots.get_mut(&path) {
                    all.retain(|(name, _)| !gone.contains(name));
                }
                let below = format!("{path}/");
                let has_children = world.model.heads.keys().any(|other| other.starts_with(&below));
                if is_bare && !path.is_empty() && !has_children {
                    world.datasets.destroy(&path).unwrap();
                    world.model.heads.remove(&path);
                    world.model.origins.remove(&path);
                }
            }
        }
        world.settle();
        world.machine.check().unwrap_or_else(|failure| panic!("seed {seed} at the end: {failure:?}"));
        let kept: u64 = terrane_dataset::stored::StoredDataset::all(&world.machine.objects)
            .unwrap()
            .iter()
            .flat_map(|dataset| dataset.lists().collect::<Vec<_>>())
            .flat_map(|list| terrane_dataset::stored::list_parts(&world.machine.objects, list).unwrap())
            .map(|(_, info)| info.entries)
            .sum();
        assert_eq!(kept, 0, "seed {seed}: dead lists are not empty without snapshots");
    }
}

/// Counts and limits of owners are part of a data set.
#[test]
fn counts_and_limits_go_with_rollback_and_clone() {
    let mut world = World::new(7);
    let counts = |fs: &Fs| {
        let quotas = fs.dataset().quotas();
        (terrane_object::OwnerKind::ALL.map(|kind| quotas.usage(kind).unwrap()), quotas.list())
    };
    let limit = |fs: &Fs, limit| {
        let name = terrane_dataset::QuotaName::parse("userquota@5").unwrap();
        fs.dataset().quotas().set(name, limit).unwrap();
        fs.sync().unwrap();
    };
    let fs = world.fs("");
    let chown = |fs: &Fs, ino, uid| {
        fs.setattr(ino, &SetAttr { uid: Some(uid), ..SetAttr::default() }, &ROOT).unwrap();
    };
    let file = fs.create(fs.root(), b"file", 0o644, &ROOT).unwrap().ino;
    fs.write(file, 0, &world.random.random_bytes(50_000), WriteFlags::default()).unwrap();
    chown(&fs, file, 5);
    limit(&fs, 1 << 20);
    world.machine.pool.commit().unwrap();
    let then = counts(&fs);
    world.datasets.snapshot(&[("", "s")]).unwrap();
    world.machine.pool.commit().unwrap();
    for uid in 6..200 {
        let name = format!("file{uid}");
        let other = fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino;
        chown(&fs, other, uid);
    }
    chown(&fs, file, 6);
    limit(&fs, 2 << 20);
    world.machine.pool.commit().unwrap();
    assert_ne!(counts(&fs), then);
    world.datasets.clone_snapshot("", "s", "clone").unwrap();
    let of_clone = world.fs("clone");
    assert!(counts(&of_clone) == then, "the clone's are those of the snapshot");
    let file = of_clone.lookup(of_clone.root(), b"file").unwrap().ino;
    chown(&of_clone, file, 8);
    world.machine.pool.commit().unwrap();
    world.machine.check().unwrap();
    drop((fs, of_clone));
    ["", "clone"].iter().for_each(|path| world.unmount(path));
    world.datasets.destroy("clone").unwrap();
    world.machine.pool.commit().unwrap();
    world.datasets.rollback("", "s", false).unwrap();
    assert!(counts(&world.fs("")) == then, "rolled back");
    world.settle();
    world.machine.check().unwrap();
}

/// The power is cut at every write. What is found is the state before or after the step.
#[test]
fn every_power_cut_leaves_all_of_a_step_or_nothing() {
    for seed in seeds(2) {
        let mut world = World::new(seed + 100);
        let mut cuts = 0;
        for step in 0..40 {
            let before = world.model.clone();
            world.machine.device.record_power_cuts();
            world.step();
            let copies = world.machine.device.take_cut_copies();
            let after = world.model.clone();
            // All cuts of some steps, some cuts of all.
            let every = if step % 8 == 0 { 1 } else { 5 };
            for (at, device) in copies.into_iter().enumerate().filter(|(at, _)| at % every == 0) {
                cuts += 1;
                let device = device.after_power_loss(seed + at as u64);
                let mut found = World::import(&device, seed, before.clone());
                found
                    .machine
                    .check()
                    .unwrap_or_else(|failure| panic!("seed {seed} step {step} cut {at}: {failure:?}"));
                let state = found.found();
                let mut between = World::names_only(&before);
                if let Some(path) = before.heads.keys().find(|path| !after.heads.contains_key(*path)) {
                    between.snapshots.remove(path);
                }
                let is_known =
                    [&World::names_only(&before), &World::names_only(&after), &between].contains(&&state);
                // A step that changes files may have committed only some of them.
                let changes_files = World::names_only(&before).snapshots
                    == World::names_only(&after).snapshots
                    && before.heads.keys().eq(after.heads.keys());
                assert!(is_known || changes_files, "seed {seed} step {step} cut {at}: {state:?}");
                found.settle();
                found.machine.check().unwrap_or_else(|failure| {
                    panic!("seed {seed} step {step} cut {at}, settled: {failure:?}")
                });
            }
        }
        assert!(cuts > 50, "{cuts}");
    }
}

/// Created, removed, renamed, modified, and nothing else.
#[test]
fn diff_names_what_changed() {
    let mut world = World::new(7);
    let fs = world.fs("");
    let root = fs.root();
    let dir = |parent, name: &str| fs.mkdir(parent, name.as_bytes(), 0o755, &ROOT).unwrap().ino;
    let file = |parent, name: &str| {
        let ino = fs.create(parent, name.as_bytes(), 0o644, &ROOT).unwrap().ino;
        fs.write(ino, 0, name.as_bytes(), WriteFlags::default()).unwrap();
        ino
    };
    let (a, b) = (dir(root, "a"), dir(root, "b"));
    let deep = dir(a, "deep");
    for count in 0..300 {
        file(deep, &format!("quiet{count}"));
    }
    let (written, _, moved) = (file(a, "written"), file(a, "gone"), file(deep, "moved"));
    let (renamed, again) = (file(b, "renamed"), file(b, "again"));
    let below = file(deep, "below");
    let chmodded = file(b, "chmodded");
    world.datasets.snapshot(&[("", "before")]).unwrap();
    let since = world.datasets.find_snapshot("", "before").unwrap().info.created;
    world.datasets.clone_snapshot("", "before", "old").unwrap();

    fs.write(written, 100, b"more", WriteFlags::default()).unwrap();
    fs.unlink(a, b"gone").unwrap();
    file(b, "new");
    fs.rename(deep, b"moved", b, b"moved", 0).unwrap();
    fs.rename(b, b"renamed", b, b"other name", 0).unwrap();
    // Another file under the same name.
    fs.unlink(b, b"again").unwrap();
    file(b, "again");
    // Its path changes with the directory above, which alone is renamed.
    fs.rename(a, b"deep", root, b"shallow", 0).unwrap();
    fs.write(below, 0, b"BELOW", WriteFlags::default()).unwrap();
    let mode = terrane_posix::SetAttr { mode: Some(0o600), ..terrane_posix::SetAttr::default() };
    fs.setattr(chmodded, &mode, &ROOT).unwrap();
    file(b, "short-lived");
    fs.unlink(b, b"short-lived").unwrap();
    world.machine.pool.commit().unwrap();

    let old = world.fs("old");
    let mut found = Vec::new();
    terrane_posix::diff(&old, &fs, since, &mut |change| {
        let text = |path: Vec<u8>| String::from_utf8(path).unwrap();
        found.push((text(change.path), change.kind, change.old_path.map(text)));
    })
    .unwrap();
    found.sort();
    use terrane_posix::ChangeKind::{Created, Modified, Removed, Renamed};
    let plain = |path: &str, kind| (path.to_string(), kind, None);
    let from = |path: &str, old: &str| (path.to_string(), Renamed, Some(old.to_string()));
    let mut expected = vec![
        plain("/", Modified),
        plain("/a", Modified),
        plain("/a/gone", Removed),
        plain("/a/written", Modified),
        plain("/b", Modified),
        plain("/b/again", Removed),
        plain("/b/again", Created),
        plain("/b/chmodded", Modified),
        from("/b/moved", "/a/deep/moved"),
        plain("/b/new", Created),
        from("/b/other name", "/b/renamed"),
        from("/shallow", "/a/deep"),
        plain("/shallow/below", Modified),
    ];
    expected.sort();
    assert_eq!(found, expected, "inodes {moved} {renamed} {again}");
}

/// The canaries of the check: an entry that is missing on a dead list, and one too many.
#[test]
fn check_finds_forged_dead_lists() {
    for forgery in ["missing", "missing and not counted"] {
        let mut world = World::new(11);
        let fs = world.fs("");
        let ino = fs.create(fs.root(), b"file", 0o644, &ROOT).unwrap().ino;
        let bytes = world.random.random_bytes(40_000);
        fs.write(ino, 0, &bytes, WriteFlags::default()).unwrap();
        world.datasets.snapshot(&[("", "kept")]).unwrap();
        fs.truncate_on_open(ino).unwrap();
        world.machine.pool.commit().unwrap();
        world.machine.check().unwrap();
        let stored = terrane_dataset::stored::StoredDataset::all(&world.machine.objects).unwrap();
        let list = stored[0].head_list.unwrap();
        let mos = world.machine.objects.mos();
        let object = mos.hold(list).unwrap();
        let block = object.read_block(0).unwrap();
        let count = u32::from_le_bytes(block[..4].try_into().unwrap());
        assert!(count > 5);
        let tx = mos
            .begin(terrane_txg::cost::Cost { meta_blocks: 8, ..terrane_txg::cost::Cost::NOTHING })
            .unwrap();
        object.write(&tx, 0, &(count - 1).to_le_bytes()).unwrap();
        if forgery == "missing and not counted" {
            let mut bonus = object.bonus().to_vec();
            bonus[8..16].copy_from_slice(&u64::from(count - 1).to_le_bytes());
            object.set_bonus(&tx, bonus).unwrap();
        }
        drop(tx);
        world.machine.pool.commit().unwrap();
        let failure = format!("{:?}", world.machine.check().unwrap_err());
        assert!(failure.contains("on its dead lists 1 times, found 0"), "{failure}");
    }
}

/// Fill, snapshot, delete, destroy: a full pool stays usable, and nothing leaks.
#[test]
fn rounds_of_fill_and_destroy_leak_nothing() {
    let rounds = seeds(8).end;
    for seed in [3, 4] {
        let mut world = World::new(seed);
        world.settle();
        let available = |world: &World| world.machine.pool.space().2;
        let at_first = available(&world);
        for round in 0..rounds {
            let fs = world.fs("");
            let mut count = 0;
            'full: loop {
                let name = format!("fill{count}");
                let Ok(attr) = fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT) else { break };
                count += 1;
                fs.forget(attr.ino, 1);
                for part in 0..8u64 {
                    let bytes = world.random.random_bytes(64 << 10);
                    match fs.write(attr.ino, part << 16, &bytes, WriteFlags::default()) {
                        Ok(_) => {}
                        Err(terrane_posix::Errno::ENOSPC) => break 'full,
                        Err(errno) => panic!("seed {seed} round {round}: {errno}"),
                    }
                }
            }
            assert!(count > 10, "seed {seed} round {round}: {count}");
            fs.unlink(fs.root(), b"fill0").unwrap();
            world.machine.pool.commit().unwrap();
            // Half of it is in an older snapshot than the rest.
            let named = |name: &str| format!("{name}{round}");
            let taken = world.datasets.snapshot(&[("", &named("full"))]);
            taken.unwrap_or_else(|error| panic!("seed {seed} round {round}: {error}"));
            for file in 1..count / 2 {
                fs.unlink(fs.root(), format!("fill{file}").as_bytes()).unwrap();
            }
            world.datasets.snapshot(&[("", &named("half"))]).unwrap();
            for file in count / 2..count {
                fs.unlink(fs.root(), format!("fill{file}").as_bytes()).unwrap();
            }
            world.machine.pool.commit().unwrap();
            let reclaimable = world.datasets.reclaimable("", &[&named("full"), &named("half")]).unwrap();
            assert!(
                reclaimable * 10 > at_first * 8,
                "seed {seed} round {round}: {reclaimable} of {at_first}"
            );
            world.datasets.destroy_snapshots("", &[&named("full")]).unwrap();
            world.datasets.destroy_snapshots("", &[&named("half")]).unwrap();
            world.settle();
            let now = available(&world);
            assert!(
                now * 100 > at_first * 97,
                "seed {seed} round {round}: {now} of {at_first} are available"
            );
            world.machine.check().unwrap_or_else(|failure| panic!("seed {seed} round {round}: {failure:?}"));
        }
    }
}

/// Lives in a nearly full pool, so that GC moves what snapshots keep.
#[test]
fn collection_moves_what_snapshots_keep() {
    for seed in seeds(3) {
        let mut world = World::new(500 + seed);
        let fs = world.fs("");
        // Files that stay take most of the pool, in pieces that lie between those that go.
        let mut stays = Files::new();
        for count in 0..55u32 {
            let name = format!("stays{count}");
            let ino = fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino;
            let bytes = world.random.random_bytes(700 << 10);
            fs.write(ino, 0, &bytes, WriteFlags::default()).unwrap();
            stays.insert(name, bytes);
        }
        world.model.heads.insert(String::new(), stays);
        world.machine.pool.commit().unwrap();
        let mut moved = 0;
        for round in 0..70 {
            for _ in 0..6 {
                let name = format!("churned{}", world.random.below(20));
                let bytes = world.random.random_bytes(100 << 10);
                let found = fs.lookup(fs.root(), name.as_bytes()).map(|attr| attr.ino);
                let ino = found
                    .unwrap_or_else(|_| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino);
                fs.write(ino, 0, &bytes, WriteFlags::default()).unwrap();
                world.model.heads.get_mut("").unwrap().insert(name, bytes);
            }
            world.machine.pool.commit().unwrap();
            let name = world.name("s");
            world.datasets.snapshot(&[("", &name)]).unwrap();
            let files = world.model.heads[""].clone();
            world.model.snapshots.entry(String::new()).or_default().push((name, files));
            if round >= 3 {
                let all = world.model.snapshots.get_mut("").unwrap();
                let at = (round * 7) % all.len();
                let (name, _) = all.remove(at);
                world.datasets.destroy_snapshots("", &[&name]).unwrap();
            }
            world.machine.pool.commit().unwrap();
            moved = world.machine.pool.stats().collected_bytes;
        }
        world.settle();
        world.machine.check().unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"));
        world.check_snapshots();
        assert!(moved > 0, "seed {seed}: nothing was collected");
    }
}

/// What only snapshots refer to uses no feature that the pool does not use: large records have no small indirect blocks.
#[test]
fn check_takes_no_block_of_a_snapshot_for_a_small_one() {
    let mut world = World::new(31);
    world.datasets.create("a", &[("recordsize", "128K")], &mut format).unwrap();
    let fs = world.fs("a");
    let ino = fs.create(fs.root(), b"file", 0o644, &ROOT).unwrap().ino;
    fs.write(ino, 0, &Prng::new(1).random_bytes(3 << 20), WriteFlags::default()).unwrap();
    fs.forget(ino, 1);
    world.datasets.snapshot(&[("a", "s")]).unwrap();
    world.datasets.clone_snapshot("a", "s", "clone").unwrap();
    fs.unlink(fs.root(), b"file").unwrap();
    world.settle();
    assert_eq!(world.machine.pool.feature_state(Feature::Pointers), FeatureState::Enabled);
    world.machine.check().unwrap();
}

/// Several threads change the same few data sets and snapshots, while files are written. Names that are taken, gone or in use
/// are refused; nothing else fails, nobody waits for ever, and the pool is whole.
#[test]
fn threads_change_the_same_data_sets() {
    for seed in seeds(4) {
        let mut world = World::new(900 + seed);
        let fs = world.fs("");
        world.datasets.create("a", &[], &mut format).unwrap();
        world.datasets.create("b", &[], &mut format).unwrap();
        world.machine.pool.commit().unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        for thread in 0..3u64 {
            let (datasets, done) = (Arc::clone(&world.datasets), done.clone());
            let mut random = Prng::new(seed * 10 + thread);
            std::thread::spawn(move || {
                for _ in 0..60 {
                    change_any(&datasets, &mut random);
                }
                done.send(()).unwrap();
            });
        }
        let (pool, writes) = (Arc::clone(&world.machine.pool), done.clone());
        std::thread::spawn(move || {
            for count in 0..200u32 {
                let name = format!("file{}", count % 7);
                let ino = fs.lookup(fs.root(), name.as_bytes()).map(|attr| attr.ino);
                let ino =
                    ino.unwrap_or_else(|_| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino);
                fs.write(ino, 0, &[count as u8; 20_000], WriteFlags::default()).unwrap();
                fs.forget(ino, 1);
                if count % 9 == 0 {
                    pool.commit().unwrap();
                }
            }
            writes.send(()).unwrap();
        });
        // A thread that fails or hangs never says that it is done.
        drop(done);
        for _ in 0..4 {
            let limit = std::time::Duration::from_secs(120);
            ended.recv_timeout(limit).unwrap_or_else(|_| panic!("seed {seed}: a thread failed or hangs"));
        }
        world.settle();
        world.machine.check().unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"));
    }
}

/// One random change of data sets that others change as well.
fn change_any(datasets: &Datasets, random: &mut Prng) {
    let path = *random.one_of(&["", "a", "b", "c"]);
    let [other, to] = [0, 1].map(|_| *random.one_of(&["a", "b", "c"]));
    let name = *random.one_of(&["x", "y", "z"]);
    let step = random.below(17);
    let outcome = match step {
        0..=3 => datasets.snapshot(&[(path, name)]).map(drop),
        4 | 5 => datasets.destroy_snapshots(path, &[name]),
        6 => datasets.clone_snapshot(path, name, other).map(drop),
        7 => datasets.destroy(other),
        8 => datasets.create(other, &[], &mut format).map(drop),
        9 => datasets.promote(other),
        10 => datasets.rollback(other, name, true),
        11 => datasets.rename(other, to),
        12 => datasets.hold(path, name, "tag"),
        13 => datasets.release(path, name, "tag"),
        14 => datasets.space(path).and(datasets.list().map(drop)),
        15 => datasets.reclaimable(path, &[name]).and(datasets.written_since(path, name)).map(drop),
        _ => datasets.bookmark(path, name, to).and_then(|()| datasets.destroy_bookmark(path, to)),
    };
    use terrane_dataset::DatasetError::{Exists, InUse, Unknown};
    match outcome {
        Ok(()) | Err(Exists { .. } | InUse { .. } | Unknown { .. }) => {}
        Err(error) => panic!("step {step} of {path}, {other}, {to}, {name}: {error}"),
    }
}
