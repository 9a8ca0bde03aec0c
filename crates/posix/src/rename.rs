//! Renames.
//!
//! A rename touches up to four inodes: two directories, the moved inode, and one that is replaced or exchanged.
//! They are locked together, in order, and everything is checked again under the locks. One check is impossible
//! there: whether a directory would become its own descendant, since that depends on all directories above. So
//! directories change parents one at a time, under `directory_moves`. The parents are walked before the locks
//! are taken, and no other operation can change them meanwhile.

use crate::claims::{FREES_LINK, Need, sum};
use crate::create::{Making, new_inode};
use crate::errno::{Errno, log_eio};
use crate::fs::Fs;
use crate::hold::{InodeRef, Locked};
use crate::inode::{ChildRef, KIND_DIR, check_name};
use crate::intents::Intent;
use crate::new_file::NewFile;
use crate::operation::{Change, HoldResult, Locks, Needs, Operation, OperationCost, Outcome, to_lock};
use crate::record::{NewInode, Record};
use crate::types::{Cred, EntryWords, Ino, LINK_MAX, RENAME_EXCHANGE, RENAME_NOREPLACE};
use parking_lot::MutexGuard;
use smallvec::smallvec;
use terrane_txg::cost::Cost;

/// Maximum depth of a directory: a longer chain of parents is a cycle.
const DEPTH_MAX: usize = 1 << 20;

/// `DT_CHR`
const KIND_WHITEOUT: u8 = 2;

/// The target of a name when it was looked up.
struct HeldChild<'f> {
    inode: InodeRef<'f>,
    kind: u8,
    /// They move with the name.
    words: EntryWords,
}

impl HeldChild<'_> {
    fn child_ref(&self) -> ChildRef {
        ChildRef { ino: self.inode.ino, kind: self.kind }
    }

    /// The entry as it was found.
    fn entry(&self) -> (ChildRef, EntryWords) {
        (self.child_ref(), self.words)
    }

    fn is_dir(&self) -> bool {
        self.kind == KIND_DIR
    }
}

/// `rename`: a name moves, or two names are exchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rename<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    pub new_dir: Ino,
    pub new_name: &'a [u8],
    /// 0, [`RENAME_NOREPLACE`] or [`RENAME_EXCHANGE`]; `EINVAL` for anything else.
    pub flags: u32,
    /// Leaves a whiteout with this owner.
    pub whiteout: Option<Cred>,
}

/// The inodes of a rename. They are dropped in this order, directories last.
pub(crate) struct HeldRename<'f> {
    target: Option<HeldChild<'f>>,
    source: HeldChild<'f>,
    /// Both names are the same entry in different spelling.
    is_respelling: bool,
    /// Cost of the ACLs that a whiteout inherits.
    acl_cost: Cost,
    /// Keeps directories from moving, if there are two.
    _move_lock: Option<MutexGuard<'f, ()>>,
    to: InodeRef<'f>,
    from: InodeRef<'f>,
}

impl<'a> Rename<'a> {
    /// Refuses invalid flags and names.
    fn check(&self, fs: &Fs) -> Result<(), Errno> {
        let is_known = matches!(self.flags, 0 | RENAME_NOREPLACE | RENAME_EXCHANGE);
        if !is_known || self.whiteout.is_some() && self.is_exchange() {
            return Err(Errno::EINVAL);
        }
        for name in [self.name, self.new_name] {
            check_name(name)?;
            if name == b"." || name == b".." {
                return Err(Errno::EBUSY);
            }
        }
        if self.is_exchange() { Ok(()) } else { fs.check_new_name(self.new_name) }
    }

    fn is_exchange(&self) -> bool {
        self.flags == RENAME_EXCHANGE
    }

