//! Which READDIR continues a listing, and which follows a `seekdir`.
//!
//! The kernel asks for as many names as fit its buffer, some 800, although a program that calls `seekdir` may read one of them.
//! So an answer at an offset at which no recent answer has ended is short. The next one is long again.
//!
//! Handles of directories carry nothing, so the ends of recent answers are remembered for all of them together. An end that
//! another one has displaced costs one short answer.

use crate::reply::DirReply;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_posix::NAME_MAX;

/// Ends that are remembered.
const ENDS: usize = 1024;
/// Bytes of a short answer: some 50 names. The longest entry fits.
pub(super) const SHORT_BYTES: usize = 2048;
const _: () = assert!(DirReply::entry_bytes(NAME_MAX, true) <= SHORT_BYTES);

/// Where recent answers ended.
#[derive(Debug)]
pub(super) struct ListingEnds(Box<[AtomicU64]>);

impl Default for ListingEnds {
    fn default() -> Self {
        ListingEnds((0..ENDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ListingEnds {
    fn slot(&self, dir: u64, offset: u64) -> Option<(&AtomicU64, u64)> {
        let hash = dir.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset.wrapping_mul(0xff51_afd7_ed55_8ccd);
        let slot = self.0.get(usize::try_from(hash >> 40).unwrap_or(0) % ENDS)?;
        Some((slot, hash | 1))
    }

    /// Whether a listing of `dir` is read in order up to `offset`, or begins there.
    pub fn continues(&self, dir: u64, offset: u64) -> bool {
        offset == 0 || self.slot(dir, offset).is_some_and(|(slot, end)| slot.load(Ordering::Relaxed) == end)
    }

    /// An answer for `dir` ended in front of `offset`.
    pub fn note_end(&self, dir: u64, offset: u64) {
        if let Some((slot, end)) = self.slot(dir, offset) {
            slot.store(end, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_end_of_an_answer_continues_it() {
        let ends = ListingEnds::default();
        assert!(ends.continues(7, 0));
        assert!(!ends.continues(7, 50));
        ends.note_end(7, 50);
        assert!(ends.continues(7, 50));
        assert!(!ends.continues(8, 50) && !ends.continues(7, 51));
    }
}
