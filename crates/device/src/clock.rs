//! Clocks in nanoseconds, mostly without a system call.
//!
//! Each access to a device is timed. On some machines (some virtual ones, user-mode Linux) the kernel's clock cannot
//! be read from user space, so each reading is a system call. These were a third of all calls of the server. So a
//! thread counts with the processor's time stamp counter, and asks the kernel again every `RESYNC_NS`. If the counter
//! stops or changes its rate, no more than that is wrong.

#![expect(unsafe_code, reason = "the time stamp counter has no safe face in std")]

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds for which a thread trusts its counter.
const RESYNC_NS: u64 = 250_000_000;
/// Minimum time over which a rate is measured, in nanoseconds.
const RATE_WINDOW_NS: u64 = 10_000_000;

#[derive(Clone, Copy)]
struct ClockSample {
    ticks: u64,
    ns: u64,
    /// Nanoseconds per tick; 0 if not known yet.
    ns_per_tick: f64,
}

thread_local! {
    static SAMPLE: Cell<Option<ClockSample>> = const { Cell::new(None) };
}

/// Nanoseconds since the process first asked, for durations. Two threads may differ by `READ_GAP_NS_MAX`, and a reading
/// may be that much before the one before it.
pub fn monotonic_ns() -> u64 {
    let Some(ticks) = ticks() else { return kernel_ns() };
    let sample = SAMPLE.get();
    if let Some(ns) = sample.and_then(|sample| sample.ns_at(ticks)) {
        return ns;
    }
    let ns = kernel_ns();
    let next = ClockSample::next(sample, ticks, ns);
    if self::ticks().is_some_and(|now| next.is_prompt(now)) {
        SAMPLE.set(Some(next));
    }
    ns
}

/// Processor time of the calling thread in nanoseconds, since it began. A system call.
pub fn thread_ns() -> u64 {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).map_or(0, |time| time.as_nanos() as u64)
}

/// Nanoseconds since 1970. It follows a change of the system clock after `RESYNC_NS` at the latest. In all threads,
/// time never runs backwards, except when the system clock is set back: a later object is not older.
pub fn wall_ns() -> u64 {
    thread_local! {
        /// The wall clock's offset from [`monotonic_ns`], and the time of its measurement.
        static WALL_OFFSET: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    }
    static NEWEST: AtomicU64 = AtomicU64::new(0);
    let now = monotonic_ns();
    let known =
        WALL_OFFSET.get().filter(|(_, at)| now.checked_sub(*at).is_some_and(|passed| passed < RESYNC_NS));
    if let Some((lead, _)) = known
        && let Some(ns) = clamp_to_newest(&NEWEST, now.saturating_add(lead))
    {
        return ns;
    }
    // No offset is known, or other threads returned a time that seems to be in the future: the kernel decides.
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let is_close = monotonic_ns().saturating_sub(now) < READ_GAP_NS_MAX;
    WALL_OFFSET.set(is_close.then(|| (wall.saturating_sub(now), now)));
    clamp_to_newest(&NEWEST, wall).unwrap_or_else(|| {
        NEWEST.store(wall, Ordering::Relaxed);
        wall
    })
}

/// If a thread loses the processor between two clock readings for longer than this, in nanoseconds, it does not use
/// that pair of readings. An expensive system call must not look like that. In user-mode Linux one takes 50 to 100
/// us, and a thread that accepted none would ask each time.
const READ_GAP_NS_MAX: u64 = RESYNC_NS / 1_000;
/// Nanoseconds by which the counters of threads may differ. A reading that is less behind does not mean that the
/// clock was set back.
const THREAD_SKEW_NS: u64 = 1_000_000;

/// `ns`, or the newest time returned to any thread if `ns` is only just before it. `None` if `ns` is long before it.
fn clamp_to_newest(newest: &AtomicU64, ns: u64) -> Option<u64> {
    let last = newest.fetch_max(ns, Ordering::Relaxed);
    (last < ns.saturating_add(THREAD_SKEW_NS)).then_some(last.max(ns))
}

