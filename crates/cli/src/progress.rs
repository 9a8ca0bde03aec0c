//! A bar on standard error while something takes long, if a person is there to see it.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const CELLS: u64 = 30;
const PERIOD: Duration = Duration::from_millis(100);

pub struct Bar {
    visible: bool,
    drawn: Option<Instant>,
}

impl Bar {
    pub fn new() -> Bar {
        Bar { visible: std::io::stderr().is_terminal(), drawn: None }
    }

    /// `done` of `total`, of what `what` names; a `total` of 0 means that nobody knows.
    pub fn show(&mut self, what: &str, done: u64, total: u64) {
        let due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= PERIOD);
        if self.visible && due {
            self.drawn = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(what, done, total));
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

fn line(what: &str, done: u64, total: u64) -> String {
    if total == 0 {
        return format!("{what}: {done}");
    }
    // What was counted before it was walked may have grown meanwhile.
    let done = done.min(total);
    let parts = |of: u64| u128::from(done) * u128::from(of) / u128::from(total);
    let full = parts(CELLS) as usize;
    format!("{what} [{}{}] {:3} %", "#".repeat(full), " ".repeat(CELLS as usize - full), parts(100))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_bar_is_as_long_as_what_is_done() {
        assert_eq!(line("blocks", 0, 10), format!("blocks [{}]   0 %", " ".repeat(30)));
        assert_eq!(line("blocks", 12, 10), format!("blocks [{}] 100 %", "#".repeat(30)));
        assert_eq!(
            line("blocks", u64::MAX / 2, u64::MAX),
            format!("blocks [{}{}]  49 %", "#".repeat(14), " ".repeat(16))
        );
        assert_eq!(line("objects", 7, 0), "objects: 7");
    }
}
