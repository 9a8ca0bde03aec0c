//! A file in records of another size.
//!
//! Another record size is another tree. It is made in one group, under the file's lock: all content is read, and takes the place of what
//! there was. Whoever holds the file open goes on with the same inode. What that would take too much memory for is left as it is.

use super::{Job, RewriteFigures};
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Inode, InodeRef};

/// Larger files are left as they are: all of it is in memory for one group, and its readers wait until it was read.
pub(super) const RESHAPED_BYTES_MAX: u64 = 64 << 20;

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
    pub(super) fn reshape(
        &self,
        inode: &InodeRef<'_>,
        job: &Job,
        figures: &mut RewriteFigures,
    ) -> Result<(), Errno> {
        let Some(record_size) = job.spec.record_size else { return Ok(()) };
        let object = inode.object();
        let stored = object.used_bytes();
        loop {
            let size = inode.read().attrs.zpl.size;
            let Some(bytes) = wanted(inode, size, record_size) else { break };
            if size > RESHAPED_BYTES_MAX {
                log::info!("inode {}: too large for another record size", inode.ino);
                figures.too_large += 1;
                break;
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
        figures.stored_bytes += stored;
        Ok(())
    }
}
