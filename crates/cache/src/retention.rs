//! Eviction policy of the cache: keeps blocks that return, even while scans pass through.
//!
//! New blocks enter a *window* in LRU order. A block that leaves the window competes with the oldest block of the *main* segment, and the
//! one with more uses stays. So a scan, which uses each block once, evicts nothing that is in use. A loop larger than the cache keeps a
//! part of itself instead of nothing. An evicted block leaves a *ghost* for a while, its key hash and its uses, so that a block which keeps
//! returning stays in the end. Ghosts also size the window. If a block returns that left the window unused, the window was too small:
//! recency counts. If a block returns that was used, frequency counts, and the window shrinks.
//!
//! Uses in quick succession count once: a record read in thirty-two pieces is no more popular than one that is read whole. Why this
//! policy of five: decision 18, with the traces (`cargo bench -p terrane-cache --bench retention`).
//!
//! Memory is small: 20 bytes per entry and 8 per ghost, with up to two ghosts per entry.
//!
//! Invariants ([`Retention::check`]): each list's bytes and count match its entries, and those of `Ghosts`.

mod ghosts;

pub use ghosts::tag;
use ghosts::{Ghost, Ghosts};

/// The index of an entry. Valid until the entry is evicted, or [`Retention::compact`] moves it.
pub type EntryIdx = u32;

/// "No entry", at both ends of a list.
const NONE: EntryIdx = u32::MAX;
/// Most uses that are counted. With more, a once popular entry would stay too long.
const USES_MAX: u8 = 3;
/// Accesses within this many lookups of other entries count as one use.
const SAME_USE_LOOKUPS: u16 = 16;
/// Tables grow by this fraction, and by no more than needed.
const GROWTH_DIVISOR: usize = 8;
const GROWTH_MIN: usize = 16;
/// Slots for ghosts. Ghost bytes are bounded at about half of that, so that few ghosts are lost to full buckets. With one slot per
/// entry, up to 1.3 percentage points of hits are lost on popularity traces.
const GHOSTS_PER_ENTRY: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    Window = 0,
    Main = 1,
    /// The entry is free.
    Free = 2,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Tag of its key hash.
    tag: u32,
    bytes: u32,
    before: EntryIdx,
    after: EntryIdx,
    /// The clock at its last use.
    used_at: u16,
    uses: u8,
    segment: Segment,
}

const _: () = assert!(size_of::<Entry>() == 20);

/// Oldest first.
#[derive(Clone, Copy, Debug)]
struct List {
    first: EntryIdx,
    last: EntryIdx,
    bytes: u64,
    count: usize,
}

const EMPTY: List = List { first: NONE, last: NONE, bytes: 0, count: 0 };

/// The eviction policy. The cached blocks lie elsewhere, under the same [`EntryIdx`].
#[derive(Clone, Debug)]
pub struct Retention {
    entries: Vec<Entry>,
    lists: [List; 3],
    ghosts: Ghosts,
    /// Target bytes of the window when the cache is full.
    window_bytes: u64,
    /// Lookups of different entries.
    clock: u16,
    last_used: EntryIdx,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            entries: Vec::new(),
            lists: [EMPTY; 3],
            ghosts: Ghosts::default(),
            window_bytes: 0,
            clock: 0,
            last_used: NONE,
        }
    }
}

impl Retention {
    /// Bytes of resident entries.
    pub fn bytes(&self) -> u64 {
        self.list(Segment::Window).bytes + self.list(Segment::Main).bytes
    }

    /// Resident entries.
    pub fn count(&self) -> usize {
        self.list(Segment::Window).count + self.list(Segment::Main).count
    }

