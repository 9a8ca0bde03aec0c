//! The intent log that an import found, until all of it is replayed.

use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;
use terrane_format::log::{Frame, LogHead, OwnedFrame};
use terrane_format::record::Home;
use terrane_store::PoolError;
use terrane_store::devices::Devices;
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
    pub fn homes(&self) -> impl Iterator<Item = Home> + '_ {
        homes_of(&self.head)
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

/// The zones of a log.
pub(crate) fn homes_of(head: &LogHead) -> impl Iterator<Item = Home> + '_ {
    head.zones.iter().flat_map(|zone| zone.homes.iter().copied())
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
        let zone = LogZone { homes: vec![Home { device: DeviceIdx(0), zone: ZoneIdx(5) }] };
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
