//! What a pool has done, over all its imports.

use parking_lot::Mutex;
use std::sync::Arc;
use terrane_format::totals::{Recent, Totals};
use terrane_store::counters::Counters;

pub struct Activity {
    counters: Arc<Counters>,
    /// What the pool had done before this import.
    before: Totals,
    recent: Mutex<Recent>,
}

impl Activity {
    pub fn new(counters: Arc<Counters>, before: Totals) -> Activity {
        let recent = Mutex::new(Recent::new(counters.now_ns(), before));
        Activity { counters, before, recent }
    }

    /// Since the pool was made.
    pub fn totals(&self) -> Totals {
        self.before.plus(&self.counters.totals())
    }

    /// In the last `window_ns`, and the time that is: not more than since the import.
    pub fn lately(&self, window_ns: u64) -> (u64, Totals) {
        self.recent.lock().since(window_ns, self.counters.now_ns(), &self.totals())
    }

    /// Once in a while, so that there is something to compare with later.
    pub fn note(&self) {
        self.recent.lock().note(self.counters.now_ns(), || self.totals());
    }
}
