//! The intent log: what the layer above logs between commits, and what an import finds of it.
//!
//! Each commit says where the records begin that it does not contain. It lends the log zones that the allocator calls empty: they have
//! no row in the zone tables, and nothing but the commit record knows them. When zones are short, the log gives them back, and an
//! `fsync` is a commit again.
//!
//! An import that finds records keeps the log named, in every commit, until the layer above has replayed them. Until then there is no
//! new log.

use crate::pool::{Pool, SyncState, Tx, TxgSync};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrane_device::{Device, ZoneState};
use terrane_format::Feature;
use terrane_format::log::{Frame, LOG_COPIES_MAX, LogHead, LogZone, OwnedFrame};
use terrane_format::record::Home;
use terrane_space::policy::ZoneSupply;
use terrane_store::PoolError;
use terrane_store::devices::{Devices, log_zones};
use terrane_store::log::{LOGGED_BYTES_MAX, LogFailed, LogPlan, LogTicket};
use terrane_store::log_reader::LogReader;
use terrane_wire::{Corrupt, DeviceIdx, Txg};

/// Most bytes of a zone that the log uses on a drive. They bound the replay.
const LOG_ZONE_BYTES_MAX: u64 = 64 << 20;
/// The same without hardware pointers, where a zone need not be used up before it is used again. So the log soon writes only blocks
/// that the file system below has allocated before.
const LOG_ZONE_BYTES_REUSED: u64 = 16 << 20;

/// A log that an import found.
pub(crate) struct FoundLog {
    head: LogHead,
    /// Records that the commit does not contain, in order.
    records: Vec<OwnedFrame>,
    bytes: u64,
    /// Records of these txgs have been replayed up to this number of a change.
    replayed: Vec<(Txg, u64)>,
    /// All is replayed, by this txg. 0: there was nothing, or the log was given up.
    ended: Option<Txg>,
}

/// The intent log of a pool, beside its writer.
pub(crate) struct LogState {
    found: Mutex<Option<FoundLog>>,
    /// The next commit gives the log up, and there is no other.
    is_closing: AtomicBool,
}

/// What an import found in the intent log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSummary {
    /// Records that the imported txg does not contain.
    pub records: u64,
    /// Bytes of the log's batches.
    pub bytes: u64,
}

