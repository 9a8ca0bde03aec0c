//! A copy that takes over only what changed since a snapshot is equal. File systems have shipped copies that kept old bytes where
//! a file got a hole: a hole does not tell by itself when it was made (issues 4050, 4809, 4996 and 5030 of OpenZFS).
//!
//! The receiver of this test has the files of an older snapshot. It drops files whose number another file has now, cuts files to
//! their size, and takes the ranges that the walk of changes finds. `diff` must name every file that changed.

use std::collections::{BTreeMap, BTreeSet};
use terrane_dataset::Datasets;
use terrane_posix::{FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, SetAttr, WriteFlags};
use terrane_sim::machine::{Machine, Plan, ROOT};
use terrane_sim::seeds::seeds;
use terrane_wire::{ObjectId, Prng, Txg};

const RECORD: u64 = 4096;
/// Records of this size have indirect blocks of 32 pointers: 128 KiB below the first level, 4 MiB below the second.
const SPAN: u64 = 32 * RECORD;
const FILE_BYTES_MAX: u64 = 2 * 32 * SPAN;

/// A file: generation, size, and records that are not all zeros, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    generation: u64,
    size: u64,
    records: BTreeMap<u64, Vec<u8>>,
}

type Files = BTreeMap<Ino, Content>;

struct World {
    machine: Machine,
    datasets: std::sync::Arc<Datasets>,
    /// Files by name.
    files: BTreeMap<String, Ino>,
    /// Files as of each snapshot, and its txg.
    states: Vec<(String, Txg, Files)>,
    fill: u8,
}

impl World {
    fn new(seed: u64) -> World {
        let props = vec![("recordsize", "4K"), ("compression", "lz4"), ("atime", "off")];
        let machine = Machine::create(&Plan { zones: 96, props, ..Plan::small(seed) }).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap();
        World { machine, datasets, files: BTreeMap::new(), states: Vec::new(), fill: 0 }
    }

    fn fs(&self) -> &Fs {
        self.machine.fs()
    }

    fn create(&mut self, name: &str) -> Ino {
        let ino = self.fs().create(self.fs().root(), name.as_bytes(), 0o644, &ROOT).unwrap().ino;
        self.files.insert(name.to_owned(), ino);
        ino
    }

    fn remove(&mut self, name: &str) {
        let ino = self.files.remove(name).unwrap();
        self.fs().unlink(self.fs().root(), name.as_bytes()).unwrap();
        self.fs().forget(ino, 1);
    }

    /// Bytes that are written nowhere else.
    fn write(&mut self, ino: Ino, at: u64, len: u64) {
        self.fill = self.fill % 250 + 1;
        let data = vec![self.fill; len as usize];
        self.fs().write(ino, at, &data, WriteFlags::default()).unwrap();
    }

    fn write_zeros(&self, ino: Ino, at: u64, len: u64) {
        self.fs().write(ino, at, &vec![0; len as usize], WriteFlags::default()).unwrap();
    }

