//! Requests about snapshots, without a kernel.

use super::*;
use crate::dispatch::replay::tests::{AGREED, ask_about};
use crate::metrics::Metrics;
use crate::mount::MountOptions;
use crate::proto::{
    CopyFileRangeIn, CreateIn, Dirent, EntryOut, OpenIn, ROOT_ID, SetattrIn, WriteIn, WriteOut,
};
use crate::session::Negotiated;
use crate::snapshots::Snapshots;
use crate::snapshots::tags::TagFile;
use crate::snapshots::tests::Snapshotted;
use std::sync::Arc;
use terrane_posix::{Cred, Fs, SetXattr};
use terrane_wire::ObjectId;

struct Asked {
    pool: Snapshotted,
    dir: Arc<SnapshotDir>,
    dispatch: Dispatch,
}

fn dispatch(fs: &Arc<Fs>, dir: &Arc<SnapshotDir>) -> Dispatch {
    let dispatch = Dispatch::new(Arc::clone(fs), &MountOptions::default(), Arc::<Metrics>::default());
    dispatch.with_snapshots(Arc::clone(dir))
}

impl Asked {
    /// A file `file` with content `old` and directory `dir` with file `inner`, then the snapshot `monday`, then
    /// other content.
    fn new() -> Asked {
        let pool = Snapshotted::new(&[]);
        pool.put("file", b"old");
        let sub = pool.fs.mkdir(pool.fs.root(), b"dir", 0o755, &Cred::default()).unwrap().ino;
        pool.fs.create(sub, b"inner", 0o600, &Cred::default()).unwrap();
        pool.take("monday");
        pool.put("file", b"new");
        let dir = pool.dir(None);
        let dispatch = dispatch(&pool.fs, &dir);
        Asked { pool, dir, dispatch }
    }

    fn ask(&self, node: u64, request: Request<'_>) -> Result<Vec<u8>, Errno> {
        ask_about(&self.dispatch, node, &AGREED, false, request)
    }

    fn entry(&self, node: u64, name: &[u8]) -> Result<EntryOut, Errno> {
        let raw = self.ask(node, Request::Lookup { name })?;
        Ok(EntryOut::decode(&raw[..EntryOut::SIZE]).unwrap())
    }

    fn lookup(&self, node: u64, name: &[u8]) -> Result<u64, Errno> {
        match self.entry(node, name)?.nodeid {
            0 => Err(ENOENT),
            node => Ok(node),
        }
    }

    fn walk(&self, path: &[&[u8]]) -> u64 {
        path.iter().fold(ROOT_ID, |node, name| self.lookup(node, name).unwrap())
    }

    /// All names of a directory with their nodes, in pieces of few.
    fn list(&self, node: u64, plus: bool) -> Vec<(String, u64)> {
        let (mut all, mut offset) = (Vec::new(), 0);
        loop {
            let read = read(offset, 600);
            let request = if plus { Request::Readdirplus(read) } else { Request::Readdir(read) };
            let raw = self.ask(node, request).unwrap();
            if raw.is_empty() {
                return all;
            }
            let mut at = 0;
            while at < raw.len() {
                at += if plus { EntryOut::SIZE } else { 0 };
                let dirent = Dirent::decode(&raw[at..at + Dirent::SIZE]).unwrap();
                let name = &raw[at + Dirent::SIZE..][..dirent.namelen as usize];
                all.push((String::from_utf8(name.to_vec()).unwrap(), dirent.ino));
                offset = dirent.off;
                at = (at + Dirent::SIZE + name.len()).next_multiple_of(8);
            }
        }
    }

    fn names(&self, node: u64, plus: bool) -> Vec<String> {
        let mut names: Vec<String> = self.list(node, plus).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names[..2], [".", ".."]);
        names.drain(..2);
        names.sort();
        names
    }
}

fn read(offset: u64, size: u32) -> ReadIn {
    ReadIn { fh: 0, offset, size, read_flags: 0, lock_owner: 0, flags: 0, padding: 0 }
}

