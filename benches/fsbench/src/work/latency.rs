//! `latency`: how long single operations wait while writers stream.
//!
//! Every writer writes large blocks without a pause, every other one incompressible data. Beside them one
//! prober per kind of operation runs one at a time with pauses, so that it measures waiting and not
//! throughput.
//!
//! Reads and stats are cold: no part of the file and no name is used twice, and the hook before them drops
//! caches or remounts. With `--writers 0` the same probers measure the operations on an idle file system.

use crate::fail::{Context, Result, ensure};
use crate::report::Report;
use crate::util::{Env, Rng, Timed};
use clap::Args;
use rustix::fs::Advice;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Args, Debug)]
pub struct Opts {
    /// Number of streaming writers
    #[arg(long, default_value_t = 2)]
    pub writers: usize,
    /// Bytes per write of a writer
    #[arg(long, default_value_t = 1 << 20)]
    pub chunk: usize,
    /// Bytes after which a writer starts its file again from the beginning
    #[arg(long, default_value_t = 512 << 20)]
    pub rewind: u64,
    /// Bytes of the file that is read
    #[arg(long, default_value_t = 1 << 30)]
    pub size: u64,
    /// Distance in bytes between the blocks that are read; at least a record, so that no two reads share one
    #[arg(long, default_value_t = 128 << 10)]
    pub apart: u64,
    /// Bytes per read
    #[arg(long, default_value_t = 4096)]
    pub block: usize,
    /// Files for stat
    #[arg(long, default_value_t = 20_000)]
    pub files: usize,
    /// Kinds of operations to probe, instead of all
    #[arg(long, value_delimiter = ',')]
    pub probes: Vec<String>,
    /// Maximum seconds; a prober ends earlier when it has no cold objects left
    #[arg(long, default_value_t = 20.0)]
    pub secs: f64,
    /// Pause of a prober between two operations, in milliseconds
    #[arg(long, default_value_t = 2)]
    pub rest_ms: u64,
}

/// Time for the writers to reach their steady rate, and to fill buffers that accept data at memory speed,
/// before the measurement.
const WARM_UP: Duration = Duration::from_secs(2);

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    ensure!(
        o.chunk > 0 && o.block > 0 && o.apart >= o.block as u64,
        "--apart is smaller than a block, or a size is 0"
    );
    ensure!(
        o.size >= o.apart && o.rewind >= o.chunk as u64,
        "--size is below --apart, or --rewind below --chunk"
    );
    let mut report = Report::new("latency", &env.root);
    report.param("writers", o.writers);
    report.param("chunk", o.chunk);
    report.param("block", o.block);
    report.param("rest_ms", o.rest_ms);
    let unknown = o.probes.iter().find(|probe| probers().iter().all(|(phase, _)| phase != probe));
    ensure!(unknown.is_none(), "--probes: no kind is called {}", unknown.map_or("", |probe| probe));
    prepare(env, o)?;
    env.sync()?;
    env.run_hook("latency")?;

    let (stop, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    let run = Run { env, opts: o, stop: &stop, failed: &failed };
    let (writes, probes) = std::thread::scope(|scope| -> Result<_> {
        let writers: Vec<_> = (0..o.writers).map(|number| scope.spawn(move || run.writer(number))).collect();
        if o.writers > 0 {
            std::thread::sleep(WARM_UP);
        }
        let is_wanted = |phase: &str| o.probes.is_empty() || o.probes.iter().any(|probe| probe == phase);
        let probers = probers().into_iter().filter(|(phase, _)| is_wanted(phase));
        let probers: Vec<_> =
            probers.map(|(phase, prober)| (phase, scope.spawn(move || prober(&run)))).collect();
        let probes: Vec<_> = probers
            .into_iter()
            .map(|(phase, prober)| (phase, prober.join().expect("prober panicked")))
            .collect();
        stop.store(true, Ordering::Relaxed);
        let writes: Vec<_> = writers.into_iter().map(|w| w.join().expect("writer panicked")).collect();
        Ok((writes, probes))
    })?;
    for (phase, probe) in probes {
        report.push(probe.with_context(|| phase.to_owned())?.row(phase));
    }
    for (number, write) in writes.into_iter().enumerate() {
        let data = if is_text(number) { "compressible" } else { "incompressible" };
        report.push(write.with_context(|| format!("writer {number}"))?.row(format!("write {data}")));
    }
    Ok(report)
}

fn prepare(env: &Env, o: &Opts) -> Result<()> {
    let mut rng = env.rng(1);
    let mut file = File::create(env.path("cold"))?;
    let mut chunk = vec![0; o.chunk];
    let mut left = o.size;
    while left > 0 {
        let len = left.min(o.chunk as u64) as usize;
        rng.fill(&mut chunk[..len]);
        file.write_all(&chunk[..len])?;
        left -= len as u64;
    }
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).context("fadvise")?;
    for dir in ["stat", "made", "gone"] {
        fs::create_dir(env.path(dir))?;
    }
    for number in 0..o.files {
        for dir in ["stat", "gone"] {
            File::create(env.path(format!("{dir}/f{number:06}")))?;
        }
    }
    Ok(())
}

