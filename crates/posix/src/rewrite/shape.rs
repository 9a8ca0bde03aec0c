//! A file in records of another size.
//!
//! Another record size is another tree. A small file's is made in one group, under the file's lock: all content is read, and takes the
//! place of what there was. A large one's is built beside it, piece by piece (see [`super::beside`]). Whoever holds the file open goes on
//! with the same inode.

use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::Inode;
use crate::jobs::{File, RewriteFigures, RewriteJob};

/// Of files that are made anew at once, in bytes, and the share of the pool that they may take: all of such a file is in memory and written
/// twice as far as room is concerned, and its readers wait until it was read.
const AT_ONCE_BYTES: u64 = 16 << 20;
const AT_ONCE_SHARE: u64 = 2048;
const AT_ONCE_BYTES_MIN: u64 = 32 << 10;

/// The record size that a file of `size` bytes should get, if it has another one.
fn wanted(inode: &Inode, size: u64, record_size: u32) -> Option<u32> {
    let object = inode.object();
    let (now, count) = (object.block_size(), object.block_count());
    // A single record is as long as the file, and grows with it.
    let whole = u32::try_from(size.max(1)).unwrap_or(u32::MAX).checked_next_multiple_of(512);
    let wanted = whole.unwrap_or(u32::MAX).min(record_size);
    let is_right = now == wanted || count == 0 || count == 1 && now <= record_size;
    (!is_right).then_some(wanted)
}

impl Fs {
    /// Bytes that are copied while a file's users wait, at the most.
    pub(super) fn at_once_bytes(&self) -> u64 {
        (self.set.usage().size_bytes / AT_ONCE_SHARE).clamp(AT_ONCE_BYTES_MIN, AT_ONCE_BYTES)
    }

    /// Goes on with a file; true: it is done.
    pub(super) fn reshape(
        &self,
        inode: &InodeRef<'_>,
        file: &mut File,
        job: &RewriteJob,
        figures: &mut RewriteFigures,
    ) -> Result<bool, Errno> {
        let Some(record_size) = job.spec.record_size else { return Ok(true) };
        let object = inode.object();
        let stored = object.used_bytes();
        loop {
            let size = inode.read().attrs.zpl.size;
            let Some(bytes) = wanted(inode, size, record_size) else { break };
            // What will be one record has no size of its own to build it in.
            if size > self.at_once_bytes() && size > u64::from(record_size) {
                return self.build_beside(inode, file, bytes, figures);
            }
            let end = size.next_multiple_of(u64::from(bytes));
            let need = Need::records(object, 0..end, bytes, size);
            let tx = self.begin_rewriting(&self.rewriting.words, &[(&inode.claims, need)])?;
            let state = inode.write();
            if state.attrs.zpl.size != size {
                // It has grown, or was cut: what was reserved may be too little.
                continue;
            }
            object.set_record_size(&tx, bytes)?;
            figures.reshaped += 1;
            figures.logical_bytes += size;
            break;
        }
        figures.stored_bytes += stored.saturating_sub(file.beside.counted);
        Ok(true)
    }
}
