//! Moving names.
//!
//! A rename touches up to four inodes: two directories, what moves, and what is replaced or exchanged. They are
//! locked together, in order, and everything is judged again under those locks. One thing cannot be judged
//! there: whether a directory would end up below itself, because that depends on all directories above. So
//! directories change their parents one at a time, under `directory_moves`, and the way up is walked before the
//! locks are taken; nothing else can change it.

use crate::attr::stored;
use crate::claims::{FREES_LINK, Need, sum};
use crate::dir::NewFile;
use crate::errno::{Errno, damaged};
use crate::fs::Fs;
use crate::hold::{InodeRef, Locked};
use crate::inode::{KIND_DIR, Named, check_name};
use crate::types::{Cred, Ino, LINK_MAX, RENAME_EXCHANGE, RENAME_NOREPLACE, mode};
use terrane_object::{Cost, Tx};

/// Directories above one another, at most: a longer way up is a circle.
const DEPTH_MAX: usize = 1 << 20;

/// `DT_CHR`
const KIND_WHITEOUT: u8 = 2;

/// One end of a rename.
struct End<'a> {
    dir: InodeRef<'a>,
    name: &'a [u8],
}

/// What a name meant when we looked.
struct Held<'a> {
    inode: InodeRef<'a>,
    kind: u8,
}

impl Held<'_> {
    fn named(&self) -> Named {
        Named { ino: self.inode.ino, kind: self.kind }
    }

    fn is_dir(&self) -> bool {
        self.kind == KIND_DIR
    }
}

impl Fs {
    /// Moves a name, replacing what has the new one: a file by a file, an empty directory by a directory. With
    /// `RENAME_NOREPLACE` nothing is replaced (`EEXIST`), with `RENAME_EXCHANGE` both keep a name (`ENOENT`).
    pub fn rename(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.rename_leaving(dir, name, new_dir, new_name, flags, None)
    }

    /// The same, and in the name's place a *whiteout* is left, in the same step: a character device 0:0 without permissions, by which a
    /// file system of several layers says that there is no such name. It is the caller's.
    pub fn rename_with_whiteout(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: u32,
        cred: &Cred,
    ) -> Result<(), Errno> {
        self.rename_leaving(dir, name, new_dir, new_name, flags, Some(cred))
    }

    /// `whiteout`: whose, if there is one.
    fn rename_leaving(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: u32,
        whiteout: Option<&Cred>,
    ) -> Result<(), Errno> {
        let knows = matches!(flags, 0 | RENAME_NOREPLACE | RENAME_EXCHANGE);
        if !knows || whiteout.is_some() && flags == RENAME_EXCHANGE {
            return Err(Errno::EINVAL);
        }
        for name in [name, new_name] {
            check_name(name)?;
            if name == b"." || name == b".." {
                return Err(Errno::EBUSY);
            }
        }
        if flags != RENAME_EXCHANGE {
            self.check_new_name(new_name)?;
        }
        let from = End { dir: self.hold(dir)?, name };
        let to = End { dir: self.hold(new_dir)?, name: new_name };
        loop {
            if self.rename_once(&from, &to, flags, whiteout)? {
                return Ok(());
            }
        }
    }

