//! `terrane-sim`: the scenarios of the tests, for any number of seeds.
//!
//! Prints each failing seed with the command that repeats it, and exits with 1 if there was any.

use clap::{Args, Parser};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use terrane_device::ZoneState;
use terrane_oracle::Failure;
use terrane_sim::collect::Drives;
use terrane_sim::crash::SmallScenario;
use terrane_sim::faults::LostPart;
use terrane_sim::hostile::{Image, bit_flip, sealed_forgery};
use terrane_sim::logged::world::Seen;
use terrane_sim::workload::OpMix;
use terrane_sim::{collect, crash, faults, full, gc, logged, storm};

/// Runs scenarios of the tests for any number of seeds
///
/// Prints each failing seed with the command that repeats it.
#[derive(Parser)]
#[command(name = "terrane-sim", max_term_width = 110, after_help = EXIT_CODES)]
#[expect(clippy::large_enum_variant, reason = "a program has one of them")]
enum Command {
    /// A random workload that is cut twice at a random device operation, and then ends cleanly
    Replay {
        #[command(flatten)]
        life: Life,
        /// Seed of the workload
        #[arg(long, value_name = "N")]
        seed: u64,
    },
    /// Random workloads, one for each seed, each cut like that of `replay`
    Crash {
        #[command(flatten)]
        life: Life,
        /// Seeds, without B
        #[arg(long, value_name = "A..B", value_parser = range)]
        seeds: Range<u64>,
    },
    /// A short workload that is cut at every write
    EveryWrite(EveryWrite),
    /// Write errors, rotten blocks and dying zones, for each seed
    Faults {
        /// Seeds, without B
        #[arg(long, value_name = "A..B", value_parser = range)]
        seeds: Range<u64>,
    },
    /// Forged structures with correct checksums
    Hostile {
        /// Number of forgeries
        #[arg(long, value_name = "N")]
        count: u64,
        /// Seed of the first forgery; each next one has the next seed
        #[arg(long, value_name = "FIRST", default_value_t = 0)]
        seed: u64,
        /// Print what each forgery is, and how its examination ended
        #[arg(long)]
        verbose: bool,
    },
    /// Single flipped bits of an image
    Flips {
        /// The smallest image that has one of most things
        #[arg(long)]
        tiny: bool,
        /// Bits, counted from the start of the used zones, without LAST-BIT
        #[arg(long, value_name = "FIRST-BIT..LAST-BIT", value_parser = range)]
        seeds: Range<u64>,
    },
    /// A pool that is filled and emptied again and again
    Full {
        /// Empty it in every round, and require that nearly all space is used and given back
        #[arg(long)]
        emptied: bool,
        /// How often it is filled
        #[arg(long, value_name = "N")]
        rounds: u64,
        /// Seed of the contents
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
    },
    /// Threads that change a mounted file system at the same time
    Storm {
        /// Directory to be made on the mounted file system
        #[arg(long, value_name = "NEW")]
        dir: PathBuf,
        /// Duration in seconds
        #[arg(long, value_name = "N")]
        seconds: u64,
        /// Seed of the operations
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
    },
    Gc(gc::command::Command),
}

const EXIT_CODES: &str = "\
Exit codes:
  0             no seed failed
  1             a seed failed, or the scenario could not run; standard output says why
  2             the command line is wrong
";

#[derive(Args)]
struct Life {
    /// On a nearly full pool, with files so large that GC has work
    #[arg(long, conflicts_with_all = ["rewriting", "collect"])]
    crowded: bool,
    /// With an intent log
    #[arg(long, conflicts_with_all = ["rewriting", "collect"])]
    logged: bool,
    /// Writes of the log fail now and then
    #[arg(long, requires = "logged", conflicts_with = "crowded")]
    faulty: bool,
    /// Log devices join, leave and fail
    #[arg(long, requires = "logged", conflicts_with_all = ["crowded", "faulty"])]
    log_devices: bool,
    /// While files are rewritten
    #[arg(long, conflicts_with = "collect")]
    rewriting: bool,
    /// On larger pools of many kinds, whose zones die and whose writes and resets fail
    #[arg(long)]
    collect: bool,
    /// On drives with few active zones and a capacity below the size
    #[arg(long, requires = "collect", conflicts_with = "large")]
    tight: bool,
    /// On few, large zones
    #[arg(long, requires = "collect")]
    large: bool,
}

