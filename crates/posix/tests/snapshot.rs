//! A snapshot: a file system as of an old root, read-only, whatever happens to the live one.

use crate::support::{Machine, ROOT_CRED, Short, USER};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_dataset::AclType;
use terrane_format::BlockPtr;
use terrane_object::ObjectError;
use terrane_posix::{
    ACL_ACCESS, ACL_DEFAULT, Attr, Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, InodeFlags, Job,
    JobStep, RENAME_EXCHANGE, RewriteSpec, SetAttr, SetTime, SetXattr, Time, WriteFlags, mode,
};
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Prng};

/// A list with a named user, which a mode cannot express: `u::rw-,u:1:r--,g::r--,m::r--,o::---`.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [(1, 6, !0), (2, 4, 1), (4, 4, !0), (16, 4, !0), (32, 0, !0)];
    let mut raw = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        raw.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        raw.extend(id.to_le_bytes());
    }
    raw
}

/// Everything that a program can see of an inode.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    attr: Attr,
    content: Vec<u8>,
    /// Offsets at which data and holes begin.
    map: Vec<u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    words: Vec<u64>,
    flags: Option<InodeFlags>,
}

/// Lists a tree, by path.
fn seen(fs: &Fs) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    see(fs, fs.root(), Vec::new(), "", &mut all);
    all
}

fn see(fs: &Fs, ino: Ino, words: Vec<u64>, path: &str, all: &mut BTreeMap<String, Seen>) {
    let mut attr = fs.getattr(ino).unwrap();
    // Reading the live file system changes its access times.
    attr.atime = Time::default();
    let (mut content, mut map) = (Vec::new(), Vec::new());
    match attr.mode & mode::S_IFMT {
        mode::S_IFREG => {
            content = fs.bytes(ino);
            let mut at = 0;
            while let Ok(data) = fs.seek_data(ino, at) {
                at = fs.seek_hole(ino, data).unwrap();
                map.extend([data, at]);
            }
        }
        mode::S_IFLNK => content = fs.readlink(ino).unwrap(),
        mode::S_IFDIR => {
            let mut children = Vec::new();
            fs.readdir_words(ino, 2, &mut |entry, words| {
                children.push((entry.name.to_vec(), entry.ino, words.as_slice().to_vec()));
                true
            })
            .unwrap();
            for (name, child, words) in children {
                let path = format!("{path}/{}", String::from_utf8(name.clone()).unwrap());
                let found = fs.lookup(ino, &name).unwrap();
                fs.forget(found.ino, 1);
                assert_eq!(found.ino, child, "{path}");
                see(fs, child, words, &path, all);
            }
        }
        _ => {}
    }
    let (mut names, mut xattrs) = (Vec::new(), BTreeMap::new());
    fs.listxattr(ino, &|| true, &mut names).unwrap();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::new();
        fs.getxattr(ino, name, &mut value).unwrap();
        xattrs.insert(name.to_vec(), value);
    }
    for name in [ACL_ACCESS, ACL_DEFAULT] {
        let mut value = Vec::new();
        if fs.getxattr(ino, name, &mut value).is_ok() {
            xattrs.insert(name.to_vec(), value);
        }
    }
    let flags = fs.inode_flags(ino).ok();
    all.insert(path.to_string(), Seen { attr, content, map, xattrs, words, flags });
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    Prng::new(seed).random_bytes(len)
}

