//! Devices that report a failed write although they took all of it, as when a command finishes after its
//! timeout.

use crate::support::{create_on, import, sim, verify, work};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_device::{Device, DeviceError, DeviceInfo, SimDevice, ZoneReport};
use terrane_format::granule_bytes;
use terrane_pool::{CreateOptions, Pool};
use terrane_store::env::SeededEnv;
use terrane_store::explain::EntryState;
use terrane_wire::ZoneIdx;

struct FalseFailures {
    device: SimDevice,
    /// One write in so many is reported as failed; 0: none.
    one_in: AtomicU64,
    writes: AtomicU64,
    false_failures: AtomicU64,
}

impl Device for FalseFailures {
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
        self.device.write(zone, offset, data)?;
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        if zone.0 > 1 && number.checked_rem(self.one_in.load(Ordering::Relaxed)) == Some(0) {
            self.false_failures.fetch_add(1, Ordering::Relaxed);
            let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(DeviceError::Io { zone: Some(zone), offset, op: "write", source });
        }
        Ok(())
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

/// Every live byte of a zone is listed in its directory. A block that is not listed can never be moved.
fn assert_listed(pool: &Pool, seed: u64) {
    for zone in pool.zones().into_iter().filter(|zone| zone.live > 0) {
        let directory = pool.zone_directory(zone.seq).unwrap();
        let here = directory.iter().filter(|(_, state)| *state == EntryState::Live);
        let listed: u64 = here.map(|(entry, _)| granule_bytes(u64::from(entry.psize))).sum();
        assert_eq!(listed, zone.live, "seed {seed}, zone {}", zone.seq);
    }
}

#[test]
fn blocks_after_a_failed_batch_move_with_it() {
    let mut false_failures = 0;
    for seed in 0..5u64 {
        let device = sim(seed, seed.is_multiple_of(2));
        let device_with_failures = Arc::new(FalseFailures {
            device: device.clone(),
            one_in: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            false_failures: AtomicU64::new(0),
        });
        let (pool, toy) = create_on(vec![device_with_failures.clone()], &CreateOptions::named("toy"), seed);
        let env = SeededEnv::new(seed);
        // Long enough that some batches of survivors fail.
        work(&pool, &toy, &env, 120).unwrap();
        for _ in 0..6 {
            // Each false report costs the rest of a zone, until GC reclaims it.
            device_with_failures.one_in.store(7 + seed % 5, Ordering::Relaxed);
            work(&pool, &toy, &env, 1).unwrap();
            device_with_failures.one_in.store(0, Ordering::Relaxed);
            work(&pool, &toy, &env, 8).unwrap();
        }
        false_failures += device_with_failures.false_failures.load(Ordering::Relaxed);
        verify(&pool, &toy);
        assert_listed(&pool, seed);
        work(&pool, &toy, &env, 40).unwrap();
        verify(&pool, &toy);
        pool.abandon();
        let (pool, toy) = import(&device, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        verify(&pool, &toy);
        assert_listed(&pool, seed);
    }
    assert!(false_failures > 12, "the canary: {false_failures} writes were called failures");
}
