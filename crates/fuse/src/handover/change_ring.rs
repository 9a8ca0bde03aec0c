//! Changes that no commit has made durable, in memory that outlives a server.
//!
//! A server keeps each change here before it answers the request. Its successor makes those again that the server had
//! not committed when it died. So its end costs programs nothing.
//!
//! The ring lies in the file of the [`Ledger`](super::Ledger), behind its pairs: a head of words, then entries in the order of
//! their changes' space. An entry is four words (length and state, number of the change, txg, reserved) and the change,
//! and begins on a multiple of 8 bytes. It never wraps: an entry without a change fills the end.
//!
//! Space is reserved before an operation joins a txg, where it may wait. So keeping a change never fails, and never waits.
//!
//! Invariants:
//! * What lies between `tail` and `head` is entries. An entry whose state is not [`WHOLE`] belongs to an operation that was not
//!   answered.
//! * The server alone writes, and its successor reads when the server has ended.
#![expect(unsafe_code, reason = "memory that is shared with other processes")]

use super::stream_copy;
use memmap2::MmapRaw;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"TERRKEPT");
/// Bytes of the head. Its second half has the notes about renames.
const HEAD_BYTES: usize = 4096;
/// Bytes in front of an entry's change.
const ENTRY_HEAD_BYTES: usize = 32;
/// Longest change in bytes: a write of 1 MiB, and what is said about it.
pub const CHANGE_BYTES_MAX: usize = (1 << 20) + (128 << 10);
/// Fewest bytes of a ring.
pub const RING_BYTES_MIN: usize = 8 << 20;

/// States of an entry, in the upper half of its first word.
const WHOLE: u64 = 1;
const PADDING: u64 = 2;
/// A server could not make the change again.
const LEFT_OUT: u64 = 3;

/// Words of the head.
#[derive(Clone, Copy)]
enum Word {
    Magic = 0,
    Incarnation = 1,
    Set = 2,
    /// Bytes ever taken, and ever given back.
    Head = 3,
    Tail = 4,
    /// A change is missing.
    Incomplete = 5,
    /// The change that is being made again. 0: none.
    Current = 6,
    /// The change during which servers have died last, and how many of them.
    Suspect = 7,
    Deaths = 8,
}

/// What a server has not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptChanges {
    /// The incarnation of the pool to which the numbers of the changes belong.
    pub incarnation: u64,
    /// The object set that was changed.
    pub set: u64,
    /// Each with its number and txg, in ring order.
    pub changes: Vec<KeptChange>,
    /// Those that a server before could not make again.
    pub left_out: Vec<KeptChange>,
    /// All changes are there.
    pub is_complete: bool,
}

/// A change that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptChange {
    /// Its number.
    pub change: u64,
    /// The txg in which it was made.
    pub txg: u64,
    /// What the file system wrote of it.
    pub body: Vec<u8>,
}

#[derive(Debug, Default)]
struct Space {
    head: u64,
    tail: u64,
    /// Bytes of entries that are promised.
    reserved: usize,
    /// End and txg of each entry, oldest first.
    entries: VecDeque<(u64, u64)>,
}

/// A ring of changes.
#[derive(Debug)]
pub struct ChangeRing {
    map: MmapRaw,
    /// Where the ring begins in the mapping, and the bytes of its entries.
    start: usize,
    bytes: usize,
    space: Mutex<Space>,
    /// At least half of the space is taken or promised.
    is_half_taken: AtomicBool,
}

fn entry_bytes(change: usize) -> usize {
    (ENTRY_HEAD_BYTES + change).next_multiple_of(8)
}

