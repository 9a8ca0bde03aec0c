//! The property `sync`: which changes a power cut may take.

use crate::support::{Machine, ROOT_CRED, Short};
use std::collections::BTreeMap;
use terrane_posix::{
    Attr, Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, RENAME_EXCHANGE, SetAttr, SetXattr, Time,
    WriteFlags, mode,
};

/// What programs see of an inode: attributes without access time and stored blocks, contents, extended attributes.
type Seen = (Attr, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// All that programs see of a file system, by path.
fn tree(fs: &Fs) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![(String::new(), fs.root())];
    while let Some((path, dir)) = dirs.pop() {
        for name in fs.names(dir) {
            let ino = fs.ino(dir, &name).unwrap();
            let attr = fs.getattr(ino).unwrap();
            let attr = Attr { atime: Time::default(), blocks: 0, blocks_known: true, ..attr };
            let path = format!("{path}/{name}");
            let content = match attr.mode & mode::S_IFMT {
                mode::S_IFREG => fs.bytes(ino),
                mode::S_IFLNK => fs.readlink(ino).unwrap(),
                _ => Vec::new(),
            };
            let mut list = Vec::new();
            fs.listxattr(ino, &|| true, &mut list).unwrap();
            let xattrs = list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(|name| {
                let mut value = Vec::new();
                fs.getxattr(ino, name, &mut value).unwrap();
                (name.to_vec(), value)
            });
            let xattrs = xattrs.collect();
            if attr.mode & mode::S_IFMT == mode::S_IFDIR {
                dirs.push((path.clone(), ino));
            }
            all.insert(path, (attr, content, xattrs));
        }
    }
    all
}

fn set(fs: &Fs, ino: Ino, set: &SetAttr) {
    fs.setattr(ino, set, &ROOT_CRED).unwrap();
}

type Step = fn(&Fs, Ino);

/// Each is one call of a program, which looks names up only.
const STEPS: [(&str, Step); 23] = [
    ("create", |fs, root| {
        fs.file(root, "file");
    }),
    ("write", |fs, root| fs.put(fs.ino(root, "file").unwrap(), 0, b"some bytes")),
    ("append", |fs, root| {
        let flags = WriteFlags { append: true, ..WriteFlags::default() };
        fs.write(fs.ino(root, "file").unwrap(), 0, b" and more", flags).unwrap();
    }),
    ("overwrite", |fs, root| fs.put(fs.ino(root, "file").unwrap(), 5, b"BYTES")),
    ("write of 600 KiB", |fs, root| fs.put(fs.ino(root, "file").unwrap(), 1 << 20, &[7; 600 << 10])),
    ("write of 3 MiB", |fs, root| fs.put(fs.ino(root, "file").unwrap(), 0, &[8; 3 << 20])),
    ("truncate", |fs, root| {
        set(fs, fs.ino(root, "file").unwrap(), &SetAttr { size: Some(12345), ..SetAttr::default() });
    }),
    ("chmod", |fs, root| {
        set(fs, fs.ino(root, "file").unwrap(), &SetAttr { mode: Some(0o4711), ..SetAttr::default() });
    }),
    ("allocate", |fs, root| fs.fallocate(fs.ino(root, "file").unwrap(), 0, 0, 1 << 20).unwrap()),
    ("punch", |fs, root| {
        let how = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
        fs.fallocate(fs.ino(root, "file").unwrap(), how, 1000, 5000).unwrap();
    }),
    ("set an attribute", |fs, root| {
        fs.setxattr(fs.ino(root, "file").unwrap(), b"user.a", b"b", SetXattr::default(), &ROOT_CRED).unwrap();
    }),
    ("set a large attribute", |fs, root| {
        fs.setxattr(
            fs.ino(root, "file").unwrap(),
            b"user.large",
            &[9; 60_000],
            SetXattr::default(),
            &ROOT_CRED,
        )
        .unwrap();
    }),
    ("remove an attribute", |fs, root| fs.removexattr(fs.ino(root, "file").unwrap(), b"user.a").unwrap()),
    ("mkdir", |fs, root| {
        fs.dir(root, "dir");
    }),
    ("symlink", |fs, root| {
        fs.symlink(root, b"link", b"target", &ROOT_CRED).unwrap();
    }),
    ("link", |fs, root| {
        fs.link(fs.ino(root, "file").unwrap(), fs.ino(root, "dir").unwrap(), b"second").unwrap();
    }),
    ("copy", |fs, root| {
        let to = fs.file(root, "copy").ino;
        fs.copy_range(fs.ino(root, "file").unwrap(), 0, to, 0, 9000).unwrap();
    }),
    ("rename", |fs, root| fs.rename(root, b"copy", fs.ino(root, "dir").unwrap(), b"moved", 0).unwrap()),
    ("exchange", |fs, root| fs.rename(root, b"file", root, b"link", RENAME_EXCHANGE).unwrap()),
    ("leave a whiteout", |fs, root| {
        fs.rename_with_whiteout(root, b"link", root, b"third", 0, &ROOT_CRED).unwrap();
    }),
    ("link of a nameless file", |fs, root| {
        let ino = fs.tmpfile(root, mode::S_IFREG | 0o600, &ROOT_CRED).unwrap().ino;
        fs.put(ino, 0, b"nameless");
        fs.link(ino, root, b"named").unwrap();
    }),
    ("unlink", |fs, root| fs.unlink(root, b"third").unwrap()),
    ("truncate to nothing", |fs, root| {
        let dir = fs.ino(root, "dir").unwrap();
        set(fs, fs.ino(dir, "moved").unwrap(), &SetAttr { size: Some(0), ..SetAttr::default() });
    }),
];

