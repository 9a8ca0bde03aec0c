//! Pools on a device whose answers take time, as those of an object store do.

use crate::support::disk::disk;
use crate::support::{Toy, create, import, options, verify, work};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use terrane_device::{Device, DeviceError, DeviceKind, Layer, Layered, SimConfig, SimDevice};
use terrane_pool::{ImportOptions, Pool};
use terrane_store::env::{SeededEnv, SystemEnv};
use terrane_wire::ZoneIdx;

/// Reads take time. Counts them by the threads that wait for them.
#[derive(Default)]
struct Reads {
    answer: Duration,
    /// Reads of directories panic.
    panics: bool,
    counts: Mutex<BTreeMap<String, u64>>,
}

impl Layer for Reads {
    fn on_read(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), DeviceError> {
        std::thread::sleep(self.answer);
        let thread = std::thread::current().name().unwrap_or_default().to_string();
        let panics = self.panics && thread == "directory";
        *self.counts.lock().entry(thread).or_default() += 1;
        if panics {
            std::panic::resume_unwind(Box::new("a read panics"));
        }
        below.read(zone, offset, buf)
    }
}

type Far = Layered<Reads>;

fn reads_of(far: &Far, thread: &str) -> u64 {
    far.layer().counts.lock().get(thread).copied().unwrap_or(0)
}

/// An object store, as far as the pool can tell.
fn far(device: &SimDevice, reads: Reads) -> Arc<Far> {
    Arc::new(Layered::wrap(disk(device, DeviceKind::Bucket), reads))
}

/// A pool on a device that is nearly full. No directory is in memory after the import.
fn import_far(far: &Arc<Far>, toy: &Arc<Toy>) -> Arc<Pool> {
    let options = ImportOptions { commit_period: Duration::from_secs(3600), ..options() };
    let pool = Pool::import(vec![far.clone()], Arc::new(SystemEnv::new()), &options).unwrap();
    pool.set_client(toy.clone());
    far.layer().counts.lock().clear();
    pool
}

fn nearly_full(env: &SeededEnv) -> (SimDevice, Arc<Toy>) {
    let size = SimConfig { seed: 1, zone_count: 32, zone_size: 1 << 20, ..SimConfig::default() };
    let device = SimDevice::new(size).unwrap();
    let (pool, toy) = create(&device, 1);
    while pool.totals().collected_zones == 0 {
        work(&pool, &toy, env, 1).unwrap();
    }
    pool.export().unwrap();
    (device, toy)
}

#[test]
fn gc_reads_far_victims_beside_the_txgs() {
    let env = SeededEnv::new(1);
    let (device, toy) = nearly_full(&env);
    let far = far(&device, Reads { answer: Duration::from_millis(1), ..Reads::default() });
    let pool = import_far(&far, &toy);
    let before = pool.totals().collected_zones;
    work(&pool, &toy, &env, 150).unwrap();
    let collected = pool.totals().collected_zones - before;
    assert!(collected >= 20, "{collected}");
    assert!(reads_of(&far, "directory") >= 20, "{:?}", far.layer().counts.lock());
    assert!(reads_of(&far, "far-read") > collected, "{:?}", far.layer().counts.lock());
    assert!(reads_of(&far, "terrane-sync") < collected / 4, "{collected}: {:?}", far.layer().counts.lock());
    verify(&pool, &toy);
    pool.export().unwrap();
    let (pool, toy) = import(&device, 2).unwrap();
    verify(&pool, &toy);
}

#[test]
fn no_thread_that_reads_ahead_holds_a_device_after_the_export() {
    let env = SeededEnv::new(1);
    let (device, toy) = nearly_full(&env);
    let mut read = 0;
    for _ in 0..8 {
        let far = far(&device, Reads { answer: Duration::from_millis(20), ..Reads::default() });
        let pool = import_far(&far, &toy);
        work(&pool, &toy, &env, 3).unwrap();
        pool.export().unwrap();
        drop(pool);
        assert_eq!(Arc::strong_count(&far), 1);
        read += reads_of(&far, "directory");
    }
    assert!(read > 0);
}

#[test]
fn a_panic_of_a_thread_that_reads_ahead_stops_nothing() {
    let env = SeededEnv::new(1);
    let (device, toy) = nearly_full(&env);
    let far = far(&device, Reads { panics: true, ..Reads::default() });
    let pool = import_far(&far, &toy);
    let before = pool.totals().collected_zones;
    work(&pool, &toy, &env, 100).unwrap();
    assert!(pool.totals().collected_zones > before + 10);
    assert!(reads_of(&far, "directory") > 0 && reads_of(&far, "terrane-sync") > 0);
    verify(&pool, &toy);
    pool.export().unwrap();
}
