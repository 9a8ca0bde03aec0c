//! Suspect zones are looked at again, and given back if they can be explained by now.
//!
//! A zone becomes suspect when its directory was read and does not agree with the tables, or when a block that lives there is damaged. What
//! was damaged may have been freed since, or healed; and versions before this one also suspected zones that could not be read for a
//! moment. So each is looked at once after an import, when the last that lived in it has died, and when `check` asks for it. The zone is
//! *explained* if its directory is whole, no entry contradicts the tables, the blocks that live there have good bytes, and they are as many
//! as the zone's row says. Then it is full again, like any other.
//!
//! Invariant: a zone that is given back can be emptied, so it is not suspected again for the same reason.

use crate::mover::Mover;
use crate::pool::Pool;
use terrane_format::rows::Phase;
use terrane_txg::collector::PIECE_NS;

impl Pool {
    /// The next groups look at suspect zones again. Returns how many there are.
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
    /// Looks at as many suspect zones as there is time for in a group.
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
