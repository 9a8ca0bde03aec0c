//! The position of a walk through files.
//!
//! Inode numbers may be reused for files outside the walk; [`Met`] detects that.

use super::{Beside, Place, RewritePass, Side};
use crate::inode::{Inode, Named};
use crate::types::{Ino, mode};
use std::collections::VecDeque;
use terrane_wire::Txg;

/// The target of a name, and the offset behind it.
pub(crate) type Found = (Named, u64);

/// When the walk met a number, and which object it named then.
#[derive(Clone, Copy, Default)]
pub(crate) struct Met {
    /// The txg that was open then.
    pub at: Txg,
    /// The txg that created the object, once the walk has loaded it.
    pub birth: Option<Txg>,
}

impl Met {
    /// Whether it is still the same object. A number is reused only in a later txg than the one in which it was
    /// met.
    pub fn is(&mut self, inode: &Inode) -> bool {
        let birth = inode.object().birth();
        birth <= self.at && *self.birth.get_or_insert(birth) == birth
    }
}

pub(crate) struct Level {
    pub dir: Ino,
    pub met: Met,
    /// When the names in `ahead` were listed.
    pub listed: Met,
    /// Offset behind the last name that was visited.
    pub offset: u64,
    pub ahead: VecDeque<Found>,
    /// The directory has no names behind those in `ahead`.
    pub is_last: bool,
}

impl Level {
    pub fn at(dir: Ino, met: Met, offset: u64) -> Level {
        Level { dir, met, listed: met, offset, ahead: VecDeque::new(), is_last: false }
    }
}

/// A file that the walk has begun.
#[derive(Default)]
pub(crate) struct File {
    pub ino: Ino,
    pub met: Met,
    /// Its next record. While a copy is built, its next byte offset.
    pub record: u64,
    pub beside: Beside,
    pub side: Option<Side>,
}

impl File {
    /// Whether this is the file that was begun, and not another inode with a reused number.
    pub fn is(&mut self, inode: &Inode) -> bool {
        inode.read().attrs.file_type() == mode::S_IFREG && self.met.is(inode)
    }
}

#[derive(Default)]
pub(crate) struct Walk {
    /// The job and pass of this walk.
    pub number: u64,
    pub pass: Option<RewritePass>,
    /// Levels from the root down.
    pub levels: Vec<Level>,
    /// The root, if it is a file that is not visited yet.
    pub alone: Option<Ino>,
    pub file: Option<File>,
}

impl Walk {
    pub fn is_of(&self, number: u64, pass: RewritePass) -> bool {
        self.number == number && self.pass == Some(pass)
    }

    pub fn place(&self) -> Place {
        if self.alone.is_some() {
            return Place::default();
        }
        let none = File::default();
        let File { ino: file, record, beside, .. } = *self.file.as_ref().unwrap_or(&none);
        // A walk without levels is finished: no name is behind the largest offset.
        let (dir, offset) = self.levels.last().map_or((0, u64::MAX), |level| (level.dir, level.offset));
        Place { dir, offset, file, record, beside }
    }
}
