//! Words beside directory entries, on a mount.

use crate::support::{NOBODY, TestDir, can_mount, is_root};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

fn mounted(name: &str) -> Option<TestDir> {
    if !can_mount() || !is_root() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    fs::create_dir(dir.path("mnt/d")).unwrap();
    Some(dir)
}

fn end(dir: &TestDir) {
    dir.run("umount tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_script_keeps_identifiers_beside_names() {
    let Some(dir) = mounted("entries") else { return };
    let at = |name: &str| dir.path("mnt/d").join(name);
    for number in 0..40 {
        fs::write(at(&format!("file-{number:02}")), "x").unwrap();
        dir.run(&format!("fs entry set mnt/d/file-{number:02} 0x200000401 {number} 0"), 0);
    }
    fs::create_dir(at("dir")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
    dir.run("fs entry set mnt/d/dir 1 2 3 4 5 18446744073709551615", 0);
    dir.run("fs entry set mnt/d/link 7", 0);
    assert_eq!(dir.out("fs entry get mnt/d/file-31"), "0x200000401 0x1f 0x0\n");

    // The kernel learns that the directory has changed.
    let before = fs::metadata(at("")).unwrap();
    dir.run("fs entry set mnt/d/file-30 30", 0);
    let after = fs::metadata(at("")).unwrap();
    assert_ne!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));

    fs::rename(at("file-00"), at("moved")).unwrap();
    fs::rename(at("file-01"), dir.path("mnt/elsewhere")).unwrap();
    fs::rename(at("file-02"), at("file-03")).unwrap();
    fs::hard_link(at("file-04"), at("hard")).unwrap();
    fs::remove_file(at("file-05")).unwrap();
    fs::write(at("file-05"), "again").unwrap();
    dir.run("fs entry remove mnt/d/file-06", 0);
    dir.run("umount tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    let shown = dir.out(&format!("debug zap tank {}", before.ino()));
    assert!(
        shown.contains("Tiny (128-byte slots, words: 7)"),
        "one entry has six words beside its own: {shown}"
    );
    dir.run("mount tank mnt", 0);
    for (name, words) in [
        ("d/moved", "0x200000401 0x0 0x0\n"),
        ("elsewhere", "0x200000401 0x1 0x0\n"),
        ("d/file-03", "0x200000401 0x2 0x0\n"),
        ("d/file-04", "0x200000401 0x4 0x0\n"),
        ("d/dir", "0x1 0x2 0x3 0x4 0x5 0xffffffffffffffff\n"),
        ("d/link", "0x7\n"),
    ] {
        assert_eq!(dir.out(&format!("fs entry get mnt/{name}")), words, "{name}");
    }
    for name in ["hard", "file-05", "file-06"] {
        dir.refused(&format!("fs entry get mnt/d/{name}"), &["no words"]);
    }
    let listed = dir.out("fs entry list -H mnt/d");
    assert_eq!(listed.lines().count(), 41, "{listed}");
    assert!(listed.contains("hard\t-\n") && listed.contains("link\t0x7\n"), "{listed}");

    let answer = dir.json("fs entry list --json mnt/d");
    let rows = answer["entries"].as_array().unwrap();
    let link = rows.iter().find(|row| row["name"] == "link").unwrap();
    assert_eq!(*link, serde_json::json!({"name": "link", "words": ["0x7"]}));
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let section = page.split_once("\n## fs entry list: entries\n").unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let keys: Vec<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(key, _)| key)
        .collect();
    assert_eq!(keys, ["name", "words"], "docs/json.md");
    end(&dir);
}

#[test]
fn what_has_no_words_says_so() {
    let Some(dir) = mounted("entries-refused") else { return };
    fs::write(dir.path("mnt/d/file"), "x").unwrap();
    fs::write(dir.path("other"), "x").unwrap();
    dir.refused("fs entry get mnt/d/file", &["no words"]);
    dir.refused("fs entry get mnt/d/missing", &["missing"]);
    dir.refused("fs entry set other 1", &["expected a directory of Terrane"]);
    dir.refused("fs entry list other", &["expected a directory of Terrane"]);
    dir.refused("fs entry list mnt/d/file", &["expected a directory of Terrane"]);
    dir.run("fs entry set mnt/d/file 1 2 3 4 5 6 7", 2);
    dir.run("fs entry set mnt/d/file 0x1ffffffffffffffff", 2);
    dir.run("fs entry set mnt/d/file 1", 0);
    // Another user reads words, and sets them in own directories only.
    let binary = Path::new(env!("CARGO_BIN_EXE_terrane"));
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(binary);
        command.args(["fs", "entry"]).args(words).arg(dir.path("mnt/d/file"));
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let got = run(&["get"]).output().unwrap();
    if !got.status.success() {
        eprintln!("SKIPPED the part of another user: {got:?}");
        return end(&dir);
    }
    assert_eq!(got.stdout, b"0x1\n");
    let refused = run(&["remove"]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("owner or root"), "{error}");
    std::os::unix::fs::chown(dir.path("mnt/d"), Some(NOBODY), None).unwrap();
    assert!(run(&["remove"]).status().unwrap().success());
    dir.refused("fs entry get mnt/d/file", &["no words"]);
    end(&dir);
}
