//! Reads: from memory, from pieces that were prefetched, or from objects.

use super::{BucketDevice, PARTS_AHEAD, SMALL_PART_BYTES, io_error};
use crate::ahead::{AHEAD, Ahead, PIECE, PieceId};
use crate::filling::{End, Filling, FillingId, Part};
use crate::requests::Requests;
use crate::store::StoreError;
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
        buf.iter_mut().zip(content).for_each(|(to, from)| *to = *from);
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
                let len = tail.len().min(rest.len());
                rest.fill(0);
                rest.iter_mut().zip(tail.iter().take(len)).for_each(|(to, from)| *to = *from);
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
                    piece.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
                None => {
                    let (id, part, next) =
                        (filling.id, part.clone(), filling.parts_behind(part, PARTS_AHEAD));
                    drop(slot);
                    self.read_part(id, (&part, &next), inside, piece)
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
        io_error(Some(zone), offset, "read", error)
    }

    /// Reads from a part that the store has.
    fn read_part(
        &self,
        id: FillingId,
        (part, next): (&Part, &[Part]),
        inside: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        // Small parts are what a commit or an fsync left. They are read as a whole, and kept: import and lookups read on in them.
        let reads_on = self.ahead.note(id, part.start + inside, buf.len() as u64);
        if !(reads_on || part.len <= SMALL_PART_BYTES)
            || !self.workers.has_threads()
            || buf.len() as u64 > PIECE
        {
            return self.requests.read(&id.key(part.start), inside, buf);
        }
        let last = (inside + buf.len() as u64).saturating_sub(1) / PIECE;
        let pieces_of = |part: &Part, from: u64| {
            let (start, len) = (part.start, part.len);
            (from..len.div_ceil(PIECE)).map(move |number| (PieceId { filling: id, start, number }, len))
        };
        let behind = next.iter().filter(|part| part.is_gone_from_here()).flat_map(|part| pieces_of(part, 0));
        let ahead = if reads_on { AHEAD } else { 0 };
        for (piece, len) in pieces_of(part, last + 1).chain(behind).take(ahead) {
            if self.ahead.queue(piece) {
                let (requests, ahead) = (Arc::clone(&self.requests), Arc::clone(&self.ahead));
                self.workers.fetch(Box::new(move || {
                    if ahead.begin(piece) {
                        // A reader that needs it will find out what is wrong.
                        let _ = fetch(&requests, &ahead, piece, len);
                    }
                }));
            }
        }
        let (mut at, mut rest) = (inside, buf);
        while !rest.is_empty() {
            let piece = PieceId { filling: id, start: part.start, number: at / PIECE };
            let content = match self.ahead.find(piece) {
                Some(content) => content,
                None => fetch(&self.requests, &self.ahead, piece, part.len)?,
            };
            let from = usize::try_from(at % PIECE).ok().and_then(|from| content.get(from..)).unwrap_or(&[]);
            let len = from.len().min(rest.len());
            if len == 0 {
                return Err(StoreError::Failed("the object ends before".into()));
            }
            let (now, after) = std::mem::take(&mut rest).split_at_mut(len);
            now.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            (rest, at) = (after, at + len as u64);
        }
        Ok(())
    }
}

/// Requests a piece of a part of `len` bytes.
fn fetch(requests: &Requests, ahead: &Ahead, piece: PieceId, len: u64) -> Result<Arc<Vec<u8>>, StoreError> {
    let start = piece.number.saturating_mul(PIECE);
    let mut content = vec![0; usize::try_from(len.saturating_sub(start).min(PIECE)).unwrap_or(0)];
    match requests.read(&piece.filling.key(piece.start), start, &mut content) {
        Ok(()) => Ok(ahead.put(piece, content)),
        Err(error) => {
            ahead.give_up(piece);
            Err(error)
        }
    }
}
