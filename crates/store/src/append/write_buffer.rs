//! Bytes that were appended to a zone and are not on its device yet. Readers are served from here.

use parking_lot::Mutex;
use std::sync::Arc;
use terrane_device::AlignedBuf;
use terrane_space::zones::Unwritten;

/// Appended bytes of one zone that the device may not have yet.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    pub(super) state: Mutex<WriteBufferState>,
}

#[derive(Debug, Default)]
pub(super) struct WriteBufferState {
    /// Batches in flight, by their offset in the zone.
    pub(super) chunks: Vec<(u64, Arc<AlignedBuf>)>,
    /// Offset of the batch being gathered.
    pub(super) tail_start: u64,
    pub(super) tail: AlignedBuf,
}

impl Unwritten for WriteBuffer {
    fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let state = self.state.lock();
        let pieces = state.chunks.iter().map(|(start, chunk)| (*start, &***chunk));
        for (start, chunk) in pieces.chain([(state.tail_start, &*state.tail)]) {
            let from = offset.checked_sub(start).and_then(|from| usize::try_from(from).ok());
            if let Some(found) = from.and_then(|from| chunk.get(from..from.checked_add(buf.len())?)) {
                buf.copy_from_slice(found);
                return true;
            }
        }
        false
    }

    fn has_written(&self, end: u64) -> bool {
        let state = self.state.lock();
        let first = state.chunks.iter().map(|(start, _)| *start).fold(state.tail_start, u64::min);
        end <= first
    }
}
