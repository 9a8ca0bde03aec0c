//! Membership of an operation in the open txg.

use super::Pool;
use std::sync::Arc;
use terrane_store::PoolError;
use terrane_txg::cost::{META_BLOCK_BYTES, META_DIRTY_BYTES};
use terrane_wire::Txg;

/// Handle of an operation in a txg. All changes under one `Tx` commit together. Never take a second one while
/// holding one.
#[must_use]
pub struct Tx {
    pub(crate) pool: Arc<Pool>,
    pub(crate) txg: Txg,
}

impl Tx {
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

    /// Returns metadata blocks that a transaction of this txg reserved and did not need.
    pub fn return_reservation(&self, meta_blocks: u32) {
        let blocks = u64::from(meta_blocks);
        self.pool.admission.return_reservation(blocks * META_BLOCK_BYTES, blocks * META_DIRTY_BYTES);
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
        self.pool.admission.leave();
    }
}
