//! Names, numbers and lengths of attributes.
//!
//! The registry is stored in each dataset (a ZAP: name -> number, swap class and length in one word), because an
//! attribute's number and length are needed to step over it, also by a version that does not know what it means. Our
//! datasets register the whole built-in table when they are made, with OpenZFS's numbers, so a known name always has
//! its built-in number; anything else is refused.

use std::fmt;
use terrane_wire::Corrupt;

/// An attribute's number in its dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attr(pub u16);

/// How a value's bytes would be turned around for a machine of the other byte order. We never do (everything is
/// little-endian), but the class is part of what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapClass {
    U64s,
    U32s,
    U16s,
    Bytes,
    Acl,
}

impl SwapClass {
    const ALL: [SwapClass; 5] =
        [SwapClass::U64s, SwapClass::U32s, SwapClass::U16s, SwapClass::Bytes, SwapClass::Acl];

    fn number(self) -> u8 {
        match self {
            SwapClass::U64s => 0,
            SwapClass::U32s => 1,
            SwapClass::U16s => 2,
            SwapClass::Bytes => 3,
            SwapClass::Acl => 4,
        }
    }
}

/// One row of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrInfo {
    pub attr: Attr,
    pub name: String,
    /// Bytes of a value; `None` where each file has its own length.
    pub len: Option<u16>,
    pub swap: SwapClass,
}

