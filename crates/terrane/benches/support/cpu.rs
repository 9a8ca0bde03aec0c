//! Processor time, to the nanosecond.

use rustix::time::{ClockId, clock_gettime};

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Nanoseconds this thread was on a processor.
pub fn own_cpu_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

#[allow(dead_code, reason = "not every benchmark has threads")]
/// Nanoseconds all threads of this process were on processors.
pub fn process_cpu_ns() -> u64 {
    read_ns(ClockId::ProcessCPUTime)
}
