//! The intent log: batches of records between two commits.
//!
//! The log lies in zones of [log devices](crate::log_devices), or in zones that the allocator has lent. The commit record names them. It
//! holds only what the layer above logs, and no pointers to other zones. So a batch is durable once the devices of its own zone were
//! flushed.
//!
//! One batch at a time is written: the first waiter writes whatever was handed over until then, flushes, and wakes the others. Those who
//! come meanwhile share the next batch. So the flush under way is the window in which records gather.
//!
//! A commit contains all records of its txg and of earlier ones. It names the first batch with later records ([`LogHead`]), and
//! zones in front of that batch are returned.
//!
//! Invariants:
//! * A batch is acknowledged only when it and all batches before it are durable, and a durable commit leads to it.
//! * Nothing is written behind a batch that failed. Its waiters, and all that come, wait for a commit until a commit has named
//!   another zone.

use crate::counters::Counters;
use crate::devices::Devices;
use crate::reports::Reports;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_device::Device;
use terrane_format::log::{LOG_BATCH_BYTES_MAX, LogBatchHead, LogHead, LogHome, LogZone};
use terrane_wire::Txg;

/// Most bytes of records that are better logged than committed. At half of that, a commit takes five times as long as the log
/// (docs/analysis.md).
pub const LOGGED_BYTES_MAX: usize = 512 << 10;

/// Records that were handed to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogTicket(u64);

/// The log could not make records durable. The caller must commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFailed;

/// A zone for the log.
#[derive(Clone, Debug)]
pub struct NewZone {
    /// Where it is, one entry for each copy.
    pub homes: Vec<LogHome>,
    /// Offset of the first batch, in bytes.
    pub start: u64,
    /// What a log that begins there has its batches be multiples of, in bytes.
    pub unit: u64,
    /// In bytes, from the start of the zone.
    pub capacity: u64,
}

/// A batch that the last durable commit does not contain.
struct WrittenBatch {
    number: u64,
    /// Index of its zone, counted from the first zone of the incarnation.
    zone: u64,
    offset: u64,
    /// Seal of its predecessor.
    chain: [u8; 16],
    newest_txg: Txg,
}

#[derive(Default)]
struct State {
    /// Batches are multiples of it, in bytes: of the largest write unit of all devices when the first zone of the log was opened.
    unit: u64,
    /// Zones that a durable commit names, oldest first. The last is written.
    zones: VecDeque<NewZone>,
    /// Index of the first of them.
    first_zone: u64,
    /// Index of the zone that is written: the last one, or the one before.
    at_zone: u64,
    /// Where the next batch begins.
    offset: u64,
    /// Its number.
    number: u64,
    /// Seal of the batch before.
    chain: [u8; 16],
    /// The newest batch that is durable.
    acked: u64,
    /// Batches that the newest durable commit does not contain, oldest first.
    batches: VecDeque<WrittenBatch>,
    /// Frames that no batch holds yet.
    waiting: Vec<u8>,
    waiting_txg: Txg,
    /// The newest ticket, and the newest that is durable or failed.
    handed: u64,
    durable: u64,
    /// Tickets that failed, as (first, last).
    failed_tickets: Vec<(u64, u64)>,
    is_writing: bool,
    /// A batch failed. Nothing more is written in these zones.
    is_broken: bool,
    /// A commit is to name a zone.
    wants_zone: bool,
    /// A commit was requested because the zone fills up.
    commit_requested: bool,
}

impl State {
    fn batch_bytes(&self, frames: usize) -> u64 {
        (LogBatchHead::SIZE as u64 + frames as u64).next_multiple_of(self.unit)
    }

    fn zone(&self, index: u64) -> Option<&NewZone> {
        self.zones.get(usize::try_from(index.checked_sub(self.first_zone)?).ok()?)
    }

    fn room(&self) -> u64 {
        self.zone(self.at_zone).map_or(0, |zone| zone.capacity.saturating_sub(self.offset))
    }

