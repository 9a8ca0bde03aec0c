//! Another mount namespace (a container, a service with mounts of its own) has a copy of a mount.
//!
//! One test, since such a namespace copies the mounts of all tests that run meanwhile.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

#[allow(dead_code, reason = "a program of its own, that does not need all of it")]
mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::{Running, TestDir, can_mount, is_root};

/// A process in a mount namespace of its own, which has copies of all mounts.
struct Holder(Running);

impl Holder {
    fn new() -> Option<Holder> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sleep", "60"]);
        let mut running = Running(command.spawn().ok()?);
        let begun = Instant::now();
        while fs::read_to_string(format!("/proc/{}/comm", running.0.id())).ok()? != "sleep\n" {
            if running.0.try_wait().unwrap().is_some() || begun.elapsed() > Duration::from_secs(20) {
                eprintln!("SKIPPED: no mount namespaces can be made");
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Holder(running))
    }

    fn name(&self) -> String {
        format!("process {} (sleep)", self.0.0.id())
    }

    /// Runs a command with this path in the namespace.
    fn enter(&self, words: &[&str], path: &Path) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.0.id().to_string(), "-m"]).args(words).arg(path);
        command.output().unwrap()
    }
}

#[test]
fn a_mount_that_another_namespace_has_stays_until_that_ends_or_by_force() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("namespaces");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let (mnt, file) = (dir.path("mnt"), dir.path("mnt/file"));
    let Some(holder) = Holder::new() else { return };
    fs::write(&file, "kept").unwrap();
    dir.refused("umount --timeout 0 mnt", &[&format!("{} at {}", holder.name(), mnt.display())]);
    assert!(dir.mounts().is_empty());
    assert_eq!(holder.enter(&["cat"], &file).stdout, b"kept");
    // It can be unmounted once more by name. The command waits until the namespace has ended.
    let begun = Instant::now();
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(holder);
    });
    dir.run("umount tank", 0);
    assert!(begun.elapsed() >= Duration::from_millis(500), "it did not wait for the other namespace");
    ending.join().unwrap();
    assert!(dir.out("check tank").contains("nothing found"));

    dir.run("mount tank mnt", 0);
    let holder = Holder::new().unwrap();
    let said = dir.run("umount --lazy mnt", 0);
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains(&format!("stays open for {}", holder.name())), "{said}");
    assert!(holder.enter(&["touch"], &mnt.join("late")).status.success());
    dir.run("umount --force tank", 0);
    assert!(!holder.enter(&["cat"], &file).status.success());
    assert!(dir.out("check tank").contains("nothing found"));
    drop(holder);
    dir.run("mount tank mnt", 0);
    assert!(mnt.join("late").exists(), "what was made in the other namespace was not committed");

    // A mount in use ends not without force, and by force at once.
    let busy = File::open(&file).unwrap();
    dir.refused("umount mnt", &["--force"]);
    dir.run("umount --force mnt", 0);
    drop(busy);
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}
