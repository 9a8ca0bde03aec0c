//! Hit rates of the cache's policy on traces, in percent, beside four known policies.
//!
//! All blocks have one size here. The other policies are written for clarity, and none of them is in the product.
//!
//!     cargo bench -p terrane-cache --bench retention -- [--asked N]

use clap::Parser;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use terrane_cache::retention::{EntryIdx, Retention};
use terrane_wire::Prng;

/// Number of blocks, unless a trace says otherwise.
const BLOCKS: u64 = 15_000;

trait Cache {
    /// Whether the block was cached. Afterwards it is.
    fn access(&mut self, block: u64) -> bool;
}

struct Ours {
    policy: Retention,
    resident: HashMap<u64, EntryIdx>,
    names: Vec<u64>,
    capacity: u64,
}

impl Cache for Ours {
    fn access(&mut self, block: u64) -> bool {
        if let Some(at) = self.resident.get(&block) {
            self.policy.touch(*at);
            return true;
        }
        let (at, _) = self.policy.admit(block, 1, self.capacity);
        self.names.resize(self.names.len().max(at as usize + 1), 0);
        self.names[at as usize] = block;
        self.resident.insert(block, at);
        while self.policy.bytes() > self.capacity {
            let Some(evicted) = self.policy.evict(self.capacity) else { break };
            self.resident.remove(&self.names[evicted as usize]);
        }
        false
    }
}

/// Evicts the least recently used block.
struct Lru {
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
    capacity: usize,
}

impl Cache for Lru {
    fn access(&mut self, block: u64) -> bool {
        self.clock += 1;
        let before = self.used.insert(block, self.clock);
        if let Some(before) = &before {
            self.order.remove(before);
        }
        self.order.insert(self.clock, block);
        if self.used.len() > self.capacity
            && let Some((_, evicted)) = self.order.pop_first()
        {
            self.used.remove(&evicted);
        }
        before.is_some()
    }
}

/// Second chance: Terrane's earlier policy.
struct Clock {
    places: HashMap<u64, usize>,
    ring: Vec<(u64, bool)>,
    hand: usize,
    capacity: usize,
}

impl Cache for Clock {
    fn access(&mut self, block: u64) -> bool {
        if let Some(at) = self.places.get(&block) {
            self.ring[*at].1 = true;
            return true;
        }
        if self.ring.len() < self.capacity {
            self.places.insert(block, self.ring.len());
            self.ring.push((block, false));
            return false;
        }
        loop {
            self.hand = (self.hand + 1) % self.capacity;
            if !std::mem::take(&mut self.ring[self.hand].1) {
                break;
            }
        }
        let evicted = std::mem::replace(&mut self.ring[self.hand], (block, false));
        self.places.remove(&evicted.0);
        self.places.insert(block, self.hand);
        false
    }
}

/// Three FIFO queues: small, main, ghosts (Yang and others, 2023).
struct S3Fifo {
    uses: HashMap<u64, u8>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: VecDeque<u64>,
    is_ghost: HashSet<u64>,
    capacity: usize,
}

