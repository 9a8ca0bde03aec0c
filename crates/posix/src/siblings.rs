//! Lifetime prediction: the pool learns how long files with similar names live.
//!
//! What it learns is attached to a file while its inode is in memory. It advises where the file's blocks are
//! placed. A renamed file takes the prediction of its new name. So data written under a temporary name in the
//! same txg is placed like the final file. A file without a name dies with its last user, which is soon.
//!
//! Only regular files count: placement by lifetime applies to their blocks only.

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

    /// A file was created under this name, or got it.
    pub(crate) fn note_name(&self, inode: &Inode, state: &State, dir: Ino, name: &[u8]) {
        if is_file(state) {
            let expected = self.set.pool().file_born(self.sibling_key(dir, name));
            inode.object().expect_life(expected);
        }
    }

    /// A file was renamed. It has been counted under its old name.
    pub(crate) fn note_move(&self, inode: &Inode, state: &State, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        let (from, to) = (self.sibling_key(from.0, from.1), self.sibling_key(to.0, to.1));
        if is_file(state) && from != to {
            inode.object().expect_life(self.set.pool().file_moved(from, to));
        }
    }

    /// A file lost its last name. It may live on while a program has it open.
    pub(crate) fn note_death(&self, inode: &Inode, state: &State, dir: Ino, name: &[u8]) {
        if is_file(state) {
            self.set.pool().file_died(self.sibling_key(dir, name), Txg(state.attrs.zpl.generation));
            Fs::expect_soon(inode);
        }
    }

    /// The file has no name, so it is destroyed with its last user.
    pub(crate) fn expect_soon(inode: &Inode) {
        inode.object().expect_life(Some(0));
    }
}

fn is_file(state: &State) -> bool {
    state.attrs.file_type() == mode::S_IFREG
}
