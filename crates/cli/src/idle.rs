//! What a mount does while it is idle: it recompresses cold files, where the property `recompress` says so.
//!
//! A mount is idle if no request came for some seconds and the machine's programs wait neither for CPUs nor
//! for disks. Then records are tried one by one, and the first request stops it. Our own I/O makes the
//! machine look busy, so pressure is measured after a pause, not meanwhile.

use crate::jobs::{RunEnd, run_job, wait_in_use};
use crate::memory::some_avg10;
use std::time::{Duration, Instant};
use terrane_pool::Pool;
use terrane_posix::Fs;

/// Without a request for this long, the mount is idle.
const QUIET: Duration = Duration::from_secs(10);
/// The share of the last ten seconds in which a task waited for a CPU or for a disk, in percent.
const PRESSURE_MAX: f64 = 5.0;
/// How long it runs before it pauses for [`QUIET`] and measures again.
const BURST: Duration = Duration::from_secs(60);
/// The pause if there was nothing to do, or a step failed.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct LoadSample {
    /// Since the last request, or our last pause.
    pub quiet: Duration,
    /// In percent; 0 if the kernel does not report it.
    pub processor_pressure: f64,
    pub disk_pressure: f64,
    /// Changes that wait for space.
    pub waiting: u64,
    /// A rewrite on request has precedence.
    pub is_rewriting: bool,
}

/// Whether the mount is idle.
pub fn is_idle(sample: LoadSample) -> bool {
    sample.quiet >= QUIET
        && sample.processor_pressure < PRESSURE_MAX
        && sample.disk_pressure < PRESSURE_MAX
        && sample.waiting == 0
        && !sample.is_rewriting
}

fn pressure(of: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/pressure/{of}")).unwrap_or_default();
    some_avg10(&text).unwrap_or(0.0)
}

/// Watches for idle time.
pub struct IdleWatch {
    /// Requests answered at the last check, and when it last changed.
    requests: u64,
    since: Instant,
    not_before: Instant,
}

impl IdleWatch {
    pub fn new() -> IdleWatch {
        let now = Instant::now();
        IdleWatch { requests: 0, since: now, not_before: now }
    }

    /// Runs if the mount is idle. `sleep` sleeps that long, and returns whether to end.
    pub fn run_if_idle(
        &mut self,
        fs: &Fs,
        pool: &Pool,
        requests: &dyn Fn() -> u64,
        sleep: &dyn Fn(Duration) -> bool,
    ) {
        if fs.dataset().recompress_days().is_none() {
            return;
        }
        let (now, answered) = (Instant::now(), requests());
        if answered != self.requests {
            (self.requests, self.since) = (answered, now);
        }
        if now < self.not_before || now.duration_since(self.since) < QUIET {
            return;
        }
        let (_, _, waiting) = pool.load();
        let sample = LoadSample {
            quiet: now.duration_since(self.since),
            processor_pressure: pressure("cpu"),
            disk_pressure: pressure("io"),
            waiting,
            is_rewriting: fs.rewrite().is_running(),
        };
        if !is_idle(sample) {
            return;
        }
        let mut pace = || {
            let goes_on = requests() == self.requests && now.elapsed() < BURST;
            goes_on.then(|| wait_in_use(pool, sleep)).flatten()
        };
        if run_job(&fs.recompress(), "recompression failed", &mut pace) != RunEnd::Stopped {
            self.not_before = Instant::now() + RETRY_PAUSE;
        }
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_with_any_load_is_not_idle() {
        let calm = LoadSample {
            quiet: Duration::from_secs(11),
            processor_pressure: 0.3,
            disk_pressure: 0.0,
            waiting: 0,
            is_rewriting: false,
        };
        assert!(is_idle(calm));
        for busy in [
            LoadSample { quiet: Duration::from_secs(9), ..calm },
            LoadSample { processor_pressure: 7.0, ..calm },
            LoadSample { disk_pressure: 5.0, ..calm },
            LoadSample { waiting: 1, ..calm },
            LoadSample { is_rewriting: true, ..calm },
        ] {
            assert!(!is_idle(busy), "{busy:?}");
        }
    }
}
