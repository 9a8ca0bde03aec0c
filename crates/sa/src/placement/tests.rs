use super::*;
use crate::{Attr, Attrs, LayoutTable, SaBuffer};
use proptest::prelude::*;

fn list(values: &[(Attr, usize)]) -> AttrList {
    let mut list = AttrList::new();
    for &(attr, len) in values {
        list.set(attr, &vec![b'v'; len]);
    }
    list
}

#[test]
fn boundaries_are_those_of_the_rule() {
    let registry = Registry::built_in();
    let count =
        |values: &[(Attr, usize)], bonus_max| count_in_bonus(&list(values), &registry, bonus_max).unwrap();
    // One variable attribute: 8 + 16 + n bytes of 320.
    assert_eq!(count(&[(Attr::MTIME, 16), (Attr::SYMLINK, 296)], 320), 2);
    assert_eq!(count(&[(Attr::MTIME, 16), (Attr::SYMLINK, 297)], 320), 1);
    // A second one: 16 + 8 + n, and one byte must be left over.
    assert_eq!(count(&[(Attr::SYMLINK, 8), (Attr::DXATTR, 295)], 320), 2);
    assert_eq!(count(&[(Attr::SYMLINK, 8), (Attr::DXATTR, 296)], 320), 1);
    // That holds only at that attribute: a later fixed one may use the last byte.
    assert_eq!(count(&[(Attr::SYMLINK, 8), (Attr::DXATTR, 288), (Attr::SEQ, 8)], 320), 3);
    // Without a spill there are 320 bytes, with one 192. The attribute that reaches past 192 moves to the spill, with
    // all after it.
    let long = [(Attr::MTIME, 16), (Attr::SYMLINK, 169), (Attr::SIZE, 8), (Attr::DXATTR, 10)];
    assert_eq!(count(&long, 320), 4);
    assert_eq!(count(&[&long[..], &[(Attr::DACL_ACES, 200)]].concat(), 320), 1);
    assert_eq!(count(&[(Attr::MTIME, 16), (Attr::SYMLINK, 168), (Attr::DXATTR, 200)], 320), 2);
    // The first attribute can move too.
    assert_eq!(count(&[(Attr::DXATTR, 400), (Attr::SIZE, 8)], 320), 0);
    assert_eq!(count(&[], 320), 0);
}

#[test]
fn values_that_no_header_can_describe_are_too_large() {
    let registry = Registry::built_in();
    let refuse = |values: &[(Attr, usize)], bonus_max, bytes| {
        assert_eq!(count_in_bonus(&list(values), &registry, bonus_max), Err(SaError::TooLarge { bytes }));
    };
    assert_eq!(16 + 65536 + 65520, SA_BYTES_MAX);
    let full = [(Attr::DXATTR, 65535), (Attr::SYMLINK, 65520)];
    assert_eq!(count_in_bonus(&list(&full), &registry, 320), Ok(0));
    refuse(&[(Attr::DXATTR, 65535), (Attr::SYMLINK, 65521)], 320, SA_BYTES_MAX + 1);
    refuse(&[(Attr::DXATTR, 65536)], 320, 65536);
    refuse(&[(Attr::DXATTR, 65536)], 1 << 20, 65536);
    // A bonus that holds only the pointer to a spill block.
    refuse(&[(Attr::DXATTR, 200)], 135, 208);
    assert_eq!(count_in_bonus(&list(&[(Attr::DXATTR, 200)]), &registry, 136), Ok(0));
    let unknown = list(&[(Attr(500), 8)]);
    assert_eq!(count_in_bonus(&unknown, &registry, 320), Err(SaError::Unregistered(Attr(500))));
}

proptest! {
    /// Attributes below 130 have a fixed length, the others a length per value.
    #[test]
    fn bonus_and_spill_hold_the_list(values in prop::collection::vec((100u16..160, 0usize..700), 0..25), slots in 0usize..32, odd in 0usize..100) {
        let bonus_max = 192 + slots * 512 + odd;
        let mut fixed = std::collections::BTreeMap::new();
        let mut list = AttrList::new();
        for (i, &(attr, len)) in values.iter().enumerate() {
            let len = if attr < 130 { *fixed.entry(attr).or_insert(1 + len % 40) } else { len };
            list.set(Attr(attr), &vec![i as u8; len]);
        }
        let rows = (100..160u16).map(|n| {
            let len = if n < 130 { fixed.get(&n).copied().unwrap_or(8) as u64 } else { 0 };
            (format!("X{n}"), u64::from(n) | 3 << 16 | len << 24)
        });
        let registry = Registry::load(rows).unwrap();
        let count = count_in_bonus(&list, &registry, bonus_max).unwrap();
        let mut table = LayoutTable::new(registry);
        let (bonus, spill) = list.split_at(count);
        let mut encode = |part: crate::AttrSlice<'_>| {
            let layout = table.add(&part.order().collect::<Vec<_>>()).unwrap();
            SaBuffer::encode(&layout, part).unwrap().into_bytes()
        };
        let (bonus, spill, all) = (encode(bonus), encode(spill), encode(list.split_at(list.len()).0));
        if count == list.len() {
            prop_assert!(bonus.len() <= bonus_max);
        } else {
            // Without the spill the list would not fit, and with it no further attribute would fit.
            prop_assert!(all.len() >= bonus_max);
            prop_assert!(bonus.len() <= bonus_max - SPILL_POINTER_BYTES);
            prop_assert!(encode(list.split_at(count + 1).0).len() > bonus_max - SPILL_POINTER_BYTES);
            prop_assert!(spill.len() <= SA_BYTES_MAX);
        }
        let attrs = |raw| Attrs::decode(raw, &table);
        let (bonus, spill) = (attrs(&bonus).unwrap(), attrs(&spill).unwrap());
        prop_assert_eq!(AttrList::from_bonus_and_spill(&bonus, &spill), Ok(list));
    }
}
