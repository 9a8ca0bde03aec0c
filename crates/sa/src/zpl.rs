//! The POSIX attributes of a file, as a struct.
//!
//! A new file's attributes are stored in OpenZFS's order, because its quota accounting finds owner and project by
//! position. The order is mode, size, generation, uid, gid, parent, flags, four times, links; then project, device
//! and symlink target where a file has them. Terrane writes no ACL attributes: without an ACL, the mode is the ACL. A
//! buffer that has them keeps them, with everything else that is not in this struct.

use crate::attr::Attr;
use crate::buffer::Attrs;
use crate::list::AttrList;
use terrane_wire::Corrupt;

/// Seconds since 1970 (two's complement for earlier times) and nanoseconds, as stored.
pub type Timestamp = [u64; 2];

/// One file's decoded attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZplAttrs {
    /// File type and permissions, as `st_mode`.
    pub mode: u64,
    /// Bytes of a file, entries of a directory + 2, or bytes of a symlink's target.
    pub size: u64,
    /// The txg that created the object. With the object number it identifies a file forever.
    pub generation: u64,
    /// Numeric id of the owner. The file system refuses 2^32 and more.
    pub uid: u64,
    /// Numeric id of the owning group of users. The file system refuses 2^32 and more.
    pub gid: u64,
    /// Object number of the directory into which it was last linked.
    pub parent: u64,
    /// `ZFS_*` flags.
    pub flags: u64,
    /// Last access of the content, as `st_atim`.
    pub atime: Timestamp,
    /// Last change of the content, as `st_mtim`.
    pub mtime: Timestamp,
    /// Last change of the content or of an attribute, as `st_ctim`.
    pub ctime: Timestamp,
    /// Creation of the file, as `stx_btime`.
    pub crtime: Timestamp,
    /// Names of a file, or subdirectories of a directory + 2, as `st_nlink`. 0 means unlinked.
    pub links: u64,
    /// Project id, for quotas; only if the file has one.
    pub projid: Option<u64>,
    /// Device number, for device files only.
    pub rdev: Option<u64>,
    /// Target of a symlink, without a NUL.
    pub symlink: Option<Vec<u8>>,
    /// Object number of the hidden directory of extended attributes.
    pub xattr: Option<u64>,
    /// Packed list of extended attributes ([`nvlist`](crate::nvlist)).
    pub dxattr: Option<Vec<u8>>,
}

impl ZplAttrs {
    /// Decodes a file's attributes. A buffer without one that every file has is refused.
    pub fn from_attrs(attrs: &Attrs<'_>) -> Result<Self, Corrupt> {
        let missing = |attr: Attr| {
            Corrupt::new(
                format_args!("SA layout {}", attrs.layout().number()),
                "attributes",
                format_args!("with {attr}"),
                "none",
            )
        };
        let word = |attr| attrs.u64(attr).ok_or_else(|| missing(attr));
        let pair = |attr| attrs.pair(attr).ok_or_else(|| missing(attr));
        Ok(ZplAttrs {
            mode: word(Attr::MODE)?,
            size: word(Attr::SIZE)?,
            generation: word(Attr::GEN)?,
            uid: word(Attr::UID)?,
            gid: word(Attr::GID)?,
            parent: word(Attr::PARENT)?,
            flags: word(Attr::FLAGS)?,
            atime: pair(Attr::ATIME)?,
            mtime: pair(Attr::MTIME)?,
            ctime: pair(Attr::CTIME)?,
            crtime: pair(Attr::CRTIME)?,
            links: word(Attr::LINKS)?,
            projid: attrs.u64(Attr::PROJID),
            rdev: attrs.u64(Attr::RDEV),
            symlink: attrs.get(Attr::SYMLINK).map(<[u8]>::to_vec),
            xattr: attrs.u64(Attr::XATTR),
            dxattr: attrs.get(Attr::DXATTR).map(<[u8]>::to_vec),
        })
    }

    /// The list of a new file, in the order of creation.
    pub fn to_list(&self) -> AttrList {
        let mut list = AttrList::new();
        self.update(&mut list);
        list
    }

