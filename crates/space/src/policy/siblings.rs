//! Predicts the life of new files from similar files.
//!
//! Files of one directory with one suffix tend to share a fate. Objects of a build die with the next build, its sources stay, and a
//! database's log segments end with a checkpoint. Similarity is a [`SiblingKey`]. For each key the table learns how many files were
//! born, how many died, and how long those had lived. If a directory is new, tells nothing, or differs little, the suffix over all
//! directories is used.
//!
//! Mean lives are means of logarithms: one file forgotten for a year must not outweigh a thousand that lived for a minute. Old
//! observations decay, so the table adapts.
//!
//! The table is bounded, and takes no memory before its first use. A key that finds its set full evicts the key with the fewest
//! observations.

use terrane_wire::mixed;

/// Most keys: 1.5 MiB.
const KEYS_MAX: usize = 64 << 10;
/// Associativity of the table.
const WAYS: usize = 4;
/// Weight of a new observation, as 1/n: about the last 16 in a directory, and more over all directories.
const MEMORY: f32 = 16.0;
const MEMORY_ANYWHERE: f32 = 128.0;
/// A directory behaves like its suffix elsewhere while means differ by less than this, in log2: a factor of four. Lives that end at
/// random differ by a factor of 3.6 in the middle half. Their mean over a few differs by nearly two.
const ALIKE: f32 = 2.0;
/// Births needed for a prediction, in a directory and over all directories.
const KNOWN_HERE: f32 = 4.0;
const KNOWN_ANYWHERE: f32 = 16.0;
/// Larger spreads make a mean useless. In log2: a factor of eight.
const SPREAD_MAX: f32 = 3.0;
/// A longer suffix counts as part of the name.
const SUFFIX_MAX: usize = 12;

/// What a file is similar to: its directory with its suffix, and its suffix alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiblingKey {
    here: u64,
    anywhere: u64,
}

impl SiblingKey {
    /// `directory` is any stable number of the directory in the pool (data set and object). `name` is the file's name in it.
    pub fn new(directory: u64, name: &[u8]) -> SiblingKey {
        let mut bytes = [0u8; 16];
        let suffix = suffix(name);
        bytes[..suffix.len()].copy_from_slice(suffix);
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(*bytes[at..].first_chunk().expect("16 bytes")));
        // This runs at every file creation. Forced collisions only worsen the attacker's own placement, so the hash need not be secret.
        let anywhere = mixed(low ^ mixed(high ^ suffix.len() as u64));
        // 0 marks a free entry.
        SiblingKey { here: mixed(anywhere ^ mixed(directory)).max(1), anywhere: anywhere.max(1) }
    }
}

/// The part after the last dot, if it looks like a suffix and not like a number.
fn suffix(name: &[u8]) -> &[u8] {
    let Some(point) = name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0) else { return b"" };
    let suffix = name.get(point + 1..).unwrap_or_default();
    let is_number = suffix.iter().all(u8::is_ascii_digit);
    if suffix.len() > SUFFIX_MAX || is_number { b"" } else { suffix }
}

#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    key: u64,
    /// Decayed counts.
    born: f32,
    died: f32,
    /// Mean of log2 of the lives, and mean distance from it.
    life_log2: f32,
    spread_log2: f32,
}

impl Fate {
    /// log2 of the expected life. 64: hardly any file has died. `None`: too few observations, or lives differ too much.
    fn life_log2(&self) -> Option<f32> {
        if self.died < self.born / 8.0 {
            return (self.born >= KNOWN_ANYWHERE).then_some(64.0);
        }
        let is_sure = self.died >= self.born / 2.0 && self.spread_log2 <= SPREAD_MAX;
        is_sure.then_some(self.life_log2)
    }
}

/// Lifetimes by directory and suffix.
#[derive(Clone, Debug)]
pub struct Siblings {
    keys: usize,
    fates: Vec<Fate>,
}

impl Siblings {
    /// A table of at most `budget_bytes` bytes, and never more than 1.5 MiB.
    pub fn new(budget_bytes: usize) -> Siblings {
        let keys = (budget_bytes / size_of::<Fate>()).min(KEYS_MAX) / WAYS * WAYS;
        Siblings { keys: keys.max(WAYS), fates: Vec::new() }
    }