/// The steps after which a power cut would have taken something.
fn lost_steps(m: &Machine) -> Vec<&'static str> {
    let fs = m.fs();
    let mut lost = Vec::new();
    for (name, step) in STEPS {
        step(fs, fs.root());
        let copy = m.after_power_cut(|dataset| Fs::open(dataset).unwrap());
        if tree(copy.fs()) != tree(fs) {
            lost.push(name);
        }
    }
    lost
}

#[test]
fn with_sync_always_no_power_cut_takes_a_change() {
    let m = Machine::new(1, &[("sync", "always")]);
    // The first durable change has the next commit open the log.
    m.fs().file(m.fs().root(), "first");
    m.fs().sync().unwrap();
    let before = m.pool().synced_txg();
    assert_eq!(lost_steps(&m), [] as [&str; 0]);
    let commits = m.pool().synced_txg().0 - before.0;
    assert!((1..12).contains(&commits), "small changes are logged, and large ones committed: {commits}");
    // What `always` adds is seen without it.
    for mode in ["standard", "disabled"] {
        let m = Machine::new(2, &[("sync", mode)]);
        assert_eq!(lost_steps(&m).len(), STEPS.len(), "{mode}");
    }
}

#[test]
fn sync_changes_at_once() {
    let m = Machine::new(3, &[]);
    let fs = m.fs();
    let survives = |name: &str| {
        fs.file(fs.root(), name);
        m.after_power_cut(|dataset| Fs::open(dataset).unwrap()).fs().ino(fs.root(), name).is_ok()
    };
    assert!(!survives("a"));
    fs.dataset().set("sync", "always").unwrap();
    assert!(survives("b"));
    fs.dataset().set("sync", "disabled").unwrap();
    assert!(!survives("c"));
    fs.dataset().set_temporary("sync", "always").unwrap();
    assert!(survives("d"));
    fs.dataset().reset("sync").unwrap();
    assert!(!survives("e"));
}

#[test]
fn with_sync_always_reads_and_write_backs_do_not_wait() {
    let m = Machine::new(4, &[("sync", "always"), ("atime", "on")]);
    let fs = m.fs();
    let ino = fs.file(fs.root(), "file").ino;
    fs.put(ino, 0, b"bytes");
    fs.sync().unwrap();
    let before = m.pool().synced_txg();
    let copy = || m.after_power_cut(|dataset| Fs::open(dataset).unwrap());
    fs.bytes(ino);
    let flags = WriteFlags { writes_back: true, ..WriteFlags::default() };
    fs.write(ino, 0, b"BYTES", flags).unwrap();
    assert_eq!(copy().fs().bytes(ino), b"bytes", "a store through a mapping waits for msync");
    assert_eq!(m.pool().synced_txg(), before);
    fs.fsync(ino, false).unwrap();
    assert_eq!(copy().fs().bytes(ino), b"BYTES");
}

