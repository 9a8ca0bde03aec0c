//! The pool alone, with a client that keeps a flat list of blocks. Committed blocks are present after any
//! import, whatever was collected, moved, cut off or damaged meanwhile.

use crate::support::{create, fill, import, options, owner, sim, verify, work};
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_device::sim::Survival;
use terrane_device::{Device, Fault, SimDevice};
use terrane_format::BlockPtr;
use terrane_format::uberblock::Uberblock;
use terrane_pool::{ImportOptions, Pool};
use terrane_store::PoolError;
use terrane_store::counters::Io;
use terrane_store::env::{Env, SeededEnv};
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

#[test]
fn what_was_committed_is_there_after_export_and_import() {
    for hardware in [false, true] {
        let device = sim(1, hardware);
        let (pool, toy) = create(&device, 1);
        work(&pool, &toy, &SeededEnv::new(1), 30).unwrap();
        verify(&pool, &toy);
        pool.export().unwrap();
        for round in 0..4 {
            let (pool, toy) = import(&device, round).unwrap();
            verify(&pool, &toy);
            work(&pool, &toy, &SeededEnv::new(round + 2), 10).unwrap();
            verify(&pool, &toy);
            pool.export().unwrap();
        }
    }
}

#[test]
fn overwriting_many_times_the_pool_collects_and_never_loses() {
    let device = sim(2, true);
    let (pool, toy) = create(&device, 2);
    let env = SeededEnv::new(5);
    for _ in 0..40 {
        work(&pool, &toy, &env, 10).unwrap();
        pool.drop_cache();
        verify(&pool, &toy);
    }
    let runs = pool.status().runs;
    pool.export().unwrap();
    let (pool, toy) = import(&device, 3).unwrap();
    assert!(runs == 0 || pool.status().runs > 0);
    verify(&pool, &toy);
}

#[test]
fn a_crash_after_any_operation_leaves_a_committed_txg_whole() {
    for hardware in [false, true] {
        for seed in 0..60u64 {
            let device = sim(seed, hardware);
            let (pool, toy) = create(&device, seed);
            let env = SeededEnv::new(seed);
            work(&pool, &toy, &env, 3 + (seed % 40) as usize).unwrap();
            let promised = pool.synced_txg();
            device.crash_after(device.ops_done() + seed % 23);
            let _ = work(&pool, &toy, &env, 12);
            pool.abandon();
            let promised = promised.max(pool.synced_txg());
            let committed = toy.state.lock().committed.clone();
            let after = device.after_power_loss(seed * 31);
            let (pool, toy) = import(&after, seed)
                .unwrap_or_else(|error| panic!("seed {seed} hardware {hardware}: {error}"));
            let found = pool.synced_txg();
            assert!(found >= promised, "seed {seed}: promised {promised}, found {found}");
            let expected =
                committed.iter().find(|(txg, _)| *txg == found).map(|(_, versions)| versions.clone());
            assert_eq!(
                Some(toy.state.lock().versions.clone()),
                expected,
                "seed {seed} hardware {hardware} group {found}"
            );
            verify(&pool, &toy);
            work(&pool, &toy, &env, 12).unwrap();
            verify(&pool, &toy);
        }
    }
}

#[test]
fn a_dropped_flush_is_caught() {
    let caught = (0..40u64).filter(|seed| {
        let device = sim(*seed, false);
        let (pool, toy) = create(&device, *seed);
        let env = SeededEnv::new(*seed);
        work(&pool, &toy, &env, 4).unwrap();
        // From here on no flush reaches the medium.
        for nth in 1..100 {
            device.inject(Fault::LostFlush { nth });
        }
        work(&pool, &toy, &env, 4).unwrap();
        let promised = pool.synced_txg();
        pool.abandon();
        device.cut_power();
        let after = device.after_power_loss(seed * 77);
        import(&after, *seed).map_or(true, |(pool, _)| pool.synced_txg() < promised)
    });
    assert!(caught.count() > 0, "the crash test would not notice a device that lies");
}

/// Zones with live blocks by their rows.
fn zones_in_use(pool: &Pool) -> Vec<terrane_pool::inspect::ZoneView> {
    pool.zones().into_iter().filter(|zone| zone.live > 0).collect()
}

