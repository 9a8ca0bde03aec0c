//! Transaction groups: open, quiescing, syncing.
//!
//! Every change joins the open group by holding a [`Tx`]. When a group is to be committed it *quiesces*: nobody may join until
//! all who hold it have left, which is soon, because who has joined waits only for device reads. Then the next group opens
//! and the quiesced one *syncs* while changes go on. So at any time one group is open and at most one is syncing.
//!
//! All waiting happens before joining: for room in the pool, for the sync to catch up with dirty data, for the group change.
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
//! Room that was promised to files ([`Pool::promise`]) counts as taken for all others. Writes into it may also use some of the reserve, for
//! the metadata that they rewrite.
//!
//! Invariant: what is reserved in open and syncing group never exceeds what the pool can still take.

use crate::cost::Cost;
use crate::pool::{Pool, Tx};
use crate::state::admission::{
    Admission, DELAY_FULL_BYTES, DELAY_MAX_NS, DELAY_PERCENT, DELAY_SCALE_NS, LATE_MAX_NS, LITTLE_PART,
    Queue, TxgState,
};
use std::sync::Arc;
use std::time::Duration;
use terrane_store::PoolError;
use terrane_store::counters::WaitFor;
use terrane_wire::Txg;

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

impl Pool {
    /// Joins the open group. May wait; take it before any lock.
    pub fn begin(self: &Arc<Self>, cost: Cost) -> Result<Tx, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let need = cost.reserve_bytes();
        let (mut delayed, mut paced) = (false, !(self.threaded() && cost.is_paced()));
        let mut wait = SpaceWait { admission: &self.admission, ticket: None, most: 0, stuck: 0, seen: None };
        let mut queue = Queue { counters: &self.store.counters, began_ns: None, since_ns: 0 };
        loop {
            let mut state = self.admission.state.lock();
            // Under the lock: whoever stops the pool says so and then wakes all who wait, once.
            self.reports.alive()?;
            // What is promised to others waits for room that nobody knows of: more of it would wait as well.
            if need > 0 && !cost.frees && self.store.devices.host().is_full() {
                self.store.counters.no_space.add(1);
                return Err(PoolError::NoSpace { need, free: 0 });
            }
            match self.admission.what_to_wait_for(&state, &cost, need, (delayed, paced, wait.ticket)) {
                Wait::Join => {
                    wait.leave(&mut state);
                    let load = (need, cost.dirty_bytes(), cost.promises);
                    let txg = self.admission.join(&mut state, load, self.env.monotonic_ns());
                    return Ok(Tx { pool: self.clone(), txg });
                }
                Wait::Change => {
                    queue.enter();
                    self.admission.left.wait(&mut state);
                    queue.leave(WaitFor::Change);
                }
                Wait::Delay(time) => {
                    delayed = true;
                    queue.enter();
                    let now = self.env.monotonic_ns();
                    let mut wake = now + time.as_nanos() as u64;
                    if !cost.is_little() {
                        // One writer at a time: the curve is a rate, so each waits behind the one before.
                        wake += state.last_wakeup_ns.saturating_sub(now);
                        state.last_wakeup_ns = wake;
                    }
                    drop(state);
                    self.env.sleep(Duration::from_nanos((wake - now).min(DELAY_MAX_NS)));
                    queue.leave(WaitFor::Throttle);
                }
                Wait::Pace(ns) => {
                    paced = true;
                    queue.enter();
                    let now = self.env.monotonic_ns();
                    // Each behind the one before: it is the pace of all.
                    let from = state.pace.wake_ns.max(now.saturating_sub(LATE_MAX_NS));
                    let wake = (from + ns).min(now + DELAY_MAX_NS);
                    state.pace.wake_ns = wake;
                    // Without groups there is no more room, however slowly it is taken.
                    let group = crate::state::pace::group_bytes(self.admission.room().limits.ahead);
                    if state.load_open.reserved >= group && state.wanted < state.open {
                        state.wanted = state.open;
                        self.admission.work.notify_one();
                    }
                    drop(state);
                    self.wait_until(wake);
                    queue.leave(WaitFor::Throttle);
                }
                Wait::Commit => {
                    queue.enter();
                    if self.threaded() {
                        // The end of a group that syncs is room enough: nobody waits for a whole one of his own.
                        let txg = state.open;
                        state.wanted = state.wanted.max(txg);
                        if !state.syncing {
                            state.awaited = state.awaited.max(txg);
                            self.admission.work.notify_one();
                        }
                        self.admission.synced.wait_for(&mut state, LOOK_AGAIN);
                        drop(state);
                    } else {
                        let txg = state.open;
                        drop(state);
                        self.commit_txg(txg)?;
                    }
                    queue.leave(WaitFor::Sync);
                }
                Wait::Turn => {
                    queue.enter();
                    wait.enter(&mut state, need);
                    self.admission.more_room.wait_for(&mut state, LOOK_AGAIN);
                    drop(state);
                    queue.leave(WaitFor::Space);
                }
                Wait::Space => {
                    let room = self.admission.room();
                    let (limit, writable) = cost.room_of(&room, state.promised);
                    // What others reserved comes back with their group, so only when nothing is pending is the answer final; and
                    // collection needs some groups to turn garbage into room.
                    if state.reserved().0 == 0 && wait.seen != Some(state.synced) {
                        wait.seen = Some(state.synced);
                        wait.stuck = if writable > wait.most { 0 } else { wait.stuck + 1 };
                        wait.most = wait.most.max(writable);
                        // Every group takes some room itself, so none is committed that cannot bring any.
                        let may_help =
                            !room.is_stuck || state.load_open.changed || self.admission.waiting_zones() > 0;
                        if room.live + need > limit || wait.stuck > PATIENCE || !may_help {
                            // It may be in zones that could not be read.
                            if room.live + need <= limit && room.unread_since_ns.is_some() {
                                if !cost.frees {
                                    wait.enter(&mut state, need);
                                }
                                queue.enter();
                                drop(state);
                                let may_help = self.wait_for_unread();
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
                    if self.threaded() {
                        // Not for the whole group: collection tells of each step.
                        state.wanted = state.wanted.max(txg);
                        self.admission.work.notify_one();
                        self.admission.more_room.wait_for(&mut state, LOOK_AGAIN);
                        drop(state);
                    } else {
                        drop(state);
                        self.commit_txg(txg)?;
                    }
                    queue.leave(WaitFor::Space);
                }
            }
        }
    }

    /// Keeps so many bytes for somebody, whatever there is: it was promised before the pool was opened. Otherwise [`Cost::promises`] asks
    /// for it.
    pub fn promise(&self, bytes: u64) {
        self.admission.set_promised(|promised| promised.saturating_add(bytes));
    }

    /// What was promised was written, or is not wanted any more.
    pub fn end_promise(&self, bytes: u64) {
        if bytes > 0 {
            self.admission.set_promised(|promised| promised.saturating_sub(bytes));
        }
    }

    /// Bytes that are kept for those to whom they were promised.
    pub fn promised_bytes(&self) -> u64 {
        self.admission.promised()
    }

    /// Until the pool's clock says so. Nobody offers his processor to others instead: that costs milliseconds where they run.
    fn wait_until(&self, wake_ns: u64) {
        loop {
            let left = wake_ns.saturating_sub(self.env.monotonic_ns());
            if left == 0 {
                return;
            }
            self.env.sleep_exactly(Duration::from_nanos(left));
        }
    }

    /// Commits everything that was done before the call; durable when it returns.
    pub fn commit(self: &Arc<Self>) -> Result<Txg, PoolError> {
        let target = {
            let state = self.admission.state.lock();
            // A group that somebody asked for, who then found room without it, is waited for as well: nothing is under way afterwards.
            let is_wanted = self.threaded() && state.wanted >= state.open;
            match (state.load_open.changed || is_wanted, state.syncing) {
                (true, _) => state.open,
                (false, true) => Txg(state.open.0 - 1),
                // The group before the open one need not exist: numbers go on above the lease after a crash.
                (false, false) => state.synced,
            }
        };
        self.commit_txg(target)?;
        Ok(target)
    }

    /// Waits until group `txg` is durable, starting its commit if need be.
    pub fn commit_txg(self: &Arc<Self>, txg: Txg) -> Result<(), PoolError> {
        if self.read_only {
            // Nothing can be waiting to become durable.
            return Ok(());
        }
        let mut state = self.admission.state.lock();
        state.awaited = state.awaited.max(txg);
        while state.synced < txg {
            self.reports.alive()?;
            if self.threaded() {
                state.wanted = state.wanted.max(txg);
                self.admission.work.notify_one();
                self.admission.synced.wait(&mut state);
            } else {
                drop(state);
                self.run_group()?;
                state = self.admission.state.lock();
            }
        }
        self.reports.alive()
    }

    /// Waits until no group syncs. Whoever holds a [`Tx`] keeps the next one from it: then all that is not stored is what the open group
    /// has changed.
    pub fn wait_for_sync(&self) -> Result<(), PoolError> {
        self.admission.wait_for_sync(|| self.reports.alive())
    }

    /// Waits until the group is durable or the pool has failed, without asking for it.
    pub fn synced_txg(&self) -> Txg {
        self.admission.synced()
    }

    /// The client has work left over: another group should follow although nobody changes anything.
    pub fn want_another_group(&self) {
        self.admission.want_another_group();
    }

    /// Whether another group will follow although nobody changes anything.
    pub fn has_work_left(&self) -> bool {
        self.admission.state.lock().empty_wanted
    }

    pub fn open_txg(&self) -> Txg {
        self.admission.open()
    }

    /// One group through quiescing and syncing.
    pub(crate) fn run_group(self: &Arc<Self>) -> Result<(), PoolError> {
        let mut sync = self.sync.lock();
        let txg = self.admission.quiesce();
        if let Some(client) = self.client() {
            self.admission.join_last();
            let last = Tx { pool: self.clone(), txg };
            client.quiesced(&last);
        }
        self.admission.open_next(txg);
        let outcome = self.sync_group(&mut sync, txg);
        if let Err(error) = &outcome {
            // Before anybody else gets the lock: no group may follow on a half-applied one.
            self.fail(error);
        }
        drop(sync);
        let (now_ns, goes_on) = (|| self.env.monotonic_ns(), || self.collection.collects_by_hand());
        self.admission.end_sync(txg, outcome.is_ok(), now_ns, goes_on);
        if let (Ok(()), Some(client)) = (&outcome, self.client()) {
            client.synced(txg);
        }
        outcome
    }

    /// The sync thread. A panic in it is our own mistake; it must not leave anybody asleep who waits for a group.
    pub(crate) fn sync_loop(self: Arc<Self>, period: Duration) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.sync_groups(period)));
        if outcome.is_err() {
            self.fail(&PoolError::Failed { reason: "a group's sync panicked".into() });
        }
        self.admission.wake_all();
    }

    /// Commits when asked, when enough is dirty, and on a timer.
    fn sync_groups(self: &Arc<Self>, period: Duration) {
        // It wakes for every block that workers have made, and whoever writes meanwhile would lose the processor for milliseconds.
        self.env.never_preempt();
        loop {
            let mut state = self.admission.state.lock();
            while !state.stopping && state.wanted < state.open {
                let timed_out = self.admission.work.wait_for(&mut state, period).timed_out();
                if timed_out && (state.load_open.changed || state.empty_wanted) {
                    break;
                }
                if timed_out && parking_lot::MutexGuard::unlocked(&mut state, || self.look_at_the_clock()) {
                    break;
                }
            }
            if state.stopping {
                return;
            }
            drop(state);
            if self.run_group().is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::CreateOptions;
    use crate::import::ImportOptions;
    use std::sync::mpsc;
    use terrane_device::{SimConfig, SimDevice};
    use terrane_store::env::SeededEnv;

    #[test]
    fn nobody_begins_to_wait_when_the_pool_has_stopped() {
        let device = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
        let (create, options) = (CreateOptions::named("toy"), ImportOptions::default());
        let pool = Pool::create(vec![device], &create, Arc::new(SeededEnv::new(1)), &options).unwrap();
        let mut state = pool.admission.state.lock();
        // Somebody else came first.
        state.queue.push_back((u64::MAX, 1));
        let (done, ended) = mpsc::channel();
        let writer = pool.clone();
        std::thread::spawn(move || {
            let outcome = writer.begin(Cost { write_bytes: 4096, ..Cost::NOTHING }).map(drop);
            done.send(outcome.is_err())
        });
        // It stands before the lock by then, or comes later, which is as good.
        std::thread::sleep(Duration::from_millis(100));
        pool.fail(&PoolError::Failed { reason: "a test says so".into() });
        pool.admission.synced.notify_all();
        drop(state);
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true), "it waits for ever");
    }
}
