//! Several data sets of one pool are mounted: one server, a connection for each.

use crate::support::{Loop, TestDir, can_mount, is_root, kill};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_dataset::Datasets;
use terrane_device::{Backing, OpenMode};
use terrane_object::ObjectSets;
use terrane_pool::{ImportOptions, Pool};
use terrane_posix::{Cred, Fs};
use terrane_store::env::SystemEnv;

/// Creates data sets in a pool that is not mounted.
fn create(image: &Path, paths: &[&str]) {
    let backing = Backing::open(image, OpenMode::ReadWrite).unwrap();
    let mut read = |offset: u64, buf: &mut [u8]| backing.read_at(offset, buf).is_ok();
    let label = terrane_pool::probe(&mut read, backing.size()).unwrap().label;
    let device = backing.into_device(label.zone_size).unwrap();
    let pool = Pool::import(vec![device], Arc::new(SystemEnv::new()), &ImportOptions::default()).unwrap();
    let datasets = Datasets::open(&ObjectSets::open(Arc::clone(&pool)).unwrap()).unwrap();
    for path in paths {
        let dataset = datasets.create(path, &[], &mut |_, _| Ok(())).unwrap();
        Fs::format(&dataset, &Cred { uid: 0, gid: 0, umask: 0 }).unwrap();
    }
    drop(datasets);
    pool.export().unwrap();
}

/// A pool with these data sets, and directories to mount them at: `mnt` is for the root.
fn new_pool(name: &str, paths: &[&str]) -> Option<TestDir> {
    // A user's mount is another test.
    if !can_mount() || !is_root() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 128M", 0);
    create(&dir.path("tank.img"), paths);
    for path in paths {
        fs::create_dir_all(dir.path(&path.replace('/', "-"))).unwrap();
    }
    Some(dir)
}

fn mounted(dir: &TestDir) -> Vec<(String, u64)> {
    let row =
        |row: &serde_json::Value| (row["dataset"].as_str().unwrap().to_owned(), row["pid"].as_u64().unwrap());
    let mut rows: Vec<_> = dir.json_rows("mounts --json").iter().map(row).collect();
    rows.sort();
    rows
}

fn names(dir: &TestDir) -> Vec<String> {
    mounted(dir).into_iter().map(|(name, _)| name).collect()
}

fn read(file: &File) -> Vec<u8> {
    let mut buf = [0; 16];
    let len = file.read_at(&mut buf, 0).unwrap();
    buf[..len].to_vec()
}

fn new_file(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

#[test]
fn mounts_of_one_pool_have_one_server_and_end_alone() {
    let Some(dir) = new_pool("sets", &["home", "home/ann"]) else { return };
    dir.run("mount tank mnt", 0);
    dir.run("mount tank/home home", 0);
    dir.run("mount tank/home/ann home-ann -o noatime", 0);
    let rows = mounted(&dir);
    assert_eq!(names(&dir), ["tank", "tank/home", "tank/home/ann"]);
    assert!(rows.iter().all(|(_, pid)| *pid == rows[0].1), "{rows:?}");
    for (at, text) in [("mnt", "root"), ("home", "home"), ("home-ann", "ann")] {
        fs::write(dir.path(at).join("file"), text).unwrap();
    }
    let devs: Vec<u64> =
        ["mnt", "home", "home-ann"].map(|at| fs::metadata(dir.path(at)).unwrap().dev()).to_vec();
    assert!(devs[0] != devs[1] && devs[1] != devs[2]);
    let status = dir.json("pool status --json tank")["pools"][0].clone();
    let shown: Vec<&str> =
        status["mounts"].as_array().unwrap().iter().map(|row| row["dataset"].as_str().unwrap()).collect();
    assert_eq!(shown, ["tank", "tank/home", "tank/home/ann"]);
    let text = dir.out("pool status tank");
    assert!(text.contains(&format!("tank/home on {}", dir.path("home").display())), "{text}");
    // A file is found in the data set of its mount.
    assert!(dir.out("stat home-ann/file").contains("/file"));

    dir.run("umount home", 0);
    assert_eq!(names(&dir), ["tank", "tank/home/ann"]);
    dir.run("mount tank/home home", 0);
    assert_eq!(fs::read_to_string(dir.path("home/file")).unwrap(), "home");
    // The first mount is not needed by the others.
    dir.run("umount tank", 0);
    assert_eq!(fs::read_to_string(dir.path("home-ann/file")).unwrap(), "ann");
    dir.refused("umount tank", &["root data set", "tank/home", "-a"]);
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read_to_string(dir.path("mnt/file")).unwrap(), "root");
    dir.run("umount tank/home/ann", 0);
    dir.run("umount -a tank", 0);
    assert!(dir.mounts().is_empty());
    dir.wait_until_free();
    assert!(dir.out("check tank").contains("nothing found"));

    // A data set may be the first, and what is committed is there.
    dir.run("mount tank/home/ann home-ann", 0);
    assert_eq!(fs::read_to_string(dir.path("home-ann/file")).unwrap(), "ann");
    dir.run("umount home-ann", 0);
    dir.wait_until_free();
}

