//! Totals since the creation of a pool: each byte written to a device is counted once, and no import loses
//! any.

use crate::support::{create, import, options, sim, verify, work};
use std::sync::Arc;
use terrane_device::SimDevice;
use terrane_format::{Feature, Totals, WritePurpose};
use terrane_pool::{CreateOptions, Pool};
use terrane_store::env::{Env, SeededEnv};

/// Bytes written to the pool's device since the import, as the device counts them.
fn written(pool: &Pool) -> u64 {
    pool.stats().devices.iter().map(|device| device.io.written_bytes).sum()
}

#[test]
fn every_byte_a_device_was_given_is_counted_once() {
    for hardware in [false, true] {
        let device = sim(11, hardware);
        let (pool, toy) = create(&device, 11);
        assert_eq!(pool.totals().device_bytes(), written(&pool), "the first group and its labels");
        // Enough rounds for GC and for switches of the anchor.
        work(&pool, &toy, &SeededEnv::new(11), 120).unwrap();
        let totals = pool.totals();
        assert_eq!(totals.device_bytes(), written(&pool));
        let stats = pool.stats();
        assert!(
            stats.collected_zones > 0 && totals.written_for(WritePurpose::Collection) > 0,
            "nothing was collected"
        );
        assert_eq!(totals.collected_zones, stats.collected_zones);
        assert_eq!(totals.reset_zones, stats.reset_zones);
        assert!(totals.written_for(WritePurpose::Collection) >= stats.collected_bytes);
        // Data has one copy, all else two. Blocks therefore take at least the stored bytes, and less than
        // three times as much.
        let blocks = totals.written_for(WritePurpose::Data) + totals.written_for(WritePurpose::Metadata);
        assert!((totals.stored_bytes..totals.stored_bytes * 3).contains(&blocks), "{totals:?}");
        for part in [WritePurpose::Directory, WritePurpose::Padding, WritePurpose::Anchor] {
            let bytes = totals.written_for(part);
            assert!(bytes > 0 && bytes < totals.device_bytes() / 4, "{}: {totals:?}", part.name());
        }
        pool.export().unwrap();
    }
}

#[test]
fn totals_outlive_imports() {
    let device = sim(12, false);
    let (pool, toy) = create(&device, 12);
    pool.note_user_bytes(1 << 20);
    work(&pool, &toy, &SeededEnv::new(12), 20).unwrap();
    pool.export().unwrap();
    let at_export = pool.totals();
    assert_eq!(at_export.device_bytes(), written(&pool));
    drop((pool, toy));

    let (pool, toy) = import(&device, 13).unwrap();
    let again = pool.totals();
    // The split of the last record's copies is approximate, and the sum is exact. The import's own label and
    // uberblock come on top.
    assert_eq!(again.device_bytes() - written(&pool), at_export.device_bytes());
    assert_eq!(again.user_bytes, 1 << 20);
    assert_eq!(
        again.written_for(WritePurpose::Data),
        at_export.written_for(WritePurpose::Data),
        "what was written is not forgotten"
    );
    pool.note_user_bytes(1);
    work(&pool, &toy, &SeededEnv::new(13), 5).unwrap();
    let before = pool.totals();
    let (ns, lately) = pool.recent_totals(u64::MAX);
    assert_eq!((lately.user_bytes, lately.device_bytes() < before.device_bytes()), (1, true), "{ns}");
    // After a crash, the totals in the last record count.
    let committed = pool.totals();
    pool.abandon();
    drop((pool, toy));
    let (pool, toy) = import(&device, 14).unwrap();
    assert_eq!(pool.totals().user_bytes, (1 << 20) + 1);
    assert_eq!(pool.totals().device_bytes() - written(&pool), committed.device_bytes());
    verify(&pool, &toy);
}

#[test]
fn a_pool_of_an_older_version_counts_from_its_upgrade_on() {
    let device: SimDevice = sim(15, false);
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(15));
    let old = CreateOptions { features: Vec::new(), ..CreateOptions::named("toy") };
    Pool::create(vec![Arc::new(device.clone())], &old, env, &options()).unwrap().export().unwrap();
    let (pool, toy) = import(&device, 15).unwrap();
    pool.note_user_bytes(5);
    work(&pool, &toy, &SeededEnv::new(15), 3).unwrap();
    pool.export().unwrap();
    drop((pool, toy));
    let (pool, toy) = import(&device, 16).unwrap();
    assert_eq!(pool.totals().user_bytes, 0, "records of the first version say nothing");
    pool.note_user_bytes(7);
    pool.enable(&[Feature::Totals]).unwrap();
    work(&pool, &toy, &SeededEnv::new(16), 3).unwrap();
    pool.export().unwrap();
    drop((pool, toy));
    let (pool, _toy) = import(&device, 17).unwrap();
    assert_eq!(pool.totals().user_bytes, 7);
    assert_ne!(pool.totals(), Totals::default());
}
