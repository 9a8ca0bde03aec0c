//! The cost of GC in a nearly full pool with random overwrites, without a kernel or a disk: one file of 4 KiB
//! records, not compressed, on zones in memory.
//!
//!     cargo bench -p terrane --bench collection -- [--pattern uniform|95/5] [--rounds N] [--zones N] [--zone-kib N]
//!         [--percent N] [--dirty-mib N] [--seed N] [--index-kib N]
//!
//! A round overwrites as many bytes as the pool offers; there are 20. `--percent` of the free space of an
//! empty pool is live (90). The defaults (4,096 zones of 1 MiB) need 5 GiB of memory, and write some 350 GB
//! into it.
//!
//! *Amplification* is the bytes written to zones of data and of survivors (directories and padding included),
//! per byte of records that a txg wrote. Records that are overwritten again within their txg cause no writes.
//! Metadata is shown separately.
//!
//! The theory is greedy GC of uniform overwrites in the mean field: a victim's live share v solves
//! ln v = (v - 1) / u, and 1 / (1 - v) bytes are written for one. Its u is the share of the records in all zones that
//! may hold them. Those are the device's zones without the anchors and those of metadata, but with empty and
//! reserved ones.
//!
//! With `--index-kib` that is the limit of relocation index and dead sets, and a thread has records
//! rewritten, as in a server. Their mean and maximum memory are shown then, each sampled 64 times a round.
//!
//! Latencies of single writes are those of the caller, which writes as fast as it can. Memory is what the
//! allocator has given out, without the zones.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "../support/args.rs"]
mod args;
#[path = "../support/memory.rs"]
mod memory;
#[path = "../support/random.rs"]
mod random;

use cap::Cap;
use clap::Parser;
use memory::Memory;
use std::alloc::System;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terrane::{Cred, Dataset, Fs, Ino, Job, JobStep, WriteFlags};
use terrane_device::Device;
use terrane_format::record::ZoneClass;
use terrane_format::rows::Phase;
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool, Stats};
use terrane_store::env::SystemEnv;
use terrane_wire::Prng;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const RECORD: u64 = 4096;
/// Samples of the zones in each round.
const SAMPLES: u64 = 64;
/// How often to check whether records must be rewritten.
const REWRITE_CHECK_PAUSE: Duration = Duration::from_millis(250);
const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };

/// The cost of GC in a nearly full pool with random overwrites, on zones in memory
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench collection --")]
struct Options {
    /// Which records are overwritten: uniform, or percentages of the writes and of the records, such as 95/5
    #[arg(long, default_value = "uniform")]
    pattern: Pattern,
    /// Rounds, each of which overwrites as many bytes as the pool offers
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: usize,
    /// Zones of the device
    #[arg(long, value_name = "N", default_value_t = 4096)]
    zones: u32,
    /// KiB of a zone
    #[arg(long, value_name = "N", default_value_t = 1024)]
    zone_kib: u64,
    /// Live data in percent of the free space of an empty pool
    #[arg(long, value_name = "N", default_value_t = 90)]
    percent: u64,
    /// Limit of changes that are not stored yet, in MiB
    #[arg(long, value_name = "N", default_value_t = 64)]
    dirty_mib: u64,
    /// Seed of the overwrites
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Limit of relocation index and dead sets, in KiB; none if it is not given
    #[arg(long, value_name = "N")]
    index_kib: Option<u64>,
}

