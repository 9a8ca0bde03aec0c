//! `terrane pool iostat`: I/O statistics of devices.
//!
//! The daemon of a mounted pool counts. No other process uses a pool, so one that is not mounted shows zeros
//! and is not opened. The first report covers the time since the import, each following one the interval
//! before it.

mod latency;
mod requests;

use super::super::{Survey, daemon_for_reading, exit_with_usage, print_on};
use crate::control::{self, GREETING_TIMEOUT};
use crate::failure::Outcome;
use crate::query::Query;
use crate::registry::Registry;
use crate::table::{Listing, OutputFormat, count, envelope, ratio, size, text};
use crate::target;
use clap::Args;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub const HELP: &str = "\
The first report covers the time since the pool was mounted, each other one the interval. With an interval and without a count it
goes on until it is interrupted.

CACHE/S and FED/S are what was read from cache devices and written to them: no other column counts that.
USER/S is what users wrote into files. The columns after it are what was written to devices for it, each second: blocks of files, metadata,
the log, the directories of zones, padding and headers, and what garbage collection moved. AMP is the write amplification: bytes written
to devices per byte written by users. Labels and uberblocks are in WRITTEN/S and AMP, and have no column.
";

#[derive(Args)]
pub struct Iostat {
    /// Pools, by name or by device (none: all that are known), then seconds between reports, then their count
    #[arg(value_name = "POOL|INTERVAL|COUNT")]
    words: Vec<String>,
    /// Also show latencies: how many operations took up to which time
    #[arg(short = 'w', long)]
    latency: bool,
    /// Also show what was asked of object stores, by kind
    #[arg(short, long)]
    requests: bool,
    #[command(flatten)]
    output: OutputFormat,
}

const IOSTAT: Listing = Listing {
    command: "pool iostat",
    key: "pools",
    columns: &[
        text("NAME", "name"),
        size("USED", "used"),
        size("AVAIL", "available"),
        count("READS/S", "reads_per_second"),
        count("WRITES/S", "writes_per_second"),
        size("READ/S", "read_bytes_per_second"),
        size("WRITTEN/S", "written_bytes_per_second"),
        size("CACHE/S", "cache_device_read_bytes_per_second"),
        size("FED/S", "cache_device_written_bytes_per_second"),
        size("USER/S", "user_bytes_per_second"),
        size("DATA", "data_bytes_per_second"),
        size("META", "metadata_bytes_per_second"),
        size("LOG", "log_bytes_per_second"),
        size("DIR", "directory_bytes_per_second"),
        size("PAD", "padding_bytes_per_second"),
        size("MOVED", "collection_bytes_per_second"),
        ratio("AMP", "amplification"),
    ],
};
/// Counters: the difference of two answers is what happened between them.
const COUNTERS: [&str; 22] = [
    "seconds",
    "reads",
    "writes",
    "read_bytes",
    "written_bytes",
    "flushes",
    "resets",
    "errors",
    "cache_hits",
    "cache_misses",
    "cache_device_hits",
    "cache_device_read_bytes",
    "cache_device_written_bytes",
    "user_bytes",
    "data_bytes",
    "metadata_bytes",
    "log_bytes",
    "collection_bytes",
    "directory_bytes",
    "padding_bytes",
    "anchor_bytes",
    "nopwrite_bytes",
];
const RATES: [(&str, &str); 15] = [
    ("reads", "reads_per_second"),
    ("writes", "writes_per_second"),
    ("read_bytes", "read_bytes_per_second"),
    ("written_bytes", "written_bytes_per_second"),
    ("cache_device_read_bytes", "cache_device_read_bytes_per_second"),
    ("cache_device_written_bytes", "cache_device_written_bytes_per_second"),
    ("user_bytes", "user_bytes_per_second"),
    ("data_bytes", "data_bytes_per_second"),
    ("metadata_bytes", "metadata_bytes_per_second"),
    ("log_bytes", "log_bytes_per_second"),
    ("collection_bytes", "collection_bytes_per_second"),
    ("directory_bytes", "directory_bytes_per_second"),
    ("padding_bytes", "padding_bytes_per_second"),
    ("anchor_bytes", "anchor_bytes_per_second"),
    ("nopwrite_bytes", "nopwrite_bytes_per_second"),
];

