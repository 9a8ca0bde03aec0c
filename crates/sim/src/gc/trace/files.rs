//! Files of several kinds that are created whole and deleted whole, by several writers concurrently.
//!
//! A kind has directories, a suffix, sizes, its shares of written and of live bytes, and an order of
//! deletion. The two shares determine how long its files live. Kinds whose two shares are equal die as if
//! nothing distinguished them from others.

use super::{Event, Trace};
use std::collections::VecDeque;
use std::ops::Range;
use terrane_space::policy::Hint;
use terrane_wire::Prng;

/// A kind of files.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Directories in which such files are created.
    pub directories: Range<u64>,
    /// The end of their names.
    pub suffix: &'static str,
    /// Lowest and highest size in bytes.
    pub size: Range<u64>,
    /// Small sizes are more frequent: as many files between 1 and 2 as between 2 and 4.
    pub log_uniform: bool,
    /// Share of the bytes written that are of this kind.
    pub written: f64,
    /// Share of the live bytes that are of this kind.
    pub live: f64,
    /// Which file is deleted next.
    pub deletion: DeletionOrder,
    /// The hint that their creators give.
    pub hint: Hint,
}

impl Kind {
    /// Files of any size in the range, named by number, that die at random.
    fn plain(size: Range<u64>) -> Kind {
        let (directories, suffix, log_uniform, deletion) = (1..2, "", false, DeletionOrder::AtRandom);
        Kind { directories, suffix, size, log_uniform, written: 1.0, live: 1.0, deletion, hint: Hint::NotSet }
    }
}

/// The workload of `fsbench gc`: one writer, files of 64 KiB to 8 MiB, a random one deleted for each new one.
/// Gives no hints.
pub fn fsbench() -> Vec<Kind> {
    vec![Kind::plain(64 << 10..8 << 20)]
}

/// Files of 1 to 256 MiB that die at random. Gives no hints.
pub fn flat() -> Vec<Kind> {
    vec![Kind::plain(1 << 20..256 << 20)]
}

/// A file server: half of what is written are a program's cache files, which live a fifteenth as long as
/// recordings. The program gives its cache files the hint `short`; there are no other hints.
pub fn churn() -> Vec<Kind> {
    let kind = |directories, suffix, size, written, live, hint| Kind {
        directories,
        suffix,
        written,
        live,
        hint,
        log_uniform: true,
        ..Kind::plain(size)
    };
    vec![
        kind(1..9, ".part", 1 << 20..32 << 20, 0.5, 0.1, Hint::Short),
        kind(100..140, ".iso", 1 << 20..128 << 20, 0.3, 0.3, Hint::NotSet),
        kind(200..260, ".mkv", 64 << 20..256 << 20, 0.2, 0.6, Hint::NotSet),
    ]
}

/// A build farm: intermediate files die within a build, objects with the next one, packages and logs are
/// rotated, sources stay. The administrator gave the directories of intermediate files and objects the hint
/// `short`; packages, logs and sources have none.
pub fn build_farm() -> Vec<Kind> {
    let kind = |directories, suffix, size, (written, live), deletion, hint| Kind {
        directories,
        suffix,
        written,
        live,
        deletion,
        hint,
        log_uniform: true,
        ..Kind::plain(size)
    };
    vec![
        kind(1..33, ".s", 16 << 10..1 << 20, (0.15, 0.01), DeletionOrder::InOrder, Hint::Short),
        kind(100..400, ".o", 16 << 10..1 << 20, (0.55, 0.14), DeletionOrder::InOrder, Hint::Short),
        kind(500..508, ".tar", 4 << 20..64 << 20, (0.18, 0.3), DeletionOrder::InOrder, Hint::NotSet),
        kind(600..608, ".log", 64 << 10..1 << 20, (0.05, 0.1), DeletionOrder::InOrder, Hint::NotSet),
        kind(1000..3000, ".c", 4 << 10..128 << 10, (0.07, 0.45), DeletionOrder::AtRandom, Hint::NotSet),
    ]
}

impl Kind {
    fn mean_bytes(&self) -> f64 {
        let (least, most) = (self.size.start as f64, self.size.end as f64);
        if self.log_uniform && most > least {
            (most - least) / (most / least).ln()
        } else {
            (least + most) / 2.0
        }
    }
}

/// Which file of a kind is deleted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionOrder {
    /// A random one.
    AtRandom,
    /// The oldest first: rotated, recycled.
    InOrder,
}

struct Population {
    kind: Kind,
    alive: VecDeque<(u64, u64)>,
    live_bytes: u64,
    target_bytes: u64,
}

struct Writer {
    object: u64,
    size: u64,
    written: u64,
}

