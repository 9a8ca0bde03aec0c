//! ZAPs for programs: what is stored can be read back, with several threads, after a crash, and when the pool
//! is full.

use crate::support::Machine;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_dataset::{BatchPlan, Dataset, ZapError, ZapHandle, ZapSpec, Zaps};
use terrane_object::ObjectError;
use terrane_store::PoolError;
use terrane_wire::ObjectId;
use terrane_zap::{Cursor, Error, Flags, Key, Kind, ValueRef, ValueShape};

fn zaps(machine: &Machine) -> Arc<Zaps> {
    Zaps::open(&Arc::new(Dataset::create_root(&machine.objects, &[]).unwrap())).unwrap()
}

fn reopened(machine: &Machine) -> Arc<Zaps> {
    Zaps::open(&Arc::new(Dataset::open_root(&machine.objects).unwrap())).unwrap()
}

fn create(zaps: &Zaps, spec: ZapSpec) -> ZapHandle {
    let batch = zaps.begin(BatchPlan::new().create(1, 10, 40)).unwrap();
    zaps.create(&batch, spec).unwrap()
}

#[test]
fn integers_of_every_size_come_back() {
    let machine = Machine::new(1);
    let zaps = zaps(&machine);
    let zap = create(&zaps, ZapSpec::NAMES);
    let values = [
        ("one byte", ValueRef::U8s(&[1, 2, 255])),
        ("two bytes", ValueRef::U16s(&[1, 65_535])),
        ("four bytes", ValueRef::U32s(&[7; 40])),
        ("eight bytes", ValueRef::U64s(&[u64::MAX])),
        ("a file identifier", ValueRef::U64s(&[0x2_0000_0401, 7, 0])),
    ];
    for (name, value) in values {
        let batch = zaps.begin(BatchPlan::new().put(&zap, 1, name.len(), value)).unwrap();
        zap.add(&batch, name, value).unwrap();
        assert!(matches!(zap.add(&batch, name, value), Err(Error::Exists)));
        assert!(!zap.update(&batch, name, value).unwrap(), "it was there");
    }
    for (name, value) in values {
        assert_eq!(zap.lookup(name).unwrap().unwrap().ints(), ints(value));
        let shape = ValueShape { int_size: value.int_size(), num_ints: value.num_ints() };
        assert_eq!(zap.shape(name).unwrap(), Some(shape));
        assert!(zap.contains(name).unwrap());
    }
    assert_eq!(zap.lookup_u64("two bytes").unwrap(), Some(1));
    assert_eq!((zap.len().unwrap(), zap.shape("none").unwrap()), (5, None));
    let names: BTreeSet<Vec<u8>> =
        zap.iter().map(|entry| entry.unwrap().key.name().unwrap().to_vec()).collect();
    assert_eq!(names, values.iter().map(|(name, _)| name.as_bytes().to_vec()).collect());
    let batch = zaps.begin(BatchPlan::new().remove(&zap, 5)).unwrap();
    for (name, _) in values {
        assert!(zap.remove(&batch, name).unwrap() && !zap.remove(&batch, name).unwrap());
    }
    assert!(zap.is_empty().unwrap());
    drop(batch);
    zaps.commit().unwrap();
    assert_eq!(zap.used_bytes().unwrap(), 0);
}

#[test]
fn small_zaps_are_tiny_and_keys_may_be_words() {
    let machine = Machine::new(2);
    let zaps = zaps(&machine);
    let small = create(&zaps, ZapSpec::NAMES);
    let words = create(&zaps, ZapSpec::U64_KEYS);
    let wide = create(&zaps, ZapSpec { flags: Flags::HASH64, fat_block_shift: 16 });
    let batch = zaps.begin(BatchPlan::new().put(&small, 10, 8, ValueRef::U64s(&[0; 3]))).unwrap();
    for number in 0..10u64 {
        small.add(&batch, &format!("file-{number}"), ValueRef::U64s(&[number, 1, 0])).unwrap();
        words.add(&batch, &[number, number * 7][..], ValueRef::U64s(&[number])).unwrap();
        wide.add(&batch, &format!("file-{number}"), ValueRef::U64s(&[number])).unwrap();
    }
    assert_eq!(small.kind().unwrap(), Kind::Tiny { chunk_bytes: 64, value_ints: 3 });
    assert_eq!((words.kind().unwrap(), wide.kind().unwrap()), (Kind::Fat, Kind::Fat));
    assert_eq!(words.lookup_u64(&[3u64, 21][..]).unwrap(), Some(3));
    assert!(matches!(words.add(&batch, "a name", ValueRef::U64s(&[1])), Err(Error::KeyKind { .. })));
    assert!(matches!(small.add(&batch, &[1u64][..], ValueRef::U64s(&[1])), Err(Error::KeyKind { .. })));
    let first = words.list(Cursor::START, 1).unwrap();
    assert!(matches!(&first[0].key, Key::U64s(words) if words.len() == 2));
    // An empty ZAP with flags keeps its blocks, since only they store the flags.
    for number in 0..10u64 {
        assert!(words.remove(&batch, &[number, number * 7][..]).unwrap());
    }
    words.add(&batch, &[99u64][..], ValueRef::U64s(&[1])).unwrap();
    drop(batch);
    zaps.commit().unwrap();
    words.prefetch().unwrap();
    assert_eq!(words.len().unwrap(), 1);
}

