//! Hidden directories: extended attributes stored as objects.
//!
//! An inode gets a hidden directory if an attribute does not fit its list, or if `xattr=dir`. Only that inode
//! refers to the directory. Its entries are the full attribute names, and their objects hold the values. All
//! these objects carry `ZFS_XATTR` in their flags, change under the inode's lock alone, and are destroyed with
//! it. Callers never see their numbers.
//!
//! A value is replaced by creating a new object and pointing the name to it. So any failure leaves the old
//! value.

use crate::attr::{Attributes, FLAG_XATTR, stored};
use crate::claims::FREES;
use crate::errno::{Errno, damaged};
use crate::fs::Fs;
use crate::inode::{KIND_FILE, Named, State};
use crate::types::{Ino, XATTR_SIZE_MAX, mode};
use std::sync::Arc;
use terrane_dataset::{BLOCK_BYTES_FIRST, Naming, ObjectZap};
use terrane_object::dnode::Dnode;
use terrane_object::{Object, ObjectError, ObjectKind, ObjectSpec};
use terrane_pool::Tx;
use terrane_sa::ZplAttrs;
use terrane_txg::cost::Cost;
use terrane_wire::{Corrupt, ObjectId};
use terrane_zap::{Cursor, KeyRef, ValueRef};

/// Values destroyed in one transaction. Each may dirty its own dnode block.
const DESTROY_STEP: usize = 16;
/// Bytes that the first name of a new hidden directory dirties.
const FIRST_NAME_BYTES: u64 = 1024;
/// A dnode block, and one indirect block above it.
const DNODE_META_BLOCKS: u32 = 2;

/// The open hidden directory of one inode.
pub(crate) struct Hidden {
    names: ObjectZap,
    attrs: Attributes,
}

impl Hidden {
    pub fn id(&self) -> u64 {
        self.names.object().id().0
    }

    /// The object that holds the value of a name.
    pub fn find(&self, name: &[u8]) -> Result<Option<Ino>, Errno> {
        Ok(self.names.lookup_u64(name)?.map(|value| Named::from_value(value).ino))
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

    fn numbers(&self, max: usize) -> Result<Vec<(Vec<u8>, Ino)>, Errno> {
        let entries = self.names.list(Cursor::START, max)?;
        let number = |value: u64| Named::from_value(value).ino;
        Ok(entries
            .iter()
            .filter_map(|entry| Some((entry.key.name()?.to_vec(), number(entry.value.first()?))))
            .collect())
    }
}

impl Fs {
    /// Opens the hidden directory of `owner`.
    pub(crate) fn hidden(&self, owner: Ino, number: u64) -> Result<Hidden, Errno> {
        let (object, attrs) = self.hidden_object(number, ObjectKind::Directory, owner)?;
        let names = ObjectZap::with_names(self.dataset().zap_policy(), object, Naming::BYTES);
        Ok(Hidden { names, attrs })
    }

    /// Opens an object of a hidden directory. `EIO`: it is of another kind, or not owned by `parent`.
    fn hidden_object(
        &self,
        number: u64,
        kind: ObjectKind,
        parent: Ino,
    ) -> Result<(Arc<Object>, Attributes), Errno> {
        let object = match self.set.hold(ObjectId(number)) {
            Ok(object) => object,
            Err(error @ ObjectError::NotFound(_)) => return Err(damaged(error)),
            Err(error) => return Err(error.into()),
        };
        let wrong = |expected: &str, found: &dyn std::fmt::Display| {
            let at = format!("object {number}, extended attributes of object {parent}");
            Errno::from(Corrupt::new(at, "object", expected, found))
        };
        if object.kind() != kind {
            return Err(wrong(&format!("{kind:?}"), &format_args!("{:?}", object.kind())));
        }
        let attrs = Attributes::decode(number, &object.bonus(), &self.layouts.table())?;
        if attrs.zpl.flags & FLAG_XATTR == 0 || attrs.zpl.parent != parent {
            return Err(wrong("one of this inode alone", &format_args!("of object {}", attrs.zpl.parent)));
        }
        Ok((object, attrs))
    }

