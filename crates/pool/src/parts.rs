//! Directory parts, taken apart, within a budget of bytes.

use crate::directory::Part;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_wire::{NumberMap, ZoneSeq};

type Key = (u64, u64);

/// What parts may take of the memory for blocks: one part of so many, beside it.
pub(crate) const PARTS_PART: usize = 8;
const BYTES_MIN: usize = 1 << 20;

#[derive(Default)]
struct State {
    parts: NumberMap<Key, Arc<Part>>,
    order: VecDeque<Key>,
    bytes: usize,
}

/// Parts come here when they are written, because collection and look-ups of moved blocks want them again, and when they were read.
/// First in, first out: a look-up of moved blocks walks parts in the order of birth, so age says as much as use.
pub(crate) struct PartCache {
    state: Mutex<State>,
    budget: usize,
}

impl PartCache {
    pub fn new(budget: usize) -> PartCache {
        PartCache { state: Mutex::default(), budget: budget.max(BYTES_MIN) }
    }

    pub fn get(&self, seq: ZoneSeq, end: u64) -> Option<Arc<Part>> {
        self.state.lock().parts.get(&(seq.0, end)).cloned()
    }

    pub fn insert(&self, part: Arc<Part>) {
        let mut state = self.state.lock();
        let key = (part.seq.0, part.end);
        state.bytes += part.memory_bytes();
        if let Some(old) = state.parts.insert(key, part) {
            state.bytes -= old.memory_bytes();
        } else {
            state.order.push_back(key);
        }
        while state.bytes > self.budget && state.order.len() > 1 {
            let old = state.order.pop_front().and_then(|key| state.parts.remove(&key));
            state.bytes -= old.map_or(0, |old| old.memory_bytes());
        }
    }
}
