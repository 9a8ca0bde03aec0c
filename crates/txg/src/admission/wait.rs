//! What an operation waits for before it joins the open txg.
//!
//! **Throttle.** Writers are delayed smoothly from 60 % of the dirty limit on, so that they do not fill
//! memory. The formula is OpenZFS's (scale x (dirty - min) / (max - dirty), at most 100 ms): see DESIGN
//! section 8.
//!
//! The delay is proportional to the bytes that an operation dirties. Only operations that are not *little*
//! wait behind one another. The last eighth of the dirty limit is kept for little ones, so that a create does
//! not wait for the sync while two writers stream. If nothing is dirty, an operation joins whatever it
//! dirties.
//!
//! **Pace.** Where GC provides the free space, small operations are delayed as well, in proportion to the
//! bytes that they reserve. Space comes once per txg, so an operation that took all of it at once would make
//! others wait for whole txgs. The pace is that of the previous txgs: slower with less free space and faster
//! with more. So most of the low watermark stays free.
//!
//! **Space.** Operations that need space queue FIFO, so that large ones are not overtaken forever. Frees
//! never queue.
//!
//! Space reserved for files (`Pool::promise`) counts as taken for all others. Writes into a reservation may
//! also use some of the reserve, for the metadata that they rewrite.

use super::{Admission, TxgState};
use crate::cost::Cost;
use crate::pace::{DELAY_MAX_NS, group_bytes};
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
/// The last 1/`LITTLE_PART` of the dirty limit is kept for little operations.
const LITTLE_PART: u64 = 8;
/// An operation that wakes late from its delay shortens the next delay by as much, at most by this many
/// nanoseconds.
const LATE_MAX_NS: u64 = 200_000;

/// What a waiting operation asks of the pool.
pub struct Above<'a> {
    /// Returns an error if the pool has stopped.
    pub alive: &'a dyn Fn() -> Result<(), PoolError>,
    /// Makes a txg durable, in a pool without threads.
    pub commit: &'a dyn Fn(Txg) -> Result<(), PoolError>,
    /// Waits until a txg may win space from unreadable zones. False: they have been unreadable for some
    /// seconds.
    pub wait_for_unread: &'a dyn Fn() -> bool,
}

/// A waiter for space checks again after this time. A backing file system may have had no free space, and no
/// wakeup tells when it has some.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Txgs without more space than before, after which a writer gets `NoSpace`.
const PATIENCE: u32 = 48;

/// What an operation must wait for before it may join.
enum Wait {
    Join,
    Change,
    Delay(Duration),
    /// Nanoseconds: other operations take space as well, and GC provides it.
    Pace(u64),
    /// The sync must catch up with dirty data.
    Commit,
    /// There is no space for it, or not yet.
    Space,
    /// Other operations queued first.
    Turn,
}

