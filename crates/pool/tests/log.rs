//! The intent log of a pool: what was acknowledged is there after a crash, in order, and nothing else.

use crate::support;
use std::sync::Arc;
use support::logging::{change, change_and_log, open_log, replayed};
use support::{create, create_on, import, sim, work};
use terrane_device::{Device, Fault, SimConfig, SimDevice};
use terrane_format::log::OwnedFrame;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::PoolError;
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjsetId, Txg, ZoneIdx};

/// Imports what a power cut left, without a replay.
fn after_crash(device: &SimDevice, seed: u64) -> Arc<Pool> {
    import(&device.after_power_loss(seed), seed)
        .map(|(pool, _)| pool)
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn what_was_logged_is_found_and_what_was_committed_is_not() {
    for hardware in [false, true] {
        let device = sim(1, hardware);
        let (pool, toy) = create(&device, 1);
        work(&pool, &toy, &SeededEnv::new(1), 3).unwrap();
        open_log(&pool);
        let (before, _) = change_and_log(&pool, 100).unwrap();
        pool.commit().unwrap();
        let numbers: Vec<u64> = (0..20).map(|_| change_and_log(&pool, 3000).unwrap().0).collect();
        for seed in 0..5 {
            let again = after_crash(&device, seed);
            let summary = again.unreplayed_log().unwrap();
            assert_eq!(summary.records, 20, "hardware {hardware}");
            assert_eq!(replayed(&again), numbers);
            assert!(!numbers.contains(&before));
            assert_eq!(again.unreplayed_log(), None);
            again.export().unwrap();
        }
        pool.export().unwrap();
        let (again, _) = import(&device, 1).unwrap();
        assert_eq!(again.unreplayed_log(), None, "an exported pool has no log");
    }
}

/// Changes of several txgs lie in several zones. Power fails after every command.
#[test]
fn a_power_cut_at_any_command_loses_no_acknowledged_record() {
    let (mut cuts, mut logged_all) = (0, 0);
    for hardware in [false, true] {
        let device = sim(2, hardware);
        let (pool, _) = create(&device, 2);
        open_log(&pool);
        drop(pool.export());
        let run = |device: &SimDevice| -> (Vec<(u64, bool)>, u64) {
            let Ok((pool, _)) = import(device, 2) else { return (Vec::new(), 0) };
            pool.want_log();
            let mut done = Vec::new();
            for nth in 0..60 {
                // 1 MiB of zone is full after a dozen of the large ones.
                match change_and_log(&pool, if nth % 3 == 0 { 90_000 } else { 500 }) {
                    Ok(change) => done.push(change),
                    Err(_) => break,
                }
                if nth % 7 == 6 && pool.commit().is_err() {
                    break;
                }
            }
            let committed = pool.synced_txg().0;
            pool.abandon();
            (done, committed)
        };
        let whole = device.snapshot();
        let before = whole.ops_done();
        run(&whole);
        let ops = whole.ops_done() - before;
        for cut in (0..ops).step_by(3) {
            let copy = device.snapshot();
            copy.crash_after(copy.ops_done() + cut);
            let (done, committed) = run(&copy);
            cuts += 1;
            for seed in 0..2 {
                let again = after_crash(&copy, seed * 1000 + cut);
                let found = replayed(&again);
                // Numbers rise from 1 in each incarnation: all after the last commit, whole and in order.
                assert!(found.windows(2).all(|pair| pair[0] + 1 == pair[1]), "cut {cut}: {found:?}");
                let last = done.last().map_or(0, |(number, _)| *number);
                let is_there = found.last().is_some_and(|newest| *newest >= last);
                let is_committed = again.status().imported.0 >= committed && found.is_empty();
                assert!(
                    is_there || is_committed || done.is_empty(),
                    "hardware {hardware}, cut {cut}: {found:?}, acknowledged up to {last}"
                );
                logged_all += found.len();
                again.abandon();
            }
        }
    }
    assert!(cuts > 100 && logged_all > 500, "{cuts} cuts, {logged_all} records found");
}

/// Without a commit the records of a log stay, however often the import is repeated.
#[test]
fn a_crash_during_the_replay_replays_the_rest() {
    let device = sim(3, false);
    let (pool, _) = create(&device, 3);
    open_log(&pool);
    let numbers: Vec<u64> = (0..9).map(|_| change_and_log(&pool, 100).unwrap().0).collect();
    let device = device.after_power_loss(1);
    let (again, _) = import(&device, 3).unwrap();
    let stopped = again.replay_log(|records| {
        for (nth, record) in records.iter().take(4).enumerate() {
            let tx = again.begin(Cost { write_bytes: 4096, ..Cost::NOTHING }).unwrap();
            again.note_replayed(&tx, record.change);
            drop(tx);
            if nth == 2 {
                again.commit().unwrap();
            }
        }
        Err(PoolError::ReadOnly)
    });
    assert!(matches!(stopped, Err(PoolError::ReadOnly)));
    assert!(again.unreplayed_log().is_some());
    // The change after the commit is lost with the crash, and must be repeated.
    let device = device.after_power_loss(2);
    let (again, _) = import(&device, 3).unwrap();
    assert_eq!(replayed(&again), numbers[3..], "three were committed");
    let (again, _) = import(&device.after_power_loss(3), 3).unwrap();
    assert_eq!(again.unreplayed_log(), None);
}

fn log_place(pool: &Pool) -> (ZoneIdx, u64) {
    (pool.log_zones()[0].homes[0].lent().unwrap().zone, 0)
}

#[test]
fn rot_in_the_middle_is_told_from_the_end() {
    let device = sim(4, false);
    let (pool, _) = create(&device, 4);
    open_log(&pool);
    for _ in 0..6 {
        change_and_log(&pool, 100).unwrap();
    }
    let (zone, offset) = log_place(&pool);
    let refused = |rotten: &[u64]| {
        let device = device.after_power_loss(1);
        for nth in rotten {
            device.rot(zone, offset + nth * 4096, &[0xff; 200]).unwrap();
        }
        let first = import(&device, 4).map(|(pool, _)| replayed(&pool).len());
        (first.map_err(|error| error.to_string()), device)
    };
    for nth in 0..5 {
        let (outcome, device) = refused(&[nth]);
        let error = outcome.unwrap_err();
        assert!(error.contains("--discard-log") && error.contains("intent log"), "{error}");
        let options = ImportOptions { discard_log: true, ..support::options() };
        let env = Arc::new(SeededEnv::new(4));
        let pool = Pool::import(vec![Arc::new(device)], env, &options).unwrap();
        assert_eq!(pool.unreplayed_log(), None);
        pool.export().unwrap();
    }
    assert!(refused(&[0, 1]).0.is_err());
    assert_eq!(refused(&[5]).0, Ok(5), "the last batch may have been under way");
    assert_eq!(refused(&[]).0, Ok(6));
}

#[test]
fn a_read_error_is_no_end_of_the_log() {
    let device = sim(5, false);
    let (pool, _) = create(&device, 5);
    open_log(&pool);
    for _ in 0..6 {
        change_and_log(&pool, 100).unwrap();
    }
    let (zone, _) = log_place(&pool);
    let device = device.after_power_loss(1);
    device.inject(Fault::ReadError { zone: Some(zone), one_in: 1 });
    let error = import(&device, 5).map(drop).unwrap_err().to_string();
    assert!(error.contains("nothing is known to be damaged"), "{error}");
    device.clear_faults();
    assert_eq!(replayed(&import(&device, 5).unwrap().0).len(), 6);
}

#[test]
fn a_failed_write_makes_callers_commit_until_another_zone_is_named() {
    let device = sim(6, false);
    let (pool, _) = create(&device, 6);
    open_log(&pool);
    let kept = change_and_log(&pool, 100).unwrap();
    assert!(kept.1);
    let (zone, _) = log_place(&pool);
    let fault = device.inject(Fault::WriteError { zone: Some(zone), one_in: 1, partial: true });
    let (_, txg, frames) = change(&pool, 100);
    let ticket = pool.log(&frames, txg).unwrap();
    assert!(pool.wait_logged(ticket).is_err());
    assert!(pool.wait_logged(ticket).is_err(), "for ever");
    assert_eq!(pool.log_bytes_max(), 0);
    assert_eq!(pool.log(&frames, txg), None);
    assert_eq!(device.fired(fault), 1);
    // What was acknowledged before is still found.
    assert_eq!(replayed(&after_crash(&device, 1)), [kept.0]);
    pool.commit().unwrap();
    assert!(pool.log_bytes_max() > 0, "the commit named another zone");
    assert_ne!(log_place(&pool).0, zone);
    let (number, logged) = change_and_log(&pool, 100).unwrap();
    assert!(logged);
    assert!(pool.wait_logged(ticket).is_err(), "later tickets do not make it durable");
    assert_eq!(replayed(&after_crash(&device, 2)), [number]);
}

#[test]
fn a_failed_flush_stops_the_pool() {
    let device = sim(7, false);
    let (pool, _) = create(&device, 7);
    open_log(&pool);
    device.inject(Fault::FailingFlush { nth: 1 });
    let (_, txg, frames) = change(&pool, 100);
    let ticket = pool.log(&frames, txg).unwrap();
    assert!(pool.wait_logged(ticket).is_err());
    assert!(pool.commit().is_err(), "a later flush may seem to succeed");
}

#[test]
fn two_devices_hold_two_copies() {
    let devices = [sim(8, false), sim(9, false)];
    devices[0].share_power(vec![devices[1].clone()]);
    let all: Vec<Arc<dyn Device>> = devices.iter().map(|device| Arc::new(device.clone()) as _).collect();
    let (pool, _) = create_on(all, &CreateOptions::named("toy"), 8);
    open_log(&pool);
    for _ in 0..4 {
        change_and_log(&pool, 100).unwrap();
    }
    let zone = pool.log_zones().remove(0);
    assert_eq!(zone.homes.len(), 2);
    for rotten in [0, 1] {
        let first = devices[0].after_power_loss(1);
        let again = [first.clone(), first.companions()[0].clone()];
        let home = zone.homes[rotten].lent().unwrap();
        for nth in 0..4 {
            again[usize::from(home.device.0)].rot(home.zone, nth * 4096, &[0xff; 90]).unwrap();
        }
        let all: Vec<Arc<dyn Device>> = again.iter().map(|device| Arc::new(device.clone()) as _).collect();
        let pool = Pool::import(all, Arc::new(SeededEnv::new(8)), &support::options()).unwrap();
        assert_eq!(replayed(&pool).len(), 4, "copy {rotten} is lost");
        // The same if that copy cannot be read at all.
        let first = devices[0].after_power_loss(2);
        let again = [first.clone(), first.companions()[0].clone()];
        again[usize::from(home.device.0)].inject(Fault::ReadError { zone: Some(home.zone), one_in: 1 });
        let all: Vec<Arc<dyn Device>> = again.iter().map(|device| Arc::new(device.clone()) as _).collect();
        let pool = Pool::import(all, Arc::new(SeededEnv::new(8)), &support::options()).unwrap();
        assert_eq!(replayed(&pool).len(), 4, "copy {rotten} is unreadable");
    }
}

#[test]
fn a_drive_with_few_open_zones_has_no_log() {
    for (limit, has_log) in [(4, false), (7, false), (8, true), (14, true)] {
        let config = SimConfig { zone_count: 48, max_open: limit, max_active: limit, ..SimConfig::default() };
        let device = SimDevice::new(config).unwrap();
        let (pool, toy) = create(&device, 1);
        pool.want_log();
        change(&pool, 0);
        pool.commit().unwrap();
        assert_eq!(pool.log_bytes_max() > 0, has_log, "{limit} zones");
        // Blocks never need the zones of the log.
        for round in 0..30 {
            work(&pool, &toy, &SeededEnv::new(round), 2).unwrap();
            change_and_log(&pool, 50_000).unwrap();
        }
        device.check().unwrap();
    }
}

/// A log takes no space that users were promised.
#[test]
fn a_log_gives_its_zones_back_when_zones_are_short() {
    let device = sim(10, false);
    let (pool, _) = create(&device, 10);
    let before = pool.space().0;
    open_log(&pool);
    assert!(pool.space().0 < before, "the zone of the log is not offered");
    let parts = pool.stats().kept.parts;
    assert_eq!(parts.log, 1 << 20);
    pool.export().unwrap();
    let (pool, _) = import(&device, 10).unwrap();
    assert_eq!(pool.space().0, before);
}

fn import_expecting(device: &SimDevice) -> Arc<Pool> {
    let options = ImportOptions { expects_changes: true, ..support::options() };
    let pool = Pool::import(vec![Arc::new(device.clone())], Arc::new(SeededEnv::new(11)), &options).unwrap();
    // A commit before the replay changes nothing.
    drop(pool.begin(Cost { write_bytes: 4096, ..Cost::NOTHING }).unwrap());
    pool.commit().unwrap();
    pool
}

fn kept(change: u64, txg: Txg) -> OwnedFrame {
    let body = (0..50).map(|at| (change as usize * 31 + at) as u8).collect();
    OwnedFrame { set: ObjsetId(9), change, txg, body }
}

/// Changes that a server kept in memory are replayed with those of the log, also by the successor of a successor.
#[test]
fn kept_changes_are_replayed_with_the_log() {
    for with_log in [false, true] {
        let device = sim(11, false);
        let (pool, _) = create(&device, 11);
        if with_log {
            open_log(&pool);
        }
        let committed = pool.synced_txg();
        let first = if with_log { change_and_log(&pool, 50).unwrap().0 } else { 1 };
        let open = pool.open_txg();
        let all = || (first..first + 6).map(|change| kept(change, open)).chain([kept(first + 9, committed)]);
        // A successor that dies before its first commit has changed nothing but the incarnation.
        let device = device.after_power_loss(1);
        import(&device, 12).unwrap().0.abandon();
        let device = device.after_power_loss(5);
        let again = import_expecting(&device);
        assert!(again.add_kept_changes(all()));
        let mut seen = Vec::new();
        let stopped = again.replay_log(|records| {
            for record in &records[..3] {
                seen.push(record.change);
                let tx = again.begin(Cost { write_bytes: 4096, ..Cost::NOTHING }).unwrap();
                again.note_replayed(&tx, record.change);
            }
            Err(PoolError::ReadOnly)
        });
        assert!(stopped.is_err());
        again.commit().unwrap();
        let device = device.after_power_loss(2);
        let again = import_expecting(&device);
        assert!(again.add_kept_changes(all()));
        assert_eq!(
            (seen, replayed(&again)),
            ((first..first + 3).collect(), (first + 3..first + 6).collect())
        );
        let again = import_expecting(&device.after_power_loss(3));
        assert!(again.add_kept_changes(all()));
        assert_eq!(replayed(&again), [], "they are all committed");
    }
}
