//! The life of a mount: servers, mount points and flags change.

use crate::support::{TestDir, can_mount, is_root, kill};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

#[test]
fn a_mount_outlives_its_server() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("outlive");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt -o crashproof=off", 0);
    let mnt = dir.path("mnt");
    let row = dir.json_rows("mounts --json").remove(0);
    let since = row["since"].clone();
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let (_, section) = page.split_once("\n## mounts: mounts\n").unwrap();
    let table = section.lines().take_while(|line| !line.starts_with("## "));
    let mut keys: Vec<&str> = table.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    keys.sort_unstable();
    assert_eq!(row.as_object().unwrap().keys().collect::<Vec<_>>(), keys, "docs/json.md");
    fs::write(mnt.join("kept"), "kept").unwrap();
    let kept = File::options().read(true).write(true).open(mnt.join("kept")).unwrap();
    let gone = File::options().read(true).write(true).create_new(true).open(mnt.join("gone")).unwrap();
    gone.write_all_at(b"no name", 0).unwrap();
    fs::remove_file(mnt.join("gone")).unwrap();
    let untold = File::options().read(true).write(true).create_new(true).open(mnt.join("untold")).unwrap();
    kept.sync_all().unwrap();

    // Killed with uncommitted changes: they are lost, programs that ask for them get an error, and others
    // continue.
    let first = dir.daemon_pid();
    fs::write(mnt.join("lost"), "lost").unwrap();
    kept.write_all_at(b"KEPT", 0).unwrap();
    untold.write_all_at(b"UNTOLD", 0).unwrap();
    kill("-KILL", first);
    let mut buf = [0; 7];
    kept.read_exact_at(&mut buf[..4], 0).unwrap();
    assert!(fs::read(mnt.join("lost")).is_err(), "it was not committed");
    gone.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"no name");
    let eio = |outcome: std::io::Result<()>| assert_eq!(outcome.unwrap_err().raw_os_error(), Some(5));
    eio(kept.sync_all());
    eio(kept.sync_all());
    eio(kept.write_all_at(b"Kept", 0));
    assert_eq!(fs::read(mnt.join("kept")).unwrap(), b"kept");
    kept.write_all_at(b"Kept", 0).unwrap();
    kept.sync_all().unwrap();
    let second = dir.successor_of(first);

    // Replaced: nothing is lost, and no program gets an error.
    kept.write_all_at(b"done", 0).unwrap();
    fs::write(mnt.join("new"), "new").unwrap();
    dir.run("restart tank", 0);
    let third = dir.successor_of(second);
    assert_eq!(fs::read(mnt.join("kept")).unwrap(), b"done");
    assert_eq!(fs::read(mnt.join("new")).unwrap(), b"new");
    kept.sync_all().unwrap();
    gone.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"no name");
    // A program that did not get the error yet still gets it.
    eio(untold.sync_all());
    dir.run("restart --all", 0);
    eio(untold.sync_all());
    let row = |dir: &TestDir| dir.json("pool status -j tank")["pools"][0]["lost_files"].clone();
    assert_eq!(row(&dir).as_array().unwrap().len(), 2);
    assert!(dir.out("pool clear tank").contains("2 files"));
    untold.sync_all().unwrap();
    assert_eq!(row(&dir).as_array().unwrap().len(), 0);
    let row = dir.json_rows("mounts --json").remove(0);
    assert!(row["pid"] != third && row["since"] == since && row["state"] == "mounted", "{row}");
    drop((kept, gone, untold));
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    dir.refused("restart tank", &["not mounted"]);
}

