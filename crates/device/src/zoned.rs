//! Host-managed zoned drives: shingled disks, zoned NVMe namespaces.
//!
//! The drive itself keeps write pointers, refuses commands out of order, and limits how many zones may be *active*
//! (neither empty nor full). [`ZoneRules`] mirrors the drive's state. So misuse is refused before the kernel sees it,
//! with a better message, and [`report`](Device::report) costs nothing. After every failure the drive is queried
//! again, because it may have executed a part of the command, and its reply replaces our state.
//!
//! Reads and writes are *direct*, past the host's page cache. A page of a zone that is reset and rewritten must never
//! be served from its old content, and the order of writes must be ours. Bytes above a write pointer are never read
//! from the drive, since some drives reply with an error; they read as zeros.
//!
//! Conventional zones, which many shingled disks have at their start, have no write pointer. For them the rules live
//! in software, as for a [`FileDevice`](crate::FileDevice). Their state is unknown until [`resume`](Device::resume)
//! or a reset. A reset overwrites their first bytes, so that no old content is recognised there.
//!
//! Invariant: the rules of a sequential zone equal what the drive reported last, plus what it has acknowledged since.

mod drive;

use crate::aligned::{ALIGN, AlignedBuf};
use crate::backing::{Backing, OpenMode};
use crate::foreign;
use crate::identity::Identity;
use crate::rules::ZoneRules;
use crate::zone::{Device, DeviceError, DeviceInfo, DeviceKind, ZoneReport, ZoneState};
use crate::zone_report::{REPORT_ZONES, RawZone, RequiredCommand, UsableZone};
use drive::{Drive, DriveLimits, KernelDrive};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use terrane_wire::ZoneIdx;

/// Bytes per write call. The kernel splits them into requests of at most 256 pages, in order. After a failed request
/// the zone's pointer is not where the next one needs it, so the bytes taken are always a prefix.
const PIECE_BYTES: usize = 4 << 20;
/// Bytes that a reset of a conventional zone overwrites: all that a search for foreign data reads at the start.
const WIPED_BYTES: u64 = foreign::HEAD_BYTES;

/// A host-managed zoned block device.
#[derive(Debug)]
pub struct ZonedDevice {
    drive: Box<dyn Drive>,
    /// Set for a drive of this machine.
    identity: Option<Identity>,
    mode: OpenMode,
    info: DeviceInfo,
    rules: ZoneRules,
    properties: Vec<ZoneProperties>,
    keeps_space: AtomicBool,
    /// A failed flush is final.
    flush_failed: AtomicBool,
    flushing: Mutex<()>,
}

/// Constant properties of a zone.
#[derive(Clone, Copy, Debug, Default)]
struct ZoneProperties {
    /// It has no write pointer.
    conventional: bool,
    /// Its capacity is not a multiple of our unit, so the drive does not count it as full after our last write. Then
    /// it is finished by command.
    needs_finish: bool,
}

