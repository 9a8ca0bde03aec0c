//! `terrane fs hint`, `terrane run-hinted` and `terrane explain`, on a mount.

use crate::support::{TestDir, can_mount, hints_library};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Rows of `fs hint --json`, as `pattern=hint`.
fn hints(dir: &TestDir, path: &str) -> Vec<String> {
    let rows = dir.json(&format!("fs hint --json {path}"))["hints"].as_array().unwrap().clone();
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or("-").to_owned();
    rows.iter().map(|row| format!("{}={}", word(row, "pattern"), word(row, "hint"))).collect()
}

fn explained(dir: &TestDir, path: &str) -> Value {
    dir.json(&format!("explain --json {path}"))["files"][0].clone()
}

#[test]
fn rules_give_files_their_hints() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("rules");
    dir.run("pool create tank tank.img --size 128M", 0);
    dir.run("mount tank mnt", 0);
    fs::create_dir_all(dir.path("mnt/db/old")).unwrap();
    fs::write(dir.path("mnt/db/before.sst"), b"x").unwrap();
    dir.run("fs hint *.sst=medium *.log=short long mnt/db", 0);
    assert_eq!(hints(&dir, "mnt/db"), ["*.sst=medium", "*.log=short", "-=long"]);
    for (name, hint) in [
        ("1.sst", "medium"),
        ("1.log", "short"),
        ("LOCK", "long"),
        ("new/2.sst", "medium"),
        ("old/3.sst", "not-set"),
        ("before.sst", "not-set"),
    ] {
        let path = dir.path("mnt/db").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"content").unwrap();
        assert_eq!(hints(&dir, &format!("mnt/db/{name}")), [format!("-={hint}")], "{name}");
    }
    fs::rename(dir.path("mnt/db/1.log"), dir.path("mnt/db/4.sst")).unwrap();
    assert_eq!(hints(&dir, "mnt/db/4.sst"), ["-=medium"]);
    dir.run("fs hint extreme mnt/db/4.sst", 0);
    fs::rename(dir.path("mnt/db/4.sst"), dir.path("mnt/db/4.log")).unwrap();
    assert_eq!(hints(&dir, "mnt/db/4.log"), ["-=extreme"]);
    // Changed, removed, for directories below, and all.
    dir.run("fs hint -r *.sst=extreme mnt/db", 0);
    assert_eq!(hints(&dir, "mnt/db/old"), ["*.sst=extreme", "-=not-set"]);
    assert_eq!(hints(&dir, "mnt/db/new"), ["*.sst=extreme", "*.log=short", "-=long"]);
    dir.run("fs hint --remove *.sst mnt/db", 0);
    assert_eq!(hints(&dir, "mnt/db"), ["*.log=short", "-=long"]);
    dir.refused("fs hint --remove *.sst mnt/db", &["expected a rule for \"*.sst\"", "found none"]);
    dir.run("fs hint --clear -r mnt/db", 0);
    assert_eq!(
        (hints(&dir, "mnt/db"), hints(&dir, "mnt/db/new")),
        (vec!["-=long".into()], vec!["-=long".into()])
    );
    let text = dir.out("fs hint mnt/db/1.sst");
    assert!(text.starts_with("PATH") && text.contains("medium"), "{text}");
    // Refusals.
    dir.refused("fs hint mediun mnt/db", &["mediun", "did you mean 'medium'"]);
    dir.refused("fs hint *.x=long mnt/db/1.sst", &["1.sst", "a directory"]);
    dir.refused("fs hint a/b=long mnt/db", &["a/b=long"]);
    dir.refused("fs hint long tank.img", &["tank.img", "a mount of Terrane"]);
    dir.refused("fs hint long mnt/nothing", &["mnt/nothing"]);
    let many: Vec<String> = (0..33).map(|at| format!("{at}=long")).collect();
    dir.refused(&format!("fs hint {} mnt/db", many.join(" ")), &["32 rules"]);
    assert_eq!(hints(&dir, "mnt/db"), ["-=long"], "what was refused changed nothing");
    // The keys of its page.
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let section = page.split("\n## fs hint: hints\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let keys: BTreeSet<&str> =
        section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let row = dir.json("fs hint -j mnt/db")["hints"][0].clone();
    assert_eq!(row.as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>(), keys);
    dir.run("umount mnt", 0);
}

/// Says and asks for a hint as programs do.
const PROGRAM: &str = "
import fcntl, struct, sys
file = open(sys.argv[1], 'ab')
for command in [1035, 1037]:
    try:
        if len(sys.argv) > 2:
            fcntl.fcntl(file, command + 1, struct.pack('Q', int(sys.argv[2])))
        print(struct.unpack('Q', fcntl.fcntl(file, command, struct.pack('Q', 9)))[0])
    except OSError as error:
        print(error.errno)
    sys.stdout.flush()
";

