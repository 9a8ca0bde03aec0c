//! Every kind of change by itself.

use super::world::{World, assert_same, objects, replay, tree};
use crate::acl::{ACL_ACCESS, ACL_DEFAULT};
use crate::fs::Fs;
use crate::hint_rules::HINT_RULES;
use crate::inode_flags::InodeFlags;
use crate::record::Record;
use crate::support::{ROOT_CRED, Short, USER};
use crate::types::{
    Cred, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, Ino, RENAME_EXCHANGE, RENAME_NOREPLACE,
    SetAttr, SetTime, SetXattr, Time, WriteFlags, mode,
};
use std::collections::BTreeSet;
use terrane_format::log::Frame;
use terrane_space::policy::Hint;

/// An access control list of five entries, with one named user and these permissions for it.
pub fn acl(permissions: u16) -> Vec<u8> {
    let mut raw = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, permissions, id) in
        [(1u16, 7u16, none), (2, permissions, 1234), (4, 5, none), (16, 7, none), (32, 1, none)]
    {
        raw.extend_from_slice(&tag.to_le_bytes());
        raw.extend_from_slice(&permissions.to_le_bytes());
        raw.extend_from_slice(&id.to_le_bytes());
    }
    raw
}

struct Base<'a> {
    fs: &'a Fs,
    root: Ino,
    dir: Ino,
    file: Ino,
    other: Ino,
}

impl Base<'_> {
    /// A directory `d` with a file `f` and an empty directory `e`, and a file `g` beside it.
    fn make(fs: &Fs) {
        let root = fs.root();
        let dir = fs.dir(root, "d").ino;
        fs.dir(dir, "e");
        let file = fs.file(dir, "f").ino;
        fs.put(file, 0, &[7; 10_000]);
        let other = fs.file(root, "g").ino;
        fs.put(other, 0, b"other");
        for ino in [dir, file, other] {
            fs.setxattr(ino, b"user.one", b"1", SetXattr::default(), &USER).unwrap();
        }
    }

    fn of(fs: &Fs) -> Base<'_> {
        let root = fs.root();
        let dir = fs.ino(root, "d").unwrap();
        Base { fs, root, dir, file: fs.ino(dir, "f").unwrap(), other: fs.ino(root, "g").unwrap() }
    }

    fn set(&self, ino: Ino, set: SetAttr) {
        self.fs.setattr(ino, &set, &USER).unwrap();
    }

    fn xattr(&self, ino: Ino, name: &[u8], value: &[u8]) {
        self.fs.setxattr(ino, name, value, SetXattr::default(), &ROOT_CRED).unwrap();
    }

    fn falloc(&self, mode: u32, offset: u64, len: u64) {
        self.fs.fallocate(self.file, mode, offset, len).unwrap();
    }
}

type Step = (&'static str, fn(&Base<'_>));

fn time(secs: i64) -> SetTime {
    SetTime::At(Time { secs, nanos: 5 })
}