/// A tree with one of everything. Returns a file that was unlinked while it is open.
fn grow(fs: &Fs) -> Ino {
    let root = fs.root();
    let dir = fs.dir(root, "dir").ino;
    let file = fs.file(dir, "file").ino;
    fs.put(file, 0, &noise(1, 700_000));
    fs.link(file, root, b"hard link").unwrap();
    let holes = fs.file(root, "holes").ino;
    fs.put(holes, 0, b"start");
    fs.put(holes, 5 << 20, &noise(2, 300_000));
    fs.size(holes, 9 << 20).unwrap();
    let small = fs.file(root, "small").ino;
    fs.put(small, 0, b"fits its pointer");
    fs.symlink(root, b"short", b"target", &USER).unwrap();
    fs.symlink(root, b"long", &[b'x'; 3000], &USER).unwrap();
    fs.mknod(root, b"fifo", mode::S_IFIFO | 0o600, 0, &USER).unwrap();
    fs.mknod(root, b"null", mode::S_IFCHR | 0o666, 0x103, &ROOT_CRED).unwrap();
    let how = SetXattr::default();
    fs.setxattr(file, b"user.small", b"value", how, &USER).unwrap();
    fs.setxattr(file, b"user.large", &noise(3, 50_000), how, &USER).unwrap();
    fs.setxattr(file, b"trusted.t", b"t", how, &ROOT_CRED).unwrap();
    fs.setxattr(file, ACL_ACCESS, &acl(), how, &ROOT_CRED).unwrap();
    fs.setxattr(dir, ACL_DEFAULT, &acl(), how, &ROOT_CRED).unwrap();
    let many = fs.dir(root, "many").ino;
    for at in 0..3000 {
        let name = format!("a name that makes the directory long {at}");
        fs.with_entry_words(&[at, 7]).unwrap().create(many, name.as_bytes(), 0o600, &USER).unwrap();
    }
    let immutable = fs.file(root, "immutable").ino;
    let flags = InodeFlags { immutable: true, ..InodeFlags::default() };
    fs.set_inode_flags(immutable, flags).unwrap();
    let open = fs.file(root, "open").ino;
    fs.put(open, 0, &noise(4, 100_000));
    fs.unlink(root, b"open").unwrap();
    fs.tmpfile(root, 0o600, &USER).unwrap();
    open
}

/// Changes or removes all of it.
fn ruin(fs: &Fs) {
    let root = fs.root();
    let dir = fs.ino(root, "dir").unwrap();
    let file = fs.ino(dir, "file").unwrap();
    fs.put(file, 0, &noise(11, 600_000));
    fs.size(file, 650_000).unwrap();
    fs.setxattr(file, b"user.small", b"other", SetXattr::default(), &USER).unwrap();
    fs.removexattr(file, b"user.large").unwrap();
    fs.removexattr(file, ACL_ACCESS).unwrap();
    fs.removexattr(dir, ACL_DEFAULT).unwrap();
    fs.unlink(root, b"hard link").unwrap();
    let holes = fs.ino(root, "holes").unwrap();
    fs.put(holes, 2 << 20, &noise(12, 5 << 20));
    for name in [&b"small"[..], b"short", b"long", b"fifo", b"null"] {
        fs.unlink(root, name).unwrap();
    }
    let many = fs.ino(root, "many").unwrap();
    for at in 0..3000 {
        fs.unlink(many, format!("a name that makes the directory long {at}").as_bytes()).unwrap();
    }
    fs.rmdir(root, b"many").unwrap();
    fs.set_inode_flags(fs.ino(root, "immutable").unwrap(), InodeFlags::default()).unwrap();
    fs.rename(dir, b"file", root, b"immutable", 0).unwrap();
    // Their numbers may be reused.
    for at in 0..3500 {
        fs.file(root, &format!("new {at}"));
    }
    fs.setattr(root, &SetAttr { mode: Some(0o700), ..SetAttr::default() }, &ROOT_CRED).unwrap();
}

#[test]
fn a_snapshot_shows_what_was_there_whatever_happens_to_the_files() {
    for placement in ["sa", "dir"] {
        let props = [("xattr", placement), ("atime", "on"), ("compression", "lz4")];
        let mut m = Machine::new(1, &props);
        m.take_snapshot();
        let open = grow(m.fs());
        m.fs().sync().unwrap();
        let before = seen(m.fs());
        let root = m.take_snapshot();
        let snapshot = m.open_snapshot(&root);
        assert_eq!(seen(&snapshot), before, "inode numbers, times and sizes are the same too");
        ruin(m.fs());
        m.fs().sync().unwrap();
        assert!(seen(m.fs()) != before);
        assert_eq!(seen(&snapshot), before);
        assert_eq!(snapshot.getattr(open), Err(Errno::ESTALE), "unlinked files do not exist");
        let again = m.open_snapshot(&root);
        m.pool().drop_cache();
        assert_eq!(seen(&again), before, "read from the device");
        drop((snapshot, again));
        m.remount();
        m.pool().drop_cache();
        assert_eq!(seen(&m.open_snapshot(&root)), before, "after the next import");
    }
}

