//! Cache devices of a pool: add, attach at import, remove.
//!
//! Only the label names them, so that an import knows which devices to look for. A missing cache device is
//! reported, and the pool works without it.

use crate::create::{check_zones, random_id};
use crate::pool::Pool;
use std::sync::Arc;
use terrane_device::{AlignedBuf, Device, DeviceError};
use terrane_format::cache_device::CacheHead;
use terrane_format::features::Feature;
use terrane_format::label::{CACHES_MAX, CacheRow};
use terrane_store::PoolError;
use terrane_store::l2cache::{CacheDeviceStats, HEAD_ZONES, cache_geometry};
use terrane_wire::ZoneIdx;

/// A cache device as the label names it, with its statistics if it is attached.
#[derive(Clone, Debug)]
pub struct CacheDeviceStatus {
    /// Its id, as the label names it.
    pub id: u64,
    /// Name of the device when it joined.
    pub name: String,
    /// Its statistics. `None`: it is not attached.
    pub stats: Option<CacheDeviceStats>,
}

/// Minimum zones of a cache device: its head, and a ring.
const ZONES_MIN: u32 = HEAD_ZONES + 3;

/// Whether a device holds this cache of this pool.
///
/// # Errors
/// When the device cannot be read.
pub fn is_cache_of(device: &dyn Device, pool: u64, cache: u64) -> Result<bool, DeviceError> {
    let mut raw = AlignedBuf::new();
    raw.prepare(device.info().write_unit as usize);
    device.read(ZoneIdx(0), 0, &mut raw)?;
    Ok(CacheHead::parse(&raw).is_some_and(|head| (head.pool, head.cache) == (pool, cache)))
}

