//! The cache devices in use: block lookup, and the thread that feeds them.

use crate::l2cache::{CacheDevice, FEED_RATE, INDEX_DIVISOR};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use terrane_cache::blocks::Packed;
use terrane_device::Device;
use terrane_format::block_ptr::Key;
use terrane_format::cache_device::CacheExtent;

/// Interval between two feeds.
pub const PERIOD: Duration = Duration::from_millis(100);

/// The attached cache devices, and the thread that feeds them.
pub struct CacheDevices {
    pool: u64,
    devices: RwLock<Vec<Arc<CacheDevice>>>,
    feeder: Mutex<Option<JoinHandle<()>>>,
}

impl CacheDevices {
    /// No devices yet. `pool` is the pool's id.
    pub fn new(pool: u64) -> CacheDevices {
        CacheDevices { pool, devices: RwLock::default(), feeder: Mutex::default() }
    }

    /// The attached devices, in the order in which they were attached.
    pub fn all(&self) -> Vec<Arc<CacheDevice>> {
        self.devices.read().clone()
    }

    /// Whether the cache device of this id is attached.
    pub fn has(&self, id: u64) -> bool {
        self.devices.read().iter().any(|device| device.id == id)
    }

    /// Attaches a device. Its index takes its share of the cache's memory.
    pub(crate) fn push(&self, device: Arc<dyn Device>, id: u64, cache_bytes: usize) -> Arc<CacheDevice> {
        let cache = Arc::new(CacheDevice::new(device, (self.pool, id), cache_bytes / INDEX_DIVISOR));
        self.devices.write().push(cache.clone());
        cache
    }

    /// Detaches a device. `is_wanted` is called under the lock with whether any device is left.
    pub(crate) fn remove(&self, id: u64, is_wanted: impl FnOnce(bool)) -> Option<Arc<CacheDevice>> {
        let mut devices = self.devices.write();
        let at = devices.iter().position(|device| device.id == id);
        let detached = at.map(|at| devices.remove(at));
        is_wanted(!devices.is_empty());
        detached
    }

    /// The device and place of a block, if a cache device has it.
    pub(crate) fn find(&self, key: Key) -> Option<(Arc<CacheDevice>, CacheExtent)> {
        self.devices.read().iter().find_map(|device| Some((device.clone(), device.find(key)?)))
    }

    /// Drops a freed block from all indexes.
    pub(crate) fn forget(&self, key: Key) {
        self.devices.read().iter().for_each(|device| device.forget(key));
    }

    /// Applies a new bound of the cache's memory to the indexes.
    pub fn bound_indexes(&self, cache_bytes: usize) {
        self.devices.read().iter().for_each(|device| device.bound_index(cache_bytes / INDEX_DIVISOR));
    }

    /// Distributes blocks over the devices by address, at the feed rate.
    pub(crate) fn feed(&self, take: impl FnOnce() -> Vec<(Key, Packed)>, now_ns: impl FnOnce() -> u64) {
        let devices: Vec<_> =
            self.devices.read().iter().filter(|device| device.is_loaded()).cloned().collect();
        let blocks = take();
        if devices.is_empty() || blocks.is_empty() {
            return;
        }
        let now_ns = now_ns();
        let count = devices.len();
        let mut shares = vec![Vec::new(); count];
        for (key, packed) in blocks {
            shares[(key.addr.raw() ^ key.addr.raw() >> 16) as usize % count].push((key, packed));
        }
        for (device, share) in devices.iter().zip(shares) {
            device.feed(share, now_ns, FEED_RATE);
        }
    }

    /// Builds the indexes of the devices that were attached lately.
    pub(crate) fn load(&self) {
        let devices = self.all();
        devices.iter().filter(|device| !device.is_loaded()).for_each(|device| device.load());
    }

    /// Starts the feeder thread, if it does not run.
    pub(crate) fn start_feeder(&self, feed: impl FnOnce() + Send + 'static) {
        let mut feeder = self.feeder.lock();
        if feeder.is_some() {
            return;
        }
        match std::thread::Builder::new().name("terrane-cache".into()).spawn(feed) {
            Ok(thread) => *feeder = Some(thread),
            Err(error) => log::warn!("cache devices disabled: {error}"),
        }
    }

    /// Waits for the feeder thread, which must have been told to end, and detaches all devices.
    pub(crate) fn stop(&self) {
        if let Some(feeder) = self.feeder.lock().take() {
            feeder.thread().unpark();
            // The feeder may be the thread that drops the last reference to the pool. It cannot join itself.
            if feeder.thread().id() != std::thread::current().id() {
                let _ = feeder.join();
            }
        }
        self.devices.write().clear();
    }
}
