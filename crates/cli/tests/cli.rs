//! The program itself, run as users run it: its output, what it refuses by name, and what survives.
//!
//! Each test has its own state directory. Where `/dev/fuse` cannot be used, the tests of mounts say so and
//! pass.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Place, Running, can_mount, kill};

#[test]
fn a_pool_lives_from_create_to_destroy() {
    let place = Place::new("life");
    assert_eq!(place.out("pool list -H"), "");
    assert!(place.out("pool status").starts_with("no pools are known here"));
    place.run("pool create tank tank.img --size 64M -o compression=zstd-3 -o recordsize=16K", 0);
    assert_eq!(fs::metadata(place.path("tank.img")).unwrap().len(), 64 << 20);
    let list = &place.json("pool list --json")["pools"];
    assert_eq!((&list[0]["name"], &list[0]["state"]), (&"tank".into(), &"healthy".into()));
    assert!(list[0]["mountpoint"].is_null() && list[0]["clean"] == true);
    assert!(place.out("pool list").starts_with("NAME"));
    let status = place.out("pool status tank");
    assert!(status.contains("tank.img") && status.contains("errors: none"), "{status}");
    assert!(place.out("fs list").contains("tank"));

    let all = place.out("fs get all tank");
    assert!(all.contains("zstd-3") && all.contains("16K") && all.contains("default"), "{all}");
    place.run("fs set atime=off compression=lz4 tank", 0);
    assert_eq!(
        place.out("fs get -H compression,atime tank.img"),
        "tank\tcompression\tlz4\tlocal\ntank\tatime\toff\tlocal\n"
    );
    place.misused("fs set atime=off colour=red tank", &["colour", "compression", "recordsize"]);
    place.misused("fs set atime=sometimes tank", &["atime", "relatime", "sometimes"]);
    place.refused("fs set recordsize=1M tank", &["recordsize", "256K"]);
    place.misused("fs get colour tank", &["colour", "compression"]);
    // Counted values are shown, and cannot be set.
    assert_eq!(
        place.out("fs get -H -o property,value,source compressratio tank"),
        "compressratio\t1.00x\tcounted\n"
    );
    assert_eq!(place.out("fs get -H -p -o value logicalused,compressratio tank"), "0\n1.00\n");
    let used: u64 = place.out("fs get -H -p -o value used tank").trim().parse().unwrap();
    assert!(used > 0);
    assert!(all.contains("refcompressratio") && !place.out("fs get -s local all tank").contains("used"));
    place.misused("fs set compressratio=2 tank", &["compressratio", "can be set"]);

    let report = place.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
    assert_eq!(place.json("check --json tank.img")["pools"][0]["findings"], Value::Array(vec![]));
    place.run("sync tank", 0);
    place.refused("umount tank", &["not mounted"]);

    place.run("pool destroy tank", 0);
    place.refused("pool status tank", &["tank"]);
    place.refused("check tank.img", &["tank.img", "Terrane pool"]);
    place.run("pool create again tank.img", 0);
    place.run("pool destroy again --delete", 0);
    assert!(!place.path("tank.img").exists());
}

