//! Directories that lost names, and how they get smaller.
//!
//! Removing a name never moves others. So a directory that lost many has more or larger blocks than it needs.
//! If shrinking may pay, the directory is noted, and shrunk in a later txg in a transaction of its own. The
//! shrink is planned while readers continue, and applied under the directory's lock. It is dropped if a name
//! changed meanwhile. It delays and fails no request. If there is no space for it, the directory waits until it
//! loses another name.
//!
//! Invariant: an inode is in the set if and only if its `shrink_queued` is set. Both change under the set's lock, while
//! the inode is held. Until then it stays in memory, and so do the removals that its ZAP has counted.

use crate::inode::{Inode, State};
use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Limit of noted directories; one beyond it is noted when it loses another name.
const QUEUED_MAX: usize = 4096;
/// Directories shrunk by one call.
pub(crate) const SHRINK_STEP: usize = 64;

/// Directories that lost names, and the txg in which they did. A leaf lock.
#[derive(Default)]
pub(crate) struct ShrinkQueue(Mutex<BTreeMap<Ino, u64>>);

impl ShrinkQueue {
    /// Called after the directory lost a name in this txg. The caller holds its lock.
    pub fn note_removal(&self, dir: &Inode, state: &State, txg: u64) {
        match (state.is_shrink_due(), dir.is_shrink_queued()) {
            (true, _) => self.add(dir, txg),
            // For example, its last name was removed.
            (false, true) => self.remove(dir),
            (false, false) => {}
        }
    }

    fn add(&self, dir: &Inode, txg: u64) {
        let mut queued = self.0.lock();
        if queued.len() < QUEUED_MAX || queued.contains_key(&dir.ino) {
            queued.insert(dir.ino, txg);
            dir.set_shrink_queued(true);
        }
    }

    /// Removes a directory that was shrunk or destroyed. The caller holds its lock.
    pub fn remove(&self, dir: &Inode) {
        let mut queued = self.0.lock();
        queued.remove(&dir.ino);
        dir.set_shrink_queued(false);
    }

    /// Number of noted directories.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Up to `SHRINK_STEP` directories that were noted before this txg.
    pub fn queued_before(&self, txg: u64) -> Vec<Ino> {
        self.0
            .lock()
            .iter()
            .filter(|(_, txg_of_loss)| **txg_of_loss < txg)
            .map(|(ino, _)| *ino)
            .take(SHRINK_STEP)
            .collect()
    }
}
