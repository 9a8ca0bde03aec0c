//! What a mount does while it is idle: it recompresses cold files, where the property `recompress` says so.
//!
//! A mount is idle if no request came for some seconds and the machine's programs wait neither for CPUs nor
//! for disks. Then records are tried one by one, and the first request stops it. Our own I/O makes the
//! machine look busy, so pressure is measured after a pause, not meanwhile.

use crate::jobs::{End, beside_others, run};
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
const LATER: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
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
pub fn is_idle(sight: Sight) -> bool {
    sight.quiet >= QUIET
        && sight.processor_pressure < PRESSURE_MAX
        && sight.disk_pressure < PRESSURE_MAX
        && sight.waiting == 0
        && !sight.is_rewriting
}

fn pressure(of: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/pressure/{of}")).unwrap_or_default();
    some_avg10(&text).unwrap_or(0.0)
}

/// Watches for idle time.
pub struct Watch {
    /// Requests answered at the last check, and when it last changed.
    requests: u64,
    since: Instant,
    not_before: Instant,
}

impl Watch {
    pub fn new() -> Watch {
        let now = Instant::now();
        Watch { requests: 0, since: now, not_before: now }
    }

    /// Runs if the mount is idle. `rest` sleeps that long, and returns whether to end.
    pub fn turn(
        &mut self,
        fs: &Fs,
        pool: &Pool,
        requests: &dyn Fn() -> u64,
        rest: &dyn Fn(Duration) -> bool,
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
        let sight = Sight {
            quiet: now.duration_since(self.since),
            processor_pressure: pressure("cpu"),
            disk_pressure: pressure("io"),
            waiting,
            is_rewriting: fs.rewrite().goes_on(),
        };
        if !is_idle(sight) {
            return;
        }
        let mut pace = || {
            let goes_on = requests() == self.requests && now.elapsed() < BURST;
            goes_on.then(|| beside_others(pool, rest)).flatten()
        };
        if run(&fs.recompress(), "idle time is not used", &mut pace) != End::Over {
            self.not_before = Instant::now() + LATER;
        }
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_idle_when_nobody_wants_anything_and_nothing_waits() {
        let calm = Sight {
            quiet: Duration::from_secs(11),
            processor_pressure: 0.3,
            disk_pressure: 0.0,
            waiting: 0,
            is_rewriting: false,
        };
        assert!(is_idle(calm));
        for busy in [
            Sight { quiet: Duration::from_secs(9), ..calm },
            Sight { processor_pressure: 7.0, ..calm },
            Sight { disk_pressure: 5.0, ..calm },
            Sight { waiting: 1, ..calm },
            Sight { is_rewriting: true, ..calm },
        ] {
            assert!(!is_idle(busy), "{busy:?}");
        }
    }
}
