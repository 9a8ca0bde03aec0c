//! ZAPs in process, on a pool in a file: the cost of one operation to its caller, beside measurements of
//! OpenZFS's library.
//!
//! * `micro`: 50 directories of 2,000 names with one integer; `tiny`: with three. `fat`: one ZAP of 1,000,000
//!   names with three. 100 operations in a transaction; lookups of clean blocks that are in the cache.
//! * `server`: a metadata server's directories, each an object with an empty ZAP, entered in its parent with
//!   three integers, one transaction each. The commit is part of the wall time.
//!
//! Each runs with one thread and with two (`--threads`) that share nothing but the pool. CPU is the callers' own, per
//! operation, and in brackets the whole process's, including the sync. `ops/s` is by wall time. `scaling` is
//! the operations per second of two threads over those of one. It includes waiting for each other and the
//! sync, but not the time in which the threads were ready and others ran instead.
//!
//!     cargo bench -p terrane --bench zap -- [--rows micro,tiny,fat,server] [--dirs N] [--names N] [--fat-names N]
//!         [--server-names N] [--rounds N] [--threads N,N] [--dir DIRECTORY] [--json]

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "../support/args.rs"]
mod args;
#[path = "../support/cpu.rs"]
mod cpu;
#[path = "../support/pool.rs"]
mod pool;
mod server;
mod table;
mod zaps;

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Instant;
use table::{Row, Table};

/// The settings of a run.
pub struct Run {
    pub threads: usize,
    pub path: PathBuf,
}

/// The time of a phase, over all threads.
#[derive(Clone, Copy)]
pub struct PhaseTime {
    /// CPU time of the threads that ran it.
    pub caller_ns: u64,
    /// CPU time of all threads of the process: the sync and its workers too.
    pub process_ns: u64,
    pub wall_ns: u64,
    /// Of the slowest thread, without the time in which it was ready to run and others ran instead.
    pub undisturbed_ns: u64,
}

/// Time in which this thread was ready to run and others ran instead, in nanoseconds.
fn own_delay_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Runs `each` on every thread's part of the work, all starting at once.
pub fn in_threads<W: Send>(work: &mut [W], each: impl Fn(usize, &mut W) + Sync) -> PhaseTime {
    let barrier = Barrier::new(work.len() + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = work
            .iter_mut()
            .enumerate()
            .map(|(thread, part)| {
                let (barrier, each) = (&barrier, &each);
                scope.spawn(move || {
                    barrier.wait();
                    let (start, delay, cpu) = (Instant::now(), own_delay_ns(), cpu::own_cpu_ns());
                    each(thread, part);
                    let cpu = cpu::own_cpu_ns() - cpu;
                    let wall = start.elapsed().as_nanos() as u64;
                    (cpu, wall.saturating_sub(own_delay_ns() - delay))
                })
            })
            .collect();
        let (start, process) = (Instant::now(), cpu::process_cpu_ns());
        barrier.wait();
        let each: Vec<(u64, u64)> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        PhaseTime {
            caller_ns: each.iter().map(|(cpu, _)| cpu).sum(),
            process_ns: cpu::process_cpu_ns() - process,
            wall_ns: start.elapsed().as_nanos() as u64,
            undisturbed_ns: each.iter().map(|(_, undisturbed)| *undisturbed).max().unwrap_or(0),
        }
    })
}

/// A name: one or more letters and the number, zero padded. Does not allocate, which would cost more than
/// some operations here.
pub struct Name {
    bytes: [u8; 16],
    prefix: usize,
    digits: usize,
}

impl Name {
    pub fn new(prefix: &str, digits: usize) -> Name {
        let mut bytes = [0; 16];
        bytes[..prefix.len()].copy_from_slice(prefix.as_bytes());
        Name { bytes, prefix: prefix.len(), digits }
    }

    pub fn of(&mut self, number: usize) -> &[u8] {
        let end = self.prefix + self.digits;
        let mut rest = number;
        for place in self.bytes[self.prefix..end].iter_mut().rev() {
            *place = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        &self.bytes[..end]
    }
}

/// Every number below `count` once, scattered.
pub fn scattered(count: usize) -> impl Iterator<Item = usize> {
    let step = if count.is_multiple_of(7_919) { 7_907 } else { 7_919 };
    (0..count).map(move |i| i * step % count)
}

/// ZAPs in process: the cost of one operation to its caller
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench zap --")]
struct Options {
    /// Kinds, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "micro,tiny,fat,server")]
    rows: Vec<Rows>,
    /// Directories of `micro` and `tiny`
    #[arg(long, value_name = "N", default_value_t = 50)]
    dirs: usize,
    /// Names in each of them
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    names: usize,
    /// Names of `fat`
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    fat_names: usize,
    /// Names of `server`
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    server_names: usize,
    /// Threads of each repetition
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Repetitions, each with all numbers of threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// Directory in which the pool's file is made
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// One object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Rows {
    Micro,
    Tiny,
    Fat,
    Server,
}

fn main() {
    let options: Options = args::parse();
    let path = pool::image_path(&options.dir);
    let mut table = Table::new(options.json);
    for _ in 0..options.rounds {
        for threads in options.threads.iter().copied() {
            let run = Run { threads, path: path.clone() };
            for group in &options.rows {
                let rows: Vec<Row> = match group {
                    Rows::Micro => zaps::micro(&run, options.dirs, options.names),
                    Rows::Tiny => zaps::tiny(&run, options.dirs, options.names),
                    Rows::Fat => zaps::fat(&run, options.fat_names),
                    Rows::Server => server::rows(&run, options.server_names),
                };
                rows.into_iter().for_each(|row| table.add(row));
                let _ = std::fs::remove_file(&path);
            }
        }
    }
    table.finish();
}
