//! Random reads and overwrites of a file that is much larger than the memory.
//!
//! The cases alternate every few seconds, because a machine's speed changes over time: results of cases that
//! ran one after the other would show that as much as the cases. Each case has a pool and a memory budget of
//! its own, and no work is left when its slice ends.

use crate::cpu::own_cpu_ns;
use crate::throttle::own_requests;
use crate::{AccessPattern, Opened, RECORD, Settings, random, record};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrane_cache::blocks::CacheStats;

/// Pointers per indirect block, for records of 16 KiB.
const POINTERS: usize = 32;
/// Resamples of the slices, which show how much of a ratio is due to chance.
const RESAMPLES: usize = 400;

/// The length of slices, their number, and the load.
pub struct Schedule {
    pub warm: usize,
    pub slice: Duration,
    pub rounds: usize,
    /// Concurrent users.
    pub users: usize,
    /// Operations per second of each user, at random times. `None`: each operation follows the one before at
    /// once.
    pub demand: Option<f64>,
    pub same: Option<PathBuf>,
    pub off: Option<PathBuf>,
}

/// One of the alternating cases.
struct Case {
    what: &'static str,
    opened: Opened,
    users: Vec<User>,
    /// Latencies of reads, slice by slice.
    slices: Vec<Vec<Duration>>,
    measured: Duration,
    before: [CacheStats; 2],
}

struct User {
    places: AccessPattern,
    out: Vec<u8>,
    done: UserStats,
}

/// The operations of one user.
#[derive(Default)]
struct UserStats {
    operations: u64,
    /// Latencies of reads that needed no device, and of the reads of this slice.
    hits: Vec<Duration>,
    reads: Vec<Duration>,
    /// Reads with more than one request to the device.
    multi_request: u64,
    cpu_ns: u64,
}

pub fn run(settings: &Settings, schedule: &Schedule) {
    let mut cases = vec![Case::new("as they are stored", settings, schedule.users, &settings.image, false)];
    let others =
        [(&schedule.same, "the same, decompressed", true), (&schedule.off, "stored uncompressed", false)];
    for (image, what, plain_only) in others {
        cases
            .extend(image.as_ref().map(|image| Case::new(what, settings, schedule.users, image, plain_only)));
    }
    for case in &mut cases {
        case.warm(schedule.warm);
    }
    for round in 0..schedule.rounds {
        for nth in 0..cases.len() {
            // No case always follows the same other one.
            let at = (round + nth) % cases.len();
            cases[at].run_slice(schedule);
        }
    }
    report(cases);
}

impl Case {
    fn new(what: &'static str, settings: &Settings, users: usize, image: &Path, plain_only: bool) -> Case {
        let opened = Opened::throttled(image, settings.speed, settings.cache_bytes);
        opened.pool.cache_plain_only(plain_only);
        let places = |user| AccessPattern::new(opened.records, settings.zipf, user);
        let user = |user| User { places: places(user as u64), out: Vec::new(), done: UserStats::default() };
        Case {
            what,
            users: (0..users).map(user).collect(),
            opened,
            slices: Vec::new(),
            measured: Duration::ZERO,
            before: Default::default(),
        }
    }

    fn warm(&mut self, operations: usize) {
        // Every indirect block once.
        let mut out = Vec::new();
        (0..self.opened.records).step_by(POINTERS).for_each(|place| self.opened.read(place, &mut out));
        let each = operations / self.users.len();
        self.together(|user, opened| (0..each).for_each(|_| user.operate(opened, Instant::now())));
        self.wait_until_clean();
        self.users.iter_mut().for_each(|user| user.done = UserStats::default());
        self.before = self.opened.pool.stats().cache_by_kind;
    }

    /// All users concurrently.
    fn together(&mut self, work: impl Fn(&mut User, &Opened) + Sync) {
        let (opened, work) = (&self.opened, &work);
        std::thread::scope(|scope| {
            for user in &mut self.users {
                scope.spawn(move || {
                    // As threads that serve a mount do.
                    terrane_device::set_short_slice();
                    work(user, opened);
                });
            }
        });
    }

    fn run_slice(&mut self, schedule: &Schedule) {
        let began = Instant::now();
        self.together(|user, opened| {
            let mut due = began;
            while began.elapsed() < schedule.slice {
                due = schedule.demand.map_or_else(Instant::now, |demand| due + user.gap(demand));
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                user.operate(opened, due);
            }
        });
        self.measured += began.elapsed();
        self.slices.push(sorted(self.users.iter_mut().flat_map(|user| user.done.reads.drain(..)).collect()));
        self.wait_until_clean();
    }

    /// Waits until nothing is dirty.
    fn wait_until_clean(&self) {
        self.opened.fs.sync().unwrap();
        while self.opened.pool.has_work_left() {
            self.opened.pool.commit_txg(self.opened.pool.open_txg()).unwrap();
        }
    }
}

