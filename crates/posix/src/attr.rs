//! Attributes: the bonus area's bytes, alive.
//!
//! An inode in memory holds its attributes both as a struct and as the bytes they came from. A change writes
//! the numbers over the bytes, which keeps every attribute that this version does not know, and costs no search
//! for a layout.
//!
//! Invariant: an [`Attributes`] that exists has a known file type, a size that fits `off_t` and 32-bit ids;
//! what a device said otherwise was refused when it was decoded.

use crate::errno::Errno;
use crate::types::{FILE_SIZE_MAX, Ino, Time, mode};
use terrane_object::ObjectKind;
use terrane_sa::{Attr, AttrList, LayoutTable, SaBuffer, Timestamp, ZplAttrs};
use terrane_wire::Corrupt;

/// Bytes of bonus area in a dnode of one slot with one block pointer.
pub(crate) const BONUS_BYTES: usize = 320;
/// Longest symbolic link target that is stored beside the other attributes.
pub(crate) const SYMLINK_INLINE_BYTES: usize = 160;

/// One inode's attributes.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    pub zpl: ZplAttrs,
    buffer: SaBuffer,
}

impl Attributes {
    /// A new inode's. The layout must be in the table: see [`orders`].
    pub fn new(zpl: ZplAttrs, table: &LayoutTable) -> Result<Self, Errno> {
        let buffer = encode(&zpl.to_list(), table)?;
        Ok(Attributes { zpl, buffer })
    }

    pub fn decode(ino: Ino, bonus: &[u8], table: &LayoutTable) -> Result<Self, Corrupt> {
        let at = || format!("object {ino}");
        let buffer = SaBuffer::decode(bonus.to_vec(), table).map_err(|error| error.within(at()))?;
        let zpl = ZplAttrs::from_attrs(&buffer.attrs()).map_err(|error| error.within(at()))?;
        if zpl.mode > u64::from(u32::MAX) || kind_of(low32(zpl.mode)).is_none() {
            return Err(Corrupt::new(
                at(),
                "mode",
                "a file type and permissions",
                format_args!("{:#o}", zpl.mode),
            ));
        }
        if zpl.size > FILE_SIZE_MAX {
            return Err(Corrupt::new(at(), "size", format_args!("at most {FILE_SIZE_MAX}"), zpl.size));
        }
        for (what, id) in [("uid", zpl.uid), ("gid", zpl.gid), ("links", zpl.links)] {
            if id > u64::from(u32::MAX) {
                return Err(Corrupt::new(at(), what, "below 2^32", id));
            }
        }
        Ok(Attributes { zpl, buffer })
    }

    /// The bytes to store for what `zpl` says now.
    pub fn encode(&mut self, table: &LayoutTable) -> Result<Vec<u8>, Errno> {
        if !self.overwrite() {
            let mut list = AttrList::from_attrs(&self.buffer.attrs());
            self.zpl.update(&mut list);
            self.buffer = encode(&list, table)?;
        }
        Ok(self.buffer.as_bytes().to_vec())
    }

    /// False when an attribute has no place of this length. Optional attributes are written when an inode is
    /// made and never change after that.
    fn overwrite(&mut self) -> bool {
        let ZplAttrs { mode, size, generation, uid, gid, parent, flags, links, .. } = self.zpl;
        let ZplAttrs { atime, mtime, ctime, crtime, .. } = self.zpl;
        let numbers = [
            (Attr::MODE, mode),
            (Attr::SIZE, size),
            (Attr::GEN, generation),
            (Attr::UID, uid),
            (Attr::GID, gid),
            (Attr::PARENT, parent),
            (Attr::FLAGS, flags),
            (Attr::LINKS, links),
        ];
        let times =
            [(Attr::ATIME, atime), (Attr::MTIME, mtime), (Attr::CTIME, ctime), (Attr::CRTIME, crtime)];
        let buffer = &mut self.buffer;
        numbers.into_iter().all(|(attr, value)| buffer.set_u64(attr, value))
            && times.into_iter().all(|(attr, value)| buffer.set_pair(attr, value))
    }

    pub fn mode(&self) -> u32 {
        low32(self.zpl.mode)
    }

    /// `S_IFMT` bits.
    pub fn file_type(&self) -> u32 {
        self.mode() & mode::S_IFMT
    }

    pub fn is_dir(&self) -> bool {
        self.file_type() == mode::S_IFDIR
    }

    /// Sets permission bits; the file type stays.
    pub fn set_permissions(&mut self, bits: u32) {
        self.zpl.mode = u64::from(self.file_type() | bits & mode::PERMISSIONS);
    }
}

