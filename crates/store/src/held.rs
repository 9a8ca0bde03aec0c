//! Zones that are pinned while they are read, and what was read.

use crate::PoolError;
use std::cell::Cell;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_device::AlignedBuf;
use terrane_format::record::{Class, Home};
use terrane_space::replicas::Replicas;
use terrane_space::zones::{Unwritten, Zone};
use terrane_wire::ZoneSeq;

/// Keeps a zone from being reset.
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

/// A logical zone that is there, and is not reset while this is held. Where its replicas lie is between it and the zone store.
pub struct HeldZone {
    pub seq: ZoneSeq,
    pub class: Class,
    pub replicas: Replicas,
    pub capacity: u64,
    pub unwritten: Option<Arc<dyn Unwritten>>,
    _pin: Pin,
}

impl HeldZone {
    pub fn new(seq: ZoneSeq, zone: &Zone) -> HeldZone {
        HeldZone {
            seq,
            class: zone.class,
            replicas: zone.replicas(),
            capacity: zone.capacity,
            unwritten: zone.unwritten.clone(),
            _pin: Pin::new(&zone.pins),
        }
    }

    /// What `read` makes of the first replica that gives it. Of several errors, one that may pass tells more: what could not be read may be
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
                    let tells_more = failed.is_none() || error.may_pass();
                    failed = if tells_more { Some(error) } else { failed };
                }
            }
        }
        Err(failed.expect("a zone lies somewhere"))
    }
}

thread_local! {
    /// Memory of the last read of this thread.
    static SCRATCH: Cell<AlignedBuf> = Cell::default();
}

/// Larger scratch memory is not kept.
const SCRATCH_BYTES_MAX: usize = 2 << 20;

/// Stored bytes as they were read, in memory that the thread's next read takes over.
pub struct StoredBytes {
    /// Whole write units.
    buf: AlignedBuf,
    wanted: Range<usize>,
}

impl StoredBytes {
    /// Room for `len` bytes, of which some are wanted.
    pub fn new(wanted: Range<usize>, len: usize) -> StoredBytes {
        let mut buf = SCRATCH.take();
        buf.prepare(len);
        StoredBytes { buf, wanted }
    }

    /// All of it, to be read into.
    pub fn buf_mut(&mut self) -> &mut AlignedBuf {
        &mut self.buf
    }

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
            // The thread may be about to end.
            let _ = SCRATCH.try_with(|scratch| scratch.set(buf));
        }
    }
}
