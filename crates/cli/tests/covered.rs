//! Another file system is mounted over a place of a pool.

use crate::support::{TestDir, can_mount, is_root};
use std::fs;
use std::path::Path;
use std::process::Command;

fn new_pool(name: &str) -> Option<TestDir> {
    if !can_mount() || !is_root() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    fs::write(dir.path("mnt/file"), "ours").unwrap();
    Some(dir)
}

fn cover(place: &Path) {
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place).status().unwrap().success());
}

fn uncover(place: &Path) {
    assert!(Command::new("umount").arg(place).status().unwrap().success());
}

fn assert_holds(dir: &TestDir, path: &str, content: &str) {
    assert_eq!(fs::read_to_string(dir.path(path)).unwrap(), content, "{path}");
}

fn end(dir: &TestDir) {
    dir.run("umount tank", 0);
    assert!(dir.mounts().is_empty());
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn what_covers_a_place_is_named_and_stays() {
    let Some(dir) = new_pool("covered") else { return };
    for place in ["second", "third"] {
        fs::create_dir(dir.path(place)).unwrap();
    }
    cover(&dir.path("mnt"));
    fs::write(dir.path("mnt/foreign"), "foreign").unwrap();
    for words in ["mnt", "tank", "--lazy mnt", "--lazy tank"] {
        dir.refused(&format!("umount {words}"), &["tmpfs (none) mounted over it"]);
    }
    dir.refused("mount tank second", &["each is covered"]);
    assert_holds(&dir, "mnt/foreign", "foreign");
    uncover(&dir.path("mnt"));
    // A place that can be reached is enough for a third one.
    dir.run("mount tank second", 0);
    cover(&dir.path("second"));
    dir.run("mount tank third", 0);
    assert_holds(&dir, "third/file", "ours");
    uncover(&dir.path("second"));
    dir.run("umount second", 0);
    dir.run("umount third", 0);
    assert_holds(&dir, "mnt/file", "ours");
    end(&dir);
}

#[test]
fn of_two_pools_at_one_place_the_upper_one_goes_first() {
    let Some(dir) = new_pool("two-at-one") else { return };
    dir.run("pool create west west.img --size 64M", 0);
    dir.run("mount west mnt", 0);
    fs::write(dir.path("mnt/file"), "theirs").unwrap();
    dir.refused("umount tank", &["the pool of west mounted over it"]);
    assert_holds(&dir, "mnt/file", "theirs");
    dir.run("umount mnt", 0);
    assert_holds(&dir, "mnt/file", "ours");
    assert!(dir.out("check west").contains("nothing found"));
    end(&dir);
}

#[test]
fn a_covered_mount_ends_by_force() {
    let Some(dir) = new_pool("covered-force") else { return };
    cover(&dir.path("mnt"));
    dir.run("umount --force tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    uncover(&dir.path("mnt"));
    dir.run("mount tank mnt", 0);
    assert_holds(&dir, "mnt/file", "ours");
    end(&dir);
}
