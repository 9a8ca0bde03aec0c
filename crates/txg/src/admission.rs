//! The groups that are open and syncing: what is reserved in them, who waits.

pub mod room;
mod wait;

pub use wait::Above;

use crate::levels::Backlog;
use crate::pace::Pace;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrane_codec::auto::Inflow;
use terrane_space::account::Limits;
use terrane_store::zone_store::ZoneStore;
use terrane_wire::Txg;

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Worst-case bytes on the device.
    reserved: u64,
    /// Bytes of file data in memory.
    dirty: u64,
    /// Anything joined at all.
    changed: bool,
    /// What was reserved is on its way to the device; what that took is no longer counted as room.
    written: bool,
}

impl Load {
    /// Bytes reserved that must still find room.
    fn unwritten(&self) -> u64 {
        if self.written { 0 } else { self.reserved }
    }
}

pub struct TxgState {
    open: Txg,
    holders: u64,
    quiescing: bool,
    syncing: bool,
    synced: Txg,
    load_open: Load,
    load_syncing: Load,
    /// Somebody waits for a commit of this group or a later one.
    wanted: Txg,
    /// The newest group that somebody waited for.
    awaited: Txg,
    /// Commits wanted although nothing changed: zones wait to be reset.
    empty_wanted: bool,
    stopping: bool,
    last_wakeup_ns: u64,
    pace: Pace,
    /// Who waits for room, and for how many bytes; first in, first out.
    queue: VecDeque<(u64, u64)>,
    next_ticket: u64,
    /// Bytes that files may still write whatever others do: see `Pool::promise`.
    promised: u64,
    /// Bytes that get dirty.
    inflow: Inflow,
}

/// Room in the pool, as of the last commit, or of the last step of collection after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Live bytes.
    pub live: u64,
    pub limits: Limits,
    /// Collection found nothing more to win.
    pub is_stuck: bool,
    /// Empty groups would turn emptied zones into room.
    pub resets_wait: bool,
    /// Told with the rest, so that a status is known while a group waits for a device.
    pub empty_zones: u64,
    /// The group that was imported.
    pub imported: Txg,
    pub incarnation: u64,
    /// Zones could not be read: since when no other was.
    pub unread_since_ns: Option<u64>,
}

/// Who may join the open group, and when: the groups that are open and syncing, what is reserved in them, and the room there is.
pub struct Admission {
    pub store: Arc<ZoneStore>,
    state: Mutex<TxgState>,
    /// The open group once more, for those who only want to know.
    open_now: AtomicU64,
    /// Holders left, or the group change is over.
    left: Condvar,
    /// A group was committed, or the pool failed.
    synced: Condvar,
    /// There is more room, somebody else had his turn, or the pool failed.
    more_room: Condvar,
    /// There is something to do for the sync thread.
    work: Condvar,
    room: Mutex<Room>,
    dirty_max: Mutex<u64>,
    /// What it never exceeds. Read and changed under its lock.
    dirty_budget: AtomicU64,
    /// Another group should follow although nobody changes anything.
    more_work: AtomicBool,
    /// The largest record size in use, in bytes: what a zone's tail may fail to take.
    largest_block: AtomicU64,
    /// Bytes of as many sections of the tables as one group may rewrite in a hurry.
    sections_bytes: AtomicU64,
}

/// What may be dirty however slow the device is, if the budget allows, in bytes: groups that are too small rewrite the same
/// directories and dnodes again and again.
const DIRTY_MIN: u64 = 128 << 20;
/// A commit begins at this share of the dirty limit, in percent.
const COMMIT_PERCENT: u64 = 30;