    /// Sets these values in an existing list. A `None` removes the attribute; attributes that are not in this struct
    /// stay.
    pub fn update(&self, list: &mut AttrList) {
        for (attr, value) in [
            (Attr::MODE, self.mode),
            (Attr::SIZE, self.size),
            (Attr::GEN, self.generation),
            (Attr::UID, self.uid),
            (Attr::GID, self.gid),
            (Attr::PARENT, self.parent),
            (Attr::FLAGS, self.flags),
        ] {
            list.set_u64(attr, value);
        }
        for (attr, value) in [
            (Attr::ATIME, self.atime),
            (Attr::MTIME, self.mtime),
            (Attr::CTIME, self.ctime),
            (Attr::CRTIME, self.crtime),
        ] {
            list.set_pair(attr, value);
        }
        list.set_u64(Attr::LINKS, self.links);
        let (projid, rdev, xattr) = (
            self.projid.map(u64::to_le_bytes),
            self.rdev.map(u64::to_le_bytes),
            self.xattr.map(u64::to_le_bytes),
        );
        for (attr, value) in [
            (Attr::PROJID, projid.as_ref().map(|raw| &raw[..])),
            (Attr::RDEV, rdev.as_ref().map(|raw| &raw[..])),
            (Attr::SYMLINK, self.symlink.as_deref()),
            (Attr::XATTR, xattr.as_ref().map(|raw| &raw[..])),
            (Attr::DXATTR, self.dxattr.as_deref()),
        ] {
            match value {
                Some(value) => list.set(attr, value),
                None => list.remove(attr),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayoutTable, Registry, SaBuffer, SaError};
    use proptest::prelude::*;

    fn any_attrs() -> impl Strategy<Value = ZplAttrs> {
        let bytes = || prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
        let options = (any::<[Option<u64>; 3]>(), bytes(), bytes());
        (any::<[u64; 8]>(), any::<[[u64; 2]; 4]>(), options).prop_map(
            |(words, times, (options, symlink, dxattr))| {
                let [mode, size, generation, uid, gid, parent, flags, links] = words;
                let [atime, mtime, ctime, crtime] = times;
                let [projid, rdev, xattr] = options;
                ZplAttrs {
                    mode,
                    size,
                    generation,
                    uid,
                    gid,
                    parent,
                    flags,
                    atime,
                    mtime,
                    ctime,
                    crtime,
                    links,
                    projid,
                    rdev,
                    symlink,
                    xattr,
                    dxattr,
                }
            },
        )
    }

    #[test]
    fn values_lie_where_quota_accounting_looks() {
        let attrs = ZplAttrs {
            generation: 7,
            uid: 1000,
            gid: 100,
            flags: 9,
            projid: Some(42),
            ..ZplAttrs::default()
        };
        let mut table = LayoutTable::new(Registry::built_in());
        let list = attrs.to_list();
        let layout = table.add(&list.order().collect::<Vec<_>>()).unwrap();
        let raw = SaBuffer::encode(&layout, &list).unwrap().into_bytes();
        let word = |offset: usize| u64::from_le_bytes(raw[8 + offset..][..8].try_into().unwrap());
        assert_eq!([16, 24, 32, 48, 128].map(word), [7, 1000, 100, 9, 42]);
    }

    #[test]
    fn a_buffer_without_a_mode_is_no_file() {
        let mut table = LayoutTable::new(Registry::built_in());
        let mut list = ZplAttrs::default().to_list();
        list.remove(Attr::MODE);
        let layout = table.add(&list.order().collect::<Vec<_>>()).unwrap();
        let buffer = SaBuffer::encode(&layout, &list).unwrap();
        let refusal = ZplAttrs::from_attrs(&buffer.attrs()).unwrap_err();
        assert!(refusal.to_string().contains("ZPL_MODE"), "{refusal}");
    }

    proptest! {
        #[test]
        fn a_file_comes_back_and_keeps_what_is_unknown(first in any_attrs(), second in any_attrs(), seq in any::<u64>()) {
            let mut table = LayoutTable::new(Registry::built_in());
            let mut encode = |list: &AttrList| -> Result<SaBuffer, SaError> {
                let layout = table.add(&list.order().collect::<Vec<_>>())?;
                SaBuffer::encode(&layout, list)
            };
            let mut list = first.to_list();
            list.set_u64(Attr::SEQ, seq);
            let buffer = encode(&list).unwrap();
            prop_assert_eq!(ZplAttrs::from_attrs(&buffer.attrs()), Ok(first));
            let mut again = AttrList::from_attrs(&buffer.attrs());
            second.update(&mut again);
            let buffer = encode(&again).unwrap();
            prop_assert_eq!(buffer.attrs().u64(Attr::SEQ), Some(seq));
            prop_assert_eq!(ZplAttrs::from_attrs(&buffer.attrs()), Ok(second));
        }
    }
}
