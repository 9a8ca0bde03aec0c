//! Collection that nothing forces: somebody asked for it, or the hour is one that was said to be idle.
//!
//! It goes on, group after group, until at most a share of what full zones hold is garbage, or until nothing more is won. What room
//! writers need comes first; this only adds to it. In the idle part of a day the pool asks itself, and takes it back when that is over.
//!
//! Invariant: a request ends. A group that moves nothing and wins nothing counts against it, and it has few of those.

use crate::mover::Mover;
use crate::pool::Pool;
use std::sync::Arc;
use terrane_store::PoolError;
use terrane_txg::by_hand::{GcMode, GcProgress, IDLE_PERCENT, PATIENCE, Victim};
use terrane_txg::collector::Progress;

impl Pool {
    /// Collects, from now on, until at most `target_percent` of what full zones hold is garbage; 100 ends what was asked for before.
    /// Returns at once; [`Pool::gc_progress`] tells how far it is.
    ///
    /// # Errors
    /// `ReadOnly`; `Failed` when the pool has stopped.
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

    /// Begins what idle time is for, and ends it with that. Whether a group should follow now.
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
                // Not for each block that dies: a zone's worth at least, and more than could not be won the last time.
                if full.garbage > goal.max(settled) + self.admission.sizes().per_zone() {
                    self.collection.by_hand().begin(Some(goal), goal, true);
                }
            }
            _ => {}
        }
        self.collection.collects_by_hand()
    }

    /// How far collection is that was asked for.
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

    /// Why the newest group emptied zones, and the zone it left half way.
    pub fn gc_now(&self) -> (GcMode, Option<Victim>) {
        let by_hand = self.collection.by_hand();
        (by_hand.mode, by_hand.victim)
    }
}

impl Mover<'_, '_> {
    /// What to gain beside the `needed` bytes, because somebody asked for it.
    pub(super) fn asked_gain(&self, needed: u64) -> u64 {
        self.group.pool.look_at_the_clock();
        let Some(goal) = self.group.pool.collection.by_hand().wanted else { return needed };
        needed.max(self.group.pool.admission.full_zones().garbage.saturating_sub(goal))
    }

    /// A group has collected: `needed` and `goal` bytes were to be gained, `moved_bytes` moved.
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