/// A successor opens the mounted device, and not what its path leads to by then.
#[test]
fn a_mount_stays_with_its_image_wherever_that_goes() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("moved");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    fs::write(mnt.join("old"), "old").unwrap();
    dir.run("sync tank", 0);
    fs::copy(dir.path("tank.img"), dir.path("backup.img")).unwrap();
    fs::write(mnt.join("new"), "new").unwrap();
    dir.run("sync tank", 0);

    // Moved: it is found, and the registry is updated.
    fs::rename(dir.path("tank.img"), dir.path("moved.img")).unwrap();
    dir.run("restart tank", 0);
    assert_eq!(fs::read(mnt.join("new")).unwrap(), b"new");
    assert!(fs::read_to_string(dir.path("state/pools")).unwrap().contains("/moved.img\n"));
    fs::rename(dir.path("moved.img"), dir.path("tank.img")).unwrap();
    kill("-KILL", dir.daemon_pid());
    assert_eq!(fs::read(mnt.join("new")).unwrap(), b"new");
    dir.run("umount tank", 0);

    // Replaced by an older copy: the mount keeps showing its own device for as long as it exists.
    dir.run("mount tank mnt", 0);
    fs::rename(dir.path("backup.img"), dir.path("tank.img")).unwrap();
    dir.run("restart --all", 0);
    assert_eq!(fs::read(mnt.join("new")).unwrap(), b"new");
    fs::write(mnt.join("newer"), "newer").unwrap();
    let newer = File::open(mnt.join("newer")).unwrap();
    newer.sync_all().unwrap();
    let server = dir.json_rows("mounts --json")[0]["pid"].as_u64().unwrap() as u32;
    kill("-KILL", server);
    assert_eq!(fs::read(mnt.join("newer")).unwrap(), b"newer");
    assert!(dir.log().contains("removed or replaced"), "{}", dir.log());
    drop(newer);
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt", 0);
    assert!(mnt.join("old").exists() && !mnt.join("new").exists(), "the backup took its place");
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// The other devices of a pool are found by their paths, and a copy is not taken for its original.
#[test]
fn a_successor_mixes_no_copy_of_a_device_with_the_others() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("replaced");
    dir.run("pool create tank tank.img b.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    // A device that was added counts as mounted.
    dir.run("pool add tank data c.img --size 64M", 0);
    fs::write(mnt.join("file"), "file").unwrap();
    dir.run("restart tank", 0);
    dir.run("sync tank", 0);
    for name in ["b.img", "c.img"] {
        fs::copy(dir.path(name), dir.path("copy.img")).unwrap();
        fs::rename(dir.path(name), dir.path("away.img")).unwrap();
        fs::rename(dir.path("copy.img"), dir.path(name)).unwrap();
        kill("-KILL", dir.daemon_pid());
        let begun = Instant::now();
        while !dir.log().contains("a copy of it") {
            assert!(begun.elapsed().as_secs() < 20, "{}", dir.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        // Moved back before the mount is given up.
        fs::rename(dir.path("away.img"), dir.path(name)).unwrap();
        assert_eq!(fs::read(mnt.join("file")).unwrap(), b"file");
        dir.run("restart tank", 0);
        fs::write(dir.path("state/tank.log"), "").unwrap();
    }
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// The kernel reuses the number of a mount that is gone for the next one, of any pool. A command that trusts
/// a daemon that is about to exit would show another pool.
#[test]
fn a_number_that_changed_hands_is_not_taken_for_a_mount() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("number");
    dir.run("pool create tank tank.img --size 64M", 0);
    let mnt = dir.path("mnt");
    let socket = dir.path("state/tank.sock");
    dir.run("mount tank mnt", 0);
    let mut caller = BufReader::new(UnixStream::connect(&socket).unwrap());
    let mut greeting = String::new();
    caller.read_line(&mut greeting).unwrap();
    drop(caller);

    // The mount has ended. Its server is stopped and could not notice yet; nor does it greet a new caller.
    let server = dir.daemon_pid();
    kill("-STOP", server);
    let unmounted = std::process::Command::new("fusermount3").arg("-u").arg(&mnt).status().unwrap();
    let callers: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    kill("-CONT", server);
    assert!(unmounted.success());
    for mut caller in callers {
        let mut said = String::new();
        // Disconnected, perhaps before it was accepted.
        let _ = caller.read_to_string(&mut said);
        assert_eq!(said, "", "a greeting without a mount");
    }
    let is_silent = || {
        let begun = Instant::now();
        while socket.exists() {
            assert!(begun.elapsed().as_secs() < 20, "the daemon does not end: {}", dir.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    };

    // Another pool has the number, and the daemon that greets with it has exited when the mount table has
    // been read.
    fs::create_dir(dir.path("others")).unwrap();
    dir.run("pool create west west.img --size 64M", 0);
    is_silent();
    dir.run("mount west others", 0);
    fs::write(dir.path("others/foreign"), "").unwrap();
    let dev = fs::metadata(dir.path("others")).unwrap().dev();
    let mut said: serde_json::Value = serde_json::from_str(&greeting).unwrap();
    said["dev"] = format!("{}:{}", libc::major(dev), libc::minor(dev)).into();
    for command in ["mount tank mnt", "umount others"] {
        is_silent();
        let listener = UnixListener::bind(&socket).unwrap();
        let (words, path) = (format!("{said}\n"), socket.clone());
        let leaving = std::thread::spawn(move || {
            let (mut caller, _) = listener.accept().unwrap();
            fs::remove_file(path).unwrap();
            // A caller that only checked for a daemon may have gone.
            let _ = caller.write_all(words.as_bytes());
            drop(listener);
            let mut question = String::new();
            let _ = caller.read_to_string(&mut question);
            question
        });
        dir.run(command, 0);
        // The mount itself names its pool, so the other pool's daemon may not be called at all.
        drop(UnixStream::connect(&socket));
        assert_eq!(leaving.join().unwrap(), "", "asked by {command}");
        assert!(!mnt.join("foreign").exists(), "{command} shows another pool");
        if command == "mount tank mnt" {
            dir.run("umount mnt", 0);
        }
    }
    assert!(dir.mounts().is_empty());
}

/// For example another machine's: two pools with one name, of which only one can be mounted at a time.
#[test]
fn another_pool_of_the_name_is_not_taken_for_the_one_that_is_mounted() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("namesake");
    dir.run("pool create tank tank.img --size 64M", 0);
    let mut elsewhere = dir.command("pool create tank other.img --size 64M");
    elsewhere.env("TERRANE_STATE_DIR", dir.path("elsewhere"));
    assert!(elsewhere.status().unwrap().success());
    fs::create_dir(dir.path("more")).unwrap();
    dir.run("mount tank mnt", 0);
    dir.refused("mount ./other.img more", &["other.img", "name", "tank.img", "unmount"]);
    assert_eq!(dir.mounts(), [dir.path("mnt")]);
    dir.run("pool destroy ./other.img", 0);
    dir.refused("pool destroy ./tank.img", &["is mounted"]);
    dir.run("umount mnt", 0);
}

/// The kernel asks for ACLs for the life of the mount, and never again for extended attributes once it was
/// told that there are none.
#[test]
fn a_successor_keeps_what_was_agreed_on_with_the_kernel() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("agreed");
    dir.run("pool create tank tank.img --size 64M", 0);
    let shown = || dir.out("fs get -H -o value,source acltype,xattr tank");
    dir.run("mount tank mnt", 0);
    for word in ["acltype=off", "xattr=off"] {
        let said = dir.run(&format!("fs set {word} tank"), 0);
        assert!(String::from_utf8_lossy(&said.stderr).contains("at the next mount"), "{said:?}");
    }
    dir.run("restart tank", 0);
    assert_eq!(shown(), "posix\ttemporary\nsa\ttemporary\n");
    dir.run("umount mnt", 0);

    dir.run("mount tank mnt", 0);
    assert_eq!(shown(), "off\tlocal\noff\tlocal\n");
    dir.run("fs inherit acltype tank", 0);
    dir.run("fs set xattr=dir tank", 0);
    assert!(dir.run("fs set atime=on tank", 0).stderr.is_empty(), "this one holds at once");
    dir.run("restart tank", 0);
    // Without extended attributes no ACLs were negotiated.
    assert_eq!(shown(), "off\ttemporary\noff\ttemporary\n");
    dir.run("umount mnt", 0);
    assert_eq!(shown(), "posix\tdefault\ndir\tlocal\n");

    dir.run("mount -o no_default_permissions tank mnt", 0);
    assert_eq!(shown(), "off\ttemporary\ndir\tlocal\n");
    dir.run("umount mnt", 0);
}

/// Only the first server rewinds: its successors continue from their predecessor's state.
#[test]
fn a_mount_that_rewound_to_an_older_txg_keeps_what_is_written_from_then_on() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("went-back");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    fs::write(dir.path("mnt/old"), "old").unwrap();
    dir.run("sync tank", 0);
    let txg = dir.json("pool status tank -j")["pools"][0]["txg"].as_u64().unwrap();
    fs::write(dir.path("mnt/given up"), "given up").unwrap();
    dir.run("umount mnt", 0);
    dir.run(&format!("mount -o rewind={txg} tank mnt"), 0);
    assert!(!dir.path("mnt/given up").exists() && dir.path("mnt/old").exists());
    fs::write(dir.path("mnt/new"), "new").unwrap();
    fs::File::open(dir.path("mnt/new")).unwrap().sync_all().unwrap();
    dir.run("restart tank", 0);
    assert_eq!(fs::read_to_string(dir.path("mnt/new")).unwrap(), "new");
    for at in 0..6 {
        fs::write(dir.path(&format!("mnt/{at}")), "more").unwrap();
        dir.run("sync tank", 0);
    }
    dir.run("restart tank", 0);
    assert_eq!(fs::read_to_string(dir.path("mnt/5")).unwrap(), "more");
    // Its image was renamed meanwhile.
    fs::rename(dir.path("tank.img"), dir.path("moved.img")).unwrap();
    dir.run("pool export tank", 0);
    assert!(!dir.path("mnt/new").exists(), "it was unmounted");
    assert_eq!(dir.json("pool import -d . -j")["pools"][0]["clean"], true);
}

#[test]
fn a_pool_is_seen_at_several_places() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("places");
    fs::create_dir(dir.path("more")).unwrap();
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    dir.refused("mount tank mnt", &["already"]);
    dir.refused("mount tank more -o compression=zstd-3", &["compression=zstd-3", "second mount point"]);
    dir.run("mount tank more -o ro,nosuid", 0);
    fs::write(dir.path("mnt/file"), "one").unwrap();
    assert_eq!(fs::read(dir.path("more/file")).unwrap(), b"one");
    fs::write(dir.path("mnt/file"), "second").unwrap();
    assert_eq!(fs::read(dir.path("more/file")).unwrap(), b"second");
    assert!(fs::write(dir.path("more/file"), "no").is_err());
    let rows = dir.json_rows("mounts --json");
    assert_eq!((rows.len(), &rows[0]["pid"]), (2, &rows[1]["pid"]));
    assert!(rows[1]["options"].as_str().unwrap().starts_with("ro,nosuid"), "{}", rows[1]);
    // One is unmounted, and the other stays, whichever it is.
    dir.run("restart tank", 0);
    dir.run("umount mnt", 0);
    assert_eq!(fs::read(dir.path("more/file")).unwrap(), b"second");
    dir.run("restart tank", 0);
    dir.run("mount tank mnt", 0);
    fs::write(dir.path("mnt/file"), "third").unwrap();
    dir.run("umount tank", 0);
    assert!(dir.mounts().is_empty());
    dir.wait_until_free();
    assert!(dir.out("check tank").contains("nothing found"));

    // It is found, and synced, at its current mount point.
    dir.run("mount tank mnt", 0);
    dir.run("mount tank more", 0);
    dir.run("umount mnt", 0);
    fs::write(dir.path("more/file"), "fourth").unwrap();
    assert!(dir.out("stat more/file").contains("records"), "{}", dir.out("stat more/file"));
    dir.run("sync tank", 0);
    dir.kill_all();
    dir.run("umount more", 0);
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read(dir.path("mnt/file")).unwrap(), b"fourth");
    dir.run("umount tank", 0);

    // A pool has precedence over a directory of its name.
    dir.run("pool create west west.img --size 64M", 0);
    fs::create_dir_all(dir.path("west")).unwrap();
    fs::create_dir_all(dir.path("elsewhere")).unwrap();
    dir.run("mount tank west", 0);
    dir.run("mount west elsewhere", 0);
    dir.run("umount west", 0);
    assert_eq!(dir.mounts(), [dir.path("west")]);
    dir.run("umount west", 0);
    assert!(dir.mounts().is_empty());

    // What another process mounted at its first mount point stays.
    dir.run("mount tank mnt", 0);
    dir.run("mount tank more", 0);
    dir.run("umount mnt", 0);
    let (mnt, busy) = (dir.path("mnt"), File::open(dir.path("more/file")).unwrap());
    let system = |command: &str, words: &[&str]| {
        assert!(std::process::Command::new(command).args(words).arg(&mnt).status().unwrap().success());
    };
    system("mount", &["-t", "tmpfs", "none"]);
    fs::write(mnt.join("foreign"), "").unwrap();
    let server = dir.daemon_pid();
    kill("-TERM", server);
    // The second signal says not to wait until all files are closed.
    std::thread::sleep(Duration::from_millis(300));
    kill("-TERM", server);
    let begun = Instant::now();
    while dir.mounts().contains(&dir.path("more")) && begun.elapsed().as_secs() < 20 {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(busy);
    dir.wait_until_free();
    let stays = mnt.join("foreign").exists();
    system("umount", &[]);
    assert!(stays);
}