macro_rules! zpl_attributes {
    ($($number:literal $constant:ident $name:literal $len:expr, $swap:ident;)*) => {
        impl Attr {
            $(#[doc = concat!("`", $name, "`")] pub const $constant: Attr = Attr($number);)*
        }
        const BUILT_IN: &[(Attr, &str, Option<u16>, SwapClass)] = &[$((Attr($number), $name, $len, SwapClass::$swap)),*];
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

impl AttrInfo {
    /// The stored word: number, swap class << 16, length << 24 (0 for a variable one).
    pub fn to_zap_value(&self) -> u64 {
        u64::from(self.attr.0) | u64::from(self.swap.number()) << 16 | u64::from(self.len.unwrap_or(0)) << 24
    }

    pub fn from_zap_value(name: &str, value: u64) -> Result<Self, Corrupt> {
        let damaged =
            |what, expected: &str| Corrupt::new(format_args!("SA registry, {name}"), what, expected, value);
        let [a, b, swap, len_low, len_high, 0, 0, 0] = value.to_le_bytes() else {
            return Err(damaged("registry word", "below 2^40"));
        };
        let swap = SwapClass::ALL.into_iter().find(|class| class.number() == swap);
        let swap = swap.ok_or_else(|| damaged("swap class", "0 to 4"))?;
        let len = u16::from_le_bytes([len_low, len_high]);
        let attr = Attr(u16::from_le_bytes([a, b]));
        Ok(AttrInfo { attr, name: name.to_string(), len: (len != 0).then_some(len), swap })
    }
}

/// The attributes of one dataset, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// Sorted by number.
    rows: Vec<AttrInfo>,
}

impl Registry {
    /// What a new dataset stores.
    pub fn built_in() -> Self {
        let rows = BUILT_IN
            .iter()
            .map(|&(attr, name, len, swap)| AttrInfo { attr, name: name.to_string(), len, swap })
            .collect();
        Registry { rows }
    }

    /// A stored registry, from the names and words of its ZAP in any order. Unknown names are kept (their length is all
    /// we need); a number used twice, or a known name that means something else than it does here, is refused.
    pub fn load<N: AsRef<[u8]>>(entries: impl IntoIterator<Item = (N, u64)>) -> Result<Self, Corrupt> {
        let mut rows = Vec::new();
        for (name, value) in entries {
            let name = String::from_utf8_lossy(name.as_ref()).into_owned();
            let row = AttrInfo::from_zap_value(&name, value)?;
            let known = BUILT_IN.iter().find(|(_, known, ..)| *known == name);
            if known.is_some_and(|&(attr, _, len, swap)| (attr, len, swap) != (row.attr, row.len, row.swap)) {
                return Err(Corrupt::new(
                    "SA registry",
                    "registry word",
                    "the built-in one for its name",
                    format_args!("{row:?}"),
                ));
            }
            rows.push(row);
        }
        rows.sort_by_key(|row| row.attr);
        if let Some([row, _]) = rows.array_windows().find(|[a, b]| a.attr == b.attr) {
            return Err(Corrupt::new("SA registry", "attribute number", "used once", row.attr.0));
        }
        Ok(Registry { rows })
    }

    /// `None` for a number that this dataset does not have.
    pub fn get(&self, attr: Attr) -> Option<&AttrInfo> {
        // Where no number is left out, an attribute's row is its number's.
        match self.rows.get(usize::from(attr.0)) {
            Some(row) if row.attr == attr => Some(row),
            _ => self.rows.get(self.rows.binary_search_by_key(&attr, |row| row.attr).ok()?),
        }
    }

    /// Rows by number; [`AttrInfo::name`] and [`AttrInfo::to_zap_value`] are what the ZAP holds.
    pub fn iter(&self) -> impl Iterator<Item = &AttrInfo> {
        self.rows.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The words of `zap/sa_registry`, the registry of a data set made by OpenZFS.
    const OPENZFS: [(&str, u64); 23] = [
        ("ZPL_PARENT", 134217735),
        ("ZPL_PROJID", 134217749),
        ("ZPL_ATIME", 268435456),
        ("ZPL_LINKS", 134217736),
        ("ZPL_SCANSTAMP", 537067538),
        ("ZPL_GEN", 134217732),
        ("ZPL_UID", 134217740),
        ("ZPL_ZNODE_ACL", 1476591631),
        ("ZPL_CRTIME", 268435459),
        ("ZPL_SYMLINK", 196625),
        ("ZPL_RDEV", 134217738),
        ("ZPL_DXATTR", 196628),
        ("ZPL_DACL_ACES", 262163),
        ("ZPL_MTIME", 268435457),
        ("ZPL_PAD", 536870926),
        ("ZPL_CTIME", 268435458),
        ("ZPL_DACL_COUNT", 134217744),
        ("ZPL_FLAGS", 134217739),
        ("ZPL_SEQ", 134217750),
        ("ZPL_MODE", 134217733),
        ("ZPL_GID", 134217741),
        ("ZPL_SIZE", 134217734),
        ("ZPL_XATTR", 134217737),
    ];

    #[test]
    fn the_built_in_registry_is_that_of_openzfs() {
        assert_eq!(Registry::load(OPENZFS), Ok(Registry::built_in()));
        let mut words: Vec<_> =
            Registry::built_in().iter().map(|row| (row.name.clone(), row.to_zap_value())).collect();
        let mut theirs = OPENZFS.map(|(name, word)| (name.to_string(), word));
        words.sort();
        theirs.sort();
        assert_eq!(words, theirs);
    }

    #[test]
    fn every_built_in_number_is_its_index() {
        assert!(BUILT_IN.iter().enumerate().all(|(i, (attr, ..))| usize::from(attr.0) == i));
        assert_eq!(Attr::SEQ.to_string(), "ZPL_SEQ");
        assert_eq!(Attr(23).to_string(), "attribute 23");
    }

    #[test]
    fn registries_that_contradict_are_refused() {
        let mode = 134217733;
        assert!(Registry::load([("ZPL_MODE", mode), ("NEWER", 23 | 3 << 16)]).is_ok());
        assert!(Registry::load([("ZPL_MODE", mode), ("NEWER", mode)]).is_err(), "number used twice");
        assert!(Registry::load([("ZPL_MODE", mode + 1)]).is_err(), "other number");
        assert!(Registry::load([("ZPL_MODE", mode + (1 << 24))]).is_err(), "other length");
        assert!(Registry::load([("NEWER", 23 | 5 << 16)]).is_err(), "no such swap class");
        assert!(Registry::load([("NEWER", 23 | 1 << 40)]).is_err(), "high bits");
    }

    proptest! {
        #[test]
        fn words_come_back(word in any::<u64>()) {
            if let Ok(info) = AttrInfo::from_zap_value("X", word) {
                prop_assert_eq!(info.to_zap_value(), word);
            }
            let small = word & 0xff_ff04_ffff;
            prop_assert!(AttrInfo::from_zap_value("X", small).is_ok_and(|info| info.to_zap_value() == small));
        }
    }
}
