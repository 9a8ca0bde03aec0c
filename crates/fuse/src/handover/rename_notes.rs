//! Renames that a server is carrying out, and whose second run would do something else.
//!
//! The kernel sends a request again if its server died before it answered. Most requests find their own result then. An exchange
//! of two names does not: a second run undoes the first. Nor does a rename that leaves a whiteout, if it moved one. So the server
//! notes which inodes the two names had before, and its successor compares.
//!
//! The notes lie in the file of the [`Ledger`](super::Ledger), in the part of the ring's head that the ring does not use. A file
//! without a ring has that head too. A note is three words: the id of the request (0: none), and the two inodes (0: no such name).
//!
//! Invariants:
//! * A note is whole before the request changes anything, and stays until the kernel has the answer.
//! * The server alone writes, and its successor reads when the server has ended.
#![expect(unsafe_code, reason = "memory that is shared with other processes")]

use memmap2::MmapRaw;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"TERRNOTE");
/// Where the notes begin in the head of the ring, and where they end.
const START: usize = 2048;
pub(super) const END: usize = 4096;
const WORDS_PER_NOTE: usize = 3;
/// More than a session has threads, so that each request finds a place.
const NOTES: usize = (END - START) / 8 / WORDS_PER_NOTE;
const _: () = assert!(NOTES > crate::mount::THREADS_MAX);

/// The inodes of two names before a rename. 0: there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedBefore {
    /// What the old name meant.
    pub source: u64,
    /// What the new name meant.
    pub target: u64,
}

/// The notes of a mount.
#[derive(Debug)]
pub struct RenameNotes {
    map: MmapRaw,
    /// Where the head of the ring begins in the mapping.
    head: usize,
    /// The predecessor noted each such rename, so one without a note was not begun.
    predecessor_noted: bool,
    /// Requests of this process that have a note.
    own: Mutex<BTreeSet<u64>>,
}

