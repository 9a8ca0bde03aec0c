//! Objects compared with byte arrays, across txgs, imports and crashes. Random operations: writes, holes,
//! truncation, spills, creation and destruction.

use crate::support;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{COST, World, create, file_of, import, noise, options, sim, spec};
use terrane_codec::Compressor;
use terrane_format::{BlockPtr, Owner};
use terrane_object::{Object, ObjectKind, ObjectSets, ObjectSpec};
use terrane_pool::{CreateOptions, Pool, Tx};
use terrane_store::env::{Env, SeededEnv};
use terrane_store::pipeline::PreEncoded;
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

/// The model of an object: a few MiB of bytes, and its spill.
#[derive(Clone, Default)]
struct Thing {
    bytes: Vec<u8>,
    spill: Option<Vec<u8>>,
}

type Oracle = BTreeMap<u64, Thing>;

const MAX: u64 = 3 << 20;

thread_local! {
    /// Writes of parts of records in this test.
    static PARTS: Cell<u64> = const { Cell::new(0) };
}

fn compare(world: &World, oracle: &Oracle) {
    for (id, Thing { bytes, spill }) in oracle {
        let object = world.set.hold(ObjectId(*id)).unwrap();
        compare_spill(&object, spill.as_ref());
        let mut found = vec![0xee; bytes.len() + 100];
        object.read(0, &mut found).unwrap();
        let first = found.iter().zip(bytes.iter().chain(std::iter::repeat(&0))).position(|(a, b)| a != b);
        assert_eq!(first, None, "object {id} of block size {} differs", object.block_size());
        assert_eq!(object.bonus().as_slice(), id.to_le_bytes());
        check_holes(&object, bytes);
    }
    let mut numbers = Vec::new();
    assert!(world.set.for_each_dnode(&mut |id, _| numbers.push(id.0)).is_empty());
    assert_eq!(numbers, oracle.keys().copied().collect::<Vec<_>>());
    assert_eq!(world.pool.check_tables(), vec![]);
    assert_eq!(world.pool.errors().findings, Vec::<String>::new());
}

fn compare_spill(object: &Object, expected: Option<&Vec<u8>>) {
    let id = object.id();
    assert_eq!(object.has_spill(), expected.is_some(), "object {id}");
    assert!(object.spill().unwrap().as_deref() == expected, "the spill of object {id} differs");
}

/// Data exists only where the object reports it.
fn check_holes(object: &Object, bytes: &[u8]) {
    let mut at = 0u64;
    while let Some(data) = object.next_data(at).unwrap() {
        let quiet = bytes.get(at as usize..(data as usize).min(bytes.len())).unwrap_or(&[]);
        assert!(quiet.iter().all(|byte| *byte == 0), "data in what is called a hole");
        at = object.next_hole(data).unwrap();
        assert!(at > data);
    }
    let quiet = bytes.get(at as usize..).unwrap_or(&[]);
    assert!(quiet.iter().all(|byte| *byte == 0), "data behind the last");
}

fn step(world: &World, oracle: &mut Oracle, env: &SeededEnv) {
    let pick = |n: u64| env.random_u64() % n;
    let tx = world.pool.begin(COST).unwrap();
    let known: Vec<u64> = oracle.keys().copied().collect();
    let kind = pick(17);
    if kind == 0 || known.is_empty() {
        let block_size = 512u32 << pick(9);
        let spec = ObjectSpec {
            kind: ObjectKind::File,
            block_size,
            dnode_slots: 1 + pick(3) as u8,
            bonus: Vec::new(),
            spill: (pick(4) == 0).then(|| some_spill(env)),
        };
        let spill = spec.spill.clone();
        let object = world.set.create(&tx, spec).unwrap();
        object.set_bonus(&tx, object.id().0.to_le_bytes().to_vec()).unwrap();
        let thing = Thing { bytes: Vec::new(), spill };
        assert!(oracle.insert(object.id().0, thing).is_none(), "a number in use was handed out");
        return;
    }
    let id = known[pick(known.len() as u64) as usize];
    let object = world.set.hold(ObjectId(id)).unwrap();
    let Thing { bytes, spill } = oracle.get_mut(&id).unwrap();
    let at = if pick(3) == 0 { pick(MAX) } else { pick(200_000) };
    match kind {
        1 if known.len() > 4 => {
            world.set.destroy(&tx, &object).unwrap();
            assert!(world.set.hold(ObjectId(id)).is_err());
            oracle.remove(&id);
        }
        2 => {
            object.truncate(&tx, at).unwrap();
            bytes.truncate(at as usize);
        }
        3 | 4 => {
            let len = if pick(4) == 0 { MAX } else { pick(300_000) };
            object.zero_range(&tx, at, len).unwrap();
            let end = (at + len).min(bytes.len() as u64);
            if at < end {
                bytes[at as usize..end as usize].fill(0);
            }
        }
        5 | 6 => {
            let bonus = object.bonus().to_vec();
            *spill = (pick(3) > 0).then(|| some_spill(env));
            object.set_attributes(&tx, bonus, spill.clone()).unwrap();
        }
        7 => object.set_attributes(&tx, object.bonus().to_vec(), spill.clone()).unwrap(),
        8 if (at as usize) < bytes.len() => {
            let end = bytes.len().min(at as usize + pick(200_000) as usize);
            object.write(&tx, at, &bytes[at as usize..end]).unwrap();
        }
        15 | 16 => recode(&object, &tx, env),
        _ => {
            let len = 1 + pick(if pick(2) == 0 { 50_000 } else { 600 }) as usize;
            let value = pick(4) as u8;
            let data: Vec<u8> =
                (0..len).map(|n| if value == 0 { 0 } else { value.wrapping_add((n / 7) as u8) }).collect();
            if pick(4) == 0 || !object.write_part(&tx, at, &data).unwrap() {
                object.write(&tx, at, &data).unwrap();
            } else {
                PARTS.set(PARTS.get() + 1);
            }
            let end = at as usize + len;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at as usize..end].copy_from_slice(&data);
        }
    }
}

