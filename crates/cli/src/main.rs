//! The `terrane` command: words and columns.
//!
//! Nothing here knows how a file system works. Commands find the pool that is meant ([`live`], [`registry`]), ask a question
//! ([`query`]) of it or of the daemon that has it mounted ([`control`], [`daemon`]), and print the answer ([`table`]).
//!
//! Exit codes: 0 done, 1 refused or failed (with a sentence that says why), 2 the command line is wrong.

mod check;
mod clock;
mod cmd;
mod control;
mod daemon;
mod failure;
mod inspect;
mod live;
mod logger;
mod progress;
mod query;
mod registry;
mod size;
mod sys;
mod table;

use clap::{Parser, Subcommand};
use log::LevelFilter;
use std::process::ExitCode;

/// Terrane: a copy-on-write, checksummed, compressed file system on zones.
#[derive(Parser)]
#[command(name = "terrane", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make, show and destroy pools
    #[command(subcommand)]
    Pool(cmd::pool::PoolCommand),
    /// Show and change properties of data sets
    #[command(subcommand)]
    Fs(cmd::fs::FsCommand),
    Mount(cmd::mount::Mount),
    Umount(cmd::mount::Umount),
    Sync(cmd::mount::Sync),
    Check(cmd::check::Check),
    /// Look at the format: what lies on the device, structure by structure
    #[command(subcommand)]
    Debug(cmd::debug::DebugCommand),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = if matches!(cli.command, Command::Mount(_)) { LevelFilter::Info } else { LevelFilter::Warn };
    logger::start(level);
    let outcome = match &cli.command {
        Command::Pool(command) => command.run().map(|()| true),
        Command::Fs(command) => command.run().map(|()| true),
        Command::Mount(mount) => mount.run().map(|()| true),
        Command::Umount(umount) => umount.run().map(|()| true),
        Command::Sync(sync) => sync.run().map(|()| true),
        Command::Check(check) => check.run(),
        Command::Debug(command) => command.run().map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("terrane: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
