//! Side costs of moving: space in the commit record, and memory of the relocation index.
//!
//! Invariant: the runs of a txg take no more of its commit record than a zone has space for.

use crate::mover::Mover;
use terrane_space::zones::over_limit;
use terrane_txg::collector::INDEX_CHECK_BYTES;

/// Upper bound of a run's bytes in a commit record. One run in a thousand may take more.
const RUN_RECORD_BYTES: u64 = 32;
/// Runs may take 1/`RUNS_DIVISOR` of the smallest zone, beyond what one directory part holds. Both copies
/// of a record may lie in one zone.
const RUNS_DIVISOR: u64 = 8;
/// Upper bound of the bytes of runs, however large zones are.
const RUNS_BYTES_MAX: u64 = 4 << 20;

impl Mover<'_, '_> {
    /// Runs for which the commit record still has space. Each block that moved or had to stay counts as one
    /// run.
    pub(super) fn runs_left(&self) -> usize {
        let capacities =
            self.txg_sync.pool.store.devices.capacities().into_iter().map(|(_, capacity)| capacity);
        // A capacity of 0 means that no zone of the device can be written, so the device is ignored.
        let smallest = capacities.filter(|capacity| *capacity > 0).min();
        let bytes = (smallest.unwrap_or(u64::MAX) / RUNS_DIVISOR).min(RUNS_BYTES_MAX);
        ((bytes / RUN_RECORD_BYTES) as usize).saturating_sub(self.txg_sync.commit.runs())
    }

    /// Whether the record is full. Then the next txg continues.
    pub(super) fn is_record_full(&self) -> bool {
        self.runs_left() == 0
    }

    /// Applies a new memory bound at once, even if nothing moves.
    pub(super) fn apply_memory_limit(&mut self) {
        if self.txg_sync.pool.collection.take_new_bound() {
            self.txg_sync.st.collector.index.moved_bytes = INDEX_CHECK_BYTES;
            self.check_index_memory();
        }
    }

    /// Keeps the relocation index within its bound, with hysteresis. Near the bound, rows of reclaimed zones
    /// are packed into leaves.
    ///
    /// If that is not enough, survivors are written in larger batches, each of which is one run instead of
    /// several. At half of the bound they are written in small batches again, which cost less to search.
    pub(super) fn check_index_memory(&mut self) {
        if self.txg_sync.st.collector.index.moved_bytes
            < INDEX_CHECK_BYTES.min(self.txg_sync.pool.admission.space_snapshot().limits.live / 64)
        {
            return;
        }
        self.txg_sync.st.collector.index.moved_bytes = 0;
        let most = self.txg_sync.pool.collection.index_bytes_max();
        let was = self.txg_sync.pool.store.tables.read().index_size();
        let packed = was.should_pack(most);
        if packed != was.is_packed {
            // Only the sync changes the tables, so they cannot change between the two locks.
            let reclaimed = self.txg_sync.pool.store.tables.read().reclaimed_in_form(packed);
            let old = self.txg_sync.pool.store.tables.write().replace_reclaimed(reclaimed);
            // Freed outside the lock, so that readers do not wait.
            drop(old);
        }
        let bytes = self.txg_sync.pool.store.tables.read().index_size().bytes();
        let is_coarse = over_limit(bytes, most, self.txg_sync.st.collector.index.is_coarse);
        if (packed, is_coarse) != (was.is_packed, self.txg_sync.st.collector.index.is_coarse) {
            log::info!(bytes, most, packed, is_coarse; "memory of the relocation index");
        }
        self.txg_sync.st.collector.index.is_coarse = is_coarse;
        self.txg_sync.st.streams.set_coarse(is_coarse);
    }
}
