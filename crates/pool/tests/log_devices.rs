//! Log devices of a pool: they come, go and fail, and no acknowledged record is lost.

use crate::support::logging::{change, change_and_log, open_log, replayed};
use crate::support::{create, options, sim};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use terrane_device::{Device, DeviceError, Fault, Layer, Layered, SimConfig, SimDevice, Survival};
use terrane_format::Feature;
use terrane_format::features::FeatureState;
use terrane_pool::{ImportOptions, Pool};
use terrane_store::PoolError;
use terrane_store::env::SeededEnv;

fn fast(nth: u64, hardware_pointers: bool) -> SimDevice {
    let (name, seed) = (format!("fast {nth}"), 100 + nth);
    SimDevice::new(SimConfig { name, seed, zone_count: 8, hardware_pointers, ..SimConfig::default() })
        .unwrap()
}

fn import_with(devices: &[&SimDevice], options: &ImportOptions) -> Result<Arc<Pool>, PoolError> {
    let devices = devices.iter().map(|device| Arc::new((*device).clone()) as Arc<dyn Device>).collect();
    Pool::import(devices, Arc::new(SeededEnv::new(7)), options)
}

/// A pool with log devices on one power supply with it.
fn pool_with(fast: &[SimDevice], hardware: bool) -> (SimDevice, Arc<Pool>, Vec<u64>) {
    let device = sim(1, hardware);
    device.share_power(fast.to_vec());
    let (pool, _) = create(&device, 1);
    let ids = fast.iter().map(|fast| pool.add_log_device(Arc::new(fast.clone())).unwrap()).collect();
    (device, pool, ids)
}

/// Logs until something was logged without a commit.
fn log_again(pool: &Arc<Pool>) -> u64 {
    let mut newest = None;
    for _ in 0..9 {
        let (number, logged) = change_and_log(pool, 300).unwrap();
        newest = if logged { Some(number) } else { newest };
    }
    newest.expect("the log is open")
}

fn has_own_zones(pool: &Pool) -> bool {
    let zones = pool.log_zones();
    !zones.is_empty() && zones.iter().flat_map(|zone| &zone.homes).all(|home| home.lent().is_none())
}

fn refusal(outcome: Result<Arc<Pool>, PoolError>) -> String {
    outcome.map(|pool| pool.name()).expect_err("it was imported").to_string()
}

#[test]
fn what_was_logged_on_a_log_device_is_found_and_needed() {
    for (hardware, drive) in [(false, false), (true, false), (false, true), (true, true)] {
        let (device, pool, ids) = pool_with(&[fast(0, drive)], hardware);
        assert_eq!(pool.feature_state(Feature::LogDevices), FeatureState::Enabled, "nothing uses it");
        open_log(&pool);
        assert!(has_own_zones(&pool));
        assert_eq!(pool.feature_state(Feature::LogDevices), FeatureState::Active);
        pool.commit().unwrap();
        let numbers: Vec<u64> = (0..5).map(|_| change_and_log(&pool, 3000).unwrap().0).collect();
        for seed in 0..3 {
            let left = device.after_power_loss(seed);
            let log = &left.companions()[0];
            let text = refusal(import_with(&[&left], &options()));
            for word in [&format!("{:016x}", ids[0]), "fast 0", "--discard-log"] {
                assert!(text.contains(word), "{text}");
            }
            // Nothing was changed by that.
            let read_only = ImportOptions { read_only: true, ..options() };
            assert_eq!(import_with(&[&left], &read_only).unwrap().unreplayed_log(), None);
            let again = import_with(&[log, &left], &options()).unwrap();
            assert_eq!(replayed(&again), numbers, "hardware {hardware}, drive {drive}");
            again.want_log();
            log_again(&again);
            assert!(has_own_zones(&again));
            again.export().unwrap();
            drop(again);
            let again = import_with(&[&left], &options()).unwrap();
            assert!(again.log_devices()[0].stats.is_none(), "after an export it may be missing");
            again.want_log();
            log_again(&again);
            assert!(!has_own_zones(&again), "the pool lends zones");
            again.attach_log_device(Arc::new(log.clone())).unwrap();
            log_again(&again);
            assert!(has_own_zones(&again));
            again.abandon();
            log.check().unwrap();
        }
        let discard = ImportOptions { discard_log: true, ..options() };
        let again = import_with(&[&device.after_power_loss(3)], &discard).unwrap();
        assert_eq!(again.unreplayed_log(), None);
    }
}

