//! Snapshots and clones of mounted data sets, on the command line.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};
use support::{TestDir, can_mount, is_root, kill};

/// A pool whose data set `home` is mounted beside the root.
fn mounted(name: &str) -> Option<TestDir> {
    if !can_mount() || !is_root() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 256M", 0);
    for name in ["mnt", "home", "other"] {
        fs::create_dir_all(dir.path(name)).unwrap();
    }
    dir.run("mount tank mnt", 0);
    dir.run("fs create tank/home", 0);
    dir.run("mount tank/home home", 0);
    Some(dir)
}

fn read(dir: &TestDir, path: &str) -> String {
    fs::read_to_string(dir.path(path)).unwrap()
}

fn server(dir: &TestDir) -> u32 {
    u32::try_from(dir.json_rows("mounts --json")[0]["pid"].as_u64().unwrap()).unwrap()
}

#[test]
fn a_day_with_snapshots() {
    let Some(dir) = mounted("day") else { return };
    fs::write(dir.path("home/file"), "monday").unwrap();
    dir.run("snapshot tank/home@monday", 0);
    fs::write(dir.path("home/file"), "tuesday").unwrap();
    assert_eq!(read(&dir, "home/.terrane/snapshot/monday/file"), "monday");
    assert_eq!(read(&dir, "home/file"), "tuesday");
    assert!(fs::read_dir(dir.path("home")).unwrap().all(|entry| entry.unwrap().file_name() != ".terrane"));
    fs::write(dir.path("home/new"), "x").unwrap();
    let changes = dir.json("fs diff -j tank/home@monday");
    let page =
        fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md"))
            .unwrap();
    let section = page.split("\n## fs diff: changes\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut found = Vec::new();
    for row in changes["changes"].as_array().unwrap() {
        assert!(
            row.as_object().unwrap().keys().all(|key| section.contains(&format!("| `{key}` |"))),
            "{row}"
        );
        found.push(format!("{} {}", row["change"].as_str().unwrap(), row["path"].as_str().unwrap()));
    }
    assert_eq!(found, ["modified /", "modified /file", "created /new"]);
    fs::remove_file(dir.path("home/new")).unwrap();
    // Taken names, unknown names.
    dir.refused("snapshot tank/home@monday", &["exists already"]);
    dir.refused("snapshot tank/hme@monday", &["did you mean 'tank/home'?"]);
    dir.refused("fs destroy tank/home@mondy", &["did you mean 'tank/home@monday'?"]);
    // A clone costs what it changes.
    dir.run("fs clone tank/home@monday tank/trial", 0);
    dir.run("mount tank/trial other", 0);
    fs::write(dir.path("other/file"), "trial").unwrap();
    assert_eq!((read(&dir, "home/file"), read(&dir, "other/file")), ("tuesday".into(), "trial".into()));
    dir.refused("fs destroy tank/home@monday", &["cloned as"]);
    dir.run("umount other", 0);
    dir.run("fs destroy tank/trial", 0);
    // A hold.
    dir.run("fs hold keep tank/home@monday", 0);
    assert!(dir.out("fs holds tank/home").contains("keep"));
    dir.refused("fs destroy tank/home@monday", &["held by keep"]);
    dir.run("fs release keep tank/home@monday", 0);
    // Back to monday, but not while it is mounted.
    dir.refused("fs rollback tank/home@monday", &["unmount it first"]);
    dir.run("umount home", 0);
    dir.run("snapshot tank/home@tuesday", 0);
    dir.refused("fs rollback tank/home@monday", &["@tuesday"]);
    dir.run("fs rollback -r tank/home@monday", 0);
    dir.run("mount tank/home home", 0);
    assert_eq!(read(&dir, "home/file"), "monday");
    // What is mounted is neither renamed nor destroyed with its snapshots.
    dir.refused("fs rename tank/home tank/people", &["unmount it first"]);
    dir.refused("fs destroy -r tank/home", &["unmount it first"]);
    dir.refused("fs rollback -r tank/home@monday", &["unmount it first"]);
    assert!(dir.out("fs list -t snapshot tank/home").contains("@monday"));
    // A snapshot alone takes no changes, and cannot be destroyed meanwhile.
    dir.run("mount tank/home@monday other", 0);
    assert_eq!(read(&dir, "other/file"), "monday");
    assert!(fs::write(dir.path("other/new"), "x").is_err());
    dir.refused("fs destroy tank/home@monday", &["mounted on"]);
    dir.run("umount other", 0);
    // What the kernel has cached of a destroyed snapshot is gone soon, also for files that are open.
    let open = File::open(dir.path("home/.terrane/snapshot/monday/file")).unwrap();
    let mut content = [0; 6];
    open.read_exact_at(&mut content, 0).unwrap();
    assert!(dir.out("fs destroy -v tank/home@monday").contains("destroy tank/home@monday"));
    let begun = Instant::now();
    while open.read_at(&mut content, 0).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the kernel still shows a destroyed snapshot");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(open);
    assert!(fs::read(dir.path("home/.terrane/snapshot/monday/file")).is_err());
    dir.run("umount home", 0);
    dir.run("fs create tank/home/ann", 0);
    dir.run("snapshot -r tank/home@last", 0);
    dir.run("fs hold keep tank/home/ann@last", 0);
    dir.refused("fs destroy -r tank/home", &["held by keep"]);
    assert!(dir.out("fs list -r -t snapshot tank/home").contains("tank/home@last"));
    dir.run("fs release keep tank/home/ann@last", 0);
    dir.run("fs destroy -r tank/home", 0);
    assert_eq!(dir.out("fs list -H -o name"), "tank\n");
    dir.run("umount -a tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn snapshots_outlive_their_server() {
    let Some(dir) = mounted("outlive") else { return };
    fs::write(dir.path("home/file"), "kept").unwrap();
    dir.run("snapshot -r tank@both", 0);
    fs::write(dir.path("home/file"), "changed").unwrap();
    let mut open = File::open(dir.path("home/.terrane/snapshot/both/file")).unwrap();
    dir.run("restart tank", 0);
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "kept");
    kill("-KILL", server(&dir));
    assert_eq!(read(&dir, "home/.terrane/snapshot/both/file"), "kept");
    assert_eq!(dir.out("fs list -H -r -t snapshot -o name"), "tank@both\ntank/home@both\n");
    drop(open);
    // Another pool of the same server is not needed to list.
    assert_eq!(dir.json("fs list -t snapshot --json tank/home")["datasets"][0]["name"], "tank/home@both");
    dir.run("umount -a tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// The forms of sanoid.
#[test]
fn scripts_for_zfs_find_what_they_ask_for() {
    let dir = TestDir::new("zfs");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("fs create tank/home", 0);
    symlink(env!("CARGO_BIN_EXE_terrane"), dir.path("zfs")).unwrap();
    symlink(env!("CARGO_BIN_EXE_terrane"), dir.path("zpool")).unwrap();
    let run = |program: &str, words: &str| {
        let mut command = Command::new(dir.path(program));
        command.args(words.split(' ')).env("TERRANE_STATE_DIR", dir.path("state"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{program} {words}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run("zfs", "snapshot tank/home@autosnap_2026-01-01_00:00:00_daily");
    run("zfs", "snapshot tank/home@autosnap_2026-01-02_00:00:00_daily");
    assert_eq!(run("zfs", "list -o name -t filesystem,volume -Hr tank"), "tank\ntank/home\n");
    let creation = run("zfs", "get -Hrpt snapshot creation tank");
    let rows: Vec<Vec<&str>> = creation.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row[1] == "creation" && row[2].parse::<u64>().unwrap() > 1_700_000_000));
    let guids = run("zfs", "get -Hpd 1 -t snapshot guid,creation tank/home");
    assert_eq!(guids.lines().filter(|line| line.contains("\tguid\t")).count(), 2);
    assert_eq!(run("zfs", "list -d0 -H -oname tank"), "tank\n");
    assert_eq!(run("zpool", "list -H -o cap tank"), "0%\n");
    assert!(run("zpool", "list -o name,size,cap,health,free").contains("ONLINE"));
    run("zfs", "destroy tank/home@autosnap_2026-01-01_00:00:00_daily");
    assert_eq!(run("zfs", "list -H -t snapshot -o name"), "tank/home@autosnap_2026-01-02_00:00:00_daily\n");
}
