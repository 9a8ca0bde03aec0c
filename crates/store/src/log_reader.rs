//! Reads the intent log that a commit record names.
//!
//! Batches follow each other by number and by the seal of the predecessor. The log ends at the first batch that is not whole: it was
//! being written when the power failed. But every batch says which ones were durable before it. So if a later batch shows that the
//! missing one was durable, that one is damaged, and an import must not go on as if the log ended there.
//!
//! A log device may be an older copy of itself, whose log would end too early. So where no batch of a zone of a log device is found, what
//! the commit has seen there must be there: the batch before, or the head of the zone.

use crate::PoolError;
use crate::devices::Devices;
use terrane_device::{Device, DeviceInfo, ZoneState};
use terrane_format::log::{Batch, LOG_BATCH_BYTES_MAX, LogBatchHead, LogHead, LogHome, LogZone};
use terrane_format::log_device::LogZoneHead;
use terrane_wire::{Corrupt, ZoneIdx};

/// Bytes of a zone that the search for later batches reads at a time.
const SEARCH_BYTES: u64 = 1 << 20;

/// The batches of a log.
#[derive(Debug, Default)]
pub struct ReadLog {
    /// Records of all batches, one frame behind the other.
    pub frames: Vec<u8>,
    /// Number of batches.
    pub batches: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

/// What a zone says at some offset.
enum Found {
    Batch { head: LogBatchHead, frames: Vec<u8>, stored_bytes: u64 },
    Nothing,
}

/// The reader of one log.
pub struct LogReader<'a> {
    devices: &'a Devices,
    pool: u64,
    head: &'a LogHead,
    unit: u64,
}

