//! Activity counters of a pool, summed over all its imports.

use parking_lot::Mutex;
use std::sync::Arc;
use terrane_format::totals::{Recent, Totals};
use terrane_store::counters::Counters;

pub struct Activity {
    counters: Arc<Counters>,
    /// Totals up to this import, as the pool stored them.
    before: Totals,
    recent: Mutex<Recent>,
}

impl Activity {
    pub fn new(counters: Arc<Counters>, before: Totals) -> Activity {
        let recent = Mutex::new(Recent::new(counters.now_ns(), before));
        Activity { counters, before, recent }
    }

    /// Totals since the pool was created.
    pub fn totals(&self) -> Totals {
        self.before.plus(&self.counters.totals())
    }

    /// Totals of the last `window_ns`, and the nanoseconds that they cover: at most the time since import.
    pub fn lately(&self, window_ns: u64) -> (u64, Totals) {
        self.recent.lock().since(window_ns, self.counters.now_ns(), &self.totals())
    }

    /// Takes a sample now and then. [`lately`](Activity::lately) subtracts samples from the current totals.
    pub fn note(&self) {
        self.recent.lock().note(self.counters.now_ns(), || self.totals());
    }
}
