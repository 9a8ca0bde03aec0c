//! New files and directories, with and without a name.

use crate::acl_files::{inherited_attributes, reserve_late};
use crate::attr::{
    Attributes, FLAG_HINT_RULES, SYMLINK_INLINE_BYTES, encode_time, kind_of, low32, object_kind,
};
use crate::claims::{Need, UNLINKED, sum};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hint;
use crate::hold::InodeRef;
use crate::inode::{ChildRef, Inode, State};
use crate::inode_flags;
use crate::intents::Intent;
use crate::new_file::NewFile;
use crate::operation::{
    Change, Charges, HoldResult, Locks, NAMES_RECORD_BYTES_MAX, Operation, OperationCost, Outcome, to_lock,
};
use crate::perm::{self, Inherited};
use crate::project::{META_COPIES, entry_bytes};
use crate::record::{NewInode, Record};
use crate::types::{Attr, Cred, EntryWords, Ino, LINK_MAX, Time, mode};
use smallvec::smallvec;
use std::sync::Arc;
use terrane_dataset::{Charge, FLAG_PROJECT};
use terrane_object::dnode::Dnode;
use terrane_object::{Object, ObjectSpec, Owners};
use terrane_pool::Tx;
use terrane_sa::{SaBuffer, ZplAttrs};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

impl NewFile<'_> {
    /// What the file takes for its owners, as an entry of this directory.
    fn charges(&self, parent: &State, name: &[u8]) -> Charges {
        let Inherited { gid, .. } = perm::inherit(&parent.attrs, self.bits, &self.cred, None);
        let owners = Owners { user: self.cred.uid, group: low32(gid), project: parent.inherited_project() };
        // The directory may have other owners. Usually they are the same.
        let bytes = self.target_bytes().saturating_mul(META_COPIES).saturating_add(entry_bytes(name));
        smallvec![Charge::of(owners, bytes, 1)]
    }
}

/// How a new inode is made.
pub(crate) struct Making<'a> {
    pub tx: &'a Tx,
    /// Its four times.
    pub now: Time,
    /// What it was when it was made for the first time.
    pub given: Option<NewInode>,
}

/// What a record says of a new inode.
pub(crate) fn new_inode(object: &Object, attrs: &Attributes) -> NewInode {
    let (generation, dnode_slots) = (attrs.zpl.generation, object.dnode_slots());
    NewInode { ino: object.id().0, generation, dnode_slots }
}

/// The directory in which a file is created.
pub(crate) struct HeldParent<'f> {
    dir: InodeRef<'f>,
    /// Cost of the ACLs that the file inherits.
    acl_cost: Cost,
}

impl<'f> HeldParent<'f> {
    fn of(fs: &'f Fs, dir: Ino, file: &NewFile<'_>) -> Result<Self, Errno> {
        let dir = fs.hold(dir)?;
        let acl_cost = fs.inherit_cost_in(&dir, file.bits)?;
        Ok(HeldParent { dir, acl_cost })
    }
}

/// `create`, `mknod`, `mkdir`, `symlink`: a file under a new name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateFile<'a> {
    /// Directory that gets the name.
    pub dir: Ino,
    pub name: &'a [u8],
    pub file: NewFile<'a>,
    /// Stored beside the name.
    pub words: EntryWords,
}

