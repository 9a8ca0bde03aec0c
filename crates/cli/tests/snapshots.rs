//! Snapshots and clones of mounted data sets, on the command line.

use crate::support::{TestDir, can_mount, is_root, kill, noise};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

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
    // Back to monday.
    dir.run("umount home", 0);
    dir.run("snapshot tank/home@tuesday", 0);
    dir.refused("fs rollback tank/home@monday", &["@tuesday"]);
    dir.run("fs rollback -r tank/home@monday", 0);
    dir.run("mount tank/home home", 0);
    assert_eq!(read(&dir, "home/file"), "monday");
    // What is mounted is not destroyed with its snapshots.
    dir.refused("fs destroy -r tank/home", &["unmount it first"]);
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

/// A snapshot shows what the kernel had not written back, and all of that is committed once.
#[test]
fn a_snapshot_takes_one_commit() {
    let Some(dir) = mounted("one_commit") else { return };
    let txg = || dir.json("pool status -j tank")["pools"][0]["txg"].as_u64().unwrap();
    fs::write(dir.path("home/file"), "before").unwrap();
    dir.run("sync tank", 0);
    // The kernel commits by itself every few seconds. So the fewest of some attempts count.
    let mut fewest = u64::MAX;
    for turn in 0..5 {
        let before = txg();
        fs::write(dir.path("home/file"), format!("turn {turn}")).unwrap();
        dir.run(&format!("snapshot tank/home@turn{turn}"), 0);
        fewest = fewest.min(txg() - before);
        assert_eq!(read(&dir, &format!("home/.terrane/snapshot/turn{turn}/file")), format!("turn {turn}"));
    }
    // Without the kernel's count of unanswered requests, the command commits first.
    let is_counted = fs::read_dir("/sys/fs/fuse/connections").is_ok_and(|mut all| all.next().is_some());
    assert!(fewest == 1 || !is_counted && fewest == 2, "{fewest} txgs");
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

/// A mount knows its snapshot by name and guid, and programs rely on what it shows.
#[test]
fn a_mounted_snapshot_keeps_its_name_and_its_content() {
    let Some(dir) = mounted("mounted-snapshot") else { return };
    for name in ["a", "b"] {
        fs::write(dir.path("home/file"), name).unwrap();
        dir.run(&format!("snapshot tank/home@{name}"), 0);
    }
    dir.run("fs clone tank/home@b tank/trial", 0);
    dir.run("mount tank/home@b other", 0);
    let held = ["tank/home@b", "mounted on", "unmount it first"];
    dir.refused("fs rename tank/home@b tank/home@c", &held);
    dir.refused("fs promote tank/trial", &held);
    dir.refused("fs destroy -n tank/home@b", &held);
    dir.run("umount home", 0);
    dir.refused("fs rollback -r tank/home@a", &held);
    // Only the first of them is in the way.
    dir.run("fs rename tank/home@a tank/home@old", 0);
    // What the kernel has negotiated for this mount stays, whatever the property says by now. So do the other mounts.
    for value in ["off", "posix", "off"] {
        dir.run(&format!("fs set acltype={value} tank/home"), 0);
        dir.run("restart tank", 0);
        assert_eq!(read(&dir, "other/file"), "b");
    }
    kill("-KILL", server(&dir));
    assert_eq!(read(&dir, "other/file"), "b");
    fs::write(dir.path("mnt/file"), "served").unwrap();
    dir.run("umount other", 0);
    dir.run("fs promote tank/trial", 0);
    dir.run("mount tank/trial@b other -o acltype=off", 0);
    assert_eq!(read(&dir, "other/file"), "b");
    dir.run("umount -a tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn what_is_not_destroyed_is_refused_before_anything_is_destroyed() {
    let dir = TestDir::new("destroy");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("fs create -p tank/a/b", 0);
    let all = || dir.out("fs list -H -r -t all -o name tank");
    // Without -r.
    dir.refused("fs destroy -n tank/nope", &["unknown data set 'tank/nope'"]);
    dir.refused("fs destroy -rn tank/nope", &["unknown data set 'tank/nope'"]);
    dir.refused("fs destroy -n tank/a", &["below it"]);
    dir.refused("fs destroy -n tank/a#none", &["tank/a#none"]);
    dir.refused("fs destroy -n tank/a@none", &["tank/a@none"]);
    assert_eq!(dir.out("fs destroy -nv tank/a/b"), "would destroy tank/a/b\n");
    dir.run("snapshot tank/a@x", 0);
    dir.run("fs bookmark tank/a@x tank/a#x", 0);
    dir.run("fs destroy -n tank/a#x", 0);
    assert_eq!(all(), "tank\ntank/a\ntank/a@x\ntank/a#x\ntank/a/b\n");
    // Each word must name a snapshot, though not in each data set.
    dir.run("snapshot -r tank/a@y", 0);
    dir.run("snapshot tank/a/b@z", 0);
    dir.refused("fs destroy -r tank/a@y,nope", &["tank/a@nope"]);
    assert!(all().contains("tank/a@y"));
    dir.run("fs destroy -r tank/a@y,z", 0);
    assert_eq!(all(), "tank\ntank/a\ntank/a@x\ntank/a#x\ntank/a/b\n");

    // A clone in the tree goes with it, and one outside stays.
    dir.run("fs clone tank/a@x tank/a/c", 0);
    dir.run("snapshot tank/a/b@s", 0);
    dir.run("fs clone tank/a/b@s tank/out", 0);
    let before = all();
    dir.refused("fs destroy -r tank/a", &["tank/a/b@s", "cloned as out"]);
    assert_eq!(all(), before);
    dir.run("fs destroy tank/out", 0);
    let said = dir.out("fs destroy -rnv tank/a");
    let names: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("would destroy ")).collect();
    assert_eq!(names, ["tank/a/c", "tank/a/b@s", "tank/a/b", "tank/a@x", "tank/a"]);
    assert!(said.contains("would reclaim"), "{said}");
    dir.run("fs destroy -r tank/a", 0);
    assert_eq!(all(), "tank\n");
    // A clone above its origin.
    dir.run("fs create tank/a", 0);
    dir.run("snapshot tank/a@s", 0);
    dir.run("fs clone tank/a@s tank/a/c", 0);
    dir.run("fs promote tank/a/c", 0);
    let before = all();
    dir.refused("fs destroy -r tank/a", &["tank/a/c@s", "promote that first"]);
    assert_eq!(all(), before);
    dir.run("fs promote tank/a", 0);
    dir.run("fs destroy -r tank/a", 0);
    assert_eq!(all(), "tank\n");
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_tree_with_a_mounted_snapshot_is_not_destroyed_in_part() {
    let Some(dir) = mounted("destroy-mounted") else { return };
    dir.run("fs create -p tank/tree/leaf", 0);
    dir.run("fs create tank/tree/west", 0);
    dir.run("snapshot -r tank/tree@s", 0);
    // A question opens the head, and closes it.
    dir.run("fs diff tank/tree/leaf@s", 0);
    dir.run("mount tank/tree@s other", 0);
    dir.refused("fs destroy -r tank/tree", &["tank/tree@s", "unmount it first"]);
    dir.refused("fs destroy -r tank/tree@s", &["tank/tree@s", "unmount it first"]);
    dir.run("umount other", 0);
    assert_eq!(dir.out("fs list -H -r -t snapshot -o name tank/tree").lines().count(), 3);
    dir.run("fs destroy -r tank/tree", 0);
    dir.run("umount -a tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// The forms of sanoid and zfs-auto-snapshot.
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
    let status = run("zpool", "status");
    let starts = |start: &str| status.lines().any(|line| line.trim_start().starts_with(start));
    assert!(
        starts("pool: tank") && starts("state: ONLINE") && starts("errors: No known data errors"),
        "{status}"
    );
    run("zfs", "set com.sun:auto-snapshot=false tank/home");
    let columns = "name,com.sun:auto-snapshot,com.sun:auto-snapshot:daily";
    let listed = run("zfs", &format!("list -H -t filesystem,volume -s name -o {columns}"));
    assert_eq!(listed, "tank\t-\t-\ntank/home\tfalse\t-\n");
    run("zfs", "snapshot -o com.sun:auto-snapshot-desc=- -r tank@zfs-auto-snap_daily-2026-01-03-0000");
    assert_eq!(run("zfs", "list -H -t snapshot -S creation -o name").lines().count(), 4);
    // A pool that is gone does not keep scripts from the others.
    dir.run("pool create gone gone.img --size 64M", 0);
    std::fs::remove_file(dir.path("gone.img")).unwrap();
    assert_eq!(run("zfs", "list -H -o name"), "tank\ntank/home\n");
    assert_eq!(run("zfs", "list -H -t snapshot -o name").lines().count(), 4);
    assert!(
        run("zpool", "status").contains("state: UNAVAIL") && run("zpool", "status").contains("state: ONLINE")
    );
    run("zfs", "destroy -d -r tank@zfs-auto-snap_daily-2026-01-03-0000");
    run("zfs", "destroy tank/home@autosnap_2026-01-01_00:00:00_daily");
    assert_eq!(run("zfs", "list -H -t snapshot -o name"), "tank/home@autosnap_2026-01-02_00:00:00_daily\n");
}

/// Every command, and every server, has the root data set open.
#[test]
fn the_root_data_set_is_rolled_back() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("rollback-root");
    fs::create_dir(dir.path("home")).unwrap();
    dir.run("pool create tank tank.img --size 256M", 0);
    let change = |content: &str| {
        dir.run("mount tank mnt", 0);
        fs::write(dir.path("mnt/file"), content).unwrap();
        dir.run("umount mnt", 0);
    };
    dir.run("mount tank mnt", 0);
    fs::write(dir.path("mnt/file"), "monday").unwrap();
    dir.run("snapshot tank@monday", 0);
    dir.run("umount mnt", 0);
    change("tuesday");
    dir.run("fs rollback tank@monday", 0);
    dir.run("mount tank mnt", 0);
    assert_eq!(read(&dir, "mnt/file"), "monday");
    dir.run("umount mnt", 0);
    // In a server that has it open.
    dir.run("fs create tank/home", 0);
    dir.run("mount tank/home home", 0);
    for content in ["wednesday", "thursday"] {
        change(content);
        assert!(dir.out("fs list tank").contains("tank"));
        dir.run("fs rollback tank@monday", 0);
        dir.run("fs set recordsize=16K tank", 0);
        assert!(dir.out("fs get recordsize tank").contains("16K"));
        dir.run("mount tank mnt", 0);
        assert_eq!(read(&dir, "mnt/file"), "monday");
        fs::write(dir.path("mnt/new"), noise(100_000)).unwrap();
        dir.run("umount mnt", 0);
        dir.run("mount tank mnt", 0);
        assert!(fs::read(dir.path("mnt/new")).unwrap() == noise(100_000));
        dir.run("umount mnt", 0);
    }
    dir.run("umount home", 0);
    let report = dir.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
}
