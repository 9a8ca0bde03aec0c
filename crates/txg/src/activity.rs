//! Activity counters of a pool, summed over all its imports.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_format::totals::{RecentTotals, Totals};
use terrane_store::counters::Counters;

/// Totals since the pool was created, and of a recent window of time.
pub struct Activity {
    counters: Arc<Counters>,
    /// Totals up to this import, as the pool stored them.
    stored_totals: Totals,
    recent: Mutex<RecentTotals>,
    recent_reclaim: Mutex<VecDeque<(u64, Reclaim)>>,
}

/// What garbage collection gave, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaim {
    /// Bytes of zones that were emptied: their garbage and their live blocks.
    pub freed_bytes: u64,
    /// Bytes that were moved out of them.
    pub moved_bytes: u64,
}

impl Reclaim {
    /// Bytes that users won: what was freed beyond the copies.
    pub fn won_bytes(&self) -> u64 {
        self.freed_bytes.saturating_sub(self.moved_bytes)
    }

    /// The reclaim ratio: bytes freed per byte moved. `None`: nothing was moved.
    pub fn ratio(&self) -> Option<f64> {
        (self.moved_bytes > 0).then(|| self.freed_bytes as f64 / self.moved_bytes as f64)
    }

    fn since(&self, earlier: Reclaim) -> Reclaim {
        Reclaim {
            freed_bytes: self.freed_bytes.saturating_sub(earlier.freed_bytes),
            moved_bytes: self.moved_bytes.saturating_sub(earlier.moved_bytes),
        }
    }
}

/// Least time between samples of [`Reclaim`], and how many are kept: enough for ten minutes.
const RECLAIM_SAMPLE_NS: u64 = 5_000_000_000;
const RECLAIM_SAMPLES_MAX: usize = 121;

impl Activity {
    /// Continues from the totals that the pool had stored when it was imported.
    pub fn new(counters: Arc<Counters>, stored_totals: Totals) -> Activity {
        let recent = Mutex::new(RecentTotals::new(counters.now_ns(), stored_totals));
        let recent_reclaim = Mutex::new(VecDeque::from([(counters.now_ns(), Reclaim::default())]));
        Activity { counters, stored_totals, recent, recent_reclaim }
    }

    /// Totals since the pool was created.
    pub fn totals(&self) -> Totals {
        self.stored_totals.plus(&self.counters.totals())
    }

    /// Totals of the last `window_ns`, and the nanoseconds that they cover: at most the time since import.
    pub fn recent_totals(&self, window_ns: u64) -> (u64, Totals) {
        self.recent.lock().since(window_ns, self.counters.now_ns(), &self.totals())
    }

    /// What collection gave since the import.
    pub fn reclaim(&self) -> Reclaim {
        Reclaim {
            freed_bytes: self.counters.reclaimed_bytes.get(),
            moved_bytes: self.counters.reclaim_moved_bytes.get(),
        }
    }

    /// What collection gave in the last `window_ns`, or since the import: from the last sample before the window on.
    pub fn recent_reclaim(&self, window_ns: u64) -> Reclaim {
        let begin = self.counters.now_ns().saturating_sub(window_ns);
        let samples = self.recent_reclaim.lock();
        let older = samples.partition_point(|(ns, _)| *ns <= begin);
        let sample = samples.get(older.saturating_sub(1)).map_or(Reclaim::default(), |(_, sample)| *sample);
        self.reclaim().since(sample)
    }

    /// Takes a sample now and then. [`recent_totals`](Activity::recent_totals) subtracts samples from the current totals.
    pub fn sample(&self) {
        let now_ns = self.counters.now_ns();
        self.recent.lock().note(now_ns, || self.totals());
        let mut samples = self.recent_reclaim.lock();
        let last_ns = samples.back().map_or(0, |(ns, _)| *ns);
        if now_ns.saturating_sub(last_ns) >= RECLAIM_SAMPLE_NS {
            samples.push_back((now_ns, self.reclaim()));
            if samples.len() > RECLAIM_SAMPLES_MAX {
                samples.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_store::env::{Env, SeededEnv};

    #[test]
    fn reclaim_of_a_window_leaves_out_what_was_before() {
        let env = Arc::new(SeededEnv::new(1));
        let counters = Arc::new(Counters::new(env.clone()));
        let activity = Activity::new(counters.clone(), Totals::default());
        assert_eq!((activity.reclaim(), activity.reclaim().ratio()), (Reclaim::default(), None));
        let second = 1_000_000_000;
        let end_ns = env.monotonic_ns() + 2000 * second;
        let mut rounds = 0;
        while env.monotonic_ns() < end_ns {
            counters.reclaimed_bytes.add(30);
            counters.reclaim_moved_bytes.add(10);
            env.sleep(std::time::Duration::from_secs(1));
            activity.sample();
            rounds += 1;
        }
        let all = activity.reclaim();
        assert_eq!(all, Reclaim { freed_bytes: 30 * rounds, moved_bytes: 10 * rounds });
        assert_eq!((all.ratio(), all.won_bytes()), (Some(3.0), 20 * rounds));
        let minute = activity.recent_reclaim(60 * second);
        assert!((60 * 30..=70 * 30).contains(&minute.freed_bytes), "{minute:?}");
        assert_eq!(minute.ratio(), Some(3.0));
        assert!(activity.recent_reclaim(3000 * second).freed_bytes < 700 * 30, "older samples are dropped");
    }
}
