//! Reads: from memory, from pieces that were prefetched, or from objects.

use super::{BucketDevice, PARTS_AHEAD, request_error};
use crate::ahead::{Ahead, PIECE, PieceId, ROW_MAX, Run, SMALL_PART_BYTES};
use crate::filling::{End, Filling, FillingId, Part};
use crate::requests::Requests;
use crate::store::StoreError;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use terrane_device::{DeviceError, OpenMode};
use terrane_wire::ZoneIdx;

impl BucketDevice {
    pub(super) fn read_anchor(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) {
        buf.fill(0);
        let anchors = self.anchors.lock();
        let content = anchors.content.get(zone.0 as usize).map_or(&[][..], Vec::as_slice);
        let content = usize::try_from(offset).ok().and_then(|at| content.get(at..)).unwrap_or(&[]);
        copy_start(buf, content);
    }

    pub(super) fn read_zone(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let Some(slot) = self.filling(zone) else { return Ok(()) };
        let end = offset.saturating_add(buf.len() as u64);
        let needs_end = |filling: &Filling| filling.end == End::Unknown && end > filling.parts_end();
        if slot.read().as_ref().is_some_and(needs_end) {
            self.settle()?;
        }
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let slot = slot.read();
            let Some(filling) = slot.as_ref() else {
                rest.fill(0);
                break;
            };
            let Some(part) = filling.part_at(at) else {
                // Behind all parts, so in the tail or never written.
                let tail = at.checked_sub(filling.parts_end()).and_then(|at| usize::try_from(at).ok());
                let tail = tail.and_then(|at| filling.tail.get(at..)).unwrap_or(&[]);
                let copied = copy_start(rest, tail);
                rest.iter_mut().skip(copied).for_each(|byte| *byte = 0);
                break;
            };
            let inside = at - part.start;
            let len = usize::try_from(part.end() - at).unwrap_or(usize::MAX).min(rest.len());
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(len);
            match part.body.upgrade() {
                Some(body) => {
                    let from = usize::try_from(inside)
                        .ok()
                        .and_then(|inside| body.bytes.get(inside..))
                        .unwrap_or(&[]);
                    copy_start(piece, from);
                }
                None => {
                    let (id, part, near) = (filling.id, part.clone(), Near::of(filling, part));
                    drop(slot);
                    self.read_part(id, (&part, &near), inside, piece)
                        .map_err(|error| self.read_error(zone, at, &error))?;
                }
            }
            (rest, at) = (after, at + len as u64);
        }
        Ok(())
    }

    /// An object that is gone was deleted by the process that writes, if this one only reads: it is too far behind.
    fn read_error(&self, zone: ZoneIdx, offset: u64, error: &StoreError) -> DeviceError {
        if *error == StoreError::Missing && self.mode == OpenMode::ReadOnly {
            let text = "the writer has deleted what this older state needs";
            let source = io::Error::new(io::ErrorKind::StaleNetworkFileHandle, text);
            return DeviceError::Io { zone: Some(zone), offset, op: "read", source };
        }
        request_error(Some(zone), offset, "read", error)
    }

    /// Reads from a part that the store has.
    fn read_part(
        &self,
        id: FillingId,
        (part, near): (&Part, &Near),
        inside: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        let piece = PieceId { filling: id, start: part.start, number: inside / PIECE };
        let is_known = self.ahead.is_known(piece);
        let ahead = self.ahead.note(id, (part.start + inside, buf.len() as u64), near.size, is_known);
        // Small parts are what a commit or an fsync left. They are read as a whole, and kept: import and lookups read on in them.
        if !(ahead.is_some() || part.len <= SMALL_PART_BYTES || is_known)
            || !self.workers.has_threads()
            || buf.len() as u64 > PIECE
        {
            return self.requests.read(&id.key(part.start), inside, buf);
        }
        let is_missing = |part: &&Part| part.is_gone_from_here();
        if part.len <= SMALL_PART_BYTES {
            let first = PieceId { filling: id, start: part.start, number: 0 };
            if let Some((follow, count)) = self.ahead.note_small(first, part.len) {
                let next = if follow { &near.behind } else { &near.before };
                let small = next.iter().take_while(|part| part.len <= SMALL_PART_BYTES).filter(is_missing);
                let pieces = small.map(|part| (PieceId { start: part.start, ..first }, part.len));
                self.request(self.ahead.queue(pieces, count));
            }
        } else if let Some(window) = ahead {
            let last = (inside + buf.len() as u64).saturating_sub(1) / PIECE;
            let pieces_of = |part: &Part, from: u64| {
                let (start, len) = (part.start, part.len);
                (from..len.div_ceil(PIECE)).map(move |number| (PieceId { filling: id, start, number }, len))
            };
            let behind = near.behind.iter().filter(is_missing).take(PARTS_AHEAD);
            let behind = behind.flat_map(|part| pieces_of(part, 0));
            self.request(self.ahead.queue(pieces_of(part, last + 1).chain(behind), window));
        }
        let (mut at, mut rest) = (inside, buf);
        while !rest.is_empty() {
            let piece = PieceId { filling: id, start: part.start, number: at / PIECE };
            let content = match self.ahead.find(piece) {
                Some(content) => content,
                None => fetch(&self.requests, &self.ahead, &Run::of(piece, part.len))?,
            };
            let from = usize::try_from(at % PIECE).ok().and_then(|from| content.get(from..)).unwrap_or(&[]);
            let len = from.len().min(rest.len());
            if len == 0 {
                return Err(StoreError::Failed("the object ends before".into()));
            }
            let (now, after) = std::mem::take(&mut rest).split_at_mut(len);
            copy_start(now, from);
            (rest, at) = (after, at + len as u64);
        }
        Ok(())
    }

    /// Has threads request pieces.
    fn request(&self, runs: Vec<Run>) {
        for run in runs {
            let (requests, ahead) = (Arc::clone(&self.requests), Arc::clone(&self.ahead));
            self.workers.fetch(Box::new(move || {
                for run in ahead.begin(&run) {
                    // A reader that needs it will find out what is wrong.
                    let _ = fetch(&requests, &ahead, &run);
                }
            }));
        }
    }
}

/// Parts that may be read soon.
struct Near {
    /// Bytes of all parts.
    size: u64,
    before: Vec<Part>,
    behind: Vec<Part>,
}

impl Near {
    fn of(filling: &Filling, part: &Part) -> Near {
        let is_small = part.len <= SMALL_PART_BYTES;
        let before = if is_small { filling.parts_before(part, ROW_MAX) } else { Vec::new() };
        Near {
            size: filling.parts_end(),
            before,
            behind: filling.parts_behind(part, if is_small { ROW_MAX } else { PARTS_AHEAD }),
        }
    }
}

/// Copies as much as both have. Returns how many bytes.
fn copy_start(to: &mut [u8], from: &[u8]) -> usize {
    let len = to.len().min(from.len());
    if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
        to.copy_from_slice(from);
    }
    len
}

/// Requests pieces of a part.
fn fetch(requests: &Requests, ahead: &Ahead, run: &Run) -> Result<Bytes, StoreError> {
    let key = run.first.filling.key(run.first.start);
    ahead.fetch(run, |offset, buf| requests.read(&key, offset, buf))
}
