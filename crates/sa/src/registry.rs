//! The registry of a dataset: it maps an attribute's name to number, length and swap class.
//!
//! Each dataset stores its registry (a ZAP: name -> one word of number, swap class and length). A version that does
//! not know an attribute needs its number and length to step over it. Stored numbers appear in two places only, and
//! are translated there: in the words of the registry, and in the orders of layouts. A new Terrane dataset registers
//! all built-in attributes with their built-in numbers, so it needs no translation.

use crate::attr::{Attr, BUILT_IN, SwapClass, built_in, is_built_in_number};
use crate::error::SaError;
use std::collections::BTreeSet;
use terrane_wire::Corrupt;

/// One row of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrInfo {
    /// Its number in memory, the same in every dataset if the name is built in.
    pub attr: Attr,
    /// Its number in the dataset.
    pub number: u16,
    /// Its key in the dataset's REGISTRY ZAP, which defines the meaning, such as `ZPL_MODE`.
    pub name: String,
    /// Bytes of a value; `None` for a variable length.
    pub len: Option<u16>,
    /// Its class for byte swaps. Terrane stores and compares it, but never swaps.
    pub swap: SwapClass,
}

impl AttrInfo {
    /// The stored word: number, swap class << 16, length << 24 (0 for a variable one).
    pub fn to_zap_value(&self) -> u64 {
        u64::from(self.number) | u64::from(self.swap.number()) << 16 | u64::from(self.len.unwrap_or(0)) << 24
    }

    /// For a name that is not built in, `attr` is the stored number, until [`Registry::load`] has resolved conflicts.
    fn from_zap_value(name: &str, value: u64) -> Result<Self, Corrupt> {
        let damaged =
            |what, expected: &str| Corrupt::new(format_args!("SA registry, {name}"), what, expected, value);
        let [a, b, swap, len_low, len_high, 0, 0, 0] = value.to_le_bytes() else {
            return Err(damaged("registry word", "below 2^40"));
        };
        let swap = SwapClass::ALL.into_iter().find(|class| class.number() == swap);
        let swap = swap.ok_or_else(|| damaged("swap class", "0 to 4"))?;
        let len = u16::from_le_bytes([len_low, len_high]);
        let number = u16::from_le_bytes([a, b]);
        let row = AttrInfo {
            attr: built_in(name).unwrap_or(Attr(number)),
            number,
            name: name.to_string(),
            len: (len != 0).then_some(len),
            swap,
        };
        if row.contradicts_built_in() {
            return Err(damaged("length and swap class", "those of the built-in attribute"));
        }
        Ok(row)
    }

    /// Whether a built-in name has another length or swap class here.
    fn contradicts_built_in(&self) -> bool {
        BUILT_IN.iter().any(|&(_, name, len, swap)| name == self.name && (len, swap) != (self.len, self.swap))
    }
}

/// The attributes of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// Sorted by `attr`.
    rows: Vec<AttrInfo>,
}

impl Registry {
    /// The registry of a new dataset.
    pub fn built_in() -> Self {
        let rows = BUILT_IN
            .iter()
            .map(|&(attr, name, len, swap)| AttrInfo {
                attr,
                number: attr.0,
                name: name.to_string(),
                len,
                swap,
            })
            .collect();
        Registry { rows }
    }

