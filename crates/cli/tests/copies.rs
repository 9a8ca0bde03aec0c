//! A path means the file or device that it leads to, even if that is a copy of one in use.

use crate::support::{TestDir, can_mount};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Copied without holes, so that the copy is independent in all respects.
fn copy(dir: &TestDir, from: &str, to: &str) {
    fs::copy(dir.path(from), dir.path(to)).unwrap();
}

/// What a search finds among the images, by device.
fn found(dir: &TestDir, device: &str) -> Value {
    let rows = dir.json("pool import -j -d .");
    let rows = rows["pools"].as_array().unwrap().clone();
    let is_it = |row: &Value| Path::new(row["device"].as_str().unwrap()).ends_with(device);
    rows.into_iter().find(is_it).unwrap_or_else(|| panic!("{device} is not found"))
}

#[test]
fn the_path_of_a_copy_is_never_taken_for_the_pool_that_is_mounted() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("copies");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let noise: Vec<u8> = (0u32..1 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(dir.path("mnt/file"), &noise).unwrap();
    dir.run("sync tank", 0);
    copy(&dir, "tank.img", "copy.img");
    fs::create_dir(dir.path("other")).unwrap();

    // Commands that change something are refused, and the message says that it is a copy.
    let said = ["copy.img", "copy", "tank.img", "--new-id"];
    for words in
        ["mount ./copy.img other", "mount -o ro ./copy.img other", "umount ./copy.img", "sync ./copy.img"]
    {
        dir.refused(words, &said);
    }
    for words in
        ["restart ./copy.img", "pool export ./copy.img", "pool destroy ./copy.img", "pool gc ./copy.img"]
    {
        dir.refused(words, &said);
    }
    dir.refused("fs set compression=zstd-9 ./copy.img", &said);
    dir.refused("pool import ./copy.img", &["unused name", "--new-id"]);
    assert!(dir.path("copy.img").exists() && dir.path("mnt/file").exists());
    assert!(dir.out("fs get -H -o value compression tank").contains("lz4"));

    // Commands that only read see the copy, and not the health of its original.
    let damaged = File::options().write(true).open(dir.path("copy.img")).unwrap();
    (2..64).for_each(|zone| damaged.write_all_at(&[7; 300], (zone << 20) + 70_000).unwrap());
    assert!(dir.out("check tank").contains("nothing found"));
    assert!(dir.out("check ./tank.img").contains("nothing found"));
    let checked = dir.command("check ./copy.img").output().unwrap();
    assert_eq!(checked.status.code(), Some(1), "the copy is damaged");
    assert!(String::from_utf8(checked.stdout).unwrap().contains("findings"));
    let status = dir.json("pool status -j ./copy.img")["pools"][0].clone();
    assert!(
        status["device"].as_str().unwrap().ends_with("copy.img") && status["mountpoint"].is_null(),
        "{status}"
    );
    assert!(dir.out("debug uberblock ./copy.img").contains("copy.img"));

    // A hard link to the same file is the same file.
    fs::hard_link(dir.path("tank.img"), dir.path("link.img")).unwrap();
    assert!(dir.json("pool status -j ./link.img")["pools"][0]["mountpoint"].is_string());
    assert_eq!(found(&dir, "link.img")["state"], "mounted");
    dir.run("umount ./link.img", 0);
    assert!(dir.mounts().is_empty());
}

#[test]
fn a_copy_with_an_id_of_its_own_is_a_pool_beside_its_original() {
    let dir = TestDir::new("newid");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("pool add tank cache fast.img --size 64M", 0);
    copy(&dir, "tank.img", "copy.img");
    dir.refused("pool import --new-id ./copy.img", &["unused name", "--name"]);
    dir.refused("pool import --new-id --name 1 ./copy.img", &["valid name"]);
    dir.misused("pool import --new-id --read-only ./copy.img", &["--read-only"]);
    dir.run("pool import --new-id --name twin ./copy.img", 0);
    let (tank, twin) = (found(&dir, "tank.img"), found(&dir, "copy.img"));
    assert!(tank["id"] != twin["id"] && twin["name"] == "twin" && tank["name"] == "tank", "{tank} {twin}");
    assert!(dir.out("pool status twin").contains("org.terrane:identity"));
    let caches = |pool: &str| {
        dir.json(&format!("pool status -j {pool}"))["pools"][0]["caches"].as_array().unwrap().len()
    };
    assert_eq!((caches("tank"), caches("twin")), (1, 0), "the cache device stays with its pool");
    // Once more: a copy of the copy.
    copy(&dir, "copy.img", "third.img");
    dir.run("pool import --new-id --name third ./third.img", 0);
    assert!(found(&dir, "third.img")["id"] != twin["id"]);
    if can_mount() {
        fs::create_dir(dir.path("other")).unwrap();
        dir.run("mount tank mnt", 0);
        dir.run("mount twin other", 0);
        fs::write(dir.path("mnt/of-tank"), "tank").unwrap();
        fs::write(dir.path("other/of-twin"), "twin").unwrap();
        dir.run("restart twin", 0);
        assert_eq!(fs::read_dir(dir.path("other")).unwrap().count(), 1);
        dir.run("umount ./copy.img", 0);
        assert_eq!(fs::read(dir.path("mnt/of-tank")).unwrap(), b"tank");
        dir.run("umount mnt", 0);
    }
    for pool in ["tank", "twin", "third"] {
        assert!(dir.out(&format!("check {pool}")).contains("nothing found"));
    }
    // The name can be changed without a new id.
    dir.run("pool export third", 0);
    dir.run("pool import --name fourth ./third.img", 0);
    assert_eq!(dir.out("pool list -H -o name"), "fourth\ntank\ntwin\n");
    dir.run("pool import --name fifth ./third.img", 0);
    assert_eq!(dir.out("pool list -H -o name"), "fifth\ntank\ntwin\n");
}

#[test]
fn devices_of_a_copy_are_never_mixed_with_those_of_its_original() {
    let dir = TestDir::new("mixed");
    dir.run("pool create tank a.img b.img --size 64M", 0);
    fs::create_dir(dir.path("backup")).unwrap();
    copy(&dir, "a.img", "backup/a.img");
    copy(&dir, "b.img", "backup/b.img");
    // The label of the copy leads to the original's other device.
    for words in ["check ./backup/a.img", "pool status ./backup/b.img", "fs set atime=off ./backup/a.img"] {
        dir.refused(words, &["once", ".img", "--new-id"]);
    }
    assert!(dir.out("check tank").contains("nothing found"), "its own are where the label says");
    dir.refused("pool import --new-id --name twin ./backup/a.img", &["-d FILE"]);
    dir.refused("pool import --new-id --name twin -d backup/a.img", &["device 1"]);
    dir.refused("pool import --new-id --name twin -d backup/a.img -d b.img -d backup/b.img", &["2 times"]);
    dir.run("pool import --new-id --name twin -d backup", 0);
    for pool in ["tank", "twin", "./backup/b.img", "./a.img"] {
        assert!(dir.out(&format!("check {pool}")).contains("nothing found"));
    }
    dir.run("fs set atime=off twin", 0);
    assert!(!dir.out("fs get -H -o source atime tank").contains("local"));
    // Moved, not copied: the devices are found beside each other as before.
    fs::create_dir(dir.path("moved")).unwrap();
    fs::rename(dir.path("a.img"), dir.path("moved/a.img")).unwrap();
    fs::rename(dir.path("b.img"), dir.path("moved/b.img")).unwrap();
    assert!(dir.out("check ./moved/a.img").contains("nothing found"));
}
