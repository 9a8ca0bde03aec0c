//! I/O counters of a device.
//!
//! They are a layer and not a part of each backend, so no backend can forget to count. Only successful requests are
//! counted; failed ones have counters of their own.
//!
//! Invariant: counters only grow, from 0 when the device was wrapped.

use crate::layered::{Layer, Layered};
use crate::zone::{Device, DeviceError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_wire::ZoneIdx;

/// Requests of a device since it was wrapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Reads that succeeded, one for each call whatever its length.
    pub reads: u64,
    /// Bytes returned by those reads.
    pub read_bytes: u64,
    /// Writes that succeeded, one for each call whatever its length.
    pub writes: u64,
    /// Bytes of those writes. Part of a failed write may be on the medium, but is not counted.
    pub written_bytes: u64,
    /// Write barriers that succeeded.
    pub flushes: u64,
    /// Resets that succeeded; each empties one zone.
    pub resets: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes, resets and flushes that failed, except those that a full host file system refused.
    pub write_errors: u64,
}

impl IoCounts {
    /// Requests that failed.
    pub fn errors(&self) -> u64 {
        self.read_errors + self.write_errors
    }
}

/// The layer that counts.
#[derive(Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    resets: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
}

/// A device that counts.
pub type Counted = Layered<Counters>;

impl Counted {
    /// Wraps a device. Only requests through the returned device are counted.
    pub fn new(below: Arc<dyn Device>) -> Counted {
        Layered::wrap(below, Counters::default())
    }

    /// Each number is exact; together they belong to about the same moment.
    pub fn counts(&self) -> IoCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = self.layer();
        IoCounts {
            reads: of(&counters.reads),
            read_bytes: of(&counters.read_bytes),
            writes: of(&counters.writes),
            written_bytes: of(&counters.written_bytes),
            flushes: of(&counters.flushes),
            resets: of(&counters.resets),
            read_errors: of(&counters.read_errors),
            write_errors: of(&counters.write_errors),
        }
    }
}

impl Counters {
    fn count<T>(
        &self,
        (counter, failed): (&AtomicU64, &AtomicU64),
        bytes: Option<(&AtomicU64, usize)>,
        done: Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        match &done {
            Ok(_) => {}
            // The device itself is healthy.
            Err(DeviceError::Full { .. }) => return done,
            Err(_) => {
                failed.fetch_add(1, Ordering::Relaxed);
                return done;
            }
        }
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some((counter, len)) = bytes {
            counter.fetch_add(len as u64, Ordering::Relaxed);
        }
        done
    }
}

impl Layer for Counters {
    fn on_read(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), DeviceError> {
        let len = buf.len();
        let done = below.read(zone, offset, buf);
        self.count((&self.reads, &self.read_errors), Some((&self.read_bytes, len)), done)
    }

    fn on_write(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let done = below.write(zone, offset, data);
        self.count((&self.writes, &self.write_errors), Some((&self.written_bytes, data.len())), done)
    }

    fn on_reset(&self, below: &dyn Device, zone: ZoneIdx) -> Result<(), DeviceError> {
        let done = below.reset(zone);
        self.count((&self.resets, &self.write_errors), None, done)
    }

    fn on_flush(&self, below: &dyn Device) -> Result<(), DeviceError> {
        let done = below.flush();
        self.count((&self.flushes, &self.write_errors), None, done)
    }

    fn on_order(&self, below: &dyn Device) -> Result<(), DeviceError> {
        let done = below.order();
        self.count((&self.flushes, &self.write_errors), None, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::TempDir;
    use crate::{FileDevice, OpenMode};

    #[test]
    fn successes_and_failures_are_counted_separately() {
        let scratch = TempDir::new();
        let path = scratch.path("image");
        drop(FileDevice::create(&path, 4 << 20, 1 << 20).unwrap());
        let file = FileDevice::open(&path, OpenMode::ReadWrite, 1 << 20).unwrap();
        let device = Counted::new(Arc::new(file));
        assert_eq!(device.counts(), IoCounts::default());
        device.reset(ZoneIdx(1)).unwrap();
        device.write(ZoneIdx(1), 0, &[7; 8192]).unwrap();
        device.flush().unwrap();
        let mut buf = [0; 100];
        device.read(ZoneIdx(1), 4096, &mut buf).unwrap();
        assert_eq!(buf, [7; 100]);
        assert!(device.write(ZoneIdx(1), 0, &[7; 4096]).is_err(), "below the write pointer");
        let expected = IoCounts {
            reads: 1,
            read_bytes: 100,
            writes: 1,
            written_bytes: 8192,
            flushes: 1,
            resets: 1,
            read_errors: 0,
            write_errors: 1,
        };
        assert_eq!(device.counts(), expected);
    }
}
