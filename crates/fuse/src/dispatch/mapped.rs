//! Times that a program sets after it stored through a mapping.
//!
//! The kernel writes such stores back whenever it likes, and each WRITE sets the modification time to now.
//! That would overwrite a time that a program set after its stores. So before such a time is set, the kernel
//! writes the file back ([`crate::launder`]).
//!
//! Laundering drops the file's pages, so it must not happen to every file that is unpacked. A writable shared
//! mapping needs a file that was opened for reading and writing, and its page faults carry those open flags.
//! So the server notes files that were read that way through the page cache, and files that got a write-back.
//! A file whose pages were all cached before it was mapped is missed: it gets the time of the write-back.
//!
//! The notes are few and lock-free. A note that another file's note overwrites is such a miss.

use super::Dispatch;
use crate::proto::{self, ReadIn, SetattrIn, WriteIn};
use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: usize = 4096;

/// Files that may be mapped for writing, by node id.
pub(super) struct MappedFiles(Box<[AtomicU64]>);

impl Default for MappedFiles {
    fn default() -> Self {
        MappedFiles((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl MappedFiles {
    fn slot(&self, node: u64) -> Option<&AtomicU64> {
        self.0.get(usize::try_from(node % SLOTS as u64).ok()?)
    }

    /// Notes a file that is read through the page cache by a descriptor for reading and writing.
    pub fn note_read(&self, node: u64, read: &ReadIn) {
        let flags = read.flags.cast_signed();
        if flags & libc::O_ACCMODE == libc::O_RDWR && flags & libc::O_DIRECT == 0 {
            self.note(node);
        }
    }

    /// Notes a file whose pages the kernel writes back.
    pub fn note_write(&self, node: u64, write: &WriteIn<'_>) {
        if write.write_flags & proto::write::CACHE != 0 {
            self.note(node);
        }
    }

    fn note(&self, node: u64) {
        if let Some(slot) = self.slot(node)
            && slot.load(Ordering::Relaxed) != node
        {
            slot.store(node, Ordering::Relaxed);
        }
    }

    /// Whether the node was noted. Removes the note.
    fn take_note(&self, node: u64) -> bool {
        self.slot(node)
            .is_some_and(|slot| slot.compare_exchange(node, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }
}

impl Dispatch {
    pub(super) fn write_back_before_times(&self, node: u64, set: &SetattrIn) {
        if let Some(launderer) = &self.launderer
            && set.sets_explicit_mtime()
            && self.mapped.take_note(node)
            && !launderer.launder(node, 0..u64::MAX)
        {
            self.mapped.note(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_mapped_for_writing_is_noted() {
        let mapped = MappedFiles::default();
        let read = |flags: i32| ReadIn {
            fh: 0,
            offset: 0,
            size: 1,
            read_flags: 0,
            lock_owner: 0,
            flags: flags.cast_unsigned(),
            padding: 0,
        };
        mapped.note_read(7, &read(libc::O_RDONLY));
        mapped.note_read(7, &read(libc::O_RDWR | libc::O_DIRECT));
        let write =
            |write_flags| WriteIn { offset: 0, write_flags, flags: libc::O_RDWR.cast_unsigned(), data: b"x" };
        mapped.note_write(7, &write(0));
        assert!(!mapped.take_note(7));
        mapped.note_read(7, &read(libc::O_RDWR));
        assert!(mapped.take_note(7) && !mapped.take_note(7));
        mapped.note_write(7, &write(proto::write::CACHE));
        assert!(!mapped.take_note(7 + SLOTS as u64));
        assert!(mapped.take_note(7));
    }
}
