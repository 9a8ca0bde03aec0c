//! Zones on their devices: from a birthplace to bytes.
//!
//! The zone table says whether a birth zone is whole, partly moved or reclaimed. Only in the last two cases is the relocation index
//! asked, and the directory part that the run names. The answer is one hop, never a chain. Bytes of a logical zone come from the first
//! replica that returns them and passes the caller's check.
//!
//! Invariant: a zone is not reset while a reader is between lookup and completion ([`PinnedZone`]).

use crate::PoolError;
use crate::append::ColocatedCopy;
use crate::counters::Counters;
use crate::devices::{Devices, homes};
use crate::log::IntentLog;
use crate::pinned_zone::{PinnedZone, StoredBytes};
use crate::reports::Reports;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_cache::parts::PartCache;
use terrane_codec::compute;
use terrane_device::{AlignedBuf, Device, DeviceError, ZoneState};
use terrane_format::addr::{Addr, GRANULE};
use terrane_format::block_ptr::Normal;
use terrane_format::directory::{Entry, Part, PartTrailer, parse_part, parse_trailer};
use terrane_format::record::{Home, PartCopy};
use terrane_space::zones::Tables;
use terrane_wire::{Corrupt, DeviceIdx, ZoneSeq};

/// Immediate retries of a failed read. They hide errors that last a moment, as after the reset of a bus.
const READ_RETRIES: u32 = 2;

/// The zones of a pool: their tables, and their devices.
pub struct ZoneStore {
    /// The pool's id, which every directory part repeats.
    pub pool: u64,
    /// The devices by index.
    pub devices: Arc<Devices>,
    /// The zone tables. Only the sync thread changes them.
    pub tables: RwLock<Tables>,
    /// Directory parts that were read or written lately.
    pub parts: Arc<PartCache>,
    /// Counters of reads and errors.
    pub counters: Arc<Counters>,
    reports: Arc<Reports>,
    /// The intent log.
    pub log: IntentLog,
}

impl ZoneStore {
    /// The zones of a pool that is created or imported.
    pub fn new(
        (pool, incarnation): (u64, u64),
        devices: Arc<Devices>,
        tables: Tables,
        parts: Arc<PartCache>,
        counters: Arc<Counters>,
        reports: Arc<Reports>,
    ) -> ZoneStore {
        let log = IntentLog::new((pool, incarnation), devices.clone(), counters.clone(), reports.clone());
        ZoneStore { pool, devices, tables: RwLock::new(tables), parts, counters, reports, log }
    }

    /// Flushes every device. One failure is final, whatever the other devices say: how much of a txg the device holds is unknown.
    pub fn flush(&self, side_by_side: bool) -> Result<(), PoolError> {
        self.on_all(side_by_side, &|device| device.flush())
    }

    /// The weaker barrier, [`Device::order`], for every device.
    pub fn order(&self, side_by_side: bool) -> Result<(), PoolError> {
        self.on_all(side_by_side, &|device| device.order())
    }

    fn on_all(
        &self,
        side_by_side: bool,
        flush: &(dyn Fn(&dyn Device) -> Result<(), DeviceError> + Sync),
    ) -> Result<(), PoolError> {
        let devices = self.devices.all();
        let flush =
            |device: &dyn Device| self.counters.record_duration(&self.counters.flush, || flush(device));
        if devices.len() == 1 || !side_by_side {
            return devices.iter().try_for_each(|(_, device)| Ok(flush(device.as_ref())?));
        }
        // In parallel: a txg waits for the slowest device, not for the sum.
        std::thread::scope(|scope| {
            let flushes: Vec<_> =
                devices.iter().map(|(_, device)| scope.spawn(|| flush(device.as_ref()))).collect();
            let panicked = || PoolError::Failed { reason: "a flush panicked".into() };
            let ends: Vec<_> = flushes.into_iter().map(|flush| flush.join()).collect();
            ends.into_iter().try_for_each(|end| Ok(end.map_err(|_| panicked())??))
        })
    }

