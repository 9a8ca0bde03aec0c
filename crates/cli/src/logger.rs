//! Where log lines go: to standard error, which a mount in the background has pointed at its log file.

use crate::clock;
use log::{LevelFilter, Log, Metadata, Record};
use std::io::Write;

struct Lines;

static LINES: Lines = Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // One write for each line, so that lines of several threads do not mix. Nobody is left to be told if it fails.
        let line = format!("{} {:5} {}\n", clock::now(), record.level(), record.args());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Begins to log. `RUST_LOG` (off, error, warn, info, debug, trace) decides how much, else `default`.
pub fn start(default: LevelFilter) {
    let level = std::env::var("RUST_LOG").ok().and_then(|word| word.parse().ok()).unwrap_or(default);
    // Fails only when there is a logger already, and then that one is as good.
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(level);
    }
}