/// Stores some blocks in another form. Only their pointers change visibly.
fn recode(object: &Arc<Object>, tx: &Tx, env: &SeededEnv) {
    let mut codec = Compressor::new();
    let words = ["off", "lz4", "gzip-1", "zstd-3", "zstd-fast-10", "zle"];
    let mut first = 0;
    while let Some(at) = object.next_data(first * u64::from(object.block_size())).unwrap() {
        let block = at / u64::from(object.block_size());
        first = block + 1 + env.random_u64() % 5;
        let Some((ptr, content)) = object.stored_block(block).unwrap() else { continue };
        let word = words[env.random_u64() as usize % words.len()];
        let encoded = PreEncoded::compress(&mut codec, &content, word.parse().unwrap());
        if env.random_u64().is_multiple_of(4) {
            // A concurrent write of the same content.
            let whole = object.read_block(block).unwrap();
            object.write(tx, block * u64::from(object.block_size()), &whole).unwrap();
            assert!(!object.recode_block(tx, block, (&ptr, content), encoded).unwrap(), "writers win");
        } else {
            assert!(object.recode_block(tx, block, (&ptr, content), encoded).unwrap());
        }
    }
}

/// From a few bytes, which are embedded, to the maximum.
fn some_spill(env: &SeededEnv) -> Vec<u8> {
    let len = 1 + env.random_u64() % [100, 700, 5000, 128 << 10][env.random_u64() as usize % 4];
    let mask = if env.random_u64().is_multiple_of(2) { 0xff } else { 3 };
    let mut spill: Vec<u8> = (0..len).map(|_| env.random_u64() as u8 & mask).collect();
    spill[0] = 0x5a;
    spill
}

#[test]
fn objects_behave_like_byte_arrays() {
    for seed in 0..12 {
        let device = sim(seed);
        let env = SeededEnv::new(seed);
        let mut world = create(&device, seed);
        let mut oracle = Oracle::new();
        for round in 0..12 {
            for _ in 0..env.random_u64() % 40 {
                step(&world, &mut oracle, &env);
                if env.random_u64().is_multiple_of(8) {
                    world.pool.commit().unwrap();
                }
                if env.random_u64().is_multiple_of(4) {
                    world.pool.drop_cache();
                }
            }
            // First dirty state, then stored state, then the state after an import.
            for (id, Thing { bytes, spill }) in &oracle {
                let mut found = vec![0; bytes.len()];
                let object = world.set.hold(ObjectId(*id)).unwrap();
                object.read(0, &mut found).unwrap();
                compare_spill(&object, spill.as_ref());
                assert!(found == *bytes, "seed {seed} round {round} object {id}: dirty state differs");
            }
            world.pool.commit().unwrap();
            compare(&world, &oracle);
            if round % 3 == 2 {
                world.pool.export().unwrap();
                world = import(&device, seed * 100 + round);
                compare(&world, &oracle);
            }
        }
    }
    assert!(PARTS.get() > 20, "few parts of records were written: {}", PARTS.get());
}