#[test]
fn crash_keeps_whole_batches_only() {
    let machine = Machine::new(3);
    let zaps = zaps(&machine);
    let zap = create(&zaps, ZapSpec::NAMES);
    let put = |name: &str, number: u64| {
        let batch = zaps.begin(BatchPlan::new().put(&zap, 1, name.len(), ValueRef::U64s(&[0]))).unwrap();
        zap.update(&batch, name, ValueRef::U64s(&[number])).unwrap();
        zaps.roots().update(&batch, "number", ValueRef::U64s(&[number])).unwrap();
    };
    let batch = zaps.begin(BatchPlan::new().put(zaps.roots(), 1, 8, ValueRef::U64s(&[0]))).unwrap();
    zaps.roots().add(&batch, "zap", ValueRef::U64s(&[zap.id().0])).unwrap();
    drop(batch);
    put("kept", 1);
    zaps.commit().unwrap();
    put("lost", 2);
    drop((zap, zaps));
    let machine = machine.crash();
    let zaps = reopened(&machine);
    let id = ObjectId(zaps.roots().lookup_u64("zap").unwrap().unwrap());
    let zap = zaps.zap(id).unwrap();
    assert_eq!(zaps.roots().lookup_u64("number").unwrap(), Some(1));
    assert_eq!((zap.lookup_u64("kept").unwrap(), zap.lookup_u64("lost").unwrap()), (Some(1), None));
}

fn ints(value: ValueRef<'_>) -> Vec<u64> {
    match value {
        ValueRef::U8s(ints) => ints.iter().copied().map(u64::from).collect(),
        ValueRef::U16s(ints) => ints.iter().copied().map(u64::from).collect(),
        ValueRef::U32s(ints) => ints.iter().copied().map(u64::from).collect(),
        ValueRef::U64s(ints) => ints.to_vec(),
    }
}

fn not_found<T: std::fmt::Debug>(outcome: Result<T, ZapError>) -> bool {
    matches!(outcome, Err(Error::Store(ObjectError::NotFound(_))))
}

#[test]
fn handles_of_one_zap_are_one_and_die_with_it() {
    let machine = Machine::new(4);
    let zaps = zaps(&machine);
    let zap = create(&zaps, ZapSpec::NAMES);
    let same = zaps.zap(zap.id()).unwrap();
    let batch = zaps.begin(BatchPlan::new().put(&zap, 1, 1, ValueRef::U64s(&[0])).destroy()).unwrap();
    zap.add(&batch, "a", ValueRef::U64s(&[1])).unwrap();
    assert_eq!(same.lookup_u64("a").unwrap(), Some(1));
    zaps.destroy(&batch, &same).unwrap();
    assert!(not_found(zap.lookup("a")) && not_found(zap.len()) && not_found(zap.iter().next().unwrap()));
    assert!(not_found(zap.add(&batch, "b", ValueRef::U64s(&[1]))) && not_found(zaps.destroy(&batch, &zap)));
    drop(batch);
    assert!(not_found(zaps.zap(zap.id()).map(|_| ())));
    zaps.commit().unwrap();
    zaps.commit().unwrap();
    // Its number is reused, and the old handle does not refer to the new ZAP.
    let numbers: Vec<ZapHandle> = (0..40).map(|_| create(&zaps, ZapSpec::NAMES)).collect();
    assert!(not_found(zap.len()));
    for new in &numbers {
        assert_eq!(zaps.zap(new.id()).unwrap().len().unwrap(), 0);
    }
    assert!(not_found(zaps.zap(terrane_dataset::MASTER).map(|_| ())), "the master ZAP is nobody's");
    assert!(not_found(zaps.zap(ObjectId(1 << 40)).map(|_| ())));
}

