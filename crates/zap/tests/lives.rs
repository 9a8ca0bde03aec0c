//! Long lives of ZAPs, compared with a map.
//!
//! A life is a ZAP with its own options that grows, shrinks and changes its content in phases. So it goes through
//! every kind and every conversion, while cursors walk it. Its number determines it completely. The first lives
//! always run, and must cover every conversion: a test that cannot fail proves nothing. `TERRANE_ZAP_LIVES` is the
//! number of other lives, from `TERRANE_SEED_BASE` on (soak: 500, a million operations). A failing life prints its
//! number.

use crate::colliders::colliders;
use crate::oracle::with_ints;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use terrane_wire::Prng;
use terrane_zap::hash::crc64;
use terrane_zap::{
    Cursor, Error, Flags, Key, Kind, MemStore, ShrinkPlan, Store, Value, ValueShape, Zap, ZapOptions,
};

/// Below so many entries, everything is checked after each operation.
const CHECKED_ALWAYS: usize = 300;
/// Above it, after so many operations.
const CHECKED_EACH: u64 = 1000;
const OPERATIONS: u64 = 2000;
/// Bits of a hash that the table of any ZAP may have.
const NEIGHBOUR_BITS: u32 = 17;
/// Names of one hash that slots may hold.
const COLLIDERS_MAX: usize = 127;

/// Choices that follow from a seed.
struct Numbers(Prng);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// The kind of names and values in a phase, and the number of entries to reach.
#[derive(Clone, Copy, Debug)]
struct Phase {
    entries: usize,
    name_bytes_max: usize,
    /// Integers of 8 bytes per value; 0: 1 to 32 integers of any width.
    ints: usize,
    /// Percentage of names with one common hash.
    colliding: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    value: (u8, Vec<u64>),
    /// Its index among the present keys.
    at: usize,
}

/// A cursor during a walk, with the names it must find and those it has found.
struct Walk {
    from: Cursor,
    /// Names that are present since the walk began.
    throughout: BTreeSet<Key>,
    seen: BTreeSet<Key>,
}

/// The conversions and events of a life, and how often each occurred.
type Visited = BTreeMap<String, u64>;

struct Life {
    numbers: Numbers,
    options: ZapOptions,
    /// One of many has thousands of entries, where tables double and shrink back.
    is_large: bool,
    /// Whether it begins with [`TOURS`].
    makes_tours: bool,
    /// Integers in the values of most phases; see [`Phase::ints`].
    usual_ints: usize,
    store: MemStore,
    zap: Zap,
    model: BTreeMap<Key, Held>,
    present: Vec<Key>,
    walks: Vec<Walk>,
    /// A smaller ZAP that was built, and whether the ZAP was changed since.
    plan: Option<(ShrinkPlan, bool)>,
    operations: u64,
    kind: &'static str,
    visited: Visited,
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Nothing => "nothing",
        Kind::Micro => "micro",
        Kind::Tiny { chunk_bytes: 64, .. } => "tiny 64",
        Kind::Tiny { chunk_bytes: 128, .. } => "tiny 128",
        Kind::Tiny { .. } => "tiny 256",
        Kind::Fat => "fat",
    }
}

/// 1,024 names of one hash.
fn flood() -> &'static [Vec<u8>] {
    static NAMES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let mut names: Vec<_> = colliders(28, 10).take(1024).collect();
        names.sort();
        names
    })
}

fn plain(value: &Value) -> (u8, Vec<u64>) {
    (value.int_size(), value.ints())
}