impl Operation for CreateFile<'_> {
    type Held<'f> = HeldParent<'f>;
    type Done = (Arc<Object>, Attributes);
    type Answer = Attr;

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldParent<'f>, Attr>, Errno> {
        fs.check_new_name(self.name)?;
        HeldParent::of(fs, self.dir, &self.file).map(HoldResult::Held)
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldParent<'_>) -> Result<OperationCost<'h>, Errno> {
        let target = Cost { write_bytes: self.file.target_bytes(), ..Cost::NOTHING };
        let needs = smallvec![
            fs.name_add_need(&held.dir, self.name, &self.words)?,
            (&fs.claims_of_new, Need::attrs())
        ];
        Ok(OperationCost { cost: sum([target, held.acl_cost]), needs })
    }

    fn charges(&self, _: &Fs, held: &HeldParent<'_>) -> Result<Charges, Errno> {
        Ok(self.file.charges(&held.dir.read(), self.name))
    }

    fn record_bytes_max(&self) -> usize {
        NAMES_RECORD_BYTES_MAX + self.file.target.map_or(0, <[u8]>::len)
    }

    fn locks<'h>(held: &'h HeldParent<'_>) -> Locks<'h> {
        to_lock([&held.dir])
    }

    fn run<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &HeldParent<'f>,
    ) -> Result<Outcome<Self::Done>, Errno> {
        let (fs, tx, now) = (change.fs, change.tx, change.now);
        let parent = change.locked.get(held.dir.ino);
        parent.check_linked_dir()?;
        if parent.find(self.name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        parent.check_can_add_name()?;
        let is_dir = self.file.is_dir();
        if is_dir && parent.attrs.zpl.links >= u64::from(LINK_MAX) {
            return Err(Errno::EMLINK);
        }
        let links = if is_dir { 2 } else { 1 };
        let making = Making { tx, now, given: change.given };
        let (object, attrs) =
            fs.new_object(making, (&held.dir, parent, Some(self.name)), &self.file, links, held.acl_cost)?;
        let kind = kind_of(self.file.bits).ok_or(Errno::EINVAL)?;
        let child = ChildRef { ino: object.id().0, kind };
        if let Err(errno) = parent.insert(tx, self.name, child, &self.words) {
            fs.set.destroy(tx, &object)?;
            return Err(errno);
        }
        if is_dir {
            parent.add_link();
        }
        parent.note_names_changed(attrs.zpl.crtime);
        Ok(Outcome::Changed((object, attrs)))
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &HeldParent<'_>, (object, attrs): &Self::Done) -> Intent<'_> {
        let CreateFile { dir, name, file, words } = *self;
        Intent::Names(Record::CreateFile { dir, name, words, file, new: new_inode(object, attrs) })
    }

    fn end<'f>(
        &self,
        change: Change<'_, 'f>,
        held: &HeldParent<'f>,
        (object, attrs): Self::Done,
    ) -> Result<Attr, Errno> {
        let Change { fs, tx, locked, new, .. } = change;
        // Added to the map while the directory is locked.
        let inode = new.insert(fs.hold_new(tx, object, attrs));
        inode.count_lookup();
        // The new number may be smaller than the directory's. Lock order then demands that this lock is taken
        // alone.
        drop(locked);
        let state = inode.read();
        fs.note_name(inode, &state, held.dir.ino, self.name);
        Ok(fs.attr(inode, &state))
    }
}

/// `O_TMPFILE`: a file without a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateTmpfile<'a> {
    /// Directory whose group and default ACL the file inherits.
    pub dir: Ino,
    pub file: NewFile<'a>,
}

impl Operation for CreateTmpfile<'_> {
    type Held<'f> = HeldParent<'f>;
    type Done = (Arc<Object>, Attributes);
    type Answer = Attr;

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldParent<'f>, Attr>, Errno> {
        HeldParent::of(fs, self.dir, &self.file).map(HoldResult::Held)
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldParent<'_>) -> Result<OperationCost<'h>, Errno> {
        let needs = smallvec![fs.unlinked.need(), (&fs.claims_of_new, Need::attrs())];
        Ok(OperationCost { cost: sum([UNLINKED, held.acl_cost]), needs })
    }

    fn charges(&self, _: &Fs, held: &HeldParent<'_>) -> Result<Charges, Errno> {
        Ok(self.file.charges(&held.dir.read(), b""))
    }

    /// The directory does not change. It is locked so that what the file inherits does not change before the file is
    /// recorded.
    fn locks<'h>(held: &'h HeldParent<'_>) -> Locks<'h> {
        to_lock([&held.dir])
    }

    fn run<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &HeldParent<'f>,
    ) -> Result<Outcome<Self::Done>, Errno> {
        let making = Making { tx: change.tx, now: change.now, given: change.given };
        let parent = change.locked.get(held.dir.ino);
        parent.check_linked_dir()?;
        parent.check_can_add_name()?;
        let created =
            change.fs.new_object(making, (&held.dir, parent, None), &self.file, 0, held.acl_cost)?;
        Ok(Outcome::Saved(created))
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &HeldParent<'_>, (object, attrs): &Self::Done) -> Intent<'_> {
        let CreateTmpfile { dir, file } = *self;
        Intent::Names(Record::CreateTmpfile { dir, file, new: new_inode(object, attrs) })
    }

    fn end<'f>(
        &self,
        change: Change<'_, 'f>,
        _: &HeldParent<'f>,
        (object, attrs): Self::Done,
    ) -> Result<Attr, Errno> {
        let Change { fs, tx, locked, new, .. } = change;
        drop(locked);
        // In the map before it is in the queue: draining destroys objects that are in the queue only.
        let inode = new.insert(fs.hold_new(tx, object, attrs));
        let mut state = inode.write();
        state.linkable = true;
        Fs::expect_short_life(inode);
        fs.unlinked.add(inode.ino);
        inode.count_lookup();
        Ok(fs.attr(inode, &state))
    }
}

impl Fs {
    fn create_file(&self, dir: Ino, name: &[u8], file: NewFile<'_>) -> Result<Attr, Errno> {
        self.execute(&CreateFile { dir, name, file, words: EntryWords::NONE })
    }

