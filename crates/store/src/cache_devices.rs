//! The cache devices in use: block lookup, and the thread that feeds them.

use crate::second::{FEED_RATE, INDEX_DIVISOR, SecondLevel};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use terrane_cache::blocks::Packed;
use terrane_device::Device;
use terrane_format::block_ptr::Key;
use terrane_format::cache_device::Spot;

/// Interval between two feeds.
pub const PERIOD: Duration = Duration::from_millis(100);

/// The attached cache devices, and the thread that feeds them.
pub struct CacheDevices {
    pool: u64,
    levels: RwLock<Vec<Arc<SecondLevel>>>,
    feeder: Mutex<Option<JoinHandle<()>>>,
}

impl CacheDevices {
    pub fn new(pool: u64) -> CacheDevices {
        CacheDevices { pool, levels: RwLock::default(), feeder: Mutex::default() }
    }

    pub fn all(&self) -> Vec<Arc<SecondLevel>> {
        self.levels.read().clone()
    }

    pub fn has(&self, id: u64) -> bool {
        self.levels.read().iter().any(|level| level.id == id)
    }

    /// Attaches a device. Its index takes its share of the cache's memory.
    pub(crate) fn push(&self, device: Arc<dyn Device>, id: u64, cache_bytes: usize) -> Arc<SecondLevel> {
        let level = Arc::new(SecondLevel::new(device, (self.pool, id), cache_bytes / INDEX_DIVISOR));
        self.levels.write().push(level.clone());
        level
    }

    /// Detaches a device. `is_wanted` is called under the lock with whether any device is left.
    pub(crate) fn remove(&self, id: u64, is_wanted: impl FnOnce(bool)) -> Option<Arc<SecondLevel>> {
        let mut levels = self.levels.write();
        let at = levels.iter().position(|level| level.id == id);
        let gone = at.map(|at| levels.remove(at));
        is_wanted(!levels.is_empty());
        gone
    }

    /// The device and place of a block, if a cache device has it.
    pub(crate) fn find(&self, key: Key) -> Option<(Arc<SecondLevel>, Spot)> {
        self.levels.read().iter().find_map(|level| Some((level.clone(), level.find(key)?)))
    }

    /// Drops a freed block from all indexes.
    pub(crate) fn forget(&self, key: Key) {
        self.levels.read().iter().for_each(|level| level.forget(key));
    }

    /// Applies a new bound of the cache's memory to the indexes.
    pub fn bound_indexes(&self, cache_bytes: usize) {
        self.levels.read().iter().for_each(|level| level.bound_index(cache_bytes / INDEX_DIVISOR));
    }

    /// Distributes blocks over the devices by address, at the feed rate.
    pub(crate) fn feed(&self, take: impl FnOnce() -> Vec<(Key, Packed)>, now_ns: impl FnOnce() -> u64) {
        let levels: Vec<_> = self.levels.read().iter().filter(|level| level.is_loaded()).cloned().collect();
        let blocks = take();
        if levels.is_empty() || blocks.is_empty() {
            return;
        }
        let now_ns = now_ns();
        let count = levels.len();
        let mut shares = vec![Vec::new(); count];
        for (key, packed) in blocks {
            shares[(key.addr.raw() ^ key.addr.raw() >> 16) as usize % count].push((key, packed));
        }
        for (level, share) in levels.iter().zip(shares) {
            level.feed(share, now_ns, FEED_RATE);
        }
    }

    /// Builds the indexes of the devices that were attached lately.
    pub(crate) fn load(&self) {
        let levels = self.all();
        levels.iter().filter(|level| !level.is_loaded()).for_each(|level| level.load());
    }

    /// Starts the feeder thread, if it does not run.
    pub(crate) fn start_feeder(&self, feed: impl FnOnce() + Send + 'static) {
        let mut feeder = self.feeder.lock();
        if feeder.is_some() {
            return;
        }
        match std::thread::Builder::new().name("terrane-cache".into()).spawn(feed) {
            Ok(thread) => *feeder = Some(thread),
            Err(error) => log::warn!("cache devices are not used: {error}"),
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
        self.levels.write().clear();
    }
}
