//! `terrane-sim gc`: its command line.

use super::report::Report;
use super::snapshots::{Retention, Schedule};
use super::trace::database::Database;
use super::trace::files::{self, Files};
use super::trace::lsm::Lsm;
use super::trace::recorded::{Recorded, RecordedPool};
use super::trace::{Overwrite, Pick, Trace};
use super::{Measure, POLICIES, Setting, run as simulate};
use clap::{Args, ValueEnum};
use std::ops::RangeInclusive;
use std::str::FromStr;
use terrane_oracle::{Failure, ensure};

/// What placement and the choice of victims cost, on a pool of any size without data
#[derive(Args, Clone, Debug)]
pub struct Command {
    /// Workload: uniform, 95/5, 90/10, 80/20, zipf, fsbench-gc, churn-flat, churn, build-farm, database, lsm, or
    /// recorded:FILE
    ///
    /// The first five overwrite one file and give no hints. fsbench-gc, churn-flat, churn and build-farm are files that
    /// come and go. lsm has tables of 15/16 of a zone. FILE was written by `terrane mount -o record=FILE`, and is
    /// replayed from beginning to end, on a pool of its shape unless other options say otherwise. Or it has lines as
    /// crates/sim/src/gc/trace/recorded.rs explains.
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    trace: Workload,
    /// Policies, compared on the same workload
    #[arg(long, value_name = "A,B", default_value = "both", value_delimiter = ',', value_parser = POLICIES.map(|(name, _)| name))]
    policy: Vec<String>,
    /// All policies, one after the other
    #[arg(long, conflicts_with = "policy")]
    compare: bool,
    /// Zones of the pool; 1024, or as recorded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    zones: Option<u32>,
    /// Size of a zone; 8M, or as recorded (K, M and G are units)
    #[arg(long, value_name = "BYTES", value_parser = bytes((1 << 20)..=4_000_000_000))]
    zone_size: Option<u64>,
    /// Size of a record, at most a quarter of a zone
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = bytes(512..=16 << 20))]
    record: u64,
    /// Live data as a part of all zones
    #[arg(long, value_name = "PART", default_value = "0.9", value_parser = part(0.01..=0.99))]
    fill: f64,
    /// Open zones for which space is kept; as a pool has them, or as recorded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=128))]
    slots: Option<u32>,
    /// Most open zones, with extra ones for data; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    open: u32,
    /// Open zones for survivors; as a pool has them, or as recorded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3))]
    ages: Option<u32>,
    /// Users' bytes in a group; half a zone
    #[arg(long, value_name = "BYTES", value_parser = bytes(65_536..=1_000_000_000_000))]
    group: Option<u64>,
    /// Bytes of blocks to each directory part, at most half a zone; 1M, or a zone if that is less
    #[arg(long, value_name = "BYTES", value_parser = bytes(4096..=u64::MAX))]
    batch: Option<u64>,
    /// Zones that are gone in intervals, as when the bound of the run index is reached
    #[arg(long, conflicts_with = "index_max")]
    packed: bool,
    /// Bound of the relocation index and dead sets, kept as in a pool: by packing, by larger directory parts, and by
    /// rewriting the oldest blocks [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes(1..=u64::MAX))]
    index_max: Option<u64>,
    /// Kept snapshots, as up to four classes COUNT or COUNTxINTERVALS, separated by commas: 1000 keeps the newest thousand,
    /// 48,90x24,6x720 keeps hourly, daily and monthly ones as sanoid does
    ///
    /// Blocks that users delete or overwrite stay alive until no snapshot refers to them, and add to --fill. Blocks that a
    /// snapshot may refer to are not rewritten.
    #[arg(long, value_name = "LIST", requires = "every")]
    snapshots: Option<Retention>,
    /// Bytes that users write between two snapshots
    #[arg(long, value_name = "BYTES", requires = "snapshots", value_parser = bytes(65_536..=1_000_000_000_000))]
    every: Option<u64>,
    /// Metadata written for each byte of users', in each of two copies
    #[arg(long, value_name = "PART", default_value = "0", value_parser = part(0.0..=10.0))]
    metadata: f64,
    /// Capacities written before it is measured; 4, or 0 for a recording
    #[arg(long, value_name = "X", value_parser = part(0.0..=1e6))]
    warm_up: Option<f64>,
    /// Capacities measured; 2, or all of a recording
    #[arg(long, value_name = "X", value_parser = part(0.0..=1e6))]
    measure: Option<f64>,
    /// Seed of the workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One object for each policy, instead of a table
    #[arg(long)]
    json: bool,
}

/// A parser of bytes in this range, with an optional unit.
fn bytes(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let units = [("K", 1u64 << 10), ("M", 1 << 20), ("G", 1 << 30)];
        let unit = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (digits, unit) = unit.unwrap_or((text, 1));
        let number = digits.parse::<f64>().ok().map(|number| (number * unit as f64) as u64);
        let (least, most) = (range.start(), range.end());
        let fits = number.filter(|number| range.contains(number));
        fits.ok_or_else(|| format!("expected bytes from {least} to {most}, with or without K, M or G"))
    }
}

/// A parser of fractions and multiples in this range.
fn part(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
    }
}

