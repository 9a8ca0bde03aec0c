//! The intent log that an import found, until all of it is replayed.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use terrane_device::Device;
use terrane_format::label::{ANCHORS, Label};
use terrane_format::log::{Frame, LogHead, LogHome, OwnedFrame};
use terrane_format::record::Home;
use terrane_store::PoolError;
use terrane_store::devices::Devices;
use terrane_store::log_devices::HEAD_ZONES;
use terrane_store::log_reader::LogReader;
use terrane_wire::{Corrupt, Txg};

/// A log that an import found.
pub(crate) struct FoundLog {
    pub head: LogHead,
    /// Records that the commit does not contain, in order.
    pub records: Vec<OwnedFrame>,
    pub bytes: u64,
    /// Records of these txgs have been replayed up to this number of a change.
    pub replayed: Vec<(Txg, u64)>,
    /// All is replayed, by this txg. 0: there was nothing, or the log was given up.
    pub ended: Option<Txg>,
}

/// The intent log of a pool, beside its writer.
pub(crate) struct LogState {
    pub found: Mutex<Option<FoundLog>>,
    /// The next commit gives the log up, and there is no other.
    pub is_closing: AtomicBool,
}

impl FoundLog {
    /// Reads the log that the imported record names, which is that of `txg`.
    pub fn read(devices: &Devices, pool: u64, txg: Txg, head: LogHead) -> Result<FoundLog, PoolError> {
        check_head(&head, txg)?;
        let read = LogReader::new(devices, pool, &head).read()?;
        let frames = Frame::parse_all(&read.frames)
            .map_err(|error| Corrupt::new("intent log", "records of a batch", "whole", error))?;
        let mut found = FoundLog { bytes: read.bytes, ..FoundLog::empty(head) };
        found.add(frames.into_iter().map(OwnedFrame::from));
        found.ended = found.records.is_empty().then_some(Txg(0));
        Ok(found)
    }

    /// Without records.
    fn empty(head: LogHead) -> FoundLog {
        FoundLog { head, records: Vec::new(), bytes: 0, replayed: Vec::new(), ended: None }
    }

    /// For changes that a predecessor has kept in memory and will be handed over. `imported`: txg and incarnation of what was
    /// imported. `found`: its log.
    pub fn expecting(found: Option<FoundLog>, (txg, incarnation): (Txg, u64)) -> FoundLog {
        let (chain, zones) = ([0; 16], Vec::new());
        let (number, offset, unit) = (1, 0, 4096);
        let head = LogHead { incarnation, number, offset, unit, chain, after: txg, replayed: 0, zones };
        FoundLog { ended: None, ..found.unwrap_or_else(|| FoundLog::empty(head)) }
    }

    /// The zones that must not be written before the replay is durable.
    pub fn homes(&self) -> impl Iterator<Item = LogHome> + '_ {
        self.head.homes()
    }

    /// Adds records that the commit does not contain. Records may be there already.
    pub fn add(&mut self, records: impl IntoIterator<Item = OwnedFrame>) {
        let LogHead { after, replayed, .. } = self.head;
        self.records
            .extend(records.into_iter().filter(|record| record.txg > after && record.change > replayed));
        self.records.sort_by_key(|record| record.change);
        self.records.dedup_by_key(|record| record.change);
    }

    /// The head for the record of `txg`. `None`: all is replayed.
    pub fn head_for(&self, txg: Txg) -> Option<LogHead> {
        let replayed = self.replayed.iter().filter(|(of, _)| *of <= txg).map(|(_, change)| *change).max();
        let replayed = replayed.unwrap_or(0).max(self.head.replayed);
        self.ended.is_none_or(|ended| ended > txg).then(|| LogHead { replayed, ..self.head.clone() })
    }
}