#[test]
fn a_path_leads_into_a_snapshot() {
    let asked = Asked::new();
    assert_eq!(asked.lookup(ROOT_ID, b".terrane"), Ok(CONTROL_NODE));
    assert_eq!(asked.lookup(CONTROL_NODE, b"snapshot"), Ok(LIST_NODE));
    let root = asked.lookup(LIST_NODE, b"monday").unwrap();
    let file = asked.lookup(root, b"file").unwrap();
    let live = asked.lookup(ROOT_ID, b"file").unwrap();
    assert_eq!((root >> ObjectId::BITS, file), (1, 1 << ObjectId::BITS | live));
    assert_eq!(asked.ask(file, Request::Read(read(0, 10))), Ok(b"old".to_vec()));
    assert_eq!(asked.ask(live, Request::Read(read(0, 10))), Ok(b"new".to_vec()));
    for (node, name) in [(CONTROL_NODE, &b"x"[..]), (LIST_NODE, b"x"), (root, b"x"), (LIST_NODE, b"\xff")] {
        assert_eq!(asked.lookup(node, name), Err(ENOENT), "{name:?}");
    }
    // For an exported mount.
    let dir = asked.lookup(root, b"dir").unwrap();
    let above = [
        (dir, b".".as_slice(), dir),
        (dir, b"..", root),
        (root, b"..", LIST_NODE),
        (LIST_NODE, b".", LIST_NODE),
        (LIST_NODE, b"..", CONTROL_NODE),
        (CONTROL_NODE, b"..", ROOT_ID),
    ];
    for (node, name, found) in above {
        assert_eq!(asked.lookup(node, name), Ok(found), "{node:x}");
    }
    // Nodes that were never shown.
    for node in [9 << ObjectId::BITS | live, 1 << ObjectId::BITS, 1 << ObjectId::BITS | 1] {
        let answer = asked.ask(node, Request::Readlink);
        assert!(answer == Err(Errno::ESTALE) || node == CONTROL_NODE, "{answer:?}");
    }
}

#[test]
fn numbers_in_listings_are_those_of_stat() {
    let asked = Asked::new();
    let root = asked.walk(&[b".terrane", b"snapshot", b"monday"]);
    let dir = asked.lookup(root, b"dir").unwrap();
    for plus in [false, true] {
        for (node, parent) in [
            (CONTROL_NODE, None),
            (LIST_NODE, Some(CONTROL_NODE)),
            (root, Some(LIST_NODE)),
            (dir, Some(root)),
        ] {
            let listed = asked.list(node, plus);
            assert_eq!((listed[0].0.as_str(), listed[0].1), (".", node));
            assert!(listed[1].0 == ".." && parent.is_none_or(|parent| parent == listed[1].1));
            for (name, ino) in &listed[2..] {
                let entry = asked.entry(node, name.as_bytes()).unwrap();
                assert_eq!((entry.nodeid, entry.attr.ino), (*ino, *ino), "{name}");
            }
        }
        assert_eq!(asked.names(root, plus), ["dir", "file"]);
        assert_eq!(asked.names(LIST_NODE, plus), ["monday"]);
        assert_eq!(asked.names(CONTROL_NODE, plus), ["snapshot"]);
    }
    let created = asked.pool.source.find(b"monday").unwrap().unwrap().created;
    let entry = asked.entry(LIST_NODE, b"monday").unwrap();
    assert_eq!((entry.attr.mtime, entry.attr.mtimensec), (created.secs, created.nanos));
    // What never changes stays in the kernel's cache, and names in the list do not.
    assert_eq!(entry.entry_valid, 0);
    assert_eq!((entry.entry_valid_nsec, entry.attr_valid), (0, CachePolicy::default().attr.as_secs()));
    let entry = asked.entry(root, b"file").unwrap();
    assert_eq!(entry.entry_valid, CachePolicy::default().entry.as_secs());
}