impl Life {
    fn new(number: u64) -> Life {
        let mut numbers = Numbers(Prng::new(number));
        let mut options = ZapOptions::new(numbers.next() | 1);
        options.tiny = numbers.chance(90);
        options.micro_max_bytes = numbers.one_of(&[512, 2048, 8192, 8192, 32_768, 131_072, 1 << 20]);
        options.fat_block_shift = numbers.one_of(&[10, 11, 12, 14, 14, 14]);
        let words = Flags::HASH64.union(Flags::UINT64_KEY);
        options.flags = match numbers.below(20) {
            0 => Flags::HASH64,
            1 => Flags::UINT64_KEY,
            2 => words.union(Flags::PRE_HASHED_KEY),
            _ => Flags::NONE,
        };
        let makes_tours = number.is_multiple_of(4);
        if makes_tours {
            (options.tiny, options.flags, options.micro_max_bytes) = (true, Flags::NONE, 8192);
        }
        // Not random: a few lives in a row have all widths, made both ways.
        let widths = [1, 3, 2, 31, 1, 8, 0, 7, 3, 15, 1, 16];
        let turn = usize::try_from(number % (2 * widths.len() as u64)).unwrap();
        let usual_ints = widths[turn / 2];
        let mut store = MemStore::new();
        let zap = match turn % 2 {
            0 => Zap::create(&mut store, options).unwrap(),
            _ => Zap::open_with(&store, options).unwrap(),
        };
        let kind = name_of(zap.kind(&store).unwrap());
        let (model, present, walks, plan) = Default::default();
        let visited = Visited::new();
        Life {
            numbers,
            options,
            is_large: number % 40 == 39,
            makes_tours,
            usual_ints,
            store,
            zap,
            model,
            present,
            walks,
            plan,
            operations: 0,
            kind,
            visited,
        }
    }

    fn live(mut self) -> Visited {
        if self.makes_tours {
            TOURS.iter().for_each(|tour| self.tour(tour));
        }
        let operations = if self.is_large { 20 * OPERATIONS } else { OPERATIONS };
        while self.operations < operations {
            let phase = self.phase();
            if self.numbers.chance(40) {
                self.remove_misfits(&phase);
            }
            let operations = if self.is_large { 8000 } else { 400 };
            for _ in 0..self.numbers.below(operations) {
                self.operate(&phase);
            }
        }
        self.plan = None;
        let everything = Phase { entries: 0, name_bytes_max: 0, ints: 0, colliding: 0 };
        self.check_lists();
        self.remove_misfits(&everything);
        self.check_lists();
        // When it is empty, it frees everything: at the next removal, if it was opened since the last one.
        if self.options.flags == Flags::NONE {
            self.zap.add(&mut self.store, "the last", &[1]).unwrap();
            self.zap.remove(&mut self.store, "the last").unwrap();
            self.zap.shrink(&mut self.store).unwrap();
            assert_eq!(self.store.blocks_used(), 0);
        }
        self.visited.insert("operations".into(), self.operations);
        self.visited
    }

