//! One more name, one name less.
//!
//! Whoever removes a name does it in three steps: look (and hold what the name means), begin the transaction
//! and lock in order, look again. If the name means something else by then, all starts over: somebody else made
//! progress.

use crate::attr::stored;
use crate::claims::{FREES_LINK, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::Locked;
use crate::inode::{KIND_DIR, Named, check_name};
use crate::types::{Attr, Ino, LINK_MAX};
use terrane_object::Cost;

impl Fs {
    /// One more name for a file. `EPERM`: a directory has one. Adds one to the lookup count.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        self.check_new_name(name)?;
        let inode = self.hold(ino)?;
        let dir = self.hold(dir)?;
        let nameless = {
            let state = inode.read();
            if state.attrs.is_dir() {
                return Err(Errno::EPERM);
            }
            state.attrs.zpl.links == 0
        };
        let mut needs = vec![self.need_to_name(&dir, name)?, (&inode.claims, Need::attrs())];
        if nameless {
            needs.push(self.unlinked.need_of_one(inode.ino));
        }
        let tx = self.begin(Cost::NOTHING, &needs)?;
        let mut locked = Locked::new(self, &[&inode, &dir]);
        let parent = locked.get(dir.ino);
        parent.check_live_dir()?;
        if parent.find(name)?.is_some() {
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
        locked.get(dir.ino).check_takes_names()?;
        let now = stored(self.now());
        let parent = locked.get(dir.ino);
        parent.insert(&tx, name, Named { ino: inode.ino, kind })?;
        parent.names_changed(now);
        let file = locked.get(inode.ino);
        file.more_links();
        file.attrs.zpl.ctime = now;
        file.attrs.zpl.parent = dir.ino;
        if links == 0 {
            self.unlinked.remove(&tx, inode.ino)?;
            self.note_name(&inode, locked.get(inode.ino), dir.ino, name);
        }
        locked.save(&tx)?;
        inode.count_lookup();
        Ok(self.attr(&inode, locked.get(inode.ino)))
    }

    /// Removes a name that is no directory's (`EISDIR`). The file goes when its last name and its last user did.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        if name == b"." || name == b".." {
            return Err(Errno::EISDIR);
        }
        self.remove(dir, name, false)
    }

    /// Removes an empty directory: `ENOTDIR`, `ENOTEMPTY`, `EINVAL` for ".".
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        match name {
            b"." => Err(Errno::EINVAL),
            b".." => Err(Errno::ENOTEMPTY),
            _ => self.remove(dir, name, true),
        }
    }

    fn remove(&self, dir: Ino, name: &[u8], wants_dir: bool) -> Result<(), Errno> {
        let dir = self.hold(dir)?;
        loop {
            let (inode, kind) = self.child(&dir, name)?.ok_or(Errno::ENOENT)?;
            match (kind == KIND_DIR, wants_dir) {
                (true, false) => return Err(Errno::EISDIR),
                (false, true) => return Err(Errno::ENOTDIR),
                _ => {}
            }
            let file = (&inode.claims, Need::attrs());
            let tx = self.begin(FREES_LINK, &[self.need_to_remove(&dir)?, file, self.unlinked.need()])?;
            let mut locked = Locked::new(self, &[&dir, &inode]);
            if locked.get(dir.ino).find(name)?.map(|named| named.ino) != Some(inode.ino) {
                continue;
            }
            locked.get(dir.ino).check_gives_names()?;
            locked.get(inode.ino).check_changeable()?;
            if wants_dir && !locked.get(inode.ino).is_empty_dir()? {
                return Err(Errno::ENOTEMPTY);
            }
            let now = stored(self.now());
            let parent = locked.get(dir.ino);
            parent.take(&tx, name)?;
            parent.names_changed(now);
            self.settling.judge(&dir, parent, tx.txg().0);
            if wants_dir {
                parent.fewer_links();
            }
            self.drop_link(&mut locked, inode.ino, (dir.ino, name), now);
            return locked.save(&tx);
        }
    }

    /// An inode lost this name: a directory its only one.
    pub(crate) fn drop_link(
        &self,
        locked: &mut Locked<'_>,
        ino: Ino,
        (dir, name): (Ino, &[u8]),
        now: [u64; 2],
    ) {
        let inode = locked.inode(ino);
        if locked.get(ino).attrs.is_dir() {
            // What it keeps goes with it.
            self.settling.forget(inode);
        }
        let state = locked.get(ino);
        if state.attrs.is_dir() {
            state.attrs.zpl.links = 0;
        } else {
            state.fewer_links();
        }
        state.attrs.zpl.ctime = now;
        if state.attrs.zpl.links == 0 {
            self.unlinked.add(ino);
            self.note_death(inode, state, dir, name);
        }
    }
}
