//! Every command for pools, datasets and files: its output for people, scripts and programs, and its effects.

use crate::support::{Running, TestDir, can_mount, noise};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_dataset::Dataset;
use terrane_device::{Device, FileDevice};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{Cred, Fs, SetXattr, WriteFlags};
use terrane_store::env::{Env, SeededEnv};

/// The states of the pools that a search finds, as `NAME STATE`.
fn found(dir: &TestDir, words: &str) -> Vec<String> {
    let pools = &dir.json(words)["pools"];
    let row = |row: &Value| format!("{} {}", row["name"].as_str().unwrap(), row["state"].as_str().unwrap());
    pools.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn pools_come_and_go() {
    let dir = TestDir::new("import");
    dir.run("pool create tank tank.img --size 64M", 0);
    assert_eq!(found(&dir, "pool import -j"), ["tank imported"]);
    dir.run("pool export tank", 0);
    assert_eq!(dir.out("pool list -H"), "");
    assert!(dir.out("pool import -d mnt").contains("no pools found"));
    let row = &dir.json("pool import -d . -j")["pools"][0];
    assert_eq!((&row["name"], &row["state"], &row["clean"]), (&"tank".into(), &"ready".into(), &true.into()));
    let action = row["action"].as_str().unwrap().to_owned();
    assert_eq!(action, format!("terrane pool import {}", dir.path("tank.img").display()));
    // The command that it suggests works.
    dir.run(action.strip_prefix("terrane ").unwrap(), 0);
    assert_eq!(dir.out("pool list -H -o name,state"), "tank\thealthy\n");
    dir.run("pool export --all", 0);

    let id = row["id"].as_str().unwrap().to_owned();
    dir.run(&format!("pool import -d tank.img {id}"), 0);
    dir.run("pool export tank.img", 0);
    dir.refused("pool import -d . tnak", &["tnak", "did you mean 'tank'?"]);
    dir.refused("pool import nobody.img", &["nobody.img", "-d DIR"]);
    dir.refused("pool import ./nobody.img", &["nobody.img", "No such file"]);
    fs::write(dir.path("text.img"), vec![b'x'; 1 << 20]).unwrap();
    dir.refused("pool import text.img", &["text.img", "Terrane pool"]);
    dir.run("pool import -d . --all", 0);
    assert_eq!(dir.out("pool list -H -o name"), "tank\n");

    // Two devices with one name, as after copying an image.
    fs::copy(dir.path("tank.img"), dir.path("copy.img")).unwrap();
    dir.refused("pool import copy.img", &["tank", "export that one first"]);
    dir.run("pool export tank", 0);
    dir.refused("pool import -d . tank", &["copy.img", "tank.img", "name the device"]);

    let held = File::open(dir.path("tank.img")).unwrap();
    held.lock().unwrap();
    assert_eq!(found(&dir, "pool import -d tank.img -j"), ["tank in use"]);
    dir.refused("pool import tank.img", &[&std::process::id().to_string()]);
    drop(held);
    File::options().write(true).open(dir.path("copy.img")).unwrap().set_len(20 << 20).unwrap();
    assert_eq!(found(&dir, "pool import -d copy.img -j"), ["tank damaged"]);
    assert!(dir.out("pool import -d copy.img").contains("cut short"));
    dir.refused("pool import copy.img", &["cut short"]);
}

#[test]
fn an_import_that_only_reads_changes_nothing() {
    let dir = TestDir::new("readonly");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("pool export tank", 0);
    let before = fs::read(dir.path("tank.img")).unwrap();
    dir.run("pool import --read-only tank.img", 0);
    assert!(before == fs::read(dir.path("tank.img")).unwrap(), "the image changed");
    assert_eq!(dir.out("pool list -H -o name"), "tank\n");
}

#[test]
fn a_status_of_what_is_not_healthy_ends_with_one() {
    let dir = TestDir::new("unhealthy");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("pool create other other.img --size 64M", 0);
    assert_eq!(dir.out("pool status -x"), "all pools are healthy\n");
    assert_eq!(dir.out("pool status -x tank"), "all pools are healthy\n");
    fs::rename(dir.path("other.img"), dir.path("elsewhere.img")).unwrap();
    dir.refused("pool status -x", &["1 of 2 pools are not healthy"]);
    let shown = String::from_utf8(dir.run("pool status -x -j", 1).stdout).unwrap();
    assert!(shown.contains("other") && !shown.contains("\"tank\""), "{shown}");
}

#[test]
fn an_import_rewinds_to_an_older_txg() {
    let dir = TestDir::new("rewind");
    dir.run("pool create tank tank.img --size 64M", 0);
    let txg = |dir: &TestDir| dir.json("pool status tank -j")["pools"][0]["txg"].as_u64().unwrap();
    let first = txg(&dir);
    dir.run("fs set atime=off tank", 0);
    let second = txg(&dir);
    assert!(second > first);
    dir.run("pool export tank", 0);
    let said = dir.out(&format!("pool import --read-only --rewind {first} tank.img"));
    assert!(said.contains("can be imported") && said.contains("would be lost"), "{said}");
    assert_eq!(txg(&dir), second, "it was only tried");
    let said = dir.out(&format!("pool import --rewind {first} tank.img"));
    assert!(said.contains("are discarded"), "{said}");
    assert_eq!(dir.out("fs get -H -o value atime tank"), "relatime\n");
    // The txg that was discarded by a rewind has the higher number, and is no longer the newest.
    let newest = &dir.json("pool import -d . -j")["pools"][0];
    assert!(newest["clean"] == true && dir.json("pool status -j")["pools"][0]["clean"] == true);
    dir.refused("pool import --rewind 1 tank.img", &["txg"]);
    dir.misused("pool import --rewind 1", &["NAME"]);
}

#[test]
fn features_are_enabled_and_become_active_by_their_use() {
    let dir = TestDir::new("features");
    with_attributes(&dir.path("tank.img"));
    dir.run("pool import tank.img", 0);
    let state = |name: &str, words: &str| {
        let answer = dir.json(&format!("pool features -j tank {words}"));
        let rows = answer["features"].as_array().unwrap().clone();
        let row = rows.into_iter().find(|row| row["name"] == format!("org.terrane:{name}")).unwrap();
        (row["state"].as_str().unwrap().to_owned(), row["uses"].as_u64())
    };
    let (active, enabled) = ("active".to_owned(), "enabled".to_owned());
    assert_eq!(state("tinyzap", ""), (enabled.clone(), Some(0)));
    assert_eq!(state("codecs", ""), ("disabled".to_owned(), Some(0)));
    assert_eq!(state("xattr", ""), (active.clone(), None), "not counted");
    assert_eq!(state("xattr", "--count"), (active.clone(), Some(1)));
    assert_eq!(state("datasets", "--count"), (active, Some(1)));
    dir.refused("pool features tank --disable xattr", &["org.terrane:xattr", "active: 1 x inode"]);
    dir.refused("pool features tank --disable org.terrane:rows", &["in use from the moment it is enabled"]);
    dir.refused("pool features tank --disable flux", &["\"flux\"", "unknown"]);
    assert_eq!(state("tinyzap", "--disable tinyzap"), ("disabled".to_owned(), Some(0)));
    assert_eq!(state("tinyzap", ""), ("disabled".to_owned(), Some(0)));
    assert!(dir.out("pool upgrade tank").contains("added: org.terrane:tinyzap\n"));
    dir.run("pool features tank --disable tinyzap", 0);
    assert_eq!(state("tinyzap", "--enable tinyzap"), (enabled, Some(0)));
    assert!(dir.out("pool features tank").contains("org.terrane:tinyzap      enabled"));
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_pool_of_an_older_version_is_upgraded_once() {
    let dir = TestDir::new("upgrade");
    assert!(dir.out("pool upgrade").starts_with("no known pools"));
    dir.run("pool create tank tank.img --size 64M", 0);
    let defaults = "org.terrane:tinyzap,org.terrane:xattr,org.terrane:totals,org.terrane:tallies,org.terrane:accounts,org.terrane:pointers,org.terrane:rows,org.terrane:births,org.terrane:datasets,org.terrane:entry_words,org.terrane:snapshots,org.terrane:owners,org.terrane:shared,org.terrane:log";
    assert_eq!(dir.out("pool upgrade -H"), format!("tank\t1\t{defaults}\tnothing to do\n"));
    assert_eq!(dir.out("pool upgrade -H tank"), format!("tank\t1\t{defaults}\tnothing to do\n"));
    assert!(dir.out("pool upgrade --features").contains("org.terrane:tinyzap "));
    dir.run("pool create --no-features old old.img --size 64M", 0);
    assert!(dir.out("pool status old").contains("features: none\n"));
    assert_eq!(dir.json("pool list -j old")["pools"][0]["features"], serde_json::json!([]));
    for _ in 0..2 {
        let row = dir.json("pool upgrade -j")["pools"][0].clone();
        assert_eq!(row["name"], "old");
        assert_eq!(row["upgrade"], format!("available: {defaults}"), "to look is not to change");
    }
    assert_eq!(
        dir.out("pool upgrade -H -a").lines().next(),
        Some(&*format!("old\t1\t{defaults}\tadded: {defaults}"))
    );
    assert_eq!(dir.out("pool upgrade -H old"), format!("old\t1\t{defaults}\tnothing to do\n"));
    assert!(dir.out("pool status old").contains(
        "features: org.terrane:tinyzap, org.terrane:xattr, org.terrane:totals, org.terrane:tallies, org.terrane:accounts, org.terrane:pointers, org.terrane:rows, org.terrane:births, org.terrane:datasets, org.terrane:entry_words, org.terrane:snapshots, org.terrane:owners, org.terrane:shared, org.terrane:log\n"
    ));
    assert!(dir.out("check old").contains("nothing found"));
    dir.refused("pool upgrade nobody", &["nobody"]);
    dir.misused("pool upgrade --features tank", &["--features"]);
}

#[test]
fn properties_are_inherited_and_shown_as_wanted() {
    let dir = TestDir::new("props");
    dir.run("pool create tank tank.img --size 64M -o recordsize=16K -o atime=off", 0);
    assert_eq!(dir.out("fs get -H -s local -o property,value all tank"), "recordsize\t16K\natime\toff\n");
    assert_eq!(dir.out("fs get -H -p -o value recordsize"), "16384\n");
    dir.run("fs inherit recordsize,atime tank", 0);
    assert_eq!(dir.out("fs get -H -s local all tank"), "");
    assert_eq!(dir.out("fs get -H -o property,value,source recordsize tank"), "recordsize\t128K\tdefault\n");
    dir.run("fs inherit recordsize tank", 0);
    assert_eq!(dir.out("fs list -H -p -o name,mountpoint"), "tank\t-\n");
    dir.misused("fs inherit recrodsize tank", &["recrodsize", "recordsize"]);
    dir.misused("fs set compresion=lz4 tank", &["did you mean 'compression'?"]);
    dir.misused("fs set compression=ztsd tank", &["did you mean 'zstd'?"]);
    dir.misused("fs get all tank -o nmae", &["nmae", "'name'"]);
    dir.refused("fs get all tnak", &["did you mean 'tank'?"]);
    dir.misused("fs lst", &["'list'"]);
}

#[test]
fn a_map_shows_the_zones() {
    let dir = TestDir::new("zones");
    dir.run("pool create tank tank.img --size 64M", 0);
    assert_eq!(dir.out("fs get -H compression tank").split_whitespace().nth(2), Some("lz4"), "the default");
    let map = dir.out("zones tank");
    assert!(map.contains("64 zones of 1M") && map.contains("metadata A") && map.contains('@'), "{map}");
    assert!(!map.contains('\u{1b}'), "no colour where nobody sees it");
    assert!(dir.out("zones tank --color always").contains("\u{1b}[0;"));
    let answer = dir.json("zones -j tank");
    let zones = answer["zones"].as_array().unwrap();
    assert_eq!(zones.len(), 64);
    assert!(zones[0]["state"] == "anchor" && zones[63]["state"] == "empty");
    assert!(zones.iter().any(|zone| zone["class"] == "metadata B" && zone["live"].as_u64() > Some(0)));
    assert_eq!(dir.out("zones -H tank").lines().count(), 64);
    assert_eq!(dir.out("zones tank --image map.svg"), "");
    assert!(fs::read_to_string(dir.path("map.svg")).unwrap().ends_with("</svg>\n"));
    dir.run("zones tank --image map.png", 0);
    assert!(fs::read(dir.path("map.png")).unwrap().starts_with(b"\x89PNG"));
    dir.misused("zones tank --image map.gif", &["map.gif", ".svg or .png"]);
    dir.refused("zones tank --image nowhere/map.png", &["nowhere/map.png"]);
    dir.refused("zones nobody", &["nobody"]);
}

#[test]
fn a_file_tells_how_it_is_stored_without_a_mount() {
    let dir = TestDir::new("stat");
    dir.run("pool create tank tank.img --size 64M", 0);
    let row = &dir.json("stat -j tank:/")["files"][0];
    assert_eq!((&row["type"], &row["records"]), (&"directory".into(), &0.into()));
    let by_device = dir.json("stat -j ./tank.img:/");
    assert_eq!(by_device["files"][0]["object"], row["object"]);
    assert!(dir.out("stat tank:/").contains("directory"));
    dir.refused("stat tank:/nothing", &["/nothing", "no such file"]);
    dir.refused("stat nobody:/", &["nobody"]);
    dir.refused("stat tank.img", &["tank.img", "POOL:/PATH"]);
    dir.refused("stat nothing", &["nothing", "No such file"]);
}

#[test]
fn an_idle_pool_shows_zeros_and_is_left_alone() {
    let dir = TestDir::new("iostat");
    dir.run("pool create tank tank.img --size 64M", 0);
    assert_eq!(dir.out("pool iostat -H tank"), "tank\t-\t-\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t-\n");
    let begun = Instant::now();
    let lines = dir.out("pool iostat -j tank 0.1 3");
    assert!(begun.elapsed() >= Duration::from_millis(200));
    let reports: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 3);
    assert_eq!(reports[2]["pools"][0]["reads"], 0);
    dir.misused("pool iostat tank 0", &["'0'", "INTERVAL"]);
    dir.misused("pool iostat tank 1 2 3", &["'3'"]);
    dir.refused("pool iostat nobody", &["nobody"]);
}

/// The keys of a section of `docs/json.md`, and those of them that rows may lack.
fn documented(section: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = fs::read_to_string(page).unwrap();
    let begin = page.find(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section:?}"));
    let rows = page[begin + 1..].lines().skip(1).take_while(|line| !line.starts_with("## "));
    let (mut all, mut optional) = (BTreeSet::new(), BTreeSet::new());
    for row in rows.filter_map(|line| line.strip_prefix("| `")) {
        let (key, what) = row.split_once("` |").unwrap();
        all.insert(key.to_owned());
        if what.trim_start().starts_with("if ") {
            optional.insert(key.to_owned());
        }
    }
    assert!(!all.is_empty(), "{section}: no keys");
    (all, optional)
}

#[test]
fn json_is_what_its_page_says() {
    let dir = TestDir::new("json");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("pool create gone gone.img --size 64M", 0);
    fs::remove_file(dir.path("gone.img")).unwrap();
    let seq = dir.json("debug zone tank -j")["zones"][0]["seq"].as_u64().unwrap();
    let tree = dir.json("debug tree -j tank 0");
    let block = tree["pointers"][0]["pointer"].as_str().unwrap().split(' ').next().unwrap().to_owned();
    dir.run("snapshot tank@before", 0);
    dir.run("fs hold kept tank@before", 0);
    dir.run("snapshot tank@after", 0);
    let mut sections = BTreeSet::new();
    for (section, words) in [
        ("pool list: pools", "pool list -j".to_owned()),
        ("pool list: pools", "pool status -j".to_owned()),
        ("pool add: devices", "pool add -j tank data more.img --size 32M".to_owned()),
        ("pool import: pools", "pool import -d . -j".to_owned()),
        ("pool iostat: pools", "pool iostat -j tank".to_owned()),
        ("pool iostat: pools", "pool iostat -j -w tank".to_owned()),
        ("pool gc: pools", "pool gc -j tank".to_owned()),
        ("pool clear: pools", "pool clear -j tank".to_owned()),
        ("pool features: features", "pool features -j tank".to_owned()),
        ("pool upgrade: pools", "pool upgrade -j tank".to_owned()),
        ("fs list: datasets", "fs list -j".to_owned()),
        ("fs holds: holds", "fs holds -j tank".to_owned()),
        ("fs get: properties", "fs get -j all tank".to_owned()),
        ("check: pools", "check -j tank".to_owned()),
        ("zones: zones", "zones -j tank".to_owned()),
        ("stat: files", "stat -j tank:/".to_owned()),
        ("explain: files", "explain -j tank:/".to_owned()),
        ("debug uberblock: uberblocks", "debug uberblock -j tank".to_owned()),
        ("fs userspace: owners", "fs userspace -j tank".to_owned()),
        ("debug zone: zones", "debug zone -j tank".to_owned()),
        ("debug zone SEQ: entries", format!("debug zone -j tank {seq}")),
        ("debug space: space", "debug space -j tank".to_owned()),
        ("debug dnode: objects", "debug dnode -j tank".to_owned()),
        ("debug tree: pointers", "debug tree -j tank 0".to_owned()),
        ("debug zap: entries", "debug zap -j tank 1".to_owned()),
        ("debug block: blocks", format!("debug block -j tank {block}")),
        ("debug block: blocks", format!("debug block -j --raw tank {block}")),
        ("debug block: blocks", format!("debug block -j --decompress tank {seq}:0")),
    ] {
        let answer = dir.json(&words);
        let (command, key) = section.split_once(": ").unwrap();
        let said = answer["command"].as_str().unwrap();
        assert!(command.starts_with(said) || said == "pool status", "{words}: {said}");
        assert_eq!(answer["output_version"], 1, "{words}");
        let rows = answer[key].as_array().unwrap_or_else(|| panic!("{words}: no list {key:?}"));
        assert!(!rows.is_empty(), "{words}: no rows");
        let (all, optional) = documented(section);
        for row in rows {
            let keys: BTreeSet<String> = row.as_object().unwrap().keys().cloned().collect();
            let unknown: Vec<_> = keys.difference(&all).collect();
            let missing: Vec<_> = all.difference(&keys).filter(|key| !optional.contains(*key)).collect();
            assert!(unknown.is_empty(), "{words}: docs/json.md does not have {unknown:?}");
            assert!(missing.is_empty(), "{words}: {missing:?} are missing in {row}");
        }
        sections.insert(section);
    }
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md")).unwrap();
    let written: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let untested: Vec<_> = written
        .difference(&sections)
        // They need a mount, and are compared where there is one (tests/rewrite.rs, hints.rs, entries.rs, snapshots.rs).
        .filter(|head| {
            let elsewhere = [
                "mounts: mounts",
                "fs rewrite: rewrites",
                "fs hint: hints",
                "fs entry list: entries",
                "fs diff: changes",
            ];
            !head.starts_with("metrics") && !elsewhere.contains(head)
        })
        .collect();
    assert!(untested.is_empty(), "sections that no command was compared with: {untested:?}");
}

#[test]
fn what_zstd_auto_chose_is_told_by_properties_and_metrics() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("auto");
    dir.run("pool create tank tank.img --size 128M -o compression=zstd-auto", 0);
    dir.run("mount tank mnt", 0);
    assert!(!dir.out("fs get compression tank").contains("chose"));
    fs::write(dir.path("mnt/text"), "all work and no play\n".repeat(100_000)).unwrap();
    dir.run("sync tank", 0);
    let text = dir.out("fs get compression tank");
    assert!(text.contains("zstd-auto of tank chose") && text.contains("compressed "), "{text}");
    assert_eq!(dir.out("fs get -H compression tank").lines().count(), 1, "scripts see the table alone");
    let answer = dir.json("fs get -j compression tank");
    let levels = answer["properties"][0]["levels"].as_array().unwrap();
    let sum = |key: &str| levels.iter().map(|level| level[key].as_u64().unwrap()).sum::<u64>();
    // The file's last block is partial; in memory it may be.
    assert!((2_100_000..2_300_000).contains(&sum("logical")) && sum("stored") < 200_000, "{answer}");
    let metrics = dir.out("metrics tank");
    assert!(metrics.contains("auto_logical_bytes_total{pool=\"tank\",level=\""), "{metrics}");
    dir.run("umount mnt", 0);
}

