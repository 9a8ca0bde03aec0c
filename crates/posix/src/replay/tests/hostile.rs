//! Records that do not fit, and records that are damaged.

use super::world::{World, replay};
use crate::fs::Fs;
use crate::new_file::NewFile;
use crate::record::{NewInode, Record};
use crate::replay::{ReplayCause, ReplayError};
use crate::support::{Short, USER};
use crate::types::{EntryWords, SetXattr, Time};
use terrane_format::log::Frame;
use terrane_wire::{Prng, Txg, Writer};

const LATER: Txg = Txg(1 << 40);

/// A file `f`, a directory `d`, and the file system after a crash.
fn world() -> World {
    let world = World::new(3, &[("dnodesize", "1k")]);
    let fs = world.fs();
    fs.file(fs.root(), "f");
    fs.dir(fs.root(), "d");
    fs.sync().unwrap();
    world
}

fn body(record: &Record<'_>) -> Vec<u8> {
    let mut writer = Writer::new();
    record.write(Time::default(), &mut writer);
    writer.into_bytes()
}

/// The outcome of a replay of these bodies, numbered from 10 on.
fn outcome(fs: &Fs, bodies: &[Vec<u8>]) -> Result<u64, ReplayError> {
    let set = fs.dataset().object_set().id();
    let frame = |(at, body): (usize, &Vec<u8>)| {
        let mut frames = Vec::new();
        Frame { set, change: 10 + at as u64, txg: LATER, body }.append_to(&mut frames);
        frames
    };
    let frames: Vec<u8> = bodies.iter().enumerate().flat_map(frame).collect();
    replay(fs, &frames).map(|replayed| replayed.records)
}

#[test]
fn a_record_that_does_not_fit_is_named() {
    let world = world();
    let fs = world.fs();
    let (root, file, dir) = (fs.root(), fs.ino(fs.root(), "f").unwrap(), fs.ino(fs.root(), "d").unwrap());
    let free = dir + 64;
    let words = EntryWords::NONE;
    let create = |dir, name, ino, dnode_slots| {
        let file = NewFile::regular(0o644, &USER);
        Record::CreateFile { dir, name, words, file, new: NewInode { ino, generation: 1, dnode_slots } }
    };
    let write = |ino| Record::Write { ino, offset: 0, data: b"x", kill_suidgid: false };
    let remove = |name, ino| Record::Remove { dir: root, name, wants_dir: false, ino };
    let rename = |name, moved| Record::Rename {
        dir: root,
        name,
        new_dir: dir,
        new_name: b"n",
        flags: 0,
        whiteout: None,
        moved,
    };
    for (record, expected, found) in [
        (create(root, b"f", free, 2), "without that name", "EEXIST"),
        (create(file, b"n", free, 2), "the directory", "ENOTDIR"),
        (create(free, b"n", free, 2), "the directory", "ESTALE"),
        (create(root, b"n", file, 2), "the number free", "its number taken"),
        (create(root, b"n", file + 1, 1), "the number free", "its number taken"),
        (create(root, b"n", 32 * 100 + 31, 2), "the number free", "its number taken"),
        (remove(b"n", file), "this inode under that name", "no such name"),
        (remove(b"f", dir), "this inode under that name", "inode"),
        (remove(b"d", dir), "this inode under that name", "EISDIR"),
        (rename(b"n", file), "this inode under that name", "no such name"),
        (rename(b"f", dir), "this inode under that name", "inode"),
        (write(dir), "a regular file", "EISDIR"),
        (write(free), "a regular file", "ESTALE"),
        (Record::Link { ino: dir, dir: root, name: b"n", words }, "and the inode", "EPERM"),
        (Record::RemoveXattr { ino: file, name: b"user.none" }, "with that attribute", "ENODATA"),
        (Record::SetEntryWords { dir: root, name: b"n", words }, "with that name", "ENOENT"),
    ] {
        let machine = world.cut();
        let error = outcome(machine.fs(), &[body(&write(file)), body(&record)]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("intent record 11 of txg"), "{text}");
        let ReplayCause::Unfit { record: name, expected: needs, found: has } = error.cause else {
            panic!("{text}")
        };
        assert_eq!(name, record.to_string());
        assert!(needs.contains(expected) && has.contains(found), "{record}: {text}");
    }
}

