//! Empties almost empty zones although space is not short.
//!
//! Where metadata and data share zones, a zone whose files were all removed keeps a few metadata blocks that
//! nothing will change. So it keeps its whole space on the device. Moving them costs almost nothing, and
//! frees the space at once instead of when the pool runs full.
//!
//! Invariant: a txg does this only if GC is not needed for space, so waiting writers never wait for it.

use crate::mover::Mover;
use std::sync::atomic::Ordering;
use terrane_store::PoolError;
use terrane_txg::collector::{Progress, VICTIMS_MAX};

/// A zone is almost empty if at most 1/`NEARLY_EMPTY_DIVISOR` of its capacity is live.
const NEARLY_EMPTY_DIVISOR: u64 = 32;
/// What one request to an object store reads of such a zone, roughly, in bytes.
const READ_BYTES: u64 = 16 << 10;

impl Mover<'_, '_> {
    /// Empties such zones, the emptiest first. If a block cannot be moved it stays, and the zone is tried
    /// again after its next change.
    pub(super) fn collect_nearly_empty(&mut self) -> Result<(), PoolError> {
        if self.txg_sync.pool.closes_far.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut piece = self.txg_sync.st.collector.copying.piece_bytes();
        for _ in 0..VICTIMS_MAX {
            if self.is_record_full() {
                break;
            }
            let Some(victim) = self.txg_sync.st.collector.candidates.nearly_empty(NEARLY_EMPTY_DIVISOR)
            else {
                return Ok(());
            };
            if !self.txg_sync.pool.may_spend(1) || !self.txg_sync.pool.is_warm(victim) {
                return Ok(());
            }
            let zone_yield = self.txg_sync.pool.admission.zone_yield();
            self.txg_sync.st.collector.candidates.remove(victim);
            self.txg_sync.st.collector.ages.end_zone(victim);
            let Some(mut progress) = self.begin_victim(victim, Some(zone_yield))? else { continue };
            self.txg_sync.pool.warming.forget(victim);
            // Its directory was read, and its blocks will be. The next zone waits if that was more than was left.
            let requests = progress.parts.len() as u64 + progress.cost.live / READ_BYTES;
            self.txg_sync.pool.may_spend(requests);
            if progress.cost.live > piece || !self.fits(&progress) {
                self.txg_sync.st.collector.update_zone(
                    &self.txg_sync.pool.store.tables.read(),
                    victim,
                    zone_yield,
                );
                return Ok(());
            }
            self.check_index_memory();
            let (moved, fits) = self.move_piece(&mut progress, u64::MAX)?;
            let is_finished = progress.next_part >= progress.parts.len();
            if !fits || !is_finished {
                self.txg_sync.st.collector.update_zone(
                    &self.txg_sync.pool.store.tables.read(),
                    victim,
                    zone_yield,
                );
                if fits {
                    self.txg_sync.pool.admission.want_another_txg();
                }
                return Ok(());
            }
            piece -= moved.min(piece);
            self.end_victim(&progress);
        }
        self.txg_sync.pool.admission.want_another_txg();
        Ok(())
    }

    /// Whether the copies fit, and the commit after them.
    fn fits(&self, progress: &Progress) -> bool {
        let admission = &self.txg_sync.pool.admission;
        let account = admission.account(self.txg_sync.st);
        account.physical_free()
            >= admission.reserved_open()
                + progress.cost.live
                + account.sizes.commit_bytes()
                + account.sizes.per_zone()
    }
}
