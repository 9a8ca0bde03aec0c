//! Figures that tell an operator what space is kept for, and what memory and compression are worth.

use crate::support::{TestDir, can_mount};
use serde_json::Value;
use std::fs;

fn status(dir: &TestDir) -> Value {
    dir.json("pool status --json tank")["pools"][0].clone()
}

/// A value of the metrics; `labels` as printed, without the pool's.
fn metric(text: &str, name: &str, labels: &str) -> u64 {
    let labels = if labels.is_empty() { String::new() } else { format!(",{labels}") };
    let key = format!("terrane_{name}{{pool=\"tank\"{labels}}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&key));
    value.unwrap_or_else(|| panic!("there is no {key}: {text}")).parse::<f64>().unwrap() as u64
}

/// Sum of a family's samples.
fn metric_sum(text: &str, name: &str) -> u64 {
    let head = format!("terrane_{name}{{");
    let values =
        text.lines().filter(|line| line.starts_with(&head)).map(|line| line.rsplit(' ').next().unwrap());
    values.map(|value| value.parse::<u64>().unwrap()).sum()
}

/// Checks that kept and offered space add up to the devices, and that metrics say the same. Returns the kept parts.
///
/// The devices are sparse files: what their host has no space for is kept too. Where other programs write to the
/// host meanwhile, that part differs between two commands, so they run until nothing changed in between.
fn add_up(dir: &TestDir, device_bytes: u64) -> Value {
    let mut before = status(dir);
    for _ in 0..50 {
        let metrics = dir.out("metrics tank");
        let after = status(dir);
        for status in [&before, &after] {
            let kept = status["kept"].as_object().unwrap();
            let parts = kept.iter().filter(|(key, _)| *key != "devices");
            let parts: u64 = parts.map(|(_, bytes)| bytes.as_u64().unwrap()).sum();
            assert_eq!(kept["devices"], device_bytes, "{status}");
            assert_eq!(parts + status["size"].as_u64().unwrap(), device_bytes, "{status}");
        }
        if before["kept"] == after["kept"] {
            let size = after["size"].as_u64().unwrap();
            assert_eq!(metric(&metrics, "pool_device_bytes", ""), device_bytes);
            assert_eq!(metric_sum(&metrics, "pool_kept_bytes"), device_bytes - size, "{metrics}");
            return after["kept"].clone();
        }
        before = after;
    }
    panic!("free space of the host never stays the same for two commands: {before}");
}

#[test]
fn what_is_kept_and_what_is_offered_add_up_to_the_device() {
    let dir = TestDir::new("kept");
    for (size, bytes) in [("64M", 64 << 20), ("1G", 1 << 30), ("20G", 20 << 30)] {
        dir.run(&format!("pool create tank tank.img --size {size}"), 0);
        let kept = add_up(&dir, bytes);
        for key in ["anchors", "zone_overhead", "collection", "commits"] {
            // A host without space for the file takes the rest first.
            let is_short = size == "20G" && kept["host"] != 0;
            assert!(is_short || kept[key].as_u64().unwrap() > 0, "{key} of {size}: {kept}");
        }
        assert_eq!(kept["unusable"], 0, "{kept}");
        let text = dir.out("pool status tank");
        assert!(text.contains(" for collection, ") && text.contains(" for labels and uberblocks"), "{text}");
        if can_mount() && size == "1G" {
            dir.run("mount tank mnt", 0);
            fs::write(dir.path("mnt/file"), vec![7; 4 << 20]).unwrap();
            dir.run("sync tank", 0);
            add_up(&dir, bytes);
            dir.run("umount mnt", 0);
        }
        dir.run("pool destroy --delete tank", 0);
    }
}

#[test]
fn zones_of_each_size_are_counted_apart() {
    let dir = TestDir::new("zonesizes");
    dir.run("pool create tank a.img --size 128M --zone-size 4M", 0);
    let text = dir.out("pool status tank");
    assert!(text.contains("zones: 30 of 4M: "), "{text}");
    dir.run("pool add tank data b.img --size 256M --zone-size 8M", 0);
    let status = status(&dir);
    let sizes: Vec<(u64, u64)> = status["zone_sizes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["size"].as_u64().unwrap(), row["zones"].as_u64().unwrap()))
        .collect();
    assert_eq!(sizes, [(8 << 20, 30), (4 << 20, 30)], "{status}");
    assert_eq!(status["zones"], 60);
    let sum = |key: &str| {
        let rows = status["zone_sizes"].as_array().unwrap();
        rows.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(sum("empty"), status["zones_empty"].as_u64().unwrap(), "{status}");
    assert_eq!(sum("empty") + sum("used"), 60, "{status}");
    let text = dir.out("pool status tank");
    assert!(text.contains("zones: 60: 30 of 8M and 30 of 4M: "), "{text}");
    add_up(&dir, 384 << 20);
}

#[test]
fn memory_and_compression_show_what_they_are_worth() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("worth");
    dir.run("pool create tank tank.img --size 256M -o compression=zstd-12 -o recordsize=128K", 0);
    let closed = status(&dir);
    assert!(closed["reclaim"].is_null() && closed["given_up"].is_null());
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    let text: Vec<u8> =
        (0..400_000u32).flat_map(|n| format!("line {} of a log\n", n / 3).into_bytes()).collect();
    fs::write(mnt.join("text"), &text).unwrap();
    let mut state = 1u64;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(10 * (128 << 10))
    .collect();
    fs::write(mnt.join("random"), &random).unwrap();
    let names = mnt.join("names");
    fs::create_dir(&names).unwrap();
    (0..1500)
        .for_each(|n| drop(fs::File::create(names.join(format!("a name that is looked up {n}"))).unwrap()));
    (0..1500)
        .for_each(|n| drop(fs::metadata(names.join(format!("a name that is not there {n}"))).unwrap_err()));
    dir.run("sync tank", 0);

    let metrics = dir.out("metrics tank");
    let probe = "codec=\"zstd\",step=\"probe\"";
    let given_up = metric(&metrics, "compression_given_up_blocks_total", probe);
    assert!((10..30).contains(&given_up), "{given_up}");
    assert!(metric(&metrics, "compression_given_up_bytes_total", probe) >= random.len() as u64);
    assert_eq!(metric(&metrics, "compression_given_up_blocks_total", "codec=\"lzjb\",step=\"probe\""), 0);
    let of_data = |name: &str| metric(&metrics, name, "kind=\"data\"");
    assert!(of_data("cache_logical_bytes") >= text.len() as u64, "{metrics}");
    assert!(of_data("cache_stored_bytes") < of_data("cache_logical_bytes") / 2, "{metrics}");
    let (indexes, index_bytes) =
        (metric(&metrics, "directory_indexes", ""), metric(&metrics, "directory_index_bytes", ""));
    assert!((1..=3).contains(&indexes) && index_bytes >= 1500 * 8, "{indexes}, {index_bytes}");
    assert_eq!(metric(&metrics, "reclaim_freed_bytes_total", ""), 0);

    let status = status(&dir);
    let zstd = &status["given_up"].as_array().unwrap()[0];
    assert!(zstd["name"] == "zstd" && zstd["probe_blocks"].as_u64().unwrap() >= 10, "{status}");
    let memory = &status["memory"];
    assert!(memory["cache_logical"].as_u64() > memory["cache_stored"].as_u64(), "{memory}");
    assert_eq!(memory["directory_indexes"], indexes, "{memory}");
    assert_eq!(status["reclaim"]["freed"], 0, "{status}");
    assert!(status["reclaim"]["ratio"].is_null(), "{status}");
    let shown = dir.out("pool status -v tank");
    for word in [" of contents, stored in ", " directory indexes", " given up: zstd "] {
        assert!(shown.contains(word), "{word:?} in {shown}");
    }
    assert!(!shown.contains("reclaim:"), "{shown}");
    dir.run("umount mnt", 0);
}

#[test]
fn collection_shows_what_it_freed_for_what_it_moved() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("reclaim");
    dir.run("pool create tank tank.img --size 64M -o compression=off", 0);
    dir.run("mount tank mnt", 0);
    let file = |n: usize| dir.path(&format!("mnt/{n}"));
    (0..100).for_each(|n| fs::write(file(n), vec![n as u8 + 1; 256 << 10]).unwrap());
    dir.run("sync tank", 0);
    (0..100).step_by(2).for_each(|n| fs::remove_file(file(n)).unwrap());
    dir.run("sync tank", 0);
    dir.run("pool gc tank --target 5 --wait", 0);
    let status = status(&dir);
    let number = |key: &str| status["reclaim"][key].as_u64().unwrap();
    let (freed, moved, won) = (number("freed"), number("moved"), number("won"));
    assert!(freed > 0 && moved > 0 && freed - moved == won && won > 0, "{status}");
    let ratio = status["reclaim"]["ratio"].as_f64().unwrap();
    assert!((1.1..10.0).contains(&ratio) && (ratio - freed as f64 / moved as f64).abs() < 0.01, "{status}");
    assert!(status["reclaim"]["ratio_minute"].as_f64().unwrap() > 1.0, "{status}");
    let shown = dir.out("pool status tank");
    assert!(shown.contains("reclaim: ") && shown.contains(" won"), "{shown}");
    let metrics = dir.out("metrics tank");
    assert!(metric(&metrics, "reclaim_won_bytes_total", "") >= won);
    assert!(metrics.contains("terrane_reclaim_ratio{pool=\"tank\",window=\"import\"}"), "{metrics}");
    dir.run("umount mnt", 0);
}
