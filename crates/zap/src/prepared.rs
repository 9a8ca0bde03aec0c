//! What a listing wants, made before anybody lists: by another thread, while this one has something else to do.
//!
//! A prepared index is of one block as it was in memory. It is taken over only while the store still has that very block;
//! blocks in memory that others may see are never changed in place, so it is then what would be built.

use crate::error::Error;
use crate::index::Index;
use crate::slots::Slots;
use crate::store::Store;
use crate::zap::Zap;
use std::sync::{Arc, Weak};

/// The index of a micro or tiny ZAP's block, without the block.
#[derive(Debug)]
pub struct Prepared {
    block: Weak<Vec<u8>>,
    index: Index,
}

impl Prepared {
    /// `None`: another kind of ZAP, or damage, which whoever lists it meets and reports.
    pub fn of(block_0: &Arc<Vec<u8>>, block_count: u64) -> Option<Prepared> {
        let slots = Slots::parse(block_0, block_count).ok()?;
        let index = Index::build(&slots).ok()?;
        Some(Prepared { block: Arc::downgrade(block_0), index })
    }
}

impl Zap {
    /// Remembers what was prepared, if it is of the block that the store has now. Says whether it was.
    pub fn adopt<S: Store + ?Sized>(&self, store: &S, prepared: Prepared) -> Result<bool, Error<S::Error>> {
        let Some(block) = prepared.block.upgrade() else { return Ok(false) };
        let is_current = store.block_count() > 0 && Arc::ptr_eq(&store.read(0)?, &block);
        if is_current {
            self.remembered.adopt(prepared.index);
        }
        Ok(is_current)
    }
}
