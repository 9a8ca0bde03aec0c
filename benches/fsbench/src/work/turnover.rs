//! `turnover`: whole files are created and deleted on a nearly full file system, in the manner of xfstests
//! generic/747.
//!
//! Files of a hundred sizes between 1 and 253 MiB are written until statfs reports the given percentage in
//! use. Then, once past the page cache and once through it, a share of the file system is rewritten. While
//! there is space a file is added, else a random one is removed and the file system synced. Any error ends
//! the run, above all ENOSPC from a file system that should not be full. Unlike in generic/747, files hold
//! incompressible bytes, and are read at the end.

use crate::fail::{Context, Result, ensure};
use crate::report::{Report, Row};
use crate::util::{Env, Rng};
use clap::Args;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args, Debug)]
pub struct Opts {
    /// Percent of the file system to keep in use: files are written below it, and removed above it
    #[arg(long, default_value_t = 95)]
    pub percent: u64,
    /// Percent of the file system that each of the two mixed phases writes
    #[arg(long, default_value_t = 20)]
    pub volume: u64,
    /// Largest file in MiB, less one
    #[arg(long, default_value_t = 255)]
    pub span_mib: u64,
    /// Treat the file system as this many MiB and empty (0: use statfs)
    #[arg(long, default_value_t = 0)]
    pub limit_mib: u64,
}

const MIB: usize = 1 << 20;
/// Direct I/O needs memory of this alignment.
const ALIGN: usize = 4096;

struct Turnover<'a> {
    env: &'a Env,
    opts: &'a Opts,
    rng: Rng,
    random_data: Vec<u8>,
    /// Where the aligned part of `random_data` begins.
    aligned: usize,
    live: Vec<(PathBuf, u64)>,
    serial: u64,
    longest_write_ns: u64,
    longest_unlink_ns: u64,
    longest_sync_ns: u64,
}

