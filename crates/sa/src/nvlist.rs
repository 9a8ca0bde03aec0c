//! Packed name-value lists: the extended attributes of a file, in one attribute
//! ([`Attr::DXATTR`](crate::Attr::DXATTR)).
//!
//! The form is OpenZFS's packed nvlist (XDR, so numbers are big-endian) of byte arrays under unique names:
//!
//! | bytes | |
//! |---|---|
//! | 4 | 1 (XDR), byte order of the writer (0 big, 1 little; nothing else depends on it), two zeros |
//! | 4, 4 | version 0, flags 1 (names are unique) |
//! | a pair: 4, 4 | encoded size: bytes of this pair; decoded size: 16 + name + NUL and value, each rounded up to 8 |
//! | 4, n | length of the name, name, zeros to a multiple of 4 |
//! | 4, 4, n | type 10 (byte array), length of the value, value, zeros to a multiple of 4 |
//! | 8 | zeros after the last pair |
//!
//! Pairs are in the order in which they were set; one that is set again moves to the end. A file's list is small and
//! is stored as a whole. So a change copies it, and a lookup walks it: building an index would cost more.

use std::fmt;
use terrane_wire::Corrupt;

/// A packed list is the value of one attribute, so it has at most 65535 bytes.
pub const PACKED_BYTES_MAX: usize = u16::MAX as usize;

const HEADER: [u8; 12] = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const END: [u8; 8] = [0; 8];
const BYTE_ARRAY: usize = 10;
/// Bytes of a pair without name and value: two sizes, length of the name, type, length of the value.
const PAIR_BYTES: usize = 20;
/// Up to so many names are compared pairwise; more are sorted first.
const COMPARED_MAX: usize = 16;

/// A validated packed list, borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvList<'a> {
    /// The pairs, without header and end. Each one is known to be whole.
    pairs: &'a [u8],
}

/// The first pair of some bytes.
struct Pair<'a> {
    name: &'a [u8],
    value: &'a [u8],
    /// Encoded size of the pair, which is the offset of the next one.
    bytes: usize,
}

impl<'a> NvList<'a> {
    /// Validates all of `raw`, so that no lookup can fail. The padding of names and values is ignored.
    pub fn parse(raw: &'a [u8]) -> Result<Self, Corrupt> {
        let start = skip_header(raw)?;
        let mut rest = start;
        let mut count = 0;
        while let Some(pair) = next(rest, raw.len())? {
            count += 1;
            rest = rest.get(pair.bytes..).unwrap_or(&[]);
        }
        if rest.len() != END.len() {
            return Err(damaged("length", raw.len() - rest.len() + END.len(), raw.len()));
        }
        let list = NvList { pairs: start.get(..start.len() - rest.len()).unwrap_or(&[]) };
        list.expect_unique_names(count)?;
        Ok(list)
    }

    /// Borrows a list that [`parse`](Self::parse) has accepted or that this module packed, without validating it
    /// again. Of other bytes it yields only the pairs that happen to be well formed.
    pub fn from_validated(raw: &'a [u8]) -> Self {
        let end = raw.len().saturating_sub(END.len());
        NvList { pairs: raw.get(HEADER.len()..end).unwrap_or(&[]) }
    }

