//! `xattr`: time to set and get one extended attribute per file, by size.
//!
//! Values are random. All files have the same one, unless each should have its own. Equal values favour a
//! file system that stores them once (ext4 shares whole blocks of attributes) or that compresses inodes
//! together.

use crate::fail::{Context, Result, ensure};
use crate::report::{Report, Row};
use crate::util::{Env, make_dirs, parallel, spread};
use clap::Args;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::fmt::Write;
use std::fs::File;

const NAME: &str = "user.fsbench";

#[derive(Args, Debug)]
pub struct Opts {
    /// Files
    #[arg(long, default_value_t = 100_000)]
    pub files: usize,
    /// Parent directories
    #[arg(long, default_value_t = 100)]
    pub dirs: usize,
    /// Attribute sizes
    #[arg(long, value_delimiter = ',',
          default_values_t = [1usize, 32, 256, 1024, 4096, 16384, 65536])]
    pub bytes: Vec<usize>,
    /// Threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Give each file a value of its own
    #[arg(long)]
    pub distinct: bool,
}

/// Random bytes; each file's value is a part of them.
const POOL_BYTES: usize = 16 << 20;

struct Values {
    pool: Vec<u8>,
    bytes: usize,
    distinct: bool,
}

impl Values {
    fn new(env: &Env, bytes: usize, distinct: bool) -> Values {
        let mut pool = vec![0u8; if distinct { POOL_BYTES + bytes } else { bytes }];
        env.rng(bytes as u64).fill(&mut pool);
        Values { pool, bytes, distinct }
    }

    /// Neighbours have nothing in common.
    fn of(&self, file: usize) -> &[u8] {
        let start = if self.distinct { file * self.bytes % POOL_BYTES } else { 0 };
        &self.pool[start..start + self.bytes]
    }
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("xattr", &env.root);
    report.param("files", o.files);
    report.param("threads", o.threads);
    report.param("distinct", o.distinct);
    let mut table = format!(
        "Time in seconds to set/get one xattr of N bytes on {} files\nbytes |  setxattr  getxattr\n------+--------------------\n",
        o.files
    );
    for &bytes in &o.bytes {
        let times = one_size(env, o, bytes, &mut report)?;
        let _ = match times {
            Some((set, get)) => writeln!(table, "{bytes:<5} | {set:>9.2} {get:>9.2}"),
            None => writeln!(table, "{bytes:<5} | {:>9} {:>9}", "n/a", "n/a"),
        };
    }
    report.text = table;
    Ok(report)
}

/// Seconds to set (with syncfs) and to get, or `None` where the size is refused.
fn one_size(env: &Env, o: &Opts, bytes: usize, report: &mut Report) -> Result<Option<(f64, f64)>> {
    let dirs = make_dirs(env, &format!("x{bytes}"), o.dirs)?;
    let files = spread(&dirs, o.files, "f");
    for path in &files {
        File::create(path).with_context(|| format!("create {}", path.display()))?;
    }
    env.sync()?;
    env.run_hook("setxattr")?;

    let values = Values::new(env, bytes, o.distinct);
    let files: Vec<_> = files.into_iter().enumerate().collect();
    if let Some((at, first)) = files.first()
        && let Err(e) = setxattr(first, NAME, values.of(*at), XattrFlags::empty())
    {
        let refused = [Errno::NOSPC, Errno::TOOBIG, Errno::RANGE, Errno::OPNOTSUPP, Errno::INVAL];
        ensure!(refused.contains(&e), "setxattr of {bytes} bytes: {e}");
        for phase in ["set", "get"] {
            report.push(Row::new(format!("{phase} {bytes}"), 0, 0, 0.0).note(format!("n/a ({e})")));
        }
        return Ok(None);
    }
    let start = std::time::Instant::now();
    let mut set = parallel(o.threads, &files, |(at, path)| {
        setxattr(path, NAME, values.of(*at), XattrFlags::empty())?;
        Ok(bytes as u64)
    })
    .with_context(|| format!("setxattr of {bytes} bytes"))?;
    env.sync()?;
    set.secs = start.elapsed().as_secs_f64();
    let hook = env.run_hook("getxattr")?;

    let get = parallel(o.threads, &files, |(at, path)| {
        let mut got = vec![0u8; bytes + 1];
        let n = getxattr(path, NAME, &mut got)?;
        ensure!(got[..n] == *values.of(*at), "wrong xattr value on {}", path.display());
        Ok(n as u64)
    })
    .with_context(|| format!("getxattr of {bytes} bytes"))?;
    let times = (set.secs, get.secs);
    report.push(set.row(format!("set {bytes}")).note(format!("hook after: {hook:.2} s")));
    report.push(get.row(format!("get {bytes}")));
    Ok(Some(times))
}
