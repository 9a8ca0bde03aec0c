//! Objects beside plain byte arrays: random writes, holes, cuts, creations and destructions, across groups, imports and crashes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_object::{
    Cost, CreateOptions, Env, ImportOptions, Object, ObjectKind, ObjectSet, ObjectSpec, Objects, Pool,
    SeededEnv,
};
use terrane_wire::ObjectId;

const COST: Cost = Cost { write_bytes: 64 << 10, meta_blocks: 8, ..Cost::NOTHING };

struct World {
    pool: Arc<Pool>,
    _objects: Arc<Objects>,
    set: Arc<ObjectSet>,
}

fn options() -> ImportOptions {
    ImportOptions { cache_bytes: 4 << 20, ..ImportOptions::default() }
}

fn create(device: &SimDevice, seed: u64) -> World {
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
    let pool = Pool::create(vec![Arc::new(device.clone())], &CreateOptions::named("model"), env, &options())
        .unwrap();
    let objects = Objects::create(pool.clone()).unwrap();
    let tx = pool.begin(COST).unwrap();
    let id = objects.create_objset(&tx).unwrap();
    drop(tx);
    assert_eq!(id, ObjectId(1));
    let set = objects.open_objset(id).unwrap();
    World { pool, _objects: objects, set }
}

fn import(device: &SimDevice, seed: u64) -> World {
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed ^ 0xabcdef));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let pool = Pool::import(devices, env, &options()).unwrap();
    let objects = Objects::open(pool.clone()).unwrap();
    let set = objects.open_objset(ObjectId(1)).unwrap();
    World { pool, _objects: objects, set }
}

/// An object as its bytes, at most a few MiB of them.
type Oracle = BTreeMap<u64, Vec<u8>>;

const MAX: u64 = 3 << 20;

fn compare(world: &World, oracle: &Oracle) {
    for (id, bytes) in oracle {
        let object = world.set.hold(ObjectId(*id)).unwrap();
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
    assert_eq!(world.pool.status().damage, vec![]);
}

/// Data lies only where the object says so.
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
    let kind = pick(12);
    if kind == 0 || known.is_empty() {
        let block_size = 512u32 << pick(9);
        let spec = ObjectSpec {
            kind: ObjectKind::File,
            block_size,
            dnode_slots: 1 + pick(3) as u8,
            bonus: Vec::new(),
        };
        let object = world.set.create(&tx, spec).unwrap();
        object.set_bonus(&tx, object.id().0.to_le_bytes().to_vec()).unwrap();
        assert!(oracle.insert(object.id().0, Vec::new()).is_none(), "a number in use was handed out");
        return;
    }
    let id = known[pick(known.len() as u64) as usize];
    let object = world.set.hold(ObjectId(id)).unwrap();
    let bytes = oracle.get_mut(&id).unwrap();
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
        _ => {
            let len = 1 + pick(if pick(2) == 0 { 50_000 } else { 600 }) as usize;
            let value = pick(4) as u8;
            let data: Vec<u8> =
                (0..len).map(|n| if value == 0 { 0 } else { value.wrapping_add((n / 7) as u8) }).collect();
            object.write(&tx, at, &data).unwrap();
            let end = at as usize + len;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at as usize..end].copy_from_slice(&data);
        }
    }
}

fn sim(seed: u64) -> SimDevice {
    let config = SimConfig {
        seed,
        zone_count: 64,
        zone_size: 1 << 20,
        hardware_pointers: seed.is_multiple_of(2),
        ..SimConfig::default()
    };
    SimDevice::new(config).unwrap()
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
            }
            // What is dirty, then what is stored, then what an import finds.
            for (id, bytes) in &oracle {
                let mut found = vec![0; bytes.len()];
                world.set.hold(ObjectId(*id)).unwrap().read(0, &mut found).unwrap();
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
}

#[test]
fn after_a_crash_exactly_a_committed_group_is_there() {
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
            let group = world.pool.open_txg();
            for _ in 0..5 {
                step(&world, &mut oracle, &env);
            }
            committed.insert(group, oracle.clone());
            if world.pool.commit().is_err() {
                break;
            }
        }
        let promised = world.pool.synced_txg();
        world.pool.abandon();
        let world = import(&device.after_power_loss(seed), seed);
        let found = world.pool.synced_txg();
        assert!(found >= promised, "seed {seed}: group {promised} was promised, {found} is there");
        compare(&world, &committed[&found]);
    }
}

