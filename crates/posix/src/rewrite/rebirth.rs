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
use terrane_object::{Again, Object, ObjectError, ObjectKind};
use terrane_pool::{RebirthCursor, Relic};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

/// Limits of one step: bytes of rewritten content (exceeded by at most one block), and blocks that are checked.
const STEP_BYTES: u64 = 1 << 20;
const STEP_BLOCKS: usize = 64;

/// A block of this data set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    object: u64,
    level: u8,
    block: u64,
}

/// Rewrites blocks if the relocation index takes too much memory.
#[derive(Clone, Copy)]
pub struct Rebirth<'f> {
    fs: &'f Fs,
}

impl Job for Rebirth<'_> {
    /// Blocks that the pool named and that were not checked yet.
    type Progress = usize;

    /// Rewrites some blocks.
    fn step(&self, _: u64) -> Result<JobStep, Errno> {
        JobStep::of(self.fs.bear_some_again())
    }

    fn progress(&self) -> usize {
        self.fs.rebirth.lock().relics.len()
    }
}

impl Fs {
    /// The job that rewrites old blocks at new addresses.
    pub fn rebirth(&self) -> Rebirth<'_> {
        Rebirth { fs: self }
    }

    /// False: there is nothing to do for now. It pauses while files are rewritten: a rewrite goes by births,
    /// and would take these blocks for new data.
    fn bear_some_again(&self) -> Result<bool, Errno> {
        let named = &mut *self.rebirth.lock();
        if self.rewrite().goes_on() {
            named.relics.clear();
            return Ok(false);
        }
        if named.relics.is_empty() {
            let mut relics = self.set.pool().relics(&mut named.cursor);
            // Neighbours share the indirect blocks above them.
            relics.sort_by_key(|relic| self.place_of(relic));
            named.relics = relics.into();
        }
        let mut bytes = 0;
        for _ in 0..STEP_BLOCKS {
            if bytes >= STEP_BYTES {
                break;
            }
            let Some(relic) = named.relics.pop_front() else { break };
            match self.bear_again(&relic, &mut named.cursor) {
                Ok(written) => bytes += written,
                Err(errno @ (Errno::ENOSPC | Errno::EROFS)) => return Err(errno),
                Err(errno) if self.set.pool().status().failed.is_some() => return Err(errno),
                // It was removed meanwhile, or is unreadable. A reader will report that.
                Err(_) => {}
            }
        }
        Ok(bytes > 0 || !named.relics.is_empty())
    }

    /// The block's place in this data set, if it belongs to it.
    fn place_of(&self, relic: &Relic) -> Option<Place> {
        match relic.owner {
            Owner::Block { objset, object, level, block } if objset == self.set.id().0 => {
                Some(Place { object, level, block })
            }
            _ => None,
        }
    }

    /// Rewrites a block, if it is still at the named address. Returns the bytes of content that were written.
    fn bear_again(&self, relic: &Relic, cursor: &mut RebirthCursor) -> Result<u64, Errno> {
        if let Some(again) = self.set.find_again(relic.owner, relic.addr)? {
            return self.bear_metadata(&again, cursor);
        }
        match self.place_of(relic) {
            Some(Place { object, level: 0, block }) if object != 0 => {
                let object = self.set.hold(ObjectId(object))?;
                self.bear_record(&object, block, relic, cursor)
            }
            _ => Ok(0),
        }
    }

    fn bear_metadata(&self, again: &Again, cursor: &mut RebirthCursor) -> Result<u64, Errno> {
        let cost = Cost { meta_bytes: again.bytes(), ..Cost::NOTHING };
        let tx = self.begin(cost, &[(&Claims::of(again.object().0), Need::attrs())])?;
        // As in `bear_record`.
        if self.rewrite().goes_on() {
            return Ok(0);
        }
        let written = again.write(&tx)?;
        if written > 0 {
            cursor.born(&tx);
            self.set.pool().note_reborn(written);
        }
        Ok(written)
    }

    /// Without the inode, which need not be in memory: the object may be an attribute's, or unlinked.
    fn bear_record(
        &self,
        object: &Arc<Object>,
        block: u64,
        relic: &Relic,
        cursor: &mut RebirthCursor,
    ) -> Result<u64, Errno> {
        if object.kind() != ObjectKind::File {
            return Ok(0);
        }
        let number = object.id().0;
        let Some(was) = object.stored_pointer(block)? else { return Ok(0) };
        let BlockPtr::Normal(normal) = &was else { return Ok(0) };
        if !normal.copies().any(|addr| addr == relic.addr) {
            return Ok(0);
        }
        let pool = self.set.pool();
        let (content, made) = pool.read_whole(normal, relic.owner).map_err(ObjectError::from)?;
        let block_bytes = object.block_size();
        let start = block.saturating_mul(block_bytes.into());
        let data = start..start.saturating_add(block_bytes.into());
        let file_bytes = object.block_count().saturating_mul(block_bytes.into());
        let need = Need::records(object, data, block_bytes, file_bytes);
        let tx = self.begin(Cost::NOTHING, &[(&Claims::of(number), need)])?;
        let stored = made.stored_bytes();
        // Checked again within the txg: a rewrite that begins later commits it before it relies on births.
        if self.rewrite().goes_on() || !object.recode_block(&tx, block, (&was, content), made)? {
            return Ok(0);
        }
        cursor.born(&tx);
        pool.note_reborn(stored);
        Ok(u64::from(was.lsize()))
    }
}
