//! Times of access on a mount follow its flags, the property, and the flags with which a file is opened.

use crate::support::{TestDir, can_mount, is_root};
use rustix::fs::{Dir, OFlags};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file and a directory whose reads are observed.
struct Observed {
    file: PathBuf,
    dir: PathBuf,
}

/// Whether reads changed the access times.
#[derive(Debug, PartialEq, Eq)]
struct Changed {
    file: bool,
    dir: bool,
}

const NONE: Changed = Changed { file: false, dir: false };
const BOTH: Changed = Changed { file: true, dir: true };
const ONLY_FILE: Changed = Changed { file: true, dir: false };

fn opened(path: &Path, flags: OFlags) -> File {
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).unwrap()
}

fn atime(path: &Path) -> (i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.atime(), metadata.atime_nsec())
}

impl Observed {
    /// Reads both in a way that no cache of the kernel answers.
    fn read(&self, flags: OFlags) -> Changed {
        // The kernel forgets its listing.
        let name = self.dir.join("name");
        File::create(&name).unwrap();
        fs::remove_file(&name).unwrap();
        let before = (atime(&self.file), atime(&self.dir));
        std::thread::sleep(Duration::from_millis(10));
        let mut buf = vec![0; 8192];
        let at = buf.as_ptr().align_offset(4096);
        let length = opened(&self.file, OFlags::DIRECT | flags).read_at(&mut buf[at..at + 4096], 0).unwrap();
        assert_eq!(length, 1);
        let entries = Dir::new(opened(&self.dir, OFlags::DIRECTORY | flags)).unwrap();
        assert_eq!(entries.count(), 2, "`.` and `..`");
        Changed { file: atime(&self.file) != before.0, dir: atime(&self.dir) != before.1 }
    }

    /// A remount is noticed within two seconds.
    fn wait_until_reads_change(&self, expected: &Changed, what: &str) {
        let begun = Instant::now();
        while self.read(OFlags::empty()) != *expected {
            assert!(begun.elapsed() < Duration::from_secs(3), "{what} is not obeyed");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn access_times_follow_the_mount_the_property_and_the_open() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("atime");
    let observed = Observed { file: dir.path("mnt/file"), dir: dir.path("mnt/dir") };
    let changed = || observed.read(OFlags::empty());
    let mount = |words: &str| {
        dir.run("umount mnt", 0);
        dir.run(&format!("mount tank mnt {words}"), 0);
    };
    dir.run("pool create tank tank.img --size 64M -o atime=on", 0);
    dir.run("mount tank mnt", 0);
    fs::write(&observed.file, "x").unwrap();
    fs::create_dir(&observed.dir).unwrap();

    mount("-o noatime");
    assert_eq!(changed(), NONE, "noatime");
    mount("-o nodiratime");
    assert_eq!(changed(), ONLY_FILE, "nodiratime");
    mount("");
    assert_eq!(changed(), BOTH, "the property");
    assert_eq!(observed.read(OFlags::NOATIME), NONE, "O_NOATIME");
    if is_root() {
        dir.run("mount tank mnt -o remount,noatime", 0);
        observed.wait_until_reads_change(&NONE, "remount,noatime");
        dir.run("restart tank", 0);
        assert_eq!(changed(), NONE, "noatime, and another server");
        dir.run("mount tank mnt -o remount,strictatime", 0);
        dir.run("fs set atime=off tank", 0);
        observed.wait_until_reads_change(&BOTH, "remount,strictatime");
    }
    dir.run("fs set atime=off tank", 0);
    mount("-o strictatime");
    assert_eq!(changed(), BOTH, "strictatime");
    mount("");
    assert_eq!(changed(), NONE, "the property");
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}
