//! The file system that holds a sparse image fills up. That is `ENOSPC` for writers and no failure of anything
//! else, and it passes.

use crate::support::{TestDir, can_mount, is_root};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const HOST_BYTES: u64 = 200 << 20;
const FILE_BYTES: usize = 4 << 20;

/// A small file system.
struct Host(PathBuf);

impl Host {
    fn new(dir: PathBuf) -> Host {
        fs::create_dir(&dir).unwrap();
        let size = format!("size={HOST_BYTES}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "host"]).arg(&dir).status();
        assert!(mounted.unwrap().success());
        Host(dir)
    }

    /// Another program takes all that is free.
    fn fill(&self) {
        let mut other = File::create(self.0.join("other")).unwrap();
        let zeros = vec![0; 1 << 20];
        let refused = std::iter::repeat_with(|| other.write_all(&zeros)).take(300).find_map(Result::err);
        assert_full(&refused.unwrap());
    }

    fn empty(&self) -> io::Result<()> {
        fs::remove_file(self.0.join("other"))
    }
}

/// After a failed test: a server without space for its last commit would stay.
impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.empty();
    }
}

fn assert_full(error: &io::Error) {
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
}

/// Content that does not compress, and is known by its number.
fn content(number: u64) -> Vec<u8> {
    let mut seed = number + 1;
    let mut words = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed ^ seed >> 29
    });
    words.by_ref().take(FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect()
}

/// Files on the pool, each with the content of its number.
struct Files {
    dir: PathBuf,
    numbers: BTreeSet<u64>,
}

impl Files {
    fn add(&mut self, number: u64) -> io::Result<()> {
        let path = self.dir.join(number.to_string());
        let mut file = File::create(&path)?;
        let written = file.write_all(&content(number)).and_then(|()| file.sync_all());
        match written {
            Ok(()) => drop(self.numbers.insert(number)),
            Err(_) => fs::remove_file(&path).unwrap(),
        }
        written
    }

    /// Until one is refused. Returns how many were written.
    fn fill(&mut self, first: u64) -> u64 {
        for number in first..first + 100 {
            if let Err(error) = self.add(number) {
                assert_full(&error);
                return number - first;
            }
        }
        panic!("more than the host holds was written");
    }

    fn remove_from(&mut self, first: u64) {
        for number in self.numbers.split_off(&first) {
            fs::remove_file(self.dir.join(number.to_string())).unwrap();
        }
    }

    fn assert_whole(&self) {
        for number in &self.numbers {
            let found = fs::read(self.dir.join(number.to_string())).unwrap();
            assert!(found == content(*number), "file {number} has another content");
        }
    }
}

fn available(dir: &Path) -> u64 {
    let found = rustix::fs::statvfs(dir).unwrap();
    found.f_bavail * found.f_frsize
}

#[test]
fn a_full_host_refuses_writers_until_it_has_space_again() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("full-host");
    let host = Host::new(dir.path("host"));
    dir.run("pool create tank host/pool.img --size 2G", 0);
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    assert!(available(&mnt) < HOST_BYTES, "df offers more than the host has");
    let mut files = Files { dir: mnt.clone(), numbers: BTreeSet::new() };
    let written = files.fill(0);
    assert!(written > 20, "only {written} files of 4 MiB in 200 MiB");
    // What is removed comes back, again and again: to the pool, and to the host.
    for _ in 0..3 {
        files.remove_from(10);
        dir.run("sync tank", 0);
        let written = files.fill(1000);
        assert!(written > 6, "only {written} files of 4 MiB after the removal of ten");
        files.remove_from(1000);
        for number in 10..30 {
            if files.add(number).is_err() {
                break;
            }
        }
    }
    files.remove_from(10);
    dir.run("sync tank", 0);

    // Another program takes all of it: commits wait, and nothing fails.
    host.fill();
    let promised = mnt.join("promised");
    fs::write(&promised, "promised\n").unwrap();
    let file = File::open(&promised).unwrap();
    let syncing = std::thread::spawn(move || file.sync_all());
    let state = || dir.out("pool list -H -o state tank");
    let begun = Instant::now();
    while state() != "suspended\n" {
        assert!(begun.elapsed() < Duration::from_secs(20), "the commit found room on a full host");
        assert!(!syncing.is_finished(), "fsync did not wait for its commit");
        // Metadata may still find a place in what the open zones hold already.
        let _ = File::options().append(true).open(&promised).and_then(|mut file| file.write_all(b"more\n"));
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = dir.out("pool status tank");
    assert!(status.contains(&format!("{} is full", host.0.join("pool.img").display())), "{status}");
    assert_full(&fs::write(mnt.join("no"), &content(0)[..1 << 20]).unwrap_err());
    // Removing works: the file itself may have been refused, so an older one goes.
    files.remove_from(9);
    assert!(!syncing.is_finished(), "fsync did not wait for its commit");
    host.empty().unwrap();
    syncing.join().unwrap().unwrap();
    assert_eq!(state(), "healthy\n");

    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    dir.run("mount tank mnt", 0);
    files.assert_whole();
    assert!(fs::read_to_string(&promised).unwrap().starts_with("promised\n"));
    dir.run("umount mnt", 0);
}