#[test]
fn zaps_shrink_after_removals() {
    let machine = Machine::new(7);
    let zaps = zaps(&machine);
    zaps.dataset().set("zapsize", "8K").unwrap();
    let zap = create(&zaps, ZapSpec::NAMES);
    let value = ValueRef::U64s(&[1, 2, 3]);
    let batch = zaps.begin(BatchPlan::new().put(&zap, 500, 8, value)).unwrap();
    (0..500).for_each(|number| zap.add(&batch, &format!("{number}"), value).unwrap());
    assert_eq!(zap.kind().unwrap(), Kind::Fat);
    drop(batch);
    let batch = zaps.begin(BatchPlan::new().remove(&zap, 490)).unwrap();
    (10..500).for_each(|number| assert!(zap.remove(&batch, &format!("{number}")).unwrap()));
    drop(batch);
    assert!(!zaps.shrink_zaps());
    assert_eq!(zap.kind().unwrap(), Kind::Fat, "not in the same group");
    // The test drops its handle meanwhile.
    let id = zap.id();
    drop(zap);
    zaps.commit().unwrap();
    assert!(!zaps.shrink_zaps());
    let zap = zaps.zap(id).unwrap();
    assert_eq!(zap.kind().unwrap(), Kind::Tiny { chunk_bytes: 64, value_ints: 3 });
    assert_eq!(zap.len().unwrap(), 10);
    zaps.commit().unwrap();
    assert!(zap.used_bytes().unwrap() < 1024);
    // A ZAP that is destroyed meanwhile is skipped.
    let batch = zaps.begin(BatchPlan::new().remove(&zap, 9).destroy()).unwrap();
    (0..9).for_each(|number| assert!(zap.remove(&batch, &format!("{number}")).unwrap()));
    zaps.destroy(&batch, &zap).unwrap();
    drop(batch);
    zaps.commit().unwrap();
    assert!(!zaps.shrink_zaps());
}

/// As identifiers are set beside names one after the other: mixed widths make the ZAP fat, until the last one is set.
#[test]
fn zaps_shrink_when_all_values_have_one_width() {
    let machine = Machine::new(8);
    let zaps = zaps(&machine);
    let zap = create(&zaps, ZapSpec::NAMES);
    let (word, identifier) = (ValueRef::U64s(&[7]), ValueRef::U64s(&[1, 2, 3]));
    let batch = zaps.begin(BatchPlan::new().put(&zap, 20, 2, word)).unwrap();
    (0..20).for_each(|number| zap.add(&batch, &format!("{number}"), word).unwrap());
    assert_eq!(zap.kind().unwrap(), Kind::Micro);
    drop(batch);
    for half in [0..15, 15..20] {
        let batch = zaps.begin(BatchPlan::new().put(&zap, 20, 2, identifier)).unwrap();
        half.for_each(|number| assert!(!zap.update(&batch, &format!("{number}"), identifier).unwrap()));
        drop(batch);
        assert_eq!(zap.kind().unwrap(), Kind::Fat);
        zaps.commit().unwrap();
        assert!(!zaps.shrink_zaps());
    }
    assert_eq!(zap.kind().unwrap(), Kind::Tiny { chunk_bytes: 64, value_ints: 3 });
    assert_eq!(zap.lookup("19").unwrap().unwrap().ints(), [1, 2, 3]);
}

#[test]
fn threads_share_a_zap() {
    let machine = Machine::new(5);
    let zaps = zaps(&machine);
    let zap = create(&zaps, ZapSpec::NAMES);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (zaps, zap) = (&zaps, &zap);
            scope.spawn(move || {
                for number in 0..400u64 {
                    let name = format!("{thread}-{number}");
                    let value = ValueRef::U64s(&[thread, number, 0]);
                    let batch = zaps.begin(BatchPlan::new().put(zap, 1, name.len(), value)).unwrap();
                    zap.add(&batch, &name, value).unwrap();
                    if number % 3 == 0 {
                        assert!(zap.remove(&batch, &format!("{thread}-{}", number / 3)).unwrap());
                    }
                    drop(batch);
                    assert!(zap.lookup(&format!("{}-{number}", (thread + 1) % 4)).is_ok());
                    if number % 100 == 50 {
                        zaps.commit().unwrap();
                    }
                }
            });
        }
    });
    let mut left = BTreeMap::new();
    for entry in zap.iter() {
        let entry = entry.unwrap();
        let ints = entry.value.ints();
        assert!(left.insert((ints[0], ints[1]), ()).is_none());
    }
    assert_eq!(left.len(), 4 * (400 - 134));
    assert_eq!(zap.len().unwrap(), left.len() as u64);
}

