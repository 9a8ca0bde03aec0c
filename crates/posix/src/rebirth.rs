//! Records that are written anew so that the pool's run index keeps within its bound.
//!
//! Nothing but their place changes: they hold and are stored as what they were, and no time of their file moves. Whoever changes a record
//! meanwhile wins. Nothing is remembered of it: after a crash the pool names again what is still to be done.

use crate::claims::{Claims, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use parking_lot::Mutex;
use std::collections::VecDeque;
use terrane_object::{BlockPtr, Cost, ObjectError, ObjectId, ObjectKind, Owner, RebirthCursor, Relic};

/// Content written anew in one step, in bytes, and a record; and records that are looked at.
const STEP_BYTES: u64 = 1 << 20;
const STEP_RECORDS: usize = 64;

/// What is to be written anew.
#[derive(Default)]
pub(crate) struct Rebirth(Mutex<Named>);

#[derive(Default)]
struct Named {
    cursor: RebirthCursor,
    relics: VecDeque<Relic>,
}

/// A record of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    object: u64,
    block: u64,
}

impl Fs {
    /// Writes some records anew, if the run index takes more memory than it should. False: there is nothing to do for now. While files are
    /// rewritten it rests: that goes by births, and would take these records for what somebody wrote.
    pub fn rebirth_step(&self) -> Result<bool, Errno> {
        let named = &mut *self.rebirth.0.lock();
        if self.rewrite_goes_on() {
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
        for _ in 0..STEP_RECORDS {
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

    /// Which record of this data set that is.
    fn place_of(&self, relic: &Relic) -> Option<Place> {
        match relic.owner {
            Owner::Block { objset, object, level: 0, block } if objset == self.set.id().0 => {
                Some(Place { object, block })
            }
            _ => None,
        }
    }

    /// Writes a record anew if it is still that block. Returns the content that was written, in bytes. Not as the inode's, which need not
    /// be in memory for it: the object may be an attribute's, or have lost its name.
    fn bear_again(&self, relic: &Relic, cursor: &mut RebirthCursor) -> Result<u64, Errno> {
        let Some(Place { object: number, block }) = self.place_of(relic) else { return Ok(0) };
        let object = self.set.hold(ObjectId(number))?;
        if object.kind() != ObjectKind::File {
            return Ok(0);
        }
        let Some(was) = object.stored_pointer(block)? else { return Ok(0) };
        let BlockPtr::Normal(normal) = &was else { return Ok(0) };
        if !normal.copies().any(|addr| addr == relic.addr) {
            return Ok(0);
        }
        let pool = self.set.pool();
        let (content, made) = pool.read_whole(normal).map_err(ObjectError::from)?;
        let block_bytes = object.block_size();
        let start = block.saturating_mul(block_bytes.into());
        let data = start..start.saturating_add(block_bytes.into());
        let file_bytes = object.block_count().saturating_mul(block_bytes.into());
        let need = Need::records(&object, data, block_bytes, file_bytes);
        let tx = self.begin(Cost::NOTHING, &[(&Claims::of(number), need)])?;
        let stored = made.stored_bytes();
        // Looked at once more, within the group: a rewrite that begins later commits it before it takes births for its own.
        if self.rewrite_goes_on() || !object.recode_block(&tx, block, (&was, content), made)? {
            return Ok(0);
        }
        cursor.born(&tx);
        pool.note_reborn(stored);
        Ok(u64::from(was.lsize()))
    }
}