fn is_text(writer: usize) -> bool {
    !writer.is_multiple_of(2)
}

type Prober<'a> = fn(&Run<'a>) -> Result<Timed>;

fn probers<'a>() -> [(&'static str, Prober<'a>); 5] {
    [
        ("cold read", Run::reads),
        ("cold stat", Run::stats),
        ("create", Run::creates),
        ("unlink", Run::unlinks),
        ("append+fsync", Run::fsyncs),
    ]
}

#[derive(Clone, Copy)]
struct Run<'a> {
    env: &'a Env,
    opts: &'a Opts,
    /// The probers are done.
    stop: &'a AtomicBool,
    /// A thread failed: the others stop too.
    failed: &'a AtomicBool,
}

impl Run<'_> {
    fn writer(&self, number: usize) -> Result<Timed> {
        let file =
            self.noticed(File::create(self.env.path(format!("stream-{number}"))).map_err(Into::into))?;
        let mut rng = self.env.rng(100 + number as u64);
        // Long enough that no record repeats within a compressor's window; made before the measurement.
        let mut data = vec![0; 16 * self.opts.chunk];
        if is_text(number) {
            rng.fill_text(&mut data)
        } else {
            rng.fill(&mut data)
        }
        let (mut timed, start, mut at) = (Timed::default(), Instant::now(), 0);
        for chunk in data.chunks_exact(self.opts.chunk).cycle() {
            if self.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed) {
                break;
            }
            if at + chunk.len() as u64 > self.opts.rewind {
                at = 0;
            }
            let one = Instant::now();
            self.noticed(file.write_all_at(chunk, at).map_err(Into::into))?;
            timed.lat.push(one.elapsed().as_nanos() as u64);
            at += chunk.len() as u64;
            timed.bytes += chunk.len() as u64;
        }
        timed.secs = start.elapsed().as_secs_f64();
        timed.ops = timed.lat.len() as u64;
        Ok(timed)
    }

    fn reads(&self) -> Result<Timed> {
        let file = File::open(self.env.path("cold"))?;
        // Otherwise the kernel prefetches behind each block, and would have the next ones cached.
        rustix::fs::fadvise(&file, 0, None, Advice::Random).context("fadvise")?;
        let mut block = vec![0; self.opts.block];
        let slots = self.opts.size / self.opts.apart;
        self.probe(shuffled(self.env.rng(2), slots), |slot| {
            file.read_exact_at(&mut block, slot * self.opts.apart)?;
            Ok(self.opts.block as u64)
        })
    }

    fn stats(&self) -> Result<Timed> {
        self.probe(shuffled(self.env.rng(3), self.opts.files as u64), |number| {
            fs::symlink_metadata(self.env.path(format!("stat/f{number:06}")))?;
            Ok(0)
        })
    }

    fn creates(&self) -> Result<Timed> {
        self.probe(0.., |number| {
            File::create_new(self.env.path(format!("made/f{number:06}")))?;
            Ok(0)
        })
    }

    fn unlinks(&self) -> Result<Timed> {
        self.probe(shuffled(self.env.rng(4), self.opts.files as u64), |number| {
            fs::remove_file(self.env.path(format!("gone/f{number:06}")))?;
            Ok(0)
        })
    }

    fn fsyncs(&self) -> Result<Timed> {
        let mut file = File::create(self.env.path("log"))?;
        let mut block = vec![0; self.opts.block];
        self.env.rng(5).fill_text(&mut block);
        self.probe(0.., |_| {
            file.write_all(&block)?;
            file.sync_all()?;
            Ok(self.opts.block as u64)
        })
    }

    fn probe(
        &self,
        items: impl IntoIterator<Item = u64>,
        mut op: impl FnMut(u64) -> Result<u64>,
    ) -> Result<Timed> {
        let limit = Duration::from_secs_f64(self.opts.secs);
        let (mut timed, start) = (Timed::default(), Instant::now());
        for item in items {
            if start.elapsed() >= limit || self.failed.load(Ordering::Relaxed) {
                break;
            }
            let one = Instant::now();
            timed.bytes += self.noticed(op(item))?;
            timed.lat.push(one.elapsed().as_nanos() as u64);
            std::thread::sleep(Duration::from_millis(self.opts.rest_ms));
        }
        timed.secs = start.elapsed().as_secs_f64();
        timed.ops = timed.lat.len() as u64;
        Ok(timed)
    }

    fn noticed<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        outcome
    }
}

fn shuffled(mut rng: Rng, count: u64) -> Vec<u64> {
    let mut items: Vec<u64> = (0..count).collect();
    rng.shuffle(&mut items);
    items
}
