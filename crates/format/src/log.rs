//! The intent log: batches of records, and where a commit says that they begin.
//!
//! A batch is whole write units: a head, records, zeros. Batches lie one behind the other in zones that the commit
//! record names ([`LogHead`]). Each holds the seal of its predecessor, and its own seal is seeded with its number, so
//! bytes of an earlier filling of the zone never continue a chain.

use crate::addr::ZONE_BYTES_MAX;
use crate::home::{Home, get_home, put_home};
use crate::label::WRITE_UNIT_MAX;
use crate::seal::{SEAL_BYTES, Seed, seal};
use terrane_wire::{ObjsetId, Reader, Truncated, Txg, Writer, ZoneIdx, layout};

/// `magic` of a [`LogBatchHead`].
pub const LOG_BATCH_MAGIC: u64 = u64::from_le_bytes(*b"TERRLOGB");
/// Most bytes of a batch, with its head and padding.
pub const LOG_BATCH_BYTES_MAX: u64 = 4 << 20;
/// Most zones that a [`LogHead`] names.
pub const LOG_ZONES_MAX: usize = 2;
/// Most copies of a log.
pub const LOG_COPIES_MAX: usize = 2;

layout! {
    /// Start of a batch. `FORMAT.md` section "The intent log".
    LogBatchHead, 96 bytes {
        /// [`LOG_BATCH_MAGIC`].
        0  magic: u64,
        /// Id of the pool, as in the label.
        8  pool: u64,
        /// The incarnation that wrote it.
        16 incarnation: u64,
        /// Number of the batch: the predecessor's + 1. An incarnation begins with 1.
        24 number: u64,
        /// Every batch up to this number was durable when this one was made.
        32 acked: u64,
        /// The newest txg of its records.
        40 newest_txg: Txg,
        /// Bytes of records behind the head.
        48 len: u32,
        /// Ignored.
        52 reserved: [u8; 12],
        /// Seal of the predecessor; zeros for the first batch.
        64 chain: [u8; 16],
        /// Over the rest of the head, then the records.
        80 seal: [u8; 16],
    }
}

/// A batch as it was read.
pub struct Batch<'a> {
    /// Its head.
    pub head: LogBatchHead,
    /// Its records, one frame behind the other.
    pub frames: &'a [u8],
    /// Bytes that it takes in its zone: whole write units.
    pub stored_bytes: u64,
}

impl LogBatchHead {
    fn seed(&self, offset: u64) -> Seed {
        Seed { pool: self.pool, scope: self.number, offset, incarnation: self.incarnation }
    }

    fn seal_of(&self, offset: u64, frames: &[u8]) -> [u8; SEAL_BYTES] {
        let raw = self.encode();
        let head = raw.get(..LogBatchHead::SIZE - SEAL_BYTES).unwrap_or(&raw);
        seal(self.seed(offset), &[head, frames])
    }

    /// The batch as it is stored at `offset` of a zone: sealed, and padded to `unit`. The fields `magic`, `len` and
    /// `seal` may have any value, and are set.
    ///
    /// # Panics
    /// If there are 4 GiB of frames or more.
    pub fn encode_batch(&mut self, frames: &[u8], offset: u64, unit: usize) -> Vec<u8> {
        self.magic = LOG_BATCH_MAGIC;
        self.len = u32::try_from(frames.len()).expect("a batch is small");
        self.seal = self.seal_of(offset, frames);
        let mut raw = Writer::with_capacity((LogBatchHead::SIZE + frames.len()).next_multiple_of(unit));
        raw.bytes(&self.encode());
        raw.bytes(frames);
        raw.pad_to(unit);
        raw.into_bytes()
    }
}