/// GC moves the blocks of a snapshot like others, and rewrites of the live files leave them alone.
#[test]
fn a_snapshot_is_read_after_gc_and_rewrites() {
    let props = [("recordsize", "4K"), ("compression", "off"), ("atime", "off")];
    let mut m = Machine::sized(3, &props, 64, 1 << 20);
    m.take_snapshot();
    let (root, mut rng) = (m.fs().root(), Prng::new(5));
    let file = m.fs().file(root, "file").ino;
    let content = noise(21, 8 << 20);
    m.fs().put(file, 0, &content);
    for at in 0..300 {
        m.fs().file(root, &format!("{at}"));
    }
    let snapshot_root = m.take_snapshot();
    let before = seen(&m.open_snapshot(&snapshot_root));
    let moved = m.pool().stats().reclaim.moved_bytes;
    for _ in 0..300 {
        for _ in 0..200 {
            m.fs().put(file, rng.below(2048) * 4096, &noise(rng.next_u64(), 4096));
        }
        m.fs().sync().unwrap();
        m.fs().rewrite_relocated().step(1).unwrap();
    }
    let moved = m.pool().stats().reclaim.moved_bytes - moved;
    assert!(moved > 2 << 20, "the canary: GC has moved {moved} bytes");
    let compression = Some("zstd-3".parse().unwrap());
    let spec = RewriteSpec { root, recursive: true, compression, record_size: Some(8192) };
    m.fs().rewrite().begin(&spec).unwrap();
    while m.fs().rewrite().step(1 << 20).unwrap() == JobStep::Progressed {
        m.fs().sync().unwrap();
    }
    m.pool().drop_cache();
    assert_eq!(seen(&m.open_snapshot(&snapshot_root)), before);
    m.remount();
    let snapshot = m.open_snapshot(&snapshot_root);
    assert!(snapshot.bytes(file) == content);
    assert_eq!(seen(&snapshot), before);
}

/// A snapshot of a tree with one of everything, its machine, and the number of a file in it.
fn snapshot_of_all() -> (Machine, BlockPtr, Arc<Fs>, Ino) {
    let mut m = Machine::new(7, &[("atime", "on")]);
    m.take_snapshot();
    grow(m.fs());
    let root = m.take_snapshot();
    let snapshot = m.open_snapshot(&root);
    let file = snapshot.ino(snapshot.ino(snapshot.root(), "dir").unwrap(), "file").unwrap();
    (m, root, snapshot, file)
}