#[test]
fn a_mounted_pool_tells_what_it_does_and_how_files_lie() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("watch");
    let mnt = dir.path("mnt");
    dir.run("pool create tank tank.img --size 128M -o recordsize=4K -o compression=zstd-1", 0);
    dir.run("mount tank mnt", 0);
    let noise = noise(300 * 4096);
    fs::write(mnt.join("noise"), &noise).unwrap();
    fs::write(mnt.join("text"), "all work and no play\n".repeat(1000)).unwrap();
    let holes = File::create(mnt.join("holes")).unwrap();
    holes.write_all_at(b"end", 100 * 4096).unwrap();
    drop(holes);
    let early = dir.json("stat -j mnt/noise");
    assert!(early["files"][0]["uncommitted"].as_u64() > Some(0), "{early}");
    dir.run("sync tank", 0);

    let answer = dir.json("stat -j mnt/noise mnt/text mnt/holes tank:/noise");
    let files = answer["files"].as_array().unwrap();
    let number = |file: usize, key: &str| files[file][key].as_u64().unwrap();
    assert_eq!((number(0, "records"), number(0, "stored")), (300, 300 * 4096));
    assert_eq!((number(0, "metadata_blocks"), number(0, "levels"), number(0, "uncommitted")), (11, 3, 0));
    assert_eq!(files[0]["compression"][0]["name"], "off");
    let in_zones = |key: &str| -> u64 {
        files[0]["zones"].as_array().unwrap().iter().map(|zone| zone[key].as_u64().unwrap()).sum()
    };
    assert_eq!(in_zones("bytes"), number(0, "stored") + number(0, "metadata_stored"));
    assert_eq!(in_zones("blocks"), 300 + 2 * 11);
    assert_eq!(files[1]["compression"][0]["name"], "zstd");
    assert!(number(1, "logical") > 10 * number(1, "stored"), "{}", files[1]);
    assert_eq!((number(2, "holes"), number(2, "records")), (100, 1));
    assert_eq!(number(3, "object"), number(0, "object"));
    let text = dir.out("stat mnt/noise");
    assert!(text.contains("regular file") && text.contains("blake3 300 records"), "{text}");

    // The last indirect block is not full: child blocks are numbered by its capacity.
    let tree = dir.json(&format!("debug tree -j tank {}", number(0, "object")));
    let pointers = tree["pointers"].as_array().unwrap();
    let blocks = pointers.iter().filter(|row| row["level"] == 0).map(|row| row["block"].as_u64().unwrap());
    assert_eq!(blocks.collect::<Vec<_>>(), (0..300).collect::<Vec<_>>());

    let zones = dir.json("zones -j tank");
    let live: u64 = zones["zones"].as_array().unwrap().iter().filter_map(|zone| zone["live"].as_u64()).sum();
    assert!(live >= noise.len() as u64);
    let io = dir.json("pool iostat -j tank");
    assert!(io["pools"][0]["written_bytes"].as_u64() >= Some(noise.len() as u64), "{io}");
    let number = |key: &str| io["pools"][0][key].as_u64().unwrap();
    let parts = ["data", "metadata", "log", "collection", "directory", "padding", "anchor"];
    let sum: u64 = parts.iter().map(|part| number(&format!("{part}_bytes"))).sum();
    assert_eq!(sum, number("written_bytes"), "each byte has one use: {io}");
    assert_eq!(number("user_bytes"), noise.len() as u64 + 21 * 1000 + 3, "{io}");
    let status = dir.json("pool status -j tank")["pools"][0].clone();
    let zones_of = |state: &str| status[format!("zones_{state}")].as_u64().unwrap();
    let states: u64 = ["open", "full", "empty", "waiting", "suspect"].map(zones_of).iter().sum();
    assert_eq!(
        (states, zones_of("read_only"), zones_of("offline")),
        (status["zones"].as_u64().unwrap(), 0, 0)
    );
    let totals = &status["totals"];
    assert_eq!(totals["user_bytes"].as_u64(), Some(number("user_bytes")));
    assert!(totals["device_bytes"].as_u64() > Some(number("written_bytes")), "creation wrote too: {totals}");
    let times = status["amplification"].as_f64().unwrap();
    assert!((times - totals["device_bytes"].as_f64().unwrap() / number("user_bytes") as f64).abs() < 1e-9);
    assert!((0.5..times).contains(&status["amplification_minute"].as_f64().unwrap()), "{status}");
    assert_eq!(status["waits"]["count"], 0);
    let text = dir.out("pool status tank");
    assert!(text.contains("(amplification ") && text.contains("in the last minute"), "{text}");
    let latency = dir.out("pool iostat -w tank");
    assert!(latency.contains("FLUSH") && latency.contains("p99.9"), "{latency}");
    assert!(io["pools"][0]["seconds"].as_f64() > Some(0.0));
    assert_eq!(found(&dir, "pool import -d . -j"), ["tank mounted"]);
    dir.refused("pool import tank.img", &["imported already", "mnt"]);
    let busy = File::open(mnt.join("text")).unwrap();
    dir.refused("pool export tank", &["busy"]);
    drop(busy);
    dir.run("pool export tank", 0);
    assert!(dir.mounts().is_empty());
    assert_eq!(dir.out("pool list -H"), "");
    dir.run("pool import tank.img", 0);
    let later = dir.json("pool status -j tank")["pools"][0].clone();
    assert_eq!(later["totals"]["user_bytes"].as_u64(), Some(number("user_bytes")), "a pool remembers");
    assert_eq!((&later["waits"], &later["amplification_minute"]), (&Value::Null, &Value::Null));
}