fn main() {
    let options: Options = args::parse();
    let Options { pattern, rounds, zones, .. } = options;
    let zone_bytes = options.zone_kib << 10;
    let device = Arc::new(Memory::new(zones, zone_bytes, 0));
    let outside = ALLOCATOR.allocated();
    let dirty_bytes = options.dirty_mib << 20;
    let index_bytes = options.index_kib.map(|kib| kib << 10);
    let import = ImportOptions {
        cache_bytes: 64 << 20,
        dirty_bytes,
        index_bytes: index_bytes.unwrap_or(u64::MAX),
        ..ImportOptions::default()
    };
    let devices: Vec<Arc<dyn Device>> = vec![Arc::<Memory>::clone(&device)];
    let pool =
        Pool::create(devices, &CreateOptions::named("bench"), Arc::new(SystemEnv::new()), &import).unwrap();
    let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
    let dataset = Dataset::create_root(&objects, &[("compression", "off"), ("recordsize", "4K")]).unwrap();
    Fs::format(&dataset, &OWNER).unwrap();
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    let ino = fs.create(fs.root(), b"file", 0o644, &OWNER).unwrap().ino;
    fs.sync().unwrap();

    let (offered, before, _) = pool.space();
    let raw = u64::from(zones - 2) * zone_bytes;
    let records = offered.saturating_sub(before) * options.percent / 100 / RECORD;
    println!(
        "{zones} zones of {} KiB, {:.0} MB offered ({:.1} % of the raw space), {records} records live, {}",
        zone_bytes >> 10,
        offered as f64 / 1e6,
        offered as f64 / raw as f64 * 100.0,
        pattern.name(),
    );
    let mut file = File {
        pool: &pool,
        fs: &fs,
        ino,
        noise: random::bytes(1, RECORD as usize),
        versions: vec![0; records as usize],
    };
    for record in 0..records {
        file.write(record);
    }
    fs.sync().unwrap();

    let is_over = Arc::new(AtomicBool::new(false));
    let rewriter = index_bytes.map(|_| {
        let (fs, is_over) = (fs.clone(), is_over.clone());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                if fs.rewrite_relocated().step(1).unwrap() != JobStep::Progressed {
                    std::thread::sleep(REWRITE_CHECK_PAUSE);
                }
            }
        })
    });
    let mut draw = Draw { rng: Prng::new(options.seed), records, pattern };
    println!("{}", Round::HEAD);
    let mut all: Vec<Round> = Vec::new();
    let mut later_waits = Vec::new();
    for round in 0..rounds {
        let (from, start) = (pool.stats(), Instant::now());
        let mut waits = Vec::with_capacity((offered / RECORD) as usize);
        let (mut shares, mut index) = (Vec::new(), Vec::new());
        for nth in 0..offered / RECORD {
            if nth % (offered / RECORD / SAMPLES).max(1) == 0 {
                shares.push(utilisation(&pool, zone_bytes, zones));
                if index_bytes.is_some() {
                    let stats = pool.stats();
                    index.push(stats.run_index_bytes + stats.dead_set_bytes);
                }
            }
            let record = draw.next();
            let began = Instant::now();
            file.write(record);
            waits.push(began.elapsed().as_nanos() as u64);
        }
        let round_of = Round::between(
            &from,
            &pool,
            start.elapsed().as_secs_f64(),
            shares.iter().sum::<f64>() / shares.len() as f64,
            waits.clone(),
            outside + later_waits.capacity() * size_of::<u64>(),
        );
        println!("{:>5} {}", round + 1, round_of.row());
        if let Some(most) = index.iter().max() {
            let mean = index.iter().sum::<u64>() / index.len() as u64;
            let rewritten = pool.stats().rewritten_bytes - from.rewritten_bytes;
            println!(
                "      index {} KiB, maximum {}; {} MB rewritten",
                mean >> 10,
                most >> 10,
                rewritten / 1_000_000
            );
        }
        all.push(round_of);
        if round >= rounds / 2 {
            later_waits.append(&mut waits);
        }
    }
    is_over.store(true, Ordering::Release);
    rewriter.into_iter().for_each(|thread| thread.join().unwrap());
    let wrong = file.wrong();
    fs.sync().unwrap();
    summary(&all, later_waits, pattern);
    println!("contents: {wrong} of {records} records wrong; pool: {:?}", pool.check_tables());
    pool.export().unwrap();
}

/// One file whose records each hold their version.
struct File<'a> {
    pool: &'a Pool,
    fs: &'a Fs,
    ino: Ino,
    noise: Vec<u8>,
    versions: Vec<u32>,
}

impl File<'_> {
    fn write(&mut self, record: u64) {
        let version = self.versions.get_mut(record as usize).unwrap();
        *version += 1;
        stamp(&mut self.noise, record, *version);
        let written = self.fs.write(self.ino, record * RECORD, &self.noise, WriteFlags::default());
        let written = written.unwrap_or_else(|errno| panic!("{errno}: {:?}", self.pool.status().failed));
        assert_eq!(u64::from(written), RECORD, "a record is written whole");
    }

    /// The number of records that differ from the last write.
    fn wrong(&mut self) -> usize {
        let mut wrong = 0;
        let mut read = Vec::new();
        for (record, version) in self.versions.iter().enumerate() {
            stamp(&mut self.noise, record as u64, *version);
            read.clear();
            self.fs.read(self.ino, record as u64 * RECORD, RECORD as u32, &mut read).unwrap();
            wrong += usize::from(read != self.noise);
        }
        wrong
    }
}