fn encode(list: &AttrList, table: &LayoutTable) -> Result<SaBuffer, Errno> {
    let layout = table
        .find(list.order())
        .ok_or_else(|| Corrupt::new("SA layouts", "layouts", "those of every file type", "one is missing"))?;
    let buffer = SaBuffer::encode(layout, list)?;
    if buffer.as_bytes().len() > BONUS_BYTES {
        let found = buffer.as_bytes().len();
        return Err(Corrupt::new("attributes", "length", format_args!("at most {BONUS_BYTES}"), found).into());
    }
    Ok(buffer)
}

/// The orders of attributes that inodes of this version have: plain, device, symbolic link. A data set is given
/// all of them when it is made, so that no operation has to add one.
pub(crate) fn orders() -> [Vec<Attr>; 3] {
    let plain = ZplAttrs::default();
    let device = ZplAttrs { rdev: Some(0), ..ZplAttrs::default() };
    let symlink = ZplAttrs { symlink: Some(Vec::new()), ..ZplAttrs::default() };
    [plain, device, symlink].map(|attrs| attrs.to_list().order().collect())
}

/// `DT_*` of a mode with a known file type.
pub(crate) fn kind_of(bits: u32) -> Option<u8> {
    match bits & mode::S_IFMT {
        mode::S_IFSOCK
        | mode::S_IFLNK
        | mode::S_IFREG
        | mode::S_IFBLK
        | mode::S_IFDIR
        | mode::S_IFCHR
        | mode::S_IFIFO => u8::try_from((bits & mode::S_IFMT) >> 12).ok(),
        _ => None,
    }
}

/// The kind of object that a mode with a known file type is stored in.
pub(crate) fn object_kind(bits: u32) -> ObjectKind {
    match bits & mode::S_IFMT {
        mode::S_IFDIR => ObjectKind::Directory,
        mode::S_IFREG => ObjectKind::File,
        mode::S_IFLNK => ObjectKind::Symlink,
        _ => ObjectKind::Special,
    }
}

pub(crate) fn low32(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

pub(crate) fn stored(time: Time) -> Timestamp {
    [time.secs.cast_unsigned(), u64::from(time.nanos)]
}

pub(crate) fn time([secs, nanos]: Timestamp) -> Time {
    // A damaged part of a second is no reason to refuse a file.
    Time { secs: secs.cast_signed(), nanos: low32(nanos.min(999_999_999)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_sa::Registry;

    fn table() -> LayoutTable {
        let mut table = LayoutTable::new(Registry::built_in());
        for order in orders() {
            table.add(&order).unwrap();
        }
        table
    }

    #[test]
    fn every_file_type_fits_its_bonus_and_comes_back() {
        let table = table();
        for (bits, rdev, symlink) in [
            (0o100_644, None, None),
            (0o060_600, Some(0x0801), None),
            (0o120_777, None, Some(vec![b'x'; SYMLINK_INLINE_BYTES])),
        ] {
            let zpl = ZplAttrs { mode: bits, links: 1, rdev, symlink, ..ZplAttrs::default() };
            let mut attributes = Attributes::new(zpl.clone(), &table).unwrap();
            attributes.zpl.size = 77;
            attributes.zpl.mtime = stored(Time { secs: -3, nanos: 5 });
            let mut raw = attributes.encode(&table).unwrap();
            raw.resize(BONUS_BYTES, 0);
            let again = Attributes::decode(9, &raw, &table).unwrap();
            assert_eq!(again.zpl, attributes.zpl);
            assert_eq!(time(again.zpl.mtime), Time { secs: -3, nanos: 5 });
        }
    }

    #[test]
    fn lies_are_refused_with_the_object_that_tells_them() {
        let table = table();
        let lies: [fn(&mut ZplAttrs); 5] = [
            |zpl| zpl.mode = 0o644,
            |zpl| zpl.mode |= 1 << 40,
            |zpl| zpl.size = 1 << 63,
            |zpl| zpl.uid = 1 << 32,
            |zpl| zpl.links = u64::MAX,
        ];
        for lie in lies {
            let mut zpl = ZplAttrs { mode: 0o100_644, ..ZplAttrs::default() };
            lie(&mut zpl);
            let raw = Attributes::new(zpl, &table).unwrap().encode(&table).unwrap();
            let error = Attributes::decode(9, &raw, &table).unwrap_err().to_string();
            assert!(error.contains("object 9"), "{error}");
        }
        assert!(Attributes::decode(9, &[], &table).is_err());
        assert!(Attributes::decode(9, &[0; BONUS_BYTES], &table).is_err());
    }
}
