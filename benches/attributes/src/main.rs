//! attributes: tests how a mounted file system serves extended attributes, ACLs and capabilities.
//!
//! Every assertion has a name, and prints the result beside the expectation. The expectations are those of
//! the manual pages xattr(7), acl(5) and capabilities(7), as Linux implements them. Where a known file system
//! differs, `differences` says so and why. A difference that no longer exists is a failure too, so the list
//! stays correct. The suite passes on ext4, which is why it can test others.
//!
//! It needs root: it acts as other users, and makes devices. `check_attributes` of scripts/xattrs.sh runs it.

mod cases;
mod checker;
mod describe;
mod differences;
mod differential;
mod person;
mod xattr;

use checker::Checker;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser, Debug)]
#[command(version, about)]
struct Cli {
    /// Directory on the file system under test, which every user can reach
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Expected differences of this file system: ext4, terrane
    #[arg(long, value_name = "NAME")]
    differs_as: Option<String>,
    /// Shell command that remounts the file system with cold caches; MODE=ro or MODE=rw is in its environment
    #[arg(long, value_name = "CMD")]
    remount: Option<String>,
    /// Shell command that sets a property of the file system; its first argument is PROPERTY=VALUE
    #[arg(long, value_name = "CMD")]
    property: Option<String>,
    /// Compare with this directory: run random operations in both, whose results must be identical
    #[arg(long, value_name = "DIR")]
    beside: Option<PathBuf>,
    /// Number of random operations
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Seed of the random operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only cases whose name contains this word
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// List the cases and their subjects
    #[arg(long)]
    list: bool,
    /// Print each assertion
    #[arg(long, short)]
    verbose: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let wanted = |name: &str| cli.only.is_empty() || cli.only.iter().any(|word| name.contains(word.as_str()));
    let cases = cases::ALL.iter().filter(|case| wanted(case.name));
    if cli.list {
        cases.for_each(|case| println!("{:<12} {}", case.name, case.about));
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("attributes: refused: needs root, to act as other users and to create devices");
        return ExitCode::from(2);
    }
    if let Some(other) = &cli.beside {
        let compared = differential::compare(&cli.dir, other, cli.ops, cli.seed);
        match &compared {
            Ok(done) => println!(
                "{} operations from seed {}: identical results, {done} operations not refused",
                cli.ops, cli.seed
            ),
            Err(differ) => println!("{differ}"),
        }
        return if compared.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let known = match cli.differs_as.as_deref().map(differences::of).transpose() {
        Ok(known) => known.unwrap_or_default(),
        Err(unknown) => {
            eprintln!("attributes: {unknown}");
            return ExitCode::from(2);
        }
    };
    // Relative paths would become invalid when the mount that holds the working directory is remounted.
    let dir = cli.dir.canonicalize().unwrap_or(cli.dir);
    let mut checker = Checker::new(dir, known, cli.remount, cli.property, cli.verbose);
    for case in cases {
        checker.run(case);
    }
    if checker.summarize(cli.only.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
