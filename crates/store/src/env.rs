//! Clock, randomness and threads, injected, so that a whole pool can run from one seed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use terrane_codec::{ChecksumKind, compute};
use terrane_wire::{Prng, splitmix64};

/// What a pool needs from its environment.
pub trait Env: Send + Sync {
    /// Nanoseconds since 1970, for time stamps.
    fn wall_ns(&self) -> u64;
    /// Nanoseconds since a fixed moment, for durations.
    fn monotonic_ns(&self) -> u64;
    /// Processor time of this thread, in nanoseconds since a fixed moment.
    fn thread_ns(&self) -> u64 {
        self.monotonic_ns()
    }
    /// Random bits. A seeded environment takes them from its seed.
    fn random_u64(&self) -> u64;
    /// Minutes since midnight, 0 to 1439, in the machine's local time if it has one.
    fn minute_of_day(&self) -> u16 {
        (self.wall_ns() / 60_000_000_000 % (24 * 60)) as u16
    }
    /// A number that no other machine has. 0: unknown.
    fn host_id(&self) -> u64 {
        0
    }
    /// Pauses the calling thread. A seeded environment advances its clock instead.
    fn sleep(&self, time: Duration);
    /// For delays shorter than the usual lateness of timers. The calling thread's timers may stay exact afterwards.
    fn sleep_exactly(&self, time: Duration) {
        self.sleep(time);
    }
    /// From now on, waking the calling thread does not preempt a running thread.
    fn never_preempt(&self) {}
    /// Lowers the priority of the calling thread from now on.
    fn lower_priority(&self) {}
    /// Threads for compression and checksums. With 0, everything happens on the calling thread, commits included, so the order of calls
    /// fixes the order of all device operations.
    fn workers(&self) -> usize;
}

/// The operating system.
pub struct SystemEnv {
    workers: usize,
}

impl SystemEnv {
    /// As many workers as the machine has processors, or 2 if their number is unknown.
    #[expect(clippy::new_without_default, reason = "it looks at the machine")]
    pub fn new() -> Self {
        // Reads the time zone now: later, its file may lie on a file system that waits for this process.
        terrane_device::minute_of_day(0);
        let workers = std::thread::available_parallelism().map_or(2, |count| count.get());
        SystemEnv { workers }
    }
}

impl Env for SystemEnv {
    fn wall_ns(&self) -> u64 {
        terrane_device::wall_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        terrane_device::monotonic_ns()
    }

    fn thread_ns(&self) -> u64 {
        terrane_device::thread_ns()
    }

    fn random_u64(&self) -> u64 {
        // The standard library's random keys, mixed with a counter. Salts and pool ids must be unpredictable, not secret.
        use std::hash::{BuildHasher, Hasher};
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u64(COUNTER.fetch_add(1, Ordering::Relaxed));
        hasher.write_u64(self.wall_ns());
        hasher.finish()
    }

    fn host_id(&self) -> u64 {
        static HOST: OnceLock<u64> = OnceLock::new();
        // A hash: the text itself must not be visible to readers of a pool's device.
        let number = |text: String| {
            let sum = compute(ChecksumKind::Blake3, format!("terrane host {text}").as_bytes());
            sum.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)).max(1)
        };
        *HOST.get_or_init(|| terrane_device::machine_id().map_or(0, number))
    }

    fn minute_of_day(&self) -> u16 {
        terrane_device::minute_of_day((self.wall_ns() / 1_000_000_000) as i64)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the operating system's `Env`")]
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn sleep_exactly(&self, time: Duration) {
        terrane_device::sleep_exactly(time);
    }

    fn never_preempt(&self) {
        terrane_device::set_batch_policy();
    }

    fn lower_priority(&self) {
        terrane_device::lower_priority();
    }

    fn workers(&self) -> usize {
        self.workers
    }
}

/// An environment that follows from a seed. Each look at the clock advances it by a microsecond, and nothing runs in parallel.
pub struct SeededEnv {
    state: AtomicU64,
    clock_ns: AtomicU64,
}

impl SeededEnv {
    /// Random numbers from `seed`, and a clock that always begins at the same moment.
    pub fn new(seed: u64) -> Self {
        SeededEnv { state: AtomicU64::new(seed), clock_ns: AtomicU64::new(1_700_000_000_000_000_000) }
    }
}

impl Env for SeededEnv {
    fn wall_ns(&self) -> u64 {
        self.clock_ns.fetch_add(1000, Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.wall_ns()
    }

    fn random_u64(&self) -> u64 {
        splitmix64(self.state.fetch_add(Prng::STEP, Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.clock_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn workers(&self) -> usize {
        0
    }
}
