//! What a cache keeps: blocks that come back, whoever else passes through.
//!
//! New blocks enter a *window*, which goes in the order of last use. What leaves it meets the oldest block of the *main* part, and the one
//! that was used more often stays: a scan, in which everything is used once, takes nothing from what is used, and a loop over more
//! than there is room for keeps a part of itself instead of nothing. Of what went a *ghost* stays for a while, its name and its uses,
//! so that a block which comes back again and again wins in the end. Ghosts also say what is missing. When one comes back that
//! left the window before it was ever used, the window was too small: recency counts. When one comes back that was used, it should
//! have stayed for that: frequency counts, and the window shrinks.
//!
//! Uses in quick succession count once: a record that is read in thirty-two pieces is no more popular than one that is read whole.
//! Why it is this one of five: decision 18, with the traces (`cargo bench -p terrane-pool --bench retention`).
//!
//! Invariants ([`Retention::check`]): each list's bytes and count are those of its entries, every ghost is found by its name, and ghosts
//! are at most twice as many as what is resident, and some.

use terrane_wire::NumberMap;

/// An entry's place in memory, until it is forgotten.
pub type EntryIdx = u32;

/// "No entry", at both ends of a list.
const NONE: EntryIdx = u32::MAX;
/// Uses that are remembered of an entry, at most: with more, what was popular once takes too long to go.
const USES_MAX: u8 = 3;
/// An entry that was used less than so many look-ups of others ago is still in the same use.
const ONE_USE: u32 = 16;
/// Ghosts beyond two for each resident entry.
const GHOSTS_SPARE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Window = 0,
    Main = 1,
    /// Left the window.
    WindowGhost = 2,
    /// Left the main part.
    MainGhost = 3,
    /// Holds nothing.
    Free = 4,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: u64,
    bytes: u32,
    /// The clock at its last use.
    used_at: u32,
    before: EntryIdx,
    after: EntryIdx,
    uses: u8,
    part: Part,
}

/// The oldest first.
#[derive(Clone, Copy, Debug)]
struct List {
    first: EntryIdx,
    last: EntryIdx,
    bytes: u64,
    count: usize,
}

const EMPTY: List = List { first: NONE, last: NONE, bytes: 0, count: 0 };

/// Who stays and who goes; what is cached lies elsewhere, by the same [`EntryIdx`].
#[derive(Clone, Debug)]
pub struct Retention {
    entries: Vec<Entry>,
    lists: [List; 5],
    ghosts: NumberMap<u64, EntryIdx>,
    /// Bytes of the window, when there is no room.
    window_bytes: u64,
    /// Look-ups of one entry after another.
    clock: u32,
    last_used: EntryIdx,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            entries: Vec::new(),
            lists: [EMPTY; 5],
            ghosts: NumberMap::default(),
            window_bytes: 0,
            clock: 0,
            last_used: NONE,
        }
    }
}

impl Retention {
    /// Bytes of what is resident.
    pub fn bytes(&self) -> u64 {
        self.list(Part::Window).bytes + self.list(Part::Main).bytes
    }

    /// Entries that are resident.
    pub fn count(&self) -> usize {
        self.list(Part::Window).count + self.list(Part::Main).count
    }

    /// Names of what went.
    pub fn ghosts(&self) -> usize {
        self.list(Part::WindowGhost).count + self.list(Part::MainGhost).count
    }

    /// A block that was not here comes in. Names should differ; nothing breaks when they do not. `capacity` is what all residents
    /// together may take, in bytes. The second answer: its ghost was here.
    pub fn admit(&mut self, name: u64, bytes: u32, capacity: u64) -> (EntryIdx, bool) {
        self.clock = self.clock.wrapping_add(1);
        let ghost = self.ghosts.get(&name).copied();
        let uses = ghost.map_or(0, |ghost| {
            self.learn(ghost, capacity);
            let uses = self.entries[ghost as usize].uses;
            self.forget(ghost);
            (uses + 1).min(USES_MAX)
        });
        let entry =
            Entry { name, bytes, used_at: self.clock, before: NONE, after: NONE, uses, part: Part::Free };
        let at = match self.list(Part::Free).first {
            NONE => {
                self.entries.push(entry);
                (self.entries.len() - 1) as EntryIdx
            }
            free => {
                self.unlink(free);
                self.entries[free as usize] = entry;
                free
            }
        };
        self.link(at, Part::Window);
        self.last_used = at;
        (at, ghost.is_some())
    }