/// The log that a commit names, and the zone that it gets.
pub(crate) struct CommitLog {
    pub head: Option<LogHead>,
    plan: Option<LogPlan>,
    returned: Vec<Home>,
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
        let head = LogHead { incarnation, number: 1, offset: 0, chain, after: txg, replayed: 0, zones };
        FoundLog { ended: None, ..found.unwrap_or_else(|| FoundLog::empty(head)) }
    }

    /// The zones that must not be written before the replay is durable.
    pub fn homes(&self) -> impl Iterator<Item = Home> + '_ {
        homes_of(&self.head)
    }

    /// Adds records that the commit does not contain. Records may be there already.
    fn add(&mut self, records: impl IntoIterator<Item = OwnedFrame>) {
        let LogHead { after, replayed, .. } = self.head;
        self.records
            .extend(records.into_iter().filter(|record| record.txg > after && record.change > replayed));
        self.records.sort_by_key(|record| record.change);
        self.records.dedup_by_key(|record| record.change);
    }

    /// The head for the record of `txg`. `None`: all is replayed.
    fn head_for(&self, txg: Txg) -> Option<LogHead> {
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

impl Pool {
    /// The next number in the order of all changes of the pool.
    pub fn next_change(&self) -> u64 {
        self.store.log.next_change()
    }

    /// Most bytes of records that are better logged than committed. 0: there is no log now, so each `fsync` commits.
    pub fn log_bytes_max(&self) -> usize {
        if self.store.log.is_open() { LOGGED_BYTES_MAX } else { 0 }
    }

    /// The next commit is to open a log, if zones suffice: an `fsync` was a commit because there was none.
    pub fn want_log(&self) {
        self.store.log.want_zone();
    }

    /// Hands frames (see [`Frame`]) of txgs up to `newest` to the log, in whole. `None`: it takes nothing now, so the caller must
    /// commit. Does not wait.
    pub fn log(&self, frames: &[u8], newest: Txg) -> Option<LogTicket> {
        let ticket = self.store.log.append(frames, newest);
        if self.store.log.wants_commit() {
            self.admission.request_commit();
        }
        ticket
    }

    /// Waits until the records of this ticket, and of all tickets before, are durable.
    ///
    /// # Errors
    /// They may not be: the caller must commit.
    pub fn wait_logged(&self, ticket: LogTicket) -> Result<(), LogFailed> {
        self.store.log.wait(ticket)
    }

    /// The zones that the log has, oldest first.
    pub fn log_zones(&self) -> Vec<LogZone> {
        self.store.log.zones()
    }

    /// What the intent log holds that is not replayed. `None`: nothing, so data sets may be opened for changes.
    pub fn unreplayed_log(&self) -> Option<LogSummary> {
        let found = self.log.found.lock();
        let found = found.as_ref().filter(|found| found.ended.is_none())?;
        Some(LogSummary { records: found.records.len() as u64, bytes: found.bytes })
    }

    /// Adds changes that a predecessor has kept in memory, to be replayed with those of the log. The pool was imported with
    /// [`expects_changes`](crate::ImportOptions::expects_changes). `incarnation`: theirs. False: they are not of the server that wrote
    /// the imported txg, so they are not added.
    pub fn add_kept_changes(&self, incarnation: u64, changes: impl IntoIterator<Item = OwnedFrame>) -> bool {
        let mut found = self.log.found.lock();
        let Some(found) = found.as_mut().filter(|found| found.head.incarnation == incarnation) else {
            return false;
        };
        found.add(changes);
        true
    }

    /// Calls `replay` with the records that are to be replayed, in order. It notes each repeated change by
    /// [`note_replayed`](Pool::note_replayed). Then this commits, and the log is done with.
    ///
    /// # Errors
    /// The error of `replay`, or of the commit. The records stay in the log.
    pub fn replay_log<E: From<PoolError>>(
        self: &Arc<Self>,
        replay: impl FnOnce(&[OwnedFrame]) -> Result<(), E>,
    ) -> Result<(), E> {
        let take = |found: &mut FoundLog| std::mem::take(&mut found.records);
        let records = self.log.found.lock().as_mut().map(take).unwrap_or_default();
        let outcome = replay(&records);
        if let Some(found) = &mut *self.log.found.lock() {
            match &outcome {
                Ok(()) => found.ended = Some(found.replayed.last().map_or(Txg(0), |(txg, _)| *txg)),
                Err(_) => found.records = records,
            }
        }
        outcome?;
        self.commit_txg(self.admission.open())?;
        Ok(())
    }

    /// The transaction repeats the change with this number, or what of it was left to do. So its txg contains all changes up to that.
    pub fn note_replayed(&self, tx: &Tx, change: u64) {
        if let Some(found) = &mut *self.log.found.lock() {
            match found.replayed.last_mut() {
                Some((txg, newest)) if *txg == tx.txg() => *newest = change,
                _ => found.replayed.push((tx.txg(), change)),
            }
        }
    }

    /// Gives up the records of the log that the import found. The next commit does not name it.
    pub fn discard_log(&self) {
        if let Some(found) = &mut *self.log.found.lock() {
            found.ended = Some(Txg(0));
            self.admission.want_empty();
        }
    }

    /// The log is given up by the next commit, and there is no other: the pool is exported.
    pub(crate) fn close_log(&self) {
        self.log.is_closing.store(true, Ordering::Release);
    }

    fn is_log_closing(&self) -> bool {
        self.log.is_closing.load(Ordering::Acquire)
    }
}

impl TxgSync<'_> {
    /// What the record of this txg says of the log. It may lend the log a zone.
    pub(crate) fn log_for_record(&mut self) -> CommitLog {
        let (pool, txg) = (self.pool, self.txg);
        let mut found = pool.log.found.lock();
        if let Some(log) = &*found {
            if let Some(head) = log.head_for(txg) {
                pool.note_use(Feature::Log);
                return CommitLog { head: Some(head), plan: None, returned: Vec::new() };
            }
            let returned = log.homes().collect();
            *found = None;
            return CommitLog { head: None, plan: None, returned };
        }
        drop(found);
        if !pool.has(Feature::Log) {
            return CommitLog { head: None, plan: None, returned: Vec::new() };
        }
        let supply = pool.admission.zone_supply(self.st).zones;
        let gives_up = supply == ZoneSupply::Short
            || pool.is_log_closing()
            || pool.store.log.has_zone(&|home| pool.store.devices.is_leaving(home.device));
        let may_lend = !gives_up && supply >= ZoneSupply::Ample && pool.store.log.needs_zone(txg);
        let lent = may_lend.then(|| pool.lend_zone(self.st)).flatten();
        let plan = pool.store.log.plan(txg, lent, gives_up);
        if plan.head.is_some() {
            pool.note_use(Feature::Log);
        }
        CommitLog { head: plan.head.clone(), plan: Some(plan), returned: Vec::new() }
    }
}

