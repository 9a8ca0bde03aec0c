//! Reads the intent log that a commit record names.
//!
//! Batches follow each other by number and by the seal of the predecessor. The log ends at the first batch that is not whole: it was
//! being written when the power failed. A batch ends on a write unit, the largest of all devices when it was written. Devices join and
//! leave, so the reader tries all units. But every batch says which ones were durable before it. So if a later batch shows that the
//! missing one was durable, that one is damaged, and an import must not go on as if the log ended there.

use crate::PoolError;
use crate::devices::Devices;
use terrane_device::{Device, DeviceInfo, ZoneState};
use terrane_format::label::WRITE_UNIT_MAX;
use terrane_format::log::{Batch, BatchHead, LogHead, LogZone};
use terrane_format::record::Home;
use terrane_wire::Corrupt;

/// The smallest write unit, in bytes.
const UNIT_MIN: u64 = 4096;

/// Bytes of a zone that the search for later batches reads at a time.
const SEARCH_BYTES: u64 = 1 << 20;

/// Where a batch may begin whose predecessor is at `offset` and has `bytes` with its head.
fn next_offsets(offset: u64, bytes: u64) -> Vec<u64> {
    let units = std::iter::successors(Some(UNIT_MIN), |unit| Some(unit * 2));
    let units = units.take_while(|unit| *unit <= u64::from(WRITE_UNIT_MAX));
    let mut offsets: Vec<u64> = units.map(|unit| offset + bytes.next_multiple_of(unit)).collect();
    offsets.dedup();
    offsets
}

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

/// A batch that was read.
struct ReadBatch {
    head: BatchHead,
    frames: Vec<u8>,
    offset: u64,
}

impl ReadBatch {
    /// Bytes without padding.
    fn bytes(&self) -> u64 {
        (BatchHead::SIZE + self.frames.len()) as u64
    }
}

/// The reader of one log.
pub struct LogReader<'a> {
    devices: &'a Devices,
    pool: u64,
    head: &'a LogHead,
}