/// Small writes into stored records, beside all else that changes them. What is read is new, also while it is not stored.
#[test]
fn parts_of_records_behave_like_bytes() {
    const RECORD: u64 = 64 << 10;
    const BYTES: u64 = 20 * RECORD;
    let (mut kept, mut joined) = (0, 0);
    for seed in 0..10 {
        let device = sim(seed);
        let env = SeededEnv::new(seed);
        let pick = |n: u64| env.random_u64() % n;
        let mut world = create(&device, seed);
        let text = |len: u64| -> Vec<u8> {
            let first = pick(250);
            (0..len).map(|n| (first + n / 40) as u8).collect()
        };
        let tx = world.pool.begin(COST).unwrap();
        let spec = ObjectSpec { block_size: RECORD as u32, ..spec(0, None) };
        let id = world.set.create(&tx, spec).unwrap().id();
        let mut bytes = text(BYTES);
        world.set.hold(id).unwrap().write(&tx, 0, &bytes).unwrap();
        drop(tx);
        for round in 0..300 {
            let object = world.set.hold(id).unwrap();
            let at = pick(BYTES - 1);
            match pick(24) {
                0 => drop(world.pool.commit().unwrap()),
                1 => {
                    let tx = world.pool.begin(COST).unwrap();
                    let len = pick(3 * RECORD).min(BYTES - at);
                    object.zero_range(&tx, at, len).unwrap();
                    bytes[at as usize..(at + len) as usize].fill(0);
                }
                2 => {
                    let tx = world.pool.begin(COST).unwrap();
                    object.truncate(&tx, at).unwrap();
                    bytes[at as usize..].fill(0);
                }
                3 => {
                    drop(object);
                    world.pool.export().unwrap();
                    world = import(&device, seed * 1000 + round);
                }
                4..7 => world.pool.drop_cache(),
                7..11 => {
                    let len = 1 + pick(RECORD).min(BYTES - at - 1);
                    let mut found = vec![0; len as usize];
                    object.read(at, &mut found).unwrap();
                    assert!(found == bytes[at as usize..(at + len) as usize], "seed {seed}, round {round}");
                }
                kind => {
                    let tx = world.pool.begin(COST).unwrap();
                    // Half of them follow each other until a record is new as a whole.
                    let (at, len) = if kind < 17 {
                        (at, 1 + pick([100, 5000, 16_000, RECORD][pick(4) as usize]))
                    } else {
                        joined += 1;
                        (joined * RECORD / 4 % BYTES, RECORD / 4)
                    };
                    let new = text(len.min(BYTES - at));
                    if object.write_part(&tx, at, &new).unwrap() {
                        kept += 1;
                    } else {
                        object.write(&tx, at, &new).unwrap();
                    }
                    bytes[at as usize..][..new.len()].copy_from_slice(&new);
                }
            }
        }
        world.pool.commit().unwrap();
        let mut found = vec![1; BYTES as usize];
        world.set.hold(id).unwrap().read(0, &mut found).unwrap();
        assert!(found == bytes, "seed {seed}");
        assert_eq!(world.pool.check_tables(), vec![]);
    }
    assert!(kept > 100, "few parts were kept: {kept}");
}

#[test]
fn after_a_crash_exactly_a_committed_txg_is_there() {
    for seed in 0..60 {
        let device = sim(seed);
        let env = SeededEnv::new(seed + 1000);
        let world = create(&device, seed);
        let mut oracle = Oracle::new();
        for _ in 0..30 {
            step(&world, &mut oracle, &env);
        }
        let mut committed = BTreeMap::new();
        committed.insert(world.pool.commit().unwrap(), oracle.clone());
        device.crash_after(device.ops_done() + env.random_u64() % 30);
        loop {
            let txg = world.pool.open_txg();
            for _ in 0..5 {
                step(&world, &mut oracle, &env);
            }
            committed.insert(txg, oracle.clone());
            if world.pool.commit().is_err() {
                break;
            }
        }
        let synced = world.pool.synced_txg();
        world.pool.abandon();
        let world = import(&device.after_power_loss(seed), seed);
        let found = world.pool.synced_txg();
        assert!(found >= synced, "seed {seed}: group {synced} was promised, {found} is there");
        compare(&world, &committed[&found]);
    }
}