    /// Notes a file creation.
    pub fn born(&mut self, key: SiblingKey) {
        for (key, memory) in [(key.here, MEMORY), (key.anywhere, MEMORY_ANYWHERE)] {
            let fate = self.fate_mut(key);
            fate.born += 1.0;
            // Halve both counts, so that their ratio stays.
            if fate.born > 4.0 * memory {
                (fate.born, fate.died) = (fate.born / 2.0, fate.died / 2.0);
            }
        }
    }

    /// Notes that a file counted under this key was renamed away: it will not die here.
    pub fn left(&mut self, key: SiblingKey) {
        for key in [key.here, key.anywhere] {
            let fate = self.fate_mut(key);
            fate.born = (fate.born - 1.0).max(fate.died);
        }
    }

    /// Notes that a file's contents died (unlink, rename over it, truncate to 0), `life_bytes` user bytes after they were written.
    pub fn died(&mut self, key: SiblingKey, life_bytes: u64) {
        let life = (life_bytes.max(1) as f32).log2();
        for (key, memory) in [(key.here, MEMORY), (key.anywhere, MEMORY_ANYWHERE)] {
            let fate = self.fate_mut(key);
            fate.died += 1.0;
            if fate.died == 1.0 {
                (fate.life_log2, fate.spread_log2) = (life, 0.0);
            }
            let part = 1.0 / fate.died.min(memory);
            fate.spread_log2 += ((life - fate.life_log2).abs() - fate.spread_log2) * part;
            fate.life_log2 += (life - fate.life_log2) * part;
        }
    }

    /// Expected life of a similar new file, in user bytes. `None`: too few observations, or lives differ too much. `u64::MAX`: hardly
    /// any similar file has died.
    pub fn expect(&self, key: SiblingKey) -> Option<u64> {
        let known = |key, births| self.fate(key).filter(|fate| fate.born >= births).and_then(Fate::life_log2);
        let log2 = match (known(key.here, KNOWN_HERE), known(key.anywhere, KNOWN_ANYWHERE)) {
            // A small difference is chance, and would separate files that die together.
            (Some(here), Some(anywhere)) if (here - anywhere).abs() < ALIKE => anywhere,
            (here, anywhere) => here.or(anywhere)?,
        };
        Some(log2.exp2() as u64)
    }

    fn ways(&self, key: u64) -> std::ops::Range<usize> {
        let sets = self.keys / WAYS;
        let first = usize::try_from(key % sets as u64).expect("fewer sets than memory") * WAYS;
        first..first + WAYS
    }

    fn fate(&self, key: u64) -> Option<&Fate> {
        self.fates.get(self.ways(key))?.iter().find(|fate| fate.key == key)
    }

    fn fate_mut(&mut self, key: u64) -> &mut Fate {
        if self.fates.is_empty() {
            self.fates = vec![Fate::default(); self.keys];
        }
        let ways = self.ways(key);
        let set = &mut self.fates[ways];
        let at = match set.iter().position(|fate| fate.key == key) {
            Some(at) => at,
            None => {
                // Evict the key with the fewest observations. The others decay a little each time, or a full table would never learn.
                set.iter_mut().for_each(|fate| (fate.born, fate.died) = (fate.born * 0.75, fate.died * 0.75));
                let least = |a: &(usize, &Fate), b: &(usize, &Fate)| {
                    (a.1.born + a.1.died).total_cmp(&(b.1.born + b.1.died))
                };
                let at = set.iter().enumerate().min_by(least).map_or(0, |(at, _)| at);
                set[at] = Fate { key, ..Fate::default() };
                at
            }
        };
        &mut set[at]
    }