impl LogReader<'_> {
    /// For the log that `head` names. `pool`: the id in the label.
    pub fn new<'a>(devices: &'a Devices, pool: u64, head: &'a LogHead) -> LogReader<'a> {
        LogReader { devices, pool, head }
    }

    /// Reads all batches.
    ///
    /// # Errors
    /// `Corrupt`: a batch is damaged that was durable. Otherwise a read failed, which is no damage.
    pub fn read(&self) -> Result<ReadLog, PoolError> {
        let mut log = ReadLog::default();
        let (mut number, mut chain) = (self.head.number, self.head.chain);
        let mut offsets = vec![self.head.offset];
        let mut zones = self.head.zones.iter();
        let Some(mut zone) = zones.next() else { return Ok(log) };
        self.check_offset(zone)?;
        loop {
            let mut found = self.first_batch(zone, (number, chain), &offsets)?;
            if found.is_none()
                && let Some(next) = zones.clone().next()
            {
                // The log may go on in the next zone.
                found = self.first_batch(next, (number, chain), &[0])?;
                if found.is_some() {
                    zone = zones.next().unwrap_or(zone);
                }
            }
            let Some(batch) = found else { break };
            log.frames.extend_from_slice(&batch.frames);
            offsets = next_offsets(batch.offset, batch.bytes());
            let stored_bytes = batch.bytes().next_multiple_of(UNIT_MIN);
            (log.batches, log.bytes) = (log.batches + 1, log.bytes + stored_bytes);
            (number, chain) = (number + 1, batch.head.seal);
        }
        let offset = offsets.first().copied().unwrap_or(0);
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

    fn ids(&self) -> (u64, u64) {
        (self.pool, self.head.incarnation)
    }

    fn check_offset(&self, zone: &LogZone) -> Result<(), PoolError> {
        let offset = self.head.offset;
        for home in &zone.homes {
            let capacity = self.devices.get(home.device)?.report(home.zone)?.capacity;
            if offset > capacity || !offset.is_multiple_of(UNIT_MIN) {
                let at = format!("intent log, {home}");
                let expected = format_args!("a multiple of {UNIT_MIN} up to {capacity}");
                return Err(Corrupt::new(at, "offset of the first batch", expected, offset).into());
            }
        }
        Ok(())
    }

    /// The batch with this number and predecessor at one of these offsets.
    fn first_batch(
        &self,
        zone: &LogZone,
        after: (u64, [u8; 16]),
        offsets: &[u64],
    ) -> Result<Option<ReadBatch>, PoolError> {
        for offset in offsets {
            if let Some(batch) = self.batch(zone, after, *offset)? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// The batch with this number and predecessor at `offset`, from any copy. A promised batch is whole in all copies. So one copy that
    /// was read and lacks it is enough to know that there is none, unless the read of another may succeed later.
    fn batch(
        &self,
        zone: &LogZone,
        (number, chain): (u64, [u8; 16]),
        offset: u64,
    ) -> Result<Option<ReadBatch>, PoolError> {
        let (mut error, mut is_read) = (None, false);
        for home in &zone.homes {
            match self.read_batch(*home, offset) {
                Ok(Some(batch)) if batch.head.number == number && batch.head.chain == chain => {
                    return Ok(Some(batch));
                }
                Ok(_) => is_read = true,
                Err(failed) => error = Some(failed),
            }
        }
        error.filter(|error| !is_read || error.is_transient()).map_or(Ok(None), Err)
    }

    fn read_batch(&self, home: Home, offset: u64) -> Result<Option<ReadBatch>, PoolError> {
        let device = self.devices.get(home.device)?;
        let end = readable_end(device.as_ref(), home)?;
        let fits = |bytes: u64| offset.checked_add(bytes).is_some_and(|to| to <= end);
        if !fits(UNIT_MIN) {
            return Ok(None);
        }
        let mut raw = read_units(device.as_ref(), home, offset, UNIT_MIN)?;
        let Some(bytes) = Batch::claimed_bytes(&raw, self.ids(), UNIT_MIN).filter(|bytes| fits(*bytes))
        else {
            return Ok(None);
        };
        if bytes > UNIT_MIN {
            // At most LOG_BATCH_BYTES_MAX.
            raw = read_units(device.as_ref(), home, offset, bytes)?;
        }
        let batch = Batch::parse(&raw, self.ids(), offset, UNIT_MIN);
        Ok(batch.map(|batch| ReadBatch { head: batch.head, frames: batch.frames.to_vec(), offset }))
    }

    /// A batch behind `offset` that says that batch `missing` was durable: its home, offset and number.
    fn later_batch(
        &self,
        zone: &LogZone,
        offset: u64,
        missing: u64,
    ) -> Result<Option<(Home, u64, u64)>, PoolError> {
        let (mut error, mut is_searched) = (None, false);
        for home in &zone.homes {
            match self.later_batch_in(*home, offset, missing) {
                Ok(None) => is_searched = true,
                Ok(found) => return Ok(found),
                Err(failed) => error = Some(failed),
            }
        }
        error.filter(|_| !is_searched).map_or(Ok(None), Err)
    }

    fn later_batch_in(
        &self,
        home: Home,
        offset: u64,
        missing: u64,
    ) -> Result<Option<(Home, u64, u64)>, PoolError> {
        let device = self.devices.get(home.device)?;
        let end = readable_end(device.as_ref(), home)?;
        let mut at = offset;
        while at < end {
            let len = (end - at).min(SEARCH_BYTES);
            let raw = read_units(device.as_ref(), home, at, len)?;
            for (nth, unit) in (0..).zip(raw.chunks(UNIT_MIN as usize)) {
                let is_claimed = Batch::claimed_bytes(unit, self.ids(), UNIT_MIN).is_some();
                let is_later = |head: &BatchHead| head.number > missing && head.acked >= missing;
                if !is_claimed || !BatchHead::decode(unit).is_some_and(|head| is_later(&head)) {
                    continue;
                }
                let place = at + nth * UNIT_MIN;
                if let Some(batch) = self.read_batch(home, place)? {
                    return Ok(Some((home, place, batch.head.number)));
                }
            }
            at += len;
        }
        Ok(None)
    }
}

/// Reads bytes that begin on a multiple of the smallest unit, in whole units of the device.
fn read_units(device: &dyn Device, home: Home, offset: u64, len: u64) -> Result<Vec<u8>, PoolError> {
    let unit = u64::from(device.info().write_unit);
    let skipped = offset % unit;
    let mut raw = vec![0; usize::try_from((skipped + len).next_multiple_of(unit)).unwrap_or(0)];
    device.read(home.zone, offset - skipped, &mut raw)?;
    raw.truncate(usize::try_from(skipped + len).unwrap_or(0));
    raw.drain(..usize::try_from(skipped).unwrap_or(0));
    Ok(raw)
}

/// Bytes of a zone that can be read: up to the write pointer, where the device knows it.
fn readable_end(device: &dyn Device, home: Home) -> Result<u64, PoolError> {
    let DeviceInfo { hardware_pointers, .. } = device.info();
    let report = device.report(home.zone)?;
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
