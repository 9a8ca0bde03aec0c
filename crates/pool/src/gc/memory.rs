//! What moving costs beside the copies: room in the commit record, and memory of the run index.
//!
//! Invariant: the runs of a group take no more of its commit record than a zone has room for.

use crate::mover::Mover;
use terrane_space::zones::is_much;
use terrane_txg::collector::INDEX_LOOK_BYTES;

/// What a run takes of a commit record at the most, in bytes; one in a thousand may take more.
const RUN_RECORD_BYTES: u64 = 32;
/// The part of the smallest zones that runs may take, but for what one directory part holds. Both copies of a record may lie in one zone.
const RUNS_PART: u64 = 8;
/// And bytes that are enough however large zones are.
const RUNS_BYTES_MAX: u64 = 4 << 20;

impl Mover<'_, '_> {
    /// How many runs more the commit record has room for: as if each block that moved, or had to stay, were one.
    pub(super) fn runs_left(&self) -> usize {
        let capacities = self.group.pool.store.devices.capacities().into_iter().map(|(_, capacity)| capacity);
        // A device of which no zone can be written says nothing.
        let smallest = capacities.filter(|capacity| *capacity > 0).min();
        let bytes = (smallest.unwrap_or(u64::MAX) / RUNS_PART).min(RUNS_BYTES_MAX);
        ((bytes / RUN_RECORD_BYTES) as usize).saturating_sub(self.group.commit.runs())
    }

    /// The next group goes on.
    pub(super) fn has_no_room_for_runs(&self) -> bool {
        self.runs_left() == 0
    }

    /// Its memory was bounded anew: that is obeyed at once, also where nothing moves.
    pub(super) fn obey_new_bound(&mut self) {
        if self.group.pool.collection.take_new_bound() {
            self.group.st.collector.index.moved_bytes = INDEX_LOOK_BYTES;
            self.look_at_index();
        }
    }

    /// When the run index nears its bound, zones that are gone are packed into intervals. If that is not enough, survivors are written in
    /// larger batches, of which each is one run where it was several; when it takes half of the bound, in small ones again, which cost
    /// less to look into.
    pub(super) fn look_at_index(&mut self) {
        if self.group.st.collector.index.moved_bytes
            < INDEX_LOOK_BYTES.min(self.group.pool.admission.room().limits.live / 64)
        {
            return;
        }
        self.group.st.collector.index.moved_bytes = 0;
        let most = self.group.pool.collection.index_bytes_max();
        let was = self.group.pool.store.tables.read().index_size();
        let packed = was.is_to_be_packed(most);
        if packed != was.is_packed {
            // Tables change in groups alone.
            let gone = self.group.pool.store.tables.read().gone_in_form(packed);
            let old = self.group.pool.store.tables.write().replace_gone(gone);
            // Not while readers are kept out.
            drop(old);
        }
        let bytes = self.group.pool.store.tables.read().index_size().bytes();
        let is_coarse = is_much(bytes, most, self.group.st.collector.index.is_coarse);
        if (packed, is_coarse) != (was.is_packed, self.group.st.collector.index.is_coarse) {
            log::info!(bytes, most, packed, is_coarse; "memory of the run index");
        }
        self.group.st.collector.index.is_coarse = is_coarse;
        self.group.st.streams.set_coarse(is_coarse);
    }
}