    /// The value of a name.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Names and values, in stored order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        let mut rest = self.pairs;
        std::iter::from_fn(move || {
            let pair = split_pair(rest)?;
            rest = rest.get(pair.bytes..)?;
            Some((pair.name, pair.value))
        })
    }

    /// Whether the list has no pair. Its packed form still has 20 bytes.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Size of the packed list in bytes.
    pub fn packed_bytes(&self) -> usize {
        HEADER.len() + self.pairs.len() + END.len()
    }

    /// The packed list, as stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut raw = Vec::with_capacity(self.packed_bytes());
        for part in [&HEADER[..], self.pairs, &END] {
            raw.extend_from_slice(part);
        }
        raw
    }

    /// The packed list after `name` was set to `value`. An old value of the name is removed, and the new pair is the
    /// last. `None` if the list would exceed [`PACKED_BYTES_MAX`], or if the name cannot be stored because it is
    /// empty or has a NUL.
    pub fn with(&self, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        if !is_name(name) || name.len().max(value.len()) > PACKED_BYTES_MAX {
            return None;
        }
        let (before, after) = self.split_around(name).unwrap_or((self.pairs, &[]));
        let pair_bytes = encoded_bytes(name.len(), value.len());
        let bytes = HEADER.len() + before.len() + after.len() + pair_bytes + END.len();
        if bytes > PACKED_BYTES_MAX {
            return None;
        }
        let mut raw = Vec::with_capacity(bytes);
        for part in [&HEADER[..], before, after] {
            raw.extend_from_slice(part);
        }
        put_be_u32(&mut raw, pair_bytes);
        put_be_u32(&mut raw, decoded_bytes(name.len(), value.len()));
        put_be_u32(&mut raw, name.len());
        raw.extend_from_slice(name);
        raw.resize(raw.len().next_multiple_of(4), 0);
        put_be_u32(&mut raw, BYTE_ARRAY);
        put_be_u32(&mut raw, value.len());
        raw.extend_from_slice(value);
        raw.resize(raw.len().next_multiple_of(4), 0);
        raw.extend_from_slice(&END);
        Some(raw)
    }

    /// The packed list without `name`; `None` if it lacks the name. When a file loses its last pair, the caller
    /// removes the attribute instead of storing an empty list (of 20 bytes).
    pub fn without(&self, name: &[u8]) -> Option<Vec<u8>> {
        let (before, after) = self.split_around(name)?;
        let mut raw = Vec::with_capacity(self.packed_bytes());
        for part in [&HEADER[..], before, after, &END] {
            raw.extend_from_slice(part);
        }
        Some(raw)
    }

    /// The pairs before and after that of `name`.
    fn split_around(&self, name: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
        let mut at = 0;
        loop {
            let pair = split_pair(self.pairs.get(at..)?)?;
            if pair.name == name {
                return Some((self.pairs.get(..at)?, self.pairs.get(at + pair.bytes..)?));
            }
            at += pair.bytes;
        }
    }

    fn expect_unique_names(&self, count: usize) -> Result<(), Corrupt> {
        let duplicate = || damaged("names", "unique", "a duplicate");
        let mut names = self.iter().map(|(name, _)| name);
        if count <= COMPARED_MAX {
            while let Some(name) = names.next() {
                if names.clone().any(|other| other == name) {
                    return Err(duplicate());
                }
            }
            return Ok(());
        }
        // There are as many names as pairs were found, each of 24 bytes or more. They are sorted by hash: a list is
        // validated whenever one of its names is set, and sorting thousands of names costs more than the rest of
        // that.
        let mut sorted: Vec<(u64, &[u8])> = names.map(|name| (name_hash(name), name)).collect();
        sorted.sort_unstable_by_key(|(sum, _)| *sum);
        // Names with equal hashes are few, unless an attacker chose them. So these are sorted by their bytes as well.
        let equal = |a: &(u64, &[u8]), b: &(u64, &[u8])| a.0 == b.0;
        for group in sorted.chunk_by_mut(equal).filter(|group| group.len() > 1) {
            group.sort_unstable();
            if group.array_windows().any(|[a, b]| a == b) {
                return Err(duplicate());
            }
        }
        Ok(())
    }
}

/// The value of one name in a packed list, for a caller that needs nothing else. It validates the list only up to the
/// name.
pub fn get<'a>(raw: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Corrupt> {
    let mut rest = skip_header(raw)?;
    while let Some(pair) = next(rest, raw.len())? {
        if pair.name == name {
            return Ok(Some(pair.value));
        }
        rest = rest.get(pair.bytes..).unwrap_or(&[]);
    }
    Ok(None)
}