#[derive(Args)]
struct EveryWrite {
    /// Only operations on names
    #[arg(long, conflicts_with_all = ["words", "attributes", "collect"])]
    names: bool,
    /// Only operations on names, and on words beside them
    #[arg(long, conflicts_with_all = ["attributes", "collect"])]
    words: bool,
    /// Only operations on extended attributes
    #[arg(long, conflicts_with = "collect")]
    attributes: bool,
    /// A nearly full pool, whose zones are collected
    #[arg(long)]
    collect: bool,
    /// Seed of the workload
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Cut at every Nth write only
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    stride: u64,
}

/// Parses `A..B`, which must not be empty.
fn range(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    match ends {
        Some((first, end)) if first < end => Ok(first..end),
        _ => Err("expected two numbers A..B, A below B".into()),
    }
}

/// How many failed.
fn run_all(
    numbers: impl Iterator<Item = u64>,
    again: impl Fn(u64) -> String,
    mut scenario: impl FnMut(u64) -> Result<(), Failure>,
) -> u64 {
    let mut failures = 0;
    for number in numbers {
        if let Err(failure) = scenario(number) {
            failures += 1;
            println!("FAILED {number}: {failure}\n  repeat: {}", again(number));
        }
    }
    failures
}

/// Returns how many seeds failed.
fn run(command: Command) -> Result<u64, Failure> {
    match command {
        Command::Replay { life, seed } => Ok(crashes(&life, seed..seed.saturating_add(1))),
        Command::Crash { life, seeds } => Ok(crashes(&life, seeds)),
        Command::EveryWrite(asked) if asked.collect => every_write_of_a_collection(asked.seed, asked.stride),
        Command::EveryWrite(asked) => every_write(&asked),
        Command::Faults { seeds } => {
            let again = |seed| format!("terrane-sim faults --seeds {seed}..{}", seed + 1);
            Ok(run_all(seeds, again, all_faults))
        }
        Command::Hostile { count, seed, verbose } => hostile(seed, count, verbose),
        Command::Flips { tiny, seeds } => flips(tiny, seeds),
        Command::Full { emptied, rounds, seed } => {
            let told = if emptied {
                full::emptied(seed, 64, rounds).map(|seen| format!("{seen:?}"))
            } else {
                full::rounds(seed, rounds).map(|stats| format!("{stats:?}"))
            };
            told.map(|told| {
                println!("{told}");
                0
            })
        }
        Command::Storm { dir, seconds, seed } => {
            storm::storm(&dir, seed, Duration::from_secs(seconds)).map(|done| {
                println!("{done:?}");
                0
            })
        }
        Command::Gc(command) => command.run().map(|()| 0),
    }
}

fn crashes(life: &Life, seeds: Range<u64>) -> u64 {
    if life.logged {
        let which = match (life.crowded, life.faulty, life.log_devices) {
            (true, ..) => "--crowded ",
            (_, true, _) => "--faulty ",
            (.., true) => "--log-devices ",
            _ => "",
        };
        let again = |seed| format!("terrane-sim replay --logged {which}--seed {seed}");
        let mut all = Seen::default();
        let run = |seed| match (life.crowded, life.faulty, life.log_devices) {
            (true, ..) => logged::crowded_crash(seed),
            (_, true, _) => logged::faulty_crash(seed),
            (.., true) => logged::log_device_crash(seed),
            _ => logged::random_crash(seed),
        };
        let failures = run_all(seeds, again, |seed| run(seed).map(|seen| all.add(&seen)));
        println!("{all:?}");
        return failures;
    }
    if life.crowded {
        let again = |seed| format!("terrane-sim replay --crowded --seed {seed}");
        let mut runs = 0;
        let failures = run_all(seeds, again, |seed| crash::crowded_crash(seed).map(|seen| runs += seen));
        println!("relocated runs: {runs}");
        return failures;
    }
    if life.rewriting {
        let again = |seed| format!("terrane-sim replay --rewriting --seed {seed}");
        return run_all(seeds, again, |seed| crash::rewriting_crash(seed).map(drop));
    }
    if life.collect {
        let (drives, which) = match (life.tight, life.large) {
            (true, _) => (Drives::Tight, "--tight "),
            (_, true) => (Drives::Large, "--large "),
            _ => (Drives::Roomy, ""),
        };
        let again = |seed| format!("terrane-sim replay --collect {which}--seed {seed}");
        let mut all = collect::GcCrashStats::default();
        let failures = run_all(seeds, again, |seed| collect::seeded(seed, drives).map(|seen| all.add(seen)));
        println!("{all:?}");
        return failures;
    }
    run_all(seeds, |seed| format!("terrane-sim replay --seed {seed}"), crash::random_crash)
}

