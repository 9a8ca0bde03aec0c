//! Activity counters of a pool, summed over all its imports.

use parking_lot::Mutex;
use std::sync::Arc;
use terrane_format::totals::{RecentTotals, Totals};
use terrane_store::counters::Counters;

/// Totals since the pool was created, and of a recent window of time.
pub struct Activity {
    counters: Arc<Counters>,
    /// Totals up to this import, as the pool stored them.
    stored_totals: Totals,
    recent: Mutex<RecentTotals>,
}

impl Activity {
    /// Continues from the totals that the pool had stored when it was imported.
    pub fn new(counters: Arc<Counters>, stored_totals: Totals) -> Activity {
        let recent = Mutex::new(RecentTotals::new(counters.now_ns(), stored_totals));
        Activity { counters, stored_totals, recent }
    }

    /// Totals since the pool was created.
    pub fn totals(&self) -> Totals {
        self.stored_totals.plus(&self.counters.totals())
    }

    /// Totals of the last `window_ns`, and the nanoseconds that they cover: at most the time since import.
    pub fn recent_totals(&self, window_ns: u64) -> (u64, Totals) {
        self.recent.lock().since(window_ns, self.counters.now_ns(), &self.totals())
    }

    /// Takes a sample now and then. [`recent_totals`](Activity::recent_totals) subtracts samples from the current totals.
    pub fn sample(&self) {
        self.recent.lock().note(self.counters.now_ns(), || self.totals());
    }
}
