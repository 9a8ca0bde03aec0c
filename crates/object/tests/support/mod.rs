//! A pool with one object set on a simulated device.

use std::sync::{Arc, Mutex};
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_format::BlockPtr;
use terrane_object::{FreeDecision, FreePolicy, Object, ObjectKind, ObjectSet, ObjectSets, ObjectSpec};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::{Env, SeededEnv};
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};

pub const COST: Cost = Cost { write_bytes: 64 << 10, meta_blocks: 8, ..Cost::NOTHING };

/// A policy that records every block it decides about, and keeps those born before a txg.
#[derive(Default)]
pub struct KeepOlder {
    pub keep_before: Mutex<Txg>,
    pub decided: Mutex<Vec<BlockPtr>>,
}

impl FreePolicy for KeepOlder {
    fn decide(&self, block: &BlockPtr, txg: Txg) -> FreeDecision {
        assert!(block.latest_birth() < txg, "no block leaves with the group that wrote it");
        self.decided.lock().unwrap().push(block.clone());
        if block.latest_birth() < *self.keep_before.lock().unwrap() {
            FreeDecision::Keep
        } else {
            FreeDecision::Free
        }
    }
}

pub struct World {
    pub pool: Arc<Pool>,
    pub policy: Arc<KeepOlder>,
    pub _objects: Arc<ObjectSets>,
    pub set: Arc<ObjectSet>,
}

pub fn options() -> ImportOptions {
    ImportOptions { cache_bytes: 4 << 20, ..ImportOptions::default() }
}

pub fn create(device: &SimDevice, seed: u64) -> World {
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
    let pool = Pool::create(vec![Arc::new(device.clone())], &CreateOptions::named("model"), env, &options())
        .unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let tx = pool.begin(COST).unwrap();
    let id = objects.create_objset(&tx).unwrap();
    drop(tx);
    assert_eq!(id, ObjectId(1));
    let policy = Arc::new(KeepOlder::default());
    let set = objects.open_objset(id, policy.clone()).unwrap();
    World { pool, policy, _objects: objects, set }
}

pub fn import(device: &SimDevice, seed: u64) -> World {
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed ^ 0xabcdef));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let pool = Pool::import(devices, env, &options()).unwrap();
    let objects = ObjectSets::open(pool.clone()).unwrap();
    let policy = Arc::new(KeepOlder::default());
    let set = objects.open_objset(ObjectId(1), policy.clone()).unwrap();
    World { pool, policy, _objects: objects, set }
}

pub fn sim(seed: u64) -> SimDevice {
    let config = SimConfig {
        seed,
        zone_count: 64,
        zone_size: 1 << 20,
        hardware_pointers: seed.is_multiple_of(2),
        ..SimConfig::default()
    };
    SimDevice::new(config).unwrap()
}

/// A file of `records` records of 512 bytes.
pub fn file_of(world: &World, records: u64) -> Arc<Object> {
    let tx = world.pool.begin(COST).unwrap();
    let kind = ObjectKind::File;
    let spec = ObjectSpec { kind, block_size: 512, dnode_slots: 1, bonus: Vec::new(), spill: None };
    let object = world.set.create(&tx, spec).unwrap();
    drop(tx);
    for record in 0..records {
        let tx = world.pool.begin(COST).unwrap();
        object.write(&tx, record * 512, &noise(record, 512)).unwrap();
    }
    world.pool.commit().unwrap();
    object
}

pub fn spec(bonus: usize, spill: Option<Vec<u8>>) -> ObjectSpec {
    ObjectSpec { kind: ObjectKind::File, block_size: 4096, dnode_slots: 1, bonus: vec![7; bonus], spill }
}

/// Incompressible bytes.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let env = SeededEnv::new(seed);
    (0..len).map(|_| env.random_u64() as u8).collect()
}
