//! Pools in trouble: failed zones, failed batches, a panic in the sync, and more changes than memory should
//! hold.

use crate::support;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;
use support::{
    create, empty_toy, fill, import, open_few_zones, options, owner, request, sim, verify, verify_with, work,
};
use terrane_device::sim::Survival;
use terrane_device::{Device, Fault, SimConfig, SimDevice, ZoneState};
use terrane_format::BlockPtr;
use terrane_format::label::Role;
use terrane_format::record::Home;
use terrane_format::rows::Phase;
use terrane_pool::{Client, CreateOptions, ImportOptions, Pool, Stream, Tx, TxgSync};
use terrane_space::policy::Placement;
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_txg::cost::Cost;
use terrane_wire::{DeviceIdx, Txg, ZoneIdx};

/// Zones that are empty by the tables.
fn empty_zones(pool: &Pool) -> Vec<ZoneIdx> {
    let used: Vec<Home> = pool.zones().iter().map(|zone| zone.home).collect();
    (2..48).map(ZoneIdx).filter(|zone| !used.iter().any(|home| home.zone == *zone)).collect()
}

#[test]
fn unwritable_zones_are_no_free_space_after_import() {
    for state in [ZoneState::Offline, ZoneState::ReadOnly] {
        let device = sim(21, true);
        let (pool, toy) = create(&device, 21);
        work(&pool, &toy, &SeededEnv::new(21), 3).unwrap();
        pool.export().unwrap();
        let (pool, _) = import(&device, 22).unwrap();
        let (before, size) = (pool.status().zones_empty, pool.status().size_bytes);
        let dying: Vec<ZoneIdx> = empty_zones(&pool).into_iter().rev().take(9).collect();
        pool.export().unwrap();
        for zone in &dying {
            device.kill_zone(*zone, state).unwrap();
        }
        let (pool, toy) = import(&device, 23).unwrap();
        assert_eq!(pool.status().zones_empty, before - 9, "{state:?}");
        let given_up: Vec<_> = dying.iter().rev().map(|zone| (*zone, state)).collect();
        assert_eq!(pool.devices()[0].unwritable_zones, given_up);
        assert!(pool.status().size_bytes + (8 << 20) < size + (1 << 20), "{state:?}");
        work(&pool, &toy, &SeededEnv::new(22), 30).unwrap();
        verify(&pool, &toy);
    }
}

#[test]
fn no_crash_loses_the_txg_that_becomes_the_only_one() {
    for seed in [51, 52] {
        let device = sim(seed, seed % 2 == 0);
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        let mut txgs = 0;
        while pool.status().zones_waiting < 2 {
            assert!(txgs < 400, "no zone was emptied");
            work(&pool, &toy, &env, 1).unwrap();
            txgs += 1;
        }
        let (newest, versions) = (pool.synced_txg(), toy.state.lock().versions.clone());
        // Only zones that wait for their reset take writes now.
        let of_phase = |wanted: fn(Phase) -> bool| {
            let zones = pool.zones().into_iter().filter(move |zone| wanted(zone.phase));
            zones.map(|zone| zone.home.zone).collect::<Vec<_>>()
        };
        let (resident, open) =
            (of_phase(|phase| phase != Phase::Reclaimed), of_phase(|phase| phase == Phase::Open));
        pool.abandon();
        for zone in (2..48).map(ZoneIdx).filter(|zone| !resident.contains(zone) || open.contains(zone)) {
            device.kill_zone(zone, ZoneState::ReadOnly).unwrap();
        }
        let whole = device.restarted(Survival::Everything);
        let before = whole.ops_done();
        let (pool, _) = import(&whole, seed).unwrap();
        assert_eq!(pool.oldest_txg(), newest, "older groups are given up, or nothing could be reset");
        assert!(pool.status().zones_empty >= 2, "{:?}", pool.status());
        pool.abandon();
        let ops = whole.ops_done() - before;
        for cut in 0..ops {
            for kept in
                [Survival::Nothing, Survival::Everything, Survival::Seeded(cut), Survival::Seeded(cut + 1000)]
            {
                let device = device.restarted(Survival::Everything);
                device.crash_after(device.ops_done() + cut);
                let _ = import(&device, seed).map(|(pool, _)| pool.abandon());
                device.cut_power();
                let (pool, toy) = import(&device.restarted(kept), seed + 1)
                    .unwrap_or_else(|error| panic!("seed {seed}, cut {cut} of {ops}, {kept:?}: {error}"));
                assert_eq!(pool.synced_txg(), newest, "seed {seed}, cut {cut} of {ops}, {kept:?}");
                assert!(toy.state.lock().versions == versions, "seed {seed}, cut {cut} of {ops}, {kept:?}");
                verify(&pool, &toy);
                pool.abandon();
            }
        }
    }
}

