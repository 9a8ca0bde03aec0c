//! Pools over several devices, as users run them.

use crate::support::{TestDir, can_mount};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;

fn devices(dir: &TestDir) -> Vec<Value> {
    dir.json("pool status -j tank")["pools"][0]["devices"].as_array().unwrap().clone()
}

fn roles(dir: &TestDir) -> Vec<String> {
    devices(dir).iter().map(|row| row["role"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_pool_of_several_files_is_found_whole_wherever_they_went() {
    let dir = TestDir::new("several");
    dir.run("pool create tank a.img b.img --special c.img --size 64M", 0);
    assert_eq!(roles(&dir), ["data", "data", "special"]);
    let status = dir.out("pool status tank");
    assert!(status.contains("devices: ") && status.contains("c.img (special)"), "{status}");
    assert!(dir.out("check tank").contains("nothing found"));
    assert!(dir.out("check b.img").contains("nothing found"), "by any of them");
    assert_eq!(dir.json("zones -j tank")["zones"].as_array().unwrap().len(), 192);
    let labels = dir.json("debug uberblock -j tank")["labels"].as_array().unwrap().clone();
    assert!(labels.len() >= 3 && labels.iter().all(|label| label["devices"] == 3), "{labels:?}");
    dir.refused("pool create other b.img", &["b.img", "Terrane pool", "tank"]);

    dir.run("pool export tank", 0);
    let found = dir.json("pool import -d . -j")["pools"].as_array().unwrap().clone();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["state"], found[0]["devices"].as_array().unwrap().len()), (&"ready".into(), 3));
    // Found by name, although every file was renamed, and one moved elsewhere.
    fs::create_dir(dir.path("moved")).unwrap();
    fs::rename(dir.path("a.img"), dir.path("z.img")).unwrap();
    fs::rename(dir.path("b.img"), dir.path("y.img")).unwrap();
    dir.run("pool import -d . tank", 0);
    assert_eq!(devices(&dir).len(), 3);
    dir.run("pool export tank", 0);
    fs::rename(dir.path("c.img"), dir.path("moved/c.img")).unwrap();
    let found = dir.json("pool import -d . -j")["pools"][0].clone();
    assert_eq!(found["state"], "incomplete");
    assert!(found["reason"].as_str().unwrap().contains("c.img"), "{found}");
    dir.refused("pool import -d . tank", &["missing", "device 2", "c.img"]);
    dir.refused("check y.img", &["missing", "device 2", "c.img"]);
    fs::rename(dir.path("moved/c.img"), dir.path("c.img")).unwrap();
    dir.run("pool import -d . tank", 0);

    dir.run("pool destroy --delete tank", 0);
    assert!(["z.img", "y.img", "c.img"].iter().all(|name| !dir.path(name).exists()));
}

#[test]
fn a_cache_comes_goes_and_may_be_missing() {
    let dir = TestDir::new("cache");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.refused("pool add tank cache tiny.img --size 2M", &["tiny.img"]);
    dir.run("pool add tank cache fast.img --size 64M", 0);
    dir.refused("pool add tank data fast.img", &["fast.img"]);
    let caches = || dir.json("pool status -j tank")["pools"][0]["caches"].as_array().unwrap().clone();
    assert_eq!((caches().len(), &caches()[0]["role"]), (1, &"cache".into()));
    assert_eq!(roles(&dir), ["data"], "it is no member");
    assert!(dir.out("pool status tank").contains("fast.img, missing"), "used by mounts alone");
    if can_mount() {
        dir.run("mount tank mnt", 0);
        fs::write(dir.path("mnt/file"), vec![7; 1 << 20]).unwrap();
        let state = caches()[0]["state"].as_str().unwrap().to_owned();
        assert!(["normal", "loading"].contains(&state.as_str()), "{state}");
        let metrics = dir.out("metrics tank");
        let size = metrics.lines().find(|line| line.starts_with("terrane_cache_device_size_bytes{"));
        assert!(size.is_some_and(|line| line.contains("fast.img")), "{metrics}");
        // Its index was loaded.
        let io = &dir.json("pool iostat -j tank")["pools"][0];
        assert!(io["cache_device_read_bytes"].is_u64() && io["cache_device_hits"] == 0, "{io}");
        dir.run("umount mnt", 0);
        fs::rename(dir.path("fast.img"), dir.path("gone.img")).unwrap();
        dir.run("mount tank mnt", 0);
        assert_eq!(fs::read(dir.path("mnt/file")).unwrap(), vec![7; 1 << 20]);
        assert_eq!(caches()[0]["state"], "missing");
        dir.run("umount mnt", 0);
        fs::rename(dir.path("gone.img"), dir.path("fast.img")).unwrap();
    }
    dir.run("pool remove tank fast.img", 0);
    assert!(caches().is_empty());
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_pool_goes_by_whichever_device_it_is_named() {
    let dir = TestDir::new("whichever");
    dir.run("pool create tank a.img b.img --size 64M", 0);
    dir.run("pool export ./b.img", 0);
    assert_eq!(dir.out("pool list -H"), "");
    dir.run("pool import ./b.img", 0);
    dir.run("pool destroy ./a.img", 0);
    assert_eq!(dir.out("pool list -H"), "");
}

#[test]
fn a_cache_goes_with_its_pool() {
    let dir = TestDir::new("cachegone");
    let create = |name: &str| {
        dir.run(&format!("pool create {name} {name}.img --size 64M"), 0);
        dir.run(&format!("pool add {name} cache {name}.fast --size 64M"), 0);
    };
    ["kept", "gone", "lost", "odd"].into_iter().for_each(create);
    // Damages the copies of blocks, wherever they lie.
    let copies = |name: &str| {
        let file = fs::OpenOptions::new().write(true).open(dir.path(name)).unwrap();
        (1..60u64).for_each(|zone| file.write_all_at(&[7; 9000], (zone << 20) + 4096).unwrap());
    };
    copies("kept.fast");
    copies("gone.fast");
    dir.run("pool destroy kept", 0);
    assert!(
        fs::read(dir.path("kept.fast")).unwrap().iter().all(|byte| *byte == 0),
        "its copies are readable"
    );
    dir.run("pool create new kept.fast", 0);
    dir.run("pool destroy --delete gone", 0);
    assert!(!dir.path("gone.fast").exists() && !dir.path("gone.img").exists());
    // A missing device is named, and the file in its place is not touched.
    fs::remove_file(dir.path("lost.fast")).unwrap();
    fs::write(dir.path("odd.fast"), vec![7; 64 << 20]).unwrap();
    for name in ["lost", "odd"] {
        let said = dir.run(&format!("pool destroy --delete {name}"), 0).stderr;
        assert!(String::from_utf8(said).unwrap().contains(&format!("{name}.fast not found")));
    }
    assert_eq!(fs::read(dir.path("odd.fast")).unwrap(), vec![7; 64 << 20]);
}

#[test]
fn a_device_is_added_to_a_pool_that_nobody_has_mounted() {
    let dir = TestDir::new("add");
    dir.run("pool create tank tank.img --size 64M", 0);
    let before = dir.json("pool list -j")["pools"][0]["size"].as_u64().unwrap();
    fs::write(dir.path("data.img"), vec![7; 64 << 20]).unwrap();
    dir.refused("pool add tank data data.img", &["data.img", "--force"]);
    dir.refused("pool add nobody data new.img", &["nobody"]);
    dir.refused("pool add tank data tank.img", &["tank.img"]);
    dir.refused("pool add tank data new.img --size 2M", &["32 zones"]);
    dir.refused("pool add tank data mnt", &["mnt", "directory"]);
    dir.misused("pool add tank fast new.img", &["fast", "special"]);
    assert!(!dir.path("new.img").exists(), "a refused device leaves no file");
    dir.run("pool add tank data new.img --size 64M", 0);
    dir.run("pool add tank special data.img --force", 0);
    assert_eq!(roles(&dir), ["data", "data", "special"]);
    assert!(dir.json("pool list -j")["pools"][0]["size"].as_u64().unwrap() > 2 * before);
    assert!(dir.out("pool status tank").contains("org.terrane:devices"));
    assert!(dir.out("check tank").contains("nothing found"));
    dir.refused("pool add tank data new.img --force", &["new.img"]);
}

#[test]
fn devices_leave_a_pool_that_nobody_has_mounted_and_one_that_somebody_has() {
    let dir = TestDir::new("remove");
    dir.run("pool create tank tank.img b.img --special c.img --size 64M", 0);
    dir.refused("pool remove tank d.img", &["d.img", "b.img"]);
    dir.refused("pool remove nobody b.img", &["nobody"]);
    // The device by which the registry knows the pool.
    dir.run("pool remove tank tank.img", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    dir.refused("check tank.img", &["tank.img", "Terrane pool"]);
    dir.refused("pool remove tank b.img", &["data device"]);
    dir.run("pool remove tank 2", 0);
    assert_eq!(roles(&dir), ["data"]);
    if !can_mount() {
        eprintln!("skipped: no /dev/fuse here");
        return;
    }
    dir.run("pool add tank data tank.img", 0);
    dir.run("mount tank mnt", 0);
    let mut noise = vec![0; 12 << 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    fs::write(dir.path("mnt/file"), &noise).unwrap();
    dir.run("sync tank", 0);
    dir.refused("pool remove tank b.img", &["b.img", "unmount"]);
    dir.run("pool remove tank tank.img", 0);
    assert!(fs::read(dir.path("mnt/file")).unwrap() == noise);
    fs::write(dir.path("mnt/more"), &noise).unwrap();
    assert!(dir.out("check tank").contains("nothing found"));
    // It can be used again at once.
    dir.run("pool create other tank.img --size 64M", 0);
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt", 0);
    assert!(fs::read(dir.path("mnt/file")).unwrap() == noise);
    assert!(fs::read(dir.path("mnt/more")).unwrap() == noise);
    dir.run("umount mnt", 0);
    assert_eq!(devices(&dir).len(), 1);
}

#[test]
fn a_device_that_left_its_pool_is_destroyed_alone() {
    let dir = TestDir::new("stale");
    dir.run("pool create tank a.img b.img --size 64M", 0);
    // What is left of a device if power fails before it is wiped.
    fs::copy(dir.path("b.img"), dir.path("old.img")).unwrap();
    dir.run("pool remove tank b.img", 0);
    dir.run("pool destroy --delete old.img", 0);
    assert!(!dir.path("old.img").exists());
    assert!(dir.out("check tank").contains("nothing found"));
    dir.run("pool destroy --delete tank", 0);
    assert!(!dir.path("a.img").exists());
}

#[test]
fn a_device_is_added_under_a_mount() {
    if !can_mount() {
        eprintln!("skipped: no /dev/fuse here");
        return;
    }
    let dir = TestDir::new("add-mounted");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let mut noise = vec![0; 20 << 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    fs::write(dir.path("mnt/first"), &noise).unwrap();
    dir.run("pool add tank data more.img --size 64M", 0);
    dir.run("pool add tank special meta.img --size 64M", 0);
    fs::write(dir.path("mnt/second"), &noise).unwrap();
    dir.run("sync tank", 0);
    let rows = devices(&dir);
    let is_used = |row: &&Value| row["zones_used"].as_u64().unwrap() > 0;
    assert!(rows.len() == 3 && rows[..2].iter().all(|row| is_used(&row)), "{rows:?}");
    assert!(dir.out("check tank").contains("nothing found"), "beside the mount");
    dir.refused("pool create other more.img --force", &["more.img"]);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    dir.run("mount more.img mnt", 0);
    for name in ["first", "second"] {
        assert!(fs::read(dir.path("mnt").join(name)).unwrap() == noise, "{name}");
    }
    dir.run("umount mnt", 0);
}