/// The power fails at any write of a txg that stores parts of records, and in the txgs after it.
#[test]
fn after_a_crash_parts_are_those_of_a_committed_txg() {
    const RECORD: u64 = 16 << 10;
    const BYTES: u64 = 8 * RECORD;
    let (mut kept, mut earlier) = (0, 0);
    for seed in 0..80 {
        let device = sim(seed);
        let env = SeededEnv::new(seed + 500);
        let pick = |n: u64| env.random_u64() % n;
        let world = create(&device, seed);
        let tx = world.pool.begin(COST).unwrap();
        let spec = ObjectSpec { block_size: RECORD as u32, ..spec(0, None) };
        let object = world.set.create(&tx, spec).unwrap();
        let mut bytes: Vec<u8> = (0..BYTES).map(|n| (n / 40) as u8).collect();
        object.write(&tx, 0, &bytes).unwrap();
        drop(tx);
        let mut committed = BTreeMap::from([(world.pool.commit().unwrap(), bytes.clone())]);
        device.crash_after(device.ops_done() + seed % 40);
        loop {
            world.pool.drop_cache();
            let txg = world.pool.open_txg();
            for _ in 0..1 + pick(6) {
                let tx = world.pool.begin(COST).unwrap();
                let at = pick(BYTES - 600);
                let new = vec![pick(250) as u8; 1 + pick(600) as usize];
                match object.write_part(&tx, at, &new) {
                    Ok(true) => kept += 1,
                    Ok(false) if object.write(&tx, at, &new).is_ok() => {}
                    // The device has failed.
                    _ => continue,
                }
                bytes[at as usize..][..new.len()].copy_from_slice(&new);
            }
            committed.insert(txg, bytes.clone());
            if world.pool.commit().is_err() {
                break;
            }
        }
        let (synced, id) = (world.pool.synced_txg(), object.id());
        world.pool.abandon();
        let world = import(&device.after_power_loss(seed), seed);
        let found = world.pool.synced_txg();
        assert!(found >= synced, "seed {seed}: txg {synced} was promised, {found} is there");
        earlier += u32::from(Some(&found) != committed.keys().last());
        let mut read = vec![1; BYTES as usize];
        world.set.hold(id).unwrap().read(0, &mut read).unwrap();
        assert!(read == committed[&found], "seed {seed}: txg {found}");
    }
    assert!(kept > 200 && earlier > 20, "{kept} parts, {earlier} lives that lost a txg");
}

#[test]
fn a_huge_sparse_object_goes_in_bounded_steps() {
    let device = sim(3);
    let world = create(&device, 3);
    let tx = world.pool.begin(COST).unwrap();
    let spec = ObjectSpec {
        kind: ObjectKind::File,
        block_size: 4096,
        dnode_slots: 1,
        bonus: Vec::new(),
        spill: None,
    };
    let object = world.set.create(&tx, spec).unwrap();
    drop(tx);
    for n in 0..400u64 {
        let tx = world.pool.begin(COST).unwrap();
        object.write(&tx, n * (1 << 33) + n, &n.to_le_bytes().repeat(40)).unwrap();
    }
    world.pool.commit().unwrap();
    let used = world.pool.status().live_bytes;
    let tx = world.pool.begin(COST).unwrap();
    let mut tail = [0; 8];
    object.read(399 * (1 << 33) + 399, &mut tail).unwrap();
    assert_eq!(u64::from_le_bytes(tail), 399);
    world.set.destroy(&tx, &object).unwrap();
    drop((tx, object));
    for _ in 0..8 {
        world.pool.commit_txg(world.pool.open_txg()).unwrap();
    }
    let (_, _, queue) = world.set.inner_trees();
    assert!(queue.is_empty(), "{} subtrees still wait", queue.len());
    let left = world.pool.status().live_bytes;
    assert!(left < used / 4, "{used} bytes before, {left} after");
}

#[test]
fn unreadable_indirect_block_leaks_only_its_children() {
    let device = sim(9);
    let world = create(&device, 9);
    world.pool.commit().unwrap();
    let live = || world.pool.status().live_bytes;
    let before = live();
    let object = file_of(&world, 1000);
    let used = live() - before;
    let root = object.dnode().root;
    let below = world.pool.read(&root, Owner::Pool { structure: 0 }).unwrap();
    let third = BlockPtr::parse(&below[2 * BlockPtr::SIZE..3 * BlockPtr::SIZE], &"third").unwrap();
    let BlockPtr::Normal(third) = third else { panic!("{third:?}") };
    for copy in third.copies() {
        let (_, home, offset) = world.pool.locate(copy, third.psize).unwrap();
        device.rot(home.zone, offset + 7, &[0xff]).unwrap();
    }
    world.pool.drop_cache();
    let tx = world.pool.begin(COST).unwrap();
    world.set.destroy(&tx, &object).unwrap();
    drop((tx, object));
    for _ in 0..4 {
        world.pool.commit_txg(world.pool.open_txg()).unwrap();
    }
    assert!(world.set.inner_trees().2.is_empty() && !world.pool.errors().findings.is_empty());
    let left = live().saturating_sub(before);
    assert!(left < used / 4, "{used} bytes before, {left} after");
}

