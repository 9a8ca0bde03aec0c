//! Predicts the life of new files from similar files.
//!
//! Files of one directory with one suffix tend to live equally long. Objects of a build die with the next build, its sources stay, and a
//! database's log segments end with a checkpoint. Similarity is a [`SimilarityKey`]. For each key the table learns how many files were
//! born, how many died, and how long those had lived. If a directory is new, tells nothing, or differs little, the suffix over all
//! directories is used.
//!
//! Mean lives are means of logarithms: one file forgotten for a year must not outweigh a thousand that lived for a minute. Old
//! observations decay, so the table adapts.
//!
//! The table is bounded, and takes no memory before its first use. A key that finds its set full evicts the key with the fewest
//! observations.

use terrane_wire::splitmix64;

/// Most keys: 1.5 MiB.
const KEYS_MAX: usize = 64 << 10;
/// Associativity of the table.
const WAYS: usize = 4;
/// Weight of a new observation, as 1/n: about the last 16 in a directory, and more over all directories.
const DECAY: f32 = 16.0;
const DECAY_ANYWHERE: f32 = 128.0;
/// A directory behaves like its suffix elsewhere while means differ by less than this, in log2: a factor of four. Lives that end at
/// random differ by a factor of 3.6 in the middle half. Their mean over a few differs by nearly two.
const SIMILAR_MAX: f32 = 2.0;
/// Births needed for a prediction, in a directory and over all directories.
const BIRTHS_MIN: f32 = 4.0;
const BIRTHS_MIN_ANYWHERE: f32 = 16.0;
/// Larger spreads make a mean useless. In log2: a factor of eight.
const SPREAD_MAX: f32 = 3.0;
/// A longer suffix counts as part of the name.
const SUFFIX_MAX: usize = 12;

/// What a file is similar to: its directory with its suffix, and its suffix alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimilarityKey {
    in_directory: u64,
    anywhere: u64,
}

impl SimilarityKey {
    /// `directory` is any stable number of the directory in the pool (data set and object). `name` is the file's name in it.
    pub fn new(directory: u64, name: &[u8]) -> SimilarityKey {
        let mut bytes = [0u8; 16];
        let suffix = suffix(name);
        bytes[..suffix.len()].copy_from_slice(suffix);
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(*bytes[at..].first_chunk().expect("16 bytes")));
        // This runs at every file creation. Forced collisions only worsen the attacker's own placement, so the hash need not be secret.
        let anywhere = splitmix64(low ^ splitmix64(high ^ suffix.len() as u64));
        // 0 marks a free entry.
        SimilarityKey {
            in_directory: splitmix64(anywhere ^ splitmix64(directory)).max(1),
            anywhere: anywhere.max(1),
        }
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
struct LifetimeStats {
    key: u64,
    /// Decayed counts.
    births: f32,
    deaths: f32,
    /// Mean of log2 of the lives, and mean distance from it.
    life_log2: f32,
    spread_log2: f32,
}

impl LifetimeStats {
    /// log2 of the expected life. 64: hardly any file has died. `None`: too few observations, or lives differ too much.
    fn life_log2(&self) -> Option<f32> {
        if self.deaths < self.births / 8.0 {
            return (self.births >= BIRTHS_MIN_ANYWHERE).then_some(64.0);
        }
        let is_sure = self.deaths >= self.births / 2.0 && self.spread_log2 <= SPREAD_MAX;
        is_sure.then_some(self.life_log2)
    }
}

/// What the table knows about files that are similar to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Expected life, in user bytes. `None`: too few observations, or lives differ too much. `u64::MAX`: hardly any has died.
    pub life_bytes: Option<u64>,
    /// Recent births and deaths. Old ones count less, so these are no totals.
    pub births: u64,
    /// As `births`.
    pub deaths: u64,
    /// Whether they are those of the directory and suffix; else those of the suffix in all directories.
    pub is_of_directory: bool,
}

