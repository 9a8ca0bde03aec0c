//! Membership of an operation in the open txg.

use super::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use terrane_store::PoolError;
use terrane_txg::cost::META_BLOCK_BYTES;
use terrane_wire::Txg;

/// Handle of an operation in a txg. All changes under one `Tx` commit together. Never take a second one while
/// holding one.
#[must_use]
pub struct Tx {
    pub(crate) pool: Arc<Pool>,
    pub(crate) txg: Txg,
    /// Bytes of names that it was expected to dirty, which count as dirty. `None`: it may dirty more than names.
    names_bytes: Option<u64>,
    /// Bytes by which it made dirty metadata grow.
    dirtied: AtomicI64,
}

impl Tx {
    pub(crate) fn new(pool: Arc<Pool>, txg: Txg, names_bytes: Option<u64>) -> Tx {
        Tx { pool, txg, names_bytes, dirtied: AtomicI64::new(0) }
    }

    /// The operation has made the dirty blocks of a ZAP grow by so many bytes.
    pub fn note_dirtied(&self, bytes: i64) {
        if self.names_bytes.is_some() {
            self.dirtied.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The txg in which the changes commit.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// The pool of the txg.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Reserves more metadata blocks than the operation asked for. It does not wait, so use it rarely and for
    /// little.
    pub fn reserve_more(&self, meta_blocks: u32) {
        self.pool.admission.reserve_more(u64::from(meta_blocks) * META_BLOCK_BYTES);
    }

    /// Returns metadata blocks that a transaction of this txg reserved and did not need. They did not count as dirty.
    pub fn return_reservation(&self, meta_blocks: u32) {
        self.pool.admission.return_reservation(u64::from(meta_blocks) * META_BLOCK_BYTES);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // The change may be incomplete, so its txg must not be committed. The txg that syncs now goes on.
        if std::thread::panicking() {
            let reason = "an operation panicked before it was complete".into();
            self.pool.fail(&PoolError::Failed { reason });
            self.pool.admission.wake_all();
        }
        let dirtied = self.dirtied.load(Ordering::Relaxed);
        let more = self.names_bytes.map_or(0, |expected| dirtied.saturating_sub_unsigned(expected));
        self.pool.admission.leave(more);
    }
}