#[test]
fn unreadable_tree_affects_only_its_object() {
    let device = sim(8);
    let world = create(&device, 8);
    let make = |fill: u8| {
        let tx = world.pool.begin(COST).unwrap();
        let spec = ObjectSpec {
            kind: ObjectKind::File,
            block_size: 512,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: None,
        };
        let object = world.set.create(&tx, spec).unwrap();
        object.set_bonus(&tx, object.id().0.to_le_bytes().to_vec()).unwrap();
        object.write(&tx, 0, &vec![fill; 100_000]).unwrap();
        object
    };
    let (bad, good) = (make(1), make(2));
    world.pool.commit().unwrap();
    // Both copies of one object's indirect block are corrupted.
    let terrane_format::BlockPtr::Normal(root) = bad.dnode().root else { panic!("a tree of two levels") };
    for copy in root.copies() {
        let (_, home, offset) = world.pool.locate(copy, root.psize).unwrap();
        device.rot(home.zone, offset + 7, &[0xff]).unwrap();
    }
    world.pool.drop_cache();
    let tx = world.pool.begin(COST).unwrap();
    assert!(bad.read(0, &mut [0; 8]).is_err());
    assert!(
        bad.write(&tx, 0, &[9; 512]).is_err(),
        "whole blocks are not accepted where they could not be stored"
    );
    assert!(bad.write(&tx, 100, &[9; 7]).is_err());
    good.write(&tx, 5, &[7; 9]).unwrap();
    bad.truncate(&tx, 0).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    let tx = world.pool.begin(COST).unwrap();
    world.set.destroy(&tx, &bad).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    let mut found = [0; 16];
    good.read(0, &mut found).unwrap();
    assert_eq!(found, [2, 2, 2, 2, 2, 7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 2]);
    assert!(!world.pool.errors().findings.is_empty(), "it is named");
    assert_eq!(world.pool.status().failed, None);
}

#[test]
fn second_copy_with_lost_changes_is_refused() {
    let device = sim(9);
    let world = create(&device, 9);
    let file_spec = |block_size| ObjectSpec {
        kind: ObjectKind::File,
        block_size,
        dnode_slots: 1,
        bonus: Vec::new(),
        spill: None,
    };
    let cost = Cost { write_bytes: 1 << 20, ..COST };
    let tx = world.pool.begin(cost).unwrap();
    let file = world.set.create(&tx, file_spec(4096)).unwrap();
    file.write(&tx, 0, &noise(1, 100_000)).unwrap();
    let copies = [(); 2].map(|()| world.set.create(&tx, file_spec(512)).unwrap());
    let birth = tx.txg();
    for copy in &copies {
        copy.set_copy_target(file.id());
        copy.write(&tx, 0, &noise(2, 100_000)).unwrap();
    }
    drop(tx);
    world.pool.commit().unwrap();
    let [copy, whole] = &copies;
    let tx = world.pool.begin(cost).unwrap();
    for copy in &copies {
        copy.put_blocks(&tx, &[], vec![(3, vec![7; 512])]).unwrap();
    }
    drop(tx);
    let BlockPtr::Normal(root) = copy.dnode().root else { panic!("a tree of two levels") };
    for pointer in root.copies() {
        let (_, home, offset) = world.pool.locate(pointer, root.psize).unwrap();
        device.rot(home.zone, offset + 7, &[0xff]).unwrap();
    }
    world.pool.drop_cache();
    world.pool.commit().unwrap();
    let tx = world.pool.begin(cost).unwrap();
    assert!(
        copy.put_blocks(&tx, &[5..6, 8..u64::MAX], Vec::new()).is_err(),
        "what could not be stored is not taken"
    );
    assert!(file.take_content(&tx, copy, birth).is_err());
    drop(tx);
    world.pool.commit().unwrap();
    let content = |file: &Object, len: usize| {
        let mut found = vec![0; len];
        file.read(0, &mut found).unwrap();
        found
    };
    assert!(content(&file, 100_000) == noise(1, 100_000));
    // A later server finds it too.
    let ids = [file.id(), copy.id(), whole.id()];
    drop((file, copies));
    world.pool.export().unwrap();
    let world = import(&device, 9);
    let [file, copy, whole] = ids.map(|id| world.set.hold(id).unwrap());
    assert!(copy.birth() > birth);
    assert_eq!(whole.birth(), birth);
    let tx = world.pool.begin(cost).unwrap();
    assert!(file.take_content(&tx, &whole, birth).unwrap());
    drop(tx);
    world.pool.commit().unwrap();
    let mut expected = noise(2, 100_000);
    expected[3 * 512..4 * 512].fill(7);
    assert!(content(&file, 100_000) == expected);
}

