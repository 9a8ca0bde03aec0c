//! GC of zones in an object store, where each answer takes its time.
//!
//! The directories of the next victims are read beside the txgs (see [`crate::warming`]): the first ones when free space comes near the
//! point at which GC is needed. A victim whose directory has been read goes before a better one. Survivors are read by more requests at a
//! time than from a disk, and a request reads over larger gaps.

use crate::mover::Mover;
use std::sync::atomic::Ordering;
use terrane_wire::ZoneSeq;

/// Victims whose directories are read ahead.
const VICTIMS_AHEAD: usize = 4;
/// Directories are read once GC would be needed with so many empty zones less.
const ZONES_BEFORE_NEED: u64 = 2;
/// Reads of a victim that are in flight: 16 MiB of what is wanted, and with what lies between 24 MiB at most.
pub(super) const EXTENTS_IN_FLIGHT: usize = 8;
/// Maximum gap between survivors that share a read, in bytes: less than arrives while a request waits for its answer.
pub(super) const EXTENT_GAP: u64 = 512 << 10;

impl Mover<'_, '_> {
    /// Whether victims are read by threads, because their device is far.
    pub(super) fn reads_far(&self) -> bool {
        self.txg_sync.pool.threaded() && self.txg_sync.pool.is_far()
    }

    /// Whether directories may be read ahead: not during an export, nor while GC rests because a device fails.
    fn may_read_ahead(&self) -> bool {
        let pool = self.txg_sync.pool;
        let unread = &self.txg_sync.st.collector.unread;
        let now_ns = pool.env.monotonic_ns();
        let fails = || pool.store.devices.all().iter().any(|(device, _)| unread.is_resting(*device, now_ns));
        self.reads_far() && !pool.closes_far.load(Ordering::Relaxed) && !fails()
    }

    /// The next victim at `now` user bytes. If it is far, this waits for its directory, and threads begin to read those of the next
    /// victims. `by_score`: the best victim, also if another one's directory has been read.
    pub(super) fn choose_victim(&self, now: u64, by_score: bool) -> Option<ZoneSeq> {
        let (pool, collector) = (self.txg_sync.pool, &self.txg_sync.st.collector);
        if !self.may_read_ahead() {
            return collector.candidates.choose(collector.policy, now, false);
        }
        let upcoming = collector.candidates.upcoming(collector.policy, now, VICTIMS_AHEAD + 1);
        // Asking begins to read.
        let warm: Vec<bool> = upcoming.iter().map(|seq| pool.is_warm(*seq)).collect();
        let first_warm = warm.iter().position(|is_warm| *is_warm).filter(|_| !by_score);
        let victim = *upcoming.get(first_warm.unwrap_or(0))?;
        pool.warming.wait(victim);
        Some(victim)
    }

    /// Begins to read the directories of far victims if GC will soon be needed.
    pub(super) fn read_ahead_of_need(&self) {
        let (pool, collector) = (self.txg_sync.pool, &self.txg_sync.st.collector);
        let zone_bytes = pool.admission.sizes().per_zone();
        if !self.may_read_ahead() || self.gain_wanted_for(ZONES_BEFORE_NEED * zone_bytes) == 0 {
            return;
        }
        let now = collector.ages.clock.now();
        for seq in collector.candidates.upcoming(collector.policy, now, VICTIMS_AHEAD) {
            pool.is_warm(seq);
        }
    }
}
