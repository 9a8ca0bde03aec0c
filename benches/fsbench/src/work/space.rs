//! `space`: bytes the file system consumes per directory and per small file.

use crate::fail::Result;
use crate::report::Report;
use crate::util::{Env, Rng, make_dirs, spread, timed};
use clap::{Args, ValueEnum};
use std::fs;
use std::path::Path;

#[derive(Args, Debug)]
pub struct Opts {
    /// Objects of each kind
    #[arg(long, default_value_t = 100_000)]
    pub count: usize,
    /// Objects per parent directory
    #[arg(long, default_value_t = 1000)]
    pub per_dir: usize,
    /// Kinds to measure
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Kind::Dirs, Kind::Text1k, Kind::Rand1k, Kind::Text4k, Kind::Rand4k])]
    pub kinds: Vec<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Kind {
    /// Empty directories
    Dirs,
    /// Empty files
    Empty,
    /// 1 KiB files, compressible
    Text1k,
    /// 1 KiB files, incompressible
    Rand1k,
    /// 4 KiB files, compressible
    Text4k,
    /// 4 KiB files, incompressible
    Rand4k,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Dirs => "empty directory",
            Kind::Empty => "empty file",
            Kind::Text1k => "1 KiB compressible",
            Kind::Rand1k => "1 KiB incompressible",
            Kind::Text4k => "4 KiB compressible",
            Kind::Rand4k => "4 KiB incompressible",
        }
    }

    fn size(self) -> usize {
        match self {
            Kind::Dirs | Kind::Empty => 0,
            Kind::Text1k | Kind::Rand1k => 1024,
            Kind::Text4k | Kind::Rand4k => 4096,
        }
    }

    fn create(self, path: &Path, rng: &mut Rng, buf: &mut [u8]) -> Result<()> {
        match self {
            Kind::Dirs => fs::create_dir(path)?,
            Kind::Empty => drop(fs::File::create(path)?),
            Kind::Text1k | Kind::Text4k => {
                rng.fill_text(buf);
                fs::write(path, buf)?;
            }
            Kind::Rand1k | Kind::Rand4k => {
                rng.fill(buf);
                fs::write(path, buf)?;
            }
        }
        Ok(())
    }
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("space", &env.root);
    report.param("count", o.count);
    report.param("per_dir", o.per_dir);
    for (i, kind) in o.kinds.iter().copied().enumerate() {
        env.sync()?;
        env.run_hook(kind.name())?;
        let before = env.usage()?.used;
        let mut rng = env.rng(i as u64);
        let mut buf = vec![0u8; kind.size()];
        let (_, secs) = timed(|| {
            let parents = make_dirs(env, &format!("k{i}"), o.count.div_ceil(o.per_dir.max(1)))?;
            for path in spread(&parents, o.count, "o") {
                kind.create(&path, &mut rng, &mut buf)?;
            }
            env.sync()
        })?;
        // Some file systems account lazily; a remount in the hook settles that.
        env.run_hook("account")?;
        let grown = env.usage()?.used as i64 - before as i64;
        let each = grown as f64 / o.count.max(1) as f64;
        let row = crate::report::Row::new(kind.name(), o.count as u64, 0, secs)
            .note(format!("{each:.1} bytes each"))
            .extra("bytes_each", each)
            .extra("grown", grown);
        report.push(row);
    }
    Ok(report)
}
