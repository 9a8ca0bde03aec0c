//! Panics are bugs: none commits half a change, and none leaves a thread asleep forever.

use crate::support::{create, empty_toy, import, options, sim, verify, work};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use terrane_device::{Device, DeviceError, DeviceInfo, SimDevice, ZoneReport};
use terrane_pool::{CreateOptions, Pool};
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_txg::cost::Cost;
use terrane_wire::ZoneIdx;

#[test]
fn a_change_that_panics_is_never_committed() {
    let device = sim(1, false);
    let (pool, toy) = create(&device, 1);
    work(&pool, &toy, &SeededEnv::new(1), 3).unwrap();
    let (before, txg) = (toy.state.lock().versions.clone(), pool.synced_txg());
    let half = catch_unwind(AssertUnwindSafe(|| {
        let _tx = pool.begin(Cost { write_bytes: 1 << 20, meta_blocks: 4, ..Cost::NOTHING }).unwrap();
        let mut state = toy.state.lock();
        state.versions[3] += 1;
        state.dirty.push(3);
        drop(state);
        std::panic::resume_unwind(Box::new("before the other half"))
    }));
    let half: Result<(), _> = half;
    assert!(half.is_err());
    let error = pool.commit().unwrap_err().to_string();
    assert!(error.contains("panicked"), "{error}");
    pool.abandon();
    let (pool, toy) = import(&device, 2).unwrap();
    assert_eq!((toy.state.lock().versions.clone(), pool.synced_txg()), (before, txg));
    verify(&pool, &toy);
}

/// A device whose writes panic after `writes` writes, `panics` times.
struct PanickingDevice {
    device: SimDevice,
    writes: AtomicI64,
    panics: AtomicI64,
}

impl Device for PanickingDevice {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.device.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        if self.writes.fetch_sub(1, Ordering::SeqCst) <= 0 && self.panics.fetch_sub(1, Ordering::SeqCst) > 0 {
            std::panic::resume_unwind(Box::new("a write panics"));
        }
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

#[test]
fn a_panicking_write_wakes_all_waiters() {
    for (after, panics) in [(0, 1), (1, 1), (2, 1), (3, 2), (0, i64::MAX)] {
        let device = sim(2, false);
        let trap = Arc::new(PanickingDevice {
            device: device.clone(),
            writes: AtomicI64::new(i64::MAX),
            panics: AtomicI64::new(panics),
        });
        let env: Arc<dyn Env> = Arc::new(SystemEnv::new());
        let pool = Pool::create(vec![trap.clone()], &CreateOptions::named("toy"), env, &options()).unwrap();
        let toy = empty_toy();
        pool.set_client(toy.clone());
        work(&pool, &toy, &SeededEnv::new(2), 3).unwrap();
        trap.writes.store(after, Ordering::SeqCst);
        let (done, ended) = mpsc::channel();
        let (writer, of_writer) = (pool.clone(), toy.clone());
        let thread = std::thread::spawn(move || {
            let _ = done.send(work(&writer, &of_writer, &SeededEnv::new(3), 2).is_ok());
        });
        let outcome = ended.recv_timeout(Duration::from_secs(60));
        assert!(outcome.is_ok(), "after {after}: it waits for ever");
        if panics == 1 && outcome == Ok(true) {
            verify(&pool, &toy);
        }
        pool.abandon();
        thread.join().unwrap();
        drop(pool);
        // Every acknowledged txg is on the device.
        let committed = toy.state.lock().committed.clone();
        let (pool, toy) = import(&device, 4).unwrap();
        let found = pool.synced_txg();
        let expected = committed.iter().find(|(txg, _)| *txg == found).map(|(_, versions)| versions.clone());
        assert_eq!(Some(toy.state.lock().versions.clone()), expected, "after {after}");
        verify(&pool, &toy);
    }
}
