//! What names of pools mean, and which sources of names are trusted.

use crate::support::{TestDir, can_mount};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

/// A pool of this name that this registry does not know.
fn foreign_pool(dir: &TestDir, name: &str, image: &str) {
    let words = format!("pool create {name} {image} --size 64M");
    let made = dir.command(&words).env("TERRANE_STATE_DIR", dir.path("elsewhere")).status().unwrap();
    assert!(made.success());
}

#[test]
fn a_mount_by_path_takes_no_name_from_another_pool() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("namesake");
    dir.run("pool create tank tank.img --size 64M", 0);
    foreign_pool(&dir, "tank", "./evil.img");
    foreign_pool(&dir, "other", "./new.img");
    fs::create_dir(dir.path("second")).unwrap();
    let known = || fs::read_to_string(dir.path("state/pools")).unwrap();
    let before = known();

    dir.run("mount ./evil.img mnt", 0);
    fs::write(dir.path("mnt/evil"), "evil").unwrap();
    assert_eq!(known(), before);
    // The name means the pool that is not mounted.
    dir.refused("mount tank second", &["evil.img", "mounted already"]);
    dir.refused("umount tank", &["not mounted"]);
    dir.refused("fs rewrite --compression zstd-9 tank", &["tank"]);
    assert!(dir.json("pool status -j tank")["pools"][0]["mountpoint"].is_null());
    assert!(dir.json("pool status -j ./evil.img")["pools"][0]["mountpoint"].is_string());
    assert!(dir.out("stat mnt/evil").contains("evil"));
    dir.run("restart ./evil.img", 0);
    assert_eq!(known(), before);
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read_dir(dir.path("mnt")).unwrap().count(), 0);
    dir.run("umount tank", 0);

    // An unknown name is recorded, and the name of a pool that has moved is updated.
    dir.run("mount ./new.img mnt", 0);
    dir.run("umount mnt", 0);
    assert!(known().contains("/new.img\n"));
    fs::rename(dir.path("new.img"), dir.path("moved.img")).unwrap();
    dir.run("mount ./moved.img mnt", 0);
    dir.run("umount other", 0);
    assert!(known().contains("/moved.img\n"));
}

/// Supervisors and servers find each other by the name of their pool.
#[test]
fn of_two_pools_of_one_name_that_are_mounted_at_once_one_is() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("both");
    dir.run("pool create tank tank.img --size 64M", 0);
    foreign_pool(&dir, "tank", "./other.img");
    fs::create_dir(dir.path("second")).unwrap();
    for round in 0..6 {
        let mut begin = [("tank", "mnt"), ("./other.img", "second")].map(|(pool, mount_point)| {
            let mut command = dir.command(&format!("mount {pool} {mount_point}"));
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        });
        let ends = begin.each_mut().map(|child| child.wait().unwrap().success());
        assert!(ends[0] != ends[1], "round {round}: {ends:?}");
        let (mount_point, image) = if ends[0] { ("mnt", "./tank.img") } else { ("second", "./other.img") };
        fs::write(dir.path(mount_point).join("file"), "x").unwrap();
        dir.run(&format!("restart {image}"), 0);
        assert_eq!(dir.mounts(), [dir.path(mount_point)]);
        dir.run(&format!("umount {mount_point}"), 0);
    }
}

#[test]
fn the_longest_names_and_state_directories_work() {
    let dir = TestDir::new("long");
    let state: PathBuf = dir.path("state").join("s".repeat(100)).join("t".repeat(100));
    let run = |words: &str| {
        let output = dir.command(words).env("TERRANE_STATE_DIR", &state).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let longest = "n".repeat(200);
    for name in ["tank", &longest] {
        run(&format!("pool create {name} ./{name}.img --size 64M"));
        if can_mount() {
            run(&format!("mount {name} mnt"));
            fs::write(dir.path("mnt/file"), name).unwrap();
            run(&format!("restart {name}"));
            assert_eq!(fs::read_to_string(dir.path("mnt/file")).unwrap(), name);
            run(&format!("umount {name}"));
        }
        run(&format!("check {name}"));
        run(&format!("pool destroy --delete {name}"));
    }
    dir.refused(&format!("pool create {longest}n ./x.img --size 64M"), &["at most 200"]);
}

#[test]
fn a_name_can_be_forgotten_whatever_became_of_its_device() {
    let dir = TestDir::new("forget");
    for name in ["gone", "blank", "other", "here"] {
        dir.run(&format!("pool create {name} {name}.img --size 64M"), 0);
    }
    fs::remove_file(dir.path("gone.img")).unwrap();
    let blank = File::options().write(true).open(dir.path("blank.img")).unwrap();
    blank.set_len(0).unwrap();
    blank.set_len(64 << 20).unwrap();
    let other = File::options().write(true).open(dir.path("other.img")).unwrap();
    other.set_len(0).unwrap();
    other.set_len(64 << 20).unwrap();
    other.write_all_at(b"\x53\xef", 1024 + 56).unwrap();
    for name in ["blank", "other"] {
        for word in ["destroy", "export"] {
            dir.refused(&format!("pool {word} {name}"), &["Terrane pool", &format!("pool forget {name}")]);
        }
    }
    dir.refused("pool forget nobody", &["nobody"]);
    if can_mount() {
        dir.run("mount here mnt", 0);
        dir.refused("pool forget here", &["mounted on"]);
        dir.run("umount here", 0);
    }
    dir.run("pool forget gone blank other here", 0);
    assert_eq!(dir.out("pool list -H"), "");
    dir.run("pool import ./here.img", 0);
    assert!(dir.out("check here").contains("nothing found"));
}

#[test]
fn a_state_directory_of_others_is_not_believed_and_one_that_cannot_be_written_stops_a_pool_from_being_made() {
    let dir = TestDir::new("state");
    dir.run("pool create tank tank.img --size 64M", 0);
    let allow = |mode| fs::set_permissions(dir.path("state"), Permissions::from_mode(mode)).unwrap();
    allow(0o770);
    dir.refused("pool list", &["state", "0770", "chmod"]);
    dir.refused("mount tank mnt", &["0770"]);
    allow(0o700);
    dir.run("pool list", 0);
    let mut create = dir.command("pool create dozer dozer.img --size 64M");
    let refused = create.env("TERRANE_STATE_DIR", dir.path("tank.img/state")).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(!dir.path("dozer.img").exists(), "it would be in the way of the next try");
}
