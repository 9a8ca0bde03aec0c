//! What an operation waits for before it joins the open txg.
//!
//! **Throttle.** Writers are delayed smoothly from 60 % of the dirty limit on, so that they do not fill
//! memory. The formula is OpenZFS's (scale x (dirty - min) / (max - dirty), at most 100 ms): see DESIGN
//! section 8.
//!
//! The delay is proportional to the bytes that an operation dirties. Only operations that are not *little*
//! wait behind one another. The last eighth of the dirty limit is kept for little ones, so that a create does
//! not wait for the sync while two writers stream. If nothing is dirty, an operation joins whatever it
//! dirties. A large one counts as a quarter of the limit at most.
//!
//! **Pace.** Where GC provides the free space, small operations are delayed as well, in proportion to the
//! bytes that they reserve. Space comes once per txg, so an operation that took all of it at once would make
//! others wait for whole txgs. The pace is that of the previous txgs: slower with less free space and faster
//! with more. So most of the low watermark stays free.
//!
//! **Space.** Operations that need space queue FIFO, so that large ones are not overtaken forever. Frees
//! never queue.
//!
//! Space reserved for files (`Pool::reserve_file`) counts as taken for all others. Writes into a reservation
//! may also use some of the reserve, for the metadata that they rewrite.

use super::{Admission, TxgState};
use crate::cost::Cost;
use crate::pace::{DELAY_MAX_NS, txg_bytes};
use std::time::Duration;
use terrane_store::PoolError;
use terrane_store::counters::{Counters, WaitFor};
use terrane_store::env::Env;
use terrane_wire::Txg;

/// The delay starts at this share of the dirty limit, in percent.
const DELAY_PERCENT: u64 = 60;
const DELAY_SCALE_NS: u64 = 500_000;
/// The delay scales linearly with the dirtied bytes up to this many.
const DELAY_FULL_BYTES: u64 = 1 << 20;
/// The last 1/`LITTLE_DIVISOR` of the dirty limit is kept for little operations.
const LITTLE_DIVISOR: u64 = 8;
/// An operation that dirties more than 1/`LARGEST_DIVISOR` of the dirty limit joins as if it were that. One that
/// dirties more than the limit would wait until nothing is dirty, which never comes beside others.
const LARGEST_DIVISOR: u64 = 4;
/// An operation that wakes late from its delay shortens the next delay by as much, at most by this many
/// nanoseconds.
const LATE_MAX_NS: u64 = 200_000;

/// What a waiting operation asks of the pool.
pub struct PoolHooks<'a> {
    /// Returns an error if the pool has stopped.
    pub check_running: &'a dyn Fn() -> Result<(), PoolError>,
    /// Makes a txg durable, in a pool without threads.
    pub commit: &'a dyn Fn(Txg) -> Result<(), PoolError>,
    /// Waits until a txg may win space from unreadable zones. False: they have been unreadable for some
    /// seconds.
    pub wait_for_unread: &'a dyn Fn() -> bool,
}

/// A waiter for space checks again after this time. A backing file system may have had no free space, and no
/// wakeup tells when it has some.
const RECHECK_PERIOD: Duration = Duration::from_secs(1);
/// Txgs without more space than before, after which a writer gets `NoSpace`.
const STUCK_TXGS_MAX: u32 = 48;

/// What an operation must wait for before it may join.
enum WaitReason {
    Join,
    Quiesce,
    Delay(Duration),
    /// Nanoseconds: other operations take space as well, and GC provides it.
    Pace(u64),
    /// The sync must catch up with dirty data.
    Commit,
    /// There is no space for it, or not yet.
    Space,
    /// Other operations queued first.
    Queued,
}

/// An operation that waits for space, and its place in the queue.
struct SpaceWait<'a> {
    admission: &'a Admission,
    ticket: Option<u64>,
    /// The most space seen during the wait, and the number of txgs that brought no more.
    most_writable: u64,
    stuck_txgs: u32,
    /// The txg after which that was checked last.
    checked_txg: Option<Txg>,
}

impl SpaceWait<'_> {
    fn enter(&mut self, state: &mut TxgState, need: u64) {
        if self.ticket.is_none() {
            state.queue.push_back((state.next_ticket, need));
            self.ticket = Some(state.next_ticket);
            state.next_ticket += 1;
        }
    }

    fn leave(&mut self, state: &mut TxgState) {
        if let Some(own) = self.ticket.take() {
            state.queue.retain(|(ticket, _)| *ticket != own);
            // The next operation may fit as well.
            self.admission.space_gained.notify_all();
        }
    }
}

impl Drop for SpaceWait<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.leave(&mut self.admission.state.lock());
        }
    }
}

