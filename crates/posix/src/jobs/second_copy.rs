//! The second copy of a file, and its progress.

use crate::claims::Claims;
use crate::inode::Inode;
use crate::types::Ino;
use std::sync::Arc;
use terrane_object::Object;

/// Progress of the copy, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyProgress {
    /// 0: there is no copy.
    pub object: Ino,
    /// Txg that created the object: object numbers may be reused.
    pub birth: u64,
    /// This round copies what changed in this txg or later.
    pub since: u64,
    /// It copies all changes before this txg; later ones are copied again. 0: the round has not begun.
    pub until: u64,
    /// Number of finished rounds.
    pub rounds: u64,
    /// What this file has added to the figures.
    pub counted: u64,
}

/// The object that is being filled.
pub(crate) struct SecondCopy {
    pub object: Arc<Object>,
    /// What the newest txg has reserved for the object.
    pub claims: Claims,
    /// Bytes copied in this round.
    pub copied: u64,
}

impl SecondCopy {
    /// Makes `object` a copy target with the file's hint and expected lifetime. Nothing is copied yet.
    pub fn new(object: Arc<Object>, inode: &Inode) -> SecondCopy {
        let file = inode.object();
        object.set_copy_target(file.id());
        object.set_hint(file.hint());
        object.set_expected_life(file.expected_life());
        let claims = Claims::of(object.id().0);
        SecondCopy { object, claims, copied: 0 }
    }
}