    /// Grows entry by entry, each of which changes the kind, and shrinks again, during a walk.
    fn tour(&mut self, tour: &[(usize, usize, &'static str)]) {
        let key = |name_bytes: usize| Key::Name(vec![b'a'; name_bytes]);
        for (ints, name_bytes, kind) in tour {
            self.store_one(key(*name_bytes), (8, vec![7; *ints]), true);
            assert_eq!(self.kind, *kind, "{ints} integers, {name_bytes} bytes of name");
            self.walk();
        }
        let below = tour.iter().rev().skip(1).map(|(_, _, kind)| *kind).chain(["nothing"]);
        for ((_, name_bytes, _), kind) in tour.iter().rev().zip(below) {
            self.remove_key(&key(*name_bytes));
            self.plan();
            self.apply();
            assert_eq!(self.kind, kind, "without the name of {name_bytes} bytes");
            self.walk();
        }
    }

    fn phase(&mut self) -> Phase {
        let entries = match self.numbers.below(12) {
            5..12 if self.is_large => self.numbers.below(6000),
            0 => 0,
            1..=3 => self.numbers.below(12),
            4..=8 => self.numbers.below(120),
            _ => self.numbers.below(600),
        };
        let ints = match self.numbers.chance(85) {
            true => self.usual_ints,
            false => self.numbers.one_of(&[1, 2, 3, 5, 9, 20, 31, 0]),
        };
        let colliding = self.numbers.one_of(&[0, 0, 0, 0, 5, 90]);
        // Enough of them to reach the limit.
        let entries = if colliding > 50 { entries + 200 } else { entries };
        Phase {
            entries,
            name_bytes_max: self.numbers.one_of(&[1, 3, 10, 30, 49, 49, 80, 120, 255]),
            ints,
            colliding,
        }
    }

    fn is_of_words(&self) -> bool {
        self.options.flags.has(Flags::UINT64_KEY)
    }

    /// A key of the phase's kind, new or not.
    fn some_key(&mut self, phase: &Phase) -> Key {
        let which = self.numbers.below(2 * phase.entries + 2);
        let mixed = (which as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if self.is_of_words() {
            return Key::U64s(vec![mixed, which as u64][..1 + which % 2].to_vec());
        }
        if self.numbers.chance(phase.colliding) {
            return Key::Name(flood()[which % flood().len()].clone());
        }
        let mut name = format!("{which}").into_bytes();
        let longest = phase.name_bytes_max.max(name.len()) + 1;
        name.resize(name.len().max(usize::try_from(mixed >> 32).unwrap() % longest), b'x');
        Key::Name(name)
    }

    fn some_present(&mut self) -> Option<Key> {
        (!self.present.is_empty())
            .then(|| self.numbers.below(self.present.len()))
            .map(|at| self.present[at].clone())
    }

    fn some_value(&mut self, phase: &Phase) -> (u8, Vec<u64>) {
        let (size, count) = match phase.ints {
            0 => (self.numbers.one_of(&[1u8, 2, 4, 8]), 1 + self.numbers.below(32)),
            ints => (8, ints),
        };
        let ints = (0..count).map(|_| self.numbers.next() >> (64 - 8 * u32::from(size))).collect();
        (size, ints)
    }

    fn operate(&mut self, phase: &Phase) {
        let grows = self.model.len() < phase.entries;
        match self.numbers.below(100) {
            0..60 if grows => self.add_new(phase),
            0..45 => self.remove(phase),
            45..60 => self.add_new(phase),
            60..68 => self.put(phase, true, false),
            68..78 => self.put(phase, false, true),
            78..84 => self.remove(phase),
            84..90 => self.look_up(phase),
            90..96 => self.walk(),
            96 => self.plan(),
            97 => self.apply(),
            98 => self.zap.drop_state(),
            _ => self.open_again(),
        }
    }

    fn add_new(&mut self, phase: &Phase) {
        self.put(phase, !self.operations.is_multiple_of(4), false);
    }

    fn put(&mut self, phase: &Phase, is_add: bool, present: bool) {
        let there = if present { self.some_present() } else { None };
        let key = there.unwrap_or_else(|| self.some_key(phase));
        let value = self.some_value(phase);
        self.store_one(key, value, is_add);
    }

    fn store_one(&mut self, key: Key, value: (u8, Vec<u64>), is_add: bool) {
        let before = (self.model.len() < 50).then(|| self.store.clone());
        let (zap, store) = (&mut self.zap, &mut self.store);
        let outcome = with_ints(value.0, &value.1, |ints| match is_add {
            true => zap.add_ints(store, &key, ints).map(|()| true),
            false => zap.update_ints(store, &key, ints),
        });
        let there = self.model.contains_key(&key);
        self.void_plan();
        match outcome {
            Ok(is_new) => {
                assert_eq!(is_new, !there, "{key:?}");
                match self.model.get_mut(&key) {
                    Some(held) => held.value = value,
                    None => {
                        self.model.insert(key.clone(), Held { value, at: self.present.len() });
                        self.present.push(key);
                    }
                }
            }
            Err(error) => {
                match error {
                    Error::Exists => assert!(is_add && there),
                    Error::EntryTooLarge { .. } => self.visit("refused: too large"),
                    // Only names that agree in more bits than a table has may fill a leaf that cannot be split.
                    Error::Full => {
                        assert!(self.neighbours_chunks(&key, &value) > self.leaf_chunks(), "{key:?}");
                        self.visit("refused: full");
                    }
                    other => panic!("{other}"),
                }
                if let Some(before) = before {
                    assert!(before.image() == self.store.image(), "a refusal changes nothing: {key:?}");
                }
            }
        }
        self.after();
    }

    /// Chunks of a leaf, by FORMAT.md section 8.3.
    fn leaf_chunks(&self) -> usize {
        let bytes = 1usize << self.options.fat_block_shift;
        (bytes - bytes / 16) / 24 - 2
    }

    /// Chunks of all entries that a table may be too small to separate from this one.
    fn neighbours_chunks(&self, key: &Key, value: &(u8, Vec<u64>)) -> usize {
        let place = |key: &Key| match key {
            Key::Name(name) => crc64(self.options.salt, name) >> (64 - NEIGHBOUR_BITS),
            Key::U64s(words) if self.options.flags.has(Flags::PRE_HASHED_KEY) => {
                words[0] >> (64 - NEIGHBOUR_BITS)
            }
            Key::U64s(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                crc64(self.options.salt, &bytes) >> (64 - NEIGHBOUR_BITS)
            }
        };
        let chunks = |key: &Key, (size, ints): &(u8, Vec<u64>)| {
            let name_bytes = key.name().map_or(16, |name| name.len() + 1);
            1 + name_bytes.div_ceil(21) + (ints.len() * usize::from(*size)).div_ceil(21)
        };
        let near = self.model.iter().filter(|(other, _)| *other != key && place(other) == place(key));
        near.map(|(other, held)| chunks(other, &held.value)).sum::<usize>() + chunks(key, value)
    }

    fn remove(&mut self, phase: &Phase) {
        let key = match self.numbers.chance(90) {
            true => self.some_present(),
            false => None,
        };
        let key = key.unwrap_or_else(|| self.some_key(phase));
        self.remove_key(&key);
    }

    fn remove_key(&mut self, key: &Key) {
        let was_there = self.zap.remove(&mut self.store, key).unwrap();
        self.void_plan();
        let held = self.model.remove(key);
        assert_eq!(was_there, held.is_some(), "{key:?}");
        if let Some(held) = held {
            self.present.swap_remove(held.at);
            if let Some(moved) = self.present.get(held.at) {
                self.model.get_mut(moved).unwrap().at = held.at;
            }
            for walk in &mut self.walks {
                walk.throughout.remove(key);
            }
        }
        self.after();
    }

    /// Removes entries that do not fit the coming phase, so that the ZAP can become a smaller kind.
    fn remove_misfits(&mut self, phase: &Phase) {
        let fits = |key: &Key, held: &Held| match key {
            Key::Name(name) => {
                name.len() <= phase.name_bytes_max && held.value.0 == 8 && held.value.1.len() == phase.ints
            }
            Key::U64s(_) => phase.entries > 0,
        };
        let misfits: Vec<Key> =
            self.model.iter().filter(|(k, h)| !fits(k, h)).map(|(k, _)| k.clone()).collect();
        for key in &misfits {
            self.remove_key(key);
            match self.numbers.below(40) {
                0..2 => self.walk(),
                2 => self.plan(),
                _ => {}
            }
        }
    }

    fn look_up(&mut self, phase: &Phase) {
        let there = if self.numbers.chance(70) { self.some_present() } else { None };
        let key = there.unwrap_or_else(|| self.some_key(phase));
        let held = self.model.get(&key).map(|held| &held.value);
        assert_eq!(self.zap.lookup(&self.store, &key).unwrap().as_ref().map(plain).as_ref(), held, "{key:?}");
        let shape = held.map(|(size, ints)| ValueShape { int_size: *size, num_ints: ints.len() });
        assert_eq!(self.zap.shape(&self.store, &key), Ok(shape), "{key:?}");
        match held.map(|(_, ints)| ints.first()) {
            Some(Some(first)) => assert_eq!(self.zap.lookup_u64(&self.store, &key), Ok(Some(*first))),
            Some(None) => assert_eq!(self.zap.lookup_u64(&self.store, &key), Err(Error::NoInteger)),
            None => assert_eq!(self.zap.lookup_u64(&self.store, &key), Ok(None)),
        }
        self.after();
    }

    /// Begins a walk, or continues one.
    fn walk(&mut self) {
        if self.walks.is_empty() || self.walks.len() < 3 && self.numbers.chance(10) {
            let throughout = self.model.keys().cloned().collect();
            self.walks.push(Walk { from: Cursor::START, throughout, seen: BTreeSet::new() });
        }
        let which = self.numbers.below(self.walks.len());
        let max = 1 + self.numbers.below(12);
        let walk = &mut self.walks[which];
        let entries = match max {
            1 => self.zap.next(&self.store, walk.from).unwrap().map(|(entry, _)| entry).into_iter().collect(),
            _ => self.zap.list(&self.store, walk.from, max).unwrap(),
        };
        assert!(entries.len() <= max);
        for entry in &entries {
            assert!(Cursor { hash: entry.hash, cd: entry.cd } >= walk.from, "a walk advances");
            let held = self.model.get(&entry.key).unwrap_or_else(|| panic!("{:?} is not there", entry.key));
            assert_eq!(plain(&entry.value), held.value);
            let again = !walk.seen.insert(entry.key.clone());
            assert!(!(again && walk.throughout.contains(&entry.key)), "{:?} is listed twice", entry.key);
            // In the form that is kept between two system calls.
            let bits = self.zap.hash_bits(&self.store).unwrap();
            walk.from = Cursor::from_u64_with(entry.cursor_after().to_u64_with(bits), bits);
        }
        if entries.len() < max {
            let walk = self.walks.swap_remove(which);
            let missed: Vec<_> = walk.throughout.difference(&walk.seen).collect();
            assert!(missed.is_empty(), "a walk missed {missed:?}");
            self.visit("walk to the end");
        }
        self.after();
    }

    /// Builds a smaller ZAP while readers could go on, to apply it now or later.
    fn plan(&mut self) {
        let due = self.zap.shrink_due(&self.store).unwrap();
        let plan = self.zap.plan_shrink(&self.store).unwrap();
        assert!(due || plan.is_none());
        if let Some(plan) = plan {
            self.plan = Some((plan, false));
        }
        if self.numbers.chance(70) {
            self.apply();
        }
    }

    /// Applies the plan. It must be refused if anything was changed since.
    fn apply(&mut self) {
        let Some((plan, is_void)) = self.plan.take() else { return };
        let bytes = |store: &MemStore| store.blocks_used() * store.block_size();
        let (before, built) = (bytes(&self.store), plan.bytes());
        let applied = self.zap.apply_shrink(&mut self.store, plan).unwrap();
        assert!(!applied || !is_void, "a plan of another state was put in place");
        if applied {
            assert_eq!(bytes(&self.store), built);
            // Smaller slots are a gain, even in a block of the same size.
            assert!(built <= before, "{before} bytes shrank to {built}");
            assert_eq!(self.zap.shrink(&mut self.store), Ok(false), "nothing is left to gain");
            self.visit("shrunk");
        } else {
            assert!(is_void, "a plan of this very state was not put in place");
            self.visit("void plan");
        }
        self.after();
    }

    /// Marks the plan as void: the ZAP has changed since.
    fn void_plan(&mut self) {
        if let Some((_, is_void)) = &mut self.plan {
            *is_void = true;
        }
    }

    fn open_again(&mut self) {
        self.void_plan();

        self.store = MemStore::from_image(&self.store.image(), self.store.block_size());
        self.zap = Zap::open_with(&self.store, self.options).unwrap();
    }

    fn visit(&mut self, what: impl Into<String>) {
        *self.visited.entry(what.into()).or_default() += 1;
    }

    /// Counts the operation and its effect on the kind, and checks everything when that is due.
    fn after(&mut self) {
        self.operations += 1;
        let kind = name_of(self.zap.kind(&self.store).unwrap());
        if kind != self.kind {
            self.visit(format!("{} -> {kind}", self.kind));
            if !self.walks.is_empty() {
                self.visit("conversion under a walk");
            }
            self.kind = kind;
        }
        let entries = self.model.len();
        if entries < CHECKED_ALWAYS || self.operations.is_multiple_of(CHECKED_EACH) {
            let report = self.zap.check(&self.store).unwrap();
            assert!(report.is_clean(), "operation {}: {:?}", self.operations, report.damage);
            assert_eq!(report.entries, entries as u64);
            let colliding = self.model.keys().filter(|key| is_of_flood(key)).count();
            assert!(kind == "fat" || colliding <= COLLIDERS_MAX, "{colliding} colliders in a {kind} ZAP");
            if colliding == COLLIDERS_MAX {
                self.visit("slots at the limit of colliders");
            }
        }
        assert_eq!(self.zap.len(&self.store), Ok(entries as u64));
    }

    /// All entries by one list, and by another ZAP on the same bytes.
    fn check_lists(&self) {
        let image = MemStore::from_image(&self.store.image(), self.store.block_size());
        let opened = Zap::open_with(&image, self.options).unwrap();
        for (zap, store) in [(&self.zap, &self.store), (&opened, &image)] {
            let entries = zap.list(store, Cursor::START, usize::MAX).unwrap();
            let listed: BTreeMap<_, _> = entries.iter().map(|e| (e.key.clone(), plain(&e.value))).collect();
            assert_eq!(listed.len(), entries.len());
            assert!(
                listed.iter().eq(self.model.iter().map(|(key, held)| (key, &held.value)).collect::<Vec<_>>())
            );
        }
    }
}

fn is_of_flood(key: &Key) -> bool {
    matches!(key, Key::Name(name) if name.len() == flood()[0].len() && flood().binary_search(name).is_ok())
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    // Any text, such as a commit's hash.
    Some(text.parse().unwrap_or_else(|_| crc64(1, text.as_bytes())))
}

/// Integers, bytes of name, and the kind that an entry gives the ZAP.
const TOURS: [&[(usize, usize, &str)]; 8] = [
    &[(3, 5, "tiny 64"), (3, 80, "tiny 128"), (3, 200, "tiny 256"), (1, 6, "fat")],
    &[(1, 5, "micro"), (1, 80, "tiny 128"), (1, 200, "tiny 256"), (2, 6, "fat")],
    &[(1, 5, "micro"), (1, 200, "tiny 256")],
    &[(1, 5, "micro"), (3, 6, "fat")],
    &[(3, 5, "tiny 64"), (3, 200, "tiny 256")],
    &[(3, 5, "tiny 64"), (1, 6, "fat")],
    &[(3, 80, "tiny 128"), (1, 6, "fat")],
    &[(31, 1, "tiny 256"), (1, 6, "fat")],
];

/// What the first lives must cover; otherwise they prove less than they claim.
const EVERYWHERE: [&str; 25] = [
    "nothing -> micro",
    "nothing -> tiny 64",
    "nothing -> tiny 128",
    "micro -> tiny 64",
    "micro -> tiny 128",
    "micro -> tiny 256",
    "micro -> fat",
    "tiny 64 -> tiny 128",
    "tiny 64 -> tiny 256",
    "tiny 128 -> tiny 256",
    "tiny 64 -> fat",
    "tiny 128 -> fat",
    "tiny 256 -> fat",
    "fat -> micro",
    "fat -> tiny 64",
    "fat -> tiny 128",
    "fat -> tiny 256",
    "tiny 256 -> tiny 128",
    "tiny 256 -> tiny 64",
    "tiny 256 -> micro",
    "tiny 128 -> tiny 64",
    "void plan",
    "conversion under a walk",
    "walk to the end",
    "slots at the limit of colliders",
];

const FIRST_LIVES: u64 = 24;
/// A fat ZAP of 160 KiB that became slots of 163.5 KiB. Long values in small blocks need less space than slots as
/// wide as the widest.
const LIVES_THAT_FAILED: [u64; 1] = [18_003_333_916_632_999_159];

#[test]
fn a_zap_is_a_map_all_its_lives() {
    let base = number_from("TERRANE_SEED_BASE").unwrap_or(FIRST_LIVES);
    let others = number_from("TERRANE_ZAP_LIVES").unwrap_or(4);
    let mut visited = Visited::new();
    for life in
        (0..FIRST_LIVES).chain(LIVES_THAT_FAILED).chain((0..others).map(|life| base.wrapping_add(life)))
    {
        let lived = std::panic::catch_unwind(|| Life::new(life).live());
        let lived = lived.unwrap_or_else(|_| {
            panic!("life {life}: TERRANE_ZAP_LIVES=1 TERRANE_SEED_BASE={life} repeats it")
        });
        for (what, count) in lived {
            *visited.entry(what).or_default() += count;
        }
    }
    println!("{} lives: {visited:#?}", FIRST_LIVES + LIVES_THAT_FAILED.len() as u64 + others);
    let missing: Vec<_> = EVERYWHERE.iter().filter(|what| !visited.contains_key(**what)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}
