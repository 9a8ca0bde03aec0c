//! Directories: finding names, listing them, making new ones.
//!
//! A directory's blocks are a ZAP from names to (object, file type); "." and ".." are not stored. One that
//! holds nothing has no block. Its size attribute is the number of entries + 2, its link count that of
//! subdirectories + 2.

use crate::acl_files::reserve_late;
use crate::ahead;
use crate::attr::{Attributes, SYMLINK_INLINE_BYTES, kind_of, object_kind, stored};
use crate::claims::{Claims, Need, UNLINKED_META_BLOCKS, sum};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hint;
use crate::hold::InodeRef;
use crate::inode::{Inode, KIND_DIR, Named, State, check_name, is_dots};
use crate::inode_flags;
use crate::perm;
use crate::types::{Attr, Cred, DirEntry, Ino, LINK_MAX, Reading, SYMLINK_MAX, mode};
use std::sync::Arc;
use terrane_object::dnode::Dnode;
use terrane_object::{Cost, Object, ObjectSpec, Tx};
use terrane_sa::{Attr as SaAttr, SaBuffer, ZplAttrs};
use terrane_zap::{Cursor, KeyRef, ValueRef};

/// Offsets of "." and "..", and the first ones after them. Every offset after a name is at least 2^28.
const OFFSET_PARENT: u64 = 1;
const OFFSET_NAMES: u64 = 2;
const OFFSET_NAMES_LAST: u64 = 3;
/// Entries read under one lock.
const BATCH_FIRST: usize = 32;
const BATCH_MAX: usize = 1024;
/// A file to be made.
pub(crate) struct NewFile<'a> {
    pub bits: u32,
    pub rdev: Option<u32>,
    pub target: Option<&'a [u8]>,
    pub cred: &'a Cred,
}

impl Fs {
    /// A name that is to be made: "." and ".." are always there. `EILSEQ`: it is not UTF-8, and the data set takes nothing else.
    pub(crate) fn check_new_name(&self, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        if is_dots(name) {
            return Err(Errno::EEXIST);
        }
        if self.naming.takes(name) { Ok(()) } else { Err(Errno::EILSEQ) }
    }

    /// Whether no other name can mean what this one does: then all that is known of this name is true until it changes itself.
    pub fn is_alone(&self, name: &[u8]) -> bool {
        self.naming.is_alone(name)
    }

