//! `gc`: overwrites a nearly full file system, in the manner of xfstests generic/747.
//!
//! Fills it to a percentage of the free space with files of random sizes. Then it deletes random files and
//! writes new ones at that level for some seconds. With several writers as many files grow at once, piece by
//! piece in random turns.

use crate::fail::{Context, Result, ensure};
use crate::report::{Report, Row};
use crate::util::{Env, Rng, output_of};
use clap::Args;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args, Debug)]
pub struct Opts {
    /// Percent of the initially available bytes to keep in use
    #[arg(long, default_value_t = 95.0)]
    pub percent: f64,
    /// Smallest file
    #[arg(long, default_value_t = 64 << 10)]
    pub min_size: u64,
    /// Largest file
    #[arg(long, default_value_t = 8 << 20)]
    pub max_size: u64,
    /// Seconds of churn after the fill
    #[arg(long, default_value_t = 20.0)]
    pub secs: f64,
    /// fsync every this many files (0: never)
    #[arg(long, default_value_t = 1)]
    pub fsync_every: u64,
    /// Files that are written at once
    #[arg(long, default_value_t = 1)]
    pub writers: usize,
    /// Write text-like instead of incompressible data
    #[arg(long)]
    pub compressible: bool,
    /// Do not use more than this many bytes (0: no limit)
    #[arg(long, default_value_t = 0)]
    pub limit: u64,
    /// Shell command that prints the bytes written to the device so far; adds the write amplification of each phase
    #[arg(long, value_name = "CMD")]
    pub written_cmd: Option<String>,
}

const CHUNK: usize = 256 << 10;

struct LiveFile {
    path: PathBuf,
    size: u64,
    crc: u32,
}

/// A file that is being written.
struct GrowingFile {
    path: PathBuf,
    file: File,
    size: u64,
    left: u64,
    crc: u32,
    serial: u64,
}

struct Churn<'a> {
    env: &'a Env,
    opts: &'a Opts,
    rng: Rng,
    pool: Vec<u8>,
    live: Vec<LiveFile>,
    growing: Vec<GrowingFile>,
    /// Bytes of live files, and the final bytes of growing ones.
    live_bytes: u64,
    target: u64,
    serial: u64,
    epoch: Instant,
    /// Bytes written in each second since `epoch`.
    buckets: Vec<u64>,
    lat: Vec<u64>,
    max_fsync_ns: u64,
    max_unlink_ns: u64,
    /// Bytes written to the device before the phase began.
    written_before: Option<u64>,
    errors: BTreeMap<String, u64>,
}

