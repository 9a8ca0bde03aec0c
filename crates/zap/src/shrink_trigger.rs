//! Removals since the last rewrite of a ZAP: whether a scan for a smaller layout pays. A value that took another width in a
//! fat ZAP counts as one: the old entry may have been the only one that no slot could hold beside the others.

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

    /// The ZAP of so many entries was rewritten.
    pub fn reset(&self, entries: u64) {
        self.reset_after_scan(entries, 0);
    }

    /// A scan of so many entries gained nothing. After `changes_needed` changes at the earliest all values may have one
    /// width; 0: unknown. That many are waited for if they pay for a scan. So a ZAP whose values change their width one
    /// after the other is scanned again with the last of them.
    pub fn reset_after_scan(&self, entries: u64, changes_needed: u64) {
        let half = (entries / 2).max(1);
        let pays = (entries / 8).max(1)..half;
        let threshold = if pays.contains(&changes_needed) { changes_needed } else { half };
        self.count.store(0, Ordering::Relaxed);
        self.threshold.store(threshold, Ordering::Relaxed);
    }

    pub fn is_reached(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.threshold.load(Ordering::Relaxed)
    }
}
