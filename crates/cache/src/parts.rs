//! A cache of decoded directory parts, within a byte budget.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrane_format::directory::Part;
use terrane_wire::{IdMap, ZoneSeq};

type Key = (u64, u64);

/// The budget, as a fraction of the block cache's, in addition to it.
pub const PART_CACHE_DIVISOR: usize = 8;
const BYTES_MIN: usize = 1 << 20;

#[derive(Default)]
struct State {
    parts: IdMap<Key, Arc<Part>>,
    order: VecDeque<Key>,
    bytes: usize,
}

/// Holds parts that were written, which the collector and lookups of moved blocks need again, and parts that were read. FIFO: lookups
/// of moved blocks walk parts in birth order, so age predicts as well as use.
pub struct PartCache {
    state: Mutex<State>,
    budget: AtomicUsize,
}

impl PartCache {
    /// A cache of `budget` bytes, at least 1 MiB.
    pub fn new(budget: usize) -> PartCache {
        PartCache { state: Mutex::default(), budget: AtomicUsize::new(budget.max(BYTES_MIN)) }
    }

    /// Sets the budget, in bytes. Excess parts are dropped at once.
    pub fn set_budget(&self, budget: usize) {
        self.budget.store(budget.max(BYTES_MIN), Ordering::Relaxed);
        let mut state = self.state.lock();
        state.shrink_to_budget(budget.max(BYTES_MIN));
        state.order.shrink_to_fit();
        state.parts.shrink_to_fit();
    }

    /// The part of a zone that ends at byte `end`.
    pub fn get(&self, seq: ZoneSeq, end: u64) -> Option<Arc<Part>> {
        self.state.lock().parts.get(&(seq.0, end)).cloned()
    }

    /// Adds a part. Old parts are dropped to stay within the budget.
    pub fn insert(&self, part: Arc<Part>) {
        let mut state = self.state.lock();
        let key = (part.seq.0, part.end);
        state.bytes += part.memory_bytes();
        if let Some(old) = state.parts.insert(key, part) {
            state.bytes -= old.memory_bytes();
        } else {
            state.order.push_back(key);
        }
        state.shrink_to_budget(self.budget.load(Ordering::Relaxed));
    }
}

impl State {
    fn shrink_to_budget(&mut self, budget: usize) {
        while self.bytes > budget && self.order.len() > 1 {
            let old = self.order.pop_front().and_then(|key| self.parts.remove(&key));
            self.bytes -= old.map_or(0, |old| old.memory_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::Txg;

    #[test]
    fn a_smaller_budget_holds_at_once() {
        let cache = PartCache::new(64 << 20);
        let bytes = || cache.state.lock().bytes;
        let part = |end: u64| Arc::new(Part::new(ZoneSeq(1), Txg(1), (end - 4096, end), None, Vec::new()));
        let mut end = 4096;
        while bytes() < 4 << 20 {
            cache.insert(part(end));
            end += 4096;
        }
        cache.set_budget(2 << 20);
        assert!(bytes() <= 2 << 20 && bytes() > 1 << 20, "{} bytes", bytes());
        assert!(cache.get(ZoneSeq(1), end - 4096).is_some() && cache.get(ZoneSeq(1), 4096).is_none());
        (0..10_000).for_each(|more| cache.insert(part(end + more * 4096)));
        assert!(bytes() <= 2 << 20, "from then on as well");
    }
}