    /// Closes zones that drives still count as active but the pool does not write any more. It resets zones that the tables call empty,
    /// and finishes those that they call full. Runs after the first uberblock of this incarnation. A zone that could not be reset or
    /// finished is tried again when it is opened. Zones of a log that is not replayed stay as they are.
    pub fn close_stale_zones(&self, log_zones: &BTreeSet<Home>) {
        let tables = self.tables.read();
        let resident = tables.zones.values();
        let written: BTreeMap<Home, bool> = resident
            .flat_map(|zone| zone.replicas().iter().map(|home| (home, zone.unwritten.is_some())))
            .collect();
        drop(tables);
        for (index, device) in self.devices.all() {
            if !device.info().hardware_pointers {
                continue;
            }
            for home in homes(index, device.info().zone_count) {
                let is_open = device.report(home.zone).is_ok_and(|report| report.state == ZoneState::Open);
                let outcome = match written.get(&home) {
                    _ if !is_open || log_zones.contains(&home) => Ok(()),
                    Some(true) => Ok(()),
                    Some(false) => device.finish(home.zone),
                    None => device.reset(home.zone),
                };
                if let Err(error) = outcome {
                    log::warn!("{home}: closing failed: {error}");
                }
            }
        }
    }

    /// The bytes of a colocated copy, if it exists and is still in the zone of another copy.
    pub fn colocated_bytes(&self, colocated: &ColocatedCopy) -> Option<Vec<u8>> {
        let tables = self.tables.read();
        let here = tables.current_zone(colocated.addr)?;
        let is_near = colocated.other_copies.iter().any(|copy| tables.current_zone(*copy) == Some(here));
        drop(tables);
        let (pinned, offset) = self.locate(colocated.addr, colocated.psize).ok().filter(|_| is_near)?;
        let mut bytes = vec![0; colocated.psize as usize];
        self.read_zone(&pinned, offset, &mut bytes).ok()?;
        (crc32c::crc32c(&bytes) == colocated.crc).then_some(bytes)
    }

    fn note_checksum_error(&self, device: DeviceIdx) {
        self.counters.checksum_errors.add(1);
        self.reports.log.note_checksum(device);
    }

    /// The stored bytes of one copy of a block, verified by its pointer.
    pub fn read_copy(&self, normal: &Normal, addr: Addr) -> Result<StoredBytes, PoolError> {
        let mut first = None;
        // After a mismatch, look the block up once more: the collector may have moved it meanwhile.
        for _ in 0..2 {
            let (pinned, offset) = self.locate(addr, normal.psize)?;
            let mut found = None;
            let read = pinned.try_replicas(|home| {
                let stored = self.read_replica(&pinned, home, offset, normal.psize)?;
                self.counters.reads(pinned.class).blocks.add(1);
                if compute(normal.checksum_kind, &stored) == normal.checksum {
                    return Ok(stored);
                }
                let at = format!("{home} granule {} ({addr})", offset / GRANULE);
                let corrupt =
                    Corrupt::new(at, "checksum of the stored bytes", "that of the block pointer", "another");
                found = Some((home.device, corrupt.clone()));
                Err(corrupt.into())
            });
            match read {
                Ok(stored) => return Ok(stored),
                Err(error) if found.is_none() || error.is_transient() => return Err(error),
                Err(_) if first == found => break,
                Err(_) => first = found,
            }
        }
        let (device, corrupt) = first.expect("set in the first round");
        self.note_checksum_error(device);
        Err(PoolError::Corrupt(corrupt))
    }

    /// The current zone and offset of the block born at `addr`.
    pub fn locate(&self, addr: Addr, psize: u32) -> Result<(PinnedZone, u64), PoolError> {
        let unknown = |what| PoolError::Corrupt(Corrupt::new(addr, what, "in the zone tables", "nothing"));
        let (pinned, moved) = {
            let tables = self.tables.read();
            let run = tables.locate(addr).ok_or_else(|| unknown("birthplace of a live block"))?;
            let (seq, part_end) = run.map_or((addr.seq(), None), |run| (run.dest, Some(run.part_end())));
            let zone = tables.zones.get(&seq).ok_or_else(|| unknown("zone of a run"))?;
            (PinnedZone::new(seq, zone), part_end)
        };
        let offset = match moved {
            None => addr.offset(),
            Some(part_end) => {
                let part = self.part(&pinned, part_end)?;
                let entry = part.find(addr).filter(|entry| entry.psize == psize);
                entry.ok_or_else(|| unknown("block in the directory part of its run"))?.offset
            }
        };
        if offset + u64::from(psize) > pinned.capacity {
            return Err(Corrupt::new(
                addr,
                "end of the block",
                format_args!("at most {}", pinned.capacity),
                offset + u64::from(psize),
            )
            .into());
        }
        Ok((pinned, offset))
    }

