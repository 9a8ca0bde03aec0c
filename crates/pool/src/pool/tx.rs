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
    pub fn txg(&self) -> Txg {
        self.txg
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Reserves more metadata blocks than the operation asked for. It does not wait, so use it rarely and for
    /// little.
    pub fn reserve_more(&self, meta_blocks: u32) {
        self.pool.admission.reserve_more(u64::from(meta_blocks) * META_BLOCK_BYTES);
    }

    /// Returns metadata blocks that a transaction of this txg reserved and did not need.
    pub fn give_back(&self, meta_blocks: u32) {
        let blocks = u64::from(meta_blocks);
        self.pool.admission.give_back(blocks * META_BLOCK_BYTES, blocks * META_DIRTY_BYTES);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // The change may be incomplete, so its txg must not be committed. The txg that syncs now goes on.
        if std::thread::panicking() {
            self.pool.fail(&PoolError::Failed { reason: "a change panicked before it was whole".into() });
            self.pool.admission.wake_all();
        }
        self.pool.admission.leave();
    }
}
