//! Benchmarks of the caches, in process, on a device of a given speed: `--latency` us for each request, and
//! its bytes at `--rate` MB/s, one after the other. Times are wall time, so nothing else should run.
//!
//! * `blocks`: random reads and overwrites, seven to three, of records of 16 KiB in a file that is much
//!   larger than the memory. Cached are blocks as they are stored. With `--same IMAGE`, made alike, the same
//!   budget holds decompressed blocks, as older caches did. With `--off IMAGE` another file is not
//!   compressed. The cases alternate: slices of `--slice` ms, `--rounds` times, each with `--users` that do
//!   one operation after the other. With `--demand` each starts that many operations per second, at random
//!   times, and latency counts from then.
//! * `again`: CPU time of readers of a file that fits into the cache, just after it was written and just
//!   after it was read.
//! * `second`: random reads of a working set of four times the memory, on a slow device with and without a
//!   cache device. Then after a kill, and with flipped bytes of the cache device. In the last case the
//!   content is compared.
//! * `streams`: sequential readers, also backward or in strides, from a cold cache, with and without
//!   prefetch.
//!
//! Files are made once and used again: `make --image FILE [--size MB] [--level PROPERTY] [--record KIB]`.
//!
//!     cargo bench -p terrane --bench caches -- make|blocks|again|second|streams --image FILE [--size MB] [--cache MB] [--asked N]
//!         [--zipf POWER] [--latency US] [--rate MB/s] [--same FILE] [--off FILE] [--warm N] [--slice MS] [--rounds N] [--users N]
//!         [--demand N]

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "../support/args.rs"]
mod args;
mod blocks;
#[path = "../support/cpu.rs"]
mod cpu;
mod l2cache;
#[path = "../support/random.rs"]
mod random;
mod reread;
mod streams;
mod throttle;

use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use terrane::{Cred, Dataset, Fs, Ino, WriteFlags};
use terrane_device::{Device, FileDevice, OpenMode};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SystemEnv;
use throttle::{Speed, throttled};

const RECORD: usize = 16 << 10;
const ZONE_BYTES: u64 = 64 << 20;
/// The file that is read.
const FILE: &[u8] = b"file";
const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };

/// The command line.
struct Settings {
    image: PathBuf,
    operations: usize,
    cache_bytes: usize,
    zipf: Option<f64>,
    speed: Speed,
}

/// A record that compresses by a factor between two and three, like source code: words out of a few, and
/// numbers.
fn record(number: u64, version: u64) -> Vec<u8> {
    let noise = random::bytes(number.wrapping_mul(1 << 20) + version, RECORD / 2);
    let mut out = Vec::with_capacity(RECORD + 16);
    for byte in noise.chunks(3) {
        let word = WORDS[usize::from(byte[0]) % WORDS.len()];
        out.extend_from_slice(word.as_bytes());
        out.extend(byte[1..].iter().map(|letter| b' ' + letter % 64));
        if out.len() >= RECORD {
            break;
        }
    }
    out.resize(RECORD, b'\n');
    out
}

const WORDS: [&str; 16] = [
    "return",
    "static",
    "struct",
    "unsigned",
    "if (err)",
    "kernel",
    "device",
    "0x",
    "NULL",
    "goto out;",
    "const",
    "->",
    "len",
    "size_t",
    "\n\t\t",
    "}\n\n",
];

/// Where operations go: popular records are scattered over the file.
struct AccessPattern {
    records: u64,
    sums: Vec<f64>,
    state: u64,
}

impl AccessPattern {
    /// Each user has another sequence of positions, and none repeats.
    fn new(records: u64, zipf: Option<f64>, user: u64) -> AccessPattern {
        let mut sum = 0.0;
        let mut sums = Vec::new();
        if let Some(power) = zipf {
            sums.extend((1..=records).map(|rank| {
                sum += (rank as f64).powf(-power);
                sum
            }));
        }
        sums.iter_mut().for_each(|part| *part /= sum);
        AccessPattern { records, sums, state: (user << 40) + 1 }
    }

    fn word(&mut self) -> u64 {
        self.state += 1;
        u64::from_le_bytes(random::bytes(self.state, 8).try_into().unwrap())
    }

    fn next(&mut self) -> u64 {
        let word = self.word();
        if self.sums.is_empty() {
            return word % self.records;
        }
        let part = (word >> 11) as f64 / (1u64 << 53) as f64;
        let rank = self.sums.partition_point(|sum| *sum < part) as u64;
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.records
    }
}

fn options(cache_bytes: usize) -> ImportOptions {
    ImportOptions { cache_bytes, dirty_bytes: 64 << 20, ..ImportOptions::default() }
}

/// A pool whose one file is open.
struct Opened {
    pool: Arc<Pool>,
    fs: Arc<Fs>,
    ino: Ino,
    records: u64,
}

impl Opened {
    /// On a device of this speed.
    fn throttled(image: &Path, speed: Speed, cache_bytes: usize) -> Opened {
        Opened::on(Arc::new(throttled(file_device(image, ZONE_BYTES), speed)), cache_bytes)
    }

    fn on(device: Arc<dyn Device>, cache_bytes: usize) -> Opened {
        let pool = Pool::import(vec![device], Arc::new(SystemEnv::new()), &options(cache_bytes)).unwrap();
        let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
        let fs = Fs::open(Arc::new(Dataset::open_root(&objects).unwrap())).unwrap();
        let found = fs.lookup(fs.root(), FILE).unwrap();
        Opened { pool, fs, ino: found.ino, records: found.size / RECORD as u64 }
    }