#[test]
fn with_sync_disabled_fsync_leaves_durability_to_the_next_commit() {
    let m = Machine::new(5, &[]);
    let fs = m.fs();
    let ino = fs.file(fs.root(), "file").ino;
    fs.put(ino, 0, b"old");
    // The first has a log opened.
    fs.fsync(ino, false).unwrap();
    fs.sync().unwrap();
    fs.dataset().set("sync", "disabled").unwrap();
    fs.sync().unwrap();
    let copy = || m.after_power_cut(|dataset| Fs::open(dataset).unwrap());
    let before = m.pool().synced_txg();
    fs.put(ino, 0, b"new");
    fs.fsync(ino, false).unwrap();
    fs.make_durable(ino).unwrap();
    assert_eq!(m.pool().synced_txg(), before, "no commit");
    assert_eq!(copy().fs().bytes(ino), b"old", "nothing was logged");
    // What the old value let pass is durable once the new one holds.
    fs.dataset().set("sync", "standard").unwrap();
    fs.fsync(ino, false).unwrap();
    assert_eq!(copy().fs().bytes(ino), b"new");
    fs.dataset().set("sync", "disabled").unwrap();
    fs.put(ino, 0, b"end");
    fs.sync().unwrap();
    assert_eq!(copy().fs().bytes(ino), b"end", "sync commits");
}

#[test]
fn with_sync_disabled_fsync_still_reports_known_losses() {
    let mut m = Machine::new(6, &[("sync", "disabled")]);
    let ino = m.fs().file(m.fs().root(), "file").ino;
    m.fs().sync().unwrap();
    m.die(&[ino]);
    assert_eq!(m.fs().fsync(ino, false), Err(Errno::EIO), "a killed server lost changes of it");
    m.cut_power();
    let other = m.fs().file(m.fs().root(), "other").ino;
    m.fs().fsync(other, false).unwrap();
    assert_eq!(m.fs().sync(), Err(Errno::EIO));
    assert_eq!(m.fs().fsync(other, false), Err(Errno::EIO), "no commit will follow");
}

#[test]
fn half_a_mebibyte_is_logged_and_more_is_committed() {
    const RECORD: usize = 128 << 10;
    const PART: usize = 15 << 10;
    let m = Machine::new(7, &[]);
    let fs = m.fs();
    let ino = fs.file(fs.root(), "file").ino;
    fs.put(ino, 0, &vec![1; 32 * RECORD]);
    fs.fsync(ino, false).unwrap();
    fs.sync().unwrap();
    let copy = || m.after_power_cut(|dataset| Fs::open(dataset).unwrap()).fs().bytes(ino);
    for record in 0..32 {
        fs.put(ino, (record * RECORD + 1000) as u64, &[2 + record as u8; PART]);
    }
    let before = m.pool().synced_txg();
    fs.fsync(ino, false).unwrap();
    assert_eq!(m.pool().synced_txg(), before, "a commit would write eight times as much");
    assert!(copy() == fs.bytes(ino));
    fs.sync().unwrap();
    let before = m.pool().synced_txg();
    fs.put(ino, 0, &vec![50; 5 * RECORD]);
    fs.fsync(ino, false).unwrap();
    assert_ne!(m.pool().synced_txg(), before, "the log would have them written twice");
    assert!(copy() == fs.bytes(ino));
}

#[test]
fn a_copy_of_many_files_leaves_the_log_to_those_who_sync() {
    let m = Machine::new(8, &[]);
    let fs = m.fs();
    let ino = fs.file(fs.root(), "database").ino;
    fs.put(ino, 0, &[1; 5000]);
    fs.fsync(ino, false).unwrap();
    fs.sync().unwrap();
    let copies: Vec<Ino> = (0..48).map(|nth| fs.file(fs.root(), &format!("copy {nth}")).ino).collect();
    fs.sync().unwrap();
    let before = m.pool().synced_txg();
    // 22 MiB in files that the log would take alone.
    for copy in &copies {
        fs.put(*copy, 0, &vec![2; 480 << 10]);
    }
    assert_eq!(m.pool().synced_txg(), before, "one txg");
    fs.put(ino, 0, b"transaction");
    fs.fsync(ino, false).unwrap();
    assert_eq!(m.pool().synced_txg(), before, "it need not write what others copy");
    let copy = m.after_power_cut(|dataset| Fs::open(dataset).unwrap());
    assert!(copy.fs().bytes(ino) == fs.bytes(ino));
    // A file that was copied has no records any more.
    fs.fsync(copies[0], false).unwrap();
    let copy = m.after_power_cut(|dataset| Fs::open(dataset).unwrap());
    assert!(copies.iter().all(|copied| copy.fs().bytes(*copied) == fs.bytes(*copied)));
}
