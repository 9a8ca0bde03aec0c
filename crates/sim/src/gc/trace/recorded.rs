//! A trace from a text file: written by hand, converted from other traces, or recorded by a pool (`terrane
//! mount -o record=FILE`).
//!
//! One event per line, its words separated by single spaces; a line that begins with `#` is a comment. All
//! numbers are decimal.
//!
//! ```text
//! c OBJECT DIRECTORY SIZE HINT NAME   a file is created (HINT: not-set, none, short, medium, long, extreme; SIZE may be 0: unknown)
//! w OBJECT BLOCK BYTES                a block of it is written: the next one, or one that was written before
//! d OBJECT                            it is deleted
//! run                                 what came before fills the pool; the rest is the workload, and is measured
//! ```
//!
//! A recording begins with its pool's [`RecordedPool`], `pool ZONES BYTES SLOTS AGES`, and has no files:
//! `crates/pool/src/trace.rs` defines its lines `p`, `b`, `m`, `f` and `g`. If a server followed another
//! there are several beginnings.
//!
//! All lines are validated first. They are parsed again one by one when they are replayed, because an event
//! takes more memory than its line.

use super::{Event, Trace};
use std::str::SplitN;
use std::sync::Arc;
use terrane_oracle::Failure;
use terrane_space::policy::{Hint, Placement};
use terrane_wire::Prng;
use terrane_wire::Txg;

/// The pool that was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedPool {
    /// Zones of the pool.
    pub zones: u32,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// Open zones.
    pub slots: u32,
    /// Slots for survivors.
    pub ages: u32,
}

/// The workload.
#[derive(Clone)]
pub struct Recorded {
    text: Arc<str>,
    /// Where the next line begins, and where the workload does.
    at: usize,
    run_at: usize,
    /// The placement of the last `p` line.
    file: Placement,
    /// The recorded pool, by the last `pool` line. `None`: the trace has no such line.
    pub shape: Option<RecordedPool>,
}

enum Line {
    Pool(RecordedPool),
    File(Placement),
    Event(Event),
    Run,
    Nothing,
}

impl Recorded {
    /// Validates every line. The error names the first bad one.
    pub fn parse(text: String) -> Result<Recorded, Failure> {
        let mut all =
            Recorded { text: text.into(), at: 0, run_at: 0, file: Placement::default(), shape: None };
        let mut number = 0;
        while all.at < all.text.len() {
            number += 1;
            let words = all.next_line().to_owned();
            let line = all.line(&words).ok_or_else(|| {
                Failure(format!(
                    "line {number}: expected c, w, d or run, or pool, p, b, m, f or g, with its fields, found {words:?}"
                ))
            })?;
            match line {
                Line::Pool(shape) => all.shape = Some(shape),
                Line::File(file) => all.file = file,
                Line::Run => all.run_at = all.at,
                Line::Event(_) | Line::Nothing => {}
            }
        }
        (all.at, all.file) = (0, Placement::default());
        Ok(all)
    }

    fn next_line(&mut self) -> &str {
        let rest = &self.text[self.at..];
        let line = rest.split('\n').next().unwrap_or_default();
        self.at = (self.at + line.len() + 1).min(self.text.len());
        line
    }

    fn next_event(&mut self, end: usize) -> Option<Event> {
        while self.at < end {
            let words = self.next_line().to_owned();
            match self.line(&words).expect("a line that was validated before") {
                Line::Event(event) => return Some(event),
                Line::File(file) => self.file = file,
                Line::Pool(_) | Line::Run | Line::Nothing => {}
            }
        }
        None
    }

    fn line(&self, line: &str) -> Option<Line> {
        if line.is_empty() || line.starts_with('#') {
            return Some(Line::Nothing);
        }
        let mut words = Fields(line.splitn(6, ' '));
        let line = match words.word()? {
            "run" => Line::Run,
            "pool" => Line::Pool(RecordedPool {
                zones: words.number()?,
                zone_bytes: words.number()?,
                slots: words.number()?,
                ages: words.number()?,
            }),
            "p" => Line::File(Placement {
                file: words.number()?,
                hint: Hint::from_name(words.word()?)?,
                burst_bytes: words.number()?,
                is_closed: words.number::<u8>()? == 1,
                expected_life_bytes: match words.word()? {
                    "-" => None,
                    bytes => Some(bytes.parse().ok()?),
                },
                replaced_birth: Txg(0),
            }),
            word => Line::Event(self.event(word, &mut words)?),
        };
        words.0.next().is_none().then_some(line)
    }