#[test]
fn garbage_is_collected_when_somebody_asks() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("collect");
    let mnt = dir.path("mnt");
    dir.run("pool create tank tank.img --size 128M --zone-size 1M", 0);
    dir.run("mount tank mnt", 0);
    // Three files per zone, of which one is deleted: no zone becomes empty by itself.
    let name = |at: usize| mnt.join(at.to_string());
    (0..60).for_each(|at| fs::write(name(at), noise(300_000)).unwrap());
    dir.run("sync tank", 0);
    (0..60).step_by(3).for_each(|at| fs::remove_file(name(at)).unwrap());
    dir.run("sync tank", 0);
    let before = dir.json("pool status -j tank")["pools"][0].clone();
    assert!(before["garbage"].as_u64() > Some(3 << 20) && before["garbage_goal"].is_null(), "{before}");
    let row = dir.json("pool gc tank --target 2 --wait -j")["pools"][0].clone();
    assert_eq!((&row["done"], &row["target_percent"]), (&true.into(), &2.into()));
    let won = row["garbage_before"].as_u64().unwrap() - row["garbage"].as_u64().unwrap();
    assert!(won > 3 << 20, "{row}");
    let zones = dir.json("zones -j tank");
    let shares: Vec<u64> =
        zones["live_shares"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    // The tail of a zone that is too short for another record cannot be reclaimed, and some may stay.
    assert!(shares[..8].iter().sum::<u64>() <= 1 && shares[8..].iter().sum::<u64>() > 8, "{shares:?}");
    let moved: u64 =
        zones["zones"].as_array().unwrap().iter().filter_map(|zone| zone["moved"].as_u64()).sum();
    let brought: Vec<&Value> =
        zones["zones"].as_array().unwrap().iter().filter(|zone| zone["moved"].as_u64() > Some(0)).collect();
    assert!(
        moved > 3 << 20 && brought.iter().all(|zone| zone["moved"].as_u64() <= zone["live"].as_u64()),
        "{moved}"
    );
    let rows = zones["summary"].as_array().unwrap();
    assert_eq!(rows.iter().filter_map(|row| row["moved"].as_u64()).sum::<u64>(), moved);
    assert!(dir.out("pool gc tank").contains("collected"));
    (0..60).filter(|at| at % 3 > 0).for_each(|at| assert_eq!(fs::read(name(at)).unwrap(), noise(300_000)));
    (1..60).step_by(3).for_each(|at| fs::remove_file(name(at)).unwrap());
    dir.run("umount tank", 0);

    // No other process continues it, so the command waits.
    let text = dir.out("pool gc tank --target 2");
    assert!(text.starts_with("tank: ") && text.contains("M of garbage collected, "), "{text}");
    assert!(dir.out("check tank").contains("nothing found"));
    dir.misused("pool gc tank --target 101", &["101"]);
    dir.refused("pool gc nobody", &["nobody"]);
}