#[test]
fn every_change_of_a_snapshot_is_refused() {
    let (m, _, fs, file) = snapshot_of_all();
    let (before, committed) = (seen(&fs), m.pool().synced_txg());
    let (root, how, cred) = (fs.root(), SetXattr::default(), &ROOT_CRED);
    let dir = fs.ino(root, "dir").unwrap();
    let set = |set: SetAttr| fs.setattr(file, &set, cred).map(drop);
    let spec = RewriteSpec {
        root,
        recursive: true,
        compression: Some("gzip-1".parse().unwrap()),
        record_size: None,
    };
    let answers = [
        ("create", fs.create(root, b"x", 0o644, cred).map(drop)),
        ("create over", fs.create(root, b"small", 0o644, cred).map(drop)),
        ("mknod", fs.mknod(root, b"x", mode::S_IFIFO, 0, cred).map(drop)),
        ("mkdir", fs.mkdir(root, b"x", 0o755, cred).map(drop)),
        ("symlink", fs.symlink(root, b"x", b"y", cred).map(drop)),
        ("tmpfile", fs.tmpfile(root, 0o600, cred).map(drop)),
        ("link", fs.link(file, root, b"x").map(drop)),
        ("unlink", fs.unlink(root, b"small")),
        ("unlink of nothing", fs.unlink(root, b"nothing")),
        ("rmdir", fs.rmdir(root, b"dir")),
        ("rename", fs.rename(root, b"small", root, b"x", 0)),
        ("exchange", fs.rename(root, b"small", root, b"fifo", RENAME_EXCHANGE)),
        ("whiteout", fs.rename_with_whiteout(root, b"small", root, b"x", 0, cred)),
        ("chmod", set(SetAttr { mode: Some(0), ..SetAttr::default() })),
        ("chown", set(SetAttr { uid: Some(9), ..SetAttr::default() })),
        ("truncate", set(SetAttr { size: Some(0), ..SetAttr::default() })),
        ("utimes", set(SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() })),
        ("write", fs.write(file, 0, b"x", WriteFlags::default()).map(drop)),
        ("append", fs.write(file, 0, b"x", WriteFlags { append: true, ..WriteFlags::default() }).map(drop)),
        ("truncating open", fs.truncate_on_open(file)),
        ("fallocate", fs.fallocate(file, 0, 0, 1 << 20)),
        ("punch", fs.fallocate(file, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 4096)),
        ("copy", fs.copy_range(file, 0, fs.ino(root, "small").unwrap(), 0, 10).map(drop)),
        ("setxattr", fs.setxattr(file, b"user.new", b"x", how, cred)),
        ("removexattr", fs.removexattr(file, b"user.small")),
        ("set acl", fs.setxattr(file, ACL_ACCESS, &acl(), how, cred)),
        ("remove acl", fs.removexattr(dir, ACL_DEFAULT)),
        ("flags", fs.set_inode_flags(file, InodeFlags { append_only: true, ..InodeFlags::default() })),
        ("hint", fs.set_write_hint(file, terrane_space::policy::Hint::Long)),
        ("words", fs.set_entry_words(root, b"small", &[1])),
        ("no words", fs.remove_entry_words(root, b"small")),
        ("rewrite", fs.rewrite().begin(&spec)),
    ];
    for (what, answer) in answers {
        assert_eq!(answer, Err(Errno::EROFS), "{what}");
    }
    let dataset = fs.dataset();
    for answer in [
        dataset.set("compression", "off"),
        dataset.reset("compression"),
        dataset.set_temporary("recordsize", "4K"),
    ] {
        assert!(matches!(
            answer,
            Err(terrane_dataset::DatasetError::Object(ObjectError::Pool(PoolError::ReadOnly)))
        ));
    }
    // Except for what the kernel caches: it is what the kernel was told at the mount.
    for (value, kind) in [("off", AclType::Off), ("posix", AclType::Posix)] {
        dataset.set_temporary("acltype", value).unwrap();
        assert_eq!(dataset.acl_type(), kind);
    }
    let set = dataset.object_set();
    let is_refused = |answer| matches!(answer, Err(ObjectError::Pool(PoolError::ReadOnly)));
    assert!(is_refused(set.begin(Cost::NOTHING).map(drop)));
    // A transaction of the live set does not help.
    let tx = m.fs().dataset().object_set().begin(Cost { write_bytes: 4096, ..Cost::NOTHING }).unwrap();
    let object = set.hold(ObjectId(file)).unwrap();
    assert!(is_refused(object.write(&tx, 0, b"x")) && is_refused(set.destroy(&tx, &object)));
    drop((tx, object));
    // There is nothing to be made durable.
    assert_eq!((fs.fsync(file, false), fs.sync()), (Ok(()), Ok(())));
    assert_eq!(m.pool().synced_txg(), committed);
    assert_eq!(seen(&fs), before);
}