impl ChangeRing {
    /// The ring at `start` of a file that is mapped, up to its end. `start` is a multiple of 8. `None`: the file is too short.
    pub(super) fn new(map: MmapRaw, start: usize) -> Option<ChangeRing> {
        let bytes = map.len().checked_sub(start)?.checked_sub(HEAD_BYTES)? / 8 * 8;
        let fits = bytes >= RING_BYTES_MIN && start.is_multiple_of(8);
        fits.then(|| ChangeRing {
            map,
            start,
            bytes,
            space: Mutex::default(),
            is_half_taken: AtomicBool::new(false),
        })
    }

    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len(), "a word of the mapping");
        // SAFETY: the word lies in the mapping (asserted), which lives as long as self, is page-aligned, and so aligned for the word.
        // The file has this length and nothing shortens it: it has no name, and only processes of this program hold it. Words of
        // heads are touched by atomics alone.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        self.word_at(self.start + 8 * word as usize)
    }

    /// Where the entry at this position begins in the mapping.
    fn offset_of(&self, position: u64) -> usize {
        self.start + HEAD_BYTES + usize::try_from(position % self.bytes as u64).unwrap_or(0)
    }

    /// Empties the ring, for changes of this object set in this incarnation.
    pub fn begin(&self, incarnation: u64, set: u64) {
        let mut space = self.space.lock();
        // Without its magic, a successor reads nothing.
        self.word(Word::Magic).store(0, Ordering::Release);
        for word in [Word::Head, Word::Tail, Word::Incomplete, Word::Current, Word::Suspect, Word::Deaths] {
            self.word(word).store(0, Ordering::Release);
        }
        self.word(Word::Incarnation).store(incarnation, Ordering::Release);
        self.word(Word::Set).store(set, Ordering::Release);
        self.word(Word::Magic).store(MAGIC, Ordering::Release);
        *space = Space { reserved: space.reserved, ..Space::default() };
        self.note_taken(&space);
    }

    /// Whether at least half of the space is taken or promised. It is a good time to commit: later callers would wait for that.
    pub fn is_half_taken(&self) -> bool {
        self.is_half_taken.load(Ordering::Relaxed)
    }

    fn note_taken(&self, space: &Space) {
        let used = usize::try_from(space.head - space.tail).unwrap_or(usize::MAX);
        self.is_half_taken.store(used.saturating_add(space.reserved) >= self.bytes / 2, Ordering::Relaxed);
    }

    /// Promises space for a change of so many bytes. False: there is none until older changes are durable.
    pub fn reserve(&self, bytes: usize) -> bool {
        let mut space = self.space.lock();
        let used = usize::try_from(space.head - space.tail).unwrap_or(usize::MAX);
        // An entry that does not fit the end of the ring leaves less than its length unused there, once in each lap.
        let fits = used + space.reserved + entry_bytes(bytes) + CHANGE_BYTES_MAX <= self.bytes;
        if fits {
            space.reserved += entry_bytes(bytes);
            self.note_taken(&space);
        }
        fits
    }

    /// Gives a promise back.
    pub fn unreserve(&self, bytes: usize) {
        let mut space = self.space.lock();
        space.reserved = space.reserved.saturating_sub(entry_bytes(bytes));
    }

    /// Keeps a change, in its pieces one behind the other. The promise stays: the caller gives it back.
    pub fn keep(&self, (txg, change): (u64, u64), pieces: &[&[u8]]) {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let Some(offset) = self.take(txg, len) else {
            self.word(Word::Incomplete).store(1, Ordering::Release);
            return;
        };
        self.word_at(offset + 8).store(change, Ordering::Relaxed);
        self.word_at(offset + 16).store(txg, Ordering::Relaxed);
        let mut at = offset + ENTRY_HEAD_BYTES;
        for piece in pieces {
            assert!(at + piece.len() <= self.map.len(), "the entry lies in the mapping");
            // SAFETY: the destination lies in the mapping (asserted), and in the part of it that `take` gave to this call alone.
            // The source is other memory: nothing hands out references into the mapping.
            unsafe { stream_copy::copy(piece, self.map.as_mut_ptr().add(at)) };
            at += piece.len();
        }
        self.word_at(offset).store(len as u64 | WHOLE << 32, Ordering::Release);
    }

    /// Takes space for an entry, and returns its offset in the mapping. `None`: there is none.
    fn take(&self, txg: u64, len: usize) -> Option<usize> {
        let need = entry_bytes(len);
        let mut space = self.space.lock();
        let to_end = self.bytes - usize::try_from(space.head % self.bytes as u64).unwrap_or(0);
        let padding = if need > to_end { to_end } else { 0 };
        let used = usize::try_from(space.head - space.tail).unwrap_or(usize::MAX);
        if len > CHANGE_BYTES_MAX || used.saturating_add(padding + need) > self.bytes {
            return None;
        }
        if padding > 0 {
            self.word_at(self.offset_of(space.head)).store(padding as u64 | PADDING << 32, Ordering::Release);
            space.head += padding as u64;
        }
        let offset = self.offset_of(space.head);
        self.word_at(offset).store(len as u64, Ordering::Release);
        space.head += need as u64;
        let end = space.head;
        space.entries.push_back((end, txg));
        self.word(Word::Head).store(end, Ordering::Release);
        Some(offset)
    }

    /// Changes up to this txg are durable.
    pub fn release(&self, durable: u64) {
        let mut space = self.space.lock();
        while let Some((end, _)) = space.entries.pop_front_if(|(_, txg)| *txg <= durable) {
            space.tail = end;
        }
        self.word(Word::Tail).store(space.tail, Ordering::Release);
        self.note_taken(&space);
    }

    /// What the server that ended had not committed. `None`: it never kept a change here, or what it kept makes no sense.
    pub fn read(&self) -> Option<KeptChanges> {
        let get = |word| self.word(word).load(Ordering::Acquire);
        if get(Word::Magic) != MAGIC {
            return None;
        }
        let (mut at, head) = (get(Word::Tail), get(Word::Head));
        if head.checked_sub(at)? > self.bytes as u64 || !at.is_multiple_of(8) {
            return None;
        }
        let (mut changes, mut left_out) = (Vec::new(), Vec::new());
        while at < head {
            let offset = self.offset_of(at);
            let first = self.word_at(offset).load(Ordering::Acquire);
            let (len, state) = (usize::try_from(first & 0xffff_ffff).ok()?, first >> 32);
            let end = if state == PADDING { offset.checked_add(len)? } else { offset + entry_bytes(len) };
            if len > self.bytes || end > self.map.len() || end == offset || !end.is_multiple_of(8) {
                return None;
            }
            if matches!(state, WHOLE | LEFT_OUT) {
                let (change, txg) = (self.word_at(offset + 8), self.word_at(offset + 16));
                let mut body = vec![0; len];
                // SAFETY: the entry lies in the mapping (`end` was compared above). The server that wrote it has ended, so nobody
                // writes here meanwhile.
                unsafe {
                    let from = self.map.as_mut_ptr().add(offset + ENTRY_HEAD_BYTES);
                    body.as_mut_ptr().copy_from_nonoverlapping(from, len);
                }
                let (change, txg) = (change.load(Ordering::Acquire), txg.load(Ordering::Acquire));
                let list = if state == WHOLE { &mut changes } else { &mut left_out };
                list.push(KeptChange { change, txg, body });
            }
            at += (end - offset) as u64;
        }
        let is_complete = get(Word::Incomplete) == 0;
        Some(KeptChanges {
            incarnation: get(Word::Incarnation),
            set: get(Word::Set),
            changes,
            left_out,
            is_complete,
        })
    }

    /// A change cannot be made again: no later server tries it.
    pub fn leave_out(&self, change: u64) {
        let get = |word| self.word(word).load(Ordering::Acquire);
        let (mut at, head) = (get(Word::Tail), get(Word::Head));
        // The ring was read before, so its entries are sound.
        while at < head {
            let offset = self.offset_of(at);
            let first = self.word_at(offset).load(Ordering::Acquire);
            let (len, state) = (usize::try_from(first & 0xffff_ffff).unwrap_or(0), first >> 32);
            if state == WHOLE && self.word_at(offset + 8).load(Ordering::Acquire) == change {
                self.word_at(offset).store(len as u64 | LEFT_OUT << 32, Ordering::Release);
                return;
            }
            at += if state == PADDING { len.max(8) } else { entry_bytes(len) } as u64;
        }
    }

    /// A server begins to make the changes again. If the server before died while it did that, the change counts as a suspect.
    pub fn begin_replay(&self) {
        let get = |word| self.word(word).load(Ordering::Acquire);
        let current = get(Word::Current);
        if current != 0 {
            let deaths = if get(Word::Suspect) == current { get(Word::Deaths) + 1 } else { 1 };
            self.word(Word::Deaths).store(deaths, Ordering::Release);
            self.word(Word::Suspect).store(current, Ordering::Release);
            self.word(Word::Current).store(0, Ordering::Release);
        }
    }

    /// A change is about to be made again; 0: none is any more. Returns how many servers in a row have died while they did that.
    pub fn note_try(&self, change: u64) -> u64 {
        self.word(Word::Current).store(change, Ordering::Release);
        let is_suspect = change != 0 && self.word(Word::Suspect).load(Ordering::Acquire) == change;
        if is_suspect { self.word(Word::Deaths).load(Ordering::Acquire) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory_file;
    use super::*;

    const BYTES: usize = RING_BYTES_MIN + HEAD_BYTES;

    /// Two views of one ring: that of a server, and that of its successor.
    fn rings() -> [ChangeRing; 2] {
        let file = memory_file("ring").unwrap();
        file.set_len(BYTES as u64).unwrap();
        [0, 0].map(|start| ChangeRing::new(MmapRaw::map_raw(&file).unwrap(), start).unwrap())
    }

    fn body(change: u64, len: usize) -> Vec<u8> {
        (0..len).map(|at| (change as usize * 7 + at) as u8).collect()
    }

    fn keep(ring: &ChangeRing, txg: u64, change: u64, len: usize) {
        let body = body(change, len);
        let (a, b) = body.split_at(len / 3);
        ring.keep((txg, change), &[a, b]);
    }

    #[test]
    fn a_successor_finds_what_is_not_durable() {
        let [server, successor] = rings();
        assert_eq!(successor.read(), None, "nothing was ever kept");
        server.begin(5, 9);
        for change in 1..=20 {
            keep(&server, change / 4, change, change as usize * 11);
        }
        server.release(2);
        let found = successor.read().unwrap();
        assert_eq!((found.incarnation, found.set, found.is_complete), (5, 9, true));
        let right = (12..=20).map(|change| KeptChange {
            change,
            txg: change / 4,
            body: body(change, change as usize * 11),
        });
        assert_eq!(found.changes, right.collect::<Vec<_>>());
        server.begin(6, 9);
        assert_eq!(successor.read().unwrap().changes, []);
    }

    #[test]
    fn many_laps_keep_every_change() {
        let [server, successor] = rings();
        server.begin(1, 1);
        let mut oldest = 1;
        for change in 1..2000u64 {
            let len = (change * 7919 % 300_000) as usize;
            while !server.reserve(len) {
                server.release(oldest);
                oldest += 1;
            }
            keep(&server, change, change, len);
            server.unreserve(len);
            if change % 50 == 0 {
                let found = successor.read().unwrap();
                assert!(found.is_complete);
                let numbers: Vec<u64> = found.changes.iter().map(|kept| kept.change).collect();
                assert_eq!(numbers, (oldest..=change).collect::<Vec<_>>());
                assert!(found.changes.iter().all(|kept| kept.body == body(kept.change, kept.body.len())));
            }
        }
        assert!(oldest > 1000, "the ring went round: {oldest}");
    }

    #[test]
    fn without_space_nothing_is_promised_and_what_is_kept_nevertheless_is_missed() {
        let [server, successor] = rings();
        server.begin(1, 1);
        let mut promised = 0;
        while server.reserve(100_000) {
            promised += 1;
        }
        assert!(promised > 50, "{promised}");
        for change in 1..=promised {
            keep(&server, 1, change, 100_000);
            server.unreserve(100_000);
        }
        assert!(successor.read().unwrap().is_complete);
        for change in 0..30 {
            keep(&server, 1, promised + 1 + change, 100_000);
        }
        let found = successor.read().unwrap();
        assert!(!found.is_complete);
        assert!(found.changes.len() as u64 >= promised);
    }

    #[test]
    fn a_ring_tells_when_half_of_it_is_taken() {
        let [server, _] = rings();
        server.begin(1, 1);
        let mut oldest = 0;
        for lap in 1..=3 {
            let mut change = lap * 1000;
            while !server.is_half_taken() {
                change += 1;
                assert!(server.reserve(100_000));
                keep(&server, change, change, 100_000);
                server.unreserve(100_000);
            }
            let taken = (change - lap * 1000) as usize * 100_000;
            assert!((RING_BYTES_MIN / 3..RING_BYTES_MIN * 6 / 10).contains(&taken), "{taken} in lap {lap}");
            // Half of that is durable.
            server.release(lap * 1000 + (change - lap * 1000) / 2);
            assert!(!server.is_half_taken());
            assert!(server.reserve(RING_BYTES_MIN / 3), "what is promised counts");
            assert!(server.is_half_taken());
            server.unreserve(RING_BYTES_MIN / 3);
            server.release(change);
            assert!(!server.is_half_taken());
            oldest = change;
        }
        assert!(oldest > 3000);
    }

    #[test]
    fn a_change_that_is_left_out_stays_known() {
        let [server, successor] = rings();
        server.begin(1, 1);
        (1..=5).for_each(|change| keep(&server, 1, change, 100));
        successor.leave_out(3);
        successor.leave_out(9);
        let found = server.read().unwrap();
        let numbers = |changes: &[KeptChange]| changes.iter().map(|kept| kept.change).collect::<Vec<_>>();
        assert_eq!((numbers(&found.changes), numbers(&found.left_out)), (vec![1, 2, 4, 5], vec![3]));
        assert_eq!(found.left_out[0].body, body(3, 100));
    }

    /// As if the server died while it copied.
    #[test]
    fn a_change_that_is_not_whole_is_left_out() {
        let [server, successor] = rings();
        server.begin(1, 1);
        keep(&server, 1, 1, 100);
        server.take(1, 500).unwrap();
        keep(&server, 1, 3, 100);
        let found = successor.read().unwrap();
        assert_eq!(found.changes.iter().map(|kept| kept.change).collect::<Vec<_>>(), [1, 3]);
        assert!(found.is_complete, "it was not answered");
    }

    #[test]
    fn no_head_makes_reading_panic() {
        let [server, successor] = rings();
        server.begin(1, 1);
        for change in 1..9 {
            keep(&server, 1, change, 1000);
        }
        for word in [Word::Head, Word::Tail] {
            let right = server.word(word).load(Ordering::Relaxed);
            for wrong in [0, 1, 8, 13, 1 << 20, BYTES as u64, 1 << 40, u64::MAX, u64::MAX - 7] {
                server.word(word).store(wrong, Ordering::Relaxed);
                let _ = successor.read();
            }
            server.word(word).store(right, Ordering::Relaxed);
        }
        let first = server.offset_of(0);
        for wrong in [
            0,
            1,
            u64::MAX,
            2 << 32,
            2 << 32 | 13,
            2 << 32 | 0xffff_ffff,
            WHOLE << 32 | 0xffff_ffff,
            WHOLE << 32 | BYTES as u64,
        ] {
            server.word_at(first).store(wrong, Ordering::Relaxed);
            let _ = successor.read();
        }
    }

    #[test]
    fn a_change_that_servers_die_of_is_known() {
        let [server, successor] = rings();
        server.begin(1, 1);
        let replay = |ring: &ChangeRing, until: u64| -> Vec<u64> {
            ring.begin_replay();
            (1..=until).map(|change| ring.note_try(change)).collect()
        };
        // Each dies in the fourth.
        assert_eq!(replay(&server, 4), [0, 0, 0, 0]);
        assert_eq!(replay(&successor, 4), [0, 0, 0, 1]);
        assert_eq!(replay(&server, 4), [0, 0, 0, 2]);
        // The next one leaves it out, and dies later, at no change.
        assert_eq!(replay(&server, 6), [0, 0, 0, 3, 0, 0]);
        server.note_try(0);
        assert_eq!(replay(&successor, 6), [0, 0, 0, 3, 0, 0]);
        server.begin(2, 1);
        assert_eq!(replay(&successor, 6), [0; 6]);
    }
}
