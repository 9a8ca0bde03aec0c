//! Files come and go under names, and the pool learns how long those live that are named alike.
//!
//! What is learned goes with a file's bytes as long as its inode is in memory: it is advice about where they are stored. A file that
//! gets another name is taken for one of those it is among then: what was written under a temporary name in the same group is stored
//! as what it became. One without a name dies with its last user, which is soon.
//!
//! Only regular files count, as only their bytes lie where life times matter.

use crate::fs::Fs;
use crate::inode::{Inode, State};
use crate::types::{Ino, mode};
use terrane_space::policy::SiblingKey;
use terrane_wire::Txg;

impl Fs {
    fn sibling_key(&self, dir: Ino, name: &[u8]) -> SiblingKey {
        // Numbers of data sets are small, those of objects below 2^48.
        SiblingKey::new(self.set.id().0.rotate_right(16) ^ dir, name)
    }

    /// A file was made under this name, or has it now.
    pub(crate) fn note_name(&self, inode: &Inode, state: &State, dir: Ino, name: &[u8]) {
        if is_file(state) {
            let expected = self.set.pool().file_born(self.sibling_key(dir, name));
            inode.object().expect_life(expected);
        }
    }

    /// A file moved. Among its like it was counted already.
    pub(crate) fn note_move(&self, inode: &Inode, state: &State, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        let (from, to) = (self.sibling_key(from.0, from.1), self.sibling_key(to.0, to.1));
        if is_file(state) && from != to {
            inode.object().expect_life(self.set.pool().file_moved(from, to));
        }
    }

    /// The last name of a file was this one. It may live on for a moment, while somebody has it open.
    pub(crate) fn note_death(&self, inode: &Inode, state: &State, dir: Ino, name: &[u8]) {
        if is_file(state) {
            self.set.pool().file_died(self.sibling_key(dir, name), Txg(state.attrs.zpl.generation));
            Fs::expect_soon(inode);
        }
    }

    /// Nobody can find the file: it goes with its last user.
    pub(crate) fn expect_soon(inode: &Inode) {
        inode.object().expect_life(Some(0));
    }
}

fn is_file(state: &State) -> bool {
    state.attrs.file_type() == mode::S_IFREG
}
