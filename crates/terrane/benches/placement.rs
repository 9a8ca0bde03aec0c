//! Whether files get zones of their own, and what that saves: whole files of about a zone come and go in a
//! pool on zones in memory.
//!
//!     cargo bench -p terrane --bench placement -- [--zones N] [--zone-mib N] [--open N] [--percent N]
//!         [--writers N] [--file-percent N] [--hints] [--rounds N] [--seed N]
//!
//! The writers take turns. Each writes a piece of 128 KiB to its file, and begins another file when that one
//! is whole. Before that, files chosen at random are deleted until the live data is `--percent` of what the
//! empty pool offers. A round writes as many bytes as the pool offers.
//!
//! *Amplification* is all bytes written to the device, per byte of the files. *Shared* is the part of the
//! files' bytes that lie in a zone with bytes of another file, and *mixed* (with `--hints`) in a zone with
//! bytes of another hint, at the end of a round. A file's hint is short, medium or long in turn, and so is
//! its life: of the files to be deleted, most are short.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "support/args.rs"]
mod args;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/random.rs"]
mod random;

use clap::Parser;
use memory::Memory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use terrane::{Cred, Dataset, Fs, Hint, Ino, WriteFlags};
use terrane_device::Device;
use terrane_format::BlockPtr;
use terrane_format::record::ZoneClass;
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool, Stats};
use terrane_store::env::SystemEnv;
use terrane_wire::{ObjectId, Prng, ZoneSeq};

const PIECE: u64 = 128 << 10;
const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };
const HINTS: [Hint; 3] = [Hint::Short, Hint::Medium, Hint::Long];
/// Of the deletions in a pool with hints, how many are of short, medium and long files.
const DEATHS: [u64; 3] = [12, 3, 1];

/// Whether files get zones of their own, and what that saves
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench placement --")]
struct Options {
    /// Zones of the device
    #[arg(long, value_name = "N", default_value_t = 64)]
    zones: u32,
    /// MiB of a zone
    #[arg(long, value_name = "N", default_value_t = 8)]
    zone_mib: u64,
    /// Zones that may be open at once; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 16)]
    open: u32,
    /// Live data in percent of what the empty pool offers
    #[arg(long, value_name = "N", default_value_t = 80)]
    percent: u64,
    /// Files that are written at the same time
    #[arg(long, value_name = "N", default_value_t = 8)]
    writers: usize,
    /// Size of a file in percent of a zone
    #[arg(long, value_name = "N", default_value_t = 94)]
    file_percent: u64,
    /// Files have hints, and lives to match
    #[arg(long)]
    hints: bool,
    /// Rounds after the pool was filled
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: usize,
    /// Seed of the deletions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn main() {
    let options: Options = args::parse();
    let zone_bytes = options.zone_mib << 20;
    let device = Arc::new(Memory::new(options.zones, zone_bytes, options.open));
    let import = ImportOptions { cache_bytes: 32 << 20, dirty_bytes: 64 << 20, ..ImportOptions::default() };
    let devices: Vec<Arc<dyn Device>> = vec![device];
    let pool =
        Pool::create(devices, &CreateOptions::named("bench"), Arc::new(SystemEnv::new()), &import).unwrap();
    let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
    let dataset = Dataset::create_root(&objects, &[("compression", "off")]).unwrap();
    Fs::format(&dataset, &OWNER).unwrap();
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    fs.sync().unwrap();
    let (offered, before, _) = pool.space();
    let live_max = offered.saturating_sub(before) * options.percent / 100;
    println!(
        "{} zones of {} MiB, {} open: {:.0} MB offered, {} % of it live, {} writers",
        options.zones,
        options.zone_mib,
        options.open,
        offered as f64 / 1e6,
        options.percent,
        options.writers
    );
    let mut churn = Churn {
        fs: &fs,
        file_bytes: (zone_bytes * options.file_percent / 100).next_multiple_of(PIECE),
        live_max,
        live: 0,
        made: 0,
        hinted: options.hints,
        files: BTreeMap::new(),
        rng: Prng::new(options.seed),
        piece: random::bytes(1, PIECE as usize),
        longest_ns: 0,
    };
    let mut open = Vec::new();
    for nth in 0..options.writers as u64 {
        // Independent writers do not begin their files at the same time, so the first ones are shorter.
        let mut file = churn.begin();
        file.bytes = (file.bytes * (nth + 1) / options.writers as u64).next_multiple_of(PIECE);
        open.push(file);
    }
    churn.run(&mut open, live_max * 9 / 8);
    println!("round   amplification   collection   shared   mixed   longest write ms   MB/s");
    for round in 1..=options.rounds {
        let (from, start) = (pool.stats(), Instant::now());
        churn.longest_ns = 0;
        churn.run(&mut open, offered);
        fs.sync().unwrap();
        let (to, secs) = (pool.stats(), start.elapsed().as_secs_f64());
        let (shared, mixed) = churn.overlap(&pool);
        println!(
            "{round:>5} {:>15.3} {:>12.3} {:>6.1} % {:>5.1} % {:>18.1} {:>6.0}",
            device_bytes(&from, &to, None) / offered as f64,
            device_bytes(&from, &to, Some(ZoneClass::Collection)) / offered as f64,
            shared * 100.0,
            mixed * 100.0,
            churn.longest_ns as f64 / 1e6,
            offered as f64 / 1e6 / secs
        );
    }
    fs.sync().unwrap();
    println!("pool: {:?}", pool.check_tables());
    pool.export().unwrap();
}