    fn cut(&self, ino: Ino, size: u64) {
        self.fs().setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }, &ROOT).unwrap();
    }

    fn punch(&self, ino: Ino, at: u64, len: u64) {
        self.fs().fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, at, len).unwrap();
    }

    fn sync(&self) {
        self.fs().sync().unwrap();
    }

    fn content(&self, ino: Ino) -> Content {
        let attr = self.fs().getattr(ino).unwrap();
        let (mut records, mut raw) = (BTreeMap::new(), Vec::new());
        let mut at = 0;
        while at < attr.size {
            raw.clear();
            self.fs().read(ino, at, SPAN as u32, &mut raw).unwrap();
            for (number, record) in (at / RECORD..).zip(raw.chunks(RECORD as usize)) {
                if record.iter().any(|byte| *byte != 0) {
                    let mut record = record.to_vec();
                    record.resize(RECORD as usize, 0);
                    records.insert(number, record);
                }
            }
            at += SPAN;
        }
        Content { generation: attr.generation, size: attr.size, records }
    }

    fn contents(&self) -> Files {
        self.files.values().map(|ino| (*ino, self.content(*ino))).collect()
    }

    fn snapshot(&mut self) {
        let name = format!("s{}", self.states.len());
        self.datasets.snapshot(&[("", &name)]).unwrap();
        let since = self.datasets.find_snapshot("", &name).unwrap().info.created;
        self.states.push((name, since, self.contents()));
    }

    /// The receiver has the files of each snapshot, and takes what changed until now.
    fn check(&self) {
        self.sync();
        let now = self.contents();
        let set = self.fs().dataset().object_set().clone();
        for (name, since, files) in &self.states {
            let old = self.datasets.open_snapshot("", name).unwrap();
            let mut changed = Vec::new();
            set.objects_changed_since(old.object_set(), *since, &mut |id| changed.push(id.0)).unwrap();
            let mut received = files.clone();
            for ino in changed {
                let Some(sent) = now.get(&ino) else {
                    received.remove(&ino);
                    continue;
                };
                let empty = Content { records: BTreeMap::new(), ..sent.clone() };
                let file = received.entry(ino).or_insert_with(|| empty.clone());
                if file.generation != sent.generation {
                    *file = empty;
                }
                receive(file, sent, &set.hold(ObjectId(ino)).unwrap(), *since);
            }
            for (ino, content) in &now {
                let found = received.get(ino).unwrap_or_else(|| panic!("inode {ino} since {name}: not sent"));
                let same = found == content;
                assert!(same, "inode {ino} since {name}: {}", differences(found, content));
            }
            assert_eq!(received.len(), now.len(), "since {name}");
            self.check_diff(&Fs::open(old).unwrap(), *since, files, &now);
        }
    }

    fn check_diff(&self, old: &Fs, since: Txg, before: &Files, now: &Files) {
        let mut named = BTreeSet::new();
        terrane_posix::diff(old, self.fs(), since, &mut |change| {
            named.insert(change.path.clone());
        })
        .unwrap();
        for (name, ino) in &self.files {
            if before.get(ino) != now.get(ino) {
                assert!(
                    named.iter().any(|path| path.ends_with(name.as_bytes())),
                    "{name} changed: {named:?}"
                );
            }
        }
    }
}

fn receive(file: &mut Content, sent: &Content, object: &terrane_object::Object, since: Txg) {
    let changes = object.changes_since(since.next(), 0, u64::MAX).unwrap();
    assert_eq!(changes.scanned_to, u64::MAX);
    file.size = sent.size;
    // A receiver keeps what lies behind a cut if the sender says nothing of it: the file may have grown again.
    for hole in changes.holes {
        file.records.retain(|number, _| !hole.contains(&(number * RECORD)));
    }
    for range in changes.written {
        for number in range.start / RECORD..range.end.div_ceil(RECORD).min(FILE_BYTES_MAX / RECORD) {
            match sent.records.get(&number) {
                Some(record) => drop(file.records.insert(number, record.clone())),
                None => drop(file.records.remove(&number)),
            }
        }
    }
}

fn differences(found: &Content, expected: &Content) -> String {
    let numbers: BTreeSet<&u64> = found.records.keys().chain(expected.records.keys()).collect();
    let wrong: Vec<String> = numbers
        .into_iter()
        .filter(|number| found.records.get(number) != expected.records.get(number))
        .map(|number| {
            let byte = |content: &Content| content.records.get(number).map(|record| record[0]);
            format!("record {number}: {:?} instead of {:?}", byte(found), byte(expected))
        })
        .collect();
    format!("{}; sizes {} and {}", wrong.join(", "), found.size, expected.size)
}

/// A sparse file gets the number of one that was full (4809).
#[test]
fn a_number_that_another_file_gets_brings_no_old_bytes() {
    let mut world = World::new(1);
    let old = world.create("old");
    world.write(old, 0, 3 * SPAN);
    world.snapshot();
    world.remove("old");
    let mut again = false;
    for round in 0..200 {
        world.sync();
        let new = world.create(&format!("new {round}"));
        world.cut(new, 3 * SPAN);
        world.write(new, SPAN, RECORD);
        again |= new == old;
        if again {
            break;
        }
    }
    assert!(again, "the canary: no file got the number again");
    world.check();
}