impl Turnover<'_> {
    fn used_percent(&self) -> Result<u64> {
        if let Some(percent) = (self.live_mib() * 100).checked_div(self.opts.limit_mib) {
            return Ok(percent);
        }
        let space = rustix::fs::statvfs(&self.env.root).context("statvfs")?;
        Ok(100 - space.f_bavail * 100 / space.f_blocks.max(1))
    }

    fn live_mib(&self) -> u64 {
        self.live.iter().map(|(_, mib)| mib).sum()
    }

    /// The size of the next file, in MiB.
    fn size(&mut self) -> u64 {
        1 + self.opts.span_mib * (self.rng.below(1 << 15) % 100) / 100
    }

    /// One MiB of a file: random bytes, at an offset given by the file's number and the position in it.
    fn piece(&self, serial: u64, mib: u64) -> &[u8] {
        let pages = (self.random_data.len() - self.aligned) / ALIGN - MIB / ALIGN;
        let page = (serial * 7919 + mib * 31) as usize % pages;
        &self.random_data[self.aligned + page * ALIGN..][..MIB]
    }

    /// Returns the MiB written.
    fn write_one(&mut self, direct: bool) -> Result<u64> {
        let (mib, serial) = (self.size(), self.serial);
        self.serial += 1;
        let path = self.env.path(format!("data_{serial}"));
        let flags = if direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let open = OpenOptions::new().write(true).create_new(true).custom_flags(flags).open(&path);
        let mut file = open.with_context(|| format!("create {}", path.display()))?;
        self.live.push((path, mib));
        for at in 0..mib {
            let start = Instant::now();
            file.write_all(self.piece(serial, at))
                .with_context(|| format!("write MiB {at} of file {serial}, {mib} MiB"))?;
            self.longest_write_ns = self.longest_write_ns.max(start.elapsed().as_nanos() as u64);
        }
        let start = Instant::now();
        file.sync_all().context("fsync")?;
        self.longest_sync_ns = self.longest_sync_ns.max(start.elapsed().as_nanos() as u64);
        Ok(mib)
    }

    fn remove_one(&mut self) -> Result<()> {
        let victim = self.rng.below(self.live.len() as u64) as usize;
        let (path, _) = self.live.swap_remove(victim);
        let start = Instant::now();
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        self.longest_unlink_ns = self.longest_unlink_ns.max(start.elapsed().as_nanos() as u64);
        let start = Instant::now();
        self.env.sync()?;
        self.longest_sync_ns = self.longest_sync_ns.max(start.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn fill(&mut self) -> Result<u64> {
        let mut mib = 0;
        while self.used_percent()? < self.opts.percent {
            mib += self.write_one(true)?;
        }
        Ok(mib)
    }

    fn mixed(&mut self, volume_mib: u64, direct: bool) -> Result<u64> {
        let mut mib = 0;
        while mib < volume_mib {
            if self.used_percent()? < self.opts.percent {
                mib += self.write_one(direct)?;
            } else {
                ensure!(!self.live.is_empty(), "file system full after all files were removed");
                self.remove_one()?;
            }
        }
        Ok(mib)
    }

    fn row(&mut self, phase: &str, files: u64, mib: u64, secs: f64) -> Row {
        let ms = |ns: &mut u64| std::mem::take(ns) as f64 / 1e6;
        let (write, sync) = (ms(&mut self.longest_write_ns), ms(&mut self.longest_sync_ns));
        let unlink = ms(&mut self.longest_unlink_ns);
        Row::new(phase, files, mib << 20, secs)
            .note(format!("longest write {write:.0} ms, sync {sync:.0} ms, unlink {unlink:.0} ms"))
            .extra("max_write_ms", write)
            .extra("max_fsync_ms", sync)
            .extra("max_unlink_ms", unlink)
    }

    /// Files whose content differs from what was written.
    fn bad_files(&self) -> u64 {
        let mut buf = vec![0; MIB];
        let serial = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.trim_start_matches("data_").parse::<u64>().ok()
        };
        let mut intact = |path: &Path, mib: u64| {
            let (mut file, serial) = (File::open(path).ok()?, serial(path)?);
            for at in 0..mib {
                file.read_exact(&mut buf).ok()?;
                (buf == self.piece(serial, at)).then_some(())?;
            }
            (file.read(&mut buf).ok()? == 0).then_some(())
        };
        self.live.iter().filter(|(path, mib)| intact(path, *mib).is_none()).count() as u64
    }
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    ensure!((1..=100).contains(&o.percent), "--percent must be 1 to 100");
    let mut report = Report::new("turnover", &env.root);
    let space = rustix::fs::statvfs(&env.root).context("statvfs")?;
    let whole_mib = if o.limit_mib > 0 { o.limit_mib } else { (space.f_blocks * space.f_frsize) >> 20 };
    let mut noise = vec![0; 16 * MIB];
    let mut rng = env.rng(0);
    rng.fill(&mut noise);
    let aligned = noise.as_ptr().align_offset(ALIGN);
    let mut t = Turnover {
        env,
        opts: o,
        rng,
        random_data: noise,
        aligned,
        live: Vec::new(),
        serial: 0,
        longest_write_ns: 0,
        longest_unlink_ns: 0,
        longest_sync_ns: 0,
    };
    report.param("whole_mib", whole_mib);
    report.param("percent", o.percent);
    report.param("seed", env.seed);
    for phase in ["fill", "mixed direct", "mixed buffered"] {
        let (start, before) = (Instant::now(), t.serial);
        let mib = match phase {
            "fill" => t.fill(),
            _ => t.mixed(whole_mib * o.volume / 100, phase == "mixed direct"),
        };
        let mib = mib.with_context(|| format!("{phase}, {} % in use", t.used_percent().unwrap_or(0)))?;
        let row = t.row(phase, t.serial - before, mib, start.elapsed().as_secs_f64());
        report.push(row.extra("used_percent", t.used_percent()?));
    }
    env.sync()?;
    env.run_hook("verify")?;
    let start = Instant::now();
    let bad = t.bad_files();
    let verify = Row::new("verify", t.live.len() as u64, t.live_mib() << 20, start.elapsed().as_secs_f64());
    report.push(verify.note(format!("{bad} bad files")).extra("bad_files", bad));
    ensure!(bad == 0, "verification failed: {bad} of {} files differ from what was written", t.live.len());
    Ok(report)
}