impl Admission {
    /// For tests: another caller has queued first, and the lock is held while `then` runs.
    #[doc(hidden)]
    pub fn behind_another_waiter(&self, then: impl FnOnce()) {
        let mut state = self.state.lock();
        state.queue.push_back((u64::MAX, 1));
        then();
        self.txg_synced.notify_all();
    }

    /// Joins the open txg. It may wait, so call it before taking any lock.
    pub fn begin(&self, cost: &Cost, env: &dyn Env, hooks: &PoolHooks<'_>) -> Result<Txg, PoolError> {
        let threaded = env.workers() > 0;
        let need = cost.reserve_bytes();
        let (mut delayed, mut paced) = (false, !(threaded && cost.is_paced()));
        let mut wait =
            SpaceWait { admission: self, ticket: None, most_writable: 0, stuck_txgs: 0, checked_txg: None };
        let mut queue = WaitTimer { counters: &self.store.counters, began_ns: None, since_ns: 0 };
        loop {
            let mut state = self.state.lock();
            // Under the lock: the thread that stops the pool sets its state, then wakes all waiters once.
            (hooks.check_running)()?;
            // The host is full: blocks that are already reserved wait for its space, and nothing tells when
            // it comes. So a new reservation is refused.
            if need > 0 && !cost.frees && self.store.devices.host().is_full() {
                self.store.counters.no_space.add(1);
                return Err(PoolError::NoSpace { need, free: 0 });
            }
            match self.wait_reason(&state, cost, need, (delayed, paced, wait.ticket)) {
                WaitReason::Join => {
                    wait.leave(&mut state);
                    let load = (need, cost.dirty_bytes(), cost.file_reservation);
                    let txg = self.join(&mut state, load, env.monotonic_ns());
                    return Ok(txg);
                }
                WaitReason::Quiesce => {
                    queue.enter();
                    self.holders_left.wait(&mut state);
                    queue.leave(WaitFor::Quiesce);
                }
                WaitReason::Delay(time) => {
                    delayed = true;
                    queue.enter();
                    let now = env.monotonic_ns();
                    let mut wake = now + time.as_nanos() as u64;
                    if !cost.is_little() {
                        // One writer at a time: the curve is a rate, so each operation waits behind the one
                        // before.
                        wake += state.last_wakeup_ns.saturating_sub(now);
                        state.last_wakeup_ns = wake;
                    }
                    drop(state);
                    env.sleep(Duration::from_nanos((wake - now).min(DELAY_MAX_NS)));
                    queue.leave(WaitFor::Throttle);
                }
                WaitReason::Pace(ns) => {
                    paced = true;
                    queue.enter();
                    let now = env.monotonic_ns();
                    // Each operation waits behind the one before: the pace is shared by all.
                    let from = state.pace.wake_ns.max(now.saturating_sub(LATE_MAX_NS));
                    let wake = (from + ns).min(now + DELAY_MAX_NS);
                    state.pace.wake_ns = wake;
                    // Without commits there is no more space, however slowly it is taken.
                    let txg_bytes_min = txg_bytes(self.space_snapshot().limits.low_watermark_margin);
                    if state.load_open.reserved >= txg_bytes_min && state.wanted < state.open {
                        state.wanted = state.open;
                        self.sync_wanted.notify_one();
                    }
                    drop(state);
                    wait_until(env, wake);
                    queue.leave(WaitFor::Throttle);
                }
                WaitReason::Commit => {
                    queue.enter();
                    if threaded {
                        // The end of the syncing txg makes enough space in the dirty limit. No operation
                        // waits for a whole txg of its own.
                        let txg = state.open;
                        state.wanted = state.wanted.max(txg);
                        if !state.syncing {
                            state.awaited = state.awaited.max(txg);
                            self.sync_wanted.notify_one();
                        }
                        self.txg_synced.wait_for(&mut state, RECHECK_PERIOD);
                        drop(state);
                    } else {
                        let txg = state.open;
                        drop(state);
                        (hooks.commit)(txg)?;
                    }
                    queue.leave(WaitFor::Sync);
                }
                WaitReason::Queued => {
                    queue.enter();
                    wait.enter(&mut state, need);
                    self.space_gained.wait_for(&mut state, RECHECK_PERIOD);
                    drop(state);
                    queue.leave(WaitFor::Space);
                }
                WaitReason::Space => {
                    let space = self.space_snapshot();
                    let (limit, writable) = cost.limits_of(&space, state.file_reserved);
                    // Reservations of other operations return when their txg ends. So the answer is final
                    // only when nothing is pending. GC also needs some txgs to turn garbage into free space.
                    if state.reserved().0 == 0 && wait.checked_txg != Some(state.synced) {
                        wait.checked_txg = Some(state.synced);
                        wait.stuck_txgs = if writable > wait.most_writable { 0 } else { wait.stuck_txgs + 1 };
                        wait.most_writable = wait.most_writable.max(writable);
                        // Every txg takes some space itself, so none is committed that cannot bring any.
                        let may_help = !space.is_stuck || state.load_open.changed || self.waiting_zones() > 0;
                        if space.live + need > limit || wait.stuck_txgs > STUCK_TXGS_MAX || !may_help {
                            // The missing space may be in unreadable zones.
                            if space.live + need <= limit && space.unread_since_ns.is_some() {
                                if !cost.frees {
                                    wait.enter(&mut state, need);
                                }
                                queue.enter();
                                drop(state);
                                let may_help = (hooks.wait_for_unread)();
                                queue.leave(WaitFor::Space);
                                if may_help {
                                    wait.stuck_txgs = 0;
                                    continue;
                                }
                            }
                            self.store.counters.no_space.add(1);
                            return Err(PoolError::NoSpace { need, free: limit.saturating_sub(space.live) });
                        }
                    }
                    if !cost.frees {
                        wait.enter(&mut state, need);
                    }
                    queue.enter();
                    let txg = state.open;
                    if threaded {
                        // Not for the whole txg: each GC step wakes this operation.
                        state.wanted = state.wanted.max(txg);
                        self.sync_wanted.notify_one();
                        self.space_gained.wait_for(&mut state, RECHECK_PERIOD);
                        drop(state);
                    } else {
                        drop(state);
                        (hooks.commit)(txg)?;
                    }
                    queue.leave(WaitFor::Space);
                }
            }
        }
    }