#[test]
fn the_directory_is_hidden_visible_or_absent() {
    let asked = Asked::new();
    let shown = |visibility| {
        asked.pool.source.set_visibility(visibility);
        let lists = [false, true].map(|plus| asked.names(ROOT_ID, plus));
        assert_eq!(lists[0], lists[1]);
        (lists[0].clone(), asked.lookup(ROOT_ID, b".terrane"))
    };
    let (own, all) = (["dir", "file"].map(String::from), [".terrane", "dir", "file"].map(String::from));
    assert_eq!(shown(Visibility::Hidden), (own.to_vec(), Ok(CONTROL_NODE)));
    assert_eq!(shown(Visibility::Visible), (all.to_vec(), Ok(CONTROL_NODE)));
    assert_eq!(shown(Visibility::Disabled), (own.to_vec(), Err(ENOENT)));
    // Of many names none is lost, wherever an answer ends.
    for at in 0..100 {
        asked.pool.put(&format!("{at}"), b"");
    }
    asked.pool.source.set_visibility(Visibility::Visible);
    assert_eq!(asked.names(ROOT_ID, false).len(), 103);
    assert_eq!(asked.names(ROOT_ID, true).len(), 103);
    // The kernel must ask again: it may come and go without a change.
    let entry = asked.entry(ROOT_ID, b".terrane").unwrap();
    assert_eq!((entry.entry_valid, entry.entry_valid_nsec), (0, 0));
}

#[test]
fn an_entry_of_that_name_stays_reachable() {
    let asked = Asked::new();
    let root = asked.pool.fs.root();
    let mkdir = |name| asked.ask(ROOT_ID, Request::Mkdir { name, mode: 0o755, umask: 0 });
    assert_eq!(mkdir(b".terrane").map(drop), Err(Errno::EEXIST));
    let rename = |dir, name, new_dir, new_name| {
        asked.ask(dir, Request::Rename { name, new_dir, new_name, flags: 0 }).map(drop)
    };
    let dir = asked.lookup(ROOT_ID, b"dir").unwrap();
    assert_eq!(rename(ROOT_ID, b"dir", ROOT_ID, b".terrane"), Err(EROFS));
    assert_eq!(rename(ROOT_ID, b".terrane", dir, b"x"), Err(EROFS));
    assert_eq!(rename(dir, b"inner", ROOT_ID, b".terrane"), Err(EROFS));
    assert_eq!(asked.ask(ROOT_ID, Request::Rmdir { name: b".terrane" }).map(drop), Err(EROFS));
    assert_eq!(asked.pool.fs.lookup(root, b".terrane").map(drop), Err(ENOENT), "nothing was made");

    asked.pool.source.set_visibility(Visibility::Disabled);
    mkdir(b".terrane").unwrap();
    asked.pool.source.set_visibility(Visibility::Visible);
    let own = asked.lookup(ROOT_ID, b".terrane").unwrap();
    assert!(own != CONTROL_NODE && own >> ObjectId::BITS == 0);
    assert_eq!(asked.names(ROOT_ID, false), [".terrane", "dir", "file"], "once");
    assert_eq!(mkdir(b".terrane").map(drop), Err(Errno::EEXIST));
    rename(ROOT_ID, b".terrane", ROOT_ID, b"mine").unwrap();
    assert_eq!(asked.lookup(ROOT_ID, b".terrane"), Ok(CONTROL_NODE));
    // Only in the root.
    assert_eq!(asked.lookup(dir, b".terrane"), Err(ENOENT));
}

#[test]
fn a_range_of_a_snapshot_is_copied_to_a_live_file() {
    let asked = Asked::new();
    let root = asked.walk(&[b".terrane", b"snapshot", b"monday"]);
    let (file, live) = (asked.lookup(root, b"file").unwrap(), asked.lookup(ROOT_ID, b"file").unwrap());
    let copy =
        CopyFileRangeIn { fh_in: 0, off_in: 1, nodeid_out: live, fh_out: 0, off_out: 0, len: 9, flags: 0 };
    let answer = asked.ask(file, Request::CopyFileRange { copy, wide: false }).unwrap();
    assert_eq!(WriteOut::decode(&answer[..WriteOut::SIZE]).map(|out| out.size), Some(2));
    let mut content = Vec::new();
    asked.pool.fs.read(live, 0, 9, &mut content).unwrap();
    assert_eq!(content, b"ldw");
    // Of a snapshot that was destroyed meanwhile.
    asked.pool.datasets.destroy_snapshots("", &["monday"]).unwrap();
    let gone = asked.ask(file, Request::CopyFileRange { copy, wide: true }).map(drop);
    assert_eq!(gone, Err(Errno::ESTALE));
}

