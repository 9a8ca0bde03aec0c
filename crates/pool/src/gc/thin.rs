//! Empties almost empty zones although space is not short.
//!
//! Where metadata and data share zones, a zone whose files were all removed keeps a few metadata blocks that
//! nothing will change. So it keeps its whole space on the device. Moving them costs almost nothing, and
//! frees the space at once instead of when the pool runs full.
//!
//! Invariant: a txg does this only if GC is not needed for space, so waiting writers never wait for it.

use crate::mover::Mover;
use terrane_store::PoolError;
use terrane_txg::collector::{Progress, VICTIMS_MAX};

/// A zone is almost empty if at most 1/`THIN_PART` of its capacity is live.
const THIN_PART: u64 = 32;

impl Mover<'_, '_> {
    /// Empties such zones, the emptiest first. If a block cannot be moved it stays, and the zone is tried
    /// again after its next change.
    pub(super) fn collect_thin(&mut self) -> Result<(), PoolError> {
        let mut piece = self.group.st.collector.copying.piece_bytes();
        for _ in 0..VICTIMS_MAX {
            if self.has_no_room_for_runs() {
                break;
            }
            let Some(victim) = self.group.st.collector.candidates.thinnest(THIN_PART) else { return Ok(()) };
            let zone_yield = self.group.pool.admission.zone_yield();
            self.group.st.collector.candidates.remove(victim);
            self.group.st.collector.ages.ended(victim);
            let Some(mut progress) = self.look_through(victim, Some(zone_yield))? else { continue };
            if progress.worth.live > piece || !self.has_room_for(&progress) {
                self.group.st.collector.changed(&self.group.pool.store.tables.read(), victim, zone_yield);
                return Ok(());
            }
            self.look_at_index();
            let (moved, fits) = self.move_piece(&mut progress, u64::MAX)?;
            let is_whole = progress.part >= progress.parts.len();
            if !fits || !is_whole {
                self.group.st.collector.changed(&self.group.pool.store.tables.read(), victim, zone_yield);
                if fits {
                    self.group.pool.admission.want_another_group();
                }
                return Ok(());
            }
            piece -= moved.min(piece);
            self.finished(&progress);
        }
        self.group.pool.admission.want_another_group();
        Ok(())
    }

    /// Whether the copies fit, and the commit after them.
    fn has_room_for(&self, progress: &Progress) -> bool {
        let admission = &self.group.pool.admission;
        let account = admission.account(self.group.st);
        account.physical()
            >= admission.reserved_open()
                + progress.worth.live
                + account.sizes.commit_bytes()
                + account.sizes.per_zone()
    }
}
