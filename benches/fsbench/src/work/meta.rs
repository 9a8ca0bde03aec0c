//! `meta`: create, stat, list, rename and remove files and directories.

use crate::fail::{Context, Result};
use crate::report::Report;
use crate::util::{Env, make_dirs, parallel, spread};
use clap::Args;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Opts {
    /// Threads
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Files (and then directories) to create
    #[arg(long, default_value_t = 50_000)]
    pub files: usize,
    /// Parent directories they are spread over
    #[arg(long, default_value_t = 50)]
    pub dirs: usize,
    /// Percent of the files to rename into the next directory
    #[arg(long, default_value_t = 20)]
    pub rename_pct: usize,
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("meta", &env.root);
    report.param("threads", o.threads);
    report.param("files", o.files);
    report.param("dirs", o.dirs);

    let dirs = make_dirs(env, "files", o.dirs)?;
    let mut files = spread(&dirs, o.files, "f");
    let t = parallel(o.threads, &files, |p| {
        OpenOptions::new().write(true).create_new(true).open(p)?;
        Ok(0)
    });
    report.push(t.context("create")?.row("file create"));

    env.run_hook("file stat")?;
    let shuffled = shuffled(env, &files, 1);
    let stat = |p: &PathBuf| Ok(fs::symlink_metadata(p).map(|_| 0)?);
    report.push(parallel(o.threads, &shuffled, stat).context("stat")?.row("file stat"));

    env.run_hook("readdir")?;
    let mut t = parallel(o.threads, &dirs, |dir| {
        let mut names = 0;
        for entry in fs::read_dir(dir)? {
            entry?;
            names += 1;
        }
        Ok(names)
    })
    .context("readdir")?;
    // The closure counted names, not bytes; one operation is one name.
    t.ops = std::mem::take(&mut t.bytes);
    crate::fail::ensure!(t.ops == o.files as u64, "readdir saw {} of {} names", t.ops, o.files);
    report.push(t.row("readdir (names)").note("latency per directory"));

    let mut order: Vec<usize> = (0..files.len()).collect();
    env.rng(2).shuffle(&mut order);
    order.truncate(files.len() * o.rename_pct / 100);
    let moves: Vec<(usize, PathBuf)> = order
        .into_iter()
        .map(|i| {
            let here = dirs.iter().position(|d| files[i].starts_with(d)).unwrap_or(0);
            (i, dirs[(here + 1) % dirs.len()].join(format!("r{i:07}")))
        })
        .collect();
    let t = parallel(o.threads, &moves, |(i, to)| Ok(fs::rename(&files[*i], to).map(|_| 0)?));
    report.push(t.context("rename")?.row("file rename"));
    for (i, to) in moves {
        files[i] = to;
    }

    let t = parallel(o.threads, &files, |p| Ok(fs::remove_file(p).map(|_| 0)?));
    report.push(t.context("unlink")?.row("file unlink"));

    let parents = make_dirs(env, "dirs", o.dirs)?;
    let subdirs = spread(&parents, o.files, "s");
    let t = parallel(o.threads, &subdirs, |p| Ok(fs::create_dir(p).map(|_| 0)?));
    report.push(t.context("mkdir")?.row("dir create"));
    env.run_hook("dir stat")?;
    let t = parallel(o.threads, &self::shuffled(env, &subdirs, 3), stat);
    report.push(t.context("stat")?.row("dir stat"));
    let t = parallel(o.threads, &subdirs, |p| Ok(fs::remove_dir(p).map(|_| 0)?));
    report.push(t.context("rmdir")?.row("dir remove"));
    Ok(report)
}

fn shuffled(env: &Env, paths: &[PathBuf], stream: u64) -> Vec<PathBuf> {
    let mut paths = paths.to_vec();
    env.rng(stream).shuffle(&mut paths);
    paths
}
