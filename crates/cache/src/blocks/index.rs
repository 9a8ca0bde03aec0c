//! The hash index: from a block's name to its entry, eight bytes each, in one table.
//!
//! A slot holds a tag of the name and a number. Slots are ordered by tag, as far as tags are evenly spread. A tag whose slot is taken
//! goes to the next one (linear probing). So the table grows by small steps in one pass, without access to the names. Tags may collide,
//! so a lookup compares the name in the entry.
//!
//! Invariant ([`Index::check`]): no slot is free between the home slot of a tag and its slot.

/// Marks a free slot.
const NONE: u32 = u32::MAX;
const SLOTS_MIN: usize = 16;
const GROWTH_DIVISOR: usize = 8;

/// At most three slots in five are taken, so a lookup needs two probes or fewer on average.
const fn slots_for(count: usize) -> usize {
    count * 5 / 3 + 1
}

#[derive(Clone, Copy)]
struct Slot {
    tag: u32,
    value: u32,
}

const FREE: Slot = Slot { tag: 0, value: NONE };

#[derive(Default)]
pub struct Index {
    slots: Vec<Slot>,
    count: usize,
}

impl Index {
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// The home slot of a tag. It rises with the tag.
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.slots.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// The number with this tag for which `is_it` holds.
    pub fn get(&self, tag: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.find(tag, is_it).map(|at| self.slots[at].value)
    }

    fn find(&self, tag: u32, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        let mut at = self.home(tag);
        // The loop ends, because some slots are free.
        loop {
            let slot = self.slots.get(at).filter(|slot| slot.value != NONE)?;
            if slot.tag == tag && is_it(slot.value) {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    /// Adds a number that is not in the table, below 2^32 - 1.
    pub fn insert(&mut self, tag: u32, value: u32) {
        let slots = self.slots.len();
        if slots < slots_for(self.count + 1) {
            self.set_slots(SLOTS_MIN.max(slots + slots / GROWTH_DIVISOR));
        }
        self.put(Slot { tag, value });
        self.count += 1;
    }

    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.tag);
        while self.slots[at].value != NONE {
            at = self.next(at);
        }
        self.slots[at] = slot;
    }

    /// Replaces a number with this tag by another.
    pub fn replace(&mut self, tag: u32, value: u32, by: u32) {
        if let Some(at) = self.find(tag, |found| found == value) {
            self.slots[at].value = by;
        }
    }

    pub fn remove(&mut self, tag: u32, value: u32) {
        let Some(mut gap) = self.find(tag, |found| found == value) else { return };
        self.count -= 1;
        let slots = self.slots.len();
        let mut at = gap;
        loop {
            at = self.next(at);
            if self.slots[at].value == NONE {
                break;
            }
            // A slot may move into the gap unless the gap lies before its home slot.
            let home = self.home(self.slots[at].tag);
            if (at + slots - home) % slots >= (at + slots - gap) % slots {
                self.slots[gap] = self.slots[at];
                gap = at;
            }
        }
        self.slots[gap] = FREE;
    }

    /// Frees unused memory.
    pub fn compact(&mut self) {
        self.set_slots(SLOTS_MIN.max(slots_for(self.count)));
    }

    fn set_slots(&mut self, count: usize) {
        let mut slots = Vec::new();
        slots.reserve_exact(count);
        slots.resize(count, FREE);
        let old = std::mem::replace(&mut self.slots, slots);
        old.into_iter().filter(|slot| slot.value != NONE).for_each(|slot| self.put(slot));
    }

    /// Checks the invariant above.
    pub fn check(&self) -> Result<(), String> {
        let is_there =
            |(at, slot): (usize, &Slot)| self.find(slot.tag, |value| value == slot.value) == Some(at);
        let there = || self.slots.iter().enumerate().filter(|(_, slot)| slot.value != NONE);
        if there().count() != self.count
            || self.count > 0 && self.slots.len() < slots_for(self.count)
            || !there().all(is_there)
        {
            return Err(format!(
                "entries that the index finds: expected {}, found {}",
                there().count(),
                self.count
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_follows_the_number_of_entries() {
        let mut index = Index::default();
        (0..100_000u32).for_each(|value| index.insert(value.wrapping_mul(0x9e37_79b9), value));
        assert!(index.memory() <= 100_000 * 16, "{}", index.memory());
        (1000..100_000u32).for_each(|value| index.remove(value.wrapping_mul(0x9e37_79b9), value));
        index.compact();
        assert!(index.memory() <= 1000 * 14);
        assert!(
            (0..1000u32).all(|value| index.get(value.wrapping_mul(0x9e37_79b9), |_| true) == Some(value))
        );
    }

    proptest! {
        /// Few tags at both ends of the range, so that probes collide and wrap around.
        #[test]
        fn it_behaves_like_a_map(steps in prop::collection::vec((0u32..6, any::<bool>(), 0u32..60, 0u8..8), 1..400)) {
            let mut index = Index::default();
            let mut model = std::collections::BTreeMap::new();
            for (low, is_high, value, what) in steps {
                let tag = if is_high { u32::MAX - low } else { low << 28 };
                let held = model.get(&value).copied();
                match (what, held) {
                    (0, _) => index.compact(),
                    (1..4, Some(tag)) => {
                        index.remove(tag, value);
                        model.remove(&value);
                    }
                    (4, Some(tag)) => {
                        index.replace(tag, value, value + 1000);
                        index.replace(tag, value + 1000, value);
                    }
                    (_, None) => {
                        index.insert(tag, value);
                        model.insert(value, tag);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.check(), Ok(()));
                prop_assert_eq!(index.count(), model.len());
                for (value, tag) in &model {
                    prop_assert_eq!(index.get(*tag, |found| found == *value), Some(*value));
                }
                prop_assert_eq!(index.get(1, |_| true), None);
            }
        }
    }
}
