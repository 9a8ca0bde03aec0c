//! Large records are compressed by all workers, not only by the sync thread.

use crate::support;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrane_codec::CompressionPolicy;
use terrane_device::{SimConfig, SimDevice};
use terrane_object::{DataPolicy, ObjectKind, ObjectSets, ObjectSpec};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::{Env, SystemEnv};
use terrane_txg::cost::Cost;

const RECORD_BYTES: u32 = 16 << 20;

/// Two workers. A thread that compresses a block for `zstd-auto` reads the clock.
struct Watched {
    env: SystemEnv,
    threads: Mutex<BTreeSet<String>>,
}

impl Env for Watched {
    fn wall_ns(&self) -> u64 {
        self.env.wall_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().unwrap().insert(name);
        self.env.monotonic_ns()
    }

    fn random_u64(&self) -> u64 {
        self.env.random_u64()
    }

    fn sleep(&self, time: Duration) {
        self.env.sleep(time);
    }

    fn workers(&self) -> usize {
        2
    }
}

#[test]
fn records_of_16_mib_are_spread_over_the_workers() {
    let env = Arc::new(Watched { env: SystemEnv::new(), threads: Mutex::default() });
    let config = SimConfig { zone_count: 32, zone_size: 64 << 20, ..SimConfig::default() };
    let device = Arc::new(SimDevice::new(config).unwrap());
    let pool =
        Pool::create(vec![device], &CreateOptions::named("large"), env.clone(), &ImportOptions::default())
            .unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let id = objects.create_objset(&pool.begin(Cost::NOTHING).unwrap()).unwrap();
    let set = objects.open_objset(id, Arc::new(support::KeepOlder::default())).unwrap();
    let compression: CompressionPolicy = "zstd-auto:lz4-1".parse().unwrap();
    set.set_policy(DataPolicy { compression, record_size: RECORD_BYTES, ..DataPolicy::default() });
    let record: Vec<u8> = (0..RECORD_BYTES).map(|at| (at / 1000 % 251) as u8).collect();
    for _ in 0..2 {
        let cost = Cost { write_bytes: 2 * u64::from(RECORD_BYTES), meta_blocks: 8, ..Cost::NOTHING };
        let tx = pool.begin(cost).unwrap();
        let spec = ObjectSpec {
            kind: ObjectKind::File,
            block_size: RECORD_BYTES,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: None,
        };
        let file = set.create(&tx, spec).unwrap();
        for at in 0..2 {
            file.write(&tx, at * u64::from(RECORD_BYTES), &record).unwrap();
        }
    }
    pool.commit().unwrap();
    let threads = env.threads.lock().unwrap();
    let workers: Vec<_> = threads.iter().filter(|name| name.starts_with("terrane-work-")).collect();
    assert!(!workers.is_empty(), "compressed by {threads:?} alone");
}
