//! Object numbers: which are known to be free.
//!
//! An object's number is that of its dnode's first slot. A dnode block has as many slots as a word has bits, so
//! free slots are one word per block. A dnode of several slots takes a run of ones. Nothing of this is stored.
//! After an import, only blocks that were searched have known free slots.
//!
//! A single slot is taken from the first block with one. A run is found through an upper bound of the longest
//! run in each block. Taking slots only shortens runs, so the bound is corrected when a search finds no run.
//! Each take or free causes at most one such correction.
//!
//! Invariants: a number is reused only after the txg that freed it has committed. A block with free
//! slots is in `runs` exactly once, under a bound of at least its longest run. Other blocks are not in `runs`.

#![expect(clippy::indexing_slicing, reason = "a run is at most the slots of a block")]

use crate::dnode::SLOTS_PER_BLOCK;
use std::collections::{BTreeMap, BTreeSet};
use terrane_wire::{IdMap, ObjectId};

const _: () = assert!(SLOTS_PER_BLOCK == u32::BITS as u64, "a block's slots are the bits of one word");

/// Every number is below this one.
pub(crate) const NUMBERS_END: u64 = ObjectId::MASK + 1;

/// Maximum of creations between searches. Unsuccessful searches become rarer, up to this: a set of large dnodes
/// seems to have many free slots.
const PAUSE_MAX: u32 = 63;

/// The bits at which runs of `slots` ones begin.
fn runs_of(bits: u32, slots: u32) -> u32 {
    let (mut starts, mut len) = (bits, 1);
    while len < slots {
        let further = len.min(slots - len);
        starts &= starts >> further;
        len += further;
    }
    starts
}

fn longest_run(bits: u32) -> u32 {
    let (mut rest, mut len) = (bits, 0);
    while rest != 0 {
        rest &= rest >> 1;
        len += 1;
    }
    len
}

#[derive(Clone, Copy, Default)]
struct FreeBits {
    bits: u32,
    /// Index of the set in `runs` that holds the block.
    run_max: u32,
}

/// Slots that are known to be free.
struct FreeSlots {
    free_bits: BTreeMap<u64, FreeBits>,
    /// Blocks by an upper bound of their longest run.
    runs: [BTreeSet<u64>; SLOTS_PER_BLOCK as usize + 1],
}

impl FreeSlots {
    fn new() -> Self {
        FreeSlots { free_bits: BTreeMap::new(), runs: std::array::from_fn(|_| BTreeSet::new()) }
    }

    fn add(&mut self, block: u64, bits: u32) {
        if bits == 0 {
            return;
        }
        let word = self.free_bits.entry(block).or_default();
        word.bits |= bits;
        let longest = longest_run(word.bits);
        if longest > word.run_max {
            self.runs[word.run_max as usize].remove(&block);
            self.runs[longest as usize].insert(block);
            word.run_max = longest;
        }
    }

    /// These slots are not free any more, if they were known to be.
    fn remove(&mut self, block: u64, bits: u32) {
        let Some(word) = self.free_bits.get_mut(&block) else { return };
        word.bits &= !bits;
        if word.bits == 0 {
            let run_max = word.run_max;
            self.runs[run_max as usize].remove(&block);
            self.free_bits.remove(&block);
        }
    }

    /// Block and first bit for the next dnode of `slots` slots. One slot: the lowest free one. More: in a block
    /// with the shortest sufficient runs.
    fn find(&mut self, slots: u32) -> Option<(u64, u32)> {
        if slots == 1 {
            let (block, word) = self.free_bits.first_key_value()?;
            return Some((*block, word.bits.trailing_zeros()));
        }
        for run_max in slots..=u32::BITS {
            while let Some(block) = self.runs[run_max as usize].first().copied() {
                let word = self.free_bits.get_mut(&block).expect("a block in `runs` has free slots");
                let starts = runs_of(word.bits, slots);
                if starts != 0 {
                    return Some((block, starts.trailing_zeros()));
                }
                word.run_max = longest_run(word.bits);
                self.runs[run_max as usize].remove(&block);
                self.runs[word.run_max as usize].insert(block);
            }
        }
        None
    }