/// Changes of names.
const NAMES: &[Step] = &[
    ("create", |b| _ = b.fs.create(b.dir, b"new", 0o4755, &Cred { umask: 0o22, ..USER }).unwrap()),
    ("mkdir", |b| _ = b.fs.mkdir(b.dir, b"new", 0o777, &Cred { umask: 0o27, ..USER }).unwrap()),
    ("mknod", |b| _ = b.fs.mknod(b.dir, b"new", mode::S_IFBLK | 0o600, 0x801, &ROOT_CRED).unwrap()),
    ("fifo", |b| _ = b.fs.mknod(b.dir, b"new", mode::S_IFIFO | 0o600, 0, &ROOT_CRED).unwrap()),
    ("symlink", |b| _ = b.fs.symlink(b.dir, b"new", b"somewhere", &USER).unwrap()),
    ("long symlink", |b| _ = b.fs.symlink(b.dir, b"new", &[b'x'; 3000], &USER).unwrap()),
    ("link", |b| _ = b.fs.link(b.file, b.root, b"new").unwrap()),
    ("unlink", |b| b.fs.unlink(b.dir, b"f").unwrap()),
    ("unlink one of two", |b| {
        b.fs.link(b.file, b.root, b"new").unwrap();
        b.fs.unlink(b.dir, b"f").unwrap();
    }),
    ("rmdir", |b| b.fs.rmdir(b.dir, b"e").unwrap()),
    ("rename", |b| b.fs.rename(b.dir, b"f", b.root, b"new", RENAME_NOREPLACE).unwrap()),
    ("rename over", |b| b.fs.rename(b.dir, b"f", b.root, b"g", 0).unwrap()),
    ("rename of a directory", |b| b.fs.rename(b.dir, b"e", b.root, b"new", 0).unwrap()),
    ("rename over a directory", |b| {
        b.fs.dir(b.root, "new");
        b.fs.rename(b.dir, b"e", b.root, b"new", 0).unwrap();
    }),
    ("exchange", |b| b.fs.rename(b.dir, b"f", b.root, b"g", RENAME_EXCHANGE).unwrap()),
    ("exchange of kinds", |b| b.fs.rename(b.dir, b"e", b.root, b"g", RENAME_EXCHANGE).unwrap()),
    ("whiteout", |b| b.fs.rename_with_whiteout(b.dir, b"f", b.root, b"g", 0, &USER).unwrap()),
    ("whiteout, noreplace", |b| {
        b.fs.rename_with_whiteout(b.dir, b"f", b.root, b"new", RENAME_NOREPLACE, &USER).unwrap();
    }),
    ("words", |b| {
        b.fs.with_entry_words(&[1, 2, 3]).unwrap().create(b.dir, b"new", 0o644, &USER).unwrap();
        b.fs.with_entry_words(&[u64::MAX]).unwrap().link(b.file, b.root, b"also").unwrap();
        b.fs.set_entry_words(b.dir, b"f", &[0, 4]).unwrap();
        b.fs.rename(b.dir, b"new", b.root, b"new", 0).unwrap();
    }),
    ("no words", |b| {
        b.fs.set_entry_words(b.dir, b"f", &[9]).unwrap();
        b.fs.remove_entry_words(b.dir, b"f").unwrap();
    }),
    ("tmpfile and link", |b| {
        let ino = b.fs.tmpfile(b.dir, 0o640, &USER).unwrap().ino;
        b.fs.put(ino, 0, &[3; 5000]);
        b.xattr(ino, b"user.x", b"y");
        b.fs.link(ino, b.root, b"new").unwrap();
    }),
    ("open and unlinked", |b| {
        b.fs.lookup(b.dir, b"f").unwrap();
        b.fs.unlink(b.dir, b"f").unwrap();
        b.fs.put(b.file, 0, b"not to be seen");
    }),
    ("a name again", |b| {
        b.fs.unlink(b.dir, b"f").unwrap();
        let new = b.fs.file(b.dir, "f").ino;
        b.fs.put(new, 3, b"new");
    }),
    ("many names", |b| {
        for at in 0..300 {
            b.fs.file(b.dir, &format!("a name that takes more than a slot {at}"));
        }
        for at in 0..200 {
            b.fs.unlink(b.dir, format!("a name that takes more than a slot {at}").as_bytes()).unwrap();
        }
    }),
];

