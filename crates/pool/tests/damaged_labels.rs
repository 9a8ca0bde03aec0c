//! A damaged label hides no txg: the other anchor's label describes the uberblocks behind it.

use crate::support::{create, import, import_with, options, sim, verify, work};
use std::sync::Arc;
use terrane_device::sim::Survival;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_format::label::second_label_offset;
use terrane_pool::inspect::anchors;
use terrane_pool::{ImportOptions, Pool};
use terrane_store::env::SeededEnv;
use terrane_wire::{Txg, ZoneIdx};

/// A pool after a power loss. One anchor has txgs that the other does not know.
fn device(seed: u64) -> (SimDevice, Txg) {
    let device = sim(seed, seed.is_multiple_of(2));
    let (pool, toy) = create(&device, seed);
    work(&pool, &toy, &SeededEnv::new(seed), 4).unwrap();
    pool.export().unwrap();
    let (pool, toy) = import(&device, seed).unwrap();
    work(&pool, &toy, &SeededEnv::new(seed + 1), 8).unwrap();
    let newest = pool.synced_txg();
    pool.abandon();
    (device.restarted(Survival::Everything), newest)
}

/// Damages the first copy of the newest anchor's label, or both copies. Returns the anchor's number.
fn damage_some(device: &SimDevice, both: bool) -> u32 {
    let newest =
        |ubers: &[(u64, terrane_format::uberblock::Uberblock)]| ubers.iter().map(|(_, uber)| uber.txg).max();
    let (anchor, ..) = anchors(device).into_iter().max_by_key(|(_, _, ubers)| newest(ubers)).unwrap();
    device.rot(ZoneIdx(anchor), 100, &[4]).unwrap();
    if both {
        device.rot(ZoneIdx(anchor), second_label_offset(device.info().write_unit) + 100, &[4]).unwrap();
    }
    assert_eq!(anchors(device).len(), if both { 1 } else { 2 });
    anchor
}

fn damage(device: &SimDevice) -> u32 {
    damage_some(device, true)
}

#[test]
fn a_damaged_label_hides_no_newer_txg() {
    for seed in [1, 2] {
        let (device, newest) = device(seed);
        damage(&device);
        let (pool, toy) = import(&device, seed).unwrap();
        assert_eq!(pool.synced_txg(), newest, "seed {seed}");
        pool.drop_cache();
        verify(&pool, &toy);
        // Import has rewritten the label.
        assert_eq!(anchors(&device).len(), 2, "seed {seed}");
        work(&pool, &toy, &SeededEnv::new(seed), 3).unwrap();
        let newest = pool.synced_txg();
        pool.abandon();
        let (pool, toy) = import(&device.restarted(Survival::Everything), seed).unwrap();
        assert_eq!(pool.synced_txg(), newest, "seed {seed}");
        verify(&pool, &toy);
    }
}

/// Cuts the power at each command of an import. Passes the txg that the next import finds to `check`, with a
/// description.
fn cut_imports(device: &SimDevice, seed: u64, check: impl Fn(Txg, &str)) {
    let trial = device.restarted(Survival::Everything);
    let before = trial.ops_done();
    import(&trial, seed).unwrap().0.abandon();
    let ops = trial.ops_done() - before;
    assert!(ops > 2, "the canary: {ops}");
    for cut in 0..ops {
        for kept in
            [Survival::Nothing, Survival::Everything, Survival::Seeded(cut), Survival::Seeded(cut + 1000)]
        {
            let what = format!("seed {seed}, cut {cut} of {ops}, {kept:?}");
            let trial = device.restarted(Survival::Everything);
            trial.crash_after(trial.ops_done() + cut);
            let _ = import(&trial, seed).map(|(pool, _)| pool.abandon());
            trial.cut_power();
            let (pool, toy) =
                import(&trial.restarted(kept), seed).unwrap_or_else(|error| panic!("{what}: {error}"));
            check(pool.synced_txg(), &what);
            verify(&pool, &toy);
        }
    }
}