    fn size(&self) -> u64 {
        self.records * RECORD as u64
    }

    fn read(&self, place: u64, out: &mut Vec<u8>) {
        out.clear();
        self.fs.read(self.ino, place * RECORD as u64, RECORD as u32, out).unwrap();
    }

    fn write(&self, place: u64, content: &[u8]) {
        self.fs.write(self.ino, place * RECORD as u64, content, WriteFlags::default()).unwrap();
    }
}

fn file_device(path: &Path, zone_bytes: u64) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, OpenMode::ReadWrite, zone_bytes).unwrap())
}

/// A pool with one file.
fn make(path: &Path, size: u64, level: &str, record_kib: usize) {
    let _ = std::fs::remove_file(path);
    let bytes = (size * 2).next_multiple_of(ZONE_BYTES) + 32 * ZONE_BYTES;
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(path, bytes, ZONE_BYTES).unwrap());
    let create = CreateOptions::named("caches");
    let pool = Pool::create(vec![device], &create, Arc::new(SystemEnv::new()), &options(64 << 20)).unwrap();
    let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
    let record_size = format!("{record_kib}K");
    let properties = [("recordsize", record_size.as_str()), ("compression", level)];
    let dataset = Dataset::create_root(&objects, &properties).unwrap();
    Fs::format(&dataset, &OWNER).unwrap();
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    let ino = fs.create(fs.root(), FILE, 0o644, &OWNER).unwrap().ino;
    let before = pool.stats();
    for number in 0..size / RECORD as u64 {
        let done = fs.write(ino, number * RECORD as u64, &record(number, 0), WriteFlags::default()).unwrap();
        assert_eq!(done as usize, RECORD);
    }
    fs.sync().unwrap();
    let stats = pool.stats();
    println!(
        "{} MiB in records of {record_kib} KiB, {level}: compressed {:.2} times",
        size >> 20,
        (stats.logical_bytes - before.logical_bytes) as f64
            / (stats.stored_bytes - before.stored_bytes) as f64
    );
    pool.export().unwrap();
}

/// Benchmarks of the caches, on a device of a given speed
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench caches --")]
struct Options {
    /// What is done
    #[arg(value_enum, default_value = "blocks")]
    case: Case,
    /// File with the pool; `terrane-caches.img` in DIRECTORY if it is not given
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// See `--image`
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Size of the file in the pool that `make` makes
    #[arg(long, value_name = "MB", default_value_t = 4096)]
    size: u64,
    /// Its property `compression`
    #[arg(long, value_name = "PROPERTY", default_value = "zstd-3")]
    level: String,
    /// Its property `recordsize`
    #[arg(long, value_name = "KIB", default_value_t = 16)]
    record: usize,
    /// Memory of the cache
    #[arg(long, value_name = "MB", default_value_t = 256)]
    cache: usize,
    /// Operations that are measured
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    asked: usize,
    /// Popular records are read more often, by this power law; all the same if it is not given
    #[arg(long, value_name = "POWER")]
    zipf: Option<f64>,
    /// Time of a request
    #[arg(long, value_name = "US", default_value_t = 100)]
    latency: u64,
    /// Bytes of requests per second
    #[arg(long, value_name = "MB/s", default_value_t = 200)]
    rate: u64,
    /// File made alike, whose blocks are cached decompressed
    #[arg(long, value_name = "FILE")]
    same: Option<PathBuf>,
    /// File made without compression
    #[arg(long, value_name = "FILE")]
    off: Option<PathBuf>,
    /// Operations before the first turn
    #[arg(long, value_name = "N", default_value_t = 45_000)]
    warm: usize,
    /// Duration of a turn
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    slice: u64,
    /// Turns of each case
    #[arg(long, value_name = "N", default_value_t = 15)]
    rounds: usize,
    /// Users that do one operation after the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    users: usize,
    /// Operations per second that each of them starts, at random times; at once if it is not given
    #[arg(long, value_name = "N")]
    demand: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Case {
    Make,
    Blocks,
    Again,
    Second,
    Streams,
    #[value(name = l2cache::CHILD, hide = true)]
    SecondChild,
}

fn main() {
    let options: Options = args::parse();
    let asked = Settings {
        image: options.image.unwrap_or_else(|| options.dir.join("terrane-caches.img")),
        operations: options.asked,
        cache_bytes: options.cache << 20,
        zipf: options.zipf,
        speed: Speed {
            latency: Duration::from_micros(options.latency),
            bytes_per_second: options.rate * 1_000_000,
        },
    };
    match options.case {
        Case::Make => make(&asked.image, options.size << 20, &options.level, options.record),
        Case::Again => reread::run(&asked),
        Case::Second => l2cache::run(&asked),
        Case::Streams => streams::run(&asked),
        Case::SecondChild => l2cache::child(&asked),
        Case::Blocks => {
            let turns = blocks::Schedule {
                warm: options.warm,
                slice: Duration::from_millis(options.slice),
                rounds: options.rounds,
                users: options.users,
                demand: options.demand,
                same: options.same,
                off: options.off,
            };
            blocks::run(&asked, &turns);
        }
    }
}