/// Where events come from.
#[derive(Clone, Debug)]
enum Workload {
    Made(Made),
    /// From this file.
    Recorded(String),
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("recorded:") {
            return Ok(Workload::Recorded(path.to_owned()));
        }
        let made = Made::from_str(text, false);
        made.map(Workload::Made).map_err(|_| "expected a workload that --help lists".into())
    }
}

/// Workloads that are computed from a seed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Made {
    Uniform,
    #[value(name = "95/5")]
    Hot95,
    #[value(name = "90/10")]
    Hot90,
    #[value(name = "80/20")]
    Hot80,
    Zipf,
    FsbenchGc,
    ChurnFlat,
    Churn,
    BuildFarm,
    Database,
    Lsm,
}

impl Command {
    /// The setting by the options, or by the recorded pool, or the default.
    fn setting(&self, recorded: Option<RecordedPool>) -> Result<Setting, Failure> {
        let (zones, bytes) = recorded.map_or((1024, 8 << 20), |shape| (shape.zones, shape.zone_bytes));
        let zone_bytes = self.zone_size.unwrap_or(bytes);
        let mut default = Setting::new(self.zones.unwrap_or(zones), zone_bytes);
        if let Some(RecordedPool { slots, ages, .. }) = recorded {
            default = Setting { slots, ages, ..default };
        }
        let batch_bytes = self.batch.unwrap_or(default.batch_bytes);
        ensure(self.batch.is_none_or(|batch| batch <= zone_bytes / 2), || {
            format!("--batch: expected half a zone at most, found {batch_bytes}")
        })?;
        Ok(Setting {
            txg_bytes: self.group.unwrap_or(default.txg_bytes),
            batch_bytes,
            slots: self.slots.unwrap_or(default.slots),
            open_max: self.open,
            ages: self.ages.unwrap_or(default.ages),
            metadata: self.metadata,
            packed: self.packed,
            index_bytes_max: self.index_max.unwrap_or(0),
            snapshots: self
                .snapshots
                .zip(self.every)
                .map(|(retention, every_bytes)| Schedule { every_bytes, retention }),
            ..default
        })
    }

    /// Runs the workload under each policy, and prints the results.
    pub fn run(&self) -> Result<(), Failure> {
        let recorded = match &self.trace {
            Workload::Recorded(path) => {
                let text =
                    std::fs::read_to_string(path).map_err(|error| Failure(format!("{path}: {error}")))?;
                Some(Recorded::parse(text).map_err(|failure| failure.within(path))?)
            }
            Workload::Made(_) => None,
        };
        let shape = recorded.as_ref().and_then(|recorded| recorded.shape);
        let base = self.setting(shape)?;
        let record = self.record;
        ensure(record <= base.zone_bytes / 4, || {
            format!("--record: expected a quarter of a zone at most, found {record}")
        })?;
        let live = (base.pool_bytes() as f64 * self.fill) as u64;
        let (warm_up, measured) = if shape.is_some() { (0.0, 1e6) } else { (4.0, 2.0) };
        let measure = Measure {
            seed: self.seed,
            warm_up: self.warm_up.unwrap_or(warm_up),
            measured: self.measure.unwrap_or(measured),
        };
        let policies: Vec<&str> = match self.compare {
            true => POLICIES.iter().map(|(name, _)| *name).collect(),
            false => self.policy.iter().map(String::as_str).collect(),
        };
        if !self.json {
            println!("{}", Report::HEAD);
        }
        for policy in policies {
            let setting = base.with_policy(policy).expect("the parser takes policies alone");
            let mut trace: Box<dyn Trace> = match (&self.trace, &recorded) {
                (Workload::Made(made), _) => made.trace(live, record, base.zone_bytes),
                (Workload::Recorded(_), recorded) => {
                    Box::new(recorded.clone().expect("a recording was read above"))
                }
            };
            let report = simulate(setting, trace.as_mut(), measure)
                .ok_or_else(|| Failure(format!("{policy}: the pool ran full; try a lesser --fill")))?;
            println!("{}", if self.json { report.json(policy) } else { report.row(policy) });
        }
        Ok(())
    }
}

impl Made {
    fn trace(self, live: u64, record: u64, zone_bytes: u64) -> Box<dyn Trace> {
        let overwrite = |pick| -> Box<dyn Trace> { Box::new(Overwrite::new(pick, live, record)) };
        let hot = |writes, blocks| overwrite(Pick::Hot { writes, blocks });
        let many = |kinds, writers| -> Box<dyn Trace> { Box::new(Files::new(kinds, writers, live, record)) };
        match self {
            Made::Uniform => overwrite(Pick::Uniform),
            Made::Hot95 => hot(0.95, 0.05),
            Made::Hot90 => hot(0.9, 0.1),
            Made::Hot80 => hot(0.8, 0.2),
            Made::Zipf => overwrite(Pick::zipf(0.99, live / record)),
            Made::FsbenchGc => many(files::fsbench(), 1),
            Made::ChurnFlat => many(files::flat(), 4),
            Made::Churn => many(files::churn(), 4),
            Made::BuildFarm => many(files::build_farm(), 8),
            Made::Database => Box::new(Database::new(live, record)),
            Made::Lsm => Box::new(Lsm::new(live, zone_bytes / 16 * 15, record)),
        }
    }
}
