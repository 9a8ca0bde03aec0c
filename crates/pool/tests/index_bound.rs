//! A pool whose relocation index may take no memory takes less than others, and finds every block.

use crate::support::{SLOTS, Toy, create_with, import_with, options, verify, work};
use std::collections::BTreeSet;
use std::sync::Arc;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;
use terrane_wire::{DeviceIdx, ZoneSeq};

fn write(pool: &Arc<Pool>, toy: &Toy, slots: impl Iterator<Item = usize>) {
    let tx = pool.begin(Cost { write_bytes: 16 << 20, meta_blocks: 4, ..Cost::NOTHING }).unwrap();
    let mut state = toy.state.lock();
    for slot in slots {
        state.versions[slot] += 1;
        state.dirty.push(slot);
    }
    drop((state, tx));
    pool.commit().unwrap();
}

fn collect_all(pool: &Arc<Pool>) {
    pool.gc_request(0).unwrap();
    for _ in 0..200 {
        pool.commit_txg(pool.open_txg()).unwrap();
        if pool.gc_progress().done {
            return;
        }
    }
    panic!("collection does not end: {:?}", pool.gc_progress());
}

/// A pool's life with that bound. Returns the runs that the first GC leaves, and the directory parts that
/// hold them.
fn life(index_bytes: u64, seed: u64) -> (usize, usize) {
    let options = ImportOptions { index_bytes, ..options() };
    let config = SimConfig { seed, zone_count: 80, zone_size: 4 << 20, ..SimConfig::default() };
    let device = SimDevice::new(config).unwrap();
    let devices = || -> Vec<Arc<dyn Device>> { vec![Arc::new(device.clone())] };
    let (mut pool, mut toy) = create_with(devices(), &CreateOptions::named("toy"), &options, seed);
    write(&pool, &toy, 0..SLOTS);
    write(&pool, &toy, (0..SLOTS).filter(|slot| slot % 3 == 1));
    // These writes close zones.
    (0..4).for_each(|_| write(&pool, &toy, (0..SLOTS).filter(|slot| slot % 3 == 1)));
    collect_all(&pool);
    let zones = pool.zones();
    let runs: Vec<(ZoneSeq, u64)> =
        zones.iter().flat_map(|zone| zone.runs.iter().map(|run| (run.dest, run.part_end()))).collect();
    let parts: BTreeSet<(ZoneSeq, u64)> = runs.iter().copied().collect();
    assert!(pool.stats().index_bytes_max == index_bytes && pool.stats().run_index_bytes > 0);
    assert_eq!(pool.stats().run_index_packed, index_bytes == 0, "at its bound it is packed");
    for part in 0..4 {
        for _ in 0..4 {
            work(&pool, &toy, &SeededEnv::new(seed + part), 4).unwrap();
            collect_all(&pool);
        }
        verify(&pool, &toy);
        if part % 2 == 0 {
            pool.export().unwrap()
        } else {
            pool.abandon()
        }
        (pool, toy) = import_with(devices(), &options, seed + part).unwrap();
        let stats = pool.stats();
        assert_eq!(
            stats.run_index_packed,
            index_bytes == 0 && stats.run_index_bytes > 0,
            "from the import on"
        );
        verify(&pool, &toy);
    }
    (runs.len(), parts.len())
}

#[test]
fn without_memory_for_the_run_index_there_are_fewer_runs_and_every_block_is_found() {
    let (mut usual, mut coarse) = ((0, 0), (0, 0));
    for seed in 0..3 {
        for (sum, bound) in [(&mut usual, u64::MAX), (&mut coarse, 0)] {
            let (runs, parts) = life(bound, seed);
            *sum = (sum.0 + runs, sum.1 + parts);
        }
    }
    assert!(
        coarse.0 < usual.0 && coarse.1 * 4 < usual.1 * 3,
        "{coarse:?} runs and parts without memory, {usual:?} with"
    );
}

/// No operation waits for space at any time.
#[test]
fn runs_that_a_leaving_device_makes_are_kept_within_the_bound() {
    let options = ImportOptions { index_bytes: 0, ..options() };
    let config = SimConfig { zone_count: 80, ..SimConfig::default() };
    let devices = [SimDevice::new(config.clone()).unwrap(), SimDevice::new(config).unwrap()];
    let devices = devices.map(|device| Arc::new(device) as Arc<dyn Device>).to_vec();
    let (pool, toy) = create_with(devices, &CreateOptions::named("toy"), &options, 3);
    (0..3).for_each(|_| write(&pool, &toy, 0..SLOTS));
    assert_eq!(pool.stats().runs, 0);
    pool.remove_device(DeviceIdx(0), &mut |_, _| {}).unwrap();
    let stats = pool.stats();
    assert!(stats.runs > 0 && stats.run_index_packed, "{} runs", stats.runs);
    verify(&pool, &toy);
}
