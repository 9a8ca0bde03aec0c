//! attributes: tests how a mounted file system serves extended attributes, ACLs and capabilities.
//!
//! Every assertion has a name, and prints the result beside the expectation. The expectations are those of
//! the manual pages xattr(7), acl(5) and capabilities(7), as Linux implements them. Where a known file system
//! differs, `differences` says so and why. A difference that no longer exists is a failure too, so the list
//! stays correct. The suite passes on ext4, which is why it can judge others.
//!
//! It needs root: it acts as other users, and makes devices. `check_attributes` of scripts/xattrs.sh runs it.

mod beside;
mod cases;
mod differences;
mod judge;
mod person;
mod words;
mod xattr;

use clap::Parser;
use judge::Judge;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser, Debug)]
#[command(version, about)]
struct Cli {
    /// Directory on the file system under test, which every user can reach
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Whose differences are expected: ext4, terrane
    #[arg(long, value_name = "NAME")]
    differs_as: Option<String>,
    /// Shell command that mounts it anew, so that nothing is remembered; with MODE=ro or MODE=rw in its environment
    #[arg(long, value_name = "CMD")]
    remount: Option<String>,
    /// Shell command that sets a property of the file system: with PROPERTY=VALUE as its first argument
    #[arg(long, value_name = "CMD")]
    property: Option<String>,
    /// Instead of the cases, random operations in both directories, which must be answered alike
    #[arg(long, value_name = "DIR")]
    beside: Option<PathBuf>,
    /// How many of them
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// What chooses them
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only cases whose name contains this
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// Print the cases and what each is about
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
        eprintln!("attributes: it needs root, to ask as other users and to make devices");
        return ExitCode::from(2);
    }
    if let Some(other) = &cli.beside {
        let compared = beside::compare(&cli.dir, other, cli.ops, cli.seed);
        match &compared {
            Ok(done) => println!(
                "{} operations from seed {}, {done} of them not refused, were answered alike",
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
    let mut judge = Judge::new(dir, known, cli.remount, cli.property, cli.verbose);
    for case in cases {
        judge.run(case);
    }
    if judge.sum_up(cli.only.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
