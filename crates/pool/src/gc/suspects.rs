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
    pub fn explain_suspects(&self) -> u64 {
        let suspects = self.store.tables.read().suspects().count() as u64;
        if suspects > 0 && !self.read_only {
            self.collection.explain_afresh();
            self.admission.want_empty();
        }
        suspects
    }
}

impl Mover<'_, '_> {
    /// Checks as many suspect zones as one txg has time for.
    pub(crate) fn look_at_suspects(&mut self) {
        if self.group.pool.collection.take_explain_afresh() {
            let tables = self.group.pool.store.tables.read();
            self.group.st.collector.to_explain.extend(tables.suspects().map(|(seq, _)| seq));
        }
        let began_ns = self.group.pool.env.monotonic_ns();
        while let Some(seq) = self.group.st.collector.to_explain.pop_first() {
            let home = {
                let tables = self.group.pool.store.tables.read();
                let suspect = tables.zones.get(&seq).filter(|zone| zone.phase == Phase::Suspect);
                suspect.map(|zone| zone.replicas().first())
            };
            let Some(home) = home.filter(|home| !self.rests_with(seq, home.device)) else { continue };
            match self.group.pool.store.is_explained(seq) {
                Ok(true) => {
                    log::info!("zone {seq}, {home}: the tables explain it again; it is suspect no longer");
                    self.group.st.collector.unread.forget(seq);
                    self.group.commit.explained.push(seq);
                }
                Ok(false) => log::error!("zone {seq}, {home}: it is still suspect; see `terrane check`"),
                Err(error) => {
                    log::warn!("{error}");
                    self.put_to_sleep(seq);
                }
            }
            if self.group.pool.env.monotonic_ns().saturating_sub(began_ns) > PIECE_NS {
                break;
            }
        }
        if !self.group.st.collector.to_explain.is_empty() {
            self.group.pool.admission.want_another_group();
        }
    }
}
