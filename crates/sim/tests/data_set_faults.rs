//! Operations on data sets that fail half-way leave all of their changes or nothing.

use std::sync::Arc;
use terrane_dataset::{Dataset, DatasetError, Datasets};
use terrane_device::SimDevice;
use terrane_device::sim::{Fault, Survival};
use terrane_format::{BlockPtr, Feature};
use terrane_posix::{Fs, ReadOptions, WriteFlags};
use terrane_sim::machine::{Machine, Plan, ROOT};
use terrane_sim::seeds::number;
use terrane_wire::Prng;

fn format(dataset: &Dataset, tx: &terrane_pool::Tx) -> Result<(), DatasetError> {
    Fs::format_in(dataset, tx, &ROOT)
}

fn write(datasets: &Datasets, path: &str, random: &mut Prng) {
    let fs = Fs::open(datasets.open_dataset(path).unwrap()).unwrap();
    for file in 0..30 {
        let name = format!("file {file}");
        let found = fs.lookup(fs.root(), name.as_bytes()).map(|attr| attr.ino);
        let ino = found.unwrap_or_else(|_| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino);
        let bytes = random.random_bytes(4000);
        fs.write(ino, random.below(9) * 4096, &bytes, WriteFlags::default()).unwrap();
        fs.forget(ino, 1);
    }
    fs.sync().unwrap();
    fs.forget_all();
}

/// A pool with data sets, snapshots, clones, a hold and a bookmark, at rest.
fn image(seed: u64) -> SimDevice {
    let machine = Machine::create(&Plan::small(seed)).unwrap();
    let datasets = Datasets::open(&machine.objects).unwrap();
    let mut random = Prng::new(seed);
    for path in ["a", "a/b", "d"] {
        datasets.create(path, &[("recordsize", "4K")], &mut format).unwrap();
    }
    for name in ["s1", "s2", "s3"] {
        write(&datasets, "a", &mut random);
        datasets.snapshot(&[("a", name)]).unwrap();
    }
    for (clone, of) in [("c", "s2"), ("e", "s1")] {
        datasets.clone_snapshot("a", of, clone).unwrap();
        write(&datasets, clone, &mut random);
        datasets.snapshot(&[(clone, "own")]).unwrap();
    }
    write(&datasets, "a", &mut random);
    write(&datasets, "d", &mut random);
    datasets.hold("a", "s1", "tag").unwrap();
    datasets.bookmark("a", "s1", "mark").unwrap();
    settle(&machine, &datasets);
    machine.check().unwrap();
    machine.export().unwrap()
}

fn settle(machine: &Machine, datasets: &Datasets) {
    for _ in 0..300 {
        machine.pool.commit_txg(machine.pool.open_txg()).unwrap();
        if !machine.pool.has_work_left() && !datasets.is_freeing() {
            return;
        }
    }
    panic!("the pool never comes to rest");
}