impl Prediction {
    fn of(stats: &LifetimeStats, is_of_directory: bool, is_known: bool) -> Prediction {
        Prediction {
            life_bytes: stats.life_log2().filter(|_| is_known).map(|log2| log2.exp2() as u64),
            births: stats.births.round() as u64,
            deaths: stats.deaths.round() as u64,
            is_of_directory,
        }
    }
}

/// Lifetimes by directory and suffix.
#[derive(Clone, Debug)]
pub struct LifetimePredictor {
    keys: usize,
    stats: Vec<LifetimeStats>,
}

impl LifetimePredictor {
    /// A table of at most `budget_bytes` bytes, and never more than 1.5 MiB.
    pub fn new(budget_bytes: usize) -> LifetimePredictor {
        let keys = (budget_bytes / size_of::<LifetimeStats>()).min(KEYS_MAX) / WAYS * WAYS;
        LifetimePredictor { keys: keys.max(WAYS), stats: Vec::new() }
    }

    /// Notes a file creation.
    pub fn note_created(&mut self, key: SimilarityKey) {
        for (key, decay) in [(key.in_directory, DECAY), (key.anywhere, DECAY_ANYWHERE)] {
            let stats = self.stats_mut(key);
            stats.births += 1.0;
            // Halve both counts, so that their ratio stays.
            if stats.births > 4.0 * decay {
                (stats.births, stats.deaths) = (stats.births / 2.0, stats.deaths / 2.0);
            }
        }
    }

    /// Notes that a file counted under this key was renamed away: it will not die here.
    pub fn note_moved_away(&mut self, key: SimilarityKey) {
        for key in [key.in_directory, key.anywhere] {
            let stats = self.stats_mut(key);
            stats.births = (stats.births - 1.0).max(stats.deaths);
        }
    }

    /// Notes that a file's contents died (unlink, rename over it, truncate to 0), `life_bytes` user bytes after they were written.
    pub fn note_died(&mut self, key: SimilarityKey, life_bytes: u64) {
        let life = (life_bytes.max(1) as f32).log2();
        for (key, decay) in [(key.in_directory, DECAY), (key.anywhere, DECAY_ANYWHERE)] {
            let stats = self.stats_mut(key);
            stats.deaths += 1.0;
            if stats.deaths == 1.0 {
                (stats.life_log2, stats.spread_log2) = (life, 0.0);
            }
            let weight = 1.0 / stats.deaths.min(decay);
            stats.spread_log2 += ((life - stats.life_log2).abs() - stats.spread_log2) * weight;
            stats.life_log2 += (life - stats.life_log2) * weight;
        }
    }

    /// Expected life of a similar new file, in user bytes. `None`: too few observations, or lives differ too much. `u64::MAX`: hardly
    /// any similar file has died.
    pub fn predict(&self, key: SimilarityKey) -> Option<u64> {
        let known = |key, births| {
            self.stats_of(key).filter(|stats| stats.births >= births).and_then(LifetimeStats::life_log2)
        };
        let log2 = match (known(key.in_directory, BIRTHS_MIN), known(key.anywhere, BIRTHS_MIN_ANYWHERE)) {
            // A small difference is chance, and would separate files that die together.
            (Some(in_directory), Some(anywhere)) if (in_directory - anywhere).abs() < SIMILAR_MAX => anywhere,
            (in_directory, anywhere) => in_directory.or(anywhere)?,
        };
        Some(log2.exp2() as u64)
    }

    /// The same, with the observations that it rests on.
    pub fn explain(&self, key: SimilarityKey) -> Prediction {
        let known = |key, births| {
            self.stats_of(key).filter(|stats| stats.births >= births && stats.life_log2().is_some())
        };
        let in_directory = known(key.in_directory, BIRTHS_MIN);
        let anywhere = known(key.anywhere, BIRTHS_MIN_ANYWHERE);
        let predicted = self.predict(key);
        let by = |stats: &LifetimeStats| stats.life_log2().map(|log2| log2.exp2() as u64);
        match (in_directory, anywhere) {
            (_, Some(stats)) if by(stats) == predicted => Prediction::of(stats, false, true),
            (Some(stats), _) => Prediction::of(stats, true, true),
            _ => self
                .stats_of(key.in_directory)
                .map_or(Prediction::default(), |stats| Prediction::of(stats, true, false)),
        }
    }

