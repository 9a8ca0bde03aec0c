//! `terrane fs rewrite`: stores existing files in another form.
//!
//! The server that has the pool mounted does the work in the background; the command starts it and watches.
//! So interrupting the command loses nothing, and running it again watches the rewrite that is in progress.

use super::super::stat::pool_of_mount;
use super::super::{daemon_of, print};
use crate::failure::{Failure, Outcome};
use crate::query::Query;
use crate::registry::Registry;
use crate::size;
use crate::table::envelope;
use crate::target::{self, Target};
use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrane_codec::Compression;

pub const HELP: &str = "\
The server of the mount rewrites files record by record while they are in use, at low priority. Content, times (also the change
time), inode numbers, links, attributes and open files stay as they are. Data written meanwhile or later is stored as the
properties say.

Interrupting the command does not end the rewrite: the same command watches it again, --status shows its progress, and --cancel ends it.
After an unmount or a crash it continues with the next mount. One rewrite runs at a time. A record that does not shrink is stored as it is.

Another record size needs another block tree. The tree of a large file is built beside the old one, which is freed when all is
copied. So the file needs space for a second copy meanwhile. A file without that space is skipped, and so is one that changes
faster than it is copied; --status counts them, and the log of the mount names them and says what to do.

The exit code is 0 when all is done, and 1 when it was cancelled, or files could not be read.
";

/// Interval between two progress queries, and before the first: a small rewrite ends soon.
const PERIOD: Duration = Duration::from_millis(200);
const FIRST_PERIOD: Duration = Duration::from_millis(10);
/// Interval between two lines of `--json`.
const LINE_PERIOD: Duration = Duration::from_secs(1);
const CELLS: u64 = 20;

#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["compression", "recordsize", "status", "cancel"]))]
pub struct Rewrite {
    /// A file or directory on a mount; for --status and --cancel also a pool
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// All files below the directory
    #[arg(short, long)]
    recursive: bool,
    /// New compression: a value of the property, except zstd-auto
    #[arg(long, value_name = "ALGORITHM", value_parser = compression)]
    compression: Option<Compression>,
    /// New record size: a value of the property
    #[arg(long, value_name = "SIZE", value_parser = record_size)]
    recordsize: Option<u32>,
    /// Start, and do not wait
    #[arg(short, long, conflicts_with_all = ["status", "cancel"])]
    background: bool,
    /// Show the progress of the rewrite, or how the last one since the mount ended
    #[arg(long, conflicts_with_all = ["compression", "recordsize", "recursive"])]
    status: bool,
    /// Cancel the rewrite; records already rewritten stay so
    #[arg(long, conflicts_with_all = ["compression", "recordsize", "recursive", "status"])]
    cancel: bool,
    /// JSON: a line each second while it waits, with exact numbers
    #[arg(short, long)]
    json: bool,
}

fn compression(word: &str) -> Result<Compression, String> {
    if word.starts_with("zstd-auto") {
        return Err(
            "zstd-auto refused: it follows the load of writers, and a rewrite has none; name a level"
                .to_owned(),
        );
    }
    word.parse::<Compression>().map_err(|error| error.to_string())
}

fn record_size(word: &str) -> Result<u32, String> {
    let bytes = size::parse(word).map_err(|error| error.to_string())?;
    let bytes = u32::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two());
    bytes
        .filter(|bytes| (512..=16 << 20).contains(bytes))
        .ok_or_else(|| "a power of two from 512 to 16M".to_owned())
}

