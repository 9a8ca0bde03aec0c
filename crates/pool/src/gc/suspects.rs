//! Checks suspect zones again, and makes them normal zones if they can be explained.
//!
//! A zone becomes suspect if its directory was read and contradicts the tables, or if a live block in it is
//! damaged. The damaged block may have been freed or healed since. Earlier versions also suspected zones that
//! were unreadable for a moment. So each is checked once after an import, when its last live block has died,
//! and when `check` asks for it.
//!
//! The zone is *explained* under three conditions. Its directory is whole, and no entry contradicts the
//! tables. The live blocks have good bytes. Their sum is what the zone's row says. Then it is a full zone
//! like any other.
//!
//! Invariant: an explained zone can be emptied, so it does not become suspect again for the same reason.

use crate::mover::Mover;
use crate::pool::Pool;
use terrane_format::rows::Phase;
use terrane_txg::collector::PIECE_NS;

impl Pool {
    /// Makes the next txgs check suspect zones again. Returns the number of suspect zones.
    pub fn recheck_suspects(&self) -> u64 {
        let suspects = self.store.tables.read().suspects().count() as u64;
        if suspects > 0 && !self.read_only {
            self.collection.recheck_suspects();
            self.admission.want_empty();
        }
        suspects
    }
}

impl Mover<'_, '_> {
    /// Checks as many suspect zones as one txg has time for.
    pub(crate) fn check_suspects(&mut self) {
        if self.txg_sync.pool.collection.take_recheck() {
            let tables = self.txg_sync.pool.store.tables.read();
            self.txg_sync.st.collector.to_recheck.extend(tables.suspects().map(|(seq, _)| seq));
        }
        let began_ns = self.txg_sync.pool.env.monotonic_ns();
        while let Some(seq) = self.txg_sync.st.collector.to_recheck.pop_first() {
            let home = {
                let tables = self.txg_sync.pool.store.tables.read();
                let suspect = tables.zones.get(&seq).filter(|zone| zone.phase == Phase::Suspect);
                suspect.map(|zone| zone.replicas().first())
            };
            let Some(home) = home.filter(|home| !self.rests_with(seq, home.device)) else { continue };
            match self.txg_sync.pool.store.is_explained(seq) {
                Ok(true) => {
                    log::info!("zone {seq}, {home}: no longer suspect, directory and tables agree");
                    self.txg_sync.st.collector.unread.remove(seq);
                    self.txg_sync.commit.explained.push(seq);
                }
                Ok(false) => log::error!("zone {seq}, {home}: still suspect; see `terrane check`"),
                Err(error) => {
                    log::warn!("zone {seq}, {home} skipped: {error}");
                    self.put_to_sleep(seq);
                }
            }
            if self.txg_sync.pool.env.monotonic_ns().saturating_sub(began_ns) > PIECE_NS {
                break;
            }
        }
        if !self.txg_sync.st.collector.to_recheck.is_empty() {
            self.txg_sync.pool.admission.want_another_txg();
        }
    }
}
