//! A table of shared blocks that is damaged is made again from all pointers.

use std::sync::Arc;
use terrane_device::{Device, SimDevice};
use terrane_format::Owner;
use terrane_object::shared::SharedTotals;
use terrane_oracle::Model;
use terrane_pool::ImportOptions;
use terrane_posix::WriteFlags;
use terrane_sim::crash::continue_workload;
use terrane_sim::machine::{Machine, Plan, ROOT};
use terrane_sim::seeds::seeds;
use terrane_sim::workload::{OpMix, Step, Workload};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};
use terrane_store::explain::EntryState;
use terrane_wire::Prng;

/// A pool after a life with clones, exported, and what is in it. `None`: nothing is shared.
fn cloned_pool(seed: u64) -> Option<(SimDevice, Model)> {
    let mut workload = Workload::fresh(Machine::create(&Plan::small(seed)).unwrap(), seed);
    (workload.mix, workload.file_bytes) = (OpMix::Clones, 6000);
    for _ in 0..110 {
        assert_eq!(workload.step().unwrap(), Step::Done);
        workload.sync().unwrap();
    }
    let is_shared = workload.machine.objects.shared().totals().blocks > 0;
    let model = workload.model.after_remount();
    let device = workload.machine.export().unwrap();
    is_shared.then_some((device, model))
}

/// Damages all copies of a block of the table. Returns how many.
fn damage(device: &SimDevice, damaged: (u8, u64)) -> usize {
    let machine = Machine::import(device, 1, true).unwrap();
    let table = machine.objects.shared().object().unwrap().0;
    let mut places = Vec::new();
    for zone in machine.pool.zones() {
        // An emptied zone may have been reset by the last txg.
        for (entry, standing) in machine.pool.zone_directory(zone.seq).unwrap_or_default() {
            let owner = Owner::Block { objset: 0, object: table, level: damaged.0, block: damaged.1 };
            if entry.owner == owner && standing == EntryState::Live {
                places.push((zone.home.zone, entry.offset));
            }
        }
    }
    drop(machine);
    for (zone, offset) in &places {
        device.rot(*zone, *offset + 3, &[1]).unwrap();
    }
    places.len()
}

fn rebuild(device: &SimDevice, seed: u64) -> Result<(), PoolError> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
    terrane_check::rebuild_index(&devices, &env, &ImportOptions::default(), &mut |_| {})
}