#[test]
fn search_never_finds_unstored_slots_free() {
    let device = sim(12);
    let world = create(&device, 12);
    let spec = |slots| ObjectSpec {
        kind: ObjectKind::File,
        block_size: 512,
        dnode_slots: slots,
        bonus: Vec::new(),
        spill: None,
    };
    let created: Vec<_> = (0..600)
        .map(|_| {
            let tx = world.pool.begin(COST).unwrap();
            world.set.create(&tx, spec(1)).unwrap()
        })
        .collect();
    world.pool.commit().unwrap();
    for object in &created[300..] {
        let tx = world.pool.begin(COST).unwrap();
        world.set.destroy(&tx, object).unwrap();
    }
    drop(created);
    world.pool.export().unwrap();
    // After an import, free slots are unknown: they are searched for.
    let world = import(&device, 12);
    let mut taken = std::collections::BTreeSet::new();
    let mut searched = [false; 2];
    for n in 0..900u64 {
        let slots = if n % 2 == 0 { 3 } else { 1 };
        let tx = world.pool.begin(COST).unwrap();
        let first = world.set.create(&tx, spec(slots)).unwrap().id().0;
        searched[usize::from(slots == 3)] |= first < 600;
        for slot in first..first + u64::from(slots) {
            assert!(taken.insert(slot), "slot {slot} was given out twice");
        }
    }
    assert_eq!(searched, [true; 2], "the canary: free slots were found by searching");
}