    /// What an operation must wait for before it may join the open txg.
    fn wait_reason(
        &self,
        state: &TxgState,
        cost: &Cost,
        need: u64,
        (delayed, paced, ticket): (bool, bool, Option<u64>),
    ) -> WaitReason {
        if state.quiescing {
            return WaitReason::Quiesce;
        }
        let is_first = state.queue.front().is_none_or(|(first, _)| ticket == Some(*first));
        if need > 0 && !cost.frees && !is_first {
            return WaitReason::Queued;
        }
        let space = self.space_snapshot();
        let (reserved, unwritten) = state.reserved();
        // Operations that free space are not held up by a full backing file system. They go on in memory, as
        // far as the zones can take it.
        let goes_on = cost.frees && self.store.devices.host().is_full();
        let (limit, writable) = if goes_on {
            space.limits.frees_without_host
        } else {
            cost.limits_of(&space, state.file_reserved)
        };
        if space.live + reserved + need > limit || unwritten + need > writable {
            return WaitReason::Space;
        }
        if !paced {
            let ns =
                state.pace.delay_ns(need, writable - unwritten, space.limits.low_watermark_margin / 4 * 3);
            if ns > 0 {
                return WaitReason::Pace(ns);
            }
        }
        let max = *self.dirty_max.lock();
        let dirty = state.load_open.dirty + state.load_syncing.dirty;
        let more = cost.dirty_bytes();
        if more == 0 || dirty == 0 {
            return WaitReason::Join;
        }
        let bound = if cost.is_little() { max } else { max - max / LITTLE_DIVISOR };
        if dirty + more.min(bound / LARGEST_DIVISOR) > bound {
            return WaitReason::Commit;
        }
        let min = max / 100 * DELAY_PERCENT;
        if dirty <= min || delayed {
            return WaitReason::Join;
        }
        let ns = u128::from(DELAY_SCALE_NS) * u128::from(dirty - min) / u128::from((bound - dirty).max(1));
        let full = ns.min(u128::from(DELAY_MAX_NS));
        let share = full * u128::from(more.min(DELAY_FULL_BYTES)) / u128::from(DELAY_FULL_BYTES);
        WaitReason::Delay(Duration::from_nanos(share as u64))
    }
}

/// Sleeps until the pool's clock reaches `wake_ns`. It does not yield the processor in a loop: on a busy
/// machine that costs milliseconds.
fn wait_until(env: &dyn Env, wake_ns: u64) {
    loop {
        let left = wake_ns.saturating_sub(env.monotonic_ns());
        if left == 0 {
            return;
        }
        env.sleep_exactly(Duration::from_nanos(left));
    }
}

/// Measures what an operation waited for, and how long. An operation that joins at once is not measured.
struct WaitTimer<'a> {
    counters: &'a Counters,
    /// When the first wait began.
    began_ns: Option<u64>,
    since_ns: u64,
}

impl WaitTimer<'_> {
    fn enter(&mut self) {
        self.since_ns = self.counters.now_ns();
        self.began_ns.get_or_insert(self.since_ns);
    }

    fn leave(&self, reason: WaitFor) {
        self.counters.record_wait(reason, self.counters.now_ns().saturating_sub(self.since_ns));
    }
}

impl Drop for WaitTimer<'_> {
    fn drop(&mut self) {
        if let Some(began_ns) = self.began_ns {
            self.counters.begin.record_ns(self.counters.now_ns().saturating_sub(began_ns));
        }
    }
}
