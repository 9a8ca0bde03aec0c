//! Pools over several devices, as users run them.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use support::{Place, can_mount};

fn devices(place: &Place) -> Vec<Value> {
    place.json("pool status -j tank")["pools"][0]["devices"].as_array().unwrap().clone()
}

fn roles(place: &Place) -> Vec<String> {
    devices(place).iter().map(|row| row["role"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_pool_of_several_files_is_found_whole_wherever_they_went() {
    let place = Place::new("several");
    place.run("pool create tank a.img b.img --special c.img --size 64M", 0);
    assert_eq!(roles(&place), ["data", "data", "special"]);
    let status = place.out("pool status tank");
    assert!(status.contains("devices: ") && status.contains("c.img (special)"), "{status}");
    assert!(place.out("check tank").contains("nothing found"));
    assert!(place.out("check b.img").contains("nothing found"), "by any of them");
    assert_eq!(place.json("zones -j tank")["zones"].as_array().unwrap().len(), 192);
    let labels = place.json("debug uberblock -j tank")["labels"].as_array().unwrap().clone();
    assert!(labels.len() >= 3 && labels.iter().all(|label| label["devices"] == 3), "{labels:?}");
    place.refused("pool create other b.img", &["b.img", "Terrane pool", "tank"]);

    place.run("pool export tank", 0);
    let found = place.json("pool import -d . -j")["pools"].as_array().unwrap().clone();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["state"], found[0]["devices"].as_array().unwrap().len()), (&"ready".into(), 3));
    // Found by name, although every file was renamed, and one moved elsewhere.
    fs::create_dir(place.path("moved")).unwrap();
    fs::rename(place.path("a.img"), place.path("z.img")).unwrap();
    fs::rename(place.path("b.img"), place.path("y.img")).unwrap();
    place.run("pool import -d . tank", 0);
    assert_eq!(devices(&place).len(), 3);
    place.run("pool export tank", 0);
    fs::rename(place.path("c.img"), place.path("moved/c.img")).unwrap();
    let found = place.json("pool import -d . -j")["pools"][0].clone();
    assert_eq!(found["state"], "incomplete");
    assert!(found["reason"].as_str().unwrap().contains("c.img"), "{found}");
    place.refused("pool import -d . tank", &["missing", "device 2", "c.img"]);
    place.refused("check y.img", &["missing", "device 2", "c.img"]);
    fs::rename(place.path("moved/c.img"), place.path("c.img")).unwrap();
    place.run("pool import -d . tank", 0);

    place.run("pool destroy --delete tank", 0);
    assert!(["z.img", "y.img", "c.img"].iter().all(|name| !place.path(name).exists()));
}

#[test]
fn a_cache_comes_goes_and_may_be_missing() {
    let place = Place::new("cache");
    place.run("pool create tank tank.img --size 64M", 0);
    place.refused("pool add tank cache tiny.img --size 2M", &["tiny.img"]);
    place.run("pool add tank cache fast.img --size 64M", 0);
    place.refused("pool add tank data fast.img", &["fast.img"]);
    let caches = || place.json("pool status -j tank")["pools"][0]["caches"].as_array().unwrap().clone();
    assert_eq!((caches().len(), &caches()[0]["role"]), (1, &"cache".into()));
    assert_eq!(roles(&place), ["data"], "it is no member");
    assert!(place.out("pool status tank").contains("fast.img, missing"), "used by mounts alone");
    if can_mount() {
        place.run("mount tank mnt", 0);
        fs::write(place.path("mnt/file"), vec![7; 1 << 20]).unwrap();
        let state = caches()[0]["state"].as_str().unwrap().to_owned();
        assert!(["normal", "loading"].contains(&state.as_str()), "{state}");
        let metrics = place.out("metrics tank");
        let size = metrics.lines().find(|line| line.starts_with("terrane_cache_device_size_bytes{"));
        assert!(size.is_some_and(|line| line.contains("fast.img")), "{metrics}");
        // Its index was loaded.
        let io = &place.json("pool iostat -j tank")["pools"][0];
        assert!(io["cache_device_read_bytes"].is_u64() && io["cache_device_hits"] == 0, "{io}");
        place.run("umount mnt", 0);
        fs::rename(place.path("fast.img"), place.path("gone.img")).unwrap();
        place.run("mount tank mnt", 0);
        assert_eq!(fs::read(place.path("mnt/file")).unwrap(), vec![7; 1 << 20]);
        assert_eq!(caches()[0]["state"], "missing");
        place.run("umount mnt", 0);
        fs::rename(place.path("gone.img"), place.path("fast.img")).unwrap();
    }
    place.run("pool remove tank fast.img", 0);
    assert!(caches().is_empty());
    assert!(place.out("check tank").contains("nothing found"));
}

#[test]
fn a_pool_goes_by_whichever_device_it_is_named() {
    let place = Place::new("whichever");
    place.run("pool create tank a.img b.img --size 64M", 0);
    place.run("pool export ./b.img", 0);
    assert_eq!(place.out("pool list -H"), "");
    place.run("pool import ./b.img", 0);
    place.run("pool destroy ./a.img", 0);
    assert_eq!(place.out("pool list -H"), "");
}

#[test]
fn a_cache_goes_with_its_pool() {
    let place = Place::new("cachegone");
    let create = |name: &str| {
        place.run(&format!("pool create {name} {name}.img --size 64M"), 0);
        place.run(&format!("pool add {name} cache {name}.fast --size 64M"), 0);
    };
    ["kept", "gone", "lost", "odd"].into_iter().for_each(create);
    // Damages the copies of blocks, wherever they lie.
    let copies = |name: &str| {
        let file = fs::OpenOptions::new().write(true).open(place.path(name)).unwrap();
        (1..60u64).for_each(|zone| file.write_all_at(&[7; 9000], (zone << 20) + 4096).unwrap());
    };
    copies("kept.fast");
    copies("gone.fast");
    place.run("pool destroy kept", 0);
    assert!(
        fs::read(place.path("kept.fast")).unwrap().iter().all(|byte| *byte == 0),
        "its copies are readable"
    );
    place.run("pool create new kept.fast", 0);
    place.run("pool destroy --delete gone", 0);
    assert!(!place.path("gone.fast").exists() && !place.path("gone.img").exists());
    // A missing device is named, and the file in its place is not touched.
    fs::remove_file(place.path("lost.fast")).unwrap();
    fs::write(place.path("odd.fast"), vec![7; 64 << 20]).unwrap();
    for name in ["lost", "odd"] {
        let said = place.run(&format!("pool destroy --delete {name}"), 0).stderr;
        assert!(String::from_utf8(said).unwrap().contains(&format!("{name}.fast is not there")));
    }
    assert_eq!(fs::read(place.path("odd.fast")).unwrap(), vec![7; 64 << 20]);
}

#[test]
fn a_device_is_added_to_a_pool_that_nobody_has_mounted() {
    let place = Place::new("add");
    place.run("pool create tank tank.img --size 64M", 0);
    let before = place.json("pool list -j")["pools"][0]["size"].as_u64().unwrap();
    fs::write(place.path("data.img"), vec![7; 64 << 20]).unwrap();
    place.refused("pool add tank data data.img", &["data.img", "--force"]);
    place.refused("pool add nobody data new.img", &["nobody"]);
    place.refused("pool add tank data tank.img", &["tank.img"]);
    place.refused("pool add tank data new.img --size 2M", &["32 zones"]);
    place.refused("pool add tank data mnt", &["mnt", "directory"]);
    place.misused("pool add tank fast new.img", &["fast", "special"]);
    assert!(!place.path("new.img").exists(), "a refused device leaves no file");
    place.run("pool add tank data new.img --size 64M", 0);
    place.run("pool add tank special data.img --force", 0);
    assert_eq!(roles(&place), ["data", "data", "special"]);
    assert!(place.json("pool list -j")["pools"][0]["size"].as_u64().unwrap() > 2 * before);
    assert!(place.out("pool status tank").contains("org.terrane:devices"));
    assert!(place.out("check tank").contains("nothing found"));
    place.refused("pool add tank data new.img --force", &["new.img"]);
}

#[test]
fn devices_leave_a_pool_that_nobody_has_mounted_and_one_that_somebody_has() {
    let place = Place::new("remove");
    place.run("pool create tank tank.img b.img --special c.img --size 64M", 0);
    place.refused("pool remove tank d.img", &["d.img", "b.img"]);
    place.refused("pool remove nobody b.img", &["nobody"]);
    // The device by which the registry knows the pool.
    place.run("pool remove tank tank.img", 0);
    assert!(place.out("check tank").contains("nothing found"));
    place.refused("check tank.img", &["tank.img", "Terrane pool"]);
    place.refused("pool remove tank b.img", &["for data"]);
    place.run("pool remove tank 2", 0);
    assert_eq!(roles(&place), ["data"]);
    if !can_mount() {
        eprintln!("skipped: no /dev/fuse here");
        return;
    }
    place.run("pool add tank data tank.img", 0);
    place.run("mount tank mnt", 0);
    let mut noise = vec![0; 12 << 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    fs::write(place.path("mnt/file"), &noise).unwrap();
    place.run("sync tank", 0);
    place.refused("pool remove tank b.img", &["b.img", "unmount"]);
    place.run("pool remove tank tank.img", 0);
    assert!(fs::read(place.path("mnt/file")).unwrap() == noise);
    fs::write(place.path("mnt/more"), &noise).unwrap();
    assert!(place.out("check tank").contains("nothing found"));
    // It can be used again at once.
    place.run("pool create other tank.img --size 64M", 0);
    place.run("umount mnt", 0);
    place.run("mount tank mnt", 0);
    assert!(fs::read(place.path("mnt/file")).unwrap() == noise);
    assert!(fs::read(place.path("mnt/more")).unwrap() == noise);
    place.run("umount mnt", 0);
    assert_eq!(devices(&place).len(), 1);
}

#[test]
fn a_device_that_left_its_pool_is_destroyed_alone() {
    let place = Place::new("stale");
    place.run("pool create tank a.img b.img --size 64M", 0);
    // What is left of a device if power fails before it is wiped.
    fs::copy(place.path("b.img"), place.path("old.img")).unwrap();
    place.run("pool remove tank b.img", 0);
    place.run("pool destroy --delete old.img", 0);
    assert!(!place.path("old.img").exists());
    assert!(place.out("check tank").contains("nothing found"));
    place.run("pool destroy --delete tank", 0);
    assert!(!place.path("a.img").exists());
}

#[test]
fn a_device_is_added_under_a_mount() {
    if !can_mount() {
        eprintln!("skipped: no /dev/fuse here");
        return;
    }
    let place = Place::new("add-mounted");
    place.run("pool create tank tank.img --size 64M", 0);
    place.run("mount tank mnt", 0);
    let mut noise = vec![0; 20 << 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    fs::write(place.path("mnt/first"), &noise).unwrap();
    place.run("pool add tank data more.img --size 64M", 0);
    place.run("pool add tank special meta.img --size 64M", 0);
    fs::write(place.path("mnt/second"), &noise).unwrap();
    place.run("sync tank", 0);
    let rows = devices(&place);
    let is_used = |row: &&Value| row["zones_used"].as_u64().unwrap() > 0;
    assert!(rows.len() == 3 && rows[..2].iter().all(|row| is_used(&row)), "{rows:?}");
    assert!(place.out("check tank").contains("nothing found"), "beside the mount");
    place.refused("pool create other more.img --force", &["more.img"]);
    place.run("umount mnt", 0);
    assert!(place.out("check tank").contains("nothing found"));
    place.run("mount more.img mnt", 0);
    for name in ["first", "second"] {
        assert!(fs::read(place.path("mnt").join(name)).unwrap() == noise, "{name}");
    }
    place.run("umount mnt", 0);
}