    /// Whether a batch of so many bytes fits the zone that is written, or else the next one.
    fn fits(&self, bytes: u64) -> bool {
        bytes <= LOG_BATCH_BYTES_MAX
            && (bytes <= self.room()
                || self.zone(self.at_zone + 1).is_some_and(|next| bytes <= next.capacity - next.start))
    }

    fn has_failed(&self, ticket: u64) -> bool {
        self.failed_tickets.iter().any(|(first, last)| (*first..=*last).contains(&ticket))
    }

    fn first_after(&self, txg: Txg) -> Option<&WrittenBatch> {
        self.batches.iter().find(|batch| batch.newest_txg > txg)
    }

    /// The batch to which the record of `txg` leads. What is in front of it is durable, so an import can tell whether it finds the right
    /// zone.
    fn first_named(&self, txg: Txg) -> Option<&WrittenBatch> {
        self.batches.iter().find(|batch| batch.newest_txg > txg || batch.number > self.acked)
    }

    /// Whether the commit of `txg` needs nothing of the log, and nothing is about to be written.
    fn may_restart(&self, txg: Txg) -> bool {
        self.first_after(txg).is_none() && !self.is_writing && self.waiting.is_empty()
    }
}

/// What a commit does with the log.
pub struct LogPlan {
    /// For the commit record. `None`: there is no log.
    pub head: Option<LogHead>,
    /// Zones that the allocator gets back when the commit is durable.
    released: Vec<LogHome>,
    /// A zone that may be written when it is.
    added: Option<NewZone>,
}

/// The intent log of a pool.
pub struct IntentLog {
    pool: u64,
    incarnation: u64,
    devices: Arc<Devices>,
    counters: Arc<Counters>,
    reports: Arc<Reports>,
    state: Mutex<State>,
    written: Condvar,
    next_change: AtomicU64,
    /// Whether records may be handed over, readable without the lock.
    is_open: AtomicBool,
}

impl IntentLog {
    /// A log without zones.
    pub fn new(
        (pool, incarnation): (u64, u64),
        devices: Arc<Devices>,
        counters: Arc<Counters>,
        reports: Arc<Reports>,
    ) -> IntentLog {
        let state = Mutex::new(State { number: 1, unit: devices.log_unit(), ..State::default() });
        IntentLog {
            pool,
            incarnation,
            devices,
            counters,
            reports,
            state,
            written: Condvar::new(),
            next_change: AtomicU64::new(1),
            is_open: AtomicBool::new(false),
        }
    }