fn skip_header(raw: &[u8]) -> Result<&[u8], Corrupt> {
    if raw.len() > PACKED_BYTES_MAX {
        return Err(damaged("length", format_args!("at most {PACKED_BYTES_MAX}"), raw.len()));
    }
    let Some((header, rest)) = raw.split_first_chunk::<12>() else {
        return Err(damaged("length", format_args!("at least {}", HEADER.len() + END.len()), raw.len()));
    };
    // The writer's byte order does not matter: XDR has one order.
    let [xdr, 0 | 1, others @ ..] = header else {
        return Err(damaged("byte order", "0 or 1", format_args!("{header:02x?}")));
    };
    let [expected_xdr, _, expected @ ..] = HEADER;
    if *xdr != expected_xdr || *others != expected {
        return Err(damaged("header", format_args!("{HEADER:02x?}"), format_args!("{header:02x?}")));
    }
    Ok(rest)
}

/// The next pair, validated; `None` at the end. `raw_bytes` is the size of the whole list.
fn next(rest: &[u8], raw_bytes: usize) -> Result<Option<Pair<'_>>, Corrupt> {
    if rest.starts_with(&END) {
        return Ok(None);
    }
    let at = |what, expected: &str, found: &dyn fmt::Display| {
        let offset = raw_bytes.saturating_sub(rest.len());
        Corrupt::new(format_args!("packed list, offset {offset}"), what, expected, found)
    };
    let pair = split_pair(rest)
        .ok_or_else(|| at("pair", "complete, of type 10", &format_args!("{} bytes", rest.len())))?;
    if !is_name(pair.name) {
        return Err(at("name", "not empty, without NUL", &pair.name.escape_ascii()));
    }
    let sizes = [pair.bytes, decoded_bytes(pair.name.len(), pair.value.len())];
    let stored = [read_be_u32(rest, 0), read_be_u32(rest, 4)];
    if stored != sizes.map(Some) {
        return Err(at("sizes", &format!("{sizes:?}"), &format_args!("{stored:?}")));
    }
    Ok(Some(pair))
}

/// Splits off name and value by their own lengths. `None` if these would leave `rest`, or if the type is another.
fn split_pair(rest: &[u8]) -> Option<Pair<'_>> {
    let name_len = read_be_u32(rest, 8)?;
    let name = rest.get(12..)?.get(..name_len)?;
    let type_at = 12 + name_len.checked_next_multiple_of(4)?;
    if read_be_u32(rest, type_at)? != BYTE_ARRAY {
        return None;
    }
    let value_len = read_be_u32(rest, type_at + 4)?;
    let value = rest.get(type_at + 8..)?.get(..value_len)?;
    let bytes = encoded_bytes(name_len, value_len);
    (bytes <= rest.len()).then_some(Pair { name, value, bytes })
}

/// The big-endian number at offset `at`.
fn read_be_u32(raw: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*raw.get(at..)?.first_chunk()?)).ok()
}

fn put_be_u32(raw: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("lengths are below 65536");
    raw.extend_from_slice(&number.to_be_bytes());
}

/// FNV-1a hash of a name.
fn name_hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.contains(&0)
}

fn encoded_bytes(name_len: usize, value_len: usize) -> usize {
    PAIR_BYTES + name_len.next_multiple_of(4) + value_len.next_multiple_of(4)
}

/// The size of the pair in the memory of OpenZFS.
fn decoded_bytes(name_len: usize, value_len: usize) -> usize {
    (16 + name_len + 1).next_multiple_of(8) + value_len.next_multiple_of(8)
}

fn damaged(what: &'static str, expected: impl fmt::Display, found: impl fmt::Display) -> Corrupt {
    Corrupt::new("packed list", what, expected, found)
}

#[cfg(test)]
mod tests;
