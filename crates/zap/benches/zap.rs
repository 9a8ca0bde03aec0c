//! Nanoseconds per operation, for directories of four sizes, and for names of neighbouring hashes: `cargo bench -p
//! terrane-zap --bench zap`.

#[path = "../tests/colliders/mod.rs"]
mod colliders;

use std::hint::black_box;
use std::time::Instant;
use terrane_zap::{Cursor, Kind, MemStore, Zap, ZapOptions};

/// Every name once, in another order than they were added in.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| i * 7_919 % count)
}

fn report(what: &str, ops: u64, started: Instant) {
    println!("  {what:<10} {:>9.1} ns/op", started.elapsed().as_nanos() as f64 / ops as f64);
}

fn bench(count: u64, rounds: u64) {
    println!("{count} names, {rounds} rounds");
    let names: Vec<String> = (0..count).map(|i| format!("file-{i:06}")).collect();
    let name = |i: u64| names[i as usize].as_str();
    let mut directories: Vec<(MemStore, Zap)> = (0..rounds)
        .map(|round| {
            let mut store = MemStore::new();
            let zap = Zap::create(&mut store, ZapOptions::new(round * 2 + 1)).expect("options are valid");
            (store, zap)
        })
        .collect();
    let started = Instant::now();
    for (store, zap) in &mut directories {
        for i in 0..count {
            zap.add(store, name(i), &[i]).expect("names are new");
        }
    }
    report("add", count * rounds, started);
    directories.iter_mut().for_each(|(_, zap)| zap.drop_state());
    let started = Instant::now();
    for (store, zap) in &directories {
        black_box(zap.lookup_u64(store, name(count / 2)).expect("images are good"));
    }
    report("first look", rounds, started);
    let started = Instant::now();
    for (store, zap) in &mut directories {
        // Refused, but it needs the index.
        assert!(zap.add(store, name(0), &[0]).is_err());
    }
    report("index", rounds, started);
    let started = Instant::now();
    for (store, zap) in &directories {
        for i in scattered(count) {
            black_box(zap.lookup_u64(store, name(i)).expect("images are good"));
        }
    }
    report("lookup", count * rounds, started);
    let started = Instant::now();
    for (store, zap) in &directories {
        let mut from = Cursor::START;
        loop {
            let batch = zap.list(store, from, 512).expect("images are good");
            let Some(last) = batch.last() else { break };
            from = last.cursor_after();
            black_box(batch.len());
        }
    }
    report("list", count * rounds, started);
    let started = Instant::now();
    for (store, zap) in &mut directories {
        for i in scattered(count) {
            zap.remove(store, name(i)).expect("images are good");
        }
    }
    report("remove", count * rounds, started);
}

/// As many names as one block of slots holds, spread evenly, or with hashes that agree in nine bits, which an attacker
/// can choose.
fn bench_crowd(what: &str, names: &[Vec<u8>]) {
    println!("{} names, {what}", names.len());
    let mut store = MemStore::new();
    let options = ZapOptions { micro_max_bytes: 1 << 20, ..ZapOptions::new(3) };
    let mut zap = Zap::create(&mut store, options).expect("options are valid");
    let started = Instant::now();
    for name in names {
        zap.add(&mut store, name, &[1]).expect("names are new");
    }
    report("add", names.len() as u64, started);
    assert_eq!(zap.kind(&store), Ok(Kind::Micro));
    let started = Instant::now();
    for i in scattered(names.len() as u64) {
        zap.remove(&mut store, &names[i as usize]).expect("images are good");
    }
    report("remove", names.len() as u64, started);
}

fn main() {
    bench(10, 10_000);
    bench(100, 2_000);
    bench(2_000, 100);
    bench(1_000_003, 1);
    let even: Vec<_> = (0..16_000).map(|i| format!("file-{i:09}").into_bytes()).collect();
    bench_crowd("spread evenly", &even);
    let crowd: Vec<_> = colliders::colliders(9, 14).take(1 << 20).step_by(64).take(16_000).collect();
    bench_crowd("of neighbouring hashes", &crowd);
}