/// Pools, the interval, the number of reports.
type ReportArgs = (Vec<String>, Option<Duration>, Option<u64>);

impl Iostat {
    pub fn run(&self) -> Outcome {
        let (pools, interval, count) = self.parse_words().unwrap_or_else(|text| exit_with_usage(&text));
        let registry = Registry::of_this_user()?;
        let pools = if pools.is_empty() {
            let not_answering = Survey::of(&registry)?.not_answering;
            not_answering.iter().for_each(|(name, _)| eprintln!("terrane: {}", control::not_answering(name)));
            let answers =
                |name: &String| !not_answering.iter().any(|(not_answering, _)| not_answering == name);
            registry.pools()?.into_keys().filter(answers).collect()
        } else {
            pools
        };
        let mut before: BTreeMap<String, Value> = BTreeMap::new();
        let mut done = 0;
        loop {
            let mut rows = Vec::new();
            for word in &pools {
                let now = sample(&registry, word)?;
                let since = before.get(word).filter(|before| is_same_import(&now, before));
                let mut row = difference(&now, since);
                if self.latency {
                    row["latency"] = latency::of_period(&now["times"], since.map(|since| &since["times"]));
                }
                rows.push(row);
                before.insert(word.clone(), now);
            }
            let is_read = self.print_report(&rows, done == 0, interval.is_some())?;
            done += 1;
            let Some(interval) = interval.filter(|_| is_read && count.is_none_or(|count| done < count))
            else {
                return Ok(());
            };
            std::thread::sleep(interval);
        }
    }

    /// Names of pools begin with a letter and paths are never a bare number, so a number is never taken for a
    /// name.
    fn parse_words(&self) -> Result<ReportArgs, String> {
        let is_number =
            |word: &&String| word.starts_with(|c: char| c.is_ascii_digit()) && word.parse::<f64>().is_ok();
        let at = self.words.iter().position(|word| is_number(&word)).unwrap_or(self.words.len());
        let (pools, numbers) = self.words.split_at(at);
        let usage = |found: &str| {
            format!("'{found}': expected [POOL]... [INTERVAL [COUNT]], the interval in seconds")
        };
        let [interval, count] = [0, 1].map(|at| numbers.get(at));
        if let Some(word) = numbers.get(2) {
            return Err(usage(word));
        }
        let interval = match interval {
            Some(word) => {
                let seconds = word.parse::<f64>().ok().filter(|seconds| (0.001..=1e6).contains(seconds));
                Some(Duration::from_secs_f64(seconds.ok_or_else(|| usage(word))?))
            }
            None => None,
        };
        let count = match count {
            Some(word) => Some(word.parse().ok().filter(|count| *count > 0).ok_or_else(|| usage(word))?),
            None => None,
        };
        Ok((pools.to_vec(), interval, count))
    }

    /// False if the reader has closed the pipe.
    fn print_report(&self, rows: &[Value], first: bool, repeats: bool) -> Outcome<bool> {
        if self.output.json {
            let document = envelope(IOSTAT.command, json!({IOSTAT.key: rows}));
            // One line for each report, so that a reader knows where one ends.
            return print_on(&if repeats { format!("{document}\n") } else { format!("{document:#}\n") });
        }
        let text = IOSTAT.render(rows, self.output);
        // If tables are printed between the reports, each needs its own header.
        let is_alone = !self.latency && !self.requests;
        let skip = usize::from(!first && !self.output.no_header && is_alone);
        let mut text: String = text.lines().skip(skip).map(|line| format!("{line}\n")).collect();
        for row in rows.iter().filter(|_| self.latency) {
            text.push_str(&latency::table(row, self.output));
        }
        if self.requests {
            text.push_str(&requests::table(rows, self.output));
        }
        print_on(&text)
    }
}

