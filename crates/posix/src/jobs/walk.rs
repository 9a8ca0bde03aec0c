//! The position of a walk through files.
//!
//! Inode numbers may be reused for files outside the walk; [`ReuseCheck`] detects that.

use super::{CopyProgress, RewritePass, SecondCopy, WalkPosition};
use crate::inode::{ChildRef, Inode};
use crate::types::{Ino, mode};
use std::collections::VecDeque;
use terrane_wire::Txg;

/// The target of a name, and the offset behind it.
pub(crate) type WalkEntry = (ChildRef, u64);

/// When the walk met a number, and which object it named then.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReuseCheck {
    /// The txg that was open then.
    pub open_txg: Txg,
    /// The txg that created the object, once the walk has loaded it.
    pub birth: Option<Txg>,
}

impl ReuseCheck {
    /// Whether it is still the same object. A number is reused only in a later txg than the one in which it was
    /// met.
    pub fn is_same_object(&mut self, inode: &Inode) -> bool {
        let birth = inode.object().birth();
        birth <= self.open_txg && *self.birth.get_or_insert(birth) == birth
    }
}

pub(crate) struct DirLevel {
    pub dir: Ino,
    /// Detects another inode with the directory's number.
    pub reuse_check: ReuseCheck,
    /// When the names in `pending` were listed.
    pub listed_check: ReuseCheck,
    /// Offset behind the last name that was visited.
    pub offset: u64,
    /// Names that are listed and not visited yet.
    pub pending: VecDeque<WalkEntry>,
    /// The directory has no names behind those in `pending`.
    pub is_last: bool,
}

impl DirLevel {
    /// A directory of which the names from `offset` on are not visited yet.
    pub fn at(dir: Ino, check: ReuseCheck, offset: u64) -> DirLevel {
        DirLevel {
            dir,
            reuse_check: check,
            listed_check: check,
            offset,
            pending: VecDeque::new(),
            is_last: false,
        }
    }
}

/// A file that the walk has begun.
#[derive(Default)]
pub(crate) struct WalkFile {
    pub ino: Ino,
    /// Detects another inode with the file's number.
    pub reuse_check: ReuseCheck,
    /// Its next record. While a copy is built, its next byte offset.
    pub record: u64,
    pub copy_progress: CopyProgress,
    /// `None` until this mount has opened or created it.
    pub second_copy: Option<SecondCopy>,
}

impl WalkFile {
    /// Whether this is the file that was begun, and not another inode with a reused number.
    pub fn is_same_file(&mut self, inode: &Inode) -> bool {
        inode.read().attrs.file_type() == mode::S_IFREG && self.reuse_check.is_same_object(inode)
    }
}

#[derive(Default)]
pub(crate) struct Walk {
    /// The job and pass of this walk.
    pub job_number: u64,
    /// `None`: no walk has begun.
    pub pass: Option<RewritePass>,
    /// Levels from the root down.
    pub levels: Vec<DirLevel>,
    /// The root, if it is a file that is not visited yet.
    pub root_file: Option<Ino>,
    /// `None`: the walk is between files.
    pub file: Option<WalkFile>,
}

impl Walk {
    pub fn is_for(&self, number: u64, pass: RewritePass) -> bool {
        self.job_number == number && self.pass == Some(pass)
    }

    /// The position to store, from which [`Walk::resume`] continues.
    pub fn position(&self) -> WalkPosition {
        if self.root_file.is_some() {
            return WalkPosition::default();
        }
        let none = WalkFile::default();
        let WalkFile { ino: file, record, copy_progress: beside, .. } = *self.file.as_ref().unwrap_or(&none);
        // A walk without levels is finished: no name is behind the largest offset.
        let (dir, offset) = self.levels.last().map_or((0, u64::MAX), |level| (level.dir, level.offset));
        WalkPosition { dir, offset, file, record, copy_progress: beside }
    }
}