/// Changes of attributes.
const ATTRIBUTES: &[Step] = &[
    ("chmod", |b| b.set(b.file, SetAttr { mode: Some(0o4711), ..SetAttr::default() })),
    ("chown", |b| b.set(b.file, SetAttr { uid: Some(77), gid: Some(0), ..SetAttr::default() })),
    ("utimes", |b| {
        let set = SetAttr { atime: Some(time(-3)), mtime: Some(SetTime::Now), ..SetAttr::default() };
        b.set(b.file, set);
    }),
    ("ctime", |b| {
        let ctime = Some(Time { secs: 7, nanos: 8 });
        b.set(b.dir, SetAttr { mtime: Some(time(9)), ctime, ..SetAttr::default() });
    }),
    ("xattr", |b| b.xattr(b.file, b"user.two", b"2")),
    ("xattr of a directory", |b| b.xattr(b.dir, b"trusted.slash/name", b"2")),
    ("large xattr", |b| b.xattr(b.file, b"user.two", &[9; 60_000])),
    ("xattr again", |b| b.xattr(b.file, b"user.one", &[9; 3000])),
    ("no xattr", |b| b.fs.removexattr(b.file, b"user.one").unwrap()),
    ("xattr that must exist", |b| {
        let how = |create| SetXattr { create, replace: !create, ..SetXattr::default() };
        b.fs.setxattr(b.file, b"user.one", b"2", how(false), &USER).unwrap();
        b.fs.setxattr(b.file, b"user.two", b"2", how(true), &USER).unwrap();
    }),
    ("xattrs, and files behind them", |b| {
        for at in 0..8 {
            b.xattr(b.file, format!("user.{at}").as_bytes(), &[at; 40_000]);
            b.fs.file(b.dir, &format!("behind {at}"));
        }
    }),
    ("chown with values in objects", |b| {
        b.xattr(b.file, b"user.two", &[9; 60_000]);
        b.set(b.file, SetAttr { uid: Some(77), ..SetAttr::default() });
    }),
    ("ACL", |b| b.xattr(b.file, ACL_ACCESS, &acl(6))),
    ("ACL, and no set-gid", |b| {
        b.set(b.file, SetAttr { mode: Some(0o2755), ..SetAttr::default() });
        let how = SetXattr { kill_sgid: true, ..SetXattr::default() };
        b.fs.setxattr(b.file, ACL_ACCESS, &acl(4), how, &USER).unwrap();
    }),
    ("ACL, chmod, no ACL", |b| {
        b.xattr(b.file, ACL_ACCESS, &acl(6));
        b.set(b.file, SetAttr { mode: Some(0o700), ..SetAttr::default() });
        b.xattr(b.other, ACL_ACCESS, &acl(6));
        b.fs.removexattr(b.other, ACL_ACCESS).unwrap();
    }),
    ("default ACL", |b| {
        b.xattr(b.dir, ACL_DEFAULT, &acl(6));
        b.fs.file(b.dir, "heir");
        b.fs.dir(b.dir, "heir of it");
        let ino = b.fs.tmpfile(b.dir, 0o666, &USER).unwrap().ino;
        b.fs.link(ino, b.dir, b"nameless heir").unwrap();
        b.fs.removexattr(b.dir, ACL_DEFAULT).unwrap();
        b.fs.file(b.dir, "disinherited");
    }),
    ("set-gid directory", |b| {
        b.set(b.dir, SetAttr { mode: Some(0o2775), gid: Some(55), ..SetAttr::default() });
        b.fs.file(b.dir, "new");
        b.fs.dir(b.dir, "newer");
    }),
    ("flags", |b| {
        let flags = InodeFlags { no_dump: true, no_access_time: true, ..InodeFlags::default() };
        b.fs.set_inode_flags(b.dir, flags).unwrap();
        b.fs.file(b.dir, "new");
    }),
    ("immutable", |b| {
        b.fs.put(b.file, 0, b"before");
        b.fs.set_inode_flags(b.file, InodeFlags { immutable: true, ..InodeFlags::default() }).unwrap();
    }),
    ("append-only", |b| {
        b.fs.set_inode_flags(b.file, InodeFlags { append_only: true, ..InodeFlags::default() }).unwrap();
        let flags = WriteFlags { append: true, ..WriteFlags::default() };
        b.fs.write(b.file, 0, b"at the end", flags).unwrap();
        b.fs.write(b.file, 0, b"at the new end", flags).unwrap();
    }),
    ("project", |b| {
        let flags = InodeFlags { project_inherit: true, ..InodeFlags::default() };
        b.fs.set_flags_and_project(b.dir, flags, 42).unwrap();
        b.fs.file(b.dir, "new");
        b.fs.set_flags_and_project(b.file, InodeFlags::default(), 43).unwrap();
    }),
    ("hint", |b| {
        b.fs.set_write_hint(b.file, Hint::Short).unwrap();
        b.fs.set_write_hint(b.dir, Hint::Long).unwrap();
        b.fs.file(b.dir, "new");
    }),
    ("hint as an attribute", |b| {
        b.xattr(b.file, b"user.terrane.write_hint", b"extreme");
        b.xattr(b.other, b"user.terrane.write_hint", b"short");
        b.fs.removexattr(b.other, b"user.terrane.write_hint").unwrap();
    }),
    ("hint rules", |b| {
        b.xattr(b.dir, HINT_RULES, b"*.log=short\nf=long");
        b.fs.file(b.dir, "a.log");
        b.fs.rename(b.root, b"g", b.dir, b"g.log", 0).unwrap();
        b.fs.dir(b.dir, "below");
        b.fs.removexattr(b.dir, HINT_RULES).unwrap();
    }),
];

