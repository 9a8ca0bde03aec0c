//! Snapshots inside a real mount: what only the kernel can show.
//!
//! Where `/dev/fuse` cannot be used, or this is not root, the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod forgetter;
mod support;

use forgetter::forgetter;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Mounted, as_user};
use terrane_fuse::snapshots::DatasetSnapshots;
use terrane_fuse::{SnapshotEntry, Snapshots, Visibility, forget};
use terrane_posix::{Errno, Fs, Time};

/// A source as it is.
fn plain(source: Arc<DatasetSnapshots>) -> Arc<dyn Snapshots> {
    source
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Walks a tree, and checks that each listing shows the numbers of `stat`. Returns paths and contents.
fn walk(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut waiting) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let entry = entry.unwrap();
            let meta = fs::symlink_metadata(entry.path()).unwrap();
            assert_eq!(entry.ino(), meta.ino(), "{:?}", entry.path());
            let name = entry.path().strip_prefix(dir).unwrap().display().to_string();
            if meta.is_dir() {
                waiting.push(entry.path());
                found.push((name, Vec::new()));
            } else if meta.is_symlink() {
                let target = fs::read_link(entry.path()).unwrap();
                found.push((name, target.into_os_string().into_encoded_bytes()));
            } else {
                found.push((name, fs::read(entry.path()).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn run(program: &str, args: &[&Path]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn errno<T>(outcome: io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

/// A tree with files, a link and attributes.
fn grow(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("file"), b"old").unwrap();
    fs::write(dir.join("sub/large"), vec![7; 3 << 20]).unwrap();
    fs::hard_link(dir.join("file"), dir.join("sub/link")).unwrap();
    symlink("file", dir.join("symlink")).unwrap();
    fs::write(dir.join("private"), b"secret").unwrap();
    fs::set_permissions(dir.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    setxattr(dir.join("file"), "user.x", b"then", XattrFlags::empty()).unwrap();
    for at in 0..300 {
        fs::write(dir.join(format!("sub/deep/{at}")), at.to_string()).unwrap();
    }
}

#[test]
fn a_snapshot_is_read_inside_the_mount() {
    let Some((mounted, datasets, source, _)) = Mounted::start_with_snapshots("inside", &[], plain) else {
        return;
    };
    let dir = mounted.dir.as_path();
    grow(dir);
    let before = walk(dir);
    datasets.snapshot(&[("", "monday")]).unwrap();
    fs::write(dir.join("file"), b"new content").unwrap();
    fs::remove_dir_all(dir.join("sub/deep")).unwrap();
    setxattr(dir.join("file"), "user.x", b"now", XattrFlags::empty()).unwrap();
    fs::rename(dir.join("symlink"), dir.join("moved")).unwrap();
    assert!(!names(dir).contains(&".terrane".to_owned()), "hidden");
    let snapshots = dir.join(".terrane/snapshot");
    assert_eq!(names(&snapshots), ["monday"]);
    let monday = snapshots.join("monday");
    assert_eq!(walk(&monday), before);
    assert_eq!(walk(&monday), before, "from the kernel's caches");
    assert_eq!(run("cat", &[&monday.join("file")]), "old");
    let found = run("find", &[&monday]);
    assert_eq!(found.lines().count(), before.len() + 1);
    let mut value = [0; 8];
    let len = getxattr(monday.join("symlink"), "user.x", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"then");
    // Both names of a file are one inode, which is not the live one.
    let (file, link) = (monday.join("file").metadata().unwrap(), monday.join("sub/link").metadata().unwrap());
    assert_eq!((file.ino(), file.nlink()), (link.ino(), 2));
    assert_ne!(file.ino(), dir.join("file").metadata().unwrap().ino());
    assert_eq!(file.dev(), dir.metadata().unwrap().dev());
    // The time of the snapshot.
    let created = source.list().unwrap()[0].created;
    let root = monday.metadata().unwrap();
    assert_eq!((root.mtime(), root.mtime_nsec()), (created.secs, i64::from(created.nanos)));
    for (path, parent) in [(".terrane", "."), (".terrane/snapshot", ".terrane")] {
        let meta = dir.join(path).metadata().unwrap();
        assert!(meta.is_dir() && meta.mode() & 0o7777 == 0o555);
        let up = dir.join(path).join("..").metadata().unwrap().ino();
        assert_eq!(up, dir.join(parent).metadata().unwrap().ino());
    }
    // Permissions are those of then.
    let private = monday.join("private");
    as_user(1000, || {
        assert_eq!(fs::read(&private).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(fs::read(monday.join("file")).unwrap(), b"old");
    });
    let back = dir.join("back");
    fs::create_dir(&back).unwrap();
    run("cp", &[Path::new("-a"), &monday.join("."), &back]);
    assert_eq!(walk(&back), before, "everything is fetched back");
    mounted.end();
}

#[test]
fn snapshots_refuse_changes() {
    let Some((mounted, datasets, ..)) = Mounted::start_with_snapshots("refusing", &[], plain) else { return };
    let dir = mounted.dir.as_path();
    grow(dir);
    datasets.snapshot(&[("", "monday")]).unwrap();
    let monday = dir.join(".terrane/snapshot/monday");
    let before = walk(&monday);
    let refused = Some(libc::EROFS);
    let file = monday.join("file");
    assert_eq!(errno(fs::write(&file, b"x")), refused, "by truncating");
    assert_eq!(errno(fs::write(monday.join("new"), b"x")), refused);
    assert_eq!(errno(fs::create_dir(monday.join("new"))), refused);
    assert_eq!(errno(fs::remove_file(&file)), refused);
    assert_eq!(errno(fs::remove_dir(monday.join("sub"))), refused);
    assert_eq!(errno(fs::rename(&file, monday.join("new"))), refused);
    assert_eq!(errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o000))), refused);
    assert_eq!(errno(fs::hard_link(&file, monday.join("new"))), refused);
    assert_eq!(errno(symlink("x", monday.join("new"))), refused);
    let set = setxattr(&file, "user.x", b"x", XattrFlags::empty());
    assert_eq!(set.map_err(|errno| errno.raw_os_error()), Err(libc::EROFS));
    for other in ["", ".terrane", ".terrane/snapshot"] {
        assert_eq!(errno(fs::rename(&file, dir.join(other).join("new"))), Some(libc::EXDEV), "{other}");
        assert_eq!(errno(fs::hard_link(&file, dir.join(other).join("new"))), Some(libc::EXDEV), "{other}");
    }
    assert_eq!(errno(fs::remove_dir(&monday)), refused);
    assert_eq!(errno(fs::create_dir(dir.join(".terrane/snapshot/new"))), refused);
    assert_eq!(errno(fs::rename(dir.join(".terrane"), dir.join("new"))), refused);
    assert_eq!(errno(fs::create_dir(dir.join(".terrane"))), Some(libc::EEXIST));
    // The kernel does not ask the server when a file is opened.
    let open = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    assert_eq!(errno(open.write_at(b"x", 0)), refused);
    assert_eq!(errno(open.set_len(0)), refused);
    drop(open);
    assert_eq!(walk(&monday), before);
    mounted.end();
}

#[test]
fn the_property_shows_hides_and_removes_the_directory() {
    let Some((mounted, datasets, source, _)) = Mounted::start_with_snapshots("shown", &[], plain) else {
        return;
    };
    let dir = mounted.dir.as_path();
    fs::write(dir.join("file"), b"old").unwrap();
    datasets.snapshot(&[("", "monday")]).unwrap();
    let control = dir.join(".terrane");
    assert_eq!(names(dir), ["file"]);
    assert!(control.join("snapshot/monday/file").exists());
    let forget_root = || {
        let helper = forget::start(forgetter(), mounted.connection.try_clone().unwrap(), &[1]).unwrap();
        assert!(helper.wait_with_output().unwrap().status.success());
    };
    source.set_visibility(Visibility::Visible);
    forget_root();
    assert_eq!(names(dir), [".terrane", "file"]);
    let listed = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let listed = listed.into_iter().find(|entry| entry.file_name() == ".terrane").unwrap();
    assert!(listed.file_type().unwrap().is_dir());
    assert_eq!(listed.ino(), control.metadata().unwrap().ino());
    // It holds the directory open.
    drop(listed);
    assert_eq!(run("find", &[dir]).lines().count(), 6);
    source.set_visibility(Visibility::Disabled);
    forget_root();
    assert_eq!(names(dir), ["file"]);
    assert!(!control.exists());
    // Now the name is free.
    fs::create_dir(&control).unwrap();
    fs::write(control.join("mine"), b"mine").unwrap();
    for visibility in [Visibility::Visible, Visibility::Hidden] {
        source.set_visibility(visibility);
        assert_eq!(
            (names(dir), names(&control)),
            (vec![".terrane".into(), "file".into()], vec!["mine".into()])
        );
    }
    fs::remove_dir_all(&control).unwrap();
    assert_eq!(names(&control), ["snapshot"], "it is back");
    mounted.end();
}

#[test]
fn the_list_of_snapshots_is_never_stale() {
    let Some((mounted, datasets, ..)) = Mounted::start_with_snapshots("list", &[], plain) else { return };
    let list = mounted.path(".terrane/snapshot");
    assert_eq!(names(&list), [""; 0]);
    let mut expected = BTreeSet::new();
    for at in 0..30 {
        let name = format!("s{at:02}");
        assert!(!list.join(&name).exists());
        datasets.snapshot(&[("", &name)]).unwrap();
        expected.insert(name.clone());
        if at % 3 == 2 {
            let gone = format!("s{:02}", at - 1);
            datasets.destroy_snapshots("", &[&gone]).unwrap();
            expected.remove(&gone);
            assert!(!list.join(&gone).exists());
        }
        assert_eq!(names(&list), expected.iter().cloned().collect::<Vec<_>>());
        assert!(list.join(&name).join(".").is_dir());
    }
    datasets.rename_snapshot("", "s00", "renamed").unwrap();
    assert!(!list.join("s00").exists() && list.join("renamed").exists());
    mounted.end();
}

#[test]
fn open_files_of_a_destroyed_snapshot_are_stale() {
    let Some((mounted, datasets, source, snapshots)) = Mounted::start_with_snapshots("stale", &[], plain)
    else {
        return;
    };
    let dir = mounted.dir.as_path();
    grow(dir);
    for name in ["monday", "tuesday"] {
        datasets.snapshot(&[("", name)]).unwrap();
    }
    let guid = source.find(b"monday").unwrap().unwrap().guid;
    let monday = dir.join(".terrane/snapshot/monday");
    let (open, open_dir) =
        (File::open(monday.join("file")).unwrap(), File::open(monday.join("sub")).unwrap());
    let kept = File::open(dir.join(".terrane/snapshot/tuesday/file")).unwrap();
    let mut content = [0; 3];
    open.read_exact_at(&mut content, 0).unwrap();
    walk(&monday);
    datasets.destroy_snapshots("", &["monday"]).unwrap();
    let nodes = snapshots.note_destroyed(guid);
    assert!(nodes.len() > 300, "{}", nodes.len());
    let helper = forget::start(forgetter(), mounted.connection.try_clone().unwrap(), &nodes).unwrap();
    assert!(helper.wait_with_output().unwrap().status.success());
    let stale = Some(libc::ESTALE);
    assert_eq!(errno(open.read_at(&mut content, 0)), stale);
    assert_eq!(errno(open.metadata()), stale);
    assert_eq!(errno(open_dir.metadata()), stale);
    assert_eq!(monday.metadata().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(&dir.join(".terrane/snapshot")), ["tuesday"]);
    kept.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"old");
    // Once the kernel has let go of the nodes, nothing is left of it.
    drop((open, open_dir, kept));
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    let begun = Instant::now();
    while !snapshots.note_destroyed(guid).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the kernel forgets what nobody uses");
        std::thread::sleep(Duration::from_millis(20));
    }
    mounted.end();
}

/// A source of many snapshots that all show the same.
struct Many {
    of: Arc<DatasetSnapshots>,
    count: u64,
}

impl Many {
    fn entry(&self, at: u64) -> SnapshotEntry {
        let created = Time { secs: 1_700_000_000 + at as i64, nanos: 0 };
        SnapshotEntry {
            name: format!("hourly-{at:05}"),
            guid: (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            created,
        }
    }
}

impl Snapshots for Many {
    fn list(&self) -> Result<Vec<SnapshotEntry>, Errno> {
        Ok((0..self.count).map(|at| self.entry(at)).collect())
    }

    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, Errno> {
        let at = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix("hourly-")?.parse().ok());
        Ok(at.filter(|at| *at < self.count).map(|at| self.entry(at)))
    }

    fn open(&self, _: u64, _: Option<&str>) -> Result<Arc<Fs>, Errno> {
        let only = self.of.list()?.remove(0);
        self.of.open(only.guid, Some(&only.name))
    }
}

#[test]
fn thousands_of_snapshots_are_listed_and_entered() {
    const COUNT: u64 = 10_000;
    let many = |of| -> Arc<dyn Snapshots> { Arc::new(Many { of, count: COUNT }) };
    let Some((mounted, datasets, _, snapshots)) = Mounted::start_with_snapshots("many", &[], many) else {
        return;
    };
    let list = mounted.path(".terrane/snapshot");
    fs::write(mounted.path("file"), b"old").unwrap();
    datasets.snapshot(&[("", "only")]).unwrap();
    let begun = Instant::now();
    let listed = names(&list);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(listed, (0..COUNT).map(|at| format!("hourly-{at:05}")).collect::<Vec<_>>());
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir(&list).unwrap() {
        assert!(numbers.insert(entry.unwrap().ino()), "each has a number of its own");
    }
    assert_eq!(numbers.len() as u64, COUNT);
    for (entry, _) in fs::read_dir(&list).unwrap().zip(0..500) {
        let entry = entry.unwrap();
        assert_eq!(entry.ino(), entry.metadata().unwrap().ino());
        assert_eq!(fs::read(entry.path().join("file")).unwrap(), b"old");
    }
    assert!(snapshots.open_count() <= terrane_fuse::snapshots::OPEN_MAX);
    mounted.end();
}

/// As for programs that compare inode numbers with those of the last backup.
#[test]
fn a_snapshot_mounted_alone_has_the_numbers_of_the_live_files() {
    let Some((mounted, datasets, ..)) = Mounted::start_with_snapshots("alone-live", &[], plain) else {
        return;
    };
    let dir = mounted.dir.as_path();
    grow(dir);
    let (before, live) = (walk(dir), dir.join("sub/large").metadata().unwrap());
    datasets.snapshot(&[("", "monday")]).unwrap();
    fs::write(dir.join("file"), b"new").unwrap();
    let snapshot = Fs::open(datasets.open_snapshot("", "monday").unwrap()).unwrap();
    let alone = mounted.mount_beside("alone", Arc::clone(&snapshot), "ro");
    assert_eq!(walk(&alone.dir), before);
    let shown = alone.path("sub/large").metadata().unwrap();
    assert_eq!((shown.ino(), shown.ctime(), shown.mtime()), (live.ino(), live.ctime(), live.mtime()));
    assert_eq!(alone.dir.metadata().unwrap().ino(), dir.metadata().unwrap().ino());
    assert_eq!(errno(fs::write(alone.path("new"), b"x")), Some(libc::EROFS));
    assert!(!alone.path(".terrane").exists());
    alone.end();
    // Without the kernel's own refusal.
    let alone = mounted.mount_beside("alone", snapshot, "rw");
    assert_eq!(errno(fs::write(alone.path("new"), b"x")), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(alone.path("file"))), Some(libc::EROFS));
    assert_eq!(walk(&alone.dir), before);
    alone.end();
    mounted.end();
}
