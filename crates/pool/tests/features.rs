//! A feature is added in one step, whenever the power fails. Its structures are never written while a label
//! without the feature could still be imported.

use crate::support;
use std::sync::Arc;
use support::{import, options, sim, verify, work};
use terrane_device::sim::Survival;
use terrane_device::{Device, SimDevice};
use terrane_format::Feature;
use terrane_format::features::FeatureState;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};

/// A pool of an older version, exported.
fn old(seed: u64, hardware: bool) -> SimDevice {
    let device = sim(seed, hardware);
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
    let create = CreateOptions { features: Vec::new(), ..CreateOptions::named("toy") };
    Pool::create(vec![Arc::new(device.clone())], &create, env, &options()).unwrap().export().unwrap();
    let (pool, toy) = import(&device, seed).unwrap();
    work(&pool, &toy, &SeededEnv::new(seed), 6).unwrap();
    pool.export().unwrap();
    device
}

/// Whether each anchor that import could use names the feature.
fn labels(device: &SimDevice) -> Vec<bool> {
    let anchors = terrane_pool::inspect::anchors(device);
    let with_uberblocks = anchors.iter().filter(|(_, _, ubers)| !ubers.is_empty());
    with_uberblocks
        .map(|(_, label, _)| label.features.state(Feature::TinyZap) != FeatureState::Disabled)
        .collect()
}

#[test]
fn new_pools_have_every_default_feature_and_old_ones_get_them_by_an_upgrade() {
    let device = sim(1, false);
    let (pool, _toy) = support::create(&device, 1);
    assert!(pool.has(Feature::TinyZap));
    assert_eq!(pool.enable(&Feature::defaults()).unwrap(), []);
    pool.export().unwrap();

    let device = old(2, false);
    let (pool, toy) = import(&device, 2).unwrap();
    assert!(!pool.has(Feature::TinyZap));
    assert_eq!(pool.enable(&[Feature::TinyZap]).unwrap(), [Feature::TinyZap]);
    assert!(pool.has(Feature::TinyZap));
    assert_eq!(labels(&device), [true, true]);
    work(&pool, &toy, &SeededEnv::new(3), 6).unwrap();
    pool.export().unwrap();
    let (pool, toy) = import(&device, 4).unwrap();
    assert!(pool.has(Feature::TinyZap));
    verify(&pool, &toy);
}

#[test]
fn every_uberblock_repeats_the_generation_of_its_label() {
    let device = old(6, false);
    let (pool, toy) = import(&device, 6).unwrap();
    let check_generation = |generation: u64| {
        for (_, label, ubers) in terrane_pool::inspect::anchors(&device) {
            assert_eq!(label.generation, generation);
            assert!(ubers.iter().all(|(_, uber)| uber.generation == generation), "{ubers:?}");
        }
    };
    check_generation(1);
    assert_eq!(pool.enable(&[]).unwrap(), []);
    work(&pool, &toy, &SeededEnv::new(7), 3).unwrap();
    check_generation(1);
    let twice = [Feature::TinyZap, Feature::Xattr, Feature::TinyZap];
    assert_eq!(pool.enable(&twice).unwrap(), [Feature::TinyZap, Feature::Xattr]);
    check_generation(2);
    assert_eq!(pool.enable(&twice).unwrap(), []);
    work(&pool, &toy, &SeededEnv::new(8), 3).unwrap();
    check_generation(2);
}

#[test]
fn a_pool_that_is_read_only_gets_no_feature() {
    let device = old(3, true);
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(1));
    let read_only = ImportOptions { read_only: true, ..options() };
    let pool = Pool::import(vec![Arc::new(device.clone()) as Arc<dyn Device>], env, &read_only).unwrap();
    assert!(matches!(pool.enable(&[Feature::TinyZap]), Err(PoolError::ReadOnly)));
    assert!(labels(&device).iter().all(|has| !has));
}

#[test]
fn the_power_may_go_at_any_moment_of_an_upgrade() {
    let (mut kept_old, mut got_new, mut mixed) = (0, 0, 0);
    for hardware in [false, true] {
        let device = old(5, hardware);
        for cut in 0.. {
            let device = device.snapshot();
            let (pool, _toy) = import(&device, 5).unwrap();
            device.crash_after(device.ops_done() + cut);
            let enabled = pool.enable(&[Feature::TinyZap]);
            assert_eq!(
                pool.has(Feature::TinyZap),
                enabled.is_ok(),
                "in force when it is durable, not before"
            );
            device.cut_power();
            pool.abandon();
            for chance in 0..12 {
                let kept = match chance {
                    0 => Survival::Nothing,
                    1 => Survival::Everything,
                    _ => Survival::Seeded(cut * 100 + chance),
                };
                let left = device.restarted(kept);
                let before = labels(&left);
                mixed += u32::from(before.contains(&true) && before.contains(&false));
                let (pool, toy) = import(&left, chance).unwrap();
                verify(&pool, &toy);
                let now = labels(&left);
                match pool.has(Feature::TinyZap) {
                    true => assert!(now.iter().all(|has| *has), "cut {cut}, outcome {chance}: {now:?}"),
                    false => assert!(enabled.is_err(), "cut {cut}, outcome {chance}: the feature is lost"),
                }
                kept_old += u32::from(!pool.has(Feature::TinyZap));
                got_new += u32::from(pool.has(Feature::TinyZap));
                pool.abandon();
            }
            if enabled.is_ok() {
                assert!(cut >= 6, "two anchors are reset, written and flushed");
                break;
            }
        }
    }
    assert!(kept_old > 0 && got_new > 0 && mixed > 0, "every outcome was seen");
}

/// A txg that rewrites all sections leaves no record that a replay needs. Its first use is on the labels all the
/// same.
#[test]
fn a_first_use_beside_a_checkpoint_is_on_all_labels() {
    let device = sim(9, false);
    let (pool, toy) = support::create(&device, 9);
    work(&pool, &toy, &SeededEnv::new(9), 6).unwrap();
    assert_eq!(pool.feature_state(Feature::Xattr), FeatureState::Enabled);
    pool.want_checkpoint();
    pool.note_use(Feature::Xattr);
    work(&pool, &toy, &SeededEnv::new(10), 1).unwrap();
    pool.abandon();
    for (_, label, ubers) in terrane_pool::inspect::anchors(&device) {
        assert!(ubers.is_empty() || label.features.is_active(Feature::Xattr), "{:?}", label.features);
    }
    let older = ImportOptions { unknown_features: &["org.terrane:xattr"], ..options() };
    let refused = support::import_with(vec![Arc::new(device.clone())], &older, 9).err().unwrap();
    assert!(refused.to_string().contains("org.terrane:xattr"), "{refused}");
    let (pool, toy) = import(&device, 11).unwrap();
    verify(&pool, &toy);
}
