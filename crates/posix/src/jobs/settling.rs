//! Directories that lost names, and how they get smaller.
//!
//! Removing a name never moves others. So a directory that lost many has more or larger blocks than it needs.
//! If shrinking may pay, the directory is noted, and shrunk in a later txg in a transaction of its own. The
//! shrink is planned while readers continue, and applied under the directory's lock. It is dropped if a name
//! changed meanwhile. It delays and fails no request. If there is no space for it, the directory waits until it
//! loses another name.
//!
//! Invariant: an inode is in the set if and only if its `due` is set. Both change under the set's lock, while
//! the inode is held. Until then it stays in memory, and so do the removals that its ZAP has counted.

use crate::inode::{Inode, State};
use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Limit of noted directories; one beyond it is noted when it loses another name.
const DUE_MAX: usize = 4096;
/// Directories shrunk by one call.
pub(crate) const STEP: usize = 64;

/// Directories that lost names, and the txg in which they did. A leaf lock.
#[derive(Default)]
pub(crate) struct Settling(Mutex<BTreeMap<Ino, u64>>);

impl Settling {
    /// Called after the directory lost a name in this txg. The caller holds its lock.
    pub fn judge(&self, dir: &Inode, state: &State, group: u64) {
        match (state.is_shrink_due(), dir.is_due()) {
            (true, _) => self.note(dir, group),
            // For example, its last name was removed.
            (false, true) => self.forget(dir),
            (false, false) => {}
        }
    }

    fn note(&self, dir: &Inode, group: u64) {
        let mut due = self.0.lock();
        if due.len() < DUE_MAX || due.contains_key(&dir.ino) {
            due.insert(dir.ino, group);
            dir.set_due(true);
        }
    }

    /// Removes a directory that was shrunk or destroyed. The caller holds its lock.
    pub fn forget(&self, dir: &Inode) {
        let mut due = self.0.lock();
        due.remove(&dir.ino);
        dir.set_due(false);
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Up to `STEP` directories that were noted before this txg.
    pub fn due_before(&self, group: u64) -> Vec<Ino> {
        self.0.lock().iter().filter(|(_, noted)| **noted < group).map(|(ino, _)| *ino).take(STEP).collect()
    }
}
