//! Search for data and holes.

use super::Object;
use crate::dirty::DirtyContent;
use crate::error::ObjectError;
use crate::tree::next_allocated;

impl Object {
    /// The first byte at or after `offset` that is data, in block resolution; `None`: none.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, ObjectError> {
        let bytes = u64::from(self.block_size());
        let found = self.next_block(offset / bytes)?;
        Ok(found.map(|block| (block * bytes).max(offset)))
    }

    /// The first byte at or after `offset` in a hole, in block resolution. The end of the object counts as a
    /// hole.
    pub fn next_hole(&self, offset: u64) -> Result<u64, ObjectError> {
        let bytes = u64::from(self.block_size());
        let mut block = offset / bytes;
        while self.next_block(block)? == Some(block) {
            block += 1;
        }
        Ok((block * bytes).max(offset))
    }

    /// The first block at or after `from` that is not a hole.
    pub(super) fn next_block(&self, from: u64) -> Result<Option<u64>, ObjectError> {
        let table = self.table()?;
        let mut from = from;
        loop {
            let (dnode, dirty) = {
                let state = self.state.read();
                let blocks = state
                    .layers()
                    .filter_map(|dirty| dirty.blocks.range(from..).next().map(|(block, _)| *block));
                (state.dnode.clone(), blocks.min())
            };
            if from >= dnode.block_count {
                return Ok(None);
            }
            let stored =
                next_allocated(table.pool(), self.tree_id(), &dnode, from, dirty.unwrap_or(u64::MAX))?;
            let Some(candidate) = stored.into_iter().chain(dirty).min() else { return Ok(None) };
            let state = self.state.read();
            if !matches!(state.dirty_content(candidate), DirtyContent::Zeros) {
                return Ok(Some(candidate).filter(|block| *block < dnode.block_count));
            }
            // Freed by a txg that is not in the tree yet: skip the freed range, but not blocks written into it
            // later.
            let end = state
                .layers()
                .filter_map(|dirty| dirty.freed.end_of(candidate))
                .max()
                .unwrap_or(candidate + 1);
            // The first one may be of an older txg, and freed itself: there may be others behind it.
            let written = state.layers().filter_map(|dirty| dirty.blocks.range(candidate + 1..).next());
            let next = written.map(|(block, _)| *block).min();
            from = next.map_or(end, |next| end.min(next)).max(candidate + 1);
        }
    }
}