/// Changes of contents.
const CONTENTS: &[Step] = &[
    ("write", |b| b.fs.put(b.file, 5000, &[1; 3000])),
    ("write behind the end", |b| b.fs.put(b.file, 500_000, b"far")),
    ("large write", |b| b.fs.put(b.file, 1, &[1; 900_000])),
    ("append", |b| {
        let flags = WriteFlags { append: true, ..WriteFlags::default() };
        for _ in 0..3 {
            b.fs.write(b.file, 0, &[2; 777], flags).unwrap();
        }
    }),
    ("write that clears set-id bits", |b| {
        b.set(b.file, SetAttr { mode: Some(0o6755), ..SetAttr::default() });
        b.fs.write(b.file, 0, b"x", WriteFlags { kill_suidgid: true, ..WriteFlags::default() }).unwrap();
    }),
    ("truncate", |b| _ = b.fs.size(b.file, 4097).unwrap()),
    ("extend", |b| _ = b.fs.size(b.file, 1 << 40).map(|_| b.fs.size(b.file, 70_000)).unwrap()),
    ("truncate and more", |b| {
        let set = SetAttr {
            size: Some(3),
            mode: Some(0o600),
            uid: Some(9),
            mtime: Some(time(100)),
            kill_suidgid: true,
            ..SetAttr::default()
        };
        b.set(b.file, set);
    }),
    ("O_TRUNC", |b| {
        b.fs.truncate_on_open(b.file).unwrap();
        b.fs.put(b.file, 2, b"again");
    }),
    ("punch", |b| b.falloc(FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 100, 9000)),
    ("punch behind the end", |b| b.falloc(FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 9000, 90_000)),
    ("zero", |b| b.falloc(FALLOC_ZERO_RANGE, 9000, 9000)),
    ("zero, keep size", |b| b.falloc(FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, 9000, 90_000)),
    ("fallocate", |b| b.falloc(0, 0, 50_000)),
    ("fallocate, keep size", |b| b.falloc(FALLOC_KEEP_SIZE, 0, 50_000)),
    ("fallocate, and write", |b| {
        b.falloc(FALLOC_KEEP_SIZE, 0, 50_000);
        b.fs.put(b.file, 20_000, &[4; 20_000]);
    }),
    ("access time", |b| {
        b.fs.bytes(b.file);
        b.fs.names(b.dir);
    }),
    ("copy", |b| _ = b.fs.copy_range(b.file, 10, b.other, 3, 2000).unwrap()),
];

const PROPS: [&[(&str, &str)]; 3] = [
    &[("recordsize", "4K")],
    &[("recordsize", "4K"), ("xattr", "dir"), ("dnodesize", "1k")],
    &[("atime", "on"), ("casesensitivity", "insensitive")],
];

fn kinds_of(frames: &[u8]) -> BTreeSet<u8> {
    Frame::parse_all(frames).unwrap().iter().map(|frame| frame.body[0]).collect()
}

#[test]
fn each_kind_of_change_comes_back() {
    let mut kinds = BTreeSet::new();
    for props in PROPS {
        for (at, (what, step)) in NAMES.iter().chain(ATTRIBUTES).chain(CONTENTS).enumerate() {
            // What it changes is in the last commit, or has records too.
            for is_committed in [true, false] {
                let world = World::new(at as u64, props);
                let fs = world.fs();
                Base::make(&fs);
                if is_committed {
                    fs.sync().unwrap();
                }
                step(&Base::of(&fs));
                let expected = tree(&fs);
                let frames = world.recorded();
                let synced = world.machine.pool().synced_txg();
                let parsed = Frame::parse_all(&frames).unwrap();
                assert!(parsed.iter().any(|frame| frame.txg > synced), "{what}: no record");
                kinds.append(&mut kinds_of(&frames));
                let what = format!("{what}, {props:?}, {is_committed}");
                let machine = world.replayed(&frames);
                assert_same(&tree(machine.fs()), &expected, &what);
                if fs.unlinked_count() == Ok(0) {
                    assert_eq!(objects(machine.fs()), objects(&fs), "{what}: objects");
                }
            }
        }
    }
    assert_eq!(kinds, (1..=17).collect(), "all kinds are tested");
}

#[test]
fn a_replay_that_a_crash_ends_is_repeated() {
    let world = World::new(1, &[("xattr", "dir")]);
    let fs = world.fs();
    Base::make(&fs);
    fs.sync().unwrap();
    for (_, step) in [NAMES[0], NAMES[6], NAMES[7], ATTRIBUTES[8], CONTENTS[2]] {
        step(&Base::of_root(&fs));
    }
    let (expected, frames) = (tree(&fs), world.recorded());
    let first = world.cut();
    let replayed = replay(first.fs(), &frames).unwrap();
    assert_same(&tree(first.fs()), &expected, "before the crash");
    // Nothing was committed: the second machine is as the first one was.
    let second = first.after_power_cut(|dataset| Fs::open_to_replay(dataset).unwrap());
    assert_eq!(replay(second.fs(), &frames), Ok(replayed));
    second.fs().sync().unwrap();
    assert_same(&tree(second.fs()), &expected, "after it");
}

