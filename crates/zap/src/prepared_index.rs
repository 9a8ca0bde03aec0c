//! An index that another thread builds before a listing needs it.
//!
//! A prepared index belongs to one block as it was in memory. It is adopted only if the store still has that very
//! block. Shared blocks in memory are never changed in place, so the index then equals one built now.

use crate::error::Error;
use crate::index::Index;
use crate::slots::Slots;
use crate::store::Store;
use crate::zap::Zap;
use std::sync::{Arc, Weak};

/// The index of a micro or tiny ZAP's block, without the block.
#[derive(Debug)]
pub struct PreparedIndex {
    block: Weak<Vec<u8>>,
    index: Index,
}

impl PreparedIndex {
    /// `None` for another kind of ZAP, or for damage: the listing will meet and report it.
    pub fn of(block_0: &Arc<Vec<u8>>, block_count: u64) -> Option<PreparedIndex> {
        let slots = Slots::parse(block_0, block_count).ok()?;
        let index = Index::build(&slots).ok()?;
        Some(PreparedIndex { block: Arc::downgrade(block_0), index })
    }
}

impl Zap {
    /// Adopts a prepared index if it belongs to the store's current block; returns whether it does.
    pub fn adopt<S: Store + ?Sized>(
        &self,
        store: &S,
        prepared: PreparedIndex,
    ) -> Result<bool, Error<S::Error>> {
        let Some(block) = prepared.block.upgrade() else { return Ok(false) };
        let is_current = store.block_count() > 0 && Arc::ptr_eq(&store.read(0)?, &block);
        if is_current {
            self.slot_cache.adopt(prepared.index);
        }
        Ok(is_current)
    }
}
