//! Rewriting a file in records of another size.
//!
//! Another record size needs another tree. For a small file it is built in one txg, under the file's lock: all
//! content is read and replaced. For a large one a second copy is built, piece by piece (see
//! [`super::second_copy`]). Programs that have the file open keep the same inode.

use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::Inode;
use crate::jobs::{RewriteFigures, RewriteJob, WalkFile};

/// Limit in bytes of files that are rewritten at once, and the pool's share 1/N that they may take. Such a file
/// is in memory as a whole and reserves twice its size; its readers wait until it was read.
const AT_ONCE_BYTES: u64 = 16 << 20;
const AT_ONCE_DIVISOR: u64 = 2048;
const AT_ONCE_BYTES_MIN: u64 = 32 << 10;

/// The record size that a file of `size` bytes should get, if it has another one.
fn wanted_record_size(inode: &Inode, size: u64, record_size: u32) -> Option<u32> {
    let object = inode.object();
    let (now, count) = (object.block_size(), object.block_count());
    // A single record is as long as the file, and grows with it.
    let whole = u32::try_from(size.max(1)).unwrap_or(u32::MAX).checked_next_multiple_of(512);
    let wanted = whole.unwrap_or(u32::MAX).min(record_size);
    let is_right = now == wanted || count == 0 || count == 1 && now <= record_size;
    (!is_right).then_some(wanted)
}

impl Fs {
    /// Maximum of bytes copied while users of a file wait.
    pub(super) fn at_once_bytes(&self) -> u64 {
        (self.set.usage().size_bytes / AT_ONCE_DIVISOR).clamp(AT_ONCE_BYTES_MIN, AT_ONCE_BYTES)
    }

    /// Advances a file. True: it is done.
    pub(super) fn change_record_size(
        &self,
        inode: &InodeRef<'_>,
        file: &mut WalkFile,
        job: &RewriteJob,
        figures: &mut RewriteFigures,
    ) -> Result<bool, Errno> {
        let Some(record_size) = job.spec.record_size else { return Ok(true) };
        let object = inode.object();
        let stored = object.used_bytes();
        loop {
            let size = inode.read().attrs.zpl.size;
            let Some(bytes) = wanted_record_size(inode, size, record_size) else { break };
            // Its shared blocks would be stored twice.
            if file.copy_progress.object == 0 && self.set.has_shared_records(object)? {
                break;
            }
            // A file of one record has no larger unit to be built piece by piece.
            if size > self.at_once_bytes() && size > u64::from(record_size) {
                return self.advance_copy(inode, file, bytes, figures);
            }
            let end = size.next_multiple_of(u64::from(bytes));
            let need = Need::records(object, 0..end, bytes, size);
            let tx = self.begin_with_cursor(&self.rewriting.cursor, &[(&inode.claims, need)])?;
            let state = inode.write();
            if state.attrs.zpl.size != size {
                // The file has grown or shrunk: the reservation may be too small.
                continue;
            }
            object.set_record_size(&tx, bytes)?;
            figures.reshaped += 1;
            figures.logical_bytes += size;
            break;
        }
        figures.stored_bytes += stored.saturating_sub(file.copy_progress.counted);
        Ok(true)
    }
}
