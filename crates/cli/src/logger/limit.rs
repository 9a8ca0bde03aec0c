//! Limits the lines of one kind.
//!
//! A kind is the place in the source that logs. Any user who may read one damaged file can cause events as
//! fast as the server answers, and the log often lies in memory. So each kind has a number of lines per
//! minute, and suppressed lines are counted and reported.

use log::{Level, Record};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum lines of one kind in each period.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum length of the text of the last suppressed event.
const TEXT_CHARS_MAX: usize = 200;

/// A place in the source, and a level.
type Kind = (String, u32, Level);

#[derive(Debug)]
struct Lately {
    begun: Instant,
    written: u32,
    /// Suppressed events, and the text of the last of them.
    more: u64,
    last: String,
}

/// The suppressed events of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub level: Level,
    pub target: String,
    pub count: u64,
    pub last: String,
}

#[derive(Debug, Default)]
pub struct Limiter {
    kinds: BTreeMap<Kind, Lately>,
}

impl Limiter {
    pub const fn new() -> Limiter {
        Limiter { kinds: BTreeMap::new() }
    }

    /// Whether the event is written. Levels beyond the usual ones, which a user enables, are not limited.
    pub fn passes(&mut self, record: &Record<'_>, now: Instant) -> bool {
        if record.level() > Level::Info {
            return true;
        }
        let kind = (record.target().to_owned(), record.line().unwrap_or(0), record.level());
        let new = Lately { begun: now, written: 0, more: 0, last: String::new() };
        let lately = self.kinds.entry(kind).or_insert(new);
        if lately.written < LINES_MAX {
            lately.written += 1;
            return true;
        }
        lately.more += 1;
        lately.last = record.args().to_string().chars().take(TEXT_CHARS_MAX).collect();
        false
    }

    /// Ends the periods that are over, and returns what was suppressed in them.
    pub fn settle(&mut self, now: Instant) -> Vec<LeftOut> {
        let mut told = Vec::new();
        self.kinds.retain(|(target, _, level), lately| {
            if now.saturating_duration_since(lately.begun) < PERIOD {
                return true;
            }
            if lately.more > 0 {
                let last = std::mem::take(&mut lately.last);
                told.push(LeftOut { level: *level, target: target.clone(), count: lately.more, last });
            }
            false
        });
        told
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
        assert!(limiter.settle(now + PERIOD / 2).is_empty());
        let told = limiter.settle(now + PERIOD);
        let expected = LeftOut {
            level: Level::Error,
            target: "terrane_posix::file".to_owned(),
            count: 1000 - u64::from(LINES_MAX),
            last: "event 7".to_owned(),
        };
        assert_eq!(told, [expected]);
        assert!(passes(&mut limiter, 7, Level::Error, now + PERIOD), "in the next period it begins anew");
        assert!(limiter.settle(now + PERIOD).is_empty());
    }
}