#[test]
fn space_beyond_the_capacity_of_zones_is_no_free_space() {
    let sizes = |capacity: u64| {
        let (zone_count, zone_size) = (48, 2 << 20);
        // The anchors have their full capacity, like conventional zones at the start of a drive.
        let capacities = (0..48).map(|zone| if zone < 2 { zone_size } else { capacity }).collect();
        let config = SimConfig { zone_count, zone_size, capacities, ..SimConfig::default() };
        let (pool, toy) = create(&SimDevice::new(config).unwrap(), 5);
        let offered = pool.status().size_bytes;
        work(&pool, &toy, &SeededEnv::new(5), 30).unwrap();
        verify(&pool, &toy);
        offered
    };
    let (whole, part) = (sizes(2 << 20), sizes(3 << 19));
    assert!(part < 46 * (3 << 19), "{part} bytes on a drive that takes {}", 46 * (3 << 19));
    assert!(part < whole * 3 / 4 + (1 << 20), "{part} of {whole}");
}

/// Every claimed byte is explained by a directory part.
fn directories_are_whole(pool: &Pool) {
    for zone in pool.zones().iter().filter(|zone| zone.claimed > 0) {
        let read = pool.zone_directory(zone.seq);
        assert!(read.is_ok(), "zone {} claims {} bytes: {:?}", zone.seq, zone.claimed, read.err());
    }
}

#[test]
fn a_zone_that_goes_on_behind_lost_bytes_claims_nothing_of_them_when_its_first_batch_fails() {
    let mut behind = 0;
    for seed in 0..60u64 {
        let device = sim(seed, true);
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 3).unwrap();
        // The crash is in the middle of a txg, so zones hold unclaimed bytes.
        device.crash_after(device.ops_done() + 2 + seed % 6);
        let _ = work(&pool, &toy, &env, 2);
        pool.abandon();
        let device = device.after_power_loss(seed);
        let (pool, toy) = import(&device, seed).unwrap();
        let ahead: Vec<ZoneIdx> = pool
            .zones()
            .iter()
            .filter(|zone| zone.phase == Phase::Open)
            .filter(|zone| device.report(zone.home.zone).unwrap().pointer > zone.claimed)
            .map(|zone| zone.home.zone)
            .collect();
        behind += ahead.len();
        for zone in ahead {
            device.inject(Fault::WriteError { zone: Some(zone), one_in: 1, partial: false });
        }
        work(&pool, &toy, &env, 1).unwrap();
        device.clear_faults();
        directories_are_whole(&pool);
        work(&pool, &toy, &env, 3).unwrap();
        verify(&pool, &toy);
    }
    assert!(behind > 10, "the canary: zones did go on behind lost bytes ({behind})");
}

