//! CPU time, to the nanosecond.

use rustix::time::{ClockId, clock_gettime};

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// CPU time of this thread, in nanoseconds.
pub fn own_cpu_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

#[allow(dead_code, reason = "not every benchmark has threads")]
/// CPU time of all threads of this process, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    read_ns(ClockId::ProcessCPUTime)
}
