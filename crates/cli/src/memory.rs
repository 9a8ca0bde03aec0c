//! One number bounds the memory of a daemon.
//!
//! Of `--memory` half is for cached blocks, a quarter for dirty data, an eighth for inodes, a 16th for the
//! tables of zones, a 32nd for the indexes of directories. The rest is for requests in progress and blocks
//! being compressed. These shares bound what is counted. Each mounted data set gets an equal share for inodes and indexes.
//!
//! Other memory, such as the heap's fragmentation and what the kernel makes us remember of a million names,
//! shows only in the resident size. So a thread checks that size four times a second. Near the limit it
//! returns free memory to the kernel, and shrinks the cache if that is not enough. When memory is available
//! again the cache grows back. The cache also shrinks by steps while programs of the machine or of our cgroup
//! wait for memory (`/proc/pressure/memory`), whatever our own limit is.
//!
//! The number can change while the pool is mounted ([`MemoryLimit::change`]): shares follow at once, and what
//! exceeds a smaller one is freed.
//!
//! Invariant: the cache's limit stays between [`FLOOR_DIVISOR`]'s share and half of the memory.

use crate::cgroup::Cgroup;
use crate::failure::Outcome;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrane_fuse::mount::THREADS_DEFAULT;
use terrane_pool::{ImportOptions, MemoryBounds, Pool};
use terrane_posix::Fs;

/// The smallest limit that is accepted: buffers for requests take a part of it.
pub const BYTES_MIN: u64 = 128 << 20;
/// Bounds of [`MemoryBudget::ring_bytes`].
const RING_BYTES_LEAST: usize = 16 << 20;
const RING_BYTES_MOST: usize = 128 << 20;
/// The same if a commit takes several requests to an object store: then each should hold more.
const RING_BYTES_MOST_FAR: usize = 512 << 20;
/// What each thread of a mount reads a request into.
const REQUEST_BUFFER_BYTES: u64 = 1 << 20;
/// Fewest threads of a mount without the option `threads`.
const THREADS_LEAST: usize = 8;
/// Larger than any machine, and sums of it fit 64 bits.
const BYTES_MAX: u64 = 1 << 50;
/// Maximum of the default.
const DEFAULT_MAX: u64 = 4 << 30;
/// An inode in memory, with its dnode and its locks.
const INODE_BYTES: u64 = 2 << 10;
/// The cache keeps at least this fraction of the memory, however little is left.
const FLOOR_DIVISOR: u64 = 32;
const PERIOD: Duration = Duration::from_millis(250);
/// Percent of the last ten seconds in which some program waited for memory: above the first the cache
/// shrinks, below the second it may grow again.
const PRESSURE_HIGH: f64 = 10.0;
const PRESSURE_LOW: f64 = 1.0;
/// The fraction that it gives up at each check, four times a second.
const YIELD_DIVISOR: u64 = 32;

/// The memory limit of a daemon, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget(u64);

impl MemoryBudget {
    /// The limit asked for, at most [`BYTES_MAX`].
    pub fn of(bytes: u64) -> MemoryBudget {
        MemoryBudget(bytes.min(BYTES_MAX))
    }

    pub fn bytes(self) -> u64 {
        self.0
    }

    /// An eighth of this machine's memory; if a cgroup limits the memory of this process, at most half of
    /// that limit.
    pub fn of_this_machine() -> MemoryBudget {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = info.lines().find_map(|line| kilobytes(line, "MemTotal:"));
        MemoryBudget::by_default(total, Cgroup::of_this_process(Path::new("/")).memory_limit())
    }

    fn by_default(total: Option<u64>, limit: Option<u64>) -> MemoryBudget {
        let of_machine = total.map_or(BYTES_MIN, |total| total / 8);
        let of_limit = limit.map_or(u64::MAX, |limit| limit / 2);
        MemoryBudget(of_machine.min(of_limit).clamp(BYTES_MIN, DEFAULT_MAX))
    }

    /// Warns if the kernel may kill this process before it reaches its own limit.
    fn compare_with_cgroup(self, cgroup: &Cgroup) {
        if let Some(limit) = cgroup.memory_limit()
            && limit < self.0 + self.0 / 2
        {
            log::warn!(
                memory = self.0, limit;
                "cgroup limit too close to the memory limit of this mount, the kernel may kill the server; raise it, or lower -o memory="
            );
        }
    }

