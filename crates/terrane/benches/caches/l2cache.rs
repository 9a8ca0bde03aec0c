//! A working set larger than memory, with and without a cache device.

use crate::throttle::{Speed, throttled};
use crate::{AccessPattern, Opened, RECORD, Settings, file_device, record};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_device::{Device, FileDevice};

/// A fast drive, beside a slow one.
const FAST: Speed = Speed { latency: Duration::from_micros(100), bytes_per_second: 1_000_000_000 };
const FAST_ZONE_BYTES: u64 = 16 << 20;
/// The first argument of the process that is killed.
pub const CHILD: &str = "second-child";
const FILLED: &str = "filled";

fn fast_path(settings: &Settings) -> PathBuf {
    settings.image.with_extension("fast")
}

fn fast_device(settings: &Settings) -> Arc<dyn Device> {
    Arc::new(throttled(file_device(&fast_path(settings), FAST_ZONE_BYTES), FAST))
}

fn open(settings: &Settings) -> Opened {
    Opened::throttled(&settings.image, settings.speed, settings.cache_bytes)
}

/// With its cache device, whose index was loaded.
fn reopen(settings: &Settings) -> Opened {
    let opened = open(settings);
    opened.pool.attach_cache(fast_device(settings)).unwrap();
    while opened.pool.caches()[0].stats.as_ref().is_none_or(|stats| stats.is_loading) {
        std::thread::sleep(Duration::from_millis(10));
    }
    opened
}

fn heading() {
    println!(
        "{:<34} {:>8} {:>9} {:>12} {:>14} {:>8}",
        "", "MB/s", "memory %", "cache dev %", "it holds MiB", "damaged"
    );
}

/// Random reads, one after the other; returns MB/s, and prints a row.
fn reads(opened: &Opened, what: &str, pattern: &mut AccessPattern, count: usize, verify: bool) -> f64 {
    let second = || opened.pool.caches().first().and_then(|cache| cache.stats.clone());
    let before = opened.pool.stats().cache_by_kind[0];
    let hits_before = second().map_or(0, |stats| stats.hits);
    let (mut out, mut spent) = (Vec::new(), Duration::ZERO);
    for _ in 0..count {
        let place = pattern.next();
        let began = Instant::now();
        opened.read(place, &mut out);
        spent += began.elapsed();
        assert!(!verify || out == record(place, 0), "record {place} has wrong content");
    }
    let now = opened.pool.stats().cache_by_kind[0];
    let looked = (now.hits - before.hits + now.misses - before.misses) as f64;
    let speed = (count * RECORD) as f64 / 1e6 / spent.as_secs_f64();
    println!(
        "{what:<34} {speed:>8.1} {:>9.1} {:>12.1} {:>14} {:>8}",
        100.0 * (now.hits - before.hits) as f64 / looked,
        100.0 * (second().map_or(0, |stats| stats.hits) - hits_before) as f64 / looked,
        second().map_or(0, |stats| stats.held_bytes >> 20),
        second().map_or(0, |stats| stats.damaged),
    );
    speed
}

pub fn run(settings: &Settings) {
    let _ = std::fs::remove_file(fast_path(settings));
    let plain = open(settings);
    let records = plain.records;
    let fast_bytes = (records * RECORD as u64).next_multiple_of(FAST_ZONE_BYTES);
    drop(FileDevice::create(fast_path(settings), fast_bytes, FAST_ZONE_BYTES).unwrap());
    let mut pattern = AccessPattern::new(records, settings.zipf, 0);
    let warm = records as usize / 3;
    heading();
    reads(&plain, "", &mut pattern, warm, false);
    let without = reads(&plain, "without a cache device", &mut pattern, settings.operations, false);
    plain.pool.export().unwrap();
    drop(plain);

    killed();

    let again = reopen(settings);
    reads(&again, "after kill -9 and restart", &mut pattern, warm, true);
    let with = reads(&again, "the same, memory full again", &mut pattern, settings.operations, true);
    println!("{:.1} times the speed without", with / without);
    again.pool.export().unwrap();
    drop(again);

    flip(&fast_path(settings));
    let hurt = reopen(settings);
    reads(&hurt, "every 64 KiB a byte flipped", &mut pattern, settings.operations, true);
    hurt.pool.remove_cache(hurt.pool.caches()[0].id).unwrap();
    hurt.pool.export().unwrap();
    let _ = std::fs::remove_file(fast_path(settings));
}

/// Another process adds the cache device and fills it; then it is killed.
fn killed() {
    let arguments = std::env::args_os().skip(1).filter(|arg| arg != "second");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .arg(CHILD)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if line == FILLED {
            child.kill().unwrap();
            break;
        }
        println!("{line}");
    }
    let ended = child.wait().unwrap();
    assert!(!ended.success(), "it should have been killed: {ended}");
}

pub fn child(settings: &Settings) {
    let opened = open(settings);
    opened.pool.add_cache(fast_device(settings)).unwrap();
    let mut pattern = AccessPattern::new(opened.records, settings.zipf, 0);
    let records = opened.records as usize;
    for part in 1..=4 {
        reads(&opened, &format!("filling the cache device, {part} of 4"), &mut pattern, records / 2, false);
    }
    reads(&opened, "with a cache device", &mut pattern, settings.operations, false);
    println!("{FILLED}");
    loop {
        reads(&opened, "", &mut pattern, 1000, false);
    }
}

/// Damages about a tenth of all blocks, and some batch headers.
fn flip(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    for at in (FAST_ZONE_BYTES + 5000..file.metadata().unwrap().len()).step_by(64 << 10) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
    }
}
