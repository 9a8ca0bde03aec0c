//! A server is killed again and again, and programs go on as if nothing had happened.

use crate::support::{TestDir, can_mount};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn new_pool(name: &str, options: &str) -> Option<TestDir> {
    if !can_mount() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 512M", 0);
    // Nothing is committed by the clock.
    dir.run(&format!("mount tank mnt -o commit=3600{options}"), 0);
    Some(dir)
}

fn lost_files(dir: &TestDir) -> usize {
    dir.json("pool status -j tank")["pools"][0]["lost_files"].as_array().unwrap().len()
}

fn end(dir: &TestDir) {
    assert_eq!(lost_files(dir), 0);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// What programs see of a tree: of each path its type, mode, owner, links, size, time and number.
fn listing(root: &Path) -> Vec<String> {
    let (mut all, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let (ino, mode, links, size) = (meta.ino(), meta.mode(), meta.nlink(), meta.size());
            let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
            let text = format!("{} {ino} {mode:o} {links} {size} {times:?}", path.display());
            if meta.is_dir() {
                dirs.push(path);
            }
            all.push(text);
        }
    }
    all.sort();
    all
}

#[test]
fn a_killed_server_costs_nothing() {
    let Some(dir) = new_pool("kept-all", "") else { return };
    let at = |name: &str| dir.path("mnt").join(name);
    fs::create_dir(at("dir")).unwrap();
    let mut open = OpenOptions::new().append(true).create(true).open(at("dir/log")).unwrap();
    for round in 0..4 {
        for nth in 0..40 {
            fs::write(at(&format!("dir/{round}-{nth}")), vec![nth as u8; 5000 * (nth % 5)]).unwrap();
        }
        fs::rename(at(&format!("dir/{round}-1")), at("renamed")).unwrap();
        fs::hard_link(at(&format!("dir/{round}-2")), at(&format!("link-{round}"))).unwrap();
        symlink("anywhere", at(&format!("symlink-{round}"))).unwrap();
        fs::remove_file(at(&format!("dir/{round}-3"))).unwrap();
        fs::set_permissions(at(&format!("dir/{round}-4")), fs::Permissions::from_mode(0o4711)).unwrap();
        let cut = OpenOptions::new().write(true).open(at(&format!("dir/{round}-9"))).unwrap();
        cut.set_len(777).unwrap();
        fs::copy(at(&format!("dir/{round}-8")), at(&format!("copy-{round}"))).unwrap();
        // Open, without a name.
        let nameless = File::create_new(at("nameless")).unwrap();
        fs::remove_file(at("nameless")).unwrap();
        nameless.write_all_at(b"still here", 0).unwrap();
        writeln!(open, "round {round}").unwrap();
        let before = listing(&dir.path("mnt"));
        dir.kill_server();
        assert_eq!(listing(&dir.path("mnt")), before, "round {round}");
        let mut content = [0; 10];
        nameless.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"still here");
        nameless.write_all_at(b"and on", 0).unwrap();
        nameless.sync_all().unwrap();
        for nth in (0..40).filter(|nth| ![1, 3, 9].contains(nth)) {
            let content = fs::read(at(&format!("dir/{round}-{nth}"))).unwrap();
            assert_eq!(content, vec![nth as u8; 5000 * (nth % 5)], "{round}-{nth}");
        }
        assert_eq!(fs::read(at(&format!("copy-{round}"))).unwrap(), vec![8; 15000]);
        open.sync_all().unwrap();
        File::open(at("dir")).unwrap().sync_all().unwrap();
    }
    let log = fs::read_to_string(at("dir/log")).unwrap();
    assert_eq!(log, "round 0\nround 1\nround 2\nround 3\n");
    drop(open);
    end(&dir);
}