    /// Bytes of the ring in which a mount keeps changes for a successor of its server.
    pub fn ring_bytes(self, is_far: bool) -> usize {
        let most = if is_far { RING_BYTES_MOST_FAR } else { RING_BYTES_MOST };
        usize::try_from(self.0 / 8).unwrap_or(usize::MAX).clamp(RING_BYTES_LEAST, most)
    }

    /// Threads whose buffers for requests take a 32nd of the memory.
    pub fn request_threads(self) -> usize {
        usize::try_from(self.0 / 32 / REQUEST_BUFFER_BYTES).unwrap_or(usize::MAX)
    }

    fn cache_max(self) -> u64 {
        self.0 / 2
    }

    /// The limits of the pool.
    fn pool_bounds(self) -> MemoryBounds {
        MemoryBounds {
            cache_bytes: usize::try_from(self.cache_max()).unwrap_or(usize::MAX),
            dirty_bytes: self.0 / 4,
            index_bytes: self.0 / 16,
        }
    }

    pub fn apply_to_import(self, import: &mut ImportOptions) {
        let MemoryBounds { cache_bytes, dirty_bytes, index_bytes } = self.pool_bounds();
        (import.cache_bytes, import.dirty_bytes, import.index_bytes) =
            (cache_bytes, dirty_bytes, index_bytes);
    }

    /// Sets the limits of the file systems of the pool. Each gets an equal share.
    fn apply_to_file_systems(self, all: &[Arc<Fs>]) {
        let count = (all.len() as u64).max(1);
        for fs in all {
            fs.set_idle_inodes_max(usize::try_from(self.0 / 8 / INODE_BYTES / count).unwrap_or(usize::MAX));
            fs.set_index_bytes_max(usize::try_from(self.0 / 32 / count).unwrap_or(usize::MAX));
        }
    }

    /// The cache's limit that follows from the resident size, `now` being the current one.
    fn next_cache_max(self, resident: u64, now: u64) -> u64 {
        let (low, high) = (self.0 / FLOOR_DIVISOR, self.cache_max());
        // Well below the limit: between two checks a txg may compress what it holds.
        let full = self.0 / 8 * 7;
        if resident > full {
            // Below the mark, not just to it: freed memory is reused before it is returned.
            return now.saturating_sub(resident - full + self.0 / 32).clamp(low, high);
        }
        if resident < self.0 / 8 * 5 { (now + self.0 / 64).clamp(low, high) } else { now.clamp(low, high) }
    }

    /// The same where the machine as a whole may be short of memory.
    fn under_pressure(self, next: u64, now: u64, pressure: f64) -> u64 {
        if pressure >= PRESSURE_HIGH {
            return next.min(now - now / YIELD_DIVISOR).max(self.0 / FLOOR_DIVISOR);
        }
        if pressure >= PRESSURE_LOW { next.min(now) } else { next }
    }
}

/// Threads of a mount without the option `threads`, beside so many other mounts; `all` is [`MemoryBudget::request_threads`].
/// A mount serves as many callers that wait for a commit or for space as it has threads. But each takes memory, and a pool may have
/// many mounts.
pub fn threads_of_mount(all: usize, others: usize) -> usize {
    (all / (others + 1)).clamp(THREADS_LEAST, THREADS_DEFAULT)
}

fn kilobytes(line: &str, name: &str) -> Option<u64> {
    let number = line.strip_prefix(name)?.trim().strip_suffix(" kB")?;
    number.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// The percentage of the last ten seconds in which programs waited for memory. With a cgroup it is that of
/// the cgroup, whose limit the rest of the machine does not feel. 0 if the kernel does not report it.
fn pressure(of_cgroup: Option<&Path>) -> f64 {
    let files = [Some(Path::new("/proc/pressure/memory")), of_cgroup];
    let read = |path: &Path| some_avg10(&std::fs::read_to_string(path).ok()?);
    files.into_iter().flatten().filter_map(read).fold(0.0, f64::max)
}

pub fn some_avg10(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// Resident memory of this process.
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| kilobytes(line, "VmRSS:"))
}

/// The current limit of a daemon.
#[derive(Debug)]
pub struct MemoryLimit(AtomicU64);