    /// The next number in the order of all changes.
    pub fn next_change(&self) -> u64 {
        self.next_change.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether records can be logged now. If not, a zone is wanted from the next commit.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// The next commit is to name a zone.
    pub fn want_zone(&self) {
        self.state.lock().wants_zone = true;
    }

    /// Whether a commit should name the next zone soon. True once, until that commit.
    pub fn wants_commit(&self) -> bool {
        let mut state = self.state.lock();
        let is_last = state.at_zone + 1 == state.first_zone + state.zones.len() as u64;
        let half = state.zone(state.at_zone).map_or(0, |zone| zone.capacity) / 2;
        let wants = is_last && state.offset > half && !state.commit_requested;
        state.commit_requested |= wants;
        wants
    }

    /// Whether a zone of the log is one of these.
    pub fn has_zone(&self, is_one: &dyn Fn(&LogHome) -> bool) -> bool {
        self.state.lock().zones.iter().flat_map(|zone| &zone.homes).any(is_one)
    }

    /// The unit of batches in the next zone, in bytes. Devices with larger write units cannot have it.
    pub fn next_unit(&self) -> u64 {
        let state = self.state.lock();
        if state.zones.is_empty() || state.is_broken { self.devices.log_unit() } else { state.unit }
    }

    /// Nothing more is written in the present zones: until a commit has named others, each `fsync` commits. No commit may be under way.
    pub fn leave_zones(&self) {
        let mut state = self.state.lock();
        if !state.zones.is_empty() {
            (state.is_broken, state.wants_zone) = (true, true);
            self.is_open.store(false, Ordering::Release);
        }
    }

    /// Hands over frames of txgs up to `newest_txg`. `None`: the log does not take them, so the caller must commit. Does not wait.
    pub fn append(&self, frames: &[u8], newest_txg: Txg) -> Option<LogTicket> {
        let mut state = self.state.lock();
        let bytes = state.batch_bytes(state.waiting.len() + frames.len());
        if state.is_broken || !state.fits(bytes) {
            state.wants_zone = true;
            return None;
        }
        state.waiting.extend_from_slice(frames);
        state.waiting_txg = state.waiting_txg.max(newest_txg);
        state.handed += 1;
        Some(LogTicket(state.handed))
    }

    /// The newest ticket, if so many bytes of frames fit only when those that were handed over have been written.
    pub fn full_until(&self, bytes: usize) -> Option<LogTicket> {
        let state = self.state.lock();
        let waiting = state.waiting.len();
        let is_full = waiting > 0 && !state.is_broken && !state.fits(state.batch_bytes(waiting + bytes));
        is_full.then_some(LogTicket(state.handed))
    }

    /// Whether the records of this ticket may not be durable, and never will be.
    pub fn has_failed(&self, ticket: LogTicket) -> bool {
        self.state.lock().has_failed(ticket.0)
    }

    /// Waits until the records of this ticket, and of all tickets before, are durable.
    ///
    /// # Errors
    /// They may not be durable.
    pub fn wait(&self, ticket: LogTicket) -> Result<(), LogFailed> {
        let mut state = self.state.lock();
        loop {
            if state.has_failed(ticket.0) {
                return Err(LogFailed);
            }
            if state.durable >= ticket.0 {
                return Ok(());
            }
            if state.is_writing {
                self.written.wait(&mut state);
                continue;
            }
            self.write_batch(&mut state);
        }
    }

    /// Writes what waits as one batch, and flushes. The lock is released meanwhile.
    fn write_batch(&self, state: &mut MutexGuard<'_, State>) {
        if state.is_broken {
            // The log left its zones meanwhile.
            self.fail_waiting(state);
            return;
        }
        let frames = std::mem::take(&mut state.waiting);
        let newest_txg = std::mem::take(&mut state.waiting_txg);
        let ticket = state.handed;
        let bytes = state.batch_bytes(frames.len());
        if bytes > state.room() {
            let start = state.zone(state.at_zone + 1).map_or(0, |next| next.start);
            (state.at_zone, state.offset) = (state.at_zone + 1, start);
        }
        let homes = state.zone(state.at_zone).map(|zone| zone.homes.clone()).unwrap_or_default();
        let (offset, number) = (state.offset, state.number);
        let mut head = LogBatchHead {
            magic: 0,
            pool: self.pool,
            incarnation: self.incarnation,
            number,
            acked: state.acked,
            newest_txg,
            len: 0,
            reserved: [0; 12],
            chain: state.chain,
            seal: [0; 16],
        };
        let unit = usize::try_from(state.unit).expect("a write unit fits memory");
        let raw = head.encode_batch(&frames, offset, unit);
        let (zone, chain) = (state.at_zone, state.chain);
        state.batches.push_back(WrittenBatch { number, zone, offset, chain, newest_txg });
        state.offset += raw.len() as u64;
        (state.number, state.chain) = (number + 1, head.seal);
        state.is_writing = true;
        let is_durable = MutexGuard::unlocked(state, || self.store(&homes, offset, &raw));
        state.is_writing = false;
        match is_durable {
            true => (state.durable, state.acked) = (ticket, number),
            // Also those that came while it was written: nothing follows a batch that failed.
            false => self.fail_waiting(state),
        }
        self.written.notify_all();
    }

    /// What is not durable will never be.
    fn fail_waiting(&self, state: &mut State) {
        let (first, last) = (state.durable + 1, state.handed);
        state.failed_tickets.push((first, last));
        state.durable = last;
        state.waiting.clear();
        (state.is_broken, state.wants_zone) = (true, true);
        self.is_open.store(false, Ordering::Release);
        self.written.notify_all();
    }

    /// Writes and flushes all copies of a batch. Returns whether they are durable.
    fn store(&self, homes: &[LogHome], offset: u64, raw: &[u8]) -> bool {
        let mut members = Vec::new();
        for home in homes {
            self.counters.count_log_bytes(raw.len());
            let is_stored = match home {
                LogHome::Own { device, zone, .. } => {
                    let device = self.devices.log_devices.get(*device);
                    device.is_some_and(|device| device.append(*zone, offset, raw, &self.counters))
                }
                LogHome::Lent(home) => {
                    let Ok(device) = self.devices.get(home.device) else { return false };
                    let outcome = device.write(home.zone, offset, raw);
                    members.push(device);
                    outcome
                        .inspect_err(|error| {
                            log::warn!("{home}: log write failed, committing instead: {error}");
                        })
                        .is_ok()
                }
            };
            if !is_stored {
                return false;
            }
        }
        for device in &members {
            if let Err(error) = self.counters.record_duration(&self.counters.flush, || device.flush()) {
                // A failed flush is final. The pool stops before any other flush can seem to succeed.
                self.devices.host().stop();
                log::error!("{}: flush of the log failed: {error}", device.info().name);
                self.reports.stop(error.to_string().into());
                return false;
            }
        }
        !homes.is_empty()
    }

    /// Whether the commit of `txg` should lend the log another zone.
    pub fn needs_zone(&self, txg: Txg) -> bool {
        let state = self.state.lock();
        match state.zones.len() {
            0 => state.wants_zone,
            _ if state.is_broken => state.may_restart(txg),
            // The zones in front of the first needed batch go, and a head names two.
            _ => {
                let first = state.first_named(txg).map_or(state.at_zone, |batch| batch.zone);
                let last = state.first_zone + state.zones.len() as u64 - 1;
                first == last && state.offset > state.zone(last).map_or(0, |zone| zone.capacity) / 2
            }
        }
    }

    /// What the record of `txg` says of the log. `added`: a zone for it. `gives_up`: the log gives up what it does not need.
    pub fn plan(&self, txg: Txg, added: Option<NewZone>, gives_up: bool) -> LogPlan {
        let mut state = self.state.lock();
        let restarts = state.is_broken || gives_up || state.zones.is_empty();
        if restarts && state.may_restart(txg) {
            // The record will not lead to what would be written from now on.
            state.is_broken = !state.zones.is_empty();
            self.is_open.store(false, Ordering::Release);
            let released = state.zones.iter().flat_map(|zone| zone.homes.clone()).collect();
            // The devices may have changed since the zone was opened.
            state.unit = added.as_ref().map_or_else(|| self.devices.log_unit(), |zone| zone.unit);
            let head = added.as_ref().map(|zone| LogHead {
                incarnation: self.incarnation,
                number: state.number,
                offset: zone.start,
                unit: state.unit,
                chain: state.chain,
                after: txg,
                replayed: 0,
                zones: vec![LogZone { homes: zone.homes.clone() }],
            });
            return LogPlan { head, released, added };
        }
        let (zone, number, offset, chain) = state
            .first_named(txg)
            .map_or((state.at_zone, state.number, state.offset, state.chain), |batch| {
                (batch.zone, batch.number, batch.offset, batch.chain)
            });
        let kept = usize::try_from(zone.saturating_sub(state.first_zone)).unwrap_or(0);
        let released = state.zones.iter().take(kept).flat_map(|zone| zone.homes.clone()).collect();
        let zones = state.zones.iter().skip(kept).chain(added.as_ref());
        let zones = zones.map(|zone| LogZone { homes: zone.homes.clone() }).collect();
        let (incarnation, unit) = (self.incarnation, state.unit);
        let head = Some(LogHead { incarnation, number, offset, unit, chain, after: txg, replayed: 0, zones });
        LogPlan { head, released, added }
    }

    /// The commit of `txg` is durable, whose record has the head of `plan`. Returns zones that are lent no longer.
    pub fn committed(&self, txg: Txg, plan: LogPlan) -> Vec<LogHome> {
        let mut state = self.state.lock();
        state.commit_requested = false;
        let acked = state.acked;
        while state.batches.front().is_some_and(|batch| batch.newest_txg <= txg && batch.number <= acked) {
            state.batches.pop_front();
        }
        while state
            .zones
            .front()
            .is_some_and(|zone| zone.homes.iter().any(|home| plan.released.contains(home)))
        {
            state.zones.pop_front();
            state.first_zone += 1;
        }
        if state.zones.is_empty() {
            (state.at_zone, state.offset) = (state.first_zone, 0);
            state.batches.clear();
            state.is_broken = false;
        }
        if let Some(zone) = plan.added {
            if state.zones.is_empty() {
                state.offset = zone.start;
            }
            state.zones.push_back(zone);
            state.wants_zone = false;
        }
        self.is_open.store(!state.zones.is_empty() && !state.is_broken, Ordering::Release);
        plan.released
    }

    /// The zones that commits have named, oldest first.
    pub fn zones(&self) -> Vec<LogZone> {
        self.state.lock().zones.iter().map(|zone| LogZone { homes: zone.homes.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Env, SeededEnv};
    use crate::log_reader::LogReader;
    use terrane_device::{DeviceError, Layer, Layered, SimConfig, SimDevice};
    use terrane_format::log::Frame;
    use terrane_format::record::Home;
    use terrane_wire::{DeviceIdx, ObjsetId, ZoneIdx};

    const POOL: u64 = 7;

    fn devices(device: &SimDevice) -> Arc<Devices> {
        devices_of(Arc::new(device.clone()))
    }

    fn devices_of(device: Arc<dyn Device>) -> Arc<Devices> {
        Arc::new(Devices::new(vec![Some(device)], Arc::new(SeededEnv::new(1))))
    }

    fn new_log(device: &SimDevice) -> IntentLog {
        log_on(devices(device))
    }

    fn log_on(devices: Arc<Devices>) -> IntentLog {
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(1));
        let reports = Arc::new(Reports::new(env.clone()));
        IntentLog::new((POOL, 3), devices, Arc::new(Counters::new(env)), reports)
    }

    fn zone(number: u32) -> Option<NewZone> {
        let home = LogHome::Lent(Home { device: DeviceIdx(0), zone: ZoneIdx(number) });
        Some(NewZone { homes: vec![home], start: 0, unit: 4096, capacity: 64 << 10 })
    }

    fn frame(change: u64, txg: u64) -> Vec<u8> {
        let mut raw = Vec::new();
        Frame { set: ObjsetId(1), change, txg: Txg(txg), body: &[9; 100] }.append_to(&mut raw);
        raw
    }

    fn log_one(log: &IntentLog, change: u64, txg: u64) {
        let ticket = log.append(&frame(change, txg), Txg(txg)).expect("there is room");
        assert_eq!(log.wait(ticket), Ok(()));
    }

    /// The changes that an import finds whose commit has this head.
    fn found(device: &SimDevice, head: &LogHead) -> Vec<u64> {
        let devices = devices(&device.after_power_loss(1));
        let read = LogReader::new(&devices, POOL, head).read().unwrap();
        let frames = Frame::parse_all(&read.frames).unwrap();
        frames.iter().filter(|frame| frame.txg > head.after).map(|frame| frame.change).collect()
    }

    /// Commits `txg`; what `meanwhile` does happens before that is durable. Returns the head.
    fn commit(
        log: &IntentLog,
        txg: u64,
        (lent, gives_up): (Option<NewZone>, bool),
        meanwhile: impl FnOnce(),
    ) -> (Option<LogHead>, Vec<LogHome>) {
        let plan = log.plan(Txg(txg), lent, gives_up);
        let head = plan.head.clone();
        meanwhile();
        (head, log.committed(Txg(txg), plan))
    }

    #[test]
    fn a_log_has_the_unit_for_which_its_first_zone_was_opened() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let log = new_log(&device);
        let lent = zone(5).map(|zone| NewZone { start: 8192, unit: 8192, ..zone });
        let (head, _) = commit(&log, 1, (lent, false), || {});
        let head = head.unwrap();
        assert_eq!((head.unit, head.offset), (8192, 8192));
    }

    #[test]
    fn a_commit_leads_to_records_of_later_txgs_that_were_logged_before_and_after_it() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let log = new_log(&device);
        let (first, _) = commit(&log, 4, (zone(5), false), || ());
        log_one(&log, 1, 5);
        log_one(&log, 2, 6);
        log_one(&log, 3, 5);
        let (second, returned) = commit(&log, 5, (None, false), || log_one(&log, 4, 6));
        log_one(&log, 5, 7);
        assert_eq!(returned, []);
        assert_eq!(found(&device, &first.unwrap()), [1, 2, 3, 4, 5], "if the second commit is lost");
        assert_eq!(found(&device, &second.unwrap()), [2, 4, 5]);
    }

