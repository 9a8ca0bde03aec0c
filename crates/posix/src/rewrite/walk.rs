//! A walk over all files below a directory, once per name, that can be resumed later.
//!
//! Names come in the order of their hashes. So a name that exists during the whole walk is met, whatever
//! happens to others. The stored position is a directory and an offset in it. The path to it is found again
//! through the parents. If that fails, the walk starts over, which only re-checks finished files.
//!
//! Inode numbers may be reused for files outside the walk; [`ReuseCheck`] detects that.
//!
//! Access times do not change.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{ChildRef, KIND_DIR, KIND_FILE};
use crate::jobs::{DirLevel, ReuseCheck, RewriteJob, Walk, WalkEntry, WalkFile, WalkPosition};
use crate::types::Ino;
use std::collections::VecDeque;
use terrane_zap::Cursor;

/// Names read at a time.
const BATCH: usize = 64;
/// Deeper than any path of a system call. Damage may lead in circles.
const DEPTH_MAX: usize = 4096;

impl ReuseCheck {
    fn now(fs: &Fs) -> ReuseCheck {
        ReuseCheck { open_txg: fs.set.open_txg(), birth: None }
    }
}

impl DirLevel {
    fn next(&mut self, fs: &Fs) -> Option<ChildRef> {
        if self.pending.is_empty() && !self.is_last {
            self.listed_check = ReuseCheck::now(fs);
            match list(fs, self.dir, &mut self.reuse_check, self.offset) {
                Ok((ahead, is_last)) => (self.pending, self.is_last) = (ahead, is_last),
                Err(errno) => {
                    if errno != Errno::ESTALE {
                        log::error!("rewrite skipped directory {}: {errno}", self.dir);
                    }
                    self.is_last = true;
                }
            }
        }
        let (child, after) = self.pending.pop_front()?;
        self.offset = after;
        Some(child)
    }
}

/// The next names of a directory. True: there are no more.
fn list(
    fs: &Fs,
    dir: Ino,
    check: &mut ReuseCheck,
    offset: u64,
) -> Result<(VecDeque<WalkEntry>, bool), Errno> {
    let dir = fs.hold(dir)?;
    if !check.is_same_object(&dir) {
        return Err(Errno::ESTALE);
    }
    let state = dir.read();
    let mut found = VecDeque::with_capacity(BATCH);
    let from = if offset == 0 { Cursor::START } else { Cursor::from_u64(offset) };
    let is_last = state.names()?.visit(from, &mut |entry| {
        found.extend(entry.first_integer.map(|value| (ChildRef::from_value(value), entry.after.to_u64())));
        found.len() < BATCH
    })?;
    Ok((found, is_last))
}

impl Walk {
    /// Resumes the walk at the job's stored position.
    pub fn resume(fs: &Fs, number: u64, job: &RewriteJob) -> Walk {
        let root = job.spec.root;
        let mut walk = Walk { job_number: number, pass: Some(job.pass), ..Walk::default() };
        let WalkPosition { dir, offset, file, record, copy_progress: beside } = job.position;
        let check = ReuseCheck::now(fs);
        walk.file = (file != 0).then_some(WalkFile {
            ino: file,
            reuse_check: check,
            record,
            copy_progress: beside,
            second_copy: None,
        });
        if fs.hold(root).is_ok_and(|inode| !inode.read().attrs.is_dir()) {
            walk.root_file = (job.position == WalkPosition::default()).then_some(root);
            return walk;
        }
        walk.levels =
            path_levels(fs, root, dir, offset).unwrap_or_else(|| vec![DirLevel::at(root, check, 0)]);
        walk
    }

    /// Returns to the job's stored position.
    pub fn go_back(&mut self, fs: &Fs, job: &RewriteJob) {
        *self = Walk::resume(fs, self.job_number, job);
    }

    /// The current file, or the next one.
    pub fn current_file(&mut self, fs: &Fs) -> Option<&mut WalkFile> {
        if self.file.is_none() {
            self.file =
                self.next(fs).map(|(ino, check)| WalkFile { ino, reuse_check: check, ..WalkFile::default() });
        }
        self.file.as_mut()
    }

    /// The next regular file.
    fn next(&mut self, fs: &Fs) -> Option<(Ino, ReuseCheck)> {
        if let Some(root_file) = self.root_file.take() {
            return Some((root_file, ReuseCheck::now(fs)));
        }
        while let Some(level) = self.levels.last_mut() {
            match level.next(fs) {
                Some(ChildRef { ino, kind: KIND_FILE }) => return Some((ino, level.listed_check)),
                Some(ChildRef { ino, kind: KIND_DIR }) => {
                    let check = level.listed_check;
                    let is_known = self.levels.iter().any(|level| level.dir == ino);
                    if !is_known && self.levels.len() < DEPTH_MAX {
                        self.levels.push(DirLevel::at(ino, check, 0));
                    }
                }
                Some(_) => {}
                None => drop(self.levels.pop()),
            }
        }
        None
    }
}

/// The levels from `root` down to `dir`, each positioned behind the one below it. `None`: `dir` is not below
/// `root`.
fn path_levels(fs: &Fs, root: Ino, dir: Ino, offset: u64) -> Option<Vec<DirLevel>> {
    if dir == 0 {
        return (offset == u64::MAX).then(Vec::new);
    }
    let check = ReuseCheck::now(fs);
    let mut levels = vec![DirLevel::at(dir, check, offset)];
    let mut at = dir;
    while at != root {
        let parent = fs.hold(at).ok()?.read().attrs.zpl.parent;
        let mut level = DirLevel::at(parent, check, 0);
        while level.next(fs)?.ino != at {}
        level.pending.clear();
        level.is_last = false;
        levels.push(level);
        at = parent;
        if levels.len() > DEPTH_MAX {
            return None;
        }
    }
    levels.reverse();
    Some(levels)
}
