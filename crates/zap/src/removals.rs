//! What a ZAP remembers about its removals: whether a look for a smaller form pays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a ZAP remembers about its removals, and which state of it a plan was made of.
#[derive(Debug)]
pub(crate) struct Removals {
    count: AtomicU64,
    /// A look pays after so many.
    wanted: AtomicU64,
    pub state: Arc<()>,
}

impl Default for Removals {
    fn default() -> Self {
        Removals { count: AtomicU64::new(0), wanted: AtomicU64::new(1), state: Arc::new(()) }
    }
}

impl Removals {
    /// Every change of the ZAP makes plans of it void.
    pub fn changed(&mut self) {
        // Nobody holds it unless there is a plan, which then keeps its number from being used again.
        if Arc::get_mut(&mut self.state).is_none() {
            self.state = Arc::new(());
        }
    }

    pub fn removed(&mut self) {
        *self.count.get_mut() = self.count.get_mut().saturating_add(1);
    }

    /// The ZAP of so many entries was written anew, or a look at them was in vain.
    pub fn start_again(&self, entries: u64) {
        self.count.store(0, Ordering::Relaxed);
        self.wanted.store((entries / 2).max(1), Ordering::Relaxed);
    }

    pub fn are_enough(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.wanted.load(Ordering::Relaxed)
    }
}
