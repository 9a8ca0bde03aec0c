//! The names that check gives its findings.

use std::sync::Arc;
use terrane_check::attributes::load_layouts;
use terrane_check::{Report, check, kind};
use terrane_dataset::{Dataset, ObjectZap};
use terrane_device::SimDevice;
use terrane_format::BlockPtr;
use terrane_format::Feature;
use terrane_object::{Object, ObjectKind, ObjectSpec};
use terrane_posix::SetXattr;
use terrane_sa::{Attr, AttrList, Attrs, LayoutTable, NvList, SaBuffer};
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;
use terrane_zap::ValueRef;

const COST: Cost = Cost { write_bytes: 64 << 10, meta_blocks: 32, ..Cost::NOTHING };

/// A file system with two directories and a file of two names, after a change that bypasses it.
fn after(change: impl FnOnce(&Dataset, u64)) -> Report {
    after_with(&[], change)
}

/// The same in a dataset with these properties.
fn after_with(props: &[(&'static str, &'static str)], change: impl FnOnce(&Dataset, u64)) -> Report {
    let machine = Machine::create(&Plan { props: props.to_vec(), ..Plan::small(1) }).unwrap();
    let fs = machine.fs().clone();
    let dir = fs.mkdir(fs.root(), b"dir", 0o755, &USER).unwrap().ino;
    fs.mkdir(dir, b"below", 0o755, &USER).unwrap();
    let file = fs.create(dir, b"file", 0o644, &USER).unwrap().ino;
    fs.link(file, fs.root(), b"second").unwrap();
    fs.sync().unwrap();
    let device = machine.export().unwrap();
    let machine = Machine::import(&device, 2, false).unwrap();
    let dataset = Dataset::open_root(&machine.objects).unwrap();
    assert!(check(&machine.objects, &mut |_| {}).is_clean());
    change(&dataset, dir);
    machine.pool.commit().unwrap();
    check(&machine.objects, &mut |_| {})
}

fn names(dataset: &Dataset, dir: u64) -> ObjectZap {
    dataset.open_zap(ObjectId(dir)).unwrap()
}

#[test]
fn a_name_of_nothing_is_found() {
    let report = after(|dataset, dir| {
        let tx = dataset.object_set().begin(COST).unwrap();
        names(dataset, dir).add_u64(&tx, b"ghost", 999 | 8 << 60).unwrap();
    });
    assert!(report.has(kind::ENTRY) && report.has(kind::SIZE), "{report}");
    assert_eq!(report.findings_count, 2, "{report}");
    assert!(report.to_string().contains("directory entry should be an existing object, found 999"));
}

#[test]
fn a_lost_name_is_found() {
    let report = after(|dataset, dir| {
        let tx = dataset.object_set().begin(COST).unwrap();
        names(dataset, dir).remove(&tx, b"file").unwrap();
    });
    assert!(report.has(kind::LINKS) && report.has(kind::SIZE), "{report}");
    assert_eq!(report.findings_count, 2, "{report}");
}

