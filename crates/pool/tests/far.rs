//! Pools on a device whose answers take time, as those of an object store do.

use crate::support::{Toy, create, import, options, verify, work};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use terrane_device::{Device, DeviceError, DeviceInfo, DeviceKind, SimConfig, SimDevice, ZoneReport};
use terrane_pool::{ImportOptions, Pool};
use terrane_store::env::{SeededEnv, SystemEnv};
use terrane_wire::ZoneIdx;

/// A simulated device that says it is a bucket, and counts reads by the threads that wait for them.
struct Far {
    device: SimDevice,
    info: DeviceInfo,
    answer: Duration,
    reads: Mutex<BTreeMap<String, u64>>,
}

impl Far {
    fn reads_of(&self, thread: &str) -> u64 {
        self.reads.lock().get(thread).copied().unwrap_or(0)
    }
}

impl Device for Far {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.device.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        std::thread::sleep(self.answer);
        let thread = std::thread::current().name().unwrap_or_default().to_string();
        *self.reads.lock().entry(thread).or_default() += 1;
        self.device.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.device.write(zone, offset, data)
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.device.reset(zone)
    }

    fn keep_space(&self) {}

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.device.finish(zone)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.device.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }
}

fn far(device: &SimDevice, answer: Duration) -> Arc<Far> {
    let info = DeviceInfo { kind: DeviceKind::Bucket, ..device.info().clone() };
    Arc::new(Far { device: device.clone(), info, answer, reads: Mutex::default() })
}

/// A pool on a device that is nearly full. No directory is in memory after the import.
fn import_far(far: &Arc<Far>, toy: &Arc<Toy>) -> Arc<Pool> {
    let options = ImportOptions { commit_period: Duration::from_secs(3600), ..options() };
    let pool = Pool::import(vec![far.clone()], Arc::new(SystemEnv::new()), &options).unwrap();
    pool.set_client(toy.clone());
    far.reads.lock().clear();
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
    let far = far(&device, Duration::from_millis(1));
    let pool = import_far(&far, &toy);
    let before = pool.totals().collected_zones;
    work(&pool, &toy, &env, 150).unwrap();
    let collected = pool.totals().collected_zones - before;
    assert!(collected >= 20, "{collected}");
    assert!(far.reads_of("directory") >= 20, "{:?}", far.reads.lock());
    assert!(far.reads_of("far-read") > collected, "{:?}", far.reads.lock());
    assert!(far.reads_of("terrane-sync") < collected / 4, "{collected}: {:?}", far.reads.lock());
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
        let far = far(&device, Duration::from_millis(20));
        let pool = import_far(&far, &toy);
        work(&pool, &toy, &env, 3).unwrap();
        pool.export().unwrap();
        drop(pool);
        assert_eq!(Arc::strong_count(&far), 1);
        read += far.reads_of("directory");
    }
    assert!(read > 0);
}