#[test]
fn full_pool_refuses_batches_but_allows_removal() {
    let machine = Machine::with_zones_of(6, 1 << 20);
    let zaps = zaps(&machine);
    let zap = create(&zaps, ZapSpec::NAMES);
    let env = machine.objects.pool().env().clone();
    let mut names = 0u64;
    let full = loop {
        // Incompressible values.
        let value: Vec<u64> = (0..30).map(|_| env.random_u64()).collect();
        let value = ValueRef::U64s(&value);
        match zaps.begin(BatchPlan::new().put(&zap, 50, 12, value)) {
            Ok(batch) => {
                for _ in 0..50 {
                    zap.add(&batch, &format!("{names:012}"), value).unwrap();
                    names += 1;
                }
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Store(ObjectError::Pool(PoolError::NoSpace { .. }))), "{full}");
    assert_eq!(zap.len().unwrap(), names);
    zaps.commit().unwrap();
    while names > 0 {
        let batch = zaps.begin(BatchPlan::new().remove(&zap, 10)).unwrap();
        for _ in 0..10 {
            names -= 1;
            assert!(zap.remove(&batch, &format!("{names:012}")).unwrap());
        }
    }
    zaps.commit().unwrap();
    assert!(zap.is_empty().unwrap());
    drop(zaps.begin(BatchPlan::new().create(100, 10, 40)).unwrap());
}

/// Two handles with different state of one object would overwrite each other.
#[test]
fn reopened_data_sets_share_zap_handles() {
    let machine = Machine::new(77);
    let dataset = Arc::new(Dataset::create_root(&machine.objects, &[]).unwrap());
    let first = Zaps::open(&dataset).unwrap();
    let mine = create(&first, ZapSpec::NAMES);
    let add = |zaps: &Zaps, zap: &ZapHandle, name: &str| {
        let batch = zaps.begin(BatchPlan::new().put(zap, 1, 8, ValueRef::U64s(&[1]))).unwrap();
        zap.add(&batch, name, ValueRef::U64s(&[1]))
    };
    add(&first, &mine, "mine").unwrap();
    // Also if no `Zaps` exists meanwhile.
    for zaps in [Zaps::open(&dataset).unwrap(), {
        drop(first);
        Zaps::open(&dataset).unwrap()
    }] {
        let theirs = zaps.zap(mine.id()).unwrap();
        add(&zaps, &theirs, "theirs").unwrap();
        assert!(matches!(add(&zaps, &mine, "theirs"), Err(Error::Exists)));
        let batch = zaps.begin(BatchPlan::new().remove(&mine, 1)).unwrap();
        assert!(mine.remove(&batch, "mine").unwrap());
        drop(batch);
        assert_eq!(
            theirs.lookup_u64("theirs").unwrap(),
            Some(1),
            "it went with the last one that the other handle knew of"
        );
        add(&zaps, &mine, "mine").unwrap();
        let batch = zaps.begin(BatchPlan::new().remove(&mine, 1)).unwrap();
        assert!(theirs.remove(&batch, "theirs").unwrap());
    }
}

#[test]
fn the_roots_cannot_be_destroyed() {
    let machine = Machine::new(78);
    let zaps = zaps(&machine);
    let batch = zaps.begin(BatchPlan::new().destroy()).unwrap();
    let error = zaps.destroy(&batch, zaps.roots()).unwrap_err();
    assert_eq!(error.to_string(), "refused: the ZAP of the roots cannot be destroyed");
    drop(batch);
    zaps.commit().unwrap();
    drop(zaps);
    assert!(reopened(&machine).roots().is_empty().unwrap());
}

#[test]
fn a_batch_of_another_pool_changes_nothing() {
    let (here, there) = (Machine::new(79), Machine::new(80));
    let (here, there) = (zaps(&here), zaps(&there));
    let zap = create(&here, ZapSpec::NAMES);
    let batch = there.begin(BatchPlan::new().create(1, 1, 16)).unwrap();
    let error = zap.add(&batch, "lost", ValueRef::U64s(&[1])).unwrap_err();
    assert_eq!(error.to_string(), "refused: the batch belongs to another pool");
    assert!(matches!(here.create(&batch, ZapSpec::NAMES).map(drop), Err(Error::Refused { .. })));
    assert!(matches!(here.destroy(&batch, &zap), Err(Error::Refused { .. })));
    assert!(zap.is_empty().unwrap());
}
