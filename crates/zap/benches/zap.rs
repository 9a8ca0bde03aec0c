//! Nanoseconds of processor time per operation, for directories of four sizes, and for names of neighbouring hashes: `cargo bench -p
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

/// A clock of this thread's processor time; of the time where the kernel does not count it.
struct Clock {
    cpu_ns: Option<u64>,
    started: Instant,
}

impl Clock {
    fn now() -> Clock {
        Clock { cpu_ns: cpu_ns(), started: Instant::now() }
    }

    fn elapsed_ns(&self) -> f64 {
        match (self.cpu_ns, cpu_ns()) {
            (Some(before), Some(now)) => (now - before) as f64,
            _ => self.started.elapsed().as_nanos() as f64,
        }
    }
}

fn cpu_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

fn report(what: &str, ops: u64, ns: f64) {
    println!("  {what:<10} {:>9.1} ns/op", ns / ops as f64);
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
    let started = Clock::now();
    for (store, zap) in &mut directories {
        for i in 0..count {
            zap.add(store, name(i), &[i]).expect("names are new");
        }
    }
    report("add", count * rounds, started.elapsed_ns());
    directories.iter_mut().for_each(|(_, zap)| zap.drop_state());
    let started = Clock::now();
    for (store, zap) in &directories {
        black_box(zap.lookup_u64(store, name(count / 2)).expect("images are good"));
    }
    report("first look", rounds, started.elapsed_ns());
    let started = Clock::now();
    for (store, zap) in &mut directories {
        // Refused, but it needs the index.
        assert!(zap.add(store, name(0), &[0]).is_err());
    }
    report("index", rounds, started.elapsed_ns());
    let started = Clock::now();
    for (store, zap) in &directories {
        for i in scattered(count) {
            black_box(zap.lookup_u64(store, name(i)).expect("images are good"));
        }
    }
    report("lookup", count * rounds, started.elapsed_ns());
    let started = Clock::now();
    for (store, zap) in &directories {
        let mut from = Cursor::START;
        loop {
            let batch = zap.list(store, from, 512).expect("images are good");
            let Some(last) = batch.last() else { break };
            from = last.cursor_after();
            black_box(batch.len());
        }
    }
    report("list", count * rounds, started.elapsed_ns());
    let started = Clock::now();
    for (store, zap) in &mut directories {
        for i in scattered(count) {
            zap.remove(store, name(i)).expect("images are good");
        }
    }
    report("remove", count * rounds, started.elapsed_ns());
}

const CROWD_ROUNDS: u64 = 20;

/// As many names as one block of slots holds, spread evenly, or with hashes that agree in nine bits, which an attacker
/// can choose.
fn bench_crowd(what: &str, names: &[Vec<u8>]) {
    println!("{} names, {what}", names.len());
    let mut store = MemStore::new();
    let options = ZapOptions { micro_max_bytes: 1 << 20, ..ZapOptions::new(3) };
    let mut zap = Zap::create(&mut store, options).expect("options are valid");
    // The first round grows the block, which costs more than all else.
    let (mut added, mut removed) = (0.0, 0.0);
    for round in 0..=CROWD_ROUNDS {
        let started = Clock::now();
        for name in names {
            zap.add(&mut store, name, &[1]).expect("names are new");
        }
        added += if round == 0 { 0.0 } else { started.elapsed_ns() };
        assert_eq!(zap.kind(&store), Ok(Kind::Micro));
        let started = Clock::now();
        for i in scattered(names.len() as u64) {
            zap.remove(&mut store, &names[i as usize]).expect("images are good");
        }
        removed += if round == 0 { 0.0 } else { started.elapsed_ns() };
    }
    let ops = CROWD_ROUNDS * names.len() as u64;
    report("add", ops, added);
    report("remove", ops, removed);
}

fn main() {
    let even: Vec<_> = (0..16_000).map(|i| format!("file-{i:09}").into_bytes()).collect();
    bench_crowd("spread evenly", &even);
    let crowd: Vec<_> = colliders::colliders(9, 14).take(1 << 20).step_by(64).take(16_000).collect();
    bench_crowd("of neighbouring hashes", &crowd);
    bench(10, 10_000);
    bench(100, 2_000);
    bench(2_000, 100);
    bench(1_000_003, 1);
}