    /// False: the names changed their meaning meanwhile.
    fn rename_once(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        flags: u32,
        whiteout: Option<&Cred>,
    ) -> Result<bool, Errno> {
        let _moves = (from.dir.ino != to.dir.ino).then(|| self.directory_moves.lock());
        let hold = |end: &End<'_>| -> Result<Option<Held<'_>>, Errno> {
            Ok(self.child(&end.dir, end.name)?.map(|(inode, kind)| Held { inode, kind }))
        };
        let source = hold(from)?.ok_or(Errno::ENOENT)?;
        let target = hold(to)?;
        if from.dir.ino == to.dir.ino && from.dir.read().is_same_name(from.name, to.name)? {
            // Where it went from is where it goes to.
            return if whiteout.is_some() { Err(Errno::EINVAL) } else { self.respell(from, to, &source) };
        }
        self.judge(from, to, &source, target.as_ref(), flags)?;
        if target.as_ref().is_some_and(|target| target.inode.ino == source.inode.ino) {
            // Two names of one file: POSIX wants nothing to happen.
            return Ok(true);
        }

        let file = whiteout.map(|cred| NewFile { bits: mode::S_IFCHR, rdev: Some(0), target: None, cred });
        let lists = match &file {
            Some(file) => {
                Fs::inherit_cost(self.default_acl(&from.dir, &from.dir.read(), file.bits)?.as_ref())
            }
            None => Cost::NOTHING,
        };
        let leaves = match flags {
            _ if file.is_some() => self.need_to_name(&from.dir, from.name)?,
            RENAME_EXCHANGE => self.need_to_name(&from.dir, from.name)?,
            _ => self.need_to_remove(&from.dir)?,
        };
        let mut needs = vec![leaves, self.need_to_name(&to.dir, to.name)?];
        needs.push((&source.inode.claims, Need::attrs()));
        needs.extend(target.as_ref().map(|target| (&target.inode.claims, Need::attrs())));
        if target.is_some() && !self.naming.is_exact() {
            // It may be spelled anew: one name more, and one less.
            needs.push(self.need_to_remove(&to.dir)?);
        }
        if file.is_some() {
            needs.push((&self.claims_of_new, Need::attrs()));
        }
        // Declared first, so that it is dropped after the transaction.
        let mut _left = None;
        let replaces = target.is_some() && flags != RENAME_EXCHANGE;
        if replaces {
            needs.push(self.unlinked.need());
        }
        let tx = self.begin(sum([if replaces { FREES_LINK } else { Cost::NOTHING }, lists]), &needs)?;
        let mut inodes = vec![&*from.dir, &*to.dir, &*source.inode];
        inodes.extend(target.as_ref().map(|target| &*target.inode));
        let mut locked = Locked::new(self, &inodes);
        let meaning = |locked: &mut Locked<'_>, end: &End<'_>| locked.get(end.dir.ino).find(end.name);
        if meaning(&mut locked, from)? != Some(source.named())
            || meaning(&mut locked, to)? != target.as_ref().map(Held::named)
        {
            return Ok(false);
        }
        locked.get(from.dir.ino).check_live_dir()?;
        locked.get(from.dir.ino).check_gives_names()?;
        locked.get(source.inode.ino).check_changeable()?;
        let new_parent = locked.get(to.dir.ino);
        new_parent.check_live_dir()?;
        new_parent.check_takes_names()?;
        if let Some(target) = &target {
            new_parent.check_gives_names()?;
            locked.get(target.inode.ino).check_changeable()?;
        }
        let new_parent = locked.get(to.dir.ino);
        let gains_dir = from.dir.ino != to.dir.ino && source.is_dir();
        let loses_dir = target.as_ref().is_some_and(Held::is_dir);
        if gains_dir && !loses_dir && new_parent.attrs.zpl.links >= u64::from(LINK_MAX) {
            return Err(Errno::EMLINK);
        }
        match (&target, flags) {
            (Some(target), RENAME_EXCHANGE) => self.exchange(&tx, &mut locked, from, to, &source, target)?,
            (target, _) => {
                let made = match &file {
                    Some(file) => {
                        let parent = locked.get(from.dir.ino);
                        Some(self.new_object(&tx, (&from.dir, parent), file, 1, lists)?)
                    }
                    None => None,
                };
                let left = made.as_ref().map(|(object, _)| Named { ino: object.id().0, kind: KIND_WHITEOUT });
                let replaced = self.replace(&tx, &mut locked, (from, to), &source, target.as_ref(), left);
                match made {
                    Some((object, attrs)) if replaced.is_ok() => {
                        _left = Some(self.hold_new(&tx, object, attrs))
                    }
                    Some((object, _)) => self.set.destroy(&tx, &object)?,
                    None => {}
                }
                replaced?;
            }
        }
        let now = stored(self.now());
        for dir in [from.dir.ino, to.dir.ino] {
            locked.get(dir).names_changed(now);
        }
        locked.get(source.inode.ino).attrs.zpl.ctime = now;
        if let Some(target) = &target {
            locked.get(target.inode.ino).attrs.zpl.ctime = now;
        }
        locked.save(&tx)?;
        Ok(true)
    }

