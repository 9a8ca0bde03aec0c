//! A file's second copy, and how far it is.

use crate::claims::Claims;
use crate::inode::Inode;
use crate::types::Ino;
use std::sync::Arc;
use terrane_object::Object;

/// How far the copy of a file is, as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// 0: there is none.
    pub object: Ino,
    /// The group that made it: a number may come again.
    pub birth: u64,
    /// This round copies what changed since that group.
    pub since: u64,
    /// And all that before this one. 0: the round has not begun.
    pub until: u64,
    pub rounds: u64,
    /// What was added to the figures for this file.
    pub counted: u64,
}

/// The object that is filled.
pub(crate) struct Side {
    pub object: Arc<Object>,
    pub claims: Claims,
    /// Bytes copied in this round.
    pub copied: u64,
}

impl Side {
    pub fn new(object: Arc<Object>, inode: &Inode) -> Side {
        let file = inode.object();
        object.write_for(file.id());
        object.set_hint(file.hint());
        object.expect_life(file.expected_life());
        let claims = Claims::of(object.id().0);
        Side { object, claims, copied: 0 }
    }
}