impl RenameNotes {
    /// The notes in the head at `head` of a file that is mapped. `head` is a multiple of 8. `None`: the file is too short.
    pub(super) fn new(map: MmapRaw, head: usize) -> Option<RenameNotes> {
        let fits = head.is_multiple_of(8) && head.checked_add(END)? <= map.len();
        fits.then(|| {
            let mut notes = RenameNotes { map, head, predecessor_noted: false, own: Mutex::default() };
            notes.predecessor_noted = notes.word(0).swap(MAGIC, Ordering::AcqRel) == MAGIC;
            notes
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(START + 8 * at + 8 <= END, "a word of the notes");
        // SAFETY: the word lies in the mapping: `new` compared its length with END. The mapping lives as long as self, is page-aligned,
        // and so the word is aligned, as `head` is a multiple of 8. The file has this length and nothing shortens it: it has no
        // name, and only processes of this program hold it. These words are touched by atomics alone.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(self.head + START + 8 * at).cast()) }
    }

    /// The words of a note.
    fn note_at(&self, index: usize) -> [&AtomicU64; WORDS_PER_NOTE] {
        std::array::from_fn(|word| self.word(1 + WORDS_PER_NOTE * index + word))
    }

    fn id_at(&self, index: usize) -> u64 {
        self.note_at(index)[0].load(Ordering::Acquire)
    }

    /// Notes what two names mean before the rename of this id begins. Ids are not 0.
    pub fn note(&self, id: u64, before: NamedBefore) {
        let mut own = self.own.lock();
        let places = || (0..NOTES).filter(|index| !own.contains(&self.id_at(*index)));
        // One that is not ours is of a predecessor: either its request comes again, or it was answered.
        let place = places().find(|index| self.id_at(*index) == id);
        let place = place.or_else(|| places().min_by_key(|index| self.id_at(*index)));
        let Some(index) = place else {
            log::error!("fuse: no place to note a rename: a successor answers it with EIO");
            self.word(0).store(0, Ordering::Release);
            return;
        };
        own.insert(id);
        let [of, source, target] = self.note_at(index);
        of.store(0, Ordering::Release);
        source.store(before.source, Ordering::Release);
        target.store(before.target, Ordering::Release);
        of.store(id, Ordering::Release);
    }

    /// What the names meant before the rename of this id began. `Ok(None)`: it was not begun. `Err`: that is unknown, because the
    /// predecessor kept no notes.
    pub fn find(&self, id: u64) -> Result<Option<NamedBefore>, UnknownRename> {
        let found = (0..NOTES).find(|index| self.id_at(*index) == id).map(|index| {
            let [_, source, target] = self.note_at(index).map(|word| word.load(Ordering::Acquire));
            NamedBefore { source, target }
        });
        if found.is_none() && !self.predecessor_noted { Err(UnknownRename) } else { Ok(found) }
    }

    /// The kernel has the answer to the rename of this id.
    pub fn forget(&self, id: u64) {
        let mut own = self.own.lock();
        for index in (0..NOTES).filter(|index| self.id_at(*index) == id) {
            self.note_at(index)[0].store(0, Ordering::Release);
        }
        own.remove(&id);
    }
}

/// Nothing says whether a rename was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRename;

#[cfg(test)]
mod tests {
    use super::super::Ledger;
    use super::*;

    fn before(number: u64) -> NamedBefore {
        NamedBefore { source: number * 10, target: number * 10 + 1 }
    }

    fn successor(ledger: &Ledger) -> RenameNotes {
        Ledger::map(ledger.file().try_clone().unwrap()).unwrap().rename_notes().unwrap()
    }

    #[test]
    fn a_successor_knows_which_renames_were_begun() {
        for ring_bytes in [0, super::super::RING_BYTES_MIN * 2] {
            let ledger = Ledger::new(ring_bytes).unwrap();
            assert_eq!(ledger.ring().is_some(), ring_bytes > 0);
            let server = ledger.rename_notes().unwrap();
            assert_eq!(server.find(7), Err(UnknownRename), "nobody was there before");
            // The ring and the notes leave each other alone.
            if let Some(ring) = ledger.ring() {
                ring.begin(1, 2);
                ring.keep((1, 1), &[b"change"]);
            }
            (1..=20).for_each(|id| server.note(id, before(id)));
            (1..=20).filter(|id| id % 2 == 0).for_each(|id| server.forget(id));
            ledger.ring().into_iter().for_each(|ring| ring.begin(2, 2));
            let successor = successor(&ledger);
            for id in 1..=30 {
                let expected = (id <= 20 && id % 2 == 1).then(|| before(id));
                assert_eq!(successor.find(id), Ok(expected), "{id}");
            }
            assert_eq!(
                ledger.ring().map(|ring| ring.read().unwrap().changes.len()),
                ledger.ring().map(|_| 0)
            );
        }
    }

    #[test]
    fn notes_of_predecessors_are_the_last_to_be_overwritten() {
        let ledger = Ledger::new(0).unwrap();
        let server = ledger.rename_notes().unwrap();
        (1..=10).for_each(|id| server.note(id, before(id)));
        let successor = self::successor(&ledger);
        for id in 11..=1000 {
            successor.note(id, before(id));
            assert_eq!(successor.find(id), Ok(Some(before(id))));
            successor.forget(id);
        }
        (1..=10).for_each(|id| assert_eq!(successor.find(id), Ok(Some(before(id))), "{id}"));
        // It is carried out anew, and the next server finds it as well.
        successor.note(3, before(33));
        assert_eq!(self::successor(&ledger).find(3), Ok(Some(before(33))));
        // There is a place for each thread, whatever predecessors have left.
        (2000..2000 + NOTES as u64 - 1).for_each(|id| successor.note(id, before(id)));
        assert!((2000..2000 + NOTES as u64 - 1).all(|id| successor.find(id) == Ok(Some(before(id)))));
        assert_eq!(successor.find(1), Ok(None));
        // Without a place, what has no note is unknown from then on.
        successor.note(9000, before(1));
        successor.note(9001, before(1));
        assert_eq!(self::successor(&ledger).find(9001), Err(UnknownRename));
    }
}