#[test]
fn healing_waits_when_zones_are_short() {
    let device = sim(31, false);
    let (pool, toy) = create(&device, 31);
    work(&pool, &toy, &SeededEnv::new(31), 20).unwrap();
    pool.export().unwrap();
    let (pool, _) = import(&device, 32).unwrap();
    let keep = 3;
    let empty = empty_zones(&pool);
    pool.export().unwrap();
    for zone in &empty[keep..] {
        device.kill_zone(*zone, ZoneState::Offline).unwrap();
    }
    let (pool, toy) = import(&device, 33).unwrap();
    assert_eq!(pool.status().zones_empty, keep as u64);
    let pointers = toy.state.lock().pointers.clone();
    // In an open zone, which is no victim: GC would find the damage and heal it.
    let open: Vec<_> = pool.zones().into_iter().filter(|zone| zone.phase == Phase::Open).collect();
    let (slot, ptr, home, offset) = pointers
        .iter()
        .enumerate()
        .find_map(|(at, ptr)| {
            let BlockPtr::Normal(normal) = ptr else { return None };
            normal.copies().nth(1)?;
            normal.copies().find_map(|copy| {
                let (seq, home, offset) = pool.locate(copy, normal.psize).ok()?;
                open.iter().any(|zone| zone.seq == seq).then_some((at, ptr, home, offset))
            })
        })
        .unwrap();
    device.rot(home.zone, offset + 7, &[1]).unwrap();
    pool.drop_cache();
    assert_eq!(*pool.read(ptr, owner(slot)).unwrap(), fill(slot, toy.state.lock().versions[slot]));
    // One txg only: GC of a later one may have emptied a zone.
    pool.commit_txg(pool.open_txg()).unwrap();
    assert_eq!(pool.stats().healed_blocks, 0, "{} zones are empty", pool.status().zones_empty);
    comes_to_rest(&pool);
    // Almost all blocks are freed, so zones are no longer short.
    for slot in (0..support::SLOTS).filter(|at| *at != slot) {
        toy.state.lock().versions[slot] += 1;
        toy.state.lock().dirty.push(slot);
        if slot % 40 == 0 {
            drop(
                pool.begin(Cost { write_bytes: 1 << 20, meta_blocks: 4, frees: true, ..Cost::default() })
                    .unwrap(),
            );
            pool.commit().unwrap();
        }
    }
    for _ in 0..100 {
        pool.commit_txg(pool.open_txg()).unwrap();
    }
    assert_eq!(pool.stats().healed_blocks, 1, "it waits and is not forgotten");
    verify(&pool, &toy);
}

#[test]
fn changes_of_metadata_alone_fill_a_txg() {
    let device = sim(41, false);
    let (pool, _toy) = create(&device, 41);
    let before = pool.stats();
    drop(pool.begin(Cost { objects: 100, ..Cost::NOTHING }).unwrap());
    assert!(pool.stats().dirty_bytes >= before.dirty_bytes + 100 * 1024, "{}", pool.stats().dirty_bytes);
    // Dirty memory triggers the commits; no caller asks for one.
    for _ in 0..before.dirty_bytes_max / (100 << 10) * 3 {
        drop(pool.begin(Cost { objects: 100, ..Cost::NOTHING }).unwrap());
        let stats = pool.stats();
        assert!(stats.dirty_bytes <= stats.dirty_bytes_max, "{} dirty", stats.dirty_bytes);
    }
    let after = pool.stats();
    assert!(
        after.waits[terrane_store::counters::WaitFor::Sync as usize].count() > 0,
        "{:?} {:?}",
        after.waits,
        after.txg
    );
    assert!(after.txg >= before.txg + 2, "{} to {}", before.txg, after.txg);
}

#[test]
fn little_changes_wait_neither_behind_streams_nor_as_long_as_they() {
    use terrane_store::counters::WaitFor;
    let device = sim(43, false);
    let (pool, _toy) = create(&device, 43);
    pool.commit_txg(pool.open_txg()).unwrap();
    // Objects, because they need no space in a small pool.
    let much = Cost { objects: 1 << 10, ..Cost::NOTHING };
    let little = Cost { objects: 64, ..Cost::NOTHING };
    let delayed_ns = |cost| {
        let before = pool.stats().waits;
        drop(pool.begin(cost).unwrap());
        let after = pool.stats().waits;
        assert_eq!(
            after[WaitFor::Sync as usize].count(),
            before[WaitFor::Sync as usize].count(),
            "it did not fit"
        );
        after[WaitFor::Throttle as usize].sum_ns - before[WaitFor::Throttle as usize].sum_ns
    };
    // Large operations leave the last eighth of the limit to little ones.
    let (txg, max) = (pool.open_txg(), pool.stats().dirty_bytes_max);
    while pool.stats().dirty_bytes + (3 << 20) <= max - max / 8 {
        delayed_ns(much);
    }
    let (big, small) = (delayed_ns(much), delayed_ns(little));
    assert!(small > 0 && small * 8 < big, "{small} ns of {big}");
    while pool.stats().dirty_bytes + (1 << 20) <= max {
        delayed_ns(little);
    }
    assert_eq!(pool.open_txg(), txg);
    drop(pool.begin(much).unwrap());
    assert_eq!(pool.open_txg(), txg.next());
}

