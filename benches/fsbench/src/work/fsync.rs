//! `fsync`: append a block and fsync, in a loop, by thread count.

use crate::fail::Result;
use crate::report::Report;
use crate::util::{Env, Timed};
use clap::Args;
use std::fs::File;
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
    /// Seconds per thread count
    #[arg(long, default_value_t = 5.0)]
    pub secs: f64,
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("fsync", &env.root);
    report.param("block", o.block);
    report.param("secs", o.secs);
    for &threads in &o.threads {
        let t = append_loop(env, o, threads.max(1))?;
        report.push(t.row(format!("append+fsync x{threads}")));
        env.sync()?;
    }
    Ok(report)
}

fn append_loop(env: &Env, o: &Opts, threads: usize) -> Result<Timed> {
    let barrier = Barrier::new(threads);
    let limit = Duration::from_secs_f64(o.secs);
    let mut total = Timed::default();
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let mut handles = Vec::new();
        for thread in 0..threads {
            let barrier = &barrier;
            handles.push(scope.spawn(move || -> Result<Vec<u64>> {
                let file = File::create(env.path(format!("log-{threads}-{thread}")));
                let mut block = vec![0u8; o.block];
                env.rng(thread as u64).fill_text(&mut block);
                let mut lat = Vec::new();
                barrier.wait();
                let mut file = file?;
                let start = Instant::now();
                while start.elapsed() < limit {
                    let one = Instant::now();
                    file.write_all(&block)?;
                    file.sync_all()?;
                    lat.push(one.elapsed().as_nanos() as u64);
                }
                Ok(lat)
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