#[test]
fn a_block_that_cannot_be_read_is_named_by_its_file() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("named");
    dir.run("pool create tank tank.img --size 128M", 0);
    dir.run("mount tank mnt", 0);
    fs::create_dir(dir.path("mnt/dir")).unwrap();
    let noise = noise(100_000);
    fs::write(dir.path("mnt/dir/file"), &noise).unwrap();
    dir.run("umount tank", 0);
    let image = File::options().read(true).write(true).open(dir.path("tank.img")).unwrap();
    let mut raw = fs::read(dir.path("tank.img")).unwrap();
    let at = raw.windows(64).position(|window| window == &noise[1000..1064]).unwrap();
    raw.truncate(0);
    image.write_all_at(b"rot", at as u64).unwrap();
    drop(image);

    dir.run("mount tank mnt", 0);
    assert!(fs::read(dir.path("mnt/dir/file")).is_err());
    let status = dir.out("pool status tank");
    assert!(status.contains("damaged") && status.contains("pool status -v"), "{status}");
    let status = dir.out("pool status -v tank");
    assert!(status.contains("/dir/file (inode"), "{status}");
    let row = &dir.json("pool status -j tank")["pools"][0]["damaged"][0];
    assert!(row["path"].as_str().unwrap().starts_with("/dir/file"), "{row}");
    let report = dir.command("check tank").output().unwrap();
    assert_eq!(report.status.code(), Some(1));
    let said = String::from_utf8(report.stdout).unwrap();
    assert!(said.contains("tank: /dir/file (inode"), "{said}");

    // A remount or a new server does not clear that.
    let unhealthy = |dir: &TestDir| dir.command("pool status -x tank").output().unwrap().status.code();
    for again in ["restart tank", "umount tank", "mount tank mnt"] {
        dir.run(again, 0);
        let row = dir.json("pool status -j tank")["pools"][0].clone();
        assert_eq!(row["state"], "damaged", "{again}");
        assert_eq!(
            row["damaged"][0]["path"].as_str().map(|path| path.starts_with("/dir/file")),
            Some(true),
            "{row}"
        );
        assert!(row["devices"][0]["checksum_errors"].as_u64() > Some(0), "{row}");
        assert!(row["damage"].to_string().contains("/dir/file"), "a check found it as well: {row}");
        assert_eq!(unhealthy(&dir), Some(1), "{again}");
    }
    let cleared = dir.out("pool clear tank");
    assert!(cleared.contains("1 damaged block, 1 device's errors"), "{cleared}");
    for again in ["pool status tank", "umount tank", "mount tank mnt"] {
        dir.run(again, 0);
        assert_eq!(dir.json("pool status -j tank")["pools"][0]["state"], "healthy", "{again}");
        assert_eq!(unhealthy(&dir), Some(0), "{again}");
    }
    // Damage that still exists is found again.
    assert_eq!(dir.command("check tank").output().unwrap().status.code(), Some(1));
    assert_eq!(dir.json("pool status -j tank")["pools"][0]["state"], "damaged");
    dir.run("umount tank", 0);
    assert!(dir.out("pool clear tank").contains("finding"));
    assert_eq!(unhealthy(&dir), Some(0));
}

