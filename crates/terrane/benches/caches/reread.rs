//! Repeated reads of a file that fits into the cache, in CPU time of the reader.

use crate::cpu::own_cpu_ns;
use crate::{Opened, RECORD, Settings, record};
use terrane_cache::Kind;

const BYTES: u64 = 64 << 20;

pub fn run(settings: &Settings) {
    let opened = Opened::throttled(&settings.image, settings.speed, settings.cache_bytes);
    let records = opened.records.min(BYTES / RECORD as u64);
    println!("{:<40} {:>12} {:>16}", "", "us a record", "decompressed MiB");
    let row = |what: &str| {
        let (mut out, mut cpu_ns) = (Vec::new(), 0);
        for place in 0..records {
            let before = own_cpu_ns();
            opened.read(place, &mut out);
            cpu_ns += own_cpu_ns() - before;
        }
        let plain = opened.pool.stats().cache_by_kind[Kind::Data as usize].plain_bytes;
        println!(
            "{what:<40} {:>12.2} {:>16.1}",
            cpu_ns as f64 / 1e3 / records as f64,
            plain as f64 / 1048576.0
        );
    };
    row("from the device");
    (0..3).for_each(|_| row("a block just read"));
    (0..records).for_each(|place| opened.write(place, &record(place, 1)));
    opened.fs.sync().unwrap();
    (0..3).for_each(|_| row("a block just written"));
    opened.pool.export().unwrap();
}