#[test]
fn what_cannot_become_a_pool_is_refused_by_name() {
    let place = Place::new("refuse");
    let image = |name: &str, at: u64, bytes: &[u8]| {
        let file = File::create(place.path(name)).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    image("ext4.img", 1024 + 56, b"\x53\xef");
    place.refused("pool create tank ext4.img", &["ext4.img", "ext4", "--force"]);
    image("data.img", 5000, b"letter");
    place.refused("pool create tank data.img", &["data.img", "6 bytes of data", "--force"]);
    place.refused("pool create tank mnt", &["mnt", "directory"]);
    place.refused("pool create tank /dev/null", &["/dev/null"]);
    place.refused("pool create tank /dev/nothing-here", &["/dev/nothing-here", "device"]);
    place.refused("pool create tank a.img empty --size 1M", &["a.img", "32 zones"]);
    place.refused("pool create ../tank a.img --size 64M", &["../tank", "letter"]);
    place.refused("pool create tank a.img --size 1M", &["a.img", "32 zones"]);
    place.refused("pool create tank a.img --size 64M --zone-size 3M", &["zone size", "power of two"]);
    place.refused("pool create tank a.img --size 64M --zone-size 64M", &["32 zones", "--zone-size"]);
    place.misused("pool create tank a.img --size 64M -o colour=red", &["colour", "compression"]);
    place.refused("pool create tank a.img --size 64M -o recordsize=1M", &["recordsize", "256K"]);
    place.misused("pool create tank a.img --size 64M -o compression=zip", &["zip", "zstd"]);
    assert!(!place.path("a.img").exists(), "a refused pool leaves no file");
    File::create(place.path("empty.img")).unwrap();
    place.refused("pool create tank empty.img", &["empty.img", "--size"]);
    place.run("pool create tank empty.img --size 64M", 0);
    place.refused("pool create tank a.img --size 64M", &["tank", "empty.img"]);
    place.refused("pool create other empty.img", &["Terrane pool", "tank", "--force"]);
    place.refused("pool create other ext4.img --size 32M", &["ext4.img", "64M"]);
    place.run("pool create other ext4.img --force", 0);

    let held = File::open(place.path("ext4.img")).unwrap();
    held.lock().unwrap();
    place.refused("pool create other ext4.img --force", &["ext4.img", &std::process::id().to_string()]);
    place.refused("check other", &["ext4.img", &std::process::id().to_string()]);

    // Words of other programs do not name files, and no bare word creates one.
    let before = fs::read_dir(place.path(".")).unwrap().count();
    for word in
        ["mirror", "raidz", "raidz1", "raidz2", "draid2:4d", "spare", "log", "cache", "special", "dedup"]
    {
        place.refused(
            &format!("pool create x {word} a.img b.img"),
            &[word, "other programs", &format!("./{word}")],
        );
    }
    place.refused("pool create x a.img --size 64M mirror", &["mirror"]);
    place.refused("pool create x sda", &["sda", "./sda", "--size"]);
    place.refused("pool add tank data mirror", &["mirror"]);
    place.refused("pool add tank data sda", &["./sda"]);
    place.refused("pool create -n x a.img", &["dry run"]);
    place.refused("pool create -m /mnt x a.img", &["terrane mount x /mnt"]);
    assert_eq!(fs::read_dir(place.path(".")).unwrap().count(), before, "nothing was made");
    place.run("pool create word word --size 64M", 0);
    place.run("pool create dot ./mirror --size 64M", 0);
    place.run("pool create -f dot2 data.img", 0);

    for words in ["", "fly", "pool", "pool create", "pool create tank", "fs set atime tank", "mount tank"] {
        place.run(words, 2);
    }
    place.run("pool create tank a.img --size 16Q", 2);
}

#[test]
fn what_is_no_pool_is_refused_by_name() {
    let place = Place::new("nopool");
    place.refused("pool status nobody", &["nobody", "known are: none"]);
    place.refused("check ./nobody.img", &["nobody.img"]);
    place.refused("check mnt", &["mnt", "directory"]);
    File::create(place.path("empty.img")).unwrap();
    place.refused("check empty.img", &["empty.img", "empty"]);
    fs::write(place.path("text.img"), vec![b'x'; 1 << 20]).unwrap();
    place.refused("mount text.img mnt", &["text.img", "data that is not zero"]);
    place.refused("pool destroy text.img", &["text.img", "Terrane pool"]);
    File::create(place.path("zeros.img")).unwrap().set_len(64 << 20).unwrap();
    place.refused("debug uberblock zeros.img", &["zeros.img", "nothing but zeros"]);

    place.run("pool create tank tank.img --size 64M", 0);
    File::options().write(true).open(place.path("tank.img")).unwrap().set_len(20 << 20).unwrap();
    place.refused("mount tank mnt", &["64 zones", "cut short"]);
    fs::remove_file(place.path("tank.img")).unwrap();
    assert!(place.out("pool list").contains("unavailable"));
    place.refused("pool destroy tank", &["gone", "forgotten"]);
    assert_eq!(place.out("pool list -H"), "");
}

#[test]
fn the_format_can_be_looked_at() {
    let place = Place::new("debug");
    place.run("pool create tank tank.img --size 64M", 0);
    let ubers = place.json("debug uberblock tank --json");
    assert_eq!(ubers["labels"][0]["pool"], "tank");
    assert_eq!(ubers["uberblocks"][0]["clean"], true);
    let zones = place.json("debug zone tank --json");
    let seq = zones["zones"][0]["seq"].as_u64().unwrap();
    assert!(!place.json(&format!("debug zone tank {seq} --json"))["entries"].as_array().unwrap().is_empty());
    place.refused("debug zone tank 68719476735", &["68719476735", "none of that number"]);
    let master = place.json("debug zap tank 1 --json");
    let root = master["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == "ROOT").unwrap();
    let root = root["value"].as_str().unwrap();
    assert_eq!(place.json(&format!("debug dnode tank {root} --json"))["object"]["kind"], "Directory");
    assert!(place.out("debug dnode tank").contains("Master"));
    assert!(place.out("debug zap tank 1 --meta").contains("root_dataset"));
    assert!(!place.json("debug tree tank 0 --json")["pointers"].as_array().unwrap().is_empty());
    place.refused("debug dnode tank 999999", &["999999"]);
    place.refused("debug zap tank 2 --meta", &["Objset"]);
    assert!(place.out("debug uberblock tank").contains("INCARNATION"));
}

#[test]
fn damage_is_found_and_named() {
    let place = Place::new("damage");
    place.run("pool create tank tank.img --size 64M", 0);
    let rows = &place.json("debug tree tank 0 --json")["pointers"];
    let row =
        rows.as_array().unwrap().iter().find(|row| row["pointer"].as_str().unwrap().contains(':')).unwrap();
    // Both copies, in zones whose position the zone table gives.
    for addr in row["pointer"].as_str().unwrap().split(' ') {
        let (seq, offset) = addr.split_once(':').unwrap();
        let seq: u64 = seq.parse().unwrap();
        let zones = &place.json("debug zone tank --json")["zones"];
        let zone = zones.as_array().unwrap().iter().find(|zone| zone["seq"] == seq).unwrap();
        let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap();
        let at = zone["zone"].as_u64().unwrap() * (1 << 20) + offset;
        let image = File::options().write(true).open(place.path("tank.img")).unwrap();
        image.write_all_at(b"not what was written", at).unwrap();
    }
    let output = place.command("check tank").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("tank") && !said.contains("panicked"), "{said}");
}

#[test]
fn files_survive_umount_and_kill() {
    if !can_mount() {
        return;
    }
    let place = Place::new("mount");
    let mnt = place.path("mnt");
    place.run("pool create tank tank.img --size 256M", 0);
    place.refused("mount tank mnt -o zfsutil", &["zfsutil", "memory=SIZE"]);
    place.refused("mount tank mnt -o memory=1M", &["memory=1M", "128M"]);
    place.refused("mount tank nowhere", &["nowhere"]);
    place.refused("mount tank .", &["tank.img", "own mount"]);
    place.run("mount tank mnt -o noatime,commit=1,memory=128M", 0);
    place.refused("mount tank mnt", &["mounted on", "already"]);
    place.refused("pool destroy tank", &["mounted on"]);
    assert_eq!(place.json("pool list -j")["pools"][0]["mountpoint"], mnt.to_str().unwrap());

    fill(&mnt);
    assert_eq!(compare(&mnt), Ok(()));
    place.run("fs set compression=zstd-1 tank", 0);
    assert!(place.out("fs get compression tank").contains("zstd-1"));
    place.run("sync tank", 0);
    let report = place.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
    assert!(place.out("debug uberblock tank").contains("TXG"));
    place.refused("debug dnode tank 999999", &["999999"]);

    let busy = File::open(mnt.join("dir/big")).unwrap();
    place.refused("umount tank", &["busy"]);
    drop(busy);
    place.run("umount mnt", 0);
    assert!(place.mounts().is_empty());
    assert!(place.out("check tank").contains("nothing found"));

    place.run("mount tank.img mnt -o ro", 0);
    assert_eq!(compare(&mnt), Ok(()));
    assert!(fs::write(mnt.join("new"), "x").is_err());
    place.run("umount tank", 0);

    place.run("mount tank mnt", 0);
    fs::write(mnt.join("promised"), "kept").unwrap();
    File::open(mnt.join("promised")).unwrap().sync_all().unwrap();
    place.kill_all();
    // Over the dead mount that was left behind.
    place.run("mount tank mnt", 0);
    assert_eq!(fs::read_to_string(mnt.join("promised")).unwrap(), "kept");
    assert_eq!(compare(&mnt), Ok(()));
    place.run("umount tank", 0);
    assert!(place.out("check tank").contains("nothing found"));
}

#[test]
fn what_was_killed_and_not_touched_since_can_be_synced_and_unmounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new("untouched");
    place.run("pool create tank tank.img --size 64M", 0);
    for words in ["sync tank", "umount tank"] {
        place.run("mount tank mnt", 0);
        place.kill_all();
        place.run("mount tank mnt", 0);
        let daemon = place.daemon_pid();
        let mut command = Running(place.command(words).spawn().unwrap());
        let begun = Instant::now();
        while command.0.try_wait().unwrap().is_none() {
            if begun.elapsed() > Duration::from_secs(20) {
                kill("-KILL", daemon);
                panic!("terrane {words} does not end: {}", place.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(command.0.wait().unwrap().success());
        if words.starts_with("sync") {
            place.run("umount tank", 0);
        }
    }
}

#[test]
fn every_way_to_unmount_ends_clean() {
    if !can_mount() {
        return;
    }
    let place = Place::new("ways");
    let mnt = place.path("mnt");
    place.run("pool create tank tank.img --size 64M", 0);
    for way in ["umount", "fusermount3", "-TERM", "-INT", "busy"] {
        place.run("mount tank mnt", 0);
        fs::write(mnt.join(way), way).unwrap();
        match way {
            "umount" => place.unmount_by(&["umount"]),
            "fusermount3" => place.unmount_by(&["fusermount3", "-u"]),
            "busy" => {
                let open = File::open(mnt.join(way)).unwrap();
                kill("-TERM", place.daemon_pid());
                // Longer than a user has before the lazy unmount.
                std::thread::sleep(Duration::from_secs(6));
                assert!(place.mounts().is_empty(), "it should have left the tree");
                drop(open);
            }
            signal => kill(signal, place.daemon_pid()),
        }
        // `check` asks the daemon, or waits for its exit: no need to wait here.
        if matches!(way, "umount" | "fusermount3") {
            assert!(place.out("check tank").contains("nothing found"));
        }
        place.wait_until_free();
        let status = &place.json("pool status tank --json")["pools"];
        assert_eq!((&status[0]["clean"], &status[0]["mountpoint"]), (&true.into(), &Value::Null), "{way}");
    }
    place.run("mount tank mnt", 0);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 5);
    place.run("umount mnt", 0);
}

/// A user who can read the image can read all files in it, whatever their modes say.
#[test]
fn images_are_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("modes");
    place.run("pool create tank tank.img b.img --size 64M", 0);
    place.run("pool add tank cache fast.img --size 64M", 0);
    place.run("pool add tank special c.img --size 64M", 0);
    for image in ["tank.img", "b.img", "c.img", "fast.img"] {
        let mode = fs::metadata(place.path(image)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{image}");
    }
    if !can_mount() {
        return;
    }
    let said = |words: &str| String::from_utf8(place.run(words, 0).stderr).unwrap();
    assert_eq!(said("mount tank mnt"), "");
    place.run("umount mnt", 0);
    for (image, mode) in [("b.img", 0o640), ("fast.img", 0o602)] {
        fs::set_permissions(place.path(image), fs::Permissions::from_mode(mode)).unwrap();
    }
    let warned = said("mount tank mnt");
    assert!(warned.contains("b.img: mode 0640 lets others read"), "{warned}");
    assert!(
        warned.contains("fast.img: mode 0602 lets others write") && warned.lines().count() == 2,
        "{warned}"
    );
    place.run("umount mnt", 0);
}

#[test]
fn an_image_that_was_cut_short_is_named_with_the_way_back() {
    let place = Place::new("cut");
    place.run("pool create tank tank.img --size 64M", 0);
    let image = File::options().write(true).open(place.path("tank.img")).unwrap();
    image.set_len((64 << 20) - 1).unwrap();
    let said = ["cut short", "truncate -s 67108864", "tank.img", "terrane check"];
    place.refused("check tank", &said);
    place.refused("mount -o ro tank mnt", &said);
    image.set_len(64 << 20).unwrap();
    assert!(place.out("check tank").contains("nothing found"));
    if !can_mount() {
        return;
    }
    // While it is mounted only its length shows the damage, and the next write extends it again.
    place.run("mount tank mnt", 0);
    let status = || place.json("pool status -j tank")["pools"][0].clone();
    assert_eq!(status()["state"], "healthy");
    image.set_len(40 << 20).unwrap();
    assert_eq!(status()["state"], "damaged");
    image.set_len(64 << 20).unwrap();
    let status = place.out("pool status tank");
    assert!(status.contains("damaged") && status.contains("cut short to 41943040 of 67108864"), "{status}");
    place.run("umount mnt", 0);
}

/// Names of files come from anywhere, and a terminal interprets control characters in them.
#[test]
fn names_of_images_move_no_cursor_and_break_no_line() {
    let place = Place::new("escapes");
    let image = place.path("a\u{1b}[31m\nb.img");
    let run = |words: &str| {
        let output = place.command(words).arg(&image).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    place.run("pool create tank tank.img --size 64M", 0);
    fs::rename(place.path("tank.img"), &image).unwrap();
    place.run("pool forget tank", 0);
    for words in
        ["check", "pool status", "pool status -v", "debug uberblock", "pool import -d", "zones", "fs list"]
    {
        let (out, err) = run(words);
        assert!(!out.contains('\u{1b}') && !err.contains('\u{1b}'), "{words}: {out}{err}");
        assert!(!out.is_empty() && !out.contains("\nb.img"), "{words}: {out}");
    }
    fs::remove_file(&image).unwrap();
    fs::write(&image, "no pool").unwrap();
    let (_, err) = run("check");
    assert!(err.contains("Terrane pool") && !err.contains('\u{1b}'), "{err}");
}

#[test]
fn in_the_foreground_it_stays_and_logs() {
    if !can_mount() {
        return;
    }
    let place = Place::new("foreground");
    place.run("pool create tank tank.img --size 64M", 0);
    let mut child = Running(place.command("mount -f tank mnt").stderr(Stdio::piped()).spawn().unwrap());
    let begun = Instant::now();
    while place.mounts().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::write(place.path("mnt/file"), "x").unwrap();
    kill("-INT", child.0.id());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("mounted on") && said.contains("everything is committed"), "{said}");
    assert!(place.mounts().is_empty());
}

fn content(number: usize) -> Vec<u8> {
    (0..number * 7000).map(|at| (at * number / 13) as u8).collect()
}

fn fill(mnt: &Path) {
    fs::create_dir(mnt.join("dir")).unwrap();
    for number in 0..100 {
        fs::write(mnt.join(format!("dir/{number}")), content(number)).unwrap();
    }
    let mut big = File::create(mnt.join("dir/big")).unwrap();
    for number in 0..100 {
        big.write_all(&content(number)).unwrap();
    }
    symlink("dir/7", mnt.join("link")).unwrap();
    fs::hard_link(mnt.join("dir/8"), mnt.join("second")).unwrap();
    fs::remove_file(mnt.join("dir/99")).unwrap();
}

fn compare(mnt: &Path) -> Result<(), String> {
    for (name, number) in (0..99).map(|number| (format!("dir/{number}"), number)) {
        let found = fs::read(mnt.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        if found != content(number) {
            return Err(name);
        }
    }
    let all: Vec<u8> = (0..100).flat_map(content).collect();
    let right = fs::read(mnt.join("dir/big")).unwrap() == all
        && fs::read(mnt.join("link")).unwrap() == content(7)
        && fs::read(mnt.join("second")).unwrap() == content(8)
        && !mnt.join("dir/99").exists();
    if right { Ok(()) } else { Err("big, link, second or 99".to_owned()) }
}
