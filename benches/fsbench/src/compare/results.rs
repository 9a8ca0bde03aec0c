//! Measurements by workload, peer, phase and repetition.

use crate::fail::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A number of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field {
    OpsPerS,
    MbPerS,
    Secs,
    /// Seconds for this many operations, at the measured rate.
    SecsOf(u32),
    P50,
    P99,
    /// A number of the workload's own, and its divisor.
    Extra(&'static str, f64),
}

impl Field {
    fn of(self, row: &Value) -> Option<f64> {
        if is_refused(row) {
            return None;
        }
        match self {
            Field::OpsPerS => row["ops_per_s"].as_f64(),
            Field::MbPerS => row["mb_per_s"].as_f64(),
            Field::Secs => row["secs"].as_f64(),
            Field::SecsOf(count) => Some(row["secs"].as_f64()? / row["ops"].as_f64()? * f64::from(count)),
            Field::P50 => row["latency"]["p50_us"].as_f64(),
            Field::P99 => row["latency"]["p99_us"].as_f64(),
            Field::Extra(name, scale) => row["extra"][name].as_f64().map(|value| value / scale),
        }
    }

    /// Whether lower is better.
    pub fn is_cost(self) -> bool {
        matches!(self, Field::Secs | Field::SecsOf(_) | Field::P50 | Field::P99 | Field::Extra("stored", _))
    }
}

/// Whether the file system does not support this.
fn is_refused(row: &Value) -> bool {
    row["ops"].as_u64() == Some(0) && row["note"].as_str().is_some_and(|note| note.starts_with("n/a"))
}

/// One number: a phase of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub work: &'static str,
    pub phase: &'static str,
    pub field: Field,
}

/// Smallest, median and largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Some(Spread { min, median, max })
    }
}

#[derive(Debug, Default)]
pub struct Results {
    /// By work and peer, then repetition: the row of each phase.
    runs: BTreeMap<(String, String), BTreeMap<u64, BTreeMap<String, Value>>>,
    /// Terrane, the ceiling, then the others.
    pub peers: Vec<String>,
    pub failed: Vec<String>,
}

impl Results {
    /// # Errors
    ///
    /// If a line is not a JSON object of fsbench.
    pub fn parse(lines: &str) -> Result<Results> {
        let mut results = Results::default();
        for (number, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = || format!("line {} of the results", number + 1);
            let run: Value = serde_json::from_str(line).with_context(at)?;
            let word = |key: &str| run[key].as_str().map(str::to_owned);
            let (work, peer) = (word("work"), word("peer"));
            let rep = word("rep").and_then(|rep| rep.parse::<u64>().ok());
            let (Some(work), Some(peer), Some(rep)) = (work, peer, rep) else {
                return Err(format!("{}: work, peer or rep is missing", at()).into());
            };
            if !results.peers.contains(&peer) {
                results.peers.push(peer.clone());
            }
            if let Some(reason) = word("failed") {
                results.failed.push(format!("{work} on {peer}, repetition {rep}: {reason}"));
                continue;
            }
            let rows = run["rows"].as_array().cloned().unwrap_or_default();
            let rows = rows.into_iter().map(|row| (row["phase"].as_str().unwrap_or("").to_owned(), row));
            results.runs.entry((work, peer)).or_default().insert(rep, rows.collect());
        }
        results.peers.sort_by_key(|peer| (rank(peer), peer.len(), peer.clone()));
        Ok(results)
    }

    pub fn repetitions(&self) -> usize {
        self.runs.values().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>().len()
    }

    fn by_rep(&self, metric: Metric, peer: &str) -> BTreeMap<u64, f64> {
        let Some(reps) = self.runs.get(&(metric.work.to_owned(), peer.to_owned())) else {
            return BTreeMap::new();
        };
        let value = |rows: &BTreeMap<String, Value>| metric.field.of(rows.get(metric.phase)?);
        reps.iter().filter_map(|(rep, rows)| Some((*rep, value(rows)?))).collect()
    }