/// A hole of a whole indirect block is filled in part: the rest of it must stay a hole of its txg (4996; illumos 6513).
#[test]
fn a_hole_that_is_filled_in_part_stays_a_hole_of_its_txg() {
    for (at, len) in [(SPAN, SPAN), (0, 4 * SPAN), (32 * SPAN, 8 * SPAN), (0, 34 * SPAN)] {
        let mut world = World::new(2);
        let file = world.create("file");
        world.write(file, 0, 40 * SPAN);
        world.snapshot();
        world.punch(file, at, len);
        world.sync();
        world.check();
        world.snapshot();
        for place in [at, at + len / 2, at + len - RECORD] {
            world.write(file, place, RECORD);
            world.check();
        }
    }
}

/// A file is cut and grows again, in one txg or several, over all its levels (5030, 4050).
#[test]
fn a_file_that_was_cut_and_grew_again_has_holes() {
    for is_one_txg in [true, false] {
        for (keep, to) in
            [(0, 40 * SPAN), (RECORD, 2 * SPAN), (SPAN, 33 * SPAN), (33 * SPAN, 34 * SPAN), (100, 300)]
        {
            let mut world = World::new(3);
            let file = world.create("file");
            world.write(file, 0, 40 * SPAN);
            world.snapshot();
            world.cut(file, keep);
            if !is_one_txg {
                world.sync();
            }
            world.cut(file, to);
            world.check();
            world.snapshot();
            world.write(file, to.saturating_sub(RECORD), RECORD);
            world.check();
        }
    }
}

/// Records that are overwritten with zeros become holes, and so do indirect blocks above them.
#[test]
fn zeros_that_are_written_become_holes_of_their_txg() {
    let mut world = World::new(4);
    let file = world.create("file");
    world.write(file, 0, 34 * SPAN);
    world.snapshot();
    for (at, len) in [(5 * RECORD, RECORD), (SPAN, SPAN), (32 * SPAN, 2 * SPAN), (0, 34 * SPAN)] {
        world.write_zeros(file, at, len);
        world.check();
    }
    world.write(file, 7 * RECORD, RECORD);
    world.check();
}

/// A file of one record grows beyond it, and one that grew a level had a hole as its only record.
#[test]
fn a_file_that_grows_a_level_keeps_its_holes() {
    let mut world = World::new(5);
    let (small, hole) = (world.create("small"), world.create("hole"));
    world.write(small, 0, 700);
    world.write(hole, 0, RECORD);
    world.snapshot();
    world.punch(hole, 0, RECORD);
    world.punch(small, 0, 700);
    world.sync();
    world.snapshot();
    for at in [2 * RECORD, SPAN + RECORD, 33 * SPAN] {
        world.write(small, at, RECORD);
        world.write(hole, at, RECORD);
        world.check();
    }
}

#[test]
fn random_lives_are_received_whole() {
    for seed in seeds(12) {
        let mut rng = Prng::new(seed);
        let mut world = World::new(seed);
        for step in 0..120 {
            let name = format!("f{}", rng.below(5));
            let Some(ino) = world.files.get(&name).copied() else {
                world.create(&name);
                continue;
            };
            let align = [1, RECORD, SPAN][rng.below(3) as usize];
            let at = rng.below(FILE_BYTES_MAX / 2) / align * align;
            let most = [RECORD, SPAN, 12 * SPAN][rng.below(3) as usize];
            let len = (1 + rng.below(most)).div_ceil(align) * align;
            match rng.below(13) {
                // Blocks of another file, or of another place, are older than the change.
                12 => {
                    let names: Vec<Ino> = world.files.values().copied().collect();
                    let from = names[rng.below(names.len() as u64) as usize];
                    let source = rng.below(FILE_BYTES_MAX / 2) / align * align;
                    if from != ino || source.abs_diff(at) >= len {
                        world.fs().clone_range(from, source, ino, at, len).unwrap();
                    }
                }
                0..4 => world.write(ino, at, len),
                4 => world.write_zeros(ino, at, len),
                5..7 => world.punch(ino, at, len),
                7 => world.cut(ino, at),
                8 => world.cut(ino, at + len),
                9 => world.remove(&name),
                10 => world.sync(),
                _ if world.states.len() < 6 => world.snapshot(),
                _ => world.check(),
            }
            if step % 40 == 39 {
                world.check();
            }
        }
    }
}
