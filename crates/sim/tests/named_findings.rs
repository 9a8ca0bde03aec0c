//! What check calls the things it finds.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use terrane_check::{Report, check, kind};
use terrane_dataset::{Dataset, ObjectZap};
use terrane_object::{Cost, ObjectId, ObjectKind, ObjectSpec};
use terrane_sim::machine::{Machine, Plan, USER};

const COST: Cost = Cost { write_bytes: 64 << 10, meta_blocks: 32, ..Cost::NOTHING };

/// A file system with two directories and a file of two names, changed behind its back.
fn after(change: impl FnOnce(&Dataset, u64)) -> Report {
    after_with(&[], change)
}

/// The same in a data set with these properties.
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
        let tx = dataset.objects().begin(COST).unwrap();
        names(dataset, dir).add_u64(&tx, b"ghost", 999 | 8 << 60).unwrap();
    });
    assert!(report.has(kind::ENTRY) && report.has(kind::SIZE), "{report}");
    assert_eq!(report.findings_count, 2, "{report}");
    assert!(report.to_string().contains("directory entry should be of an object that is there, found 999"));
}

#[test]
fn a_lost_name_is_found() {
    let report = after(|dataset, dir| {
        let tx = dataset.objects().begin(COST).unwrap();
        names(dataset, dir).remove(&tx, b"file").unwrap();
    });
    assert!(report.has(kind::LINKS) && report.has(kind::SIZE), "{report}");
    assert_eq!(report.findings_count, 2, "{report}");
}

#[test]
fn names_that_break_the_rules_of_their_data_set_are_found() {
    let add = |dataset: &Dataset, dir: u64, name: &[u8]| {
        let tx = dataset.objects().begin(COST).unwrap();
        let mut zap = names(dataset, dir);
        let value = zap.lookup_u64(b"file").unwrap().unwrap();
        zap.add_u64(&tx, name, value).unwrap();
    };
    let insensitive = [("casesensitivity", "insensitive")];
    let report = after_with(&insensitive, |dataset, dir| add(dataset, dir, b"FILE"));
    assert_eq!(report.to_string().matches("the only name that means the same").count(), 2, "{report}");
    let mixed = after_with(&[("casesensitivity", "mixed")], |dataset, dir| add(dataset, dir, b"FILE"));
    assert!(!mixed.to_string().contains("means the same"), "{mixed}");
    let report = after_with(&[("utf8only", "on")], |dataset, dir| add(dataset, dir, b"bad\xff"));
    assert!(report.to_string().contains("a name in UTF-8"), "{report}");
    // A directory of a data set whose names are not normalized, in one whose are.
    let report = after_with(&insensitive, |dataset, dir| {
        let tx = dataset.objects().begin(COST).unwrap();
        let mut zap = names(dataset, dir);
        let entries = zap.entries().unwrap();
        entries.iter().for_each(|entry| assert!(zap.remove(&tx, entry.key.name().unwrap()).unwrap()));
        for entry in &entries {
            zap.add_u64(&tx, entry.key.name().unwrap(), entry.value.first().unwrap()).unwrap();
        }
    });
    assert!(report.to_string().contains("normalization 0x2, as the data set has it"), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}

#[test]
fn a_lost_directory_is_an_orphan() {
    let report = after(|dataset, dir| {
        let tx = dataset.objects().begin(COST).unwrap();
        names(dataset, dir).remove(&tx, b"below").unwrap();
    });
    assert!(report.has(kind::ORPHAN) && report.has(kind::LINKS) && report.has(kind::SIZE), "{report}");
    assert_eq!(report.findings_count, 3, "{report}");
}

#[test]
fn a_wrong_type_in_a_name_is_found() {
    let report = after(|dataset, dir| {
        let tx = dataset.objects().begin(COST).unwrap();
        let mut zap = names(dataset, dir);
        let value = zap.lookup_u64(b"file").unwrap().unwrap();
        zap.update_u64(&tx, b"file", value & ((1 << 48) - 1) | 10 << 60).unwrap();
    });
    assert!(report.has(kind::ENTRY), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}

#[test]
fn a_directory_in_itself_is_a_loop() {
    let report = after(|dataset, dir| {
        let tx = dataset.objects().begin(COST).unwrap();
        let root = dataset.master().unwrap().lookup_u64(b"ROOT").unwrap().unwrap();
        names(dataset, root).remove(&tx, b"dir").unwrap();
        // `dir` names itself, and says that it is its own parent.
        names(dataset, dir).add_u64(&tx, b"dir", dir | 4 << 60).unwrap();
        let object = dataset.objects().hold(ObjectId(dir)).unwrap();
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
        let tx = dataset.objects().begin(COST).unwrap();
        let spec = ObjectSpec {
            kind: ObjectKind::Zap,
            block_size: 512,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: None,
        };
        dataset.objects().create(&tx, spec).unwrap();
    });
    assert!(report.has(kind::ORPHAN), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}

/// Where programs keep ZAPs of their own a file system may be missing, but not a part of it.
#[test]
fn a_file_system_without_its_version_is_not_taken_for_none() {
    let report = after(|dataset, _| {
        let tx = dataset.objects().begin(COST).unwrap();
        let roots = dataset.new_zap(&tx, ObjectKind::Zap).unwrap().object().id();
        let mut master = dataset.master().unwrap();
        master.add_u64(&tx, terrane_dataset::zaps::OBJECTS, roots.0).unwrap();
        assert!(master.remove(&tx, "VERSION").unwrap());
    });
    assert!(report.to_string().contains("with VERSION"), "{report}");
    assert_eq!(report.findings_count, 1, "{report}");
}