impl LogReader<'_> {
    /// For the log that `head` names. `pool`: the id in the label.
    pub fn new<'a>(devices: &'a Devices, pool: u64, head: &'a LogHead) -> LogReader<'a> {
        LogReader { devices, pool, head, unit: head.unit }
    }

    /// Reads all batches.
    ///
    /// # Errors
    /// `Corrupt`: a batch is damaged that was durable. Otherwise a read failed, which is no damage.
    pub fn read(&self) -> Result<ReadLog, PoolError> {
        let mut log = ReadLog::default();
        let (mut number, mut chain, mut offset) = (self.head.number, self.head.chain, self.head.offset);
        let mut zones = self.head.zones.iter();
        let Some(mut zone) = zones.next() else { return Ok(log) };
        self.check_offset(zone)?;
        // Whether a batch of `zone` was found, which shows that it is not an older copy.
        let mut is_known = false;
        loop {
            match self.batch(zone, (number, chain), offset)? {
                Found::Batch { head, frames, stored_bytes } => {
                    log.frames.extend_from_slice(&frames);
                    (log.batches, log.bytes) = (log.batches + 1, log.bytes + stored_bytes);
                    (number, chain, offset) = (number + 1, head.seal, offset + stored_bytes);
                    is_known = true;
                }
                Found::Nothing => {
                    if !is_known {
                        self.check_zone(zone, offset, chain)?;
                    }
                    // The log may go on in the next zone.
                    let Some(next) = zones.clone().next() else { break };
                    let start = self.start_of(next);
                    let Found::Batch { .. } = self.batch(next, (number, chain), start)? else { break };
                    (zone, offset, is_known) = (zones.next().unwrap_or(zone), start, true);
                }
            }
        }
        for zone in zones.clone() {
            self.check_zone(zone, self.start_of(zone), chain)?;
        }
        let behind = std::iter::once((zone, offset)).chain(zones.map(|zone| (zone, 0)));
        for (zone, offset) in behind {
            if let Some((home, at, later)) = self.later_batch(zone, offset, number)? {
                let expected =
                    format!("batch {number}, which was durable when batch {later} at byte {at} was written");
                return Err(Corrupt::new(
                    format!("intent log, {home}"),
                    "batch",
                    expected,
                    "none that is whole",
                )
                .into());
            }
        }
        Ok(log)
    }

    /// Otherwise a false head would look like a log without batches.
    fn check_offset(&self, zone: &LogZone) -> Result<(), PoolError> {
        for home in &zone.homes {
            let Ok((device, zone)) = self.devices.locate_log(home) else { continue };
            let capacity = device.report(zone)?.capacity;
            if self.head.offset > capacity || !self.head.offset.is_multiple_of(self.unit) {
                let expected = format_args!("a multiple of {} within {capacity} bytes", self.unit);
                return Err(Corrupt::new(
                    format!("intent log, {home}"),
                    "offset",
                    expected,
                    self.head.offset,
                )
                .into());
            }
        }
        Ok(())
    }

    /// Offset of the first batch of a zone. On a log device the head of the zone comes first.
    fn start_of(&self, zone: &LogZone) -> u64 {
        if zone.homes.iter().all(|home| home.lent().is_some()) { 0 } else { self.unit }
    }

    /// Some copy of a zone on log devices must have what the commit has seen there: the batch with this seal in front of `offset`, or the
    /// head of the zone.
    fn check_zone(&self, zone: &LogZone, offset: u64, chain: [u8; 16]) -> Result<(), PoolError> {
        let is_first = offset <= self.start_of(zone);
        let (mut error, mut is_lent) = (None, false);
        for home in &zone.homes {
            let LogHome::Own { filling, .. } = home else {
                is_lent = true;
                continue;
            };
            let found = match is_first {
                true => self.filling_of(home).map(|found| found == Some(*filling)),
                false => self.ends_with(home, offset, chain),
            };
            match found {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(failed) => error = Some(failed),
            }
        }
        let Some(home) = zone.homes.first().filter(|_| !is_lent) else { return Ok(()) };
        error.map_or(Ok(()), Err)?;
        let expected = match is_first {
            true => "the zone that the commit has named".to_owned(),
            false => format!("the batch before byte {offset}, which the commit has seen"),
        };
        let found = "an older copy of the device, or damage";
        Err(Corrupt::new(format!("intent log, {home}"), "zone", expected, found).into())
    }

    /// The filling that the head of a zone names.
    fn filling_of(&self, home: &LogHome) -> Result<Option<u64>, PoolError> {
        let (device, zone) = self.devices.locate_log(home)?;
        if readable_end(device.as_ref(), zone, home)? < self.unit {
            return Ok(None);
        }
        let mut raw = vec![0; usize::try_from(self.unit).unwrap_or(0)];
        device.read(zone, 0, &mut raw)?;
        let head = LogZoneHead::parse(&raw, zone);
        let is_own =
            |head: &LogZoneHead| matches!(home, LogHome::Own { device, .. } if *device == head.device);
        Ok(head.filter(|head| head.pool == self.pool && is_own(head)).map(|head| head.filling))
    }

    /// Whether a batch with this seal ends at `offset`.
    fn ends_with(&self, home: &LogHome, offset: u64, chain: [u8; 16]) -> Result<bool, PoolError> {
        let (device, zone) = self.devices.locate_log(home)?;
        let end = readable_end(device.as_ref(), zone, home)?;
        let from = offset.saturating_sub(LOG_BATCH_BYTES_MAX).max(self.unit);
        if offset > end || from >= offset {
            return Ok(false);
        }
        let mut raw = vec![0; usize::try_from(offset - from).unwrap_or(0)];
        device.read(zone, from, &mut raw)?;
        let mut at = from;
        while at < offset {
            let rest = raw.get(usize::try_from(at - from).unwrap_or(0)..).unwrap_or_default();
            let batch = Batch::parse(rest, self.ids(), at, self.unit);
            if batch.is_some_and(|batch| batch.head.seal == chain && at + batch.stored_bytes == offset) {
                return Ok(true);
            }
            at += self.unit;
        }
        Ok(false)
    }

    fn ids(&self) -> (u64, u64) {
        (self.pool, self.head.incarnation)
    }

    /// The batch with this number and predecessor at `offset`, from any copy.
    fn batch(
        &self,
        zone: &LogZone,
        (number, chain): (u64, [u8; 16]),
        offset: u64,
    ) -> Result<Found, PoolError> {
        // A batch is acknowledged when all copies have it. So one copy that can be read says where the log ends.
        let (mut error, mut is_read) = (None, false);
        for home in &zone.homes {
            match self.read_batch(home, offset) {
                Ok(Some((head, frames, stored_bytes))) if head.number == number && head.chain == chain => {
                    return Ok(Found::Batch { head, frames, stored_bytes });
                }
                Ok(_) => is_read = true,
                Err(failed) => error = Some(failed),
            }
        }
        error.filter(|_| !is_read).map_or(Ok(Found::Nothing), Err)
    }

    fn read_batch(
        &self,
        home: &LogHome,
        offset: u64,
    ) -> Result<Option<(LogBatchHead, Vec<u8>, u64)>, PoolError> {
        let (device, zone) = self.devices.locate_log(home)?;
        let end = readable_end(device.as_ref(), zone, home)?;
        if offset.saturating_add(self.unit) > end {
            return Ok(None);
        }
        let mut raw = vec![0; usize::try_from(self.unit).unwrap_or(0)];
        device.read(zone, offset, &mut raw)?;
        let Some(bytes) = Batch::claimed_bytes(&raw, self.ids(), self.unit) else { return Ok(None) };
        if offset.saturating_add(bytes) > end {
            return Ok(None);
        }
        if bytes > self.unit {
            // At most LOG_BATCH_BYTES_MAX.
            raw = vec![0; usize::try_from(bytes).unwrap_or(0)];
            device.read(zone, offset, &mut raw)?;
        }
        let batch = Batch::parse(&raw, self.ids(), offset, self.unit);
        Ok(batch.map(|batch| (batch.head, batch.frames.to_vec(), batch.stored_bytes)))
    }

    /// A batch behind `offset` that says that batch `missing` was durable: its home, offset and number.
    fn later_batch(
        &self,
        zone: &LogZone,
        offset: u64,
        missing: u64,
    ) -> Result<Option<(LogHome, u64, u64)>, PoolError> {
        let (mut error, mut is_searched) = (None, false);
        for home in &zone.homes {
            match self.later_batch_in(home, offset, missing) {
                Ok(None) => is_searched = true,
                Ok(found) => return Ok(found),
                Err(failed) => error = Some(failed),
            }
        }
        error.filter(|_| !is_searched).map_or(Ok(None), Err)
    }

    fn later_batch_in(
        &self,
        home: &LogHome,
        offset: u64,
        missing: u64,
    ) -> Result<Option<(LogHome, u64, u64)>, PoolError> {
        let (device, zone) = self.devices.locate_log(home)?;
        let end = readable_end(device.as_ref(), zone, home)?;
        let mut at = offset;
        while at < end {
            let len = (end - at).min(SEARCH_BYTES);
            let mut raw = vec![0; usize::try_from(len).unwrap_or(0)];
            device.read(zone, at, &mut raw)?;
            for (nth, unit) in (0..).zip(raw.chunks(usize::try_from(self.unit).unwrap_or(4096))) {
                let is_claimed = Batch::claimed_bytes(unit, self.ids(), self.unit).is_some();
                let is_later = |head: &LogBatchHead| head.number > missing && head.acked >= missing;
                if !is_claimed || !LogBatchHead::decode(unit).is_some_and(|head| is_later(&head)) {
                    continue;
                }
                let place = at + nth * self.unit;
                if let Some((head, ..)) = self.read_batch(home, place)? {
                    return Ok(Some((*home, place, head.number)));
                }
            }
            at += len;
        }
        Ok(None)
    }
}

/// Bytes of a zone that can be read: up to the write pointer, where the device knows it.
fn readable_end(device: &dyn Device, zone: ZoneIdx, home: &LogHome) -> Result<u64, PoolError> {
    let DeviceInfo { hardware_pointers, .. } = device.info();
    let report = device.report(zone)?;
    Ok(match report.state {
        ZoneState::Offline => {
            let at = format!("intent log, {home}");
            return Err(Corrupt::new(at, "zone", "one that can be read", "offline").into());
        }
        ZoneState::Full | ZoneState::ReadOnly => report.capacity,
        _ if *hardware_pointers => report.pointer,
        _ => report.capacity,
    })
}