    fn event(&self, word: &str, words: &mut Fields<'_>) -> Option<Event> {
        let first = words.number()?;
        Some(match word {
            "c" => Event::Create {
                object: first,
                directory: words.number()?,
                size: words.number()?,
                hint: Hint::from_name(words.word()?)?,
                name: words.word()?.into(),
            },
            "w" => Event::Write { object: first, block: words.number()?, bytes: words.bytes()? },
            "d" => Event::Delete { object: first },
            "b" => {
                let (bytes, replaces) = (words.bytes()?, Txg(words.number()?));
                Event::Born {
                    name: first,
                    bytes,
                    placement: Placement { replaced_birth: replaces, ..self.file },
                }
            }
            "m" => {
                let (bytes, copy) = (words.bytes()?, words.number::<u8>()?);
                Event::Copied { name: first, bytes, copy: usize::from(copy) }
            }
            "f" => Event::Freed { name: first },
            "g" => Event::Committed { txg: Txg(first), written_bytes: words.number()? },
            _ => return None,
        })
    }
}

struct Fields<'a>(SplitN<'a, char>);

impl<'a> Fields<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        self.word()?.parse().ok()
    }

    /// The size of a block, so not 0.
    fn bytes(&mut self) -> Option<u64> {
        self.number().filter(|bytes| *bytes > 0)
    }
}

impl Trace for Recorded {
    fn fill(&mut self, _rng: &mut Prng) -> Option<Event> {
        self.next_event(self.run_at)
    }

    fn next(&mut self, _rng: &mut Prng) -> Option<Event> {
        self.next_event(self.text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_events_and_nonsense_is_named_by_its_line() {
        let text = "# two files\nc 1 7 0 short a b.log\nw 1 0 4096\nrun\nw 1 0 512\nd 1\n";
        let mut trace = Recorded::parse(text.into()).unwrap();
        let mut rng = Prng::new(0);
        let name = "a b.log".into();
        let create = Event::Create { object: 1, directory: 7, name, hint: Hint::Short, size: 0 };
        assert_eq!(trace.fill(&mut rng), Some(create));
        assert_eq!(trace.fill(&mut rng), Some(Event::Write { object: 1, block: 0, bytes: 4096 }));
        assert_eq!(trace.fill(&mut rng), None);
        assert_eq!(trace.next(&mut rng), Some(Event::Write { object: 1, block: 0, bytes: 512 }));
        assert_eq!(trace.next(&mut rng), Some(Event::Delete { object: 1 }));
        assert_eq!(trace.next(&mut rng), None);
        for bad in [
            "c 1 7 0 soon x",
            "w 1 0",
            "w 1 0 0",
            "d 1 2",
            "x 1",
            "d -1",
            "w 1 0 4096 9",
            "pool 1 2 3",
            "p 1 short 4096 0",
            "p 1 short 4096 0 never",
            "b 1 0 0",
            "b 1 16 0 4",
            "f",
            "run 2",
        ] {
            let failure = Recorded::parse(format!("run\n{bad}\n")).map(|_| ()).unwrap_err();
            assert!(failure.0.starts_with("line 2:"), "{bad}: {failure:?}");
        }
    }

    #[test]
    fn blocks_of_a_recording_have_what_was_last_said_of_their_file() {
        let text = "pool 64 1048576 5 1\np 7 long 8192 1 -\nb 16 4096 0\nm 32 20 1\np 8 not-set 1 0 99\nb 64 33 3\nf 16\ng 4 5000\nb 65 9 0\ng 5 5009";
        let mut trace = Recorded::parse(text.into()).unwrap();
        let shape = RecordedPool { zones: 64, zone_bytes: 1 << 20, slots: 5, ages: 1 };
        assert_eq!(trace.shape, Some(shape));
        let mut rng = Prng::new(0);
        let long = Placement {
            file: 7,
            hint: Hint::Long,
            burst_bytes: 8192,
            is_closed: true,
            replaced_birth: Txg(0),
            expected_life_bytes: None,
        };
        let other = Placement {
            file: 8,
            hint: Hint::NotSet,
            burst_bytes: 1,
            is_closed: false,
            replaced_birth: Txg(3),
            expected_life_bytes: Some(99),
        };
        let last = Placement { replaced_birth: Txg(0), ..other };
        let expected = [
            Event::Born { name: 16, bytes: 4096, placement: long },
            Event::Copied { name: 32, bytes: 20, copy: 1 },
            Event::Born { name: 64, bytes: 33, placement: other },
            Event::Freed { name: 16 },
            Event::Committed { txg: Txg(4), written_bytes: 5000 },
            Event::Born { name: 65, bytes: 9, placement: last },
            Event::Committed { txg: Txg(5), written_bytes: 5009 },
        ];
        assert_eq!(trace.fill(&mut rng), None);
        let events: Vec<Event> = std::iter::from_fn(|| trace.next(&mut rng)).collect();
        assert_eq!(events, expected);
    }
}
