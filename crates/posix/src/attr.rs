//! Inode attributes, decoded from the bonus area.
//!
//! An inode in memory has its attributes both as numbers and as the bytes they came from. A change writes the
//! numbers into those bytes. That keeps attributes which this version does not know, and needs no search for a
//! layout. Optional attributes and those of variable length (symlink targets, extended attributes) are in the
//! bytes alone. They may lie in the spill block; see [`spill_attrs`](crate::spill_attrs).
//!
//! Invariant: an existing [`Attributes`] has a known file type, a size that fits `off_t`, and 32-bit ids.
//! Decoding refuses anything else.

use crate::errno::Errno;
use crate::types::{FILE_SIZE_MAX, HintOrigin, Ino, Time, mode};
use terrane_object::ObjectKind;
use terrane_sa::{Attr, AttrList, Attrs, LayoutTable, SaBuffer, Timestamp, ZplAttrs};
use terrane_space::policy::Hint;
use terrane_wire::Corrupt;

/// Longest symlink target in bytes that is stored beside the other attributes.
pub(crate) const SYMLINK_INLINE_BYTES: usize = 160;
/// `ZFS_XATTR`: the object is a hidden directory of extended attributes, or a value in one.
pub const FLAG_XATTR: u64 = 1;

/// One inode's attributes.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    /// The numbers. The other fields of [`ZplAttrs`] are `None` here.
    pub zpl: ZplAttrs,
    bonus: SaBuffer,
}

impl Attributes {
    /// Takes numbers and the bonus that was encoded from them.
    pub fn new(zpl: ZplAttrs, bonus: SaBuffer) -> Self {
        Attributes { zpl: ZplAttrs { symlink: None, dxattr: None, xattr: None, ..zpl }, bonus }
    }

    /// Decodes and validates the bonus area of object `ino`, which an error names.
    pub fn decode(ino: Ino, bonus: &[u8], table: &LayoutTable) -> Result<Self, Corrupt> {
        let at = || format!("object {ino}");
        let bonus = SaBuffer::decode(bonus.to_vec(), table).map_err(|error| error.within(at()))?;
        let zpl = ZplAttrs::from_attrs(&bonus.attrs()).map_err(|error| error.within(at()))?;
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
        let project = zpl.projid.unwrap_or(0);
        for (what, id) in [("uid", zpl.uid), ("gid", zpl.gid), ("links", zpl.links), ("project", project)] {
            if id > u64::from(u32::MAX) {
                return Err(Corrupt::new(at(), what, "below 2^32", id));
            }
        }
        Ok(Attributes::new(zpl, bonus))
    }

    /// Encodes the bonus area with the current numbers.
    pub fn encode_bonus(&mut self) -> Result<Vec<u8>, Errno> {
        self.write_numbers()?;
        Ok(self.bonus.as_bytes().to_vec())
    }

    /// All attributes with the current numbers, including those of the spill block.
    pub fn current_list(&mut self, spill: Option<&Attrs<'_>>) -> Result<AttrList, Errno> {
        self.write_numbers()?;
        let bonus = self.bonus.attrs();
        Ok(match spill {
            Some(spill) => AttrList::from_bonus_and_spill(&bonus, spill)?,
            None => AttrList::from_attrs(&bonus),
        })
    }

    /// Replaces the bonus area after it was encoded again.
    pub fn set_bonus(&mut self, bonus: SaBuffer) {
        self.bonus = bonus;
    }

    /// The bytes of an attribute in the bonus area.
    pub fn get(&self, attr: Attr) -> Option<&[u8]> {
        self.bonus.attrs().get(attr)
    }

    fn write_numbers(&mut self) -> Result<(), Corrupt> {
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
        let bonus = &mut self.bonus;
        let done = numbers.into_iter().all(|(attr, value)| bonus.set_u64(attr, value))
            && times.into_iter().all(|(attr, value)| bonus.set_pair(attr, value));
        // Decoding has checked that all of them exist.
        if done { Ok(()) } else { Err(Corrupt::new("attributes", "numbers", "in the bonus area", "not all")) }
    }

