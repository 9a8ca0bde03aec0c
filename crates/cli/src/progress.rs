//! A progress bar on standard error for long operations, if that is a terminal.
//!
//! It shows the share of the step that is done, its speed, and the time left at the step's speed so far. A
//! step whose name begins with "reading" or "collecting" counts bytes, any other counts things.

use crate::size;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const CELLS: u64 = 30;
const PERIOD: Duration = Duration::from_millis(100);
/// Before that a speed is a guess.
const SPEED_AFTER: Duration = Duration::from_millis(500);

/// Progress: the step (one that begins with "reading" or "collecting" counts bytes), how much is done, of how
/// much (0: unknown).
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

pub struct Bar {
    visible: bool,
    drawn: Option<Instant>,
    step: String,
    begun: Instant,
}

impl Bar {
    pub fn new() -> Bar {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let visible = std::io::stderr().is_terminal() && !dumb;
        Bar { visible, drawn: None, step: String::new(), begun: Instant::now() }
    }

    /// Shows `done` of `total` of the step `what`; a `total` of 0 means unknown.
    pub fn show(&mut self, what: &str, done: u64, total: u64) {
        if !self.visible {
            return;
        }
        if self.step != what {
            (self.step, self.begun) = (what.to_owned(), Instant::now());
        }
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= PERIOD) {
            self.drawn = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(what, done, total, self.begun.elapsed()));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let pace = if elapsed >= SPEED_AFTER { done as f64 / elapsed.as_secs_f64() } else { 0.0 };
    let rate = match pace {
        pace if pace < 1.0 => String::new(),
        pace if ["reading", "collecting"].iter().any(|word| what.starts_with(word)) => {
            format!("  {}/s", size::format(pace as u64))
        }
        pace => format!("  {}/s", pace as u64),
    };
    if total == 0 {
        return format!("{what}: {done}{rate}");
    }
    // What was counted before the walk may have grown meanwhile.
    let done = done.min(total);
    let parts = |of: u64| u128::from(done) * u128::from(of) / u128::from(total);
    let full = parts(CELLS) as usize;
    let left = match pace {
        pace if pace < 1.0 || done == total => String::new(),
        pace => format!("  {} left", duration(((total - done) as f64 / pace).ceil() as u64)),
    };
    format!(
        "{what} [{}{}] {:3} %{rate}{left}",
        "#".repeat(full),
        " ".repeat(CELLS as usize - full),
        parts(100)
    )
}

/// `42 s`, `3:07 min`, `2:05 h`.
pub fn duration(secs: u64) -> String {
    match secs {
        0..60 => format!("{secs} s"),
        60..3600 => format!("{}:{:02} min", secs / 60, secs % 60),
        _ => format!("{}:{:02} h", secs / 3600, secs / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_what_is_done() {
        let at_once = |what, done, total| line(what, done, total, Duration::ZERO);
        assert_eq!(at_once("blocks", 0, 10), format!("blocks [{}]   0 %", " ".repeat(30)));
        assert_eq!(at_once("blocks", 12, 10), format!("blocks [{}] 100 %", "#".repeat(30)));
        assert_eq!(
            at_once("blocks", u64::MAX / 2, u64::MAX),
            format!("blocks [{}{}]  49 %", "#".repeat(14), " ".repeat(16))
        );
        assert_eq!(at_once("objects", 7, 0), "objects: 7");
    }

    #[test]
    fn rate_and_time_left_follow_the_pace() {
        let after = |what, done, total, secs| line(what, done, total, Duration::from_secs(secs));
        assert!(after("reading blocks", 10 << 20, 100 << 20, 2).ends_with(" 10 %  5M/s  18 s left"));
        assert!(after("following names", 1000, 100_000, 10).ends_with("  1 %  100/s  16:30 min left"));
        assert!(after("following names", 5, 5, 1).ends_with("100 %  5/s"));
        assert_eq!(after("objects", 70, 0, 10), "objects: 70  7/s");
        assert_eq!(duration(2 * 3600 + 5 * 60 + 7), "2:05 h");
    }
}
