//! A change that is part of the open group.

use super::Pool;
use std::sync::Arc;
use terrane_store::PoolError;
use terrane_txg::cost::{META_BLOCK_BYTES, META_DIRTY_BYTES};
use terrane_wire::Txg;

/// Membership in a transaction group. Everything done under one `Tx` commits together. Never take a second one while holding one.
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

    /// Reserves what turned out to be needed beside what was asked for. Does not wait, so it must be little and rare.
    pub fn reserve_more(&self, meta_blocks: u32) {
        self.pool.admission.reserve_more(u64::from(meta_blocks) * META_BLOCK_BYTES);
    }

    /// Gives back what a transaction of this group reserved and nobody will need.
    pub fn give_back(&self, meta_blocks: u32) {
        let blocks = u64::from(meta_blocks);
        self.pool.admission.give_back(blocks * META_BLOCK_BYTES, blocks * META_DIRTY_BYTES);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Nobody knows how much of the change was made, so its group must not be committed. The one that syncs now goes on.
        if std::thread::panicking() {
            self.pool.fail(&PoolError::Failed { reason: "a change panicked before it was whole".into() });
            self.pool.admission.wake_all();
        }
        self.pool.admission.leave();
    }
}