    /// The whiteout that is left under the old name.
    fn whiteout_file(&self) -> Option<NewFile<'static>> {
        self.whiteout.map(NewFile::whiteout)
    }

    fn check_targets(
        &self,
        fs: &Fs,
        source: &HeldChild<'_>,
        target: Option<&HeldChild<'_>>,
    ) -> Result<(), Errno> {
        match (target, self.flags) {
            (Some(_), RENAME_NOREPLACE) => return Err(Errno::EEXIST),
            (None, RENAME_EXCHANGE) => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.dir != self.new_dir {
            if source.is_dir() && fs.is_below(self.new_dir, source.inode.ino)? {
                return Err(Errno::EINVAL);
            }
            if let Some(target) = target
                && target.is_dir()
                && fs.is_below(self.dir, target.inode.ino)?
            {
                return Err(if self.is_exchange() { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
        }
        match target {
            Some(target) if !self.is_exchange() && target.inode.ino != source.inode.ino => {
                match (source.is_dir(), target.is_dir()) {
                    (true, false) => Err(Errno::ENOTDIR),
                    (false, true) => Err(Errno::EISDIR),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Both names are one entry: changes its spelling if it differs.
    fn respell(
        &self,
        change: &mut Change<'_, '_>,
        held: &HeldRename<'_>,
    ) -> Result<Outcome<Option<NewInode>>, Errno> {
        let (tx, now) = (change.tx, change.stamp());
        let dir = change.locked.get(self.dir);
        let is_as_it_was = dir.find(self.name)? == Some(held.source.child_ref());
        if !is_as_it_was || !dir.is_same_name(self.name, self.new_name)? {
            return Ok(Outcome::Retry);
        }
        dir.check_linked_dir()?;
        dir.check_can_remove_name()?;
        if !dir.respell(tx, self.new_name)? {
            return Ok(Outcome::Saved(None));
        }
        dir.note_names_changed(now);
        change.locked.get(held.source.inode.ino).attrs.zpl.ctime = now;
        Ok(Outcome::Changed(None))
    }

    fn replace(
        &self,
        change: &mut Change<'_, '_>,
        held: &HeldRename<'_>,
        whiteout: Option<ChildRef>,
    ) -> Result<(), Errno> {
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let locked = &mut change.locked;
        let HeldRename { source, target, .. } = held;
        match target {
            Some(target) => {
                if target.is_dir() && !locked.get(target.inode.ino).is_empty_dir()? {
                    return Err(Errno::ENOTEMPTY);
                }
                let parent = locked.get(self.new_dir);
                parent.replace(tx, self.new_name, source.child_ref(), &source.words)?;
                parent.respell(tx, self.new_name)?;
                if target.is_dir() {
                    parent.remove_link();
                }
                fs.drop_link(locked, target.inode.ino, (self.new_dir, self.new_name), now);
            }
            None => {
                let parent = locked.get(self.new_dir);
                parent.insert(tx, self.new_name, source.child_ref(), &source.words)?;
            }
        }
        let old_dir = locked.get(self.dir);
        match whiteout {
            Some(whiteout) => old_dir.replace(tx, self.name, whiteout, &EntryWords::NONE)?,
            None => {
                old_dir.remove(tx, self.name)?;
                fs.shrink_queue.note_removal(&held.from, old_dir, tx.txg().0);
            }
        }
        move_parent(locked, source, self.dir, self.new_dir);
        fs.match_hint(locked, &source.inode, &held.to, self.new_name);
        let moved = locked.get(source.inode.ino);
        fs.note_move(&source.inode, moved, (self.dir, self.name), (self.new_dir, self.new_name));
        Ok(())
    }

    fn exchange(
        &self,
        change: &mut Change<'_, '_>,
        held: &HeldRename<'_>,
        target: &HeldChild<'_>,
    ) -> Result<(), Errno> {
        let HeldRename { source, from, to, .. } = held;
        let (fs, tx, locked) = (change.fs, change.tx, &mut change.locked);
        // First the entry that gets more words: it may find no space, and then nothing has changed.
        let mut sides = [(self.new_dir, self.new_name, source), (self.dir, self.name, target)];
        if target.words.as_slice().len() > source.words.as_slice().len() {
            sides.reverse();
        }
        for (dir, name, child) in sides {
            locked.get(dir).replace(tx, name, child.child_ref(), &child.words)?;
        }
        move_parent(locked, source, self.dir, self.new_dir);
        move_parent(locked, target, self.new_dir, self.dir);
        fs.match_hint(locked, &source.inode, to, self.new_name);
        fs.match_hint(locked, &target.inode, from, self.name);
        Ok(())
    }

    /// Moves the name, and leaves a whiteout under the old one if requested.
    fn move_name<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &HeldRename<'f>,
    ) -> Result<Option<NewInode>, Errno> {
        let (fs, tx) = (change.fs, change.tx);
        let making = Making { tx, now: change.now, given: change.given };
        let created = match self.whiteout_file() {
            Some(file) => {
                let parent = change.locked.get(self.dir);
                Some(fs.new_object(making, (&held.from, parent, None), &file, 1, held.acl_cost)?)
            }
            None => None,
        };
        let whiteout =
            created.as_ref().map(|(object, _)| ChildRef { ino: object.id().0, kind: KIND_WHITEOUT });
        let replaced = self.replace(change, held, whiteout);
        match created {
            Some((object, attrs)) if replaced.is_ok() => {
                let new = new_inode(&object, &attrs);
                *change.new = Some(fs.hold_new(tx, object, attrs));
                return Ok(Some(new));
            }
            Some((object, _)) => fs.set.destroy(tx, &object)?,
            None => {}
        }
        replaced.map(|()| None)
    }
}

impl Operation for Rename<'_> {
    type Held<'f> = HeldRename<'f>;
    /// The whiteout.
    type Done = Option<NewInode>;
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldRename<'f>, ()>, Errno> {
        self.check(fs)?;
        let (from, to) = (fs.hold(self.dir)?, fs.hold(self.new_dir)?);
        let move_lock = (from.ino != to.ino).then(|| fs.directory_moves.lock());
        let hold_named = |dir: &InodeRef<'f>, name| -> Result<Option<HeldChild<'f>>, Errno> {
            let Some((inode, kind)) = fs.hold_child(dir, name)? else { return Ok(None) };
            // If the name has another target by now, `run` sees it.
            let found = dir.read().find_with_words(name)?;
            let words = found.map_or(EntryWords::NONE, |(_, words)| words);
            Ok(Some(HeldChild { inode, kind, words }))
        };
        let source = hold_named(&from, self.name)?.ok_or(Errno::ENOENT)?;
        let target = hold_named(&to, self.new_name)?;
        let is_respelling = from.ino == to.ino && from.read().is_same_name(self.name, self.new_name)?;
        if is_respelling && self.whiteout.is_some() {
            // The whiteout and the moved name would need the same entry.
            return Err(Errno::EINVAL);
        }
        let mut acl_cost = Cost::NOTHING;
        if !is_respelling {
            self.check_targets(fs, &source, target.as_ref())?;
            if target.as_ref().is_some_and(|target| target.inode.ino == source.inode.ino) {
                // Two names of one file: POSIX requires that nothing happens.
                return Ok(HoldResult::NoChange(()));
            }
            if let Some(file) = self.whiteout_file() {
                acl_cost = fs.inherit_cost_in(&from, file.bits)?;
            }
        }
        Ok(HoldResult::Held(HeldRename {
            target,
            source,
            is_respelling,
            acl_cost,
            _move_lock: move_lock,
            to,
            from,
        }))
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldRename<'_>) -> Result<OperationCost<'h>, Errno> {
        let HeldRename { source, target, from, to, .. } = held;
        let moved = (&source.inode.claims, Need::attrs());
        let gets = fs.name_add_need(to, self.new_name, &source.words)?;
        if held.is_respelling {
            return Ok(OperationCost {
                cost: Cost::NOTHING,
                needs: smallvec![gets, fs.name_remove_need(to)?, moved],
            });
        }
        let leaves = match target {
            Some(target) if self.is_exchange() => fs.name_add_need(from, self.name, &target.words)?,
            _ if self.whiteout.is_some() => fs.name_add_need(from, self.name, &EntryWords::NONE)?,
            _ => fs.name_remove_need(from)?,
        };
        let mut needs: Needs<'h> = smallvec![leaves, gets, moved];
        needs.extend(target.as_ref().map(|target| (&target.inode.claims, Need::attrs())));
        if target.is_some() && !fs.naming.is_exact() {
            // It may change its spelling: one name is added, and one removed.
            needs.push(fs.name_remove_need(to)?);
        }
        if self.whiteout.is_some() {
            needs.push((&fs.claims_of_new, Need::attrs()));
        }
        let replaces = target.is_some() && !self.is_exchange();
        if replaces {
            needs.push(fs.unlinked.need());
        }
        let cost = sum([if replaces { FREES_LINK } else { Cost::NOTHING }, held.acl_cost]);
        Ok(OperationCost { cost, needs })
    }

    fn locks<'h>(held: &'h HeldRename<'_>) -> Locks<'h> {
        let mut inodes = to_lock([&held.from, &held.to, &held.source.inode]);
        if !held.is_respelling {
            inodes.extend(held.target.as_ref().map(|target| &*target.inode));
        }
        inodes
    }

    fn run<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &HeldRename<'f>,
    ) -> Result<Outcome<Option<NewInode>>, Errno> {
        if held.is_respelling {
            return self.respell(change, held);
        }
        let HeldRename { source, target, .. } = held;
        let locked = &mut change.locked;
        if locked.get(self.dir).find_with_words(self.name)? != Some(source.entry())
            || locked.get(self.new_dir).find_with_words(self.new_name)?
                != target.as_ref().map(HeldChild::entry)
        {
            return Ok(Outcome::Retry);
        }
        let parent = locked.get(self.dir);
        parent.check_linked_dir()?;
        parent.check_can_remove_name()?;
        locked.get(source.inode.ino).check_changeable()?;
        let new_parent = locked.get(self.new_dir);
        new_parent.check_linked_dir()?;
        new_parent.check_can_add_name()?;
        if self.dir != self.new_dir {
            let moves =
                [(self.new_dir, Some(source)), (self.dir, target.as_ref().filter(|_| self.is_exchange()))];
            for (dir, moved) in moves {
                let Some(moved) = moved else { continue };
                let project = locked.get(moved.inode.ino).project();
                locked.get(dir).check_takes_project(project)?;
            }
        }
        let new_parent = locked.get(self.new_dir);
        if let Some(target) = target {
            new_parent.check_can_remove_name()?;
            locked.get(target.inode.ino).check_changeable()?;
        }
        let gains_dir = self.dir != self.new_dir && source.is_dir();
        let loses_dir = target.as_ref().is_some_and(HeldChild::is_dir);
        let links = locked.get(self.new_dir).attrs.zpl.links;
        if gains_dir && !loses_dir && links >= u64::from(LINK_MAX) {
            return Err(Errno::EMLINK);
        }
        let whiteout = match target {
            Some(target) if self.is_exchange() => {
                self.exchange(change, held, target)?;
                None
            }
            _ => self.move_name(change, held)?,
        };
        let now = change.stamp();
        for dir in [self.dir, self.new_dir] {
            change.locked.get(dir).note_names_changed(now);
        }
        for moved in [Some(source), target.as_ref()].into_iter().flatten() {
            change.locked.get(moved.inode.ino).attrs.zpl.ctime = now;
        }
        Ok(Outcome::Changed(whiteout))
    }

    fn intent(
        &self,
        change: &mut Change<'_, '_>,
        held: &HeldRename<'_>,
        whiteout: &Option<NewInode>,
    ) -> Intent<'_> {
        let Rename { dir, name, new_dir, new_name, flags, .. } = *self;
        let moved = held.source.inode.ino;
        let whiteout = self.whiteout.zip(*whiteout);
        let record = Record::Rename { dir, name, new_dir, new_name, flags, whiteout, moved };
        let target = held.target.as_ref().filter(|_| !held.is_respelling).map(|target| target.inode.ino);
        let unlinked = target.filter(|ino| change.is_gone(*ino));
        let exchanged = target.filter(|_| self.is_exchange());
        Intent::Renamed { record, moved: [Some(moved), exchanged], unlinked }
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &HeldRename<'f>, _: Option<NewInode>) -> Result<(), Errno> {
        Ok(())
    }
}

impl Fs {
    /// Moves a name. It replaces the target: a file replaces a file, a directory an empty directory.
    /// `RENAME_NOREPLACE` refuses to replace (`EEXIST`). `RENAME_EXCHANGE` swaps both names (`ENOENT`: one is
    /// missing).
    pub fn rename(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.execute(&Rename { dir, name, new_dir, new_name, flags, whiteout: None })
    }

    /// As [`rename`](Self::rename), and leaves a *whiteout* under the old name in the same step. It is a
    /// character device 0:0 without permissions, owned by the caller. Overlay file systems use it to hide a
    /// name of a lower layer.
    pub fn rename_with_whiteout(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: u32,
        cred: &Cred,
    ) -> Result<(), Errno> {
        self.execute(&Rename { dir, name, new_dir, new_name, flags, whiteout: Some(*cred) })
    }

    /// Whether `dir` is `above` or a descendant of it. The caller keeps directories from moving.
    fn is_below(&self, dir: Ino, above: Ino) -> Result<bool, Errno> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == self.root() {
                return Ok(false);
            }
            at = self.hold(at)?.read().attrs.zpl.parent;
        }
        Err(log_eio(format_args!("directory {dir}: parents should end at the root, found a cycle")))
    }
}

/// Updates the parent of a moved inode. A directory also counts as a link of its parent.
fn move_parent(locked: &mut Locked<'_>, moved: &HeldChild<'_>, from: Ino, to: Ino) {
    if from == to {
        return;
    }
    locked.get(moved.inode.ino).attrs.zpl.parent = to;
    if moved.is_dir() {
        locked.get(from).remove_link();
        locked.get(to).add_link();
    }
}
