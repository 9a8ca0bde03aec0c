//! The `terrane` command: argument parsing and output.
//!
//! No code here knows how a file system works. Commands find the pool that is meant ([`open_pool`], [`registry`]),
//! ask a question ([`query`]) of it or of the daemon that has it mounted ([`control`], [`daemon`]), and print
//! the answer ([`table`]).
//!
//! Exit codes: 0 done, 1 refused or failed (with a message that says why), 2 the command line is wrong.

mod boot_mounts;
mod bucket_note;
mod cgroup;
mod check;
mod clock;
mod cmd;
mod collect;
mod complete;
mod control;
mod daemon;
mod dataset_name;
mod device_probe;
mod failure;
mod fd_store;
mod figures;
mod help;
mod hex;
mod idle;
mod inspect;
mod jobs;
mod json;
mod logger;
mod members;
mod memory;
mod metrics;
mod mount_options;
mod open_pool;
mod owners;
mod pages;
mod progress;
mod query;
mod registry;
mod rewrite_job;
mod size;
mod suggest;
mod supervisor;
mod sys;
mod table;
mod target;
mod units;
mod zfs;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

const EXIT_CODES: &str = "\
Exit codes:
  0             done
  1             refused or failed; standard error says where, what was expected, what was found, what to do
  2             the command line is wrong
";

/// Terrane: a copy-on-write, checksummed, compressed file system on zones.
#[derive(Parser)]
#[command(name = "terrane", version, max_term_width = 110, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create, show and destroy pools
    #[command(subcommand)]
    Pool(cmd::pool::PoolCommand),
    /// Show and change properties of data sets
    #[command(subcommand)]
    Fs(cmd::fs::FsCommand),
    Snapshot(cmd::fs::SnapshotCommand),
    Mount(cmd::mount::Mount),
    Umount(cmd::mount::Umount),
    Mounts(cmd::mounts::Mounts),
    Restart(cmd::mount::Restart),
    Sync(cmd::mount::Sync),
    Check(cmd::check::Check),
    Metrics(cmd::metrics::Metrics),
    Zones(cmd::zones::Zones),
    Stat(cmd::stat::Stat),
    Explain(cmd::explain::Explain),
    RunHinted(cmd::run_hinted::RunHinted),
    /// Show on-disk structures
    #[command(subcommand)]
    Debug(cmd::debug::DebugCommand),
    /// Manual pages and completions
    #[command(subcommand, hide = true)]
    Generate(cmd::generate::GenerateCommand),
    /// Helper process of a server: has the kernel drop cached pages
    #[command(hide = true)]
    Forget,
}

/// The definitions that parse the command line. Help, manual pages and completions are made from them.
fn command_definition() -> clap::Command {
    help::with_examples(Cli::command())
}

fn main() -> ExitCode {
    complete::serve(command_definition);
    logger::start();
    if let Some(code) = cmd::mount::helper::run().or_else(zfs::run).or_else(units::run) {
        return code;
    }
    let cli = Cli::from_arg_matches(&command_definition().get_matches()).unwrap_or_else(|error| error.exit());
    match cli.command.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            // It contains names of files and devices. Lines of several failures stay lines.
            let lines: Vec<String> = failure.to_string().split('\n').map(table::printable).collect();
            eprintln!("terrane: {}", lines.join("\n"));
            ExitCode::FAILURE
        }
    }
}

/// Runs this command line, also for a program that is called by another name. False: done, and something was
/// found.
fn run(words: &[&str]) -> failure::Outcome<bool> {
    Cli::try_parse_from(["terrane"].iter().chain(words))?.command.run()
}

impl Command {
    fn run(&self) -> failure::Outcome<bool> {
        match self {
            Command::Pool(command) => command.run().map(|()| true),
            Command::Fs(command) => command.run().map(|()| true),
            Command::Snapshot(snapshot) => snapshot.run().map(|()| true),
            Command::Mount(mount) => mount.run().map(|()| true),
            Command::Umount(umount) => umount.run().map(|()| true),
            Command::Mounts(mounts) => mounts.run().map(|()| true),
            Command::Restart(restart) => restart.run().map(|()| true),
            Command::Sync(sync) => sync.run().map(|()| true),
            Command::Check(check) => check.run(),
            Command::Metrics(metrics) => metrics.run().map(|()| true),
            Command::Zones(zones) => zones.run().map(|()| true),
            Command::Stat(stat) => stat.run().map(|()| true),
            Command::Explain(explain) => explain.run().map(|()| true),
            Command::RunHinted(run) => run.run().map(|()| true),
            Command::Debug(command) => command.run(),
            Command::Generate(command) => command.run(command_definition()).map(|()| true),
            Command::Forget => Ok(terrane_fuse::forget::run().map(|()| true)?),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command_definition().debug_assert();
    }
}