impl User {
    /// The time between two requests of independent users.
    fn gap(&mut self, demand: f64) -> Duration {
        let part = ((self.places.word() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(-part.ln() / demand)
    }

    /// An operation that was due at `due`; its latency counts from then.
    fn operate(&mut self, opened: &Opened, due: Instant) {
        let place = self.places.next();
        if self.places.word() % 10 < 7 {
            let (cpu, requests) = (own_cpu_ns(), own_requests());
            opened.read(place, &mut self.out);
            let took = due.elapsed();
            self.done.cpu_ns += own_cpu_ns() - cpu;
            match own_requests() - requests {
                0 => self.done.hits.push(took),
                requests => self.done.multi_request += u64::from(requests > 1),
            }
            self.done.reads.push(took);
        } else {
            opened.write(place, &record(place, self.places.state));
        }
        self.done.operations += 1;
    }
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort_unstable();
    times
}

/// Of sorted times, in microseconds.
fn percentile(times: &[Duration], part: f64) -> f64 {
    let at = (times.len().saturating_sub(1) as f64 * part) as usize;
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn report(cases: Vec<Case>) {
    println!(
        "{:<24} {:>7} {:>12} {:>8} {:>9} {:>8} {:>8} {:>6} {:>6} {:>6} {:>7} {:>9} {:>6} {:>7} {:>7}",
        "",
        "hits %",
        "holds MiB of",
        "in MiB",
        "metadata",
        "twice",
        "p50 us",
        "p90",
        "p99",
        "p99.9",
        "hit p50",
        "hit p99",
        "far %",
        "cpu us",
        "ops/s"
    );
    for (nth, case) in cases.iter().enumerate() {
        case.row();
        if nth > 0 {
            compare(&cases[0].slices, &case.slices);
        }
        case.opened.pool.export().unwrap();
    }
}

/// The ratio of p99 between the first case and another one: slice by slice, and of all slices together.
fn compare(first: &[Vec<Duration>], other: &[Vec<Duration>]) {
    let p99 = |reads: &[Duration]| percentile(reads, 0.99);
    let mut ratios: Vec<f64> =
        first.iter().zip(other).map(|(first, other)| p99(first) / p99(other)).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    // Whole slices are resampled, because slow reads cluster within a slice (Efron 1979).
    let all: Vec<usize> = (0..first.len()).collect();
    let noise = random::bytes(99, RESAMPLES * all.len() * 8);
    let mut drawn: Vec<f64> = noise
        .chunks(all.len() * 8)
        .map(|words| {
            let slice = |word: &[u8]| {
                word.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte)) as usize % all.len()
            };
            let slices: Vec<usize> = words.chunks(8).map(slice).collect();
            together(first, &slices) / together(other, &slices)
        })
        .collect();
    drawn.sort_unstable_by(f64::total_cmp);
    println!(
        "{:<24} p99 as stored is {:.2} of its over all rounds (19 of 20 draws of them: {:.2} to {:.2}); by round {:.2} (quartiles {:.2}, {:.2}), and lower in {} of {}",
        "",
        together(first, &all) / together(other, &all),
        drawn[RESAMPLES / 40],
        drawn[RESAMPLES - 1 - RESAMPLES / 40],
        ratios[ratios.len() / 2],
        ratios[ratios.len() / 4],
        ratios[ratios.len() * 3 / 4],
        ratios.iter().filter(|ratio| **ratio < 1.0).count(),
        ratios.len()
    );
}

/// p99 of the reads of these slices, in microseconds.
fn together(slices: &[Vec<Duration>], of: &[usize]) -> f64 {
    let mut reads: Vec<Duration> = of.iter().flat_map(|slice| &slices[*slice]).copied().collect();
    let at = (reads.len().saturating_sub(1) as f64 * 0.99) as usize;
    reads.select_nth_unstable(at).1.as_secs_f64() * 1e6
}

impl Case {
    fn row(&self) {
        let ([data, metadata], [before, _]) = (self.opened.pool.stats().cache_by_kind, self.before);
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let (hits, misses) = ((data.hits - before.hits) as f64, (data.misses - before.misses) as f64);
        let of_users =
            |what: fn(&UserStats) -> u64| self.users.iter().map(|user| what(&user.done)).sum::<u64>() as f64;
        let hits_alone = self.users.iter().flat_map(|user| user.done.hits.iter().copied());
        let (all, hits_alone) = (sorted(self.slices.concat()), sorted(hits_alone.collect()));
        let cpu_us = of_users(|done| done.cpu_ns) / 1e3 / all.len() as f64;
        println!(
            "{:<24} {:>7.1} {:>12} {:>8.1} {:>9.1} {:>8.1} {:>8.0} {:>6.0} {:>6.0} {:>6.0} {:>7.0} {:>9.0} {:>6.2} {:>7.1} {:>7.0}",
            self.what,
            100.0 * hits / (hits + misses),
            (data.blocks * RECORD as u64) >> 20,
            mib(data.bytes),
            mib(metadata.bytes),
            mib(metadata.plain_bytes),
            percentile(&all, 0.5),
            percentile(&all, 0.9),
            percentile(&all, 0.99),
            percentile(&all, 0.999),
            percentile(&hits_alone, 0.5),
            percentile(&hits_alone, 0.99),
            100.0 * of_users(|done| done.multi_request) / all.len() as f64,
            cpu_us,
            of_users(|done| done.operations) / self.measured.as_secs_f64(),
        );
    }
}
