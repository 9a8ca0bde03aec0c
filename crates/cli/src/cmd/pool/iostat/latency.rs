//! Latency histograms: `terrane pool iostat -w`.
//!
//! The daemon answers with the counts of its histograms since the import; shown is the difference of two
//! answers.

use crate::table::{OutputFormat, printable};
use serde_json::{Value, json};
use std::fmt::Write as _;
use terrane_wire::meter::{BUCKETS, HistogramSnapshot};

/// Key in the answer, and column title.
const COLUMNS: [(&str, &str); 6] = [
    ("read", "READ"),
    ("write", "WRITE"),
    ("flush", "FLUSH"),
    ("txg", "TXG"),
    ("join", "JOIN"),
    ("space", "SPACE"),
];
const SHARES: [(&str, &str, f64); 3] =
    [("p50_ns", "p50", 0.5), ("p99_ns", "p99", 0.99), ("p999_ns", "p99.9", 0.999)];

fn parse(raw: &Value) -> HistogramSnapshot {
    let mut times = HistogramSnapshot::default();
    let counts = raw["counts"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (bucket, count) in times.buckets.iter_mut().zip(counts) {
        *bucket = count.as_u64().unwrap_or(0);
    }
    times.sum_ns = raw["sum_ns"].as_u64().unwrap_or(0);
    times.longest_ns = raw["longest_ns"].as_u64().unwrap_or(0);
    times
}

/// The counts since `before`, or since the import.
pub fn of_period(now: &Value, before: Option<&Value>) -> Value {
    let column = |(key, _): &(&str, &str)| {
        let all = parse(&now[key]);
        let times = before.map_or(all, |before| all.since(&parse(&before[key])));
        let mut latency = json!({
            "counts": times.buckets,
            "mean_ns": times.mean_ns(),
            "longest_ns": times.longest_ns,
        });
        for (key, _, share) in SHARES {
            latency[key] = times.quantile_ns(share).into();
        }
        ((*key).to_owned(), latency)
    };
    let bounds: Vec<Option<u64>> = (0..BUCKETS).map(HistogramSnapshot::bound_ns).collect();
    let mut latency: serde_json::Map<String, Value> = COLUMNS.iter().map(column).collect();
    latency.insert("bounds_ns".to_owned(), bounds.into());
    latency.into()
}

/// `1.05ms`: three digits are enough for a bound.
fn time(ns: u64) -> String {
    let (unit, per) = match ns {
        0..1_000_000 => ("us", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    let value = ns as f64 / per;
    if value < 10.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// A line for each latency bound, then means and shares; without operations that did not occur.
pub fn table(row: &Value, output: OutputFormat) -> String {
    let latency = &row["latency"];
    let count = |key: &str, at: usize| latency[key]["counts"][at].as_u64().unwrap_or(0);
    let happened = |at: &usize| COLUMNS.iter().any(|(key, _)| count(key, *at) > 0);
    let (first, last) = ((0..BUCKETS).find(happened), (0..BUCKETS).rfind(happened));
    let mut lines: Vec<(String, [String; COLUMNS.len()])> = Vec::new();
    if !output.no_header {
        let name = printable(row["name"].as_str().unwrap_or("-"));
        lines.push((name, COLUMNS.map(|(_, title)| title.to_owned())));
    }
    for at in first.unwrap_or(1)..=last.unwrap_or(0) {
        let bound = HistogramSnapshot::bound_ns(at).map_or("longer".to_owned(), |ns| match output.parsable {
            true => ns.to_string(),
            false => time(ns),
        });
        lines.push((bound, COLUMNS.map(|(key, _)| count(key, at).to_string())));
    }
    let words = [("mean_ns", "mean"), ("longest_ns", "longest")];
    for (key, title) in SHARES.iter().map(|(key, title, _)| (*key, *title)).chain(words) {
        let cell = |column: &str| match latency[column][key].as_u64() {
            Some(ns) if ns > 0 => {
                if output.parsable {
                    ns.to_string()
                } else {
                    time(ns)
                }
            }
            _ => "-".to_owned(),
        };
        lines.push((title.to_owned(), COLUMNS.map(|(column, _)| cell(column))));
    }
    let mut out = String::new();
    for (title, cells) in lines {
        // Writing to a `String` cannot fail.
        let _ = match output.no_header {
            true => writeln!(out, "{title}\t{}", cells.join("\t")),
            false => writeln!(out, "{title:>9}{}", cells.map(|cell| format!("{cell:>9}")).concat()),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::meter::Histogram;

    fn answer(times: &[u64]) -> Value {
        let histogram = Histogram::default();
        times.iter().for_each(|ns| histogram.record_ns(*ns));
        let times = histogram.snapshot();
        let one = json!({"counts": times.buckets, "sum_ns": times.sum_ns, "longest_ns": times.longest_ns});
        json!({"read": one, "write": Value::Null})
    }

    #[test]
    fn a_period_shows_what_came_in_it() {
        let before = answer(&[1_000, 3_000_000]);
        let now = answer(&[1_000, 3_000_000, 3_000_000, 5_000_000, u64::MAX / 4]);
        let row = json!({"name": "tank", "latency": of_period(&now, Some(&before))});
        assert_eq!(
            row["latency"]["read"]["counts"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_u64)
                .sum::<u64>(),
            3
        );
        let text = table(&row, OutputFormat::default());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["tank", "READ", "WRITE", "FLUSH", "TXG", "JOIN", "SPACE"]);
        assert_eq!(lines[1], ["4.2ms", "1", "0", "0", "0", "0", "0"], "nothing of what came before: {text}");
        assert_eq!(lines[2][..2], ["8.4ms", "1"]);
        assert!(lines.iter().any(|line| line[..2] == ["longer", "1"]), "{text}");
        assert!(lines.iter().any(|line| line[..3] == ["p50", "8.4ms", "-"]), "{text}");
        assert!(lines.iter().any(|line| line[..2] == ["p99", "-"]), "it lies beyond all bounds: {text}");
    }

    #[test]
    fn an_idle_pool_has_no_latency_lines() {
        let row = json!({"name": "tank", "latency": of_period(&Value::Null, None)});
        let text = table(&row, OutputFormat { no_header: true, ..OutputFormat::default() });
        assert_eq!(text.lines().next(), Some("p50\t-\t-\t-\t-\t-\t-"));
        assert_eq!(text.lines().count(), 5);
    }
}