impl Rewrite {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        if self.status || self.cancel {
            let place = self.place(&registry)?;
            let query = if self.cancel { Query::RewriteCancel } else { Query::RewriteStatus };
            let row = ask(&registry, &place, &query)?;
            return self.show(&row);
        }
        let meta = std::fs::symlink_metadata(&self.path).map_err(Failure::io("examining", &self.path))?;
        if meta.is_dir() && !self.recursive {
            let (at, remedy) = (self.path.display(), "use -r for all files below it");
            return Err(Failure::refused(at, "a file", "a directory", remedy));
        }
        if !meta.is_dir() && !meta.is_file() {
            let remedy = "only these have contents to rewrite";
            return Err(Failure::refused(self.path.display(), "a file or directory", "neither", remedy));
        }
        let place = pool_of_mount(&registry, &self.path, meta.dev())?;
        let query = Query::Rewrite {
            object: meta.ino(),
            recursive: self.recursive,
            compression: self.compression.map(|compression| compression.to_string()),
            record_size: self.recordsize,
        };
        let mut row = ask(&registry, &place, &query)?;
        if !self.background {
            row = self.watch(&registry, &place, row)?;
        }
        self.show(&row)?;
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        match row["state"].as_str() {
            _ if self.background => Ok(()),
            Some("done") if number("errors") == 0 => Ok(()),
            Some("done") => Err(Failure(format!(
                "{} records or files could not be read and are unchanged; the log of the mount names them",
                number("errors")
            ))),
            _ => Err(Failure("rewrite cancelled; records already rewritten stay so".to_owned())),
        }
    }

    /// The data set in which a path lies, or that a word names.
    fn place(&self, registry: &Registry) -> Outcome<(Target, String)> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(meta) if meta.is_dir() || !is_device(registry, &self.path) => {
                pool_of_mount(registry, &self.path, meta.dev())
            }
            _ => target::find_mountable(registry, &self.path.to_string_lossy()),
        }
    }

    /// Watches until it ends.
    fn watch(&self, registry: &Registry, place: &(Target, String), first: Value) -> Outcome<Value> {
        let mut row = first;
        let mut progress = ProgressLine::new();
        let mut printed: Option<Instant> = None;
        let mut period = FIRST_PERIOD;
        while is_running(&row) {
            if self.json && printed.is_none_or(|last| last.elapsed() >= LINE_PERIOD) {
                printed = Some(Instant::now());
                print(&format!("{row}\n"))?;
            }
            if !self.json {
                progress.show(&row);
            }
            std::thread::sleep(period);
            period = (period * 5 / 4).min(PERIOD);
            row = ask(registry, place, &Query::RewriteStatus)?;
        }
        Ok(row)
    }

    fn show(&self, row: &Value) -> Outcome {
        if self.json && self.background | self.status | self.cancel {
            return print(&format!("{:#}\n", envelope("fs rewrite", json!({"rewrites": [row]}))));
        }
        print(&if self.json { format!("{row}\n") } else { describe(row) })
    }
}

/// Whether a path is both a file and a pool's device. Such a word means the pool.
fn is_device(registry: &Registry, path: &Path) -> bool {
    path.to_str().is_some_and(|word| target::find(registry, word).is_ok())
}

fn is_running(row: &Value) -> bool {
    matches!(row["state"].as_str(), Some("going" | "waiting for room"))
}

