//! Adding and removing names.
//!
//! Removing a name takes three steps. First it looks the name up and holds the inode; then it begins the
//! transaction and locks in order; then it looks again. If the name has another target by then, it starts over:
//! another operation made progress.

use crate::claims::{FREES_LINK, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::{InodeRef, Locked};
use crate::inode::{ChildRef, KIND_DIR, check_name};
use crate::intents::Intent;
use crate::operation::{
    Change, Charges, HoldResult, Locks, Needs, Operation, OperationCost, Outcome, to_lock,
};
use crate::project::entry_bytes;
use crate::record::Record;
use crate::types::{Attr, EntryWords, Ino, LINK_MAX};
use smallvec::smallvec;
use terrane_dataset::Charge;
use terrane_txg::cost::Cost;

/// `link`: one more name for a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link<'a> {
    pub ino: Ino,
    pub dir: Ino,
    pub name: &'a [u8],
    /// Stored beside the name.
    pub words: EntryWords,
}

/// A file, and the directory in which it has or gets a name.
pub(crate) struct HeldEntry<'f> {
    inode: InodeRef<'f>,
    dir: InodeRef<'f>,
}

impl Operation for Link<'_> {
    type Held<'f> = HeldEntry<'f>;
    type Done = ();
    type Answer = Attr;

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldEntry<'f>, Attr>, Errno> {
        fs.check_new_name(self.name)?;
        let inode = fs.hold(self.ino)?;
        let dir = fs.hold(self.dir)?;
        if inode.read().attrs.is_dir() {
            return Err(Errno::EPERM);
        }
        Ok(HoldResult::Held(HeldEntry { inode, dir }))
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldEntry<'_>) -> Result<OperationCost<'h>, Errno> {
        let HeldEntry { inode, dir } = held;
        let nameless = inode.read().attrs.zpl.links == 0;
        let mut needs: Needs<'h> =
            smallvec![fs.name_add_need(dir, self.name, &self.words)?, (&inode.claims, Need::attrs())];
        needs.extend(nameless.then(|| fs.unlinked.need_of_one(inode.ino)));
        Ok(OperationCost { cost: Cost::NOTHING, needs })
    }

    /// Its directory grows.
    fn charges(&self, _: &Fs, held: &HeldEntry<'_>) -> Result<Charges, Errno> {
        Ok(smallvec![Charge::of(held.dir.read().owners(), entry_bytes(self.name), 0)])
    }

    fn locks<'h>(held: &'h HeldEntry<'_>) -> Locks<'h> {
        to_lock([&held.inode, &held.dir])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, held: &HeldEntry<'f>) -> Result<Outcome<()>, Errno> {
        let HeldEntry { inode, dir } = held;
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let locked = &mut change.locked;
        let parent = locked.get(dir.ino);
        parent.check_linked_dir()?;
        if parent.find(self.name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let file = locked.get(inode.ino);
        let (links, kind) = (file.attrs.zpl.links, file.kind());
        if links == 0 && !file.linkable {
            return Err(Errno::ENOENT);
        }
        if links >= u64::from(LINK_MAX) {
            return Err(Errno::EMLINK);
        }
        file.check_changeable()?;
        let project = file.project();
        let parent = locked.get(dir.ino);
        parent.check_can_add_name()?;
        parent.check_takes_project(project)?;
        parent.insert(tx, self.name, ChildRef { ino: inode.ino, kind }, &self.words)?;
        parent.note_names_changed(now);
        let file = locked.get(inode.ino);
        file.add_link();
        file.attrs.zpl.ctime = now;
        file.attrs.zpl.parent = dir.ino;
        if links == 0 {
            fs.unlinked.remove(tx, inode.ino)?;
            fs.note_name(inode, file, dir.ino, self.name);
            fs.match_hint(locked, inode, dir, self.name);
        }
        Ok(Outcome::Changed(()))
    }

    fn intent(&self, change: &mut Change<'_, '_>, held: &HeldEntry<'_>, (): &()) -> Intent<'_> {
        let Link { ino, dir, name, words } = *self;
        // It had no name if it has one now.
        let is_first = change.locked.get(held.inode.ino).attrs.zpl.links == 1;
        let moved = [is_first.then_some(ino), None];
        Intent::Renamed { record: Record::Link { ino, dir, name, words }, moved, unlinked: None }
    }

    /// Adds one to the lookup count.
    fn end<'f>(&self, mut change: Change<'_, 'f>, held: &HeldEntry<'f>, (): ()) -> Result<Attr, Errno> {
        held.inode.count_lookup();
        Ok(change.fs.attr(&held.inode, change.locked.get(held.inode.ino)))
    }
}