impl ZonedDevice {
    /// Opens and locks the drive at `path`. [`Backing::open`] lists what is refused.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, DeviceError> {
        Self::new(Backing::open(path, mode)?)
    }

    /// Takes over an open drive and queries all its zones. A smaller zone at the end is not used.
    ///
    /// # Errors
    /// `Refused` if it is no zoned drive or its zones differ in size, `Io` if the query fails.
    pub fn new(backing: Backing) -> Result<Self, DeviceError> {
        if !backing.is_host_managed() {
            return Err(DeviceError::Refused {
                name: backing.name().into(),
                expected: "a host-managed zoned drive".into(),
                found: "a conventional device".into(),
                remedy: "open it as a file or block device",
            });
        }
        let (name, mode, unit) = (backing.name().to_owned(), backing.mode(), backing.write_unit()?);
        let (limits, identity) = (DriveLimits::from_sysfs(&backing), backing.identity());
        let drive = KernelDrive::new(backing).map_err(|source| DeviceError::Io {
            zone: None,
            offset: 0,
            op: "opening for direct I/O",
            source,
        })?;
        let device = Self::from_drive(Box::new(drive), name, mode, unit, limits)?;
        Ok(ZonedDevice { identity: Some(identity), ..device })
    }

    fn from_drive(
        drive: Box<dyn Drive>,
        name: String,
        mode: OpenMode,
        unit: u32,
        limits: DriveLimits,
    ) -> Result<Self, DeviceError> {
        let refused = |expected: &str, found: String, remedy| {
            let (name, expected) = (name.clone(), expected.to_owned());
            DeviceError::Refused { name, expected, found, remedy }
        };
        let write_unit = u64::from(unit).max(limits.write_granularity);
        let write_unit =
            u32::try_from(write_unit).ok().filter(|unit| unit.is_power_of_two()).ok_or_else(|| {
                let found = limits.write_granularity.to_string();
                refused("a write granularity that is a power of two", found, "use another drive")
            })?;
        let zone_size = limits.zone_size;
        let count = limits.size.checked_div(zone_size).unwrap_or(0);
        let zone_count = u32::try_from(count).ok().filter(|count| *count > 0).ok_or_else(|| {
            let found = format!("{} bytes in zones of {zone_size}", limits.size);
            refused("from one to 2^32 - 1 zones", found, "use another drive")
        })?;
        let raw = report_all(drive.as_ref(), zone_size, zone_count).map_err(|source| DeviceError::Io {
            zone: None,
            offset: 0,
            op: "zone report",
            source,
        })?;
        if let Some((zone, odd)) = (0u64..).zip(&raw).find(|(zone, raw)| {
            raw.len != zone_size || zone.checked_mul(zone_size).is_none_or(|start| start != raw.start)
        }) {
            let found = format!("zone {zone} at byte {} with {}", odd.start, odd.len);
            return Err(refused("contiguous zones of one size", found, "use another drive"));
        }
        let usable_zones: Vec<UsableZone> =
            raw.iter().map(|raw| raw.classify(u64::from(write_unit))).collect();
        let info = DeviceInfo {
            name,
            kind: DeviceKind::Zoned,
            write_unit,
            zone_count,
            zone_size,
            max_open: limits.max_open,
            max_active: limits.max_active,
            hardware_pointers: true,
        };
        // The drive closes open zones by itself when others are written; only the limit of active ones can be hit.
        let capacities = usable_zones.iter().map(|zone| zone.report.capacity);
        let rules = ZoneRules::new(write_unit, limits.max_active, capacities, ZoneState::Unknown);
        let device = ZonedDevice {
            drive,
            identity: None,
            mode,
            info,
            properties: raw.iter().map(|raw| ZoneProperties::of(raw, u64::from(write_unit))).collect(),
            rules,
            keeps_space: AtomicBool::new(false),
            flush_failed: AtomicBool::new(false),
            flushing: Mutex::new(()),
        };
        for (zone, usable) in device.rules.zones().zip(&usable_zones) {
            if device.properties_of(zone).conventional {
                device.rules.exempt(zone);
            }
            device.adopt_report(zone, usable);
        }
        Ok(device)
    }

    fn start(&self, zone: ZoneIdx) -> u64 {
        // Cannot overflow for a zone that exists: the whole drive has at most 2^64 - 1 bytes.
        u64::from(zone.0).saturating_mul(self.info.zone_size)
    }

    fn properties_of(&self, zone: ZoneIdx) -> ZoneProperties {
        usize::try_from(zone.0).ok().and_then(|at| self.properties.get(at)).copied().unwrap_or_default()
    }

    /// Sets the rules of a zone to the drive's report, after bringing the zone into a state that we can use.
    fn adopt_report(&self, zone: ZoneIdx, usable: &UsableZone) {
        let ZoneReport { state, pointer, .. } = usable.report;
        if state == ZoneState::ReadOnly || state == ZoneState::Offline {
            log::warn!("{}: zone {zone} is not writable: {state:?}", self.info.name);
        }
        let (start, len) = (self.start(zone), self.info.zone_size);
        let commanded = match usable.required_command {
            _ if self.mode == OpenMode::ReadOnly => Ok(()),
            RequiredCommand::None => Ok(()),
            RequiredCommand::Reset => self.drive.reset(start, len),
            RequiredCommand::Finish => self.drive.finish(start, len),
        };
        if let Err(error) = commanded {
            log::warn!("{}: closing zone {zone} failed, it stays active: {error}", self.info.name);
        }
        self.rules.force(zone, state, pointer);
    }

    /// Queries a zone and adopts the drive's report. Returns false if there is no valid reply.
    fn refresh_zone(&self, zone: ZoneIdx) -> bool {
        if self.properties_of(zone).conventional {
            return false;
        }
        let start = self.start(zone);
        match self.drive.report(start, 1).as_deref() {
            Ok([raw]) if raw.start == start => {
                self.adopt_report(zone, &raw.classify(u64::from(self.info.write_unit)));
                true
            }
            Ok(other) => {
                log::error!("{}: report of zone {zone} invalid: {other:?}", self.info.name);
                false
            }
            Err(error) => {
                log::error!("{}: report of zone {zone} failed: {error}", self.info.name);
                false
            }
        }
    }

    fn check_writable(&self, zone: ZoneIdx, op: &'static str) -> Result<(), DeviceError> {
        match self.mode {
            OpenMode::ReadWrite => Ok(()),
            OpenMode::ReadOnly => Err(DeviceError::Rule {
                zone,
                op,
                expected: "a device opened for writing".into(),
                found: "a device opened read-only".into(),
            }),
        }
    }

    fn failed(&self, zone: ZoneIdx, offset: u64, op: &'static str, source: io::Error) -> DeviceError {
        let limit = match source.raw_os_error() {
            Some(libc::EOVERFLOW) => Some(("active", self.info.max_active)),
            Some(libc::ETOOMANYREFS) => Some(("open", self.info.max_open)),
            _ => None,
        };
        let source = match limit {
            Some((what, limit)) => io::Error::other(format!(
                "{}: too many {what} zones (max_{what}_zones is {limit}): {source}",
                self.info.name
            )),
            None => source,
        };
        DeviceError::Io { zone: Some(zone), offset, op, source }
    }

    fn write_pieces(&self, at: u64, data: &[u8]) -> (u64, io::Result<()>) {
        let mut taken = 0;
        for piece in data.chunks(PIECE_BYTES) {
            let (more, result) = self.drive.write(at.saturating_add(taken), piece);
            taken += more;
            if result.is_err() {
                return (taken, result);
            }
        }
        (taken, Ok(()))
    }

    /// Discards a conventional zone, and zeroes its beginning.
    fn wipe(&self, zone: ZoneIdx) -> io::Result<()> {
        let start = self.start(zone);
        if !self.keeps_space.load(Ordering::Relaxed) {
            self.drive.discard(start, self.info.zone_size)?;
        }
        let capacity = self.rules.report(zone).map_or(0, |report| report.capacity);
        let mut zeros = AlignedBuf::new();
        // At most 1 MiB.
        zeros.resize(usize::try_from(WIPED_BYTES.min(capacity)).unwrap_or(0));
        self.drive.write(start, &zeros).1
    }

    fn read_range(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let align = ALIGN as u64;
        let fits = at.is_multiple_of(align)
            && buf.len().is_multiple_of(ALIGN)
            && buf.as_ptr().addr().is_multiple_of(ALIGN);
        if fits {
            return self.drive.read(at, buf);
        }
        let first = at - at % align;
        let before = usize::try_from(at - first).unwrap_or(0);
        let mut wide = AlignedBuf::new();
        wide.prepare((before + buf.len()).next_multiple_of(ALIGN));
        self.drive.read(first, &mut wide)?;
        if let Some(wanted) = wide.get(before..before + buf.len()) {
            buf.copy_from_slice(wanted);
        }
        Ok(())
    }
}