#[test]
fn no_crash_of_the_import_that_mends_a_label_leaves_none() {
    for seed in [3, 4] {
        let (device, _) = device(seed);
        damage(&device);
        cut_imports(&device, seed, |_, _| ());
    }
}

#[test]
fn one_copy_of_a_label_is_enough_at_every_moment() {
    for seed in [5, 6] {
        let (device, newest) = device(seed);
        damage_some(&device, false);
        cut_imports(&device, seed, |found, what| assert_eq!(found, newest, "{what}"));
    }
}

#[test]
fn a_pool_is_found_by_the_second_copy_of_its_label() {
    let device = sim(7, false);
    let (pool, _) = create(&device, 7);
    let info = device.info();
    let mut read = |at: u64, raw: &mut [u8]| {
        device.read(ZoneIdx((at / info.zone_size) as u32), at % info.zone_size, raw).is_ok()
    };
    let bytes = info.zone_size * u64::from(info.zone_count);
    device.rot(ZoneIdx(0), 100, &[4]).unwrap();
    assert_eq!(terrane_pool::probe(&mut read, bytes).unwrap().label.pool, pool.label().pool);
    device.rot(ZoneIdx(0), second_label_offset(info.write_unit) + 100, &[4]).unwrap();
    assert!(terrane_pool::probe(&mut read, bytes).is_none(), "the canary: nothing else tells");
}

#[test]
fn nothing_of_an_old_pool_is_found_in_a_new_one() {
    let device = SimDevice::new(SimConfig {
        zone_count: 48,
        hardware_pointers: false,
        resets_keep_bytes: true,
        ..SimConfig::default()
    })
    .unwrap();
    create(&device, 7).0.export().unwrap();
    import(&device, 7).unwrap().0.export().unwrap();
    assert_eq!(anchors(&device).len(), 2);
    let (pool, toy) = create(&device, 8);
    work(&pool, &toy, &SeededEnv::new(8), 2).unwrap();
    assert_eq!(anchors(&device).len(), 1);
    pool.export().unwrap();
    let (pool, toy) = import(&device, 8).unwrap();
    verify(&pool, &toy);
}

#[test]
fn a_newer_txg_under_a_label_of_unknown_generation_is_not_passed_over() {
    let (device, newest) = device(5);
    let anchor = damage(&device);
    // What the next commit would have written, after a change of features or devices.
    let (_, label, ubers) = anchors(&device).pop().unwrap();
    let anchor_generation = label.anchor_generation + 1;
    let (generation, txg) = (label.generation + 1, newest.next());
    let uber = terrane_format::uberblock::Uberblock {
        anchor_generation,
        generation,
        txg,
        ..ubers.last().unwrap().1
    };
    let label = terrane_format::label::Label { anchor_generation, ..label };
    device.reset(ZoneIdx(anchor)).unwrap();
    let label_bytes = terrane_format::label::LABEL_BYTES;
    device.write(ZoneIdx(anchor), 0, &vec![7; label_bytes as usize]).unwrap();
    device.write(ZoneIdx(anchor), label_bytes, &uber.encode(&label, anchor, label_bytes, 4096)).unwrap();
    let text = import(&device, 5).map(drop).unwrap_err().to_string();
    let last = ubers.iter().map(|(_, uber)| uber.txg).max().unwrap();
    assert!(text.contains(&format!("anchor {anchor} cannot be read")), "{text}");
    assert!(text.contains(&format!("--rewind={last}")), "{text}");
    let read_only = ImportOptions { read_only: true, ..options() };
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    assert_eq!(
        Pool::import(devices.clone(), Arc::new(SeededEnv::new(5)), &read_only).unwrap().synced_txg(),
        last
    );
    let go_on = ImportOptions { rewind: Some(last), ..options() };
    assert_eq!(import_with(devices, &go_on, 5).unwrap().0.synced_txg(), last);
}