#[test]
fn a_killed_server_costs_no_mount_more_than_what_was_not_committed() {
    let Some(dir) = new_pool("sets-killed", &["home", "home/ann"]) else { return };
    let places = ["mnt", "home", "home-ann"];
    for (name, at) in ["tank", "tank/home", "tank/home/ann"].iter().zip(places) {
        let options = if *name == "tank" { " -o crashproof=off" } else { "" };
        dir.run(&format!("mount {name} {at}{options}"), 0);
    }
    let before: Vec<u64> = places.map(|at| fs::metadata(dir.path(at)).unwrap().dev()).to_vec();
    let kept = places.map(|at| new_file(&dir.path(at).join("kept")));
    let gone = places.map(|at| {
        let file = new_file(&dir.path(at).join("gone"));
        fs::remove_file(dir.path(at).join("gone")).unwrap();
        file
    });
    for (at, place) in places.iter().enumerate() {
        kept[at].write_all_at(place.as_bytes(), 0).unwrap();
        gone[at].write_all_at(b"no name", 0).unwrap();
    }
    dir.run("sync tank", 0);
    // Only one of them has something to lose.
    kept[1].write_all_at(b"LOST", 0).unwrap();
    let first = dir.daemon_pid();
    kill("-KILL", first);
    for (at, place) in places.iter().enumerate() {
        assert_eq!(read(&kept[at]), place.as_bytes(), "{place}");
        assert_eq!(read(&gone[at]), b"no name", "{place}");
    }
    assert_eq!(kept[1].sync_all().unwrap_err().raw_os_error(), Some(5));
    kept[0].sync_all().unwrap();
    kept[2].sync_all().unwrap();
    let lost = dir.json("pool status -j tank")["pools"][0]["lost_files"].clone();
    assert_eq!(lost.as_array().unwrap().len(), 1, "{lost}");
    assert_eq!((lost[0]["dataset"].as_str(), lost[0]["path"].as_str()), (Some("tank/home"), Some("/kept")));
    let second = dir.successor_of(first);

    // In order: nothing is lost, and what was lost before is still reported.
    kept[0].write_all_at(b"new", 0).unwrap();
    kept[2].write_all_at(b"new", 0).unwrap();
    dir.run("restart tank", 0);
    dir.successor_of(second);
    assert_eq!(read(&kept[0]), b"new");
    assert_eq!(read(&kept[2]), b"newe-ann");
    kept[0].sync_all().unwrap();
    assert_eq!(kept[1].sync_all().unwrap_err().raw_os_error(), Some(5));
    assert!(dir.out("pool clear tank").contains("1 file"));
    kept[1].sync_all().unwrap();
    let after: Vec<u64> = places.map(|at| fs::metadata(dir.path(at)).unwrap().dev()).to_vec();
    assert_eq!(before, after);

    // The first mount ends, and the next server has the others.
    drop(kept);
    drop(gone);
    dir.run("umount tank", 0);
    kill("-KILL", dir.daemon_pid());
    assert_eq!(fs::read_to_string(dir.path("home/kept")).unwrap(), "home");
    assert_eq!(names(&dir), ["tank/home", "tank/home/ann"]);
    dir.run("mount tank mnt", 0);
    dir.run("restart tank", 0);
    assert_eq!(names(&dir), ["tank", "tank/home", "tank/home/ann"]);
    dir.run("umount -a", 0);
    assert!(dir.mounts().is_empty());
    dir.wait_until_free();
    assert!(dir.out("check tank").contains("nothing found"));
}