impl Churn<'_> {
    /// Deletes a random file, if there is one.
    fn delete_one(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let victim = self.live.swap_remove(self.rng.below(self.live.len() as u64) as usize);
        self.live_bytes -= victim.size;
        let start = Instant::now();
        if let Err(e) = fs::remove_file(&victim.path) {
            self.count("unlink", &e);
        }
        self.max_unlink_ns = self.max_unlink_ns.max(start.elapsed().as_nanos() as u64);
    }

    fn has_writer(&self) -> bool {
        self.growing.len() < self.opts.writers
    }

    fn begin(&mut self, size: u64) -> io::Result<()> {
        self.serial += 1;
        let path = self.env.path(format!("g{:07}", self.serial));
        let file = File::create(&path)?;
        self.growing.push(GrowingFile { path, file, size, left: size, crc: 0, serial: self.serial });
        self.live_bytes += size;
        Ok(())
    }

    /// Writes the next piece of a growing file, if there is one. A file that fails is removed.
    fn write_piece(&mut self) -> io::Result<()> {
        let at = match self.growing.len() {
            0 => return Ok(()),
            1 => 0,
            several => self.rng.below(several as u64) as usize,
        };
        let mut file = self.growing.swap_remove(at);
        let is_whole = self.grow(&mut file).inspect_err(|_| {
            self.live_bytes -= file.size;
            drop(fs::remove_file(&file.path));
        })?;
        match is_whole {
            true => self.live.push(LiveFile { path: file.path, size: file.size, crc: file.crc }),
            false => self.growing.push(file),
        }
        Ok(())
    }

    /// Returns whether that was the last piece.
    fn grow(&mut self, file: &mut GrowingFile) -> io::Result<bool> {
        let n = file.left.min(CHUNK as u64) as usize;
        let from = self.rng.below((self.pool.len() - n) as u64) as usize;
        let start = Instant::now();
        file.file.write_all(&self.pool[from..from + n])?;
        self.account(n as u64, start);
        file.crc = crc32c::crc32c_append(file.crc, &self.pool[from..from + n]);
        file.left -= n as u64;
        if file.left == 0 && self.opts.fsync_every > 0 && file.serial.is_multiple_of(self.opts.fsync_every) {
            let start = Instant::now();
            file.file.sync_all()?;
            self.max_fsync_ns = self.max_fsync_ns.max(start.elapsed().as_nanos() as u64);
        }
        Ok(file.left == 0)
    }

    fn account(&mut self, bytes: u64, start: Instant) {
        self.lat.push(start.elapsed().as_nanos() as u64);
        let second = self.epoch.elapsed().as_secs() as usize;
        if self.buckets.len() <= second {
            self.buckets.resize(second + 1, 0);
        }
        self.buckets[second] += bytes;
    }

    fn count(&mut self, what: &str, error: &io::Error) {
        *self.errors.entry(format!("{what}: {}", error.kind())).or_default() += 1;
    }

    fn random_size(&mut self) -> u64 {
        let span = self.opts.max_size.saturating_sub(self.opts.min_size) + 1;
        self.opts.min_size + self.rng.below(span)
    }

    /// Writes until the target is reached, or the file system says it is full.
    fn fill(&mut self) -> u64 {
        let before = self.serial;
        let mut is_full = false;
        loop {
            let mut written = Ok(());
            while self.has_writer() && !is_full && written.is_ok() {
                let size = self.random_size();
                is_full = self.live_bytes + size > self.target;
                if !is_full {
                    written = self.begin(size);
                }
            }
            if self.growing.is_empty() && written.is_ok() {
                return self.serial - before;
            }
            if let Err(e) = written.and_then(|()| self.write_piece()) {
                self.count("fill", &e);
                return self.serial - before;
            }
        }
    }

    fn churn(&mut self) -> Result<u64> {
        let before = self.serial;
        let mut errors_in_a_row = 0;
        while self.epoch.elapsed().as_secs_f64() < self.opts.secs {
            let mut written = Ok(());
            if self.has_writer() {
                let size = self.random_size();
                while self.live_bytes + size > self.target && !self.live.is_empty() {
                    self.delete_one();
                }
                if self.live_bytes + size <= self.target || self.growing.is_empty() {
                    written = self.begin(size);
                }
            }
            match written.and_then(|()| self.write_piece()) {
                Ok(()) => errors_in_a_row = 0,
                Err(e) => {
                    self.count("write", &e);
                    errors_in_a_row += 1;
                    ensure!(errors_in_a_row < 1000, "1000 errors in a row, last: {e}");
                    self.delete_one();
                }
            }
        }
        while !self.growing.is_empty() {
            if let Err(e) = self.write_piece() {
                self.count("write", &e);
            }
        }
        Ok(self.serial - before)
    }

    /// Starts a phase with empty counters.
    fn restart(&mut self) -> Result<()> {
        self.written_before = self.written()?;
        self.epoch = Instant::now();
        self.buckets.clear();
        self.lat.clear();
        self.max_fsync_ns = 0;
        self.max_unlink_ns = 0;
        Ok(())
    }

    /// Bytes written to the device so far, if something counts them.
    fn written(&self) -> Result<Option<u64>> {
        let Some(command) = &self.opts.written_cmd else { return Ok(None) };
        let text = output_of(command).context("--written-cmd")?;
        Ok(Some(text.trim().parse().with_context(|| format!("--written-cmd said {text:?}"))?))
    }

    fn row(&mut self, phase: &str, files: u64) -> Result<Row> {
        let bytes: u64 = self.buckets.iter().sum();
        let secs = self.epoch.elapsed().as_secs_f64();
        let ms = |ns: u64| ns as f64 / 1e6;
        let mut note =
            format!("max fsync {:.0} ms, max unlink {:.0} ms", ms(self.max_fsync_ns), ms(self.max_unlink_ns));
        let mut row = Row::new(phase, files, bytes, secs)
            .latency(std::mem::take(&mut self.lat))
            .extra("max_fsync_ms", ms(self.max_fsync_ns))
            .extra("max_unlink_ms", ms(self.max_unlink_ns));
        if let (Some(before), Some(after)) = (self.written_before, self.written()?) {
            let device = after.saturating_sub(before);
            let amplification = device as f64 / bytes.max(1) as f64;
            let _ = write!(note, ", write amplification {amplification:.2}");
            row = row.extra("device_bytes", device).extra("write_amplification", amplification);
        }
        Ok(row.note(note))
    }
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    ensure!(o.min_size <= o.max_size, "--min-size above --max-size");
    ensure!(o.writers > 0, "--writers must be at least 1");
    let mut report = Report::new("gc", &env.root);
    let mut avail = env.usage()?.avail;
    if o.limit > 0 {
        avail = avail.min(o.limit);
    }
    let mut pool = vec![0u8; 16 << 20];
    let mut rng = env.rng(0);
    if o.compressible {
        rng.fill_text(&mut pool)
    } else {
        rng.fill(&mut pool)
    }
    let mut c = Churn {
        env,
        opts: o,
        rng,
        pool,
        live: Vec::new(),
        growing: Vec::new(),
        live_bytes: 0,
        target: (avail as f64 * o.percent / 100.0) as u64,
        serial: 0,
        epoch: Instant::now(),
        buckets: Vec::new(),
        lat: Vec::new(),
        max_fsync_ns: 0,
        max_unlink_ns: 0,
        written_before: None,
        errors: BTreeMap::new(),
    };
    report.param("avail", avail);
    report.param("percent", o.percent);
    report.param("fsync_every", o.fsync_every);
    report.param("writers", o.writers);
    report.param("seed", env.seed);

    c.restart()?;
    let files = c.fill();
    let row = c.row("fill", files)?;
    report.push(row.extra("reached_percent", c.live_bytes as f64 / avail as f64 * 100.0));

    c.restart()?;
    let files = c.churn()?;
    // The last second is usually partial; keep the whole ones.
    let whole = &c.buckets[..c.buckets.len().min(o.secs as usize)];
    let mut mb: Vec<f64> = whole.iter().map(|b| *b as f64 / 1e6).collect();
    let _ = writeln!(report.text, "churn MB/s by second: {:.0?}", mb);
    let by_second = mb.clone();
    mb.sort_by(f64::total_cmp);
    let (low, median) = (mb.first().copied(), mb.get(mb.len() / 2).copied());
    let row = c.row("churn", files)?;
    report.push(
        row.extra("mb_per_s_by_second", by_second)
            .extra("slowest_second_mb_per_s", low.unwrap_or(0.0))
            .extra("median_second_mb_per_s", median.unwrap_or(0.0)),
    );

    env.sync()?;
    env.run_hook("verify")?;
    let start = Instant::now();
    let mut bad = 0u64;
    for live in &c.live {
        let intact = matches!(crc_of(&live.path), Ok((size, crc)) if (size, crc) == (live.size, live.crc));
        bad += u64::from(!intact);
    }
    let verify = Row::new("verify", c.live.len() as u64, c.live_bytes, start.elapsed().as_secs_f64());
    let errors = serde_json::to_value(&c.errors)?;
    let _ = writeln!(report.text, "errors: {errors}; files with wrong content: {bad}");
    report.push(verify.note(format!("{bad} bad files")).extra("bad_files", bad).extra("errors", errors));
    Ok(report)
}

fn crc_of(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let mut buf = vec![0u8; CHUNK];
    let (mut size, mut crc) = (0, 0);
    loop {
        let n = file.read(&mut buf)?;
        if n == 0 {
            return Ok((size, crc));
        }
        crc = crc32c::crc32c_append(crc, &buf[..n]);
        size += n as u64;
    }
}
