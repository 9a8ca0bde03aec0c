//! Reads that fail once, and reads that fail for good.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use support::{create, import, sim, verify, work};
use terrane_device::{Fault, SimDevice};
use terrane_pool::zones::Phase;
use terrane_pool::{Pool, SeededEnv};
use terrane_wire::ZoneSeq;

fn suspects(pool: &Pool) -> Vec<ZoneSeq> {
    let zones = pool.zones().into_iter();
    zones.filter(|zone| zone.phase == Phase::Suspect).map(|zone| zone.seq).collect()
}

fn groups(pool: &Arc<Pool>, count: usize) {
    (0..count).for_each(|_| pool.commit_txg(pool.open_txg()).unwrap());
}

/// A pool that was just imported, with garbage in its zones; if they are known, only blocks are left to be read.
fn imported(seed: u64, directories_are_known: bool) -> (SimDevice, Arc<Pool>, Arc<support::Toy>) {
    let device = sim(seed, seed.is_multiple_of(2));
    let (pool, toy) = create(&device, seed);
    work(&pool, &toy, &SeededEnv::new(seed), 14).unwrap();
    pool.export().unwrap();
    let (pool, toy) = import(&device, seed + 1).unwrap();
    for zone in pool.zones().iter().filter(|_| directories_are_known) {
        pool.zone_directory(zone.seq).unwrap();
    }
    (device, pool, toy)
}

#[test]
fn a_bad_moment_of_reads_leaves_no_zone_to_check() {
    for (seed, directories_are_known) in [(0, false), (1, false), (2, true), (3, true)] {
        let (device, pool, toy) = imported(seed, directories_are_known);
        pool.gc_request(0).unwrap();
        let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 });
        groups(&pool, 1);
        assert!(device.fired(fault) > 0, "seed {seed}: nothing was read");
        device.clear_faults();
        groups(&pool, 60);
        assert_eq!(suspects(&pool), [], "seed {seed}");
        assert!(pool.totals().collected_zones > 0, "seed {seed}");
        verify(&pool, &toy);
    }
}

#[test]
fn zones_that_cannot_be_read_again_and_again_are_left_to_check() {
    for (seed, directories_are_known) in [(4, false), (5, true)] {
        let (device, pool, toy) = imported(seed, directories_are_known);
        let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 });
        pool.gc_request(0).unwrap();
        groups(&pool, 8);
        assert!(!suspects(&pool).is_empty(), "seed {seed}: {} reads failed", device.fired(fault));
        let seen = device.fired(fault);
        groups(&pool, 20);
        assert_eq!(device.fired(fault), seen, "seed {seed}: they are not tried for ever");
        device.clear_faults();
        verify(&pool, &toy);
    }
}

#[test]
fn zones_that_died_as_they_were_written_are_reset_after_a_bad_moment() {
    let mut fired = 0;
    for seed in 10..14 {
        let (device, pool, toy) = imported(seed, false);
        let before = pool.totals().reset_zones;
        for round in 0..30 {
            let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 });
            work(&pool, &toy, &SeededEnv::new(seed * 100 + round), 1).unwrap();
            fired += device.fired(fault);
            device.clear_faults();
            work(&pool, &toy, &SeededEnv::new(seed * 100 + round + 50), 2).unwrap();
        }
        assert_eq!(suspects(&pool), [], "seed {seed}");
        assert!(pool.totals().reset_zones > before + 3, "seed {seed}");
        verify(&pool, &toy);
    }
    assert!(fired > 4, "the canary: {fired} reads failed");
}
