//! Prefetch of file blocks.

use super::Object;
use crate::dirty::DirtyContent;
use crate::kind::ObjectKind;
use crate::read_streams::PrefetchBounds;
use crate::tree::lookup;
use std::ops::Range;
use terrane_format::BlockPtr;

impl Object {
    /// Whether the block was read recently and is still in the cache.
    pub(crate) fn is_recently_read(&self, block: u64) -> bool {
        self.state.read().recent.get(block).is_some()
    }

    /// Announces a read, and prefetches the predicted next blocks on other threads. For files.
    pub fn prefetch_after(&self, read: Range<u64>) {
        let (block_bytes, block_count) = {
            let state = self.state.read();
            (state.dnode.block_bytes, state.dnode.block_count)
        };
        // A file of two blocks has no third one to predict.
        if block_count <= 2 || self.kind != ObjectKind::File {
            return;
        }
        let Ok(table) = self.table() else { return };
        let pool = table.pool();
        let bounds = PrefetchBounds {
            block_bytes: block_bytes.into(),
            block_count,
            window_max: pool.prefetch_max(block_bytes),
            wasted: pool.prefetch_wasted(),
        };
        if bounds.window_max == 0 {
            return;
        }
        let ranges = self.read_streams.lock().get_or_insert_default().record_read(read, &bounds);
        if !ranges.is_empty() {
            table.prefetch_blocks(self.id(), block_bytes, ranges);
        }
    }

    /// Prefetches stored blocks into the cache. Errors are ignored: a reader of the block meets and reports the
    /// same one.
    pub(crate) fn prefetch_blocks(&self, blocks: &[Range<u64>]) {
        let (dnode, wanted) = {
            let state = self.state.read();
            let stored = |block: &u64| matches!(state.dirty_content(*block), DirtyContent::Unchanged);
            let wanted: Vec<u64> = blocks.iter().cloned().flatten().filter(stored).collect();
            (state.dnode.clone(), wanted)
        };
        let Ok(table) = self.table() else { return };
        let mut found = Vec::with_capacity(wanted.len());
        for block in wanted {
            match lookup(table.pool(), self.tree_id(), &dnode, 0, block) {
                Ok(BlockPtr::Normal(normal)) if normal.lsize <= dnode.block_bytes => found.push(normal),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        table.pool().prefetch(&found);
    }
}