#[test]
fn blocks_of_a_failed_write_are_found_under_their_old_addresses() {
    for seed in 0..30u64 {
        let device = sim(seed, seed % 2 == 0);
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 4).unwrap();
        // Anchors are spared: a pool that cannot write uberblocks has to stop.
        for zone in zones_in_use(&pool)
            .iter()
            .filter(|zone| env.random_u64().is_multiple_of(2) && zone.home.zone.0 > 1)
        {
            device.inject(Fault::WriteError {
                zone: Some(zone.home.zone),
                one_in: 1,
                partial: env.random_u64().is_multiple_of(2),
            });
        }
        work(&pool, &toy, &env, 6).unwrap();
        verify(&pool, &toy);
        pool.drop_cache();
        verify(&pool, &toy);
        pool.export().unwrap();
        device.clear_faults();
        let (pool, toy) = import(&device, seed).unwrap();
        verify(&pool, &toy);
    }
}

#[test]
fn a_damaged_copy_of_metadata_is_healed_and_stays_healed() {
    let device = sim(9, false);
    let (pool, toy) = create(&device, 9);
    let env = SeededEnv::new(9);
    // Long enough that GC has made runs.
    work(&pool, &toy, &env, 150).unwrap();
    assert!(pool.status().runs > 0);
    let pointers = toy.state.lock().pointers.clone();
    let mut damaged = 0;
    for (slot, ptr) in pointers.iter().enumerate() {
        let BlockPtr::Normal(normal) = ptr else { continue };
        if slot % 3 != 0 || normal.copies().count() < 2 {
            continue;
        }
        let copy = normal.copies().nth(slot % 2).unwrap();
        let (_, home, offset) = pool.locate(copy, normal.psize).unwrap();
        device.rot(home.zone, offset + u64::from(normal.psize) / 2, &[1]).unwrap();
        assert_eq!(pool.verify(ptr).len(), 1, "the canary: rot is seen");
        damaged += 1;
    }
    assert!(damaged > 20);
    pool.drop_cache();
    for (slot, ptr) in pointers.iter().enumerate().filter(|(_, ptr)| !ptr.is_hole()) {
        assert_eq!(*pool.read(ptr, owner(slot)).unwrap(), fill(slot, toy.state.lock().versions[slot]));
        // A read uses the first copy. Scrub also finds damage in the second.
        if let BlockPtr::Normal(normal) = ptr {
            pool.scrub(normal, owner(slot));
        }
    }
    // Many damaged blocks lie in one run, and a txg splits a run only once. So healing takes many txgs.
    for _ in 0..200 {
        pool.commit_txg(pool.open_txg()).unwrap();
    }
    verify(&pool, &toy);
    work(&pool, &toy, &env, 30).unwrap();
    verify(&pool, &toy);
    pool.export().unwrap();
    let (pool, toy) = import(&device, 10).unwrap();
    verify(&pool, &toy);
}

#[test]
fn when_the_newest_txg_is_unreadable_import_refuses_and_a_rewind_gives_the_one_before() {
    let device = sim(4, false);
    let (pool, toy) = create(&device, 4);
    work(&pool, &toy, &SeededEnv::new(4), 6).unwrap();
    let committed = toy.state.lock().committed.clone();
    pool.abandon();
    let ubers = terrane_pool::inspect::anchors(&device);
    let newest = ubers
        .iter()
        .flat_map(|(_, _, ubers)| ubers)
        .map(|(_, uber)| *uber)
        .max_by_key(|uber| uber.txg)
        .unwrap();
    for place in newest.record.copies() {
        device.rot(place.zone, place.offset + 9, &[1]).unwrap();
    }
    let Err(refused) = import(&device, 4) else { panic!("imported without the newest group") };
    let text = refused.to_string();
    assert!(text.contains("--rewind="), "{text}");
    let before = committed[committed.len() - 2].clone();
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(77));
    let rewind = ImportOptions { rewind: Some(before.0), ..options() };
    let pool = Pool::import(vec![Arc::new(device.clone())], env, &rewind).unwrap();
    assert_eq!(pool.synced_txg(), before.0);
    pool.commit_txg(pool.open_txg()).unwrap();
    pool.export().unwrap();
    let (pool, toy) = import(&device, 5).unwrap();
    assert_eq!(toy.state.lock().versions, before.1);
    verify(&pool, &toy);
}

/// Rewrites both anchors with a changed label, and seals everything again.
fn relabel(device: &SimDevice, change: impl Fn(&mut terrane_format::label::Label)) {
    for (anchor, mut label, ubers) in terrane_pool::inspect::anchors(device) {
        change(&mut label);
        let zone = terrane_wire::ZoneIdx(anchor);
        device.reset(zone).unwrap();
        let mut raw = label.encode(anchor);
        if let Some((_, newest)) = ubers.last() {
            let at = raw.len() as u64;
            raw.extend_from_slice(&newest.encode(&label, anchor, at, 4096));
        }
        device.write(zone, 0, &raw).unwrap();
    }
}