#[test]
fn a_check_beside_writers_finds_nothing() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("beside");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("mount tank mnt -o commit=1", 0);
    let mnt = dir.path("mnt");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (mnt, stop) = (mnt.clone(), &stop);
            scope.spawn(move || {
                let noise = noise(300_000);
                let mut round = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let path = mnt.join(format!("{writer}-{}", round % 40));
                    fs::write(&path, &noise[..(round * 7919) % noise.len()]).unwrap();
                    if round % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                    if round % 10 == 0 {
                        File::open(&mnt).unwrap().sync_all().unwrap();
                    }
                    round += 1;
                }
            });
        }
        let outcome = std::panic::catch_unwind(|| {
            for _ in 0..5 {
                let report = dir.out("check tank");
                assert!(report.contains("nothing found"), "{report}");
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.unwrap();
    });
    dir.run("umount tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn reports_come_until_they_are_interrupted() {
    let dir = TestDir::new("forever");
    dir.run("pool create tank tank.img --size 64M", 0);
    let child = dir.command("pool iostat -H tank 0.05").stdout(Stdio::piped()).spawn().unwrap();
    let mut child = Running(child);
    let mut raw = [0; 64];
    let out = child.0.stdout.as_mut().unwrap();
    let mut seen = 0;
    while seen < 64 {
        seen += std::io::Read::read(out, &mut raw).unwrap();
    }
    assert!(child.0.try_wait().unwrap().is_none());
    // Closing the pipe ends it.
    drop(child.0.stdout.take());
    let begun = Instant::now();
    while child.0.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it goes on for nobody");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A pool in a file, with one inode that has attributes in every home; returns its number.
fn with_attributes(image: &Path) -> u64 {
    const ZONE_BYTES: u64 = 1 << 20;
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(image, 64 << 20, ZONE_BYTES).unwrap());
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(1));
    let create = CreateOptions::named("tank");
    let pool = Pool::create(vec![device], &create, env, &ImportOptions::default()).unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let dataset = Arc::new(Dataset::create_root(&objects, &[]).unwrap());
    Fs::format(&dataset, &Cred::default()).unwrap();
    let fs = Fs::open(dataset).unwrap();
    let ino = fs.create(fs.root(), b"file", 0o640, &Cred::default()).unwrap().ino;
    fs.write(ino, 0, b"little", WriteFlags::default()).unwrap();
    for (name, len) in [("user.big", 40_000), ("user.listed", 700)] {
        fs.setxattr(ino, name.as_bytes(), &vec![7; len], SetXattr::default(), &Cred::default()).unwrap();
    }
    drop((fs, objects));
    pool.export().unwrap();
    drop(pool);
    // Children that other tests are starting just now hold copies of the locked descriptor until their exec.
    let image = fs::File::open(image).unwrap();
    let begun = Instant::now();
    while image.try_lock().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the image is still locked");
        std::thread::sleep(Duration::from_millis(5));
    }
    ino
}