    /// It was asked for.
    pub fn touch(&mut self, at: EntryIdx) {
        if self.last_used == at {
            return;
        }
        self.last_used = at;
        self.clock = self.clock.wrapping_add(1);
        let entry = &mut self.entries[at as usize];
        if self.clock.wrapping_sub(entry.used_at) > ONE_USE {
            entry.uses = (entry.uses + 1).min(USES_MAX);
        }
        entry.used_at = self.clock;
        if entry.part == Part::Window {
            self.move_to(at, Part::Window);
        }
    }

    /// Who goes, so that the others come nearer to `capacity` bytes; its ghost stays. `None`: nobody is here.
    pub fn evict(&mut self, capacity: u64) -> Option<EntryIdx> {
        self.bound_window(capacity);
        loop {
            let (candidate, oldest) = (self.list(Part::Window).first, self.list(Part::Main).first);
            let window = self.list(Part::Window);
            // Who came last stays in any case: what is read in pieces would go between them where it is larger than the window.
            if oldest == NONE || (window.bytes > self.window_bytes && window.count > 1) {
                let Entry { bytes, uses, .. } = *self.entries.get(candidate as usize)?;
                let main_bytes = self.list(Part::Main).bytes + u64::from(bytes);
                let held = self.entries.get(oldest as usize).map(|entry| entry.uses);
                if held.is_none_or(|held| uses > held) || main_bytes + self.window_bytes <= capacity {
                    self.move_to(candidate, Part::Main);
                    continue;
                }
                // Who held its place goes to the end of the line, weaker if that was close.
                self.move_to(oldest, Part::Main);
                let weaker = u8::from(uses > 0);
                let oldest = &mut self.entries[oldest as usize];
                oldest.uses = oldest.uses.saturating_sub(weaker);
                self.bury(candidate, Part::WindowGhost, capacity);
                return Some(candidate);
            }
            if self.entries[oldest as usize].uses == 0 {
                self.bury(oldest, Part::MainGhost, capacity);
                return Some(oldest);
            }
            self.entries[oldest as usize].uses -= 1;
            self.move_to(oldest, Part::Main);
        }
    }

    /// It will not be asked for any more: no ghost stays.
    pub fn forget(&mut self, at: EntryIdx) {
        let Entry { name, part, .. } = self.entries[at as usize];
        if matches!(part, Part::WindowGhost | Part::MainGhost) && self.ghosts.get(&name) == Some(&at) {
            self.ghosts.remove(&name);
        }
        self.move_to(at, Part::Free);
    }

    /// The share of the window follows a ghost that comes back, the faster the fewer ghosts there are of its kind.
    fn learn(&mut self, ghost: EntryIdx, capacity: u64) {
        let Entry { part, bytes, uses, .. } = self.entries[ghost as usize];
        let (of_window, of_main) = (self.list(Part::WindowGhost).bytes, self.list(Part::MainGhost).bytes);
        let step = |own: u64, other: u64| u64::from(bytes) * (other / own.max(1)).clamp(1, 8);
        self.window_bytes = match part {
            Part::WindowGhost if uses == 0 => self.window_bytes.saturating_add(step(of_window, of_main)),
            Part::WindowGhost => self.window_bytes.saturating_sub(bytes.into()),
            _ => self.window_bytes.saturating_sub(step(of_main, of_window)),
        };
        self.bound_window(capacity);
    }

    fn bound_window(&mut self, capacity: u64) {
        self.window_bytes = self.window_bytes.clamp(capacity / 100, capacity / 10 * 8 + capacity / 100);
    }

    fn bury(&mut self, at: EntryIdx, part: Part, capacity: u64) {
        self.move_to(at, part);
        let name = self.entries[at as usize].name;
        if let Some(older) = self.ghosts.insert(name, at) {
            self.move_to(older, Part::Free);
        }
        loop {
            let (of_window, of_main) = (self.list(Part::WindowGhost), self.list(Part::MainGhost));
            let many = self.ghosts() > 2 * self.count() + GHOSTS_SPARE;
            if of_window.bytes + of_main.bytes <= capacity && !many {
                return;
            }
            let oldest = if of_window.bytes > of_main.bytes { of_window.first } else { of_main.first };
            self.forget(oldest);
        }
    }

    fn move_to(&mut self, at: EntryIdx, part: Part) {
        self.unlink(at);
        self.link(at, part);
    }

