//! Zone reports of a drive: query, parsing and interpretation.
//!
//! The kernel passes a zone report on as the drive gave it, and drives have odd states: dead zones, pointers outside
//! of their zone, conditions that no standard has. One such zone must not make the others unusable. So a zone in an
//! impossible state is only read ([`ZoneState::ReadOnly`]): its data is not lost, and no new data goes to it.
//!
//! Rows are in sectors of 512 bytes, in the machine's own byte order. All results of this module are in bytes.

#![expect(unsafe_code, reason = "rustix has no wrapper for this ioctl")]

use crate::zone::{ZoneReport, ZoneState};
use rustix::ioctl::{Opcode, opcode};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes before the rows, and bytes of a row.
const HEADER_BYTES: usize = 16;
const ROW_BYTES: usize = 64;
pub(crate) const SECTOR: u64 = 512;
/// Zones per query: a reply of 256 KiB.
pub(crate) const REPORT_ZONES: usize = 4096;
/// From Linux's <linux/blkzoned.h>.
const BLKREPORTZONE: Opcode = opcode::read_write::<[u8; HEADER_BYTES]>(0x12, 130);
/// The rows have a capacity; before Linux 5.9 they had none.
const HAS_CAPACITY: u32 = 1;

/// One zone, as reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawZone {
    pub start: u64,
    pub len: u64,
    pub pointer: u64,
    pub capacity: u64,
    pub kind: u8,
    pub condition: u8,
}

/// One zone, as it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsableZone {
    pub report: ZoneReport,
    /// The command that the drive needs before the zone is in the state of `report`. Until then it takes a place
    /// among the active zones that we do not count.
    pub required_command: RequiredCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredCommand {
    None,
    /// It was opened but not written: reset it to be empty.
    Reset,
    /// Its pointer is where no write of ours can begin.
    Finish,
}

