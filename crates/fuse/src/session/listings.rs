//! Listings that the kernel must not cache.
//!
//! The kernel gathers what READDIR shows into a list of its own, and serves later readers from it. Any reader
//! that asks for the next entries extends the list. So pieces of several readers, of different age, lie in
//! one list. Only a reader at the beginning of a directory checks whether the list is still valid. A reader
//! that began before the list was complete continues in it unchecked. It misses a name that existed before it
//! began but was created after its piece of the list was read (seen on Linux 6.18; `rm -r` beside `find` then
//! ends with "Directory not empty").
//!
//! A list that came in one piece is as correct as its one answer: changes of a directory exclude its readers,
//! and the next reader notices them. So the kernel may cache the lists of small directories. For other
//! directories the kernel is told to drop the pages before it learns that the end is reached. It then finds
//! its list without a beginning, drops it, and asks. It is told so before the second answer as well: it then
//! stops gathering at once, which saves a third of its work per name.
//!
//! Invariant: if a directory's listing ever took more than one answer, the kernel drops its pages before it
//! learns the end. Such a directory is remembered for ever, as an old piece can be added late.

use crate::proto::{self, Header, NotifyInvalInodeOut, ReadIn, Request};
use crate::reply::{self, Reply};
use crate::snapshots::LIST_NODE;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Directories that are remembered one by one. Beyond it all directories are treated as long ones.
const LONG_DIRS_MAX: usize = 1 << 16;
/// The kernel asks for as much as the caller's buffer takes, and for at least a page. So with a request of a
/// page the caller may take less than the answer holds (musl's buffer has 2048 bytes), and continues in the
/// kernel's list.
const PAGE_BYTES: u32 = 4096;
const SMALLEST_BUFFER_BYTES: usize = 1024;

/// Directories whose listings take more than one answer.
#[derive(Debug)]
pub(super) struct Listings {
    /// True: a reader began to list it, and has not asked for more yet.
    long_dirs: Mutex<BTreeMap<u64, bool>>,
}

impl Default for Listings {
    /// The list of snapshots changes without a request of the kernel, so its listings are never kept.
    fn default() -> Self {
        Listings { long_dirs: Mutex::new(BTreeMap::from([(LIST_NODE, false)])) }
    }
}

impl Listings {
    /// The notification that must be sent before this answer to a request that was carried out.
    pub fn notification_before(
        &self,
        header: &Header,
        request: &Request<'_>,
        reply: &Reply,
    ) -> Option<Vec<u8>> {
        let (Request::Readdir(read) | Request::Readdirplus(read)) = request else { return None };
        let mut long = self.long_dirs.lock();
        let (is_first, is_end, is_full) = (read.offset == 0, reply.is_empty(), long.len() >= LONG_DIRS_MAX);
        let is_wanted = match long.get_mut(&header.nodeid) {
            Some(begun) if is_first => {
                *begun = true;
                false
            }
            Some(begun) => std::mem::take(begun) || is_end,
            None if is_full => is_end && !is_first,
            None if is_long(read, reply) => long.insert(header.nodeid, is_first).is_none() && !is_first,
            None => false,
        };
        is_wanted.then(|| drop_pages_notification(header.nodeid))
    }
}

fn is_long(read: &ReadIn, reply: &Reply) -> bool {
    let continues = read.offset != 0 && !reply.is_empty();
    continues || read.size <= PAGE_BYTES && reply.len() > SMALLEST_BUFFER_BYTES
}

fn drop_pages_notification(nodeid: u64) -> Vec<u8> {
    let all = NotifyInvalInodeOut { ino: nodeid, off: 0, len: 0 };
    reply::notification(proto::notify::INVAL_INODE, &all.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notifies(listings: &Listings, nodeid: u64, offset: u64, size: u32, bytes: usize) -> bool {
        let read = ReadIn { fh: 0, offset, size, read_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
        let header =
            Header { opcode: proto::Opcode::Readdir as u32, unique: 1, nodeid, uid: 0, gid: 0, pid: 0 };
        let mut reply = Reply::new();
        reply.bytes(&vec![0; bytes]);
        listings.notification_before(&header, &Request::Readdir(read), &reply).is_some()
    }

    #[test]
    fn only_long_listings_are_forgotten_after_their_first_piece_and_at_their_end() {
        let listings = Listings::default();
        assert!(!notifies(&listings, 7, 0, 32768, 30000));
        assert!(!notifies(&listings, 7, 99, 32768, 0), "one answer held all");
        assert!(!notifies(&listings, 8, 0, 32768, 30000));
        assert!(notifies(&listings, 8, 99, 32768, 30000), "the kernel stops gathering");
        assert!(!notifies(&listings, 8, 199, 32768, 30000), "it has stopped");
        assert!(notifies(&listings, 8, 299, 32768, 0));
        assert!(notifies(&listings, 8, 199, 32768, 0), "marks stay");
        assert!(!notifies(&listings, 8, 0, 32768, 30000), "the first piece of another listing");
        assert!(notifies(&listings, 8, 99, 32768, 30000));
        assert!(!notifies(&listings, 7, 99, 32768, 0), "another directory");
    }

    #[test]
    fn a_small_buffer_makes_a_listing_long() {
        let listings = Listings::default();
        assert!(!notifies(&listings, 7, 0, 4096, 1000));
        assert!(!notifies(&listings, 7, 99, 4096, 0));
        assert!(!notifies(&listings, 7, 0, 4096, 2000));
        assert!(notifies(&listings, 7, 99, 4096, 0));
    }

    #[test]
    fn too_many_marks_count_for_all() {
        let listings = Listings::default();
        for nodeid in 2..2 + LONG_DIRS_MAX as u64 {
            notifies(&listings, nodeid, 5, 32768, 100);
        }
        assert!(notifies(&listings, 1, 5, 32768, 0));
    }
}
