use super::*;
use crate::{AttrList, Registry, ZplAttrs};
use proptest::prelude::*;
use std::path::PathBuf;

/// `zap/sa_layouts`: the layouts of the dataset that the buffers come from.
const OPENZFS_LAYOUTS: [(&str, &[u16]); 6] = [
    ("3", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 20]),
    ("4", &[20]),
    ("7", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 10, 16, 19]),
    ("5", &[20, 22]),
    ("2", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19]),
    ("6", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 17]),
];

/// A buffer's name, its layout, and its header size.
const BUFFERS: [(&str, u16, usize); 11] = [
    ("dir.bonus", 2, 8),
    ("reg.bonus", 2, 8),
    ("reg_dxattr_small.bonus", 3, 16),
    ("reg_dxattr_spill.bonus", 2, 8),
    ("reg_dxattr_spill.spill", 4, 8),
    ("reg_dxattr_unspilled.bonus", 3, 16),
    ("reg_dxattr_large_seq.bonus", 2, 8),
    ("reg_dxattr_large_seq.spill", 5, 8),
    ("reg_1k_dxattr.bonus", 3, 16),
    ("symlink.bonus", 6, 16),
    ("blkdev_projid.bonus", 7, 8),
];

fn openzfs() -> LayoutTable {
    LayoutTable::load(Registry::built_in(), OPENZFS_LAYOUTS).unwrap()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/sa").join(name))
        .unwrap()
}

#[test]
fn buffers_of_openzfs_come_back_byte_for_byte() {
    let table = openzfs();
    for (name, layout, header_bytes) in BUFFERS {
        let raw = file(name);
        let attrs = Attrs::decode(&raw, &table).unwrap();
        assert_eq!(
            (attrs.layout().number(), attrs.layout().header_bytes()),
            (layout, header_bytes),
            "{name}"
        );
        let again = SaBuffer::encode(attrs.layout(), &AttrList::from_attrs(&attrs)).unwrap();
        assert_eq!(again.as_bytes().len(), attrs.used_bytes(), "{name}");
        assert!(raw[attrs.used_bytes()..].iter().all(|&byte| byte == 0), "{name}");
        let mut again = again.into_bytes();
        again.resize(raw.len(), 0);
        assert!(again == raw, "{name}");
    }
}

/// The dataset of the vectors, as if it had given other numbers to its attributes.
#[test]
fn buffers_do_not_depend_on_the_numbers_of_attributes() {
    let other = |number: u16| (number * 7 + 11) % 31;
    let words = Registry::built_in();
    let words = words.iter().map(|row| {
        let word = row.to_zap_value();
        (row.name.clone(), word & !0xffff | u64::from(other(row.number)))
    });
    let orders =
        OPENZFS_LAYOUTS.map(|(name, order)| (name, order.iter().copied().map(other).collect::<Vec<_>>()));
    let table = LayoutTable::load(Registry::load(words).unwrap(), orders.clone()).unwrap();
    for (name, layout, _) in BUFFERS {
        let raw = file(name);
        let attrs = Attrs::decode(&raw, &table).unwrap();
        let usual = openzfs();
        let expected = Attrs::decode(&raw, &usual).unwrap();
        assert!(attrs.iter().eq(expected.iter()), "{name}");
        let (_, order) = orders.iter().find(|(name, _)| *name == layout.to_string()).unwrap();
        assert_eq!(&attrs.layout().zap_value(), order);
    }
    let mut table = table;
    assert_eq!(table.add(&[Attr::MODE, Attr::GEN]).unwrap().zap_value(), [5, 4].map(other));
}

#[test]
fn files_of_openzfs_have_their_values() {
    let table = openzfs();
    let time = |k: u64| [1_700_000_000 + k, 123_456_789 + k];
    let usual = ZplAttrs {
        mode: 0o100600,
        generation: 7,
        uid: 1000,
        gid: 100,
        parent: 2,
        flags: 0x408_0000_0104,
        atime: time(0),
        mtime: time(1),
        ctime: time(2),
        crtime: time(3),
        links: 1,
        ..ZplAttrs::default()
    };
    let with_xattr = ZplAttrs { ctime: [1_800_000_000, 5], ..usual.clone() };
    for (name, expected) in [
        ("dir.bonus", ZplAttrs { mode: 0o040755, size: 2, parent: 4, links: 2, ..usual.clone() }),
        ("reg.bonus", ZplAttrs { mode: 0o100644, size: 12345, ..usual.clone() }),
        ("reg_dxattr_small.bonus", ZplAttrs { mode: 0o100644, size: 12345, ..with_xattr.clone() }),
        ("reg_dxattr_spill.bonus", with_xattr.clone()),
        ("reg_dxattr_unspilled.bonus", with_xattr.clone()),
        ("reg_dxattr_large_seq.bonus", with_xattr.clone()),
        ("reg_1k_dxattr.bonus", with_xattr.clone()),
        (
            "symlink.bonus",
            ZplAttrs {
                mode: 0o120777,
                size: 20,
                symlink: Some(b"target/of/the/link/x".to_vec()),
                ..usual.clone()
            },
        ),
        (
            "blkdev_projid.bonus",
            ZplAttrs {
                mode: 0o060640,
                flags: usual.flags | 0x8000_0000_0000,
                size: 2,
                links: 2,
                projid: Some(42),
                rdev: Some(0x801),
                ..usual.clone()
            },
        ),
    ] {
        let raw = file(name);
        let attrs = Attrs::decode(&raw, &table).unwrap();
        let mut found = ZplAttrs::from_attrs(&attrs).unwrap();
        let dxattr = found.dxattr.take();
        assert_eq!(found, expected, "{name}");
        assert_eq!(dxattr.is_some(), attrs.layout().number() == 3, "{name}");
        assert_eq!(attrs.u64(Attr::DACL_COUNT), Some(3));
        assert_eq!(attrs.get(Attr::DACL_ACES).map(<[u8]>::len), Some(24));
    }
    let spill = file("reg_dxattr_large_seq.spill");
    let attrs = Attrs::decode(&spill, &table).unwrap();
    assert_eq!(attrs.u64(Attr::SEQ), Some(99));
    assert!(attrs.get(Attr::DXATTR).unwrap().len() > 30_000);
}

