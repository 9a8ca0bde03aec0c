//! What must hold of any bytes that claim to be attributes; shared by hostile tests and fuzz targets.
//!
//! There are two promises. For any bytes, each parser ends with a result or a named error, and its memory is bounded
//! by their length. And an accepted structure is consistent: every lookup agrees with the walk, and changes behave as
//! on a vector of pairs.

#![allow(clippy::unwrap_used, reason = "a part of tests")]
#![allow(dead_code, reason = "fuzz targets include it, and do not use all of it")]

use terrane_sa::{
    Attr, AttrList, AttrSlice, Attrs, LayoutTable, NvList, Registry, SaBuffer, SaError, ZplAttrs,
    count_in_bonus, nvlist,
};

/// Longer lists are only walked: trying every name of one is quadratic.
const TRIED_MAX: usize = 64;

/// The layouts of the dataset that `tests/vectors/sa` comes from.
pub const OPENZFS_LAYOUTS: [(&str, &[u16]); 6] = [
    ("2", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19]),
    ("3", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 20]),
    ("4", &[20]),
    ("5", &[20, 22]),
    ("6", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 17]),
    ("7", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 10, 16, 19]),
];

/// Parses a packed list and changes it; `false` if it was refused.
pub fn list(raw: &[u8]) -> bool {
    // The name that a first pair would have, and one that no list has.
    for name in [raw.get(24..30).unwrap_or(b"?"), b"user.none"] {
        let _ = nvlist::get(raw, name);
    }
    let Ok(list) = NvList::parse(raw) else { return false };
    let pairs: Vec<_> = list.iter().collect();
    assert_eq!((list.packed_bytes(), list.is_empty()), (raw.len(), pairs.is_empty()));
    for (at, (name, value)) in pairs.iter().enumerate().take(TRIED_MAX) {
        assert_eq!(list.get(name), Some(*value));
        assert_eq!(nvlist::get(raw, name), Ok(Some(*value)));
        let mut others = pairs.clone();
        others.remove(at);
        assert_pairs(&list.without(name).unwrap(), &others);
        if let Some(raw) = list.with(name, b"new") {
            others.push((name, b"new"));
            assert_pairs(&raw, &others);
        }
    }
    // The pairs reproduce the list, except for padding and the writer's byte order.
    let packed = pairs.iter().take(TRIED_MAX).fold(NvList::default().to_bytes(), |raw, (name, value)| {
        NvList::parse(&raw).unwrap().with(name, value).unwrap()
    });
    assert!(pairs.len() > TRIED_MAX || packed.len() == raw.len());
    assert_pairs(&packed, pairs.get(..TRIED_MAX).unwrap_or(&pairs));
    true
}

fn assert_pairs(raw: &[u8], pairs: &[(&[u8], &[u8])]) {
    assert!(NvList::parse(raw).unwrap().iter().eq(pairs.iter().copied()));
}

/// The registry and the layouts that some bytes describe; `None` if they were refused.
///
/// A row has a tag of 0 or another even number, the index of a name, and five bytes of its word. A layout has an odd
/// tag, the count of its attributes, its number, and theirs. An incomplete record at the end is ignored.
pub fn table(mut raw: &[u8]) -> Option<LayoutTable> {
    if raw.is_empty() {
        return LayoutTable::load(Registry::built_in(), OPENZFS_LAYOUTS).ok();
    }
    let (mut rows, mut layouts) = (Vec::new(), Vec::new());
    let names: Vec<String> = Registry::built_in().iter().map(|row| row.name.clone()).collect();
    let mut take = |len: usize| -> Option<&[u8]> {
        let (taken, rest) = raw.split_at_checked(len)?;
        raw = rest;
        Some(taken)
    };
    while let Some(&[kind, index]) = take(2) {
        let taken = take(if kind % 2 == 0 { 5 } else { 2 + 2 * usize::from(index % 32) });
        match (kind % 2, taken) {
            (0, Some(&[a, b, c, d, e])) => {
                let name = names.get(usize::from(index)).cloned().unwrap_or(format!("X{index}"));
                rows.push((name, u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])));
            }
            (1, Some(numbers)) => {
                let mut numbers = numbers.as_chunks::<2>().0.iter().map(|raw| u16::from_le_bytes(*raw));
                let number = numbers.next().unwrap_or(0);
                layouts.push((number.to_string(), numbers.collect::<Vec<_>>()));
            }
            _ => break,
        }
    }
    let registry = Registry::load(rows.clone()).ok()?;
    assert_eq!(registry.iter().count(), rows.len());
    for (name, word) in &rows {
        let row = registry.find(name).unwrap();
        assert_eq!((row.to_zap_value(), registry.get(row.attr)), (*word, Some(row)));
    }
    let table = LayoutTable::load(registry, layouts.clone()).ok()?;
    for (name, numbers) in &layouts {
        let layout = table.get(name.parse().unwrap()).unwrap();
        assert_eq!((layout.zap_name(), layout.zap_value()), (name.clone(), numbers.clone()));
    }
    Some(table)
}