/// While a program writes more than the ring holds, changes names and syncs, its server dies every moment.
#[test]
fn programs_notice_no_end_of_a_server() {
    let Some(dir) = new_pool("kept-busy", ",memory=128M") else { return };
    let mnt = dir.path("mnt");
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0u64;
            while !done.load(Ordering::Relaxed) {
                let (new, name) = (mnt.join("new"), mnt.join(format!("file-{}", round % 20)));
                let mut file = File::create(&new).unwrap();
                for _ in 0..4 {
                    file.write_all(&round.to_le_bytes().repeat(40_000)).unwrap();
                }
                if round.is_multiple_of(3) {
                    file.sync_all().unwrap();
                }
                fs::rename(&new, &name).unwrap();
                round += 1;
            }
            round
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(6) {
            std::thread::sleep(Duration::from_millis(700));
            dir.kill_server();
        }
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(rounds > 40, "{rounds} files");
    for name in 0..20u64 {
        let newest = (0..rounds).rev().find(|round| round % 20 == name).unwrap();
        let content = fs::read(mnt.join(format!("file-{name}"))).unwrap();
        assert!(content == newest.to_le_bytes().repeat(160_000), "file-{name} of round {newest}");
    }
    end(&dir);
}

/// What was synced is in the log, whatever is kept: server and supervisor die, and the pool is mounted anew.
#[test]
fn what_was_synced_is_there_after_server_and_supervisor_are_killed() {
    let Some(dir) = new_pool("kept-log", "") else { return };
    let at = |name: &str| dir.path("mnt").join(name);
    fs::write(at("first"), "first").unwrap();
    File::open(at("first")).unwrap().sync_all().unwrap();
    for nth in 0..50 {
        let mut file = File::create(at(&format!("synced-{nth}"))).unwrap();
        file.write_all(&[nth; 3000]).unwrap();
        file.sync_all().unwrap();
    }
    fs::rename(at("synced-7"), at("moved")).unwrap();
    File::open(dir.path("mnt")).unwrap().sync_all().unwrap();
    let txg = dir.json("pool status -j tank")["pools"][0]["txg"].as_u64();
    dir.kill_all();
    dir.run("mount tank mnt", 0);
    let log = fs::read_to_string(dir.path("state/tank.log")).unwrap();
    assert!(log.contains("changes replayed that no commit contained"), "{log}");
    for nth in (0..50).filter(|nth| *nth != 7) {
        assert_eq!(fs::read(at(&format!("synced-{nth}"))).unwrap(), [nth; 3000]);
    }
    assert_eq!(fs::read(at("moved")).unwrap(), [7; 3000]);
    assert!(dir.json("pool status -j tank")["pools"][0]["txg"].as_u64() > txg);
    end(&dir);
}

/// A mount is given up after ten servers that fail in a row, not after ten that were killed while they served.
#[test]
fn kills_of_servers_that_serve_do_not_end_the_mount() {
    let Some(dir) = new_pool("kept-often", "") else { return };
    let mut log = File::create(dir.path("mnt/log")).unwrap();
    for round in 0..12 {
        std::thread::sleep(Duration::from_millis(1200));
        writeln!(log, "{round}").unwrap();
        dir.kill_server();
    }
    drop(log);
    assert_eq!(fs::read_to_string(dir.path("mnt/log")).unwrap().lines().count(), 12);
    end(&dir);
}