/// The workload.
pub struct Files {
    kinds: Vec<Population>,
    writers: Vec<Writer>,
    current: usize,
    quantum_left: u64,
    next_object: u64,
    block_bytes: u64,
    deletes: VecDeque<u64>,
    live_bytes: u64,
    level_bytes: u64,
}

/// Bytes that one writer writes before the next continues.
const QUANTUM_BYTES: u64 = 1 << 20;

impl Files {
    /// `writers` files are written at a time. The pool is filled to `live_bytes` first.
    pub fn new(kinds: Vec<Kind>, writers: usize, live_bytes: u64, block_bytes: u64) -> Files {
        let kinds = kinds.into_iter().map(|kind| Population {
            target_bytes: (kind.live * live_bytes as f64) as u64,
            kind,
            alive: VecDeque::new(),
            live_bytes: 0,
        });
        let idle = |_| Writer { object: 0, size: 0, written: 0 };
        Files {
            kinds: kinds.collect(),
            writers: (0..writers).map(idle).collect(),
            current: 0,
            quantum_left: 0,
            next_object: 1,
            block_bytes,
            deletes: VecDeque::new(),
            live_bytes: 0,
            level_bytes: live_bytes,
        }
    }

    fn start_file(&mut self, rng: &mut Prng, filling: bool) -> Event {
        // Shares are of bytes, so kinds of larger files are started less often.
        let part = |population: &Population| {
            let kind = &population.kind;
            (if filling { kind.live } else { kind.written }) / kind.mean_bytes()
        };
        let mut at = rng.next_f64() * self.kinds.iter().map(part).sum::<f64>();
        let kind = self.kinds.iter().position(|population| {
            at -= part(population);
            at < 0.0
        });
        let kind = kind.unwrap_or(0);
        let object = self.next_object;
        self.next_object += 1;
        let of = &self.kinds[kind].kind;
        let Range { start: least, end: most } = of.size;
        let size = if of.log_uniform {
            (least as f64 * (most as f64 / least as f64).powf(rng.next_f64())) as u64
        } else {
            least + rng.below(most - least + 1)
        };
        let directory = of.directories.start + rng.below(of.directories.end - of.directories.start);
        let (hint, name) = (of.hint, format!("{object}{}", of.suffix));
        let population = &mut self.kinds[kind];
        population.alive.push_back((object, size));
        population.live_bytes += size;
        self.live_bytes += size;
        self.writers[self.current] = Writer { object, size, written: 0 };
        Event::Create { object, directory, name, hint, size }
    }

    /// Deletes files until their kind is back at its level.
    fn delete_to_level(&mut self, rng: &mut Prng) {
        let writing: Vec<u64> =
            self.writers.iter().filter(|w| w.written < w.size).map(|writer| writer.object).collect();
        for population in &mut self.kinds {
            while population.live_bytes > population.target_bytes && population.alive.len() > writing.len() {
                let mut at = match population.kind.deletion {
                    DeletionOrder::InOrder => 0,
                    DeletionOrder::AtRandom => rng.below(population.alive.len() as u64) as usize,
                };
                while writing.contains(&population.alive[at].0) {
                    at = (at + 1) % population.alive.len();
                }
                let dead = match population.kind.deletion {
                    DeletionOrder::InOrder => population.alive.remove(at),
                    DeletionOrder::AtRandom => population.alive.swap_remove_back(at),
                };
                let Some((object, size)) = dead else { break };
                population.live_bytes -= size;
                self.live_bytes -= size;
                self.deletes.push_back(object);
            }
        }
    }

    fn write_next(&mut self, rng: &mut Prng, filling: bool) -> Option<Event> {
        if let Some(object) = self.deletes.pop_front() {
            return Some(Event::Delete { object });
        }
        if self.quantum_left == 0 {
            self.current = (self.current + 1) % self.writers.len();
            self.quantum_left = QUANTUM_BYTES;
        }
        let writer = &self.writers[self.current];
        if writer.written >= writer.size {
            if filling && self.live_bytes >= self.level_bytes {
                return None;
            }
            self.delete_to_level(rng);
            let create = self.start_file(rng, filling);
            self.quantum_left = QUANTUM_BYTES;
            return Some(create);
        }
        let writer = &mut self.writers[self.current];
        let bytes = (writer.size - writer.written).min(self.block_bytes);
        let block = (writer.written / self.block_bytes) as u32;
        writer.written += bytes;
        self.quantum_left = self.quantum_left.saturating_sub(bytes);
        Some(Event::Write { object: writer.object, block, bytes })
    }
}

impl Trace for Files {
    fn fill(&mut self, rng: &mut Prng) -> Option<Event> {
        self.write_next(rng, true)
    }

    fn next(&mut self, rng: &mut Prng) -> Option<Event> {
        self.write_next(rng, false)
    }
}