impl Admission {
    /// Dirty data never takes more than `dirty_budget` bytes.
    pub fn new(open: Txg, synced: Txg, dirty_budget: u64, store: Arc<ZoneStore>) -> Admission {
        Admission {
            store,
            more_work: AtomicBool::new(false),
            largest_block: AtomicU64::new(128 << 10),
            sections_bytes: AtomicU64::new(0),
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
                stopping: false,
                last_wakeup_ns: 0,
                pace: Pace::default(),
                queue: VecDeque::new(),
                next_ticket: 0,
                promised: 0,
                inflow: Inflow::default(),
            }),
            open_now: AtomicU64::new(open.0),
            left: Condvar::new(),
            synced: Condvar::new(),
            more_room: Condvar::new(),
            work: Condvar::new(),
            room: Mutex::default(),
            dirty_max: Mutex::new(dirty_budget.min(DIRTY_MIN)),
            dirty_budget: AtomicU64::new(dirty_budget),
        }
    }

    /// `is_written`: the group that syncs has written what was reserved in it. Who waits need not wait for its end.
    pub fn set_room(&self, room: Room, is_written: bool) {
        let mut state = self.state.lock();
        *self.room.lock() = room;
        state.load_syncing.written |= is_written;
        let (_, unwritten) = state.reserved();
        if state.queue.front().is_some_and(|(_, need)| unwritten + need <= room.limits.writable) {
            self.more_room.notify_all();
        }
    }

    /// Bytes reserved in the open group.
    pub fn reserved_open(&self) -> u64 {
        self.state.lock().load_open.reserved
    }

    pub fn room(&self) -> Room {
        *self.room.lock()
    }

    /// Bounds dirty data by what the last group took in half a second.
    pub fn set_dirty_max(&self, bytes: u64) {
        let mut max = self.dirty_max.lock();
        *max = bytes.max(DIRTY_MIN).min(self.dirty_budget.load(Ordering::Relaxed));
    }

    /// From now on dirty data never takes more than so many bytes; what is there already is written by groups as they come.
    pub fn set_dirty_budget(&self, bytes: u64) {
        let mut max = self.dirty_max.lock();
        self.dirty_budget.store(bytes, Ordering::Relaxed);
        *max = (*max).max(DIRTY_MIN).min(bytes);
    }

    /// The group that is open now.
    pub fn open(&self) -> Txg {
        Txg(self.open_now.load(Ordering::Acquire))
    }

    pub fn synced(&self) -> Txg {
        self.state.lock().synced
    }

    /// Bytes that were promised, and are not written yet.
    pub fn promised(&self) -> u64 {
        self.state.lock().promised
    }

    pub fn set_promised(&self, change: impl FnOnce(u64) -> u64) {
        let mut state = self.state.lock();
        state.promised = change(state.promised);
        self.more_room.notify_all();
    }

    /// How many changes wait for room, and for how many bytes.
    pub fn waiting(&self) -> (u64, u64) {
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

    /// What waits to be compressed while `txg` syncs, and how quickly more comes. `written_bytes` of it are compressed.
    pub fn backlog(&self, txg: Txg, written_bytes: u64, now_ns: u64) -> Backlog {
        let mut state = self.state.lock();
        let left = state.load_syncing.dirty.saturating_sub(written_bytes);
        Backlog {
            bytes: left + state.load_open.dirty,
            awaited_bytes: if state.awaited >= txg { left } else { 0 },
            inflow_bytes_per_s: state.inflow.bytes_per_s(now_ns),
        }
    }

    /// A change joins the open group, which it may then dirty by so much; `reserved`: worst-case bytes on the device.
    pub fn join(
        &self,
        state: &mut TxgState,
        (reserved, dirty, promises): (u64, u64, u64),
        now_ns: u64,
    ) -> Txg {
        state.holders += 1;
        state.promised = state.promised.saturating_add(promises);
        state.load_open.reserved += reserved;
        state.load_open.dirty += dirty;
        state.inflow.add(now_ns, dirty);
        state.load_open.changed = true;
        let txg = state.open;
        if state.load_open.dirty * 100 > *self.dirty_max.lock() * COMMIT_PERCENT {
            state.wanted = state.wanted.max(txg);
            self.work.notify_one();
        }
        txg
    }

    /// A change that has joined turned out to need more.
    pub fn reserve_more(&self, bytes: u64) {
        self.state.lock().load_open.reserved += bytes;
    }

    /// A change that has joined needs so much less, of the device and of memory.
    pub fn give_back(&self, bytes: u64, dirty: u64) {
        let load = &mut self.state.lock().load_open;
        load.reserved = load.reserved.saturating_sub(bytes);
        load.dirty = load.dirty.saturating_sub(dirty);
    }

    /// A change is over.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.holders -= 1;
        if state.holders == 0 {
            self.left.notify_all();
        }
    }

    /// From now on nobody joins the open group. Waits until all who hold it have left.
    pub fn quiesce(&self) -> Txg {
        let mut state = self.state.lock();
        state.quiescing = true;
        let counters = &self.store.counters;
        counters.timed(&counters.quiesce, || {
            while state.holders > 0 {
                self.left.wait(&mut state);
            }
        });
        state.open
    }

    /// The last one in the group that quiesces. Nobody else joins meanwhile.
    pub fn join_last(&self) {
        self.state.lock().holders += 1;
    }

    /// The group that has quiesced syncs, and the next one is open.
    pub fn open_next(&self, txg: Txg) {
        let mut state = self.state.lock();
        state.open = txg.next();
        self.open_now.store(state.open.0, Ordering::Release);
        state.load_syncing = std::mem::take(&mut state.load_open);
        state.quiescing = false;
        state.syncing = true;
        state.empty_wanted = false;
        self.more_work.store(false, Ordering::Release);
        self.left.notify_all();
    }

    /// The group that synced is durable, or has failed. `goes_on`: another one should follow at once.
    pub fn end_sync(
        &self,
        txg: Txg,
        is_durable: bool,
        now_ns: impl FnOnce() -> u64,
        goes_on: impl FnOnce() -> bool,
    ) {
        let mut state = self.state.lock();
        state.syncing = false;
        if is_durable {
            state.synced = txg;
            let reserved = std::mem::take(&mut state.load_syncing).reserved;
            state.pace.note(now_ns(), reserved);
            state.empty_wanted = self.room().resets_wait || self.more_work.load(Ordering::Acquire);
            if goes_on() {
                state.wanted = state.wanted.max(state.open);
            }
        }
        self.synced.notify_all();
        self.more_room.notify_all();
        self.left.notify_all();
    }

    /// The group that must be durable for everything to be that was done so far.
    pub fn newest_change(&self, threaded: bool) -> Txg {
        let state = self.state.lock();
        // A group that somebody asked for, who then found room without it, is waited for as well: nothing is under way afterwards.
        let is_wanted = threaded && state.wanted >= state.open;
        match (state.load_open.changed || is_wanted, state.syncing) {
            (true, _) => state.open,
            (false, true) => Txg(state.open.0 - 1),
            // The group before the open one need not exist: numbers go on above the lease after a crash.
            (false, false) => state.synced,
        }
    }

    /// Waits until a group is durable; in a pool without threads `run` makes the next one so.
    pub fn wait_for_group<E>(
        &self,
        txg: Txg,
        threaded: bool,
        alive: &dyn Fn() -> Result<(), E>,
        run: &dyn Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        state.awaited = state.awaited.max(txg);
        while state.synced < txg {
            alive()?;
            if threaded {
                state.wanted = state.wanted.max(txg);
                self.work.notify_one();
                self.synced.wait(&mut state);
            } else {
                drop(state);
                run()?;
                state = self.state.lock();
            }
        }
        alive()
    }

    /// Waits until a group is to be committed: when somebody asks, when enough is dirty, and on a timer, by which `look_at_the_clock` may
    /// say so as well. False: none is any more.
    pub fn next_group(&self, period: Duration, look_at_the_clock: &dyn Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.stopping && state.wanted < state.open {
            let timed_out = self.work.wait_for(&mut state, period).timed_out();
            if timed_out && (state.load_open.changed || state.empty_wanted) {
                break;
            }
            if timed_out && MutexGuard::unlocked(&mut state, look_at_the_clock) {
                break;
            }
        }
        !state.stopping
    }

    /// Whether another group will follow although nobody changes anything.
    pub fn has_work_left(&self) -> bool {
        self.state.lock().empty_wanted
    }

    /// Waits until no group syncs, or `is_over`.
    pub fn wait_for_sync<E>(&self, is_over: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock();
        while state.syncing {
            is_over()?;
            self.synced.wait(&mut state);
        }
        is_over()
    }

    /// Another group should follow the one that syncs, although nobody changes anything.
    pub fn want_another_group(&self) {
        self.more_work.store(true, Ordering::Release);
    }

    /// A group should follow now.
    pub fn hurry(&self) {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(state.open);
        self.work.notify_one();
    }

    /// No group follows any more.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_all();
    }

    /// Tells how large records get.
    pub fn expect_blocks_of(&self, bytes: u32) {
        // Asked of every object that is opened: what is known already costs no write.
        if self.largest_block.load(Ordering::Relaxed) < u64::from(bytes) {
            self.largest_block.fetch_max(u64::from(bytes), Ordering::Relaxed);
        }
    }

    /// There is something to do although nobody changes anything.
    pub fn want_empty(&self) {
        self.state.lock().empty_wanted = true;
    }

    /// Wakes everybody, after a failure.
    pub fn wake_all(&self) {
        let _state = self.state.lock();
        self.left.notify_all();
        self.synced.notify_all();
        self.more_room.notify_all();
        self.work.notify_all();
    }
}

impl TxgState {
    /// Bytes reserved and not yet accounted, and those of them that must still find room.
    fn reserved(&self) -> (u64, u64) {
        let (open, syncing) = (&self.load_open, &self.load_syncing);
        (open.reserved + syncing.reserved, open.unwritten() + syncing.unwritten())
    }
}
