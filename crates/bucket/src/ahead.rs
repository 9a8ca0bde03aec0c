//! Prefetch: sequential reads become large requests.
//!
//! A request takes as long for 16 KiB as for half a MiB, and stores charge for each. So a read that goes on where another
//! one ended is answered from pieces of [`PIECE`]. The next ones are requested before they are asked for: two at first, and
//! twice as many with each piece that the reader comes to. Several that follow each other are one request. A read at random
//! is requested as it is.

use crate::filling::FillingId;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};

/// In bytes.
pub const PIECE: u64 = 1 << 20;
/// Pieces that are kept at most, and at least.
const KEPT: (usize, usize) = (128, 8);
/// Bytes of small parts that are kept beside them: what names the data that is being read.
const SMALL_BYTES_MAX: usize = 8 << 20;
/// Pieces that one request asks for.
const RUN: usize = 4;
/// A part of up to so many bytes is read as a whole.
pub const SMALL_PART_BYTES: u64 = 512 << 10;
/// Most small parts that are requested at a time because they may be read next.
pub const ROW_MAX: usize = 16;
/// Streams that are told apart.
const STREAMS: usize = 16;
/// The second read of a stream may leave out, or read again, so many bytes; later ones, which several threads may send, so many.
const SLACK: (u64, u64) = (256 << 10, 4 << 20);
/// A stream that was not read on for so many reads does not count.
const RECENT: u64 = 64;

/// A piece of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceId {
    pub filling: FillingId,
    /// Offset of the part in the zone.
    pub start: u64,
    /// Counted from the start of the part.
    pub number: u64,
}

impl PieceId {
    fn is_before(self, next: PieceId) -> bool {
        next == PieceId { number: self.number + 1, ..self }
    }
}

/// Pieces of one part, in order, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: PieceId,
    pub count: usize,
    /// Bytes of the part.
    pub part_len: u64,
}

impl Run {
    /// One piece.
    pub fn of(first: PieceId, part_len: u64) -> Run {
        Run { first, count: 1, part_len }
    }

    /// Where it begins in the part, and its bytes.
    fn range(&self) -> (u64, usize) {
        let start = self.first.number.saturating_mul(PIECE);
        let len = self.part_len.saturating_sub(start).min(PIECE.saturating_mul(self.count as u64));
        (start, usize::try_from(len).unwrap_or(0))
    }

    fn pieces(&self) -> impl Iterator<Item = PieceId> + use<> {
        let first = self.first;
        (first.number..).take(self.count).map(move |number| PieceId { number, ..first })
    }
}

enum Piece {
    /// A thread will request it.
    Queued,
    Requested,
    Here(Bytes),
}

struct Stream {
    filling: FillingId,
    /// Where its reads ended.
    end: u64,
    /// Pieces that are requested in front of it.
    window: usize,
    /// The number of its last read.
    last: u64,
    /// Bytes of the filling behind it.
    left: u64,
}

struct State {
    pieces: BTreeMap<PieceId, Piece>,
    /// Those that are here, oldest first.
    order: VecDeque<PieceId>,
    /// The same of small parts, and their bytes.
    small: VecDeque<(PieceId, usize)>,
    small_bytes: usize,
    streams: VecDeque<Stream>,
    /// Small parts that were read, and the length of the row that each ends.
    rows: VecDeque<(PieceId, u64, usize)>,
    kept_max: usize,
    /// Reads that were noted.
    reads: u64,
}

/// Pieces that were read, and reads that go on.
pub struct Ahead {
    state: Mutex<State>,
    changed: Condvar,
}

impl State {
    fn keep(&mut self, id: PieceId, content: Bytes, part_len: u64) {
        if part_len <= SMALL_PART_BYTES {
            self.small_bytes += content.len();
            self.small.push_back((id, content.len()));
        } else {
            self.order.push_back(id);
        }
        self.pieces.insert(id, Piece::Here(content));
        while self.order.len() > self.kept_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.pieces.remove(&oldest);
        }
        while self.small_bytes > SMALL_BYTES_MAX
            && let Some((oldest, len)) = self.small.pop_front()
        {
            self.small_bytes -= len;
            self.pieces.remove(&oldest);
        }
    }
}

