//! A device leaves a pool in use: no crash loses data, and impossible removals are refused.

use crate::support;
use std::sync::Arc;
use support::joint::Joint;
use support::{Toy, create_on, import_from, verify, work};
use terrane_device::sim::Survival;
use terrane_device::{Device, ZoneState};
use terrane_format::label::{DeviceState, Role};
use terrane_pool::{CreateOptions, Pool};
use terrane_store::PoolError;
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;
use terrane_wire::{DeviceIdx, ZoneIdx};

fn named(roles: &[Role]) -> CreateOptions {
    CreateOptions { roles: roles.to_vec(), ..CreateOptions::named("toy") }
}

fn refusal(outcome: Result<impl Sized, PoolError>) -> String {
    match outcome {
        Err(refused @ PoolError::Refused { .. }) => refused.to_string(),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

fn three(seed: u64) -> (Joint, Arc<Pool>, Arc<Toy>) {
    let joint = Joint::of(seed, &[40, 40, 36]);
    let (pool, toy) = create_on(joint.handles(), &named(&[Role::Data, Role::Data, Role::Special]), seed);
    work(&pool, &toy, &SeededEnv::new(seed), 12).unwrap();
    (joint, pool, toy)
}

fn without(joint: &Joint, gone: usize) -> Vec<Arc<dyn Device>> {
    (0..joint.devices.len()).filter(|index| *index != gone).map(|index| joint.handle(index)).collect()
}

#[test]
fn every_device_can_leave_and_the_pool_goes_on_without_it() {
    for gone in 0..3u16 {
        let (joint, pool, toy) = three(u64::from(gone) + 1);
        let mut reports = Vec::new();
        pool.remove_device(DeviceIdx(gone), &mut |done, total| reports.push((done, total))).unwrap();
        assert!(reports.iter().all(|(done, total)| done <= total) && !reports.is_empty(), "{reports:?}");
        let total = reports[0].1;
        assert!(total > 0, "something lived on device {gone}: {reports:?}");
        assert_eq!(pool.members().len(), 2);
        verify(&pool, &toy);
        work(&pool, &toy, &SeededEnv::new(77), 12).unwrap();
        verify(&pool, &toy);
        assert!(pool.zones().iter().all(|zone| {
            zone.home.device.0 != gone || zone.phase == terrane_format::rows::Phase::Reclaimed
        }));
        let text = refusal(pool.remove_device(DeviceIdx(gone), &mut |_, _| {}));
        assert!(text.contains("one of its devices"), "{text}");
        pool.export().unwrap();
        assert_eq!(terrane_pool::inspect::anchors(&joint.devices[usize::from(gone)]).len(), 0, "wiped");
        for handles in [without(&joint, gone.into()), joint.handles()] {
            let (pool, toy) = import_from(handles, 5).unwrap();
            verify(&pool, &toy);
            work(&pool, &toy, &SeededEnv::new(78), 4).unwrap();
            // The index of the removed device is not used again.
            assert_eq!(pool.label().devices.len(), 3);
            pool.export().unwrap();
        }
        let (pool, toy) = import_from(without(&joint, gone.into()), 5).unwrap();
        assert_eq!(pool.add_device(joint.handle(gone.into()), Role::Data).unwrap(), DeviceIdx(3));
        work(&pool, &toy, &SeededEnv::new(79), 12).unwrap();
        verify(&pool, &toy);
        pool.export().unwrap();
        let (pool, toy) = import_from(joint.handles(), 6).unwrap();
        verify(&pool, &toy);
        assert_eq!(pool.members().len(), 3);
    }
}

#[test]
fn what_cannot_leave_is_refused_and_nothing_changes() {
    let (_joint, pool, toy) = three(11);
    assert!(refusal(pool.remove_device(DeviceIdx(7), &mut |_, _| {})).contains("one of its devices"));
    pool.remove_device(DeviceIdx(0), &mut |_, _| {}).unwrap();
    let text = refusal(pool.remove_device(DeviceIdx(1), &mut |_, _| {}));
    assert!(text.contains("another data device"), "only a special one would be left: {text}");
    verify(&pool, &toy);
}

/// A pool of two devices. On the first, only `empty` of the zones that were empty after `txgs` txgs take
/// writes.
fn narrow(seed: u64, txgs: usize, empty: usize) -> (Joint, Arc<Pool>, Arc<Toy>) {
    let joint = Joint::of(seed, &[34, 34]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), seed);
    work(&pool, &toy, &SeededEnv::new(seed), txgs).unwrap();
    pool.export().unwrap();
    let homes = pool.zones().into_iter().map(|zone| zone.home);
    let used: Vec<u32> = homes.filter(|home| home.device.0 == 0).map(|home| home.zone.0).collect();
    for zone in (2..34).filter(|zone| !used.contains(zone)).skip(empty) {
        joint.devices[0].kill_zone(ZoneIdx(zone), ZoneState::ReadOnly).unwrap();
    }
    drop(toy);
    let (pool, toy) = import_from(joint.handles(), seed).unwrap();
    (joint, pool, toy)
}

#[test]
fn a_removal_that_does_not_fit_is_refused_and_one_that_fits_makes_gc_free_space() {
    let (_joint, pool, toy) = narrow(12, 1, 6);
    work(&pool, &toy, &SeededEnv::new(14), 60).unwrap();
    let text = refusal(pool.remove_device(DeviceIdx(1), &mut |_, _| {}));
    assert!(text.contains("of space on other devices"), "{text}");
    assert!(pool.members().iter().all(|member| member.state == DeviceState::Normal));
    work(&pool, &toy, &SeededEnv::new(13), 5).unwrap();
    verify(&pool, &toy);

    let (_joint, pool, toy) = narrow(12, 60, 6);
    pool.remove_device(DeviceIdx(1), &mut |_, _| {}).unwrap();
    verify(&pool, &toy);
    work(&pool, &toy, &SeededEnv::new(13), 5).unwrap();
    verify(&pool, &toy);
}

#[test]
fn a_removal_goes_on_after_an_export_and_beside_writers() {
    let (joint, pool, toy) = three(21);
    // The removal has only begun: the power fails in its first txgs.
    joint.crash_after(60);
    let outcome = pool.remove_device(DeviceIdx(1), &mut |_, _| {});
    joint.crash_after(i64::MAX);
    assert!(outcome.is_err(), "it was over too soon to be cut");
    pool.abandon();
    drop(toy);
    let joint = joint.restarted(|_| Survival::Everything);
    let (pool, toy) = import_from(joint.handles(), 21).unwrap();
    assert!(pool.is_leaving(DeviceIdx(1)), "it was begun");
    let mut txgs = 0;
    while pool.label().member(DeviceIdx(1)).is_some() {
        work(&pool, &toy, &SeededEnv::new(txgs), 1).unwrap();
        txgs += 1;
        assert!(txgs < 400, "it does not end: {:?}", pool.members());
    }
    verify(&pool, &toy);
    pool.export().unwrap();
    let (pool, toy) = import_from(without(&joint, 1), 22).unwrap();
    verify(&pool, &toy);
}

#[test]
fn every_crash_while_a_device_leaves_loses_nothing() {
    let (joint, pool, toy) = three(31);
    let expected = toy.state.lock().versions.clone();
    pool.export().unwrap();
    let (mut with, mut without_it) = (0, 0);
    let mut cut = 0;
    loop {
        let joint = joint.restarted(|_| Survival::Everything);
        let (pool, toy) = import_from(joint.handles(), 31).unwrap();
        joint.crash_after(cut);
        let removed = pool.remove_device(DeviceIdx(1), &mut |_, _| {});
        joint.cut_power();
        pool.abandon();
        drop(toy);
        for chance in 0..5 {
            let kept = |index: usize| match chance {
                0 => Survival::Nothing,
                1 => Survival::Everything,
                2 if index == 1 => Survival::Everything,
                3 if index != 1 => Survival::Everything,
                2 | 3 => Survival::Nothing,
                _ => Survival::Seeded(cut as u64 * 10 + index as u64),
            };
            let at = format!("cut {cut}, outcome {chance}");
            // Once the pool works without the device, it must be a whole pool.
            let left = joint.restarted(kept);
            if let Ok((pool, toy)) = import_from(without(&left, 1), 1) {
                assert!(pool.label().member(DeviceIdx(1)).is_none(), "{at}");
                verify(&pool, &toy);
                pool.abandon();
                without_it += 1;
            }
            let left = joint.restarted(kept);
            let (pool, toy) = import_from(left.handles(), 1).unwrap_or_else(|error| panic!("{at}: {error}"));
            let found = toy.state.lock().versions.clone();
            assert!(found == expected, "{at}");
            verify(&pool, &toy);
            let is_there = pool.label().member(DeviceIdx(1)).is_some();
            assert!(!is_there || removed.is_err(), "{at}: it is back");
            with += u32::from(is_there);
            if chance == 1 {
                work(&pool, &toy, &SeededEnv::new(5), 3).unwrap();
                if pool.label().member(DeviceIdx(1)).is_some() {
                    pool.remove_device(DeviceIdx(1), &mut |_, _| {}).unwrap_or_else(|e| panic!("{at}: {e}"));
                }
                verify(&pool, &toy);
            }
            pool.abandon();
        }
        if removed.is_ok() {
            break;
        }
        // The removal begins and ends with label changes, of which every command is cut.
        cut += if cut < 24 { 1 } else { 3 };
    }
    assert!(with > 0 && without_it > 0, "{with} with it, {without_it} without");
}

#[test]
fn a_zone_that_cannot_be_read_keeps_its_device_and_says_so() {
    let (joint, pool, toy) = three(41);
    let live = |pool: &Pool| {
        let zones = pool.zones();
        let is_data = |class: &str| class == "data";
        zones.into_iter().find(|zone| {
            zone.home.device.0 == 1
                && zone.live > 0
                && is_data(zone.class.name())
                && zone.phase == terrane_format::rows::Phase::Full
        })
    };
    let Some(zone) = live(&pool) else { panic!("no full zone of data on device 1: {:?}", pool.zones()) };
    joint.devices[1].kill_zone(zone.home.zone, ZoneState::Offline).unwrap();
    pool.drop_cache();
    let text = refusal(pool.remove_device(DeviceIdx(1), &mut |_, _| {}));
    assert!(text.contains("do not move") && text.contains("terrane check"), "{text}");
    assert!(pool.is_leaving(DeviceIdx(1)));
    work(&pool, &toy, &SeededEnv::new(41), 4).unwrap();
}

#[test]
fn reserved_bytes_are_written_before_their_device_leaves() {
    for seed in 0..6u64 {
        let joint = Joint::of(seed, &[40, 40]);
        let (pool, toy) = create_on(vec![joint.handle(0)], &named(&[]), seed);
        let env = SeededEnv::new(seed);
        // Until GC keeps few zones empty.
        while pool.status().zones_empty > 6 {
            work(&pool, &toy, &env, 1).unwrap();
        }
        pool.add_device(joint.handle(1), Role::Data).unwrap();
        for _ in 0..4 {
            // More than the first device can take.
            let tx = pool.begin(Cost { write_bytes: 12 << 20, meta_blocks: 4, ..Cost::NOTHING }).unwrap();
            let mut state = toy.state.lock();
            state.dirty = (0..support::SLOTS).collect();
            state.versions.iter_mut().for_each(|version| *version += 1);
            drop(state);
            drop(tx);
            match pool.remove_device(DeviceIdx(1), &mut |_, _| {}) {
                Ok(()) => break,
                Err(PoolError::Refused { .. }) => pool.commit().map(drop).unwrap(),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        verify(&pool, &toy);
        work(&pool, &toy, &env, 20).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        verify(&pool, &toy);
    }
}