impl Pool {
    /// Takes empty zones for the log: one, and another one on a second device if there is one. `None`: none takes writes.
    fn lend_zone(&self, st: &mut SyncState) -> Option<(Vec<Home>, u64)> {
        let mut homes: Vec<Home> = Vec::new();
        let mut capacity = u64::MAX;
        while homes.len() < LOG_COPIES_MAX {
            let others: Vec<DeviceIdx> = homes.iter().map(|home| home.device).collect();
            let usable = |device: DeviceIdx| {
                let is_fit = |device: &dyn Device| log_zones(device.info()) > 0;
                !others.contains(&device)
                    && !self.store.devices.is_leaving(device)
                    && self.store.devices.get(device).is_ok_and(|device| is_fit(device.as_ref()))
            };
            let Some(home) = st.alloc.pop_for_log(&usable) else { break };
            let Ok(device) = self.store.devices.get(home.device) else { break };
            st.alloc.take_unclean(home);
            let reset = device.reset_for_reuse(home.zone).and_then(|()| device.report(home.zone));
            match reset {
                Ok(report) if report.state == ZoneState::Empty && report.capacity > 0 => {
                    let most = match device.info().hardware_pointers {
                        true => LOG_ZONE_BYTES_MAX,
                        false => LOG_ZONE_BYTES_REUSED,
                    };
                    capacity = capacity.min(report.capacity).min(most);
                    st.alloc.lend(home, report.capacity);
                    homes.push(home);
                }
                other => {
                    log::warn!("{home}: no zone for the intent log: {other:?}");
                    st.alloc.put_unclean(home);
                    break;
                }
            }
        }
        (!homes.is_empty()).then_some((homes, capacity))
    }

    /// The commit of `txg` is durable.
    pub(crate) fn end_log_commit(&self, st: &mut SyncState, txg: Txg, commit_log: CommitLog) {
        let CommitLog { plan, mut returned, .. } = commit_log;
        if let Some(plan) = plan {
            returned.extend(self.store.log.committed(txg, plan));
        }
        for home in returned {
            st.alloc.take_back(home);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_nothing_of_later_txgs() {
        let zone = LogZone { homes: vec![Home { device: DeviceIdx(0), zone: terrane_wire::ZoneIdx(5) }] };
        let is_sound = |after: u64, replayed: u64, zones: Vec<LogZone>| {
            let (chain, after) = ([0; 16], Txg(after));
            let head = LogHead { incarnation: 1, number: 1, offset: 0, chain, after, replayed, zones };
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
        let head = LogHead { incarnation: 1, number: 1, offset: 0, chain, after: Txg(4), replayed: 2, zones };
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