/// What users see of all data sets.
fn state(datasets: &Datasets) -> Vec<String> {
    let mut state = Vec::new();
    for info in datasets.list().unwrap() {
        let path = &info.path;
        let names: Vec<String> =
            datasets.snapshots(path).unwrap().into_iter().map(|snapshot| snapshot.name).collect();
        let holds: Vec<String> = datasets.holds(path).unwrap().into_iter().map(|hold| hold.tag).collect();
        let marks: Vec<String> =
            datasets.bookmarks(path).unwrap().into_iter().map(|mark| mark.name).collect();
        let fs = Fs::open(datasets.open_dataset(path).unwrap()).unwrap();
        let (mut content, mut inodes, mut bytes) = (0u64, Vec::new(), Vec::new());
        let options = ReadOptions { keeps_atime: true, no_prefetch: true };
        fs.readdir_as(fs.root(), 2, options, &mut |entry| {
            inodes.push(entry.ino);
            true
        })
        .unwrap();
        for ino in inodes {
            bytes.clear();
            fs.read(ino, 0, 1 << 20, &mut bytes).unwrap();
            content = bytes.iter().fold(content, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
        }
        fs.forget_all();
        state.push(format!("{path} {:?} {names:?} {holds:?} {marks:?} {content:x}", info.origin));
    }
    state
}

type Operation = fn(&Datasets) -> Result<(), DatasetError>;

const OPERATIONS: [(&str, Operation); 15] = [
    ("snapshot", |sets| sets.snapshot(&[("a", "new"), ("a/b", "new"), ("d", "new")]).map(drop)),
    ("destroy a snapshot", |sets| sets.destroy_snapshots("a", &["s3"])),
    ("destroy the last snapshot", |sets| sets.destroy_snapshots("c", &["own"])),
    ("rename a snapshot", |sets| sets.rename_snapshot("a", "s2", "renamed")),
    ("create", |sets| sets.create("d/new", &[("recordsize", "8K")], &mut format).map(drop)),
    ("destroy", |sets| sets.destroy("d")),
    ("rename", |sets| sets.rename("d", "a/moved")),
    ("rename in place", |sets| sets.rename("a", "z")),
    ("clone", |sets| sets.clone_snapshot("a", "s3", "d/clone").map(drop)),
    ("promote", |sets| sets.promote("c")),
    ("promote to the oldest", |sets| sets.promote("e")),
    ("roll back", |sets| sets.rollback("a", "s3", false)),
    ("roll back past newer", |sets| sets.rollback("a", "s2", true)),
    ("hold", |sets| sets.hold("d", "own", "tag").or_else(|_| sets.hold("a", "s2", "tag"))),
    ("bookmark", |sets| sets.bookmark("a", "s2", "other")),
];

/// Reads fail while an operation runs. It fails and nothing has changed, or it is done; and the pool is whole.
#[test]
fn operations_whose_reads_fail_leave_all_or_nothing() {
    let trials = number("TERRANE_SEEDS").unwrap_or(12);
    let (mut refused, mut stopped, mut done) = (0, 0, 0);
    for seed in 0..2 {
        let image = image(seed);
        for (what, operation) in OPERATIONS {
            let seen = |device: &SimDevice| {
                let machine = Machine::import(device, seed, false).unwrap();
                let datasets = Datasets::open(&machine.objects).unwrap();
                let state = state(&datasets);
                settle(&machine, &datasets);
                machine.check().unwrap_or_else(|failure| panic!("{what}: {failure:?}"));
                state
            };
            let before = seen(&image.snapshot());
            let after = {
                let device = image.snapshot();
                let machine = Machine::import(&device, seed, false).unwrap();
                operation(&Datasets::open(&machine.objects).unwrap()).unwrap();
                seen(&machine.export().unwrap())
            };
            assert_ne!(before, after, "{what}");
            for trial in 0..trials {
                let at = format!("seed {seed}, {what}, trial {trial}");
                let device = image.snapshot();
                let machine = Machine::import(&device, trial, false).unwrap();
                let datasets = Datasets::open(&machine.objects).unwrap();
                // Cold, or as far as a listing warms.
                if trial % 3 == 0 {
                    datasets.list().unwrap();
                } else {
                    machine.pool.drop_cache();
                }
                device.inject(Fault::ReadError { zone: None, one_in: 1 + (trial % 5) as u32 * 4 });
                let outcome = operation(&datasets);
                if trial % 2 == 0 {
                    // So do those of the txg.
                    let _ = machine.pool.commit();
                }
                device.clear_faults();
                let is_alive = machine.is_alive();
                if is_alive {
                    machine.pool.commit().unwrap();
                    settle(&machine, &datasets);
                    machine.check().unwrap_or_else(|failure| panic!("{at}: {failure:?}"));
                }
                drop(datasets);
                machine.pool.abandon();
                let found = seen(&device.restarted(Survival::Everything));
                match &outcome {
                    // Not each operation is durable on return.
                    Ok(()) if is_alive => assert_eq!(found, after, "{at}"),
                    Ok(()) => assert!(found == after || found == before, "{at}: {found:#?}"),
                    Err(error) => assert_eq!(found, before, "{at}: {error}"),
                }
                match (outcome.is_ok(), is_alive) {
                    (true, _) => done += 1,
                    (false, true) => refused += 1,
                    (false, false) => stopped += 1,
                }
            }
        }
    }
    println!("{done} done, {refused} refused, {stopped} stopped the pool");
    assert!(done > 20 && refused > 20, "{done} done, {refused} refused, {stopped} stopped the pool");
}

/// A data set whose content cannot be made leaves nothing.
#[test]
fn a_data_set_that_is_not_filled_does_not_come_to_be() {
    let device = image(3);
    let machine = Machine::import(&device, 3, false).unwrap();
    let datasets = Datasets::open(&machine.objects).unwrap();
    let before = state(&datasets);
    let refuse = || DatasetError::InUse { name: "new".to_string(), by: "the test".to_string() };
    datasets.create("a/new", &[], &mut |_, _| Err(refuse())).map(drop).unwrap_err();
    let mut format_and_refuse =
        |set: &Dataset, tx: &terrane_pool::Tx| format(set, tx).and_then(|()| Err(refuse()));
    datasets.create("a/new", &[], &mut format_and_refuse).map(drop).unwrap_err();
    assert_eq!(state(&datasets), before);
    settle(&machine, &datasets);
    machine.check().unwrap();
    datasets.create("a/new", &[], &mut format).unwrap();
    settle(&machine, &datasets);
    machine.check().unwrap();
}

/// An unreadable snapshot costs no head.
#[test]
fn a_head_is_not_given_up_for_a_damaged_snapshot() {
    let device = image(4);
    let machine = Machine::import(&device, 4, false).unwrap();
    let datasets = Datasets::open(&machine.objects).unwrap();
    let before = state(&datasets);
    let snapshot = datasets.find_snapshot("a", "s3").unwrap().info;
    let BlockPtr::Normal(root) = snapshot.root else { panic!("{:?}", snapshot.root) };
    for copy in root.copies() {
        let (_, home, offset) = machine.pool.locate(copy, root.psize).unwrap();
        device.rot(home.zone, offset + 7, &[0xff]).unwrap();
    }
    machine.pool.drop_cache();
    datasets.rollback("a", "s3", false).unwrap_err();
    datasets.clone_snapshot("a", "s3", "clone").map(drop).unwrap_err();
    assert!(machine.is_alive());
    machine.pool.commit().unwrap();
    assert_eq!(state(&datasets), before);
    // It can be destroyed.
    datasets.destroy_snapshots("a", &["s3"]).unwrap();
    settle(&machine, &datasets);
    machine.check().unwrap();
}

/// A snapshot of a data set without content has no root. It can be used and destroyed like others.
#[test]
fn snapshots_of_nothing_can_be_destroyed() {
    let device = image(5);
    let machine = Machine::import(&device, 5, false).unwrap();
    let datasets = Datasets::open(&machine.objects).unwrap();
    datasets.create("empty", &[], &mut |_, _| Ok(())).unwrap();
    datasets.snapshot(&[("empty", "x")]).unwrap();
    datasets.snapshot(&[("empty", "y")]).unwrap();
    datasets.destroy_snapshots("empty", &["x", "y"]).unwrap();
    datasets.destroy("empty").unwrap();
    settle(&machine, &datasets);
    machine.check().unwrap();
}

/// Tiny ZAPs that go or come with whole object sets leave no wrong number behind.
#[test]
fn uses_of_features_are_not_miscounted() {
    for seed in 0..3 {
        let machine = Machine::create(&Plan::small(6 + seed)).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap();
        assert!(machine.pool.has(Feature::TinyZap));
        datasets.create("a", &[], &mut format).unwrap();
        let fill = |path: &str| {
            let fs = Fs::open(datasets.open_dataset(path).unwrap()).unwrap();
            for dir in 0..4 {
                let dir = fs.mkdir(fs.root(), format!("dir{dir}").as_bytes(), 0o755, &ROOT).unwrap().ino;
                // Too much for a micro ZAP.
                for name in 0..6 {
                    let name = format!("{name}{}", "n".repeat(100));
                    fs.create(dir, name.as_bytes(), 0o644, &ROOT).unwrap();
                }
            }
            fs.sync().unwrap();
            fs.forget_all();
        };
        fill("a");
        assert!(machine.pool.uses(Feature::TinyZap).is_none_or(|uses| uses >= 4));
        datasets.snapshot(&[("a", "s")]).unwrap();
        match seed {
            0 => {
                datasets.clone_snapshot("a", "s", "clone").unwrap();
            }
            1 => {
                datasets.create("b", &[], &mut format).unwrap();
                fill("b");
                datasets.destroy("b").unwrap();
            }
            _ => datasets.rollback("a", "s", false).unwrap(),
        }
        settle(&machine, &datasets);
        machine.check().unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"));
    }
}

/// Objects that others change are named by the pool directory as well: none of them is lost.
#[test]
fn writers_of_the_pool_directory_do_not_lose_each_others_entries() {
    for seed in 0..8 {
        let machine = Machine::create(&Plan::small(20 + seed)).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap();
        let root = datasets.open_dataset("").unwrap();
        let pool = Arc::clone(&machine.pool);
        let recorder = std::thread::spawn(move || {
            pool.note_lost_changes(terrane_format::Owner::Pool { structure: 7 }, pool.open_txg());
            root.record_errors().unwrap();
        });
        datasets.create("a", &[], &mut format).unwrap();
        datasets.create("b", &[], &mut format).unwrap();
        datasets.destroy("b").unwrap();
        recorder.join().unwrap();
        settle(&machine, &datasets);
        machine.check().unwrap();
        let names: Vec<String> = datasets.list().unwrap().into_iter().map(|info| info.path).collect();
        assert_eq!(names, ["", "a"]);
        drop(datasets);
        let device = machine.export().unwrap();
        let machine = Machine::import(&device, seed, true).unwrap();
        assert_eq!(Datasets::open(&machine.objects).unwrap().list().unwrap().len(), 2);
    }
}