/// The memory use of a mount, in bytes.
#[derive(Serialize)]
pub struct MemoryStatus {
    limit: u64,
    resident: Option<u64>,
    cache_limit: u64,
    cache: u64,
    cache_stored: u64,
    cache_logical: u64,
    directory_indexes: Option<usize>,
    directory_index_bytes: Option<usize>,
    dirty_limit: u64,
    dirty: u64,
}

impl MemoryLimit {
    pub fn current(&self) -> MemoryBudget {
        MemoryBudget(self.0.load(Ordering::Relaxed))
    }

    /// Sets another limit. Memory above it returns to the kernel before this call returns, except dirty data,
    /// which txgs write first.
    pub fn change(&self, memory: MemoryBudget, pool: &Pool, file_systems: &[Arc<Fs>]) {
        let before = self.0.swap(memory.0, Ordering::Relaxed);
        pool.set_bounds(memory.pool_bounds());
        memory.apply_to_file_systems(file_systems);
        if memory.0 < before {
            terrane_fuse::process::trim_heap();
        }
        log::info!(before, now = memory.0; "memory limit changed");
    }

    /// Divides the share for file systems again after a data set was mounted or unmounted.
    pub fn share_among(&self, file_systems: &[Arc<Fs>]) {
        self.current().apply_to_file_systems(file_systems);
    }

    /// For `pool status`.
    pub fn status(&self, pool: &Pool, file_systems: &[Arc<Fs>]) -> MemoryStatus {
        let stats = pool.stats();
        let sum = |of: fn(&Fs) -> usize| {
            (!file_systems.is_empty()).then(|| file_systems.iter().map(|fs| of(fs)).sum::<usize>())
        };
        MemoryStatus {
            limit: self.current().0,
            resident: resident(),
            cache_limit: stats.cache_bytes_max,
            cache: stats.cache.bytes,
            cache_stored: stats.cache.stored_bytes,
            cache_logical: stats.cache.logical_bytes,
            directory_indexes: sum(Fs::index_count),
            directory_index_bytes: sum(Fs::index_bytes),
            dirty_limit: stats.dirty_bytes_max,
            dirty: stats.dirty_bytes,
        }
    }
}

/// Keeps this process within its memory for as long as the pool exists; the limit can be changed meanwhile.
pub fn start_enforcing(
    memory: MemoryBudget,
    pool: &Arc<Pool>,
    file_systems: &[Arc<Fs>],
) -> Outcome<Arc<MemoryLimit>> {
    memory.apply_to_file_systems(file_systems);
    let cgroup = Cgroup::of_this_process(Path::new("/"));
    memory.compare_with_cgroup(&cgroup);
    let limit = Arc::new(MemoryLimit(AtomicU64::new(memory.0)));
    go_on_enforcing(&limit, pool)?;
    Ok(limit)
}

/// Keeps to a limit for as long as this pool exists: a later state of a pool that is followed.
pub fn go_on_enforcing(limit: &Arc<MemoryLimit>, pool: &Arc<Pool>) -> Outcome {
    let cgroup = Cgroup::of_this_process(Path::new("/"));
    let (pool, watched) = (Arc::downgrade(pool), Arc::clone(limit));
    std::thread::Builder::new().name("memory".into()).spawn(move || {
        enforce_limit(&watched, &pool, cgroup.pressure_file().as_deref());
    })?;
    Ok(())
}

