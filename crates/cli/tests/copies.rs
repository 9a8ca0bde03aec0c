//! A path means the file or device that it leads to, even if that is a copy of one in use.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{Place, can_mount};

/// Copied without holes, so that the copy is independent in all respects.
fn copy(place: &Place, from: &str, to: &str) {
    fs::copy(place.path(from), place.path(to)).unwrap();
}

/// What a search finds among the images, by device.
fn found(place: &Place, device: &str) -> Value {
    let rows = place.json("pool import -j -d .");
    let rows = rows["pools"].as_array().unwrap().clone();
    let is_it = |row: &Value| Path::new(row["device"].as_str().unwrap()).ends_with(device);
    rows.into_iter().find(is_it).unwrap_or_else(|| panic!("{device} is not found"))
}

#[test]
fn the_path_of_a_copy_is_never_taken_for_the_pool_that_is_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new("copies");
    place.run("pool create tank tank.img --size 64M", 0);
    place.run("mount tank mnt", 0);
    let noise: Vec<u8> = (0u32..1 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(place.path("mnt/file"), &noise).unwrap();
    place.run("sync tank", 0);
    copy(&place, "tank.img", "copy.img");
    fs::create_dir(place.path("other")).unwrap();

    // Commands that change something are refused, and the message says that it is a copy.
    let said = ["copy.img", "copy", "tank.img", "--new-id"];
    for words in
        ["mount ./copy.img other", "mount -o ro ./copy.img other", "umount ./copy.img", "sync ./copy.img"]
    {
        place.refused(words, &said);
    }
    for words in
        ["restart ./copy.img", "pool export ./copy.img", "pool destroy ./copy.img", "pool gc ./copy.img"]
    {
        place.refused(words, &said);
    }
    place.refused("fs set compression=zstd-9 ./copy.img", &said);
    place.refused("pool import ./copy.img", &["new name", "--new-id"]);
    assert!(place.path("copy.img").exists() && place.path("mnt/file").exists());
    assert!(place.out("fs get -H -o value compression tank").contains("lz4"));

    // Commands that only read see the copy, and not the health of its original.
    let damaged = File::options().write(true).open(place.path("copy.img")).unwrap();
    (2..64).for_each(|zone| damaged.write_all_at(&[7; 300], (zone << 20) + 70_000).unwrap());
    assert!(place.out("check tank").contains("nothing found"));
    assert!(place.out("check ./tank.img").contains("nothing found"));
    let checked = place.command("check ./copy.img").output().unwrap();
    assert_eq!(checked.status.code(), Some(1), "the copy is damaged");
    assert!(String::from_utf8(checked.stdout).unwrap().contains("findings"));
    let status = place.json("pool status -j ./copy.img")["pools"][0].clone();
    assert!(
        status["device"].as_str().unwrap().ends_with("copy.img") && status["mountpoint"].is_null(),
        "{status}"
    );
    assert!(place.out("debug uberblock ./copy.img").contains("copy.img"));

    // A hard link to the same file is the same file.
    fs::hard_link(place.path("tank.img"), place.path("link.img")).unwrap();
    assert!(place.json("pool status -j ./link.img")["pools"][0]["mountpoint"].is_string());
    assert_eq!(found(&place, "link.img")["state"], "mounted");
    place.run("umount ./link.img", 0);
    assert!(place.mounts().is_empty());
}

#[test]
fn a_copy_with_an_id_of_its_own_is_a_pool_beside_its_original() {
    let place = Place::new("newid");
    place.run("pool create tank tank.img --size 64M", 0);
    place.run("pool add tank cache fast.img --size 64M", 0);
    copy(&place, "tank.img", "copy.img");
    place.refused("pool import --new-id ./copy.img", &["new name", "--name"]);
    place.refused("pool import --new-id --name 1 ./copy.img", &["valid name"]);
    place.misused("pool import --new-id --read-only ./copy.img", &["--read-only"]);
    place.run("pool import --new-id --name twin ./copy.img", 0);
    let (tank, twin) = (found(&place, "tank.img"), found(&place, "copy.img"));
    assert!(tank["id"] != twin["id"] && twin["name"] == "twin" && tank["name"] == "tank", "{tank} {twin}");
    assert!(place.out("pool status twin").contains("org.terrane:identity"));
    let caches = |pool: &str| {
        place.json(&format!("pool status -j {pool}"))["pools"][0]["caches"].as_array().unwrap().len()
    };
    assert_eq!((caches("tank"), caches("twin")), (1, 0), "the cache device stays with its pool");
    // Once more: a copy of the copy.
    copy(&place, "copy.img", "third.img");
    place.run("pool import --new-id --name third ./third.img", 0);
    assert!(found(&place, "third.img")["id"] != twin["id"]);
    if can_mount() {
        fs::create_dir(place.path("other")).unwrap();
        place.run("mount tank mnt", 0);
        place.run("mount twin other", 0);
        fs::write(place.path("mnt/of-tank"), "tank").unwrap();
        fs::write(place.path("other/of-twin"), "twin").unwrap();
        place.run("restart twin", 0);
        assert_eq!(fs::read_dir(place.path("other")).unwrap().count(), 1);
        place.run("umount ./copy.img", 0);
        assert_eq!(fs::read(place.path("mnt/of-tank")).unwrap(), b"tank");
        place.run("umount mnt", 0);
    }
    for pool in ["tank", "twin", "third"] {
        assert!(place.out(&format!("check {pool}")).contains("nothing found"));
    }
    // The name can be changed without a new id.
    place.run("pool export third", 0);
    place.run("pool import --name fourth ./third.img", 0);
    assert_eq!(place.out("pool list -H -o name"), "fourth\ntank\ntwin\n");
    place.run("pool import --name fifth ./third.img", 0);
    assert_eq!(place.out("pool list -H -o name"), "fifth\ntank\ntwin\n");
}

#[test]
fn devices_of_a_copy_are_never_mixed_with_those_of_its_original() {
    let place = Place::new("mixed");
    place.run("pool create tank a.img b.img --size 64M", 0);
    fs::create_dir(place.path("backup")).unwrap();
    copy(&place, "a.img", "backup/a.img");
    copy(&place, "b.img", "backup/b.img");
    // The label of the copy leads to the original's other device.
    for words in ["check ./backup/a.img", "pool status ./backup/b.img", "fs set atime=off ./backup/a.img"] {
        place.refused(words, &["once", ".img", "--new-id"]);
    }
    assert!(place.out("check tank").contains("nothing found"), "its own are where the label says");
    place.refused("pool import --new-id --name twin ./backup/a.img", &["-d FILE"]);
    place.refused("pool import --new-id --name twin -d backup/a.img", &["device 1"]);
    place.refused("pool import --new-id --name twin -d backup/a.img -d b.img -d backup/b.img", &["2 times"]);
    place.run("pool import --new-id --name twin -d backup", 0);
    for pool in ["tank", "twin", "./backup/b.img", "./a.img"] {
        assert!(place.out(&format!("check {pool}")).contains("nothing found"));
    }
    place.run("fs set atime=off twin", 0);
    assert!(!place.out("fs get -H -o source atime tank").contains("local"));
    // Moved, not copied: the devices are found beside each other as before.
    fs::create_dir(place.path("moved")).unwrap();
    fs::rename(place.path("a.img"), place.path("moved/a.img")).unwrap();
    fs::rename(place.path("b.img"), place.path("moved/b.img")).unwrap();
    assert!(place.out("check ./moved/a.img").contains("nothing found"));
}