impl Base<'_> {
    /// The same, if `f` has lost its name in `d`.
    fn of_root(fs: &Fs) -> Base<'_> {
        let root = fs.root();
        let dir = fs.ino(root, "d").unwrap();
        let file = fs.ino(dir, "f").or_else(|_| fs.ino(root, "new")).unwrap();
        Base { fs, root, dir, file, other: fs.ino(root, "g").unwrap() }
    }
}

#[test]
fn records_of_committed_changes_are_skipped() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    fs.file(fs.root(), "one");
    let frames = world.recorded();
    fs.sync().unwrap();
    fs.file(fs.root(), "two");
    let frames = [frames, world.recorded()].concat();
    let machine = world.cut();
    let replayed = replay(machine.fs(), &frames).unwrap();
    assert_eq!((replayed.records, replayed.skipped), (1, 1));
    machine.fs().sync().unwrap();
    assert_same(&tree(machine.fs()), &tree(&fs), "both");
}

#[test]
fn a_committed_nameless_file_gets_its_name() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let ino = fs.tmpfile(fs.root(), 0o600, &USER).unwrap().ino;
    fs.put(ino, 0, b"content");
    fs.sync().unwrap();
    fs.link(ino, fs.root(), b"name").unwrap();
    let machine = world.replayed(&world.recorded());
    assert_same(&tree(machine.fs()), &tree(&fs), "named");
    assert_eq!(machine.fs().bytes(ino), b"content");
}

#[test]
fn what_a_program_has_open_survives_a_take_over() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let ino = fs.file(fs.root(), "open").ino;
    fs.put(ino, 0, b"content");
    fs.sync().unwrap();
    fs.unlink(fs.root(), b"open").unwrap();
    let frames = world.recorded();
    let machine = world.machine.after_power_cut(|dataset| {
        super::world::replay_in(&dataset, &frames).unwrap();
        Fs::take_over(dataset, std::collections::BTreeMap::new()).unwrap()
    });
    assert_eq!(machine.fs().bytes(ino), b"content");
    machine.fs().forget(ino, 1);
    assert_eq!(machine.fs().unlinked_count(), Ok(0));
}

#[test]
fn a_limit_or_readonly_stops_no_replay() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let ino = fs.file(fs.root(), "file").ino;
    fs.sync().unwrap();
    fs.put(ino, 0, &[7; 200_000]);
    let (expected, frames) = (tree(&fs), world.recorded());
    let machine = world.machine.after_power_cut(|dataset| {
        dataset.set("readonly", "on").unwrap();
        Fs::open_to_replay(dataset).unwrap()
    });
    // The property took a txg of its own.
    let frames = Frame::parse_all(&frames).unwrap();
    let replayed = machine.fs().replay(&frames, terrane_wire::Txg(0)).unwrap();
    assert_eq!(replayed.records as usize, frames.len());
    assert_same(&tree(machine.fs()), &expected, "read-only");
}

#[test]
fn a_record_is_bytes_and_back() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    Base::make(&fs);
    for (_, step) in [NAMES[0], NAMES[6], ATTRIBUTES[2], ATTRIBUTES[3], CONTENTS[7], CONTENTS[0]] {
        step(&Base::of_root(&fs));
    }
    for frame in Frame::parse_all(&world.recorded()).unwrap() {
        let (now, record) = Record::parse(frame.body).unwrap();
        let mut writer = terrane_wire::Writer::new();
        record.write(now, &mut writer);
        assert_eq!(writer.as_bytes(), frame.body, "{record}");
    }
}

/// A mount without access control lists, of a data set that has them: `-o acltype=off`.
#[test]
fn what_was_made_without_acls_inherits_none() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let dir = fs.mkdir(fs.root(), b"dir", 0o755, &USER).unwrap().ino;
    fs.setxattr(dir, ACL_DEFAULT, &acl(6), SetXattr::default(), &USER).unwrap();
    fs.sync().unwrap();
    let cred = Cred { umask: 0o022, ..USER };
    let with = fs.create(dir, b"with", 0o666, &cred).unwrap();
    fs.dataset().set_temporary("acltype", "off").unwrap();
    let without = fs.create(dir, b"without", 0o666, &cred).unwrap();
    let modes = (with.mode & 0o777, without.mode & 0o777);
    assert!(modes.0 != modes.1, "the list takes the place of the umask: {modes:?}");
    fs.fsync(without.ino, false).unwrap();
    let machine = world.replayed(&world.logged());
    let mode = |name: &[u8]| {
        let fs = machine.fs();
        fs.lookup(dir, name).unwrap().mode & 0o777
    };
    assert_eq!((mode(b"with"), mode(b"without")), modes);
}