    /// Memory of entries and ghosts, used or not.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.ghosts.memory()
    }

    /// Allocated entries.
    pub fn slots(&self) -> usize {
        self.entries.capacity()
    }

    /// Adds a block that is not resident. Names should differ, but collisions do no harm. `capacity` bounds the bytes of all residents.
    /// The second result: whether a ghost of the block was found.
    pub fn admit(&mut self, key_hash: u64, bytes: u32, capacity: u64) -> (EntryIdx, bool) {
        self.clock = self.clock.wrapping_add(1);
        let tag = tag(key_hash);
        let ghost = self.ghosts.take(tag);
        let uses = ghost.map_or(0, |ghost| {
            self.adapt_window(ghost, capacity);
            (ghost.uses + 1).min(USES_MAX)
        });
        let entry = Entry {
            tag,
            bytes,
            before: NONE,
            after: NONE,
            used_at: self.clock,
            uses,
            segment: Segment::Free,
        };
        let at = match self.list(Segment::Free).first {
            NONE => {
                if self.entries.len() == self.entries.capacity() {
                    self.entries.reserve_exact(GROWTH_MIN.max(self.entries.len() / GROWTH_DIVISOR));
                }
                self.entries.push(entry);
                (self.entries.len() - 1) as EntryIdx
            }
            free => {
                self.unlink(free);
                self.entries[free as usize] = entry;
                free
            }
        };
        self.link(at, Segment::Window);
        self.last_used = at;
        (at, ghost.is_some())
    }

    /// Notes a use.
    pub fn touch(&mut self, at: EntryIdx) {
        if self.last_used == at {
            return;
        }
        self.last_used = at;
        self.clock = self.clock.wrapping_add(1);
        let entry = &mut self.entries[at as usize];
        if self.clock.wrapping_sub(entry.used_at) > SAME_USE_LOOKUPS {
            entry.uses = (entry.uses + 1).min(USES_MAX);
        }
        entry.used_at = self.clock;
        if entry.segment == Segment::Window {
            self.move_to(at, Segment::Window);
        }
    }

    /// Evicts an entry, to bring the others nearer to `capacity` bytes. Its ghost stays. `None`: there is no entry.
    pub fn evict(&mut self, capacity: u64) -> Option<EntryIdx> {
        self.bound_window(capacity);
        loop {
            let (candidate, oldest) = (self.list(Segment::Window).first, self.list(Segment::Main).first);
            let window = self.list(Segment::Window);
            // The newest entry always stays. A block read in pieces that is larger than the window would be evicted between pieces.
            if oldest == NONE || (window.bytes > self.window_bytes && window.count > 1) {
                let Entry { bytes, uses, .. } = *self.entries.get(candidate as usize)?;
                let main_bytes = self.list(Segment::Main).bytes + u64::from(bytes);
                let held = self.entries.get(oldest as usize).map(|entry| entry.uses);
                if held.is_none_or(|held| uses > held) || main_bytes + self.window_bytes <= capacity {
                    self.move_to(candidate, Segment::Main);
                    continue;
                }
                // The winner goes to the end of the list. It loses a use if the candidate had any.
                self.move_to(oldest, Segment::Main);
                let weaker = u8::from(uses > 0);
                let oldest = &mut self.entries[oldest as usize];
                oldest.uses = oldest.uses.saturating_sub(weaker);
                self.leave_ghost(candidate, false, capacity);
                return Some(candidate);
            }
            if self.entries[oldest as usize].uses == 0 {
                self.leave_ghost(oldest, true, capacity);
                return Some(oldest);
            }
            self.entries[oldest as usize].uses -= 1;
            self.move_to(oldest, Segment::Main);
        }
    }

    /// Drops an entry without a ghost.
    pub fn forget(&mut self, at: EntryIdx) {
        self.move_to(at, Segment::Free);
    }

    /// Adapts the window's share to a returning ghost, faster if there are few ghosts of its kind.
    fn adapt_window(&mut self, ghost: Ghost, capacity: u64) {
        let Ghost { bytes, from_main: of_main, uses } = ghost;
        let (own, other) = (self.ghosts.bytes(of_main) + u64::from(bytes), self.ghosts.bytes(!of_main));
        let step = u64::from(bytes) * (other / own.max(1)).clamp(1, 8);
        self.window_bytes = match of_main {
            false if uses == 0 => self.window_bytes.saturating_add(step),
            false => self.window_bytes.saturating_sub(bytes.into()),
            true => self.window_bytes.saturating_sub(step),
        };
        self.bound_window(capacity);
    }

    fn bound_window(&mut self, capacity: u64) {
        self.window_bytes = self.window_bytes.clamp(capacity / 100, capacity / 10 * 8 + capacity / 100);
    }

    fn leave_ghost(&mut self, at: EntryIdx, from_main: bool, capacity: u64) {
        let Entry { tag, bytes, uses, .. } = self.entries[at as usize];
        self.move_to(at, Segment::Free);
        if self.ghosts.slots() < GHOSTS_PER_ENTRY * self.entries.len() {
            self.ghosts.set_slots(GHOSTS_PER_ENTRY * self.entries.capacity());
        }
        self.ghosts.put(tag, Ghost { bytes, from_main, uses });
        self.ghosts.bound(capacity);
    }

    /// Frees unused entries. Entries move to lower, free indices, in this order. Returns pairs (from, to).
    pub fn compact(&mut self) -> Vec<(EntryIdx, EntryIdx)> {
        let count = self.count();
        let is_free = |at: &usize| self.entries[*at].segment == Segment::Free;
        let free = (0..count).filter(is_free);
        let beyond = (count..self.entries.len()).filter(|at| !is_free(at));
        let moves: Vec<(EntryIdx, EntryIdx)> =
            beyond.zip(free).map(|(from, to)| (from as EntryIdx, to as EntryIdx)).collect();
        for (from, to) in &moves {
            self.move_entry(*from, *to);
        }
        self.lists[Segment::Free as usize] = EMPTY;
        self.entries.truncate(count);
        self.entries.shrink_to(count + count / GROWTH_DIVISOR);
        if self.ghosts.slots() > 0 {
            self.ghosts.set_slots(GHOSTS_PER_ENTRY * self.entries.capacity());
        }
        moves
    }

    /// Moves an entry to another index.
    fn move_entry(&mut self, from: EntryIdx, to: EntryIdx) {
        let entry = self.entries[from as usize];
        self.entries[to as usize] = entry;
        let list = &mut self.lists[entry.segment as usize];
        match self.entries.get_mut(entry.before as usize) {
            Some(before) => before.after = to,
            None => list.first = to,
        }
        match self.entries.get_mut(entry.after as usize) {
            Some(after) => after.before = to,
            None => list.last = to,
        }
        if self.last_used == from {
            self.last_used = to;
        }
    }

    fn move_to(&mut self, at: EntryIdx, segment: Segment) {
        self.unlink(at);
        self.link(at, segment);
    }

    fn list(&self, segment: Segment) -> &List {
        &self.lists[segment as usize]
    }

    /// Appends an entry: it is the newest.
    fn link(&mut self, at: EntryIdx, segment: Segment) {
        let list = &mut self.lists[segment as usize];
        let entry = &mut self.entries[at as usize];
        (entry.segment, entry.before, entry.after) = (segment, list.last, NONE);
        list.bytes += u64::from(entry.bytes);
        list.count += 1;
        let last = std::mem::replace(&mut list.last, at);
        match self.entries.get_mut(last as usize) {
            Some(last) => last.after = at,
            None => list.first = at,
        }
    }

    fn unlink(&mut self, at: EntryIdx) {
        let Entry { segment, before, after, bytes, .. } = self.entries[at as usize];
        let list = &mut self.lists[segment as usize];
        list.bytes -= u64::from(bytes);
        list.count -= 1;
        if before == NONE {
            list.first = after;
        }
        if after == NONE {
            list.last = before;
        }
        if let Some(before) = self.entries.get_mut(before as usize) {
            before.after = after;
        }
        if let Some(after) = self.entries.get_mut(after as usize) {
            after.before = before;
        }
    }
}

