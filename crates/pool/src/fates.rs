//! How files fared: told by those who see files come and go, asked about those that come.
//!
//! Lives are measured in what users wrote meanwhile, which the sync alone knows: so deaths wait here until a group has been synced, and
//! whoever removes a file waits for nothing.
//!
//! Lock: a leaf; nothing is called under it.

use crate::pool::Pool;
use terrane_space::policy::SiblingKey;
use terrane_txg::fates::DEATHS_MAX;
use terrane_wire::Txg;

impl Pool {
    /// A file was made. Returns how many bytes users will write to the pool until its like dies, as far as can be told.
    pub fn file_born(&self, key: SiblingKey) -> Option<u64> {
        let siblings = &mut self.fates.0.lock().siblings;
        siblings.born(key);
        siblings.expect(key)
    }

    /// A file has another name now, and is one of those it is among then. Returns what is expected of them.
    pub fn file_moved(&self, from: SiblingKey, to: SiblingKey) -> Option<u64> {
        let siblings = &mut self.fates.0.lock().siblings;
        siblings.left(from);
        siblings.born(to);
        siblings.expect(to)
    }

    /// The last name of a file went; `born` is the group that made the file.
    pub fn file_died(&self, key: SiblingKey, born: Txg) {
        let deaths = &mut self.fates.0.lock().deaths;
        if deaths.len() < DEATHS_MAX {
            deaths.push((key, born));
        }
    }
}