    /// Pins a zone, if it exists.
    pub fn pin(&self, seq: ZoneSeq) -> Option<PinnedZone> {
        self.tables.read().zones.get(&seq).map(|zone| PinnedZone::new(seq, zone))
    }

    /// Bytes of a zone, from the gathered batches or from the device.
    pub fn read_zone(&self, pinned: &PinnedZone, offset: u64, buf: &mut [u8]) -> Result<(), PoolError> {
        let len = u32::try_from(buf.len()).expect("nothing that is read in one piece is larger than a zone");
        buf.copy_from_slice(&self.read_stored(pinned, offset, len)?);
        Ok(())
    }

    /// Like [`read_zone`](ZoneStore::read_zone), into a buffer that the next read of this thread reuses.
    pub fn read_stored(&self, pinned: &PinnedZone, offset: u64, len: u32) -> Result<StoredBytes, PoolError> {
        pinned.try_replicas(|home| self.read_replica(pinned, home, offset, len))
    }

    /// Reads from one replica.
    pub(crate) fn read_replica(
        &self,
        pinned: &PinnedZone,
        home: Home,
        offset: u64,
        len: u32,
    ) -> Result<StoredBytes, PoolError> {
        let unit = u64::from(self.devices.get(home.device)?.info().write_unit);
        // Widen the read to whole write units, as devices require.
        let (from, to) = (offset / unit * unit, (offset + u64::from(len)).next_multiple_of(unit));
        let start = (offset - from) as usize;
        let mut stored = StoredBytes::new(start..start + len as usize, (to - from) as usize);
        if pinned
            .unwritten
            .as_ref()
            .is_none_or(|write_buffer| !write_buffer.read(offset, stored.wanted_mut()))
        {
            self.read_device(pinned, home, from, stored.buf_mut())?;
        }
        Ok(stored)
    }

    fn read_device(
        &self,
        pinned: &PinnedZone,
        home: Home,
        from: u64,
        buf: &mut [u8],
    ) -> Result<(), PoolError> {
        let device = self.devices.get(home.device)?;
        let counters = &*self.counters;
        let reads = counters.reads(pinned.class);
        reads.operations.add(1);
        reads.bytes.add(buf.len() as u64);
        let mut read =
            || counters.record_duration(&counters.device_read, || device.read(home.zone, from, buf));
        let mut outcome = read();
        for _ in 0..READ_RETRIES {
            if !matches!(outcome, Err(DeviceError::Io { .. })) {
                break;
            }
            counters.read_errors.add(1);
            outcome = read();
        }
        if outcome.is_err() {
            counters.read_errors.add(1);
        }
        Ok(outcome?)
    }

    /// A range of a full zone, widened to whole write units, and the offset where it begins.
    pub fn read_units(
        &self,
        pinned: &PinnedZone,
        from: u64,
        to: u64,
        buf: &mut AlignedBuf,
    ) -> Result<u64, PoolError> {
        pinned.try_replicas(|home| {
            let unit = u64::from(self.devices.get(home.device)?.info().write_unit);
            let from = from / unit * unit;
            buf.prepare((to.next_multiple_of(unit) - from) as usize);
            self.read_device(pinned, home, from, buf)?;
            Ok(from)
        })
    }

    /// The directory part of a zone that ends at `end`. Uses its second copy if the first is damaged.
    pub fn part(&self, pinned: &PinnedZone, end: u64) -> Result<Arc<Part>, PoolError> {
        self.part_from_tail(pinned, end, &mut TailReader::new(PART_BYTES))
    }

