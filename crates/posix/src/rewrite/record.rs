//! One record stored by another algorithm.

use super::words::Words;
use super::{Job, RewriteFigures};
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::InodeRef;
use std::sync::Arc;
use terrane_object::{BlockPtr, Compression, Made, Object};

/// Records that are looked at in one step, if nothing is to be done to them.
const LOOKS: usize = 64;

/// An algorithm, and whether what it made shall take the place of what was stored by the algorithm of this id.
pub(super) type Wanted<'a> = (Compression, &'a dyn Fn(u8, &Made) -> bool);

impl Fs {
    /// Goes on with a file; true: it is done.
    pub(super) fn recode_step(
        &self,
        inode: &InodeRef<'_>,
        record: &mut u64,
        job: &Job,
        figures: &mut RewriteFigures,
    ) -> Result<bool, Errno> {
        let Some(compression) = job.spec.compression else { return Ok(true) };
        let object = Arc::clone(inode.object());
        let block_bytes = u64::from(object.block_size());
        for _ in 0..LOOKS {
            let Some(at) = object.next_data(record.saturating_mul(block_bytes))? else { return Ok(true) };
            let block = at / block_bytes;
            *record = block + 1;
            let Some(ptr) = object.stored_pointer(block)? else { continue };
            let stored = ptr.allocated_bytes();
            figures.stored_bytes += stored;
            figures.logical_bytes += u64::from(ptr.lsize());
            if ptr.birth().0 >= job.since || self.is_made_by(&ptr, compression) {
                continue;
            }
            // The same again: it did not shrink then either.
            let keep = |was: u8, made: &Made| {
                made.compression().id() != was || made.compression() != Compression::Off
            };
            let outcome = self.recode(inode, block, (compression, &keep), &self.rewriting.words);
            match outcome {
                Ok(Some(after)) => {
                    figures.before_bytes += stored;
                    figures.after_bytes += after;
                }
                Ok(None) => {}
                Err(Errno::EIO) => {
                    log::error!("rewriting {}: record {block} cannot be read", self.path_of(inode.ino));
                    figures.errors += 1;
                }
                Err(errno) => {
                    *record = block;
                    figures.stored_bytes -= stored;
                    figures.logical_bytes -= u64::from(ptr.lsize());
                    return Err(errno);
                }
            }
            return Ok(false);
        }
        Ok(false)
    }

    /// Whether a stored record is what this algorithm and level make. One that is stored as it is may be worth a try.
    fn is_made_by(&self, ptr: &BlockPtr, compression: Compression) -> bool {
        let BlockPtr::Normal(normal) = ptr else { return true };
        if normal.compression != compression.id() {
            return false;
        }
        let Compression::Zstd(level) = compression else { return true };
        self.set.pool().zstd_level(normal).is_ok_and(|found| found == Some(level))
    }

    /// Stores a record by an algorithm if `keep` likes what comes of it, given how it was stored. What it takes then; `None`: it was
    /// changed meanwhile, or stays.
    pub(super) fn recode<const N: usize>(
        &self,
        inode: &InodeRef<'_>,
        block: u64,
        (compression, keep): Wanted<'_>,
        words: &Words<N>,
    ) -> Result<Option<u64>, Errno> {
        let object: &Arc<Object> = inode.object();
        let Some((was, content)) = object.stored_block(block)? else { return Ok(None) };
        let BlockPtr::Normal(normal) = &was else { return Ok(None) };
        let made = self.set.pool().make(&content, compression);
        if !keep(normal.compression, &made) {
            return Ok(None);
        }
        let block_bytes = object.block_size();
        let start = block.saturating_mul(block_bytes.into());
        let file_bytes = inode.read().attrs.zpl.size;
        let data = start..start.saturating_add(block_bytes.into());
        let need = Need::records(object, data, block_bytes, file_bytes);
        let tx = self.begin_rewriting(words, &[(&inode.claims, need)])?;
        let after = made.stored_bytes();
        Ok(object.recode_block(&tx, block, (&was, content), made)?.then_some(after))
    }
}
