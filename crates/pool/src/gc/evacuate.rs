//! Evacuation: empties zones although that gives no space. They are on leaving devices, or dead.
//!
//! A read-only zone can still be read, but its garbage never becomes free space. If that garbage were counted
//! on, writers would have used the remaining space when the error shows. So a victim's device is asked before
//! anything is moved. Live blocks of a dead zone are moved as well, because its failure may continue. Then
//! the zone is forgotten.
//!
//! Invariant: live blocks of a dead zone are moved only while there is space for another victim as well.

use super::{Progress, VICTIMS_MAX};
use crate::leaving::leaving_zone;
use crate::mover::Mover;
use terrane_format::record::Home;
use terrane_format::rows::Phase;
use terrane_space::zones::Tables;
use terrane_store::PoolError;
use terrane_wire::ZoneSeq;

impl Mover<'_, '_> {
    /// Moves a piece of the live blocks in these zones. Their garbage does not matter, because the aim is not
    /// free space.
    pub(crate) fn evacuate(&mut self) -> Result<(), PoolError> {
        self.group.st.collector.evacuation.needs = 0;
        let is_needed =
            self.group.pool.store.devices.any_leaves() || !self.group.st.collector.dead.is_empty();
        if !is_needed || !self.healed.is_empty() {
            return Ok(());
        }
        self.look_at_index();
        let mut piece = self.group.st.collector.copying.piece_bytes();
        let mut done: Vec<ZoneSeq> = Vec::new();
        while piece > 0 && done.len() < VICTIMS_MAX && !self.has_no_room_for_runs() {
            let Some(mut progress) = self.take_leaving(&done)? else { break };
            let left = progress.worth.left();
            let is_dead = self.group.st.collector.dead.contains(&progress.victim);
            let needs = match is_dead {
                true => left + self.group.pool.admission.sizes().per_zone(),
                false => left.min(piece.saturating_add(progress.part_bytes_max())),
            };
            let room = self
                .group
                .pool
                .admission
                .account(self.group.st)
                .physical()
                .saturating_sub(self.group.pool.admission.reserved_open());
            if room < needs + self.group.pool.admission.sizes().commit_bytes() {
                // GC for free space comes first, and learns of the need by `needs`. The rest waits for a txg
                // with more space.
                self.group.st.collector.evacuation.needs = if is_dead { left } else { left.min(piece) };
                // A dead zone is dropped as current evacuation, so that it does not block leaving devices.
                self.group.st.collector.evacuation.progress = Some(progress).filter(|_| !is_dead);
                break;
            }
            let (moved, fits) = self.move_piece(&mut progress, piece)?;
            piece = if fits { piece.saturating_sub(moved.max(1)) } else { 0 };
            if progress.part < progress.parts.len() {
                self.group.st.collector.evacuation.progress = Some(progress);
                if fits {
                    self.group.pool.admission.want_another_group();
                }
                continue;
            }
            done.push(progress.victim);
            if !progress.whole {
                self.cannot_empty(progress.victim, progress.unread > 0);
            }
        }
        Ok(())
    }

    /// The zone under evacuation, or the next one.
    fn take_leaving(&mut self, done: &[ZoneSeq]) -> Result<Option<Progress>, PoolError> {
        let is_full = |tables: &Tables, seq: ZoneSeq| {
            tables.zones.get(&seq).is_some_and(|zone| zone.phase == Phase::Full)
        };
        let before = self.group.st.collector.evacuation.progress.take();
        let tables = self.group.pool.store.tables.read();
        if let Some(progress) = before
            && is_full(&tables, progress.victim)
        {
            return Ok(Some(progress));
        }
        let collector = &self.group.st.collector;
        let but = |seq: ZoneSeq| {
            done.contains(&seq)
                || collector.held_up.contains(seq)
                || collector.unread.sleeps(seq)
                || self.group.commit.suspect.contains(&seq)
        };
        let dead = || collector.dead().find(|seq| is_full(&tables, *seq) && !but(*seq));
        let Some(victim) = leaving_zone(self.group.pool, &tables, &but).or_else(dead) else {
            return Ok(None);
        };
        drop(tables);
        self.look_through(victim, None)
    }

    /// Records that a device reports that a zone takes no more writes.
    pub(super) fn note_dead(&mut self, victim: ZoneSeq, home: Home) {
        if self.group.st.collector.dead.insert(victim) {
            log::warn!("{home}: it takes no writes any more; what lives there is moved away");
            self.group.pool.admission.want_another_group();
        }
    }
}
