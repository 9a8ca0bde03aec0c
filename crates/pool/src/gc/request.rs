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
use terrane_txg::collector::Progress;
use terrane_txg::gc_request::{GcMode, GcProgress, IDLE_PERCENT, Victim};

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
        self.reports.check_running()?;
        let full = self.admission.full_zones();
        let goal = full.goal(target_percent);
        let wanted = (full.garbage > goal).then_some(goal);
        self.collection.request().begin(wanted, goal, false);
        if wanted.is_some() {
            self.admission.request_commit();
        }
        Ok(())
    }

    /// Begins a request when the idle window begins, and withdraws it at its end. Returns whether a txg
    /// should follow now.
    pub(crate) fn update_idle_window(&self) -> bool {
        let is_idle = self.is_idle_time();
        let (wanted, for_idle, idle_floor) = {
            let request = self.collection.request();
            (request.wanted, request.for_idle, request.idle_floor)
        };
        match (wanted, is_idle) {
            (Some(_), false) if for_idle => self.collection.request().wanted = None,
            (None, true) => {
                let full = self.admission.full_zones();
                let goal = full.goal(IDLE_PERCENT);
                // Not for every freed block: at least one zone's worth, and more than the garbage that could
                // not be won the last time.
                if full.garbage > goal.max(idle_floor) + self.admission.sizes().per_zone() {
                    self.collection.request().begin(Some(goal), goal, true);
                }
            }
            _ => {}
        }
        self.collection.has_request()
    }

    /// Progress of the GC request.
    pub fn gc_progress(&self) -> GcProgress {
        let full = self.admission.full_zones();
        let request = self.collection.request();
        GcProgress {
            garbage_bytes: full.garbage,
            goal_bytes: request.goal,
            zones_left: full.worth_emptying,
            done: request.wanted.is_none(),
        }
    }

    /// Why the newest txg ran GC, and the victim that it left partly emptied.
    pub fn gc_now(&self) -> (GcMode, Option<Victim>) {
        let request = self.collection.request();
        (request.mode, request.victim)
    }
}

impl Mover<'_, '_> {
    /// Bytes to gain: at least `needed`, and more if there is a GC request.
    pub(super) fn requested_gain(&self, needed: u64) -> u64 {
        self.txg_sync.pool.update_idle_window();
        let Some(goal) = self.txg_sync.pool.collection.request().wanted else { return needed };
        needed.max(self.txg_sync.pool.admission.full_zones().garbage.saturating_sub(goal))
    }

    /// Updates mode and request after the GC of a txg. `needed` and `goal`: bytes that should be gained.
    /// `moved_bytes`: bytes that moved.
    pub(super) fn note_collection(&self, needed: u64, goal: u64, moved_bytes: u64) {
        let victim =
            self.txg_sync.st.collector.victim.paused().and_then(|progress| self.victim_status(progress));
        let is_waited_for = self.txg_sync.pool.admission.space_waiters().0 > 0;
        let mode = match (needed > 0, goal > 0) {
            (true, _) if is_waited_for => GcMode::Urgent,
            (true, _) => GcMode::Background,
            (false, true) if self.txg_sync.pool.collection.request().for_idle => GcMode::Window,
            (false, true) => GcMode::Requested,
            (false, false) => GcMode::Idle,
        };
        let mut request = self.txg_sync.pool.collection.request();
        (request.mode, request.victim) = (mode, victim);
        if request.wanted.is_none() {
            return;
        }
        drop(request);
        let garbage = self.txg_sync.pool.admission.full_zones().garbage;
        self.txg_sync.pool.collection.request().note_txg(garbage, moved_bytes > 0);
    }

    fn victim_status(&self, progress: &Progress) -> Option<Victim> {
        let home = self.txg_sync.pool.store.tables.read().zones.get(&progress.victim)?.replicas().first();
        Some(Victim {
            seq: progress.victim,
            home,
            live_bytes: progress.cost.live,
            garbage_bytes: progress.cost.garbage,
            moved_bytes: progress.cost.moved,
        })
    }
}