#[test]
fn an_unknown_feature_is_refused_by_its_name() {
    let device = sim(6, true);
    let (pool, toy) = create(&device, 6);
    work(&pool, &toy, &SeededEnv::new(6), 3).unwrap();
    pool.export().unwrap();
    relabel(&device, |label| label.features.compatible.push("org.example:harmless".into()));
    import(&device, 6).unwrap().0.export().unwrap();
    relabel(&device, |label| label.features.read_only_compatible.push("org.example:append".into()));
    let refused = import(&device, 6).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("org.example:append") && refused.contains("read-only"), "{refused}");
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(1));
    let read_only = ImportOptions { read_only: true, ..options() };
    let pool = Pool::import(vec![Arc::new(device.clone())], env.clone(), &read_only).unwrap();
    assert!(matches!(pool.begin(Cost::default()).map(|_| ()), Err(PoolError::ReadOnly)));
    relabel(&device, |label| label.features.incompatible.push("org.example:new".into()));
    let refused =
        Pool::import(vec![Arc::new(device.clone())], env, &read_only).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("org.example:new"), "{refused}");
}

#[test]
fn the_first_batch_of_a_fresh_zone_may_fail() {
    for seed in 0..8u64 {
        let device = sim(seed, seed.is_multiple_of(2));
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 4).unwrap();
        let used: Vec<u32> = pool.zones().iter().map(|zone| zone.home.zone.0).collect();
        let next = (2..48).find(|zone| !used.contains(zone)).unwrap();
        let zone = Some(terrane_wire::ZoneIdx(next));
        let fault = device.inject(Fault::WriteError { zone, one_in: 1, partial: seed > 4 });
        work(&pool, &toy, &env, 12).unwrap();
        assert!(device.fired(fault) > 0, "the canary: the zone was written to");
        verify(&pool, &toy);
        pool.abandon();
        device.clear_faults();
        let (pool, toy) = import(&device, seed).unwrap();
        verify(&pool, &toy);
    }
}

#[test]
fn a_commit_with_nothing_to_do_ends_at_once_even_after_a_crash() {
    let device = sim(11, false);
    let (pool, toy) = create(&device, 11);
    work(&pool, &toy, &SeededEnv::new(11), 3).unwrap();
    pool.abandon();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for read_only in [true, false] {
            let env: Arc<dyn Env> = Arc::new(terrane_store::env::SystemEnv::new());
            let options = ImportOptions { read_only, ..options() };
            let pool = Pool::import(vec![Arc::new(device.clone())], env, &options).unwrap();
            pool.commit().unwrap();
            pool.commit_txg(pool.open_txg()).unwrap();
            pool.export().unwrap();
        }
        done.send(()).unwrap();
    });
    // Far longer than necessary: the test is that it ends.
    ended.recv_timeout(std::time::Duration::from_secs(60)).expect("it hangs");
}

#[test]
fn a_branch_that_a_rewind_gave_up_never_comes_back() {
    let device = sim(5, false);
    let (pool, toy) = create(&device, 5);
    work(&pool, &toy, &SeededEnv::new(5), 6).unwrap();
    let committed = toy.state.lock().committed.clone();
    pool.abandon();
    let before = committed[committed.len() - 2].clone();
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(78));
    let rewind = ImportOptions { rewind: Some(before.0), ..options() };
    // The rewind was imported, and cut off before any commit.
    Pool::import(vec![Arc::new(device.clone())], env.clone(), &rewind).unwrap().abandon();
    let (pool, toy) = import(&device, 6).unwrap();
    assert_eq!((pool.synced_txg(), toy.state.lock().versions.clone()), before);
    verify(&pool, &toy);
    work(&pool, &toy, &SeededEnv::new(7), 2).unwrap();
    pool.abandon();
    let given_up = committed[committed.len() - 1].0;
    let rewind = ImportOptions { rewind: Some(given_up), ..options() };
    let pool = Pool::import(vec![Arc::new(device.clone())], env, &rewind).unwrap();
    assert_eq!(
        pool.synced_txg(),
        before.0,
        "the newest group not after the one asked for, on the branch that lives"
    );
}

#[test]
fn writes_that_fail_now_and_then_never_cost_a_promised_txg() {
    for seed in 0..120u64 {
        let device = sim(seed, seed.is_multiple_of(2));
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 3).unwrap();
        device.inject(Fault::WriteError { zone: None, one_in: 12, partial: seed.is_multiple_of(3) });
        // A pool on such a device may stop, but earlier acknowledged txgs must be present.
        let _ = work(&pool, &toy, &env, 25);
        let promised = pool.synced_txg();
        let committed = toy.state.lock().committed.clone();
        pool.abandon();
        device.clear_faults();
        let (pool, toy) = import(&device, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let found = pool.synced_txg();
        assert!(found >= promised, "seed {seed}: group {promised} was promised, {found} is there");
        let expected = committed.iter().find(|(txg, _)| *txg == found).map(|(_, versions)| versions.clone());
        assert_eq!(Some(toy.state.lock().versions.clone()), expected, "seed {seed} group {found}");
        verify(&pool, &toy);
    }
}

