//! `compression`: savings and cost of each algorithm, as a table, and as a plot of read speed against ratio.

use super::results::{Field, Metric, Results, Spread};
use crate::fail::{Context, Result};
use clap::Args;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Opts {
    /// Results of seq, one JSON object a line, tagged with work, peer and rep
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// The plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

const RATIO: Metric =
    Metric { work: "source", phase: "seq write+fsync", field: Field::Extra("stored_ratio", 1.0) };
const WRITE: Metric = Metric { work: "source", phase: "seq write+fsync", field: Field::MbPerS };
const READ: Metric = Metric { work: "source", phase: "seq read", field: Field::MbPerS };
/// The same from a device that reads slowly.
const SLOW: Metric = Metric { work: "slow", ..READ };
/// The same writes with other kinds of data, of which some hardly compress: there an algorithm costs and
/// saves nothing.
const KINDS: [&str; 6] = ["random", "jpeg", "zstd", "text", "binary", "mixed"];

pub fn run(o: &Opts) -> Result<()> {
    let mut lines = String::new();
    for path in &o.results {
        lines += &fs::read_to_string(path).with_context(|| path.display().to_string())?;
    }
    let results = Results::parse(&lines)?;
    print!("{}", table(&results));
    if let Some(path) = &o.plot {
        fs::write(path, plot(&results)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn cell(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("-".to_owned(), |spread| match spread.max - spread.min < spread.median / 100.0 {
        true => format!("{:.digits$}", spread.median),
        false => format!(
            "{:.digits$} <small>[{:.digits$}–{:.digits$}]</small>",
            spread.median, spread.min, spread.max
        ),
    })
}

/// A column for each metric that was measured.
fn table(results: &Results) -> String {
    let mut columns = vec![("ratio", RATIO, 2), ("write MB/s", WRITE, 0), ("cold read MB/s", READ, 0)];
    columns.push(("slow device, cold read MB/s", SLOW, 0));
    columns.extend(KINDS.map(|work| (work, Metric { work, ..WRITE }, 2)));
    columns.retain(|(_, metric, _)| results.peers.iter().any(|peer| results.values(*metric, peer).is_some()));
    let heads: Vec<_> = columns.iter().map(|(name, ..)| *name).collect();
    let mut out = format!("| | {} |\n|{}\n", heads.join(" | "), "---|".repeat(columns.len() + 1));
    let mut peers: Vec<_> = results.peers.iter().collect();
    peers.sort_by_key(|peer| order(peer));
    for peer in peers {
        // Records of the same size, or neither compresses.
        let off = match record(peer) {
            "" => peer.clone(),
            record => format!("terrane-off-{record}"),
        };
        let cells = columns.iter().map(|(_, metric, digits)| match KINDS.contains(&metric.work) {
            false => cell(results.values(*metric, peer), *digits),
            true => cell(results.ratios(*metric, peer, &[&off]).filter(|_| off != *peer), *digits),
        });
        let _ = writeln!(out, "| {peer} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    if columns.iter().any(|(name, ..)| KINDS.contains(name)) {
        out += "\nThe last columns are speeds of writes beside those of `off` with the same records.\n";
    }
    for failed in &results.failed {
        let _ = writeln!(out, "\nFAILED: {failed}");
    }
    out
}

/// Others first, then by record, algorithm and level.
fn order(peer: &str) -> (&str, usize, u32) {
    let word = peer.split('-').nth(1).unwrap_or("");
    let name = word.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let names = ["off", "lz", "lzjb", "zle", "gzip", "fast", "zstd", "auto"];
    let place = names.iter().position(|known| *known == name).unwrap_or(names.len());
    (record(peer), place, word[name.len()..].parse().unwrap_or(0))
}

/// The record size that ends a peer's name.
fn record(peer: &str) -> &str {
    match peer.rsplit_once('-') {
        Some((_, record)) if record.starts_with(|digit: char| digit.is_ascii_digit()) => record,
        _ => "",
    }
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 460.0;

/// A round number of at least `value`.
fn round(value: f64) -> f64 {
    let unit = 10f64.powf(value.max(1.0).log10().floor()) / 2.0;
    (value / unit).ceil() * unit
}

fn plot(results: &Results) -> String {
    let points: Vec<(&str, f64, f64)> = results
        .peers
        .iter()
        .filter_map(|peer| {
            let (ratio, read) = (results.values(RATIO, peer)?.median, results.values(READ, peer)?.median);
            Some((peer.as_str(), ratio, read))
        })
        .collect();
    let most = points.iter().map(|(_, ratio, _)| *ratio).fold(1.0, f64::max);
    let mut reads: Vec<f64> = points.iter().map(|(.., read)| *read).collect();
    reads.sort_by(|a, b| b.total_cmp(a));
    // A value far above all others would compress their scale: it is drawn at the edge, with its number.
    let highest = match reads[..] {
        [first, second, ..] if first > 2.0 * second => second * 1.2,
        [first, ..] => first,
        [] => 1.0,
    };
    let (x_max, y_max) = ((most + 1.0).ceil(), round(highest));
    let x = |ratio: f64| LEFT + ratio / x_max * (WIDTH - LEFT - 120.0);
    let y = |read: f64| BOTTOM - read / y_max * (BOTTOM - 40.0);
    let mut body = String::new();
    for step in 0..=4 {
        let value = y_max * f64::from(step) / 4.0;
        let at = y(value);
        let _ = writeln!(
            body,
            r##"<line x1="{LEFT}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}" stroke="#dddddd"/>"##,
            WIDTH - 120.0
        );
        let _ = writeln!(
            body,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{value:.0}</text>"#,
            LEFT - 6.0,
            at + 4.0
        );
    }
    for value in 0..=(x_max as u32) {
        let at = x(f64::from(value));
        let _ = writeln!(
            body,
            r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle">{value}</text>"#,
            BOTTOM + 16.0
        );
    }
    for (peer, ratio, read) in points {
        let (fill, edge) = match record(peer) {
            "1m" => ("#ffffff", "#e15759"),
            "" => ("#4e79a7", "#4e79a7"),
            _ => ("#e15759", "#e15759"),
        };
        let (x, y) = (x(ratio), y(read.min(y_max)));
        let _ = writeln!(body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="{fill}" stroke="{edge}"/>"#);
        let name = peer.strip_prefix("terrane-").unwrap_or(peer);
        let beyond = if read > y_max { format!(": {read:.0}") } else { String::new() };
        // Labels of peers with the other record size are on the other side.
        let at = if record(peer) == "1m" { y - 8.0 } else { y + 14.0 };
        let _ = writeln!(
            body,
            r#"<text x="{x:.1}" y="{at:.1}" font-size="9" text-anchor="middle">{name}{beyond}</text>"#
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"8\" y=\"20\" \
         font-size=\"14\">cold sequential read, MB/s, against compression ratio; Terrane red, records of 1 MiB hollow</text>\n{body}\
         <text x=\"{:.0}\" y=\"{:.0}\">times smaller</text>\n</svg>\n",
        WIDTH / 2.0,
        BOTTOM + 40.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(work: &str, peer: &str, ratio: f64, write: f64, read: f64) -> String {
        let rows = serde_json::json!([
            {"phase": "seq write+fsync", "mb_per_s": write, "extra": {"stored_ratio": ratio}},
            {"phase": "seq read", "mb_per_s": read},
        ]);
        serde_json::json!({"work": work, "peer": peer, "rep": "1", "rows": rows}).to_string()
    }

    #[test]
    fn what_hardly_shrinks_is_compared_with_off_of_the_same_records() {
        let lines = [
            run("source", "terrane-zstd9-1m", 6.4, 90.0, 800.0),
            run("source", "ext4", 1.0, 500.0, 1000.0),
            run("jpeg", "terrane-zstd9-1m", 1.0, 360.0, 0.0),
            run("jpeg", "terrane-off-1m", 1.0, 400.0, 0.0),
            run("jpeg", "terrane-off-128k", 1.0, 800.0, 0.0),
        ];
        let results = Results::parse(&lines.join("\n")).unwrap();
        let table = table(&results);
        assert!(table.contains("| | ratio | write MB/s | cold read MB/s | jpeg |\n"), "{table}");
        assert!(table.contains("| terrane-zstd9-1m | 6.40 | 90 | 800 | 0.90 |"), "{table}");
        assert!(table.contains("| ext4 | 1.00 | 500 | 1000 | - |"), "{table}");
        let plot = plot(&results);
        assert!(plot.contains(">zstd9-1m</text>") && plot.contains(">ext4</text>"), "{plot}");
        assert!(!plot.contains("off-128k"), "what has no source has no point");
        let far =
            [run("source", "ext4", 1.0, 1.0, 4000.0), run("source", "terrane-lz4-1m", 3.0, 1.0, 1000.0)];
        let plot = super::plot(&Results::parse(&far.join("\n")).unwrap());
        assert!(plot.contains(">ext4: 4000</text>"), "{plot}");
    }

    #[test]
    fn rows_are_in_the_order_of_algorithms_and_levels() {
        let peers = [
            "ext4",
            "terrane-off-128k",
            "terrane-lz4-128k",
            "terrane-zstd3-128k",
            "terrane-zstd19-128k",
            "terrane-off-1m",
        ];
        let lines: Vec<_> = peers.iter().rev().map(|peer| run("source", peer, 2.0, 1.0, 1.0)).collect();
        let table = table(&Results::parse(&lines.join("\n")).unwrap());
        let rows: Vec<_> = table.lines().skip(2).filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(rows, peers);
    }

    #[test]
    fn a_slow_device_has_a_column_of_its_own() {
        let lines =
            [run("slow", "terrane-zstd9-1m", 6.4, 90.0, 700.0), run("slow", "ext4", 1.0, 500.0, 200.0)];
        let table = table(&Results::parse(&lines.join("\n")).unwrap());
        assert!(table.contains("| | slow device, cold read MB/s |\n|---|---|\n"), "{table}");
        assert!(table.contains("| terrane-zstd9-1m | 700 |"), "{table}");
    }
}
