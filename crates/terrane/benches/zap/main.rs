//! ZAPs in process, on a pool in a file: the cost of one operation to its caller, beside measurements of
//! OpenZFS's library.
//!
//! * `micro`: 50 directories of 2,000 names with one integer; `tiny`: with three. `fat`: one ZAP of 1,000,000
//!   names with three. 100 operations in a transaction; lookups of clean blocks that are in the cache.
//! * `server`: a metadata server's directories, each an object with an empty ZAP, entered in its parent with
//!   three integers, one transaction each. The commit is part of the wall time.
//!
//! Each runs with one thread and with two that share nothing but the pool. CPU is the callers' own, per
//! operation, and in brackets the whole process's, including the sync. `ops/s` is by wall time. `scaling` is
//! the operations per second of two threads over those of one. It includes waiting for each other and the
//! sync, but not the time in which the threads were ready and others ran instead.
//!
//!     cargo bench -p terrane --bench zap -- [--rows micro,tiny,fat,server] [--dirs N] [--names N] [--fat-names N]
//!         [--server-names N] [--rounds N] [--dir DIRECTORY] [--json]

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

use args::Args;
use std::sync::Barrier;
use std::time::Instant;
use table::{Row, Table};

/// The settings of a run.
pub struct Run {
    pub threads: usize,
    pub path: std::path::PathBuf,
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

fn main() {
    let args = Args::new();
    let rows = args.option("--rows").unwrap_or_else(|| "micro,tiny,fat,server".into());
    let path = pool::image_path(&args.dir());
    let mut table = Table::new(args.has("--json"));
    for _ in 0..args.number("--rounds", 1) {
        for threads in [1, 2] {
            let run = Run { threads, path: path.clone() };
            for group in rows.split(',') {
                let rows: Vec<Row> = match group {
                    "micro" => zaps::micro(&run, args.number("--dirs", 50), args.number("--names", 2_000)),
                    "tiny" => zaps::tiny(&run, args.number("--dirs", 50), args.number("--names", 2_000)),
                    "fat" => zaps::fat(&run, args.number("--fat-names", 1_000_000)),
                    "server" => server::rows(&run, args.number("--server-names", 200_000)),
                    other => panic!("--rows should be of micro, tiny, fat and server, found '{other}'"),
                };
                rows.into_iter().for_each(|row| table.add(row));
                let _ = std::fs::remove_file(&path);
            }
        }
    }
    table.finish();
}
