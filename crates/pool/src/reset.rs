//! Resets emptied zones.
//!
//! A zone without live blocks may be reset under three conditions. Its emptying is older than any txg that
//! could be imported, no reader holds it, and its directory can be explained: every listed block is dead or
//! has moved. If it cannot, the zone is kept for `check`.
//!
//! Invariant: a zone counts as empty only if it takes writes, as far as its device has reported.

use crate::pool::{Pool, SyncState};
use terrane_device::Device;
use terrane_format::record::Home;
use terrane_format::rows::Phase;
use terrane_space::replicas::Replicas;
use terrane_space::zones::Zone;
use terrane_store::PoolError;
use terrane_txg::admission::space::LAST_COMMIT_DIVISOR;
use terrane_wire::ZoneSeq;

impl Pool {
    /// Resets zones without live blocks whose emptying is older than any txg that can be rolled back to. If they are not `needed`, those
    /// whose directories lie far wait for a later txg.
    pub(crate) fn reset_emptied(&self, st: &mut SyncState, needed: bool) -> Result<(), PoolError> {
        let ready: Vec<(ZoneSeq, Replicas)> = {
            let tables = self.store.tables.read();
            let is_old = |zone: &Zone| matches!(zone.phase, Phase::Emptied(txg) if txg <= st.history.oldest);
            let ripe = |zone: &Zone| is_old(zone) && !zone.unreadable;
            tables
                .emptied()
                .filter(|(_, zone)| ripe(zone))
                .map(|(seq, zone)| (seq, zone.replicas()))
                .collect()
        };
        for (seq, replicas) in ready {
            if st.collector.rests_with(&self.store, seq, replicas.first().device, self.env.monotonic_ns()) {
                continue;
            }
            if needed {
                self.warming.wait(seq);
            } else if !self.is_warm(seq) {
                continue;
            }
            let is_explained = match self.store.is_fully_explained(seq, st.history.imported) {
                Ok(is_explained) => {
                    if st.collector.unread.has_failed(seq) {
                        st.collector.was_read(&self.admission, seq);
                    }
                    is_explained
                }
                Err(error) if error.is_transient() => {
                    log::warn!("zone {seq} unreadable, reset later: {error}");
                    st.collector.put_to_sleep(&self.store, seq, self.env.monotonic_ns());
                    continue;
                }
                Err(error) => {
                    log::error!("zone {seq}: directory damaged: {error}");
                    false
                }
            };
            if !is_explained {
                log::error!(
                    "zone {seq} suspect: its directory lists blocks that are neither dead nor moved; see `terrane check`"
                );
                st.suspects.push(seq);
                st.collector.drop_zone(seq);
                continue;
            }
            let copies = {
                let mut tables = self.store.tables.write();
                let Some(zone) = tables.zones.get(&seq) else { continue };
                if zone.is_pinned() {
                    continue;
                }
                let copies: Vec<_> = zone
                    .part_copies
                    .iter()
                    .map(|copy| (copy.addr, copy.part_end - copy.part_start))
                    .collect();
                tables.reclaim(seq);
                copies
            };
            st.collector.drop_zone(seq);
            self.warming.forget(seq);
            st.resets_done.push((seq, copies));
            for home in replicas.iter() {
                self.reset_zone(st, home)?;
            }
        }
        Ok(())
    }

    /// Whether a txg may read the directory of a zone that nobody waits for. If not, it is read meanwhile.
    pub(crate) fn is_warm(&self, seq: ZoneSeq) -> bool {
        !self.threaded() || !self.is_far() || self.warming.is_warm(seq, &self.store)
    }

    /// Resets a physical zone that is empty by the tables, so that it can be opened again.
    fn reset_zone(&self, st: &mut SyncState, home: Home) -> Result<(), PoolError> {
        match self.store.devices.get(home.device)?.reset(home.zone) {
            Ok(()) => {
                self.store.counters.reset_zones.add(1);
                st.alloc.put(home);
            }
            // The error may be transient: the next open of the zone tries again.
            Err(error) if self.store.devices.zone_takes_writes(home) => {
                log::warn!("{home}: reset failed, retried when the zone is opened: {error}");
                st.alloc.put_unclean(home);
            }
            Err(error) => log::warn!("{home} retired: reset failed: {error}"),
        }
        Ok(())
    }

    /// Makes the newest durable txg the only one that is kept whole. So zones whose emptying is not yet old
    /// can be reset at once. That costs no more than an uberblock.
    ///
    /// It is done only if there may be no space for the txgs that ageing takes, or for `bytes` of the current
    /// one, or if there are not enough empty zones to keep files apart.
    pub(crate) fn drop_rollback_txgs(&self, st: &mut SyncState, bytes: u64) -> Result<(), PoolError> {
        let Some((txg, ptr)) = st.history.newest else { return Ok(()) };
        self.store.devices.query_host_free();
        let needed = bytes.saturating_add(self.admission.sizes().commit_bytes() / LAST_COMMIT_DIVISOR);
        // Several files are written, and the next ones would share zones.
        let are_zones_short = st.alloc.empty_count() < 2 * st.streams.extra_wanted();
        if self.admission.account(st).physical_free() < needed {
            // A zone whose directory is being read does not count as one that can be reset.
            let emptied: Vec<ZoneSeq> = self.store.tables.read().emptied().map(|(seq, _)| seq).collect();
            emptied.into_iter().for_each(|seq| self.warming.wait(seq));
        }
        let needed = if are_zones_short { u64::MAX } else { needed };
        self.release_holds(st, self.admission.account(st).physical_free() < needed);
        let is_old = st.history.oldest < txg;
        // Some zones may have been held or unreadable when the others were reset. A txg that needs them tries
        // again.
        if self.admission.account(st).physical_free() >= needed
            || self.admission.waiting_zones() == 0
            || !is_old && bytes == 0
        {
            return Ok(());
        }
        if is_old {
            st.history.oldest = txg;
            self.write_uberblock(st, txg, ptr, false)?;
        }
        self.reset_emptied(st, true)
    }

    /// Removes zones that take no more writes from the empty ones. The devices are asked about the zones that
    /// would be opened next.
    pub(crate) fn drop_unwritable_zones(&self, st: &mut SyncState) {
        let count = self.admission.sizes().min_empty_zones() + st.streams.layout().slots();
        loop {
            let next = st.alloc.next_empty_zones(count);
            let mut unwritable =
                next.into_iter().filter(|home| !self.store.devices.zone_takes_writes(*home)).peekable();
            if unwritable.peek().is_none() {
                return;
            }
            unwritable.for_each(|home| {
                log::warn!("{home} retired: it takes no more writes");
                st.alloc.drop_zone(home);
            });
        }
    }
}