    fn ways(&self, key: u64) -> std::ops::Range<usize> {
        let sets = self.keys / WAYS;
        let first = usize::try_from(key % sets as u64).expect("the number of a set fits usize") * WAYS;
        first..first + WAYS
    }

    fn stats_of(&self, key: u64) -> Option<&LifetimeStats> {
        self.stats.get(self.ways(key))?.iter().find(|stats| stats.key == key)
    }

    fn stats_mut(&mut self, key: u64) -> &mut LifetimeStats {
        if self.stats.is_empty() {
            self.stats = vec![LifetimeStats::default(); self.keys];
        }
        let ways = self.ways(key);
        let set = &mut self.stats[ways];
        let at = match set.iter().position(|stats| stats.key == key) {
            Some(at) => at,
            None => {
                // Evict the key with the fewest observations. The others decay a little each time, or a full table would never learn.
                set.iter_mut().for_each(|stats| {
                    (stats.births, stats.deaths) = (stats.births * 0.75, stats.deaths * 0.75)
                });
                let least = |a: &(usize, &LifetimeStats), b: &(usize, &LifetimeStats)| {
                    (a.1.births + a.1.deaths).total_cmp(&(b.1.births + b.1.deaths))
                };
                let at = set.iter().enumerate().min_by(least).map_or(0, |(at, _)| at);
                set[at] = LifetimeStats { key, ..LifetimeStats::default() };
                at
            }
        };
        &mut set[at]
    }

    /// Memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.stats.capacity() * size_of::<LifetimeStats>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(directory: u64, name: &str) -> SimilarityKey {
        SimilarityKey::new(directory, name.as_bytes())
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
    fn an_explanation_names_what_was_predicted_and_from_what() {
        let mut predictor = LifetimePredictor::new(usize::MAX);
        assert_eq!(predictor.explain(key(1, "a.o")), Prediction::default());
        for n in 0..200u64 {
            let (dir, name) = [(1, "a.o"), (1, "b.c"), (2, "c.o"), (3, "d.h")][n as usize % 4];
            predictor.note_created(key(dir, name));
            if n % 4 != 3 {
                predictor.note_died(key(dir, name), 1 << (10 + 2 * (n % 4)));
            }
            for (dir, name) in [(1, "x.o"), (1, "x.c"), (2, "x.o"), (3, "x.h"), (4, "x.o"), (4, "x")] {
                let explained = predictor.explain(key(dir, name));
                assert_eq!(explained.life_bytes, predictor.predict(key(dir, name)), "{n} {dir} {name}");
                assert!(explained.births >= explained.deaths);
            }
        }
        let of = |dir, name| predictor.explain(key(dir, name));
        assert_eq!((of(1, "x.c").life_bytes, of(1, "x.c").deaths), (Some(1 << 12), 50));
        assert!(!of(4, "x.o").is_of_directory && of(4, "x.o").deaths > 16);
        assert_eq!((of(3, "x.h").life_bytes, of(3, "x.h").deaths), (Some(u64::MAX), 0));
    }

    #[test]
    fn nothing_is_predicted_from_few_observations() {
        let mut predictor = LifetimePredictor::new(usize::MAX);
        assert_eq!((predictor.predict(key(1, "a.o")), predictor.memory_bytes()), (None, 0));
        for n in 0..4 {
            assert_eq!(predictor.predict(key(1, "a.o")), None, "{n}");
            predictor.note_created(key(1, "a.o"));
            predictor.note_died(key(1, "a.o"), 1 << 20);
        }
        let near = |life: Option<u64>| life.is_some_and(|life| life.abs_diff(1 << 20) < 16);
        assert!(near(predictor.predict(key(1, "b.o"))));
        assert_eq!(predictor.predict(key(2, "b.o")), None);
        for _ in 0..12 {
            predictor.note_created(key(3, "c.o"));
            predictor.note_died(key(3, "c.o"), 1 << 20);
        }
        assert!(near(predictor.predict(key(2, "b.o"))), "its suffix fared alike everywhere");
        assert!(predictor.memory_bytes() <= 3 << 19);
    }

