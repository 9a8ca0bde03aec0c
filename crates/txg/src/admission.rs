//! Admission to transaction groups: which txg is open, which one syncs, what is reserved in them, and which
//! operations wait.

pub mod space;
mod wait;

pub use wait::PoolHooks;

use crate::levels::Backlog;
use crate::pace::Pace;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrane_codec::auto::Inflow;
use terrane_space::account::{Limits, SpaceParts};
use terrane_store::zone_store::ZoneStore;
use terrane_wire::Txg;

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Worst-case bytes on the device.
    reserved: u64,
    /// Dirty bytes in memory: file data, metadata and changed objects.
    dirty: u64,
    /// Some operation joined, whatever it reserved.
    changed: bool,
    /// The reserved blocks are on their way to the device. The open zones already account for them, so they
    /// are no longer subtracted from the writable bytes.
    written: bool,
}

impl Load {
    /// Reserved bytes that still need free space.
    fn unwritten(&self) -> u64 {
        if self.written { 0 } else { self.reserved }
    }
}

/// States of the open and the syncing txg, under the lock of [`Admission`].
pub struct TxgState {
    open: Txg,
    holders: u64,
    quiescing: bool,
    syncing: bool,
    synced: Txg,
    load_open: Load,
    load_syncing: Load,
    /// The newest txg whose commit was requested, by a waiter, by dirty data or by lack of space.
    wanted: Txg,
    /// The newest txg that a caller waits for.
    awaited: Txg,
    /// Commit although nothing changed: emptied zones wait for their reset, or the sync thread has more work.
    empty_wanted: bool,
    /// The next txg follows after this time, although no operation changes anything.
    soon: Option<Duration>,
    /// When the last txg began to quiesce.
    txg_began_ns: u64,
    stopping: bool,
    last_wakeup_ns: u64,
    pace: Pace,
    /// Operations that wait for space, as (ticket, bytes), in FIFO order.
    queue: VecDeque<(u64, u64)>,
    next_ticket: u64,
    /// Bytes reserved for files, which no other operation may use: see `Pool::reserve_file`.
    file_reserved: u64,
    /// Rate at which memory gets dirty.
    inflow: Inflow,
}

/// Space of the pool, as of the last commit or the last GC step after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceSnapshot {
    /// Live bytes.
    pub live: u64,
    /// Limits on live bytes and on bytes written, for users and for frees.
    pub limits: Limits,
    /// What the rest of the space is kept for.
    pub parts: SpaceParts,
    /// Extra slots that may have an open zone.
    pub extra_slots: u64,
    /// GC found no further victim that would give space.
    pub is_stuck: bool,
    /// Emptied zones wait for their reset, which empty txgs would bring.
    pub resets_wait: bool,
    /// Published here so that a status query does not wait for a txg that waits for a device.
    pub empty_zones: u64,
    /// The txg that was imported.
    pub imported: Txg,
    /// The incarnation, which each writable import increments.
    pub incarnation: u64,
    /// Some zones could not be read, and no zone was read since this time.
    pub unread_since_ns: Option<u64>,
}

/// Decides when an operation may join the open txg. It knows the open and the syncing txg, the bytes reserved
/// in them, and the pool's free space.
pub struct Admission {
    /// The zones whose free space is measured.
    pub store: Arc<ZoneStore>,
    state: Mutex<TxgState>,
    /// Number of the open txg, readable without the lock.
    open_now: AtomicU64,
    /// Wakes when the last holder left, or when the next txg was opened.
    holders_left: Condvar,
    /// Wakes when a txg was committed, or the pool failed.
    txg_synced: Condvar,
    /// Wakes when there is more space, when a waiter left the queue, or when the pool failed.
    space_gained: Condvar,
    /// Wakes the sync thread.
    sync_wanted: Condvar,
    space: Mutex<SpaceSnapshot>,
    dirty_max: Mutex<u64>,
    /// Upper bound of `dirty_max`. Read and changed under the lock of `dirty_max`.
    dirty_budget: AtomicU64,
    /// Another txg must follow although no operation changes anything.
    another_txg: AtomicBool,
    /// And soon.
    soon: AtomicBool,
    /// The largest record size in use, in bytes. A zone's tail may be too short for such a block.
    largest_block: AtomicU64,
    /// Bytes of the most table sections that one txg may rewrite in a hurry.
    sections_bytes: AtomicU64,
    /// Bytes that a sync may write although no operation has reserved them.
    unreserved_bytes: AtomicU64,
}