    /// The lowest free slot, as `find` defines it, in one lookup: most dnodes have one slot.
    fn take_one(&mut self) -> Option<u64> {
        let mut first = self.free_bits.first_entry()?;
        let (block, word) = (*first.key(), first.get_mut());
        let bit = word.bits.trailing_zeros();
        word.bits &= word.bits - 1;
        if word.bits == 0 {
            self.runs[word.run_max as usize].remove(&block);
            first.remove();
        }
        Some(block * SLOTS_PER_BLOCK + u64::from(bit))
    }

    fn take(&mut self, slots: u32) -> Option<u64> {
        if slots == 1 {
            return self.take_one();
        }
        let (block, first) = self.find(slots)?;
        let word = self.free_bits.get_mut(&block).expect("`find` returned a known block");
        word.bits &= !(u32::MAX >> (u32::BITS - slots) << first);
        if word.bits == 0 {
            self.runs[word.run_max as usize].remove(&block);
            self.free_bits.remove(&block);
        }
        Some(block * SLOTS_PER_BLOCK + u64::from(first))
    }
}

pub(crate) struct ObjectAllocator {
    pub objects: u64,
    /// Slots below this one may be in use.
    pub high_water: u64,
    free: FreeSlots,
    /// The block at which the search for free slots continues.
    search_at: u64,
    /// Creations until the next search, and that number after the last unsuccessful one.
    wait: u32,
    pause: u32,
    /// Slots allocated in the open txg and in the syncing one: dnode blocks do not show them yet.
    unstored: [IdMap<u64, u32>; 2],
    /// Slots of objects destroyed in the last synced txg, or in the one being synced: not durable yet.
    freed_uncommitted: IdMap<u64, u32>,
    /// Numbers that are never allocated.
    withheld: BTreeSet<u64>,
}

impl ObjectAllocator {
    pub fn new(objects: u64, high_water: u64) -> ObjectAllocator {
        ObjectAllocator {
            objects,
            high_water,
            free: FreeSlots::new(),
            search_at: 0,
            wait: 0,
            pause: 0,
            unstored: Default::default(),
            freed_uncommitted: IdMap::default(),
            withheld: BTreeSet::new(),
        }
    }

    /// A number for a dnode of so many slots, from those known to be free.
    pub fn take_free(&mut self, slots: u32) -> Option<u64> {
        loop {
            let number = self.free.take(slots)?;
            if self.is_usable(number, slots) {
                return Some(self.allocate(number, slots));
            }
        }
    }

    /// A number that no object ever had. `None`: there are none left.
    pub fn take_new(&mut self, slots: u32) -> Option<u64> {
        loop {
            let inside = self.high_water % SLOTS_PER_BLOCK;
            if inside + u64::from(slots) > SLOTS_PER_BLOCK {
                // A dnode never crosses its block: smaller ones will use the rest.
                self.free.add(self.high_water / SLOTS_PER_BLOCK, u32::MAX << inside);
                self.high_water += SLOTS_PER_BLOCK - inside;
            }
            let number = self.high_water;
            if number + u64::from(slots) > NUMBERS_END {
                return None;
            }
            self.high_water += u64::from(slots);
            if self.is_usable(number, slots) {
                return Some(self.allocate(number, slots));
            }
        }
    }

    /// Takes a number that a change of the past had, for a dnode of so many slots. `stored`: slots of its block that
    /// stored dnodes use. False: an object has one of the slots, or had it until a txg that is not durable.
    ///
    /// Numbers that it skips are free but unknown, like all others after an import: a search finds them.
    pub fn take_given(&mut self, number: u64, slots: u32, stored: u32) -> bool {
        let block = number / SLOTS_PER_BLOCK;
        let wanted = slots_at(number, slots);
        let taken = |slots: &IdMap<u64, u32>| slots.get(&block).copied().unwrap_or(0);
        let unstored = self.unstored.iter().chain([&self.freed_uncommitted]);
        if unstored.fold(stored, |used, slots| used | taken(slots)) & wanted != 0 {
            return false;
        }
        self.free.remove(block, wanted);
        self.high_water = self.high_water.max(number + u64::from(slots));
        self.allocate(number, slots);
        true
    }

    fn is_usable(&self, number: u64, slots: u32) -> bool {
        self.withheld.range(number..number + u64::from(slots)).next().is_none()
    }