impl<'a> Batch<'a> {
    /// The batch of `pool` and `incarnation` that begins at the start of `raw`, which is `offset` bytes into its zone. `None`: there is no
    /// whole one.
    pub fn parse(
        raw: &'a [u8],
        (pool, incarnation): (u64, u64),
        offset: u64,
        unit: u64,
    ) -> Option<Batch<'a>> {
        let head = LogBatchHead::decode(raw)?;
        if head.magic != LOG_BATCH_MAGIC || head.pool != pool || head.incarnation != incarnation {
            return None;
        }
        let end = LogBatchHead::SIZE.checked_add(usize::try_from(head.len).ok()?)?;
        let stored_bytes = u64::try_from(end).ok()?.checked_next_multiple_of(unit)?;
        if stored_bytes > LOG_BATCH_BYTES_MAX {
            return None;
        }
        let frames = raw.get(LogBatchHead::SIZE..end)?;
        (head.seal == head.seal_of(offset, frames)).then_some(Batch { head, frames, stored_bytes })
    }

    /// Bytes that the batch at the start of `raw` claims to take, so that more can be read. `None`: there is none.
    pub fn claimed_bytes(raw: &[u8], (pool, incarnation): (u64, u64), unit: u64) -> Option<u64> {
        let head = LogBatchHead::decode(raw)?;
        let is_ours = head.magic == LOG_BATCH_MAGIC && head.pool == pool && head.incarnation == incarnation;
        let bytes =
            (LogBatchHead::SIZE as u64).checked_add(head.len.into())?.checked_next_multiple_of(unit)?;
        (is_ours && bytes <= LOG_BATCH_BYTES_MAX).then_some(bytes)
    }
}

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The object set that it changes.
    pub set: ObjsetId,
    /// Its number in the order of all changes of the pool.
    pub change: u64,
    /// The txg in which the change was made.
    pub txg: Txg,
    /// What the layer above wrote.
    pub body: &'a [u8],
}

/// A record that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedFrame {
    /// As in [`Frame`].
    pub set: ObjsetId,
    /// As in [`Frame`].
    pub change: u64,
    /// As in [`Frame`].
    pub txg: Txg,
    /// As in [`Frame`].
    pub body: Vec<u8>,
}

impl OwnedFrame {
    /// The record without its bytes.
    pub fn as_frame(&self) -> Frame<'_> {
        Frame { set: self.set, change: self.change, txg: self.txg, body: &self.body }
    }
}

impl From<Frame<'_>> for OwnedFrame {
    fn from(frame: Frame<'_>) -> Self {
        let Frame { set, change, txg, body } = frame;
        OwnedFrame { set, change, txg, body: body.to_vec() }
    }
}

impl<'a> Frame<'a> {
    /// Appends the stored form.
    pub fn append_to(&self, frames: &mut Vec<u8>) {
        let mut raw = Writer::from(std::mem::take(frames));
        raw.varint(self.set.0);
        raw.varint(self.change);
        raw.varint(self.txg.0);
        raw.blob(self.body);
        *frames = raw.into_bytes();
    }

    /// The frames of a batch, in the order in which they were appended.
    pub fn parse_all(frames: &'a [u8]) -> Result<Vec<Frame<'a>>, Truncated> {
        let mut reader = Reader::new(frames);
        let mut all = Vec::new();
        while !reader.is_empty() {
            let (set, change, txg) = (ObjsetId(reader.varint()?), reader.varint()?, Txg(reader.varint()?));
            all.push(Frame { set, change, txg, body: reader.blob()? });
        }
        Ok(all)
    }
}

/// Where a copy of a zone of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogHome {
    /// On a member of the pool, which lent the zone.
    Lent(Home),
    /// On a log device.
    Own {
        /// Id of the device in the label.
        device: u64,
        /// The physical zone on the device.
        zone: ZoneIdx,
        /// As in the [head of the zone](crate::log_device::LogZoneHead).
        filling: u64,
    },
}

impl LogHome {
    /// The zone of a member.
    pub fn lent(self) -> Option<Home> {
        match self {
            LogHome::Lent(home) => Some(home),
            LogHome::Own { .. } => None,
        }
    }

    /// The id of the log device.
    pub fn log_device(self) -> Option<u64> {
        match self {
            LogHome::Own { device, .. } => Some(device),
            LogHome::Lent(_) => None,
        }
    }
}

impl std::fmt::Display for LogHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LogHome::Lent(home) => home.fmt(f),
            LogHome::Own { device, zone, .. } => write!(f, "log device {device:016x} zone {zone}"),
        }
    }
}

/// A zone of the log, on as many devices as the log has copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogZone {
    /// Where it is, one entry for each copy. All are on members, or all on log devices.
    pub homes: Vec<LogHome>,
}

