//! Features that are enabled and features that are active: what a version that does not know tiny ZAPs may open,
//! at every cut of the power around their first and last use, and with stored counts that are false.

use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_check::{Report, kind};
use terrane_dataset::{
    BatchPlan, Dataset, ObjectZap, POOL_DIRECTORY, ZapHandle, ZapPolicy, ZapSpec, Zaps, open_any_set,
};
use terrane_device::sim::Survival;
use terrane_device::{Device, Fault, SimConfig, SimDevice};
use terrane_format::Feature;
use terrane_format::features::FeatureState;
use terrane_object::{ObjectKind, ObjectSets};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{Cred, Fs, SetXattr, WriteFlags};
use terrane_store::PoolError;
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};
use terrane_zap::{Kind, ValueRef};

const TINY: Feature = Feature::TinyZap;
const THREE: ValueRef<'_> = ValueRef::U64s(&[1, 2, 3]);
const COST: Cost = Cost { write_bytes: 1 << 20, meta_blocks: 64, ..Cost::NOTHING };
const ROOT: Cred = Cred { uid: 0, gid: 0, umask: 0 };

/// A version before tiny ZAPs.
fn older() -> ImportOptions {
    ImportOptions { unknown_features: &["org.terrane:tinyzap"], ..ImportOptions::default() }
}

struct Machine {
    pool: Arc<Pool>,
    objects: Arc<ObjectSets>,
}

impl Machine {
    fn create(seed: u64) -> (SimDevice, Machine) {
        let device = SimDevice::new(SimConfig { seed, ..SimConfig::default() }).unwrap();
        let (create, options) = (CreateOptions::named("test"), ImportOptions::default());
        let devices = vec![Arc::new(device.clone()) as Arc<dyn Device>];
        let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(seed)), &options).unwrap();
        let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
        drop(Dataset::create_root(&objects, &[]).unwrap());
        pool.commit().unwrap();
        (device, Machine { pool, objects })
    }

    fn import_with(device: &SimDevice, options: &ImportOptions) -> Result<Machine, PoolError> {
        let devices = vec![Arc::new(device.clone()) as Arc<dyn Device>];
        let pool = Pool::import(devices, Arc::new(SeededEnv::new(7)), options)?;
        let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
        Ok(Machine { pool, objects })
    }

    fn import(device: &SimDevice) -> Machine {
        Machine::import_with(device, &ImportOptions::default()).unwrap()
    }

    fn zaps(&self) -> Arc<Zaps> {
        Zaps::open(&Arc::new(Dataset::open_root(&self.objects).unwrap())).unwrap()
    }

    fn state(&self) -> (FeatureState, Option<u64>) {
        (self.pool.feature_state(TINY), self.pool.uses(TINY))
    }

    fn check(&self) -> Report {
        terrane_check::check(&self.objects, &mut |_| {})
    }

    fn commit_txgs(&self, count: usize) {
        (0..count).for_each(|_| self.pool.commit_txg(self.pool.open_txg()).unwrap());
    }
}

/// A failed test leaves no threads.
impl Drop for Machine {
    fn drop(&mut self) {
        self.pool.abandon();
    }
}

fn new_tiny(zaps: &Arc<Zaps>, name: &str) -> ZapHandle {
    let batch = zaps.begin(BatchPlan::new().create(1, 1, 64)).unwrap();
    let zap = zaps.create(&batch, ZapSpec::NAMES).unwrap();
    zap.add(&batch, name, THREE).unwrap();
    zaps.roots().add(&batch, name, ValueRef::U64s(&[zap.id().0])).unwrap();
    assert!(matches!(zap.kind().unwrap(), Kind::Tiny { .. }));
    zap
}

fn destroy(zaps: &Arc<Zaps>, name: &str) {
    let id = zaps.roots().lookup(name).unwrap().unwrap().first_integer().unwrap();
    let zap = zaps.zap(ObjectId(id)).unwrap();
    let batch = zaps.begin(BatchPlan::new().destroy()).unwrap();
    zaps.roots().remove(&batch, name).unwrap();
    zaps.destroy(&batch, &zap).unwrap();
}