/// The server keeps nothing for a successor, and no program calls `fsync`.
#[test]
fn sync_always_makes_each_call_of_a_mount_durable() {
    let Some(dir) = new_pool("kept-always", ",crashproof=off") else { return };
    let mnt = dir.path("mnt");
    let at = |name: &str| mnt.join(name);
    // At once, on a data set that is mounted, and for files that are open.
    let mut open = OpenOptions::new().append(true).create(true).open(at("open")).unwrap();
    dir.run("fs set sync=always tank", 0);
    for round in 0..2 {
        let own = at(&format!("dir-{round}"));
        fs::create_dir(&own).unwrap();
        writeln!(open, "round {round}").unwrap();
        fs::write(own.join("small"), "some bytes").unwrap();
        fs::write(own.join("large"), vec![7; 3_000_000]).unwrap();
        let cut = OpenOptions::new().write(true).open(own.join("large")).unwrap();
        cut.set_len(1_234_567).unwrap();
        cut.write_all_at(b"over", 1000).unwrap();
        fs::set_permissions(own.join("small"), fs::Permissions::from_mode(0o4711)).unwrap();
        fs::copy(own.join("large"), own.join("copy")).unwrap();
        fs::rename(own.join("copy"), own.join("moved")).unwrap();
        fs::hard_link(own.join("small"), own.join("linked")).unwrap();
        symlink("anywhere", own.join("symlink")).unwrap();
        fs::write(own.join("gone"), "").unwrap();
        fs::remove_file(own.join("gone")).unwrap();
        let before = listing(&mnt);
        dir.kill_all();
        dir.run("mount tank mnt -o commit=3600,crashproof=off", 0);
        assert_eq!(listing(&mnt), before, "round {round}");
        let mut large = vec![7; 1_234_567];
        large[1000..1004].copy_from_slice(b"over");
        assert!(
            fs::read(own.join("large")).unwrap() == large && fs::read(own.join("moved")).unwrap() == large
        );
        assert_eq!(fs::read(own.join("linked")).unwrap(), b"some bytes");
        open = OpenOptions::new().append(true).open(at("open")).unwrap();
    }
    assert_eq!(fs::read_to_string(at("open")).unwrap(), "round 0\nround 1\n");
    drop(open);
    end(&dir);
}

#[test]
fn sync_disabled_as_an_option_of_a_mount_leaves_durability_to_commits() {
    let Some(dir) = new_pool("kept-disabled", ",crashproof=off,sync,sync=disabled") else { return };
    let row = dir.out("fs get sync -H tank");
    assert!(row.contains("disabled") && row.contains("temporary"), "{row}");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = table.lines().find(|line| line.contains(dir.path("mnt").to_str().unwrap())).unwrap();
    assert!(ours.contains(",sync,"), "the flag of mount(8) is another thing: {ours}");
    let write = |name: &str| {
        let mut file = File::create(dir.path("mnt").join(name)).unwrap();
        file.write_all(b"bytes").unwrap();
        file.sync_all().unwrap();
    };
    write("committed");
    dir.run("sync tank", 0);
    write("lost");
    dir.kill_all();
    // The option ended with the mount.
    dir.run("mount tank mnt -o commit=3600,crashproof=off", 0);
    assert_eq!(fs::read(dir.path("mnt/committed")).unwrap(), b"bytes");
    assert!(!dir.path("mnt/lost").exists());
    write("synced");
    dir.kill_all();
    dir.run("mount tank mnt -o commit=3600", 0);
    assert_eq!(fs::read(dir.path("mnt/synced")).unwrap(), b"bytes");
    end(&dir);
}

/// With `sync=always` an exchange is done long before it is answered, so most kills fall in between.
#[test]
fn exchanges_are_done_once_while_servers_are_killed() {
    let Some(dir) = new_pool("kept-exchange", ",sync=always") else { return };
    let mnt = dir.path("mnt");
    let names = ["a", "b"].map(|name| mnt.join(name));
    names.iter().for_each(|path| fs::write(path, path.to_str().unwrap()).unwrap());
    let inodes = || names.each_ref().map(|path| fs::metadata(path).unwrap().ino());
    let ([mut a, mut b], done) = (inodes(), AtomicBool::new(false));
    let count = std::thread::scope(|scope| {
        let exchanger = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &names[0], CWD, &names[1], RenameFlags::EXCHANGE).unwrap();
                (a, b) = (b, a);
                count += 1;
                assert_eq!(inodes(), [a, b], "exchange {count}");
            }
            count
        });
        // A server that served for less than a second counts as one that fails, and the next one waits.
        for _ in 0..7 {
            std::thread::sleep(Duration::from_millis(1200));
            dir.kill_server();
        }
        done.store(true, Ordering::Relaxed);
        exchanger.join().unwrap()
    });
    assert!(count > 7, "{count} exchanges");
    end(&dir);
}