    #[test]
    fn rare_deaths_predict_long_lives_and_wide_spreads_predict_nothing() {
        let mut predictor = LifetimePredictor::new(usize::MAX);
        for n in 0..64 {
            predictor.note_created(key(1, "a.c"));
            predictor.note_created(key(1, "a.tmp"));
            predictor.note_died(key(1, "a.tmp"), if n % 2 == 0 { 1 << 8 } else { 1 << 30 });
        }
        predictor.note_died(key(1, "a.c"), 5);
        assert_eq!(predictor.predict(key(1, "b.c")), Some(u64::MAX));
        assert_eq!(predictor.predict(key(1, "b.tmp")), None);
    }

    #[test]
    fn a_directory_overrides_its_suffix_only_where_it_differs() {
        let mut predictor = LifetimePredictor::new(usize::MAX);
        let mut live = |directory, life| {
            predictor.note_created(key(directory, "a.mkv"));
            predictor.note_died(key(directory, "a.mkv"), life);
            predictor.predict(key(directory, "b.mkv"))
        };
        for directory in 0..100 {
            live(directory, 1 << 30);
        }
        let similar = (0..5).map(|_| live(200, 1 << 31)).last().unwrap().unwrap();
        assert!(similar < 5 << 28, "a few that lived twice as long are chance: {similar}");
        let unlike = (0..5).map(|_| live(201, 1 << 33)).last().unwrap().unwrap();
        assert!(unlike.abs_diff(1 << 33) < 1 << 20, "{unlike}");
        // A directory without a clear result uses the suffix over all directories.
        for n in 0..8 {
            predictor.note_created(key(202, "a.mkv"));
            assert!(predictor.predict(key(202, "b.mkv")).is_some(), "{n}");
        }
    }

    #[test]
    fn files_renamed_away_are_not_counted() {
        let mut predictor = LifetimePredictor::new(usize::MAX);
        for _ in 0..40 {
            // Every other file is renamed, and would die under another name.
            predictor.note_created(key(1, "a.tmp"));
            predictor.note_created(key(1, "b.tmp"));
            predictor.note_moved_away(key(1, "b.tmp"));
            predictor.note_created(key(1, "c"));
        }
        assert_eq!(predictor.predict(key(1, "d.tmp")), Some(u64::MAX), "those that stayed live on");
        for _ in 0..40 {
            predictor.note_died(key(1, "a.tmp"), 1 << 20);
            predictor.note_moved_away(key(1, "x.tmp"));
        }
        let life = predictor.predict(key(1, "d.tmp")).unwrap();
        assert!(life.abs_diff(1 << 20) < 16, "no more are born than died");
    }

    #[test]
    fn predictions_follow_changed_lifetimes() {
        let mut predictor = LifetimePredictor::new(usize::MAX);
        for life in [1 << 10, 1 << 30] {
            for _ in 0..200 {
                predictor.note_created(key(1, "x"));
                predictor.note_died(key(1, "x"), life);
            }
            let known = predictor.predict(key(1, "y")).unwrap();
            assert!((life / 2..=life * 2).contains(&known), "{known}, not {life}");
        }
    }

    #[test]
    fn a_full_table_keeps_frequent_keys_and_admits_new_ones() {
        let mut predictor = LifetimePredictor::new(64 * size_of::<LifetimeStats>());
        for round in 0..200u64 {
            predictor.note_created(key(0, "often"));
            predictor.note_died(key(0, "often"), 1 << 20);
            predictor.note_created(key(round + 1, "once"));
        }
        assert!(predictor.predict(key(0, "often")).is_some());
        assert_eq!(predictor.memory_bytes(), 64 * size_of::<LifetimeStats>());
        for _ in 0..8 {
            predictor.note_created(key(9999, "new"));
            predictor.note_died(key(9999, "new"), 1 << 20);
        }
        assert!(predictor.predict(key(9999, "new")).is_some());
    }
}
