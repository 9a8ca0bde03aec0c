//! SEEK_DATA and SEEK_HOLE with respect to data that the kernel has not written back.
//!
//! The server's block tree does not show what programs stored through mappings a moment ago. So no range is
//! reported as a hole before the kernel has written it back ([`crate::launder`]). Where the block tree has
//! data, no laundering is needed: reporting a hole as data is always correct. So a file without holes costs
//! nothing more, and its pages stay in the kernel's cache.
//!
//! The kernel holds the inode's lock while it waits for the answer. Neither laundering nor the WRITEs that it
//! causes take that lock.

use super::Dispatch;
use std::ops::Range;
use terrane_posix::{Errno, Ino};

impl Dispatch {
    pub(super) fn seek_data(&self, node: Ino, offset: u64) -> Result<u64, Errno> {
        let size = self.fs.getattr(node)?.size;
        let end = self.next_data(node, offset)?.unwrap_or(size);
        if offset < size && (end == offset || !self.launder(node, offset..end)) {
            return Ok(offset);
        }
        self.fs.seek_data(node, offset)
    }

    pub(super) fn seek_hole(&self, node: Ino, offset: u64) -> Result<u64, Errno> {
        let size = self.fs.getattr(node)?.size;
        let mut from = offset;
        loop {
            let hole = self.fs.seek_hole(node, from)?;
            if hole >= size {
                return Ok(hole);
            }
            let end = self.next_data(node, hole)?.unwrap_or(size);
            if !self.launder(node, hole..end) {
                return Ok(size);
            }
            let hole_now = self.fs.seek_hole(node, hole)?;
            // Any hole within this range was laundered; what lies behind the range was not. Behind the end of
            // the file there is nothing.
            if hole_now < end || end >= size {
                return Ok(hole_now);
            }
            from = end;
        }
    }

    fn next_data(&self, node: Ino, offset: u64) -> Result<Option<u64>, Errno> {
        match self.fs.seek_data(node, offset) {
            Ok(at) => Ok(Some(at)),
            Err(Errno(libc::ENXIO)) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn launder(&self, node: Ino, range: Range<u64>) -> bool {
        self.launderer.as_ref().is_some_and(|launderer| launderer.launder(self.nodeid(node), range))
    }
}
