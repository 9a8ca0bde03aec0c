//! The page in Markdown.

use super::goals::{XATTR_SIZES, XattrSize, goals};
use super::results::{Field, Metric, Results, Spread};
use std::fmt::Write;

/// One table and one plot.
pub struct Section {
    /// Of its plot's file.
    pub name: &'static str,
    pub title: &'static str,
    /// The two peers that the others are compared with.
    pub bases: [&'static str; 2],
    pub rows: Vec<(&'static str, Metric)>,
}

fn meta(work: &'static str) -> Vec<(&'static str, Metric)> {
    [
        ("create", "file create"),
        ("stat", "file stat"),
        ("readdir, names", "readdir (names)"),
        ("rename", "file rename"),
        ("unlink", "file unlink"),
        ("mkdir", "dir create"),
        ("stat of directories", "dir stat"),
        ("rmdir", "dir remove"),
    ]
    .map(|(label, phase)| (label, Metric { work, phase, field: Field::OpsPerS }))
    .to_vec()
}

fn xattrs(phase: impl Fn(&XattrSize) -> &'static str) -> Vec<(&'static str, Metric)> {
    let field = Field::SecsOf(100_000);
    XATTR_SIZES
        .iter()
        .map(|size| (size.label, Metric { work: size.work, phase: phase(size), field }))
        .collect()
}

pub fn sections() -> Vec<Section> {
    let row = |label, work, phase, field| (label, Metric { work, phase, field });
    vec![
        Section {
            name: "meta-1",
            title: "Files and directories, 1 thread; operations/s",
            bases: ["null", "ext4"],
            rows: meta("meta-1"),
        },
        Section {
            name: "meta-2",
            title: "Files and directories, 2 threads; operations/s",
            bases: ["null", "ext4"],
            rows: meta("meta-2"),
        },
        Section {
            name: "find",
            title: "A cold walk over 50,000 files in 500 directories; seconds",
            bases: ["ext4", "zfs-off"],
            rows: vec![
                row("names only", "find", "find names", Field::Secs),
                row("with stat", "find", "find with stat", Field::Secs),
            ],
        },
        Section {
            name: "smallfiles",
            title: "Small files of a source tree",
            bases: ["null", "btrfs-zstd"],
            rows: vec![
                row("untar and sync, files/s", "smallfiles", "untar + syncfs", Field::OpsPerS),
                row("read all, cold, files/s", "smallfiles", "read all", Field::OpsPerS),
                row("stored, MB", "smallfiles", "untar + syncfs", Field::Extra("stored", 1e6)),
            ],
        },
        Section {
            name: "seq",
            title: "One large file; MB/s",
            bases: ["ext4", "btrfs-zstd"],
            rows: vec![
                row("write + fsync", "seq", "seq write+fsync", Field::MbPerS),
                row("read, cold", "seq", "seq read", Field::MbPerS),
                row("random 16 KiB reads, cold", "seq", "random read", Field::MbPerS),
                row("random 16 KiB overwrites", "seq", "random overwrite", Field::MbPerS),
                row("content / stored", "seq", "seq write+fsync", Field::Extra("stored_ratio", 1.0)),
            ],
        },
        Section {
            name: "fsync",
            title: "Append 4 KiB and fsync; operations/s, and microseconds",
            bases: ["ext4", "zfs-off"],
            rows: vec![
                row("1 thread", "fsync", "append+fsync x1", Field::OpsPerS),
                row("4 threads", "fsync", "append+fsync x4", Field::OpsPerS),
                row("1 thread, median", "fsync", "append+fsync x1", Field::P50),
                row("1 thread, 99 of 100", "fsync", "append+fsync x1", Field::P99),
            ],
        },
        Section {
            name: "xattr-set",
            title: "One extended attribute set on each of 100,000 files, and sync; seconds",
            bases: ["xfs", "zfs-off"],
            rows: xattrs(|size| size.set),
        },
        Section {
            name: "xattr-get",
            title: "One extended attribute read from each of 100,000 files, cold; seconds",
            bases: ["ext4", "xfs"],
            rows: xattrs(|size| size.get),
        },
    ]
}

/// About three digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => {
            let digits = format!("{value:.0}");
            let cut = digits.len() - 3;
            format!("{},{}", thousands(&digits[..cut]), &digits[cut..])
        }
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn thousands(digits: &str) -> String {
    match digits.len() {
        0..=3 => digits.to_owned(),
        len => format!("{},{}", thousands(&digits[..len - 3]), &digits[len - 3..]),
    }
}

fn spread(spread: Spread, unit: &str) -> String {
    let Spread { min, median, max } = spread;
    format!("{}{unit} <small>[{}–{}]</small>", number(median), number(min), number(max))
}

/// Peers with results in this section.
pub fn peers_of<'a>(results: &'a Results, section: &Section) -> Vec<&'a str> {
    let has = |peer: &str| section.rows.iter().any(|(_, metric)| results.values(*metric, peer).is_some());
    results.peers.iter().map(String::as_str).filter(|peer| has(peer)).collect()
}

pub fn page(results: &Results, facts: &str, plots: Option<&str>) -> String {
    let mut out = String::from(HEAD);
    let _ = writeln!(out, "Repetitions: {}.\n\n| | |\n|---|---|", results.repetitions());
    for (what, value) in facts.lines().filter_map(|line| line.split_once('\t')) {
        let _ = writeln!(out, "| {what} | {} |", value.replace('|', "\\|"));
    }
    goal_table(results, plots.is_some(), &mut out);
    for section in sections() {
        let peers = peers_of(results, &section);
        if !peers.is_empty() {
            table(results, &section, &peers, plots, &mut out);
        }
    }
    if !results.failed.is_empty() {
        out.push_str("\n## Runs that failed\n\n");
        results.failed.iter().for_each(|line| out.push_str(&format!("* {line}\n")));
    }
    out
}

