//! Data sets that are mounted and in use are rolled back and renamed.

use crate::support::{TestDir, can_mount, is_root, kill};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

/// Pool `tank` with data set `home`, both mounted. `home` has a snapshot, `monday`, and changes of all kinds since.
fn new_pool(name: &str) -> Option<TestDir> {
    if !can_mount() || !is_root() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("mount tank mnt", 0);
    dir.run("fs create tank/home", 0);
    fs::create_dir(dir.path("home")).unwrap();
    dir.run("mount tank/home home", 0);
    let home = dir.path("home");
    fs::create_dir_all(home.join("dir/sub")).unwrap();
    for (file, text) in FILES {
        fs::write(home.join(file), text).unwrap();
    }
    fs::write(home.join("same"), "same").unwrap();
    dir.run("snapshot tank/home@monday", 0);
    Some(dir)
}

const FILES: [(&str, &str); 5] = [
    ("written", "as it was"),
    ("removed", "here"),
    ("moved", "by name"),
    ("dir/inner", "in"),
    ("cut", "0123456789"),
];

fn change(home: &Path) {
    fs::write(home.join("written"), "something much longer than before").unwrap();
    fs::remove_file(home.join("removed")).unwrap();
    fs::rename(home.join("moved"), home.join("dir/moved")).unwrap();
    fs::remove_file(home.join("dir/inner")).unwrap();
    fs::remove_dir(home.join("dir/sub")).unwrap();
    fs::write(home.join("dir/sub"), "a file now").unwrap();
    File::options().write(true).open(home.join("cut")).unwrap().set_len(3).unwrap();
    fs::create_dir(home.join("new")).unwrap();
    fs::write(home.join("new/file"), "new").unwrap();
    // The kernel knows that these do not exist.
    for (file, _) in [FILES[1], FILES[2]] {
        assert!(!home.join(file).exists());
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The files are those of the snapshot, for every way to look at them.
fn assert_as_before(home: &Path) {
    assert_eq!(names(home), ["cut", "dir", "moved", "removed", "same", "written"]);
    assert_eq!(names(&home.join("dir")), ["inner", "sub"]);
    for (file, text) in FILES {
        assert_eq!(fs::metadata(home.join(file)).unwrap().len(), text.len() as u64, "{file}");
        assert_eq!(fs::read_to_string(home.join(file)).unwrap(), text, "{file}");
    }
    assert!(fs::metadata(home.join("dir/sub")).unwrap().is_dir());
    assert!(!home.join("new").exists() && !home.join("dir/moved").exists());
}

fn read(file: &File) -> Result<String, Option<i32>> {
    let mut buf = [0; 64];
    let len = file.read_at(&mut buf, 0).map_err(|error| error.raw_os_error())?;
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}

#[test]
fn a_data_set_in_use_is_rolled_back() {
    let Some(dir) = new_pool("rollback-used") else { return };
    let home = dir.path("home");
    let open = |name: &str| File::options().read(true).write(true).open(home.join(name)).unwrap();
    let (same, other) = (open("same"), dir.path("mnt/other"));
    fs::write(&other, "other").unwrap();
    let other = File::open(other).unwrap();
    let cwd = File::open(home.join("dir")).unwrap();
    change(&home);
    let (written, new) = (open("written"), open("new/file"));
    assert_eq!(read(&new).unwrap(), "new");
    let server = dir.daemon_pid();
    dir.run("fs rollback tank/home@monday", 0);
    assert_ne!(dir.successor_of(server), server);
    assert_as_before(&home);
    // Open files: what still exists goes on, and what does not is stale.
    assert_eq!(read(&same).unwrap(), "same");
    assert_eq!(read(&written).unwrap(), "as it was");
    assert_eq!(read(&other).unwrap(), "other");
    assert_eq!(read(&new), Err(Some(Errno::STALE.raw_os_error())));
    assert_eq!(cwd.metadata().unwrap().ino(), fs::metadata(home.join("dir")).unwrap().ino());
    // No call fails for changes that the rollback undid.
    written.write_at(b"AS", 0).unwrap();
    written.sync_all().unwrap();
    File::open(home.join("dir")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read_to_string(home.join("written")).unwrap(), "AS it was");
    // New files do not get the numbers of those that are gone, which programs have open.
    for count in 0..50 {
        fs::write(home.join(format!("later {count}")), "later").unwrap();
    }
    assert_eq!(read(&new), Err(Some(Errno::STALE.raw_os_error())));
    assert!(new.write_at(b"x", 0).is_err());
    let status = dir.json("pool status -j tank");
    assert_eq!(status["pools"][0]["lost_files"].as_array().unwrap().len(), 0);
    // The state is stored.
    dir.run("restart tank", 0);
    assert_eq!(fs::read_to_string(home.join("written")).unwrap(), "AS it was");
    drop((same, written, new, other, cwd));
    dir.run("umount home", 0);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// Every server has the root data set open.
#[test]
fn a_mounted_root_data_set_is_rolled_back() {
    let Some(dir) = new_pool("rollback-mounted-root") else { return };
    let file = dir.path("mnt/file");
    fs::write(&file, "monday").unwrap();
    dir.run("snapshot tank@monday", 0);
    for text in ["tuesday", "wednesday"] {
        fs::write(&file, text).unwrap();
        let open = File::open(&file).unwrap();
        // As zfs(8) is called.
        let zfs = std::process::Command::new(env!("CARGO_BIN_EXE_terrane"))
            .arg0("zfs")
            .args(["rollback", "-f", "tank@monday"])
            .envs(dir.command("").get_envs().filter_map(|(name, value)| Some((name, value?))))
            .output()
            .unwrap();
        assert!(zfs.status.success(), "{}", String::from_utf8_lossy(&zfs.stderr));
        assert_eq!(
            (read(&open).unwrap(), fs::read_to_string(&file).unwrap()),
            ("monday".into(), "monday".into())
        );
    }
    assert_as_before(&dir.path("home"));
    // A server that follows a killed one finds it too.
    let server = dir.daemon_pid();
    kill("-KILL", server);
    assert_eq!(fs::read_to_string(&file).unwrap(), "monday");
    assert_ne!(dir.successor_of(server), server);
    dir.run("umount home", 0);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn mounted_data_sets_are_renamed() {
    let Some(dir) = new_pool("rename-mounted") else { return };
    for name in ["home-ann", "snap"] {
        fs::create_dir(dir.path(name)).unwrap();
    }
    dir.run("fs create tank/home/ann", 0);
    dir.run("mount tank/home/ann home-ann", 0);
    dir.run("mount tank/home@monday snap", 0);
    let open = File::options().read(true).write(true).open(dir.path("home/written")).unwrap();
    let server = dir.daemon_pid();
    dir.refused("fs rename tank/home tank", &["tank"]);
    dir.refused("fs rename tank/home tank/home/ann/x", &["tank/home"]);
    assert_eq!(dir.daemon_pid(), server);
    dir.run("fs rename tank/home tank/people", 0);
    assert_ne!(dir.successor_of(server), server);
    let mounted = || -> Vec<String> {
        let rows = dir.json_rows("mounts --json");
        rows.iter().map(|row| row["dataset"].as_str().unwrap().to_owned()).collect()
    };
    let renamed = ["tank", "tank/people", "tank/people/ann", "tank/people@monday"];
    assert!(renamed.iter().all(|name| mounted().iter().any(|found| found == name)), "{:?}", mounted());
    // Another one gets the old name.
    dir.run("fs create tank/home", 0);
    open.write_at(b"AS", 0).unwrap();
    open.sync_all().unwrap();
    fs::write(dir.path("home-ann/file"), "ann").unwrap();
    dir.run("snapshot -r tank/people@tuesday", 0);
    assert_eq!(names(&dir.path("home/.terrane/snapshot")), ["monday", "tuesday"]);
    let server = dir.daemon_pid();
    kill("-KILL", server);
    assert_eq!(fs::read_to_string(dir.path("home/written")).unwrap(), "AS it was");
    assert_ne!(dir.successor_of(server), server);
    assert!(renamed.iter().all(|name| mounted().iter().any(|found| found == name)), "{:?}", mounted());
    assert_eq!(fs::read_to_string(dir.path("snap/written")).unwrap(), "as it was");
    drop(open);
    for name in ["tank/people/ann", "tank/people@monday", "tank/people", "tank"] {
        dir.run(&format!("umount {name}"), 0);
    }
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_refused_rollback_changes_nothing_and_replaces_no_server() {
    let Some(dir) = new_pool("rollback-refused") else { return };
    let home = dir.path("home");
    fs::write(home.join("written"), "tuesday").unwrap();
    dir.run("snapshot tank/home@tuesday", 0);
    let server = dir.daemon_pid();
    dir.refused("fs rollback tank/home@monday", &["home@tuesday", "-r"]);
    dir.refused("fs rollback tank/home@sunday", &["sunday"]);
    dir.run("fs hold keep tank/home@tuesday", 0);
    dir.refused("fs rollback -r tank/home@monday", &["keep"]);
    dir.run("fs release keep tank/home@tuesday", 0);
    fs::create_dir(dir.path("snap")).unwrap();
    dir.run("mount tank/home@tuesday snap", 0);
    dir.refused("fs rollback -r tank/home@monday", &["tank/home@tuesday"]);
    dir.run("umount snap", 0);
    assert_eq!(dir.daemon_pid(), server);
    assert_eq!(fs::read_to_string(home.join("written")).unwrap(), "tuesday");
    let shown = home.join(".terrane/snapshot/tuesday/written");
    assert_eq!(fs::read_to_string(&shown).unwrap(), "tuesday");
    dir.run("fs rollback -r tank/home@monday", 0);
    assert_as_before(&home);
    assert!(!shown.exists());
    assert_eq!(fs::read_to_string(home.join(".terrane/snapshot/monday/written")).unwrap(), "as it was");
    dir.run("umount home", 0);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_rollback_in_a_read_only_pool_is_refused() {
    let Some(dir) = new_pool("rollback-read-only") else { return };
    fs::write(dir.path("home/written"), "tuesday").unwrap();
    dir.run("umount home", 0);
    dir.run("umount mnt", 0);
    dir.run("mount -o ro tank mnt", 0);
    dir.run("mount -o ro tank/home home", 0);
    let server = dir.daemon_pid();
    dir.refused("fs rollback tank/home@monday", &["read-only"]);
    assert_eq!(dir.daemon_pid(), server);
    dir.run("umount home", 0);
    dir.run("umount mnt", 0);
}

/// Mounts of the snapshot itself go on. They are another view of it.
#[test]
fn a_mounted_snapshot_outlives_the_rollback_to_it() {
    let Some(dir) = new_pool("rollback-snapshot") else { return };
    fs::create_dir(dir.path("snap")).unwrap();
    dir.run("mount tank/home@monday snap", 0);
    let open = File::open(dir.path("snap/written")).unwrap();
    let inside = File::open(dir.path("home/.terrane/snapshot/monday/removed")).unwrap();
    change(&dir.path("home"));
    dir.run("fs rollback tank/home@monday", 0);
    assert_as_before(&dir.path("home"));
    assert_as_before(&dir.path("snap"));
    assert_eq!((read(&open).unwrap(), read(&inside).unwrap()), ("as it was".into(), "here".into()));
    drop((open, inside));
    for name in ["snap", "home", "mnt"] {
        dir.run(&format!("umount {name}"), 0);
    }
}

/// The data set is as it was or as it is wanted, never another, and the mounts go on.
#[test]
fn a_rollback_whose_server_is_killed_is_done_or_not() {
    let Some(dir) = new_pool("rollback-killed") else { return };
    let home = dir.path("home");
    let (mut done, mut not) = (0, 0);
    for round in 0..8 {
        change(&home);
        dir.run("sync tank", 0);
        let server = dir.daemon_pid();
        let mut command = dir.command("fs rollback tank/home@monday").spawn().unwrap();
        // The server that steps back, or the one that follows.
        let end = std::time::Instant::now() + Duration::from_millis(8 * round);
        while std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        kill("-KILL", if round % 2 == 0 { server } else { dir.successor_of(server) });
        let is_done = command.wait().unwrap().success();
        if !is_done {
            // Nobody has waited until the kernel forgot what it had cached.
            std::thread::sleep(Duration::from_secs(1));
        }
        let text = fs::read_to_string(home.join("written")).unwrap();
        if text == "as it was" {
            assert_as_before(&home);
            done += 1;
        } else {
            assert!(!is_done, "round {round}");
            assert_eq!(text, "something much longer than before");
            assert_eq!(names(&home), ["cut", "dir", "new", "same", "written"]);
            not += 1;
            dir.run("fs rollback tank/home@monday", 0);
            assert_as_before(&home);
        }
    }
    println!("{done} were done, {not} not");
    dir.run("umount home", 0);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// The number of a file that the rollback brings back belongs to a newer file that a program has open.
#[test]
fn a_file_open_before_a_rollback_does_not_become_an_older_one() {
    let Some(dir) = new_pool("rollback-reused") else { return };
    let home = dir.path("home");
    let old = fs::metadata(home.join("removed")).unwrap().ino();
    fs::remove_file(home.join("removed")).unwrap();
    let mut newer = None;
    for count in 0..200 {
        dir.run("sync tank", 0);
        let path = home.join(format!("newer {count}"));
        fs::write(&path, "newer").unwrap();
        if fs::metadata(&path).unwrap().ino() == old {
            newer = Some(File::options().read(true).write(true).open(&path).unwrap());
            break;
        }
    }
    let newer = newer.expect("the number is used again");
    assert_eq!(read(&newer).unwrap(), "newer");
    dir.run("fs rollback tank/home@monday", 0);
    let stale = Some(Errno::STALE.raw_os_error());
    assert_eq!(newer.write_at(b"NEWER", 0).unwrap_err().raw_os_error(), stale);
    assert_eq!(read(&newer), Err(stale));
    // A server that follows a killed one knows it too.
    let server = dir.daemon_pid();
    kill("-KILL", server);
    assert_eq!(read(&newer), Err(stale));
    assert_ne!(dir.successor_of(server), server);
    assert_eq!(fs::read_to_string(home.join("removed")).unwrap(), "here");
    // From here on the kernel itself knows that the number belongs to another file.
    assert!(newer.write_at(b"NEWER", 0).is_err() && read(&newer).is_err());
    fs::write(home.join("removed"), "again").unwrap();
    assert_eq!(fs::read_to_string(home.join("removed")).unwrap(), "again");
    drop(newer);
    dir.run("umount home", 0);
    dir.run("umount mnt", 0);
}

/// The next server knows a mount by what it was, whatever its data set is called by now.
#[test]
fn a_renamed_data_set_is_rolled_back() {
    let Some(dir) = new_pool("rollback-renamed") else { return };
    let home = dir.path("home");
    change(&home);
    dir.run("fs rename tank/home tank/people", 0);
    dir.run("fs create tank/home", 0);
    fs::create_dir(dir.path("other")).unwrap();
    dir.run("mount tank/home other", 0);
    fs::write(dir.path("other/file"), "monday").unwrap();
    dir.run("snapshot tank/home@monday", 0);
    fs::write(dir.path("other/file"), "tuesday").unwrap();
    dir.run("fs rollback tank/home@monday", 0);
    assert_eq!(fs::read_to_string(dir.path("other/file")).unwrap(), "monday");
    assert_eq!(fs::read_to_string(home.join("written")).unwrap(), "something much longer than before");
    dir.run("fs rollback tank/people@monday", 0);
    assert_as_before(&home);
    assert_eq!(names(&dir.path("other")), ["file"]);
    for name in ["home", "other", "mnt"] {
        dir.run(&format!("umount {name}"), 0);
    }
    assert!(dir.out("check tank").contains("nothing found"));
}