/// Of the command that repeats a failure.
fn stride_words(stride: u64) -> String {
    if stride == 1 { String::new() } else { format!(" --stride {stride}") }
}

fn every_write_of_a_collection(seed: u64, stride: u64) -> Result<u64, Failure> {
    let mut failures = 0;
    for drive in [true, false] {
        let life = collect::GcScenario { seed, drive, steps: 300 };
        match collect::every_write(life, stride, 4) {
            Ok(seen) => println!("as a {}: {seen:?}", if drive { "drive" } else { "file" }),
            Err(failure) => {
                failures += 1;
                println!(
                    "FAILED {life:?}: {failure}\n  repeat: terrane-sim every-write --collect --seed {seed}{}",
                    stride_words(stride)
                );
            }
        }
    }
    Ok(failures)
}

fn every_write(asked: &EveryWrite) -> Result<u64, Failure> {
    let (mix, option) = match asked {
        EveryWrite { names: true, .. } => (OpMix::Names, " --names"),
        EveryWrite { words: true, .. } => (OpMix::Words, " --words"),
        EveryWrite { attributes: true, .. } => (OpMix::Attributes, " --attributes"),
        _ => (OpMix::Everything, ""),
    };
    let (seed, stride) = (asked.seed, asked.stride);
    let mut failures = 0;
    for drive in [true, false] {
        let life = SmallScenario { seed, drive, steps: 110, mix };
        let ops = crash::count_small_ops(life)?;
        println!("{ops} device operations, as a {}", if drive { "drive" } else { "file" });
        let again = |_| format!("terrane-sim every-write{option} --seed {seed}{}", stride_words(stride));
        let cuts = (0..ops).step_by(usize::try_from(stride).unwrap_or(usize::MAX));
        failures += run_all(cuts, again, |cut| crash::cut_at(life, cut, 8));
    }
    Ok(failures)
}

fn all_faults(seed: u64) -> Result<(), Failure> {
    faults::write_errors(seed, 20)?;
    faults::metadata_rot(seed)?;
    faults::data_rot(seed)?;
    for lost in [LostPart::Spill, LostPart::Names, LostPart::Value] {
        faults::attribute_rot(seed, lost)?;
    }
    faults::zone_failure(seed, ZoneState::ReadOnly)?;
    faults::zone_failure(seed, ZoneState::Offline)
}

fn hostile(first: u64, count: u64, verbose: bool) -> Result<u64, Failure> {
    let image = Image::new(5)?;
    let mut verdicts = [0u64; 4];
    let failures = run_all(
        first..first.saturating_add(count),
        |seed| format!("terrane-sim hostile --seed {seed} --count 1"),
        |seed| {
            match sealed_forgery(&image, seed)? {
                Some((verdict, told)) => {
                    verdicts[verdict as usize] += 1;
                    if verbose {
                        println!("{seed}: {verdict:?}: {told}");
                    }
                }
                None => verdicts[3] += 1,
            }
            Ok(())
        },
    );
    println!("refused, damaged, intact, nothing forged: {verdicts:?}");
    Ok(failures)
}

