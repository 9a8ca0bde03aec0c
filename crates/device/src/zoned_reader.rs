//! Reading a zoned drive that is not open as a device: only below its write pointers.
//!
//! A search for a label reads where there may be none. Above a write pointer a drive may reply with an error, or with
//! old content from before a reset. So every read first asks how far its zone was written; the rest reads as zeros.

use crate::aligned::{ALIGN, AlignedBuf};
use crate::zone_report::{REPORT_ZONES, RawZone, SECTOR, report_zones};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// The number of zones of a drive that hold data, and of all its zones.
pub(crate) struct ZonesInUse {
    pub used: usize,
    pub count: usize,
}

/// An open drive, for reads below its write pointers.
#[derive(Debug)]
pub(crate) struct ZonedReader {
    direct: File,
}

impl ZonedReader {
    /// Opens the device of `file` again.
    pub fn new(file: &File) -> io::Result<ZonedReader> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        Ok(ZonedReader { direct: options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))? })
    }

    /// Fills `buf` from `offset`; bytes above write pointers are zeros.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let report_zone = |at: u64| {
            let zones = report_zones(&self.direct, at / SECTOR * SECTOR, 1)?;
            zones.into_iter().next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        };
        fill(buf, offset, &report_zone, &|at, wide| self.direct.read_exact_at(wide, at))
    }

    /// Counts the zones in use of a drive of `size` bytes.
    pub fn zones_in_use(&self, size: u64) -> io::Result<ZonesInUse> {
        let (mut at, mut zones_in_use) = (0, ZonesInUse { used: 0, count: 0 });
        while at < size {
            let zones = report_zones(&self.direct, at, REPORT_ZONES)?;
            let Some(last) = zones.last() else { break };
            let end = last.start.saturating_add(last.len.max(SECTOR));
            if end <= at {
                let text = "zone report starts before the requested zone";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            at = end;
            // Conventional zones do not say; the search for foreign data reads their beginning, as on any disk.
            zones_in_use.used +=
                zones.iter().filter(|zone| !zone.is_conventional() && zone.readable() > 0).count();
            zones_in_use.count += zones.len();
        }
        Ok(zones_in_use)
    }
}

/// Fills `buf` zone by zone. `report_zone` reports the zone around a byte, and `read` reads aligned ranges.
fn fill(
    mut buf: &mut [u8],
    mut at: u64,
    report_zone: &dyn Fn(u64) -> io::Result<RawZone>,
    read: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let invalid =
        || io::Error::new(io::ErrorKind::InvalidData, "zone report does not cover the requested offset");
    while !buf.is_empty() {
        let zone = report_zone(at)?;
        let zone_offset =
            at.checked_sub(zone.start).filter(|offset| *offset < zone.len).ok_or_else(invalid)?;
        let zone_len = usize::try_from(zone.len - zone_offset).unwrap_or(usize::MAX).min(buf.len());
        let (piece, rest) = std::mem::take(&mut buf).split_at_mut(zone_len);
        let written_len =
            usize::try_from(zone.readable().saturating_sub(zone_offset)).unwrap_or(usize::MAX).min(zone_len);
        let (written, unwritten) = piece.split_at_mut(written_len);
        unwritten.fill(0);
        if !written.is_empty() {
            let first = at - at % ALIGN as u64;
            let before = usize::try_from(at - first).unwrap_or(0);
            let mut wide = AlignedBuf::new();
            wide.prepare((before + written.len()).next_multiple_of(ALIGN));
            read(first, &mut wide)?;
            written.copy_from_slice(wide.get(before..before + written.len()).ok_or_else(invalid)?);
        }
        at = at.saturating_add(zone_len as u64);
        buf = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE: u64 = 64 << 10;

    /// A drive whose bytes all are 7. Zone 0 is partly written, 1 empty, 2 full, 3 conventional, 4 offline.
    fn test_zone(at: u64) -> io::Result<RawZone> {
        let (index, start) = (at / ZONE, at / ZONE * ZONE);
        let (kind, condition, written) = match index {
            0 => (2, 4, 12 << 10),
            1 => (2, 1, 0),
            2 => (2, 0xe, 0),
            3 => (1, 0, 0),
            4 => (2, 0xf, 0),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        Ok(RawZone { start, len: ZONE, pointer: start + written, capacity: ZONE, kind, condition })
    }

    fn read(at: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(at.is_multiple_of(ALIGN as u64) && buf.len().is_multiple_of(ALIGN));
        buf.fill(7);
        Ok(())
    }

    #[test]
    fn nothing_above_a_pointer_is_read() {
        let mut buf = vec![1; 5 * ZONE as usize];
        fill(&mut buf, 0, &test_zone, &read).unwrap();
        let want = |at: usize| match at / ZONE as usize {
            0 => 7 * u8::from(at < 12 << 10),
            1 | 4 => 0,
            _ => 7,
        };
        assert!(buf.iter().enumerate().all(|(at, byte)| *byte == want(at)));
        let mut few = [1; 10];
        fill(&mut few, (12 << 10) - 4, &test_zone, &read).unwrap();
        assert_eq!(few, [7, 7, 7, 7, 0, 0, 0, 0, 0, 0]);
        assert!(fill(&mut few, 5 * ZONE - 4, &test_zone, &read).is_err(), "the drive ends there");
    }

    #[test]
    fn a_zone_that_is_elsewhere_ends_the_read() {
        let elsewhere = |at: u64| test_zone(at).map(|zone| RawZone { start: zone.start + ZONE, ..zone });
        assert!(fill(&mut [0; 10], 0, &elsewhere, &read).is_err());
        let nothing = |at: u64| test_zone(at).map(|zone| RawZone { len: 0, ..zone });
        assert!(fill(&mut [0; 10], 0, &nothing, &read).is_err());
    }
}
