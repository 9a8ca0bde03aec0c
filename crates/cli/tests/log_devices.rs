//! Log devices, as users run them.

use crate::support::{TestDir, can_mount, is_root, noise};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

fn log_devices(dir: &TestDir) -> Vec<Value> {
    dir.json("pool status -j tank")["pools"][0]["log_devices"].as_array().unwrap().clone()
}

fn states(dir: &TestDir) -> Vec<String> {
    log_devices(dir).iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
}

/// Bytes that the first log device took since the pool was opened.
fn written(dir: &TestDir) -> u64 {
    log_devices(dir)[0]["written"].as_u64().unwrap()
}

/// Writes files and syncs each.
fn sync_files(dir: &TestDir, name: &str) {
    for nth in 0..12 {
        let mut file = File::create(dir.path("mnt").join(format!("{name}-{nth}"))).unwrap();
        file.write_all(&[nth; 3000]).unwrap();
        file.sync_all().unwrap();
    }
}

fn are_there(dir: &TestDir, name: &str) -> bool {
    let path = |nth: u8| dir.path("mnt").join(format!("{name}-{nth}"));
    (0..12).all(|nth| fs::read(path(nth)).is_ok_and(|content| content == [nth; 3000]))
}

/// The bytes of devices as they are now.
struct Images(Vec<(String, Vec<u8>)>);

impl Images {
    fn of(dir: &TestDir, names: &[&str]) -> Images {
        Images(names.iter().map(|name| ((*name).to_owned(), fs::read(dir.path(name)).unwrap())).collect())
    }

    fn bring_back(&self, dir: &TestDir) {
        for (name, bytes) in &self.0 {
            let file = File::options().write(true).open(dir.path(name)).unwrap();
            file.write_all_at(bytes, 0).unwrap();
        }
    }
}

#[test]
fn a_log_device_is_known_and_goes_with_its_pool() {
    let dir = TestDir::new("log-known");
    dir.run("pool create tank tank.img --log fast.img --size 64M", 0);
    assert_eq!(states(&dir), ["normal"]);
    let status = dir.out("pool status tank");
    assert!(status.contains("log: ") && status.contains("fast.img, 63M"), "{status}");
    assert!(dir.out("check tank").contains("nothing found"));
    // It cannot be taken by mistake.
    dir.refused("pool create other fast.img", &["log device of a Terrane pool", "--force"]);
    dir.refused("pool add tank data fast.img --force", &["fast.img"]);
    dir.refused("pool add tank log tiny.img --size 2M", &["tiny.img"]);
    assert!(!dir.path("tiny.img").exists() && dir.path("fast.img").exists());
    dir.run("pool add tank log second.img --size 64M", 0);
    assert_eq!(states(&dir), ["normal", "normal"]);
    dir.run("pool remove tank fast.img", 0);
    assert_eq!(log_devices(&dir).len(), 1);
    dir.run("pool create other fast.img", 0);
    // Nothing is in the log, so the pool is there without it.
    dir.run("pool export tank", 0);
    fs::create_dir(dir.path("away")).unwrap();
    fs::rename(dir.path("second.img"), dir.path("away/second.img")).unwrap();
    dir.run("pool import -d tank.img tank", 0);
    assert_eq!(states(&dir), ["missing"]);
    assert!(dir.run("pool status -x tank", 1).status.code() == Some(1));
    fs::rename(dir.path("away/second.img"), dir.path("second.img")).unwrap();
    assert_eq!(states(&dir), ["normal"]);
    dir.run("pool destroy --delete tank", 0);
    assert!(!dir.path("second.img").exists() && !dir.path("tank.img").exists());
}

