//! Random reads and overwrites of a file that is much larger than the memory.

use crate::cpu::own_cpu_ns;
use crate::{Asked, Opened, Places, RECORD, record};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub fn run(asked: &Asked, off: Option<PathBuf>) {
    println!(
        "{:<28} {:>7} {:>12} {:>8} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8}",
        "",
        "hits %",
        "holds MiB of",
        "in MiB",
        "metadata",
        "twice",
        "p50 us",
        "p90",
        "p99",
        "p99.9",
        "cpu us",
        "ops/s"
    );
    row("as they are stored", asked, &asked.image, false);
    row("the same, decompressed", asked, &asked.image, true);
    if let Some(off) = off {
        row("stored uncompressed", asked, &off, false);
    }
}

fn row(what: &str, asked: &Asked, image: &Path, plain_only: bool) {
    let opened = Opened::throttled(image, asked.speed, asked.cache_bytes);
    opened.pool.keep_plain_only(plain_only);
    let mut places = Places::new(opened.records, asked.zipf);
    let (mut reads, mut out): (Vec<Duration>, _) = (Vec::new(), Vec::new());
    let (mut before, mut began, mut cpu_ns) = (opened.pool.stats(), Instant::now(), 0);
    for number in 0..asked.operations {
        if number == asked.operations / 2 {
            (before, began, cpu_ns) = (opened.pool.stats(), Instant::now(), 0);
            reads.clear();
        }
        let place = places.next();
        if places.word() % 10 < 7 {
            let (start, cpu) = (Instant::now(), own_cpu_ns());
            opened.read(place, &mut out);
            reads.push(start.elapsed());
            cpu_ns += own_cpu_ns() - cpu;
        } else {
            opened.write(place, &record(place, number as u64));
        }
    }
    let operations = asked.operations - asked.operations / 2;
    let speed = operations as f64 / began.elapsed().as_secs_f64();
    let ([data, metadata], [before, _]) = (opened.pool.stats().cache_by_kind, before.cache_by_kind);
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let (hits, misses) = ((data.hits - before.hits) as f64, (data.misses - before.misses) as f64);
    reads.sort_unstable();
    let at = |part: f64| reads[((reads.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    println!(
        "{what:<28} {:>7.1} {:>12} {:>8.1} {:>10.1} {:>8.1} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>9.1} {:>8.0}",
        100.0 * hits / (hits + misses),
        (data.blocks * RECORD as u64) >> 20,
        mib(data.bytes),
        mib(metadata.bytes),
        mib(metadata.plain_bytes),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        cpu_ns as f64 / 1e3 / reads.len() as f64,
        speed,
    );
    opened.pool.export().unwrap();
}