/// Lower bound of the dirty limit in bytes, however slow the device is, if the budget allows it. Smaller txgs
/// would rewrite the same directories and dnodes again and again.
const DIRTY_MIN: u64 = 128 << 20;
/// A commit begins at this share of the dirty limit, in percent.
const COMMIT_PERCENT: u64 = 30;

/// Between two txgs of work that goes on in steps, the pool rests as long as the last txg took, at least and at most these times. So
/// the work takes about half of the time.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

impl Admission {
    /// `dirty_budget`: upper bound of the dirty limit, in bytes.
    pub fn new(open: Txg, synced: Txg, dirty_budget: u64, store: Arc<ZoneStore>) -> Admission {
        Admission {
            store,
            another_txg: AtomicBool::new(false),
            soon: AtomicBool::new(false),
            largest_block: AtomicU64::new(128 << 10),
            sections_bytes: AtomicU64::new(0),
            unreserved_bytes: AtomicU64::new(0),
            state: Mutex::new(TxgState {
                open,
                holders: 0,
                quiescing: false,
                syncing: false,
                synced,
                load_open: Load::default(),
                load_syncing: Load::default(),
                wanted: Txg(0),
                awaited: Txg(0),
                empty_wanted: false,
                soon: None,
                txg_began_ns: 0,
                stopping: false,
                last_wakeup_ns: 0,
                pace: Pace::default(),
                queue: VecDeque::new(),
                next_ticket: 0,
                file_reserved: 0,
                inflow: Inflow::default(),
            }),
            open_now: AtomicU64::new(open.0),
            holders_left: Condvar::new(),
            txg_synced: Condvar::new(),
            space_gained: Condvar::new(),
            sync_wanted: Condvar::new(),
            space: Mutex::default(),
            dirty_max: Mutex::new(dirty_budget.min(DIRTY_MIN)),
            dirty_budget: AtomicU64::new(dirty_budget),
        }
    }

    /// Publishes the space of the pool. With `is_written`, the syncing txg has written what was reserved in
    /// it, so waiters need not wait for its end.
    pub fn publish_space(&self, space: SpaceSnapshot, is_written: bool) {
        let mut state = self.state.lock();
        *self.space.lock() = space;
        state.load_syncing.written |= is_written;
        let (_, unwritten) = state.reserved();
        if state.queue.front().is_some_and(|(_, need)| unwritten + need <= space.limits.writable) {
            self.space_gained.notify_all();
        }
    }

    /// Bytes reserved in the open txg.
    pub fn reserved_open(&self) -> u64 {
        self.state.lock().load_open.reserved
    }

    /// The space as last published. Does not wait for a syncing txg.
    pub fn space_snapshot(&self) -> SpaceSnapshot {
        *self.space.lock()
    }

    /// Bounds dirty data by what the device takes in a while, as the last txg showed.
    pub fn set_dirty_max(&self, bytes: u64) {
        let mut max = self.dirty_max.lock();
        *max = bytes.max(DIRTY_MIN).min(self.dirty_budget.load(Ordering::Relaxed));
    }

    /// Sets the upper bound of the dirty limit, in bytes. Present dirty data beyond it is written by the txgs
    /// as they come.
    pub fn set_dirty_budget(&self, bytes: u64) {
        let mut max = self.dirty_max.lock();
        self.dirty_budget.store(bytes, Ordering::Relaxed);
        *max = (*max).max(DIRTY_MIN).min(bytes);
    }

    /// The open txg.
    pub fn open(&self) -> Txg {
        Txg(self.open_now.load(Ordering::Acquire))
    }

    /// The newest committed txg.
    pub fn synced(&self) -> Txg {
        self.state.lock().synced
    }

    /// Bytes that are reserved for files and not yet written.
    pub fn file_reserved(&self) -> u64 {
        self.state.lock().file_reserved
    }

    /// Changes the bytes that are reserved for files, and wakes operations that wait for space.
    pub fn set_file_reserved(&self, change: impl FnOnce(u64) -> u64) {
        let mut state = self.state.lock();
        state.file_reserved = change(state.file_reserved);
        self.space_gained.notify_all();
    }

