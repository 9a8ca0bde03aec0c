//! `terrane-sim`: the scenarios of the tests, for any number of seeds.
//!
//! Prints each failing seed with the command that repeats it, and exits with 1 if there was any.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use terrane_device::ZoneState;
use terrane_oracle::Failure;
use terrane_sim::collect::Drives;
use terrane_sim::crash::SmallScenario;
use terrane_sim::faults::LostPart;
use terrane_sim::hostile::{Image, bit_flip, sealed_forgery};
use terrane_sim::workload::OpMix;
use terrane_sim::{collect, crash, faults, full, gc, storm};

const USAGE: &str = "terrane-sim replay [--crowded | --rewriting | --collect [--tight | --large]] --seed N
terrane-sim crash [--crowded | --rewriting | --collect [--tight | --large]] --seeds A..B
terrane-sim every-write [--names | --attributes | --collect] [--seed N] [--stride N]
terrane-sim faults --seeds A..B
terrane-sim hostile --count N [--seed FIRST] [--verbose]
terrane-sim flips [--tiny] --seeds FIRST-BIT..LAST-BIT
terrane-sim full [--emptied] --rounds N [--seed N]
terrane-sim storm --dir NEW --seconds N [--seed N]
terrane-sim gc --trace TRACE [--policy POLICY | --compare] [options] (terrane-sim gc --help)";

struct Args(Vec<String>);

impl Args {
    fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|arg| arg == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|arg| arg == name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }

    fn range(&self, name: &str) -> Option<std::ops::Range<u64>> {
        let (first, end) = self.value(name)?.split_once("..")?;
        Some(first.parse().ok()?..end.parse().ok()?)
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

fn run(args: &Args) -> Option<Result<u64, Failure>> {
    let command = args.0.first()?.as_str();
    Some(match command {
        "replay" => args.number("--seed").map(|seed| Ok(crashes(args, seed..seed + 1)))?,
        "crash" => Ok(crashes(args, args.range("--seeds")?)),
        "every-write" if args.has("--collect") => {
            let stride = args.number("--stride").unwrap_or(1);
            every_write_of_a_collection(args.number("--seed").unwrap_or(7), stride)
        }
        "every-write" => {
            let has = |option: &&(&str, OpMix)| args.has(option.0);
            let option = [("--names", OpMix::Names), ("--attributes", OpMix::Attributes)];
            let option = option.iter().find(has).copied().unwrap_or(("", OpMix::Everything));
            every_write(args.number("--seed").unwrap_or(7), option)
        }
        "faults" => Ok(run_all(
            args.range("--seeds")?,
            |seed| format!("terrane-sim faults --seeds {seed}..{}", seed + 1),
            all_faults,
        )),
        "hostile" => {
            let verbose = args.has("--verbose");
            hostile(args.number("--seed").unwrap_or(0), args.number("--count")?, verbose)
        }
        "flips" => flips(args.has("--tiny"), args.range("--seeds")?),
        "full" => {
            let (seed, rounds) = (args.number("--seed").unwrap_or(1), args.number("--rounds")?);
            let told = if args.has("--emptied") {
                full::emptied(seed, 64, rounds).map(|stats| format!("{stats:?}"))
            } else {
                full::rounds(seed, rounds).map(|stats| format!("{stats:?}"))
            };
            told.map(|told| {
                println!("{told}");
                0
            })
        }
        "storm" => {
            let (dir, time) = (args.value("--dir")?, Duration::from_secs(args.number("--seconds")?));
            storm::storm(Path::new(dir), args.number("--seed").unwrap_or(1), time).map(|done| {
                println!("{done:?}");
                0
            })
        }
        "gc" => gc::command::run(&args.0[1..]).map(|()| 0),
        _ => return None,
    })
}

fn crashes(args: &Args, seeds: std::ops::Range<u64>) -> u64 {
    if args.has("--crowded") {
        let again = |seed| format!("terrane-sim replay --crowded --seed {seed}");
        let mut runs = 0;
        let failures = run_all(seeds, again, |seed| crash::crowded_crash(seed).map(|stats| runs += stats));
        println!("relocated runs: {runs}");
        return failures;
    }
    if args.has("--rewriting") {
        let again = |seed| format!("terrane-sim replay --rewriting --seed {seed}");
        return run_all(seeds, again, |seed| crash::rewriting_crash(seed).map(drop));
    }
    if args.has("--collect") {
        let (drives, which) = match (args.has("--tight"), args.has("--large")) {
            (true, _) => (Drives::Tight, "--tight "),
            (_, true) => (Drives::Large, "--large "),
            _ => (Drives::Roomy, ""),
        };
        let again = |seed| format!("terrane-sim replay --collect {which}--seed {seed}");
        let mut all = collect::GcCrashStats::default();
        let failures =
            run_all(seeds, again, |seed| collect::seeded(seed, drives).map(|stats| all.add(stats)));
        println!("{all:?}");
        return failures;
    }
    run_all(seeds, |seed| format!("terrane-sim replay --seed {seed}"), crash::random_crash)
}

fn every_write_of_a_collection(seed: u64, stride: u64) -> Result<u64, Failure> {
    let mut failures = 0;
    for drive in [true, false] {
        let scenario = collect::GcScenario { seed, drive, steps: 300 };
        match collect::every_write(scenario, stride, 4) {
            Ok(stats) => println!("as a {}: {stats:?}", if drive { "drive" } else { "file" }),
            Err(failure) => {
                failures += 1;
                println!(
                    "FAILED {scenario:?}: {failure}\n  repeat: terrane-sim every-write --collect --seed {seed}"
                );
            }
        }
    }
    Ok(failures)
}

fn every_write(seed: u64, (option, acts): (&str, OpMix)) -> Result<u64, Failure> {
    let mut failures = 0;
    for drive in [true, false] {
        let scenario = SmallScenario { seed, drive, steps: 110, mix: acts };
        let ops = crash::count_small_ops(scenario)?;
        println!("{ops} device operations, as a {}", if drive { "drive" } else { "file" });
        let again = |_| format!("terrane-sim every-write {option} --seed {seed}");
        failures += run_all(0..ops, again, |cut| crash::cut_at(scenario, cut, 8));
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

fn flips(tiny: bool, bits: std::ops::Range<u64>) -> Result<u64, Failure> {
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
    let args = Args(std::env::args().skip(1).collect());
    match run(&args) {
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        Some(Ok(0)) => ExitCode::SUCCESS,
        Some(Ok(failures)) => {
            println!("{failures} failed");
            ExitCode::FAILURE
        }
        Some(Err(failure)) => {
            println!("FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}
