//! Records of which a txg has new bytes for a part.
//!
//! A small write into a large compressed record needs the rest of it only when the record is stored. Until then the new bytes lie beside
//! the stored form of the old content, and the writer does not wait for the decompression.
//!
//! Invariants: pieces do not overlap or touch, and lie within the record. A part takes about as much memory as the record at most, which
//! is what its writer has reserved.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use terrane_store::reader::StoredForm;

/// Pieces of one record. With more, the record is kept whole.
const PIECES_MAX: usize = 16;
/// Memory of a piece beside its bytes.
const PIECE_BYTES: u64 = 64;
/// Most new bytes of a record. A write in front of others copies them.
const NEW_BYTES_MAX: usize = 256 << 10;

/// New bytes of a record, and its old content as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub base: Arc<StoredForm>,
    pub pieces: Pieces,
}

impl Part {
    pub fn new(base: Arc<StoredForm>) -> Part {
        Part { base, pieces: Pieces::default() }
    }

    /// Most new bytes of a record of this size.
    pub fn new_bytes_max(record_bytes: usize) -> usize {
        (record_bytes / 4).min(NEW_BYTES_MAX)
    }

    /// Whether a record of this size whose stored form has so many bytes may be kept in parts.
    pub fn may_have(record_bytes: usize, stored_bytes: usize) -> bool {
        record_bytes >= 4 << 10 && stored_bytes <= record_bytes / 2
    }

    /// Whether it may take so many bytes more.
    pub fn has_place(&self, record_bytes: usize, bytes: usize) -> bool {
        let new_bytes = self.pieces.piece_bytes + bytes;
        self.pieces.pieces.len() < PIECES_MAX && new_bytes <= Part::new_bytes_max(record_bytes)
    }

    /// Reads from an offset on, of the unpacked old content.
    pub fn read(&self, old: &[u8], at: usize, out: &mut [u8]) {
        let have = old.get(at..).unwrap_or_default();
        let (head, tail) = out.split_at_mut(have.len().min(out.len()));
        head.copy_from_slice(have.get(..head.len()).unwrap_or_default());
        tail.fill(0);
        self.pieces.overlay(at, out);
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.base.stored_bytes() as u64 + self.pieces.bytes()
    }
}

/// Bytes of a record by offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    pieces: BTreeMap<usize, Vec<u8>>,
    piece_bytes: usize,
}

impl Pieces {
    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.piece_bytes as u64 + self.pieces.len() as u64 * PIECE_BYTES
    }

    /// Writes bytes at an offset.
    pub fn put(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        let before = self.pieces.range(..=at).next_back();
        let before = before.filter(|(start, piece)| **start + piece.len() >= at).map(|(start, _)| *start);
        let start = before.unwrap_or(at);
        let mut joined = before.and_then(|start| self.pieces.remove(&start)).unwrap_or_default();
        self.piece_bytes -= joined.len();
        let (old_end, inside) = (start + joined.len(), at - start);
        if let Some(place) = joined.get_mut(inside..inside + data.len()) {
            place.copy_from_slice(data);
        } else {
            joined.truncate(inside);
            joined.reserve_exact(data.len());
            joined.extend_from_slice(data);
        }
        let mut joined_end = end.max(old_end);
        while let Some((next, piece)) = self.pieces.range(at..=joined_end).next() {
            let (next, len) = (*next, piece.len());
            let piece = self.pieces.remove(&next).unwrap_or_default();
            self.piece_bytes -= len;
            joined.extend_from_slice(piece.get(joined_end - next..).unwrap_or_default());
            joined_end = joined_end.max(next + len);
        }
        self.piece_bytes += joined.len();
        self.pieces.insert(start, joined);
    }

    /// These bytes, if all of them are new.
    pub fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        let (start, piece) = self.pieces.range(..=range.start).next_back()?;
        piece.get(range.start - start..range.end - start)
    }

    /// Puts what is new in place of bytes that were read from `at` on.
    fn overlay(&self, at: usize, out: &mut [u8]) {
        let end = at + out.len();
        for (start, piece) in self.pieces.range(..end) {
            let from = at.max(*start);
            let new = piece.get(from - start..).unwrap_or_default();
            let place = out.get_mut(from - at..).unwrap_or_default();
            place.iter_mut().zip(new).for_each(|(old, new)| *old = *new);
        }
    }

    /// The new content, from the old one.
    pub fn apply(&self, content: &mut Vec<u8>) {
        for (start, piece) in &self.pieces {
            let end = start + piece.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content.get_mut(*start..end).into_iter().for_each(|place| place.copy_from_slice(piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::Prng;

    #[test]
    fn pieces_behave_like_bytes() {
        const BYTES: usize = 200;
        for seed in 0..300 {
            let mut random = Prng::new(seed);
            let mut part = Pieces::default();
            let old = random.random_bytes(BYTES);
            let (mut expected, mut is_new) = (old.clone(), vec![false; BYTES]);
            for _ in 0..1 + random.below(30) {
                let at = random.below(BYTES as u64 - 1) as usize;
                let most = if random.below(4) == 0 { BYTES } else { 20 };
                let len = 1 + random.below((BYTES - at).min(most) as u64) as usize;
                let data = random.random_bytes(len);
                part.put(at, &data);
                expected[at..at + len].copy_from_slice(&data);
                is_new[at..at + len].fill(true);
                let mut found = old.clone();
                part.apply(&mut found);
                assert_eq!(found, expected, "seed {seed}");
                let mut short = old[..10].to_vec();
                part.apply(&mut short);
                assert!(short.len() <= BYTES);
                let (from, to) =
                    (random.below(BYTES as u64) as usize, random.below(BYTES as u64 + 1) as usize);
                let range = from.min(to)..from.max(to);
                if !range.is_empty() {
                    let is_there = is_new[range.clone()].iter().all(|new| *new);
                    assert_eq!(
                        part.get(range.clone()),
                        is_there.then_some(&expected[range.clone()]),
                        "seed {seed}"
                    );
                }
                let runs = is_new.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
                assert_eq!(part.pieces.len(), runs, "those that touch are joined");
                let (from, len) = (range.start, range.len());
                let mut read = old[from..from + len].to_vec();
                part.overlay(from, &mut read);
                assert_eq!(read, expected[from..from + len], "seed {seed}");
                let new = is_new.iter().filter(|new| **new).count();
                assert_eq!(part.bytes(), new as u64 + PIECE_BYTES * runs as u64);
            }
        }
    }
}
