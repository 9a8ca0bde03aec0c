//! Names and numbers of attributes.
//!
//! An attribute's name defines its meaning; its number differs between datasets. In memory an [`Attr`] is a number
//! too, so it can be a constant. A built-in attribute has its number in OpenZFS's table, whatever number the dataset
//! gave it. Others keep their stored number, unless a built-in attribute has that number. The dataset's
//! [`Registry`](crate::registry::Registry) translates.

use std::fmt;

/// An attribute in memory. Its number in a dataset is [`AttrInfo::number`](crate::registry::AttrInfo::number).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attr(pub u16);

/// How a value's bytes would be swapped for the other byte order. Everything is little-endian, so Terrane never
/// swaps. But the class is part of the stored registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapClass {
    /// An array of 64-bit numbers: 0 in the registry, `SA_UINT64_ARRAY` in OpenZFS.
    U64s,
    /// An array of 32-bit numbers: 1 in the registry, `SA_UINT32_ARRAY` in OpenZFS.
    U32s,
    /// An array of 16-bit numbers: 2 in the registry, `SA_UINT16_ARRAY` in OpenZFS.
    U16s,
    /// Bytes without a byte order, never swapped: 3 in the registry, `SA_UINT8_ARRAY` in OpenZFS.
    Bytes,
    /// Entries of an ACL, swapped field by field: 4 in the registry, `SA_ACL` in OpenZFS.
    Acl,
}

impl SwapClass {
    pub(crate) const ALL: [SwapClass; 5] =
        [SwapClass::U64s, SwapClass::U32s, SwapClass::U16s, SwapClass::Bytes, SwapClass::Acl];

    pub(crate) fn number(self) -> u8 {
        match self {
            SwapClass::U64s => 0,
            SwapClass::U32s => 1,
            SwapClass::U16s => 2,
            SwapClass::Bytes => 3,
            SwapClass::Acl => 4,
        }
    }
}

macro_rules! zpl_attributes {
    ($($number:literal $constant:ident $name:literal $len:expr, $swap:ident;)*) => {
        impl Attr {
            $(#[doc = concat!("`", $name, "`")] pub const $constant: Attr = Attr($number);)*
        }
        pub(crate) const BUILT_IN: &[(Attr, &str, Option<u16>, SwapClass)] = &[$((Attr($number), $name, $len, SwapClass::$swap)),*];
    };
}

zpl_attributes! {
    0 ATIME "ZPL_ATIME" Some(16), U64s;
    1 MTIME "ZPL_MTIME" Some(16), U64s;
    2 CTIME "ZPL_CTIME" Some(16), U64s;
    3 CRTIME "ZPL_CRTIME" Some(16), U64s;
    4 GEN "ZPL_GEN" Some(8), U64s;
    5 MODE "ZPL_MODE" Some(8), U64s;
    6 SIZE "ZPL_SIZE" Some(8), U64s;
    7 PARENT "ZPL_PARENT" Some(8), U64s;
    8 LINKS "ZPL_LINKS" Some(8), U64s;
    9 XATTR "ZPL_XATTR" Some(8), U64s;
    10 RDEV "ZPL_RDEV" Some(8), U64s;
    11 FLAGS "ZPL_FLAGS" Some(8), U64s;
    12 UID "ZPL_UID" Some(8), U64s;
    13 GID "ZPL_GID" Some(8), U64s;
    14 PAD "ZPL_PAD" Some(32), U64s;
    15 ZNODE_ACL "ZPL_ZNODE_ACL" Some(88), Bytes;
    16 DACL_COUNT "ZPL_DACL_COUNT" Some(8), U64s;
    17 SYMLINK "ZPL_SYMLINK" None, Bytes;
    18 SCANSTAMP "ZPL_SCANSTAMP" Some(32), Bytes;
    19 DACL_ACES "ZPL_DACL_ACES" None, Acl;
    20 DXATTR "ZPL_DXATTR" None, Bytes;
    21 PROJID "ZPL_PROJID" Some(8), U64s;
    22 SEQ "ZPL_SEQ" Some(8), U64s;
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BUILT_IN.get(usize::from(self.0)) {
            Some((_, name, ..)) => f.write_str(name),
            None => write!(f, "attribute {}", self.0),
        }
    }
}

pub(crate) fn built_in(name: &str) -> Option<Attr> {
    BUILT_IN.iter().find(|(_, known, ..)| *known == name).map(|&(attr, ..)| attr)
}

pub(crate) fn is_built_in_number(number: u16) -> bool {
    usize::from(number) < BUILT_IN.len()
}