#[test]
fn names_that_break_the_rules_of_their_data_set_are_found() {
    let add = |dataset: &Dataset, dir: u64, name: &[u8]| {
        let tx = dataset.object_set().begin(COST).unwrap();
        let mut zap = names(dataset, dir);
        let value = zap.lookup_u64(b"file").unwrap().unwrap();
        zap.add_u64(&tx, name, value).unwrap();
    };
    let insensitive = [("casesensitivity", "insensitive")];
    let report = after_with(&insensitive, |dataset, dir| add(dataset, dir, b"FILE"));
    assert_eq!(report.to_string().matches("unique after normalization").count(), 2, "{report}");
    let mixed = after_with(&[("casesensitivity", "mixed")], |dataset, dir| add(dataset, dir, b"FILE"));
    assert!(!mixed.to_string().contains("after normalization"), "{mixed}");
    let report = after_with(&[("utf8only", "on")], |dataset, dir| add(dataset, dir, b"bad\xff"));
    assert!(report.to_string().contains("valid UTF-8"), "{report}");
    // A directory of a dataset without normalisation, in one with it.
    let report = after_with(&insensitive, |dataset, dir| {
        let tx = dataset.object_set().begin(COST).unwrap();
        let mut zap = names(dataset, dir);
        let entries = zap.entries().unwrap();
        entries.iter().for_each(|entry| assert!(zap.remove(&tx, entry.key.name().unwrap()).unwrap()));
        for entry in &entries {
            zap.add_u64(&tx, entry.key.name().unwrap(), entry.value.first_integer().unwrap()).unwrap();
        }
    });
    assert!(report.to_string().contains("normalization 0x2 of the data set"), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}

#[test]
fn a_lost_directory_is_an_orphan() {
    let report = after(|dataset, dir| {
        let tx = dataset.object_set().begin(COST).unwrap();
        names(dataset, dir).remove(&tx, b"below").unwrap();
    });
    assert!(report.has(kind::ORPHAN) && report.has(kind::LINKS) && report.has(kind::SIZE), "{report}");
    assert_eq!(report.findings_count, 3, "{report}");
}

#[test]
fn a_wrong_type_in_a_name_is_found() {
    let report = after(|dataset, dir| {
        let tx = dataset.object_set().begin(COST).unwrap();
        let mut zap = names(dataset, dir);
        let value = zap.lookup_u64(b"file").unwrap().unwrap();
        zap.update_u64(&tx, b"file", value & ((1 << 48) - 1) | 10 << 60).unwrap();
    });
    assert!(report.has(kind::ENTRY), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}

#[test]
fn damaged_words_beside_an_entry_are_found() {
    let with = |count: u64, words: &[u64]| {
        after(|dataset, dir| {
            let tx = dataset.object_set().begin(COST).unwrap();
            let mut zap = names(dataset, dir);
            let first = zap.lookup_u64(b"file").unwrap().unwrap();
            let value = [&[first | count << 48], words].concat();
            zap.update(&tx, b"file", ValueRef::U64s(&value)).unwrap();
            tx.pool().note_use(Feature::EntryWords);
        })
    };
    for (count, words) in [(0, &[][..]), (1, &[7]), (2, &[7, 0]), (1, &[7, 0, 0]), (6, &[1, 2, 3, 4, 5, 6])] {
        let report = with(count, words);
        assert!(report.is_clean(), "{count} of {words:?}: {report}");
    }
    for (count, words, found) in [
        (1, &[][..], "of 2 words by its first one, found 1"),
        (7, &[0; 6], "of 8 words by its first one, found 7"),
        (0, &[9], "of 1 words and zeros, found 0x9"),
        (1, &[0, 0, 9], "of 2 words and zeros, found 0x9"),
        (6, &[0; 7], "1 to 7 words, found 8 integers of 8 bytes"),
        (0, &[0; 30], "1 to 7 words, found 31 integers of 8 bytes"),
    ] {
        let report = with(count, words);
        assert!(report.has(kind::ENTRY) && report.findings_count == 1, "{count} of {words:?}: {report}");
        assert!(report.to_string().contains(found), "{count} of {words:?}: {report}");
    }
    let bytes = after(|dataset, dir| {
        let tx = dataset.object_set().begin(COST).unwrap();
        let mut zap = names(dataset, dir);
        let first = zap.lookup_u64(b"file").unwrap().unwrap();
        let halves = [(first >> 32) as u32, first as u32];
        zap.update(&tx, b"file", ValueRef::U32s(&halves)).unwrap();
    });
    assert!(bytes.to_string().contains("1 to 7 words, found 2 integers of 4 bytes"), "{bytes}");
}

#[test]
fn a_directory_in_itself_is_a_loop() {
    let report = after(|dataset, dir| {
        let tx = dataset.object_set().begin(COST).unwrap();
        let root = dataset.master().unwrap().lookup_u64(b"ROOT").unwrap().unwrap();
        names(dataset, root).remove(&tx, b"dir").unwrap();
        // `dir` contains itself, and is its own parent.
        names(dataset, dir).add_u64(&tx, b"dir", dir | 4 << 60).unwrap();
        let object = dataset.object_set().hold(ObjectId(dir)).unwrap();
        let bonus: Vec<u8> = object.bonus().to_vec();
        let at = bonus.windows(8).position(|word| word == root.to_le_bytes()).unwrap();
        let mut changed = bonus;
        changed[at..at + 8].copy_from_slice(&dir.to_le_bytes());
        object.set_bonus(&tx, changed).unwrap();
    });
    assert!(report.has(kind::LOOP) && report.has(kind::SIZE), "{report}");
}

#[test]
fn an_object_without_a_name_is_an_orphan() {
    let report = after(|dataset, _| {
        let tx = dataset.object_set().begin(COST).unwrap();
        let spec = ObjectSpec {
            kind: ObjectKind::Zap,
            block_size: 512,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: None,
        };
        dataset.object_set().create(&tx, spec).unwrap();
    });
    assert!(report.has(kind::ORPHAN), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}

/// Where programs keep their own ZAPs a file system may be missing, but not a part of it.
#[test]
fn a_file_system_without_its_version_is_not_taken_for_none() {
    let report = after(|dataset, _| {
        let tx = dataset.object_set().begin(COST).unwrap();
        let roots = dataset.new_zap(&tx, ObjectKind::Zap).unwrap().object().id();
        let mut master = dataset.master().unwrap();
        master.add_u64(&tx, terrane_dataset::zaps::PROGRAM_ROOTS, roots.0).unwrap();
        assert!(master.remove(&tx, "VERSION").unwrap());
    });
    assert!(report.to_string().contains("with VERSION"), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}

/// Two files with extended attributes in every home: in the bonus, in a spill block, in a hidden directory.
struct Xattrs {
    dataset: Dataset,
    device: SimDevice,
    table: LayoutTable,
    /// `user.list` in the spill, `user.big` in the hidden directory.
    all: u64,
    /// `user.small` in the bonus.
    small: u64,
    hidden: u64,
    value: u64,
}

impl Xattrs {
    fn object(&self, number: u64) -> Arc<Object> {
        self.dataset.object_set().hold(ObjectId(number)).unwrap()
    }

    fn list(&self, number: u64) -> AttrList {
        let object = self.object(number);
        let bonus = object.bonus();
        let bonus = Attrs::decode(&bonus, &self.table).unwrap();
        match object.spill().unwrap() {
            Some(raw) => {
                AttrList::from_bonus_and_spill(&bonus, &Attrs::decode(&raw, &self.table).unwrap()).unwrap()
            }
            None => AttrList::from_attrs(&bonus),
        }
    }

    /// Stores a list with this many of its attributes in the bonus.
    fn store(&self, number: u64, list: &AttrList, in_bonus: usize) {
        let encode = |list: terrane_sa::AttrSlice<'_>| {
            SaBuffer::encode(self.table.find(list.order()).unwrap(), list).unwrap().into_bytes()
        };
        let (near, far) = list.split_at(in_bonus);
        let spill = (!far.is_empty()).then(|| encode(far));
        let tx = self.dataset.object_set().begin(COST).unwrap();
        self.object(number).set_attributes(&tx, encode(near), spill).unwrap();
    }

    /// Replaces the list of names in the spill of `all`.
    fn store_names(&self, packed: &[u8]) {
        let mut list = self.list(self.all);
        list.set(Attr::DXATTR, packed);
        self.store(self.all, &list, 12);
    }

    /// Overwrites a number of an object that has all of its attributes in the bonus.
    fn poke(&self, number: u64, attr: Attr, value: u64) {
        let object = self.object(number);
        let mut bonus = SaBuffer::decode(object.bonus().to_vec(), &self.table).unwrap();
        assert!(bonus.set_u64(attr, value));
        let tx = self.dataset.object_set().begin(COST).unwrap();
        object.set_bonus(&tx, bonus.into_bytes()).unwrap();
    }

    fn destroy(&self, number: u64) {
        let tx = self.dataset.object_set().begin(COST).unwrap();
        self.dataset.object_set().destroy(&tx, &self.object(number)).unwrap();
    }

    fn names(&self, dir: u64, change: impl FnOnce(&terrane_pool::Tx, &mut ObjectZap)) {
        let tx = self.dataset.object_set().begin(COST).unwrap();
        change(&tx, &mut names(&self.dataset, dir));
    }
}

fn after_xattrs(change: impl FnOnce(&Xattrs)) -> Report {
    after_xattrs_with(&[], change)
}

fn after_xattrs_with(props: &[(&'static str, &'static str)], change: impl FnOnce(&Xattrs)) -> Report {
    let machine = Machine::create(&Plan { props: props.to_vec(), ..Plan::small(3) }).unwrap();
    let fs = machine.fs().clone();
    let file = |name: &[u8]| fs.create(fs.root(), name, 0o644, &USER).unwrap().ino;
    let (all, small) = (file(b"all"), file(b"small"));
    let set = |ino, name: &[u8], len: usize| {
        let value: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        fs.setxattr(ino, name, &value, SetXattr::default(), &USER).unwrap();
    };
    set(small, b"user.small", 20);
    set(all, b"user.list", 3000);
    set(all, b"user.big", 40_000);
    fs.sync().unwrap();
    drop(fs);
    let device = machine.export().unwrap();
    let machine = Machine::import(&device, 4, false).unwrap();
    let dataset = Dataset::open_root(&machine.objects).unwrap();
    let report = check(&machine.objects, &mut |_| {});
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.counts.files, report.counts.directories), (2, 1), "what is hidden does not count");
    let table = load_layouts(&dataset).unwrap().unwrap();
    let mut xattrs = Xattrs { dataset, device, table, all, small, hidden: 0, value: 0 };
    let list = xattrs.list(all);
    assert_eq!(list.len(), 14);
    xattrs.hidden = u64::from_le_bytes(list.get(Attr::XATTR).unwrap().try_into().unwrap());
    let word = names(&xattrs.dataset, xattrs.hidden).lookup_u64(b"user.big").unwrap().unwrap();
    xattrs.value = word & ((1 << 48) - 1);
    change(&xattrs);
    machine.pool.commit().unwrap();
    machine.pool.drop_cache();
    check(&machine.objects, &mut |_| {})
}

/// Expects exactly these kinds, in any order.
fn expect(report: &Report, kinds: &[&str]) {
    let mut found: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    let mut kinds = kinds.to_vec();
    found.sort_unstable();
    kinds.sort_unstable();
    assert_eq!(found, kinds, "{report}");
}

#[test]
fn attributes_that_cannot_be_read_are_found() {
    let spill = |raw: Vec<u8>| {
        after_xattrs(|xattrs| {
            let object = xattrs.object(xattrs.all);
            let tx = xattrs.dataset.object_set().begin(COST).unwrap();
            object.set_attributes(&tx, object.bonus().to_vec(), Some(raw)).unwrap();
        })
    };
    // What the hidden directory's inode was is unknown, and that is one finding, not two.
    let report = spill(b"nonsense".to_vec());
    expect(&report, &[kind::SPILL]);
    assert!(report.to_string().contains("SA buffer"), "{report}");
    let unknown_layout = [0x5a, 0x50, 0x2f, 0, 0xff, 0x04 | 3, 0, 0].to_vec();
    assert!(spill(unknown_layout).to_string().contains("one of this dataset"));
    let report = after_xattrs(|xattrs| {
        let object = xattrs.object(xattrs.all);
        let tx = xattrs.dataset.object_set().begin(COST).unwrap();
        let twice = object.bonus().to_vec();
        object.set_attributes(&tx, twice.clone(), Some(twice)).unwrap();
    });
    expect(&report, &[kind::SPILL]);
    assert!(report.to_string().contains("none that is in the bonus"), "{report}");
    // Both copies rot.
    let report = after_xattrs(|xattrs| {
        let BlockPtr::Normal(spill) = xattrs.object(xattrs.all).dnode().spill else { panic!("a block") };
        for copy in spill.copies() {
            let pool = xattrs.dataset.object_set().pool();
            let (_, home, offset) = pool.locate(copy, spill.psize).unwrap();
            xattrs.device.rot(home.zone, offset + 7, &[0xff]).unwrap();
        }
    });
    assert!(report.has(kind::UNREADABLE) && report.has(kind::COPY) && !report.has(kind::ORPHAN), "{report}");
    assert!(report.to_string().contains(" spill: readable"), "{report}");
    let report = after_xattrs(|xattrs| {
        let tx = xattrs.dataset.object_set().begin(COST).unwrap();
        let master = xattrs.dataset.master().unwrap();
        let attributes = master.lookup_u64("SA_ATTRS").unwrap().unwrap();
        let layouts = names(&xattrs.dataset, attributes).lookup_u64("LAYOUTS").unwrap().unwrap();
        names(&xattrs.dataset, layouts).add_u64(&tx, b"many", 7).unwrap();
    });
    assert!(report.to_string().contains("SA layouts"), "{report}");
}

#[test]
fn attributes_in_the_wrong_place_are_found() {
    let report = after_xattrs(|xattrs| {
        let list = xattrs.list(xattrs.small);
        assert!(!xattrs.object(xattrs.small).has_spill());
        xattrs.store(xattrs.small, &list, list.len() - 1);
    });
    expect(&report, &[kind::SPILL]);
    assert!(report.to_string().contains("as the bonus holds all attributes"), "{report}");
    let report = after_xattrs(|xattrs| {
        let tx = xattrs.dataset.object_set().begin(COST).unwrap();
        let queue = xattrs.dataset.master().unwrap().lookup_u64("DELETE_QUEUE").unwrap().unwrap();
        xattrs.object(queue).set_attributes(&tx, Vec::new(), Some(vec![1])).unwrap();
    });
    expect(&report, &[kind::SPILL]);
}

#[test]
fn lists_that_nobody_could_have_set_are_found() {
    let with = |name: &[u8], value: &[u8]| NvList::default().with(name, value).unwrap();
    let long = [b"user.".to_vec(), vec![b'x'; 251]].concat();
    let acl = b"system.posix_acl_access";
    let rows = |rows: &[(u8, u8)]| {
        let row = |(tag, permissions): &(u8, u8)| [*tag, 0, *permissions, 0, 255, 255, 255, 255];
        [&[2, 0, 0, 0][..], rows.iter().flat_map(row).collect::<Vec<u8>>().as_slice()].concat()
    };
    for (packed, word) in [
        (vec![1; 100], "packed list"),
        (NvList::default().to_bytes(), "an empty list"),
        (with(b"nobody.knows", &[7; 400]), "names of a namespace"),
        (with(b"user.", &[7; 400]), "names of a namespace"),
        (with(&long, &[7; 400]), "names of a namespace"),
        (with(acl, &[7; 400]), "an ACL"),
        (with(acl, &rows(&[(1, 6), (4, 7), (16, 0), (32, 1)])), "the permissions 601"),
        (with(acl, &rows(&[(1, 6), (4, 4), (32, 4)])), "the mode expresses it"),
        (with(b"system.posix_acl_default", &[7; 400]), "on directories only"),
        (with(b"user.big", &[7; 400]), "also in the inode's list"),
    ] {
        let report = after_xattrs(|xattrs| xattrs.store_names(&packed));
        assert!(report.has(kind::XATTRS) && report.to_string().contains(word), "{word}: {report}");
        let others = report.findings.iter().filter(|finding| finding.kind != kind::XATTRS);
        // A short list does not need a spill.
        assert!(others.clone().all(|finding| finding.kind == kind::SPILL), "{report}");
    }
}

/// Changes the list of `all`, whose spill begins with its names.
fn relist(xattrs: &Xattrs, change: impl FnOnce(&mut AttrList)) {
    let mut list = xattrs.list(xattrs.all);
    change(&mut list);
    xattrs.store(xattrs.all, &list, 12);
}

#[test]
fn hidden_directories_are_their_inodes_alone() {
    let expect = |kinds: &[&str], change: fn(&Xattrs)| expect(&after_xattrs(change), kinds);
    // Destroyed, with its value.
    expect(&[kind::HIDDEN], |xattrs| {
        xattrs.destroy(xattrs.value);
        xattrs.destroy(xattrs.hidden);
    });
    // A file, and a directory that is not hidden.
    expect(&[kind::HIDDEN, kind::ORPHAN], |xattrs| {
        relist(xattrs, |list| list.set_u64(Attr::XATTR, xattrs.small));
    });
    expect(&[kind::HIDDEN, kind::ORPHAN], |xattrs| {
        let root = xattrs.dataset.master().unwrap().lookup_u64("ROOT").unwrap().unwrap();
        relist(xattrs, |list| list.set_u64(Attr::XATTR, root));
    });
    // It belongs to no inode.
    expect(&[kind::ORPHAN], |xattrs| relist(xattrs, |list| list.remove(Attr::XATTR)));
    // It belongs to two.
    expect(&[kind::LINKS, kind::PARENT], |xattrs| {
        let (list, mut other) = (xattrs.list(xattrs.all), xattrs.list(xattrs.small));
        for attr in [Attr::DXATTR, Attr::XATTR] {
            other.set(attr, list.get(attr).unwrap());
        }
        xattrs.store(xattrs.small, &other, 12);
    });
    // It names another inode as its parent.
    expect(&[kind::PARENT], |xattrs| xattrs.poke(xattrs.hidden, Attr::PARENT, xattrs.small));
    expect(&[kind::PARENT], |xattrs| xattrs.poke(xattrs.value, Attr::PARENT, xattrs.small));
    // A file keeps the number of the directory it was created in. After that directory is removed, another
    // object may have the number.
    expect(&[], |xattrs| xattrs.poke(xattrs.all, Attr::PARENT, xattrs.hidden));
    // Its names are bytes, whatever the names of files are.
    self::expect(&after_xattrs_with(&[("casesensitivity", "insensitive"), ("utf8only", "on")], |_| {}), &[]);
    // Its flags do not say what it is, or say what it is not.
    expect(&[kind::HIDDEN, kind::ORPHAN, kind::ENTRY], |xattrs| xattrs.poke(xattrs.hidden, Attr::FLAGS, 0));
    expect(&[kind::ENTRY], |xattrs| xattrs.poke(xattrs.value, Attr::FLAGS, 0));
    expect(&[kind::ENTRY, kind::XATTRS], |xattrs| xattrs.poke(xattrs.small, Attr::FLAGS, 1));
    // It waits in the delete queue, and has its name.
    expect(&[kind::DELETE_QUEUE, kind::DELETE_QUEUE], |xattrs| {
        let queue = xattrs.dataset.master().unwrap().lookup_u64("DELETE_QUEUE").unwrap().unwrap();
        let name = format!("{:x}", xattrs.hidden);
        xattrs.names(queue, |tx, queue| queue.add_u64(tx, name.as_bytes(), xattrs.hidden).unwrap());
    });
}

#[test]
fn what_files_reserve_is_well_formed() {
    let expect = |name: &str, words: &[u64], kinds: &[&str]| {
        let report = after_xattrs(|xattrs| {
            let tx = xattrs.dataset.object_set().begin(COST).unwrap();
            let mut reserved = xattrs.dataset.new_zap(&tx, ObjectKind::Zap).unwrap();
            reserved.add(&tx, name.as_bytes(), ValueRef::U64s(words)).unwrap();
            let mut master = xattrs.dataset.master().unwrap();
            master.add_u64(&tx, b"RESERVED", reserved.object().id().0).unwrap();
        });
        expect(&report, kinds);
    };
    // Versions that do not know the table leave entries of removed files.
    expect("77", &[1, 4096, 4096, 0, 0, 4096], &[]);
    expect("77", &[1, 4096, 5000, 192, 0, 4096, 8192, 9288], &[]);
    expect("077", &[1, 4096, 4096, 0, 0, 4096], &[kind::RESERVED]);
    for lie in [
        [1, 4096, 0, 0, 0, 4096].as_slice(),
        &[1, 4096, 4096, 1, 0, 4096],
        &[1, 4096, 1, u64::MAX, 0, 4096],
        &[1, 4095, 4096, 0, 0, 4096],
        &[1, 0, 4096, 0, 0, 4096],
        &[1, 4096, 4096, 0, 4096, 0],
        &[1, 4096, 4096, 0, 0, u64::MAX],
        &[1, 4096, 4096, 0, 0, 4096, 4096, 8192],
        &[1, 4096, 4096, 0, 0, 4096, 1],
        &[1, 4096, 4096, 0],
        &[1, 4096],
    ] {
        expect("77", lie, &[kind::RESERVED]);
    }
}

#[test]
fn wrong_numbers_of_an_inode_are_found() {
    let only = |kind: &str, change: fn(&Xattrs)| {
        let report = after_xattrs(change);
        expect(&report, &[kind]);
        assert!(!report.is_clean());
        report.findings[0].clone()
    };
    let links = only(kind::LINKS, |xattrs| xattrs.poke(xattrs.small, Attr::LINKS, 2));
    assert_eq!((links.expected.as_str(), links.found.as_str()), ("1", "2"));
    let links = only(kind::LINKS, |xattrs| xattrs.poke(xattrs.small, Attr::LINKS, 1 << 32));
    assert_eq!(links.expected, "below 2^32");
    let parent = only(kind::PARENT, |xattrs| {
        let root = xattrs.dataset.master().unwrap().lookup_u64("ROOT").unwrap().unwrap();
        xattrs.poke(root, Attr::PARENT, xattrs.small);
    });
    assert!(
        parent.expected != parent.found && parent.location.contains(&format!("object {}", parent.expected))
    );
    let of_directory = only(kind::OBJECT_KIND, |xattrs| xattrs.poke(xattrs.small, Attr::MODE, 0o040_755));
    assert_eq!((of_directory.expected.as_str(), of_directory.found.as_str()), ("Directory", "File"));
    let mode = only(kind::ATTRIBUTES, |xattrs| xattrs.poke(xattrs.small, Attr::MODE, 0o644));
    assert_eq!(mode.expected, "a mode with a file type");
}

#[test]
fn hidden_values_have_one_name_of_an_attribute() {
    let expect = |kinds: &[&str], change: fn(&Xattrs)| expect(&after_xattrs(change), kinds);
    expect(&[kind::ENTRY], |xattrs| xattrs.destroy(xattrs.value));
    expect(&[kind::LINKS], |xattrs| xattrs.poke(xattrs.value, Attr::LINKS, 2));
    expect(&[kind::SIZE], |xattrs| xattrs.poke(xattrs.value, Attr::SIZE, 65_537));
    expect(&[kind::SIZE, kind::LINKS], |xattrs| {
        xattrs.names(xattrs.hidden, |tx, names| {
            names.add_u64(tx, b"user.too", xattrs.value | 8 << 60).unwrap()
        });
    });
    expect(&[kind::SIZE, kind::LINKS, kind::ENTRY], |xattrs| {
        xattrs.names(xattrs.hidden, |tx, names| names.add_u64(tx, b"plain", xattrs.value | 8 << 60).unwrap());
    });
    expect(&[kind::SIZE, kind::HIDDEN, kind::ORPHAN], |xattrs| {
        xattrs.names(xattrs.hidden, |tx, names| assert!(names.remove(tx, "user.big").unwrap()));
    });
    // Values must be files.
    expect(&[kind::ENTRY, kind::SIZE, kind::PARENT, kind::LINKS, kind::LINKS], |xattrs| {
        let itself = xattrs.hidden | 4 << 60;
        xattrs.names(xattrs.hidden, |tx, names| names.add_u64(tx, b"user.dir", itself).unwrap());
    });
    // A name in a directory leads to it.
    expect(&[kind::SIZE, kind::LINKS, kind::ENTRY], |xattrs| {
        let root = xattrs.dataset.master().unwrap().lookup_u64("ROOT").unwrap().unwrap();
        xattrs.names(root, |tx, names| names.add_u64(tx, b"peek", xattrs.value | 8 << 60).unwrap());
    });
}
