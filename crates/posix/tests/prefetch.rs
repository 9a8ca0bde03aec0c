//! Prefetch for sequential readers: the content stays the same, and the device is asked less often.

use crate::support::{Machine, USER};
use std::time::Duration;
use terrane_cache::Kind;
use terrane_pool::Stats;
use terrane_posix::{Fs, Ino, SetXattr, WriteFlags};
use terrane_wire::Prng;

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

const FILES: usize = 1024;
const NAME: &[u8] = b"user.large";

fn value(file: usize) -> Vec<u8> {
    Prng::new(file as u64).random_bytes(1024)
}

fn set_value(fs: &Fs, ino: Ino, value: &[u8]) {
    fs.setxattr(ino, NAME, value, SetXattr::default(), &USER).unwrap();
}

fn get_value(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    fs.getxattr(ino, NAME, &mut out).unwrap();
    out
}

/// Files whose attribute lies in a spill block.
fn files_with_spill(fs: &Fs) -> Vec<Ino> {
    let create = |file: usize| fs.create(fs.root(), format!("{file}").as_bytes(), 0o644, &USER).unwrap().ino;
    let files: Vec<Ino> = (0..FILES).map(create).collect();
    fs.sync().unwrap();
    files.iter().enumerate().for_each(|(file, ino)| set_value(fs, *ino, &value(file)));
    fs.sync().unwrap();
    files
}

fn device_requests(stats: &Stats) -> u64 {
    stats.reads.iter().map(|io| io.operations).sum()
}

#[test]
fn spill_blocks_of_neighbours_are_read_by_few_requests() {
    let machine = Machine::with_threads(4);
    let files = files_with_spill(machine.fs());
    let shuffled = |step: usize| (0..FILES).map(|at| at * step % FILES).collect::<Vec<usize>>();
    // In order, backward, and in the order of a hash within groups of 128 files.
    let hashed = (0..FILES).map(|at| at / 128 * 128 + at * 37 % 128).collect();
    for order in [shuffled(1), (0..FILES).rev().collect(), hashed] {
        machine.pool().drop_cache();
        let before = machine.pool().stats();
        for file in &order {
            assert!(get_value(machine.fs(), files[*file]) == value(*file), "file {file}");
            std::thread::sleep(REST);
        }
        let requests = device_requests(&machine.pool().stats()) - device_requests(&before);
        assert!(requests < FILES as u64 / 4, "{requests} requests for {FILES} files");
    }
    // Far apart, each for itself.
    machine.pool().drop_cache();
    let before = machine.pool().stats();
    let apart: Vec<usize> = (0..FILES / 32).map(|at| at * 32 * 11 % FILES).collect();
    for file in &apart {
        assert!(get_value(machine.fs(), files[*file]) == value(*file), "file {file}");
    }
    let blocks = |stats: &Stats| stats.reads.iter().map(|io| io.blocks).sum::<u64>();
    let read = blocks(&machine.pool().stats()) - blocks(&before);
    assert!(read < 8 * apart.len() as u64, "{read} blocks for {} files", apart.len());
}

#[test]
fn prefetched_spills_never_hide_concurrent_changes() {
    let machine = Machine::with_threads(5);
    let fs = machine.fs();
    let files = files_with_spill(fs);
    for round in 1..4 {
        machine.pool().drop_cache();
        for (file, ino) in files.iter().enumerate() {
            // The spill of the next file may be in prefetch with its old content.
            let next = (file + 3) % FILES;
            set_value(fs, files[next], &value(next + round));
            if file % 128 == 0 {
                fs.sync().unwrap();
            }
            let expected = if file < 3 { value(file + round - 1) } else { value(file + round) };
            assert!(get_value(fs, *ino) == expected, "file {file} in round {round}");
        }
    }
}

#[test]
fn spills_are_not_prefetched_without_threads() {
    let machine = Machine::new(6, &[]);
    let files = files_with_spill(machine.fs());
    machine.pool().drop_cache();
    files.iter().for_each(|ino| drop(get_value(machine.fs(), *ino)));
    assert_eq!(machine.pool().stats().cache.prefetched, 0);
}
