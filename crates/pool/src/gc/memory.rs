//! What moving costs beside the copies, room in the commit record and memory of the run index, and when it is done to save memory.
//!
//! What died in a zone that is there must be remembered until the zone is reset. Where very small blocks die in any order that is much,
//! and in a pool with room to spare no zone is emptied for years. So when dead sets take too much of the bound, the zones that win most
//! memory for each byte copied are emptied: what is left of them is a few runs.
//!
//! Invariants: the runs of a group take no more of its commit record than a zone has room for; no more is copied to save memory than users
//! write, and none where it would save none.

use crate::error::PoolError;
use crate::gc::Progress;
use crate::group::Group;
use crate::zones::{Phase, Zone, is_much};
use std::sync::atomic::Ordering;
use terrane_wire::{Txg, ZoneSeq};

/// The memory of the run index is looked at when so many bytes have moved, in a small pool a 64th of it: that takes time by its rows.
pub(super) const INDEX_LOOK_BYTES: u64 = 256 << 20;
/// What a run takes of a commit record at the most, in bytes; one in a thousand may take more.
const RUN_RECORD_BYTES: u64 = 32;
/// The part of the smallest zones that runs may take, but for what one directory part holds. Both copies of a record may lie in one zone.
const RUNS_PART: u64 = 8;
/// And bytes that are enough however large zones are.
const RUNS_BYTES_MAX: u64 = 4 << 20;

/// The part of the bound that dead sets may take; the other is for runs.
const DEAD_PART: u64 = 2;
/// Groups after which their memory is looked at though hardly anything was written: blocks die of removals as well.
const LOOK_GROUPS: u64 = 64;
/// What the survivors of a zone take when it is gone: its row, and a run for each part of so many bytes.
const GONE_BYTES: u64 = 120;
const RUN_BYTES: u64 = 32;
const PART_BYTES: u64 = 1 << 20;
/// A dead set is worth so many times that.
const WORTH_TIMES: u64 = 2;

/// When zones are emptied to save memory.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// What users had written, and the group, when the memory of dead sets was looked at.
    looked: Option<(u64, Txg)>,
    /// Bytes that may be copied for it until the next look.
    left: u64,
    /// They take too much.
    goes_on: bool,
}

impl Saving {
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }
}

/// Bytes that emptying a zone saves, where that is worth it.
fn saved(zone: &Zone) -> Option<u64> {
    let dead = zone.born.dead.memory_bytes() as u64;
    let takes = GONE_BYTES + RUN_BYTES * zone.live.div_ceil(PART_BYTES);
    (dead > WORTH_TIMES * takes).then(|| dead - takes)
}

