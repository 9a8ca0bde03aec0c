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
use terrane_txg::admission::room::LAST_ROOM_PART;
use terrane_wire::ZoneSeq;

impl Pool {
    /// Resets zones without live blocks whose emptying is older than any txg that can be rolled back to.
    pub(crate) fn reset_emptied(&self, st: &mut SyncState) -> Result<(), PoolError> {
        let ready: Vec<(ZoneSeq, Replicas)> = {
            let tables = self.store.tables.read();
            let is_old = |zone: &Zone| matches!(zone.phase, Phase::Emptied(txg) if txg <= st.history.oldest);
            let ripe = |zone: &Zone| is_old(zone) && !zone.unread;
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
            let is_explained = match self.store.is_left(seq, st.history.imported) {
                Ok(is_explained) => {
                    if st.collector.unread.has_failed(seq) {
                        st.collector.was_read(&self.admission, seq);
                    }
                    is_explained
                }
                Err(error) if error.may_pass() => {
                    log::warn!("zone {seq}: {error}");
                    st.collector.put_to_sleep(&self.store, seq, self.env.monotonic_ns());
                    continue;
                }
                Err(error) => {
                    log::error!("zone {seq}: {error}");
                    false
                }
            };
            if !is_explained {
                log::error!(
                    "zone {seq}: its directory lists blocks that are neither dead nor moved; kept for `terrane check`"
                );
                st.suspects.push(seq);
                st.collector.reset(seq);
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
                tables.retire(seq);
                copies
            };
            st.collector.reset(seq);
            st.resets_done.push((seq, copies));
            for home in replicas.iter() {
                self.give_back(st, home)?;
            }
        }
        Ok(())
    }

    /// Resets a physical zone that is empty by the tables, so that it can be opened again.
    fn give_back(&self, st: &mut SyncState, home: Home) -> Result<(), PoolError> {
        match self.store.devices.get(home.device)?.reset(home.zone) {
            Ok(()) => {
                self.store.counters.reset_zones.add(1);
                st.alloc.put(home);
            }
            // The error may be transient: the next open of the zone tries again.
            Err(error) if self.store.devices.take_writes(home) => {
                log::warn!("{home}: {error}; the zone is reset when it is needed");
                st.alloc.put_unclean(home);
            }
            Err(error) => log::warn!("{home}: {error}; the zone is left aside"),
        }
        Ok(())
    }

    /// Makes the newest durable txg the only one that is kept whole. So zones whose emptying is not yet old
    /// can be reset at once. That costs no more than an uberblock.
    ///
    /// It is done only if there may be no space for the txgs that ageing takes, or for `bytes` of the current
    /// one.
    pub(crate) fn keep_only_the_newest(&self, st: &mut SyncState, bytes: u64) -> Result<(), PoolError> {
        let Some((txg, ptr)) = st.history.newest else { return Ok(()) };
        self.store.devices.ask_room_below();
        let needed = bytes.saturating_add(self.admission.sizes().commit_bytes() / LAST_ROOM_PART);
        self.let_holds_go(st, self.admission.account(st).physical() < needed);
        let is_old = st.history.oldest < txg;
        // Some zones may have been held or unreadable when the others were reset. A txg that needs them tries
        // again.
        if self.admission.account(st).physical() >= needed
            || self.admission.waiting_zones() == 0
            || !is_old && bytes == 0
        {
            return Ok(());
        }
        if is_old {
            st.history.oldest = txg;
            self.write_uberblock(st, txg, ptr, false)?;
        }
        self.reset_emptied(st)
    }

    /// Removes zones that take no more writes from the empty ones. The devices are asked about the zones that
    /// would be opened next.
    pub(crate) fn forget_dead_zones(&self, st: &mut SyncState) {
        let count = self.admission.sizes().low_water() + st.streams.layout().slots();
        loop {
            let next = st.alloc.first_of_each(count);
            let mut dead = next.into_iter().filter(|home| !self.store.devices.take_writes(*home)).peekable();
            if dead.peek().is_none() {
                return;
            }
            dead.for_each(|home| {
                log::warn!("{home}: it takes no writes any more; it is left aside");
                st.alloc.drop_zone(home);
            });
        }
    }
}