fn enforce_limit(limit: &MemoryLimit, pool: &Weak<Pool>, pressure_file: Option<&Path>) {
    loop {
        std::thread::sleep(PERIOD);
        let Some(pool) = pool.upgrade() else { return };
        let Some(before) = resident() else {
            log::warn!(
                "memory limit not enforced: {} has no VmRSS; only cache and dirty data are limited",
                Path::new("/proc/self/status").display()
            );
            return;
        };
        let memory = limit.current();
        let (max, pressure) = (pool.cache_bytes_max() as u64, pressure(pressure_file));
        let mut next = memory.next_cache_max(before, max);
        if next < max {
            // Trimming freed memory may be enough.
            terrane_fuse::process::trim_heap();
            let after = resident().unwrap_or(before);
            next = memory.next_cache_max(after, max);
            log::debug!(resident = before, trimmed = before.saturating_sub(after), cache = next; "memory limit near, cache reduced");
        }
        next = memory.under_pressure(next, max, pressure);
        if next != max {
            pool.set_cache_bytes(usize::try_from(next).unwrap_or(usize::MAX));
            if next < max {
                terrane_fuse::process::trim_heap();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_shrinks_and_grows_with_resident_memory() {
        let memory = MemoryBudget(1 << 30);
        let max = memory.cache_max();
        assert_eq!(memory.next_cache_max(800 << 20, max), max, "there is room");
        let less = memory.next_cache_max(936 << 20, max);
        assert_eq!(less, max - (40 << 20) - (32 << 20));
        assert_eq!(memory.next_cache_max(800 << 20, less), less, "neither short nor roomy");
        assert!(memory.next_cache_max(500 << 20, less) > less);
        assert_eq!(memory.next_cache_max(8 << 30, max), (1 << 30) / FLOOR_DIVISOR, "never nothing");
        assert_eq!(memory.next_cache_max(0, max), max, "never more than its share");
        assert_eq!(memory.next_cache_max(800 << 20, 2 * max), max, "nor what a larger bound allowed");
    }

    #[test]
    fn a_mount_has_fewer_threads_where_memory_is_small_or_mounts_are_many() {
        let threads = |mebibytes: u64, others| {
            threads_of_mount(MemoryBudget::of(mebibytes << 20).request_threads(), others)
        };
        assert_eq!([128, 256, 384, 512, 4096].map(|memory| threads(memory, 0)), [8, 8, 12, 16, 16]);
        assert_eq!([0, 1, 7, 9, 99].map(|others| threads(4096, others)), [16, 16, 16, 12, 8]);
        let all: usize = (0..100).map(|others| threads(1024, others)).sum();
        assert!(all < 100 * THREADS_LEAST + 32, "{all}");
    }

    #[test]
    fn the_cache_shrinks_under_memory_pressure() {
        let text = "some avg10=12.50 avg60=3.00 avg300=0.10 total=12345\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(
            (some_avg10(text), some_avg10("full avg10=3.00"), some_avg10("")),
            (Some(12.5), None, None)
        );
        let memory = MemoryBudget(1 << 30);
        let (max, floor) = (memory.cache_max(), (1 << 30) / FLOOR_DIVISOR);
        assert_eq!(memory.under_pressure(max, max, 0.0), max);
        let mut now = max;
        for _ in 0..8 {
            now = memory.under_pressure(max, now, 12.5);
        }
        assert!(now < max * 8 / 10 && now > max / 2, "by steps: {now}");
        assert_eq!(memory.under_pressure(max, now, 5.0), now, "it does not grow before that is over");
        assert_eq!(memory.under_pressure(max, now, 0.5), max, "then it may");
        assert_eq!(memory.under_pressure(floor, floor, 90.0), floor, "never nothing");
    }

    #[test]
    fn no_bound_that_can_be_asked_for_overflows() {
        for bytes in [BYTES_MIN, 1 << 60, u64::MAX] {
            let memory = MemoryBudget::of(bytes);
            memory.compare_with_cgroup(&Cgroup::of_this_process(Path::new("/")));
            let mut import = ImportOptions::default();
            memory.apply_to_import(&mut import);
            let max = memory.cache_max();
            for (resident, now) in [(0, 0), (0, max), (u64::MAX, max), (max, max)] {
                let next = memory.next_cache_max(resident, now);
                assert!(memory.under_pressure(next, now, 50.0) <= max, "{bytes}: {resident}, {now}");
            }
        }
    }

    #[test]
    fn a_cgroup_with_less_than_the_machine_bounds_the_default() {
        let by_default =
            |total: u64, limit: Option<u64>| MemoryBudget::by_default(Some(total << 30), limit).0;
        assert_eq!(by_default(16, None), 2 << 30);
        assert_eq!(by_default(16, Some(1 << 30)), 512 << 20);
        assert_eq!(by_default(16, Some(u64::MAX)), 2 << 30);
        assert_eq!(by_default(16, Some(100 << 20)), BYTES_MIN, "less it cannot work with");
        assert_eq!(MemoryBudget::by_default(None, None).0, BYTES_MIN);
    }

    #[test]
    fn the_default_is_a_share_of_the_machine() {
        let memory = MemoryBudget::of_this_machine();
        assert!((BYTES_MIN..=DEFAULT_MAX).contains(&memory.0));
        assert!(resident().is_some_and(|bytes| bytes > 1 << 20));
        let mut import = ImportOptions::default();
        memory.apply_to_import(&mut import);
        assert!(import.cache_bytes as u64 + import.dirty_bytes <= memory.0);
    }
}