impl S3Fifo {
    fn evict(&mut self) {
        let from_small = self.small.len() > self.capacity / 10 || self.main.is_empty();
        let queue = if from_small { &mut self.small } else { &mut self.main };
        let Some(block) = queue.pop_front() else { return };
        let uses = self.uses.get(&block).copied().unwrap_or(0);
        if from_small && uses > 1 {
            self.uses.insert(block, 0);
            self.main.push_back(block);
        } else if !from_small && uses > 0 {
            self.uses.insert(block, uses - 1);
            self.main.push_back(block);
        } else {
            self.uses.remove(&block);
            if from_small {
                self.is_ghost.insert(block);
                self.ghosts.push_back(block);
            }
        }
        while self.ghosts.len() > self.capacity {
            if let Some(evicted) = self.ghosts.pop_front() {
                self.is_ghost.remove(&evicted);
            }
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, block: u64) -> bool {
        if let Some(uses) = self.uses.get_mut(&block) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        self.uses.insert(block, 0);
        if self.is_ghost.remove(&block) { &mut self.main } else { &mut self.small }.push_back(block);
        while self.uses.len() > self.capacity {
            self.evict();
        }
        false
    }
}

/// Adaptive replacement (Megiddo and Modha, 2003): once, often, and the ghosts of both.
struct Arc {
    lists: [BTreeMap<u64, u64>; 4],
    places: HashMap<u64, (usize, u64)>,
    clock: u64,
    wanted: f64,
    capacity: usize,
}

const ONCE: usize = 0;
const OFTEN: usize = 1;
const GHOST_ONCE: usize = 2;
const GHOST_OFTEN: usize = 3;

impl Arc {
    fn put(&mut self, block: u64, list: usize) {
        self.clock += 1;
        if let Some((from, at)) = self.places.insert(block, (list, self.clock)) {
            self.lists[from].remove(&at);
        }
        self.lists[list].insert(self.clock, block);
    }

    fn drop_oldest(&mut self, list: usize) {
        if let Some((_, evicted)) = self.lists[list].pop_first() {
            self.places.remove(&evicted);
        }
    }

    fn replace(&mut self, from_often: bool) {
        let once = self.lists[ONCE].len() as f64;
        let takes_once = once > self.wanted || from_often && once == self.wanted;
        let takes_once = once > 0.0 && (takes_once || self.lists[OFTEN].is_empty());
        let (list, ghosts) = if takes_once { (ONCE, GHOST_ONCE) } else { (OFTEN, GHOST_OFTEN) };
        let oldest = self.lists[list].first_key_value().map(|(_, block)| *block);
        if let Some(oldest) = oldest {
            self.put(oldest, ghosts);
        }
    }

    fn share(&self, other: usize, own: usize) -> f64 {
        (self.lists[other].len() as f64 / self.lists[own].len().max(1) as f64).max(1.0)
    }
}

impl Cache for Arc {
    fn access(&mut self, block: u64) -> bool {
        match self.places.get(&block).map(|(list, _)| *list) {
            Some(ONCE | OFTEN) => {
                self.put(block, OFTEN);
                return true;
            }
            Some(GHOST_ONCE) => {
                let more = self.share(GHOST_OFTEN, GHOST_ONCE);
                self.wanted = (self.wanted + more).min(self.capacity as f64);
                self.replace(false);
                self.put(block, OFTEN);
            }
            Some(_) => {
                let less = self.share(GHOST_ONCE, GHOST_OFTEN);
                self.wanted = (self.wanted - less).max(0.0);
                self.replace(true);
                self.put(block, OFTEN);
            }
            None => {
                let once = self.lists[ONCE].len() + self.lists[GHOST_ONCE].len();
                let all: usize = self.lists.iter().map(BTreeMap::len).sum();
                if once >= self.capacity {
                    if self.lists[ONCE].len() < self.capacity {
                        self.drop_oldest(GHOST_ONCE);
                        self.replace(false);
                    } else {
                        self.drop_oldest(ONCE);
                    }
                } else if all >= self.capacity {
                    if all >= 2 * self.capacity {
                        self.drop_oldest(GHOST_OFTEN);
                    }
                    self.replace(false);
                }
                self.put(block, ONCE);
            }
        }
        false
    }
}

/// Popularity falls with a power of the rank.
struct Zipf(Vec<f64>);

impl Zipf {
    fn of(blocks: u64, power: f64) -> Zipf {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = (1..=blocks)
            .map(|rank| {
                sum += (rank as f64).powf(-power);
                sum
            })
            .collect();
        sums.iter_mut().for_each(|part| *part /= sum);
        Zipf(sums)
    }

