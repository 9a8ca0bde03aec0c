//! Placement of files by expected lifetime, from hints and from history.

use crate::support::{Machine, Short, USER};
use std::collections::{BTreeMap, BTreeSet};
use terrane_format::BlockPtr;
use terrane_posix::{Ino, SetXattr, WRITE_HINT};
use terrane_space::policy::{CollectionOptions, Hint, VictimPolicy};
use terrane_wire::{ObjectId, Prng};

const FILE_BYTES: usize = 12 << 10;
const PROPS: [(&str, &str); 2] = [("compression", "off"), ("recordsize", "16K")];

/// Sequence number of the zone that holds a file of one block.
fn zone(m: &Machine, ino: Ino) -> u64 {
    match m.fs().dataset().object_set().hold(ObjectId(ino)).unwrap().dnode().root {
        BlockPtr::Normal(normal) => normal.addrs[0].seq().0,
        other => panic!("inode {ino} should have one block, found {other:?}"),
    }
}

fn zones(m: &Machine, files: &[Ino]) -> BTreeSet<u64> {
    files.iter().map(|ino| zone(m, *ino)).collect()
}

/// As in xfs/638: files of three lifetimes, written alternately.
#[test]
fn files_of_one_life_time_lie_together() {
    let m = Machine::sized(71, &PROPS, 300, 2 << 20);
    let (fs, root, mut rng) = (m.fs(), m.fs().root(), Prng::new(1));
    let any = SetXattr::default();
    let brief = fs.dir(root, "short").ino;
    fs.setxattr(brief, WRITE_HINT, b"short", any, &USER).unwrap();
    let mut files: BTreeMap<Hint, Vec<Ino>> = BTreeMap::new();
    for round in 0..100 {
        let name = |what: &str| format!("{what}-{round}");
        // In random order, or an allocator that alternates zones would appear to know the lifetimes.
        let mut hints = [Hint::Short, Hint::Medium, Hint::Long, Hint::NotSet];
        (1..hints.len()).for_each(|at| hints.swap(at, rng.below(at as u64 + 1) as usize));
        for hint in hints {
            // Hint from the directory, from a call, from an attribute, or none.
            let dir = if hint == Hint::Short { brief } else { root };
            let ino = fs.file(dir, &name(hint.name())).ino;
            match hint {
                Hint::Medium => fs.set_write_hint(ino, hint).unwrap(),
                Hint::Long => fs.setxattr(ino, WRITE_HINT, b"long", any, &USER).unwrap(),
                _ => {}
            }
            fs.put(ino, 0, &rng.random_bytes(FILE_BYTES));
            files.entry(hint).or_default().push(ino);
        }
        if round % 7 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.sync().unwrap();
    let [short, medium, long, plain] =
        [Hint::Short, Hint::Medium, Hint::Long, Hint::NotSet].map(|hint| zones(&m, &files[&hint]));
    assert_eq!((short.len(), medium.len()), (1, 1), "short {short:?} medium {medium:?}");
    for others in [&long, &plain] {
        assert!(short.is_disjoint(others) && medium.is_disjoint(others), "{short:?} {medium:?} {others:?}");
    }
    assert!(short.is_disjoint(&medium), "{short:?} {medium:?}");
}

/// A user who states a lifetime is obeyed, also where similar files died young.
#[test]
fn a_stated_lifetime_beats_what_similar_files_taught() {
    let m = Machine::sized(74, &PROPS, 300, 2 << 20);
    let (fs, root, mut rng) = (m.fs(), m.fs().root(), Prng::new(4));
    for round in 0..6 {
        for at in 0..20 {
            let name = format!("old-{round}-{at}");
            fs.put(fs.file(root, &name).ino, 0, &rng.random_bytes(FILE_BYTES));
            fs.unlink(root, name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
    }
    let taught = fs.file(root, "taught").ino;
    assert!(fs.expected_life(taught, None).unwrap().0.is_some(), "similar files died");
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for round in 0..200 {
        for (files, hint) in [(&mut short, Hint::Short), (&mut long, Hint::Long)] {
            let ino = fs.file(root, &format!("{}-{round}", hint.name())).ino;
            fs.set_write_hint(ino, hint).unwrap();
            fs.put(ino, 0, &rng.random_bytes(FILE_BYTES));
            files.push(ino);
        }
        if round % 10 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.sync().unwrap();
    let (short, long) = (zones(&m, &short), zones(&m, &long));
    assert!(short.is_disjoint(&long), "short {short:?} long {long:?}");
}

/// Overwritten data is likely to be overwritten again.
#[test]
fn overwritten_data_is_placed_apart_from_other_data() {
    let m = Machine::sized(72, &PROPS, 300, 2 << 20);
    let (fs, root, mut rng) = (m.fs(), m.fs().root(), Prng::new(2));
    let busy: Vec<Ino> = (0..8).map(|at| fs.file(root, &format!("busy-{at}")).ino).collect();
    let mut quiet = Vec::new();
    for round in 0..10 {
        busy.iter().for_each(|ino| fs.put(*ino, 0, &rng.random_bytes(FILE_BYTES)));
        for at in 0..10 {
            let file = fs.file(root, &format!("quiet-{round}-{at}")).ino;
            fs.put(file, 0, &rng.random_bytes(FILE_BYTES));
            quiet.push(file);
        }
        fs.sync().unwrap();
    }
    let (busy, quiet) = (zones(&m, &busy), zones(&m, &quiet));
    assert!(busy.is_disjoint(&quiet), "{busy:?} {quiet:?}");
}

/// The same work ends in other zones if another policy chooses victims, and otherwise in exactly the same.
#[test]
fn administrators_choose_how_victims_are_chosen() {
    let zones_after = |victims: VictimPolicy| {
        let props = [("compression", "off"), ("recordsize", "8K")];
        let m = Machine::sized(73, &props, 40, 1 << 20);
        let (fs, mut rng) = (m.fs(), Prng::new(3));
        let pool = fs.dataset().object_set().pool();
        pool.set_collection(CollectionOptions { victims, ..CollectionOptions::default() });
        let file = fs.file(fs.root(), "f").ino;
        let records = fs.statfs().available * 3 / 8;
        (0..records).for_each(|at| fs.put(file, at * 8192, &rng.random_bytes(8192)));
        for round in 0..3 * records {
            // Mostly in a tenth of the file.
            let at = if rng.below(10) == 0 { rng.below(records) } else { rng.below(records / 10) };
            fs.put(file, at * 8192, &rng.random_bytes(8192));
            if round % 250 == 0 {
                fs.sync().unwrap();
            }
        }
        fs.sync().unwrap();
        pool.zones().iter().map(|zone| (zone.seq, zone.live)).collect::<Vec<_>>()
    };
    let [weighed, again, greedy] =
        [VictimPolicy::CostBenefit, VictimPolicy::CostBenefit, VictimPolicy::Greedy].map(zones_after);
    assert_eq!(weighed, again);
    assert_ne!(weighed, greedy);
}