fn u64_at(raw: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(raw.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn u32_at(raw: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(raw.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// The zones in the reply to a report request.
///
/// # Errors
/// `InvalidData` if it claims more rows than it has bytes, or numbers that no drive can have.
fn parse(raw: &[u8]) -> io::Result<Vec<RawZone>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "zone report truncated or invalid");
    let count = u32_at(raw, 8).ok_or_else(invalid)?;
    let has_capacity = u32_at(raw, 12).ok_or_else(invalid)? & HAS_CAPACITY != 0;
    let count = usize::try_from(count).map_err(|_| invalid())?;
    let rows = raw.get(HEADER_BYTES..).unwrap_or(&[]);
    let rows = count.checked_mul(ROW_BYTES).and_then(|bytes| rows.get(..bytes)).ok_or_else(invalid)?;
    rows.chunks_exact(ROW_BYTES).map(|row| parse_row(row, has_capacity).ok_or_else(invalid)).collect()
}

fn parse_row(row: &[u8], has_capacity: bool) -> Option<RawZone> {
    let bytes = |at| u64_at(row, at)?.checked_mul(SECTOR);
    let len = bytes(8)?;
    let (kind, condition) = (*row.get(24)?, *row.get(25)?);
    // A pointer without meaning may have any value, also all ones.
    let pointer = bytes(16).unwrap_or(u64::MAX);
    Some(RawZone {
        start: bytes(0)?,
        len,
        pointer,
        capacity: if has_capacity { bytes(32)? } else { len },
        kind,
        condition,
    })
}

const CONVENTIONAL: u8 = 1;
/// Write required, write preferred, and those that may also be written like conventional ones.
const SEQUENTIAL: [u8; 3] = [2, 3, 4];

impl RawZone {
    /// It has no write pointer, and can be written anywhere.
    pub fn is_conventional(&self) -> bool {
        self.kind == CONVENTIONAL
    }

    /// Bytes from its start that may be read: up to the pointer, if that is known.
    pub fn readable(&self) -> u64 {
        let capacity = self.capacity.min(self.len);
        match (self.kind, self.condition) {
            (_, 0xf) => 0,
            (CONVENTIONAL, _) | (_, 0xd | 0xe) => capacity,
            (_, 0x1) => 0,
            _ => self.pointer.saturating_sub(self.start).min(capacity),
        }
    }

    /// How the zone can be used, in units of `unit` bytes.
    pub fn classify(&self, unit: u64) -> UsableZone {
        let capacity = self.capacity.min(self.len) / unit * unit;
        let zone = |state, pointer, required_command| UsableZone {
            report: ZoneReport { state, capacity, pointer },
            required_command,
        };
        let unwritable = |state| zone(state, 0, RequiredCommand::None);
        let offset = self.pointer.checked_sub(self.start);
        match (self.kind, self.condition) {
            (_, 0xf) => unwritable(ZoneState::Offline),
            (_, 0xd) => unwritable(ZoneState::ReadOnly),
            // No write fits into it, whatever its state is.
            _ if capacity == 0 => unwritable(ZoneState::ReadOnly),
            (CONVENTIONAL, _) => unwritable(ZoneState::Unknown),
            (kind, _) if !SEQUENTIAL.contains(&kind) => unwritable(ZoneState::ReadOnly),
            (_, 0x1) => zone(ZoneState::Empty, 0, RequiredCommand::None),
            (_, 0xe) => zone(ZoneState::Full, capacity, RequiredCommand::None),
            // Open by a write, open by command, closed; or any of them, in a report that the kernel answered itself.
            (_, 0x2..=0x4 | 0xff) => match offset {
                Some(0) => zone(ZoneState::Empty, 0, RequiredCommand::Reset),
                Some(at) if at < capacity && at.is_multiple_of(unit) => {
                    zone(ZoneState::Open, at, RequiredCommand::None)
                }
                // Another writer left half a unit of ours, or less than a unit remains.
                Some(at) if at < self.capacity => zone(ZoneState::Full, capacity, RequiredCommand::Finish),
                _ => unwritable(ZoneState::ReadOnly),
            },
            _ => unwritable(ZoneState::ReadOnly),
        }
    }
}

/// Asks the kernel for the state of up to `zones` zones, from the one that begins at byte `start`.
pub(crate) fn report_zones(file: &File, start: u64, zones: usize) -> io::Result<Vec<RawZone>> {
    let rows = zones.clamp(1, REPORT_ZONES);
    // Eight bytes each, because the kernel writes integers of that size.
    let mut answer = vec![0u64; (HEADER_BYTES + rows * ROW_BYTES) / 8];
    let count = u32::try_from(rows).unwrap_or(0);
    let mut header = [0u8; 8];
    header[..4].copy_from_slice(&count.to_ne_bytes());
    if let [sector, numbers, ..] = answer.as_mut_slice() {
        *sector = start / SECTOR;
        *numbers = u64::from_ne_bytes(header);
    }
    // SAFETY: the descriptor is open as long as `file` is borrowed. The request reads a header of 16 bytes from
    // the address given. It writes the header and at most as many rows of 64 bytes as the header says. `answer` is live and
    // has space for exactly those.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), BLKREPORTZONE as _, answer.as_mut_ptr()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let raw: Vec<u8> = answer.into_iter().flat_map(u64::to_ne_bytes).collect();
    parse(&raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = 4096;

    /// A report in the kernel's layout.
    pub(crate) fn encode(zones: &[RawZone], flags: u32) -> Vec<u8> {
        let mut raw = vec![0; HEADER_BYTES];
        raw[8..12].copy_from_slice(&u32::try_from(zones.len()).unwrap().to_ne_bytes());
        raw[12..16].copy_from_slice(&flags.to_ne_bytes());
        for zone in zones {
            let mut row = [0; ROW_BYTES];
            row[0..8].copy_from_slice(&(zone.start / SECTOR).to_ne_bytes());
            row[8..16].copy_from_slice(&(zone.len / SECTOR).to_ne_bytes());
            row[16..24].copy_from_slice(&(zone.pointer / SECTOR).to_ne_bytes());
            (row[24], row[25]) = (zone.kind, zone.condition);
            row[32..40].copy_from_slice(&(zone.capacity / SECTOR).to_ne_bytes());
            raw.extend_from_slice(&row);
        }
        raw
    }

    /// The second zone of a drive with zones of 1 MiB and a capacity of 768 KiB.
    fn zone(kind: u8, condition: u8, pointer: u64) -> RawZone {
        let start = 1 << 20;
        RawZone {
            start,
            len: 1 << 20,
            pointer: start.wrapping_add(pointer),
            capacity: 768 << 10,
            kind,
            condition,
        }
    }

    fn usable_zone(zone: RawZone) -> (ZoneState, u64, RequiredCommand) {
        let usable = zone.classify(UNIT);
        (usable.report.state, usable.report.pointer, usable.required_command)
    }

    #[test]
    fn a_report_comes_back_as_it_was_laid_out() {
        let zones = [zone(2, 2, 8192), zone(1, 0, 0), zone(2, 0xe, 768 << 10)];
        assert_eq!(parse(&encode(&zones, HAS_CAPACITY)).unwrap(), zones);
        // Old kernels do not report the capacity.
        let old: Vec<u64> = parse(&encode(&zones, 0)).unwrap().iter().map(|zone| zone.capacity).collect();
        assert_eq!(old, [1 << 20; 3]);
        assert_eq!(parse(&[0; HEADER_BYTES]).unwrap(), []);
    }

    #[test]
    fn a_report_shorter_than_its_zone_count_is_refused() {
        let raw = encode(&[zone(2, 2, 8192), zone(2, 1, 0)], HAS_CAPACITY);
        for len in 0..raw.len() {
            assert!(parse(&raw[..len]).is_err(), "cut at {len}");
        }
        let mut many = raw;
        many[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(parse(&many).is_err());
        let mut far = encode(&[zone(2, 1, 0)], HAS_CAPACITY);
        far[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert!(parse(&far).is_err(), "a start beyond every drive");
    }

    #[test]
    fn each_condition_has_its_state() {
        use RequiredCommand::*;
        use ZoneState::*;
        let cap = 768 << 10;
        for (kind, condition, pointer, want) in [
            (2, 0x1, 0, (Empty, 0, None)),
            // The pointer of an empty or a full zone is ignored.
            (2, 0x1, 5000, (Empty, 0, None)),
            (2, 0xe, 0, (Full, cap, None)),
            (2, 0xe, u64::MAX / 2, (Full, cap, None)),
            (2, 0x2, 8192, (Open, 8192, None)),
            (2, 0x3, 8192, (Open, 8192, None)),
            (2, 0x4, 8192, (Open, 8192, None)),
            (3, 0x4, 8192, (Open, 8192, None)),
            (4, 0x4, 8192, (Open, 8192, None)),
            (2, 0xff, 8192, (Open, 8192, None)),
            // Opened by command and not written: it takes a place among the active zones.
            (2, 0x3, 0, (Empty, 0, Reset)),
            // Half a unit of another writer.
            (2, 0x2, 8192 + 512, (Full, cap, Finish)),
            // Impossible pointers.
            (2, 0x2, cap, (ReadOnly, 0, None)),
            (2, 0x4, cap + 4096, (ReadOnly, 0, None)),
            (2, 0x4, u64::MAX, (ReadOnly, 0, None)),
            (2, 0xd, 8192, (ReadOnly, 0, None)),
            (2, 0xf, 8192, (Offline, 0, None)),
            (1, 0x0, 0, (Unknown, 0, None)),
            (1, 0xd, 0, (ReadOnly, 0, None)),
            (1, 0xf, 0, (Offline, 0, None)),
            // Impossible values.
            (2, 0x0, 0, (ReadOnly, 0, None)),
            (2, 0x5, 0, (ReadOnly, 0, None)),
            (2, 0xc, 4096, (ReadOnly, 0, None)),
            (0, 0x1, 0, (ReadOnly, 0, None)),
            (9, 0x1, 0, (ReadOnly, 0, None)),
        ] {
            assert_eq!(usable_zone(zone(kind, condition, pointer)), want, "{kind} {condition:#x} {pointer}");
        }
        let tiny = RawZone { capacity: 512, ..zone(2, 1, 0) };
        assert_eq!(usable_zone(tiny).0, ReadOnly, "less than a unit fits");
        let huge = RawZone { capacity: 2 << 20, ..zone(2, 1, 0) };
        assert_eq!(huge.classify(UNIT).report.capacity, 1 << 20, "no zone holds more than its length");
    }

    proptest! {
        /// For any report of a drive, the rules of a zone hold for the result.
        #[test]
        fn usable_zones_satisfy_the_zone_rules(
            kind in 0u8..6, condition in prop_oneof![0u8..16, any::<u8>()],
            pointer in prop_oneof![(0u64..300).prop_map(|n| n * 4096), any::<u64>()],
            len in 0u64..(4 << 20), capacity in 0u64..(4 << 20),
        ) {
            let raw = RawZone { len, capacity, ..zone(kind, condition, pointer) };
            let UsableZone { report, .. } = raw.classify(UNIT);
            prop_assert!(raw.readable() <= len && raw.readable() <= capacity);
            prop_assert!(report.capacity.is_multiple_of(UNIT) && report.capacity <= len);
            prop_assert!(report.pointer.is_multiple_of(UNIT) && report.pointer <= report.capacity);
            match report.state {
                ZoneState::Empty => prop_assert_eq!(report.pointer, 0),
                ZoneState::Open => prop_assert!(report.pointer > 0 && report.pointer < report.capacity),
                ZoneState::Full => prop_assert_eq!(report.pointer, report.capacity),
                ZoneState::Unknown => prop_assert!(raw.is_conventional()),
                ZoneState::ReadOnly | ZoneState::Offline => {}
            }
        }
    }
}