/// Calls the given function when a txg syncs.
struct SyncHook(Box<dyn Fn() -> Result<BlockPtr, PoolError> + Send + Sync>);

impl Client for SyncHook {
    fn quiesced(&self, _tx: &Tx) {}
    fn sync(&self, _txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        (self.0)()
    }
    fn synced(&self, _txg: Txg) {}
}

/// A pool with threads of its own.
fn threaded(device: &SimDevice) -> Arc<Pool> {
    let env: Arc<dyn Env> = Arc::new(SystemEnv::new());
    let options = ImportOptions { commit_period: Duration::from_secs(3600), ..options() };
    Pool::create(vec![Arc::new(device.clone())], &CreateOptions::named("toy"), env, &options).unwrap()
}

/// Result of `work`, which must return in time.
fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, heard) = mpsc::channel();
    std::thread::spawn(move || answer.send(work()));
    heard.recv_timeout(Duration::from_secs(20)).expect("it waits for ever")
}

#[test]
fn a_panic_in_the_sync_fails_the_pool_and_wakes_all_waiters() {
    let device = sim(51, false);
    let pool = threaded(&device);
    let client: Arc<dyn Client> = Arc::new(SyncHook(Box::new(|| panic!("as told"))));
    pool.set_client(client);
    drop(pool.begin(Cost { write_bytes: 1, meta_blocks: 1, frees: false, ..Cost::default() }).unwrap());
    let waiting = pool.clone();
    let error = in_time(move || waiting.commit()).unwrap_err();
    assert!(matches!(&error, PoolError::Failed { reason } if reason.contains("panicked")), "{error}");
    let joining = pool.clone();
    assert!(in_time(move || joining.begin(Cost::default()).map(drop)).is_err());
    assert!(pool.stats().failed);
    in_time(move || pool.export()).unwrap_err();
}

#[test]
fn no_txg_follows_one_that_failed() {
    use std::sync::atomic::{AtomicU64, Ordering};
    // A waiter for the lock of the failing sync must find the pool failed. The window is small, so there are
    // many tries.
    for seed in 0..60 {
        let device = sim(seed, false);
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let pool = Pool::create(devices, &CreateOptions::named("toy"), env, &options()).unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        let (entered, inside) = mpsc::channel();
        let client: Arc<dyn Client> = Arc::new(SyncHook(Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = entered.send(());
            std::thread::sleep(Duration::from_millis(5));
            Err(PoolError::Failed { reason: "as told".into() })
        })));
        pool.set_client(client);
        std::thread::scope(|scope| {
            scope.spawn(|| pool.commit_txg(pool.open_txg()).unwrap_err());
            inside.recv().unwrap();
            for _ in 0..3 {
                // Each thread runs txgs itself, as soon as it has the lock.
                scope.spawn(|| pool.commit_txg(pool.open_txg()).unwrap_err());
            }
        });
        assert_eq!(calls.load(Ordering::SeqCst), 1, "seed {seed}");
    }
}

/// The toy, which begins to sync a txg only when no further operation can join the next one, because its
/// space is reserved.
struct Crowded {
    toy: Arc<support::Toy>,
    /// Slots that were changed in the open txg.
    slots: Mutex<Vec<usize>>,
    joined: AtomicU64,
    ended: AtomicU64,
}

const WRITERS: u64 = 4;

