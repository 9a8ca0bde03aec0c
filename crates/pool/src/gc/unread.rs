//! Zones that collection could not read: they are tried again later, after longer and longer pauses.
//!
//! A read error says nothing of what a zone holds. So it is kept in memory only, never in a record: the zone sleeps for a second, then for
//! two, and so on up to an hour. When several zones of a device fail within a minute the device is in trouble, and collection rests there:
//! it takes no victim on the device until a pause is over, and then reads a single zone. The first zone that is moved whole ends the
//! trouble.
//!
//! A writer that needs room reads the end of such a zone itself, at most once a second, and waits for some seconds after the first
//! failure. Groups follow only when there is something to be tried, because every group takes room: the last of it would go for nothing.
//!
//! Invariant: a device that can be read again gets all its zones back, without an import.

use crate::mover::Mover;
use crate::pool::Pool;
use terrane_format::directory::PartTrailer;
use terrane_txg::unread::{GcRest, WAIT_NS, WAIT_STEP};
use terrane_wire::{DeviceIdx, ZoneSeq};

impl Pool {
    /// Devices on which collection rests, as of the last group.
    pub fn gc_rests(&self) -> Vec<GcRest> {
        self.collection.rests()
    }

    /// For a writer that finds no room although there is some: waits until a group may win it from zones that could not be read. False:
    /// they cannot be read for some seconds already.
    pub(crate) fn wait_for_unread(&self) -> bool {
        loop {
            let since_ns = self.admission.room().unread_since_ns;
            if self.has_readable() || since_ns.is_none() || self.reports.alive().is_err() {
                return true;
            }
            let waited_ns = since_ns.map_or(0, |since| self.env.monotonic_ns().saturating_sub(since));
            if waited_ns >= WAIT_NS {
                return false;
            }
            self.env.sleep(WAIT_STEP);
        }
    }

    /// Whether the next group has a zone to try; if it has none a device on which collection rests is asked for the end of one.
    fn has_readable(&self) -> bool {
        let mut st = self.sync.lock();
        let now_ns = self.env.monotonic_ns();
        if st.collector.unread.has_due(now_ns) {
            return true;
        }
        let Some((seq, device)) = st.collector.unread.probe(now_ns) else { return false };
        let claimed = self.store.tables.read().zones.get(&seq).map_or(0, |zone| zone.claimed);
        let Some(held) = self.store.hold(seq) else { return false };
        let mut end = [0; PartTrailer::SIZE];
        let from = claimed.saturating_sub(end.len() as u64);
        let is_read = self.store.read_zone(&held, from, &mut end).is_ok();
        if is_read {
            st.collector.unread.lift(device, now_ns);
        }
        is_read
    }
}

impl Mover<'_, '_> {
    /// Zones whose sleep is over are tried again by this group.
    pub(crate) fn wake_zones(&mut self) {
        let due = self.group.st.collector.unread.due(self.group.pool.env.monotonic_ns());
        self.group.st.collector.wake(&self.group.pool.admission, due);
    }

    pub(super) fn rests_with(&mut self, seq: ZoneSeq, device: DeviceIdx) -> bool {
        let (pool, now_ns) = (self.group.pool, self.group.pool.env.monotonic_ns());
        self.group.st.collector.rests_with(&pool.store, seq, device, now_ns)
    }

    pub(super) fn put_to_sleep(&mut self, seq: ZoneSeq) {
        let (pool, now_ns) = (self.group.pool, self.group.pool.env.monotonic_ns());
        self.group.st.collector.put_to_sleep(&pool.store, seq, now_ns);
    }
}
