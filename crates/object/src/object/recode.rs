//! The same content in another stored form: with another compression, or in blocks of another size.

#![expect(clippy::indexing_slicing, reason = "pieces were cut to the length of the block")]

use super::Object;
use crate::dirty::DirtyContent;
use crate::dnode::check_block_bytes;
use crate::error::ObjectError;
use crate::tree::lookup;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_format::BlockPtr;
use terrane_pool::Tx;
use terrane_store::pipeline::PreEncoded;

/// A block as of the last sync: its pointer and content.
pub type StoredBlock = (BlockPtr, Arc<Vec<u8>>);

impl Object {
    /// A block as of the last sync, possibly without trailing zeros. `None`: a hole, embedded, or changed
    /// since.
    pub fn stored_block(&self, block: u64) -> Result<Option<StoredBlock>, ObjectError> {
        let Some(ptr) = self.stored_pointer(block)? else { return Ok(None) };
        // Bypasses the cache: callers scan all blocks once.
        let mut content = vec![0; ptr.lsize() as usize];
        match self.table()?.pool().read_into(&ptr, self.tree_id().owner(0, block), &mut content) {
            Ok(()) => Ok(Some((ptr, Arc::new(content)))),
            // The block was replaced meanwhile, and its old location reclaimed.
            Err(_) if self.stored_pointer(block)?.as_ref() != Some(&ptr) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The pointer of [`stored_block`](Self::stored_block).
    pub fn stored_pointer(&self, block: u64) -> Result<Option<BlockPtr>, ObjectError> {
        loop {
            let dnode = {
                let state = self.state.read();
                if state.destroyed || !matches!(state.dirty_content(block), DirtyContent::Unchanged) {
                    return Ok(None);
                }
                state.dnode.clone()
            };
            match lookup(self.table()?.pool(), self.tree_id(), &dnode, 0, block) {
                Ok(ptr) => {
                    // A pointer with a wrong size is left for readers to report.
                    let is_stored = matches!(ptr, BlockPtr::Normal(_)) && ptr.lsize() <= dnode.block_bytes;
                    return Ok(Some(ptr).filter(|_| is_stored));
                }
                Err(error) if self.state.read().dnode.root == dnode.root => return Err(error.into()),
                Err(_) => {}
            }
        }
    }

    /// Stores a block in another form with this txg, with the content that [`stored_block`](Self::stored_block)
    /// returned. False: the pointer is not `expected` any more, so the writer wins.
    pub fn recode_block(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        (expected, content): (&BlockPtr, Arc<Vec<u8>>),
        encoded: PreEncoded,
    ) -> Result<bool, ObjectError> {
        self.restore_block(tx, block, (expected, &content), Some(&encoded))
    }

    /// Changes the block size and keeps the content: all of it is read, and written with this txg, which has
    /// reserved space for it. No other thread may read or write the object meanwhile. On an error nothing has
    /// changed.
    pub fn set_record_size(self: &Arc<Self>, tx: &Tx, bytes: u32) -> Result<(), ObjectError> {
        check_block_bytes(bytes, self.table()?.pool().max_block())?;
        let (old, new) = (u64::from(self.block_size()), u64::from(bytes));
        let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut from = 0;
        while let Some(block) = self.next_block(from)? {
            from = block + 1;
            let Some(content) = self.raw_block(block)? else { continue };
            let mut at = block * old;
            let mut rest = content.as_slice();
            while !rest.is_empty() {
                let inside = (at % new) as usize;
                let (piece, after) = rest.split_at(rest.len().min(bytes as usize - inside));
                if piece.iter().any(|byte| *byte != 0) {
                    let target = blocks.entry(at / new).or_default();
                    target.resize(target.len().max(inside + piece.len()), 0);
                    target[inside..inside + piece.len()].copy_from_slice(piece);
                }
                (rest, at) = (after, at + piece.len() as u64);
            }
        }
        self.change(tx, |state| {
            let dirty = state.dirty(tx.txg());
            dirty.free(0, u64::MAX);
            state.dnode.block_bytes = bytes;
            state.dnode.block_count = 0;
            for (block, content) in blocks {
                state.put(tx.txg(), block, Arc::new(content));
            }
        })
    }
}