    /// Memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.fates.capacity() * size_of::<Fate>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(directory: u64, name: &str) -> SiblingKey {
        SiblingKey::new(directory, name.as_bytes())
    }

    #[test]
    fn files_are_alike_by_directory_and_suffix() {
        assert_eq!(key(1, "a.o"), key(1, "b.o"));
        assert_ne!(key(1, "a.o"), key(1, "a.c"));
        assert_ne!(key(1, "a.o"), key(2, "a.o"));
        assert_eq!(key(1, "a.o").anywhere, key(2, "b.o").anywhere);
        // A hidden file's name, a number, or half a sentence is not a suffix.
        for name in [".profile", "core.1234", "notes", "a.sentence that goes on", "dot."] {
            assert_eq!(key(1, name), key(1, "README"), "{name}");
        }
    }

    #[test]
    fn nothing_is_foretold_before_it_is_known() {
        let mut siblings = Siblings::new(usize::MAX);
        assert_eq!((siblings.expect(key(1, "a.o")), siblings.memory_bytes()), (None, 0));
        for n in 0..4 {
            assert_eq!(siblings.expect(key(1, "a.o")), None, "{n}");
            siblings.born(key(1, "a.o"));
            siblings.died(key(1, "a.o"), 1 << 20);
        }
        let near = |life: Option<u64>| life.is_some_and(|life| life.abs_diff(1 << 20) < 16);
        assert!(near(siblings.expect(key(1, "b.o"))));
        assert_eq!(siblings.expect(key(2, "b.o")), None);
        for _ in 0..12 {
            siblings.born(key(3, "c.o"));
            siblings.died(key(3, "c.o"), 1 << 20);
        }
        assert!(near(siblings.expect(key(2, "b.o"))), "its suffix fared alike everywhere");
        assert!(siblings.memory_bytes() <= 3 << 19);
    }

    #[test]
    fn what_hardly_dies_lives_long_and_what_dies_at_any_age_is_not_foretold() {
        let mut siblings = Siblings::new(usize::MAX);
        for n in 0..64 {
            siblings.born(key(1, "a.c"));
            siblings.born(key(1, "a.tmp"));
            siblings.died(key(1, "a.tmp"), if n % 2 == 0 { 1 << 8 } else { 1 << 30 });
        }
        siblings.died(key(1, "a.c"), 5);
        assert_eq!(siblings.expect(key(1, "b.c")), Some(u64::MAX));
        assert_eq!(siblings.expect(key(1, "b.tmp")), None);
    }

    #[test]
    fn a_directory_speaks_for_itself_only_where_it_differs() {
        let mut siblings = Siblings::new(usize::MAX);
        let mut live = |directory, life| {
            siblings.born(key(directory, "a.mkv"));
            siblings.died(key(directory, "a.mkv"), life);
            siblings.expect(key(directory, "b.mkv"))
        };
        for directory in 0..100 {
            live(directory, 1 << 30);
        }
        let alike = (0..5).map(|_| live(200, 1 << 31)).last().unwrap().unwrap();
        assert!(alike < 5 << 28, "a few that lived twice as long are chance: {alike}");
        let unlike = (0..5).map(|_| live(201, 1 << 33)).last().unwrap().unwrap();
        assert!(unlike.abs_diff(1 << 33) < 1 << 20, "{unlike}");
        // A directory without a clear result uses the suffix over all directories.
        for n in 0..8 {
            siblings.born(key(202, "a.mkv"));
            assert!(siblings.expect(key(202, "b.mkv")).is_some(), "{n}");
        }
    }

    #[test]
    fn what_moved_away_is_not_waited_for() {
        let mut siblings = Siblings::new(usize::MAX);
        for _ in 0..40 {
            // Every other file is renamed, and would die under another name.
            siblings.born(key(1, "a.tmp"));
            siblings.born(key(1, "b.tmp"));
            siblings.left(key(1, "b.tmp"));
            siblings.born(key(1, "c"));
        }
        assert_eq!(siblings.expect(key(1, "d.tmp")), Some(u64::MAX), "those that stayed live on");
        for _ in 0..40 {
            siblings.died(key(1, "a.tmp"), 1 << 20);
            siblings.left(key(1, "x.tmp"));
        }
        let life = siblings.expect(key(1, "d.tmp")).unwrap();
        assert!(life.abs_diff(1 << 20) < 16, "no more are born than died");
    }

    #[test]
    fn what_changes_is_learnt_anew() {
        let mut siblings = Siblings::new(usize::MAX);
        for life in [1 << 10, 1 << 30] {
            for _ in 0..200 {
                siblings.born(key(1, "x"));
                siblings.died(key(1, "x"), life);
            }
            let known = siblings.expect(key(1, "y")).unwrap();
            assert!((life / 2..=life * 2).contains(&known), "{known}, not {life}");
        }
    }

    #[test]
    fn a_full_table_keeps_what_tells_most_and_goes_on_learning() {
        let mut siblings = Siblings::new(64 * size_of::<Fate>());
        for round in 0..200u64 {
            siblings.born(key(0, "often"));
            siblings.died(key(0, "often"), 1 << 20);
            siblings.born(key(round + 1, "once"));
        }
        assert!(siblings.expect(key(0, "often")).is_some());
        assert_eq!(siblings.memory_bytes(), 64 * size_of::<Fate>());
        for _ in 0..8 {
            siblings.born(key(9999, "new"));
            siblings.died(key(9999, "new"), 1 << 20);
        }
        assert!(siblings.expect(key(9999, "new")).is_some());
    }
}