#[test]
fn what_happens_is_counted() {
    let device = sim(12, false);
    let (pool, toy) = create(&device, 12);
    let env = SeededEnv::new(12);
    let before = pool.stats();
    let ops_before = device.ops_done();
    work(&pool, &toy, &env, 150).unwrap();
    let after = pool.stats();
    // A nearly full pool commits txgs of its own accord, to reset zones.
    let txgs = after.txg_sync.count() - before.txg_sync.count();
    assert_eq!(txgs, after.txg - before.txg);
    assert!(txgs >= 150);
    assert_eq!(after.begin.count() > 0, txgs > 150, "who waited is who asked for them");
    assert!(after.txg_sync.sum_ns > 0 && after.quiesce.count() == after.txg_sync.count());
    assert!(after.stored_bytes <= after.logical_bytes && after.stored_bytes > 20 << 20);
    let sum = |io: &[Io]| {
        io.iter().fold((0, 0, 0), |sum, io| (sum.0 + io.operations, sum.1 + io.blocks, sum.2 + io.bytes))
    };
    let (operations, blocks, bytes) = sum(&after.writes);
    assert_eq!(operations, after.device_write.count());
    assert!(blocks > operations && bytes >= after.txg_bytes && bytes > after.stored_bytes);
    let flushes = after.flush.count() - before.flush.count();
    assert_eq!(flushes, 2 * txgs);
    assert!(device.ops_done() - ops_before >= operations - sum(&before.writes).0 + flushes);
    assert!(after.collected_zones > 0 && after.collected_bytes > 0 && after.reset_zones > 0);
    let zones = after.zones;
    assert_eq!(zones.empty + zones.open + zones.full + zones.emptied, pool.status().zones);
    assert_eq!(zones.empty, pool.status().zones_empty);
    assert_eq!((after.checksum_errors, after.read_errors, after.write_errors), (0, 0, 0));

    // Two reads, one from the device and one from the cache, with damage in between.
    pool.drop_cache();
    let pointers = toy.state.lock().pointers.clone();
    let (slot, ptr) = pointers.iter().enumerate().find(|(at, ptr)| at % 3 == 0 && !ptr.is_hole()).unwrap();
    let BlockPtr::Normal(normal) = ptr else { panic!("{ptr:?}") };
    let copy = normal.copies().next().unwrap();
    let (_, home, offset) = pool.locate(copy, normal.psize).unwrap();
    device.rot(home.zone, offset + 7, &[1]).unwrap();
    let before = pool.stats();
    pool.read(ptr, owner(slot)).unwrap();
    pool.read(ptr, owner(slot)).unwrap();
    let after = pool.stats();
    let metadata = |stats: &terrane_pool::Stats| stats.cache_by_kind[Kind::Metadata as usize];
    assert_eq!(metadata(&after).hits - metadata(&before).hits, 1);
    assert_eq!(metadata(&after).misses - metadata(&before).misses, 1);
    assert!(metadata(&after).bytes > metadata(&before).bytes);
    assert_eq!(after.checksum_errors - before.checksum_errors, 1);
    assert!(sum(&after.reads).1 >= sum(&before.reads).1 + 2);
    for _ in 0..40 {
        pool.commit_txg(pool.open_txg()).unwrap();
    }
    assert_eq!(pool.stats().healed_blocks - before.healed_blocks, 1);
    pool.export().unwrap();
    assert!(pool.stats().failed);
}

