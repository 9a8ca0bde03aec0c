//! The program itself, run as users run it: its output, what it refuses by name, and what survives.
//!
//! Each test has its own state directory. Where `/dev/fuse` cannot be used, the tests of mounts say so and
//! pass.

use crate::support::{Running, TestDir, can_mount, kill};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn a_pool_lives_from_create_to_destroy() {
    let dir = TestDir::new("life");
    assert_eq!(dir.out("pool list -H"), "");
    assert!(dir.out("pool status").starts_with("no known pools"));
    dir.run("pool create tank tank.img --size 64M -o compression=zstd-3 -o recordsize=16K", 0);
    assert_eq!(fs::metadata(dir.path("tank.img")).unwrap().len(), 64 << 20);
    let list = &dir.json("pool list --json")["pools"];
    assert_eq!((&list[0]["name"], &list[0]["state"]), (&"tank".into(), &"healthy".into()));
    assert!(list[0]["mountpoint"].is_null() && list[0]["clean"] == true);
    assert!(dir.out("pool list").starts_with("NAME"));
    let status = dir.out("pool status tank");
    assert!(status.contains("tank.img") && status.contains("errors: none"), "{status}");
    assert!(dir.out("fs list").contains("tank"));

    let all = dir.out("fs get all tank");
    assert!(all.contains("zstd-3") && all.contains("16K") && all.contains("default"), "{all}");
    dir.run("fs set atime=off compression=lz4 tank", 0);
    assert_eq!(
        dir.out("fs get -H compression,atime tank.img"),
        "tank\tcompression\tlz4\tlocal\ntank\tatime\toff\tlocal\n"
    );
    dir.misused("fs set atime=off colour=red tank", &["colour", "compression", "recordsize"]);
    dir.misused("fs set atime=sometimes tank", &["atime", "relatime", "sometimes"]);
    dir.refused("fs set recordsize=1M tank", &["recordsize", "256K"]);
    dir.misused("fs get colour tank", &["colour", "compression"]);
    // Counted values are shown, and cannot be set.
    assert_eq!(
        dir.out("fs get -H -o property,value,source compressratio tank"),
        "compressratio\t1.00x\tcounted\n"
    );
    assert_eq!(dir.out("fs get -H -p -o value logicalused,compressratio tank"), "0\n1.00\n");
    let used: u64 = dir.out("fs get -H -p -o value used tank").trim().parse().unwrap();
    assert!(used > 0);
    assert!(all.contains("refcompressratio") && !dir.out("fs get -s local all tank").contains("used"));
    dir.misused("fs set compressratio=2 tank", &["compressratio", "can be set"]);

    let report = dir.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
    assert_eq!(dir.json("check --json tank.img")["pools"][0]["findings"], Value::Array(vec![]));
    dir.run("sync tank", 0);
    dir.refused("umount tank", &["not mounted"]);

    dir.run("pool destroy tank", 0);
    dir.refused("pool status tank", &["tank"]);
    dir.refused("check tank.img", &["tank.img", "Terrane pool"]);
    dir.run("pool create again tank.img", 0);
    dir.run("pool destroy again --delete", 0);
    assert!(!dir.path("tank.img").exists());
}

