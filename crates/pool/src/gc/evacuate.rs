//! Zones that are emptied although that gives no room: those on devices that leave, and those that died.
//!
//! A zone that turned read-only can be read for as long as it likes, but what is garbage in it will never be room: were it counted on,
//! writers would have used up the room that is left when the truth comes out. So a victim's device is asked before anything is moved. What
//! lives in a dead zone is moved all the same, because whatever killed it may go on; then the zone is forgotten.
//!
//! Invariant: what lives in a dead zone is moved only while there is room for another victim beside it.

use super::{Progress, VICTIMS_MAX};
use crate::leaving::leaving_zone;
use crate::mover::Mover;
use terrane_format::record::Home;
use terrane_format::rows::Phase;
use terrane_space::zones::Tables;
use terrane_store::PoolError;
use terrane_wire::ZoneSeq;

impl Mover<'_, '_> {
    /// Moves a piece of what lives where nothing can be won: whatever its garbage, because room is not what is wanted.
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
                // Collection comes first, and is told; the rest waits for a group with more room.
                self.group.st.collector.evacuation.needs = if is_dead { left } else { left.min(piece) };
                // A device that leaves does not wait for a zone that died.
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

    /// The zone that is emptied for nothing, or the next one.
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

    /// A zone's device says that it takes no writes any more.
    pub(super) fn note_dead(&mut self, victim: ZoneSeq, home: Home) {
        if self.group.st.collector.dead.insert(victim) {
            log::warn!("{home}: it takes no writes any more; what lives there is moved away");
            self.group.pool.admission.want_another_group();
        }
    }
}