#[test]
fn a_snapshot_leaves_pool_and_live_files_alone() {
    let mut m = Machine::new(8, &[("atime", "on"), ("recompress", "idle:0")]);
    m.take_snapshot();
    let open = grow(m.fs());
    let reserved = m.fs().file(m.fs().root(), "reserved").ino;
    m.fs().fallocate(reserved, FALLOC_KEEP_SIZE, 0, 4 << 20).unwrap();
    let spec = RewriteSpec {
        root: m.fs().root(),
        recursive: true,
        compression: Some("gzip-1".parse().unwrap()),
        record_size: None,
    };
    m.fs().rewrite().begin(&spec).unwrap();
    let root = m.take_snapshot();
    let (space, unlinked) = (m.pool().file_reserved_bytes(), m.fs().unlinked_count().unwrap());
    assert!(space > 0 && unlinked == 2);
    m.fs().size(reserved, 0).unwrap();
    m.fs().fallocate(reserved, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 4 << 20).unwrap();
    assert!(m.fs().rewrite().cancel().unwrap());
    m.fs().sync().unwrap();
    m.fs().dataset().set("compression", "zstd-3").unwrap();
    let (policy, kept) = (m.fs().dataset().object_set().policy(), m.pool().file_reserved_bytes());
    m.fs().sync().unwrap();
    let committed = m.pool().synced_txg();

    let snapshot = m.open_snapshot(&root);
    assert_eq!(m.pool().file_reserved_bytes(), kept, "what was reserved then is not reserved again");
    assert_eq!(snapshot.getattr(reserved).unwrap().blocks, 0);
    assert_eq!(snapshot.drain_unlinked(), Ok(false));
    for step in [
        snapshot.rewrite().step(1 << 20),
        snapshot.recompress().step(1),
        snapshot.rewrite_relocated().step(1),
        snapshot.shrink_dirs().step(1),
    ] {
        assert_eq!(step, Ok(JobStep::NothingToDo));
    }
    assert!(!snapshot.rewrite().is_running(), "the job of then is not resumed");
    let file = snapshot.ino(snapshot.root(), "small").unwrap();
    let atime = snapshot.getattr(file).unwrap().atime;
    snapshot.bytes(file);
    snapshot.names(snapshot.root());
    snapshot.readlink(snapshot.ino(snapshot.root(), "long").unwrap()).unwrap();
    assert_eq!(snapshot.getattr(file).unwrap().atime, atime);
    let figures = snapshot.statfs();
    assert_eq!((figures.free, figures.available), (0, 0));
    assert!(figures.blocks > 0 && figures.blocks < m.fs().statfs().blocks);
    snapshot.forget_all();
    drop(snapshot);
    assert_eq!(m.fs().dataset().object_set().policy(), policy);
    assert_eq!(m.fs().unlinked_count(), Ok(unlinked));
    assert!(m.fs().getattr(open).is_ok());
    // Nothing of all this needs a txg.
    m.fs().sync().unwrap();
    assert_eq!(m.pool().synced_txg(), committed);
}

#[test]
fn a_closed_snapshot_is_stale() {
    let (m, root, fs, file) = snapshot_of_all();
    let other = m.open_snapshot(&root);
    let object = fs.dataset().object_set().hold(ObjectId(file)).unwrap();
    fs.bytes(file);
    fs.close();
    let mut out = Vec::new();
    assert_eq!(fs.read(file, 0, 10, &mut out), Err(Errno::ESTALE));
    assert_eq!(fs.getattr(fs.root()).map(drop), Err(Errno::ESTALE));
    assert_eq!(fs.lookup(fs.root(), b"small").map(drop), Err(Errno::ESTALE));
    assert_eq!(fs.readdir(fs.root(), 0, &mut |_| true), Err(Errno::ESTALE));
    let is_gone = |answer| matches!(answer, Err(ObjectError::NotFound(_)));
    m.pool().drop_cache();
    assert!(is_gone(object.read(0, &mut [0; 4096]).map(drop)), "also through an object that was held");
    assert!(is_gone(fs.dataset().object_set().hold(ObjectId(file)).map(drop)));
    assert_eq!(other.getattr(file).unwrap().ino, file, "another one of the same root is not");
}

/// Users of a snapshot need not count lookups: memory is bounded by the number of idle inodes alone.
#[test]
fn inodes_of_a_snapshot_take_bounded_memory() {
    let (_m, _, fs, _) = snapshot_of_all();
    fs.set_idle_inodes_max(256);
    let many = fs.ino(fs.root(), "many").unwrap();
    for name in fs.names(many) {
        fs.ino(many, &name).unwrap();
    }
    let (cached, in_memory) = (fs.cached_inodes(), fs.inodes_in_memory());
    assert!((100..=330).contains(&cached) && cached == in_memory, "{cached} {in_memory}");
    let mut shown = 0;
    fs.readdir_plus(many, 0, &mut |_, attr| {
        shown += usize::from(attr.is_some());
        true
    })
    .unwrap();
    assert_eq!(shown, 3000);
}
