//! Transient read errors, and zones that were read and cannot be explained.

use crate::support;
use std::sync::Arc;
use std::time::Duration;
use support::{create, import, sim, verify, work};
use terrane_device::{Device, Fault, SimDevice};
use terrane_format::BlockPtr;
use terrane_format::label::ANCHORS;
use terrane_format::rows::Phase;
use terrane_pool::Pool;
use terrane_store::env::SeededEnv;
use terrane_store::explain::EntryState;
use terrane_wire::{ZoneIdx, ZoneSeq};

fn suspects(pool: &Pool) -> Vec<ZoneSeq> {
    let zones = pool.zones().into_iter();
    zones.filter(|zone| zone.phase == Phase::Suspect).map(|zone| zone.seq).collect()
}

fn commit_txgs(pool: &Arc<Pool>, count: usize) {
    (0..count).for_each(|_| pool.commit_txg(pool.open_txg()).unwrap());
}

/// Lets time pass, so that sleeping zones are tried again.
fn later(pool: &Pool, seconds: u64) {
    pool.env().sleep(Duration::from_secs(seconds));
}

/// A freshly imported pool with garbage in its zones. If its directories are known, only blocks remain to be
/// read.
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
fn a_failed_read_at_import_is_not_called_damage() {
    let device = sim(5, false);
    let (pool, toy) = create(&device, 5);
    work(&pool, &toy, &SeededEnv::new(5), 14).unwrap();
    pool.export().unwrap();
    for zone in ANCHORS..device.info().zone_count {
        device.inject(Fault::ReadError { zone: Some(ZoneIdx(zone)), one_in: 1 });
    }
    let refused = import(&device, 6).map(drop).unwrap_err().to_string();
    assert!(refused.contains("import again") && !refused.contains("rewind"), "{refused}");
    device.clear_faults();
    let (pool, toy) = import(&device, 7).unwrap();
    verify(&pool, &toy);
}

#[test]
fn a_bad_moment_of_reads_leaves_no_zone_to_check() {
    for (seed, directories_are_known) in [(0, false), (1, false), (2, true), (3, true)] {
        let (device, pool, toy) = imported(seed, directories_are_known);
        pool.gc_request(0).unwrap();
        let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 });
        commit_txgs(&pool, 1);
        assert!(device.fired(fault) > 0, "seed {seed}: nothing was read");
        device.clear_faults();
        later(&pool, 20);
        commit_txgs(&pool, 60);
        assert_eq!(suspects(&pool), [], "seed {seed}");
        assert!(pool.totals().collected_zones > 0, "seed {seed}");
        verify(&pool, &toy);
    }
}

#[test]
fn collection_rests_on_a_device_that_cannot_be_read_and_goes_on_when_it_can() {
    for (seed, directories_are_known) in [(4, false), (5, true)] {
        let (device, pool, toy) = imported(seed, directories_are_known);
        let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 });
        pool.gc_request(0).unwrap();
        commit_txgs(&pool, 8);
        assert_eq!(pool.gc_rests().len(), 1, "seed {seed}: {} reads failed", device.fired(fault));
        let seen = device.fired(fault);
        commit_txgs(&pool, 20);
        assert_eq!(device.fired(fault), seen, "seed {seed}: not before the rest is over");
        // It goes on for hours.
        for _ in 0..60 {
            later(&pool, 200);
            pool.gc_request(0).unwrap();
            commit_txgs(&pool, 3);
        }
        let more = device.fired(fault) - seen;
        assert!(
            (20..2000).contains(&more),
            "seed {seed}: {more} reads failed while it was tried now and then"
        );
        assert_eq!(suspects(&pool), [], "seed {seed}");
        assert!(pool.gc_rests()[0].unread_zones > 2, "seed {seed}: {:?}", pool.gc_rests());
        device.clear_faults();
        later(&pool, 400);
        let before = pool.totals().collected_zones;
        pool.gc_request(0).unwrap();
        commit_txgs(&pool, 60);
        assert_eq!(pool.gc_rests(), [], "seed {seed}");
        assert!(pool.totals().collected_zones > before + 3, "seed {seed}");
        verify(&pool, &toy);
    }
}

#[test]
fn transient_read_errors_cost_no_space() {
    for seed in 0..4 {
        let device = sim(seed, seed.is_multiple_of(2));
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed + 50);
        work(&pool, &toy, &env, 150).unwrap();
        pool.drop_cache();
        let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 });
        // The pool may run out of space meanwhile. That must not cost a zone.
        for _ in 0..200 {
            let _ = work(&pool, &toy, &env, 1);
            pool.env().sleep(Duration::from_millis(700));
        }
        assert_eq!(pool.status().failed, None, "seed {seed}: groups that can win nothing took the last room");
        assert!(device.fired(fault) > 2, "seed {seed}: nothing was read");
        assert_eq!(suspects(&pool), [], "seed {seed}");
        device.clear_faults();
        // A writer probes once per second.
        later(&pool, 2);
        work(&pool, &toy, &env, 200).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(suspects(&pool), [], "seed {seed}");
        verify(&pool, &toy);
        pool.export().unwrap();
        let (pool, toy) = import(&device, seed + 1).unwrap();
        work(&pool, &toy, &env, 50).unwrap();
        verify(&pool, &toy);
    }
}

