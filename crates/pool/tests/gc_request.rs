//! A GC request wins all garbage above its goal, reports progress, and ends.

use crate::support::{create, import, options, sim, verify, work};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_format::rows::Phase;
use terrane_pool::{ImportOptions, Pool};
use terrane_space::policy::{CollectionOptions, IdleWindow};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_txg::gc_request::{GcMode, GcProgress};

/// Commits txgs until the request is done. Returns the progress after each.
fn run(pool: &Arc<Pool>) -> Vec<GcProgress> {
    let mut seen = vec![pool.gc_progress()];
    while !seen.last().unwrap().done {
        assert!(seen.len() < 500, "it does not end: {:?}", seen.last());
        pool.commit_txg(pool.open_txg()).unwrap();
        seen.push(pool.gc_progress());
    }
    seen
}

/// Garbage bytes in full zones by the tables, and their share in percent.
fn garbage(pool: &Pool) -> (u64, u64) {
    let full = pool.zones().into_iter().filter(|zone| zone.phase == Phase::Full);
    let (garbage, all) =
        full.fold((0, 0), |(garbage, all), zone| (garbage + zone.capacity - zone.live, all + zone.capacity));
    (garbage, garbage * 100 / all)
}

#[test]
fn garbage_goes_down_to_what_was_asked_for_and_no_further() {
    for seed in 0..4 {
        let device = sim(seed, seed % 2 == 0);
        let (pool, toy) = create(&device, seed);
        work(&pool, &toy, &SeededEnv::new(seed), 14).unwrap();
        let ((before, percent), empty) = (garbage(&pool), pool.status().zones_empty);
        assert!(pool.gc_progress().done, "nobody asked yet");
        pool.gc_request(u8::try_from(percent / 2).unwrap()).unwrap();
        let part = run(&pool);
        let last = *part.last().unwrap();
        assert!(part.len() > 1 && last.garbage_bytes <= last.goal_bytes, "{last:?}");
        assert!(last.garbage_bytes < before, "{last:?} of {before}");
        pool.gc_request(0).unwrap();
        let all = run(&pool);
        let last = *all.last().unwrap();
        assert_eq!((last.zones_left, last.goal_bytes), (0, 0), "{last:?}");
        assert!(all.iter().any(|progress| progress.garbage_bytes < part[0].garbage_bytes));
        verify(&pool, &toy);
        // Emptied zones are reset once no txg that could be rolled back to needs them.
        (0..5).for_each(|_| pool.commit_txg(pool.open_txg()).unwrap());
        assert!(pool.status().zones_empty > empty, "{} of {empty}", pool.status().zones_empty);
        assert_eq!(pool.gc_now(), (GcMode::Idle, None));
        assert!(pool.totals().collected_zones > 0);
        // There is nothing left to do, so the request ends soon.
        pool.gc_request(0).unwrap();
        assert!(run(&pool).len() < 30);
        work(&pool, &toy, &SeededEnv::new(seed + 9), 20).unwrap();
        verify(&pool, &toy);
        pool.export().unwrap();
        let (pool, toy) = import(&device, seed + 100).unwrap();
        verify(&pool, &toy);
    }
}

#[test]
fn a_request_is_taken_back_by_the_next_one() {
    let device = sim(7, false);
    let (pool, toy) = create(&device, 7);
    work(&pool, &toy, &SeededEnv::new(7), 14).unwrap();
    pool.gc_request(0).unwrap();
    assert!(!pool.gc_progress().done);
    pool.gc_request(100).unwrap();
    let before = pool.totals().collected_zones;
    assert!(pool.gc_progress().done);
    pool.commit_txg(pool.open_txg()).unwrap();
    assert_eq!(pool.totals().collected_zones, before);
    pool.export().unwrap();
    drop((pool, toy));
    let read_only = ImportOptions { read_only: true, ..options() };
    let pool = Pool::import(vec![Arc::new(device)], Arc::new(SeededEnv::new(1)), &read_only).unwrap();
    assert!(matches!(pool.gc_request(0), Err(PoolError::ReadOnly)));
}