    pub fn values(&self, metric: Metric, peer: &str) -> Option<Spread> {
        Spread::of(self.by_rep(metric, peer).into_values().collect())
    }

    /// Whether `peer` refused it in every repetition.
    pub fn is_refused(&self, metric: Metric, peer: &str) -> bool {
        let reps = self.runs.get(&(metric.work.to_owned(), peer.to_owned()));
        reps.is_some_and(|reps| {
            !reps.is_empty() && reps.values().all(|rows| rows.get(metric.phase).is_some_and(is_refused))
        })
    }

    /// The value of `peer` over the best of those of `bases`, within each repetition.
    pub fn ratios(&self, metric: Metric, peer: &str, bases: &[&str]) -> Option<Spread> {
        let mut best = BTreeMap::<u64, f64>::new();
        for (rep, value) in bases.iter().flat_map(|base| self.by_rep(metric, base)) {
            let best = best.entry(rep).or_insert(value);
            *best = if metric.field.is_cost() { best.min(value) } else { best.max(value) };
        }
        let of = |(rep, value): (u64, f64)| best.get(&rep).filter(|base| **base > 0.0).map(|b| value / b);
        Spread::of(self.by_rep(metric, peer).into_iter().filter_map(of).collect())
    }
}

fn rank(peer: &str) -> usize {
    let order = ["terrane", "null", "ext4", "xfs", "btrfs", "zfs"];
    order.iter().position(|first| peer.starts_with(first)).unwrap_or(order.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQ: Metric = Metric { work: "seq", phase: "seq read", field: Field::MbPerS };

    fn run(peer: &str, rep: u32, mb: f64) -> String {
        format!(
            r#"{{"work":"seq","peer":"{peer}","rep":"{rep}","rows":[{{"phase":"seq read","mb_per_s":{mb}}}]}}"#
        )
    }

    #[test]
    fn ratios_stay_within_a_repetition() {
        let lines = [run("a", 1, 10.0), run("b", 1, 20.0), run("a", 2, 300.0), run("b", 2, 100.0)];
        // A repetition in which only one of them ran is ignored.
        let results = Results::parse(&(lines.join("\n") + "\n\n" + &run("b", 3, 1.0))).unwrap();
        let expected = Spread { min: 1.0 / 3.0, median: (2.0 + 1.0 / 3.0) / 2.0, max: 2.0 };
        assert_eq!(results.ratios(SEQ, "b", &["a"]), Some(expected));
        assert_eq!(results.ratios(SEQ, "b", &["c"]), None);
        let expected = Spread { min: 1.0 / 3.0, median: 1.0, max: 1.0 };
        assert_eq!(results.ratios(SEQ, "b", &["a", "c", "b"]), Some(expected), "of several, the best");
        assert_eq!(results.values(SEQ, "b").map(|spread| spread.median), Some(20.0));
        assert_eq!(results.repetitions(), 3);
    }

    #[test]
    fn what_was_refused_has_no_figure() {
        let row = |ops: u32, note: &str| {
            let row = format!(r#"{{"phase":"set","ops":{ops},"secs":{ops}.0,"note":"{note}"}}"#);
            format!(r#"{{"work":"xattr","peer":"p{ops}","rep":"1","rows":[{row}]}}"#)
        };
        let results = Results::parse(&[row(0, "n/a (no space)"), row(5, "hook")].join("\n")).unwrap();
        let set = Metric { work: "xattr", phase: "set", field: Field::SecsOf(100) };
        assert_eq!((results.values(set, "p0"), results.is_refused(set, "p0")), (None, true));
        assert_eq!(results.values(set, "p5"), Some(Spread { min: 100.0, median: 100.0, max: 100.0 }));
        assert!(!results.is_refused(set, "p5") && !results.is_refused(set, "absent"));
    }

    #[test]
    fn a_line_that_says_too_little_is_an_error_with_its_number() {
        let error = Results::parse("{\"work\":\"seq\"}").unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}
