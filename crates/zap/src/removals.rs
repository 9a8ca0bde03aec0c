//! Removals since the last rewrite of a ZAP: whether a scan for a smaller form pays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The removals of a ZAP, and the state of the ZAP that a plan belongs to.
#[derive(Debug)]
pub(crate) struct Removals {
    count: AtomicU64,
    /// A scan pays after so many removals.
    wanted: AtomicU64,
    pub state: Arc<()>,
}

impl Default for Removals {
    fn default() -> Self {
        Removals { count: AtomicU64::new(0), wanted: AtomicU64::new(1), state: Arc::new(()) }
    }
}

impl Removals {
    /// Makes plans void. Every change of the ZAP calls this.
    pub fn changed(&mut self) {
        // Only a plan holds a second reference, which keeps the address from being reused.
        if Arc::get_mut(&mut self.state).is_none() {
            self.state = Arc::new(());
        }
    }

    pub fn removed(&mut self) {
        *self.count.get_mut() = self.count.get_mut().saturating_add(1);
    }

    /// The ZAP of so many entries was rewritten, or a scan of them gained nothing.
    pub fn start_again(&self, entries: u64) {
        self.count.store(0, Ordering::Relaxed);
        self.wanted.store((entries / 2).max(1), Ordering::Relaxed);
    }

    pub fn are_enough(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.wanted.load(Ordering::Relaxed)
    }
}