#[test]
fn idle_time_is_used_and_ends() {
    let device = sim(9, false);
    let (pool, toy) = create(&device, 9);
    work(&pool, &toy, &SeededEnv::new(9), 14).unwrap();
    pool.export().unwrap();
    drop(pool);
    let env = Arc::new(SeededEnv::new(9));
    let pool = Pool::import(vec![Arc::new(device)], env.clone(), &options()).unwrap();
    let commit_txg = || pool.commit_txg(pool.open_txg()).unwrap();
    let minute = env.minute_of_day();
    let at = |later: u16| (minute + later) % IdleWindow::DAY_MINUTES;
    pool.set_collection(CollectionOptions { idle: IdleWindow::new(at(30), at(60)), ..Default::default() });
    let (before, _) = garbage(&pool);
    (0..3).for_each(|_| commit_txg());
    // Open zones that hold little else may be closed, which adds to the garbage of full ones.
    assert!(garbage(&pool).0 >= before && pool.gc_now().0 == GcMode::Idle, "not before its time");
    env.sleep(Duration::from_secs(45 * 60));
    commit_txg();
    assert_eq!(pool.gc_now().0, GcMode::Window);
    assert!(!pool.gc_progress().done);
    env.sleep(Duration::from_secs(3600));
    commit_txg();
    assert!(pool.gc_progress().done, "not after it");
    assert_eq!(pool.gc_now(), (GcMode::Idle, pool.gc_now().1));
    assert!(garbage(&pool).0 < before, "{:?} of {before}", garbage(&pool));
    verify(&pool, &toy);
}

#[test]
fn idle_time_gc_follows_a_request_that_reached_a_lax_goal() {
    let device = sim(9, false);
    let (pool, toy) = create(&device, 9);
    work(&pool, &toy, &SeededEnv::new(9), 14).unwrap();
    let (_, percent) = garbage(&pool);
    pool.gc_request(u8::try_from(percent * 9 / 10).unwrap()).unwrap();
    let last = *run(&pool).last().unwrap();
    assert!(last.garbage_bytes <= last.goal_bytes, "{last:?}");
    let (left, percent) = garbage(&pool);
    assert!(percent > 20, "{percent} % are left");
    pool.set_collection(CollectionOptions { idle: IdleWindow::new(0, 1439), ..Default::default() });
    let modes = [(); 3].map(|()| {
        pool.commit_txg(pool.open_txg()).unwrap();
        pool.gc_now().0
    });
    assert!(modes.contains(&GcMode::Window), "{modes:?}");
    run(&pool);
    assert!(garbage(&pool).0 < left, "{:?} of {left}", garbage(&pool));
    verify(&pool, &toy);
}

#[test]
fn a_pool_with_threads_goes_on_by_itself() {
    let device = sim(8, false);
    let (pool, toy) = create(&device, 8);
    work(&pool, &toy, &SeededEnv::new(8), 14).unwrap();
    pool.export().unwrap();
    drop((pool, toy));
    // The period is so long that no txg is due to the timer.
    let options = ImportOptions { commit_period: Duration::from_secs(3600), ..options() };
    let pool = Pool::import(vec![Arc::new(device)], Arc::new(SystemEnv::new()), &options).unwrap();
    pool.gc_request(0).unwrap();
    let begun = Instant::now();
    while !pool.gc_progress().done {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", pool.gc_progress());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(pool.gc_progress().zones_left, 0);
    pool.export().unwrap();
}

#[test]
fn no_block_leaves_an_open_zone() {
    let mut garbage_in_open = 0;
    for seed in 20..24 {
        let device = sim(seed, seed % 2 == 0);
        let (pool, toy) = create(&device, seed);
        work(&pool, &toy, &SeededEnv::new(seed), 14).unwrap();
        let open = || pool.zones().into_iter().filter(|zone| zone.phase == Phase::Open);
        garbage_in_open += open().map(|zone| zone.claimed - zone.live).sum::<u64>();
        pool.gc_request(0).unwrap();
        while !pool.gc_progress().done {
            pool.commit_txg(pool.open_txg()).unwrap();
            for zone in open() {
                assert!(zone.runs.is_empty(), "seed {seed}: {zone:?}");
            }
        }
        assert!(pool.totals().collected_zones > 0, "seed {seed}");
        verify(&pool, &toy);
    }
    assert!(garbage_in_open > 1 << 20, "{garbage_in_open} bytes that would be worth it");
}
