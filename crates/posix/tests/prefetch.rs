//! Prefetch for sequential readers: the content stays the same, and the device is asked less often.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod support;

use std::time::Duration;
use support::{Machine, USER};
use terrane_cache::Kind;
use terrane_pool::Stats;
use terrane_posix::{Fs, Ino, WriteFlags};

const RECORD: usize = 128 << 10;
const RECORDS: usize = 96;
const REST: Duration = Duration::from_micros(300);

fn content(record: usize) -> Vec<u8> {
    (0..RECORD).map(|at| (at % 251) as u8 ^ record as u8 ^ ((at / 4096 * record) % 7) as u8).collect()
}

fn file(fs: &Fs) -> Ino {
    let ino = fs.create(fs.root(), b"file", 0o644, &USER).unwrap().ino;
    for record in 0..RECORDS {
        fs.write(ino, (record * RECORD) as u64, &content(record), WriteFlags::default()).unwrap();
    }
    fs.sync().unwrap();
    ino
}

fn read(fs: &Fs, ino: Ino, record: usize) -> Vec<u8> {
    let mut out = Vec::new();
    fs.read(ino, (record * RECORD) as u64, RECORD as u32, &mut out).unwrap();
    out
}

#[test]
fn prefetched_records_have_the_written_content() {
    let machine = Machine::with_threads(1);
    let ino = file(machine.fs());
    let orders: [Vec<usize>; 4] = [
        (0..RECORDS).collect(),
        (0..RECORDS).rev().collect(),
        (0..RECORDS).step_by(3).collect(),
        (0..RECORDS / 2).flat_map(|record| [record, RECORDS / 2 + record]).collect(),
    ];
    for order in orders {
        machine.pool().drop_cache();
        let before = machine.pool().stats();
        for record in &order {
            assert!(read(machine.fs(), ino, *record) == content(*record), "record {record} of {order:?}");
            // This device is faster than a thread wakes up. Without a pause, the reader would sometimes do all
            // the work itself.
            std::thread::sleep(REST);
        }
        let after = machine.pool().stats();
        let data = |stats: &Stats| stats.cache_by_kind[Kind::Data as usize];
        let hits = data(&after).prefetched_hits - data(&before).prefetched_hits;
        assert!(hits as usize > order.len() / 2, "{hits} of {order:?} were there");
        let blocks = |stats: &Stats| stats.reads.iter().map(|io| io.blocks).sum::<u64>();
        assert!(blocks(&after) - blocks(&before) <= RECORDS as u64 * 5 / 4 + 16, "few are read twice");
    }
}

#[test]
fn prefetch_never_hides_concurrent_writes() {
    let machine = Machine::with_threads(2);
    let fs = machine.fs();
    let ino = file(fs);
    for round in 1..4 {
        machine.pool().drop_cache();
        for record in 0..RECORDS {
            // The next record may be in prefetch with its old content.
            let next = (record + 3) % RECORDS;
            fs.write(ino, (next * RECORD) as u64, &content(next + round), WriteFlags::default()).unwrap();
            if record % 16 == 0 {
                fs.sync().unwrap();
            }
            let expected = if record < 3 { content(record + round - 1) } else { content(record + round) };
            assert!(read(fs, ino, record) == expected, "record {record} in round {round}");
        }
    }
}

#[test]
fn a_pool_without_threads_does_not_prefetch() {
    let machine = Machine::new(3, &[]);
    let ino = file(machine.fs());
    machine.pool().drop_cache();
    (0..RECORDS).for_each(|record| drop(read(machine.fs(), ino, record)));
    assert_eq!(machine.pool().stats().cache.prefetched, 0);
}
