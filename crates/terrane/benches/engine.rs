//! Metadata operations in process: operations per second of the engine, and the cost of one operation to its
//! caller.
//!
//! Empty files in 200 directories of a pool in a file, with 1 and 2 threads. `create` and `remove` include
//! the commit at their end. CPU is the callers' own and the whole process's, per operation.
//!
//!     cargo bench -p terrane --bench engine -- [--files N] [--dir DIRECTORY] [--rounds N]

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "support/args.rs"]
mod args;
#[path = "support/cpu.rs"]
mod cpu;
mod support;

use clap::Parser;
use cpu::{own_cpu_ns, process_cpu_ns};
use std::path::PathBuf;
use std::time::Instant;
use support::{DIRS, Mounted, OWNER, mount, pool::image_path};
use terrane::{Fs, Ino};

/// Runs `each` for every file number, split by directory over the threads; prints a row.
fn phase(
    what: &str,
    mounted: &Mounted,
    threads: usize,
    files: usize,
    each: impl Fn(&Fs, Ino, &[u8]) + Sync,
    commit: bool,
) {
    let process = process_cpu_ns();
    let start = Instant::now();
    let caller_ns: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let each = &each;
                scope.spawn(move || {
                    let before = own_cpu_ns();
                    for number in 0..files / DIRS {
                        for dir in mounted.dirs.iter().skip(thread).step_by(threads) {
                            each(&mounted.fs, *dir, format!("file-{number}").as_bytes());
                        }
                    }
                    own_cpu_ns() - before
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let called = start.elapsed();
    if commit {
        mounted.fs.sync().unwrap();
    }
    let whole = start.elapsed();
    let count = files as f64;
    println!(
        "{what:<14} {threads:>7} {:>12.0} {:>12.0} {:>14.2} {:>14.2}",
        count / whole.as_secs_f64(),
        count / called.as_secs_f64(),
        caller_ns as f64 / 1e3 / count,
        (process_cpu_ns() - process) as f64 / 1e3 / count,
    );
}

/// Metadata operations in process
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench engine --")]
struct Options {
    /// Empty files in all directories together
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    files: usize,
    /// Directory in which the pool's file is made
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Repetitions, each with 1 and with 2 threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
}

fn main() {
    let options: Options = args::parse();
    let files = options.files / DIRS * DIRS;
    let path = image_path(&options.dir);
    println!("{files} empty files in {DIRS} directories");
    println!(
        "{:<14} {:>7} {:>12} {:>12} {:>14} {:>14}",
        "", "threads", "ops/s", "ops/s called", "caller us/op", "process us/op"
    );
    for _ in 0..options.rounds {
        for threads in [1, 2] {
            let mounted = mount(&path);
            let create = |fs: &Fs, dir: Ino, name: &[u8]| {
                let ino = fs.create(dir, name, 0o644, &OWNER).unwrap().ino;
                fs.forget(ino, 1);
            };
            phase("create", &mounted, threads, files, create, true);
            let look = |fs: &Fs, dir: Ino, name: &[u8]| {
                let ino = fs.lookup(dir, name).unwrap().ino;
                fs.getattr(ino).unwrap();
                fs.forget(ino, 1);
            };
            phase("lookup+stat", &mounted, threads, files, look, false);
            phase("remove", &mounted, threads, files, |fs, dir, name| fs.unlink(dir, name).unwrap(), true);
            mounted.pool.export().unwrap();
        }
    }
    let _ = std::fs::remove_file(&path);
}