/// `unlink`, `rmdir`: one name less.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remove<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    /// `rmdir`
    pub wants_dir: bool,
}

impl Operation for Remove<'_> {
    type Held<'f> = HeldEntry<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldEntry<'f>, ()>, Errno> {
        let dir = fs.hold(self.dir)?;
        let (inode, kind) = fs.hold_child(&dir, self.name)?.ok_or(Errno::ENOENT)?;
        match (kind == KIND_DIR, self.wants_dir) {
            (true, false) => Err(Errno::EISDIR),
            (false, true) => Err(Errno::ENOTDIR),
            _ => Ok(HoldResult::Held(HeldEntry { inode, dir })),
        }
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldEntry<'_>) -> Result<OperationCost<'h>, Errno> {
        let file = (&held.inode.claims, Need::attrs());
        let needs = smallvec![fs.name_remove_need(&held.dir)?, file, fs.unlinked.need()];
        Ok(OperationCost { cost: FREES_LINK, needs })
    }

    fn locks<'h>(held: &'h HeldEntry<'_>) -> Locks<'h> {
        to_lock([&held.dir, &held.inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, held: &HeldEntry<'f>) -> Result<Outcome<()>, Errno> {
        let HeldEntry { inode, dir } = held;
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let locked = &mut change.locked;
        if locked.get(dir.ino).find(self.name)?.map(|named| named.ino) != Some(inode.ino) {
            return Ok(Outcome::Retry);
        }
        locked.get(dir.ino).check_can_remove_name()?;
        locked.get(inode.ino).check_changeable()?;
        if self.wants_dir && !locked.get(inode.ino).is_empty_dir()? {
            return Err(Errno::ENOTEMPTY);
        }
        let parent = locked.get(dir.ino);
        parent.remove(tx, self.name)?;
        parent.note_names_changed(now);
        fs.shrink_queue.note_removal(dir, parent, tx.txg().0);
        if self.wants_dir {
            parent.remove_link();
        }
        fs.drop_link(locked, inode.ino, (dir.ino, self.name), now);
        Ok(Outcome::Changed(()))
    }

    fn intent(&self, change: &mut Change<'_, '_>, held: &HeldEntry<'_>, (): &()) -> Intent<'_> {
        let Remove { dir, name, wants_dir } = *self;
        let ino = held.inode.ino;
        let unlinked = change.is_gone(ino).then_some(ino);
        Intent::Renamed { record: Record::Remove { dir, name, wants_dir, ino }, moved: [None; 2], unlinked }
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &HeldEntry<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

impl Fs {
    /// Adds a name to a file, and adds one to the lookup count. `EPERM`: a directory.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        self.execute(&Link { ino, dir, name, words: EntryWords::NONE })
    }

    /// Removes a name of an inode that is not a directory (`EISDIR`). The file is destroyed with its last name
    /// and last user.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        if name == b"." || name == b".." {
            return Err(Errno::EISDIR);
        }
        self.execute(&Remove { dir, name, wants_dir: false })
    }

    /// Removes an empty directory: `ENOTDIR`, `ENOTEMPTY`, `EINVAL` for ".".
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        match name {
            b"." => Err(Errno::EINVAL),
            b".." => Err(Errno::ENOTEMPTY),
            _ => self.execute(&Remove { dir, name, wants_dir: true }),
        }
    }

    /// An inode lost this name; a directory loses its only one.
    pub(crate) fn drop_link(
        &self,
        locked: &mut Locked<'_>,
        ino: Ino,
        (dir, name): (Ino, &[u8]),
        now: [u64; 2],
    ) {
        let inode = locked.inode(ino);
        if locked.get(ino).attrs.is_dir() {
            // A destroyed directory need not shrink.
            self.shrink_queue.remove(inode);
        }
        let state = locked.get(ino);
        if state.attrs.is_dir() {
            state.attrs.zpl.links = 0;
        } else {
            state.remove_link();
        }
        state.attrs.zpl.ctime = now;
        if state.attrs.zpl.links == 0 {
            self.unlinked.add(ino);
            self.note_unlink(inode, state, dir, name);
        }
    }
}