impl ZoneProperties {
    fn of(raw: &RawZone, unit: u64) -> ZoneProperties {
        let conventional = raw.is_conventional();
        ZoneProperties {
            conventional,
            needs_finish: !conventional && !raw.capacity.min(raw.len).is_multiple_of(unit),
        }
    }
}

/// Every zone of the drive that has the full size.
fn report_all(drive: &dyn Drive, zone_size: u64, zone_count: u32) -> io::Result<Vec<RawZone>> {
    let count = zone_count as usize;
    let mut zones: Vec<RawZone> = Vec::new();
    while zones.len() < count {
        let start = (zones.len() as u64).saturating_mul(zone_size);
        let more = drive.report(start, (count - zones.len()).min(REPORT_ZONES))?;
        if more.is_empty() {
            let found = format!("zone report ends before zone {}", zones.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, found));
        }
        zones.extend(more);
    }
    zones.truncate(count);
    Ok(zones)
}

impl Device for ZonedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.rules.report(zone)
    }

    fn query(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.refresh_zone(zone);
        self.rules.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.rules.check_read(zone, offset, buf.len())?;
        let ZoneReport { state, capacity, pointer } = self.rules.report(zone)?;
        let known = match state {
            ZoneState::Empty | ZoneState::Open | ZoneState::Full => pointer,
            ZoneState::Unknown | ZoneState::ReadOnly | ZoneState::Offline => capacity,
        };
        let written_len = usize::try_from(known.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let (written, unwritten) = buf.split_at_mut(written_len);
        unwritten.fill(0);
        if written.is_empty() {
            return Ok(());
        }
        self.read_range(self.start(zone).saturating_add(offset), written)
            .map_err(|source| self.failed(zone, offset, "read", source))
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check_writable(zone, "write")?;
        let ticket = self.rules.begin_write(zone, offset, data.len())?;
        let at = self.start(zone).saturating_add(offset);
        let (taken, result) = if data.as_ptr().addr().is_multiple_of(ALIGN) {
            self.write_pieces(at, data)
        } else {
            self.write_pieces(at, &AlignedBuf::from(data))
        };
        if let Err(source) = result {
            if self.refresh_zone(zone) {
                // The drive's report stands, whatever number of bytes the write call returned.
                drop(ticket);
            } else {
                ticket.wrote(taken);
            }
            return Err(self.failed(zone, offset, "write", source));
        }
        ticket.wrote(taken);
        if self.properties_of(zone).needs_finish && self.rules.report(zone)?.state == ZoneState::Full {
            let finished = self.drive.finish(self.start(zone), self.info.zone_size);
            // The data is written. A failure costs only a place among the active zones.
            finished.unwrap_or_else(|error| {
                log::warn!("{}: finish of zone {zone} failed, it stays active: {error}", self.info.name)
            });
        }
        Ok(())
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.check_writable(zone, "reset")?;
        let ticket = self.rules.begin_reset(zone)?;
        let done = if self.properties_of(zone).conventional {
            self.wipe(zone)
        } else {
            self.drive.reset(self.start(zone), self.info.zone_size)
        };
        match done {
            Ok(()) => {
                ticket.done();
                Ok(())
            }
            Err(source) => {
                self.refresh_zone(zone);
                Err(self.failed(zone, 0, "reset", source))
            }
        }
    }

    fn keep_space(&self) {
        self.keeps_space.store(true, Ordering::Relaxed);
    }

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.check_writable(zone, "finish")?;
        let Some(ticket) = self.rules.begin_finish(zone)? else { return Ok(()) };
        let done = if self.properties_of(zone).conventional {
            Ok(())
        } else {
            self.drive.finish(self.start(zone), self.info.zone_size)
        };
        match done {
            Ok(()) => {
                ticket.done();
                Ok(())
            }
            Err(source) => {
                self.refresh_zone(zone);
                Err(self.failed(zone, 0, "finish", source))
            }
        }
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.rules.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let failed = |source| DeviceError::Io { zone: None, offset: 0, op: "flush", source };
        // Of two flushes at a time only one might be told of a failure.
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.flush_failed.load(Ordering::Acquire) {
            return Err(failed(io::Error::other(format!("{}: an earlier flush failed", self.info.name))));
        }
        self.drive.flush().map_err(|error| {
            self.flush_failed.store(true, Ordering::Release);
            failed(error)
        })
    }

    fn identity(&self) -> Option<Identity> {
        self.identity
    }

    fn unlock(&self) {
        if let Err(error) = self.drive.unlock() {
            log::warn!("{}: unlock failed, locked until this process ends: {error}", self.info.name);
        }
    }
}

#[cfg(test)]
mod tests;