const HEAD: &str = "\
# Benchmarks

Written by `make bench-peers`: do not edit this page. Each run gets a fresh file system. Within a repetition the peers run one after
the other, and each repetition begins with another peer. A figure is the median of the repetitions, with the smallest and the largest
in brackets. A ratio is the median of the ratios within each repetition. In the rows `vs` a ratio above 1 is better than its base
(faster, or smaller).

* **Kernel file systems** sit on a loop device with direct I/O. Its image was written in full beforehand, and nothing is discarded.
  They do not pay for FUSE.
* **Terrane** uses the same image as a file. So does zfs-fuse, through the host's page cache.
* **null** is an in-memory file system behind Terrane's own FUSE front end. It shows what the kernel,
  FUSE and the front end cost with no storage behind them.
* **terrane-library** is Terrane as a library in the measuring process: no operation passes through FUSE. **terrane-library-dir** is the same with `xattr=dir`.
* ***Cold***: the file system was unmounted, its data flushed, and the machine's caches dropped. In the tables of files and
  directories only the kernel's cache of attributes is cold, for every peer.
* **Extended attributes** of each size are set and read on a file system of their own. Seconds are for 100,000 files. For the largest
  size and for zfs-fuse fewer files were measured (row *files of xattr*), and the time was scaled. `n/a`: the file system refused that size.

";

/// The whole page also shows what was not measured; a part, for tuning, does not.
fn goal_table(results: &Results, whole: bool, out: &mut String) {
    out.push_str("\n## Goals\n\n| what | goal | reached | |\n|---|---|---|---|\n");
    for goal in goals() {
        let sign = if goal.at_most { "<=" } else { ">=" };
        let whose = match goal.bases {
            [] => String::new(),
            [base] => format!("x {base}"),
            bases => format!("x the best of {}", bases.join(", ")),
        };
        let (reached, verdict) = match goal.reached(results) {
            Some(value) => {
                let verdict = if goal.is_met(value) { "yes" } else { "**no**" };
                (spread(value, if goal.bases.is_empty() { "" } else { "x" }), verdict)
            }
            None if whole => ("not measured".to_owned(), "-"),
            None => continue,
        };
        let what = format!("{} ({})", goal.text, goal.peer);
        let _ = writeln!(out, "| {what} | {sign} {}{whose} | {reached} | {verdict} |", goal.bound);
    }
}

fn table(results: &Results, section: &Section, peers: &[&str], plots: Option<&str>, out: &mut String) {
    let _ = writeln!(out, "\n## {}\n", section.title);
    if let Some(folder) = plots {
        let _ = writeln!(out, "![{}]({folder}/{}.svg)\n", section.title, section.name);
    }
    let _ = writeln!(out, "| | {} |\n|---|{}", peers.join(" | "), "---:|".repeat(peers.len()));
    for (label, metric) in &section.rows {
        let cells: Vec<String> = peers
            .iter()
            .map(|peer| match results.values(*metric, peer) {
                Some(value) => spread(value, ""),
                None if results.is_refused(*metric, peer) => "n/a".to_owned(),
                None => "-".to_owned(),
            })
            .collect();
        let _ = writeln!(out, "| {label} | {} |", cells.join(" | "));
        for base in section.bases.iter().filter(|base| peers.contains(base)) {
            let cells: Vec<String> = peers
                .iter()
                .map(|peer| {
                    let ratio = results.ratios(*metric, peer, &[base]).map(|ratio| ratio.median);
                    let better = ratio.map(|ratio| if metric.field.is_cost() { 1.0 / ratio } else { ratio });
                    better.map_or("-".to_owned(), |better| format!("{}x", number(better)))
                })
                .collect();
            let _ = writeln!(out, "| &nbsp;&nbsp;*vs {base}* | {} |", cells.join(" | "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits() {
        let texts = [0.0123, 0.5, 12.345, 123.4, 9_999.0, 12_345.6, 1_234_567.0].map(number);
        assert_eq!(texts, ["0.012", "0.50", "12.3", "123", "9999", "12,346", "1,234,567"]);
    }

    #[test]
    fn the_page_judges_goals_and_shows_what_is_missing() {
        let row = r#"{"phase":"find names","secs":1.0}"#;
        let run =
            |peer: &str, row: &str| format!(r#"{{"work":"find","peer":"{peer}","rep":"1","rows":[{row}]}}"#);
        let lines = [
            run("terrane", row),
            run("ext4", &row.replace("1.0", "0.4")),
            r#"{"work":"seq","peer":"xfs","rep":"1","failed":"no such disk"}"#.to_owned(),
        ];
        let results = Results::parse(&lines.join("\n")).unwrap();
        let page = page(&results, "kernel\t6.1\n", Some("benchmarks"));
        let line =
            |of: &str| page.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("{of}:\n{page}"));
        assert!(line("find, names only").contains("2.50x") && line("find, names only").contains("**no**"));
        assert!(line("find with stat").contains("not measured"));
        assert!(line("*vs ext4*").contains("0.40x"));
        assert!(page.contains("| kernel | 6.1 |") && page.contains("no such disk"));
        assert!(page.contains("benchmarks/find.svg") && !page.contains("seq.svg"));
    }
}
