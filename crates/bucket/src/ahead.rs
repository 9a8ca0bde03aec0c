//! Prefetch: sequential reads become large requests.
//!
//! A request takes as long for 16 KiB as for half a MiB, and stores charge for each. So a read that goes on where another
//! one ended is answered from pieces of [`PIECE`], of which the next ones are requested before they are asked for. A read
//! at random is requested as it is.

use crate::filling::FillingId;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// In bytes.
pub const PIECE: u64 = 1 << 20;
/// Pieces that are kept.
const KEPT_MAX: usize = 48;
/// Pieces that are requested in front of a reader.
pub const AHEAD: usize = 12;
/// Streams that are told apart.
const STREAMS: usize = 16;
/// Reads of one stream may overtake each other, or leave something out, by so many bytes.
const SLACK: u64 = 1 << 20;

/// A piece of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceId {
    pub filling: FillingId,
    /// Offset of the part in the zone.
    pub start: u64,
    /// Counted from the start of the part.
    pub number: u64,
}

enum Piece {
    /// A thread will request it.
    Queued,
    Requested,
    Here(Arc<Vec<u8>>),
}

#[derive(Default)]
struct State {
    pieces: BTreeMap<PieceId, Piece>,
    /// Those that are here, oldest first.
    order: VecDeque<PieceId>,
    /// Ends of reads.
    streams: VecDeque<(FillingId, u64)>,
}

/// Pieces that were read, and reads that go on.
#[derive(Default)]
pub struct Ahead {
    state: Mutex<State>,
    changed: Condvar,
}

impl Ahead {
    /// Notes a read of `len` bytes at `offset` of a filling. Returns whether it goes on where another one ended.
    pub fn note(&self, id: FillingId, offset: u64, len: u64) -> bool {
        let mut state = self.state.lock();
        let is_near = |(of, end): &(FillingId, u64)| *of == id && end.abs_diff(offset) <= SLACK;
        let found = state.streams.iter().position(is_near);
        let end = found.and_then(|at| state.streams.remove(at)).map_or(0, |(_, end)| end);
        state.streams.push_back((id, end.max(offset.saturating_add(len))));
        if state.streams.len() > STREAMS {
            state.streams.pop_front();
        }
        found.is_some()
    }

    /// Notes that a thread will request a piece. Returns whether one has to.
    pub fn queue(&self, id: PieceId) -> bool {
        let mut state = self.state.lock();
        let is_new = !state.pieces.contains_key(&id);
        if is_new {
            state.pieces.insert(id, Piece::Queued);
        }
        is_new
    }

    /// Begins the request of a piece that was queued. Returns whether it is still needed.
    pub fn begin(&self, id: PieceId) -> bool {
        let mut state = self.state.lock();
        let piece = state.pieces.get_mut(&id).filter(|piece| matches!(piece, Piece::Queued));
        piece.map(|piece| *piece = Piece::Requested).is_some()
    }

    /// A piece that is here or under way, for which it waits. `None`: the caller must request it.
    pub fn find(&self, id: PieceId) -> Option<Arc<Vec<u8>>> {
        let mut state = self.state.lock();
        loop {
            match state.pieces.get(&id) {
                Some(Piece::Here(content)) => return Some(Arc::clone(content)),
                Some(Piece::Requested) => self.changed.wait(&mut state),
                Some(Piece::Queued) | None => {
                    state.pieces.insert(id, Piece::Requested);
                    return None;
                }
            }
        }
    }

    /// Ends the request of a piece.
    pub fn put(&self, id: PieceId, content: Vec<u8>) -> Arc<Vec<u8>> {
        let content = Arc::new(content);
        let mut state = self.state.lock();
        state.pieces.insert(id, Piece::Here(Arc::clone(&content)));
        state.order.push_back(id);
        while state.order.len() > KEPT_MAX
            && let Some(oldest) = state.order.pop_front()
        {
            state.pieces.remove(&oldest);
        }
        self.changed.notify_all();
        content
    }

    /// The request of a piece failed.
    pub fn give_up(&self, id: PieceId) {
        self.state.lock().pieces.remove(&id);
        self.changed.notify_all();
    }

    /// Drops all pieces.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.order.clear();
        state.pieces.retain(|_, piece| !matches!(piece, Piece::Here(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: FillingId = FillingId { opener: 1, number: 1 };

    #[test]
    fn reads_that_go_on_are_told_from_others() {
        let ahead = Ahead::default();
        assert!(!ahead.note(ID, 0, 4096) && ahead.note(ID, 4096, 4096));
        assert!(!ahead.note(ID, 1 << 30, 4096), "far away");
        assert!(!ahead.note(FillingId { number: 2, ..ID }, 8192, 4096), "of another filling");
        assert!(ahead.note(ID, 8192, 4096) && ahead.note(ID, 4096, 4096), "one that was overtaken");
        for other in 0..STREAMS as u64 {
            ahead.note(ID, (10 + other) << 30, 1);
        }
        assert!(!ahead.note(ID, 12288, 4096), "forgotten");
    }

    fn piece(number: u64) -> PieceId {
        PieceId { filling: ID, start: 0, number }
    }

    #[test]
    fn a_piece_is_requested_once_and_the_oldest_go() {
        let ahead = Ahead::default();
        assert!(ahead.find(piece(0)).is_none() && !ahead.queue(piece(0)));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ahead.find(piece(0)).is_some_and(|content| *content == [1]));
            ahead.put(piece(0), vec![1]);
            assert!(waiter.join().unwrap());
        });
        // One that failed does not count, and is requested again.
        assert!(ahead.find(piece(1000)).is_none());
        ahead.give_up(piece(1000));
        assert!(ahead.find(piece(1000)).is_none());
        for number in 1..KEPT_MAX as u64 {
            assert!(ahead.find(piece(number)).is_none());
            ahead.put(piece(number), Vec::new());
        }
        assert!(ahead.find(piece(0)).is_some());
        ahead.put(piece(1000), Vec::new());
        assert!(ahead.find(piece(0)).is_none(), "the oldest");
    }

    #[test]
    fn a_reader_does_not_wait_for_a_thread_that_has_not_begun() {
        let ahead = Ahead::default();
        assert!(ahead.queue(piece(0)) && !ahead.queue(piece(0)));
        assert!(ahead.find(piece(0)).is_none(), "the reader requests it");
        assert!(!ahead.begin(piece(0)), "so the thread need not");
        ahead.put(piece(0), Vec::new());
        ahead.clear();
        assert!(ahead.queue(piece(0)) && ahead.begin(piece(0)));
    }
}