#[test]
fn a_huge_sparse_object_goes_in_bounded_steps() {
    let device = sim(3);
    let world = create(&device, 3);
    let tx = world.pool.begin(COST).unwrap();
    let spec = ObjectSpec { kind: ObjectKind::File, block_size: 4096, dnode_slots: 1, bonus: Vec::new() };
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
fn an_unreadable_tree_costs_its_object_and_nothing_else() {
    let device = sim(8);
    let world = create(&device, 8);
    let make = |fill: u8| {
        let tx = world.pool.begin(COST).unwrap();
        let spec = ObjectSpec { kind: ObjectKind::File, block_size: 512, dnode_slots: 1, bonus: Vec::new() };
        let object = world.set.create(&tx, spec).unwrap();
        object.set_bonus(&tx, object.id().0.to_le_bytes().to_vec()).unwrap();
        object.write(&tx, 0, &vec![fill; 100_000]).unwrap();
        object
    };
    let (bad, good) = (make(1), make(2));
    world.pool.commit().unwrap();
    // Both copies of the indirect blocks of one object rot.
    let terrane_object::BlockPtr::Normal(root) = bad.dnode().root else { panic!("a tree of two levels") };
    for copy in root.copies() {
        let (_, home, offset) = world.pool.whereabouts(copy, root.psize).unwrap();
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
    assert!(!world.pool.status().damage.is_empty(), "it is named");
    assert_eq!(world.pool.status().failed, None);
}

#[test]
fn slots_given_out_and_not_stored_yet_are_never_found_free() {
    let device = sim(12);
    let world = create(&device, 12);
    let spec =
        |slots| ObjectSpec { kind: ObjectKind::File, block_size: 512, dnode_slots: slots, bonus: Vec::new() };
    let made: Vec<_> = (0..600)
        .map(|_| {
            let tx = world.pool.begin(COST).unwrap();
            world.set.create(&tx, spec(1)).unwrap()
        })
        .collect();
    world.pool.commit().unwrap();
    for object in &made[300..] {
        let tx = world.pool.begin(COST).unwrap();
        world.set.destroy(&tx, object).unwrap();
    }
    drop(made);
    world.pool.export().unwrap();
    // After an import nobody knows which slots are free: they are searched for.
    let world = import(&device, 12);
    let mut taken = std::collections::BTreeSet::new();
    let mut searched = false;
    for n in 0..900u64 {
        let slots = if n % 2 == 0 { 3 } else { 1 };
        let tx = world.pool.begin(COST).unwrap();
        let first = world.set.create(&tx, spec(slots)).unwrap().id().0;
        searched |= slots == 1 && first < 600;
        for slot in first..first + u64::from(slots) {
            assert!(taken.insert(slot), "slot {slot} was given out twice");
        }
    }
    assert!(searched, "the canary: free slots were found by searching");
}

/// Destroys most objects of a freshly imported set in one group, and makes new ones while that group syncs.
#[test]
fn a_number_is_not_given_twice_while_its_end_is_synced() {
    const OLD: u64 = 24_000;
    for seed in 0..6 {
        let device = sim(seed);
        let world = create(&device, seed);
        let small = ObjectSpec { kind: ObjectKind::File, block_size: 512, dnode_slots: 1, bonus: Vec::new() };
        for _ in 0..OLD / 1000 {
            let tx = world.pool.begin(COST).unwrap();
            (0..1000).for_each(|_| drop(world.set.create(&tx, small.clone()).unwrap()));
        }
        world.pool.commit().unwrap();
        let mut old = Vec::new();
        assert!(world.set.for_each_dnode(&mut |id, _| old.push(id)).is_empty());
        world.pool.export().unwrap();
        drop(world);

        // What is free is not known after an import, and is looked for.
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
            // Each looks through a few blocks; spread over the time that the sync takes.
            while !committing.is_finished() {
                let tx = world.pool.begin(COST).unwrap();
                live.push(world.set.create(&tx, small.clone()).unwrap().id().0);
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
        assert_eq!(live.len(), count, "seed {seed}: a number has two objects");
    }
}