#[test]
fn an_inode_shows_where_its_attributes_lie() {
    let dir = TestDir::new("attributes");
    let ino = with_attributes(&dir.path("tank.img"));
    let object = dir.json(&format!("debug dnode -j ./tank.img {ino}"))["object"].clone();
    assert_eq!((&object["dnode_bytes"], &object["contents"]), (&512.into(), &"embedded".into()));
    assert_eq!((&object["bonus_room"], &object["bonus_bytes"]), (&192.into(), &144.into()));
    let of = |list: &str, name: &str| {
        let rows = object[list].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {rows:?}")).clone()
    };
    assert_eq!(
        (&of("attributes", "ZPL_MODE")["value"], &of("attributes", "ZPL_SIZE")["value"]),
        (&"0o100640".into(), &"6".into())
    );
    assert_eq!(of("attributes", "ZPL_MTIME")["home"], "bonus");
    let list = of("attributes", "ZPL_DXATTR");
    assert_eq!((&list["home"], list["bytes"].as_u64() > Some(700)), (&"spill".into(), true));
    assert!(object["spill_bytes"].as_u64() > Some(700));
    assert_eq!(
        (&of("xattrs", "user.listed")["home"], &of("xattrs", "user.listed")["bytes"]),
        (&"spill".into(), &700.into())
    );
    let big = of("xattrs", "user.big");
    assert!(big["home"].as_str().unwrap().starts_with("object ") && big["bytes"] == 40_000, "{big}");
    let shown = dir.out(&format!("debug dnode ./tank.img {ino}"));
    for line in ["contents: embedded", "XATTR        HOME", "user.listed  spill", "ZPL_DXATTR  spill"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(dir.out("check ./tank.img").contains("nothing found"));
}

#[test]
fn blocks_levels_and_ratios_say_what_is_stored() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("ratio");
    let mnt = dir.path("mnt");
    dir.run("pool create tank tank.img --size 128M -o recordsize=16K -o compression=zstd-3", 0);
    dir.run("mount tank mnt", 0);
    fs::write(mnt.join("noise"), noise(10 * 16_384)).unwrap();
    fs::write(mnt.join("text"), &"all work and no play\n".repeat(8000)[..160_000]).unwrap();
    fs::write(mnt.join("zeros"), vec![0; 160_000]).unwrap();
    fs::write(mnt.join("tiny"), "a few bytes").unwrap();
    File::create(mnt.join("hole")).unwrap().set_len(1 << 30).unwrap();
    dir.run("sync tank", 0);
    // The kernel caches attributes; a new mount asks again.
    dir.run("umount tank", 0);
    dir.run("mount tank mnt", 0);
    let blocks = |name: &str| fs::metadata(mnt.join(name)).unwrap().blocks();
    assert!((320..360).contains(&blocks("noise")), "{}", blocks("noise"));
    assert!((1..40).contains(&blocks("text")), "{}", blocks("text"));
    assert_eq!((blocks("zeros"), blocks("hole"), blocks("tiny")), (0, 0, 1));

    let shown =
        dir.out("fs get -H -p -o value used,logicalused,physicalused,compressratio,refcompressratio tank");
    let shown: Vec<f64> = shown.lines().map(|line| line.parse().unwrap()).collect();
    let [used, logical, physical, ratio, reference] = shown[..] else { panic!("{shown:?}") };
    assert!((323_000.0..=345_000.0).contains(&logical), "{shown:?}");
    assert!((163_840.0..=175_000.0).contains(&physical) && used > physical, "{shown:?}");
    assert!((logical / physical - ratio).abs() < 0.01 && ratio == reference, "{shown:?}");
    let page = dir.out("metrics tank");
    let line = page.lines().find(|line| line.starts_with("terrane_dataset_logical_bytes")).unwrap();
    assert!(line.ends_with(&format!(" {logical}")), "{line}");

    let text = &dir.json("stat -j mnt/text")["files"][0];
    assert_eq!(text["zstd_levels"], serde_json::json!([{"name": "zstd-3", "records": 10}]), "{text}");
    assert!(dir.out("stat mnt/text").contains("levels: zstd-3 10\n"));
    assert_eq!(dir.json("stat -j mnt/noise")["files"][0]["zstd_levels"], serde_json::json!([]));
    dir.run("umount tank", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}
