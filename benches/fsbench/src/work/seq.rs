//! `seq`: sequential write and cold read of corpus data, random read, random overwrite.

use crate::fail::{Context, Result, ensure};
use crate::report::{Report, Row};
use crate::util::{Env, Timed, timed};
use clap::Args;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args, Debug)]
pub struct Opts {
    /// File with the data to write (repeated up to --size)
    #[arg(long)]
    pub input: PathBuf,
    /// Bytes to write; 0 means the size of the input
    #[arg(long, default_value_t = 0)]
    pub size: u64,
    /// I/O size of the sequential phases
    #[arg(long, default_value_t = 1 << 20)]
    pub chunk: usize,
    /// I/O size of the random phases
    #[arg(long, default_value_t = 16384)]
    pub block: usize,
    /// Random reads and random overwrites
    #[arg(long, default_value_t = 5000)]
    pub random: usize,
    /// fsync after this many random overwrites
    #[arg(long, default_value_t = 16)]
    pub fsync_every: usize,
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("seq", &env.root);
    // In memory, so that reading the corpus costs nothing during the measurement.
    let corpus = fs::read(&o.input).with_context(|| format!("read {}", o.input.display()))?;
    ensure!(
        corpus.len() >= o.block && o.block > 0 && o.chunk > 0,
        "--input is smaller than a block, or a size is 0"
    );
    let size = if o.size == 0 { corpus.len() as u64 } else { o.size };
    let slots = size / o.block as u64;
    ensure!(slots > 0, "--size is smaller than a block");
    report.param("size", size);
    report.param("block", o.block);
    report.param("fsync_every", o.fsync_every);
    let path = env.path("corpus");

    let before = env.usage()?.used;
    let mut sum = 0;
    let (_, secs) = timed(|| {
        let mut file = File::create(&path)?;
        let mut done = 0u64;
        while done < size {
            let at = (done % corpus.len() as u64) as usize;
            let left = (size - done).min((corpus.len() - at) as u64) as usize;
            file.write_all(&corpus[at..at + left.min(o.chunk)])?;
            done += left.min(o.chunk) as u64;
        }
        Ok(file.sync_all()?)
    })?;
    for_each_part(&corpus, size, |part| sum = crc32c::crc32c_append(sum, part));
    let want = sum;
    let hook = env.run_hook("seq read")?;
    let stored = env.usage()?.used as i64 - before as i64;
    let mut row = Row::new("seq write+fsync", size.div_ceil(o.chunk as u64), size, secs)
        .note(format!("hook after: {hook:.2} s"))
        .extra("stored", stored);
    // Data in the file system's memory does not count as stored.
    if stored > 0 {
        let ratio = size as f64 / stored as f64;
        row = row
            .extra("stored_ratio", ratio)
            .note(format!("stored ratio {ratio:.2}, hook after: {hook:.2} s"));
    }
    report.push(row);

    let mut sum = 0;
    let mut buf = vec![0u8; o.chunk.max(o.block)];
    let ((), secs) = timed(|| {
        let mut file = File::open(&path)?;
        loop {
            let n = file.read(&mut buf[..o.chunk])?;
            if n == 0 {
                return Ok(());
            }
            sum = crc32c::crc32c_append(sum, &buf[..n]);
        }
    })?;
    ensure!(sum == want, "sequential read returned wrong data");
    report.push(Row::new("seq read", size.div_ceil(o.chunk as u64), size, secs));

    env.run_hook("random read")?;
    let mut rng = env.rng(1);
    let file = File::open(&path)?;
    let t = repeat(o.random, o.block, |_| {
        Ok(file.read_exact_at(&mut buf[..o.block], rng.below(slots) * o.block as u64)?)
    })?;
    drop(file);
    report.push(t.row("random read"));

    env.run_hook("random overwrite")?;
    let mut rng = env.rng(2);
    let file = OpenOptions::new().write(true).open(&path)?;
    let t = repeat(o.random, o.block, |i| {
        let from = rng.below((corpus.len() - o.block) as u64 + 1) as usize;
        let to = rng.below(slots) * o.block as u64;
        file.write_all_at(&corpus[from..from + o.block], to)?;
        if o.fsync_every > 0 && (i + 1) % o.fsync_every == 0 {
            file.sync_data()?;
        }
        Ok(())
    })?;
    report.push(t.row("random overwrite").note(format!("fdatasync every {}", o.fsync_every)));
    Ok(report)
}

fn for_each_part(corpus: &[u8], size: u64, mut f: impl FnMut(&[u8])) {
    let mut left = size;
    while left > 0 {
        let n = left.min(corpus.len() as u64);
        f(&corpus[..n as usize]);
        left -= n;
    }
}

fn repeat(times: usize, bytes: usize, mut op: impl FnMut(usize) -> Result<()>) -> Result<Timed> {
    let mut t = Timed { ops: times as u64, bytes: (times * bytes) as u64, ..Timed::default() };
    let start = Instant::now();
    for i in 0..times {
        let one = Instant::now();
        op(i)?;
        t.lat.push(one.elapsed().as_nanos() as u64);
    }
    t.secs = start.elapsed().as_secs_f64();
    Ok(t)
}