/// The pool is sound, has these files, and can be used.
fn assert_sound(device: &SimDevice, model: &Model, seed: u64) {
    let mut machine = Machine::import(device, seed + 1, false).unwrap();
    machine.check().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    machine.mount().unwrap();
    model.compare(machine.fs()).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    let mut workload = Workload::new(machine, model.clone(), seed);
    (workload.mix, workload.file_bytes) = (OpMix::Clones, 6000);
    continue_workload(workload, 60, seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

/// Level and number of the block above the head, the index block and the leaf.
const TOP: (u8, u64) = (1, 0);
/// Those of the leaf.
const LEAF: (u8, u64) = (0, 2);

#[test]
fn a_damaged_table_is_made_again() {
    let mut pools = 0;
    for seed in seeds(8) {
        let Some((device, model)) = cloned_pool(seed) else { continue };
        pools += 1;
        assert_eq!(damage(&device, TOP), 2, "seed {seed}");
        let refused = Machine::import(&device, seed, false).err().unwrap();
        assert!(refused.0.contains("--rebuild-index"), "seed {seed}: {refused}");
        assert!(Machine::import(&device, seed, true).unwrap().check().is_err(), "seed {seed}");
        rebuild(&device, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_sound(&device, &model, seed);
    }
    assert!(pools > 3, "{pools} pools have shared blocks");
}

/// Leaves are read when they are needed. What is freed in a damaged one is lost, until the table is made again.
#[test]
fn references_that_a_damaged_leaf_counts_are_found_again() {
    let machine = Machine::create(&Plan {
        props: vec![("recordsize", "4K"), ("compression", "lz4")],
        ..Plan::small(3)
    })
    .unwrap();
    let fs = machine.fs();
    // Records of various stored sizes: else the leaf would be so regular that it is embedded.
    let (mut rng, mut data) = (Prng::new(3), vec![0; 400 * 4096]);
    for record in data.chunks_mut(4096) {
        let len = 200 + rng.below(3000) as usize;
        record[..len].copy_from_slice(&rng.random_bytes(len));
    }
    let create = |name: &str| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino;
    let from = create("source");
    fs.write(from, 0, &data, WriteFlags::default()).unwrap();
    fs.sync().unwrap();
    for name in ["one", "two"] {
        let to = create(name);
        let done = fs.clone_range(from, 0, to, 0, data.len() as u64).unwrap();
        assert_eq!(done.shared_bytes, data.len() as u64);
        fs.forget(to, 1);
    }
    fs.forget(from, 1);
    let device = machine.export().unwrap();
    assert_eq!(damage(&device, LEAF), 2);
    {
        let mut machine = Machine::import(&device, 3, false).unwrap();
        machine.mount().unwrap();
        machine.fs().unlink(machine.fs().root(), b"source").unwrap();
        machine.fs().sync().unwrap();
        let failure = machine.check().unwrap_err();
        assert!(failure.0.contains("table of shared blocks"), "{failure}");
        machine.export().unwrap();
    }
    rebuild(&device, 3).unwrap();
    let mut machine = Machine::import(&device, 4, false).unwrap();
    machine.check().unwrap();
    machine.mount().unwrap();
    let (fs, shared) = (machine.fs(), || machine.objects.shared().totals());
    assert_eq!((shared().blocks, shared().references), (400, 400));
    fs.unlink(fs.root(), b"one").unwrap();
    fs.sync().unwrap();
    let (ino, mut found) = (fs.lookup(fs.root(), b"two").unwrap().ino, Vec::new());
    fs.read(ino, 0, data.len() as u32, &mut found).unwrap();
    assert!(found == data);
    fs.forget(ino, 1);
    fs.unlink(fs.root(), b"two").unwrap();
    fs.sync().unwrap();
    assert_eq!(shared(), SharedTotals::default());
    machine.check().unwrap();
}

/// A pool whose table is right keeps it.
#[test]
fn a_sound_table_stays() {
    let (device, model) = cloned_pool(5).unwrap();
    let table = |device| Machine::import(device, 5, true).unwrap().objects.shared().object();
    let before = table(&device);
    rebuild(&device, 5).unwrap();
    assert_eq!(table(&device), before);
    assert_sound(&device, &model, 5);
}

#[test]
fn a_crash_while_the_table_is_made_again_loses_nothing() {
    let mut cut = 0;
    loop {
        let (device, model) = cloned_pool(7).unwrap();
        assert_eq!(damage(&device, TOP), 2);
        device.crash_after(device.ops_done() + cut);
        let is_done = rebuild(&device, cut).is_ok();
        let device = device.after_power_loss(cut);
        if !is_done {
            rebuild(&device, cut + 1).unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        }
        assert_sound(&device, &model, 7 + cut);
        if is_done {
            break;
        }
        cut += 1;
    }
    assert!(cut > 8, "{cut}");
}

/// A pool that has no space left for files has enough for another table.
#[test]
fn the_table_of_a_full_pool_is_made_again() {
    let props = vec![("recordsize", "4K"), ("compression", "off")];
    let machine = Machine::create(&Plan { props, ..Plan::small(3) }).unwrap();
    let fs = machine.fs();
    let mut rng = Prng::new(3);
    let create = |name: &str| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).map(|attr| attr.ino);
    let from = create("source").unwrap();
    let data = rng.random_bytes(1000 * 4096);
    fs.write(from, 0, &data, WriteFlags::default()).unwrap();
    fs.sync().unwrap();
    for name in 0..3 {
        let to = create(&format!("clone {name}")).unwrap();
        fs.clone_range(from, 0, to, 0, data.len() as u64).unwrap();
        fs.forget(to, 1);
    }
    fs.forget(from, 1);
    // Overwritten records leave a table of single entries.
    for record in (0..1000).step_by(7) {
        fs.write(from, record * 4096, &rng.random_bytes(4096), WriteFlags::default()).unwrap();
    }
    fs.sync().unwrap();
    let filler = create("filler").unwrap();
    let mut at = 0;
    for len in [1 << 20, 64 << 10, 4096] {
        while fs.write(filler, at, &rng.random_bytes(len), WriteFlags::default()).is_ok() {
            at += len as u64;
            fs.sync().unwrap();
        }
    }
    fs.forget(filler, 1);
    let before = machine.objects.shared().totals();
    let device = machine.export().unwrap();
    assert!(damage(&device, TOP) > 0);
    rebuild(&device, 3).unwrap();
    let machine = Machine::import(&device, 4, false).unwrap();
    machine.check().unwrap();
    assert_eq!(machine.objects.shared().totals(), before);
}
