//! Words beside directory entries.
//!
//! A program may keep one to six words of 64 bits beside a name, such as the identifier by which a metadata
//! server knows the file. They belong to the entry and not to the inode: another link of the file has others or
//! none. They move with the name, and vanish with it. What they mean is the program's affair.
//!
//! The words follow the entry's own word in its value, as in OpenZFS directories of Lustre. All slots of a
//! directory are equally wide, so shorter values are padded. The entry's own word counts the others, which
//! tells words from padding.

use crate::create::CreateFile;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::{check_name, is_dots};
use crate::intents::Intent;
use crate::link::Link;
use crate::new_file::NewFile;
use crate::operation::{Change, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::record::Record;
use crate::types::{Attr, Cred, DirEntry, EntryWords, Ino, ReadOptions};
use smallvec::smallvec;
use terrane_dataset::ENTRY_WORDS_MAX;
use terrane_format::Feature;
use terrane_txg::cost::Cost;

/// Sets the words beside an existing name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetEntryWords<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    /// Empty: removes them.
    pub words: EntryWords,
}

impl Operation for SetEntryWords<'_> {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        Ok(HoldResult::Held(fs.hold_dir_of_entry(self.dir, self.name)?))
    }

    fn cost<'h>(&self, fs: &'h Fs, dir: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        let needs = smallvec![fs.name_add_need(dir, self.name, &self.words)?];
        Ok(OperationCost { cost: Cost::NOTHING, needs })
    }

    fn locks<'h>(dir: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([dir])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, dir: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let (tx, now) = (change.tx, change.stamp());
        let parent = change.locked.get(dir.ino);
        let child = parent.find(self.name)?.ok_or(Errno::ENOENT)?;
        parent.check_can_remove_name()?;
        match parent.find_with_words(self.name) {
            Ok(Some((_, words))) if words.is_empty() && self.words.is_empty() => return Err(Errno::ENODATA),
            Ok(Some((_, words))) if words == self.words => return Ok(Outcome::Saved(())),
            // Damaged words can be replaced.
            Ok(_) | Err(Errno::EIO) => {}
            Err(errno) => return Err(errno),
        }
        parent.replace(tx, self.name, child, &self.words)?;
        parent.note_names_changed(now);
        Ok(Outcome::Changed(()))
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        let SetEntryWords { dir, name, words } = *self;
        Intent::Names(Record::SetEntryWords { dir, name, words })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

/// Makes names with words beside them, each in one step. From [`Fs::with_entry_words`].
#[derive(Clone, Copy)]
pub struct WithEntryWords<'f> {
    fs: &'f Fs,
    words: EntryWords,
}

impl WithEntryWords<'_> {
    fn make(&self, dir: Ino, name: &[u8], file: NewFile<'_>) -> Result<Attr, Errno> {
        self.fs.execute(&CreateFile { dir, name, file, words: self.words })
    }

    /// As [`Fs::create`].
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        self.make(dir, name, NewFile::regular(mode, cred))
    }

    /// As [`Fs::mknod`].
    pub fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u32, cred: &Cred) -> Result<Attr, Errno> {
        self.make(dir, name, NewFile::node(mode, rdev, cred)?)
    }

    /// As [`Fs::mkdir`].
    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        self.make(dir, name, NewFile::directory(mode, cred))
    }

    /// As [`Fs::symlink`].
    pub fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], cred: &Cred) -> Result<Attr, Errno> {
        self.make(dir, name, NewFile::symlink(target, cred)?)
    }

    /// As [`Fs::link`].
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        self.fs.execute(&Link { ino, dir, name, words: self.words })
    }
}

impl Fs {
    /// Names that are made through the result get these words beside them.
    ///
    /// # Errors
    /// `EINVAL`: no word, or more than [`EntryWords::MAX`]. `EOPNOTSUPP`: the pool lacks the feature
    /// `org.terrane:entry_words`, and needs an upgrade.
    pub fn with_entry_words(&self, words: &[u64]) -> Result<WithEntryWords<'_>, Errno> {
        let words = EntryWords::from_slice(words).filter(|words| !words.is_empty()).ok_or(Errno::EINVAL)?;
        if !self.set.pool().has(Feature::EntryWords) {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(WithEntryWords { fs: self, words })
    }

    /// The words beside a name. `ENOENT`: there is no such name. `ENODATA`: it has no words. `EINVAL`: "." or
    /// "..". `EIO`: the entry is damaged; its words can be set anew or removed.
    pub fn entry_words(&self, dir: Ino, name: &[u8]) -> Result<EntryWords, Errno> {
        let dir = self.hold_dir_of_entry(dir, name)?;
        let (_, words) = dir.read().find_with_words(name)?.ok_or(Errno::ENOENT)?;
        if words.is_empty() { Err(Errno::ENODATA) } else { Ok(words) }
    }

    /// Sets the words beside an existing name, whatever was there before. The directory's times change, unless
    /// the same words were there.
    ///
    /// # Errors
    /// Those of [`with_entry_words`](Self::with_entry_words) and [`entry_words`](Self::entry_words) except
    /// `ENODATA`. `EPERM`: the directory is immutable or append-only.
    pub fn set_entry_words(&self, dir: Ino, name: &[u8], words: &[u64]) -> Result<(), Errno> {
        let words = self.with_entry_words(words)?.words;
        self.execute(&SetEntryWords { dir, name, words })
    }

    /// Removes the words beside a name. Errors are those of [`set_entry_words`](Self::set_entry_words), and
    /// `ENODATA`: it has none.
    pub fn remove_entry_words(&self, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        self.execute(&SetEntryWords { dir, name, words: EntryWords::NONE })
    }

    /// As [`readdir`](Self::readdir), with the words beside each name. Those of "." and ".." are empty.
    pub fn readdir_words(
        &self,
        dir: Ino,
        offset: u64,
        each: &mut dyn FnMut(DirEntry<'_>, &EntryWords) -> bool,
    ) -> Result<(), Errno> {
        let dir = self.hold(dir)?;
        let mut damage = None;
        let outcome = self.list_entries(
            &dir,
            offset,
            ReadOptions::default(),
            &mut |_, visited| {
                let mut integers = [0; 1 + ENTRY_WORDS_MAX];
                let count = visited.copy_integers(&mut integers);
                match EntryWords::from_integers(&integers, count) {
                    Ok(words) => (words, None),
                    Err(corrupt) => (EntryWords::NONE, Some(corrupt)),
                }
            },
            &mut |entry, (words, corrupt)| {
                damage = corrupt;
                damage.is_none() && each(entry, &words)
            },
        );
        damage.map_or(outcome, |corrupt| Err(corrupt.into()))
    }

    /// The directory of a stored name.
    fn hold_dir_of_entry(&self, dir: Ino, name: &[u8]) -> Result<InodeRef<'_>, Errno> {
        let dir = self.hold(dir)?;
        dir.read().names()?;
        check_name(name)?;
        if is_dots(name) { Err(Errno::EINVAL) } else { Ok(dir) }
    }
}
