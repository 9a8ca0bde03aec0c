//! Directories: lookup and listing of names.
//!
//! A directory is a ZAP from names to (object, file type) and words of programs. "." and ".." are not stored. An empty directory has
//! no block. Its size attribute is the number of entries + 2, its link count the number of subdirectories + 2.

use crate::claims::{Claims, Need};
use crate::dir_prefetch;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::{ChildRef, KIND_DIR, check_name, is_dots};
use crate::types::{Attr, DirEntry, EntryWords, Ino, ReadOptions, SYMLINK_MAX, mode};
use terrane_sa::Attr as SaAttr;
use terrane_zap::{Cursor, KeyRef, ValueRef, VisitedEntry};

/// Offsets of ".." and of the first name. Offset 3 also stands for the first name. Later offsets are at least
/// 2^28.
const OFFSET_PARENT: u64 = 1;
const OFFSET_NAMES: u64 = 2;
const OFFSET_NAMES_LAST: u64 = 3;
/// Entries read under one lock: the first batch, and the largest.
const BATCH_FIRST: usize = 32;
const BATCH_MAX: usize = 1024;

impl Fs {
    /// Checks a name that is to be created. `EEXIST`: "." or "..". `EILSEQ`: the data set requires UTF-8, and
    /// it is not.
    pub(crate) fn check_new_name(&self, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        if is_dots(name) {
            return Err(Errno::EEXIST);
        }
        if self.naming.accepts(name) { Ok(()) } else { Err(Errno::EILSEQ) }
    }

    /// Whether this spelling is the only one for the name. If so, a cache entry for it stays valid until the
    /// name changes.
    pub fn has_one_spelling(&self, name: &[u8]) -> bool {
        self.naming.has_one_spelling(name)
    }

