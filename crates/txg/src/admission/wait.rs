//! What a change waits for before it joins the open group.
//!
//! The delay that keeps writers from filling memory grows smoothly from 60 % of the dirty limit on; the formula is OpenZFS's
//! (scale x (dirty - min) / (max - dirty), at most 100 ms): see DESIGN section 8.
//!
//! The delay is for those who bring data: it is theirs in the measure of what they bring, and only they wait behind one another. The
//! last of the dirty limit is kept for those who bring little, so that a create does not wait for the sync because two writers
//! stream.
//!
//! Where collection is what gives room, small changes are delayed as well, each in the measure of what it brings: room comes by the group,
//! and whoever took what there is at once would wait for whole groups. The pace is that of the groups before, slower the less room
//! there is and faster the more, so that most of what is kept ahead stays in hand.
//!
//! Who needs room waits first in, first out, so that nobody who brings much is overtaken for ever; who gives space back waits for
//! nobody.
//!
//! Room that was promised to files (`Pool::promise`) counts as taken for all others. Writes into it may also use
//! some of the reserve, for the metadata that they rewrite.

use super::{Admission, TxgState};
use crate::cost::Cost;
use crate::pace::{DELAY_MAX_NS, group_bytes};
use std::time::Duration;
use terrane_store::PoolError;
use terrane_store::counters::{Counters, WaitFor};
use terrane_store::env::Env;
use terrane_wire::Txg;

/// Delay starts at this share of the dirty limit, in percent.
const DELAY_PERCENT: u64 = 60;
const DELAY_SCALE_NS: u64 = 500_000;
/// Who brings as many bytes is delayed in full, and who brings fewer by as much less.
const DELAY_FULL_BYTES: u64 = 1 << 20;
/// One part of so many of the dirty limit takes little changes alone.
const LITTLE_PART: u64 = 8;
/// Whoever woke from a delay so many nanoseconds late, at the most, waits as much less for his next change.
const LATE_MAX_NS: u64 = 200_000;

/// What a change that waits asks of those who commit.
pub struct Above<'a> {
    /// An error if the pool has stopped.
    pub alive: &'a dyn Fn() -> Result<(), PoolError>,
    /// Makes a group durable, in a pool without threads.
    pub commit: &'a dyn Fn(Txg) -> Result<(), PoolError>,
    /// Waits until a group may win room from zones that could not be read. False: they cannot be read for some seconds already.
    pub wait_for_unread: &'a dyn Fn() -> bool,
}

/// Who waits for room looks again after this time: a device may have found none below, which nobody is woken for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Groups after which a writer is told that the pool is full if there was never more room than before.
const PATIENCE: u32 = 48;

/// What stands between a writer and the group.
enum Wait {
    Join,
    Change,
    Delay(Duration),
    /// Others take room as well, and it comes by collection.
    Pace(u64),
    /// The sync must catch up with dirty data.
    Commit,
    /// There is no room for it, or not yet.
    Space,
    /// Others came first.
    Turn,
}

/// A change that waits for room, and its place among those that do.
struct SpaceWait<'a> {
    admission: &'a Admission,
    ticket: Option<u64>,
    /// The most room there was while it waited, and how many groups brought no more.
    most: u64,
    stuck: u32,
    /// The group after which that was looked at.
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
            // The next one may fit as well.
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

    /// Joins the open group. May wait; take it before any lock.
    pub fn begin(&self, cost: &Cost, env: &dyn Env, above: &Above<'_>) -> Result<Txg, PoolError> {
        let threaded = env.workers() > 0;
        let need = cost.reserve_bytes();
        let (mut delayed, mut paced) = (false, !(threaded && cost.is_paced()));
        let mut wait = SpaceWait { admission: self, ticket: None, most: 0, stuck: 0, seen: None };
        let mut queue = Queue { counters: &self.store.counters, began_ns: None, since_ns: 0 };
        loop {
            let mut state = self.state.lock();
            // Under the lock: whoever stops the pool says so and then wakes all who wait, once.
            (above.alive)()?;
            // What is promised to others waits for room that nobody knows of: more of it would wait as well.
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
                        // One writer at a time: the curve is a rate, so each waits behind the one before.
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
                    // Each behind the one before: it is the pace of all.
                    let from = state.pace.wake_ns.max(now.saturating_sub(LATE_MAX_NS));
                    let wake = (from + ns).min(now + DELAY_MAX_NS);
                    state.pace.wake_ns = wake;
                    // Without groups there is no more room, however slowly it is taken.
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
                        // The end of a group that syncs is room enough: nobody waits for a whole one of his own.
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
                    // What others reserved comes back with their group, so only when nothing is pending is the answer final; and
                    // collection needs some groups to turn garbage into room.
                    if state.reserved().0 == 0 && wait.seen != Some(state.synced) {
                        wait.seen = Some(state.synced);
                        wait.stuck = if writable > wait.most { 0 } else { wait.stuck + 1 };
                        wait.most = wait.most.max(writable);
                        // Every group takes some room itself, so none is committed that cannot bring any.
                        let may_help = !room.is_stuck || state.load_open.changed || self.waiting_zones() > 0;
                        if room.live + need > limit || wait.stuck > PATIENCE || !may_help {
                            // It may be in zones that could not be read.
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
                        // Not for the whole group: collection tells of each step.
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

    /// What stands between a change and the open group.
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
        // What frees space is not held up by a file system below that is full: it goes on in memory, as far as the zones can take it.
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

/// Until the pool's clock says so. Nobody offers his processor to others instead: that costs milliseconds where they run.
fn wait_until(env: &dyn Env, wake_ns: u64) {
    loop {
        let left = wake_ns.saturating_sub(env.monotonic_ns());
        if left == 0 {
            return;
        }
        env.sleep_exactly(Duration::from_nanos(left));
    }
}

/// What a change waited for, and how long; a change that joins at once is not measured.
struct Queue<'a> {
    counters: &'a Counters,
    /// The first wait began.
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
