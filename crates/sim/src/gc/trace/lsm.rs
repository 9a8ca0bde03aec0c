//! A log-structured merge tree, as in RocksDB: tables of one size, in levels ten times as large as the one
//! before.
//!
//! Random keys are overwritten. A memory table's worth of them goes to a log; then it is flushed as a table
//! of level 0, and the log is deleted. Four tables of level 0 are merged into level 1. A level that is too
//! large gives one table, in rotation, to the next level, where it is merged with the tables of the same
//! keys. New tables are written, then the old ones are deleted. Flush and merge run concurrently. Gives no
//! hints.

use super::{Event, Trace};
use std::collections::VecDeque;
use terrane_space::policy::Hint;
use terrane_wire::Prng;

/// Share of the live bytes in the last level when it is full.
const LAST_LEVEL_SHARE: f64 = 0.84;
const FANOUT: u64 = 10;
/// Tables of level 0 that are merged at once, and the least that level 1 holds.
const L0_TABLES: usize = 4;
/// Bytes that one of the concurrent writers writes before the next continues.
const QUANTUM_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy)]
struct Table {
    object: u64,
    bytes: u64,
    /// The range of keys that it covers, from 0 to 1.
    first: f64,
    end: f64,
}

struct Level {
    tables: Vec<Table>,
    max_bytes: u64,
    /// Where the last table that moved to the next level ended.
    compaction_cursor: f64,
}

impl Level {
    fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.bytes).sum()
    }
}

/// The workload.
pub struct Lsm {
    levels: Vec<Level>,
    table_bytes: u64,
    block_bytes: u64,
    next_object: u64,
    queue: VecDeque<Event>,
    is_filled: bool,
    /// The log whose table is being flushed.
    old_log: Option<u64>,
}

impl Lsm {
    /// Tables of `table_bytes`, written in blocks of `block_bytes`.
    pub fn new(live_bytes: u64, table_bytes: u64, block_bytes: u64) -> Lsm {
        let level = |max_bytes| Level { tables: Vec::new(), max_bytes, compaction_cursor: 0.0 };
        let mut most = (live_bytes as f64 * LAST_LEVEL_SHARE) as u64;
        let mut levels = VecDeque::from([level(most)]);
        while most / FANOUT > L0_TABLES as u64 * table_bytes {
            most /= FANOUT;
            levels.push_front(level(most));
        }
        levels.push_front(level(u64::MAX));
        Lsm {
            levels: levels.into(),
            table_bytes,
            block_bytes,
            next_object: 1,
            queue: VecDeque::new(),
            is_filled: false,
            old_log: None,
        }
    }

    fn whole(&mut self, suffix: &str, size: u64, events: &mut VecDeque<Event>) -> u64 {
        let object = self.next_object;
        self.next_object += 1;
        let name = format!("{object}{suffix}");
        events.push_back(Event::Create { object, directory: 1, name, hint: Hint::NotSet, size });
        for block in 0..size.div_ceil(self.block_bytes) {
            let bytes = self.block_bytes.min(size - block * self.block_bytes);
            events.push_back(Event::Write { object, block: block as u32, bytes });
        }
        object
    }

    /// Tables with this many bytes for the keys from `first` to `end`.
    fn tables(&mut self, bytes: u64, first: f64, end: f64, events: &mut VecDeque<Event>) -> Vec<Table> {
        let mut made = Vec::new();
        let mut done = 0;
        let key = |done: u64| first + (end - first) * done as f64 / bytes as f64;
        while done < bytes {
            let size = self.table_bytes.min(bytes - done);
            let object = self.whole(".sst", size, events);
            made.push(Table { object, bytes: size, first: key(done), end: key(done + size) });
            done += size;
        }
        made
    }

    /// Merges tables of a level into the next.
    fn merge(&mut self, level: usize, from: &[Table], events: &mut VecDeque<Event>) {
        let first = from.iter().map(|table| table.first).fold(1.0, f64::min);
        let end = from.iter().map(|table| table.end).fold(0.0, f64::max);
        let into = &mut self.levels[level + 1];
        let (others, rest): (Vec<Table>, Vec<Table>) =
            into.tables.drain(..).partition(|table| table.first < end && table.end > first);
        into.tables = rest;
        let sum = |tables: &[Table]| tables.iter().map(|table| table.bytes).sum::<u64>();
        // The last level has all keys, and new values replace old ones.
        let is_full = level + 2 == self.levels.len();
        let bytes = if is_full { sum(&others) } else { sum(&others) + sum(from) };
        let first = others.iter().map(|table| table.first).fold(first, f64::min);
        let end = others.iter().map(|table| table.end).fold(end, f64::max);
        let made = self.tables(bytes, first, end, events);
        let into = &mut self.levels[level + 1].tables;
        into.extend(made);
        into.sort_by(|a, b| a.first.total_cmp(&b.first));
        events.extend(from.iter().chain(&others).map(|table| Event::Delete { object: table.object }));
    }

    /// What happens until a memory table is full.
    fn cycle(&mut self) {
        let (mut logged, mut flushed, mut merged) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        // Keys and values, as they are in the table.
        let log = self.whole(".log", self.table_bytes, &mut logged);
        let old_log = self.old_log.replace(log);
        if self.levels[0].tables.len() >= L0_TABLES {
            let from = std::mem::take(&mut self.levels[0].tables);
            self.merge(0, &from, &mut merged);
        }
        for level in 1..self.levels.len() - 1 {
            while self.levels[level].bytes() > self.levels[level].max_bytes {
                let Level { tables, compaction_cursor, .. } = &mut self.levels[level];
                let at = tables.iter().position(|table| table.first >= *compaction_cursor).unwrap_or(0);
                let from = tables.remove(at);
                *compaction_cursor = from.end;
                self.merge(level, &[from], &mut merged);
            }
        }
        if let Some(object) = old_log {
            let table = self.tables(self.table_bytes, 0.0, 1.0, &mut flushed);
            self.levels[0].tables.extend(table);
            flushed.push_back(Event::Delete { object });
        }
        while !(logged.is_empty() && flushed.is_empty() && merged.is_empty()) {
            for list in [&mut logged, &mut flushed, &mut merged] {
                let quantum = (QUANTUM_BYTES / self.block_bytes).max(1) as usize;
                self.queue.extend(list.drain(..quantum.min(list.len())));
            }
        }
    }
}

impl Trace for Lsm {
    fn fill(&mut self, _rng: &mut Prng) -> Option<Event> {
        if !std::mem::replace(&mut self.is_filled, true) {
            let mut events = VecDeque::new();
            let last = self.levels.len() - 1;
            self.levels[last].tables = self.tables(self.levels[last].max_bytes, 0.0, 1.0, &mut events);
            self.queue = events;
        }
        self.queue.pop_front()
    }

    fn next(&mut self, _rng: &mut Prng) -> Option<Event> {
        while self.queue.is_empty() {
            self.cycle();
        }
        self.queue.pop_front()
    }
}
