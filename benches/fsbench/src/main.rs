//! fsbench: small workloads to compare file systems that are already mounted, and the page that compares
//! them.
//!
//! One invocation runs one workload in one directory and prints the results: a table for people, or one JSON
//! object. `scripts/bench-peers.sh` runs it on every peer in turn and collects those objects, one per line.
//! `fsbench compare` makes tables, plots and the list of goals from them.

mod compare;
mod fail;
mod report;
mod util;
mod work;

use clap::{Parser, Subcommand};
use fail::{Context, Result};
use report::Report;
use std::path::PathBuf;
use util::Env;

#[derive(Parser, Debug)]
#[command(version, about)]
struct Cli {
    /// Directory on the file system under test
    #[arg(long, short, global = true, default_value = ".")]
    dir: PathBuf,
    /// Print JSON on stdout (and the table on stderr)
    #[arg(long, global = true)]
    json: bool,
    /// Shell command run between phases, to drop caches or to remount
    #[arg(long, global = true, value_name = "CMD")]
    between_cmd: Option<String>,
    /// Shell command run instead of syncfs, for servers that do not receive it
    #[arg(long, global = true, value_name = "CMD")]
    sync_cmd: Option<String>,
    /// Extra key of the JSON object, such as peer=ext4
    #[arg(long, global = true, value_parser = word, value_name = "KEY=VALUE")]
    tag: Vec<(String, String)>,
    /// Seed of the random number generator
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// Keep the files
    #[arg(long, global = true)]
    keep: bool,
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand, Debug)]
enum Work {
    /// Create, stat, list, rename and remove files and directories
    Meta(work::meta::Opts),
    /// Measure the bytes consumed per empty directory and per small file
    Space(work::space::Opts),
    /// Set and get one extended attribute per file, by size
    Xattr(work::xattr::Opts),
    /// Walk a tree by names, and then with stat
    Find(work::find::Opts),
    /// Sequential write and read, random read and overwrite
    Seq(work::seq::Opts),
    /// Write a tree like untar, and read it back
    Smallfiles(work::smallfiles::Opts),
    /// Append and fsync in a loop
    Fsync(work::fsync::Opts),
    /// Churn on a nearly full file system
    Gc(work::gc::Opts),
    /// Write and delete whole files on a nearly full file system; stop at the first error
    Turnover(work::turnover::Opts),
    /// Measure the latency of single operations beside streaming writers
    Latency(work::latency::Opts),
    /// Make the page and the plots of collected results
    Compare(compare::Opts),
    /// Make a table of collected results of gc
    Zoned(compare::zoned::Opts),
    /// Make the table and the plot of compression ratios and speeds
    Compression(compare::compression::Opts),
}

fn word(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("should be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn run(env: &Env, work: &Work) -> Result<Report> {
    match work {
        Work::Meta(o) => work::meta::run(env, o),
        Work::Space(o) => work::space::run(env, o),
        Work::Xattr(o) => work::xattr::run(env, o),
        Work::Find(o) => work::find::run(env, o),
        Work::Seq(o) => work::seq::run(env, o),
        Work::Smallfiles(o) => work::smallfiles::run(env, o),
        Work::Fsync(o) => work::fsync::run(env, o),
        Work::Gc(o) => work::gc::run(env, o),
        Work::Turnover(o) => work::turnover::run(env, o),
        Work::Latency(o) => work::latency::run(env, o),
        Work::Compare(_) | Work::Zoned(_) | Work::Compression(_) => fail::bail!("not a workload"),
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match &cli.work {
        Work::Compare(opts) => return compare::run(opts),
        Work::Zoned(opts) => return compare::zoned::run(opts),
        Work::Compression(opts) => return compare::compression::run(opts),
        _ => {}
    }
    let dir = std::path::absolute(&cli.dir)?;
    let root = dir.join(format!("fsbench.{}", std::process::id()));
    std::fs::create_dir(&root).with_context(|| format!("mkdir {}", root.display()))?;
    // The hook may unmount the file system, so this process must not keep it busy.
    std::env::set_current_dir("/")?;
    let env = Env { root, between_cmd: cli.between_cmd, sync_cmd: cli.sync_cmd, seed: cli.seed };
    let result = run(&env, &cli.work);
    if !cli.keep {
        std::fs::remove_dir_all(&env.root).context("remove the working directory")?;
    }
    let report = result?;
    if cli.json {
        eprint!("{}", report.table());
        let mut json = report.to_json();
        for (key, value) in cli.tag {
            json[key] = value.into();
        }
        println!("{json}");
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
