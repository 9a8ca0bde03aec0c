//! Shared blocks: no crash point loses a block, frees one twice, or leaks one.

use terrane_dataset::{Dataset, Datasets};
use terrane_object::shared::SharedTotals;
use terrane_pool::Tx;
use terrane_posix::{Errno, Fs, WriteFlags};
use terrane_sim::crash::{SmallScenario, cloning_crash, count_small_ops, cut_at};
use terrane_sim::machine::{Machine, Plan, ROOT};
use terrane_sim::seeds::{number, seeds};
use terrane_sim::workload::{OpMix, Step, Workload};
use terrane_wire::Prng;

#[test]
fn no_crash_point_of_a_small_life_with_clones_loses_a_block() {
    let stride = number("TERRANE_STRIDE").unwrap_or(8);
    for drive in [true, false] {
        let scenario = SmallScenario { seed: 9, drive, steps: 110, mix: OpMix::Clones };
        let ops = count_small_ops(scenario).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(scenario, cut, 4).unwrap_or_else(|failure| panic!("drive {drive} of {ops}: {failure}"));
        }
    }
}

/// Otherwise the test before would cut where nothing is shared.
#[test]
fn that_life_has_shared_blocks_and_ends_them() {
    let mut workload = Workload::fresh(Machine::create(&Plan::small(9)).unwrap(), 9);
    (workload.mix, workload.file_bytes) = (OpMix::Clones, 6000);
    let (mut most, mut last, mut ended) = (SharedTotals::default(), 0, 0);
    for _ in 0..110 {
        assert_eq!(workload.step().unwrap(), Step::Done);
        workload.sync().unwrap();
        let totals = workload.machine.objects.shared().totals();
        ended += u64::from(totals.references < last);
        last = totals.references;
        most = if totals.references > most.references { totals } else { most };
        workload.machine.check().unwrap();
    }
    assert!(most.references > most.blocks && most.blocks > 2 && ended > 5, "{most:?}, {ended}");
}

/// Blocks of files that were copied between data sets, and out of a snapshot.
#[test]
fn copies_outlive_the_data_set_and_the_snapshot_they_come_from() {
    let machine = Machine::create(&Plan::small(4)).unwrap();
    let datasets = Datasets::open(&machine.objects).unwrap();
    let mut format = |dataset: &Dataset, tx: &Tx| Fs::format_in(dataset, tx, &ROOT);
    let create = |fs: &Fs, name: &str| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino;
    let settle = || {
        for _ in 0..50 {
            machine.pool.commit_txg(machine.pool.open_txg()).unwrap();
        }
        machine.check().unwrap();
    };
    for path in ["source", "target"] {
        datasets.create(path, &[], &mut format).unwrap();
    }
    let target = Fs::open(datasets.open_dataset("target").unwrap()).unwrap();
    let record = target.dataset().object_set().record_size() as usize;
    let [old, new] = [1, 2].map(|seed| Prng::new(seed).random_bytes(10 * record));
    {
        let source = Fs::open(datasets.open_dataset("source").unwrap()).unwrap();
        let from = create(&source, "file");
        source.write(from, 0, &old, WriteFlags::default()).unwrap();
        datasets.snapshot(&[("source", "kept")]).unwrap();
        source.write(from, 0, &new, WriteFlags::default()).unwrap();
        settle();
        let kept = Fs::open(datasets.open_snapshot("source", "kept").unwrap()).unwrap();
        for (of, name) in [(&kept, "old"), (&source, "new")] {
            let to = create(&target, name);
            let done = target.clone_range_from(of, (from, 0), to, 0, old.len() as u64).unwrap();
            assert_eq!(done.shared_bytes, old.len() as u64, "{name}");
        }
        // In the txg of the copies.
        datasets.destroy_snapshots("source", &["kept"]).unwrap();
        let to = create(&target, "late");
        let late = target.clone_range_from(&kept, (from, 0), to, 0, 1);
        assert_eq!(late.map(drop), Err(Errno::ESTALE));
        source.write(from, 0, b"x", WriteFlags::default()).unwrap();
        source.forget_all();
    }
    settle();
    assert_eq!(machine.objects.shared().totals().references, 9, "one record has changed");
    datasets.destroy("source").unwrap();
    settle();
    assert_eq!(machine.objects.shared().totals(), SharedTotals::default());
    machine.pool.drop_cache();
    for (name, content) in [("old", &old), ("new", &new)] {
        let (ino, mut found) = (target.lookup(target.root(), name.as_bytes()).unwrap().ino, Vec::new());
        target.read(ino, 0, content.len() as u32, &mut found).unwrap();
        assert!(found == *content, "{name}");
    }
    let other = Machine::create(&Plan::small(5)).unwrap();
    let strange = other.fs();
    let from = create(strange, "file");
    let to = create(&target, "strange");
    assert_eq!(target.clone_range_from(strange, (from, 0), to, 0, 1).map(drop), Err(Errno::EXDEV));
}

#[test]
fn random_lives_with_clones_survive_crashes_gc_and_rewrites() {
    let (mut references, mut moved) = (0, 0);
    for seed in seeds(12) {
        let (shared, runs) = cloning_crash(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        (references, moved) = (references + shared, moved + runs);
    }
    assert!(references > 0 && moved > 0, "{references} references, {moved} runs");
}
