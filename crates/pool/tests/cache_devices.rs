//! Cache devices of a pool are read, attached again after an import, and never needed.

use crate::support::{SLOTS, Toy, create_with, fill, import_with, owner, sim, verify, work};
use std::sync::Arc;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::{Env, SeededEnv};
use terrane_store::l2cache::CacheDeviceStats;
use terrane_wire::ZoneIdx;

/// Memory for an eighth of the pool's content.
fn options() -> ImportOptions {
    ImportOptions { cache_bytes: 1 << 20, ..ImportOptions::default() }
}

fn fast(hardware_pointers: bool) -> SimDevice {
    let config = SimConfig { zone_count: 16, zone_size: 1 << 20, hardware_pointers, ..SimConfig::default() };
    SimDevice::new(config).unwrap()
}

fn handle(device: &SimDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

/// Reads everything, some of it often. Evicted blocks go to the cache device.
fn read_all(pool: &Arc<Pool>, toy: &Toy) {
    for slot in 0..SLOTS {
        let state = toy.state.lock();
        let (ptr, version) = (state.pointers[slot].clone(), state.versions[slot]);
        drop(state);
        if !ptr.is_hole() {
            assert!(*pool.read(&ptr, owner(slot)).unwrap() == fill(slot, version), "slot {slot}");
        }
        if slot % 10 == 0 {
            pool.feed_caches();
        }
    }
}

fn stats(pool: &Pool) -> CacheDeviceStats {
    pool.caches()[0].stats.clone().unwrap()
}

fn device_reads(pool: &Pool) -> u64 {
    pool.stats().devices.iter().map(|device| device.io.reads).sum()
}

fn begin(hardware: bool) -> (SimDevice, SimDevice, Arc<Pool>, Arc<Toy>) {
    let (main, fast) = (sim(5, hardware), fast(hardware));
    let (pool, toy) = create_with(vec![handle(&main)], &CreateOptions::named("toy"), &options(), 5);
    pool.add_cache(handle(&fast)).unwrap();
    work(&pool, &toy, &SeededEnv::new(5), 40).unwrap();
    (0..4).for_each(|_| read_all(&pool, &toy));
    (main, fast, pool, toy)
}

#[test]
fn what_left_memory_is_read_from_the_cache_also_after_a_kill() {
    for hardware in [true, false] {
        let (main, fast, pool, toy) = begin(hardware);
        let (before, reads) = (stats(&pool), device_reads(&pool));
        assert!(before.blocks > 200, "{before:?}");
        read_all(&pool, &toy);
        let hits = stats(&pool).hits - before.hits;
        assert!(hits > 150 && device_reads(&pool) - reads < hits / 4, "{hits}");
        pool.abandon();
        drop((pool, toy));

        let (pool, toy) = import_with(vec![handle(&main)], &options(), 6).unwrap();
        pool.attach_cache(handle(&fast)).unwrap();
        assert!(stats(&pool).blocks > 200, "{:?}", stats(&pool));
        let reads = device_reads(&pool);
        read_all(&pool, &toy);
        let after = stats(&pool);
        assert!(after.hits > 150 && after.damaged == 0, "{after:?}");
        assert!(device_reads(&pool) - reads < after.hits / 2);
        // Rewritten blocks are not read from the cache device, and replaced ones are forgotten.
        work(&pool, &toy, &SeededEnv::new(8), 40).unwrap();
        read_all(&pool, &toy);
        verify(&pool, &toy);
        main.check().unwrap();
        fast.check().unwrap();
        pool.export().unwrap();
    }
}

#[test]
fn flipped_bits_of_a_cache_cost_reads_and_nothing_else() {
    let (main, fast, pool, toy) = begin(false);
    let env = SeededEnv::new(11);
    let flip = |count: usize| {
        for _ in 0..count {
            let zone = ZoneIdx(1 + (env.random_u64() % 15) as u32);
            let _ = fast.rot(zone, env.random_u64() % (1 << 20), &[1 << (env.random_u64() % 8)]);
        }
    };
    flip(4000);
    read_all(&pool, &toy);
    assert!(stats(&pool).damaged > 20, "the canary: flips are seen: {:?}", stats(&pool));
    assert_eq!((pool.stats().checksum_errors, pool.errors().findings.len()), (0, 0), "the pool is whole");
    pool.abandon();
    drop((pool, toy));
    flip(4000);
    let (pool, toy) = import_with(vec![handle(&main)], &options(), 6).unwrap();
    pool.attach_cache(handle(&fast)).unwrap();
    read_all(&pool, &toy);
    verify(&pool, &toy);
    pool.export().unwrap();
}

#[test]
fn a_cache_that_fails_while_it_is_used_is_done_without() {
    let (_main, fast, pool, toy) = begin(true);
    fast.cut_power();
    read_all(&pool, &toy);
    work(&pool, &toy, &SeededEnv::new(3), 20).unwrap();
    read_all(&pool, &toy);
    verify(&pool, &toy);
    assert!(pool.caches()[0].stats.is_some());
    pool.export().unwrap();
}
