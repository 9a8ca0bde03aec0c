//! `fsync`: append a block and fsync, or replace a file (create, write, fsync, rename), in a loop, by thread count.

use crate::fail::Result;
use crate::report::Report;
use crate::util::{Env, Timed};
use clap::Args;
use std::fs::{self, File};
use std::io::Write;
use std::sync::Barrier;
use std::time::{Duration, Instant};

#[derive(Args, Debug)]
pub struct Opts {
    /// Thread counts to try; every thread appends to its own file
    #[arg(long, value_delimiter = ',', default_values_t = [1usize, 4])]
    pub threads: Vec<usize>,
    /// Bytes per append
    #[arg(long, default_value_t = 4096)]
    pub block: usize,
    /// Also replace a file of one block: create, write, fsync, rename over it
    #[arg(long)]
    pub replace: bool,
    /// Seconds per thread count
    #[arg(long, default_value_t = 5.0)]
    pub secs: f64,
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("fsync", &env.root);
    report.param("block", o.block);
    report.param("secs", o.secs);
    for &threads in &o.threads {
        let t = run_threads(env, o, threads.max(1), &append)?;
        report.push(t.row(format!("append+fsync x{threads}")));
        env.sync()?;
        if o.replace {
            let t = run_threads(env, o, threads.max(1), &replace)?;
            report.push(t.row(format!("replace x{threads}")));
            env.sync()?;
        }
    }
    Ok(report)
}

/// Does a thread's work on files whose names begin with this, until the time is over. Returns the nanoseconds of each round.
type Work<'w> = &'w (dyn Fn(&Env, &str, &[u8], Duration) -> Result<Vec<u64>> + Sync);

fn append(env: &Env, name: &str, block: &[u8], limit: Duration) -> Result<Vec<u64>> {
    let mut file = File::create(env.path(format!("log-{name}")))?;
    repeat(limit, || {
        file.write_all(block)?;
        Ok(file.sync_all()?)
    })
}

fn replace(env: &Env, name: &str, block: &[u8], limit: Duration) -> Result<Vec<u64>> {
    let (new, old) = (env.path(format!("new-{name}")), env.path(format!("kept-{name}")));
    repeat(limit, || {
        let mut file = File::create(&new)?;
        file.write_all(block)?;
        file.sync_all()?;
        Ok(fs::rename(&new, &old)?)
    })
}

fn repeat(limit: Duration, mut round: impl FnMut() -> Result<()>) -> Result<Vec<u64>> {
    let mut lat = Vec::new();
    let start = Instant::now();
    while start.elapsed() < limit {
        let one = Instant::now();
        round()?;
        lat.push(one.elapsed().as_nanos() as u64);
    }
    Ok(lat)
}

fn run_threads(env: &Env, o: &Opts, threads: usize, work: Work<'_>) -> Result<Timed> {
    let barrier = Barrier::new(threads);
    let limit = Duration::from_secs_f64(o.secs);
    let mut total = Timed::default();
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let mut handles = Vec::new();
        for thread in 0..threads {
            let barrier = &barrier;
            handles.push(scope.spawn(move || -> Result<Vec<u64>> {
                let mut block = vec![0u8; o.block];
                env.rng(thread as u64).fill_text(&mut block);
                barrier.wait();
                work(env, &format!("{threads}-{thread}"), &block, limit)
            }));
        }
        for handle in handles {
            total.lat.extend(handle.join().expect("worker panicked")?);
        }
        Ok(())
    })?;
    total.secs = start.elapsed().as_secs_f64();
    total.ops = total.lat.len() as u64;
    total.bytes = total.ops * o.block as u64;
    Ok(total)
}