#[test]
fn the_memory_of_a_mount_changes_while_it_stands() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("memory");
    dir.run("pool create tank tank.img --size 512M", 0);
    assert!(dir.json("pool status -j tank")["pools"][0]["memory"].is_null(), "nobody serves it");
    // With `direct_io`, so that every read reaches our cache.
    dir.run("mount tank mnt --memory 256M -o direct_io,compression=off", 0);
    let memory = |key: &str| dir.json("pool status -j tank")["pools"][0]["memory"][key].as_u64().unwrap();
    let file = dir.path("mnt/file");
    fs::write(&file, (0..24u32 << 20).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    dir.run("sync tank", 0);
    let (held, resident) = (memory("cache"), memory("resident"));
    assert_eq!(memory("limit"), 256 << 20);
    assert!(held > 90 << 20 && resident > held, "{held} of {resident}");

    dir.refused("mount tank mnt -o remount,memory=1M", &["128M"]);
    assert_eq!(memory("limit"), 256 << 20);
    dir.run("mount tank mnt -o remount,memory=128M", 0);
    let (held_now, resident_now) = (memory("cache"), memory("resident"));
    assert_eq!(memory("limit"), 128 << 20);
    assert!(held_now <= 64 << 20 && memory("cache_limit") <= 64 << 20, "{held_now}");
    assert!(resident_now + (24 << 20) < resident, "it goes back at once: {resident}, now {resident_now}");
    assert!(memory("dirty_limit") <= 32 << 20);

    dir.run("mount tank mnt -o remount,memory=1G", 0);
    assert!(memory("cache_limit") > 300 << 20, "unless others wait for memory, half of it");
    fs::read(&file).unwrap();
    assert!(memory("cache") > 90 << 20, "{}", memory("cache"));
    let status = dir.out("pool status tank");
    assert!(status.contains("  memory: ") && status.contains(" of 1G; "), "{status}");
    // The successor keeps it.
    let server = dir.daemon_pid();
    kill("-KILL", server);
    dir.successor_of(server);
    assert_eq!(memory("limit"), 1 << 30);
    dir.run("restart tank", 0);
    assert_eq!(memory("limit"), 1 << 30);
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt --memory 256M", 0);
    assert_eq!(memory("limit"), 256 << 20, "the next mount is another one");
    dir.run("umount mnt", 0);
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("remount");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt -o ro,compression=zstd-3", 0);
    let file = dir.path("mnt/file");
    assert!(fs::write(&file, "no").is_err());
    dir.run("mount tank mnt -o remount,rw", 0);
    fs::write(&file, "yes").unwrap();
    let open = File::options().append(true).open(&file).unwrap();
    dir.refused("mount tank mnt -o remount,ro", &["busy"]);
    drop(open);
    dir.run("mount tank mnt -o remount,ro,noatime", 0);
    assert!(fs::write(&file, "no").is_err());
    // Committed before, and no longer open for writing: another reader may open it.
    assert!(File::open(dir.path("tank.img")).unwrap().try_lock_shared().is_ok());
    let row = dir.json_rows("mounts --json").remove(0);
    assert!(row["options"].as_str().unwrap().starts_with("ro,noatime"), "{row}");
    assert_eq!(fs::read(&file).unwrap(), b"yes");
    dir.run("mount tank mnt -o remount,rw", 0);
    fs::write(&file, "again").unwrap();
    dir.refused("mount tank mnt -o remount,zfsutil", &["zfsutil"]);
    dir.run("umount mnt", 0);
    dir.refused("mount tank mnt -o remount,ro", &["no terrane pool is mounted"]);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_daemon_that_leaves_is_not_taken_for_a_mount() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("leaves");
    dir.run("pool create tank tank.img --size 64M", 0);
    let mnt = dir.path("mnt");
    for round in 0..8 {
        dir.run("mount tank mnt", 0);
        // Something to commit during the unmount.
        fs::write(mnt.join("file"), vec![round; 4 << 20]).unwrap();
        dir.unmount_by(&["fusermount3", "-u"]);
        if round % 2 == 1 {
            dir.run("mount tank mnt", 0);
            assert_eq!(fs::read(mnt.join("file")).unwrap()[0], round);
            dir.run("umount mnt", 0);
        }
    }
    dir.run("pool destroy tank", 0);
    // Nor does a supervisor of an earlier mount stay: the next one listens at the same path.
    let supervisors = || {
        let own = dir.path("state");
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|entry| {
                let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
                let has = |word: &[u8]| environment.split(|byte| *byte == 0).any(|found| found == word);
                let state = format!("TERRANE_STATE_DIR={}", own.display());
                has(b"TERRANE_ROLE=supervisor") && has(state.as_bytes())
            })
            .count()
    };
    let begun = Instant::now();
    while supervisors() > 0 {
        assert!(begun.elapsed().as_secs() < 20, "{} supervisors without a mount", supervisors());
        std::thread::sleep(Duration::from_millis(20));
    }
}