/// Where the records begin that a commit does not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// The incarnation that writes the log.
    pub incarnation: u64,
    /// Number of the first batch, which may be written later.
    pub number: u64,
    /// Its offset in the first zone, in bytes.
    pub offset: u64,
    /// Batches are multiples of this, in bytes: a power of two, 4 KiB to 1 MiB.
    pub unit: u64,
    /// Seal of the batch before.
    pub chain: [u8; 16],
    /// Records of this txg and of earlier ones are contained in the commit. That is the commit's own txg, except while a
    /// replay goes on.
    pub after: Txg,
    /// Records whose change has this number or a smaller one are contained too. 0: none.
    pub replayed: u64,
    /// The zone of the first batch, and the one in which the log goes on. None: only a replay of changes from elsewhere goes on.
    pub zones: Vec<LogZone>,
}

/// The two stored forms of a [`LogHead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogForm {
    /// Tag 16: all zones are lent.
    Lent,
    /// Tag 17: some are on log devices (`org.terrane:log_devices`).
    Own,
}

impl LogHead {
    /// Whether a zone is on a log device.
    pub fn has_own_zones(&self) -> bool {
        self.homes().any(|home| home.lent().is_none())
    }

    /// All copies of all zones.
    pub fn homes(&self) -> impl Iterator<Item = LogHome> + '_ {
        self.zones.iter().flat_map(|zone| zone.homes.iter().copied())
    }

    pub(crate) fn form(&self) -> LogForm {
        if self.has_own_zones() { LogForm::Own } else { LogForm::Lent }
    }

    /// Appends the stored form.
    pub(crate) fn put(&self, raw: &mut Writer) {
        for number in [self.incarnation, self.number, self.offset, self.unit, self.after.0, self.replayed] {
            raw.varint(number);
        }
        raw.bytes(&self.chain);
        raw.varint(self.zones.len() as u64);
        for zone in &self.zones {
            raw.varint(zone.homes.len() as u64);
            zone.homes.iter().for_each(|home| put_log_home(raw, self.form(), *home));
        }
    }

    /// Parses the stored form.
    pub(crate) fn get(raw: &mut Reader<'_>, form: LogForm) -> Result<LogHead, Truncated> {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let mut numbers = [0; 6];
        for number in &mut numbers {
            *number = raw.varint()?;
        }
        let [incarnation, number, offset, unit, after, replayed] = numbers;
        let is_unit = unit.is_power_of_two() && (4096..=u64::from(WRITE_UNIT_MAX)).contains(&unit);
        if numbers.iter().any(|number| *number >= 1 << 62)
            || number == 0
            || offset > ZONE_BYTES_MAX
            || !is_unit
        {
            return Err(bad);
        }
        let chain = raw.array()?;
        let mut zones = Vec::new();
        for _ in 0..get_count(raw, 0, LOG_ZONES_MAX)? {
            let mut homes = Vec::new();
            for _ in 0..get_count(raw, 1, LOG_COPIES_MAX)? {
                homes.push(get_log_home(raw, form)?);
            }
            zones.push(LogZone { homes });
        }
        Ok(LogHead { incarnation, number, offset, unit, chain, after: Txg(after), replayed, zones })
    }
}

fn put_log_home(raw: &mut Writer, form: LogForm, home: LogHome) {
    if form == LogForm::Own {
        raw.u8(u8::from(home.lent().is_none()));
    }
    match home {
        LogHome::Lent(home) => put_home(raw, home),
        LogHome::Own { device, zone, filling } => {
            raw.u64(device);
            raw.varint(zone.0.into());
            raw.u64(filling);
        }
    }
}

fn get_log_home(raw: &mut Reader<'_>, form: LogForm) -> Result<LogHome, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let kind = if form == LogForm::Own { raw.u8()? } else { 0 };
    match kind {
        0 => Ok(LogHome::Lent(get_home(raw)?)),
        1 => {
            let (device, zone) = (raw.u64()?, u32::try_from(raw.varint()?).map_err(|_| bad)?);
            Ok(LogHome::Own { device, zone: ZoneIdx(zone), filling: raw.u64()? })
        }
        _ => Err(bad),
    }
}

