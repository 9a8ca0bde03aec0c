//! Zones that are pinned while they are read, and what was read.

use std::cell::Cell;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_device::AlignedBuf;
use terrane_format::addr::Addr;
use terrane_format::directory::Owner;
use terrane_format::record::{Class, Home};
use terrane_space::replicas::Replicas;
use terrane_space::zones::Unwritten;
use terrane_store::PoolError;
use terrane_wire::{Txg, ZoneSeq};

/// Keeps a zone from being reset.
pub(crate) struct Pin(pub(crate) Arc<AtomicU32>);

impl Pin {
    pub(crate) fn new(pins: &Arc<AtomicU32>) -> Pin {
        pins.fetch_add(1, Ordering::AcqRel);
        Pin(pins.clone())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A resident zone, held.
pub(crate) struct Held {
    pub seq: ZoneSeq,
    pub class: Class,
    pub replicas: Replicas,
    pub capacity: u64,
    pub unwritten: Option<Arc<dyn Unwritten>>,
    pub(crate) _pin: Pin,
}

impl Held {
    /// What `read` makes of the first replica that gives it. Of several errors, one that may pass tells more: what could not be read may be
    /// good.
    pub(crate) fn try_replicas<R>(
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
pub(crate) const SCRATCH_BYTES_MAX: usize = 2 << 20;

/// Stored bytes as they were read, in memory that the thread's next read takes over.
pub(crate) struct StoredBytes {
    /// Whole write units.
    pub(crate) buf: AlignedBuf,
    pub(crate) wanted: Range<usize>,
}

impl StoredBytes {
    pub(crate) fn new(wanted: Range<usize>) -> StoredBytes {
        StoredBytes { buf: SCRATCH.take(), wanted }
    }

    pub(crate) fn wanted_mut(&mut self) -> &mut [u8] {
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

/// Good bytes of a block whose copy at `addr` is damaged, or lies where another is.
pub(crate) struct Heal {
    pub addr: Addr,
    pub bytes: Vec<u8>,
    pub birth: Txg,
    pub owner: Owner,
    pub siblings: Vec<Addr>,
    pub is_damaged: bool,
}
