//! What a group frees is told by its record, or by blocks of their own.
//!
//! What may be freed is the [`CommitBuilder`](terrane_txg::commit::CommitBuilder)'s to judge.

use crate::pool::Group;
use terrane_format::directory::POOL_DEAD_LOG;
use terrane_format::record::{Free, Record, put_frees};
use terrane_store::PoolError;
use terrane_store::bootstrap::boot_encode;
use terrane_txg::commit::INLINE_FREES_MAX;
use terrane_wire::Writer;

/// Frees in one dead-log block.
const DEAD_LOG_FREES: usize = 16 << 10;

impl Group<'_> {
    /// Of zones that were reset when the record was made already: import reads the frees in it beside those in the dead log.
    pub(crate) fn add_resets(&mut self, record: &mut Record) {
        self.pool.store.counters.late_resets.add(1);
        let left = self.commit.take_resets(&mut self.st.resets_done);
        self.commit.add_resets(record, left, &self.pool.store.tables.read());
    }

    /// Takes out of the frees what cannot be: that is damage, and it must not become a lost zone.
    pub(crate) fn judge_frees(&mut self) {
        for finding in self.commit.judge_frees(&self.pool.store.tables.read()) {
            self.pool.reports.damage(finding);
        }
    }

    /// Of zones that were reset when the other frees were written already, or will be with the record.
    pub(crate) fn tell_of_resets(&mut self) -> Result<(), PoolError> {
        self.pool.store.counters.late_resets.add(1);
        let left = self.commit.take_resets(&mut self.st.resets_done);
        let is_logged = !self.commit.dead_log.is_empty();
        self.commit.frees.extend_from_slice(&left);
        self.commit.frees.sort_unstable();
        if is_logged { self.write_dead_log(&left) } else { self.log_frees() }
    }

    /// Writes them to blocks of their own, if they are too many for the record.
    pub(crate) fn log_frees(&mut self) -> Result<(), PoolError> {
        if self.commit.frees.len() > INLINE_FREES_MAX {
            let frees = std::mem::take(&mut self.commit.frees);
            self.write_dead_log(&frees)?;
            self.commit.frees = frees;
        }
        Ok(())
    }

    /// These are bootstrap blocks, because replay reads them before it knows where anything is.
    fn write_dead_log(&mut self, frees: &[Free]) -> Result<(), PoolError> {
        // An entry takes at most 14 bytes.
        let chunk_max = DEAD_LOG_FREES.min(self.pool.max_block() as usize / 16);
        for chunk in frees.chunks(chunk_max) {
            let mut out = Writer::new();
            put_frees(&mut out, chunk);
            let stored = self.pool.reader.pipeline.workers().here(|codec| boot_encode(codec, out.as_bytes()));
            let ptr = self.write_boot(POOL_DEAD_LOG, &stored)?;
            self.commit.dead_log.push(ptr);
        }
        Ok(())
    }
}