impl Client for Crowded {
    fn quiesced(&self, last: &Tx) {
        let mut state = self.toy.state.lock();
        for slot in std::mem::take(&mut *self.slots.lock()) {
            state.versions[slot] += 1;
            state.dirty.push(slot);
        }
        drop(state);
        self.toy.quiesced(last);
    }

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let mut joined = u64::MAX;
        while self.ended.load(Ordering::SeqCst) < WRITERS {
            let now = self.joined.load(Ordering::SeqCst);
            if std::mem::replace(&mut joined, now) == now {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.toy.sync(txg_sync)
    }

    fn synced(&self, txg: Txg) {
        self.toy.synced(txg);
    }
}

/// GC runs while operations join the next txg. It must leave them the space that they reserved.
#[test]
fn gc_takes_no_reserved_space() {
    // The toy nearly fills this many zones.
    const ZONES: u32 = 20;
    let (mut refused, mut collected) = (0, 0);
    for round in 0..4u64 {
        let config = SimConfig { seed: round, zone_count: 32, ..SimConfig::default() };
        let device = SimDevice::new(config).unwrap();
        create(&device, round).0.export().unwrap();
        (ZONES..32).for_each(|zone| device.kill_zone(ZoneIdx(zone), ZoneState::Offline).unwrap());
        let pool = Pool::import(vec![Arc::new(device)], Arc::new(SystemEnv::new()), &options()).unwrap();
        let toy = Arc::new(support::Toy { state: Mutex::default() });
        toy.state.lock().versions = vec![0; support::SLOTS];
        toy.state.lock().pointers = vec![BlockPtr::default(); support::SLOTS];
        let (joined, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let crowd = Arc::new(Crowded { toy: toy.clone(), slots: Mutex::default(), joined, ended });
        pool.set_client(crowd.clone());
        let outcomes: Vec<Result<u64, PoolError>> = std::thread::scope(|scope| {
            let writer = |seed: u64| {
                let (pool, crowd) = (&pool, &crowd);
                move || {
                    let outcome = crowd.write(pool, seed);
                    crowd.ended.fetch_add(1, Ordering::SeqCst);
                    outcome
                }
            };
            let writers: Vec<_> =
                (0..WRITERS).map(|number| scope.spawn(writer(round * 10 + number))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        refused += outcomes.into_iter().map(Result::unwrap).sum::<u64>();
        pool.commit().unwrap();
        collected += pool.stats().collected_zones;
        verify(&pool, &toy);
        pool.export().unwrap();
    }
    assert!(refused < 4 * WRITERS * CHANGES / 10, "{refused} were refused");
    assert!(collected > 100, "the canary: {collected} zones were collected");
}

const CHANGES: u64 = 150;

impl Crowded {
    /// Returns the number of refused operations.
    fn write(&self, pool: &Arc<Pool>, seed: u64) -> Result<u64, PoolError> {
        let env = SeededEnv::new(seed);
        let mut refused = 0;
        for _ in 0..CHANGES {
            // Three blocks with their second copies, and the list.
            let cost = Cost { write_bytes: 6 * 30_208, meta_bytes: 56_000, ..Cost::NOTHING };
            let tx = match pool.begin(cost) {
                Ok(tx) => tx,
                Err(PoolError::NoSpace { .. }) => {
                    refused += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let slots = (0..3).map(|_| (env.random_u64() % support::SLOTS as u64) as usize);
            self.slots.lock().extend(slots);
            self.joined.fetch_add(1, Ordering::SeqCst);
            drop(tx);
        }
        Ok(refused)
    }
}

/// Kills all empty zones but the first `keep`, while the pool is in use.
fn kill_all_but(pool: &Pool, device: &SimDevice, keep: usize, state: ZoneState) {
    for zone in empty_zones(pool).into_iter().skip(keep) {
        device.kill_zone(zone, state).unwrap();
    }
}

#[test]
fn zones_that_die_while_they_are_empty_are_no_reason_to_stop() {
    let mut refused = 0;
    for seed in 0..12u64 {
        let device = sim(seed, seed.is_multiple_of(2));
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 20).unwrap();
        // As many zones as commits and a victim need, and few more.
        kill_all_but(&pool, &device, 5 + (seed % 3) as usize, ZoneState::ReadOnly);
        for _ in 0..60 {
            match work(&pool, &toy, &env, 1) {
                Ok(()) => {}
                Err(PoolError::NoSpace { .. }) => refused += 1,
                Err(error) => panic!("seed {seed}: {error}"),
            }
            // Now and then, one of the zones that are empty now dies.
            if let Some(zone) = empty_zones(&pool).first().filter(|_| env.random_u64().is_multiple_of(8)) {
                device.kill_zone(*zone, ZoneState::ReadOnly).unwrap();
            }
        }
        pool.drop_cache();
        verify(&pool, &toy);
        pool.export().unwrap();
        let (pool, toy) = import(&device, seed).unwrap();
        verify(&pool, &toy);
    }
    assert!(refused > 0, "the canary: room became short");
}

#[test]
fn garbage_of_unwritable_zones_is_no_free_space_and_their_live_blocks_move() {
    for seed in [71, 72, 73] {
        let device = sim(seed, true);
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        while pool.stats().collected_zones < 3 {
            work(&pool, &toy, &env, 1).unwrap();
        }
        let full = pool.zones().into_iter().filter(|zone| zone.phase == Phase::Full && zone.live > 0);
        let victim = full.min_by_key(|zone| zone.live).unwrap();
        device.kill_zone(victim.home.zone, ZoneState::ReadOnly).unwrap();
        let size = pool.status().size_bytes;
        let phase = || pool.zones().into_iter().find(|zone| zone.seq == victim.seq).map(|zone| zone.phase);
        let (mut txgs, mut was_known) = (0, false);
        while phase().is_some_and(|phase| phase != Phase::Reclaimed) {
            was_known |= pool.status().size_bytes + (3 << 18) < size;
            work(&pool, &toy, &env, 1).unwrap();
            txgs += 1;
            assert!(txgs < 400, "seed {seed}: {:?} is not emptied", phase());
        }
        assert!(was_known, "seed {seed}: it was room until it could not be reset");
        assert!(pool.status().size_bytes + (3 << 18) < size, "seed {seed}: it is room again");
        pool.drop_cache();
        verify(&pool, &toy);
    }
}

/// The toy, with small blocks that are all replaced in each txg. If there are many, the frees do not fit the
/// record itself. Keeps the state of the device after each txg with late resets.
struct FailingToy {
    toy: Arc<support::Toy>,
    device: SimDevice,
    small: Mutex<Vec<BlockPtr>>,
    small_count: usize,
    pool: Mutex<Option<Weak<Pool>>>,
    late: AtomicU64,
    /// A txg, the device, and bytes of small blocks.
    left: Mutex<Vec<(Txg, SimDevice, u64)>>,
}

impl FailingToy {
    fn late_resets(&self) -> u64 {
        let pool = self.pool.lock().as_ref().and_then(Weak::upgrade);
        pool.map_or(0, |pool| pool.stats().late_resets)
    }
}

impl Client for FailingToy {
    fn quiesced(&self, last: &Tx) {
        self.toy.quiesced(last);
    }

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let requests = (0..self.small_count).map(|nth| {
            let noise = fill(nth, txg_sync.txg().0)[..100].to_vec();
            let stream = Stream::Data(Placement { file: 9000, ..Placement::default() });
            request(noise, owner(10_000 + nth), stream)
        });
        let new = txg_sync.write(requests.collect())?;
        std::mem::replace(&mut *self.small.lock(), new).iter().for_each(|ptr| txg_sync.release(ptr));
        self.toy.sync(txg_sync)
    }

    fn synced(&self, txg: Txg) {
        let late = self.late_resets();
        if self.late.swap(late, Ordering::SeqCst) != late {
            let small = self.small.lock().iter().map(BlockPtr::allocated_bytes).sum();
            self.left.lock().push((txg, self.device.restarted(Survival::Everything), small));
        }
    }
}

/// A batch fails, and only zones that wait for their reset have space for it. The txg that resets such a zone
/// and opens it again must list both, however many frees it has already written.
#[test]
fn a_txg_with_failed_batches_can_be_imported() {
    let mut seen = [0; 2];
    let few = [7, 26, 34].map(|seed| (seed, 0, false));
    let many = [1, 5, 12, 33].map(|seed| (seed, 1200, false));
    // Once the next txg has begun, no replay needs the records of these.
    let checkpoints = [33].map(|seed| (seed, 1200, true));
    for (seed, small_count, all_sections) in few.into_iter().chain(many).chain(checkpoints) {
        let device = sim(seed, seed % 2 == 0);
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let create = CreateOptions::named("toy");
        let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(seed)), &options()).unwrap();
        let toy = empty_toy();
        let client = Arc::new(FailingToy {
            toy: toy.clone(),
            device: device.clone(),
            small: Mutex::default(),
            small_count,
            pool: Mutex::new(Some(Arc::downgrade(&pool))),
            late: AtomicU64::default(),
            left: Mutex::default(),
        });
        pool.set_client(client.clone());
        open_few_zones(&pool);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 20).unwrap();
        kill_all_but(&pool, &device, 4 + (seed % 4) as usize, ZoneState::ReadOnly);
        let one_in = 10 + (seed % 30) as u32;
        device.inject(Fault::WriteError { zone: None, one_in, partial: seed % 3 == 0 });
        for _ in 0..60 {
            if all_sections {
                pool.want_checkpoint();
            }
            match work(&pool, &toy, &env, 1) {
                Ok(()) | Err(PoolError::NoSpace { .. }) => {}
                // So many zones failed that none is left, or an anchor failed.
                Err(error) => {
                    let is_short = error.to_string().contains("no zone takes");
                    assert!(!is_short || pool.status().zones_waiting == 0, "seed {seed}: {error}");
                    break;
                }
            }
        }
        let committed = toy.state.lock().committed.clone();
        pool.abandon();
        for (txg, left, small) in client.left.lock().drain(..) {
            seen[usize::from(small_count > 0)] += 1;
            left.clear_faults();
            let (pool, toy) = import(&left, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(pool.synced_txg(), txg, "seed {seed}");
            let versions = committed.iter().rev().find(|(committed_txg, _)| *committed_txg == txg).unwrap();
            assert!(toy.state.lock().versions == versions.1, "seed {seed}");
            verify_with(&pool, &toy, small);
            pool.abandon();
        }
    }
    assert!(seen[0] >= 1 && seen[1] >= 3, "the canary: zones were reset late in {seen:?} groups");
}

/// An unwritable zone on a leaving device is subtracted from the free space exactly once.
#[test]
fn a_device_with_a_dead_zone_can_be_replaced() {
    let seed = 71;
    let device = sim(seed, true);
    let (pool, toy) = create(&device, seed);
    let env = SeededEnv::new(seed);
    while pool.stats().collected_zones < 3 {
        work(&pool, &toy, &env, 1).unwrap();
    }
    let full = pool.zones().into_iter().filter(|zone| zone.phase == Phase::Full && zone.live > 0);
    let victim = full.min_by_key(|zone| zone.live).unwrap();
    device.kill_zone(victim.home.zone, ZoneState::ReadOnly).unwrap();
    let size = pool.status().size_bytes;
    for txgs in 0.. {
        if pool.status().size_bytes + (3 << 18) < size {
            break;
        }
        assert!(txgs < 400, "nobody noticed");
        work(&pool, &toy, &env, 1).unwrap();
    }
    pool.add_device(Arc::new(sim(seed + 1, true)), Role::Data).unwrap();
    pool.remove_device(DeviceIdx(0), &mut |_, _| {}).unwrap();
    assert!(
        pool.zones().iter().all(|zone| zone.phase == Phase::Reclaimed || zone.home.device != DeviceIdx(0))
    );
    work(&pool, &toy, &env, 5).unwrap();
    pool.drop_cache();
    verify(&pool, &toy);
}

/// Blocks with two copies in one zone.
fn sharing(pool: &Pool, toy: &support::Toy) -> Vec<usize> {
    let state = toy.state.lock();
    let shares = |ptr: &BlockPtr| {
        let BlockPtr::Normal(normal) = ptr else { return false };
        let mut zones: Vec<_> =
            normal.copies().map(|copy| pool.locate(copy, normal.psize).unwrap().0).collect();
        zones.dedup();
        zones.len() < normal.copies().count()
    };
    (0..support::SLOTS).filter(|slot| shares(&state.pointers[*slot])).collect()
}

/// A pool in which copies share a zone, because another zone failed and none could be opened. `empty` zones
/// are empty now.
fn with_copies_in_one_zone(seed: u64, empty: usize) -> (SimDevice, Arc<Pool>, Arc<support::Toy>) {
    let device = sim(seed, seed.is_multiple_of(2));
    let (pool, toy) = create(&device, seed);
    open_few_zones(&pool);
    let env = SeededEnv::new(seed);
    work(&pool, &toy, &env, 12).unwrap();
    pool.export().unwrap();
    let (pool, toy) = import(&device, seed).unwrap();
    open_few_zones(&pool);
    // Zones that were open before, beyond those, are closed now.
    work(&pool, &toy, &env, 2).unwrap();
    // Empty zones must be reset before they are opened, and that fails. Anchors can be reset.
    let others = pool.zones().into_iter().map(|zone| zone.home.zone);
    for zone in empty_zones(&pool).into_iter().chain(others) {
        device.inject(Fault::ResetError { zone: Some(zone), one_in: 1 });
    }
    kill_all_but(&pool, &device, empty, ZoneState::ReadOnly);
    let open = pool.zones().into_iter().find(|zone| zone.phase == Phase::Open).unwrap();
    device.inject(Fault::WriteError { zone: Some(open.home.zone), one_in: 1, partial: false });
    let tx = pool.begin(Cost { write_bytes: 1 << 20, meta_blocks: 4, ..Cost::NOTHING }).unwrap();
    for slot in [0, 3, 6, 7] {
        toy.state.lock().versions[slot] += 1;
        toy.state.lock().dirty.push(slot);
    }
    drop(tx);
    pool.commit_txg(pool.open_txg()).unwrap();
    device.clear_faults();
    assert_eq!(sharing(&pool, &toy), [0, 3, 6], "the canary: seed {seed}");
    (device, pool, toy)
}

#[test]
fn copies_that_had_to_share_a_zone_part_when_there_is_another() {
    for seed in [61, 62] {
        let (_, pool, toy) = with_copies_in_one_zone(seed, usize::MAX);
        for _ in 0..3 {
            pool.commit_txg(pool.open_txg()).unwrap();
        }
        assert_eq!(sharing(&pool, &toy), [0usize; 0], "seed {seed}");
        assert_eq!(pool.stats().healed_blocks, 0, "nothing was damaged");
        pool.drop_cache();
        verify(&pool, &toy);
        pool.export().unwrap();
    }
}

/// Without any operation, txgs follow each other, and then stop.
fn comes_to_rest(pool: &Arc<Pool>) {
    let mut txgs = 0;
    while pool.has_work_left() {
        pool.commit_txg(pool.open_txg()).unwrap();
        txgs += 1;
        assert!(txgs < 100, "{} zones are empty", pool.status().zones_empty);
    }
}

#[test]
fn an_idle_pool_comes_to_rest_while_copies_wait_for_zones() {
    let (mut waiting, mut parted) = (0, 0);
    for (seed, empty) in [61, 62].into_iter().flat_map(|seed| (1..9).map(move |empty| (seed, empty))) {
        let (_, pool, toy) = with_copies_in_one_zone(seed, empty);
        comes_to_rest(&pool);
        let left = sharing(&pool, &toy).len();
        waiting += usize::from(left > 0);
        parted += usize::from(left == 0);
        verify(&pool, &toy);
    }
    assert!(waiting > 0 && parted > 0, "the canary: {waiting} {parted}");
}

/// Each sync takes a while, so operations join the open txg meanwhile.
struct SlowSync(Arc<support::Toy>);

impl Client for SlowSync {
    fn quiesced(&self, last: &Tx) {
        self.0.quiesced(last);
    }

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        std::thread::sleep(Duration::from_millis(10));
        self.0.sync(txg_sync)
    }

    fn synced(&self, txg: Txg) {
        self.0.synced(txg);
    }
}

#[test]
fn what_dirties_more_than_the_limit_joins_beside_others() {
    let device = sim(7, false);
    let pool = threaded(&device);
    pool.set_client(Arc::new(SlowSync(support::empty_toy())));
    let ends = Arc::new(AtomicBool::new(false));
    // Two that overlap, and that nothing delays, so that something is dirty at any time.
    let small = Cost { write_bytes: 1, frees: true, ..Cost::NOTHING };
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (pool, ends) = (Arc::clone(&pool), Arc::clone(&ends));
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    drop(pool.begin(small).unwrap());
                }
            })
        })
        .collect();
    for _ in 0..3 {
        let pool = Arc::clone(&pool);
        // The others have gone on meanwhile.
        std::thread::sleep(Duration::from_millis(100));
        let large = Cost { names_bytes: Some(1 << 40), ..Cost::NOTHING };
        in_time(move || drop(pool.begin(large).unwrap()));
    }
    ends.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
}
