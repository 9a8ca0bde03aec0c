//! Evacuation: empties zones although that gives no space. They are on leaving devices, or unwritable.
//!
//! A read-only zone can still be read, but its garbage never becomes free space. If that garbage were counted
//! on, writers would have used the remaining space when the error shows. So a victim's device is asked before
//! anything is moved. Live blocks of an unwritable zone are moved as well, because its failure may continue.
//! Then the zone is dropped.
//!
//! Invariant: live blocks of an unwritable zone are moved only while there is space for another victim as
//! well.

use super::{Progress, VICTIMS_MAX};
use crate::mover::Mover;
use crate::removal::leaving_zone;
use terrane_format::record::Home;
use terrane_format::rows::Phase;
use terrane_space::zones::Tables;
use terrane_store::PoolError;
use terrane_wire::ZoneSeq;

impl Mover<'_, '_> {
    /// Moves a piece of the live blocks in these zones. Their garbage does not matter, because the aim is not
    /// free space.
    pub(crate) fn evacuate(&mut self) -> Result<(), PoolError> {
        self.txg_sync.st.collector.evacuation.needs = 0;
        let is_needed = self.txg_sync.pool.store.devices.any_leaving()
            || !self.txg_sync.st.collector.unwritable.is_empty();
        if !is_needed || !self.healed.is_empty() {
            return Ok(());
        }
        self.check_index_memory();
        let mut piece = self.txg_sync.st.collector.copying.piece_bytes();
        let mut done: Vec<ZoneSeq> = Vec::new();
        while piece > 0 && done.len() < VICTIMS_MAX && !self.is_record_full() {
            let Some(mut progress) = self.take_evacuation(&done)? else { break };
            let left = progress.cost.remaining();
            let is_unwritable = self.txg_sync.st.collector.unwritable.contains(&progress.victim);
            let needs = match is_unwritable {
                true => left + self.txg_sync.pool.admission.sizes().per_zone(),
                false => left.min(piece.saturating_add(progress.part_bytes_max())),
            };
            let free_bytes = self
                .txg_sync
                .pool
                .admission
                .account(self.txg_sync.st)
                .physical_free()
                .saturating_sub(self.txg_sync.pool.admission.reserved_open());
            if free_bytes < needs + self.txg_sync.pool.admission.sizes().commit_bytes() {
                // GC for free space comes first, and learns of the need by `needs`. The rest waits for a txg
                // with more space.
                self.txg_sync.st.collector.evacuation.needs =
                    if is_unwritable { left } else { left.min(piece) };
                // An unwritable zone is dropped as current evacuation, so that it does not block leaving devices.
                self.txg_sync.st.collector.evacuation.progress = Some(progress).filter(|_| !is_unwritable);
                break;
            }
            let (moved, fits) = self.move_piece(&mut progress, piece)?;
            piece = if fits { piece.saturating_sub(moved.max(1)) } else { 0 };
            if progress.next_part < progress.parts.len() {
                self.txg_sync.st.collector.evacuation.progress = Some(progress);
                if fits {
                    self.txg_sync.pool.admission.want_another_txg();
                }
                continue;
            }
            done.push(progress.victim);
            if !progress.all_moved {
                self.mark_unmovable(progress.victim, progress.unread_blocks > 0);
            }
        }
        Ok(())
    }

    /// The zone under evacuation, or the next one.
    fn take_evacuation(&mut self, done: &[ZoneSeq]) -> Result<Option<Progress>, PoolError> {
        let is_full = |tables: &Tables, seq: ZoneSeq| {
            tables.zones.get(&seq).is_some_and(|zone| zone.phase == Phase::Full)
        };
        let before = self.txg_sync.st.collector.evacuation.progress.take();
        let tables = self.txg_sync.pool.store.tables.read();
        if let Some(progress) = before
            && is_full(&tables, progress.victim)
        {
            return Ok(Some(progress));
        }
        let collector = &self.txg_sync.st.collector;
        let but = |seq: ZoneSeq| {
            done.contains(&seq)
                || collector.awaiting_sections.contains(seq)
                || collector.unread.sleeps(seq)
                || self.txg_sync.commit.suspect.contains(&seq)
        };
        let unwritable = || collector.unwritable().find(|seq| is_full(&tables, *seq) && !but(*seq));
        let Some(victim) = leaving_zone(self.txg_sync.pool, &tables, &but).or_else(unwritable) else {
            return Ok(None);
        };
        drop(tables);
        self.begin_victim(victim, None)
    }

    /// Records that a device reports that a zone takes no more writes.
    pub(super) fn note_unwritable(&mut self, victim: ZoneSeq, home: Home) {
        if self.txg_sync.st.collector.unwritable.insert(victim) {
            log::warn!("{home} degraded: it takes no more writes, moving its live blocks");
            self.txg_sync.pool.admission.want_another_txg();
        }
    }
}