/// An operation that waits for space, and its place in the queue.
struct SpaceWait<'a> {
    admission: &'a Admission,
    ticket: Option<u64>,
    /// The most space seen during the wait, and the number of txgs that brought no more.
    most: u64,
    stuck: u32,
    /// The txg after which that was checked last.
    seen: Option<Txg>,
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
            self.admission.more_room.notify_all();
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
        self.synced.notify_all();
    }

    /// Joins the open txg. It may wait, so call it before taking any lock.
    pub fn begin(&self, cost: &Cost, env: &dyn Env, above: &Above<'_>) -> Result<Txg, PoolError> {
        let threaded = env.workers() > 0;
        let need = cost.reserve_bytes();
        let (mut delayed, mut paced) = (false, !(threaded && cost.is_paced()));
        let mut wait = SpaceWait { admission: self, ticket: None, most: 0, stuck: 0, seen: None };
        let mut queue = Queue { counters: &self.store.counters, began_ns: None, since_ns: 0 };
        loop {
            let mut state = self.state.lock();
            // Under the lock: the thread that stops the pool sets its state, then wakes all waiters once.
            (above.alive)()?;
            // The host is full: blocks that are already reserved wait for its space, and nothing tells when
            // it comes. So a new reservation is refused.
            if need > 0 && !cost.frees && self.store.devices.host().is_full() {
                self.store.counters.no_space.add(1);
                return Err(PoolError::NoSpace { need, free: 0 });
            }
            match self.what_to_wait_for(&state, cost, need, (delayed, paced, wait.ticket)) {
                Wait::Join => {
                    wait.leave(&mut state);
                    let load = (need, cost.dirty_bytes(), cost.promises);
                    let txg = self.join(&mut state, load, env.monotonic_ns());
                    return Ok(txg);
                }
                Wait::Change => {
                    queue.enter();
                    self.left.wait(&mut state);
                    queue.leave(WaitFor::Change);
                }
                Wait::Delay(time) => {
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
                Wait::Pace(ns) => {
                    paced = true;
                    queue.enter();
                    let now = env.monotonic_ns();
                    // Each operation waits behind the one before: the pace is shared by all.
                    let from = state.pace.wake_ns.max(now.saturating_sub(LATE_MAX_NS));
                    let wake = (from + ns).min(now + DELAY_MAX_NS);
                    state.pace.wake_ns = wake;
                    // Without commits there is no more space, however slowly it is taken.
                    let group = group_bytes(self.room().limits.ahead);
                    if state.load_open.reserved >= group && state.wanted < state.open {
                        state.wanted = state.open;
                        self.work.notify_one();
                    }
                    drop(state);
                    wait_until(env, wake);
                    queue.leave(WaitFor::Throttle);
                }
                Wait::Commit => {
                    queue.enter();
                    if threaded {
                        // The end of the syncing txg makes enough space in the dirty limit. No operation
                        // waits for a whole txg of its own.
                        let txg = state.open;
                        state.wanted = state.wanted.max(txg);
                        if !state.syncing {
                            state.awaited = state.awaited.max(txg);
                            self.work.notify_one();
                        }
                        self.synced.wait_for(&mut state, LOOK_AGAIN);
                        drop(state);
                    } else {
                        let txg = state.open;
                        drop(state);
                        (above.commit)(txg)?;
                    }
                    queue.leave(WaitFor::Sync);
                }
                Wait::Turn => {
                    queue.enter();
                    wait.enter(&mut state, need);
                    self.more_room.wait_for(&mut state, LOOK_AGAIN);
                    drop(state);
                    queue.leave(WaitFor::Space);
                }
                Wait::Space => {
                    let room = self.room();
                    let (limit, writable) = cost.room_of(&room, state.promised);
                    // Reservations of other operations return when their txg ends. So the answer is final
                    // only when nothing is pending. GC also needs some txgs to turn garbage into free space.
                    if state.reserved().0 == 0 && wait.seen != Some(state.synced) {
                        wait.seen = Some(state.synced);
                        wait.stuck = if writable > wait.most { 0 } else { wait.stuck + 1 };
                        wait.most = wait.most.max(writable);
                        // Every txg takes some space itself, so none is committed that cannot bring any.
                        let may_help = !room.is_stuck || state.load_open.changed || self.waiting_zones() > 0;
                        if room.live + need > limit || wait.stuck > PATIENCE || !may_help {
                            // The missing space may be in unreadable zones.
                            if room.live + need <= limit && room.unread_since_ns.is_some() {
                                if !cost.frees {
                                    wait.enter(&mut state, need);
                                }
                                queue.enter();
                                drop(state);
                                let may_help = (above.wait_for_unread)();
                                queue.leave(WaitFor::Space);
                                if may_help {
                                    wait.stuck = 0;
                                    continue;
                                }
                            }
                            self.store.counters.no_space.add(1);
                            return Err(PoolError::NoSpace { need, free: limit.saturating_sub(room.live) });
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
                        self.work.notify_one();
                        self.more_room.wait_for(&mut state, LOOK_AGAIN);
                        drop(state);
                    } else {
                        drop(state);
                        (above.commit)(txg)?;
                    }
                    queue.leave(WaitFor::Space);
                }
            }
        }
    }

    /// What an operation must wait for before it may join the open txg.
    fn what_to_wait_for(
        &self,
        state: &TxgState,
        cost: &Cost,
        need: u64,
        (delayed, paced, ticket): (bool, bool, Option<u64>),
    ) -> Wait {
        if state.quiescing {
            return Wait::Change;
        }
        let is_first = state.queue.front().is_none_or(|(first, _)| ticket == Some(*first));
        if need > 0 && !cost.frees && !is_first {
            return Wait::Turn;
        }
        let room = self.room();
        let (reserved, unwritten) = state.reserved();
        // Operations that free space are not held up by a full backing file system. They go on in memory, as
        // far as the zones can take it.
        let goes_on = cost.frees && self.store.devices.host().is_full();
        let (limit, writable) =
            if goes_on { room.limits.of_zones } else { cost.room_of(&room, state.promised) };
        if room.live + reserved + need > limit || unwritten + need > writable {
            return Wait::Space;
        }
        if !paced {
            let ns = state.pace.delay_ns(need, writable - unwritten, room.limits.ahead / 4 * 3);
            if ns > 0 {
                return Wait::Pace(ns);
            }
        }
        let max = *self.dirty_max.lock();
        let dirty = state.load_open.dirty + state.load_syncing.dirty;
        let more = cost.dirty_bytes();
        if more == 0 || dirty == 0 {
            return Wait::Join;
        }
        let bound = if cost.is_little() { max } else { max - max / LITTLE_PART };
        if dirty + more > bound {
            return Wait::Commit;
        }
        let min = max / 100 * DELAY_PERCENT;
        if dirty <= min || delayed {
            return Wait::Join;
        }
        let ns = u128::from(DELAY_SCALE_NS) * u128::from(dirty - min) / u128::from((bound - dirty).max(1));
        let full = ns.min(u128::from(DELAY_MAX_NS));
        let share = full * u128::from(more.min(DELAY_FULL_BYTES)) / u128::from(DELAY_FULL_BYTES);
        Wait::Delay(Duration::from_nanos(share as u64))
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
struct Queue<'a> {
    counters: &'a Counters,
    /// When the first wait began.
    began_ns: Option<u64>,
    since_ns: u64,
}

impl Queue<'_> {
    fn enter(&mut self) {
        self.since_ns = self.counters.now_ns();
        self.began_ns.get_or_insert(self.since_ns);
    }

    fn leave(&self, reason: WaitFor) {
        self.counters.waited(reason, self.counters.now_ns().saturating_sub(self.since_ns));
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        if let Some(began_ns) = self.began_ns {
            self.counters.begin.record_ns(self.counters.now_ns().saturating_sub(began_ns));
        }
    }
}