    /// Looks up a name, including "." and "..". Adds one to the lookup count.
    ///
    /// "." of any inode, directory or not, is the inode itself. The kernel uses it for an inode known by file
    /// handle only.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let dir = self.hold(dir)?;
        check_name(name)?;
        let inode = match name {
            b"." => dir,
            b".." => {
                let parent = {
                    let state = dir.read();
                    state.names()?;
                    state.attrs.zpl.parent
                };
                self.hold(parent)?
            }
            _ => self.hold_child(&dir, name)?.ok_or(Errno::ENOENT)?.0,
        };
        inode.count_lookup();
        let state = inode.read();
        Ok(self.attr(&inode, &state))
    }

    /// What adding or replacing a name in `dir` with these words beside it needs.
    pub(crate) fn name_add_need<'a>(
        &self,
        dir: &'a InodeRef<'_>,
        name: &[u8],
        words: &EntryWords,
    ) -> Result<(&'a Claims, Need), Errno> {
        let value = ChildRef { ino: 0, kind: 0 }.to_value_with(words);
        let cost = dir.read().names()?.put_cost(name.len(), ValueRef::U64s(&value));
        Ok((&dir.claims, Need::names(cost)))
    }

    /// What removing a name from `dir` needs.
    pub(crate) fn name_remove_need<'a>(&self, dir: &'a InodeRef<'_>) -> Result<(&'a Claims, Need), Errno> {
        Ok((&dir.claims, Need::names(dir.read().names()?.remove_cost())))
    }

    /// The target of a symlink. `EINVAL`: another inode.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let inode = self.hold(ino)?;
        let target = {
            let state = inode.read();
            if state.attrs.file_type() != mode::S_IFLNK {
                return Err(Errno::EINVAL);
            }
            match self
                .with_all_attributes(&inode, &state, |all| all.get(SaAttr::SYMLINK).map(<[u8]>::to_vec))?
            {
                Some(target) => target,
                None => {
                    let len = usize::try_from(state.attrs.zpl.size).unwrap_or(usize::MAX).min(SYMLINK_MAX);
                    let mut target = vec![0; len];
                    inode.object().read(0, &mut target)?;
                    target
                }
            }
        };
        self.note_access(&inode);
        Ok(target)
    }

    /// Calls `each` for the names from `offset` on (0: all) until it returns false. Offsets are positions in
    /// the order of name hashes. So a name that exists during the whole walk is shown once, whatever happens to
    /// others. No lock is held while `each` runs.
    pub fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        self.readdir_as(dir, offset, ReadOptions::default(), each)
    }

    /// The same, with the options of the open directory.
    pub fn readdir_as(
        &self,
        dir: Ino,
        offset: u64,
        how: ReadOptions,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let dir = self.hold(dir)?;
        self.list_entries(&dir, offset, how, &mut |_, _| (), &mut |entry, ()| each(entry))
    }

    /// As [`readdir`](Self::readdir), with the attributes of each inode. They are `None` for "." and "..", and
    /// for inodes that were removed meanwhile or cannot be read. If `each` returns true, each inode with
    /// attributes has its lookup count raised by one.
    pub fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<(), Errno> {
        self.readdir_plus_as(dir, offset, ReadOptions::default(), each)
    }

    /// The same, with the options of the open directory.
    pub fn readdir_plus_as(
        &self,
        dir: Ino,
        offset: u64,
        how: ReadOptions,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<(), Errno> {
        let dir = self.hold(dir)?;
        let mut show = |entry: DirEntry<'_>, entered: Option<InodeRef<'_>>| {
            let Some(inode) = entered.and_then(|entered| entered.load().ok()) else {
                return each(entry, None);
            };
            let attr = self.attr(&inode, &inode.read());
            let taken = each(entry, Some(&attr));
            if taken {
                inode.count_lookup();
            }
            taken
        };
        self.list_entries(&dir, offset, how, &mut |ino, _| Some(self.hold_unloaded(ino)), &mut show)
    }

    /// Calls `hold` for each entry while the directory is locked, and `each` while it is not.
    pub(crate) fn list_entries<T: Default>(
        &self,
        dir: &InodeRef<'_>,
        offset: u64,
        how: ReadOptions,
        hold: &mut dyn FnMut(Ino, &VisitedEntry<'_>) -> T,
        each: &mut dyn FnMut(DirEntry<'_>, T) -> bool,
    ) -> Result<(), Errno> {
        let parent = {
            let state = dir.read();
            state.names()?;
            state.attrs.zpl.parent
        };
        if !how.keeps_atime {
            self.note_access(dir);
        }
        for (at, name, ino) in [(0, &b"."[..], dir.ino), (OFFSET_PARENT, b"..", parent)] {
            if offset <= at && !each(DirEntry { name, ino, kind: KIND_DIR, next: at + 1 }, T::default()) {
                return Ok(());
            }
        }
        const { assert!(OFFSET_PARENT + 1 == OFFSET_NAMES) };
        let offset = if offset <= OFFSET_NAMES_LAST { 0 } else { offset };
        if offset == 0 {
            let next = self.dir_prefetch.lock().note_start(dir.ino, parent);
            dir_prefetch::prefetch(&self.set, &self.prefetched_dirs, next);
            let prepared = {
                let mut prefetched = self.prefetched_dirs.lock();
                let index = prefetched.iter().position(|(ino, _)| *ino == dir.ino);
                index.and_then(|index| prefetched.remove(index))
            };
            if let Some((_, prepared)) = prepared {
                dir.read().names()?.adopt(prepared)?;
            }
        }
        let (mut subdirs, mut listed_to) = (Vec::new(), offset);
        let outcome = visit_names(dir, offset, hold, &mut |entry, held| {
            let (ino, kind, next) = (entry.ino, entry.kind, entry.next);
            let taken = each(entry, held);
            if taken {
                listed_to = next;
                if kind == KIND_DIR {
                    subdirs.push(ino);
                }
            }
            taken
        });
        self.dir_prefetch.lock().note_listing(dir.ino, offset, &subdirs, listed_to);
        outcome
    }
}

/// Shows the stored names of a directory from `offset` on (0: all).
fn visit_names<T>(
    dir: &InodeRef<'_>,
    offset: u64,
    hold: &mut dyn FnMut(Ino, &VisitedEntry<'_>) -> T,
    each: &mut dyn FnMut(DirEntry<'_>, T) -> bool,
) -> Result<(), Errno> {
    let mut cursor = if offset == 0 { Cursor::START } else { Cursor::from_u64(offset) };
    let mut batch = BATCH_FIRST;
    let (mut names, mut rows) = (Vec::new(), Vec::with_capacity(BATCH_FIRST));
    loop {
        names.clear();
        let is_last = dir.read().names()?.visit(cursor, &mut |entry| {
            cursor = entry.after;
            if let (KeyRef::Name(name), Some(value)) = (entry.key, entry.first_integer) {
                let child = ChildRef::from_value(value);
                names.extend_from_slice(name);
                rows.push((child, entry.after.to_u64(), names.len(), hold(child.ino, &entry)));
            }
            rows.len() < batch
        })?;
        let mut from = 0;
        for (child, next, to, held) in rows.drain(..) {
            let name = names.get(from..to).unwrap_or(&[]);
            from = to;
            if !each(DirEntry { name, ino: child.ino, kind: child.kind, next }, held) {
                return Ok(());
            }
        }
        if is_last {
            // Drop the index: those of directories that are listed only once would fill memory.
            if let Some(mut state) = dir.try_write() {
                state.names_mut()?.end_listing();
            }
            return Ok(());
        }
        batch = (batch * 2).min(BATCH_MAX);
    }
}
