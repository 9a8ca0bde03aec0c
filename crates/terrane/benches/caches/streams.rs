//! Sequential and strided readers, with and without prefetch; and a random one, which should not be affected.

use crate::{AccessPattern, Opened, RECORD, Settings};
use std::time::Instant;
use terrane_cache::Kind;

const REQUEST: u64 = 128 << 10;
/// From one step to the next.
const STEP: u64 = 1 << 20;

pub fn run(settings: &Settings) {
    println!(
        "{:<36} {:>10} {:>10} {:>8} {:>14} {:>10} {:>10}",
        "", "MB/s", "without", "times", "device/asked", "ahead", "unread"
    );
    let opened = Opened::throttled(&settings.image, settings.speed, settings.cache_bytes);
    let size = opened.size();
    opened.pool.export().unwrap();
    drop(opened);
    let bytes = size.min(384 << 20);
    let forward = || (0..bytes / REQUEST).map(|n| n * REQUEST);
    let backward: Vec<u64> = forward().rev().collect();
    let two: Vec<u64> = forward().take(1024).flat_map(|at| [at, size / 2 + at]).collect();
    let steps: Vec<u64> = (0..size / STEP).map(|n| n * STEP).collect();
    let mut pattern = AccessPattern::new(size / REQUEST, None, 0);
    let random: Vec<u64> = (0..1024).map(|_| pattern.next() * REQUEST).collect();
    row("forward", settings, &forward().collect::<Vec<u64>>(), REQUEST);
    row("backward", settings, &backward, REQUEST);
    row("two readers, taking turns", settings, &two, REQUEST);
    row("16 KiB of each MiB", settings, &steps, RECORD as u64);
    row("at random", settings, &random, REQUEST);
}

fn row(what: &str, settings: &Settings, starts: &[u64], len: u64) {
    let (with, amplified, ahead, unread) = once(settings, starts, len, true);
    let (without, ..) = once(settings, starts, len, false);
    let times = with / without;
    println!(
        "{what:<36} {with:>10.1} {without:>10.1} {times:>8.2} {amplified:>14.2} {ahead:>10} {unread:>10}"
    );
}

/// MB/s, bytes read from the device per byte requested, prefetched blocks, and those of them that were not
/// used.
fn once(settings: &Settings, starts: &[u64], len: u64, is_ahead: bool) -> (f64, f64, u64, u64) {
    let opened = Opened::throttled(&settings.image, settings.speed, settings.cache_bytes);
    opened.pool.set_prefetch(is_ahead);
    let device_bytes = || opened.pool.stats().reads.iter().map(|io| io.bytes).sum::<u64>();
    let before = device_bytes();
    let mut out = Vec::new();
    let began = Instant::now();
    for start in starts {
        out.clear();
        opened.fs.read(opened.ino, *start, len as u32, &mut out).unwrap();
        assert_eq!(out.len() as u64, len);
    }
    let took = began.elapsed().as_secs_f64();
    let asked_bytes = starts.len() as f64 * len as f64;
    let data = opened.pool.stats().cache_by_kind[Kind::Data as usize];
    let read = (device_bytes() - before) as f64;
    opened.pool.export().unwrap();
    (asked_bytes / 1e6 / took, read / asked_bytes, data.prefetched, data.prefetched - data.prefetched_hits)
}