fn stamp(bytes: &mut [u8], record: u64, version: u32) {
    bytes.get_mut(..8).unwrap().copy_from_slice(&record.to_le_bytes());
    bytes.get_mut(8..12).unwrap().copy_from_slice(&version.to_le_bytes());
}

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Uniform,
    /// This percentage of the writes goes to that percentage of the records.
    Skewed(u64, u64),
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(name: &str) -> Result<Pattern, String> {
        let skewed = || {
            let (writes, records) = name.split_once('/')?;
            Some(Pattern::Skewed(writes.parse().ok()?, records.parse().ok()?))
        };
        match name {
            "uniform" => Ok(Pattern::Uniform),
            _ => skewed().ok_or_else(|| "expected uniform, or two percentages such as 95/5".into()),
        }
    }
}

impl Pattern {
    fn name(self) -> String {
        match self {
            Pattern::Uniform => "uniform".into(),
            Pattern::Skewed(writes, records) => {
                format!("{writes} % of the writes to {records} % of the records")
            }
        }
    }
}

/// Chooses the next record.
struct Draw {
    rng: Prng,
    records: u64,
    pattern: Pattern,
}

impl Draw {
    fn random(&mut self, below: u64) -> u64 {
        self.rng.below(below)
    }

    fn next(&mut self) -> u64 {
        let Pattern::Skewed(writes, share) = self.pattern else { return self.random(self.records) };
        let hot = self.records * share / 100;
        let rank =
            if self.random(100) < writes { self.random(hot) } else { hot + self.random(self.records - hot) };
        // Scattered over the file: hot records do not lie together, neither at first nor in the tree.
        let stride = (self.records as f64 * 0.618) as u64 | 1;
        let stride = (stride..).step_by(2).find(|stride| gcd(*stride, self.records) == 1).unwrap();
        (u128::from(rank) * u128::from(stride) % u128::from(self.records)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Bytes written to zones, by content.
#[derive(Clone, Copy, Default)]
struct Written {
    records: f64,
    data: f64,
    collection: f64,
    metadata: f64,
}

impl Written {
    fn between(from: &Stats, to: &Stats) -> Written {
        let mut written = Written::default();
        for (class, (before, after)) in ZoneClass::ALL.into_iter().zip(from.writes.iter().zip(&to.writes)) {
            let bytes = (after.bytes - before.bytes) as f64;
            match class {
                ZoneClass::Data => {
                    written.data += bytes;
                    written.records += ((after.blocks - before.blocks) * RECORD) as f64;
                }
                ZoneClass::Collection => written.collection += bytes,
                _ => written.metadata += bytes,
            }
        }
        written
    }

    fn add(&mut self, other: &Written) {
        self.records += other.records;
        self.data += other.data;
        self.collection += other.collection;
        self.metadata += other.metadata;
    }

    fn amplification(&self) -> f64 {
        (self.data + self.collection) / self.records
    }
}

/// Live share of the zones that may hold records.
fn utilisation(pool: &Pool, zone_bytes: u64, zones: u32) -> f64 {
    let (mut live, mut room) = (0, u64::from(zones - 2) * zone_bytes);
    for zone in pool.zones() {
        match zone.class {
            _ if matches!(zone.phase, Phase::Reclaimed) => {}
            ZoneClass::Data | ZoneClass::Collection => live += zone.live,
            _ => room -= zone_bytes,
        }
    }
    live as f64 / room as f64
}

struct Round {
    secs: f64,
    written: Written,
    /// The mean of [`SAMPLES`] samples.
    utilisation: f64,
    empty: u64,
    txgs: u64,
    txg_ms: f64,
    runs: u64,
    tables_bytes: u64,
    memory: usize,
    p50_us: f64,
    p999_us: f64,
    longest_ms: f64,
}

impl Round {
    const HEAD: &str = "round  secs  MB/s  data+coll.  collection  metadata      u  theory  empty    txgs    ms/txg   runs  \
                        dead sets KiB  memory MiB   p50 us  p99.9 us  longest ms";

    fn between(
        from: &Stats,
        pool: &Pool,
        secs: f64,
        utilisation: f64,
        mut waits: Vec<u64>,
        outside: usize,
    ) -> Round {
        let to = pool.stats();
        let txgs = to.txg_sync.count() - from.txg_sync.count();
        let txg_ns = to.txg_sync.sum_ns - from.txg_sync.sum_ns;
        let memory = ALLOCATOR.allocated() - outside - waits.capacity() * 8;
        waits.sort_unstable();
        Round {
            secs,
            written: Written::between(from, &to),
            utilisation,
            empty: to.zones.empty,
            txgs,
            txg_ms: txg_ns as f64 / 1e6 / txgs.max(1) as f64,
            runs: to.runs,
            tables_bytes: to.dead_set_bytes,
            memory,
            p50_us: quantile(&waits, 0.5),
            p999_us: quantile(&waits, 0.999),
            longest_ms: quantile(&waits, 1.0) / 1e3,
        }
    }

    fn row(&self) -> String {
        format!(
            "{:>5.1} {:>5.1} {:>11.3} {:>11.3} {:>9.3} {:>6.3} {:>7.3} {:>6} {:>7} {:>9.1} {:>6} {:>14} {:>11.1} {:>8.1} {:>9.0} {:>11.1}",
            self.secs,
            self.written.records / 1e6 / self.secs,
            self.written.amplification(),
            self.written.collection / self.written.records,
            self.written.metadata / self.written.records,
            self.utilisation,
            theory(self.utilisation),
            self.empty,
            self.txgs,
            self.txg_ms,
            self.runs,
            self.tables_bytes >> 10,
            self.memory as f64 / 1048576.0,
            self.p50_us,
            self.p999_us,
            self.longest_ms,
        )
    }
}

/// In microseconds, of sorted nanoseconds.
fn quantile(sorted: &[u64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len()) - 1).map_or(0.0, |ns| *ns as f64 / 1e3)
}

/// Bytes written for each byte that users wrote, if this share of the space is live and overwritten at
/// random.
fn theory(utilisation: f64) -> f64 {
    // v = exp((v - 1) / u) has its root below 1 where this iteration goes from 0.
    let live_share = (0..10_000).fold(0.0f64, |v, _| ((v - 1.0) / utilisation).exp());
    1.0 / (1.0 - live_share)
}

fn summary(all: &[Round], mut waits: Vec<u64>, pattern: Pattern) {
    let part = |rounds: &[Round]| {
        let mut sum = Written::default();
        rounds.iter().for_each(|round| sum.add(&round.written));
        let mean =
            |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).sum::<f64>() / rounds.len().max(1) as f64;
        (
            sum,
            mean(&|round| round.utilisation),
            mean(&|round| round.txg_ms),
            mean(&|round| round.memory as f64),
        )
    };
    let (half, quarter) = (all.len() / 2, all.len().div_ceil(4));
    let (written, utilisation, ..) = part(all.get(half..).unwrap());
    let (.., first_ms, first_memory) = part(all.get(..quarter).unwrap());
    let (.., last_ms, last_memory) = part(all.get(all.len() - quarter..).unwrap());
    println!("second half:");
    println!(
        "  amplification of data and collection {:.3} (data {:.3}, collection {:.3}); metadata apart {:.3}",
        written.amplification(),
        written.data / written.records,
        written.collection / written.records,
        written.metadata / written.records,
    );
    let expected = theory(utilisation);
    let of_theory = written.amplification() / expected;
    match pattern {
        Pattern::Uniform => {
            println!("  theory at u = {utilisation:.3}: {expected:.3}; measured is {of_theory:.3} of it")
        }
        Pattern::Skewed(..) => {
            println!("  u = {utilisation:.3} (uniform overwrites would have {expected:.3})")
        }
    }
    waits.sort_unstable();
    let (p50, p999) = (quantile(&waits, 0.5), quantile(&waits, 0.999));
    println!(
        "  a write: p50 {p50:.1} us, p99 {:.1}, p99.9 {p999:.1} ({:.0} x p50), longest {:.1} ms",
        quantile(&waits, 0.99),
        p999 / p50,
        quantile(&waits, 1.0) / 1e3
    );
    println!("last quarter against the first:");
    println!("  a txg {last_ms:.1} ms, {first_ms:.1} ms ({:.2} x)", last_ms / first_ms);
    println!(
        "  memory {:.1} MiB, {:.1} MiB ({:.2} x)",
        last_memory / 1048576.0,
        first_memory / 1048576.0,
        last_memory / first_memory
    );
}