/// The log that the record of `txg` names, with its records. `used`: zones of the tables. `gives_up`: an administrator gives its
/// records up.
///
/// # Errors
/// It cannot be read, and the pool is imported to be changed: its records are changes that `fsync` has promised.
pub(crate) fn find_log(
    (devices, label): (&Devices, &Label),
    txg: Txg,
    head: Option<LogHead>,
    used: &BTreeSet<Home>,
    (read_only, gives_up): (bool, bool),
) -> Result<Option<FoundLog>, PoolError> {
    let Some(head) = head else { return Ok(None) };
    if gives_up {
        // It belongs to the newest txg, not to the one that the administrator goes back to.
        log::warn!("pool {}: intent log discarded", label.name);
        return Ok(None);
    }
    let is_block_zone = |home: &Home| {
        label.member(home.device).is_some_and(|row| (ANCHORS..row.zone_count).contains(&home.zone.0))
    };
    let is_fit = |home: &LogHome| match home {
        LogHome::Lent(home) => !used.contains(home) && is_block_zone(home),
        LogHome::Own { device, zone, .. } => devices
            .log_devices
            .get(*device)
            .is_none_or(|device| (HEAD_ZONES..device.device().info().zone_count).contains(&zone.0)),
    };
    let unfit = head.homes().find(|home| !is_fit(home));
    let found = match unfit {
        Some(home) => {
            let at = format!("commit record of txg {txg}");
            let error = Corrupt::new(at, "zone of the intent log", "one that holds nothing else", home);
            Err(refuse_log(label, error.into()))
        }
        None => refuse_missing(label, &head, &|id| devices.log_devices.get(id).is_some()).and_then(|()| {
            FoundLog::read(devices, label.pool, txg, head).map_err(|error| refuse_log(label, error))
        }),
    };
    match found {
        Err(error) if read_only => {
            log::error!("intent log unreadable: {error}");
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// Every zone of the log that a commit names must be on some log device that is there.
fn refuse_missing(label: &Label, head: &LogHead, is_there: &dyn Fn(u64) -> bool) -> Result<(), PoolError> {
    let is_lost = |home: &LogHome| home.log_device().is_some_and(|id| !is_there(id));
    let Some(zone) = head.zones.iter().find(|zone| zone.homes.iter().all(is_lost)) else { return Ok(()) };
    let name = |home: &LogHome| {
        let id = home.log_device()?;
        let row = label.log_devices.iter().find(|row| row.device == id);
        let path = row.map_or("unknown to the label", |row| row.name.as_str());
        Some(format!("{id:016x}, last known as {path}"))
    };
    let names: Vec<String> = zone.homes.iter().filter_map(name).collect();
    Err(PoolError::refused(
        format_args!("pool {}, intent log", label.name),
        format_args!("log device {}", names.join(", or ")),
        "it missing, with what was synced after the last commit",
        "connect it; or --discard-log imports the last committed txg, and loses what was synced after it",
    ))
}

/// A log that cannot be read must not be taken for an empty one.
fn refuse_log(label: &Label, error: PoolError) -> PoolError {
    let remedy = match error.is_transient() {
        true => "check the device and its connection, then import again: nothing is known to be damaged",
        false => "--discard-log imports the last committed txg, and loses what was synced after it",
    };
    PoolError::refused(format_args!("pool {}", label.name), "a readable intent log", error, remedy)
}

/// A record contains no txg after its own. Only while a replay goes on, it contains a part of a txg, or names no zones.
fn check_head(head: &LogHead, txg: Txg) -> Result<(), Corrupt> {
    let is_in_replay = head.after < txg;
    let is_sound = head.after == txg && head.replayed == 0 && !head.zones.is_empty();
    if is_in_replay || is_sound {
        return Ok(());
    }
    let (after, replayed, zones) = (head.after, head.replayed, head.zones.len());
    let found = format_args!("{zones} zones, records behind change {replayed} and txg {after}");
    let expected = format_args!("a zone with records behind txg {txg}, or a replay of earlier ones");
    Err(Corrupt::new(format!("commit record of txg {txg}"), "intent log", expected, found))
}

impl LogState {
    pub fn new(found: Option<FoundLog>, may_open: bool) -> LogState {
        LogState { found: Mutex::new(found), is_closing: AtomicBool::new(!may_open) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::log::LogZone;
    use terrane_wire::{DeviceIdx, ZoneIdx};

    #[test]
    fn a_record_says_nothing_of_later_txgs() {
        let zone = LogZone { homes: vec![LogHome::Lent(Home { device: DeviceIdx(0), zone: ZoneIdx(5) })] };
        let is_sound = |after: u64, replayed: u64, zones: Vec<LogZone>| {
            let (chain, after, unit) = ([0; 16], Txg(after), 4096);
            let head = LogHead { incarnation: 1, number: 1, offset: 0, unit, chain, after, replayed, zones };
            check_head(&head, Txg(7)).is_ok()
        };
        assert!(is_sound(7, 0, vec![zone.clone()]));
        assert!(is_sound(6, 0, vec![zone.clone()]) && is_sound(6, 9, vec![zone.clone()]));
        assert!(is_sound(6, 9, Vec::new()), "changes that a server has kept");
        assert!(!is_sound(8, 0, vec![zone.clone()]));
        assert!(!is_sound(7, 9, vec![zone]) && !is_sound(7, 0, Vec::new()));
    }

    /// A txg that syncs when the replay ends lacks what was repeated in the next one.
    #[test]
    fn a_commit_names_the_log_until_it_contains_the_whole_replay() {
        let (chain, zones) = ([0; 16], Vec::new());
        let (incarnation, number, offset, unit) = (1, 1, 0, 4096);
        let head = LogHead { incarnation, number, offset, unit, chain, after: Txg(4), replayed: 2, zones };
        let mut found = FoundLog::empty(head);
        let replayed =
            |found: &FoundLog, txg| found.head_for(Txg(txg)).map(|head| (head.after, head.replayed));
        assert_eq!(replayed(&found, 100), Some((Txg(4), 2)));
        found.replayed = vec![(Txg(100), 5), (Txg(101), 9)];
        assert_eq!(replayed(&found, 100), Some((Txg(4), 5)));
        found.ended = Some(Txg(101));
        assert_eq!(replayed(&found, 99), Some((Txg(4), 2)));
        assert_eq!(replayed(&found, 100), Some((Txg(4), 5)));
        assert_eq!(replayed(&found, 101), None);
    }
}
