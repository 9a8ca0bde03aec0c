//! Which inodes lost changes with a predecessor, and who was told: see [`loss`](crate::loss).

use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Who was told that an inode lost changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// A change of it was refused.
    pub change_told: bool,
    /// So was an `fsync`.
    pub sync_told: bool,
    /// An administrator has read of it, so it is in the error log no more.
    pub is_read: bool,
}

impl Loss {
    /// Nobody else is told. It is still in the list.
    pub fn is_told(self) -> bool {
        self.change_told && self.sync_told
    }
}

/// Everything that was lost and matters still.
#[derive(Debug)]
pub(crate) struct Losses {
    pub list: Mutex<BTreeMap<Ino, Loss>>,
    /// The files among them are in the error log.
    pub is_logged: AtomicBool,
    /// The predecessor has answered all that it carried out.
    pub all_answered: AtomicBool,
}

impl Losses {
    pub fn new(lost: BTreeMap<Ino, Loss>) -> Self {
        Losses {
            list: Mutex::new(lost),
            is_logged: AtomicBool::new(false),
            all_answered: AtomicBool::new(false),
        }
    }
}