    /// Loads a stored registry from the names and words of its ZAP, in any order. Unknown names are kept, because
    /// their length is needed.
    ///
    /// # Errors
    /// A number or a name that occurs twice, or a built-in name with another length or swap class.
    pub fn load<N: AsRef<[u8]>>(entries: impl IntoIterator<Item = (N, u64)>) -> Result<Self, Corrupt> {
        let damaged = |what, expected: &str, found| Err(Corrupt::new("SA registry", what, expected, found));
        let (mut rows, mut numbers, mut names) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (name, value) in entries {
            let row = AttrInfo::from_zap_value(&String::from_utf8_lossy(name.as_ref()), value)?;
            if !numbers.insert(row.number) {
                return damaged("attribute number", "unique", row.number.to_string());
            }
            if !names.insert(name.as_ref().to_vec()) {
                return damaged("attribute name", "unique", row.name);
            }
            rows.push(row);
        }
        // Built-in attributes have their own numbers in memory. Another attribute that is stored under such a number
        // gets a free one.
        let mut registry = Registry { rows: Vec::new() };
        let (displaced, others): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| built_in(&row.name).is_none() && is_built_in_number(row.number));
        registry.rows = others;
        registry.rows.sort_by_key(|row| row.attr);
        for mut row in displaced {
            let Some(attr) = registry.unused(row.number) else {
                return damaged("attributes", "at most 65536", "more".to_string());
            };
            row.attr = attr;
            registry.insert(row);
        }
        Ok(registry)
    }

    /// The row of an attribute; `None` if this dataset does not have it.
    pub fn get(&self, attr: Attr) -> Option<&AttrInfo> {
        // If no number is unused, an attribute's row has its number as index.
        match self.rows.get(usize::from(attr.0)) {
            Some(row) if row.attr == attr => Some(row),
            _ => self.rows.get(self.rows.binary_search_by_key(&attr, |row| row.attr).ok()?),
        }
    }

    /// The attribute of this name.
    pub fn find(&self, name: &str) -> Option<&AttrInfo> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Registers an attribute under the next free number, unless its name is registered. `len` is in bytes, `None`
    /// for a variable length. A new row must be stored ([`AttrInfo::name`], [`AttrInfo::to_zap_value`]) no later than
    /// the first layout that uses it.
    pub fn add(&mut self, name: &str, len: Option<u16>, swap: SwapClass) -> Result<&AttrInfo, SaError> {
        let attr = match self.find(name) {
            Some(row) if (row.len, row.swap) == (len, swap) => row.attr,
            Some(row) => return Err(SaError::DefinitionMismatch(row.attr)),
            None => self.add_new(name, len, swap)?,
        };
        self.get(attr).ok_or(SaError::Unregistered(attr))
    }

    fn add_new(&mut self, name: &str, len: Option<u16>, swap: SwapClass) -> Result<Attr, SaError> {
        let number = match self.rows.iter().map(|row| row.number).max() {
            Some(last) => last.checked_add(1).ok_or(SaError::TooManyAttributes)?,
            None => 0,
        };
        let attr = built_in(name).or_else(|| self.unused(number)).ok_or(SaError::TooManyAttributes)?;
        let row = AttrInfo { attr, number, name: name.to_string(), len, swap };
        // 0 is the stored form of a variable length.
        if row.contradicts_built_in() || len == Some(0) {
            return Err(SaError::DefinitionMismatch(attr));
        }
        self.insert(row);
        Ok(attr)
    }

    /// A number in memory for an attribute that is not built in: `number` if it is free, else the lowest free one.
    fn unused(&self, number: u16) -> Option<Attr> {
        let first = (0..=u16::MAX).find(|&n| !is_built_in_number(n))?;
        std::iter::once(number)
            .chain(first..=u16::MAX)
            .map(Attr)
            .find(|&attr| !is_built_in_number(attr.0) && self.get(attr).is_none())
    }

    fn insert(&mut self, row: AttrInfo) {
        let at = self.rows.partition_point(|other| other.attr < row.attr);
        self.rows.insert(at, row);
    }

    /// All rows. The ZAP holds [`AttrInfo::name`] and [`AttrInfo::to_zap_value`] of each.
    pub fn iter(&self) -> impl Iterator<Item = &AttrInfo> {
        self.rows.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The words of `zap/sa_registry`, the registry of a dataset that OpenZFS made.
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
        assert!(Registry::load([("ZPL_MODE", mode), ("ZPL_MODE", mode + 1)]).is_err(), "name used twice");
        assert!(Registry::load([("ZPL_MODE", mode + (1 << 24))]).is_err(), "other length");
        assert!(Registry::load([("NEWER", 23 | 5 << 16)]).is_err(), "no such swap class");
        assert!(Registry::load([("NEWER", 23 | 1 << 40)]).is_err(), "high bits");
    }

    #[test]
    fn a_name_decides_not_its_number() {
        // Here built-in attributes have other numbers, some of them those of one another. Other attributes have
        // built-in numbers.
        let word = |number: u64, len: u64| number | 3 << 16 | len << 24;
        let (size, mode, uid) = (5 | 8 << 24, 300 | 8 << 24, 6 | 8 << 24);
        let stored = [
            ("MINE", word(12, 5)),
            ("ZPL_SIZE", size),
            ("ZPL_MODE", mode),
            ("ZPL_UID", uid),
            ("YOURS", word(23, 0)),
            ("THEIRS", word(0, 7)),
        ];
        let registry = Registry::load(stored).unwrap();
        for (attr, number) in [(Attr::SIZE, 5), (Attr::MODE, 300), (Attr::UID, 6), (Attr(23), 23)] {
            assert_eq!(registry.get(attr).unwrap().number, number);
        }
        assert_eq!(registry.get(Attr(23)).unwrap().name, "YOURS");
        assert_eq!(
            (registry.get(Attr(5)), registry.get(Attr(12))),
            (registry.find("ZPL_MODE"), registry.find("ZPL_UID"))
        );
        assert_eq!((registry.get(Attr::ATIME), registry.get(Attr(300))), (None, None));
        for (name, len) in [("MINE", Some(5)), ("THEIRS", Some(7))] {
            let row = registry.find(name).unwrap();
            assert!(row.attr.0 > 23 && registry.get(row.attr) == Some(row) && row.len == len);
        }
        let mut words: Vec<_> = registry.iter().map(|row| (&row.name[..], row.to_zap_value())).collect();
        let mut stored = stored.to_vec();
        words.sort();
        stored.sort();
        assert_eq!(words, stored);
    }

    #[test]
    fn programs_register_their_own() {
        let mut registry = Registry::built_in();
        let mine = registry.add("MINE", Some(4), SwapClass::U32s).unwrap().clone();
        assert_eq!((mine.attr, mine.number, mine.to_zap_value()), (Attr(23), 23, 23 | 1 << 16 | 4 << 24));
        assert_eq!(registry.add("MINE", Some(4), SwapClass::U32s).unwrap(), &mine);
        assert_eq!(registry.add("ZPL_MODE", Some(8), SwapClass::U64s).unwrap().number, 5);
        let refuse = |registry: &mut Registry, name, len, error| {
            assert_eq!(registry.add(name, len, SwapClass::U64s).unwrap_err(), error);
        };
        refuse(&mut registry, "MINE", Some(4), SaError::DefinitionMismatch(Attr(23)));
        refuse(&mut registry, "ZPL_MODE", None, SaError::DefinitionMismatch(Attr::MODE));
        refuse(&mut registry, "EMPTY", Some(0), SaError::DefinitionMismatch(Attr(24)));
        let stored = || registry.iter().map(|row| (row.name.clone(), row.to_zap_value()));
        assert_eq!(Registry::load(stored()), Ok(registry.clone()));

        // An older dataset, without the newest built-in attribute.
        let mut older = Registry::load(stored().filter(|(name, _)| name != "ZPL_SEQ")).unwrap();
        refuse(&mut older, "ZPL_SEQ", Some(16), SaError::DefinitionMismatch(Attr::SEQ));
        let seq = older.add("ZPL_SEQ", Some(8), SwapClass::U64s).unwrap();
        assert_eq!((seq.attr, seq.number), (Attr::SEQ, 24));
        assert_eq!(older.add("YOURS", None, SwapClass::Bytes).unwrap().attr, Attr(25));

        let mut registry = Registry::load([("LAST", 65535)]).unwrap();
        refuse(&mut registry, "MINE", Some(4), SaError::TooManyAttributes);
        let mut registry = Registry::load([("", 0); 0]).unwrap();
        let first = registry.add("FIRST", Some(4), SwapClass::Bytes).unwrap();
        assert_eq!((first.number, first.attr), (0, Attr(23)));
    }

    proptest! {
        #[test]
        fn any_registry_comes_back(rows in prop::collection::btree_map(0u64..40, (0usize..60, any::<bool>()), 0..40)) {
            let mut names = BTreeSet::new();
            let rows: Vec<(String, u64)> = rows
                .into_iter()
                .filter(|(_, (name, _))| names.insert(*name))
                .map(|(number, (name, var))| match BUILT_IN.get(name) {
                    Some(&(attr, name, ..)) => {
                        let word = Registry::built_in().get(attr).unwrap().to_zap_value();
                        (name.to_string(), word & !0xffff | number)
                    }
                    None => (format!("X{name}"), number | 3 << 16 | u64::from(!var) << 24),
                })
                .collect();
            let registry = Registry::load(rows.clone()).unwrap();
            prop_assert_eq!(registry.iter().count(), rows.len());
            for (name, word) in rows {
                let row = registry.find(&name).unwrap();
                prop_assert_eq!(row.to_zap_value(), word);
                prop_assert_eq!(registry.get(row.attr), Some(row));
                prop_assert_eq!(built_in(&name).unwrap_or(row.attr), row.attr);
                prop_assert_eq!(built_in(&name).is_some(), is_built_in_number(row.attr.0));
            }
        }

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