    fn part_from_tail(
        &self,
        pinned: &PinnedZone,
        end: u64,
        tail: &mut TailReader,
    ) -> Result<Arc<Part>, PoolError> {
        if let Some(part) = self.parts.get(pinned.seq, end) {
            return Ok(part);
        }
        let part = match self.read_part(pinned, end, tail) {
            Ok(part) => part,
            Err(error) => {
                log::warn!("directory part failed, using copy: {error}");
                match self.read_part_copy(pinned.seq, end) {
                    Ok(Some(part)) => part,
                    // A copy that could not be read may be good.
                    Err(unread) if unread.is_transient() => return Err(unread),
                    Ok(None) | Err(_) => return Err(error),
                }
            }
        };
        let part = Arc::new(part);
        self.parts.insert(part.clone());
        Ok(part)
    }

    fn read_part(&self, pinned: &PinnedZone, end: u64, tail: &mut TailReader) -> Result<Part, PoolError> {
        pinned.try_replicas(|home| self.read_part_of(pinned, home, end, tail))
    }

    fn read_part_of(
        &self,
        pinned: &PinnedZone,
        home: Home,
        end: u64,
        tail: &mut TailReader,
    ) -> Result<Part, PoolError> {
        tail.switch_to(home);
        let bad_end = || {
            Corrupt::new(
                format_args!("zone {}", pinned.seq),
                "end of a directory part",
                "inside the zone",
                end,
            )
        };
        if end > pinned.capacity || end < PartTrailer::SIZE as u64 {
            return Err(bad_end().into());
        }
        if tail.bytes_up_to(end, PartTrailer::SIZE as u64).is_none() {
            self.read_tail(pinned, home, end, tail.reach, tail)?;
        }
        let trailer = parse_trailer(tail.bytes_up_to(end, 0).unwrap_or(&[]), pinned.seq, end)?;
        let len = end - trailer.part_start;
        if tail.bytes_up_to(end, len).is_none() {
            self.read_tail(pinned, home, end, len.max(tail.reach), tail)?;
        }
        let raw = tail.bytes_up_to(end, len).ok_or_else(bad_end)?;
        let from = raw.len().saturating_sub(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(parse_part(self.pool, &trailer, raw.get(from..).unwrap_or(&[]), end)?)
    }

    /// The zone's bytes up to `end`: `len` of them, or fewer at the zone's start.
    fn read_tail(
        &self,
        pinned: &PinnedZone,
        home: Home,
        end: u64,
        len: u64,
        tail: &mut TailReader,
    ) -> Result<(), PoolError> {
        let from = end.saturating_sub(len);
        tail.from = from;
        tail.bytes.clear();
        // The range lies in a zone, whose length fits.
        let len = u32::try_from(end - from).expect("nothing that is read in one piece is larger than a zone");
        tail.bytes.extend_from_slice(&self.read_replica(pinned, home, from, len)?);
        Ok(())
    }

    /// The second copy of a directory part. `None`: there is none.
    fn read_part_copy(&self, seq: ZoneSeq, end: u64) -> Result<Option<Part>, PoolError> {
        let known = {
            let tables = self.tables.read();
            let copies = tables.zones.get(&seq).map_or(&[][..], |zone| &zone.part_copies);
            copies.iter().find(|copy| copy.part_end == end).copied()
        };
        let len = |copy: &PartCopy| u32::try_from(end.checked_sub(copy.part_start)?).ok();
        let Some((copy, len)) = known.and_then(|copy| Some((copy, len(&copy)?))) else { return Ok(None) };
        let (pinned, offset) = self.locate(copy.addr, len)?;
        let mut raw = vec![0; len as usize];
        self.read_zone(&pinned, offset, &mut raw)?;
        let trailer = parse_trailer(&raw, seq, end)?;
        Ok(Some(parse_part(self.pool, &trailer, &raw, end)?))
    }

    /// All directory parts of a zone, oldest first.
    pub fn parts_of(&self, pinned: &PinnedZone, claimed: u64) -> Result<Vec<Arc<Part>>, PoolError> {
        self.parts_while(pinned, claimed, &|| true)
    }

    fn parts_while(
        &self,
        pinned: &PinnedZone,
        claimed: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Arc<Part>>, PoolError> {
        let mut parts = Vec::new();
        let mut tail = TailReader::new(PARTS_BYTES);
        let is_far = self.devices.are_far();
        let mut end = (claimed > 0).then_some(claimed);
        while let Some(at) = end.filter(|_| goes_on()) {
            let part = self.part_from_tail(pinned, at, &mut tail)?;
            // Each part lies before the part that names it, so the loop ends.
            end = part.previous.filter(|previous| *previous < at && *previous > 0);
            let is_dense = end.is_some_and(|end| at - end <= DENSE_BYTES);
            tail.reach = if is_far && is_dense { FAR_PARTS_BYTES } else { PARTS_BYTES };
            parts.push(part);
        }
        parts.reverse();
        Ok(parts)
    }

    /// Reads the directory of a zone into the cache of parts, while it should go on. An error is left to who needs it.
    pub fn warm_parts(&self, seq: ZoneSeq, goes_on: &dyn Fn() -> bool) {
        let Some(pinned) = self.pin(seq) else { return };
        let claimed = self.tables.read().zones.get(&seq).map_or(0, |zone| zone.claimed);
        let _ = self.parts_while(&pinned, claimed, goes_on);
    }

    /// The bytes of an entry's block, verified by its CRC, and whether they came from another copy. `None`: all copies were read and
    /// are damaged. An error: a copy that could not be read may be good.
    pub fn entry_bytes(
        &self,
        pinned: &PinnedZone,
        entry: &Entry,
    ) -> Result<Option<(Vec<u8>, bool)>, PoolError> {
        let own = pinned.try_replicas(|home| {
            let stored = self.read_replica(pinned, home, entry.offset, entry.psize)?;
            if crc32c::crc32c(&stored) == entry.crc {
                return Ok(stored.to_vec());
            }
            self.note_checksum_error(home.device);
            let at = format!("{home} granule {}", entry.offset / GRANULE);
            let corrupt = Corrupt::new(at, "checksum of a block", "that of its directory", "another");
            log::error!("{corrupt}");
            Err(corrupt.into())
        });
        let mut unread = match own {
            Ok(bytes) => return Ok(Some((bytes, false))),
            Err(error) => Some(error).filter(PoolError::is_transient),
        };
        let mut bytes = vec![0; entry.psize as usize];
        for copy in &entry.other_copies {
            let located = self.locate(*copy, entry.psize);
            match located.and_then(|(pinned, offset)| self.read_zone(&pinned, offset, &mut bytes)) {
                Ok(()) if crc32c::crc32c(&bytes) == entry.crc => return Ok(Some((bytes, true))),
                Err(error) if error.is_transient() => unread = unread.or(Some(error)),
                Ok(()) | Err(_) => {}
            }
        }
        unread.map_or(Ok(None), Err)
    }
}

/// Bytes to read for one directory part, and for all parts of a zone. Small txgs leave many parts close together.
const PART_BYTES: u64 = 16 << 10;
const PARTS_BYTES: u64 = 64 << 10;
/// The same in an object store, while parts lie this close together: one answer for several parts.
const FAR_PARTS_BYTES: u64 = 2 << 20;
const DENSE_BYTES: u64 = 1280 << 10;

/// The last bytes that were read of a zone.
struct TailReader {
    home: Home,
    from: u64,
    bytes: Vec<u8>,
    reach: u64,
}

impl TailReader {
    fn new(reach: u64) -> TailReader {
        TailReader { home: Home::default(), from: 0, bytes: Vec::new(), reach }
    }

    /// Switches to this replica.
    fn switch_to(&mut self, home: Home) {
        if self.home != home {
            (self.home, self.from) = (home, 0);
            self.bytes.clear();
        }
    }

    /// The buffered bytes up to `end`, if there are at least `len`.
    fn bytes_up_to(&self, end: u64, len: u64) -> Option<&[u8]> {
        let count = usize::try_from(end.checked_sub(self.from)?).ok()?;
        self.bytes.get(..count).filter(|bytes| bytes.len() as u64 >= len)
    }
}