impl Pool {
    /// Empties the device and makes it a cache device of the pool (an L2ARC device, in ZFS terms). Returns
    /// its id.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` if the device is too small, or there are too many; `Failed` if the label could
    /// not be written.
    pub fn add_cache(self: &Arc<Self>, device: Arc<dyn Device>) -> Result<u64, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let info = device.info().clone();
        check_zones(device.as_ref(), ZONES_MIN)?;
        self.refuse_surplus_cache()?;
        let id = random_id(self.env.as_ref());
        let mut head =
            AlignedBuf::from(CacheHead::of(self.store.pool, id, &cache_geometry(&info)).encode().as_slice());
        head.resize(info.write_unit as usize);
        let first = ZoneIdx(0);
        device.reset(first)?;
        device.write(first, 0, &head)?;
        device.finish(first)?;
        device.flush()?;
        {
            let mut st = self.sync.lock();
            self.reports.check_running()?;
            // Another one may have joined meanwhile.
            self.refuse_surplus_cache()?;
            {
                let mut label = self.membership.label_mut();
                label.features.enable(Feature::Caches);
                label.generation += 1;
                let mut row = CacheRow { cache: id, zone_size: info.zone_size, name: String::new() };
                row.set_name(&info.name);
                label.caches.push(row);
            }
            self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
            self.membership.put_in_force(std::iter::once(Feature::Caches));
        }
        self.use_cache(device, id);
        log::info!("pool {}: cache device {id:016x} added: {}", self.name(), info.name);
        Ok(id)
    }

    /// Metadata of a far pool goes to its cache devices at once, so that it is near also after the next import.
    fn use_cache(&self, device: Arc<dyn Device>, id: u64) {
        self.reader.cache.keep_metadata(self.is_far());
        self.reader.use_cache_device(device, id);
    }

    fn refuse_surplus_cache(&self) -> Result<(), PoolError> {
        if self.label().caches.len() < CACHES_MAX {
            return Ok(());
        }
        let (at, expected) = (format!("pool {}", self.name()), format!("at most {CACHES_MAX} cache devices"));
        Err(PoolError::refused(at, expected, "that many already", "remove a cache device first"))
    }

    /// Attaches a cache device that the label names. Its content is looked up in the background, or now if
    /// the pool has no threads.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` if the device is no cache device of this pool.
    pub fn attach_cache(self: &Arc<Self>, device: Arc<dyn Device>) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let info = device.info();
        let mut raw = AlignedBuf::new();
        raw.prepare(info.write_unit as usize);
        device.read(ZoneIdx(0), 0, &mut raw)?;
        let head = CacheHead::parse(&raw).filter(|head| head.pool == self.store.pool);
        let rows = self.label().caches;
        let known = head.filter(|head| rows.iter().any(|row| row.cache == head.cache));
        let same = |head: &CacheHead| {
            head.zone_size == info.zone_size
                && head.zone_count <= info.zone_count
                && head.write_unit >= info.write_unit
        };
        let Some(head) = known.filter(same) else {
            return Err(PoolError::refused(
                &info.name,
                format_args!("a cache device of pool {}", self.name()),
                "another device",
                "add it with `terrane pool add`, or leave it out",
            ));
        };
        if !self.reader.cache_devices.has(head.cache) {
            self.use_cache(device, head.cache);
        }
        Ok(())
    }

    /// Removes a cache device. Only its cached copies are lost.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` if no cache device has this id.
    pub fn remove_cache(&self, id: u64) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let mut st = self.sync.lock();
        self.reports.check_running()?;
        {
            let mut label = self.membership.label_mut();
            let before = label.caches.len();
            label.caches.retain(|row| row.cache != id);
            if label.caches.len() == before {
                let remedy = "see `terrane pool status`";
                let at = format!("pool {}", label.name);
                return Err(PoolError::refused(
                    at,
                    "one of its cache devices",
                    format_args!("{id:016x}"),
                    remedy,
                ));
            }
            label.generation += 1;
        }
        self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
        drop(st);
        let dropped = self.reader.drop_cache_device(id);
        if let Some(dropped) = dropped {
            // The feeding thread may be in the middle of a batch: this waits for it.
            dropped.detach();
            let device = dropped.device();
            let wiped = device.reset(ZoneIdx(0)).and_then(|()| {
                // A reset may leave all bytes unchanged, so the head is overwritten as well.
                let zeros = AlignedBuf::from(vec![0; device.info().write_unit as usize].as_slice());
                if device.info().hardware_pointers { Ok(()) } else { device.write(ZoneIdx(0), 0, &zeros) }
            });
            if let Err(error) = wiped {
                log::warn!("{}: wiping the cache head failed: {error}", device.info().name);
            }
            device.unlock();
        }
        log::info!("pool {}: cache device {id:016x} removed", self.name());
        Ok(())
    }

    /// The cache devices that the label names.
    pub fn caches(&self) -> Vec<CacheDeviceStatus> {
        let used = self.reader.cache_devices.all();
        let device = |row: CacheRow| CacheDeviceStatus {
            id: row.cache,
            name: row.name,
            stats: used.iter().find(|cache| cache.id == row.cache).map(|cache| cache.stats()),
        };
        self.label().caches.into_iter().map(device).collect()
    }

    /// Writes evicted blocks to the cache devices, as fast as their limits allow. Threads of the pool call
    /// this; without threads, the caller does.
    pub fn feed_caches(&self) {
        self.reader.feed_cache_devices();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, ImportOptions};
    use terrane_device::{SimConfig, SimDevice};
    use terrane_store::env::SeededEnv;

    fn sim(zone_count: u32) -> Arc<dyn Device> {
        Arc::new(
            SimDevice::new(SimConfig { zone_count, zone_size: 1 << 20, ..SimConfig::default() }).unwrap(),
        )
    }

    fn import(devices: &[Arc<dyn Device>]) -> Arc<Pool> {
        Pool::import(devices.to_vec(), Arc::new(SeededEnv::new(3)), &ImportOptions::default()).unwrap()
    }

    #[test]
    fn a_pool_finds_its_cache_again_and_does_without() {
        let (main, fast, other) = (sim(64), sim(8), sim(8));
        let (create, options) = (CreateOptions::named("levels"), ImportOptions::default());
        let env = Arc::new(SeededEnv::new(1));
        let pool = Pool::create(vec![main.clone()], &create, env, &options).unwrap();
        let id = pool.add_cache(fast.clone()).unwrap();
        assert!(pool.caches()[0].stats.is_some());
        pool.export().unwrap();
        drop(pool);

        let pool = import(std::slice::from_ref(&main));
        assert!(pool.caches()[0].id == id && pool.caches()[0].stats.is_none(), "it is missed");
        assert!(pool.attach_cache(other.clone()).is_err());
        pool.attach_cache(fast.clone()).unwrap();
        pool.attach_cache(fast.clone()).unwrap();
        assert_eq!(pool.caches().len(), 1);
        pool.remove_cache(id).unwrap();
        assert!(pool.remove_cache(id).is_err() && pool.caches().is_empty());
        assert!(pool.attach_cache(fast.clone()).is_err());
        // A missing cache device can be removed as well.
        let id = pool.add_cache(other).unwrap();
        pool.export().unwrap();
        drop(pool);
        let pool = import(&[main]);
        pool.remove_cache(id).unwrap();
        pool.export().unwrap();
    }
}