impl Default for Ahead {
    fn default() -> Ahead {
        let state = State {
            pieces: BTreeMap::new(),
            order: VecDeque::new(),
            small: VecDeque::new(),
            small_bytes: 0,
            streams: VecDeque::new(),
            rows: VecDeque::new(),
            kept_max: KEPT.0,
            reads: 0,
        };
        Ahead { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl Ahead {
    /// Sets how many bytes are kept, within limits.
    pub fn set_memory(&self, bytes: u64) {
        let pieces = usize::try_from(bytes / PIECE).unwrap_or(usize::MAX);
        self.state.lock().kept_max = pieces.clamp(KEPT.1, KEPT.0);
    }

    /// Notes a read of `len` bytes at `offset` of a filling that has `size` bytes. `is_known`: its piece is. Returns how many pieces should
    /// be requested in front of it; `None`: it does not go on where another one ended.
    pub fn note(&self, id: FillingId, (offset, len): (u64, u64), size: u64, is_known: bool) -> Option<usize> {
        let mut state = self.state.lock();
        state.reads += 1;
        let reads = state.reads;
        let is_near = |stream: &Stream| {
            let slack = if stream.window > 1 { SLACK.1 } else { SLACK.0 };
            stream.filling == id && stream.end.abs_diff(offset) <= slack
        };
        let mut found = state.streams.iter().position(is_near);
        if found.is_none() && !is_known {
            // Reads at random in what was read in order: it is not read on any more.
            let others = state.streams.iter_mut().filter(|stream| stream.filling == id);
            others.for_each(|stream| stream.window = stream.window.div_ceil(2));
        }
        if found.is_none() && offset <= SLACK.0 {
            // A file goes on in another zone, where the one before is full.
            let is_over = |stream: &Stream| {
                stream.left <= SLACK.1 && stream.window > RUN && reads - stream.last <= RECENT
            };
            found = state.streams.iter().rposition(is_over);
        }
        let found = found.and_then(|at| state.streams.remove(at));
        let window = found.as_ref().map_or(0, |stream| stream.window);
        let before = found.filter(|stream| stream.filling == id).map_or(0, |stream| stream.end);
        let end = before.max(offset.saturating_add(len));
        let is_active =
            |stream: &&Stream| stream.window > 1 && stream.left > SLACK.1 && reads - stream.last <= RECENT;
        let active = 1 + state.streams.iter().filter(is_active).count();
        // Half of what is kept for all streams together, so that none goes before it was read.
        let most = (state.kept_max / 2 / active).max(2);
        let next = match window {
            0 => 1,
            1 => 2,
            window if end / PIECE > before / PIECE => window.saturating_mul(2).min(most),
            window => window.min(most),
        };
        let left = size.saturating_sub(end);
        state.streams.push_back(Stream { filling: id, end, window: next, last: reads, left });
        if state.streams.len() > STREAMS {
            state.streams.pop_front();
        }
        (window > 0).then_some(next)
    }

    /// Notes that a small part is read. If its neighbour was before it, some more are worth a request: whether those that follow it,
    /// and how many.
    pub fn note_small(&self, first: PieceId, len: u64) -> Option<(bool, usize)> {
        let mut state = self.state.lock();
        if state.rows.iter().any(|(id, ..)| *id == first) {
            return None;
        }
        let end = first.start.saturating_add(len);
        let found = state.rows.iter().position(|(id, len, _)| {
            id.filling == first.filling && (id.start.saturating_add(*len) == first.start || id.start == end)
        });
        let before = found.and_then(|at| state.rows.remove(at));
        let row = before.map_or(1, |(_, _, row)| (row * 2).min(ROW_MAX));
        state.rows.push_back((first, len, row));
        if state.rows.len() > STREAMS {
            state.rows.pop_front();
        }
        before.map(|(id, ..)| (id.start < first.start, row))
    }

    /// Whether a piece is here, or under way.
    pub fn is_known(&self, id: PieceId) -> bool {
        matches!(self.state.lock().pieces.get(&id), Some(Piece::Here(_) | Piece::Requested))
    }

    /// Notes that threads will request pieces that follow each other, out of those in a reader's window, each with the bytes of its
    /// part. Returns those that have to be requested. A large window waits until a whole run is missing.
    pub fn queue(&self, window: impl Iterator<Item = (PieceId, u64)>, size: usize) -> Vec<Run> {
        let mut state = self.state.lock();
        let mut seen = 0;
        let missing: Vec<_> = window
            .take(size)
            .inspect(|_| seen += 1)
            .filter(|(id, _)| !state.pieces.contains_key(id))
            .collect();
        if seen == size && size >= 2 * RUN && missing.len() < RUN {
            return Vec::new();
        }
        let mut runs: Vec<Run> = Vec::new();
        for (id, part_len) in missing {
            state.pieces.insert(id, Piece::Queued);
            add_to_runs(&mut runs, id, part_len);
        }
        runs
    }

    /// Begins the requests of pieces that were queued. Returns those that are still needed.
    pub fn begin(&self, run: &Run) -> Vec<Run> {
        let mut state = self.state.lock();
        let mut runs = Vec::new();
        for id in run.pieces() {
            if let Some(piece @ Piece::Queued) = state.pieces.get_mut(&id) {
                *piece = Piece::Requested;
                add_to_runs(&mut runs, id, run.part_len);
            }
        }
        runs
    }

    /// A piece that is here or under way, for which it waits. `None`: the caller must request it.
    pub fn find(&self, id: PieceId) -> Option<Bytes> {
        let mut state = self.state.lock();
        loop {
            match state.pieces.get(&id) {
                Some(Piece::Here(content)) => return Some(content.clone()),
                Some(Piece::Requested) => self.changed.wait(&mut state),
                Some(Piece::Queued) | None => {
                    state.pieces.insert(id, Piece::Requested);
                    return None;
                }
            }
        }
    }

    /// Requests pieces that were begun, by `read`, which gets an offset in the part. Returns their content.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fetch<E>(
        &self,
        run: &Run,
        read: impl FnOnce(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Bytes, E> {
        let (start, len) = run.range();
        let mut content = vec![0; len];
        let outcome = read(start, &mut content).map(|()| Bytes::from(content));
        let mut state = self.state.lock();
        for (id, at) in run.pieces().zip((0..).step_by(PIECE as usize)) {
            match &outcome {
                Ok(content) => {
                    let piece = content.slice(at.min(len)..at.saturating_add(PIECE as usize).min(len));
                    state.keep(id, piece, run.part_len);
                }
                Err(_) => drop(state.pieces.remove(&id)),
            }
        }
        self.changed.notify_all();
        outcome
    }

    /// Drops all pieces.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.order.clear();
        state.small.clear();
        state.small_bytes = 0;
        state.pieces.retain(|_, piece| !matches!(piece, Piece::Here(_)));
    }
}

fn add_to_runs(runs: &mut Vec<Run>, id: PieceId, part_len: u64) {
    match runs.last_mut() {
        Some(run) if run.count < RUN && run.pieces().last().is_some_and(|last| last.is_before(id)) => {
            run.count += 1
        }
        _ => runs.push(Run::of(id, part_len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: FillingId = FillingId { opener: 1, number: 1 };

    #[test]
    fn reads_that_go_on_are_told_from_others() {
        let ahead = Ahead::default();
        assert_eq!(
            (ahead.note(ID, (0, 4096), u64::MAX, false), ahead.note(ID, (4096, 4096), u64::MAX, false)),
            (None, Some(2))
        );
        assert_eq!(ahead.note(ID, (1 << 30, 4096), u64::MAX, false), None, "far away");
        assert_eq!(
            ahead.note(FillingId { number: 2, ..ID }, (8192, 4096), u64::MAX, false),
            None,
            "of another filling"
        );
        assert!(
            ahead.note(ID, (8192, 4096), u64::MAX, false).is_some()
                && ahead.note(ID, (4096, 4096), u64::MAX, false).is_some(),
            "overtaken"
        );
        for other in 0..STREAMS as u64 {
            ahead.note(ID, ((10 + other) << 30, 1), u64::MAX, false);
        }
        assert_eq!(ahead.note(ID, (12288, 4096), u64::MAX, false), None, "forgotten");
    }

    #[test]
    fn the_window_of_a_stream_grows_with_each_piece() {
        let ahead = Ahead::default();
        let windows = |ahead: &Ahead| -> Vec<usize> {
            (0..8).map(|at| ahead.note(ID, (at * PIECE, PIECE), u64::MAX, false).unwrap_or(0)).collect()
        };
        assert_eq!(windows(&ahead), [0, 2, 4, 8, 16, 32, 64, 64]);
        ahead.set_memory(10 << 20);
        assert_eq!(ahead.note(ID, (8 * PIECE, PIECE), u64::MAX, false), Some(5));
        ahead.set_memory(0);
        assert_eq!(ahead.note(ID, (9 * PIECE, PIECE), u64::MAX, false), Some(KEPT.1 / 2));
    }

    #[test]
    fn several_streams_share_what_is_kept() {
        let ahead = Ahead::default();
        let id = |number| FillingId { number, ..ID };
        for at in 0..10 {
            for number in 1..5 {
                let window = ahead.note(id(number), (at * PIECE, PIECE), u64::MAX, false).unwrap_or(0);
                assert!(at < 9 || window == KEPT.0 / 2 / 4, "{at}: {window}");
            }
        }
        // Those that end are forgotten.
        for at in 10..100 {
            ahead.note(id(1), (at * PIECE, PIECE), u64::MAX, false);
        }
        assert_eq!(ahead.note(id(1), (100 * PIECE, PIECE), u64::MAX, false), Some(KEPT.0 / 2));
        // One that comes to the end of its zone goes on in another one.
        assert_eq!(ahead.note(id(1), (101 * PIECE, PIECE), 102 * PIECE, false), Some(KEPT.0 / 2));
        assert_eq!(ahead.note(id(9), (4096, PIECE), u64::MAX, false), Some(KEPT.0 / 2));
        assert_eq!(ahead.note(id(10), (4096, PIECE), u64::MAX, false), None, "that one has not ended");
        // What was read in order is then read at random.
        let mut random = terrane_wire::Prng::new(1);
        let reads = (0..100)
            .filter(|_| ahead.note(id(1), (random.below(1 << 16) * 16384, 16384), u64::MAX, false).is_some())
            .count();
        assert!(reads < 5, "{reads}");
        let window = (0..4).map(|at| ahead.note(id(1), (at * PIECE, PIECE), u64::MAX, false).unwrap_or(0));
        assert!(window.max().unwrap() <= 8);
    }

    #[test]
    fn rows_of_small_parts_are_noticed_in_both_directions() {
        let ahead = Ahead::default();
        let small = |start| ahead.note_small(PieceId { filling: ID, start, number: 0 }, 10);
        assert_eq!((small(100), small(500), small(100)), (None, None, None));
        assert_eq!((small(90), small(510)), (Some((false, 2)), Some((true, 2))));
        assert_eq!(
            (small(80), small(70), small(60), small(50)),
            (Some((false, 4)), Some((false, 8)), Some((false, 16)), Some((false, 16)))
        );
    }

    fn piece(number: u64) -> PieceId {
        PieceId { filling: ID, start: 0, number }
    }

    fn put(ahead: &Ahead, number: u64, byte: u8) {
        let run = Run::of(piece(number), (number + 1) * PIECE);
        let put = ahead.fetch(&run, |_, buf| {
            buf.fill(byte);
            Ok::<(), ()>(())
        });
        assert_eq!(put.unwrap().len(), PIECE as usize);
    }

    #[test]
    fn a_piece_is_requested_once_and_the_oldest_go() {
        let ahead = Ahead::default();
        let window = |number| std::iter::once((piece(number), u64::MAX));
        assert!(ahead.find(piece(0)).is_none() && ahead.queue(window(0), 1).is_empty());
        std::thread::scope(|scope| {
            let waiter = scope
                .spawn(|| ahead.find(piece(0)).is_some_and(|content| content[..] == [1; PIECE as usize]));
            put(&ahead, 0, 1);
            assert!(waiter.join().unwrap());
        });
        // One that failed does not count, and is requested again.
        assert!(ahead.find(piece(1000)).is_none());
        assert_eq!(ahead.fetch(&Run::of(piece(1000), 0), |_, _| Err("no")), Err("no"));
        assert!(ahead.find(piece(1000)).is_none());
        for number in 1..KEPT.0 as u64 {
            assert!(ahead.find(piece(number)).is_none());
            put(&ahead, number, 0);
        }
        assert!(ahead.find(piece(0)).is_some());
        put(&ahead, 1000, 0);
        assert!(ahead.find(piece(0)).is_none(), "the oldest");
    }

    #[test]
    fn pieces_that_follow_each_other_are_one_request() {
        let ahead = Ahead::default();
        let len = 6 * PIECE - 10;
        let window = || (0..6).map(|number| (piece(number), len));
        let runs = ahead.queue(window(), 8);
        assert_eq!(
            runs,
            [
                Run { first: piece(0), count: 4, part_len: len },
                Run { first: piece(4), count: 2, part_len: len }
            ]
        );
        // A reader has come to one of them meanwhile.
        assert!(ahead.find(piece(1)).is_none());
        let begun = ahead.begin(&runs[0]);
        assert_eq!(begun, [Run::of(piece(0), len), Run { first: piece(2), count: 2, part_len: len }]);
        let fill = |offset: u64, buf: &mut [u8]| {
            (offset..).zip(buf).for_each(|(at, byte)| *byte = (at / PIECE) as u8);
            Ok::<(), ()>(())
        };
        ahead.fetch(&begun[1], fill).unwrap();
        assert!(ahead.find(piece(3)).unwrap().iter().all(|byte| *byte == 3));
        ahead.fetch(&ahead.begin(&runs[1])[0], fill).unwrap();
        let last = ahead.find(piece(5)).unwrap();
        assert_eq!((last.len() as u64, last[0]), (PIECE - 10, 5), "the end of the part");
        // A large window asks when a whole run is missing.
        let window = |from: u64| (from..).map(|number| (piece(number), u64::MAX));
        assert_eq!(ahead.queue(window(6), 8).len(), 2);
        assert!(ahead.queue(window(9), 8).is_empty());
        assert_eq!(ahead.queue(window(10), 8), [Run { first: piece(14), count: 4, part_len: u64::MAX }]);
    }

    #[test]
    fn a_reader_does_not_wait_for_a_thread_that_has_not_begun() {
        let ahead = Ahead::default();
        let window = || std::iter::once((piece(0), PIECE));
        let run = ahead.queue(window(), 1).remove(0);
        assert!(ahead.queue(window(), 1).is_empty());
        assert!(ahead.find(piece(0)).is_none(), "the reader requests it");
        assert!(ahead.begin(&run).is_empty(), "so the thread need not");
        put(&ahead, 0, 0);
        ahead.clear();
        let run = ahead.queue(window(), 1).remove(0);
        assert_eq!(ahead.begin(&run), [run]);
    }
}
