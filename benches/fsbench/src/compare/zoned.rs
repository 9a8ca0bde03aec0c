//! `zoned`: a table of the results of `gc` on zoned drives, one line for each run.
//!
//! Every run is shown: a median of amplification, longest waits or the slowest second has no meaning.

use crate::fail::{Context, Result};
use clap::Args;
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Opts {
    /// Results of gc, one JSON object a line, tagged with peer, shape and raw (bytes that the zones can hold)
    #[arg(required = true)]
    results: Vec<PathBuf>,
}

const HEAD: [&str; 13] = [
    "drive",
    "file system",
    "offered MB",
    "of raw",
    "live of raw",
    "fill MB/s",
    "churn MB/s",
    "slowest second",
    "write amplification",
    "longest write ms",
    "longest fsync ms",
    "longest unlink ms",
    "contents",
];

pub fn run(o: &Opts) -> Result<()> {
    let mut lines = String::new();
    for path in &o.results {
        lines += &fs::read_to_string(path).with_context(|| path.display().to_string())?;
    }
    print!("{}", table(&lines)?);
    Ok(())
}

fn table(lines: &str) -> Result<String> {
    let mut out = format!("| {} |\n|{}\n", HEAD.join(" | "), "---|".repeat(HEAD.len()));
    for line in lines.lines().filter(|line| line.starts_with('{')) {
        let run: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let _ = writeln!(out, "| {} |", cells(&run).join(" | "));
    }
    Ok(out)
}

fn cells(run: &Value) -> Vec<String> {
    let text = |name: &str| run[name].as_str().unwrap_or("?").to_owned();
    let mut cells = vec![text("shape"), text("peer")];
    if let Some(reason) = run["failed"].as_str() {
        cells.extend((0..HEAD.len() - 3).map(|_| "-".to_owned()));
        cells.push(format!("FAILED: {reason}"));
        return cells;
    }
    let row = |phase: &str| {
        let rows = run["rows"].as_array().into_iter().flatten();
        rows.clone().find(|row| row["phase"] == phase).unwrap_or(&Value::Null)
    };
    let number = |value: &Value, scale: f64, digits: usize| match value.as_f64() {
        Some(number) => format!("{:.digits$}", number / scale),
        None => "-".to_owned(),
    };
    let (fill, churn, verify) = (row("fill"), row("churn"), row("verify"));
    let offered = &run["params"]["avail"];
    // Live bytes are constant: the workload keeps its level.
    let live =
        offered.as_f64().zip(fill["extra"]["reached_percent"].as_f64()).map(|(all, of)| all * of / 100.0);
    let raw = text("raw").parse::<f64>().ok();
    let share = |bytes: Option<f64>| match bytes.zip(raw) {
        Some((bytes, raw)) => format!("{:.1} %", bytes / raw * 100.0),
        None => "-".to_owned(),
    };
    let bad = verify["extra"]["bad_files"].as_u64();
    let errors = verify["extra"]["errors"].as_object().is_none_or(|errors| !errors.is_empty());
    cells.extend([
        number(offered, 1e6, 0),
        share(offered.as_f64()),
        share(live),
        number(&fill["mb_per_s"], 1.0, 0),
        number(&churn["mb_per_s"], 1.0, 0),
        number(&churn["extra"]["slowest_second_mb_per_s"], 1.0, 0),
        number(&churn["extra"]["write_amplification"], 1.0, 2),
        number(&churn["latency"]["max_us"], 1e3, 0),
        number(&churn["extra"]["max_fsync_ms"], 1.0, 0),
        number(&churn["extra"]["max_unlink_ms"], 1.0, 0),
        match (bad, errors) {
            (Some(0), false) => "right".to_owned(),
            (Some(bad), _) => format!("**{bad} wrong**, errors {}", verify["extra"]["errors"]),
            (None, _) => "**not verified**".to_owned(),
        },
    ]);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run_with(verify: Value) -> Value {
        json!({
            "peer": "terrane", "shape": "4096:64:16", "raw": "4000000000", "params": {"avail": 3_600_000_000u64},
            "rows": [
                {"phase": "fill", "mb_per_s": 100.4, "extra": {"reached_percent": 95.0}},
                {"phase": "churn", "mb_per_s": 200.0, "latency": {"max_us": 41_000.0},
                 "extra": {"slowest_second_mb_per_s": 7.0, "write_amplification": 4.567, "max_fsync_ms": 12.0, "max_unlink_ms": 1.0}},
                {"phase": "verify", "extra": verify},
            ],
        })
    }

    #[test]
    fn a_run_is_a_line_and_says_what_is_wrong() {
        let right = run_with(json!({"bad_files": 0, "errors": {}}));
        let cells = super::cells(&right);
        assert_eq!(cells.len(), HEAD.len());
        let of_raw = ["3600", "90.0 %", "85.5 %", "100", "200", "7", "4.57", "41", "12", "1", "right"];
        assert_eq!(cells.get(2..), Some(of_raw.map(String::from).as_slice()));
        for wrong in
            [json!({"bad_files": 2, "errors": {}}), json!({"bad_files": 0, "errors": {"write: full": 1}})]
        {
            assert!(super::cells(&run_with(wrong)).last().is_some_and(|cell| cell.contains("wrong")));
        }
        let unverified = super::cells(&run_with(Value::Null));
        assert!(unverified.last().is_some_and(|cell| cell.contains("not verified")));
    }

    #[test]
    fn a_failed_run_is_shown_too() {
        let line = json!({"peer": "btrfs", "shape": "s", "raw": "1", "failed": "No space left"}).to_string();
        let table = table(&line).unwrap();
        assert!(table.lines().last().is_some_and(|line| line.contains("FAILED: No space left")), "{table}");
        assert!(table.lines().all(|line| line.matches('|').count() == HEAD.len() + 1), "{table}");
    }
}