#[test]
fn a_number_changes_in_place() {
    let table = openzfs();
    for name in ["reg.bonus", "reg_dxattr_small.bonus", "symlink.bonus"] {
        let before = file(name);
        let mut buffer = SaBuffer::decode(before.clone(), &table).unwrap();
        assert!(buffer.set_u64(Attr::SIZE, 0x1122_3344_5566));
        assert!(buffer.set_pair(Attr::MTIME, [1, 2]));
        assert!(!buffer.set_u64(Attr::PROJID, 1), "not in the layout");
        assert!(!buffer.set_u64(Attr::MTIME, 1), "another length");
        let mut expected = ZplAttrs::from_attrs(&Attrs::decode(&before, &table).unwrap()).unwrap();
        expected.size = 0x1122_3344_5566;
        expected.mtime = [1, 2];
        assert_eq!(ZplAttrs::from_attrs(&buffer.attrs()).unwrap(), expected);
        assert!(buffer.as_bytes().iter().zip(&before).filter(|(a, b)| a != b).count() <= 8 + 16);
        assert_eq!(SaBuffer::decode(buffer.as_bytes().to_vec(), &table), Ok(buffer));
    }
}

#[test]
fn invalid_buffers_are_refused() {
    let table = openzfs();
    let refuse = |raw: &[u8], what: &str| assert_eq!(Attrs::decode(raw, &table).unwrap_err().what, what);
    let good = file("symlink.bonus");
    for len in 0..good.len() {
        refuse(&good[..len], "length");
    }
    let damage = |at: usize, byte: u8| {
        let mut raw = good.clone();
        raw[at] = byte;
        raw
    };
    refuse(&damage(0, 0), "magic");
    refuse(&[&[0, 0x2f, 0x50, 0x5a], &good[4..]].concat(), "byte order");
    refuse(&damage(4, 8), "layout");
    refuse(&damage(4, 0), "layout");
    refuse(&damage(5, 3 << 2), "header size");
    refuse(&damage(4, 2), "header size");
    refuse(&damage(7, 1), "length");
    refuse(&damage(8, 21), "length");
    refuse(&vec![0; SA_BYTES_MAX + 1], "length");
}

#[test]
fn values_that_do_not_fit_their_attribute_are_not_stored() {
    let mut table = LayoutTable::new(Registry::built_in());
    let layout = table.add(&[Attr::MODE, Attr::SYMLINK]).unwrap();
    let list = |mode: &[u8], target: usize| {
        let mut list = AttrList::new();
        list.set(Attr::MODE, mode);
        list.set(Attr::SYMLINK, &vec![b'x'; target]);
        list
    };
    assert!(SaBuffer::encode(&layout, &list(&[0; 8], 65535)).is_ok());
    let refuse = |list: &AttrList, e| assert_eq!(SaBuffer::encode(&layout, list), Err(e));
    refuse(&list(&[0; 7], 1), SaError::Length { attr: Attr::MODE, len: 7 });
    refuse(&list(&[0; 8], 65536), SaError::TooLarge { bytes: 65536 });
    refuse(&AttrList::new(), SaError::LayoutMismatch { layout: 2 });
}

proptest! {
    #[test]
    fn any_layout_comes_back(values in prop::collection::btree_map(100u16..160, prop::collection::vec(any::<u8>(), 0..40), 0..20), order in any::<u64>()) {
        // Attributes below 130 have a fixed length, the others a length per value; the order is arbitrary.
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by_key(|(attr, _)| (u64::from(*attr) + 1).wrapping_mul(order | 1));
        let rows = values.iter().map(|(attr, value)| {
            let len = if *attr < 130 { value.len() as u64 } else { 0 };
            (format!("X{attr}"), u64::from(*attr) | 3 << 16 | len << 24)
        });
        let mut table = LayoutTable::new(Registry::load(rows).unwrap());
        let mut list = AttrList::new();
        for (attr, value) in &values {
            list.set(Attr(*attr), value);
        }
        let layout = table.add(&list.order().collect::<Vec<_>>()).unwrap();
        let raw = SaBuffer::encode(&layout, &list).unwrap().into_bytes();
        let attrs = Attrs::decode(&raw, &table).unwrap();
        prop_assert_eq!(attrs.used_bytes(), raw.len());
        prop_assert_eq!(AttrList::from_attrs(&attrs), list);
        for (attr, value) in &values {
            prop_assert_eq!(attrs.get(Attr(*attr)), Some(&value[..]));
        }
        prop_assert!(raw.is_empty() || Attrs::decode(&raw[..raw.len() - 1], &table).is_err());
    }
}