    /// Appends a value to `out`.
    pub(crate) fn read_hidden(&self, hidden: &Hidden, number: Ino, out: &mut Vec<u8>) -> Result<(), Errno> {
        let (object, attrs) = self.hidden_object(number, ObjectKind::File, hidden.id())?;
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

    /// Upper bound of what [`put_hidden`](Self::put_hidden) dirties. Dnode blocks are claimed when objects are
    /// created.
    pub(crate) fn hidden_cost(hidden: Option<&Hidden>, name: &[u8], value: &[u8]) -> Cost {
        let names = hidden
            .map_or(FIRST_NAME_BYTES, |hidden| hidden.names.put_cost(name.len(), ValueRef::U64s(&[0])).bytes);
        Cost {
            write_bytes: (value.len() as u64).next_multiple_of(512),
            meta_bytes: names,
            meta_blocks: 2 * DNODE_META_BLOCKS,
            objects: 3,
            ..Cost::NOTHING
        }
    }

    fn new_hidden_object(
        &self,
        tx: &Tx,
        owner: &State,
        parent: Ino,
        bits: u32,
        size: usize,
    ) -> Result<(Arc<Object>, Attributes), Errno> {
        let is_dir = bits & mode::S_IFMT == mode::S_IFDIR;
        let now = stored(self.now());
        let zpl = ZplAttrs {
            mode: u64::from(bits),
            size: size as u64,
            generation: tx.txg().0,
            uid: owner.attrs.zpl.uid,
            gid: owner.attrs.zpl.gid,
            parent,
            flags: FLAG_XATTR,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links: if is_dir { 2 } else { 1 },
            ..ZplAttrs::default()
        };
        let (kind, block_size) = match is_dir {
            true => (ObjectKind::Directory, BLOCK_BYTES_FIRST),
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
    pub(crate) fn put_hidden(
        &self,
        tx: &Tx,
        owner_ino: Ino,
        owner: &State,
        hidden: Option<Hidden>,
        (name, value): (&[u8], &[u8]),
    ) -> Result<Hidden, Errno> {
        let mut made = None;
        let mut hidden = match hidden {
            Some(hidden) => hidden,
            None => {
                let (object, attrs) =
                    self.new_hidden_object(tx, owner, owner_ino, mode::S_IFDIR | 0o700, 2)?;
                made = Some(Arc::clone(&object));
                let names = ObjectZap::with_names(self.dataset().zap_policy(), object, Naming::BYTES);
                Hidden { names, attrs }
            }
        };
        let put = self.put_value(tx, owner, &mut hidden, name, value);
        if let (Err(_), Some(made)) = (&put, &made) {
            self.set.destroy(tx, made)?;
        }
        put.map(|()| hidden)
    }

    fn put_value(
        &self,
        tx: &Tx,
        owner: &State,
        hidden: &mut Hidden,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Errno> {
        let old = hidden.find(name)?;
        let (object, _) =
            self.new_hidden_object(tx, owner, hidden.id(), mode::S_IFREG | 0o600, value.len())?;
        let named = Named { ino: object.id().0, kind: KIND_FILE };
        let put = object
            .write(tx, 0, value)
            .map_err(Errno::from)
            .and_then(|()| Ok(hidden.names.update_u64(tx, name, named.to_value())?));
        if let Err(errno) = put {
            self.set.destroy(tx, &object)?;
            return Err(errno);
        }
        match old {
            Some(old) => self.destroy_value(tx, hidden.id(), old)?,
            None => hidden.attrs.zpl.size += 1,
        }
        self.save_hidden(tx, hidden)
    }

    /// Stores the directory's attributes after its names changed.
    fn save_hidden(&self, tx: &Tx, hidden: &mut Hidden) -> Result<(), Errno> {
        let now = stored(self.now());
        (hidden.attrs.zpl.mtime, hidden.attrs.zpl.ctime) = (now, now);
        self.claim_new(tx, hidden.id());
        hidden.names.object().set_bonus(tx, hidden.attrs.bonus_now()?)?;
        Ok(())
    }

    /// Destroys a value whose name was removed. An unreadable value is left behind, so that the name can still
    /// be replaced or removed.
    fn destroy_value(&self, tx: &Tx, hidden: Ino, number: Ino) -> Result<(), Errno> {
        match self.hidden_object(number, ObjectKind::File, hidden) {
            Ok((object, _)) => {
                self.claim_new(tx, number);
                self.set.destroy(tx, &object)?;
            }
            Err(errno) => log::error!("object {number}, a removed extended attribute, stays: {errno}"),
        }
        Ok(())
    }

    /// Removes an existing name. True: it was the last one, and the hidden directory was destroyed. The caller
    /// then removes its number from the inode.
    pub(crate) fn remove_hidden(&self, tx: &Tx, hidden: &mut Hidden, name: &[u8]) -> Result<bool, Errno> {
        let number = hidden.find(name)?.ok_or(Errno::ENODATA)?;
        hidden.names.remove(tx, name)?;
        self.destroy_value(tx, hidden.id(), number)?;
        hidden.attrs.zpl.size = hidden.attrs.zpl.size.saturating_sub(1).max(2);
        if hidden.names.is_empty()? {
            self.claim_new(tx, hidden.id());
            self.set.destroy(tx, hidden.names.object())?;
            return Ok(true);
        }
        self.save_hidden(tx, hidden)?;
        Ok(false)
    }

    /// Upper bound of what removing a name dirties.
    pub(crate) fn hidden_remove_cost(hidden: &Hidden) -> Cost {
        Cost { meta_bytes: hidden.names.remove_cost().bytes, objects: 2, ..FREES }
    }

    /// Upper bound of what destroying the last piece of a hidden directory dirties, directory included.
    pub(crate) fn hidden_destroy_cost() -> Cost {
        let objects = DESTROY_STEP as u32 + 1;
        Cost { meta_blocks: objects * DNODE_META_BLOCKS, objects, ..FREES }
    }

    /// Destroys a piece of the hidden directory of an inode that is being destroyed. True: all of it, directory
    /// included.
    pub(crate) fn destroy_hidden_piece(&self, tx: &Tx, owner: Ino, number: u64) -> Result<bool, Errno> {
        let mut hidden = self.hidden(owner, number)?;
        let piece = hidden.numbers(DESTROY_STEP + 1)?;
        let is_last = piece.len() <= DESTROY_STEP;
        for (name, value) in piece.iter().take(DESTROY_STEP) {
            // Otherwise the next call would find the same names again.
            if !is_last && !hidden.names.remove(tx, &name[..])? {
                let at = format!("object {number}, extended attributes of object {owner}");
                return Err(Corrupt::new(at, "name", "one that can be found", name.escape_ascii()).into());
            }
            self.destroy_value(tx, number, *value)?;
        }
        if is_last {
            self.set.destroy(tx, hidden.names.object())?;
        } else {
            hidden.attrs.zpl.size = hidden.attrs.zpl.size.saturating_sub(DESTROY_STEP as u64).max(2);
            self.save_hidden(tx, &mut hidden)?;
        }
        Ok(is_last)
    }

    /// Destroys a hidden directory that cannot be read in full. Its values are leaked.
    pub(crate) fn give_up_hidden(&self, tx: &Tx, owner: Ino, number: u64) -> Result<(), Errno> {
        log::error!("extended attributes of object {owner}: the space of some is lost");
        if let Ok((object, _)) = self.hidden_object(number, ObjectKind::Directory, owner) {
            self.set.destroy(tx, &object)?;
        }
        Ok(())
    }
}