/// A count of `min` to `max`.
fn get_count(raw: &mut Reader<'_>, min: u64, max: usize) -> Result<u64, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    raw.varint().and_then(|count| if (min..=max as u64).contains(&count) { Ok(count) } else { Err(bad) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::DeviceIdx;

    fn head(number: u64) -> LogBatchHead {
        let (pool, incarnation, reserved) = (7, 3, [0; 12]);
        let (chain, seal, newest_txg) = ([9; 16], [0; 16], Txg(40));
        LogBatchHead {
            magic: 0,
            pool,
            incarnation,
            number,
            acked: 4,
            newest_txg,
            len: 0,
            reserved,
            chain,
            seal,
        }
    }

    #[test]
    fn a_batch_is_valid_only_where_it_was_written() {
        let mut frames = Vec::new();
        let one = Frame { set: ObjsetId(5), change: 77, txg: Txg(40), body: b"something" };
        let two = Frame { set: ObjsetId(6), change: 78, txg: Txg(41), body: b"" };
        one.append_to(&mut frames);
        two.append_to(&mut frames);
        let raw = head(8).encode_batch(&frames, 8192, 4096);
        assert_eq!(raw.len(), 4096);
        let batch = Batch::parse(&raw, (7, 3), 8192, 4096).unwrap();
        assert_eq!((batch.head.number, batch.stored_bytes), (8, 4096));
        assert_eq!(Frame::parse_all(batch.frames).unwrap(), [one, two]);
        assert_eq!(Batch::claimed_bytes(&raw, (7, 3), 4096), Some(4096));
        for (ids, offset) in [((8, 3), 8192), ((7, 4), 8192), ((7, 3), 4096)] {
            assert!(Batch::parse(&raw, ids, offset, 4096).is_none(), "{ids:?} {offset}");
        }
        for at in 0..LogBatchHead::SIZE + frames.len() {
            let mut rotten = raw.clone();
            rotten[at] ^= 1;
            assert!(Batch::parse(&rotten, (7, 3), 8192, 4096).is_none(), "byte {at}");
            assert!(Batch::parse(&raw[..at], (7, 3), 8192, 4096).is_none(), "cut at {at}");
        }
        assert!(Frame::parse_all(&frames[..frames.len() - 1]).is_err());
    }

    #[test]
    fn a_log_head_is_read_back_and_checked() {
        let home = |zone| LogHome::Lent(Home { device: DeviceIdx(1), zone: ZoneIdx(zone) });
        let zones = vec![LogZone { homes: vec![home(4), home(5)] }, LogZone { homes: vec![home(6)] }];
        let (after, replayed, chain) = (Txg(12), 70, [3; 16]);
        let (incarnation, number, offset, unit) = (2, 9, 1 << 20, 8192);
        let head = LogHead { incarnation, number, offset, unit, chain, after, replayed, zones };
        let written = |head: &LogHead| {
            let mut raw = Writer::new();
            head.put(&mut raw);
            raw.into_bytes()
        };
        let own = |filling| LogHome::Own { device: 1 << 63 | 5, zone: ZoneIdx(filling as u32), filling };
        let mut mixed = head.clone();
        mixed.zones[1].homes = vec![own(7), own(8)];
        for head in [&head, &mixed] {
            let (raw, form) = (written(head), head.form());
            assert_eq!(LogHead::get(&mut Reader::new(&raw), form), Ok(head.clone()));
            for cut in 0..raw.len() {
                assert!(LogHead::get(&mut Reader::new(&raw[..cut]), form).is_err(), "cut at {cut}");
            }
        }
        assert_eq!((head.form(), mixed.form()), (LogForm::Lent, LogForm::Own));
        let no_homes = LogHead { zones: vec![LogZone { homes: Vec::new() }], ..head.clone() };
        let three = LogHead { zones: vec![head.zones[0].clone(); 3], ..head.clone() };
        for bad in
            [LogHead { number: 0, ..head.clone() }, LogHead { offset: 1 << 40, ..head }, no_homes, three]
        {
            assert!(LogHead::get(&mut Reader::new(&written(&bad)), LogForm::Lent).is_err(), "{bad:?}");
        }
    }
}
