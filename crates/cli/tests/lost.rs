//! A server is killed, and with it the changes that no commit has. Programs that rely on those are told, and the
//! files are listed. Stores through mappings are in `check_lost` of scripts/life.sh: they take `unsafe` code.

use crate::support::{TestDir, can_mount, kill};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A mounted pool with these files, all committed.
fn new_pool(name: &str, files: &[&str]) -> Option<TestDir> {
    if !can_mount() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt -o crashproof=off", 0);
    for file in files {
        fs::write(dir.path("mnt").join(file), "old").unwrap();
    }
    dir.run("sync tank", 0);
    Some(dir)
}

fn assert_refused(what: &str, outcome: io::Result<()>, expected: Errno) {
    let error = outcome.expect_err(what);
    assert_eq!(error.raw_os_error(), Some(expected.raw_os_error()), "{what}: {error}");
}

fn lost_files(dir: &TestDir) -> Vec<String> {
    let status = dir.json("pool status -j tank");
    let rows = status["pools"][0]["lost_files"].as_array().unwrap();
    let mut paths: Vec<_> = rows.iter().map(|row| row["path"].as_str().unwrap().to_string()).collect();
    paths.sort_unstable();
    paths
}

fn end(dir: &TestDir) {
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_program_that_never_syncs_does_not_leave_a_hole_unknowingly() {
    let Some(dir) = new_pool("lost-hole", &["pipe"]) else { return };
    let path = dir.path("mnt/pipe");
    let mut file = File::create(&path).unwrap();
    let content: Vec<u8> = (0..3u32 << 18).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    file.write_all(&content).unwrap();
    dir.kill_server();
    assert_refused("write", file.write_all(&content), Errno::IO);
    drop(file);
    let status = dir.out("pool status -v tank");
    assert!(status.contains("/pipe: changes lost"), "{status}");
    assert_eq!(lost_files(&dir), ["/pipe"]);
    fs::remove_file(&path).unwrap();
    assert!(!dir.out("pool status -v tank").contains("/pipe"));
    end(&dir);
}

#[test]
fn each_program_that_relies_on_lost_changes_is_told() {
    let names = ["written", "renamed", "cut", "gone"];
    let Some(dir) = new_pool("lost-told", &names) else { return };
    let path = |name: &str| dir.path("mnt").join(name);
    let opened = |name: &str| File::options().read(true).write(true).open(path(name)).unwrap();
    let [written, renamed, cut, gone] = names.map(opened);
    for file in [&written, &renamed, &cut, &gone] {
        file.write_all_at(&[b'l'; 8000], 0).unwrap();
    }
    dir.kill_server();
    assert_refused("fsync", written.sync_all(), Errno::IO);
    assert_refused("fsync again", written.sync_all(), Errno::IO);
    assert_refused("write", written.write_all_at(b"new", 0), Errno::IO);
    written.write_all_at(b"new", 0).unwrap();
    written.sync_all().unwrap();
    assert_refused("rename", fs::rename(path("renamed"), path("written")), Errno::IO);
    // What replaces all of the content relies on none of it.
    cut.set_len(0).unwrap();
    cut.write_all_at(b"whole", 0).unwrap();
    cut.sync_all().unwrap();
    fs::remove_file(path("gone")).unwrap();
    for (name, content) in [("written", "new"), ("renamed", "old"), ("cut", "whole")] {
        assert_eq!(fs::read_to_string(path(name)).unwrap(), content, "{name}");
    }
    drop((written, renamed, cut, gone));

    // They are listed until `pool clear`, whatever servers come and go.
    dir.run("sync tank", 0);
    dir.kill_server();
    dir.run("restart tank", 0);
    assert_eq!(lost_files(&dir), ["/renamed", "/written"]);
    let said = dir.out("pool clear tank");
    assert!(said.contains("2 files"), "{said}");
    let status = dir.out("pool status tank");
    assert!(status.contains("errors: none"), "{status}");
    fs::write(path("renamed"), "new").unwrap();
    end(&dir);
}

#[test]
fn where_a_crash_ends_the_mount_no_program_writes_on_or_below() {
    let Some(dir) = new_pool("lost-end", &[]) else { return };
    let (mnt, kept) = (dir.path("mnt"), dir.path("mnt/kept"));
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt -o on_crash=end", 0);
    fs::write(&kept, "kept").unwrap();
    // A server that is replaced has not crashed.
    dir.run("restart tank", 0);
    dir.run("sync tank", 0);
    let mut file = File::options().append(true).open(&kept).unwrap();
    kill("-KILL", dir.daemon_pid());
    let begun = Instant::now();
    while rustix::fs::statfs(&mnt).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20), "a server follows");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_refused("write", file.write_all(b"more"), Errno::NOTCONN);
    assert_refused("create", File::create(mnt.join("below")).map(|_| ()), Errno::NOTCONN);
    drop(file);
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
    end(&dir);
}
