//! `terrane-sim gc`: its command line.

use super::report::Report;
use super::trace::database::Database;
use super::trace::files::{self, Files};
use super::trace::lsm::Lsm;
use super::trace::recorded::{Recorded, RecordedPool};
use super::trace::{Overwrite, Pick, Trace};
use super::{Measure, POLICIES, Setting, run as simulate};
use std::ops::RangeInclusive;
use terrane_oracle::{Failure, ensure};

const HELP: &str =
    "terrane-sim gc: the cost of placement and victim selection, on a simulated pool of any size

  --trace NAME      uniform, 95/5, 90/10, 80/20, zipf (overwrites of one file, without hints),
                    fsbench-gc, churn-flat, churn, build-farm (files), database, lsm (tables of
                    15/16 of a zone), or recorded:FILE:
                    a file by `terrane mount -o record=FILE`, replayed from beginning to end on a pool of
                    the recorded shape, unless options override it; or lines as crates/sim/src/gc/trace/recorded.rs explains
  --policy A,B      greedy-mixed, greedy, cost-benefit, hints, inferred, both (default: both)
  --compare         all policies, one after the other
  --zones N         default 1024              --zone-size BYTES  default 8M (K, M and G are units)
  --record BYTES    default 4K                --fill SHARE       live data as a share of all zones; default 0.9
  --slots N         open zones; default as in a pool     --ages N   of them for GC survivors, 1 to 3
  --group BYTES     users' bytes per txg; default half a zone
  --batch BYTES     bytes of blocks per directory part; default 1M, at most a quarter of a zone
  --packed          keep reclaimed zones as intervals, as at the limit of the relocation index
  --metadata SHARE  metadata written per byte of users' data, in each of two copies; default 0
  --warm-up X       pool capacities written before the measurement; default 4
  --measure X       pool capacities measured; default 2
  --seed N          default 1
  --json            print one JSON object per policy instead of a table";

struct Args<'a>(&'a [String]);

impl Args<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|arg| arg == name)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|arg| arg == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn number(&self, name: &str, default: f64, range: RangeInclusive<f64>) -> Result<f64, Failure> {
        let Some(text) = self.value(name) else { return Ok(default) };
        let units = [("K", 1u64 << 10), ("M", 1 << 20), ("G", 1 << 30)];
        let unit = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (digits, unit) = unit.unwrap_or((text, 1));
        let number = digits.parse::<f64>().ok().map(|number| number * unit as f64);
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            Failure(format!(
                "{name}: expected a number from {} to {}, found {text}",
                range.start(),
                range.end()
            ))
        })
    }

    /// The setting from the options, or by the recorded pool, or the default.
    fn setting(&self, recorded: Option<RecordedPool>) -> Result<Setting, Failure> {
        let (zones, bytes) = recorded.map_or((1024, 8 << 20), |shape| (shape.zones, shape.zone_bytes));
        let zones = self.number("--zones", f64::from(zones), 16.0..=1e6)?;
        let zone_bytes = self.number("--zone-size", bytes as f64, (1 << 20) as f64..=4e9)?;
        let mut default = Setting::new(zones as u32, zone_bytes as u64);
        if let Some(RecordedPool { slots, ages, .. }) = recorded {
            default = Setting { slots, ages, ..default };
        }
        Ok(Setting {
            txg_bytes: self.number("--group", default.txg_bytes as f64, 65536.0..=1e12)? as u64,
            batch_bytes: self.number("--batch", default.batch_bytes as f64, 4096.0..=zone_bytes / 2.0)?
                as u64,
            slots: self.number("--slots", f64::from(default.slots), 2.0..=128.0)? as u32,
            ages: self.number("--ages", f64::from(default.ages), 1.0..=3.0)? as u32,
            metadata: self.number("--metadata", 0.0, 0.0..=10.0)?,
            packed: self.has("--packed"),
            ..default
        })
    }
}

/// Runs `terrane-sim gc` with the arguments after these two words, and prints the results.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let asked = Args(args);
    if asked.has("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let name = asked.value("--trace").unwrap_or("uniform");
    let recorded = match name.strip_prefix("recorded:") {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| Failure(format!("{path}: {error}")))?;
            Some(Recorded::parse(text).map_err(|failure| failure.within(path))?)
        }
        None => None,
    };
    let shape = recorded.as_ref().and_then(|recorded| recorded.shape);
    let base = asked.setting(shape)?;
    let record = asked.number("--record", 4096.0, 512.0..=(16 << 20) as f64)? as u64;
    ensure(record <= base.zone_bytes / 4, || {
        format!("--record: expected a quarter of a zone at most, found {record}")
    })?;
    let live = (base.pool_bytes() as f64 * asked.number("--fill", 0.9, 0.01..=0.99)?) as u64;
    let measure = Measure {
        seed: asked.number("--seed", 1.0, 0.0..=1e15)? as u64,
        warm_up: asked.number("--warm-up", if shape.is_some() { 0.0 } else { 4.0 }, 0.0..=1e6)?,
        measured: asked.number("--measure", if shape.is_some() { 1e6 } else { 2.0 }, 0.0..=1e6)?,
    };
    let policies: Vec<&str> = match asked.value("--policy") {
        _ if asked.has("--compare") => POLICIES.iter().map(|(name, _)| *name).collect(),
        Some(some) => some.split(',').collect(),
        None => vec!["both"],
    };
    let json = asked.has("--json");
    if !json {
        println!("{}", Report::HEAD);
    }
    for policy in policies {
        let setting = base.with_policy(policy).ok_or_else(|| {
            Failure(format!(
                "--policy: expected some of {:?}, found {policy}",
                POLICIES.map(|(name, _)| name)
            ))
        })?;
        let mut trace = match &recorded {
            Some(recorded) => Box::new(recorded.clone()),
            None => trace_of(name, live, record, base.zone_bytes)?,
        };
        let report = simulate(setting, trace.as_mut(), measure)
            .ok_or_else(|| Failure(format!("{policy}: pool full; use a smaller --fill")))?;
        println!("{}", if json { report.json(policy) } else { report.row(policy) });
    }
    Ok(())
}

fn trace_of(name: &str, live: u64, record: u64, zone_bytes: u64) -> Result<Box<dyn Trace>, Failure> {
    let overwrite = |pick| -> Box<dyn Trace> { Box::new(Overwrite::new(pick, live, record)) };
    let hot = |writes, blocks| overwrite(Pick::Hot { writes, blocks });
    let many = |kinds, writers| -> Box<dyn Trace> { Box::new(Files::new(kinds, writers, live, record)) };
    Ok(match name {
        "uniform" => overwrite(Pick::Uniform),
        "95/5" => hot(0.95, 0.05),
        "90/10" => hot(0.9, 0.1),
        "80/20" => hot(0.8, 0.2),
        "zipf" => overwrite(Pick::zipf(0.99, live / record)),
        "fsbench-gc" => many(files::fsbench(), 1),
        "churn-flat" => many(files::flat(), 4),
        "churn" => many(files::churn(), 4),
        "build-farm" => many(files::build_farm(), 8),
        "database" => Box::new(Database::new(live, record)),
        "lsm" => Box::new(Lsm::new(live, zone_bytes / 16 * 15, record)),
        _ => return Err(Failure(format!("--trace: expected a trace listed by --help, found {name}"))),
    })
}
