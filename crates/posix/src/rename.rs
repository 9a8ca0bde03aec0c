//! Renames.
//!
//! A rename touches up to four inodes: two directories, the moved inode, and one that is replaced or exchanged.
//! They are locked together, in order, and everything is checked again under the locks. One check is impossible
//! there: whether a directory would become its own descendant, since that depends on all directories above. So
//! directories change parents one at a time, under `directory_moves`. The parents are walked before the locks
//! are taken, and no other operation can change them meanwhile.

use crate::claims::{FREES_LINK, Need, sum};
use crate::errno::{Errno, damaged};
use crate::fs::Fs;
use crate::hold::{InodeRef, Locked};
use crate::inode::{KIND_DIR, Named, check_name};
use crate::make::NewFile;
use crate::operation::{Change, Found, Locks, Needs, Operation, Outcome, Room, to_lock};
use crate::types::{Cred, Ino, LINK_MAX, RENAME_EXCHANGE, RENAME_NOREPLACE, mode};
use parking_lot::MutexGuard;
use smallvec::smallvec;
use terrane_txg::cost::Cost;

/// Maximum depth of a directory: a longer chain of parents is a cycle.
const DEPTH_MAX: usize = 1 << 20;

/// `DT_CHR`
const KIND_WHITEOUT: u8 = 2;

/// The target of a name when it was looked up.
struct Meaning<'f> {
    inode: InodeRef<'f>,
    kind: u8,
}

impl Meaning<'_> {
    fn named(&self) -> Named {
        Named { ino: self.inode.ino, kind: self.kind }
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
    pub flags: u32,
    /// Leaves a whiteout with this owner.
    pub whiteout: Option<&'a Cred>,
}

/// The inodes of a rename. They are dropped in this order, directories last.
pub(crate) struct Moved<'f> {
    target: Option<Meaning<'f>>,
    source: Meaning<'f>,
    /// Both names are the same entry in different spelling.
    respells: bool,
    /// Cost of the ACLs that a whiteout inherits.
    lists: Cost,
    /// Keeps directories from moving, if there are two.
    _moves: Option<MutexGuard<'f, ()>>,
    to: InodeRef<'f>,
    from: InodeRef<'f>,
}

impl<'a> Rename<'a> {
    /// Refuses invalid flags and names.
    fn check(&self, fs: &Fs) -> Result<(), Errno> {
        let knows = matches!(self.flags, 0 | RENAME_NOREPLACE | RENAME_EXCHANGE);
        if !knows || self.whiteout.is_some() && self.exchanges() {
            return Err(Errno::EINVAL);
        }
        for name in [self.name, self.new_name] {
            check_name(name)?;
            if name == b"." || name == b".." {
                return Err(Errno::EBUSY);
            }
        }
        if self.exchanges() { Ok(()) } else { fs.check_new_name(self.new_name) }
    }

    fn exchanges(&self) -> bool {
        self.flags == RENAME_EXCHANGE
    }