    /// Operations that wait for space, and the bytes that they wait for.
    pub fn space_waiters(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.queue.len() as u64, state.queue.iter().map(|(_, need)| need).sum())
    }

    /// Worst-case bytes reserved and not yet accounted.
    pub fn reserved(&self) -> u64 {
        self.state.lock().reserved().0
    }

    /// Dirty bytes in memory, and their bound.
    pub fn dirty(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.load_open.dirty + state.load_syncing.dirty, *self.dirty_max.lock())
    }

    /// Bytes that wait for compression while `txg` syncs, and the rate of new ones. `written_bytes` of the
    /// txg are already compressed.
    pub fn backlog(&self, txg: Txg, written_bytes: u64, now_ns: u64) -> Backlog {
        let mut state = self.state.lock();
        let left = state.load_syncing.dirty.saturating_sub(written_bytes);
        Backlog {
            bytes: left + state.load_open.dirty,
            awaited_bytes: if state.awaited >= txg { left } else { 0 },
            inflow_bytes_per_s: state.inflow.bytes_per_s(now_ns),
        }
    }

    /// Lets an operation join the open txg. `reserved`: worst-case bytes on the device. `dirty`: bytes of
    /// memory. `file_reservation`: bytes that it reserves for a file.
    pub fn join(
        &self,
        state: &mut TxgState,
        (reserved, dirty, file_reservation): (u64, u64, u64),
        now_ns: u64,
    ) -> Txg {
        state.holders += 1;
        state.file_reserved = state.file_reserved.saturating_add(file_reservation);
        state.load_open.reserved += reserved;
        state.load_open.dirty += dirty;
        state.inflow.add(now_ns, dirty);
        state.load_open.changed = true;
        let txg = state.open;
        if state.load_open.dirty * 100 > *self.dirty_max.lock() * COMMIT_PERCENT {
            state.wanted = state.wanted.max(txg);
            self.sync_wanted.notify_one();
        }
        txg
    }

    /// Reserves more bytes for an operation that has joined.
    pub fn reserve_more(&self, bytes: u64) {
        self.state.lock().load_open.reserved += bytes;
    }

    /// Returns part of an operation's reservation.
    pub fn return_reservation(&self, bytes: u64) {
        let load = &mut self.state.lock().load_open;
        load.reserved = load.reserved.saturating_sub(bytes);
    }

    /// An operation ends. `more`: bytes that it has dirtied beyond what it joined with, or fewer.
    pub fn leave(&self, more: i64) {
        let mut state = self.state.lock();
        state.load_open.dirty = state.load_open.dirty.saturating_add_signed(more);
        state.holders -= 1;
        if state.holders == 0 {
            self.holders_left.notify_all();
        }
    }

    /// Closes the open txg to new operations, and waits until all its holders have left.
    pub fn quiesce(&self) -> Txg {
        let mut state = self.state.lock();
        state.quiescing = true;
        state.txg_began_ns = self.store.counters.now_ns();
        let counters = &self.store.counters;
        counters.record_duration(&counters.quiesce, || {
            while state.holders > 0 {
                self.holders_left.wait(&mut state);
            }
        });
        state.open
    }

    /// Adds the sync thread itself as last holder of the quiescing txg. No other operation can join
    /// meanwhile.
    pub fn join_last(&self) {
        self.state.lock().holders += 1;
    }

    /// The quiesced txg begins to sync, and the next one opens.
    pub fn open_next(&self, txg: Txg) {
        let mut state = self.state.lock();
        state.open = txg.next();
        self.open_now.store(state.open.0, Ordering::Release);
        state.load_syncing = std::mem::take(&mut state.load_open);
        state.quiescing = false;
        state.syncing = true;
        (state.empty_wanted, state.soon) = (false, None);
        self.another_txg.store(false, Ordering::Release);
        self.soon.store(false, Ordering::Release);
        self.holders_left.notify_all();
    }

    /// The syncing txg is durable, or has failed. `needs_another`: another one should follow at once.
    pub fn end_sync(
        &self,
        txg: Txg,
        is_durable: bool,
        now_ns: impl FnOnce() -> u64,
        needs_another: impl FnOnce() -> bool,
    ) {
        let mut state = self.state.lock();
        state.syncing = false;
        if is_durable {
            state.synced = txg;
            let reserved = std::mem::take(&mut state.load_syncing).reserved;
            state.pace.note(now_ns(), reserved);
            state.empty_wanted =
                self.space_snapshot().resets_wait || self.another_txg.load(Ordering::Acquire);
            let took = Duration::from_nanos(self.store.counters.now_ns().saturating_sub(state.txg_began_ns));
            state.soon = self.soon.load(Ordering::Acquire).then(|| took.clamp(REST.0, REST.1));
            if needs_another() {
                state.wanted = state.wanted.max(state.open);
            }
        }
        self.txg_synced.notify_all();
        self.space_gained.notify_all();
        self.holders_left.notify_all();
    }

    /// The txg whose commit makes every earlier change durable.
    pub fn newest_change(&self, threaded: bool) -> Txg {
        let state = self.state.lock();
        // A requested txg counts as well, even if the requester then found space without it: after the wait,
        // no sync is under way.
        let is_wanted = threaded && state.wanted >= state.open;
        match (state.load_open.changed || is_wanted, state.syncing) {
            (true, _) => state.open,
            (false, true) => Txg(state.open.0 - 1),
            // Not `open - 1`: after a crash, numbers continue above the lease, so that txg need not exist.
            (false, false) => state.synced,
        }
    }

    /// Waits until `txg` is durable. In a pool without threads, `run` syncs the next txg.
    pub fn wait_for_txg<E>(
        &self,
        txg: Txg,
        threaded: bool,
        check_running: &dyn Fn() -> Result<(), E>,
        run: &dyn Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        state.awaited = state.awaited.max(txg);
        while state.synced < txg {
            check_running()?;
            if threaded {
                state.wanted = state.wanted.max(txg);
                self.sync_wanted.notify_one();
                self.txg_synced.wait(&mut state);
            } else {
                drop(state);
                run()?;
                state = self.state.lock();
            }
        }
        check_running()
    }

    /// Waits until a txg must be committed: on request, when enough is dirty, or on a timer. When the timer
    /// expires, `update_idle_window` may also ask for one. False: the sync thread must end.
    pub fn wait_for_next_txg(&self, period: Duration, update_idle_window: &dyn Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.stopping && state.wanted < state.open {
            let period = state.soon.map_or(period, |rest| period.min(rest));
            let timed_out = self.sync_wanted.wait_for(&mut state, period).timed_out();
            if timed_out && (state.load_open.changed || state.empty_wanted) {
                break;
            }
            if timed_out && MutexGuard::unlocked(&mut state, update_idle_window) {
                break;
            }
        }
        !state.stopping
    }

    /// Whether another txg will follow although no operation changes anything.
    pub fn has_work_left(&self) -> bool {
        self.state.lock().empty_wanted
    }

    /// Waits until no txg syncs, or until `is_over` returns an error.
    pub fn wait_for_sync<E>(&self, is_over: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock();
        while state.syncing {
            is_over()?;
            self.txg_synced.wait(&mut state);
        }
        is_over()
    }

    /// Requests another txg after the syncing one, even if no operation changes anything.
    pub fn want_another_txg(&self) {
        self.another_txg.store(true, Ordering::Release);
    }

    /// The same, without waiting for the timer. The caller syncs, and does a bounded part of its work in each txg.
    pub fn want_txg_soon(&self) {
        self.want_another_txg();
        self.soon.store(true, Ordering::Release);
    }

    /// Requests a commit of the open txg now.
    pub fn request_commit(&self) {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(state.open);
        self.sync_wanted.notify_one();
    }

    /// Ends the sync thread: no txg follows.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.sync_wanted.notify_all();
    }

    /// Reports a record size in use, in bytes.
    pub fn note_record_size(&self, bytes: u32) {
        // Called for every object that is opened, so the common case must not write to a shared cache line.
        if self.largest_block.load(Ordering::Relaxed) < u64::from(bytes) {
            self.largest_block.fetch_max(u64::from(bytes), Ordering::Relaxed);
        }
    }

    /// Sets how many bytes a sync may write although no operation has reserved them, both copies included.
    pub fn set_unreserved_bytes(&self, bytes: u64) {
        self.unreserved_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Requests a txg at the next timer tick, even if no operation changes anything.
    pub fn want_empty(&self) {
        self.state.lock().empty_wanted = true;
    }

    /// Wakes all waiters after a failure.
    pub fn wake_all(&self) {
        let _state = self.state.lock();
        self.holders_left.notify_all();
        self.txg_synced.notify_all();
        self.space_gained.notify_all();
        self.sync_wanted.notify_all();
    }
}

impl TxgState {
    /// Bytes reserved and not yet accounted, and those of them that still need free space.
    fn reserved(&self) -> (u64, u64) {
        let (open, syncing) = (&self.load_open, &self.load_syncing);
        (open.reserved + syncing.reserved, open.unwritten() + syncing.unwritten())
    }
}