#[test]
fn what_cannot_become_a_pool_is_refused_by_name() {
    let dir = TestDir::new("refuse");
    let image = |name: &str, at: u64, bytes: &[u8]| {
        let file = File::create(dir.path(name)).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    image("ext4.img", 1024 + 56, b"\x53\xef");
    dir.refused("pool create tank ext4.img", &["ext4.img", "ext4", "--force"]);
    image("data.img", 5000, b"letter");
    dir.refused("pool create tank data.img", &["data.img", "6 nonzero bytes", "--force"]);
    dir.refused("pool create tank mnt", &["mnt", "directory"]);
    dir.refused("pool create tank /dev/null", &["/dev/null"]);
    dir.refused("pool create tank /dev/nothing-here", &["/dev/nothing-here", "device"]);
    dir.refused("pool create tank a.img empty --size 1M", &["a.img", "32 zones"]);
    dir.refused("pool create ../tank a.img --size 64M", &["../tank", "letter"]);
    dir.refused("pool create tank a.img --size 1M", &["a.img", "32 zones"]);
    dir.refused("pool create tank a.img --size 64M --zone-size 3M", &["zone size", "power of two"]);
    dir.refused("pool create tank a.img --size 64M --zone-size 64M", &["32 zones", "--zone-size"]);
    dir.misused("pool create tank a.img --size 64M -o colour=red", &["colour", "compression"]);
    dir.refused("pool create tank a.img --size 64M -o recordsize=1M", &["recordsize", "256K"]);
    dir.misused("pool create tank a.img --size 64M -o compression=zip", &["zip", "zstd"]);
    assert!(!dir.path("a.img").exists(), "a refused pool leaves no file");
    File::create(dir.path("empty.img")).unwrap();
    dir.refused("pool create tank empty.img", &["empty.img", "--size"]);
    dir.run("pool create tank empty.img --size 64M", 0);
    dir.refused("pool create tank a.img --size 64M", &["tank", "empty.img"]);
    dir.refused("pool create other empty.img", &["Terrane pool", "tank", "--force"]);
    dir.refused("pool create other ext4.img --size 32M", &["ext4.img", "64M"]);
    dir.run("pool create other ext4.img --force", 0);

    let held = File::open(dir.path("ext4.img")).unwrap();
    held.lock().unwrap();
    dir.refused("pool create other ext4.img --force", &["ext4.img", &std::process::id().to_string()]);
    dir.refused("check other", &["ext4.img", &std::process::id().to_string()]);

    // Words of other programs do not name files, and no bare word creates one.
    let before = fs::read_dir(dir.path(".")).unwrap().count();
    for word in
        ["mirror", "raidz", "raidz1", "raidz2", "draid2:4d", "spare", "log", "cache", "special", "dedup"]
    {
        dir.refused(&format!("pool create x {word} a.img b.img"), &[word, "zpool", &format!("./{word}")]);
    }
    dir.refused("pool create x a.img --size 64M mirror", &["mirror"]);
    dir.refused("pool create x sda", &["sda", "./sda", "--size"]);
    dir.refused("pool add tank data mirror", &["mirror"]);
    dir.refused("pool add tank data sda", &["./sda"]);
    dir.refused("pool create -n x a.img", &["dry run"]);
    dir.refused("pool create -m /mnt x a.img", &["terrane mount x /mnt"]);
    assert_eq!(fs::read_dir(dir.path(".")).unwrap().count(), before, "nothing was made");
    dir.run("pool create word word --size 64M", 0);
    dir.run("pool create dot ./mirror --size 64M", 0);
    dir.run("pool create -f dot2 data.img", 0);

    for words in ["", "fly", "pool", "pool create", "pool create tank", "fs set atime tank", "mount"] {
        dir.run(words, 2);
    }
    dir.run("pool create tank a.img --size 16Q", 2);
}

#[test]
fn what_is_no_pool_is_refused_by_name() {
    let dir = TestDir::new("nopool");
    dir.refused("pool status nobody", &["nobody", "known pools: none"]);
    dir.refused("check ./nobody.img", &["nobody.img"]);
    dir.refused("check mnt", &["mnt", "directory"]);
    File::create(dir.path("empty.img")).unwrap();
    dir.refused("check empty.img", &["empty.img", "empty"]);
    fs::write(dir.path("text.img"), vec![b'x'; 1 << 20]).unwrap();
    dir.refused("mount text.img mnt", &["text.img", "nonzero bytes"]);
    dir.refused("pool destroy text.img", &["text.img", "Terrane pool"]);
    File::create(dir.path("zeros.img")).unwrap().set_len(64 << 20).unwrap();
    dir.refused("debug uberblock zeros.img", &["zeros.img", "nothing but zeros"]);

    dir.run("pool create tank tank.img --size 64M", 0);
    File::options().write(true).open(dir.path("tank.img")).unwrap().set_len(20 << 20).unwrap();
    dir.refused("mount tank mnt", &["64 zones", "cut short"]);
    fs::remove_file(dir.path("tank.img")).unwrap();
    assert!(dir.out("pool list").contains("unavailable"));
    dir.refused("pool destroy tank", &["not found", "forgotten"]);
    assert_eq!(dir.out("pool list -H"), "");
}

#[test]
fn the_format_can_be_looked_at() {
    let dir = TestDir::new("debug");
    dir.run("pool create tank tank.img --size 64M", 0);
    let ubers = dir.json("debug uberblock tank --json");
    assert_eq!(ubers["labels"][0]["pool"], "tank");
    assert_eq!(ubers["uberblocks"][0]["clean"], true);
    let zones = dir.json("debug zone tank --json");
    let seq = zones["zones"][0]["seq"].as_u64().unwrap();
    assert!(!dir.json(&format!("debug zone tank {seq} --json"))["entries"].as_array().unwrap().is_empty());
    dir.refused("debug zone tank 68719476735", &["68719476735", "none of that number"]);
    let master = dir.json("debug zap tank 1 --json");
    let root = master["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == "ROOT").unwrap();
    let root = root["value"].as_str().unwrap();
    assert_eq!(dir.json(&format!("debug dnode tank {root} --json"))["object"]["kind"], "Directory");
    assert!(dir.out("debug dnode tank").contains("Master"));
    assert!(dir.out("debug zap tank 1 --meta").contains("root_dataset"));
    assert!(!dir.json("debug tree tank 0 --json")["pointers"].as_array().unwrap().is_empty());
    dir.refused("debug dnode tank 999999", &["999999"]);
    dir.refused("debug zap tank 2 --meta", &["Objset"]);
    assert!(dir.out("debug uberblock tank").contains("INCARNATION"));
}

#[test]
fn damage_is_found_and_named() {
    let dir = TestDir::new("damage");
    dir.run("pool create tank tank.img --size 64M", 0);
    let rows = &dir.json("debug tree tank 0 --json")["pointers"];
    let row =
        rows.as_array().unwrap().iter().find(|row| row["pointer"].as_str().unwrap().contains(':')).unwrap();
    // Both copies, in zones whose position the zone table gives.
    for addr in row["pointer"].as_str().unwrap().split(' ') {
        let (seq, offset) = addr.split_once(':').unwrap();
        let seq: u64 = seq.parse().unwrap();
        let zones = &dir.json("debug zone tank --json")["zones"];
        let zone = zones.as_array().unwrap().iter().find(|zone| zone["seq"] == seq).unwrap();
        let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap();
        let at = zone["zone"].as_u64().unwrap() * (1 << 20) + offset;
        let image = File::options().write(true).open(dir.path("tank.img")).unwrap();
        image.write_all_at(b"not what was written", at).unwrap();
    }
    let output = dir.command("check tank").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("tank") && !said.contains("panicked"), "{said}");
}

#[test]
fn files_survive_umount_and_kill() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("mount");
    let mnt = dir.path("mnt");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.refused("mount tank mnt -o zfsutil", &["zfsutil", "memory=SIZE"]);
    dir.refused("mount tank mnt -o memory=1M", &["memory=1M", "128M"]);
    dir.refused("mount tank nowhere", &["nowhere"]);
    dir.refused("mount tank .", &["tank.img", "own mount"]);
    dir.run("mount tank mnt -o noatime,commit=1,memory=128M", 0);
    dir.refused("mount tank mnt", &["mounted on", "already"]);
    dir.refused("pool destroy tank", &["mounted on"]);
    assert_eq!(dir.json("pool list -j")["pools"][0]["mountpoint"], mnt.to_str().unwrap());

    fill(&mnt);
    assert_eq!(compare(&mnt), Ok(()));
    dir.run("fs set compression=zstd-1 tank", 0);
    assert!(dir.out("fs get compression tank").contains("zstd-1"));
    dir.run("sync tank", 0);
    let report = dir.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
    assert!(dir.out("debug uberblock tank").contains("TXG"));
    dir.refused("debug dnode tank 999999", &["999999"]);

    let busy = File::open(mnt.join("dir/big")).unwrap();
    dir.refused("umount tank", &["busy"]);
    drop(busy);
    dir.run("umount mnt", 0);
    assert!(dir.mounts().is_empty());
    assert!(dir.out("check tank").contains("nothing found"));

    dir.run("mount tank.img mnt -o ro", 0);
    assert_eq!(compare(&mnt), Ok(()));
    assert!(fs::write(mnt.join("new"), "x").is_err());
    dir.run("umount tank", 0);

    dir.run("mount tank mnt", 0);
    fs::write(mnt.join("promised"), "kept").unwrap();
    File::open(mnt.join("promised")).unwrap().sync_all().unwrap();
    dir.kill_all();
    // Over the dead mount that was left behind.
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read_to_string(mnt.join("promised")).unwrap(), "kept");
    assert_eq!(compare(&mnt), Ok(()));
    dir.run("umount tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn what_was_killed_and_not_touched_since_can_be_synced_and_unmounted() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("untouched");
    dir.run("pool create tank tank.img --size 64M", 0);
    for words in ["sync tank", "umount tank"] {
        dir.run("mount tank mnt", 0);
        dir.kill_all();
        dir.run("mount tank mnt", 0);
        let daemon = dir.daemon_pid();
        let mut command = Running(dir.command(words).spawn().unwrap());
        let begun = Instant::now();
        while command.0.try_wait().unwrap().is_none() {
            if begun.elapsed() > Duration::from_secs(20) {
                kill("-KILL", daemon);
                panic!("terrane {words} does not end: {}", dir.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(command.0.wait().unwrap().success());
        if words.starts_with("sync") {
            dir.run("umount tank", 0);
        }
    }
}

#[test]
fn every_way_to_unmount_ends_clean() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("ways");
    let mnt = dir.path("mnt");
    dir.run("pool create tank tank.img --size 64M", 0);
    for way in ["umount", "fusermount3", "-TERM", "-INT", "busy"] {
        dir.run("mount tank mnt", 0);
        fs::write(mnt.join(way), way).unwrap();
        match way {
            "umount" => dir.unmount_by(&["umount"]),
            "fusermount3" => dir.unmount_by(&["fusermount3", "-u"]),
            "busy" => {
                let open = File::open(mnt.join(way)).unwrap();
                kill("-TERM", dir.daemon_pid());
                // Longer than a user has before the lazy unmount.
                std::thread::sleep(Duration::from_secs(6));
                assert!(dir.mounts().is_empty(), "it should have left the tree");
                drop(open);
            }
            signal => kill(signal, dir.daemon_pid()),
        }
        // `check` asks the daemon, or waits for its exit: no need to wait here.
        if matches!(way, "umount" | "fusermount3") {
            assert!(dir.out("check tank").contains("nothing found"));
        }
        dir.wait_until_free();
        let status = &dir.json("pool status tank --json")["pools"];
        assert_eq!((&status[0]["clean"], &status[0]["mountpoint"]), (&true.into(), &Value::Null), "{way}");
    }
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 5);
    dir.run("umount mnt", 0);
}

/// A user who can read the image can read all files in it, whatever their modes say.
#[test]
fn images_are_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TestDir::new("modes");
    dir.run("pool create tank tank.img b.img --size 64M", 0);
    dir.run("pool add tank cache fast.img --size 64M", 0);
    dir.run("pool add tank special c.img --size 64M", 0);
    for image in ["tank.img", "b.img", "c.img", "fast.img"] {
        let mode = fs::metadata(dir.path(image)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{image}");
    }
    if !can_mount() {
        return;
    }
    let said = |words: &str| String::from_utf8(dir.run(words, 0).stderr).unwrap();
    assert_eq!(said("mount tank mnt"), "");
    dir.run("umount mnt", 0);
    for (image, mode) in [("b.img", 0o640), ("fast.img", 0o602)] {
        fs::set_permissions(dir.path(image), fs::Permissions::from_mode(mode)).unwrap();
    }
    let warned = said("mount tank mnt");
    assert!(warned.contains("b.img: mode 0640 lets others read"), "{warned}");
    assert!(
        warned.contains("fast.img: mode 0602 lets others write") && warned.lines().count() == 2,
        "{warned}"
    );
    dir.run("umount mnt", 0);
}

#[test]
fn an_image_that_was_cut_short_is_named_with_the_way_back() {
    let dir = TestDir::new("cut");
    dir.run("pool create tank tank.img --size 64M", 0);
    let image = File::options().write(true).open(dir.path("tank.img")).unwrap();
    image.set_len((64 << 20) - 1).unwrap();
    let said = ["cut short", "truncate -s 67108864", "tank.img", "terrane check"];
    dir.refused("check tank", &said);
    dir.refused("mount -o ro tank mnt", &said);
    image.set_len(64 << 20).unwrap();
    assert!(dir.out("check tank").contains("nothing found"));
    if !can_mount() {
        return;
    }
    // While it is mounted only its length shows the damage, and the next write extends it again.
    dir.run("mount tank mnt", 0);
    let status = || dir.json("pool status -j tank")["pools"][0].clone();
    assert_eq!(status()["state"], "healthy");
    image.set_len(40 << 20).unwrap();
    assert_eq!(status()["state"], "damaged");
    image.set_len(64 << 20).unwrap();
    let status = dir.out("pool status tank");
    assert!(status.contains("damaged") && status.contains("truncated to 41943040 of 67108864"), "{status}");
    dir.run("umount mnt", 0);
}

/// Names of files come from anywhere, and a terminal interprets control characters in them.
#[test]
fn names_of_images_move_no_cursor_and_break_no_line() {
    let dir = TestDir::new("escapes");
    let image = dir.path("a\u{1b}[31m\nb.img");
    let run = |words: &str| {
        let output = dir.command(words).arg(&image).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    dir.run("pool create tank tank.img --size 64M", 0);
    fs::rename(dir.path("tank.img"), &image).unwrap();
    dir.run("pool forget tank", 0);
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
    let dir = TestDir::new("foreground");
    dir.run("pool create tank tank.img --size 64M", 0);
    let mut child = Running(dir.command("mount -f tank mnt").stderr(Stdio::piped()).spawn().unwrap());
    let begun = Instant::now();
    while dir.mounts().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::write(dir.path("mnt/file"), "x").unwrap();
    kill("-INT", child.0.id());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("mounted on") && said.contains("all changes committed"), "{said}");
    assert!(dir.mounts().is_empty());
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