    /// The whiteout that is left under the old name.
    fn left(&self) -> Option<NewFile<'a>> {
        let file = |cred| NewFile { bits: mode::S_IFCHR, rdev: Some(0), target: None, cred };
        self.whiteout.map(file)
    }

    fn judge(&self, fs: &Fs, source: &Meaning<'_>, target: Option<&Meaning<'_>>) -> Result<(), Errno> {
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
                return Err(if self.exchanges() { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
        }
        match target {
            Some(target) if !self.exchanges() && target.inode.ino != source.inode.ino => {
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
    fn respell(&self, change: &mut Change<'_, '_>, held: &Moved<'_>) -> Result<Outcome<()>, Errno> {
        let (tx, now) = (change.tx, change.stamp());
        let dir = change.locked.get(self.dir);
        let is_as_it_was = dir.find(self.name)? == Some(held.source.named());
        if !is_as_it_was || !dir.is_same_name(self.name, self.new_name)? {
            return Ok(Outcome::Again);
        }
        dir.check_live_dir()?;
        dir.check_gives_names()?;
        if !dir.respell(tx, self.new_name)? {
            return Ok(Outcome::Saved(()));
        }
        dir.names_changed(now);
        change.locked.get(held.source.inode.ino).attrs.zpl.ctime = now;
        Ok(Outcome::Changed(()))
    }

    fn replace(
        &self,
        change: &mut Change<'_, '_>,
        held: &Moved<'_>,
        whiteout: Option<Named>,
    ) -> Result<(), Errno> {
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let locked = &mut change.locked;
        let Moved { source, target, .. } = held;
        match target {
            Some(target) => {
                if target.is_dir() && !locked.get(target.inode.ino).is_empty_dir()? {
                    return Err(Errno::ENOTEMPTY);
                }
                let parent = locked.get(self.new_dir);
                parent.replace(tx, self.new_name, source.named())?;
                parent.respell(tx, self.new_name)?;
                if target.is_dir() {
                    parent.fewer_links();
                }
                fs.drop_link(locked, target.inode.ino, (self.new_dir, self.new_name), now);
            }
            None => locked.get(self.new_dir).insert(tx, self.new_name, source.named())?,
        }
        let left = locked.get(self.dir);
        match whiteout {
            Some(whiteout) => left.replace(tx, self.name, whiteout)?,
            None => {
                left.take(tx, self.name)?;
                fs.settling.judge(&held.from, left, tx.txg().0);
            }
        }
        move_parent(locked, source, self.dir, self.new_dir);
        let moved = locked.get(source.inode.ino);
        fs.note_move(&source.inode, moved, (self.dir, self.name), (self.new_dir, self.new_name));
        Ok(())
    }

    fn exchange(
        &self,
        change: &mut Change<'_, '_>,
        source: &Meaning<'_>,
        target: &Meaning<'_>,
    ) -> Result<(), Errno> {
        let (tx, locked) = (change.tx, &mut change.locked);
        locked.get(self.new_dir).replace(tx, self.new_name, source.named())?;
        locked.get(self.dir).replace(tx, self.name, target.named())?;
        move_parent(locked, source, self.dir, self.new_dir);
        move_parent(locked, target, self.new_dir, self.dir);
        Ok(())
    }

    /// Moves the name, and leaves a whiteout under the old one if requested.
    fn leave<'f>(&self, change: &mut Change<'_, 'f>, held: &Moved<'f>) -> Result<(), Errno> {
        let (fs, tx) = (change.fs, change.tx);
        let made = match self.left() {
            Some(file) => {
                let parent = change.locked.get(self.dir);
                Some(fs.new_object((tx, change.now), (&held.from, parent), &file, 1, held.lists)?)
            }
            None => None,
        };
        let whiteout = made.as_ref().map(|(object, _)| Named { ino: object.id().0, kind: KIND_WHITEOUT });
        let replaced = self.replace(change, held, whiteout);
        match made {
            Some((object, attrs)) if replaced.is_ok() => {
                *change.new = Some(fs.hold_new(tx, object, attrs));
            }
            Some((object, _)) => fs.set.destroy(tx, &object)?,
            None => {}
        }
        replaced
    }
}

impl Operation for Rename<'_> {
    type Held<'f> = Moved<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<Found<Moved<'f>, ()>, Errno> {
        self.check(fs)?;
        let (from, to) = (fs.hold(self.dir)?, fs.hold(self.new_dir)?);
        let moves = (from.ino != to.ino).then(|| fs.directory_moves.lock());
        let meaning = |dir: &InodeRef<'f>, name| -> Result<Option<Meaning<'f>>, Errno> {
            Ok(fs.child(dir, name)?.map(|(inode, kind)| Meaning { inode, kind }))
        };
        let source = meaning(&from, self.name)?.ok_or(Errno::ENOENT)?;
        let target = meaning(&to, self.new_name)?;
        let respells = from.ino == to.ino && from.read().is_same_name(self.name, self.new_name)?;
        if respells && self.whiteout.is_some() {
            // The whiteout and the moved name would need the same entry.
            return Err(Errno::EINVAL);
        }
        let mut lists = Cost::NOTHING;
        if !respells {
            self.judge(fs, &source, target.as_ref())?;
            if target.as_ref().is_some_and(|target| target.inode.ino == source.inode.ino) {
                // Two names of one file: POSIX requires that nothing happens.
                return Ok(Found::Nothing(()));
            }
            if let Some(file) = self.left() {
                lists = fs.inherit_cost_in(&from, file.bits)?;
            }
        }
        Ok(Found::Held(Moved { target, source, respells, lists, _moves: moves, to, from }))
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h Moved<'_>) -> Result<Room<'h>, Errno> {
        let Moved { source, target, from, to, .. } = held;
        let moved = (&source.inode.claims, Need::attrs());
        let gets = fs.need_to_name(to, self.new_name)?;
        if held.respells {
            return Ok(Room { cost: Cost::NOTHING, needs: smallvec![gets, fs.need_to_remove(to)?, moved] });
        }
        let leaves = match self.whiteout.is_some() || self.exchanges() {
            true => fs.need_to_name(from, self.name)?,
            false => fs.need_to_remove(from)?,
        };
        let mut needs: Needs<'h> = smallvec![leaves, gets, moved];
        needs.extend(target.as_ref().map(|target| (&target.inode.claims, Need::attrs())));
        if target.is_some() && !fs.naming.is_exact() {
            // It may change its spelling: one name is added, and one removed.
            needs.push(fs.need_to_remove(to)?);
        }
        if self.whiteout.is_some() {
            needs.push((&fs.claims_of_new, Need::attrs()));
        }
        let replaces = target.is_some() && !self.exchanges();
        if replaces {
            needs.push(fs.unlinked.need());
        }
        let cost = sum([if replaces { FREES_LINK } else { Cost::NOTHING }, held.lists]);
        Ok(Room { cost, needs })
    }

    fn locks<'h>(held: &'h Moved<'_>) -> Locks<'h> {
        let mut inodes = to_lock([&held.from, &held.to, &held.source.inode]);
        if !held.respells {
            inodes.extend(held.target.as_ref().map(|target| &*target.inode));
        }
        inodes
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, held: &Moved<'f>) -> Result<Outcome<()>, Errno> {
        if held.respells {
            return self.respell(change, held);
        }
        let Moved { source, target, .. } = held;
        let locked = &mut change.locked;
        if locked.get(self.dir).find(self.name)? != Some(source.named())
            || locked.get(self.new_dir).find(self.new_name)? != target.as_ref().map(Meaning::named)
        {
            return Ok(Outcome::Again);
        }
        let parent = locked.get(self.dir);
        parent.check_live_dir()?;
        parent.check_gives_names()?;
        locked.get(source.inode.ino).check_changeable()?;
        let new_parent = locked.get(self.new_dir);
        new_parent.check_live_dir()?;
        new_parent.check_takes_names()?;
        if let Some(target) = target {
            new_parent.check_gives_names()?;
            locked.get(target.inode.ino).check_changeable()?;
        }
        let gains_dir = self.dir != self.new_dir && source.is_dir();
        let loses_dir = target.as_ref().is_some_and(Meaning::is_dir);
        let links = locked.get(self.new_dir).attrs.zpl.links;
        if gains_dir && !loses_dir && links >= u64::from(LINK_MAX) {
            return Err(Errno::EMLINK);
        }
        match target {
            Some(target) if self.exchanges() => self.exchange(change, source, target)?,
            _ => self.leave(change, held)?,
        }
        let now = change.stamp();
        for dir in [self.dir, self.new_dir] {
            change.locked.get(dir).names_changed(now);
        }
        for moved in [Some(source), target.as_ref()].into_iter().flatten() {
            change.locked.get(moved.inode.ino).attrs.zpl.ctime = now;
        }
        Ok(Outcome::Changed(()))
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &Moved<'f>, (): ()) -> Result<(), Errno> {
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
        self.carry_out(&Rename { dir, name, new_dir, new_name, flags, whiteout: None })
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
        self.carry_out(&Rename { dir, name, new_dir, new_name, flags, whiteout: Some(cred) })
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
        Err(damaged(format_args!("directory {dir}: parents should end at the root, found a circle")))
    }
}

/// Updates the parent of a moved inode. A directory also counts as a link of its parent.
fn move_parent(locked: &mut Locked<'_>, moved: &Meaning<'_>, from: Ino, to: Ino) {
    if from == to {
        return;
    }
    locked.get(moved.inode.ino).attrs.zpl.parent = to;
    if moved.is_dir() {
        locked.get(from).fewer_links();
        locked.get(to).more_links();
    }
}
