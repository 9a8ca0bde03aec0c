//! GC without need of space: on request of an administrator, or in the idle window.
//!
//! It runs in txg after txg, until the garbage share of full zones is below a goal, or nothing more is won.
//! Space for writers comes first; this only adds to it. In the idle window the pool makes the request itself,
//! and withdraws it at the end.
//!
//! Invariant: a request ends. A txg that moves nothing and wins nothing counts against it, and few of those
//! are allowed.

use crate::mover::Mover;
use crate::pool::Pool;
use std::sync::Arc;
use terrane_store::PoolError;
use terrane_txg::by_hand::{GcMode, GcProgress, IDLE_PERCENT, PATIENCE, Victim};
use terrane_txg::collector::Progress;

impl Pool {
    /// Runs GC until at most `target_percent` of the bytes in full zones are garbage; 100 ends an earlier
    /// request. Returns at once; [`Pool::gc_progress`] reports progress.
    ///
    /// # Errors
    /// `ReadOnly`; `Failed` if the pool has stopped.
    pub fn gc_request(self: &Arc<Self>, target_percent: u8) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        self.reports.alive()?;
        let full = self.admission.full_zones();
        let goal = full.goal(target_percent);
        let wanted = (full.garbage > goal).then_some(goal);
        self.collection.by_hand().begin(wanted, goal, false);
        if wanted.is_some() {
            self.admission.hurry();
        }
        Ok(())
    }

    /// Begins a request when the idle window begins, and withdraws it at its end. Returns whether a txg
    /// should follow now.
    pub(crate) fn look_at_the_clock(&self) -> bool {
        let is_idle = self.is_idle_time();
        let (wanted, for_idle, settled) = {
            let by_hand = self.collection.by_hand();
            (by_hand.wanted, by_hand.for_idle, by_hand.settled)
        };
        match (wanted, is_idle) {
            (Some(_), false) if for_idle => self.collection.by_hand().wanted = None,
            (None, true) => {
                let full = self.admission.full_zones();
                let goal = full.goal(IDLE_PERCENT);
                // Not for every freed block: at least one zone's worth, and more than the garbage that could
                // not be won the last time.
                if full.garbage > goal.max(settled) + self.admission.sizes().per_zone() {
                    self.collection.by_hand().begin(Some(goal), goal, true);
                }
            }
            _ => {}
        }
        self.collection.collects_by_hand()
    }

    /// Progress of the GC request.
    pub fn gc_progress(&self) -> GcProgress {
        let full = self.admission.full_zones();
        let by_hand = self.collection.by_hand();
        GcProgress {
            garbage_bytes: full.garbage,
            goal_bytes: by_hand.goal,
            zones_left: full.worth,
            done: by_hand.wanted.is_none(),
        }
    }

    /// Why the newest txg ran GC, and the victim that it left partly emptied.
    pub fn gc_now(&self) -> (GcMode, Option<Victim>) {
        let by_hand = self.collection.by_hand();
        (by_hand.mode, by_hand.victim)
    }
}

impl Mover<'_, '_> {
    /// Bytes to gain: at least `needed`, and more if there is a GC request.
    pub(super) fn asked_gain(&self, needed: u64) -> u64 {
        self.group.pool.look_at_the_clock();
        let Some(goal) = self.group.pool.collection.by_hand().wanted else { return needed };
        needed.max(self.group.pool.admission.full_zones().garbage.saturating_sub(goal))
    }

    /// Updates mode and request after the GC of a txg. `needed` and `goal`: bytes that should be gained.
    /// `moved_bytes`: bytes that moved.
    pub(super) fn note_collection(&self, needed: u64, goal: u64, moved_bytes: u64) {
        let victim = self.group.st.collector.victim.resting().and_then(|progress| self.view(progress));
        let is_waited_for = self.group.pool.admission.waiting().0 > 0;
        let mode = match (needed > 0, goal > 0) {
            (true, _) if is_waited_for => GcMode::Urgent,
            (true, _) => GcMode::Background,
            (false, true) if self.group.pool.collection.by_hand().for_idle => GcMode::Window,
            (false, true) => GcMode::ByHand,
            (false, false) => GcMode::Idle,
        };
        let mut by_hand = self.group.pool.collection.by_hand();
        (by_hand.mode, by_hand.victim) = (mode, victim);
        let Some(wanted) = by_hand.wanted else { return };
        drop(by_hand);
        let garbage = self.group.pool.admission.full_zones().garbage;
        let mut by_hand = self.group.pool.collection.by_hand();
        let is_better = moved_bytes > 0 || garbage < by_hand.least_garbage;
        by_hand.least_garbage = by_hand.least_garbage.min(garbage);
        by_hand.stuck = if is_better { 0 } else { by_hand.stuck + 1 };
        if garbage <= wanted || by_hand.stuck > PATIENCE {
            by_hand.wanted = None;
            by_hand.settled = garbage;
        }
    }

    fn view(&self, progress: &Progress) -> Option<Victim> {
        let home = self.group.pool.store.tables.read().zones.get(&progress.victim)?.replicas().first();
        Some(Victim {
            seq: progress.victim,
            home,
            live_bytes: progress.worth.live,
            garbage_bytes: progress.worth.garbage,
            moved_bytes: progress.worth.moved,
        })
    }
}
