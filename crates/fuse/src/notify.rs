//! Notifications: tell the kernel that something it caches is no longer valid.
//!
//! Nothing changes a mounted dataset but its mount, so two uses remain. After a take-over the kernel may
//! cache what a dead server told it and never committed. And stores through mappings must be written back.
//!
//! The kernel does this work inside our write. It takes locks of directories and pages, and waits for their
//! holders, which may wait for an answer of ours. So:
//! * Never send from a thread that answers requests, or under a lock that such a thread takes.
//! * Send notifications that wait for pages from another process ([`crate::forget`]), because no signal ends
//!   that wait.
//!
//! `attributes_outdated` is the exception, for the node of the request. [`Notifier::invalidate_names`] takes no
//! lock either, and may be sent before the session answers at all.

use crate::proto::{NotifyInvalEntryOut, NotifyInvalInodeOut, notify};
use crate::reply;
use std::fs::File;
use std::io::{self, Write};

/// A notification that a thread may send while it answers a request for this node. With no data to drop, the
/// kernel takes no lock that is held across requests, and the process that waits for the answer keeps the
/// node.
pub(crate) fn attributes_outdated(node: u64) -> Vec<u8> {
    reply::notification(notify::INVAL_INODE, &invalidation(node, NO_DATA, 0))
}

/// Length 0 means to the end.
fn invalidation(node: u64, off: i64, len: i64) -> [u8; NotifyInvalInodeOut::SIZE] {
    NotifyInvalInodeOut { ino: node, off, len }.encode()
}

/// A negative offset means attributes only, no data.
const NO_DATA: i64 = -1;

/// Sends notifications on one mount. The module says from which threads.
#[derive(Debug)]
pub struct Notifier {
    device: File,
}

impl Notifier {
    /// Sends on this connection, a mount's `/dev/fuse`.
    pub fn new(device: File) -> Self {
        Notifier { device }
    }

    /// Every cached name, existing or missing, is looked up again before it is used. `Unsupported`: the
    /// kernel lacks this notification (before Linux 6.16).
    pub fn invalidate_names(&self) -> io::Result<()> {
        self.send(notify::INC_EPOCH, &[]).map(drop).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::Error::from(io::ErrorKind::Unsupported),
            _ => error,
        })
    }

    /// One name in a directory is looked up again. `false`: the kernel had not cached it.
    pub fn invalidate_name(&self, dir: u64, name: &[u8]) -> io::Result<bool> {
        let namelen = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let head = NotifyInvalEntryOut { parent: dir, namelen, flags: 0 }.encode();
        self.send(notify::INVAL_ENTRY, &[&head[..], name, &[0]].concat())
    }

    /// The attributes of a node are fetched again. `false`: the kernel does not know the node.
    pub fn invalidate_attributes(&self, node: u64) -> io::Result<bool> {
        self.invalidate_inode(node, NO_DATA, 0)
    }

    /// Drops the attributes of a node and everything cached of its contents: pages, or a directory's names.
    /// Dirty pages of mappings are written back first. `false`: the kernel does not know the node.
    pub fn invalidate_contents(&self, node: u64) -> io::Result<bool> {
        self.invalidate_inode(node, 0, 0)
    }

    /// The same for the pages of a range only; length 0 means to the end.
    pub fn invalidate_range(&self, node: u64, offset: u64, len: u64) -> io::Result<bool> {
        let signed = |number: u64| i64::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
        self.invalidate_inode(node, signed(offset)?, signed(len)?)
    }

    fn invalidate_inode(&self, node: u64, off: i64, len: i64) -> io::Result<bool> {
        self.send(notify::INVAL_INODE, &invalidation(node, off, len))
    }

    fn send(&self, code: i32, payload: &[u8]) -> io::Result<bool> {
        loop {
            match (&self.device).write(&reply::notification(code, payload)) {
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing is cached.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}
