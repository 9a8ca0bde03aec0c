//! What a mount does when nobody wants anything: cold files are compressed well, where the property `recompress` says so.
//!
//! It is idle time when no request came for some seconds and the machine's programs wait neither for processors nor for disks. Then
//! records are tried one by one, and after each it is looked whether somebody asked for something: then it ends at once. Our own reads
//! make the machine look busy, so what it does is measured after a rest, not meanwhile.

use crate::jobs::{End, beside_others, run};
use crate::memory::some_avg10;
use std::time::{Duration, Instant};
use terrane_pool::Pool;
use terrane_posix::Fs;

/// Without a request for so long, nobody wants anything.
const QUIET: Duration = Duration::from_secs(10);
/// Of the last ten seconds, the percentage in which something waited for a processor or for a disk.
const PRESSURE_MAX: f64 = 5.0;
/// How long it goes on before it rests, for [`QUIET`], and looks again.
const BURST: Duration = Duration::from_secs(60);
/// When there was nothing to do, or it failed.
const LATER: Duration = Duration::from_secs(60);

/// What is seen of the world.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Since a request came, or we rested.
    pub quiet: Duration,
    /// In percent; 0 where the kernel does not say.
    pub processor_pressure: f64,
    pub disk_pressure: f64,
    /// Changes that wait for room.
    pub waiting: u64,
    /// A rewrite that somebody asked for comes first.
    pub is_rewriting: bool,
}

/// Whether it is idle time.
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

/// Looks for idle time.
pub struct Watch {
    /// Requests that had been answered, and since when there are no more.
    requests: u64,
    since: Instant,
    not_before: Instant,
}

impl Watch {
    pub fn new() -> Watch {
        let now = Instant::now();
        Watch { requests: 0, since: now, not_before: now }
    }

    /// Goes on if it is time for it. `rest` waits so long, and says whether to end.
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