/// Imports what a version before tiny ZAPs would, and says how many there are then. `None`: it refuses.
fn seen_by_older(device: &SimDevice, rewind: Option<Txg>) -> Option<u64> {
    let options = ImportOptions { read_only: true, rewind, ..older() };
    match Machine::import_with(device, &options) {
        Ok(found) => {
            let report = found.check();
            assert!(report.is_clean(), "{report}");
            Some(report.uses.get(&TINY).copied().unwrap_or(0))
        }
        Err(PoolError::Refused { found, .. }) => {
            assert_eq!(found, "org.terrane:tinyzap");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_new_pool_can_be_used_by_a_version_before_tiny_zaps() {
    let (device, new) = Machine::create(1);
    assert_eq!(new.state(), (FeatureState::Enabled, Some(0)));
    new.pool.export().unwrap();
    drop(new);

    let old = Machine::import_with(&device, &older()).unwrap();
    assert!(!old.pool.has(TINY));
    let zaps = old.zaps();
    let batch = zaps.begin(BatchPlan::new().create(1, 1, 64)).unwrap();
    let zap = zaps.create(&batch, ZapSpec::NAMES).unwrap();
    zap.add(&batch, "three", THREE).unwrap();
    zaps.roots().add(&batch, "old", ValueRef::U64s(&[zap.id().0])).unwrap();
    drop(batch);
    assert_eq!(zap.kind().unwrap(), Kind::Fat);
    old.pool.export().unwrap();
    drop((zap, zaps, old));

    let new = Machine::import(&device);
    assert_eq!(new.pool.feature_state(TINY), FeatureState::Enabled);
    let zaps = new.zaps();
    new_tiny(&zaps, "new");
    zaps.commit().unwrap();
    assert_eq!(new.state(), (FeatureState::Active, Some(1)));
    let report = new.check();
    assert!(report.is_clean(), "{report}");
    new.pool.export().unwrap();
    drop((zaps, new));
    assert!(Machine::import_with(&device, &older()).is_err());

    let new = Machine::import(&device);
    let zaps = new.zaps();
    assert_eq!(new.state(), (FeatureState::Active, Some(1)));
    destroy(&zaps, "new");
    drop(zaps);
    new.pool.export().unwrap();
    drop(new);
    assert_eq!(seen_by_older(&device, None), Some(0), "the last use is gone, so the export made it enabled");
}

/// The power fails in the middle of each write around the first and the last use. A version before tiny ZAPs never
/// opens a state with one, also by a rewind, and the counts are right in every state.
#[test]
fn first_and_last_use_are_cut_at_every_write() {
    for by_export in [false, true] {
        let (device, machine) = Machine::create(2);
        let zaps = machine.zaps();
        zaps.commit().unwrap();
        device.record_power_cuts();
        new_tiny(&zaps, "a");
        zaps.commit().unwrap();
        new_tiny(&zaps, "b");
        destroy(&zaps, "a");
        zaps.commit().unwrap();
        destroy(&zaps, "b");
        zaps.commit().unwrap();
        let mut cut_copies = device.take_cut_copies();
        if by_export {
            drop(zaps);
            machine.pool.export().unwrap();
        } else {
            // Nothing happens in most of them.
            machine.commit_txgs(58);
            drop(device.take_cut_copies());
            assert_eq!(machine.state(), (FeatureState::Active, Some(0)));
            machine.commit_txgs(10);
            assert_eq!(machine.state(), (FeatureState::Enabled, Some(0)), "unused for long");
            new_tiny(&zaps, "c");
            zaps.commit().unwrap();
        }
        cut_copies.extend(device.take_cut_copies());
        drop(machine);
        let (mut refused, mut accepted, mut used) = (0, 0, 0);
        for (number, cut_copy) in cut_copies.iter().enumerate() {
            for kept in [Survival::Nothing, Survival::Everything, Survival::Seeded(number as u64)] {
                let left = cut_copy.restarted(kept);
                match seen_by_older(&left, None) {
                    Some(0) => accepted += 1,
                    None => refused += 1,
                    found => panic!("write {number}: an older version opens {found:?} tiny ZAPs"),
                }
                let newest = terrane_pool::inspect::anchors(&left)
                    .iter()
                    .flat_map(|(_, _, ubers)| ubers.iter().map(|(_, uber)| uber.txg))
                    .max()
                    .unwrap();
                let rewinds = if kept == Survival::Everything { 1..=3 } else { 0..=0 };
                for back in rewinds.filter(|back| *back > 0) {
                    let options = ImportOptions {
                        read_only: true,
                        rewind: Some(Txg(newest.0.saturating_sub(back))),
                        ..older()
                    };
                    if let Ok(found) = Machine::import_with(&left, &options) {
                        let uses = found.check().uses;
                        assert_eq!(uses.get(&TINY), Some(&0), "write {number}, {back} back");
                    }
                }
                let found = Machine::import(&left);
                drop(found.zaps());
                let report = found.check();
                assert!(report.is_clean(), "write {number}: {report}");
                let uses = report.uses.get(&TINY).copied().unwrap_or(0);
                assert_eq!(found.pool.uses(TINY), Some(uses), "write {number}");
                used += u32::from(uses > 0);
            }
        }
        assert!(refused > 10 && accepted > 10 && used > 10, "{refused} {accepted} {used}");
    }
}

/// Changes that a version makes which does not count: it commits tiny ZAPs without a stored count.
fn write_uncounted(device: &SimDevice) {
    let machine = Machine::import(device);
    let set = {
        let mos = machine.objects.mos();
        let directory = ObjectZap::new(&ZapPolicy::of(mos), mos.hold(POOL_DIRECTORY).unwrap());
        let id = directory.lookup_u64("root_dataset").unwrap().unwrap();
        open_any_set(&machine.objects, ObjectId(id)).unwrap()
    };
    let policy = ZapPolicy::of(&set);
    {
        let tx = set.begin(COST).unwrap();
        let master = ObjectZap::new(&policy, set.hold(terrane_dataset::MASTER).unwrap());
        let roots = master.lookup_u64(terrane_dataset::zaps::PROGRAM_ROOTS).unwrap().unwrap();
        let mut roots = ObjectZap::new(&policy, set.hold(ObjectId(roots)).unwrap());
        let spec = terrane_object::ObjectSpec {
            kind: ObjectKind::Zap,
            block_size: 512,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: None,
        };
        let mut zap = ObjectZap::new(&policy, set.create(&tx, spec).unwrap());
        zap.add(&tx, "three", THREE).unwrap();
        roots.add_u64(&tx, b"uncounted", zap.object().id().0).unwrap();
    }
    set.commit().unwrap();
    machine.pool.export().unwrap();
}

#[test]
fn a_version_that_does_not_count_makes_the_count_unknown_until_a_walk() {
    let (device, machine) = Machine::create(3);
    let zaps = machine.zaps();
    new_tiny(&zaps, "counted");
    drop(zaps);
    machine.pool.export().unwrap();
    drop(machine);
    write_uncounted(&device);

    let machine = Machine::import(&device);
    let zaps = machine.zaps();
    assert_eq!(machine.state(), (FeatureState::Active, None));
    destroy(&zaps, "counted");
    destroy(&zaps, "uncounted");
    machine.commit_txgs(70);
    assert_eq!(machine.state(), (FeatureState::Active, None), "nothing proves that there is no more");
    assert!(matches!(machine.pool.disable(&[TINY], &BTreeMap::new()), Err(PoolError::Refused { .. })));

    new_tiny(&zaps, "last");
    let walk = |during: &dyn Fn()| {
        let start = machine.pool.begin_use_walk();
        machine.pool.commit().unwrap();
        let report = machine.check();
        assert!(report.is_clean(), "{report}");
        during();
        machine.pool.end_use_walk(&start, &report.uses).unwrap()
    };
    assert_eq!(walk(&|| drop(new_tiny(&zaps, "meanwhile"))), [TINY]);
    assert_eq!(machine.state(), (FeatureState::Active, None));
    assert_eq!(walk(&|| {}), []);
    assert_eq!(machine.state(), (FeatureState::Active, Some(2)));
    destroy(&zaps, "last");
    destroy(&zaps, "meanwhile");
    zaps.commit().unwrap();
    assert_eq!(walk(&|| {}), []);
    assert_eq!(machine.state(), (FeatureState::Enabled, Some(0)));
    assert_eq!(machine.pool.disable(&[TINY], &BTreeMap::new()).unwrap(), [TINY]);
    assert!(!machine.pool.has(TINY));
    assert_eq!(machine.pool.disable(&[TINY], &BTreeMap::new()).unwrap(), []);
    drop(zaps);
    machine.pool.export().unwrap();
    drop(machine);
    let machine = Machine::import(&device);
    assert_eq!(machine.pool.feature_state(TINY), FeatureState::Disabled);
    assert_eq!(machine.pool.enable(&[TINY]).unwrap(), [TINY]);
    assert_eq!(machine.pool.feature_state(TINY), FeatureState::Enabled);
}

/// A forged count is a finding or unknown, and never a panic. A walk repairs it.
#[test]
fn forged_counts_are_found() {
    let forgeries: [(&str, ValueRef<'_>, bool); 6] = [
        ("org.terrane:tinyzap", ValueRef::U64s(&[0]), true),
        ("org.terrane:tinyzap", ValueRef::U64s(&[9]), true),
        ("org.terrane:tinyzap", ValueRef::U64s(&[u64::MAX]), false),
        ("org.terrane:tinyzap", ValueRef::U8s(b"two"), false),
        ("org.terrane:tinyzap", ValueRef::U64s(&[2, 2]), false),
        ("incarnation", ValueRef::U64s(&[u64::MAX]), false),
    ];
    for (name, value, is_valid) in forgeries {
        let (device, machine) = Machine::create(4);
        let zaps = machine.zaps();
        new_tiny(&zaps, "a");
        new_tiny(&zaps, "b");
        new_tiny(&zaps, "c");
        zaps.commit().unwrap();
        let mos = machine.objects.mos();
        let policy = ZapPolicy::of(mos);
        let directory = ObjectZap::new(&policy, mos.hold(POOL_DIRECTORY).unwrap());
        let counts = ObjectId(directory.lookup_u64("feature_uses").unwrap().unwrap());
        {
            let tx = mos.begin(COST).unwrap();
            ObjectZap::new(&policy, mos.hold(counts).unwrap()).update(&tx, name, value).unwrap();
        }
        machine.pool.commit().unwrap();
        drop(zaps);
        drop(machine);

        let machine = Machine::import(&device);
        let zaps = machine.zaps();
        let report = machine.check();
        assert_eq!(report.has(kind::FEATURE), is_valid, "{name} {value:?}: {report}");
        assert_eq!(machine.pool.uses(TINY).is_some(), is_valid);
        ["a", "b", "c"].iter().for_each(|name| destroy(&zaps, name));
        zaps.commit().unwrap();
        machine.commit_txgs(5);
        // A walk repairs it.
        let start = machine.pool.begin_use_walk();
        machine.pool.commit().unwrap();
        let uses = machine.check().uses;
        machine.pool.end_use_walk(&start, &uses).unwrap();
        assert_eq!(machine.state(), (FeatureState::Enabled, Some(0)), "{name} {value:?}");
        let report = machine.check();
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn a_reference_to_no_zap_of_counts_is_replaced() {
    for number in [0, 1, 2, 999, u64::MAX] {
        let (device, machine) = Machine::create(5);
        let zaps = machine.zaps();
        new_tiny(&zaps, "a");
        zaps.commit().unwrap();
        let mos = machine.objects.mos();
        {
            let tx = mos.begin(COST).unwrap();
            let directory = mos.hold(POOL_DIRECTORY).unwrap();
            let mut directory = ObjectZap::new(&ZapPolicy::of(mos), directory);
            directory.update_u64(&tx, b"feature_uses", number).unwrap();
        }
        machine.pool.commit().unwrap();
        drop(zaps);
        drop(machine);
        let machine = Machine::import(&device);
        let zaps = machine.zaps();
        assert_eq!(machine.state(), (FeatureState::Active, None), "{number}");
        new_tiny(&zaps, "b");
        let start = machine.pool.begin_use_walk();
        machine.pool.commit().unwrap();
        machine.pool.end_use_walk(&start, &BTreeMap::from([(TINY, 2)])).unwrap();
        new_tiny(&zaps, "c");
        zaps.commit().unwrap();
        drop(zaps);
        drop(machine);
        let machine = Machine::import(&device);
        drop(machine.zaps());
        assert_eq!(machine.state(), (FeatureState::Active, Some(3)), "{number}");
    }
}

/// What a file system does makes features active, each by its first use.
#[test]
fn features_become_active_one_by_one() {
    let (_device, machine) = Machine::create(6);
    let dataset = Arc::new(Dataset::open_root(&machine.objects).unwrap());
    Fs::format(&dataset, &ROOT).unwrap();
    let fs = Fs::open(Arc::clone(&dataset)).unwrap();
    let active = || -> Vec<Feature> {
        machine.pool.commit().unwrap();
        let report = machine.check();
        assert!(report.is_clean(), "{report}");
        let traced = [TINY, Feature::Xattr, Feature::Codecs, Feature::Pointers];
        let is_active = |feature: &Feature| {
            let is_active = machine.pool.feature_state(*feature) == FeatureState::Active;
            assert_eq!(report.uses.get(feature).copied().unwrap_or(0) > 0, is_active, "{feature:?}");
            is_active
        };
        traced.into_iter().filter(is_active).collect()
    };
    let small = fs.create(fs.root(), b"small", 0o600, &ROOT).unwrap().ino;
    fs.write(small, 0, &[7; 1000], WriteFlags::default()).unwrap();
    assert_eq!(active(), []);
    let how = SetXattr::default();
    fs.setxattr(small, b"user.a", b"value", how, &ROOT).unwrap();
    assert_eq!(active(), [Feature::Xattr]);
    fs.mkdir(fs.root(), b"names", 0o700, &ROOT).unwrap();
    let dir = fs.lookup(fs.root(), b"names").unwrap().ino;
    fs.create(dir, &[b'n'; 60], 0o600, &ROOT).unwrap();
    assert_eq!(active(), [TINY, Feature::Xattr]);
    dataset.set("compression", "gzip").unwrap();
    assert_eq!(machine.pool.feature_state(Feature::Codecs), FeatureState::Enabled);
    assert_eq!(active(), [TINY, Feature::Xattr]);
    fs.write(small, 0, &[9; 1000], WriteFlags::default()).unwrap();
    assert_eq!(active(), [TINY, Feature::Xattr, Feature::Codecs]);
    dataset.set("recordsize", "4K").unwrap();
    let large = fs.create(fs.root(), b"large", 0o600, &ROOT).unwrap().ino;
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at / 5) as u8).collect();
    fs.write(large, 0, &bytes, WriteFlags::default()).unwrap();
    assert_eq!(active(), [TINY, Feature::Xattr, Feature::Codecs, Feature::Pointers]);

    // And a walk that finds no use makes them merely enabled again.
    fs.unlink(dir, &[b'n'; 60]).unwrap();
    fs.unlink(fs.root(), b"large").unwrap();
    fs.unlink(fs.root(), b"small").unwrap();
    fs.forget_all();
    fs.sync().unwrap();
    machine.commit_txgs(2);
    let start = machine.pool.begin_use_walk();
    machine.pool.commit().unwrap();
    let uses = machine.check().uses;
    assert_eq!(machine.pool.end_use_walk(&start, &uses).unwrap(), []);
    assert_eq!(active(), []);
    let gone = [TINY, Feature::Xattr, Feature::Codecs, Feature::Pointers];
    assert_eq!(machine.pool.disable(&gone, &BTreeMap::new()).unwrap().len(), 4);
    assert!(matches!(
        machine.pool.disable(&[Feature::Rows], &BTreeMap::new()),
        Err(PoolError::Refused { .. })
    ));
}

/// The count of uses is stored when a txg has quiesced. A device that fails for a moment then is no reason to stop.
#[test]
fn a_device_that_fails_for_a_moment_when_a_count_is_stored_stops_no_pool() {
    let mut fired = 0;
    for seed in 0..12 {
        let (device, new) = Machine::create(seed);
        new_tiny(&new.zaps(), "a");
        new.pool.export().unwrap();
        drop(new);
        let pool = Machine::import(&device);
        new_tiny(&pool.zaps(), "b");
        pool.pool.drop_cache();
        let fault = device.inject(Fault::ReadError { zone: None, one_in: 4 });
        pool.pool.commit().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        fired += device.fired(fault);
        device.clear_faults();
        pool.pool.export().unwrap();
        drop(pool);
        let pool = Machine::import(&device);
        assert_eq!(pool.state().0, FeatureState::Active, "seed {seed}");
        let report = pool.check();
        assert!(report.is_clean(), "seed {seed}: {report}");
    }
    assert!(fired > 0, "the canary: no read failed");
}
