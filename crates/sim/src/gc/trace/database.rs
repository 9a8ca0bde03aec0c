//! A database: a table of pages, its log, temporary files, dumps.
//!
//! Changes go to log segments at once. A checkpoint then writes the changed pages, each once and in order,
//! and the segments before it are deleted. Sorts spill to temporary files with short lives. Dumps are kept,
//! and the oldest is deleted first. The database gives its log the hint `short`, and none to the rest.

use super::{Event, Pick, Trace};
use std::collections::{BTreeSet, VecDeque};
use terrane_space::policy::Hint;
use terrane_wire::Prng;

const PAGES: u64 = 0;
/// Share of pages and dumps in the live bytes; the rest is for the log and temporary files.
const PAGES_SHARE: f64 = 0.78;
const DUMPS_SHARE: f64 = 0.18;
/// Divisor of the number of pages: changes between two checkpoints.
const CHANGES_DIVISOR: u64 = 64;
/// One checkpoint in this many begins a dump.
const CHECKPOINTS_PER_DUMP: u64 = 8;
const DIRECTORIES: [u64; 4] = [1, 2, 3, 4];

/// The workload.
pub struct Database {
    pages: u64,
    page_bytes: u64,
    pick: Pick,
    queue: VecDeque<Event>,
    filling: bool,
    next_object: u64,
    log: VecDeque<u64>,
    dumps: VecDeque<u64>,
    dump_bytes: u64,
    dumps_max: usize,
    segment_bytes: u64,
}

impl Database {
    /// A database that takes `live_bytes` in all, most of it pages.
    pub fn new(live_bytes: u64, page_bytes: u64) -> Database {
        let pages = (live_bytes as f64 * PAGES_SHARE) as u64 / page_bytes;
        let dump_bytes = (live_bytes as f64 * DUMPS_SHARE / 6.0) as u64 / page_bytes * page_bytes;
        Database {
            pages,
            page_bytes,
            pick: Pick::Hot { writes: 0.8, blocks: 0.2 },
            queue: VecDeque::new(),
            filling: true,
            next_object: PAGES,
            log: VecDeque::new(),
            dumps: VecDeque::new(),
            dump_bytes,
            dumps_max: 6,
            segment_bytes: (live_bytes / 512).clamp(page_bytes, 16 << 20),
        }
    }

    fn create(&mut self, kind: usize, suffix: &str, size: u64, hint: Hint) -> (u64, Event) {
        let object = self.next_object;
        self.next_object += 1;
        let name = format!("{object}{suffix}");
        (object, Event::Create { object, directory: DIRECTORIES[kind], name, hint, size })
    }

    fn whole(&self, object: u64, size: u64) -> impl Iterator<Item = Event> + use<> {
        let bytes = self.page_bytes;
        (0..size / bytes).map(move |block| Event::Write { object, block: block as u32, bytes })
    }

    /// What happens until the next checkpoint has ended: transactions and their log, while the pages of the
    /// last checkpoint and a dump are written.
    fn cycle(&mut self, rng: &mut Prng) {
        let bytes = self.page_bytes;
        let changes = self.pages / CHANGES_DIVISOR;
        let dirty: BTreeSet<u64> = (0..changes).map(|_| self.pick.block(self.pages, rng)).collect();
        let mut pages: VecDeque<Event> = dirty
            .into_iter()
            .map(|block| Event::Write { object: PAGES, block: block as u32, bytes })
            .collect();
        let mut logged: Vec<Event> = Vec::new();
        let old: Vec<u64> = self.log.drain(..).collect();
        let segments = (changes * bytes / 2).div_ceil(self.segment_bytes);
        for segment in 0..segments {
            let (object, create) = self.create(1, ".wal", self.segment_bytes, Hint::Short);
            logged.push(create);
            logged.extend(self.whole(object, self.segment_bytes));
            self.log.push_back(object);
            if segment % 4 == 0 {
                let size = self.segment_bytes;
                let (object, create) = self.create(2, ".tmp", size, Hint::NotSet);
                logged.push(create);
                logged.extend(self.whole(object, size));
                logged.push(Event::Delete { object });
            }
        }
        let mut dump: Vec<Event> = Vec::new();
        if rng.one_in(CHECKPOINTS_PER_DUMP) {
            let (object, create) = self.create(3, ".dump", self.dump_bytes, Hint::NotSet);
            dump.extend(
                (self.dumps.len() >= self.dumps_max)
                    .then(|| self.dumps.pop_front())
                    .flatten()
                    .map(|object| Event::Delete { object }),
            );
            dump.push(create);
            dump.extend(self.whole(object, self.dump_bytes));
            self.dumps.push_back(object);
        }
        // Four at a time of each, as long as there are any.
        let (mut logged, mut dump) = (VecDeque::from(logged), VecDeque::from(dump));
        while !(pages.is_empty() && logged.is_empty() && dump.is_empty()) {
            for list in [&mut logged, &mut pages, &mut dump] {
                let now = list.len().min(4);
                self.queue.extend(list.drain(..now));
            }
        }
        self.queue.extend(old.into_iter().map(|object| Event::Delete { object }));
    }
}

impl Trace for Database {
    fn fill(&mut self, rng: &mut Prng) -> Option<Event> {
        if std::mem::take(&mut self.filling) {
            let size = self.pages * self.page_bytes;
            let (_, create) = self.create(0, ".db", size, Hint::NotSet);
            self.queue.push_back(create);
            self.queue.extend(self.whole(PAGES, size));
        }
        if self.queue.is_empty() && self.dumps.len() < self.dumps_max {
            self.cycle(rng);
        }
        self.queue.pop_front()
    }

    fn next(&mut self, rng: &mut Prng) -> Option<Event> {
        if self.queue.is_empty() {
            self.cycle(rng);
        }
        self.queue.pop_front()
    }
}