#[test]
fn nothing_below_it_can_be_changed() {
    let asked = Asked::new();
    let root = asked.walk(&[b".terrane", b"snapshot", b"monday"]);
    let file = asked.lookup(root, b"file").unwrap();
    let live = asked.lookup(ROOT_ID, b"file").unwrap();
    let create = CreateIn { flags: 0, mode: 0o644, umask: 0, open_flags: 0 };
    let write = |write_flags| Request::Write(WriteIn { offset: 0, write_flags, flags: 0, data: b"x" });
    let rename = |new_dir| Request::Rename { name: b"file", new_dir, new_name: b"x", flags: 0 };
    let copy = |nodeid_out| {
        let copy =
            CopyFileRangeIn { fh_in: 0, off_in: 0, nodeid_out, fh_out: 0, off_out: 0, len: 1, flags: 0 };
        Request::CopyFileRange { copy, wide: false }
    };
    for dir in [root, CONTROL_NODE, LIST_NODE] {
        for request in [
            Request::Mkdir { name: b"x", mode: 0o755, umask: 0 },
            Request::Mknod { name: b"x", mode: 0o100_644, umask: 0, rdev: 0 },
            Request::Symlink { name: b"x", target: b"y" },
            Request::Create { name: b"x", create },
            Request::Tmpfile { create },
            Request::Unlink { name: b"file" },
            Request::Rmdir { name: b"monday" },
            rename(dir),
            Request::Setattr(SetattrIn::decode(&[0; SetattrIn::SIZE]).unwrap()),
            Request::Removexattr { name: b"user.x" },
        ] {
            assert_eq!(asked.ask(dir, request).map(drop), Err(EROFS), "{dir:x} {request:?}");
        }
        assert_eq!(asked.ask(dir, rename(ROOT_ID)).map(drop), Err(EXDEV));
        assert_eq!(asked.ask(ROOT_ID, rename(dir)).map(drop), Err(EXDEV));
        assert_eq!(asked.ask(dir, Request::Link { nodeid: live, name: b"x" }).map(drop), Err(EXDEV));
    }
    assert_eq!(asked.ask(file, write(0)).map(drop), Err(EROFS));
    assert_eq!(asked.ask(file, write(proto::write::CACHE)).map(drop), Err(EROFS));
    assert_eq!(asked.ask(root, Request::Link { nodeid: file, name: b"x" }).map(drop), Err(EROFS));
    assert_eq!(asked.ask(ROOT_ID, Request::Link { nodeid: file, name: b"x" }).map(drop), Err(EXDEV));
    for (from, to) in [(live, file), (file, file), (CONTROL_NODE, live), (LIST_NODE, live)] {
        assert_eq!(asked.ask(from, copy(to)).map(drop), Err(EXDEV), "the kernel copies itself");
    }
    let open = |flags: i32| Request::Open(OpenIn { flags: flags.cast_unsigned(), open_flags: 0 });
    assert_eq!(asked.ask(file, open(libc::O_RDWR)).map(drop), Err(EROFS));
    assert!(asked.ask(file, open(libc::O_RDONLY)).is_ok());
    let stateless = Negotiated { flags: crate::proto::init::NO_OPEN_SUPPORT, ..AGREED };
    let opened = ask_about(&asked.dispatch, file, &stateless, false, open(libc::O_RDONLY));
    assert_eq!(opened.map(drop), Err(ENOSYS), "the kernel does not ask again");
    assert_eq!(asked.ask(file, Request::Read(read(0, 10))), Ok(b"old".to_vec()));
    assert_eq!(asked.ask(file, Request::Fsync { data_only: false }).map(drop), Ok(()));
}

#[test]
fn attributes_of_a_snapshot_are_those_of_then() {
    let asked = Asked::new();
    let fs = &asked.pool.fs;
    let file = fs.lookup(fs.root(), b"file").unwrap().ino;
    fs.setxattr(file, b"user.x", b"then", SetXattr::default(), &Cred::default()).unwrap();
    asked.pool.take("tuesday");
    fs.setxattr(file, b"user.x", b"now", SetXattr::default(), &Cred::default()).unwrap();
    let node = asked.walk(&[b".terrane", b"snapshot", b"tuesday", b"file"]);
    let get = |node, size| asked.ask(node, Request::Getxattr { name: b"user.x", size });
    assert_eq!((get(node, 100), get(file, 100)), (Ok(b"then".to_vec()), Ok(b"now".to_vec())));
    assert_eq!(asked.ask(node, Request::Listxattr { size: 100 }), Ok(b"user.x\0".to_vec()));
    let earlier = asked.walk(&[b".terrane", b"snapshot", b"monday", b"file"]);
    assert_eq!(get(earlier, 100), Err(Errno::ENODATA));
    for virtual_dir in [CONTROL_NODE, LIST_NODE] {
        assert_eq!(get(virtual_dir, 100), Err(Errno::ENODATA));
        assert_eq!(asked.ask(virtual_dir, Request::Listxattr { size: 100 }), Ok(Vec::new()));
    }
    assert!(asked.ask(node, Request::Statfs).unwrap() != asked.ask(file, Request::Statfs).unwrap());
}