fn flips(tiny: bool, bits: Range<u64>) -> Result<u64, Failure> {
    let image = if tiny { Image::tiny(3)? } else { Image::new(3)? };
    let tiny = if tiny { "--tiny " } else { "" };
    let mut verdicts = [0u64; 3];
    let mut failures = 0;
    let mut first = 0;
    for (zone, bytes) in image.written_ranges()? {
        let end = first + bytes * 8;
        let here = bits.start.max(first)..bits.end.min(end);
        failures += run_all(
            here,
            |bit| format!("terrane-sim flips {tiny}--seeds {bit}..{}", bit + 1),
            |bit| {
                verdicts[bit_flip(&image, zone, bit - first)? as usize] += 1;
                Ok(())
            },
        );
        first = end;
    }
    println!("{first} bits in total; refused, damaged, intact: {verdicts:?}");
    Ok(failures)
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            println!("{failures} failed");
            ExitCode::FAILURE
        }
        Err(failure) => {
            println!("FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Command;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Command::try_parse_from(std::iter::once("terrane-sim").chain(line.split(' ')))
    }

    #[test]
    fn the_definitions_are_consistent() {
        Command::command().debug_assert();
    }

    /// Scripts, documents and messages of tests have these lines.
    #[test]
    fn lines_in_use_are_taken() {
        for line in [
            "crash --seeds 0..3000",
            "crash --crowded --seeds 0..1",
            "replay --seed 113",
            "replay --crowded --seed 113",
            "replay --rewriting --seed 113",
            "replay --logged --seed 113",
            "replay --logged --crowded --seed 113",
            "replay --logged --faulty --seed 113",
            "replay --logged --log-devices --seed 113",
            "replay --collect --tight --seed 4",
            "replay --collect --large --seed 4",
            "every-write",
            "every-write --names --seed 7",
            "every-write --words --seed 7",
            "every-write --attributes --seed 7",
            "every-write --collect --seed 7",
            "every-write --collect --seed 7 --stride 96",
            "faults --seeds 113..114",
            "hostile --seed 9 --count 1",
            "hostile --count 9 --verbose",
            "flips --tiny --seeds 0..8",
            "full --emptied --rounds 50 --seed 2",
            "storm --dir /mnt/storm --seconds 10 --seed 1193046",
            "gc --trace 95/5 --policy greedy,hints,inferred,both --seed 3",
            "gc --trace fsbench-gc --zones 254 --zone-size 16M --record 128K --fill 0.866 --group 4M",
            "gc --trace recorded:/tmp/file --compare --json",
            "gc --policy inferred --trace 95/5 --zones 100000 --zone-size 256M --record 256K --warm-up 0.6 --measure 0.2",
        ] {
            if let Err(error) = parse(line) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn a_malformed_number_is_refused() {
        for line in [
            "replay --seed 1x",
            "replay --seed",
            "crash --seeds 5",
            "crash --seeds 5..",
            "crash --seeds 5..5",
            "crash --seeds 9..5",
            "every-write --seed seven",
            "every-write --collect --stride 0",
            "every-write --collect --stride 9f",
            "hostile --count 1 --seed -1",
            "full --rounds 1 --seed 1e3",
            "storm --dir new --seconds 1 --seed 0x1",
            "gc --zone-size 8X",
            "gc --fill 1.5",
            "gc --zones 15",
            "gc --policy greedy,lazy",
            "gc --trace 50/50",
        ] {
            let refused = parse(line).map(drop).expect_err(line).kind();
            let kinds = [ErrorKind::ValueValidation, ErrorKind::InvalidValue, ErrorKind::UnknownArgument];
            assert!(kinds.contains(&refused), "{line}: {refused:?}");
        }
    }

    #[test]
    fn options_of_other_lives_are_refused() {
        for line in [
            "crash --crowded --collect --seeds 0..1",
            "replay --tight --seed 1",
            "replay --collect --tight --large --seed 1",
            "every-write --names --attributes",
            "every-write --names --words",
            "gc --compare --policy both",
        ] {
            let refused = parse(line).map(drop).expect_err(line).kind();
            let kinds = [ErrorKind::ArgumentConflict, ErrorKind::MissingRequiredArgument];
            assert!(kinds.contains(&refused), "{line}: {refused:?}");
        }
        assert_eq!(parse("crash").map(drop).unwrap_err().kind(), ErrorKind::MissingRequiredArgument);
    }

    /// Clap has no text for an option without a comment.
    #[test]
    fn every_option_is_explained() {
        let mut all = vec![Command::command()];
        while let Some(command) = all.pop() {
            for option in command.get_arguments() {
                assert!(option.get_help().is_some(), "{} --{}", command.get_name(), option.get_id());
            }
            all.extend(command.get_subcommands().cloned());
        }
    }
}
