//! `ENOSPC` is returned only if the pool is full.

use terrane_device::{Device, ZoneState};
use terrane_posix::{Errno, Fs, SetAttr, WriteFlags};
use terrane_sim::full::{emptied, rounds, small_files};
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_sim::seeds::number;
use terrane_store::counters::WaitFor;
use terrane_wire::Prng;
use terrane_wire::ZoneIdx;

#[test]
fn a_full_pool_gives_its_space_back_round_after_round() {
    let count = number("TERRANE_ROUNDS").unwrap_or(10);
    for seed in [1, 2] {
        let seen = rounds(seed, count).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        println!("seed {seed}: {seen:?}");
        // A few blocks of directory, queue and accounting may differ, and zones that are half full: 2 % of
        // the pool.
        let tolerance = seen.available_first / 50;
        assert!(seen.available_last + tolerance >= seen.available_first, "seed {seed}: {seen:?}");
        assert!(seen.filled_least * 10 >= seen.filled_first * 8, "seed {seed}: {seen:?}");
    }
}

#[test]
fn small_files_and_their_attributes_fill_a_pool_and_go_again() {
    let sizes = [(1, "auto"), (2, "16k"), (3, "legacy"), (4, "1k")];
    let count = if number("TERRANE_ROUNDS").is_some() { sizes.len() } else { 2 };
    for (seed, dnode_size) in sizes.into_iter().take(count) {
        let made = small_files(seed, dnode_size).unwrap_or_else(|failure| panic!("{dnode_size}: {failure}"));
        println!("{dnode_size}: {made} files");
    }
}

#[test]
fn what_an_empty_pool_offers_can_be_used_and_comes_back_round_after_round() {
    let count = number("TERRANE_ROUNDS").map_or(4, |rounds| rounds.max(50));
    for (seed, zones) in [(2, 64), (2, 140)] {
        let seen = emptied(seed, zones, count).unwrap_or_else(|failure| panic!("{zones} zones: {failure}"));
        println!("{zones} zones: {seen:?}");
    }
}

/// With threads: txgs sync concurrently with writers.
fn crowd(seed: u64, zones: u32) -> Machine {
    let props = vec![("recordsize", "16K"), ("compression", "off")];
    Machine::create(&Plan { zones, threads: true, stale: false, props, ..Plan::small(seed) }).unwrap()
}

/// Writes 64 KiB pieces to new files until one is refused.
fn fill(fs: &Fs, writer: u64) -> u64 {
    let attr = match fs.create(fs.root(), format!("writer {writer}").as_bytes(), 0o644, &USER) {
        Ok(attr) => attr,
        Err(Errno::ENOSPC) => return 0,
        Err(errno) => panic!("create: {errno}"),
    };
    let mut rng = Prng::new(writer);
    let mut done = 0;
    loop {
        let piece: Vec<u8> = (0..8192).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        match fs.write(attr.ino, done, &piece, WriteFlags::default()) {
            Ok(written) => done += u64::from(written),
            Err(Errno::ENOSPC) => break,
            Err(errno) => panic!("write: {errno}"),
        }
    }
    fs.forget(attr.ino, 1);
    done
}

#[test]
fn a_truncate_is_never_refused_while_writers_fill_the_pool() {
    let machine = crowd(3, 64);
    let fs = machine.fs();
    for round in 0..number("TERRANE_ROUNDS").map_or(6, |_| 20) {
        let first = fs.create(fs.root(), b"first", 0o644, &USER).unwrap().ino;
        fs.write(first, 0, &vec![7; 8 << 20], WriteFlags::default()).unwrap();
        std::thread::scope(|scope| {
            let writers = [scope.spawn(|| fill(fs, 1)), scope.spawn(|| fill(fs, 2))];
            // Until writers wait for space, or are refused already.
            let waits = |machine: &Machine| machine.pool.stats().waits[WaitFor::Space as usize].count();
            let before = waits(&machine);
            while waits(&machine) == before && writers.iter().any(|writer| !writer.is_finished()) {
                std::thread::yield_now();
            }
            let set = SetAttr { size: Some(3275), ..SetAttr::default() };
            fs.setattr(first, &set, &USER).unwrap_or_else(|errno| panic!("round {round}: truncate: {errno}"));
            for writer in writers {
                assert!(writer.join().unwrap() > 0);
            }
        });
        let mut left = Vec::new();
        fs.read(first, 0, 1 << 20, &mut left).unwrap();
        assert_eq!(left, vec![7; 3275]);
        fs.forget(first, 1);
        for name in ["first", "writer 1", "writer 2"] {
            fs.unlink(fs.root(), name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
    }
    machine.check().unwrap();
}

#[test]
fn a_full_pool_says_of_its_space_what_its_files_say() {
    let machine = crowd(4, 64);
    let fs = machine.fs();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|writer| scope.spawn(move || fill(fs, writer))).collect();
        let written: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!(written.iter().all(|bytes| *bytes > 0), "{written:?}");
    });
    fs.sync().unwrap();
    let stat = fs.statfs();
    let used = (stat.blocks - stat.free) * u64::from(stat.block_size);
    let of_file = |writer: u64| {
        let attr = fs.lookup(fs.root(), format!("writer {writer}").as_bytes()).ok()?;
        fs.forget(attr.ino, 1);
        Some(attr.blocks * 512)
    };
    let files: u64 = (0..8).filter_map(of_file).sum();
    // Names, inodes and the pool's own accounting, which belong to no file.
    assert!(used >= files && used - files <= 1 << 20, "{used} bytes are used, {files} by files");
    assert!(stat.free * 50 <= stat.blocks, "{} of {} blocks are free", stat.free, stat.blocks);
    machine.check().unwrap();
}

#[test]
fn a_moved_write_pointer_costs_only_the_rest_of_its_zone() {
    for (how, to_end) in [("by one unit", false), ("to the end", true)] {
        let plan = Plan { drive: true, props: vec![("compression", "off")], ..Plan::small(6) };
        let machine = Machine::create(&plan).unwrap();
        let ino = machine.fs().create(machine.fs().root(), b"f", 0o644, &USER).unwrap().ino;
        machine.fs().write(ino, 0, &[5; 300_000], WriteFlags::default()).unwrap();
        let device = machine.export().unwrap();
        let mut moved = 0;
        for zone in (2..plan.zones).map(ZoneIdx) {
            if device.report(zone).unwrap().state == ZoneState::Open {
                device.advance_pointer(zone, if to_end { u64::MAX } else { 4096 }).unwrap();
                moved += 1;
            }
        }
        assert!(moved >= 2, "{moved} zones were open");
        let mut machine = Machine::import(&device, 7, false).unwrap();
        machine.check().unwrap_or_else(|failure| panic!("{how}: {failure}"));
        machine.mount().unwrap();
        let fs = machine.fs();
        let mut found = Vec::new();
        fs.read(ino, 0, 400_000, &mut found).unwrap();
        assert_eq!(found, vec![5; 300_000], "{how}");
        fs.write(ino, 300_000, &[6; 300_000], WriteFlags::default()).unwrap();
        fs.sync().unwrap();
        fs.unlink(fs.root(), b"f").unwrap();
        fs.sync().unwrap();
        machine.check().unwrap_or_else(|failure| panic!("{how}: {failure}"));
        let device = machine.export().unwrap();
        Machine::import(&device, 8, true).unwrap().check().unwrap();
    }
}