    /// File type and permission bits.
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

/// Attribute orders of inodes without extended attributes: plain, device, symlink. A new data set starts with
/// these.
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

pub(crate) fn encode_time(time: Time) -> Timestamp {
    [time.secs.cast_unsigned(), u64::from(time.nanos)]
}

pub(crate) fn decode_time([secs, nanos]: Timestamp) -> Time {
    // Damaged nanoseconds do not make a file unreadable.
    Time { secs: secs.cast_signed(), nanos: low32(nanos.min(999_999_999)) }
}

/// The lowest of the three bits of a write hint among an inode's flags.
const HINT_SHIFT: u32 = 24;
const HINT_BITS: u64 = 7 << HINT_SHIFT;
/// The lowest of the two bits that say where the hint comes from.
const ORIGIN_SHIFT: u32 = 27;
const ORIGIN_BITS: u64 = 3 << ORIGIN_SHIFT;
/// The directory has hint rules.
pub(crate) const FLAG_HINT_RULES: u64 = 1 << 29;

impl Attributes {
    /// The stored write hint; unknown ids count as none.
    pub fn hint(&self) -> Hint {
        Hint::from_id((self.zpl.flags & HINT_BITS) >> HINT_SHIFT).unwrap_or_default()
    }

    /// Where the hint comes from. Without a hint, [`HintOrigin::File`].
    pub fn hint_origin(&self) -> HintOrigin {
        match (self.zpl.flags & ORIGIN_BITS) >> ORIGIN_SHIFT {
            _ if self.hint() == Hint::NotSet => HintOrigin::File,
            1 => HintOrigin::Directory,
            2 => HintOrigin::Rule,
            _ => HintOrigin::File,
        }
    }

    /// Puts a write hint into the flags. The caller saves the inode.
    pub fn set_hint(&mut self, hint: Hint, origin: HintOrigin) {
        self.zpl.flags = self.zpl.flags & !(HINT_BITS | ORIGIN_BITS) | hint_flags(hint, origin);
    }

    /// Whether the directory has hint rules.
    pub fn has_hint_rules(&self) -> bool {
        self.zpl.flags & FLAG_HINT_RULES != 0
    }

    /// Notes whether the directory has hint rules. The caller saves the inode.
    pub fn set_has_hint_rules(&mut self, has_rules: bool) {
        let flag = if has_rules { FLAG_HINT_RULES } else { 0 };
        self.zpl.flags = self.zpl.flags & !FLAG_HINT_RULES | flag;
    }
}

/// The inode flags that encode this hint.
pub(crate) fn hint_flags(hint: Hint, origin: HintOrigin) -> u64 {
    match hint {
        Hint::NotSet => 0,
        hint => (hint as u64) << HINT_SHIFT | (origin as u64) << ORIGIN_SHIFT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> LayoutTable {
        crate::layouts::Layouts::first().unwrap()
    }

    fn attributes(zpl: &ZplAttrs, table: &LayoutTable) -> Attributes {
        let list = zpl.to_list();
        let bonus = SaBuffer::encode(table.find(list.order()).unwrap(), &list).unwrap();
        Attributes::new(zpl.clone(), bonus)
    }

    #[test]
    fn every_file_type_fits_its_bonus_and_comes_back() {
        let table = table();
        for (bits, rdev, symlink) in [
            (0o100_644, None, None),
            (0o060_600, Some(0x0801), None),
            (0o120_777, None, Some(vec![b'x'; SYMLINK_INLINE_BYTES])),
        ] {
            let zpl =
                ZplAttrs { mode: bits, links: 1, rdev, symlink: symlink.clone(), ..ZplAttrs::default() };
            let mut attributes = attributes(&zpl, &table);
            attributes.zpl.size = 77;
            attributes.zpl.mtime = encode_time(Time { secs: -3, nanos: 5 });
            let mut raw = attributes.encode_bonus().unwrap();
            raw.resize(320, 0);
            let again = Attributes::decode(9, &raw, &table).unwrap();
            assert_eq!(again.zpl, attributes.zpl);
            assert_eq!(again.get(Attr::SYMLINK), symlink.as_deref());
            assert_eq!(decode_time(again.zpl.mtime), Time { secs: -3, nanos: 5 });
        }
    }

    #[test]
    fn invalid_attributes_are_refused_and_name_the_object() {
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
            let raw = attributes(&zpl, &table).encode_bonus().unwrap();
            let error = Attributes::decode(9, &raw, &table).unwrap_err().to_string();
            assert!(error.contains("object 9"), "{error}");
        }
        assert!(Attributes::decode(9, &[], &table).is_err());
        assert!(Attributes::decode(9, &[0; 320], &table).is_err());
    }
}