    fn allocate(&mut self, number: u64, slots: u32) -> u64 {
        self.objects = self.objects.saturating_add(1);
        *self.unstored[0].entry(number / SLOTS_PER_BLOCK).or_default() |= slots_at(number, slots);
        number
    }

    /// The number that the next dnode of so many slots gets, unless a search finds another.
    pub fn likely(&mut self, slots: u32) -> u64 {
        let found = self.free.find(slots);
        found.map_or(self.high_water, |(block, first)| block * SLOTS_PER_BLOCK + u64::from(first))
    }

    pub fn withhold(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.withheld.extend(numbers);
    }

    pub fn release(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.withheld.remove(&number);
        }
    }

    /// Whether to search: many slots below the high water are free but unknown, and recent searches were
    /// successful. Called once per creation without a known free slot.
    pub fn should_search(&mut self) -> bool {
        if self.objects >= self.high_water / 8 * 7 || self.search_at >= self.high_water / SLOTS_PER_BLOCK {
            return false;
        }
        self.wait = self.wait.saturating_sub(1);
        self.wait == 0
    }

    /// The next block of a search.
    pub fn search_block(&mut self) -> Option<u64> {
        let block = self.search_at;
        let is_whole = (block + 1) * SLOTS_PER_BLOCK <= self.high_water;
        is_whole.then(|| {
            self.search_at += 1;
            block
        })
    }

    /// Marks slots as free that no stored dnode uses, unless an unstored one does. Returns whether there are
    /// any.
    pub fn add_unused(&mut self, block: u64, unused: u32) -> bool {
        let taken = |slots: &IdMap<u64, u32>| slots.get(&block).copied().unwrap_or(0);
        let free = self
            .unstored
            .iter()
            .chain([&self.freed_uncommitted])
            .fold(unused, |free, slots| free & !taken(slots));
        // Slot 0 stays unused: number 0 is that of the dnodes object.
        let free = if block == 0 { free & !1 } else { free };
        self.free.add(block, free);
        free != 0
    }

    /// Ends a search.
    pub fn end_search(&mut self, found: bool) {
        self.pause = if found { 0 } else { (2 * self.pause + 1).min(PAUSE_MAX) };
        self.wait = self.pause;
    }

    /// The open txg has quiesced.
    pub fn quiesced(&mut self) {
        for (block, bits) in std::mem::take(&mut self.unstored[0]) {
            *self.unstored[1].entry(block).or_default() |= bits;
        }
    }

    /// The dnodes of the syncing txg are in their blocks.
    pub fn clear_stored(&mut self) {
        self.unstored[1].clear();
    }

    /// Slots freed by the previous txg are committed and become free; those freed by this txg wait.
    pub fn rotate_freed(&mut self, freed: IdMap<u64, u32>) {
        for (block, bits) in std::mem::replace(&mut self.freed_uncommitted, freed) {
            self.free.add(block, bits);
        }
    }
}

/// Whether a dnode of so many slots (1 to 32) can have this number.
pub(crate) fn is_possible(number: u64, slots: u32) -> bool {
    let is_in_block = number % SLOTS_PER_BLOCK + u64::from(slots) <= SLOTS_PER_BLOCK;
    number > 0 && is_in_block && number <= NUMBERS_END - u64::from(slots)
}

/// The bits of a dnode's slots in its block's word.
fn slots_at(number: u64, slots: u32) -> u32 {
    u32::MAX >> (u32::BITS - slots) << (number % SLOTS_PER_BLOCK)
}

