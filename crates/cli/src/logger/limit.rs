//! Limits the lines of one source of events.
//!
//! An event source is the line of code that logs. Any user who may read one damaged file can cause events as
//! fast as the server answers, and the log often lies in memory. So each source has a number of lines per
//! minute, and suppressed lines are counted and reported.

use log::{Level, Record};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum lines of one source in each period.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum length of the text of the last suppressed event.
const TEXT_CHARS_MAX: usize = 200;

/// Module and line of the code that logs, and a level.
type EventSource = (String, u32, Level);

#[derive(Debug)]
struct SourcePeriod {
    begun: Instant,
    written: u32,
    /// Suppressed events, and the text of the last of them.
    suppressed: u64,
    last: String,
}

/// The suppressed events of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuppressedEvents {
    pub level: Level,
    pub target: String,
    pub count: u64,
    pub last: String,
}

#[derive(Debug, Default)]
pub struct Limiter {
    sources: BTreeMap<EventSource, SourcePeriod>,
}

impl Limiter {
    pub const fn new() -> Limiter {
        Limiter { sources: BTreeMap::new() }
    }

    /// Whether the event is written. Levels beyond the usual ones, which a user enables, are not limited.
    pub fn passes(&mut self, record: &Record<'_>, now: Instant) -> bool {
        if record.level() > Level::Info {
            return true;
        }
        let source = (record.target().to_owned(), record.line().unwrap_or(0), record.level());
        let new = SourcePeriod { begun: now, written: 0, suppressed: 0, last: String::new() };
        let period = self.sources.entry(source).or_insert(new);
        if period.written < LINES_MAX {
            period.written += 1;
            return true;
        }
        period.suppressed += 1;
        period.last = record.args().to_string().chars().take(TEXT_CHARS_MAX).collect();
        false
    }

    /// Ends the periods that are over, and returns what was suppressed in them.
    pub fn end_periods(&mut self, now: Instant) -> Vec<SuppressedEvents> {
        let mut suppressed = Vec::new();
        self.sources.retain(|(target, _, level), lately| {
            if now.saturating_duration_since(lately.begun) < PERIOD {
                return true;
            }
            if lately.suppressed > 0 {
                let last = std::mem::take(&mut lately.last);
                suppressed.push(SuppressedEvents {
                    level: *level,
                    target: target.clone(),
                    count: lately.suppressed,
                    last,
                });
            }
            false
        });
        suppressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(limiter: &mut Limiter, line: u32, level: Level, now: Instant) -> bool {
        let mut builder = Record::builder();
        let builder = builder.target("terrane_posix::file").level(level).line(Some(line));
        limiter.passes(&builder.args(format_args!("event {line}")).build(), now)
    }

    #[test]
    fn each_kind_has_its_lines_and_the_rest_is_counted() {
        let (mut limiter, now) = (Limiter::new(), Instant::now());
        let written = (0..1000).filter(|_| passes(&mut limiter, 7, Level::Error, now)).count();
        assert_eq!(written, LINES_MAX as usize);
        assert!(passes(&mut limiter, 8, Level::Error, now), "another kind");
        assert!((0..1000).all(|_| passes(&mut limiter, 9, Level::Debug, now)), "it was asked for");
        assert!(limiter.end_periods(now + PERIOD / 2).is_empty());
        let suppressed = limiter.end_periods(now + PERIOD);
        let expected = SuppressedEvents {
            level: Level::Error,
            target: "terrane_posix::file".to_owned(),
            count: 1000 - u64::from(LINES_MAX),
            last: "event 7".to_owned(),
        };
        assert_eq!(suppressed, [expected]);
        assert!(passes(&mut limiter, 7, Level::Error, now + PERIOD), "in the next period it begins anew");
        assert!(limiter.end_periods(now + PERIOD).is_empty());
    }
}