#[test]
fn fcntl_reaches_the_mount_under_the_preload() {
    if !can_mount() {
        return;
    }
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no python3 to call fcntl");
        return;
    }
    let library = hints_library();
    let dir = TestDir::new("preload");
    dir.run("pool create tank tank.img --size 128M", 0);
    dir.run("mount tank mnt", 0);
    fs::write(dir.path("program.py"), PROGRAM).unwrap();
    fs::write(dir.path("mnt/file"), b"content").unwrap();
    let run = |words: &str| {
        let mut command = dir.command(&format!("run-hinted python3 program.py {words}"));
        let output = command.env("TERRANE_HINTS_LIBRARY", &library).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // In the kernel's numbers: 2 short, 3 medium, 4 long, 5 extreme.
    for (number, word) in [("2", "short"), ("3", "medium"), ("4", "long"), ("5", "extreme"), ("1", "none")] {
        assert_eq!(run(&format!("mnt/file {number}")), [number, number]);
        assert_eq!(hints(&dir, "mnt/file"), [format!("-={word}")]);
        assert_eq!(explained(&dir, "mnt/file")["hint_from"], "file");
    }
    dir.run("fs hint long mnt/file", 0);
    assert_eq!(run("mnt/file"), ["4", "4"]);
    assert_eq!(run("mnt/file 6"), [libc::EINVAL.to_string(), libc::EINVAL.to_string()]);
    assert_eq!(hints(&dir, "mnt/file"), ["-=long"], "what was refused changed nothing");
    // Without the library, the mount hears nothing.
    let mut plain = Command::new("python3");
    assert!(
        plain.args(["program.py", "mnt/file", "2"]).current_dir(dir.path("")).status().unwrap().success()
    );
    assert_eq!(hints(&dir, "mnt/file"), ["-=long"]);
    // Files elsewhere have the kernel's hints, and the exit code is the program's.
    fs::write(dir.path("elsewhere"), b"content").unwrap();
    assert_eq!(run("elsewhere 3")[0], "3");
    let hinted = |words: &str| dir.command(words).env("TERRANE_HINTS_LIBRARY", &library).output().unwrap();
    assert_eq!(hinted("run-hinted sh -c exit${IFS}7").status.code(), Some(7));
    let missing = hinted("run-hinted nothing-of-that-name");
    assert!(
        !missing.status.success()
            && String::from_utf8_lossy(&missing.stderr).contains("nothing-of-that-name")
    );
    let nowhere =
        dir.command("run-hinted true").env("TERRANE_HINTS_LIBRARY", "/nowhere.so").output().unwrap();
    assert!(!nowhere.status.success() && String::from_utf8_lossy(&nowhere.stderr).contains("/nowhere.so"));
    dir.run("umount mnt", 0);
}

#[test]
fn an_explanation_says_who_stated_the_hint_and_who_shares_the_zone() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("explain");
    dir.run("pool create tank tank.img --size 256M -o compression=off", 0);
    dir.run("mount tank mnt", 0);
    let noise: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::create_dir(dir.path("mnt/d")).unwrap();
    for name in ["plain", "d/a.sst", "d/b.log"] {
        fs::write(dir.path("mnt").join(name), &noise).unwrap();
    }
    dir.run("fs hint short mnt/d/b.log", 0);
    dir.run("fs hint *.sst=medium long mnt/d", 0);
    fs::write(dir.path("mnt/d/c.sst"), &noise).unwrap();
    fs::write(dir.path("mnt/d/other"), &noise).unwrap();
    dir.run("sync tank", 0);
    let ways = [
        ("plain", "not-set", Value::Null, Value::Null, "replaced blocks"),
        ("d/c.sst", "medium", "rule".into(), "*.sst".into(), "hint"),
        ("d/b.log", "short", "file".into(), Value::Null, "hint"),
        ("d/other", "long", "directory".into(), Value::Null, "hint"),
        ("d", "long", "file".into(), Value::Null, "metadata"),
    ];
    let check = |dir: &TestDir, prefix: &str| {
        for (name, hint, from, rule, placed_by) in &ways {
            let row = explained(dir, &format!("{prefix}{name}"));
            let found = (&row["hint"], &row["hint_from"], &row["rule"], &row["placed_by"]);
            assert_eq!(found, (&(*hint).into(), from, rule, &(*placed_by).into()), "{prefix}{name}: {row}");
            let zones = row["zones"].as_array().unwrap();
            if *name == "d" {
                continue;
            }
            assert!(!zones.is_empty(), "{row}");
            let stored: u64 = zones.iter().map(|zone| zone["bytes"].as_u64().unwrap()).sum();
            assert!(stored >= 3_000_000, "{row}");
            for zone in zones {
                let number = |key: &str| zone[key].as_u64().unwrap();
                assert!(number("bytes") <= number("live") && number("live_percent") <= 100, "{row}");
                let others = number("live") - number("bytes");
                assert!(number("other_files") == 0 || others > 0, "{row}");
            }
        }
    };
    check(&dir, "mnt/");
    check(&dir, "tank:/");
    let text = dir.out("explain mnt/d/c.sst");
    assert!(text.contains("medium, by the rule *.sst of its directory"), "{text}");
    // What similar files taught, while the pool is open.
    for at in 0..40 {
        let path = dir.path(&format!("mnt/t{at}.tmp"));
        fs::write(&path, b"short").unwrap();
        fs::remove_file(path).unwrap();
    }
    dir.run("sync tank", 0);
    dir.run("sync tank", 0);
    fs::write(dir.path("mnt/next.tmp"), b"next").unwrap();
    let row = explained(&dir, "mnt/next.tmp");
    assert_eq!(
        (&row["placed_by"], &row["similar"]["of"].is_string()),
        (&"similar files".into(), &true),
        "{row}"
    );
    assert!(row["expected_life"].is_u64() && row["similar"]["deaths"].as_u64().unwrap() >= 8, "{row}");
    dir.run("fs hint extreme mnt/next.tmp", 0);
    assert_eq!(explained(&dir, "mnt/next.tmp")["placed_by"], "hint");
    dir.run("fs set write_hint=medium tank", 0);
    assert_eq!(explained(&dir, "mnt/plain")["hint_from"], "property");
    dir.refused("explain mnt/nothing", &["mnt/nothing"]);
    dir.run("umount mnt", 0);
    let row = explained(&dir, "tank.img:/d/c.sst");
    assert_eq!((&row["hint_from"], &row["rule"]), (&"rule".into(), &"*.sst".into()));
    assert!(Path::new(row["path"].as_str().unwrap()).ends_with("d/c.sst"));
}
