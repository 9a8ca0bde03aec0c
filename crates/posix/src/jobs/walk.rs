//! Where a walk through files is.
//!
//! A number may come again, for a file or directory that is none of the walk's: [`Met`] tells.

use super::{Beside, Place, RewritePass, Side};
use crate::inode::{Inode, Named};
use crate::types::{Ino, mode};
use std::collections::VecDeque;
use terrane_wire::Txg;

/// A name's meaning, and the offset behind it.
pub(crate) type Found = (Named, u64);

/// When a number was met, and what it named then.
#[derive(Clone, Copy, Default)]
pub(crate) struct Met {
    /// The group that was open.
    pub at: Txg,
    /// The group that made what it names, once that was looked at.
    pub birth: Option<Txg>,
}

impl Met {
    /// Whether it still names the same. It comes again in a later group than that in which it was met.
    pub fn is(&mut self, inode: &Inode) -> bool {
        let birth = inode.object().birth();
        birth <= self.at && *self.birth.get_or_insert(birth) == birth
    }
}

pub(crate) struct Level {
    pub dir: Ino,
    pub met: Met,
    /// When those ahead were met.
    pub listed: Met,
    /// Behind the name that was met last.
    pub offset: u64,
    pub ahead: VecDeque<Found>,
    /// Nothing is behind those.
    pub is_last: bool,
}

impl Level {
    pub fn at(dir: Ino, met: Met, offset: u64) -> Level {
        Level { dir, met, listed: met, offset, ahead: VecDeque::new(), is_last: false }
    }
}

/// A file that was begun.
#[derive(Default)]
pub(crate) struct File {
    pub ino: Ino,
    pub met: Met,
    /// Its next record; in bytes while a copy is built beside it.
    pub record: u64,
    pub beside: Beside,
    pub side: Option<Side>,
}

impl File {
    /// Whether this is the file that was begun. Another one of the same number, or a directory, is none of ours.
    pub fn is(&mut self, inode: &Inode) -> bool {
        inode.read().attrs.file_type() == mode::S_IFREG && self.met.is(inode)
    }
}

#[derive(Default)]
pub(crate) struct Walk {
    /// Which job and pass it is of.
    pub number: u64,
    pub pass: Option<RewritePass>,
    /// From the root down.
    pub levels: Vec<Level>,
    /// The root, if it is a file that was not met yet.
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
        // A walk whose levels are gone is over: nothing is behind the largest offset.
        let (dir, offset) = self.levels.last().map_or((0, u64::MAX), |level| (level.dir, level.offset));
        Place { dir, offset, file, record, beside }
    }
}
