//! Inodes with changes lost by a predecessor, and which calls have reported it; see [`loss`](crate::loss).

use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Which calls have reported that an inode lost changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// A change of it was refused.
    pub change_reported: bool,
    /// An `fsync` was refused.
    pub sync_reported: bool,
    /// An administrator has read of it, so it is no longer in the error log.
    pub is_read: bool,
    /// An administrator undid the changes, so only the kernel must learn of it.
    pub is_rolled_back: bool,
    /// A rollback gave the number back to an older inode. The kernel knows another one by it.
    pub is_replaced: bool,
    /// An answer has named the older inode since. Only then it is the one that the kernel means.
    pub is_named: bool,
}

impl Loss {
    /// Changes that a rollback undid. No call reports them.
    pub const ROLLED_BACK: Loss = Loss {
        change_reported: true,
        sync_reported: true,
        is_read: true,
        is_rolled_back: true,
        is_replaced: false,
        is_named: false,
    };

    /// All calls have reported it. It is still in the list.
    pub fn is_reported(self) -> bool {
        self.change_reported && self.sync_reported
    }
}

/// All losses that still matter.
#[derive(Debug)]
pub(crate) struct Losses {
    /// By inode number. A file's entry stays after all calls have reported it; a directory's is removed.
    pub list: Mutex<BTreeMap<Ino, Loss>>,
    /// The files among them are in the error log.
    pub is_logged: AtomicBool,
    /// The predecessor answered all requests that it carried out.
    pub all_answered: AtomicBool,
    /// Some inode may be replaced.
    pub has_replaced: AtomicBool,
}

impl Losses {
    pub fn new(lost: BTreeMap<Ino, Loss>) -> Self {
        let has_replaced = AtomicBool::new(lost.values().any(|loss| loss.is_replaced));
        Losses {
            has_replaced,
            list: Mutex::new(lost),
            is_logged: AtomicBool::new(false),
            all_answered: AtomicBool::new(false),
        }
    }
}