#[test]
fn one_bad_block_keeps_no_zone_from_being_emptied_but_for_itself() {
    let (device, pool, toy) = imported(8, false);
    // A block of file data in a full zone, with one copy.
    let pointers = toy.state.lock().pointers.clone();
    let zones = pool.zones();
    let is_full = |seq: ZoneSeq| zones.iter().any(|zone| zone.seq == seq && zone.phase == Phase::Full);
    let (slot, copy, psize) = pointers
        .iter()
        .enumerate()
        .find_map(|(slot, ptr)| match ptr {
            BlockPtr::Normal(normal) if slot % 3 != 0 => {
                let copy = normal.copies().next()?;
                let (seq, ..) = pool.locate(copy, normal.psize).ok()?;
                is_full(seq).then_some((slot, copy, normal.psize))
            }
            _ => None,
        })
        .unwrap();
    let (seq, home, offset) = pool.locate(copy, psize).unwrap();
    let flip = || device.rot(home.zone, offset + 5, &[1]).unwrap();
    flip();
    pool.gc_request(0).unwrap();
    commit_txgs(&pool, 60);
    assert_eq!(suspects(&pool), [seq], "read, and damaged");
    let live = |pool: &Pool| pool.zones().iter().find(|zone| zone.seq == seq).map(|zone| zone.live);
    assert_eq!(live(&pool), Some(u64::from(psize).next_multiple_of(16)), "all else has moved away");
    // The garbage of the suspect zone is not free space.
    let with_suspect = pool.space().0;
    pool.recheck_suspects();
    commit_txgs(&pool, 3);
    assert_eq!(suspects(&pool), [seq], "it is as damaged as before");
    // When the last live block of the zone is freed, the damage is gone.
    let mut state = toy.state.lock();
    state.versions[slot] += 1;
    state.dirty.push(slot);
    drop(state);
    work(&pool, &toy, &SeededEnv::new(9), 1).unwrap();
    commit_txgs(&pool, 8);
    let phase = pool.zones().iter().find(|zone| zone.seq == seq).map(|zone| zone.phase);
    assert!(matches!(phase, None | Some(Phase::Reclaimed)), "it was given back, and reset: {phase:?}");
    assert!(pool.space().0 > with_suspect + (1 << 19), "{with_suspect} bytes, then {}", pool.space().0);
    verify(&pool, &toy);
}

#[test]
fn suspect_zones_that_can_be_explained_are_given_back() {
    for by_import in [false, true] {
        for seed in 20..24 {
            let (device, pool, toy) = imported(seed, false);
            // Damages the last directory part of some full zones. A second copy of the part, if there is one,
            // is not found without it.
            let zones = pool.zones();
            let full: Vec<_> =
                zones.iter().filter(|zone| zone.phase == Phase::Full && zone.live > 0).collect();
            let flip = |device: &SimDevice| {
                for zone in full.iter().take(3) {
                    device.rot(zone.home.zone, zone.claimed - 9, &[1]).unwrap();
                }
            };
            flip(&device);
            pool.gc_request(0).unwrap();
            commit_txgs(&pool, 60);
            let bad = suspects(&pool);
            if bad.is_empty() {
                continue;
            }
            assert!(bad.iter().all(|seq| full.iter().take(3).any(|zone| zone.seq == *seq)), "seed {seed}");
            // The damaged parts are whole again, as after a cable was replaced.
            flip(&device);
            let (pool, toy) = match by_import {
                true => {
                    pool.export().unwrap();
                    import(&device, seed + 2).unwrap()
                }
                false => {
                    assert_eq!(pool.recheck_suspects(), bad.len() as u64);
                    (pool, toy)
                }
            };
            commit_txgs(&pool, 4);
            assert_eq!(suspects(&pool), [], "seed {seed}");
            for seq in bad {
                let states = pool.zone_directory(seq).unwrap();
                assert!(states.iter().all(|(_, state)| *state != EntryState::Unexplained));
            }
            verify(&pool, &toy);
            // Import replays the record that explains the zones.
            pool.abandon();
            let (pool, toy) = import(&device, seed + 3).unwrap();
            assert_eq!(suspects(&pool), [], "seed {seed}");
            verify(&pool, &toy);
            work(&pool, &toy, &SeededEnv::new(seed), 60).unwrap();
            verify(&pool, &toy);
        }
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
            // The pool may run out of space meanwhile.
            let _ = work(&pool, &toy, &SeededEnv::new(seed * 100 + round), 1);
            fired += device.fired(fault);
            device.clear_faults();
            later(&pool, 2);
            work(&pool, &toy, &SeededEnv::new(seed * 100 + round + 50), 2).unwrap();
        }
        assert_eq!(suspects(&pool), [], "seed {seed}");
        assert!(pool.totals().reset_zones > before + 3, "seed {seed}");
        verify(&pool, &toy);
    }
    assert!(fired > 4, "the canary: {fired} reads failed");
}