/// It would be read, and could block for ever.
#[test]
fn a_request_to_mount_comes_with_a_connection_to_the_kernel() {
    let Some(dir) = new_pool("sets-pipe", &["home"]) else { return };
    dir.run("mount tank mnt", 0);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let stream = UnixStream::connect(dir.path("state/tank.sock")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let question = "{\"ask\":\"mount\",\"dataset\":\"home\",\"dir\":[47],\"dev\":\"0:54\",\"source\":\"x\",\"options\":[]}\n";
    let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
    terrane_fuse::handover::send_on(&stream, question.as_bytes(), &pipe).unwrap();
    let answer = lines.next().unwrap().unwrap();
    assert!(answer.contains("refused") && answer.contains("/dev/fuse"), "{answer}");
    dir.run("mount tank/home home", 0);
    dir.run("umount -a tank", 0);
}

/// A block device that has failed: a loop device whose file finds no space.
#[test]
fn a_commit_that_fails_at_the_end_of_a_mount_is_reported() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("sets-failed");
    for name in ["host", "home"] {
        fs::create_dir(dir.path(name)).unwrap();
    }
    let host = dir.path("host");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=48M", "host"]).arg(&host).status();
    assert!(mounted.unwrap().success());
    let (image, other) = (host.join("disk.img"), host.join("other"));
    File::create(&image).unwrap().set_len(1 << 30).unwrap();
    let Some(device) = Loop::new(image, &[]) else { return };
    dir.run(&format!("pool create tank {}", device.0), 0);
    dir.run("mount tank mnt", 0);
    dir.run("fs create tank/home", 0);
    dir.run("mount tank/home home", 0);
    let mut filler = File::create(&other).unwrap();
    while filler.write_all(&[1; 1 << 16]).is_ok() {}
    let file = new_file(&dir.path("home/file"));
    let noise: Vec<u8> =
        (0..1u32 << 21).flat_map(|n| n.wrapping_mul(0x9e37_79b9).rotate_left(n % 31).to_le_bytes()).collect();
    let _ = file.write_all_at(&noise, 0);
    drop(file);
    dir.refused("umount home", &["tank/home", "unmounted, but the commit failed"]);
    drop(filler);
    fs::remove_file(other).unwrap();
    dir.run("umount mnt", 1);
    assert_eq!(dir.mounts(), [host]);
    // The supervisor is still ending: the command did not wait for it.
    let begun = Instant::now();
    while dir.path("state/tank.supervisor").exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "a supervisor stays without a mount");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn options_hold_for_one_mount() {
    let Some(dir) = new_pool("sets-options", &["home", "data"]) else { return };
    dir.run("mount tank mnt", 0);
    dir.run("mount tank/home home -o ro,noexec", 0);
    dir.run("mount tank/data data -o sync,compression=zstd-3", 0);
    assert!(fs::write(dir.path("home/file"), "").is_err());
    fs::write(dir.path("data/file"), "content").unwrap();
    let flags = |at: &str| {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let row = |line: &&str| Path::new(line.split(' ').nth(1).unwrap()) == dir.path(at);
        table.lines().find(row).unwrap().split(' ').nth(3).unwrap().to_owned()
    };
    assert!(flags("home").contains("ro,") && flags("home").contains("noexec"), "{}", flags("home"));
    assert!(flags("data").contains("sync") && !flags("mnt").contains("sync"));
    dir.refused("mount tank/data data -o memory=1G", &["tank/data", "mounted on", "already"]);
    dir.run("umount data", 0);
    dir.refused("mount tank/data data -o memory=1G", &["memory=1G", "server of the pool"]);
    dir.refused("mount tank/data data --log x.log", &["--log"]);

    // Remounts are of one data set, and a successor keeps what each has.
    dir.run("mount tank/data data", 0);
    dir.run("mount tank/data data -o remount,ro", 0);
    assert!(fs::write(dir.path("data/file"), "").is_err());
    fs::write(dir.path("mnt/file"), "writable").unwrap();
    kill("-KILL", dir.daemon_pid());
    assert!(fs::write(dir.path("data/file"), "").is_err());
    dir.run("mount tank/data data -o remount,rw", 0);
    fs::write(dir.path("data/file"), "writable").unwrap();
    dir.run("mount tank/home home -o remount,rw", 0);
    fs::write(dir.path("home/file"), "writable").unwrap();

    // A data set has further places, like the root.
    fs::create_dir(dir.path("more")).unwrap();
    dir.run("mount tank/home more -o ro", 0);
    assert_eq!(fs::read_to_string(dir.path("more/file")).unwrap(), "writable");
    dir.run("umount tank/home", 0);
    assert_eq!(dir.mounts(), [dir.path("mnt"), dir.path("data")]);
    dir.run("umount -a tank", 0);
    dir.run("mount tank mnt -o ro", 0);
    dir.refused("mount tank/home home", &["read-only", "remount,rw"]);
    dir.run("mount tank/home home -o ro", 0);
    dir.run("umount -a tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn what_cannot_be_mounted_or_unmounted_is_refused_by_name() {
    let Some(dir) = new_pool("sets-refused", &["home", "home/ann"]) else { return };
    // Of a pool without a server.
    dir.refused("mount tank/hoem mnt", &["tank/hoem", "did you mean 'tank/home'"]);
    dir.refused("mount tnak/home mnt", &["did you mean 'tank'"]);
    dir.refused("umount tank/home", &["tank/home is not mounted"]);
    assert!(dir.mounts().is_empty());
    dir.run("mount tank mnt", 0);
    dir.refused("mount tank/home/anne home", &["tank/home/anne", "did you mean 'tank/home/ann'"]);
    dir.refused("mount tank/home@monday home", &["tank/home@monday"]);
    assert_eq!(dir.mounts(), [dir.path("mnt")]);
    dir.run("mount tank/home home", 0);
    dir.refused("mount tank/home home", &["tank/home is mounted on", "already"]);
    dir.refused("umount tank/hme", &["tank/hme is not mounted", "did you mean 'tank/home'"]);
    dir.refused("umount -a tank/home", &["-a", "data set tank/home", "umount -a tank"]);
    assert_eq!(names(&dir), ["tank", "tank/home"]);

    // In use: by a file, and by a mount below it.
    let file = new_file(&dir.path("home/file"));
    dir.refused("umount tank/home", &["fuser"]);
    drop(file);
    fs::create_dir(dir.path("home/ann")).unwrap();
    dir.run("mount tank/home/ann home/ann", 0);
    dir.refused("umount tank/home", &["tank/home/ann is mounted below it", "-a"]);
    assert_eq!(names(&dir), ["tank", "tank/home", "tank/home/ann"]);
    dir.run("umount -a tank", 0);
    assert!(dir.mounts().is_empty());
    dir.wait_until_free();

    // By other programs, in any order; the server ends with the last.
    dir.run("mount tank/home home", 0);
    dir.run("mount tank mnt", 0);
    for at in ["home", "mnt"] {
        let begun = std::time::Instant::now();
        while !Command::new("umount").arg(dir.path(at)).status().unwrap().success() {
            assert!(begun.elapsed().as_secs() < 20, "{at} stays busy");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    dir.wait_until_free();
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_lazy_or_forced_unmount_ends_one_mount() {
    let Some(dir) = new_pool("sets-lazy", &["home", "data"]) else { return };
    for (name, at) in [("tank", "mnt"), ("tank/home", "home"), ("tank/data", "data")] {
        dir.run(&format!("mount {name} {at}"), 0);
    }
    let mut used = new_file(&dir.path("home/file"));
    used.write_all_at(b"used", 0).unwrap();
    dir.run("umount --lazy tank/home", 0);
    let mut text = String::new();
    used.read_to_string(&mut text).unwrap();
    assert_eq!(text, "used");
    let forced = new_file(&dir.path("data/file"));
    forced.write_all_at(b"forced", 0).unwrap();
    dir.run("umount --force tank/data", 0);
    assert!(forced.sync_all().is_err());
    fs::write(dir.path("mnt/file"), "other").unwrap();
    assert_eq!(dir.mounts(), [dir.path("mnt")]);
    drop((used, forced));
    dir.run("mount tank/home home", 0);
    dir.run("mount tank/data data", 0);
    assert_eq!(fs::read_to_string(dir.path("home/file")).unwrap(), "used");
    assert_eq!(fs::read_to_string(dir.path("data/file")).unwrap(), "forced");
    kill("-TERM", dir.daemon_pid());
    dir.wait_until_free();
    assert!(dir.mounts().is_empty() && dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_line_of_fstab_may_name_a_data_set() {
    let Some(dir) = new_pool("sets-helper", &["home"]) else { return };
    let helper = dir.path("mount.terrane");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_terrane"), &helper).unwrap();
    let call = |source: &str, at: &str| {
        let mut command = Command::new(&helper);
        command.args([source, at, "-o", "defaults,noatime"]).current_dir(dir.path("."));
        command.env("TERRANE_STATE_DIR", dir.path("state")).status().unwrap().success()
    };
    // Whichever is first, the source is what the line says.
    assert!(call("tank/home", "home") && call("tank", "mnt"));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    for (source, at) in [("tank/home", "home"), ("tank", "mnt")] {
        let wanted = format!("{source} {} ", dir.path(at).display());
        assert!(table.lines().any(|line| line.starts_with(&wanted)), "{table}");
    }
    kill("-KILL", dir.daemon_pid());
    fs::write(dir.path("home/file"), "after").unwrap();
    dir.run("umount -a tank", 0);
}