/// Adds a dnode's slots to words by block.
pub(crate) fn add_slots(words: &mut IdMap<u64, u32>, number: u64, slots: u8) {
    *words.entry(number / SLOTS_PER_BLOCK).or_default() |= slots_at(number, u32::from(slots));
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_store::env::{Env, SeededEnv};

    impl ObjectAllocator {
        fn check(&self) {
            let mut standing = BTreeMap::new();
            for (run_max, blocks) in self.free.runs.iter().enumerate() {
                for block in blocks {
                    assert_eq!(standing.insert(*block, run_max as u32), None, "block {block} stands twice");
                }
            }
            let free_bits = &self.free.free_bits;
            assert_eq!(standing.len(), free_bits.len());
            for (block, word) in free_bits {
                assert!(word.bits != 0 && standing[block] == word.run_max, "block {block}");
                assert!(longest_run(word.bits) <= word.run_max, "block {block} would not be found");
            }
        }
    }

    #[test]
    fn runs_of_free_bits_equal_a_naive_count() {
        let env = SeededEnv::new(5);
        let words = (0..2000).map(|_| env.random_u64() as u32 | env.random_u64() as u32);
        for bits in words.chain([0, 1, 1 << 31, u32::MAX, u32::MAX - 1, u32::MAX >> 1]) {
            let longest = (0..=32)
                .rev()
                .find(|len| (0..=32 - len).any(|first| (first..first + len).all(|bit| bits >> bit & 1 == 1)));
            assert_eq!(longest_run(bits), longest.unwrap());
            for slots in 1..=32u32 {
                let begins = (0..=32 - slots).filter(|at| (*at..at + slots).all(|bit| bits >> bit & 1 == 1));
                assert_eq!(
                    runs_of(bits, slots),
                    begins.fold(0, |found, at| found | 1 << at),
                    "{bits:#x} {slots}"
                );
            }
        }
    }

    /// Up to 2000 objects are created and destroyed, a million times, in txgs of every length.
    #[test]
    fn freed_numbers_are_reused_for_all_dnode_sizes() {
        for (seed, dnode_slots) in
            [[1, 1, 1, 1], [2, 2, 2, 2], [1, 2, 1, 2], [1, 2, 3, 5], [1, 4, 32, 2]].iter().enumerate()
        {
            let env = SeededEnv::new(seed as u64);
            let pick = |n: usize| env.random_u64() as usize % n;
            let mut allocator = ObjectAllocator::new(0, 1);
            let (mut live, mut freed) = (Vec::<(u64, u8)>::new(), IdMap::default());
            // Slots that an object has, or that a crash could bring back.
            let mut taken: BTreeSet<u64> = BTreeSet::from([0]);
            let mut freed_now: [Vec<u64>; 2] = Default::default();
            let mut most = 0;
            for step in 0..200_000 {
                let makes = live.len() < 1000 || (live.len() < 2000 && pick(2) == 0);
                if makes {
                    let slots = dnode_slots[pick(4)];
                    let likely = allocator.likely(u32::from(slots));
                    let number = match allocator.take_free(u32::from(slots)) {
                        Some(number) => number,
                        None => allocator.take_new(u32::from(slots)).unwrap(),
                    };
                    assert!(number == likely || number % 32 == 0, "{number} is not {likely}");
                    assert!(number % 32 + u64::from(slots) <= 32, "{number} crosses its block");
                    for slot in number..number + u64::from(slots) {
                        assert!(taken.insert(slot), "seed {seed} step {step}: slot {slot} has two objects");
                    }
                    live.push((number, slots));
                    most = most.max(taken.len() as u64);
                } else {
                    let (number, slots) = live.swap_remove(pick(live.len()));
                    allocator.objects -= 1;
                    add_slots(&mut freed, number, slots);
                    freed_now[0].extend(number..number + u64::from(slots));
                }
                if pick(200) == 0 {
                    allocator.quiesced();
                    allocator.rotate_freed(std::mem::take(&mut freed));
                    allocator.clear_stored();
                    let committed = std::mem::take(&mut freed_now[1]);
                    freed_now[1] = std::mem::take(&mut freed_now[0]);
                    committed.iter().for_each(|slot| assert!(taken.remove(slot)));
                    allocator.check();
                }
            }
            assert_eq!(allocator.objects, live.len() as u64);
            assert!(
                allocator.high_water <= 2 * most,
                "{dnode_slots:?}: {} for {most} slots",
                allocator.high_water
            );
        }
    }

    #[test]
    fn a_given_number_is_taken_from_the_free_ones() {
        let mut allocator = ObjectAllocator::new(0, 64);
        assert!(allocator.add_unused(1, !0b11));
        for (number, slots, stored, is_free) in [
            (32, 1, 0b11, false),
            (33, 2, 0b11, false),
            (34, 2, 0b11, true),
            (35, 1, 0b11, false),
            (40, 24, 0b11, true),
            (100, 3, 0, true),
            (102, 1, 0, false),
        ] {
            assert_eq!(allocator.take_given(number, slots, stored), is_free, "{slots} slots at {number}");
            allocator.check();
        }
        assert_eq!((allocator.objects, allocator.high_water), (3, 103));
        let free: Vec<u64> = std::iter::from_fn(|| allocator.take_free(1)).collect();
        assert_eq!(free, [36, 37, 38, 39]);
        // Destroyed in a txg that may not be durable.
        let mut freed = IdMap::default();
        add_slots(&mut freed, 34, 2);
        allocator.quiesced();
        allocator.clear_stored();
        allocator.rotate_freed(freed);
        assert!(!allocator.take_given(34, 2, 0));
        allocator.rotate_freed(IdMap::default());
        assert!(allocator.take_given(34, 2, 0));
        for (number, slots) in [(0, 1), (31, 2), (NUMBERS_END, 1), (u64::MAX, 1), (1 << 50, 32)] {
            assert!(!is_possible(number, slots), "{slots} slots at {number}");
        }
        assert!(is_possible(1, 31) && is_possible(NUMBERS_END - 1, 1));
    }

    #[test]
    fn smaller_dnodes_use_the_rest_of_a_block() {
        let mut allocator = ObjectAllocator::new(0, 1);
        assert_eq!(
            (allocator.take_new(1), allocator.take_new(32), allocator.high_water),
            (Some(1), Some(32), 64)
        );
        assert_eq!((allocator.take_free(31), allocator.take_free(30)), (None, Some(2)));
    }

    #[test]
    fn search_skips_slots_of_unstored_txgs() {
        let mut allocator = ObjectAllocator::new(0, 1);
        let all: Vec<u64> = (0..3).map(|_| allocator.take_new(2).unwrap()).collect();
        assert_eq!(all, [1, 3, 5]);
        // No stored dnode has them, in the open txg and in the syncing one.
        assert!(!allocator.add_unused(0, 0x7e));
        allocator.quiesced();
        assert!(!allocator.add_unused(0, 0x7e));
        allocator.clear_stored();
        // Destroyed in a txg that has synced, and may not be durable.
        let mut freed = IdMap::default();
        add_slots(&mut freed, 3, 2);
        allocator.rotate_freed(freed);
        assert!(!allocator.add_unused(0, 0x18));
        assert_eq!(allocator.take_free(1), None);
        allocator.rotate_freed(IdMap::default());
        assert_eq!((allocator.take_free(2), allocator.take_free(1)), (Some(3), None));
    }

    #[test]
    fn unsuccessful_searches_back_off_and_end() {
        // Dnodes of two slots: half as many objects as slots, and nothing is free.
        let mut allocator = ObjectAllocator::new(32_000, 64_000);
        let (mut searches, mut creations) = (0u32, 0u32);
        while allocator.search_at < 2000 {
            if allocator.should_search() {
                searches += 1;
                let found = (0..4)
                    .any(|_| allocator.search_block().is_some_and(|block| allocator.add_unused(block, 0)));
                allocator.end_search(found);
            }
            creations += 1;
        }
        assert_eq!(searches, 500);
        assert!(creations > 400 * PAUSE_MAX && creations < 500 * PAUSE_MAX, "{creations}");
        assert!(!allocator.should_search(), "all was looked at");
        // A successful search triggers the next one at once.
        let mut allocator = ObjectAllocator::new(32_000, 64_000);
        for block in 0..100 {
            assert!(allocator.should_search());
            assert_eq!(allocator.search_block(), Some(block));
            let found = allocator.add_unused(block, 2);
            allocator.end_search(found);
        }
        assert_eq!(allocator.take_free(2), None);
        assert_eq!(allocator.take_free(1), Some(1));
    }

    /// Directory entries and the kernel's inode numbers cannot hold larger ones.
    #[test]
    fn no_number_is_given_past_the_last() {
        let mut allocator = ObjectAllocator::new(9, NUMBERS_END - 3);
        assert_eq!(allocator.take_new(2), Some(NUMBERS_END - 3));
        assert_eq!((allocator.take_new(2), allocator.take_new(1)), (None, None));
        assert_eq!(allocator.take_free(1), Some(NUMBERS_END - 1), "what was left of the block");
        assert_eq!(
            (allocator.take_free(1), allocator.take_new(1), allocator.high_water),
            (None, None, NUMBERS_END)
        );
    }
}