    /// Creates a regular file. `EEXIST`: the name exists.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        self.create_file(dir, name, NewFile::regular(mode, cred))
    }

    /// Creates any file except a directory or a symlink. `rdev` matters for devices only.
    pub fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u32, cred: &Cred) -> Result<Attr, Errno> {
        self.create_file(dir, name, NewFile::node(mode, rdev, cred)?)
    }

    /// Creates an empty directory. `EEXIST`: the name exists.
    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        self.create_file(dir, name, NewFile::directory(mode, cred))
    }

    /// Creates a symlink. `target` is stored as is: 1 to 4095 bytes without NUL.
    pub fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], cred: &Cred) -> Result<Attr, Errno> {
        self.create_file(dir, name, NewFile::symlink(target, cred)?)
    }

    /// Creates a regular file without a name, which a link may give it. It is destroyed if the kernel
    /// forgets it before that.
    pub fn tmpfile(&self, dir: Ino, mode: u32, cred: &Cred) -> Result<Attr, Errno> {
        self.execute(&CreateTmpfile { dir, file: NewFile::regular(mode, cred) })
    }

    /// Upper bound of what the ACLs and hint rules dirty that a file with these bits inherits.
    pub(crate) fn inherit_cost_in(&self, dir: &InodeRef<'_>, bits: u32) -> Result<Cost, Errno> {
        let state = dir.read();
        let rules = self.inherited_hint_rules(dir, &state, bits);
        Ok(Fs::inherit_cost(self.default_acl(dir, &state, bits)?.as_ref(), rules.as_deref()))
    }

    /// Creates the object of a new file, with what it inherits. `name`: if it gets one. `reserved` is the
    /// computed cost of its ACLs and hint rules.
    pub(crate) fn new_object(
        &self,
        Making { tx, now, given }: Making<'_>,
        (dir, parent, name): (&Inode, &State, Option<&[u8]>),
        file: &NewFile<'_>,
        links: u64,
        reserved: Cost,
    ) -> Result<(Arc<Object>, Attributes), Errno> {
        let default = self.default_acl(dir, parent, file.bits)?;
        let rules = self.inherited_hint_rules(dir, parent, file.bits);
        if default.is_some() || rules.is_some() {
            reserve_late(tx, reserved);
        }
        let Inherited { gid, bits } = perm::inherit(&parent.attrs, file.bits, &file.cred, default.as_ref());
        let now = encode_time(now);
        let is_dir = bits & mode::S_IFMT == mode::S_IFDIR;
        let rule = name.filter(|_| !is_dir).and_then(|name| self.hint_by_rule(dir, parent, name));
        let hint_rules_flag = if rules.is_some() { FLAG_HINT_RULES } else { 0 };
        let project = Some(parent.inherited_project()).filter(|project| *project != 0);
        let inline = file.target.filter(|target| target.len() <= SYMLINK_INLINE_BYTES);
        let zpl = ZplAttrs {
            mode: u64::from(bits),
            size: if is_dir { 2 } else { file.target_bytes() },
            // Number and generation identify the inode for good: a number is not reused within a txg.
            generation: given.map_or(tx.txg().0, |given| given.generation),
            uid: u64::from(file.cred.uid),
            gid,
            parent: dir.ino,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links,
            projid: project.map(u64::from),
            rdev: file.rdev.map(u64::from),
            flags: hint::inherited(parent, bits, rule)
                | hint_rules_flag
                | project.map_or(0, |_| FLAG_PROJECT)
                | inode_flags::inherited(parent, bits),
            symlink: inline.map(<[u8]>::to_vec),
            dxattr: inherited_attributes(default.as_ref(), rules.as_deref(), bits),
            ..ZplAttrs::default()
        };
        let kind = object_kind(bits);
        let content_target = file.target.filter(|_| inline.is_none());
        let data_bytes = content_target.map_or(0, <[u8]>::len).next_multiple_of(512);
        let block_size = u32::try_from(data_bytes).unwrap_or(0).max(terrane_dataset::INITIAL_BLOCK_BYTES);
        let list = zpl.to_list();
        self.note_attr_uses(&list);
        let dnode_slots = match given {
            Some(given) => given.dnode_slots,
            None => self.dnode_sizing.slots_for_new(self.dataset().dnode_size(), &list),
        };
        let encoded = self.layouts.encode(tx, &list, Dnode::bonus_max(dnode_slots))?;
        let bonus = encoded.bonus.as_bytes().to_vec();
        let spill = encoded.spill.map(SaBuffer::into_bytes);
        let spec = ObjectSpec { kind, block_size, dnode_slots, bonus, spill };
        let object = match given {
            Some(given) => self.set.create_numbered(tx, spec, ObjectId(given.ino))?,
            None => self.set.create(tx, spec)?,
        };
        self.claim_new(tx, object.id().0);
        if let Some(target) = content_target {
            object.write(tx, 0, target)?;
        }
        Ok((object, Attributes::new(zpl, encoded.bonus)))
    }
}