#[test]
fn nodes_are_counted_until_the_kernel_forgets_them() {
    let asked = Asked::new();
    let entry = asked.pool.source.find(b"monday").unwrap().unwrap();
    let root = asked.walk(&[b".terrane", b"snapshot", b"monday"]);
    let file = asked.lookup(root, b"file").unwrap();
    asked.lookup(root, b"file").unwrap();
    let mut held = asked.dir.note_destroyed(entry.guid);
    held.sort_unstable();
    assert_eq!(held, [root, file]);
    asked.ask(file, Request::Forget { nlookup: 2 }).unwrap();
    assert_eq!(asked.dir.note_destroyed(entry.guid), [root]);
    asked.ask(root, Request::Forget { nlookup: 1 }).unwrap();
    assert_eq!(asked.dir.note_destroyed(entry.guid), []);
    assert_eq!(asked.dir.note_destroyed(1), []);
}

#[test]
fn nodes_of_a_destroyed_snapshot_are_stale() {
    let asked = Asked::new();
    let root = asked.walk(&[b".terrane", b"snapshot", b"monday"]);
    let file = asked.lookup(root, b"file").unwrap();
    assert_eq!(asked.ask(file, Request::Read(read(0, 10))), Ok(b"old".to_vec()));
    asked.pool.datasets.destroy_snapshots("", &["monday"]).unwrap();
    for request in
        [Request::Read(read(0, 10)), Request::Getattr, Request::Getxattr { name: b"user.x", size: 9 }]
    {
        assert_eq!(asked.ask(file, request).map(drop), Err(Errno::ESTALE), "{request:?}");
    }
    assert_eq!(asked.lookup(root, b"file"), Err(Errno::ESTALE));
    assert_eq!(asked.ask(root, Request::Readdir(read(0, 4096))).map(drop), Err(Errno::ESTALE));
    assert_eq!(asked.lookup(LIST_NODE, b"monday"), Err(ENOENT));
    assert_eq!(asked.names(LIST_NODE, false), [""; 0]);
    // A new one of the same name has other nodes.
    asked.pool.take("monday");
    let again = asked.walk(&[b".terrane", b"snapshot", b"monday", b"file"]);
    assert_ne!(again, file);
    assert_eq!(asked.ask(again, Request::Read(read(0, 10))), Ok(b"new".to_vec()));
    assert_eq!(asked.ask(file, Request::Getattr).map(drop), Err(Errno::ESTALE));
}

#[test]
fn a_successor_answers_for_nodes_of_snapshots() {
    let mut asked = Asked::new();
    let tags = TagFile::new().unwrap();
    let inherited = tags.file().try_clone().unwrap();
    asked.dir = asked.pool.dir(Some(tags));
    asked.dispatch = dispatch(&asked.pool.fs, &asked.dir);
    let file = asked.walk(&[b".terrane", b"snapshot", b"monday", b"file"]);
    asked.dir = asked.pool.dir(Some(TagFile::inherit(inherited).unwrap()));
    asked.dispatch = dispatch(&asked.pool.fs, &asked.dir);
    assert_eq!(asked.ask(file, Request::Read(read(0, 10))), Ok(b"old".to_vec()));
    asked.ask(file, Request::Forget { nlookup: 1 }).unwrap();
    assert_eq!(asked.walk(&[b".terrane", b"snapshot", b"monday", b"file"]), file);
    asked.dispatch = dispatch(&asked.pool.fs, &asked.pool.dir(None));
    assert_eq!(asked.ask(file, Request::Getattr).map(drop), Err(Errno::ESTALE));
}
