//! Files of which the kernel's cache held changes that could not be stored.
//!
//! A store into a shared mapping fails nowhere when it is made. The kernel writes it back later, and where that finds no room the store is
//! gone: `msync` and `fsync` say so, but `munmap`, `close` and the end of a program do not. So administrators find such files in a list,
//! until they have read it ([`Fs::clear_losses`]), or until the file is cut to nothing or goes.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files in the list; of more only the log tells.
const LISTED_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    list: Mutex<BTreeSet<Ino>>,
    /// Nothing was ever listed, as a rule: then nobody takes the lock.
    any: AtomicBool,
}

impl Unwritten {
    pub fn forget(&self, ino: Ino) {
        if self.any.load(Ordering::Relaxed) {
            self.list.lock().remove(&ino);
        }
    }
}

impl Fs {
    /// What the kernel's cache held of this file was to be written back, and could not be.
    pub fn note_unwritten(&self, ino: Ino, errno: Errno) {
        self.unwritten.any.store(true, Ordering::Relaxed);
        let is_new = {
            let mut list = self.unwritten.list.lock();
            let is_full = list.len() >= LISTED_MAX;
            if is_full { !list.contains(&ino) } else { list.insert(ino) }
        };
        if is_new {
            log::warn!(
                "{}: what a program stored through a mapping could not be written back and is lost: {errno}",
                self.path_of(ino)
            );
        }
    }

    /// The files of which something could not be written back.
    pub fn unwritten_files(&self) -> Vec<Ino> {
        self.unwritten.list.lock().iter().copied().collect()
    }

    /// Somebody has read the list. Returns how many files were in it.
    pub(crate) fn clear_unwritten(&self) -> usize {
        std::mem::take(&mut *self.unwritten.list.lock()).len()
    }
}
