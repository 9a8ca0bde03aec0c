//! Lifetime prediction: the pool learns how long files with similar names live.
//!
//! What it learns is attached to a file while its inode is in memory. It advises where the file's blocks are
//! placed. A renamed file takes the prediction of its new name. So data written under a temporary name in the
//! same txg is placed like the final file. A file without a name dies with its last user, which is soon.
//!
//! Only regular files count: placement by lifetime applies to their blocks only.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Inode, State};
use crate::types::{Ino, mode};
use terrane_space::policy::{Prediction, SimilarityKey};
use terrane_wire::Txg;

impl Fs {
    fn lifetime_key(&self, dir: Ino, name: &[u8]) -> SimilarityKey {
        // Numbers of data sets are small, those of objects below 2^48.
        SimilarityKey::new(self.set.id().0.rotate_right(16) ^ dir, name)
    }

    /// A file was created under this name, or got it.
    pub(crate) fn note_name(&self, inode: &Inode, state: &State, dir: Ino, name: &[u8]) {
        if is_file(state) {
            let expected = self.set.pool().note_file_created(self.lifetime_key(dir, name));
            inode.object().set_expected_life(expected);
        }
    }

    /// How long the new blocks of a file are expected to live, in bytes that users write meanwhile, and what
    /// similar files tell under this name today. `EISDIR`: not a regular file.
    pub fn expected_life(&self, ino: Ino, name: Option<&[u8]>) -> Result<(Option<u64>, Prediction), Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        if !is_file(&state) {
            return Err(Errno::EISDIR);
        }
        let parent = state.attrs.zpl.parent;
        let similar = name.map(|name| self.set.pool().explain_life(self.lifetime_key(parent, name)));
        Ok((inode.object().expected_life(), similar.unwrap_or_default()))
    }

    /// A file was renamed. It has been counted under its old name.
    pub(crate) fn note_move(&self, inode: &Inode, state: &State, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        let (from, to) = (self.lifetime_key(from.0, from.1), self.lifetime_key(to.0, to.1));
        if is_file(state) && from != to {
            inode.object().set_expected_life(self.set.pool().note_file_renamed(from, to));
        }
    }

    /// A file lost its last name. It may live on while a program has it open.
    pub(crate) fn note_unlink(&self, inode: &Inode, state: &State, dir: Ino, name: &[u8]) {
        if is_file(state) {
            self.set.pool().note_file_deleted(self.lifetime_key(dir, name), Txg(state.attrs.zpl.generation));
            Fs::expect_short_life(inode);
        }
    }

    /// The file has no name, so it is destroyed with its last user.
    pub(crate) fn expect_short_life(inode: &Inode) {
        inode.object().set_expected_life(Some(0));
    }
}

fn is_file(state: &State) -> bool {
    state.attrs.file_type() == mode::S_IFREG
}