#[test]
fn what_was_synced_to_a_log_device_comes_back() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("log-replay");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("mount tank mnt -o commit=3600", 0);
    sync_files(&dir, "before");
    dir.run("pool add tank log fast.img --size 64M", 0);
    sync_files(&dir, "after");
    assert!(written(&dir) > 9 * 4096);
    let metrics = dir.out("metrics tank");
    assert!(metrics.contains("terrane_log_device_written_bytes_total{"), "{metrics}");
    let images = Images::of(&dir, &["tank.img", "fast.img"]);
    let replayed = || {
        let log = fs::read_to_string(dir.path("state/tank.log")).unwrap();
        log.matches("changes replayed that no commit contained").count()
    };
    dir.kill_all();
    images.bring_back(&dir);
    // Without the device the pool is refused, and the device named.
    fs::create_dir(dir.path("away")).unwrap();
    fs::rename(dir.path("fast.img"), dir.path("away/fast.img")).unwrap();
    dir.refused("mount tank mnt", &["fast.img", "--discard-log", "log device"]);
    dir.refused("pool import -d tank.img tank", &["fast.img", "--discard-log"]);
    dir.run("mount tank mnt -o ro", 0);
    assert!(!are_there(&dir, "after"));
    dir.run("umount mnt", 0);
    // It is found under another name beside the pool.
    let before = replayed();
    fs::rename(dir.path("away/fast.img"), dir.path("moved.img")).unwrap();
    dir.run("mount tank mnt -o commit=3600", 0);
    assert!(are_there(&dir, "before") && are_there(&dir, "after"));
    assert_eq!(replayed(), before + 1);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    // The same crash again, and the log is given up.
    fs::rename(dir.path("moved.img"), dir.path("fast.img")).unwrap();
    images.bring_back(&dir);
    fs::remove_file(dir.path("fast.img")).unwrap();
    dir.run("pool import -d tank.img --discard-log tank", 0);
    dir.run("mount tank mnt", 0);
    assert!(are_there(&dir, "before") && !are_there(&dir, "after"));
    assert_eq!(states(&dir), ["missing"]);
    dir.run("pool remove tank ./fast.img", 0);
    assert!(log_devices(&dir).is_empty());
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_log_device_leaves_a_mounted_pool() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("log-leaves");
    dir.run("pool create tank tank.img --log fast.img --size 256M", 0);
    dir.run("mount tank mnt -o commit=3600", 0);
    sync_files(&dir, "first");
    dir.run("pool remove tank fast.img", 0);
    sync_files(&dir, "second");
    let images = Images::of(&dir, &["tank.img"]);
    // It is free at once.
    dir.run("pool create other fast.img", 0);
    dir.kill_all();
    images.bring_back(&dir);
    dir.run("mount tank mnt", 0);
    assert!(are_there(&dir, "first") && are_there(&dir, "second"));
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// A server that is killed has a successor, which opens the log device too.
#[test]
fn a_killed_server_goes_on_with_its_log_device() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("log-killed");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("mount tank mnt -o commit=3600", 0);
    dir.run("pool add tank log fast.img --size 64M", 0);
    sync_files(&dir, "first");
    dir.kill_server();
    sync_files(&dir, "second");
    assert!(are_there(&dir, "first") && are_there(&dir, "second"));
    assert!(written(&dir) > 9 * 4096);
    dir.run("umount mnt", 0);
}

/// The server knows its device, so a copy in its place ends neither the mount nor the log.
#[test]
fn a_killed_server_goes_on_beside_a_copy_in_the_place_of_its_device() {
    if !can_mount() {
        return;
    }
    for (name, devices) in [("one", "tank.img"), ("two", "tank.img other.img")] {
        go_on_beside_a_copy(&TestDir::new(&format!("log-replaced-{name}")), devices);
    }
}

fn go_on_beside_a_copy(dir: &TestDir, devices: &str) {
    dir.run(&format!("pool create tank {devices} --log fast.img --size 256M"), 0);
    dir.run("mount tank mnt -o commit=3600", 0);
    sync_files(dir, "first");
    let server = dir.daemon_pid();
    fs::copy(dir.path("tank.img"), dir.path("copy.img")).unwrap();
    fs::rename(dir.path("tank.img"), dir.path("moved.img")).unwrap();
    fs::rename(dir.path("copy.img"), dir.path("tank.img")).unwrap();
    assert!(Command::new("kill").args(["-KILL", &server.to_string()]).status().unwrap().success());
    fs::metadata(dir.path("mnt")).unwrap();
    assert_ne!(dir.successor_of(server), server);
    sync_files(dir, "second");
    assert!(are_there(dir, "first") && are_there(dir, "second"));
    dir.run("umount mnt", 0);
    fs::rename(dir.path("moved.img"), dir.path("tank.img")).unwrap();
    dir.run("mount tank mnt", 0);
    assert!(are_there(dir, "first") && are_there(dir, "second"));
    dir.run("umount mnt", 0);
}

/// A copy of a pool would write into the log of its original.
#[test]
fn a_copy_of_a_pool_does_not_touch_the_log_of_its_original() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("log-copy");
    dir.run("pool create tank tank.img --log fast.img --size 256M", 0);
    dir.run("mount tank mnt -o commit=3600", 0);
    sync_files(&dir, "first");
    let images = Images::of(&dir, &["tank.img", "fast.img"]);
    dir.kill_all();
    images.bring_back(&dir);
    fs::copy(dir.path("tank.img"), dir.path("copy.img")).unwrap();
    dir.refused("mount copy.img mnt", &["tank.img", "copy"]);
    dir.refused("pool import --new-id --name twin copy.img", &["fast.img", "--discard-log"]);
    dir.run("pool import --new-id --name twin --discard-log copy.img", 0);
    dir.run("mount twin mnt", 0);
    assert!(!are_there(&dir, "first"));
    sync_files(&dir, "twin");
    dir.run("umount mnt", 0);
    assert!(dir.json("pool status -j twin")["pools"][0]["log_devices"].as_array().unwrap().is_empty());
    assert_eq!(fs::read(dir.path("fast.img")).unwrap(), images.0[1].1);
    dir.run("mount tank mnt", 0);
    assert!(are_there(&dir, "first"));
    dir.run("umount mnt", 0);
}

