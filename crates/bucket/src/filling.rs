//! Fillings: the objects that make up the content of a zone.
//!
//! A zone that is written anew after a reset is a new *filling*. It has a name of its own, so an object is never
//! overwritten, and what a writer does that lost its pool cannot be taken for the work of another one. The objects of a
//! filling are its *parts*, one after the other: `z/<opener>/<number>/<offset>`, all in hexadecimal digits.

use bytes::Bytes;
use parking_lot::Mutex;
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

    /// The filling or table that [`Store::list_children`](crate::Store::list_children) shows below an opener.
    pub fn of_child(name: &str) -> Option<FillingId> {
        let (path, is_filling) = match name.strip_prefix("z/") {
            Some(path) => (path.strip_suffix('/')?, true),
            None => (name.strip_prefix("table/")?, false),
        };
        let (opener, number) = path.split_once('/')?;
        let parse = |word: &str| u64::from_str_radix(word, 16).ok();
        let id = FillingId { opener: parse(opener)?, number: parse(number)? };
        let expected = if is_filling { id.prefix() } else { format!("table/{id}") };
        (expected == name).then_some(id)
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

/// Memory of parts that were put. The kernel takes long to hand out as much memory anew, page by page.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

/// Most buffers that are kept.
const BUFFERS_MAX: usize = 4;

impl Buffers {
    /// An empty buffer with room for `len` bytes.
    fn take(&self, len: usize) -> Vec<u8> {
        let kept = self.0.lock().pop();
        kept.filter(|kept| kept.capacity() == len).unwrap_or_else(|| Vec::with_capacity(len))
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut kept = self.0.lock();
        if kept.len() < BUFFERS_MAX {
            kept.push(buffer);
        }
    }
}

/// The content of a part on its way to the store.
#[derive(Debug)]
pub struct Body {
    pub bytes: Vec<u8>,
    /// The store has it.
    pub is_stored: AtomicBool,
    /// Where its memory goes.
    home: Weak<Buffers>,
}

impl Body {
    /// What it holds, without a copy.
    pub fn content(body: &Arc<Body>) -> Bytes {
        struct Content(Arc<Body>);
        impl AsRef<[u8]> for Content {
            fn as_ref(&self) -> &[u8] {
                &self.0.bytes
            }
        }
        Bytes::from_owner(Content(Arc::clone(body)))
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // A part that a flush has cut short is as large in memory, but most of that was never touched.
        if let Some(home) = self.home.upgrade()
            && self.bytes.len() == self.bytes.capacity()
        {
            home.give_back(std::mem::take(&mut self.bytes));
        }
    }
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
    /// Where the memory of the tail goes.
    home: Weak<Buffers>,
}

impl Filling {
    /// A filling that this process begins.
    pub fn begin(id: FillingId) -> Filling {
        Filling::of(id, Vec::new(), End::Own)
    }

    /// A filling with these parts.
    pub fn of(id: FillingId, parts: Vec<Part>, end: End) -> Filling {
        Filling { id, parts, tail: Vec::new(), end, home: Weak::new() }
    }

    /// Appends to the tail until it has `part_bytes`. Returns what did not fit.
    pub fn append<'a>(&mut self, data: &'a [u8], part_bytes: usize, buffers: &Arc<Buffers>) -> &'a [u8] {
        if self.tail.capacity() == 0 {
            self.tail = buffers.take(part_bytes);
            self.home = Arc::downgrade(buffers);
        }
        let room = part_bytes.saturating_sub(self.tail.len());
        let (fits, rest) = data.split_at(room.min(data.len()));
        self.tail.extend_from_slice(fits);
        rest
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
        let body = Arc::new(Body { bytes, is_stored: AtomicBool::new(false), home: Weak::clone(&self.home) });
        self.parts.push(Part { start, len, body: Arc::downgrade(&body) });
        Some((self.id.key(start), body))
    }

    /// The part that holds the byte at `offset`.
    pub fn part_at(&self, offset: u64) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.start <= offset);
        self.parts.get(after.checked_sub(1)?).filter(|part| offset < part.end())
    }

    /// Up to `count` parts in front of one, the nearest first.
    pub fn parts_before(&self, part: &Part, count: usize) -> Vec<Part> {
        let to = self.parts.partition_point(|other| other.start < part.start);
        self.parts.get(..to).into_iter().flatten().rev().take(count).cloned().collect()
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
        assert!(id.key(0xfff).starts_with(&id.prefix()));
        assert_eq!(FillingId::of_child(&id.prefix()), Some(id));
        assert_eq!(FillingId::of_child("table/0000000000001234/0000000007"), Some(id));
        for wrong in
            ["z/0000000000001234/0000000007", "z/1234/", "table/0000000000001234/", "root", "table/1/2"]
        {
            assert_eq!(FillingId::of_child(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn parts_cover_what_was_written() {
        let mut filling = Filling::begin(FillingId { opener: 1, number: 1 });
        let buffers = Arc::default();
        let rest = filling.append(&[1; 100], 64, &buffers);
        assert_eq!(rest.len(), 36);
        let (_, body) = filling.cut(64).unwrap();
        filling.append(rest, 64, &buffers);
        assert_eq!((body.bytes.len(), filling.tail.len(), filling.parts_end()), (64, 36, 64));
        assert!(!filling.parts[0].is_stored());
        body.is_stored.store(true, Ordering::Relaxed);
        assert!(filling.parts[0].is_stored());
        // The request may still hold it when this process does not.
        let content = Body::content(&body);
        drop(body);
        assert!(filling.parts[0].is_stored() && content[..] == [1; 64]);
        assert_eq!(buffers.0.lock().len(), 0);
        drop(content);
        assert_eq!(buffers.take(64).capacity(), 64, "its memory");
        filling.cut(64).unwrap();
        assert!(filling.cut(64).is_none());
        assert_eq!(filling.part_at(63).unwrap().start, 0);
        assert_eq!(filling.part_at(99).unwrap().start, 64);
        assert!(filling.part_at(100).is_none());
        let starts = |parts: Vec<Part>| parts.iter().map(|part| part.start).collect::<Vec<_>>();
        let (first, second) = (&filling.parts[0], &filling.parts[1]);
        assert_eq!(
            (starts(filling.parts_before(second, 2)), starts(filling.parts_before(first, 2))),
            (vec![0], vec![])
        );
        assert_eq!(
            (starts(filling.parts_behind(first, 2)), starts(filling.parts_behind(second, 2))),
            (vec![64], vec![])
        );
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