    #[test]
    fn a_log_that_is_given_up_takes_nothing_from_the_moment_the_record_is_made() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let log = new_log(&device);
        commit(&log, 4, (zone(5), false), || ());
        log_one(&log, 1, 5);
        let (head, returned) = commit(&log, 5, (None, true), || {
            assert!(!log.is_open());
            assert_eq!(log.append(&frame(2, 6), Txg(6)), None);
        });
        assert_eq!((head, returned), (None, zone(5).unwrap().homes));
        assert_eq!(log.append(&frame(3, 6), Txg(6)), None);
        assert!(log.needs_zone(Txg(6)), "the next commit may open it again");
        commit(&log, 6, (zone(9), false), || ());
        log_one(&log, 4, 7);
        // A record that the commit does not contain keeps the zone.
        let (head, returned) = commit(&log, 6, (None, true), || ());
        assert_eq!((found(&device, &head.unwrap()), returned), (vec![4], vec![]));
    }

    #[test]
    fn zones_follow_each_other_and_are_returned_when_no_record_is_needed() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let log = new_log(&device);
        commit(&log, 4, (zone(5), false), || ());
        let mut logged = 0;
        while !log.needs_zone(Txg(4)) {
            log_one(&log, logged + 1, 5);
            logged += 1;
        }
        assert_eq!(logged, 9, "more than half of 16 units");
        assert!(log.wants_commit() && !log.wants_commit());
        let (head, _) = commit(&log, 4, (zone(6), false), || ());
        assert_eq!(head.as_ref().unwrap().zones.len(), 2);
        while logged < 20 {
            log_one(&log, logged + 1, 5);
            logged += 1;
        }
        assert_eq!(found(&device, &head.unwrap()), (1..=20).collect::<Vec<_>>());
        assert!(!log.needs_zone(Txg(4)), "two zones are needed");
        let (head, returned) = commit(&log, 5, (None, false), || log_one(&log, 21, 6));
        assert_eq!(returned, zone(5).unwrap().homes);
        assert_eq!(found(&device, &head.unwrap()), [21]);
        let full: Vec<bool> =
            (22..50).map(|change| log.append(&frame(change, 6), Txg(6)).is_some()).collect();
        assert!(full.contains(&true), "{full:?}");
        let mut change = 100;
        while let Some(ticket) = log.append(&frame(change, 6), Txg(6)) {
            assert_eq!(log.wait(ticket), Ok(()));
            change += 1;
        }
        assert!(change < 120, "it is full at some time");
    }

    /// Holds the next write back until it is released.
    #[derive(Default)]
    struct Gate {
        is_closed: AtomicBool,
        is_reached: AtomicBool,
    }

    impl Layer for Gate {
        fn on_write(
            &self,
            below: &dyn Device,
            zone: ZoneIdx,
            offset: u64,
            data: &[u8],
        ) -> Result<(), DeviceError> {
            self.is_reached.store(true, Ordering::SeqCst);
            while self.is_closed.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            below.write(zone, offset, data)
        }
    }

    #[test]
    fn a_commit_leads_to_a_batch_that_was_being_written() {
        for (txg_of_batch, expected) in [(5, vec![3]), (6, vec![2, 3])] {
            let device = SimDevice::new(SimConfig::default()).unwrap();
            let gated = Arc::new(Layered::wrap(Arc::new(device.clone()), Gate::default()));
            let (log, gate) = (log_on(devices_of(gated.clone())), gated.layer());
            commit(&log, 4, (zone(5), false), || ());
            log_one(&log, 1, 5);
            gate.is_reached.store(false, Ordering::SeqCst);
            gate.is_closed.store(true, Ordering::SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(|| log_one(&log, 2, txg_of_batch));
                while !gate.is_reached.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let plan = log.plan(Txg(5), None, false);
                let head = plan.head.clone().unwrap();
                assert_eq!(log.committed(Txg(5), plan), []);
                gate.is_closed.store(false, Ordering::SeqCst);
                log_one(&log, 3, 6);
                assert_eq!(found(&device, &head), expected);
            });
        }
    }

    #[test]
    fn those_who_wait_share_a_batch() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let log = new_log(&device);
        let (head, _) = commit(&log, 4, (zone(5), false), || ());
        let tickets: Vec<LogTicket> =
            (1..=3).map(|change| log.append(&frame(change, 5), Txg(5)).unwrap()).collect();
        let before = device.ops_done();
        assert_eq!(log.wait(tickets[1]), Ok(()));
        assert_eq!(device.ops_done() - before, 2, "a write and a flush");
        assert_eq!((log.wait(tickets[0]), log.wait(tickets[2])), (Ok(()), Ok(())));
        assert_eq!(device.ops_done() - before, 2);
        assert_eq!(found(&device, &head.unwrap()), [1, 2, 3]);
    }

    #[test]
    fn a_full_batch_takes_more_when_it_is_written() {
        let device = SimDevice::new(SimConfig { zone_size: 16 << 20, ..SimConfig::default() }).unwrap();
        let log = new_log(&device);
        let lent = zone(5).map(|zone| NewZone { capacity: 16 << 20, ..zone });
        let (head, _) = commit(&log, 4, (lent, false), || ());
        let large = |change| {
            let mut raw = Vec::new();
            Frame { set: ObjsetId(1), change, txg: Txg(5), body: &vec![9; 900 << 10] }.append_to(&mut raw);
            raw
        };
        let mut last = None;
        let mut count = 0;
        while log.full_until(large(1).len()).is_none() {
            count += 1;
            last = Some(log.append(&large(count), Txg(5)).unwrap());
        }
        assert_eq!(count, 4, "of 4 MiB");
        assert_eq!(log.full_until(large(1).len()), last);
        assert_eq!(log.wait(last.unwrap()), Ok(()));
        assert_eq!(log.full_until(large(1).len()), None);
        let ticket = log.append(&large(count + 1), Txg(5)).unwrap();
        assert_eq!(log.wait(ticket), Ok(()));
        assert_eq!(found(&device, &head.unwrap()), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn many_threads_lose_nothing() {
        let device = SimDevice::new(SimConfig { zone_size: 8 << 20, ..SimConfig::default() }).unwrap();
        let log = new_log(&device);
        let lent = zone(5).map(|zone| NewZone { capacity: 8 << 20, ..zone });
        let (head, _) = commit(&log, 4, (lent, false), || ());
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let log = &log;
                scope.spawn(move || {
                    for nth in 0..50 {
                        log_one(log, thread * 1000 + nth + 1, 5);
                    }
                });
            }
        });
        let found = found(&device, &head.unwrap());
        assert_eq!(found.len(), 400);
        for thread in 0..8 {
            let of: Vec<u64> = found.iter().copied().filter(|change| change / 1000 == thread).collect();
            assert!(of.is_sorted() && of.len() == 50, "each thread's records in its order");
        }
    }
}
