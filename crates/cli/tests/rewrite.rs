//! `terrane fs rewrite` on a mount that is in use, and whose server is killed.

use crate::support::{TestDir, can_mount, kill};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Lines that lz4 compresses, and better algorithms compress more.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let words = ["zone", "record", "granule", "pointer", "group", "tree", "of", "the", "and", "writes"];
    let mut state = seed;
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        out.extend_from_slice(words[(state >> 33) as usize % words.len()].as_bytes());
        out.extend_from_slice(format!(" {} ", (state >> 50) % 100).as_bytes());
    }
    out.truncate(len);
    out
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn fill(dir: &Path, count: u64, len: usize) -> Files {
    let mut files = Files::new();
    for at in 0..count {
        let below = dir.join(format!("dir-{}", at % 5));
        fs::create_dir_all(&below).unwrap();
        let (path, bytes) = (below.join(format!("file-{at}")), text(at, len + at as usize * 1000));
        fs::write(&path, &bytes).unwrap();
        files.insert(path, bytes);
    }
    files
}

/// Times to the nanosecond, and the inode's number.
fn seen(path: &Path) -> [i64; 5] {
    let meta = fs::metadata(path).unwrap();
    [meta.ino() as i64, meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()]
}

/// Records by algorithm; those of zstd by level.
fn made(dir: &TestDir, path: &Path) -> BTreeMap<String, u64> {
    let row = dir.json(&format!("stat --json {}", path.display()))["files"][0].clone();
    let rows = |key: &str| row[key].as_array().unwrap().clone();
    let all = rows("compression").into_iter().filter(|row| row["name"] != "zstd").chain(rows("zstd_levels"));
    all.map(|row| (row["name"].as_str().unwrap().to_owned(), row["records"].as_u64().unwrap())).collect()
}

fn rewrite_of(dir: &TestDir) -> Value {
    dir.json("fs rewrite --status --json tank")["rewrites"][0].clone()
}

#[test]
fn files_are_rewritten_while_they_are_used() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("rewrite");
    dir.run("pool create tank tank.img --size 512M -o compression=lz4 -o recordsize=16K", 0);
    dir.refused("fs rewrite --status tank", &["a mounted pool", "mount it"]);
    dir.run("mount -o noatime tank mnt", 0);
    let mnt = dir.path("mnt");
    dir.refused("fs rewrite mnt --compression=lz4", &["a directory", "-r"]);
    dir.refused("fs rewrite state -r --compression=lz4", &["another file system"]);
    dir.misused("fs rewrite mnt", &["--compression"]);
    dir.misused("fs rewrite mnt --compression=zstd-auto", &["name a level"]);
    dir.misused("fs rewrite mnt --recordsize=3K", &["power of two"]);
    assert!(dir.out("fs rewrite --status tank").contains("no rewrite in progress"));

    let files = fill(&mnt, 30, 400_000);
    let busy = mnt.join("busy");
    fs::write(&busy, text(77, 900_000)).unwrap();
    dir.run("sync tank", 0);
    let before: Vec<_> = files.keys().map(|path| seen(path)).collect();
    let ended = AtomicBool::new(false);
    let model = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // A thread that keeps reading what was written.
            let mut model = fs::read(&busy).unwrap();
            let file = File::options().read(true).write(true).open(&busy).unwrap();
            let mut turn = 0;
            while !ended.load(Ordering::Relaxed) {
                turn += 1;
                let at = turn * 7919 % 880_000;
                let data = text(turn as u64, 1 + turn * 31 % 9000);
                file.write_all_at(&data, at as u64).unwrap();
                model[at..at + data.len()].copy_from_slice(&data);
                let mut back = vec![0; 20_000];
                file.read_exact_at(&mut back, at as u64).unwrap();
                assert!(back == model[at..at + 20_000]);
            }
            model
        });
        let said = dir.out("fs rewrite -r mnt --compression=zstd-9");
        ended.store(true, Ordering::Relaxed);
        assert!(said.contains("done, 31 of 31 files") && said.contains("became"), "{said}");
        writer.join().unwrap()
    });
    assert_eq!(rewrite_of(&dir)["state"], "done");
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let (_, section) = page.split_once("\n## fs rewrite: rewrites\n").unwrap();
    let table = section.lines().take_while(|line| !line.starts_with("## "));
    let mut keys: Vec<&str> = table.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    keys.sort_unstable();
    assert_eq!(rewrite_of(&dir).as_object().unwrap().keys().collect::<Vec<_>>(), keys, "docs/json.md");
    assert_eq!(files.keys().map(|path| seen(path)).collect::<Vec<_>>(), before, "times");
    for (path, bytes) in &files {
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    assert!(fs::read(&busy).unwrap() == model);
    let (quiet, _) = files.first_key_value().unwrap();
    assert_eq!(made(&dir, quiet).into_keys().collect::<Vec<_>>(), ["zstd-9"]);

    // Another record size for one file, which stays open.
    let one = mnt.join("one");
    let bytes = text(3, 300_000);
    fs::write(&one, &bytes).unwrap();
    let open = File::open(&one).unwrap();
    let lines = dir.out("fs rewrite mnt/one --recordsize=4K --compression=gzip-6 --json");
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((last["state"].as_str(), last["reshaped"].as_u64()), (Some("done"), Some(1)), "{lines}");
    let made_now = made(&dir, &one);
    assert!(made_now.contains_key("gzip-6") && made_now.len() == 1, "{made_now:?}");
    let mut back = vec![0; bytes.len()];
    open.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes);
    drop(open);
    dir.run("umount tank", 0);
    dir.run("check tank", 0);
}

#[test]
fn a_rewrite_outlives_its_server_and_its_mount() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("rewrite-kill");
    dir.run("pool create tank tank.img --size 512M -o compression=lz4 -o recordsize=16K", 0);
    dir.run("mount -o noatime tank mnt", 0);
    let files = fill(&dir.path("mnt"), 40, 500_000);
    dir.run("sync tank", 0);
    dir.run("fs rewrite -r mnt --compression=zstd-19 --background", 0);
    dir.refused("fs rewrite -r mnt --compression=zstd-3", &["no other rewrite", "--cancel"]);
    let mut stored = 0;
    for round in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(700));
        match round {
            0 | 1 => {
                stored = rewrite_of(&dir)["before"].as_u64().unwrap();
                dir.run("sync tank", 0);
                let server = dir.daemon_pid();
                kill("-KILL", server);
                dir.successor_of(server);
            }
            2 => {
                dir.run("umount tank", 0);
                dir.run("check tank", 0);
                dir.run("mount -o noatime tank mnt", 0);
            }
            _ => {
                dir.kill_all();
                let _ = std::process::Command::new("umount").arg("-l").arg(dir.path("mnt")).output();
                dir.run("check tank", 0);
                dir.run("mount -o noatime tank mnt", 0);
            }
        }
        if let Some(before) = rewrite_of(&dir)["before"].as_u64() {
            assert!(before >= stored, "what was committed is done: {before} of {stored}");
        }
    }
    // It may have ended by now, before the last mount.
    dir.run("fs rewrite -r mnt --compression=zstd-19", 0);
    for (path, bytes) in &files {
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    // A rewrite in progress can be cancelled.
    dir.run("fs rewrite -r mnt --compression=zstd-15 --background", 0);
    dir.run("fs rewrite --cancel mnt", 0);
    assert!(dir.out("fs rewrite --status mnt").contains("cancelled"));
    dir.run("umount tank", 0);
    dir.run("check tank", 0);
}
