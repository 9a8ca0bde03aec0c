//! Data sets are mounted where their properties say.

use crate::support::{TestDir, can_mount, is_root};
use std::fs;

fn mounted(dir: &TestDir) -> Vec<String> {
    let base = dir.path("").display().to_string();
    let row = |row: &serde_json::Value| {
        let at = row["mountpoint"].as_str().unwrap();
        format!("{} {}", row["dataset"].as_str().unwrap(), at.strip_prefix(&base).unwrap_or(at))
    };
    let mut rows: Vec<_> = dir.json_rows("mounts --json").iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn data_sets_are_mounted_where_their_properties_say() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("mountall");
    let at = |name: &str| dir.path(name).display().to_string();
    dir.run("pool create tank tank.img --size 128M", 0);
    dir.refused("mount tank", &["mountpoint", "none"]);
    dir.run(&format!("fs set mountpoint={} tank", at("srv")), 0);
    for name in ["home", "home/ann", "home/bob", "hidden", "byname", "elsewhere", "none"] {
        dir.run(&format!("fs create tank/{name}"), 0);
    }
    dir.run("fs set canmount=off tank/hidden", 0);
    dir.run("fs set canmount=noauto tank/byname", 0);
    dir.run(&format!("fs set mountpoint={} tank/elsewhere", at("a/deep/place")), 0);
    dir.run("fs set mountpoint=none tank/none", 0);

    dir.run("mount -a tank/home", 0);
    assert_eq!(
        mounted(&dir),
        ["tank/home srv/home", "tank/home/ann srv/home/ann", "tank/home/bob srv/home/bob"]
    );
    dir.run("umount -a tank", 0);
    dir.wait_until_free();

    dir.run("mount -a", 0);
    let all = [
        "tank srv",
        "tank/elsewhere a/deep/place",
        "tank/home srv/home",
        "tank/home/ann srv/home/ann",
        "tank/home/bob srv/home/bob",
    ];
    assert_eq!(mounted(&dir), all);
    fs::write(dir.path("srv/home/ann/file"), "of ann").unwrap();
    // Again: there is nothing left to do.
    dir.run("mount -a tank", 0);
    assert_eq!(mounted(&dir), all);
    dir.run("mount tank/byname", 0);
    assert!(mounted(&dir).contains(&"tank/byname srv/byname".to_owned()));
    dir.refused("mount tank/byname", &["tank/byname", "mounted at", "name another directory"]);
    dir.refused("mount tank/hidden", &["tank/hidden", "canmount=off", "name a directory"]);
    dir.refused("mount tank/none", &["tank/none", "mountpoint", "fs set"]);
    dir.refused("mount tank/hom", &["tank/hom", "tank/home"]);
    dir.misused("mount -a tank mnt", &["cannot be used with"]);

    // One that cannot be mounted is named, and the others are mounted.
    dir.run("umount -a tank", 0);
    dir.wait_until_free();
    fs::write(dir.path("file"), "").unwrap();
    dir.run(&format!("fs set mountpoint={} tank/elsewhere", at("file/below")), 0);
    dir.refused("mount -a", &["file/below"]);
    assert_eq!(mounted(&dir).len(), 4);
    assert_eq!(fs::read_to_string(dir.path("srv/home/ann/file")).unwrap(), "of ann");
    dir.run("umount -a tank", 0);
}
