//! `st_blocks` on a mount is what is stored, soon after the commit and without waiting for the kernel to forget.

use crate::support::{TestDir, can_mount, noise};
use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags, removexattr, setxattr, statx};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an old number may be shown after the commit.
const SHOWN_OLD_MAX: Duration = Duration::from_secs(2);

/// Asks for the blocks alone, as `stat -c %b` does. The kernel answers from its cache what it takes for valid.
fn blocks(path: &Path) -> u64 {
    statx(CWD, path, AtFlags::empty(), StatxFlags::BLOCKS).unwrap().stx_blocks
}

struct Mounted {
    dir: TestDir,
    mnt: PathBuf,
}

impl Mounted {
    fn new(name: &str) -> Mounted {
        let dir = TestDir::new(name);
        dir.run("pool create tank tank.img --size 128M", 0);
        dir.run("mount tank mnt", 0);
        let mnt = dir.path("mnt");
        Mounted { dir, mnt }
    }

    /// Commits, and waits until `shown` is right.
    fn sync_until(&self, what: &str, shown: impl Fn() -> bool) {
        self.sync_until_within(SHOWN_OLD_MAX, what, shown);
    }

    fn sync_until_within(&self, time: Duration, what: &str, shown: impl Fn() -> bool) {
        self.dir.run("sync tank", 0);
        let begun = Instant::now();
        while !shown() {
            assert!(begun.elapsed() < time, "{what} is shown wrong after the commit");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn unmount(&self) {
        self.dir.run("umount mnt", 0);
    }

    /// Requests for attributes that the kernel has sent.
    fn getattrs(&self) -> u64 {
        let metrics = self.dir.out("metrics tank");
        let line = metrics.lines().find(|line| {
            line.starts_with("terrane_fuse_request_seconds_count") && line.contains("\"getattr\"")
        });
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

/// A file that compresses to one granule.
fn write_compressible(path: &Path, bytes: usize) {
    fs::write(path, vec![b'x'; bytes]).unwrap();
}

#[test]
fn blocks_of_files_are_right_soon_after_the_commit() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new("blocks");
    let big = mounted.mnt.join("big");
    write_compressible(&big, 1_000_000);
    assert!(blocks(&big) >= 1950, "bytes that are not stored count in full");
    mounted.sync_until("a file", || blocks(&big) <= 64);

    // As `ls -l`: attributes come with the listing.
    let tree = mounted.mnt.join("tree");
    fs::create_dir(&tree).unwrap();
    (0..60).for_each(|i| write_compressible(&tree.join(format!("file{i}")), 98_000));
    let listed = || -> u64 {
        let entries = fs::read_dir(&tree).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().blocks()).sum()
    };
    assert!(listed() > 60 * 190);
    listed();
    mounted.sync_until("a listing", || listed() <= 60 * 16);
    let directory = blocks(&tree);
    assert!((1..=64).contains(&directory), "{directory}");

    // What is stored is known for ever.
    listed();
    let before = mounted.getattrs();
    assert!(before > 0, "the metric is read wrongly");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(600));
        (0..60).for_each(|i| assert!(blocks(&tree.join(format!("file{i}"))) <= 16));
    }
    let more = mounted.getattrs() - before;
    assert!(more < 10, "{more} requests for attributes of 60 files that did not change");
    mounted.unmount();
}

#[test]
fn blocks_of_extended_attributes_are_shown_soon_after_the_commit() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new("blocks-xattr");
    let file = mounted.mnt.join("file");
    fs::write(&file, b"").unwrap();
    mounted.sync_until("an empty file", || blocks(&file) == 0);
    let value = noise(16_000);
    setxattr(&file, "user.large", &value, XattrFlags::empty()).unwrap();
    assert!(blocks(&file) > 0, "bytes that are not stored count");
    // Attributes are stored twice.
    mounted.sync_until("a file with a large attribute", || (60..=80).contains(&blocks(&file)));
    // Nothing asks for the blocks between the change and the commit.
    let same = vec![b'a'; 16_000];
    setxattr(&file, "user.large", &same, XattrFlags::empty()).unwrap();
    mounted.sync_until("an attribute that compresses", || (1..=16).contains(&blocks(&file)));
    removexattr(&file, "user.large").unwrap();
    mounted.sync_until("a file without its attribute", || blocks(&file) == 0);
    mounted.unmount();
}

#[test]
fn blocks_of_rewritten_files_are_shown() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new("blocks-rewrite");
    mounted.dir.run("fs set compression=off tank", 0);
    let file = mounted.mnt.join("file");
    write_compressible(&file, 1_000_000);
    mounted.sync_until("a file", || blocks(&file) >= 1950);
    // Wait until the kernel believes that this lasts.
    std::thread::sleep(Duration::from_secs(1));
    assert!((0..3).all(|_| blocks(&file) >= 1950));
    for words in ["--compression=zstd-3", "--recordsize=16K --compression=off"] {
        mounted.dir.run(&format!("fs rewrite mnt/file {words}"), 0);
        let is_small = !words.contains("off");
        // A thread that runs once in a second tells the kernel.
        let time = Duration::from_secs(10);
        mounted.sync_until_within(time, "a rewritten file", || (blocks(&file) < 200) == is_small);
    }
    mounted.unmount();
}

#[test]
fn stat_shows_where_attributes_lie_and_what_they_take() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new("homes");
    let file = mounted.mnt.join("file");
    fs::write(&file, b"").unwrap();
    let stat = || mounted.dir.json("stat --json mnt/file")["files"][0].clone();
    let plain = stat()["attributes"].clone();
    assert!(
        plain["bonus"].as_u64().unwrap() > 0 && plain["values"].as_array().unwrap().is_empty(),
        "{plain}"
    );
    assert_eq!([&plain["spill"], &plain["spill_stored"], &plain["objects"]], [0, 0, 0], "{plain}");

    let value = noise(60_000);
    setxattr(&file, "user.small", b"12345", XattrFlags::empty()).unwrap();
    mounted.dir.run("sync tank", 0);
    let small = stat()["attributes"]["values"][0].clone();
    assert_eq!((&small["home"], &small["bytes"]), (&"bonus".into(), &5.into()), "{small}");
    setxattr(&file, "user.large", &value[..16_000], XattrFlags::empty()).unwrap();
    mounted.dir.run("sync tank", 0);
    let spilled = stat();
    let spill = &spilled["attributes"];
    assert!(spill["spill"].as_u64().unwrap() >= 16_000, "{spill}");
    // In two copies.
    assert!((32_000..40_000).contains(&spill["spill_stored"].as_u64().unwrap()), "{spill}");
    assert!(!spilled["zones"].as_array().unwrap().is_empty(), "{spilled}");
    setxattr(&file, "user.huge", &value, XattrFlags::empty()).unwrap();
    mounted.dir.run("sync tank", 0);
    let hidden = stat()["attributes"].clone();
    let huge =
        hidden["values"].as_array().unwrap().iter().find(|row| row["name"] == "user.huge").unwrap().clone();
    assert!(huge["home"].as_str().unwrap().starts_with("object ") && huge["bytes"] == 60_000, "{hidden}");
    assert_eq!(hidden["objects"], 2, "the directory and the value: {hidden}");
    assert!(hidden["objects_stored"].as_u64().unwrap() > 30_000, "{hidden}");
    let text = mounted.dir.out("stat mnt/file");
    for words in [" in the dnode, ", " in a spill block (", "2 hidden objects (", "user.huge "] {
        assert!(text.contains(words), "{words:?} in {text}");
    }
    mounted.unmount();
}
