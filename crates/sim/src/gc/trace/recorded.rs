//! A trace from a text file.
//!
//! One event in a line, its words separated by single spaces; a line that begins with `#` is a comment. All numbers are decimal.
//!
//! ```text
//! c OBJECT DIRECTORY SIZE HINT NAME   a file is made (HINT: not-set, none, short, medium, long, extreme; SIZE may be 0: not known)
//! w OBJECT BLOCK BYTES                a block of it is written: the next one, or one that was written before
//! d OBJECT                            it is deleted
//! run                                 what came before fills the pool; the rest is the workload, and is measured
//! ```

use super::{Event, Trace};
use crate::Failure;
use crate::dice::Dice;
use std::collections::VecDeque;
use terrane_pool::Hint;

/// The workload.
pub struct Recorded {
    filling: VecDeque<Event>,
    running: VecDeque<Event>,
}

impl Recorded {
    pub fn parse(text: &str) -> Result<Recorded, Failure> {
        let (mut before, mut events) = (VecDeque::new(), VecDeque::new());
        for (at, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line == "run" {
                before.append(&mut events);
                continue;
            }
            let event = event(line).ok_or_else(|| {
                Failure(format!(
                    "line {}: expected `c`, `w`, `d` or `run` with its words, found {line:?}",
                    at + 1
                ))
            })?;
            events.push_back(event);
        }
        Ok(Recorded { filling: before, running: events })
    }
}

fn event(line: &str) -> Option<Event> {
    let mut words = line.splitn(6, ' ');
    let what = words.next()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    let object = number()?;
    Some(match what {
        "c" => {
            let (directory, size) = (number()?, number()?);
            let hint = Hint::from_name(words.next()?)?;
            Event::Create { object, directory, name: words.next()?.into(), hint, size }
        }
        "w" => {
            let (block, bytes) = (u32::try_from(number()?).ok()?, number().filter(|bytes| *bytes > 0)?);
            words.next().is_none().then_some(Event::Write { object, block, bytes })?
        }
        "d" => words.next().is_none().then_some(Event::Delete { object })?,
        _ => return None,
    })
}

impl Trace for Recorded {
    fn fill(&mut self, _dice: &mut Dice) -> Option<Event> {
        self.filling.pop_front()
    }

    fn next(&mut self, _dice: &mut Dice) -> Option<Event> {
        self.running.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_events_and_nonsense_is_named_by_its_line() {
        let text = "# two files\nc 1 7 0 short a b.log\nw 1 0 4096\nrun\nw 1 0 512\nd 1\n";
        let mut trace = Recorded::parse(text).unwrap();
        let mut dice = Dice::new(0);
        let name = "a b.log".into();
        let create = Event::Create { object: 1, directory: 7, name, hint: Hint::Short, size: 0 };
        assert_eq!(trace.fill(&mut dice), Some(create));
        assert_eq!(trace.fill(&mut dice), Some(Event::Write { object: 1, block: 0, bytes: 4096 }));
        assert_eq!(trace.fill(&mut dice), None);
        assert_eq!(trace.next(&mut dice), Some(Event::Write { object: 1, block: 0, bytes: 512 }));
        assert_eq!(trace.next(&mut dice), Some(Event::Delete { object: 1 }));
        assert_eq!(trace.next(&mut dice), None);
        for bad in ["c 1 7 0 soon x", "w 1 0", "w 1 0 0", "d 1 2", "x 1", "d -1", "w 1 0 4096 9"] {
            let failure = Recorded::parse(&format!("run\n{bad}\n")).map(|_| ()).unwrap_err();
            assert!(failure.0.starts_with("line 2:"), "{bad}: {failure:?}");
        }
    }
}
