//! Stores the frees of a txg: in its commit record, or in dead-log blocks.
//!
//! [`CommitBuilder`](terrane_txg::commit::CommitBuilder) decides which frees are valid.

use crate::pool::TxgSync;
use terrane_format::directory::POOL_DEAD_LOG;
use terrane_format::record::{Free, Record, put_frees};
use terrane_store::PoolError;
use terrane_store::bootstrap::boot_encode;
use terrane_txg::commit::INLINE_FREES_MAX;
use terrane_wire::Writer;

/// Maximum number of frees in one dead-log block.
const DEAD_LOG_FREES: usize = 16 << 10;

impl TxgSync<'_> {
    /// Adds zones that were reset after the record was made. Import reads frees in the record in addition to
    /// those in the dead log.
    pub(crate) fn add_resets(&mut self, record: &mut Record) {
        self.pool.store.counters.late_resets.add(1);
        let left = self.commit.take_resets(&mut self.st.resets_done);
        self.commit.add_resets(record, left, &self.pool.store.tables.read());
    }

    /// Removes impossible frees and reports them. They are damage, which must not become a lost zone.
    pub(crate) fn validate_frees(&mut self) {
        for finding in self.commit.validate_frees(&self.pool.store.tables.read()) {
            self.pool.reports.note_damage(finding);
        }
    }

    /// Adds the frees of zones that were reset since the other frees were collected. If those are already in
    /// the dead log, these get a further dead-log block.
    pub(crate) fn record_resets(&mut self) -> Result<(), PoolError> {
        self.pool.store.counters.late_resets.add(1);
        let left = self.commit.take_resets(&mut self.st.resets_done);
        let is_logged = !self.commit.dead_log.is_empty();
        self.commit.frees.extend_from_slice(&left);
        self.commit.frees.sort_unstable();
        if is_logged { self.write_dead_log(&left) } else { self.log_frees() }
    }

    /// Writes the frees to dead-log blocks, if there are too many for the record.
    pub(crate) fn log_frees(&mut self) -> Result<(), PoolError> {
        if self.commit.frees.len() > INLINE_FREES_MAX {
            let frees = std::mem::take(&mut self.commit.frees);
            self.write_dead_log(&frees)?;
            self.commit.frees = frees;
        }
        Ok(())
    }

    /// Writes frees to dead-log blocks. These are bootstrap blocks, because replay reads them before it has
    /// the zone tables.
    fn write_dead_log(&mut self, frees: &[Free]) -> Result<(), PoolError> {
        // An entry takes at most 14 bytes.
        let chunk_max = DEAD_LOG_FREES.min(self.pool.max_block() as usize / 16);
        for chunk in frees.chunks(chunk_max) {
            let mut out = Writer::new();
            put_frees(&mut out, chunk);
            let stored =
                self.pool.reader.pipeline.workers().run_inline(|codec| boot_encode(codec, out.as_bytes()));
            let ptr = self.write_boot(POOL_DEAD_LOG, &stored)?;
            self.commit.dead_log.push(ptr);
        }
        Ok(())
    }
}
