//! Long readers hold zones, and writers come first.

use crate::support::{create, import_with, options, sim, verify, work};
use std::sync::Arc;
use terrane_pool::ImportOptions;
use terrane_store::env::SeededEnv;

#[test]
fn no_writer_is_refused_because_zones_are_held() {
    for seed in 0..4 {
        let device = sim(seed, seed.is_multiple_of(2));
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 150).unwrap();
        // One hold whose owner never looks again, and others that begin anew.
        let first = pool.hold_zones();
        for round in 0..10 {
            let again = pool.hold_zones();
            work(&pool, &toy, &env, 40).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            assert!(!again.is_whole(), "seed {seed}: the canary: 40 groups needed nothing of it");
        }
        assert!(!first.is_whole());
        drop(first);
        verify(&pool, &toy);
    }
}

#[test]
fn what_is_held_stays_readable_as_long_as_the_hold_is_whole() {
    for seed in 10..14 {
        let device = sim(seed, seed.is_multiple_of(2));
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 20).unwrap();
        let hold = pool.hold_zones();
        let before = ImportOptions { read_only: true, ..options() };
        let (seen, of_seen) = import_with(vec![Arc::new(device.clone())], &before, seed).unwrap();
        let mut txgs = 0;
        while hold.is_whole() && txgs < 200 {
            work(&pool, &toy, &env, 1).unwrap();
            txgs += 1;
            if hold.is_whole() {
                seen.drop_cache();
                verify(&seen, &of_seen);
            }
        }
        assert!(txgs > 2, "seed {seed}: it was let go after {txgs} groups");
        seen.abandon();
        verify(&pool, &toy);
    }
}
