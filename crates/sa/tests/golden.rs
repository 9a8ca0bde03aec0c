//! Reproduces the files of one OpenZFS dataset: their operations, from the first on, must give its layouts, bonuses
//! and spill blocks.
//!
//! `tests/vectors/sa` has the bonus, the spill block and the dnode of each file. Of the dnode, only the position and
//! length of the bonus and the presence of a spill are read, because its block pointers belong to another pool.
//! `tests/vectors/nvlist` has the lists of extended attributes that the files were given.

use std::path::Path;
use terrane_sa::{
    Attr, AttrList, AttrSlice, Attrs, LayoutTable, NvList, Registry, SaBuffer, ZplAttrs, count_in_bonus,
};

const HAS_SPILL: u8 = 4;

fn vector(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The parts of a dnode that concern attributes: capacity of the bonus, the bonus, and whether there is a spill.
fn dnode(name: &str) -> (usize, Vec<u8>, bool) {
    let raw = vector(&format!("sa/{name}.dnode"));
    let at = 64 + 128 * usize::from(raw[3]);
    let bonus_len = usize::from(u16::from_le_bytes([raw[10], raw[11]]));
    (raw.len() - at, raw[at..at + bonus_len].to_vec(), raw[7] & HAS_SPILL != 0)
}

struct Files {
    table: LayoutTable,
}

impl Files {
    /// Stores a file's attributes, and expects the bytes of the vector.
    fn store(&mut self, name: &str, list: &AttrList) {
        let (bonus_max, expected, has_spill) = dnode(name);
        assert_eq!(expected, vector(&format!("sa/{name}.bonus")), "{name}");
        let count = count_in_bonus(list, self.table.registry(), bonus_max).unwrap();
        let (bonus, spill) = list.split_at(count);
        assert_eq!(count < list.len(), has_spill, "{name}");

        let bonus = self.encode(bonus);
        let spill = has_spill.then(|| (self.encode(spill), vector(&format!("sa/{name}.spill"))));
        // With a spill, OpenZFS keeps as many bytes of the bonus as all attributes would have filled.
        assert_eq!(expected.len(), if has_spill { bonus_max - 128 } else { bonus.len() }, "{name}");
        assert!(padded(&bonus, expected.len()) == expected, "{name}");
        if let Some((ours, theirs)) = &spill {
            assert_eq!(ours.len().next_multiple_of(512), theirs.len(), "{name}");
            assert!(padded(ours, theirs.len()) == *theirs, "{name}");
        }

        let bonus = Attrs::decode(&expected, &self.table).unwrap();
        let read = match &spill {
            Some((_, theirs)) => {
                AttrList::from_bonus_and_spill(&bonus, &Attrs::decode(theirs, &self.table).unwrap()).unwrap()
            }
            None => AttrList::from_attrs(&bonus),
        };
        assert_eq!(read, *list, "{name}");
    }

    fn encode(&mut self, list: AttrSlice<'_>) -> Vec<u8> {
        let order: Vec<Attr> = list.order().collect();
        let layout = self.table.add(&order).unwrap();
        SaBuffer::encode(&layout, list).unwrap().into_bytes()
    }
}

fn padded(raw: &[u8], len: usize) -> Vec<u8> {
    let mut raw = raw.to_vec();
    raw.resize(len, 0);
    raw
}

/// A new file: its POSIX attributes, then the three entries of an ACL that equals the mode.
fn new_file(attrs: &ZplAttrs) -> AttrList {
    let mut list = attrs.to_list();
    list.set_u64(Attr::DACL_COUNT, 3);
    let mut entries = Vec::new();
    for (flags, mask) in [(0x1000_u16, 0x1e_01bf_u32), (0x2040, 0x12_0089), (0x4000, 0x12_0089)] {
        entries.extend_from_slice(&[0, 0]);
        entries.extend_from_slice(&flags.to_le_bytes());
        entries.extend_from_slice(&mask.to_le_bytes());
    }
    list.set(Attr::DACL_ACES, &entries);
    list
}

/// Sets the list of extended attributes, and the ctime of that change.
fn set_xattrs(list: &mut AttrList, nvlist: &str) {
    let raw = vector(&format!("nvlist/{nvlist}.xdr"));
    assert!(!NvList::parse(&raw).unwrap().is_empty());
    list.set_pair(Attr::CTIME, [1_800_000_000, 5]);
    list.set(Attr::DXATTR, &raw);
}

#[test]
fn the_files_of_openzfs_are_made_again() {
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
    let mut files = Files { table: LayoutTable::new(Registry::built_in()) };

    files
        .store("dir", &new_file(&ZplAttrs { mode: 0o040755, size: 2, parent: 4, links: 2, ..usual.clone() }));
    let mut reg = new_file(&ZplAttrs { mode: 0o100644, size: 12345, ..usual.clone() });
    files.store("reg", &reg);
    set_xattrs(&mut reg, "one_small");
    files.store("reg_dxattr_small", &reg);

    let mut file = new_file(&usual);
    set_xattrs(&mut file, "four");
    files.store("reg_dxattr_spill", &file);
    set_xattrs(&mut file, "replaced");
    files.store("reg_dxattr_unspilled", &file);

    let mut file = new_file(&usual);
    set_xattrs(&mut file, "large");
    file.set_u64(Attr::SEQ, 99);
    files.store("reg_dxattr_large_seq", &file);

    let mut file = new_file(&usual);
    set_xattrs(&mut file, "mid");
    files.store("reg_1k_dxattr", &file);

    let mut symlink = new_file(&ZplAttrs { mode: 0o120777, size: 20, ..usual.clone() });
    symlink.set(Attr::SYMLINK, b"target/of/the/link/x");
    files.store("symlink", &symlink);

    let flags = usual.flags | 0x8000_0000_0000;
    let device =
        ZplAttrs { mode: 0o060640, flags, size: 2, links: 2, projid: Some(42), rdev: Some(0x801), ..usual };
    files.store("blkdev_projid", &new_file(&device));

    // The content of `zap/sa_layouts` of that dataset.
    let usual = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8];
    let layouts: Vec<(u16, Vec<u16>)> =
        files.table.iter().skip(1).map(|layout| (layout.number(), layout.zap_value())).collect();
    assert_eq!(
        layouts,
        [
            (2, [&usual[..], &[16, 19]].concat()),
            (3, [&usual[..], &[16, 19, 20]].concat()),
            (4, vec![20]),
            (5, vec![20, 22]),
            (6, [&usual[..], &[16, 19, 17]].concat()),
            (7, [&usual[..], &[21, 10, 16, 19]].concat()),
        ]
    );
}

#[test]
fn an_attribute_in_bonus_and_spill_is_damage() {
    let mut table = LayoutTable::new(Registry::built_in());
    let mut buffer = |attrs: &[Attr]| {
        let mut list = AttrList::new();
        attrs.iter().for_each(|&attr| list.set_u64(attr, 1));
        SaBuffer::encode(&table.add(attrs).unwrap(), &list).unwrap()
    };
    let (bonus, spill) = (buffer(&[Attr::MODE, Attr::SIZE]), buffer(&[Attr::SEQ, Attr::MODE]));
    let error = AttrList::from_bonus_and_spill(&bonus.attrs(), &spill.attrs()).unwrap_err();
    assert!(error.to_string().contains("ZPL_MODE"), "{error}");
}