/// Bytes written meanwhile, of all classes or of one.
fn device_bytes(from: &Stats, to: &Stats, only: Option<ZoneClass>) -> f64 {
    let classes = ZoneClass::ALL.into_iter().zip(from.writes.iter().zip(&to.writes));
    let of = classes.filter(|(class, _)| only.is_none_or(|only| only == *class));
    of.map(|(_, (before, after))| (after.bytes - before.bytes) as f64).sum()
}

struct OpenFile {
    ino: Ino,
    name: u64,
    written: u64,
    bytes: u64,
}

struct Churn<'a> {
    fs: &'a Fs,
    file_bytes: u64,
    live_max: u64,
    live: u64,
    made: u64,
    hinted: bool,
    /// Whole files, by name.
    files: BTreeMap<u64, Ino>,
    rng: Prng,
    piece: Vec<u8>,
    longest_ns: u64,
}

impl Churn<'_> {
    fn hint(&self, name: u64) -> Option<usize> {
        self.hinted.then_some(name as usize % HINTS.len())
    }

    fn begin(&mut self) -> OpenFile {
        while self.live + self.file_bytes > self.live_max && !self.files.is_empty() {
            let name = self.victim();
            let ino = self.files.remove(&name).unwrap();
            self.fs.unlink(self.fs.root(), name.to_string().as_bytes()).unwrap();
            self.fs.forget(ino, 1);
            self.live -= self.file_bytes;
        }
        self.made += 1;
        let name = self.made;
        let ino = self.fs.create(self.fs.root(), name.to_string().as_bytes(), 0o644, &OWNER).unwrap().ino;
        if let Some(hint) = self.hint(name) {
            self.fs.set_write_hint(ino, *HINTS.get(hint).unwrap()).unwrap();
        }
        self.live += self.file_bytes;
        OpenFile { ino, name, written: 0, bytes: self.file_bytes }
    }

    fn victim(&mut self) -> u64 {
        if self.hinted {
            let mut lot = self.rng.below(DEATHS.iter().sum());
            let kind = DEATHS.iter().position(|weight| match lot.checked_sub(*weight) {
                Some(rest) => {
                    lot = rest;
                    false
                }
                None => true,
            });
            let of_kind: Vec<u64> =
                self.files.keys().copied().filter(|name| self.hint(*name) == kind).collect();
            if !of_kind.is_empty() {
                return *of_kind.get(self.rng.below(of_kind.len() as u64) as usize).unwrap();
            }
        }
        let at = self.rng.below(self.files.len() as u64) as usize;
        *self.files.keys().nth(at).unwrap()
    }

    /// Writes this many bytes.
    fn run(&mut self, open: &mut [OpenFile], bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            for file in open.iter_mut() {
                if file.written == file.bytes {
                    self.files.insert(file.name, file.ino);
                    *file = self.begin();
                }
                self.piece
                    .get_mut(..8)
                    .unwrap()
                    .copy_from_slice(&((file.name << 16) | (file.written / PIECE)).to_le_bytes());
                let began = Instant::now();
                let written = self.fs.write(file.ino, file.written, &self.piece, WriteFlags::default());
                assert_eq!(u64::from(written.unwrap()), PIECE, "a piece is written whole");
                self.longest_ns = self.longest_ns.max(began.elapsed().as_nanos() as u64);
                file.written += PIECE;
                left = left.saturating_sub(PIECE);
            }
        }
    }

    /// The parts of the files' bytes that lie in zones with those of another file, and of another hint.
    fn overlap(&self, pool: &Pool) -> (f64, f64) {
        let mut zones: BTreeMap<ZoneSeq, BTreeMap<u64, u64>> = BTreeMap::new();
        for (name, ino) in &self.files {
            let object = self.fs.dataset().object_set().hold(ObjectId(*ino)).unwrap();
            for block in 0..object.block_count() {
                let Some(BlockPtr::Normal(normal)) = object.stored_pointer(block).unwrap() else { continue };
                let first = *normal.addrs.first().unwrap();
                let (zone, ..) = pool.locate(first, normal.psize).unwrap();
                *zones.entry(zone).or_default().entry(*name).or_default() += u64::from(normal.psize);
            }
        }
        let (mut all, mut shared, mut mixed) = (0, 0, 0);
        for files in zones.values() {
            let bytes: u64 = files.values().sum();
            all += bytes;
            let hints: BTreeSet<_> = files.keys().map(|name| self.hint(*name)).collect();
            if files.len() > 1 {
                shared += bytes;
            }
            if hints.len() > 1 {
                let of = |hint: &Option<usize>| -> u64 {
                    files.iter().filter(|(name, _)| self.hint(**name) == *hint).map(|(_, bytes)| bytes).sum()
                };
                mixed += bytes - hints.iter().map(of).max().unwrap_or(0);
            }
        }
        (shared as f64 / all as f64, mixed as f64 / all as f64)
    }
}
