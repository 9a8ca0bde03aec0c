//! Hidden directories: extended attributes stored as objects.
//!
//! An inode gets a hidden directory if an attribute does not fit its list, or if `xattr=dir`. Only that inode
//! refers to the directory. Its entries are the full attribute names, and their objects hold the values. All
//! these objects carry `ZFS_XATTR` in their flags, change under the inode's lock alone, and are destroyed with
//! it. Callers never see their numbers.
//!
//! A value is replaced by creating a new object and pointing the name to it. So any failure leaves the old
//! value.

use crate::attr::{Attributes, FLAG_XATTR, encode_time};
use crate::claims::{DNODE_META_BLOCKS, FREES, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::{ChildRef, KIND_FILE, State};
use crate::intents::Intent;
use crate::operation::{Change, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::types::{Ino, XATTR_SIZE_MAX, mode};
use smallvec::smallvec;
use std::sync::Arc;
use terrane_dataset::{FLAG_PROJECT, INITIAL_BLOCK_BYTES, ObjectZap, ZapError};
use terrane_object::dnode::Dnode;
use terrane_object::{Object, ObjectError, ObjectKind, ObjectSpec};
use terrane_pool::Tx;
use terrane_sa::{Attr, SaBuffer, ZplAttrs};
use terrane_txg::cost::Cost;
use terrane_wire::{Corrupt, ObjectId};
use terrane_zap::{Cursor, KeyRef, ValueRef};

/// Values destroyed in one transaction. Each may dirty its own dnode block.
const DESTROY_STEP: usize = 16;
/// Bytes that the first name of a new hidden directory dirties.
const FIRST_NAME_BYTES: u64 = 1024;

/// The open hidden directory of one inode.
pub(crate) struct XattrDir {
    names: ObjectZap,
    attrs: Attributes,
}

impl XattrDir {
    /// Object number of the directory.
    pub fn id(&self) -> u64 {
        self.names.object().id().0
    }

    /// The object that holds the value of a name.
    pub fn find(&self, name: &[u8]) -> Result<Option<Ino>, Errno> {
        Ok(self.names.lookup_u64(name)?.map(|value| ChildRef::from_value(value).ino))
    }

    /// Calls `each` for all names.
    pub fn each_name(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), Errno> {
        self.names.visit(Cursor::START, &mut |entry| {
            if let KeyRef::Name(name) = entry.key {
                each(name);
            }
            true
        })?;
        Ok(())
    }

    /// Number of names.
    pub fn count(&self) -> Result<u64, Errno> {
        Ok(self.names.len()?)
    }

    fn numbers(&self, max: usize) -> Result<Vec<(Vec<u8>, Ino)>, ObjectError> {
        let entries = self.names.list(Cursor::START, max).map_err(|error| match error {
            ZapError::Store(error) => error,
            other => Corrupt::new(format!("object {}", self.id()), "names", "readable", other).into(),
        })?;
        let number = |value: u64| ChildRef::from_value(value).ino;
        Ok(entries
            .iter()
            .filter_map(|entry| Some((entry.key.name()?.to_vec(), number(entry.value.first_integer()?))))
            .collect())
    }
}

/// A value whose name is being removed; an error if it is damaged.
struct OldValue {
    number: Ino,
    object: Result<Arc<Object>, ObjectError>,
}

/// Some names of a hidden directory that is being destroyed, with their values.
pub(crate) struct XattrDirPiece {
    xattr_dir: XattrDir,
    values: Vec<(Vec<u8>, OldValue)>,
    is_last: bool,
}

/// Gives hidden objects of an inode its owners.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveXattrOwners<'a> {
    pub ino: Ino,
    /// The objects, and the parents that their attributes should name.
    pub objects: &'a [(Ino, ObjectKind, Ino)],
}

impl Operation for MoveXattrOwners<'_> {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        Ok(HoldResult::Held(fs.hold(self.ino)?))
    }

    fn cost<'h>(&self, _: &'h Fs, inode: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        let objects = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
        let meta_blocks = objects.saturating_mul(DNODE_META_BLOCKS);
        let cost = Cost { meta_blocks, objects, ..Cost::NOTHING };
        Ok(OperationCost { cost, needs: smallvec![(&inode.claims, Need::attrs())] })
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let (fs, tx) = (change.fs, change.tx);
        let state = change.locked.get(inode.ino);
        for (number, kind, parent) in self.objects {
            match fs.open_xattr_object(*number, *kind, *parent) {
                Ok((object, attrs)) => fs.give_xattr_object(tx, state, &object, attrs)?,
                // It was removed meanwhile, or is damaged: others report that.
                Err(error) if !error.is_transient() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome::Saved(()))
    }

    /// Callers never see these objects. A replay of what changed the owners moves them again.
    fn intent(&self, _: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        Intent::Nothing
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

impl Fs {
    /// The hidden directory of an inode and the values in it, with their kinds and parents.
    pub(crate) fn xattr_objects(
        &self,
        owner: Ino,
        number: u64,
    ) -> Result<Vec<(Ino, ObjectKind, Ino)>, ObjectError> {
        let values = self.open_xattr_dir(owner, number)?.numbers(usize::MAX)?;
        let values = values.into_iter().map(|(_, value)| (value, ObjectKind::File, number));
        Ok([(number, ObjectKind::Directory, owner)].into_iter().chain(values).collect())
    }

    /// Stores the owners of `owner` with one of its hidden objects.
    fn give_xattr_object(
        &self,
        tx: &Tx,
        owner: &State,
        object: &Arc<Object>,
        mut attrs: Attributes,
    ) -> Result<(), Errno> {
        let of_owner = &owner.attrs.zpl;
        let project = of_owner.projid.or(attrs.zpl.projid.map(|_| 0));
        if (attrs.zpl.uid, attrs.zpl.gid, attrs.zpl.projid) == (of_owner.uid, of_owner.gid, project) {
            return Ok(());
        }
        (attrs.zpl.uid, attrs.zpl.gid) = (of_owner.uid, of_owner.gid);
        if let Some(project) = project {
            attrs.zpl.flags |= FLAG_PROJECT;
            attrs.zpl.projid = Some(project);
        }
        let mut list = attrs.current_list(None)?;
        if let Some(project) = project {
            list.set_behind(Attr::LINKS, Attr::PROJID, &project.to_le_bytes());
        }
        self.claim_new(tx, object.id().0);
        let encoded = self.layouts.encode(tx, &list, object.bonus_max())?;
        object.set_attributes(
            tx,
            encoded.bonus.as_bytes().to_vec(),
            encoded.spill.map(SaBuffer::into_bytes),
        )?;
        Ok(())
    }

    /// Opens the hidden directory of `owner`.
    pub(crate) fn open_xattr_dir(&self, owner: Ino, number: u64) -> Result<XattrDir, ObjectError> {
        let (object, attrs) = self.open_xattr_object(number, ObjectKind::Directory, owner)?;
        let names = ObjectZap::new(self.dataset().zap_policy(), object);
        Ok(XattrDir { names, attrs })
    }

    /// Opens an object of a hidden directory. One that is missing, of another kind or not owned by `parent` is damage.
    fn open_xattr_object(
        &self,
        number: u64,
        kind: ObjectKind,
        parent: Ino,
    ) -> Result<(Arc<Object>, Attributes), ObjectError> {
        let wrong = |expected: &str, found: &dyn std::fmt::Display| {
            let at = format!("object {number}, extended attributes of object {parent}");
            ObjectError::from(Corrupt::new(at, "object", expected, found))
        };
        let object = match self.set.hold(ObjectId(number)) {
            Err(ObjectError::NotFound(_)) => return Err(wrong("a child of this inode", &"none")),
            held => held?,
        };
        if object.kind() != kind {
            return Err(wrong(&format!("{kind:?}"), &format_args!("{:?}", object.kind())));
        }
        let attrs = Attributes::decode(number, &object.bonus(), &self.layouts.table())?;
        if attrs.zpl.flags & FLAG_XATTR == 0 || attrs.zpl.parent != parent {
            return Err(wrong("a child of this inode", &format_args!("of object {}", attrs.zpl.parent)));
        }
        Ok((object, attrs))
    }

    /// Appends a value to `out`.
    pub(crate) fn read_xattr_value(
        &self,
        xattr_dir: &XattrDir,
        number: Ino,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let (object, attrs) = self.open_xattr_object(number, ObjectKind::File, xattr_dir.id())?;
        let size = usize::try_from(attrs.zpl.size).ok().filter(|size| *size <= XATTR_SIZE_MAX);
        let size = size.ok_or_else(|| {
            let at = format!("object {number}, an extended attribute");
            Errno::from(Corrupt::new(at, "size", format_args!("at most {XATTR_SIZE_MAX}"), attrs.zpl.size))
        })?;
        let start = out.len();
        out.resize(start + size, 0);
        let read = object.read(0, out.get_mut(start..).unwrap_or_default());
        read.inspect_err(|_| out.truncate(start))?;
        Ok(())
    }

    /// Upper bound of what [`put_in_xattr_dir`](Self::put_in_xattr_dir) dirties. Dnode blocks are claimed when
    /// objects are created.
    pub(crate) fn xattr_dir_put_cost(xattr_dir: Option<&XattrDir>, name: &[u8], value: &[u8]) -> Cost {
        let names = xattr_dir.map_or(FIRST_NAME_BYTES, |xattr_dir| {
            xattr_dir.names.put_cost(name.len(), ValueRef::U64s(&[0])).bytes
        });
        Cost {
            write_bytes: (value.len() as u64).next_multiple_of(512),
            meta_bytes: names,
            meta_blocks: 2 * DNODE_META_BLOCKS,
            objects: 3,
            ..Cost::NOTHING
        }
    }

    fn new_xattr_object(
        &self,
        tx: &Tx,
        owner: &State,
        parent: Ino,
        bits: u32,
        size: usize,
    ) -> Result<(Arc<Object>, Attributes), Errno> {
        let is_dir = bits & mode::S_IFMT == mode::S_IFDIR;
        let now = encode_time(self.now());
        let zpl = ZplAttrs {
            mode: u64::from(bits),
            size: size as u64,
            generation: tx.txg().0,
            uid: owner.attrs.zpl.uid,
            gid: owner.attrs.zpl.gid,
            parent,
            projid: owner.attrs.zpl.projid,
            flags: FLAG_XATTR | owner.attrs.zpl.flags & FLAG_PROJECT,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links: if is_dir { 2 } else { 1 },
            ..ZplAttrs::default()
        };
        let (kind, block_size) = match is_dir {
            true => (ObjectKind::Directory, INITIAL_BLOCK_BYTES),
            false => {
                (ObjectKind::File, u32::try_from(size).unwrap_or(u32::MAX).next_multiple_of(512).max(512))
            }
        };
        let encoded = self.layouts.encode(tx, &zpl.to_list(), Dnode::bonus_max(1))?;
        let bonus = encoded.bonus.as_bytes().to_vec();
        let object =
            self.set.create(tx, ObjectSpec { kind, block_size, dnode_slots: 1, bonus, spill: None })?;
        self.claim_new(tx, object.id().0);
        Ok((object, Attributes::new(zpl, encoded.bonus)))
    }

    /// Sets a value in the hidden directory of `owner`, or in a new one. The caller stores a new one's number
    /// in the inode.
    pub(crate) fn put_in_xattr_dir(
        &self,
        tx: &Tx,
        owner_ino: Ino,
        owner: &State,
        xattr_dir: Option<XattrDir>,
        (name, value): (&[u8], &[u8]),
    ) -> Result<XattrDir, Errno> {
        let mut created = None;
        let mut xattr_dir = match xattr_dir {
            Some(xattr_dir) => xattr_dir,
            None => {
                let (object, attrs) =
                    self.new_xattr_object(tx, owner, owner_ino, mode::S_IFDIR | 0o700, 2)?;
                created = Some(Arc::clone(&object));
                let names = ObjectZap::new(self.dataset().zap_policy(), object);
                XattrDir { names, attrs }
            }
        };
        let put = self.put_value(tx, owner, &mut xattr_dir, name, value);
        if let (Err(_), Some(created)) = (&put, &created) {
            self.set.destroy(tx, created)?;
        }
        put.map(|()| xattr_dir)
    }

    fn put_value(
        &self,
        tx: &Tx,
        owner: &State,
        xattr_dir: &mut XattrDir,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Errno> {
        let old = xattr_dir.find(name)?;
        let old = old.map(|number| self.open_old_value(xattr_dir.id(), number)).transpose()?;
        let (object, _) =
            self.new_xattr_object(tx, owner, xattr_dir.id(), mode::S_IFREG | 0o600, value.len())?;
        let child = ChildRef { ino: object.id().0, kind: KIND_FILE };
        let put = object
            .write(tx, 0, value)
            .map_err(Errno::from)
            .and_then(|()| Ok(xattr_dir.names.update_u64(tx, name, child.to_value())?));
        if let Err(errno) = put {
            self.set.destroy(tx, &object)?;
            return Err(errno);
        }
        match old {
            Some(old) => self.destroy_value(tx, &old)?,
            None => xattr_dir.attrs.zpl.size += 1,
        }
        self.save_xattr_dir(tx, xattr_dir)
    }

    /// Stores the directory's attributes after its names changed.
    fn save_xattr_dir(&self, tx: &Tx, xattr_dir: &mut XattrDir) -> Result<(), Errno> {
        let now = encode_time(self.now());
        (xattr_dir.attrs.zpl.mtime, xattr_dir.attrs.zpl.ctime) = (now, now);
        self.claim_new(tx, xattr_dir.id());
        xattr_dir.names.object().set_bonus(tx, xattr_dir.attrs.encode_bonus()?)?;
        Ok(())
    }

    /// Opens a value whose name is to be removed. A failed read is an error, and the name stays. Damage is none, so
    /// that the name can still be replaced or removed.
    fn open_old_value(&self, xattr_dir: Ino, number: Ino) -> Result<OldValue, ObjectError> {
        match self.open_xattr_object(number, ObjectKind::File, xattr_dir) {
            Err(error) if error.is_transient() => Err(error),
            opened => Ok(OldValue { number, object: opened.map(|(object, _)| object) }),
        }
    }

    /// Destroys a value whose name was removed. A damaged value is left behind.
    fn destroy_value(&self, tx: &Tx, old: &OldValue) -> Result<(), Errno> {
        let number = old.number;
        match &old.object {
            Ok(object) => {
                self.claim_new(tx, number);
                match self.set.destroy(tx, object) {
                    // Two names led to it: damage.
                    Err(ObjectError::NotFound(_)) => {}
                    destroyed => destroyed?,
                }
            }
            Err(error) => log::error!("space leaked: object {number}, removed extended attribute: {error}"),
        }
        Ok(())
    }

    /// Removes an existing name. True: it was the last one, and the hidden directory was destroyed. The caller
    /// then removes its number from the inode.
    pub(crate) fn remove_from_xattr_dir(
        &self,
        tx: &Tx,
        xattr_dir: &mut XattrDir,
        name: &[u8],
    ) -> Result<bool, Errno> {
        let number = xattr_dir.find(name)?.ok_or(Errno::ENODATA)?;
        let old = self.open_old_value(xattr_dir.id(), number)?;
        xattr_dir.names.remove(tx, name)?;
        self.destroy_value(tx, &old)?;
        xattr_dir.attrs.zpl.size = xattr_dir.attrs.zpl.size.saturating_sub(1).max(2);
        if xattr_dir.names.is_empty()? {
            self.claim_new(tx, xattr_dir.id());
            self.set.destroy(tx, xattr_dir.names.object())?;
            return Ok(true);
        }
        self.save_xattr_dir(tx, xattr_dir)?;
        Ok(false)
    }

    /// Upper bound of what removing a name dirties.
    pub(crate) fn xattr_dir_remove_cost(xattr_dir: &XattrDir) -> Cost {
        Cost { meta_bytes: xattr_dir.names.remove_cost().bytes, objects: 2, ..FREES }
    }

    /// Upper bound of what destroying the last piece of a hidden directory dirties, directory included.
    pub(crate) fn xattr_dir_destroy_cost() -> Cost {
        let objects = DESTROY_STEP as u32 + 1;
        Cost { meta_blocks: objects * DNODE_META_BLOCKS, objects, ..FREES }
    }

    /// Reads what [`destroy_xattr_dir_piece`](Self::destroy_xattr_dir_piece) destroys.
    pub(crate) fn read_xattr_dir_piece(&self, owner: Ino, number: u64) -> Result<XattrDirPiece, ObjectError> {
        let xattr_dir = self.open_xattr_dir(owner, number)?;
        let mut names = xattr_dir.numbers(DESTROY_STEP + 1)?;
        let is_last = names.len() <= DESTROY_STEP;
        names.truncate(DESTROY_STEP);
        let open = |(name, value): (Vec<u8>, Ino)| Ok((name, self.open_old_value(number, value)?));
        let values = names.into_iter().map(open).collect::<Result<_, ObjectError>>()?;
        Ok(XattrDirPiece { xattr_dir, values, is_last })
    }

    /// Destroys a piece of the hidden directory of an inode that is being destroyed. True: all of it, directory
    /// included.
    pub(crate) fn destroy_xattr_dir_piece(
        &self,
        tx: &Tx,
        owner: Ino,
        piece: XattrDirPiece,
    ) -> Result<bool, Errno> {
        let XattrDirPiece { mut xattr_dir, values, is_last } = piece;
        let number = xattr_dir.id();
        for (name, value) in &values {
            // Otherwise the next call would find the same names again.
            if !is_last && !xattr_dir.names.remove(tx, &name[..])? {
                let at = format!("object {number}, extended attributes of object {owner}");
                return Err(Corrupt::new(at, "name", "found again by lookup", name.escape_ascii()).into());
            }
            self.destroy_value(tx, value)?;
        }
        if is_last {
            self.set.destroy(tx, xattr_dir.names.object())?;
        } else {
            xattr_dir.attrs.zpl.size = xattr_dir.attrs.zpl.size.saturating_sub(DESTROY_STEP as u64).max(2);
            self.save_xattr_dir(tx, &mut xattr_dir)?;
        }
        Ok(is_last)
    }

    /// Destroys a hidden directory that cannot be read in full. Its values are leaked.
    pub(crate) fn leak_xattr_dir(&self, tx: &Tx, owner: Ino, number: u64) -> Result<(), Errno> {
        log::error!("space leaked: extended attributes of object {owner} are partly unreadable");
        if let Ok((object, _)) = self.open_xattr_object(number, ObjectKind::Directory, owner) {
            self.set.destroy(tx, &object)?;
        }
        Ok(())
    }
}