#[test]
fn two_log_devices_hold_two_copies_and_one_is_enough() {
    let (device, pool, ids) = pool_with(&[fast(0, false), fast(1, true)], false);
    open_log(&pool);
    let number = log_again(&pool);
    assert_eq!(pool.log_zones()[0].homes.len(), 2);
    for lost in [0, 1] {
        let left = device.after_power_loss(1);
        let again = import_with(&[&left, &left.companions()[1 - lost]], &options()).unwrap();
        assert_eq!(replayed(&again).last(), Some(&number), "without {lost}");
        // The one that is missing can be removed.
        again.remove_log_device(ids[lost]).unwrap();
        again.export().unwrap();
    }
    let text = refusal(import_with(&[&device.after_power_loss(1)], &options()));
    assert!(text.contains("fast 0") && text.contains("fast 1"), "{text}");
}

#[test]
fn a_log_device_that_fails_costs_only_speed() {
    for is_flush in [false, true] {
        let log_devices = [fast(0, false), fast(1, false)];
        let (device, pool, _) = pool_with(&log_devices, false);
        open_log(&pool);
        log_again(&pool);
        let break_it = |device: &SimDevice| match is_flush {
            true => device.inject(Fault::FailingFlush { nth: 1 }),
            false => device.inject(Fault::WriteError { zone: None, one_in: 1, partial: true }),
        };
        let fault = break_it(&log_devices[0]);
        let (_, logged) = change_and_log(&pool, 300).unwrap();
        assert!(!logged, "it was committed instead");
        let failed = || {
            pool.log_devices()
                .iter()
                .map(|one| one.stats.as_ref().unwrap().failure.is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(failed(), [true, false]);
        let number = log_again(&pool);
        assert_eq!(pool.log_zones()[0].homes.len(), 1, "the other one goes on alone");
        let left = device.after_power_loss(3);
        let again = import_with(&[&left, &left.companions()[1]], &options()).unwrap();
        assert_eq!(replayed(&again).last(), Some(&number));
        break_it(&log_devices[1]);
        assert!(!change_and_log(&pool, 300).unwrap().1);
        let number = log_again(&pool);
        assert!(!has_own_zones(&pool), "the pool lends zones");
        assert_eq!(failed(), [true, true]);
        let again = import_with(&[&device.after_power_loss(4)], &options()).unwrap();
        assert_eq!(replayed(&again).last(), Some(&number));
        log_devices[0].disarm(fault);
        assert_eq!(pool.retry_log_devices(), 2);
        log_again(&pool);
        assert!(has_own_zones(&pool));
        pool.export().unwrap();
    }
}

/// Power fails after every command while devices come and go.
#[test]
fn no_power_cut_while_devices_come_and_go_loses_a_record() {
    let run = |hardware: bool, cut: Option<u64>| -> (SimDevice, u64, Option<u64>, u64) {
        let (device, new) = (sim(4, hardware), [fast(0, false), fast(1, true)]);
        device.share_power(new.to_vec());
        let (pool, _) = create(&device, 4);
        open_log(&pool);
        let before = device.ops_done();
        if let Some(cut) = cut {
            device.crash_after(before + cut);
        }
        let mut acknowledged = None;
        let mut act = || -> Result<(), PoolError> {
            let mut log = |times| {
                (0..times).try_for_each(|_| {
                    acknowledged = Some(change_and_log(&pool, 900)?.0);
                    Ok::<(), PoolError>(())
                })
            };
            log(2)?;
            let first = pool.add_log_device(Arc::new(new[0].clone()))?;
            log(4)?;
            let second = pool.add_log_device(Arc::new(new[1].clone()))?;
            log(4)?;
            pool.remove_log_device(first)?;
            log(4)?;
            pool.remove_log_device(second)?;
            log(3)
        };
        let outcome = act();
        assert!(outcome.is_ok() || cut.is_some(), "{outcome:?}");
        let ops = device.ops_done() - before;
        pool.abandon();
        let committed = pool.synced_txg().0;
        (device, ops, acknowledged, committed)
    };
    let mut replays = 0;
    for hardware in [false, true] {
        let (_, ops, ..) = run(hardware, None);
        for cut in 0..ops {
            let (device, _, acknowledged, committed) = run(hardware, Some(cut));
            device.cut_power();
            for survival in [Survival::Nothing, Survival::Everything, Survival::Seeded(cut)] {
                let left = device.restarted(survival);
                let others = left.companions();
                let all = [&left, &others[0], &others[1]];
                let again = import_with(&all, &options())
                    .unwrap_or_else(|error| panic!("cut {cut}, {survival:?}: {error}"));
                let (imported, found) = (again.status().imported.0, replayed(&again));
                assert!(found.windows(2).all(|pair| pair[0] + 1 == pair[1]), "cut {cut}: {found:?}");
                let is_there = found.last() >= acknowledged.as_ref();
                assert!(
                    is_there || imported >= committed && found.is_empty(),
                    "cut {cut}, {survival:?}: {found:?}, acknowledged {acknowledged:?}"
                );
                replays += found.len();
                // Each device that the label names can be removed, and the pool goes on.
                for device in again.log_devices() {
                    again.remove_log_device(device.id).unwrap();
                }
                again.export().unwrap();
                import_with(&[&left], &options()).unwrap();
            }
        }
    }
    assert!(replays > 500, "{replays}");
}

/// A device that is forgotten while a commit leads to records on it would make the next import lose them.
#[test]
fn a_device_is_removed_only_when_the_log_has_left_it() {
    let (device, pool, ids) = pool_with(&[fast(0, false)], false);
    open_log(&pool);
    change(&pool, 0);
    log_again(&pool);
    // The label would forget it.
    assert!(pool.disable(&[Feature::LogDevices], &BTreeMap::new()).is_err());
    pool.remove_log_device(ids[0]).unwrap();
    assert!(pool.log_devices().is_empty() && pool.remove_log_device(ids[0]).is_err());
    let number = log_again(&pool);
    assert!(!has_own_zones(&pool));
    let left = device.after_power_loss(1);
    let again = import_with(&[&left], &options()).unwrap();
    assert_eq!(replayed(&again).last(), Some(&number));
    // It can join again, this or another pool.
    let (other, _) = create(&sim(9, true), 9);
    other.add_log_device(Arc::new(left.companions()[0].clone())).unwrap();
}

#[test]
fn an_older_copy_of_a_log_device_is_not_taken_for_it() {
    let (device, pool, _) = pool_with(&[fast(0, false)], false);
    let (mut copies, mut numbers) = (Vec::new(), Vec::new());
    copies.push(device.companions()[0].snapshot());
    open_log(&pool);
    for round in 0..3 {
        numbers = (0..3).map(|_| change_and_log(&pool, 300).unwrap().0).collect();
        copies.push(device.companions()[0].snapshot());
        numbers.push(change_and_log(&pool, 300).unwrap().0);
        if round < 2 {
            pool.commit().unwrap();
            numbers.clear();
        }
    }
    let left = device.after_power_loss(1);
    for (nth, old) in copies.iter().enumerate() {
        match import_with(&[&left.snapshot(), old], &options()) {
            // The newest copy has three of the batches behind the commit. Nothing tells that there was a fourth one.
            Ok(again) if nth == 3 => assert_eq!(replayed(&again), numbers[..3]),
            Ok(_) => panic!("copy {nth} was taken for the device"),
            outcome => {
                let text = refusal(outcome);
                assert!(text.contains("older copy") && text.contains("--discard-log"), "copy {nth}: {text}");
            }
        }
    }
    // The device of another pool in its place is no better than none.
    let (other, of_other) = (create(&sim(2, true), 2).0, fast(5, false));
    other.add_log_device(Arc::new(of_other.clone())).unwrap();
    let text = refusal(import_with(&[&left, &of_other], &options()));
    assert!(text.contains("fast 0"), "{text}");
    assert_eq!(replayed(&import_with(&[&left, &left.companions()[0]], &options()).unwrap()), numbers);
}

#[test]
fn a_copy_of_a_pool_leaves_the_log_device_of_its_original_alone() {
    let (device, pool, _) = pool_with(&[fast(0, false)], false);
    open_log(&pool);
    let number = log_again(&pool);
    let left = device.after_power_loss(1);
    let log = left.companions()[0].clone();
    let copy = left.snapshot();
    let discard = ImportOptions { discard_log: true, ..options() };
    let twin = import_with(&[&copy], &discard).unwrap();
    twin.rename("twin", true).unwrap();
    assert!(twin.log_devices().is_empty() && twin.attach_log_device(Arc::new(log.clone())).is_err());
    log_again(&twin);
    twin.export().unwrap();
    drop(twin);
    assert_eq!(import_with(&[&copy], &options()).unwrap().log_devices().len(), 0);
    // Its records are replayed into a copy that is given the device, and stay for the original.
    let twin = import_with(&[&left.snapshot(), &log], &options()).unwrap();
    assert_eq!(replayed(&twin).last(), Some(&number));
    twin.rename("twin", true).unwrap();
    log_again(&twin);
    assert!(!has_own_zones(&twin));
    twin.abandon();
    assert_eq!(replayed(&import_with(&[&left, &log], &options()).unwrap()).last(), Some(&number));
}

#[test]
fn a_device_that_is_there_already_keeps_its_zones() {
    for drive in [false, true] {
        let (device, pool, ids) = pool_with(&[fast(0, drive)], false);
        open_log(&pool);
        let number = log_again(&pool);
        pool.attach_log_device(Arc::new(device.companions()[0].clone())).unwrap();
        assert_eq!(pool.log_devices().len(), 1);
        let left = device.after_power_loss(1);
        let again = import_with(&[&left, &left.companions()[0]], &options()).unwrap();
        assert_eq!(replayed(&again).last(), Some(&number), "drive {drive}");
        // One that left meanwhile is no longer attached.
        pool.remove_log_device(ids[0]).unwrap();
        assert!(pool.attach_log_device(Arc::new(device.companions()[0].clone())).is_err());
    }
}

/// A device that was missing has zones that the newest commit names.
#[test]
fn a_device_that_comes_back_before_the_replay_keeps_its_zones() {
    let (device, pool, _) = pool_with(&[fast(0, true), fast(1, true)], false);
    open_log(&pool);
    let number = log_again(&pool);
    let left = device.after_power_loss(1);
    let logs = left.companions();
    let again = import_with(&[&left, &logs[1]], &options()).unwrap();
    again.attach_log_device(Arc::new(logs[0].clone())).unwrap();
    again.abandon();
    for log in logs {
        assert_eq!(
            replayed(&import_with(&[&left.snapshot(), &log.snapshot()], &options()).unwrap()).last(),
            Some(&number)
        );
    }
}

/// Does something once, while a device is flushed.
struct AtFlush(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Layer for AtFlush {
    fn on_flush(&self, below: &dyn Device) -> Result<(), DeviceError> {
        let act = self.0.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
        below.flush()
    }

    fn on_order(&self, below: &dyn Device) -> Result<(), DeviceError> {
        self.on_flush(below)
    }
}

#[test]
fn two_that_join_at_once_are_not_too_many() {
    let (device, pool, _) = pool_with(&[fast(0, true), fast(1, true), fast(2, true)], false);
    let (other, new) = (Arc::clone(&pool), fast(3, true));
    let act = Box::new(move || _ = other.add_log_device(Arc::new(new)).unwrap());
    let late = Layered::wrap(Arc::new(fast(4, true)), AtFlush(Mutex::new(Some(act))));
    let text = pool.add_log_device(Arc::new(late)).unwrap_err().to_string();
    assert!(text.contains("at most 4 log devices"), "{text}");
    assert_eq!(pool.log_devices().len(), 4);
    pool.export().unwrap();
    drop(pool);
    import_with(&[&device], &options()).unwrap();
}

#[test]
fn paths_that_the_label_cannot_hold_are_refused() {
    let (_, pool, _) = pool_with(&[], false);
    let long = SimConfig { name: "x".repeat(129), zone_count: 8, ..SimConfig::default() };
    let text = pool.add_log_device(Arc::new(SimDevice::new(long).unwrap())).unwrap_err().to_string();
    assert!(text.contains("128") && pool.log_devices().is_empty(), "{text}");
}

#[test]
fn unfit_devices_are_refused() {
    let (_, pool, _) = pool_with(&[], false);
    let small = SimDevice::new(SimConfig { zone_count: 4, ..SimConfig::default() }).unwrap();
    assert!(pool.add_log_device(Arc::new(small)).is_err());
    let limits = SimConfig { zone_count: 8, max_open: 3, max_active: 3, ..SimConfig::default() };
    assert!(pool.add_log_device(Arc::new(SimDevice::new(limits).unwrap())).is_err());
    assert!(pool.log_devices().is_empty());
    (0..4).for_each(|nth| _ = pool.add_log_device(Arc::new(fast(nth, true))).unwrap());
    assert!(pool.add_log_device(Arc::new(fast(4, true))).is_err());
}