    fn pick(&self, random: &mut Prng) -> u64 {
        let part = random.next_f64();
        self.0.partition_point(|sum| *sum < part) as u64
    }
}

fn traces(asked: usize) -> Vec<(&'static str, Vec<u64>)> {
    let mut random = Prng::new(7);
    let mut traces = Vec::new();
    for (name, power) in [("zipf 0.7", 0.7), ("zipf 0.9", 0.9), ("zipf 1.1", 1.1)] {
        let zipf = Zipf::of(BLOCKS, power);
        traces.push((name, (0..asked).map(|_| zipf.pick(&mut random)).collect::<Vec<u64>>()));
    }
    let zipf = Zipf::of(BLOCKS, 0.9);
    let shifted = |at: usize, block: u64| (block + (at * 6 / asked) as u64 * 7919) % BLOCKS;
    traces.push(("zipf, moves 6 times", (0..asked).map(|at| shifted(at, zipf.pick(&mut random))).collect()));
    let mut fresh = 1 << 32;
    let mut scans = Vec::new();
    while scans.len() < asked {
        scans.extend((0..3000).map(|_| zipf.pick(&mut random)));
        scans.extend(fresh..fresh + 6000);
        fresh += 6000;
    }
    traces.push(("zipf and scans", scans));
    let hot = Zipf::of(BLOCKS / 4, 0.9);
    let mut backups = Vec::new();
    while backups.len() < asked {
        backups.extend((0..6000).map(|_| hot.pick(&mut random)));
        backups.extend((1 << 32)..(1 << 32) + BLOCKS);
    }
    traces.push(("zipf and one scan", backups));
    for (name, blocks) in [("loop of 2,400", 2400), ("loop of 4,000", 4000), ("loop of 10,000", 10_000)] {
        traces.push((name, (0..asked as u64).map(|at| at % blocks).collect()));
    }
    let near = |random: &mut Prng| (random.next_f64().powi(2) * 1500.0) as u64;
    traces.push(("window that moves", (0..asked as u64).map(|at| at / 40 + near(&mut random)).collect()));
    let mut phases = Vec::new();
    while phases.len() < asked {
        let base = random.next_u64() % (1 << 40);
        phases.extend((0..4000).map(|_| base + near(&mut random)));
        phases.extend((0..4000).map(|_| zipf.pick(&mut random)));
    }
    traces.push(("phases", phases));
    traces
}

/// Hit rates of the cache's policy on traces
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane-cache --bench retention --")]
struct Options {
    /// Uses of each trace
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    asked: usize,
}

fn main() {
    // `cargo bench` adds the word.
    let Options { asked } = Options::parse_from(std::env::args_os().filter(|word| word != "--bench"));
    println!("hits in a hundred of {asked}");
    println!(
        "{:<20} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "trace", "blocks", "LRU", "clock", "S3-FIFO", "ARC", "ours"
    );
    for (name, trace) in traces(asked) {
        for capacity in [500, 2000] {
            let mut caches: [Box<dyn Cache>; 5] = [
                Box::new(Lru { used: HashMap::new(), order: BTreeMap::new(), clock: 0, capacity }),
                Box::new(Clock { places: HashMap::new(), ring: Vec::new(), hand: 0, capacity }),
                Box::new(S3Fifo {
                    uses: HashMap::new(),
                    small: VecDeque::new(),
                    main: VecDeque::new(),
                    ghosts: VecDeque::new(),
                    is_ghost: HashSet::new(),
                    capacity,
                }),
                Box::new(Arc {
                    lists: Default::default(),
                    places: HashMap::new(),
                    clock: 0,
                    wanted: 0.0,
                    capacity,
                }),
                Box::new(Ours {
                    policy: Retention::default(),
                    resident: HashMap::new(),
                    names: Vec::new(),
                    capacity: capacity as u64,
                }),
            ];
            print!("{name:<20} {capacity:>7}");
            for cache in &mut caches {
                let hits = trace.iter().filter(|block| cache.access(**block)).count();
                print!(" {:>8.1}", 100.0 * hits as f64 / trace.len() as f64);
            }
            println!();
        }
    }
}