/// Where the original is, is what the label says last.
#[test]
fn a_copy_where_a_pool_was_before_it_moved_does_not_touch_its_log() {
    let dir = TestDir::new("log-moved");
    dir.run("pool create tank tank.img --log fast.img --size 64M", 0);
    dir.run("pool export tank", 0);
    fs::create_dir(dir.path("new")).unwrap();
    fs::rename(dir.path("tank.img"), dir.path("new/tank.img")).unwrap();
    fs::copy(dir.path("new/tank.img"), dir.path("new/copy.img")).unwrap();
    // The log device is where it was, not where the pool is searched for.
    dir.run("pool import -d new/tank.img tank", 0);
    assert_eq!(states(&dir), ["normal"]);
    dir.run("pool export tank", 0);
    fs::copy(dir.path("new/tank.img"), dir.path("tank.img")).unwrap();
    dir.refused("pool import -d tank.img tank", &["new/tank.img", "copy"]);
    dir.refused("pool import ./tank.img", &["new/tank.img", "copy"]);
    dir.run("pool import -d new/tank.img tank", 0);
    assert_eq!(states(&dir), ["normal"]);
    // A copy that is given the log device leaves it as it is.
    let before = fs::read(dir.path("fast.img")).unwrap();
    dir.run("pool import --new-id --name twin -d tank.img -d fast.img", 0);
    assert!(dir.json("pool status -j twin")["pools"][0]["log_devices"].as_array().unwrap().is_empty());
    assert!(fs::read(dir.path("fast.img")).unwrap() == before);
    assert_eq!(states(&dir), ["normal"]);
}

/// A small file system in memory.
struct SmallFs(PathBuf);

impl SmallFs {
    fn new(dir: &TestDir, name: &str) -> SmallFs {
        let path = dir.path(name);
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(&path).status();
        assert!(mount.unwrap().success());
        SmallFs(path)
    }

    /// Takes all space that is left.
    fn fill(&self) {
        let mut file = File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_log_device_that_fails_costs_only_speed() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("log-fails");
    let small = SmallFs::new(&dir, "small");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("mount tank mnt -o commit=3600", 0);
    dir.run("pool add tank log small/fast.img --size 64M", 0);
    sync_files(&dir, "before");
    assert_eq!(states(&dir), ["normal"]);
    small.fill();
    // Zones are allocated as a whole, so it fails when the log needs the next one.
    for nth in 0..14 {
        let mut file = File::create(dir.path("mnt").join(format!("large-{nth}"))).unwrap();
        file.write_all(&noise(100_000)).unwrap();
        file.sync_all().unwrap();
    }
    sync_files(&dir, "after");
    assert_eq!(states(&dir), ["failed"]);
    let status = dir.out("pool status tank");
    assert!(status.contains("fast.img, failed") && status.contains("full"), "{status}");
    dir.run("pool status -x tank", 1);
    let txg = || dir.json("pool status -j tank")["pools"][0]["txg"].as_u64();
    let before = txg();
    sync_files(&dir, "lent");
    assert_eq!(txg(), before, "the log goes on in the pool");
    let images = Images::of(&dir, &["tank.img"]);
    fs::remove_file(small.0.join("filler")).unwrap();
    assert!(dir.out("pool clear tank").contains("failure of a log device"));
    sync_files(&dir, "again");
    assert_eq!(states(&dir), ["normal"]);
    // The crash was before the device was tried again.
    dir.kill_all();
    images.bring_back(&dir);
    dir.run("mount tank mnt", 0);
    assert!(["before", "after", "lent"].iter().all(|name| are_there(&dir, name)));
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// What is on the other devices stays if a log device cannot be one.
#[test]
fn a_log_device_is_refused_before_anything_is_written() {
    let dir = TestDir::new("log-refused");
    let before = noise(64 << 20);
    fs::write(dir.path("data.img"), &before).unwrap();
    let create = format!("pool create tank {} --force --log", dir.path("data.img").display());
    let long = dir.path(&"x".repeat(140));
    File::create(&long).unwrap().set_len(64 << 20).unwrap();
    dir.refused(&format!("{create} {}", long.display()), &["a path of at most 128 bytes"]);
    let many: Vec<String> = (0..9)
        .map(|nth| {
            let path = dir.path(&format!("log-{nth}"));
            File::create(&path).unwrap().set_len(64 << 20).unwrap();
            path.display().to_string()
        })
        .collect();
    dir.refused(&format!("{create} {}", many.join(" --log ")), &["at most 4 log devices"]);
    let new = format!("{create} {} --no-features", dir.path("new.img").display());
    dir.refused(&new, &["has no intent log"]);
    let found = fs::read(dir.path("data.img")).unwrap();
    assert!(found == before, "the device was written");
}
