//! Cache devices join a pool, are found again, and leave it.
//!
//! The label names them, so that an import knows whom to look for; nothing else in the pool does. One that is not there is missed, not
//! needed.

use crate::create::fresh_id;
use crate::pool::Pool;
use crate::state::second::{FEED_RATE, HEAD_ZONES, INDEX_DIVISOR, SecondLevel, SecondStats, cache_geometry};
use std::sync::Arc;
use std::time::Duration;
use terrane_device::{AlignedBuf, Device, DeviceError};
use terrane_format::cache_device::CacheHead;
use terrane_format::features::Feature;
use terrane_format::label::{CACHES_MAX, CacheRow};
use terrane_store::PoolError;
use terrane_store::devices::smallest_capacity;
use terrane_wire::ZoneIdx;

/// A cache device as the label has it, and what it does if it is there.
#[derive(Clone, Debug)]
pub struct CacheDevice {
    pub id: u64,
    /// What it was called when it joined.
    pub name: String,
    pub stats: Option<SecondStats>,
}

/// The fewest zones of a cache device: its head, and a ring.
const ZONES_MIN: u32 = HEAD_ZONES + 3;
/// Devices are fed so often.
const PERIOD: Duration = Duration::from_millis(100);

/// Whether a device holds the cache of this id of a pool.
///
/// # Errors
/// When it cannot be read.
pub fn is_cache_of(device: &dyn Device, pool: u64, cache: u64) -> Result<bool, DeviceError> {
    let mut raw = AlignedBuf::new();
    raw.prepare(device.info().write_unit as usize);
    device.read(ZoneIdx(0), 0, &mut raw)?;
    Ok(CacheHead::parse(&raw).is_some_and(|head| (head.pool, head.cache) == (pool, cache)))
}