/// Asks the server; a pool that is not mounted is refused.
fn ask(registry: &Registry, (target, dataset): &(Target, String), query: &Query) -> Outcome<Value> {
    match daemon_of(registry, target)? {
        Some(daemon) => daemon.ask_about(dataset, query, &mut |_, _, _| {}),
        None => Err(Failure::refused(
            format_args!("pool {}", target.name),
            "a mounted pool",
            "one that is not mounted",
            "mount it: an unfinished rewrite continues with the mount",
        )),
    }
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

/// Bytes of the recompressed records, before and after.
fn gain(row: &Value) -> String {
    let (before, after) = (number(row, "before"), number(row, "after"));
    if before == 0 {
        return String::new();
    }
    let ratio = before as f64 / after.max(1) as f64;
    format!(", {} became {} ({ratio:.2}x)", size::format(before), size::format(after))
}

fn describe(row: &Value) -> String {
    let name = crate::table::printable(row["name"].as_str().unwrap_or("?"));
    let Some(state) = row["state"].as_str() else { return format!("{name}: no rewrite in progress\n") };
    let path = crate::table::printable(row["path"].as_str().unwrap_or("?"));
    let forms: Vec<String> = [
        ("compression", row["compression"].as_str().map(str::to_owned)),
        ("recordsize", row["recordsize"].as_u64().map(size::format)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(format!("{name}={}", value?)))
    .collect();
    let mut out = format!("{name}: {path}, {}: {state}", forms.join(" "));
    if is_running(row) {
        out.push_str(&format!(", {}", row["pass"].as_str().unwrap_or("?")));
    }
    out.push_str(&format!(", {} of {} files{}", row["files"], row["files_total"], gain(row)));
    for (key, text) in [
        ("reshaped", "files with another record size"),
        ("no_room", "files skipped: no space for a second copy"),
        ("busy", "files skipped: they changed faster than they were copied"),
        ("errors", "records or files that could not be read"),
    ] {
        if number(row, key) > 0 {
            out.push_str(&format!(", {} {text}", number(row, key)));
        }
    }
    out.push('\n');
    out
}

/// A progress line on standard error, if that is a terminal.
struct ProgressLine {
    visible: bool,
    drawn: bool,
    /// The pass that is watched, when watching began, and what was done by then: records in stored bytes, and
    /// content.
    pass: String,
    begun: Instant,
    stored: u64,
    logical: u64,
}

impl ProgressLine {
    fn new() -> ProgressLine {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let visible = std::io::stderr().is_terminal() && !dumb;
        let (pass, begun) = (String::new(), Instant::now());
        ProgressLine { visible, drawn: false, pass, begun, stored: 0, logical: 0 }
    }

    fn show(&mut self, row: &Value) {
        if !self.visible {
            return;
        }
        let pass = row["pass"].as_str().unwrap_or("?");
        if self.pass != pass {
            (self.pass, self.begun) = (pass.to_owned(), Instant::now());
            (self.stored, self.logical) = (number(row, "stored"), number(row, "logical"));
        }
        let seconds = self.begun.elapsed().as_secs_f64();
        let (stored, logical) = (
            number(row, "stored").saturating_sub(self.stored),
            number(row, "logical").saturating_sub(self.logical),
        );
        self.drawn = true;
        let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(row, stored, logical, seconds));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.drawn {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The progress bar: the share of the pass that is done, the speed since watching began, and the time left at
/// that speed.
fn line(row: &Value, stored: u64, logical: u64, seconds: f64) -> String {
    let pass = row["pass"].as_str().unwrap_or("?");
    if pass == "counting" {
        return format!("counting: {} files", row["files_total"]);
    }
    let total = number(row, "stored_total").max(1);
    let done = number(row, "stored").min(total);
    let full = (u128::from(done) * u128::from(CELLS) / u128::from(total)) as usize;
    let percent = u128::from(done) * 100 / u128::from(total);
    let mut out = format!(
        "{pass} [{}{}] {percent:3} %  {} of {} files{}",
        "#".repeat(full),
        " ".repeat(CELLS as usize - full),
        row["files"],
        row["files_total"],
        gain(row)
    );
    if row["state"] == "waiting for room" {
        out.push_str("  the pool is full");
    } else if seconds >= 0.5 && stored > 0 {
        let left = ((total - done) as f64 * seconds / stored as f64).ceil() as u64;
        let rate = size::format((logical as f64 / seconds) as u64);
        out.push_str(&format!("  {rate}/s  {} left", crate::progress::duration(left)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Value {
        json!({"name": "tank", "path": "/a", "state": "going", "pass": "compression", "compression": "zstd-9", "recordsize": null,
            "files": 3, "files_total": 12, "stored": 25 << 20, "stored_total": 100 << 20, "logical": 50 << 20,
            "before": 20 << 20, "after": 10 << 20, "reshaped": 0, "no_room": 0, "busy": 0, "errors": 0})
    }

    #[test]
    fn the_bar_shows_what_is_done_and_how_long_the_rest_takes() {
        let shown = line(&row(), 25 << 20, 50 << 20, 5.0);
        assert_eq!(
            shown,
            format!(
                "compression [#####{}]  25 %  3 of 12 files, 20M became 10M (2.00x)  10M/s  15 s left",
                " ".repeat(15)
            )
        );
        let full = Value::from_iter(
            row()
                .as_object()
                .unwrap()
                .clone()
                .into_iter()
                .chain([("state".to_owned(), "waiting for room".into())]),
        );
        assert!(line(&full, 0, 0, 9.0).ends_with("the pool is full"));
    }

    #[test]
    fn a_rewrite_is_described_in_one_line() {
        assert_eq!(
            describe(&row()),
            "tank: /a, compression=zstd-9: going, compression, 3 of 12 files, 20M became 10M (2.00x)\n"
        );
        assert_eq!(describe(&json!({"name": "tank", "state": null})), "tank: no rewrite in progress\n");
    }

    #[test]
    fn what_no_record_can_be_is_a_mistake() {
        assert!(compression("zstd-auto:3-9").unwrap_err().contains("name a level"));
        assert!(compression("zip").is_err() && compression("gzip-9").is_ok());
        assert_eq!(
            (record_size("128K"), record_size("3K").is_err(), record_size("32M").is_err()),
            (Ok(128 << 10), true, true)
        );
    }
}