fn kernel_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl ClockSample {
    fn elapsed_ns(self, ticks: u64) -> f64 {
        ticks.wrapping_sub(self.ticks) as f64 * self.ns_per_tick
    }

    /// Whether the kernel answered soon enough, at tick `now`. Else the thread lost the processor in between, and
    /// counter and answer belong to different moments.
    fn is_prompt(self, now: u64) -> bool {
        self.ns_per_tick == 0.0 || self.elapsed_ns(now) < READ_GAP_NS_MAX as f64
    }

    /// The time by the counter, if it can be trusted.
    fn ns_at(self, ticks: u64) -> Option<u64> {
        let passed = ticks.checked_sub(self.ticks)? as f64 * self.ns_per_tick;
        (self.ns_per_tick > 0.0 && passed < RESYNC_NS as f64).then_some(self.ns + passed as u64)
    }

    /// The next sample, after the kernel was asked.
    fn next(last: Option<ClockSample>, ticks: u64, ns: u64) -> ClockSample {
        let begin = ClockSample { ticks, ns, ns_per_tick: 0.0 };
        let Some(last) = last else { return begin };
        match (ticks.checked_sub(last.ticks), ns.checked_sub(last.ns)) {
            (Some(passed), Some(took)) if passed > 0 && took >= RATE_WINDOW_NS => {
                ClockSample { ns_per_tick: took as f64 / passed as f64, ..begin }
            }
            // Too short to measure a rate.
            (Some(_), Some(_)) if last.ns_per_tick == 0.0 => last,
            _ => begin,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction; it reads a counter, and touches no memory.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_extrapolates_between_kernel_reads() {
        let ms = |ms: u64| ms * 1_000_000;
        let first = ClockSample::next(None, 1_000, 0);
        assert_eq!(first.ns_at(2_000), None, "no pace yet");
        let first = ClockSample::next(Some(first), 2_000, ms(1));
        assert_eq!((first.ticks, first.ns), (1_000, 0), "too short for a pace");
        // Three ticks per microsecond.
        let sample = ClockSample::next(Some(first), 1_000 + 30_000, ms(10));
        assert_eq!(sample.ns_at(31_000 + 15_000), Some(ms(15)));
        assert_eq!(sample.ns_at(31_000 + 750_000), None, "trusted for 250 ms");
        assert_eq!(sample.ns_at(30_000), None, "the counter went back");
        // The counter stopped, or ran wild, and its rate is measured again.
        let slow = ClockSample::next(Some(sample), 31_000 + 30_000, ms(30));
        assert_eq!(slow.ns_at(61_000 + 1_500), Some(ms(31)));
        assert_eq!(ClockSample::next(Some(slow), 10, ms(60)).ns_per_tick, 0.0);
        assert_eq!(ClockSample::next(Some(slow), 61_000, ms(60)).ns_per_tick, 0.0);
    }

    #[test]
    fn a_slow_clock_read_is_accepted_and_a_preempted_one_is_not() {
        // One tick per nanosecond.
        let sample = ClockSample { ticks: 1_000, ns: 0, ns_per_tick: 1.0 };
        assert!(sample.is_prompt(1_000 + 100_000), "user-mode Linux answers in as long");
        assert!(!sample.is_prompt(1_000 + 1_000_000), "others had the processor");
        assert!(
            ClockSample { ns_per_tick: 0.0, ..sample }.is_prompt(u64::MAX),
            "nothing tells how long it took"
        );
    }

    #[test]
    fn a_sleeping_thread_uses_no_processor_time() {
        let (real, own) = (Instant::now(), thread_ns());
        std::thread::sleep(std::time::Duration::from_millis(50));
        let slept = thread_ns() - own;
        assert!(slept < 25_000_000, "{slept}");
        let mut state = 1u64;
        while thread_ns() - own < slept + 5_000_000 {
            state = std::hint::black_box(state.wrapping_mul(3));
        }
        assert!(thread_ns() - own <= real.elapsed().as_nanos() as u64);
    }

    #[test]
    fn agrees_with_the_kernel() {
        let (real, clock) = (Instant::now(), monotonic_ns());
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_millis(7));
            for _ in 0..100 {
                let (ours, theirs) = (monotonic_ns() - clock, real.elapsed().as_nanos() as u64);
                // A thread that is interrupted between two readings sees them apart, but the kernel's always later.
                assert!(ours < theirs + theirs / 10 + 1_000_000, "{ours} {theirs}");
            }
        }
        assert!(monotonic_ns() - clock >= 60_000_000);
    }

    #[test]
    fn the_wall_clock_goes_back_only_when_it_is_set() {
        let newest = AtomicU64::new(0);
        assert_eq!(clamp_to_newest(&newest, 5_000_000), Some(5_000_000));
        assert_eq!(clamp_to_newest(&newest, 4_999_000), Some(5_000_000), "another thread, a little behind");
        assert_eq!(
            clamp_to_newest(&newest, 3_000_000),
            None,
            "set back, or what the newest was told is wrong"
        );
        assert_eq!(clamp_to_newest(&newest, 5_000_001), Some(5_000_001));
    }

    #[test]
    fn the_wall_clock_is_the_kernels() {
        let kernels = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        for _ in 0..40 {
            std::thread::sleep(std::time::Duration::from_millis(7));
            let (before, ours, after) = (kernels(), wall_ns(), kernels());
            assert!(ours + 1_000_000 >= before && ours <= after + 1_000_000, "{before} {ours} {after}");
        }
    }
}