impl Pool {
    /// Makes the device, which is emptied, a second level of the cache. Returns its id.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` for one that is too small, or when there are too many; `Failed` when the label could not be written.
    pub fn add_cache(self: &Arc<Self>, device: Arc<dyn Device>) -> Result<u64, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let info = device.info().clone();
        let capacity = smallest_capacity(device.as_ref());
        if info.zone_count < ZONES_MIN || capacity < 1 << 20 || info.zone_size > 1 << 32 {
            return Err(PoolError::refused(
                &info.name,
                format_args!("at least {ZONES_MIN} zones of 1 MiB to 4 GiB"),
                format_args!("{} zones, of which one takes {capacity} bytes", info.zone_count),
                "give it more space, or other zones",
            ));
        }
        if self.label().caches.len() >= CACHES_MAX {
            let (expected, remedy) = (format!("at most {CACHES_MAX} cache devices"), "remove one first");
            return Err(PoolError::refused(
                format_args!("pool {}", self.name()),
                expected,
                "as many",
                remedy,
            ));
        }
        let id = fresh_id(self.env.as_ref());
        let mut head =
            AlignedBuf::from(CacheHead::of(self.pool_id, id, &cache_geometry(&info)).encode().as_slice());
        head.resize(info.write_unit as usize);
        let first = ZoneIdx(0);
        device.reset(first)?;
        device.write(first, 0, &head)?;
        device.finish(first)?;
        device.flush()?;
        {
            let mut st = self.sync.lock();
            self.alive()?;
            {
                let mut label = self.label.lock();
                label.features.add(Feature::Caches);
                label.generation += 1;
                let mut row = CacheRow { cache: id, zone_size: info.zone_size, name: String::new() };
                row.call(&info.name);
                label.caches.push(row);
            }
            self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
            self.in_force.add(std::iter::once(Feature::Caches));
        }
        self.use_cache(device, id);
        log::info!("pool {}: cache device {id:016x} was added: {}", self.name(), info.name);
        Ok(id)
    }

    /// Uses a cache device that the label names. What it holds is looked up in the background; where the pool has no threads, now.
    ///
    /// # Errors
    /// `Refused` when it is none of this pool's.
    pub fn attach_cache(self: &Arc<Self>, device: Arc<dyn Device>) -> Result<(), PoolError> {
        let info = device.info();
        let mut raw = AlignedBuf::new();
        raw.prepare(info.write_unit as usize);
        device.read(ZoneIdx(0), 0, &mut raw)?;
        let head = CacheHead::parse(&raw).filter(|head| head.pool == self.pool_id);
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
        if !self.caches.read().iter().any(|cache| cache.id == head.cache) {
            self.use_cache(device, head.cache);
        }
        Ok(())
    }

    fn use_cache(self: &Arc<Self>, device: Arc<dyn Device>, id: u64) {
        let index_bytes = self.cache.budget() / INDEX_DIVISOR;
        let cache = Arc::new(SecondLevel::new(device, (self.pool_id, id), index_bytes));
        self.caches.write().push(cache.clone());
        self.cache.keep_leaving(true);
        if self.threaded() {
            self.start_feeder();
        } else {
            cache.load();
        }
    }

    /// Lets go of a cache device; what it holds is lost, and nothing else.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` when there is none of this id.
    pub fn remove_cache(&self, id: u64) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let mut st = self.sync.lock();
        self.alive()?;
        {
            let mut label = self.label.lock();
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
        let gone = {
            let mut caches = self.caches.write();
            let at = caches.iter().position(|cache| cache.id == id);
            let gone = at.map(|at| caches.remove(at));
            self.cache.keep_leaving(!caches.is_empty());
            gone
        };
        if let Some(gone) = gone {
            // Who feeds it may be in the middle of a batch.
            gone.let_go();
            let device = gone.device();
            let wiped = device.reset(ZoneIdx(0)).and_then(|()| {
                // A reset need not have changed a byte.
                let zeros = AlignedBuf::from(vec![0; device.info().write_unit as usize].as_slice());
                if device.info().hardware_pointers { Ok(()) } else { device.write(ZoneIdx(0), 0, &zeros) }
            });
            if let Err(error) = wiped {
                log::warn!("{}: its head could not be wiped: {error}", device.info().name);
            }
            device.unlock();
        }
        log::info!("pool {}: cache device {id:016x} was removed", self.name());
        Ok(())
    }

    /// The cache devices that the label names.
    pub fn caches(&self) -> Vec<CacheDevice> {
        let used = self.caches.read().clone();
        let device = |row: CacheRow| CacheDevice {
            id: row.cache,
            name: row.name,
            stats: used.iter().find(|cache| cache.id == row.cache).map(|cache| cache.stats()),
        };
        self.label().caches.into_iter().map(device).collect()
    }

    /// Writes what had to leave memory to the cache devices, as fast as they may be fed. Threads of the pool do that; one without
    /// threads is told when.
    pub fn feed_caches(&self) {
        let caches: Vec<_> = self.caches.read().iter().filter(|cache| cache.is_loaded()).cloned().collect();
        let blocks = self.cache.take_leaving();
        if caches.is_empty() || blocks.is_empty() {
            return;
        }
        let now_ns = self.env.monotonic_ns();
        let count = caches.len();
        let mut shares = vec![Vec::new(); count];
        for (key, packed) in blocks {
            shares[(key.addr.raw() ^ key.addr.raw() >> 16) as usize % count].push((key, packed));
        }
        for (cache, share) in caches.iter().zip(shares) {
            cache.feed(share, now_ns, FEED_RATE);
        }
    }

    fn start_feeder(self: &Arc<Self>) {
        let mut feeder = self.feeder.lock();
        if feeder.is_some() {
            return;
        }
        let pool = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("terrane-cache".into()).spawn(move || {
            while let Some(pool) = pool.upgrade().filter(|pool| pool.failed.get().is_none()) {
                let caches = pool.caches.read().clone();
                caches.iter().filter(|cache| !cache.is_loaded()).for_each(|cache| cache.load());
                pool.feed_caches();
                drop((caches, pool));
                std::thread::park_timeout(PERIOD);
            }
        });
        match thread {
            Ok(thread) => *feeder = Some(thread),
            Err(error) => log::warn!("cache devices are not used: {error}"),
        }
    }

    /// Devices are free when this has returned.
    pub(crate) fn stop_caches(&self) {
        self.cache.keep_leaving(false);
        if let Some(feeder) = self.feeder.lock().take() {
            feeder.thread().unpark();
            // It may be the one that drops the last reference to the pool; it cannot wait for itself.
            if feeder.thread().id() != std::thread::current().id() {
                let _ = feeder.join();
            }
        }
        self.caches.write().clear();
    }
}
