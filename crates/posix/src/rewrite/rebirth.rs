//! Blocks that are written anew so that the pool's run index keeps within its bound: records of files, and metadata.
//!
//! Nothing but their place changes: they hold what they did, records are stored as they were, and no time of a file moves. Whoever changes
//! one meanwhile wins. Nothing is remembered of it: after a crash the pool names again what is still to be done.

use crate::claims::{Claims, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::jobs::{Job, JobStep};
use std::sync::Arc;
use terrane_format::{BlockPtr, Owner};
use terrane_object::{Again, Object, ObjectError, ObjectKind};
use terrane_pool::{Cost, RebirthCursor, Relic};
use terrane_wire::ObjectId;

/// Content written anew in one step, in bytes, and a block; and blocks that are looked at.
const STEP_BYTES: u64 = 1 << 20;
const STEP_BLOCKS: usize = 64;

/// A block of this data set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    object: u64,
    level: u8,
    block: u64,
}

/// Blocks written anew, if the run index takes more memory than it should.
#[derive(Clone, Copy)]
pub struct Rebirth<'f> {
    fs: &'f Fs,
}

impl Job for Rebirth<'_> {
    /// Blocks that the pool named and that were not looked at yet.
    type Progress = usize;

    /// Writes some blocks anew.
    fn step(&self, _: u64) -> Result<JobStep, Errno> {
        JobStep::of(self.fs.bear_some_again())
    }

    fn progress(&self) -> usize {
        self.fs.rebirth.lock().relics.len()
    }
}

impl Fs {
    pub fn rebirth(&self) -> Rebirth<'_> {
        Rebirth { fs: self }
    }

    /// False: there is nothing to do for now. While files are rewritten it rests: that goes by births, and would take these for what
    /// somebody wrote.
    fn bear_some_again(&self) -> Result<bool, Errno> {
        let named = &mut *self.rebirth.lock();
        if self.rewrite().goes_on() {
            named.relics.clear();
            return Ok(false);
        }
        if named.relics.is_empty() {
            let mut relics = self.set.pool().relics(&mut named.cursor);
            // Neighbours share the blocks of pointers above them.
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
                // Removed meanwhile, or nobody can read it: who asks for it will be told.
                Err(_) => {}
            }
        }
        Ok(bytes > 0 || !named.relics.is_empty())
    }

    /// Which block of this data set that is.
    fn place_of(&self, relic: &Relic) -> Option<Place> {
        match relic.owner {
            Owner::Block { objset, object, level, block } if objset == self.set.id().0 => {
                Some(Place { object, level, block })
            }
            _ => None,
        }
    }

    /// Writes a block anew if it is still the one that is meant. Returns the content that was written, in bytes.
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
        // As for records.
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

    /// Not as the inode's, which need not be in memory for it: the object may be an attribute's, or have lost its name.
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
        // Looked at once more, within the group: a rewrite that begins later commits it before it takes births for its own.
        if self.rewrite().goes_on() || !object.recode_block(&tx, block, (&was, content), made)? {
            return Ok(0);
        }
        cursor.born(&tx);
        pool.note_reborn(stored);
        Ok(u64::from(was.lsize()))
    }
}
