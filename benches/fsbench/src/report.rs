//! Results: rows with rates and latencies, rendered as a table or as JSON.

use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Latency summary of one phase, in microseconds.
#[derive(Clone, Debug)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// Summarises samples in nanoseconds; `None` when there are none.
    pub fn of(mut ns: Vec<u64>) -> Option<Self> {
        if ns.is_empty() {
            return None;
        }
        ns.sort_unstable();
        let at = |q: f64| {
            let rank = (q * ns.len() as f64).ceil() as usize;
            ns[rank.clamp(1, ns.len()) - 1] as f64 / 1e3
        };
        Some(Latency { p50_us: at(0.50), p99_us: at(0.99), max_us: at(1.0) })
    }
}

/// One measured phase.
#[derive(Clone, Debug)]
pub struct Row {
    pub phase: String,
    pub ops: u64,
    pub secs: f64,
    pub ops_per_s: f64,
    pub bytes: u64,
    pub mb_per_s: f64,
    pub latency: Option<Latency>,
    pub note: String,
    /// Workload-specific numbers.
    pub extra: Map<String, Value>,
}

impl Row {
    pub fn new(phase: impl Into<String>, ops: u64, bytes: u64, secs: f64) -> Self {
        let per_s = |x: f64| if secs > 0.0 { x / secs } else { 0.0 };
        Row {
            phase: phase.into(),
            ops,
            secs,
            ops_per_s: per_s(ops as f64),
            bytes,
            mb_per_s: per_s(bytes as f64 / 1e6),
            latency: None,
            note: String::new(),
            extra: Map::new(),
        }
    }

    pub fn latency(mut self, ns: Vec<u64>) -> Self {
        self.latency = Latency::of(ns);
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn to_json(&self) -> Value {
        let mut row = json!({
            "phase": self.phase,
            "ops": self.ops,
            "secs": self.secs,
            "ops_per_s": self.ops_per_s,
            "bytes": self.bytes,
            "mb_per_s": self.mb_per_s,
            "note": self.note,
            "extra": self.extra,
        });
        if let Some(latency) = &self.latency {
            row["latency"] =
                json!({"p50_us": latency.p50_us, "p99_us": latency.p99_us, "max_us": latency.max_us});
        }
        row
    }

    pub fn extra(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(key.to_string(), value.into());
        self
    }
}

/// Everything one invocation reports.
#[derive(Debug)]
pub struct Report {
    pub workload: &'static str,
    pub dir: String,
    pub params: Map<String, Value>,
    pub rows: Vec<Row>,
    /// Preformatted text for the terminal (special tables).
    pub text: String,
}

impl Report {
    pub fn new(workload: &'static str, dir: &std::path::Path) -> Self {
        Report {
            workload,
            dir: dir.display().to_string(),
            params: Map::new(),
            rows: Vec::new(),
            text: String::new(),
        }
    }

    pub fn param(&mut self, key: &str, value: impl Into<Value>) {
        self.params.insert(key.to_string(), value.into());
    }

    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::to_json).collect();
        json!({"workload": self.workload, "dir": self.dir, "params": self.params, "rows": rows})
    }

    /// The human-readable table.
    pub fn table(&self) -> String {
        let mut out = format!("fsbench {} in {}", self.workload, self.dir);
        for (key, value) in &self.params {
            let _ = write!(out, " {key}={value}");
        }
        let _ = writeln!(
            out,
            "\n{:<24} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9} {:>10}  note",
            "phase", "ops", "secs", "ops/s", "MB/s", "p50 us", "p99 us", "max us"
        );
        for r in &self.rows {
            let mb = if r.bytes > 0 { format!("{:.1}", r.mb_per_s) } else { "-".into() };
            let (p50, p99, max) = match &r.latency {
                Some(l) => {
                    let us = |x: f64| format!("{x:.1}");
                    (us(l.p50_us), us(l.p99_us), us(l.max_us))
                }
                None => ("-".into(), "-".into(), "-".into()),
            };
            let _ = writeln!(
                out,
                "{:<24} {:>9} {:>9.3} {:>10.0} {:>9} {:>9} {:>9} {:>10}  {}",
                r.phase, r.ops, r.secs, r.ops_per_s, mb, p50, p99, max, r.note
            );
        }
        if !self.text.is_empty() {
            out.push('\n');
            out.push_str(&self.text);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_nearest_rank() {
        let l = Latency::of((1..=100).map(|x| x * 1000).collect()).unwrap();
        assert_eq!((l.p50_us, l.p99_us, l.max_us), (50.0, 99.0, 100.0));
        assert!(Latency::of(Vec::new()).is_none());
    }

    #[test]
    fn rates_survive_a_zero_duration() {
        let r = Row::new("x", 10, 10, 0.0);
        assert_eq!((r.ops_per_s, r.mb_per_s), (0.0, 0.0));
    }
}
