//! Lifetimes of files. The client reports creates, renames and deletes, and asks how long a new file may
//! live.
//!
//! Lifetimes are measured in bytes that users write meanwhile, which only the sync knows. So deaths wait here
//! until a txg has synced, and an unlink waits for nothing.
//!
//! Lock: a leaf; no other lock is taken under it.

use crate::pool::Pool;
use terrane_space::policy::SiblingKey;
use terrane_txg::fates::DEATHS_MAX;
use terrane_wire::Txg;

impl Pool {
    /// Records a new file. Returns how many bytes users will write to the pool until it dies, if siblings
    /// allow an estimate.
    pub fn file_born(&self, key: SiblingKey) -> Option<u64> {
        let siblings = &mut self.fates.0.lock().siblings;
        siblings.born(key);
        siblings.expect(key)
    }

    /// Records a rename: the file now counts among other siblings. Returns their expected lifetime, as for a
    /// new file.
    pub fn file_moved(&self, from: SiblingKey, to: SiblingKey) -> Option<u64> {
        let siblings = &mut self.fates.0.lock().siblings;
        siblings.left(from);
        siblings.born(to);
        siblings.expect(to)
    }

    /// Records that a file lost its last name; `born` is the txg that created it.
    pub fn file_died(&self, key: SiblingKey, born: Txg) {
        let deaths = &mut self.fates.0.lock().deaths;
        if deaths.len() < DEATHS_MAX {
            deaths.push((key, born));
        }
    }
}