impl Retention {
    /// Checks the invariants above.
    pub fn check(&self) -> Result<(), String> {
        for segment in [Segment::Window, Segment::Main, Segment::Free] {
            let list = self.list(segment);
            let (mut at, mut before, mut bytes, mut count) = (list.first, NONE, 0, 0);
            while let Some(entry) = self.entries.get(at as usize) {
                if entry.segment != segment || entry.before != before || count > self.entries.len() {
                    return Err(format!("entry {at} should follow {before} in {segment:?}, found {entry:?}"));
                }
                (bytes, count) = (bytes + u64::from(entry.bytes), count + 1);
                (before, at) = (at, entry.after);
            }
            if (list.last, list.bytes, list.count) != (before, bytes, count) {
                return Err(format!(
                    "{segment:?} should hold {bytes} bytes in {count} entries, found {list:?}"
                ));
            }
        }
        self.ghosts.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrane_wire::IdMap;

    /// A cache of numbers that differ only in size.
    struct Numbers {
        policy: Retention,
        resident: IdMap<u64, EntryIdx>,
        names: IdMap<EntryIdx, u64>,
        capacity: u64,
    }

    impl Numbers {
        fn of(capacity: u64) -> Numbers {
            Numbers {
                policy: Retention::default(),
                resident: IdMap::default(),
                names: IdMap::default(),
                capacity,
            }
        }

        /// Whether it was resident.
        fn access(&mut self, name: u64, bytes: u32) -> bool {
            if let Some(at) = self.resident.get(&name) {
                self.policy.touch(*at);
                return true;
            }
            let (at, _) = self.policy.admit(name, bytes, self.capacity);
            self.resident.insert(name, at);
            self.names.insert(at, name);
            self.shrink();
            false
        }

        fn shrink(&mut self) {
            while self.policy.bytes() > self.capacity {
                let evicted = self.policy.evict(self.capacity).unwrap();
                let name = self.names.remove(&evicted).unwrap();
                assert_eq!(self.resident.remove(&name), Some(evicted));
            }
        }

        fn compact(&mut self) {
            for (from, to) in self.policy.compact() {
                let name = self.names.remove(&from).unwrap();
                assert_eq!(self.names.insert(to, name), None);
                assert_eq!(self.resident.insert(name, to), Some(from));
            }
        }

        fn hits(&mut self, names: impl Iterator<Item = u64>) -> usize {
            names.filter(|name| self.access(*name, 1)).count()
        }
    }

    #[test]
    fn a_scan_takes_nothing_from_what_is_used() {
        let mut cache = Numbers::of(1000);
        for _ in 0..20 {
            cache.hits(0..800);
        }
        assert_eq!(cache.hits(10_000..60_000), 0);
        assert!(cache.hits(0..800) > 750);
    }

    #[test]
    fn a_loop_over_too_much_keeps_a_part_of_itself() {
        let mut cache = Numbers::of(1000);
        let hits: usize = (0..40).map(|_| cache.hits(0..5000)).sum();
        assert!(hits > 39 * 5000 / 8, "{hits} of {}: least recently used first would give none", 40 * 5000);
    }

    #[test]
    fn a_working_set_that_moves_is_followed() {
        let mut cache = Numbers::of(1000);
        for _ in 0..20 {
            cache.hits(0..900);
        }
        for _ in 0..20 {
            cache.hits(10_000..10_900);
        }
        assert!(cache.hits(10_000..10_900) > 850);
    }

    #[test]
    fn pieces_of_one_use_count_once() {
        let mut cache = Numbers::of(1000);
        for _ in 0..20 {
            cache.hits(0..800);
        }
        // Two readers alternate; each record of a large file is read in 32 pieces.
        for record in (20_000..24_000).step_by(2) {
            for _ in 0..32 {
                cache.hits(record..record + 2);
            }
        }
        assert!(cache.hits(0..800) > 750);
    }

    #[test]
    fn memory_follows_what_is_here() {
        let mut cache = Numbers::of(100_000);
        cache.hits(0..150_000);
        let memory = cache.policy.memory();
        assert!((100_000 * 36..=112_500 * 36 + 64).contains(&memory), "{memory}");
        let hits = cache.hits(140_000..150_000);
        cache.capacity = 1000;
        cache.shrink();
        cache.compact();
        assert!(hits > 0 && cache.policy.memory() <= 1125 * 36 + 64, "{hits} {}", cache.policy.memory());
        assert_eq!(cache.policy.check(), Ok(()));
        let is_right = |(name, at): (&u64, &EntryIdx)| cache.policy.entries[*at as usize].tag == tag(*name);
        assert!(cache.resident.len() == 1000 && cache.resident.iter().all(is_right));
    }

    #[test]
    fn an_entry_larger_than_the_cache_is_evicted_at_once() {
        let mut cache = Numbers::of(100);
        cache.hits(0..50);
        assert!(!cache.access(1000, 101));
        cache.policy.check().unwrap();
        assert!(cache.policy.bytes() <= 100);
    }

    proptest! {
        #[test]
        fn lists_hold_what_they_say(
            asked in prop::collection::vec((0u64..300, 1u32..40, 0u8..20), 1..2000),
            capacity in 1u64..3000,
        ) {
            let mut cache = Numbers::of(capacity);
            for (name, bytes, what) in asked {
                match what {
                    0 => {
                        if let Some(at) = cache.resident.remove(&name) {
                            cache.names.remove(&at);
                            cache.policy.forget(at);
                        }
                    }
                    1 => {
                        cache.capacity = (cache.capacity * u64::from(bytes) / 20).max(1);
                        cache.shrink();
                    }
                    2 => {
                        cache.compact();
                        let count = cache.resident.len();
                        prop_assert!(cache.policy.slots() <= count + count / GROWTH_DIVISOR);
                    }
                    _ => {
                        cache.access(name, bytes);
                    }
                }
                prop_assert!(cache.policy.bytes() <= cache.capacity);
                prop_assert_eq!(cache.policy.count(), cache.resident.len());
            }
            prop_assert_eq!(cache.policy.check(), Ok(()));
        }
    }
}
