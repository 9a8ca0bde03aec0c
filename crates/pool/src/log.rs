//! The intent log: what the layer above logs between commits, and what an import finds of it.
//!
//! Each commit says where the records begin that it does not contain. The log lies on log devices, if there is one that works. Else the
//! commit lends it zones that the allocator calls empty: they have no row in the zone tables, and nothing but the commit record knows
//! them. When zones are short, the log gives them back, and an `fsync` is a commit again.
//!
//! An import that finds records keeps the log named, in every commit, until the layer above has replayed them. Until then there is no
//! new log.

use crate::found_log::FoundLog;
use crate::pool::{Pool, SyncState, Tx, TxgSync};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_device::{Device, ZoneState};
use terrane_format::Feature;
use terrane_format::log::{LOG_COPIES_MAX, LogHead, LogHome, LogZone, OwnedFrame};
use terrane_format::record::Home;
use terrane_space::policy::ZoneSupply;
use terrane_store::PoolError;
use terrane_store::devices::log_zones;
use terrane_store::log::{LOGGED_BYTES_MAX, LogFailed, LogPlan, LogTicket, NewZone};
use terrane_wire::{DeviceIdx, Txg};

/// Most bytes of a zone that the log uses on a drive. They bound the replay.
const LOG_ZONE_BYTES_MAX: u64 = 64 << 20;
/// The same without hardware pointers, where a zone need not be used up before it is used again. So the log soon writes only blocks
/// that the file system below has allocated before.
const LOG_ZONE_BYTES_REUSED: u64 = 16 << 20;

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
    returned: Vec<LogHome>,
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

    /// The newest ticket, if so many bytes of frames fit only when those that were handed over have been written.
    pub fn log_full_until(&self, bytes: usize) -> Option<LogTicket> {
        self.store.log.full_until(bytes)
    }

    /// Waits until the records of this ticket, and of all tickets before, are durable.
    ///
    /// # Errors
    /// They may not be: the caller must commit.
    pub fn wait_logged(&self, ticket: LogTicket) -> Result<(), LogFailed> {
        self.store.log.wait(ticket)
    }

    /// Whether the records of this ticket may not be durable, and never will be.
    pub fn has_log_failed(&self, ticket: LogTicket) -> bool {
        self.store.log.has_failed(ticket)
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
    /// [`expects_changes`](crate::ImportOptions::expects_changes). Those that a commit contains are ignored: a later incarnation gives
    /// its txgs higher numbers. False: they were not expected.
    pub fn add_kept_changes(&self, changes: impl IntoIterator<Item = OwnedFrame>) -> bool {
        let mut found = self.log.found.lock();
        let Some(found) = found.as_mut() else { return false };
        found.add(changes);
        true
    }

    /// These changes were tried before, and are left out of the replay.
    pub fn leave_out_changes(&self, changes: &BTreeSet<u64>) {
        if let Some(found) = &mut *self.log.found.lock() {
            found.records.retain(|record| !changes.contains(&record.change));
        }
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
                pool.note_log_use(&head);
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
        let log = &pool.store.log;
        let gives_up = pool.is_log_closing()
            || log.has_zone(&|home| {
                let lent = home.lent();
                lent.is_some_and(|lent| {
                    supply == ZoneSupply::Short || pool.store.devices.is_leaving(lent.device)
                })
            });
        let needs_zone = !pool.is_log_closing() && log.needs_zone(txg);
        let own = needs_zone.then(|| pool.open_log_zone(&most_bytes)).flatten();
        let may_lend = needs_zone && own.is_none() && !gives_up && supply >= ZoneSupply::Ample;
        let added = own.or_else(|| may_lend.then(|| pool.lend_zone(self.st)).flatten());
        let plan = log.plan(txg, added, gives_up);
        if let Some(head) = &plan.head {
            pool.note_log_use(head);
        }
        CommitLog { head: plan.head.clone(), plan: Some(plan), returned: Vec::new() }
    }
}

/// Most bytes of a zone of this device that the log uses.
fn most_bytes(device: &dyn Device) -> u64 {
    match device.info().hardware_pointers {
        true => LOG_ZONE_BYTES_MAX,
        false => LOG_ZONE_BYTES_REUSED,
    }
}

impl Pool {
    /// The record of the quiesced txg has this head.
    fn note_log_use(&self, head: &LogHead) {
        self.note_use(Feature::Log);
        if head.has_own_zones() {
            self.note_use(Feature::LogDevices);
        }
    }

    /// Takes empty zones for the log: one, and another one on a second device if there is one. `None`: none takes writes.
    fn lend_zone(&self, st: &mut SyncState) -> Option<NewZone> {
        let mut homes: Vec<Home> = Vec::new();
        let (mut capacity, unit) = (u64::MAX, self.store.log.next_unit());
        while homes.len() < LOG_COPIES_MAX {
            let others: Vec<DeviceIdx> = homes.iter().map(|home| home.device).collect();
            let usable = |device: DeviceIdx| {
                let is_fit = |device: &dyn Device| {
                    log_zones(device.info()) > 0 && u64::from(device.info().write_unit) <= unit
                };
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
                    capacity = capacity.min(report.capacity).min(most_bytes(device.as_ref()));
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
        let homes: Vec<LogHome> = homes.into_iter().map(LogHome::Lent).collect();
        (!homes.is_empty()).then_some(NewZone { homes, start: 0, unit, capacity })
    }

    /// The commit of `txg` is durable.
    pub(crate) fn end_log_commit(&self, st: &mut SyncState, txg: Txg, commit_log: CommitLog) {
        let CommitLog { plan, mut returned, .. } = commit_log;
        if let Some(plan) = plan {
            returned.extend(self.store.log.committed(txg, plan));
        }
        for home in returned {
            match home {
                LogHome::Lent(home) => st.alloc.take_back(home),
                LogHome::Own { device, zone, .. } => {
                    if let Some(device) = self.store.devices.log_devices.get(device) {
                        device.free(zone);
                    }
                }
            }
        }
    }
}
