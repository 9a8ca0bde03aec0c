//! Which txg an import takes after a crash, and to which ones it could roll back.

use crate::support;
use std::sync::Arc;
use support::joint::Joint;
use support::{create, create_on, import, import_with, options, sim, verify, verify_content, work};
use terrane_device::{Device, Fault, SimDevice};
use terrane_format::label::Role;
use terrane_pool::{CreateOptions, ImportOptions};
use terrane_store::PoolError;
use terrane_store::env::SeededEnv;
use terrane_wire::{DeviceIdx, Txg};

/// The next `writes` writes never reach the medium, as if a host had dropped them and the flush had failed.
fn lose_writes(device: &SimDevice, writes: u64) {
    for nth in 1..=writes {
        device.inject(Fault::LostWrite { nth });
    }
}

/// Imports. If that is refused, rolls back to txg `back`, which the refusal must name. False: the import was
/// not refused.
fn import_or_go_back(device: &SimDevice, back: Txg, what: &str) -> bool {
    match import(device, 9) {
        Ok((pool, toy)) => {
            // A copy of metadata may be lost, if the other one is whole.
            verify_content(&pool, &toy);
            false
        }
        Err(PoolError::Refused { remedy, .. }) => {
            assert!(remedy.contains(&format!("--rewind={back}")), "{what}: {remedy}");
            let rewind = ImportOptions { rewind: Some(back), ..options() };
            let (pool, toy) = import_with(vec![Arc::new(device.clone())], &rewind, 10).unwrap();
            assert_eq!(pool.synced_txg(), back, "{what}");
            verify(&pool, &toy);
            work(&pool, &toy, &SeededEnv::new(3), 5).unwrap();
            verify(&pool, &toy);
            true
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn a_newest_txg_that_never_reached_the_medium_is_not_taken_for_whole() {
    let mut refused = 0;
    for seed in 0..4 {
        for lost in 1..7 {
            let device = sim(seed, seed.is_multiple_of(2));
            let (pool, toy) = create(&device, seed);
            work(&pool, &toy, &SeededEnv::new(seed), 12).unwrap();
            let back = pool.synced_txg();
            lose_writes(&device, lost);
            // File data and metadata. If only file data is lost, its next read finds that.
            work(&pool, &toy, &SeededEnv::new(seed + 50), 1).unwrap();
            pool.abandon();
            let what = format!("seed {seed}, {lost} writes lost");
            match import(&device, 9) {
                // The root and all metadata can be read, or the import would have failed.
                Ok((pool, toy)) => {
                    let pointers = toy.state.lock().pointers.clone();
                    for (_, ptr) in pointers.iter().enumerate().filter(|(slot, _)| slot % 3 == 0) {
                        assert!(pool.read(ptr, support::owner(0)).is_ok(), "{what}");
                    }
                    pool.abandon();
                }
                Err(_) => refused += u32::from(import_or_go_back(&device, back, &what)),
            }
        }
    }
    assert!(refused > 8, "the canary: {refused} were refused");
}

#[test]
fn what_gc_moved_in_a_txg_that_never_reached_the_medium_is_not_lost() {
    let mut refused = 0;
    for seed in 10..14 {
        for lost in 1..7 {
            let device = sim(seed, seed.is_multiple_of(2));
            let (pool, toy) = create(&device, seed);
            work(&pool, &toy, &SeededEnv::new(seed), 14).unwrap();
            pool.commit_txg(pool.open_txg()).unwrap();
            let back = pool.synced_txg();
            lose_writes(&device, lost);
            pool.gc_request(0).unwrap();
            pool.commit_txg(pool.open_txg()).unwrap();
            pool.abandon();
            refused +=
                u32::from(import_or_go_back(&device, back, &format!("seed {seed}, {lost} writes lost")));
        }
    }
    assert!(refused > 8, "the canary: {refused} were refused");
}

#[test]
fn a_new_label_keeps_the_txgs_that_can_be_rolled_back_to() {
    for seed in 0..4u64 {
        let joint = Joint::of(seed, &[64, 40, 48]);
        let first: Vec<Arc<dyn Device>> = vec![joint.handle(0), joint.handle(1)];
        let (pool, toy) = create_on(first, &CreateOptions::named("toy"), seed);
        work(&pool, &toy, &SeededEnv::new(seed), 12).unwrap();
        pool.add_device(joint.handle(2), Role::Data).unwrap();
        let (newest, oldest) = (pool.synced_txg(), pool.oldest_txg());
        assert!(oldest.0 + 2 <= newest.0, "seed {seed}: {oldest} to {newest}");
        let committed = toy.state.lock().committed.clone();
        pool.abandon();
        for (txg, versions) in committed.iter().filter(|(txg, _)| (oldest..=newest).contains(txg)) {
            let back = ImportOptions { rewind: Some(*txg), read_only: true, ..options() };
            let (pool, toy) = import_with(joint.handles(), &back, 1)
                .unwrap_or_else(|error| panic!("seed {seed} to {txg}: {error}"));
            assert_eq!((pool.synced_txg(), &toy.state.lock().versions), (*txg, versions), "seed {seed}");
            verify(&pool, &toy);
        }
    }
}

#[test]
fn a_removal_reports_that_txgs_before_it_are_gone() {
    for seed in 0..4u64 {
        let joint = Joint::of(seed, &[64, 40, 48]);
        let (pool, toy) = create_on(joint.handles(), &CreateOptions::named("toy"), seed);
        work(&pool, &toy, &SeededEnv::new(seed), 30).unwrap();
        pool.remove_device(DeviceIdx(1), &mut |_, _| ()).unwrap();
        let removed = pool.synced_txg();
        assert_eq!(pool.oldest_txg(), removed, "seed {seed}");
        work(&pool, &toy, &SeededEnv::new(seed + 9), 2).unwrap();
        let newest = pool.synced_txg();
        pool.abandon();
        let give = || vec![joint.handle(0), joint.handle(2)];
        for back in removed.0 - 1..=newest.0 {
            let rewind = ImportOptions { rewind: Some(Txg(back)), read_only: true, ..options() };
            let found = import_with(give(), &rewind, 1).map(|(pool, toy)| {
                verify(&pool, &toy);
                pool.synced_txg()
            });
            assert_eq!(
                found.ok(),
                (back >= removed.0).then_some(Txg(back)),
                "seed {seed}: {removed} to {newest}"
            );
        }
    }
}