    fn list(&self, part: Part) -> &List {
        &self.lists[part as usize]
    }

    /// At the end: the newest.
    fn link(&mut self, at: EntryIdx, part: Part) {
        let list = &mut self.lists[part as usize];
        let entry = &mut self.entries[at as usize];
        (entry.part, entry.before, entry.after) = (part, list.last, NONE);
        list.bytes += u64::from(entry.bytes);
        list.count += 1;
        let last = std::mem::replace(&mut list.last, at);
        match self.entries.get_mut(last as usize) {
            Some(last) => last.after = at,
            None => list.first = at,
        }
    }

    fn unlink(&mut self, at: EntryIdx) {
        let Entry { part, before, after, bytes, .. } = self.entries[at as usize];
        let list = &mut self.lists[part as usize];
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
    /// The invariants above.
    pub fn check(&self) -> Result<(), String> {
        for part in [Part::Window, Part::Main, Part::WindowGhost, Part::MainGhost, Part::Free] {
            let list = self.list(part);
            let (mut at, mut before, mut bytes, mut count) = (list.first, NONE, 0, 0);
            while let Some(entry) = self.entries.get(at as usize) {
                if entry.part != part || entry.before != before || count > self.entries.len() {
                    return Err(format!("entry {at} should follow {before} in {part:?}, found {entry:?}"));
                }
                let is_ghost = matches!(part, Part::WindowGhost | Part::MainGhost);
                if is_ghost && self.ghosts.get(&entry.name) != Some(&at) {
                    return Err(format!("ghost {at} should be found by its name"));
                }
                (bytes, count) = (bytes + u64::from(entry.bytes), count + 1);
                (before, at) = (at, entry.after);
            }
            if (list.last, list.bytes, list.count) != (before, bytes, count) {
                return Err(format!("{part:?} should hold {bytes} bytes in {count} entries, found {list:?}"));
            }
        }
        let ghosts = self.ghosts();
        if ghosts != self.ghosts.len() {
            return Err(format!("{ghosts} ghosts, {} names", self.ghosts.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cache of numbers, all alike but for their sizes.
    struct Numbers {
        policy: Retention,
        there: NumberMap<u64, EntryIdx>,
        names: NumberMap<EntryIdx, u64>,
        capacity: u64,
    }

    impl Numbers {
        fn of(capacity: u64) -> Numbers {
            Numbers {
                policy: Retention::default(),
                there: NumberMap::default(),
                names: NumberMap::default(),
                capacity,
            }
        }

        /// Whether it was there.
        fn ask(&mut self, name: u64, bytes: u32) -> bool {
            if let Some(at) = self.there.get(&name) {
                self.policy.touch(*at);
                return true;
            }
            let (at, _) = self.policy.admit(name, bytes, self.capacity);
            self.there.insert(name, at);
            self.names.insert(at, name);
            self.shrink();
            false
        }

        fn shrink(&mut self) {
            while self.policy.bytes() > self.capacity {
                let gone = self.policy.evict(self.capacity).unwrap();
                let name = self.names.remove(&gone).unwrap();
                assert_eq!(self.there.remove(&name), Some(gone));
            }
        }

        fn hits(&mut self, names: impl Iterator<Item = u64>) -> usize {
            names.filter(|name| self.ask(*name, 1)).count()
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
        // Each record of a large file is read in 32 pieces, two readers taking turns.
        for record in (20_000..24_000).step_by(2) {
            for _ in 0..32 {
                cache.hits(record..record + 2);
            }
        }
        assert!(cache.hits(0..800) > 750);
    }

    #[test]
    fn what_is_larger_than_all_together_comes_and_goes() {
        let mut cache = Numbers::of(100);
        cache.hits(0..50);
        assert!(!cache.ask(1000, 101));
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
                        if let Some(at) = cache.there.remove(&name) {
                            cache.names.remove(&at);
                            cache.policy.forget(at);
                        }
                    }
                    1 => {
                        cache.capacity = (cache.capacity * u64::from(bytes) / 20).max(1);
                        cache.shrink();
                    }
                    _ => {
                        cache.ask(name, bytes);
                    }
                }
                prop_assert!(cache.policy.bytes() <= cache.capacity);
                prop_assert_eq!(cache.policy.count(), cache.there.len());
            }
            prop_assert_eq!(cache.policy.check(), Ok(()));
        }
    }
}