impl Group<'_> {
    /// What to gain by a zone that is emptied to save memory: all of it.
    pub(super) fn gain_for_memory(&mut self) -> Result<u64, PoolError> {
        let step = INDEX_LOOK_BYTES.min(self.pool.txg.room().limit / 64).max(1);
        let (now, txg) = (self.st.collector.clock.now(), self.txg);
        let saving = &mut self.st.collector.saving;
        let is_due = saving.looked.is_none_or(|(written, group)| {
            now.saturating_sub(written) >= step || txg.0 >= group.0 + LOOK_GROUPS
        });
        if is_due {
            (saving.looked, saving.left) = (Some((now, txg)), step);
        }
        if saving.left == 0 {
            return Ok(0);
        }
        let most = self.pool.index_bytes_max() / DEAD_PART;
        saving.goes_on = is_much(self.pool.tables.read().dead_set_bytes(), most, saving.goes_on);
        if !saving.goes_on {
            saving.left = 0;
            return Ok(0);
        }
        if let Some(progress) = &self.st.collector.progress {
            self.pool.want_another_group();
            return Ok(progress.worth.garbage.saturating_sub(progress.worth.gain()).max(1));
        }
        let Some(progress) = self.progress_for_memory()? else {
            self.st.collector.saving.left = 0;
            return Ok(0);
        };
        let (live, garbage) = (progress.worth.live, progress.worth.garbage);
        let saving = &mut self.st.collector.saving;
        saving.left = saving.left.saturating_sub(live.max(1));
        self.st.collector.progress = Some(progress);
        self.pool.want_another_group();
        Ok(garbage.max(1))
    }

    /// The zone that saves most for each byte copied, if there is room for what lives in it.
    fn progress_for_memory(&mut self) -> Result<Option<Progress>, PoolError> {
        let victim = {
            let (tables, candidates) = (self.pool.tables.read(), &self.st.collector.candidates);
            let full = tables.zones.iter().filter(|(_, zone)| zone.phase == Phase::Full);
            let saves =
                full.filter_map(|(seq, zone)| Some((*seq, saved(zone)? as f64 / zone.live.max(1) as f64)));
            let best = saves.filter(|(seq, _)| candidates.contains(*seq)).max_by(|a, b| a.1.total_cmp(&b.1));
            best.map(|(seq, _): (ZoneSeq, f64)| seq)
        };
        let Some(victim) = victim else { return Ok(None) };
        let zone_yield = self.pool.zone_yield();
        self.st.collector.candidates.remove(victim);
        self.st.collector.ended(victim);
        let Some(progress) = self.look_through(victim, Some(zone_yield))? else { return Ok(None) };
        if self.pool.has_room_for(&progress, self) {
            return Ok(Some(progress));
        }
        self.st.collector.changed(&self.pool.tables.read(), victim, zone_yield);
        Ok(None)
    }

    /// How many runs more the commit record has room for: as if each block that moved, or had to stay, were one.
    pub(super) fn runs_left(&self) -> usize {
        let capacities = self.pool.devices.capacities().into_iter().map(|(_, capacity)| capacity);
        // A device of which no zone can be written says nothing.
        let smallest = capacities.filter(|capacity| *capacity > 0).min();
        let bytes = (smallest.unwrap_or(u64::MAX) / RUNS_PART).min(RUNS_BYTES_MAX);
        ((bytes / RUN_RECORD_BYTES) as usize).saturating_sub(self.moved_now.len() + self.split_runs.len())
    }

    /// The next group goes on.
    pub(super) fn has_no_room_for_runs(&self) -> bool {
        self.runs_left() == 0
    }

    /// Its memory was bounded anew: that is obeyed at once, also where nothing moves.
    pub(super) fn obey_new_bound(&mut self) {
        if self.pool.index_bound_is_new.swap(false, Ordering::Relaxed) {
            self.st.collector.moved_since_look = INDEX_LOOK_BYTES;
            self.look_at_index();
        }
    }

    /// When the run index nears its bound, zones that are gone are packed into intervals. If that is not enough, survivors are written in
    /// larger batches, of which each is one run where it was several; when it takes half of the bound, in small ones again, which cost
    /// less to look into.
    pub(super) fn look_at_index(&mut self) {
        if self.st.collector.moved_since_look < INDEX_LOOK_BYTES.min(self.pool.txg.room().limit / 64) {
            return;
        }
        self.st.collector.moved_since_look = 0;
        let most = self.pool.index_bytes_max();
        let was = self.pool.tables.read().index_size();
        let packed = was.is_to_be_packed(most);
        if packed != was.is_packed {
            // Tables change in groups alone.
            let gone = self.pool.tables.read().gone_in_form(packed);
            let old = self.pool.tables.write().replace_gone(gone);
            // Not while readers are kept out.
            drop(old);
        }
        let bytes = self.pool.tables.read().index_size().bytes();
        let is_coarse = is_much(bytes, most, self.st.collector.is_coarse);
        if (packed, is_coarse) != (was.is_packed, self.st.collector.is_coarse) {
            log::info!(bytes, most, packed, is_coarse; "memory of the run index");
        }
        self.st.collector.is_coarse = is_coarse;
        self.st.streams.set_coarse(is_coarse);
    }
}
