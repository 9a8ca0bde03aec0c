//! Zones that are pinned while they are read, and the buffers of those reads.

use crate::PoolError;
use std::cell::Cell;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_device::AlignedBuf;
use terrane_format::record::{Home, ZoneClass};
use terrane_space::replicas::Replicas;
use terrane_space::zones::{Unwritten, Zone};
use terrane_wire::ZoneSeq;

/// A pin: the zone is not reset while this exists.
struct Pin(Arc<AtomicU32>);

impl Pin {
    fn new(pins: &Arc<AtomicU32>) -> Pin {
        pins.fetch_add(1, Ordering::AcqRel);
        Pin(pins.clone())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A pinned logical zone: it is not reset while this is held. Only this type and the zone store know where its replicas lie.
pub struct PinnedZone {
    /// The sequence number of the logical zone.
    pub seq: ZoneSeq,
    /// What the zone holds.
    pub class: ZoneClass,
    /// The physical zones with its bytes.
    pub replicas: Replicas,
    /// Writable bytes.
    pub capacity: u64,
    /// Bytes that the device does not have yet. `None`: the zone is not open.
    pub unwritten: Option<Arc<dyn Unwritten>>,
    _pin: Pin,
}

impl PinnedZone {
    /// Pins a zone. The caller holds the tables' lock, so the zone cannot be reset before.
    pub fn new(seq: ZoneSeq, zone: &Zone) -> PinnedZone {
        PinnedZone {
            seq,
            class: zone.class,
            replicas: zone.replicas(),
            capacity: zone.capacity,
            unwritten: zone.unwritten.clone(),
            _pin: Pin::new(&zone.pins),
        }
    }

    /// Returns `read` of the first replica that succeeds. Of several errors, a transient one is returned: the unread replica may be
    /// good.
    pub fn try_replicas<R>(
        &self,
        mut read: impl FnMut(Home) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        let mut failed: Option<PoolError> = None;
        for home in self.replicas.iter() {
            match read(home) {
                Ok(found) => return Ok(found),
                Err(error) => {
                    let tells_more = failed.is_none() || error.is_transient();
                    failed = if tells_more { Some(error) } else { failed };
                }
            }
        }
        Err(failed.expect("a zone has a replica"))
    }
}

thread_local! {
    /// The buffer of this thread's last read.
    static SCRATCH: Cell<AlignedBuf> = Cell::default();
}

/// Larger buffers are not kept.
const SCRATCH_BYTES_MAX: usize = 2 << 20;

/// Stored bytes as read, in a buffer that the thread's next read reuses.
pub struct StoredBytes {
    /// Whole write units.
    buf: AlignedBuf,
    wanted: Range<usize>,
}

impl StoredBytes {
    /// A buffer of `len` bytes, of which the range `wanted` was asked for.
    pub fn new(wanted: Range<usize>, len: usize) -> StoredBytes {
        let mut buf = SCRATCH.take();
        buf.prepare(len);
        StoredBytes { buf, wanted }
    }

    /// The whole buffer, to read into.
    pub fn buf_mut(&mut self) -> &mut AlignedBuf {
        &mut self.buf
    }

    /// The range that was asked for.
    pub fn wanted_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.wanted.clone()]
    }
}

impl Deref for StoredBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf[self.wanted.clone()]
    }
}

impl Drop for StoredBytes {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.buf);
        if buf.capacity() <= SCRATCH_BYTES_MAX {
            // Fails if the thread is about to end.
            let _ = SCRATCH.try_with(|scratch| scratch.set(buf));
        }
    }
}