/// Destroys most objects of a freshly imported set in one txg, and creates new ones while that txg syncs.
#[test]
fn freed_number_is_not_reused_before_commit() {
    const OLD: u64 = 24_000;
    for seed in 0..6 {
        let device = sim(seed);
        let world = create(&device, seed);
        let small = ObjectSpec {
            kind: ObjectKind::File,
            block_size: 512,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: None,
        };
        for _ in 0..OLD / 1000 {
            let tx = world.pool.begin(COST).unwrap();
            (0..1000).for_each(|_| drop(world.set.create(&tx, small.clone()).unwrap()));
        }
        world.pool.commit().unwrap();
        let mut old = Vec::new();
        assert!(world.set.for_each_dnode(&mut |id, _| old.push(id)).is_empty());
        world.pool.export().unwrap();
        drop(world);

        // Free slots are unknown after an import, and are searched for.
        let world = import(&device, seed);
        for ids in old.chunks(1000) {
            let tx = world.pool.begin(COST).unwrap();
            for id in ids.iter().filter(|id| id.0 % 8 != 0) {
                world.set.destroy(&tx, &world.set.hold(*id).unwrap()).unwrap();
            }
        }
        let mut live: Vec<u64> = old.iter().map(|id| id.0).filter(|id| id % 8 == 0).collect();
        std::thread::scope(|scope| {
            let committing = scope.spawn(|| world.pool.commit().unwrap());
            // Each creation searches a few blocks; the pause spreads them over the time of the sync.
            while !committing.is_finished() {
                let tx = world.pool.begin(COST).unwrap();
                let dnode_slots = 1 + live.len() as u8 % 3;
                let spec = ObjectSpec { dnode_slots, ..small.clone() };
                let first = world.set.create(&tx, spec).unwrap().id().0;
                live.extend(first..first + u64::from(dnode_slots));
                drop(tx);
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        for _ in 0..3 {
            for _ in 0..10 {
                let tx = world.pool.begin(COST).unwrap();
                (0..1000).for_each(|_| live.push(world.set.create(&tx, small.clone()).unwrap().id().0));
            }
            world.pool.commit().unwrap();
        }
        let count = live.len();
        live.sort_unstable();
        live.dedup();
        assert_eq!(live.len(), count, "seed {seed}: a slot has two objects");
    }
}

#[test]
fn spill_has_two_copies_and_is_freed_once() {
    let device = sim(21);
    let world = create(&device, 21);
    let live = || {
        // Space freed by one txg is counted by the next.
        (0..3).for_each(|_| world.pool.commit_txg(world.pool.open_txg()).unwrap());
        assert_eq!(world.pool.check_tables(), vec![]);
        world.pool.status().live_bytes
    };
    let change = |change: &dyn Fn(&terrane_pool::Tx)| change(&world.pool.begin(COST).unwrap());
    let tx = world.pool.begin(COST).unwrap();
    let object = world.set.create(&tx, spec(300, None)).unwrap();
    drop(tx);
    let without = live();
    // Records and tables of the pool vary; a copy of a spill is twice as large.
    let slack = 50_000;
    for turn in 0..6 {
        let bytes = noise(turn, 100_000);
        change(&|tx| object.set_attributes(tx, vec![turn as u8; 192], Some(bytes.clone())).unwrap());
        assert!(object.used_bytes() >= 100_000, "dirty bytes count");
        let with = live();
        assert!(
            (without + 200_000..without + 200_000 + slack).contains(&with),
            "{without} without, {with} with"
        );
        assert_eq!(object.dnode().used, 2 * 100_000);
        change(&|tx| object.write(tx, 0, &noise(turn, 9000)).unwrap());
        change(&|tx| object.set_bonus(tx, vec![turn as u8; 10]).unwrap());
        world.pool.commit().unwrap();
        assert!((209_000..215_000).contains(&object.dnode().used), "contents and spill, each once");
        change(&|tx| object.truncate(tx, 0).unwrap());
        live();
        assert_eq!((object.dnode().used, object.spill().unwrap()), (200_000, Some(Arc::new(bytes))));
    }
    change(&|tx| object.set_attributes(tx, vec![1; 320], None).unwrap());
    assert!(live() < without + slack, "removed");
    assert_eq!((object.dnode().used, object.has_spill()), (0, false));
    change(&|tx| object.set_attributes(tx, Vec::new(), Some(noise(9, 100_000))).unwrap());
    live();
    change(&|tx| world.set.destroy(tx, &object).unwrap());
    assert!(live() < without + slack, "destroyed");
}

#[test]
fn only_file_writes_count_as_user_bytes() {
    let device = sim(23);
    let world = create(&device, 23);
    let tx = world.pool.begin(COST).unwrap();
    let file = world.set.create(&tx, spec(0, None)).unwrap();
    let directory =
        world.set.create(&tx, ObjectSpec { kind: ObjectKind::Directory, ..spec(0, None) }).unwrap();
    directory.write(&tx, 0, &noise(1, 3000)).unwrap();
    // A write across two blocks, and another over the first part. User bytes are counted, not stored ones.
    let at = u64::from(file.block_size()) - 100;
    file.write(&tx, at, &noise(2, 300)).unwrap();
    file.write(&tx, at, &noise(3, 50)).unwrap();
    file.zero_range(&tx, 0, 200).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    assert_eq!(world.pool.totals().user_bytes, 350);
}

#[test]
fn unchanged_spill_is_not_rewritten() {
    let device = sim(22);
    let world = create(&device, 22);
    let tx = world.pool.begin(COST).unwrap();
    let object = world.set.create(&tx, spec(100, Some(noise(1, 5000)))).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    let stored = object.dnode().spill;
    assert!(!stored.is_hole());
    let kept = object.spill().unwrap();
    let set = |spill| {
        let tx = world.pool.begin(COST).unwrap();
        object.set_attributes(&tx, vec![2; 101], spill).unwrap();
        drop(tx);
        world.pool.commit().unwrap();
    };
    set(Some(noise(1, 5000)));
    assert_eq!((object.dnode().spill == stored, object.bonus().len()), (true, 101));
    set(Some(noise(2, 5000)));
    assert!(object.dnode().spill != stored);
    // Empty and all-zero spills count as none.
    for none in [None, Some(Vec::new()), Some(vec![0; 700])] {
        set(Some(noise(1, 50)));
        assert!(matches!(object.dnode().spill, terrane_format::BlockPtr::Embedded(_)), "it fits the pointer");
        assert_eq!(object.dnode().used, 0);
        set(none);
        assert_eq!((object.has_spill(), object.spill().unwrap()), (false, None));
    }
    drop(kept);
}

#[test]
fn a_spill_takes_the_end_of_the_bonus() {
    let device = sim(23);
    let world = create(&device, 23);
    let tx = world.pool.begin(COST).unwrap();
    for (bonus, spill) in [(193, 10), (321, 0), (0, (128 << 10) + 1)] {
        let spill = Some(noise(3, spill)).filter(|spill| !spill.is_empty());
        assert!(world.set.create(&tx, spec(bonus, spill)).is_err(), "{bonus}");
    }
    assert_eq!(world.set.usage().objects, 0, "what is refused takes no number");
    let object = world.set.create(&tx, spec(320, None)).unwrap();
    assert!(object.set_attributes(&tx, vec![1; 193], Some(vec![1])).is_err());
    assert!(object.set_attributes(&tx, vec![1; 10], Some(vec![1; (128 << 10) + 1])).is_err());
    assert_eq!((object.bonus().len(), object.has_spill()), (320, false), "a refusal changes nothing");
    object.set_attributes(&tx, vec![1; 192], Some(vec![1; 128 << 10])).unwrap();
    assert!(object.set_bonus(&tx, vec![1; 193]).is_err());
    drop(tx);
    world.pool.commit().unwrap();
    let tx = world.pool.begin(COST).unwrap();
    assert!(object.set_bonus(&tx, vec![1; 193]).is_err(), "nor beside one that is stored");
    object.set_attributes(&tx, vec![1; 320], None).unwrap();
    object.set_bonus(&tx, vec![2; 320]).unwrap();
}

#[test]
fn a_pool_that_older_versions_can_read_gets_no_spill() {
    let device = sim(24);
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(24));
    let create = CreateOptions { features: Vec::new(), ..CreateOptions::named("old") };
    let pool = Pool::create(vec![Arc::new(device.clone())], &create, env, &options()).unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let tx = pool.begin(COST).unwrap();
    let set = objects
        .open_objset(objects.create_objset(&tx).unwrap(), Arc::new(support::KeepOlder::default()))
        .unwrap();
    let object = set.create(&tx, spec(0, None)).unwrap();
    assert!(object.set_attributes(&tx, Vec::new(), Some(vec![1])).is_err());
    object.set_attributes(&tx, vec![1; 320], None).unwrap();
    drop(tx);
    pool.enable(&terrane_format::Feature::defaults()).unwrap();
    object.set_attributes(&pool.begin(COST).unwrap(), Vec::new(), Some(vec![1])).unwrap();
    pool.commit().unwrap();
    assert!(object.has_spill());
}

#[test]
fn attributes_survive_a_lost_tree() {
    let device = sim(25);
    let world = create(&device, 25);
    let tx = world.pool.begin(COST).unwrap();
    let object = world.set.create(&tx, spec(100, Some(noise(1, 5000)))).unwrap();
    object.write(&tx, 0, &noise(2, 900_000)).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    let tx = world.pool.begin(COST).unwrap();
    object.write(&tx, 4096, &[1; 4096]).unwrap();
    object.set_attributes(&tx, vec![9; 150], Some(noise(3, 6000))).unwrap();
    drop(tx);
    let terrane_format::BlockPtr::Normal(root) = object.dnode().root else { panic!("a tree of two levels") };
    for copy in root.copies() {
        let (_, home, offset) = world.pool.locate(copy, root.psize).unwrap();
        device.rot(home.zone, offset + 7, &[0xff]).unwrap();
    }
    world.pool.drop_cache();
    world.pool.commit().unwrap();
    assert!(!world.pool.errors().findings.is_empty(), "the changes of the contents are lost");
    let before = object.dnode();
    assert_eq!(
        (object.bonus().to_vec(), object.spill().unwrap()),
        (vec![9; 150], Some(Arc::new(noise(3, 6000))))
    );
    let id = object.id();
    drop(object);
    world.pool.export().unwrap();
    let world = import(&device, 25);
    assert_eq!(world.pool.check_tables(), vec![]);
    let object = world.set.hold(id).unwrap();
    assert_eq!((object.bonus().to_vec(), object.dnode().spill), (vec![9; 150], before.spill));
    assert!(object.spill().unwrap().is_some_and(|spill| *spill == noise(3, 6000)));
}

#[test]
fn small_blocks_of_a_file_have_small_blocks_of_pointers() {
    let device = sim(26);
    let world = create(&device, 26);
    let make = |block_size: u32, kind: ObjectKind| {
        let tx = world.pool.begin(COST).unwrap();
        let object = world.set.create(&tx, ObjectSpec { kind, block_size, ..spec(0, None) }).unwrap();
        object.write(&tx, 0, &noise(block_size.into(), 500)).unwrap();
        object
    };
    let small = make(4096, ObjectKind::File);
    let grows = make(4096, ObjectKind::File);
    let shrinks = make(32 << 10, ObjectKind::File);
    let zap = make(4096, ObjectKind::Directory);
    world.pool.commit().unwrap();
    let tx = world.pool.begin(COST).unwrap();
    grows.set_block_size(&tx, 32 << 10).unwrap();
    shrinks.set_block_size(&tx, 16 << 10).unwrap();
    for object in [&small, &grows, &shrinks, &zap] {
        object.write(&tx, u64::from(object.block_size()) * 40, &noise(9, 500)).unwrap();
    }
    drop(tx);
    world.pool.commit().unwrap();
    let bytes = |object: &Object| (object.dnode().indirect_bytes, object.dnode().levels);
    assert_eq!(
        [&small, &grows, &shrinks, &zap].map(|object| bytes(object)),
        [(4096, 3), (16384, 2), (4096, 3), (16384, 2)]
    );
    // A tree keeps its shape when the object is truncated to one block and gets another block size.
    let tx = world.pool.begin(COST).unwrap();
    small.truncate(&tx, 4096).unwrap();
    small.set_block_size(&tx, 64 << 10).unwrap();
    small.write(&tx, 64 << 10, &noise(3, 90_000)).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    assert_eq!(bytes(&small), (4096, 3));
    let id = small.id();
    drop((small, grows, shrinks, zap));
    world.pool.export().unwrap();
    let world = import(&device, 26);
    assert_eq!(world.pool.check_tables(), vec![]);
    let small = world.set.hold(id).unwrap();
    let mut read = vec![0; 90_000];
    small.read(64 << 10, &mut read).unwrap();
    assert!(read == noise(3, 90_000));
    small.read(0, &mut read[..500]).unwrap();
    assert!(read[..500] == noise(4096, 500));
}
