//! A walk over all files below a directory, once per name, that can be resumed later.
//!
//! Names come in the order of their hashes. So a name that exists during the whole walk is met, whatever
//! happens to others. The stored position is a directory and an offset in it. The path to it is found again
//! through the parents. If that fails, the walk starts over, which only re-checks finished files.
//!
//! Inode numbers may be reused for files outside the walk; [`Met`] detects that.
//!
//! Access times do not change.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{KIND_DIR, KIND_FILE, Named};
use crate::jobs::{File, Found, Level, Met, Place, RewriteJob, Walk};
use crate::types::Ino;
use std::collections::VecDeque;
use terrane_zap::Cursor;

/// Names read at a time.
const BATCH: usize = 64;
/// Deeper than any path of a system call. Damage may lead in circles.
const DEPTH_MAX: usize = 4096;

impl Met {
    fn now(fs: &Fs) -> Met {
        Met { at: fs.set.open_txg(), birth: None }
    }
}

impl Level {
    fn next(&mut self, fs: &Fs) -> Option<Named> {
        if self.ahead.is_empty() && !self.is_last {
            self.listed = Met::now(fs);
            match list(fs, self.dir, &mut self.met, self.offset) {
                Ok((ahead, is_last)) => (self.ahead, self.is_last) = (ahead, is_last),
                Err(errno) => {
                    if errno != Errno::ESTALE {
                        log::error!("rewriting: directory {} cannot be read: {errno}", self.dir);
                    }
                    self.is_last = true;
                }
            }
        }
        let (named, after) = self.ahead.pop_front()?;
        self.offset = after;
        Some(named)
    }
}

/// The next names of a directory. True: there are no more.
fn list(fs: &Fs, dir: Ino, met: &mut Met, offset: u64) -> Result<(VecDeque<Found>, bool), Errno> {
    let dir = fs.hold(dir)?;
    if !met.is(&dir) {
        return Err(Errno::ESTALE);
    }
    let state = dir.read();
    let mut found = VecDeque::with_capacity(BATCH);
    let from = if offset == 0 { Cursor::START } else { Cursor::from_u64(offset) };
    let is_last = state.names()?.visit(from, &mut |entry| {
        found.extend(entry.first.map(|value| (Named::from_value(value), entry.after.to_u64())));
        found.len() < BATCH
    })?;
    Ok((found, is_last))
}

impl Walk {
    /// Resumes the walk at the job's stored position.
    pub fn resume(fs: &Fs, number: u64, job: &RewriteJob) -> Walk {
        let root = job.spec.root;
        let mut walk = Walk { number, pass: Some(job.pass), ..Walk::default() };
        let Place { dir, offset, file, record, beside } = job.place;
        let met = Met::now(fs);
        walk.file = (file != 0).then_some(File { ino: file, met, record, beside, side: None });
        if fs.hold(root).is_ok_and(|inode| !inode.read().attrs.is_dir()) {
            walk.alone = (job.place == Place::default()).then_some(root);
            return walk;
        }
        walk.levels = way(fs, root, dir, offset).unwrap_or_else(|| vec![Level::at(root, met, 0)]);
        walk
    }

    /// Returns to the job's stored position.
    pub fn go_back(&mut self, fs: &Fs, job: &RewriteJob) {
        *self = Walk::resume(fs, self.number, job);
    }

    /// The current file, or the next one.
    pub fn file(&mut self, fs: &Fs) -> Option<&mut File> {
        if self.file.is_none() {
            self.file = self.next(fs).map(|(ino, met)| File { ino, met, ..File::default() });
        }
        self.file.as_mut()
    }

    /// The next regular file.
    fn next(&mut self, fs: &Fs) -> Option<(Ino, Met)> {
        if let Some(alone) = self.alone.take() {
            return Some((alone, Met::now(fs)));
        }
        while let Some(level) = self.levels.last_mut() {
            match level.next(fs) {
                Some(Named { ino, kind: KIND_FILE }) => return Some((ino, level.listed)),
                Some(Named { ino, kind: KIND_DIR }) => {
                    let met = level.listed;
                    let is_known = self.levels.iter().any(|level| level.dir == ino);
                    if !is_known && self.levels.len() < DEPTH_MAX {
                        self.levels.push(Level::at(ino, met, 0));
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
fn way(fs: &Fs, root: Ino, dir: Ino, offset: u64) -> Option<Vec<Level>> {
    if dir == 0 {
        return (offset == u64::MAX).then(Vec::new);
    }
    let met = Met::now(fs);
    let mut levels = vec![Level::at(dir, met, offset)];
    let mut at = dir;
    while at != root {
        let parent = fs.hold(at).ok()?.read().attrs.zpl.parent;
        let mut level = Level::at(parent, met, 0);
        while level.next(fs)?.ino != at {}
        level.ahead.clear();
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
