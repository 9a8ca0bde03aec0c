//! Removals since the last rewrite of a ZAP: whether a scan for a smaller layout pays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The removals of a ZAP, and the state of the ZAP that a plan belongs to.
#[derive(Debug)]
pub(crate) struct ShrinkTrigger {
    count: AtomicU64,
    /// A scan pays after so many removals.
    threshold: AtomicU64,
    pub state: Arc<()>,
}

impl Default for ShrinkTrigger {
    fn default() -> Self {
        ShrinkTrigger { count: AtomicU64::new(0), threshold: AtomicU64::new(1), state: Arc::new(()) }
    }
}

impl ShrinkTrigger {
    /// Makes plans void. Every change of the ZAP calls this.
    pub fn invalidate_plans(&mut self) {
        // Only a plan holds a second reference, which keeps the address from being reused.
        if Arc::get_mut(&mut self.state).is_none() {
            self.state = Arc::new(());
        }
    }

    pub fn count_removal(&mut self) {
        *self.count.get_mut() = self.count.get_mut().saturating_add(1);
    }

    /// The ZAP of so many entries was rewritten, or a scan of them gained nothing.
    pub fn reset(&self, entries: u64) {
        self.count.store(0, Ordering::Relaxed);
        self.threshold.store((entries / 2).max(1), Ordering::Relaxed);
    }

    pub fn is_reached(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.threshold.load(Ordering::Relaxed)
    }
}