/// Parses a bonus and a spill block, changes them in place and stores them again; `false` if one was refused.
pub fn buffers(bonus: &[u8], spill: &[u8], table: &LayoutTable) -> bool {
    let both = (buffer(bonus, table), buffer(spill, table));
    let (Some(bonus), Some(spill)) = both else { return false };
    let Ok(list) = AttrList::from_bonus_and_spill(&bonus, &spill) else { return false };
    for bonus_max in [192, 320, 832] {
        let count = match count_in_bonus(&list, table.registry(), bonus_max) {
            Ok(count) => count,
            // The spill would hold the values of both buffers.
            Err(SaError::TooLarge { bytes }) => {
                assert!(bytes > 128 << 10);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let mut table = table.clone();
        let (first, others) = list.split_at(count);
        let mut encode = |part: AttrSlice<'_>| {
            let layout = table.add(&part.order().collect::<Vec<_>>())?;
            Ok(SaBuffer::encode(&layout, part)?.into_bytes())
        };
        let (first, others) = match (encode(first), encode(others)) {
            (Ok(first), Ok(others)) => (first, others),
            (_, Err(SaError::TooManyAttributes | SaError::TooManyLayouts))
            | (Err(SaError::TooManyAttributes | SaError::TooManyLayouts), _) => continue,
            (Err(error), _) | (_, Err(error)) => panic!("{error}"),
        };
        assert!(first.len() <= if count == list.len() { bonus_max } else { bonus_max - 128 });
        let attrs = |raw| Attrs::decode(raw, &table).unwrap();
        assert_eq!(AttrList::from_bonus_and_spill(&attrs(&first), &attrs(&others)), Ok(list.clone()));
    }
    true
}

fn buffer<'a>(raw: &'a [u8], table: &'a LayoutTable) -> Option<Attrs<'a>> {
    let attrs = Attrs::decode(raw, table).ok()?;
    assert!(attrs.used_bytes() <= raw.len());
    assert!(attrs.iter().map(|(attr, _)| attr).eq(attrs.layout().order()));
    let list = AttrList::from_attrs(&attrs);
    let again = SaBuffer::encode(attrs.layout(), &list).unwrap();
    assert_eq!((again.as_bytes().len(), AttrList::from_attrs(&again.attrs())), (attrs.used_bytes(), list));
    let mut changed = SaBuffer::decode(raw.to_vec(), table).unwrap();
    for (attr, value) in attrs.iter() {
        assert_eq!(attrs.get(attr), Some(value));
        let turned: Vec<u8> = value.iter().map(|byte| !byte).collect();
        assert!(changed.set_bytes(attr, &turned));
        assert_eq!(changed.attrs().get(attr), Some(&turned[..]));
    }
    // Values were byte-swapped, and nothing else.
    let turned = raw.iter().zip(changed.as_bytes()).filter(|(before, after)| before != after).count();
    assert_eq!(turned, attrs.iter().map(|(_, value)| value.len()).sum::<usize>());
    let _ = ZplAttrs::from_attrs(&attrs);
    attrs.get(Attr::DXATTR).map(self::list);
    Some(attrs)
}
