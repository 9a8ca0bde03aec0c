//! Directories that lost names, and the space they keep for them.
//!
//! Removing a name never moves others, so a directory that lost many has more blocks, or larger ones, than it needs. It is noted
//! when it might pay to write what is left anew, and that is done in a later group, in a transaction of its own: planned while
//! readers go on, put in place under the directory's lock, and not at all if a name came or went in between. Nobody waits for
//! it, and it fails nobody: where there is no room for it, the directory stays as it is until it loses another name.
//!
//! Invariant: an inode is in the set if and only if its `due` is set; both change under the set's lock, and while somebody holds the
//! inode. It stays in memory as long, and so do the removals that its ZAP has counted.

use crate::inode::{Inode, State};
use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Directories that wait; what is more is noted again when it loses another name.
const DUE_MAX: usize = 4096;
/// Directories settled by one call.
pub(crate) const STEP: usize = 64;

/// Directories that lost names, and in which group. A leaf lock.
#[derive(Default)]
pub(crate) struct Settling(Mutex<BTreeMap<Ino, u64>>);

impl Settling {
    /// It lost a name in this group. The caller holds its lock.
    pub fn judge(&self, dir: &Inode, state: &State, group: u64) {
        match (state.is_shrink_due(), dir.is_due()) {
            (true, _) => self.note(dir, group),
            // What it lost last left nothing, for instance.
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

    /// It is settled, or it is gone. The caller holds its lock.
    pub fn forget(&self, dir: &Inode) {
        let mut due = self.0.lock();
        due.remove(&dir.ino);
        dir.set_due(false);
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    pub fn due_before(&self, group: u64) -> Vec<Ino> {
        self.0.lock().iter().filter(|(_, noted)| **noted < group).map(|(ino, _)| *ino).take(STEP).collect()
    }
}
