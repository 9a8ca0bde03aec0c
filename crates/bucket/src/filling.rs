//! Fillings: the objects that make up the content of a zone.
//!
//! A zone that is written anew after a reset is a new *filling*. It has a name of its own, so an object is never
//! overwritten, and what a writer does that lost its pool cannot be taken for the work of another one. The objects of a
//! filling are its *parts*, one after the other: `z/<opener>/<number>/<offset>`, all in hexadecimal digits.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The name of a filling for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FillingId {
    /// The random number of the process that began it.
    pub opener: u64,
    /// Counted by that process.
    pub number: u64,
}

impl fmt::Display for FillingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}/{:010x}", self.opener, self.number)
    }
}

impl FillingId {
    /// What the names of all its objects begin with.
    pub fn prefix(self) -> String {
        format!("z/{self}/")
    }

    /// The name of the part that begins at `offset`, in bytes.
    pub fn key(self, offset: u64) -> String {
        format!("z/{self}/{offset:010x}")
    }

    /// What the names of all fillings of an opener begin with.
    pub fn prefix_of(opener: u64) -> String {
        format!("z/{opener:016x}/")
    }

    /// The filling and the offset that the name of an object says.
    pub fn parse(key: &str) -> Option<(FillingId, u64)> {
        let mut words = key.strip_prefix("z/")?.split('/');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (opener, filling, offset) = (number()?, number()?, number()?);
        let id = FillingId { opener, number: filling };
        (id.key(offset) == key).then_some((id, offset))
    }
}

/// The content of a part on its way to the store.
#[derive(Debug)]
pub struct Body {
    pub bytes: Vec<u8>,
    /// The store has it.
    pub is_stored: AtomicBool,
}

/// One object of a filling. It begins where the part before it ends.
#[derive(Clone, Debug)]
pub struct Part {
    /// Offset in the zone, in bytes.
    pub start: u64,
    /// In bytes; not 0.
    pub len: u64,
    /// Its content, as long as it is needed. Gone only when the store has it.
    pub body: Weak<Body>,
}

impl Part {
    /// Where the next part begins.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Whether its content is no more in memory.
    pub fn is_gone_from_here(&self) -> bool {
        self.body.strong_count() == 0
    }

    /// Whether the store has it.
    pub fn is_stored(&self) -> bool {
        self.body.upgrade().is_none_or(|body| body.is_stored.load(Ordering::Acquire))
    }
}

/// What is known of the end of a filling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// This process writes it, or has written it: all parts are known.
    Own,
    /// Another process wrote it, and may have put more parts than the root names.
    Unknown,
    /// Another process wrote it. All parts are known, and no process can add one.
    Sealed,
}

/// The content of a zone.
#[derive(Clone, Debug)]
pub struct Filling {
    pub id: FillingId,
    /// In order, without gaps, from offset 0.
    pub parts: Vec<Part>,
    /// What is written behind the last part and was not handed to the store yet.
    pub tail: Vec<u8>,
    pub end: End,
}

impl Filling {
    /// A filling that this process begins.
    pub fn begin(id: FillingId) -> Filling {
        Filling { id, parts: Vec::new(), tail: Vec::new(), end: End::Own }
    }

    /// Where the last part ends.
    pub fn parts_end(&self) -> u64 {
        self.parts.last().map_or(0, Part::end)
    }

    /// Cuts the tail after `len` bytes, or all of it if it is shorter: the part that is to be put, and its content.
    pub fn cut(&mut self, len: usize) -> Option<(String, Arc<Body>)> {
        if self.tail.is_empty() {
            return None;
        }
        let rest = self.tail.split_off(len.min(self.tail.len()));
        let bytes = std::mem::replace(&mut self.tail, rest);
        let (start, len) = (self.parts_end(), bytes.len() as u64);
        let body = Arc::new(Body { bytes, is_stored: AtomicBool::new(false) });
        self.parts.push(Part { start, len, body: Arc::downgrade(&body) });
        Some((self.id.key(start), body))
    }

    /// The part that holds the byte at `offset`.
    pub fn part_at(&self, offset: u64) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.start <= offset);
        self.parts.get(after.checked_sub(1)?).filter(|part| offset < part.end())
    }

    /// Up to `count` parts that follow one.
    pub fn parts_behind(&self, part: &Part, count: usize) -> Vec<Part> {
        let from = self.parts.partition_point(|other| other.start <= part.start);
        self.parts.get(from..).into_iter().flatten().take(count).cloned().collect()
    }

    /// Adds the parts that a list of the store shows behind the known ones. Returns whether a seal ends them. What does not fit the
    /// zone, or its write unit, is no part: it was not put by us.
    pub fn add_listed(&mut self, mut listed: Vec<(u64, u64)>, zone_size: u64, unit: u64) -> bool {
        listed.sort_unstable();
        let mut is_sealed = false;
        for (start, len) in listed {
            if start != self.parts_end() || start.saturating_add(len) > zone_size || !len.is_multiple_of(unit)
            {
                continue;
            }
            match len {
                0 => is_sealed = true,
                len => self.parts.push(Part { start, len, body: Weak::new() }),
            }
        }
        is_sealed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_filling_and_offset() {
        let id = FillingId { opener: 0x1234, number: 7 };
        let key = id.key(0x40_0000);
        assert_eq!(key, "z/0000000000001234/0000000007/0000400000");
        assert_eq!(FillingId::parse(&key), Some((id, 0x40_0000)));
        for wrong in [
            "z/1234/7/0",
            "root",
            "z/0000000000001234/0000000007/",
            "z/0000000000001234/0000000007/000040000g",
        ] {
            assert_eq!(FillingId::parse(wrong), None, "{wrong}");
        }
        assert!(
            id.key(0xfff).starts_with(&id.prefix()) && id.prefix().starts_with(&FillingId::prefix_of(0x1234))
        );
    }

    #[test]
    fn parts_cover_what_was_written() {
        let mut filling = Filling::begin(FillingId { opener: 1, number: 1 });
        filling.tail = vec![1; 100];
        let (_, body) = filling.cut(64).unwrap();
        assert_eq!((body.bytes.len(), filling.tail.len(), filling.parts_end()), (64, 36, 64));
        assert!(!filling.parts[0].is_stored());
        body.is_stored.store(true, Ordering::Relaxed);
        assert!(filling.parts[0].is_stored());
        drop(body);
        assert!(filling.parts[0].is_stored());
        filling.cut(64).unwrap();
        assert!(filling.cut(64).is_none());
        assert_eq!(filling.part_at(63).unwrap().start, 0);
        assert_eq!(filling.part_at(99).unwrap().start, 64);
        assert!(filling.part_at(100).is_none());
    }

    #[test]
    fn only_parts_without_a_gap_are_taken() {
        let mut filling = Filling::begin(FillingId { opener: 1, number: 1 });
        assert!(!filling.add_listed(vec![(8, 8), (0, 8), (24, 8)], 64, 8));
        assert_eq!(filling.parts_end(), 16);
        assert!(filling.add_listed(vec![(0, 8), (8, 8), (16, 0), (24, 8)], 64, 8), "a seal of no bytes");
        assert!(!filling.add_listed(vec![(16, 104)], 64, 8), "it would not fit the zone");
        assert!(!filling.add_listed(vec![(16, 7)], 64, 8), "it was cut");
        assert_eq!(filling.parts_end(), 16);
    }
}
