//! Rewriting old blocks at new addresses, so that the pool's relocation index stays within its bound.
//!
//! It covers records of files, and metadata. Only the address changes: content, stored form and times stay.
//! Concurrent changes win. No progress is stored: after a crash the pool names the remaining blocks again.

use crate::claims::{Claims, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::jobs::{Job, JobStep};
use std::sync::Arc;
use terrane_format::{BlockPtr, Owner};
use terrane_object::{MetadataRewrite, Object, ObjectError, ObjectKind};
use terrane_pool::{RelocatedBlock, RewriteCursor};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

/// Limits of one step: bytes of rewritten content (exceeded by at most one block), and blocks that are checked.
const STEP_BYTES: u64 = 1 << 20;
const STEP_BLOCKS: usize = 64;

/// A block of this data set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BlockId {
    object: u64,
    level: u8,
    block: u64,
}

/// Rewrites blocks if the relocation index takes too much memory.
#[derive(Clone, Copy)]
pub struct RewriteRelocated<'f> {
    fs: &'f Fs,
}

impl Job for RewriteRelocated<'_> {
    /// Blocks that the pool named and that were not checked yet.
    type Progress = usize;

    /// Rewrites some blocks.
    fn step(&self, _: u64) -> Result<JobStep, Errno> {
        JobStep::of(self.fs.rewrite_some_relocated())
    }

    fn progress(&self) -> usize {
        self.fs.relocated_queue.lock().blocks.len()
    }
}

impl Fs {
    /// The job that rewrites old blocks at new addresses.
    pub fn rewrite_relocated(&self) -> RewriteRelocated<'_> {
        RewriteRelocated { fs: self }
    }

    /// False: there is nothing to do for now. It pauses while files are rewritten: a rewrite goes by births,
    /// and would take these blocks for new data.
    fn rewrite_some_relocated(&self) -> Result<bool, Errno> {
        if self.is_read_only() {
            return Ok(false);
        }
        let queue = &mut *self.relocated_queue.lock();
        if self.rewrite().is_running() {
            queue.blocks.clear();
            return Ok(false);
        }
        if queue.blocks.is_empty() {
            let mut blocks = self.set.pool().blocks_to_rewrite(&mut queue.cursor);
            // Neighbours share the indirect blocks above them.
            blocks.sort_by_key(|relocated| self.block_id_of(relocated));
            queue.blocks = blocks.into();
        }
        let mut bytes = 0;
        for _ in 0..STEP_BLOCKS {
            if bytes >= STEP_BYTES {
                break;
            }
            let Some(relocated) = queue.blocks.pop_front() else { break };
            match self.rewrite_block(&relocated, &mut queue.cursor) {
                Ok(written) => bytes += written,
                Err(errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS)) => return Err(errno),
                Err(errno) if self.set.pool().status().failed.is_some() => return Err(errno),
                // It was removed meanwhile, or is unreadable. A reader will report that.
                Err(_) => {}
            }
        }
        Ok(bytes > 0 || !queue.blocks.is_empty())
    }

    /// The block's place in this data set, if it belongs to it.
    fn block_id_of(&self, relocated: &RelocatedBlock) -> Option<BlockId> {
        match relocated.owner {
            Owner::Block { objset, object, level, block } if objset == self.set.id().0 => {
                Some(BlockId { object, level, block })
            }
            _ => None,
        }
    }

    /// Rewrites a block, if it is still at the named address. Returns the bytes of content that were written.
    fn rewrite_block(&self, relocated: &RelocatedBlock, cursor: &mut RewriteCursor) -> Result<u64, Errno> {
        if let Some(metadata) = self.set.find_for_rewrite(relocated.owner, relocated.addr)? {
            return self.rewrite_metadata(&metadata, cursor);
        }
        match self.block_id_of(relocated) {
            Some(BlockId { object, level: 0, block }) if object != 0 => {
                let object = self.set.hold(ObjectId(object))?;
                self.rewrite_record(&object, block, relocated, cursor)
            }
            _ => Ok(0),
        }
    }

    fn rewrite_metadata(&self, metadata: &MetadataRewrite, cursor: &mut RewriteCursor) -> Result<u64, Errno> {
        let cost = Cost { meta_bytes: metadata.bytes(), ..Cost::NOTHING };
        let tx = self.begin(cost, &[(&Claims::of(metadata.object().0), Need::attrs())])?;
        // As in `rewrite_record`.
        if self.rewrite().is_running() {
            return Ok(0);
        }
        let written = metadata.write(&tx)?;
        if written > 0 {
            cursor.note_rewrite(&tx);
            self.set.pool().note_rewritten(written);
        }
        Ok(written)
    }

    /// Without the inode, which need not be in memory: the object may be an attribute's, or unlinked.
    fn rewrite_record(
        &self,
        object: &Arc<Object>,
        block: u64,
        relocated: &RelocatedBlock,
        cursor: &mut RewriteCursor,
    ) -> Result<u64, Errno> {
        if object.kind() != ObjectKind::File {
            return Ok(0);
        }
        let number = object.id().0;
        let Some(old_ptr) = object.stored_pointer(block)? else { return Ok(0) };
        let BlockPtr::Normal(normal) = &old_ptr else { return Ok(0) };
        if self.set.is_held(&old_ptr) || !normal.copies().any(|addr| addr == relocated.addr) {
            return Ok(0);
        }
        let pool = self.set.pool();
        let (content, encoded) = pool.read_for_rewrite(normal, relocated.owner).map_err(ObjectError::from)?;
        let block_bytes = object.block_size();
        let start = block.saturating_mul(block_bytes.into());
        let data = start..start.saturating_add(block_bytes.into());
        let file_bytes = object.block_count().saturating_mul(block_bytes.into());
        let need = Need::records(object, data, block_bytes, file_bytes);
        let tx = self.begin(Cost::NOTHING, &[(&Claims::of(number), need)])?;
        let stored = encoded.stored_bytes();
        // Checked again within the txg: a rewrite that begins later commits it before it relies on births.
        if self.rewrite().is_running() || !object.recode_block(&tx, block, (&old_ptr, content), encoded)? {
            return Ok(0);
        }
        cursor.note_rewrite(&tx);
        pool.note_rewritten(stored);
        Ok(u64::from(old_ptr.lsize()))
    }
}
