//! Zones that GC could not read are tried again, after pauses that grow.
//!
//! A read error says nothing about the content of a zone. So it is kept in memory only, never in a record.
//! The zone sleeps for one second, then for two, and so on up to an hour.
//!
//! If several zones of a device fail within a minute, the device is in trouble, and GC rests there. It takes
//! no victim on the device until the pause is over, and then reads a single zone. The first zone that is
//! moved whole ends the trouble.
//!
//! A writer that needs space reads the end of such a zone itself, at most once per second. It waits for some
//! seconds after the first failure. Txgs follow only if there is a zone to try, because every txg takes space
//! and would waste the last of it.
//!
//! Invariant: a device that becomes readable again gets all its zones back, without an import.

use crate::mover::Mover;
use crate::pool::Pool;
use terrane_format::directory::PartTrailer;
use terrane_txg::unread::{GcRest, WAIT_NS, WAIT_STEP};
use terrane_wire::{DeviceIdx, ZoneSeq};

impl Pool {
    /// Devices on which GC rests, as of the last txg.
    pub fn gc_rests(&self) -> Vec<GcRest> {
        self.collection.rests()
    }

    /// Waits until a txg may win space from unreadable zones, for a writer that finds no space although there
    /// is garbage. False: the zones have been unreadable for some seconds.
    pub(crate) fn wait_for_unread(&self) -> bool {
        loop {
            let since_ns = self.admission.space_snapshot().unread_since_ns;
            if self.has_readable() || since_ns.is_none() || self.reports.check_running().is_err() {
                return true;
            }
            let waited_ns = since_ns.map_or(0, |since| self.env.monotonic_ns().saturating_sub(since));
            if waited_ns >= WAIT_NS {
                return false;
            }
            self.env.sleep(WAIT_STEP);
        }
    }

    /// Whether the next txg has a zone to try. If not, it probes the end of a zone on a device on which GC
    /// rests.
    fn has_readable(&self) -> bool {
        let mut st = self.sync.lock();
        let now_ns = self.env.monotonic_ns();
        if st.collector.unread.has_due(now_ns) {
            return true;
        }
        let Some((seq, device)) = st.collector.unread.probe(now_ns) else { return false };
        let claimed = self.store.tables.read().zones.get(&seq).map_or(0, |zone| zone.claimed);
        let Some(pinned) = self.store.pin(seq) else { return false };
        let mut end = [0; PartTrailer::SIZE];
        let from = claimed.saturating_sub(end.len() as u64);
        let is_read = self.store.read_zone(&pinned, from, &mut end).is_ok();
        if is_read {
            st.collector.unread.end_rest(device, now_ns);
        }
        is_read
    }
}

impl Mover<'_, '_> {
    /// Lets this txg try the zones whose sleep is over.
    pub(crate) fn wake_zones(&mut self) {
        let due = self.txg_sync.st.collector.unread.due(self.txg_sync.pool.env.monotonic_ns());
        self.txg_sync.st.collector.wake(&self.txg_sync.pool.admission, due);
    }

    pub(super) fn rests_with(&mut self, seq: ZoneSeq, device: DeviceIdx) -> bool {
        let (pool, now_ns) = (self.txg_sync.pool, self.txg_sync.pool.env.monotonic_ns());
        self.txg_sync.st.collector.rests_with(&pool.store, seq, device, now_ns)
    }

    pub(super) fn put_to_sleep(&mut self, seq: ZoneSeq) {
        let (pool, now_ns) = (self.txg_sync.pool, self.txg_sync.pool.env.monotonic_ns());
        self.txg_sync.st.collector.put_to_sleep(&pool.store, seq, now_ns);
    }
}