    /// Both names are one: it gets the spelling of the new one, where that is another. False: they are two by now.
    fn respell(&self, from: &End<'_>, to: &End<'_>, source: &Held<'_>) -> Result<bool, Errno> {
        let needs = [
            self.need_to_name(&to.dir, to.name)?,
            self.need_to_remove(&to.dir)?,
            (&source.inode.claims, Need::attrs()),
        ];
        let tx = self.begin(Cost::NOTHING, &needs)?;
        let mut locked = Locked::new(self, &[&*from.dir, &*source.inode]);
        let dir = locked.get(from.dir.ino);
        if dir.find(from.name)? != Some(source.named()) || !dir.is_same_name(from.name, to.name)? {
            return Ok(false);
        }
        dir.check_live_dir()?;
        dir.check_gives_names()?;
        if dir.respell(&tx, to.name)? {
            let now = stored(self.now());
            dir.names_changed(now);
            locked.get(source.inode.ino).attrs.zpl.ctime = now;
            locked.save(&tx)?;
        }
        Ok(true)
    }

    fn judge(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        source: &Held<'_>,
        target: Option<&Held<'_>>,
        flags: u32,
    ) -> Result<(), Errno> {
        match (target, flags) {
            (Some(_), RENAME_NOREPLACE) => return Err(Errno::EEXIST),
            (None, RENAME_EXCHANGE) => return Err(Errno::ENOENT),
            _ => {}
        }
        if from.dir.ino != to.dir.ino {
            if source.is_dir() && self.is_below(to.dir.ino, source.inode.ino)? {
                return Err(Errno::EINVAL);
            }
            if let Some(target) = target
                && target.is_dir()
                && self.is_below(from.dir.ino, target.inode.ino)?
            {
                return Err(if flags == RENAME_EXCHANGE { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
        }
        match target {
            Some(target) if flags != RENAME_EXCHANGE && target.inode.ino != source.inode.ino => {
                match (source.is_dir(), target.is_dir()) {
                    (true, false) => Err(Errno::ENOTDIR),
                    (false, true) => Err(Errno::EISDIR),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Is `dir` the directory `above`, or somewhere in it? The caller keeps directories from moving.
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

    fn replace(
        &self,
        tx: &Tx,
        locked: &mut Locked<'_>,
        (from, to): (&End<'_>, &End<'_>),
        source: &Held<'_>,
        target: Option<&Held<'_>>,
        whiteout: Option<Named>,
    ) -> Result<(), Errno> {
        match target {
            Some(target) => {
                if target.is_dir() && !locked.get(target.inode.ino).is_empty_dir()? {
                    return Err(Errno::ENOTEMPTY);
                }
                let parent = locked.get(to.dir.ino);
                parent.replace(tx, to.name, source.named())?;
                parent.respell(tx, to.name)?;
                if target.is_dir() {
                    locked.get(to.dir.ino).fewer_links();
                }
                let now = stored(self.now());
                self.drop_link(locked, target.inode.ino, (to.dir.ino, to.name), now);
            }
            None => locked.get(to.dir.ino).insert(tx, to.name, source.named())?,
        }
        let left = locked.get(from.dir.ino);
        match whiteout {
            Some(whiteout) => left.replace(tx, from.name, whiteout)?,
            None => {
                left.take(tx, from.name)?;
                self.settling.judge(&from.dir, left, tx.txg().0);
            }
        }
        move_parent(locked, source, from, to);
        let moved = locked.get(source.inode.ino);
        self.note_move(&source.inode, moved, (from.dir.ino, from.name), (to.dir.ino, to.name));
        Ok(())
    }

    fn exchange(
        &self,
        tx: &Tx,
        locked: &mut Locked<'_>,
        from: &End<'_>,
        to: &End<'_>,
        source: &Held<'_>,
        target: &Held<'_>,
    ) -> Result<(), Errno> {
        locked.get(to.dir.ino).replace(tx, to.name, source.named())?;
        locked.get(from.dir.ino).replace(tx, from.name, target.named())?;
        move_parent(locked, source, from, to);
        move_parent(locked, target, to, from);
        Ok(())
    }
}

/// What moved has another parent, and a directory counts as a link of its parent.
fn move_parent(locked: &mut Locked<'_>, moved: &Held<'_>, from: &End<'_>, to: &End<'_>) {
    if from.dir.ino == to.dir.ino {
        return;
    }
    locked.get(moved.inode.ino).attrs.zpl.parent = to.dir.ino;
    if moved.is_dir() {
        locked.get(from.dir.ino).fewer_links();
        locked.get(to.dir.ino).more_links();
    }
}