    /// What a name means; "." and ".." are understood. Adds one to the lookup count.
    ///
    /// "." of whatever has a number means that itself: so the kernel asks for an inode that it knows by a file handle only.
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
            _ => self.child(&dir, name)?.ok_or(Errno::ENOENT)?.0,
        };
        inode.count_lookup();
        let state = inode.read();
        Ok(self.attr(&inode, &state))
    }

    /// What adding a name to `dir` needs, or giving it another meaning.
    pub(crate) fn need_to_name<'a>(
        &self,
        dir: &'a InodeRef<'_>,
        name: &[u8],
    ) -> Result<(&'a Claims, Need), Errno> {
        let cost = dir.read().names()?.put_cost(name.len(), ValueRef::U64s(&[0]));
        Ok((&dir.claims, Need::names(cost)))
    }

    /// What removing a name from `dir` needs.
    pub(crate) fn need_to_remove<'a>(&self, dir: &'a InodeRef<'_>) -> Result<(&'a Claims, Need), Errno> {
        Ok((&dir.claims, Need::names(dir.read().names()?.remove_cost())))
    }

    /// A regular file. `EEXIST` if the name is there.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        let bits = mode::S_IFREG | mode & mode::PERMISSIONS;
        self.make(dir, name, NewFile { bits, rdev: None, target: None, cred })
    }

    /// Any file but a directory or a symbolic link. `rdev` counts for devices only.
    pub fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u32, cred: &Cred) -> Result<Attr, Errno> {
        // No type at all means a regular file, as in mknod(2).
        let file_type = if mode & mode::S_IFMT == 0 { mode::S_IFREG } else { mode & mode::S_IFMT };
        let rdev = match file_type {
            mode::S_IFBLK | mode::S_IFCHR => Some(rdev),
            mode::S_IFREG | mode::S_IFIFO | mode::S_IFSOCK => None,
            mode::S_IFDIR => return Err(Errno::EPERM),
            _ => return Err(Errno::EINVAL),
        };
        self.make(dir, name, NewFile { bits: file_type | mode & mode::PERMISSIONS, rdev, target: None, cred })
    }

    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        let bits = mode::S_IFDIR | mode & mode::PERMISSIONS;
        self.make(dir, name, NewFile { bits, rdev: None, target: None, cred })
    }

    /// `target` is kept as it is: 1 to 4095 bytes without NUL.
    pub fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], cred: &Cred) -> Result<Attr, Errno> {
        match target.len() {
            0 => return Err(Errno::ENOENT),
            len if len > SYMLINK_MAX => return Err(Errno::ENAMETOOLONG),
            _ if target.contains(&0) => return Err(Errno::EINVAL),
            _ => {}
        }
        self.make(dir, name, NewFile { bits: mode::S_IFLNK | 0o777, rdev: None, target: Some(target), cred })
    }

    fn make(&self, dir: Ino, name: &[u8], file: NewFile<'_>) -> Result<Attr, Errno> {
        self.check_new_name(name)?;
        let dir = self.hold(dir)?;
        let lists = Fs::inherit_cost(self.default_acl(&dir, &dir.read(), file.bits)?.as_ref());
        let target = Cost { write_bytes: file.target.map_or(0, <[u8]>::len) as u64, ..Cost::NOTHING };
        let new = (&self.claims_of_new, Need::attrs());
        // Declared first, so that it is dropped after the transaction.
        let inode;
        let tx = self.begin(sum([target, lists]), &[self.need_to_name(&dir, name)?, new])?;
        let mut parent = dir.write();
        parent.check_live_dir()?;
        if parent.find(name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        parent.check_takes_names()?;
        let is_dir = file.bits & mode::S_IFMT == mode::S_IFDIR;
        if is_dir && parent.attrs.zpl.links >= u64::from(LINK_MAX) {
            return Err(Errno::EMLINK);
        }
        let links = if is_dir { 2 } else { 1 };
        let (object, attrs) = self.new_object(&tx, (&dir, &parent), &file, links, lists)?;
        let kind = kind_of(file.bits).ok_or(Errno::EINVAL)?;
        if let Err(errno) = parent.insert(&tx, name, Named { ino: object.id().0, kind }) {
            self.set.destroy(&tx, &object)?;
            return Err(errno);
        }
        if is_dir {
            parent.more_links();
        }
        parent.names_changed(attrs.zpl.crtime);
        self.save(&tx, &dir, &mut parent)?;
        inode = self.hold_new(&tx, object, attrs);
        inode.count_lookup();
        // The new number may be smaller than the directory's: its lock comes first, or alone.
        drop(parent);
        let state = inode.read();
        self.note_name(&inode, &state, dir.ino, name);
        Ok(self.attr(&inode, &state))
    }

    pub(crate) fn new_object(
        &self,
        tx: &Tx,
        (dir, parent): (&Inode, &State),
        file: &NewFile<'_>,
        links: u64,
        reserved: Cost,
    ) -> Result<(Arc<Object>, Attributes), Errno> {
        let default = self.default_acl(dir, parent, file.bits)?;
        if default.is_some() {
            reserve_late(tx, reserved);
        }
        let (gid, bits) = perm::inherit(&parent.attrs, file.bits, file.cred, default.as_ref());
        let now = stored(self.now());
        let is_dir = bits & mode::S_IFMT == mode::S_IFDIR;
        let inline = file.target.filter(|target| target.len() <= SYMLINK_INLINE_BYTES);
        let zpl = ZplAttrs {
            mode: u64::from(bits),
            size: if is_dir { 2 } else { file.target.map_or(0, <[u8]>::len) as u64 },
            // With the number it names the inode for ever: a number is not given twice in a group.
            generation: tx.txg().0,
            uid: u64::from(file.cred.uid),
            gid,
            parent: dir.ino,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links,
            rdev: file.rdev.map(u64::from),
            flags: hint::inherited(parent, bits) | inode_flags::inherited(parent, bits),
            symlink: inline.map(<[u8]>::to_vec),
            dxattr: default.and_then(|default| default.inherited(bits)),
            ..ZplAttrs::default()
        };
        let kind = object_kind(bits);
        let outside = file.target.filter(|_| inline.is_none());
        let data_bytes = outside.map_or(0, <[u8]>::len).next_multiple_of(512);
        let block_size = u32::try_from(data_bytes).unwrap_or(0).max(terrane_dataset::BLOCK_BYTES_FIRST);
        let list = zpl.to_list();
        let dnode_slots = self.widths.of_new(self.dataset().dnode_size(), &list);
        let encoded = self.layouts.encode(tx, &list, Dnode::bonus_max(dnode_slots))?;
        let bonus = encoded.bonus.as_bytes().to_vec();
        let spill = encoded.spill.map(SaBuffer::into_bytes);
        let object = self.set.create(tx, ObjectSpec { kind, block_size, dnode_slots, bonus, spill })?;
        self.claim_new(tx, object.id().0);
        if let Some(target) = outside {
            object.write(tx, 0, target)?;
        }
        Ok((object, Attributes::new(zpl, encoded.bonus)))
    }

    /// A regular file without a name, which a link may give it. It is destroyed when it is forgotten before that.
    pub fn tmpfile(&self, dir: Ino, mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        let dir = self.hold(dir)?;
        let bits = mode::S_IFREG | mode & mode::PERMISSIONS;
        let file = NewFile { bits, rdev: None, target: None, cred };
        // Declared first, so that it is dropped after the transaction.
        let inode;
        let lists = Fs::inherit_cost(self.default_acl(&dir, &dir.read(), bits)?.as_ref());
        let unlinked = Cost { meta_blocks: UNLINKED_META_BLOCKS, ..Cost::NOTHING };
        let new = (&self.claims_of_new, Need::attrs());
        let tx = self.begin(sum([unlinked, lists]), &[self.unlinked.need(), new])?;
        let (object, attrs) = {
            let parent = dir.read();
            parent.check_live_dir()?;
            parent.check_takes_names()?;
            self.new_object(&tx, (&dir, &parent), &file, 0, lists)?
        };
        // In the map before it is in the queue: draining destroys what is in the queue alone.
        inode = self.hold_new(&tx, object, attrs);
        let mut state = inode.write();
        state.linkable = true;
        Fs::expect_soon(&inode);
        self.unlinked.add(inode.ino);
        inode.count_lookup();
        Ok(self.attr(&inode, &state))
    }

    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let inode = self.hold(ino)?;
        let target = {
            let state = inode.read();
            if state.attrs.file_type() != mode::S_IFLNK {
                return Err(Errno::EINVAL);
            }
            match self.look(&inode, &state, |all| all.get(SaAttr::SYMLINK).map(<[u8]>::to_vec))? {
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

    /// Shows the names from `offset` on (0: all) until `each` says false. Offsets are places in the order of
    /// names' hashes: a name that is there during the whole walk is shown once, whatever happens to others. No
    /// lock is held while `each` runs.
    pub fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        self.readdir_as(dir, offset, Reading::default(), each)
    }

    /// The same, by what the directory was opened with.
    pub fn readdir_as(
        &self,
        dir: Ino,
        offset: u64,
        how: Reading,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let dir = self.hold(dir)?;
        self.walk(&dir, offset, how, &mut |_| (), &mut |entry, ()| each(entry))
    }

    /// As [`readdir`](Self::readdir), with the attributes of what the names mean; "." and "..", and names whose inode was removed
    /// meanwhile or cannot be read, come without. Each attribute that `each` took (it said true) adds one to the
    /// lookup count.
    pub fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<(), Errno> {
        self.readdir_plus_as(dir, offset, Reading::default(), each)
    }

    /// The same, by what the directory was opened with.
    pub fn readdir_plus_as(
        &self,
        dir: Ino,
        offset: u64,
        how: Reading,
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
        self.walk(&dir, offset, how, &mut |ino| Some(self.enter(ino)), &mut show)
    }

    /// `hold` is called for each name's object while the directory is locked, `each` when it is not.
    fn walk<T: Default>(
        &self,
        dir: &InodeRef<'_>,
        offset: u64,
        how: Reading,
        hold: &mut dyn FnMut(Ino) -> T,
        each: &mut dyn FnMut(DirEntry<'_>, T) -> bool,
    ) -> Result<(), Errno> {
        let parent = {
            let state = dir.read();
            state.names()?;
            state.attrs.zpl.parent
        };
        if !how.quiet {
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
            let next = self.ahead.lock().begins(dir.ino, parent);
            ahead::read(&self.set, &self.ready, next);
            let prepared = {
                let mut ready = self.ready.lock();
                let place = ready.iter().position(|(ino, _)| *ino == dir.ino);
                place.and_then(|place| ready.remove(place))
            };
            if let Some((_, prepared)) = prepared {
                dir.read().names()?.adopt(prepared)?;
            }
        }
        let (mut subdirs, mut shown_to) = (Vec::new(), offset);
        let outcome = show_names(dir, offset, hold, &mut |entry, held| {
            let (ino, kind, next) = (entry.ino, entry.kind, entry.next);
            let taken = each(entry, held);
            if taken {
                shown_to = next;
                if kind == KIND_DIR {
                    subdirs.push(ino);
                }
            }
            taken
        });
        self.ahead.lock().listed(dir.ino, offset, &subdirs, shown_to);
        outcome
    }
}

/// The names of a directory that are stored, from `offset` on (0: all).
fn show_names<T>(
    dir: &InodeRef<'_>,
    offset: u64,
    hold: &mut dyn FnMut(Ino) -> T,
    each: &mut dyn FnMut(DirEntry<'_>, T) -> bool,
) -> Result<(), Errno> {
    let mut cursor = if offset == 0 { Cursor::START } else { Cursor::from_u64(offset) };
    let mut batch = BATCH_FIRST;
    let (mut names, mut rows) = (Vec::new(), Vec::with_capacity(BATCH_FIRST));
    loop {
        names.clear();
        let is_last = dir.read().names()?.visit(cursor, &mut |entry| {
            cursor = entry.after;
            if let (KeyRef::Name(name), Some(value)) = (entry.key, entry.first) {
                let named = Named::from_value(value);
                names.extend_from_slice(name);
                rows.push((named, entry.after.to_u64(), names.len(), hold(named.ino)));
            }
            rows.len() < batch
        })?;
        let mut from = 0;
        for (named, next, to, held) in rows.drain(..) {
            let name = names.get(from..to).unwrap_or(&[]);
            from = to;
            if !each(DirEntry { name, ino: named.ino, kind: named.kind, next }, held) {
                return Ok(());
            }
        }
        if is_last {
            // The indexes of directories that are listed once would fill the memory.
            if let Some(mut state) = dir.try_write() {
                state.names_mut()?.listed();
            }
            return Ok(());
        }
        batch = (batch * 2).min(BATCH_MAX);
    }
}