/// Zones that were emptied for the newest txg may be reset, even after a rewind to any txg.
#[test]
fn what_could_not_be_imported_cannot_be_after_a_rewind_either() {
    let device = sim(61, false);
    let (pool, toy) = create(&device, 61);
    work(&pool, &toy, &SeededEnv::new(61), 8).unwrap();
    let committed: Vec<_> = toy.state.lock().committed.iter().map(|(txg, _)| *txg).collect();
    pool.abandon();
    // As if space were short: rollback by one txg only.
    let back = committed[committed.len() - 2];
    let anchors = terrane_pool::inspect::anchors(&device);
    let newest = anchors.iter().flat_map(|(_, _, ubers)| ubers).map(|(_, uber)| uber.txg).max().unwrap();
    for (anchor, label, ubers) in anchors {
        let mut raw = label.encode(anchor);
        for (_, uber) in ubers {
            let oldest = if uber.txg == newest { back } else { uber.oldest };
            let uber = Uberblock { oldest, ..uber };
            let at = raw.len() as u64;
            raw.extend_from_slice(&uber.encode(&label, anchor, at, 4096));
        }
        device.reset(terrane_wire::ZoneIdx(anchor)).unwrap();
        device.write(terrane_wire::ZoneIdx(anchor), 0, &raw).unwrap();
    }
    let rewound = |to: Txg| {
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(to.0));
        let rewind = ImportOptions { rewind: Some(to), ..options() };
        let pool = Pool::import(vec![Arc::new(device.clone())], env, &rewind).map(|pool| {
            pool.abandon();
            pool.synced_txg()
        });
        pool.map_err(|error| error.to_string())
    };
    assert!(rewound(committed[committed.len() - 3]).is_err(), "its zones may have been reset");
    assert_eq!(rewound(back), Ok(back));
    let older = rewound(committed[committed.len() - 3]);
    assert!(older.is_err(), "{older:?}");
    assert_eq!(rewound(back), Ok(back));
}

/// Sequence numbers that may be in use by the newest uberblock.
fn leased(device: &SimDevice) -> u64 {
    let anchors = terrane_pool::inspect::anchors(device);
    let ubers = anchors.iter().flat_map(|(_, _, ubers)| ubers).map(|(_, uber)| uber);
    ubers.max_by_key(|uber| (uber.incarnation, uber.txg, uber.clean)).unwrap().lease_seq
}

#[test]
fn an_export_and_an_import_use_up_no_sequence_numbers() {
    let device = sim(63, false);
    let (pool, toy) = create(&device, 63);
    work(&pool, &toy, &SeededEnv::new(63), 4).unwrap();
    let most = pool.zones().iter().map(|zone| zone.seq.0).max().unwrap();
    pool.export().unwrap();
    let before = leased(&device);
    assert!(before <= most + 4, "{most} was used, {before} is leased");
    for life in 0..20 {
        let (pool, toy) = import(&device, life).unwrap();
        verify(&pool, &toy);
        pool.export().unwrap();
    }
    assert!(leased(&device) <= before + 20, "{before} before, {} after", leased(&device));
    // A writable import that crashed may have used its lease, so numbers continue above it.
    let (pool, toy) = import(&device, 30).unwrap();
    work(&pool, &toy, &SeededEnv::new(64), 3).unwrap();
    pool.abandon();
    let crashed = leased(&device);
    assert!(crashed > before + 1000);
    let (pool, toy) = import(&device, 31).unwrap();
    work(&pool, &toy, &SeededEnv::new(65), 40).unwrap();
    let new = pool.zones().iter().map(|zone| zone.seq.0).filter(|seq| *seq >= crashed).count();
    assert!(new > 0, "no zone has a number above {crashed}");
    verify(&pool, &toy);
    pool.export().unwrap();
    let (pool, toy) = import(&device, 32).unwrap();
    work(&pool, &toy, &SeededEnv::new(66), 40).unwrap();
    verify(&pool, &toy);
}

/// An uberblock that says that nearly all sequence numbers were used.
#[test]
fn a_pool_without_numbers_left_says_so_and_can_be_imported() {
    let device = sim(62, false);
    let (pool, toy) = create(&device, 62);
    work(&pool, &toy, &SeededEnv::new(62), 4).unwrap();
    pool.export().unwrap();
    for lease_seq in [(1 << 36) - 1, (1 << 36) - 4] {
        let device = device.restarted(Survival::Everything);
        for (anchor, label, ubers) in terrane_pool::inspect::anchors(&device) {
            let (Some((_, newest)), zone) = (ubers.last(), terrane_wire::ZoneIdx(anchor)) else { continue };
            let mut raw = label.encode(anchor);
            let at = raw.len() as u64;
            raw.extend_from_slice(&Uberblock { lease_seq, ..*newest }.encode(&label, anchor, at, 4096));
            device.reset(zone).unwrap();
            device.write(zone, 0, &raw).unwrap();
        }
        for life in 0..3 {
            let (pool, toy) = import(&device, life).unwrap();
            verify(&pool, &toy);
            let outcome = work(&pool, &toy, &SeededEnv::new(life), 60);
            let text = outcome.map_err(|error| error.to_string());
            assert!(text.as_ref().is_err_and(|text| text.contains("sequence numbers ran out")), "{text:?}");
            pool.abandon();
        }
    }
}