#[test]
fn a_number_far_behind_the_last_one_is_given() {
    let world = world();
    let machine = world.cut();
    let fs = machine.fs();
    let ino = 32 * 5000 + 7;
    let (file, words) = (NewFile::regular(0o644, &USER), EntryWords::NONE);
    let new = NewInode { ino, generation: 99, dnode_slots: 3 };
    let create = Record::CreateFile { dir: fs.root(), name: b"far", words, file, new };
    assert_eq!(outcome(fs, &[body(&create)]), Ok(1));
    fs.sync().unwrap();
    let fs = machine.after_power_cut(|dataset| Fs::open(dataset).unwrap());
    let fs = fs.fs();
    let attr = fs.getattr(fs.ino(fs.root(), "far").unwrap()).unwrap();
    assert_eq!((attr.ino, attr.generation), (ino, 99));
    // New files get other numbers, also those that were skipped.
    let mut numbers: Vec<u64> = (0..500).map(|at| fs.file(fs.root(), &format!("n{at}")).ino).collect();
    assert!(numbers.iter().any(|number| *number < ino), "skipped numbers are found");
    numbers.push(ino);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 501);
}

#[test]
fn unknown_kinds_and_damaged_bytes_stop_before_the_first_change() {
    let world = world();
    let machine = world.cut();
    let fs = machine.fs();
    let file = fs.ino(fs.root(), "f").unwrap();
    let write = body(&Record::Write { ino: file, offset: 0, data: b"x", kill_suidgid: false });
    let unknown = outcome(fs, &[write.clone(), vec![200, 0, 0]]).unwrap_err();
    assert_eq!((unknown.change, &unknown.cause), (11, &ReplayCause::UnknownFeature { kind: 200 }));
    assert!(unknown.to_string().contains("unknown feature"), "{unknown}");
    let damaged = outcome(fs, &[write.clone(), write[..write.len() - 1].to_vec()]).unwrap_err();
    assert!(matches!(damaged.cause, ReplayCause::Damaged { what: "data", .. }), "{damaged}");
    assert_eq!(fs.bytes(file), b"", "nothing was written");
    let mut frames = Vec::new();
    for body in [&write, &write] {
        let set = fs.dataset().object_set().id();
        Frame { set, change: 5, txg: LATER, body }.append_to(&mut frames);
    }
    let twice = replay(fs, &frames).unwrap_err();
    assert!(twice.to_string().contains("number should be that of one record, found 5"), "{twice}");
}

#[test]
fn damaged_records_are_replayed_or_refused() {
    let world = world();
    let fs = world.fs();
    let (root, file) = (fs.root(), fs.ino(fs.root(), "f").unwrap());
    fs.put(file, 0, b"some content");
    fs.setxattr(file, b"user.x", &[1; 300], SetXattr::default(), &USER).unwrap();
    fs.symlink(root, b"link", b"target", &USER).unwrap();
    fs.rename_with_whiteout(root, b"f", root, b"g", 0, &USER).unwrap();
    fs.fallocate(file, 0, 3, 5000).unwrap();
    fs.unlink(root, b"link").unwrap();
    let recorded = world.recorded();
    let mut frames = Frame::parse_all(&recorded).unwrap();
    frames.sort_unstable_by_key(|frame| frame.change);
    let bodies: Vec<Vec<u8>> = frames.iter().map(|frame| frame.body.to_vec()).collect();
    let mut rng = Prng::new(5);
    let (mut refused, rounds) = (0, 300);
    for _ in 0..rounds {
        let mut bodies = bodies.clone();
        let at = rng.below(bodies.len() as u64) as usize;
        // The first bytes: those of names and data change nothing that matters here.
        let byte = rng.below(bodies[at].len().min(24) as u64) as usize;
        bodies[at][byte] ^= 1 << rng.below(8);
        let machine = world.cut();
        refused += u32::from(outcome(machine.fs(), &bodies).is_err());
    }
    assert!(refused > rounds / 10 && refused < rounds, "{refused} of {rounds} refused");
}