/// The counters of a pool; all zero if no process has it open.
fn sample(registry: &Registry, word: &str) -> Outcome<Value> {
    let target = target::find(registry, word)?;
    if let Some(daemon) = daemon_for_reading(registry, &target, GREETING_TIMEOUT)? {
        return daemon.ask(&Query::Iostat, &mut |_, _, _| {});
    }
    target::read_label(&target.path)?;
    let mut row: Map<String, Value> = COUNTERS.iter().map(|key| ((*key).to_owned(), 0.into())).collect();
    row.insert("name".to_owned(), target.name.into());
    row.insert("used".to_owned(), Value::Null);
    row.insert("available".to_owned(), Value::Null);
    Ok(row.into())
}

/// Whether both are of one import: counters restart with each.
fn is_same_import(now: &Value, before: &Value) -> bool {
    now["seconds"].as_f64().unwrap_or(0.0) > before["seconds"].as_f64().unwrap_or(0.0)
}

/// What happened between two answers, or since the import.
fn difference(now: &Value, before: Option<&Value>) -> Value {
    let mut row = now.clone();
    if let Some(before) = before {
        for key in COUNTERS {
            row[key] = match (now[key].as_u64(), before[key].as_u64()) {
                (Some(now), Some(before)) => now.saturating_sub(before).into(),
                _ => (now[key].as_f64().unwrap_or(0.0) - before[key].as_f64().unwrap_or(0.0)).into(),
            };
        }
    }
    row["amplification"] = match (row["written_bytes"].as_u64(), row["user_bytes"].as_u64()) {
        (Some(written), Some(user)) if user > 0 => (written as f64 / user as f64).into(),
        _ => Value::Null,
    };
    if row["requests"].is_object() {
        row["requests"] = requests::of_period(&now["requests"], before.map(|before| &before["requests"]));
    }
    // Raw data; "latency" shows what is derived from it.
    row.as_object_mut().map(|row| row.remove("times"));
    let seconds = row["seconds"].as_f64().unwrap_or(0.0);
    for (key, rate) in RATES {
        let count = row[key].as_f64().unwrap_or(0.0);
        row[rate] = ((if seconds > 0.0 { count / seconds } else { 0.0 }).round() as u64).into();
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &str) -> Iostat {
        Iostat {
            words: words.split_whitespace().map(str::to_owned).collect(),
            latency: false,
            requests: false,
            output: OutputFormat::default(),
        }
    }

    #[test]
    fn numbers_are_interval_and_count() {
        let sorted = |text: &str| words(text).parse_words();
        let pools = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let seconds = Duration::from_secs_f64;
        assert_eq!(sorted(""), Ok((pools(&[]), None, None)));
        assert_eq!(sorted("tank ./1"), Ok((pools(&["tank", "./1"]), None, None)));
        assert_eq!(sorted("tank 0.5"), Ok((pools(&["tank"]), Some(seconds(0.5)), None)));
        assert_eq!(sorted("2 3"), Ok((pools(&[]), Some(seconds(2.0)), Some(3))));
        for wrong in ["1 2 3", "1 tank", "0", "1 0", "1 1.5"] {
            assert!(sorted(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_period_is_the_difference() {
        let at = |seconds: f64, reads: u64| {
            let mut row = json!({"name": "tank", "used": 1, "available": 2, "seconds": seconds});
            for key in COUNTERS.iter().filter(|key| **key != "seconds") {
                row[*key] = reads.into();
            }
            row
        };
        let row = difference(&at(4.0, 300), Some(&at(2.0, 100)));
        assert_eq!((&row["reads"], &row["reads_per_second"]), (&200.into(), &100.into()));
        assert_eq!(difference(&at(4.0, 300), None)["written_bytes_per_second"], 75);
        assert_eq!(row["amplification"], 1.0);
        assert_eq!(difference(&at(4.0, 0), None)["amplification"], Value::Null);
        assert!(!is_same_import(&at(1.0, 0), &at(4.0, 300)));
    }
}
