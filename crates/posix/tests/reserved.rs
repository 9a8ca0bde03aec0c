//! Space that `fallocate` reserves: other writers cannot use it, its file can, and it is released.

use crate::support::{Machine, Short, USER};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terrane_posix::{
    Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, Fs, Ino, Job, JobStep, ReservedBytes,
    RewriteSpec, WriteFlags,
};
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Prng};
use terrane_zap::ValueRef;

const MIB: u64 = 1 << 20;
const PUNCH: u32 = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;

/// Writes into one file until the pool is full. Returns the bytes written.
fn fill(fs: &Fs, rng: &mut Prng, name: &str) -> u64 {
    let Ok(file) = fs.create(fs.root(), name.as_bytes(), 0o644, &USER) else { return 0 };
    let mut at = 0;
    loop {
        match fs.write(file.ino, at, &rng.random_bytes(128 << 10), WriteFlags::default()) {
            Ok(bytes) => at += u64::from(bytes),
            Err(errno) => break assert_eq!(errno, Errno::ENOSPC),
        }
    }
    fs.forget(file.ino, 1);
    at
}

fn free(m: &Machine) -> u64 {
    m.fs().statfs().free * 4096
}

fn put(fs: &Fs, ino: Ino, at: u64, data: &[u8]) {
    let written = fs.write(ino, at, data, WriteFlags::default());
    let (space, occupied) = (fs.statfs(), fs.getattr(ino).map(|attr| attr.blocks * 512));
    let all = (at, fs.reserved_bytes(), space.free * 4096, occupied);
    assert_eq!(written.map(|bytes| bytes as usize), Ok(data.len()), "at {all:?}");
}

/// The offsets of all pieces of a file, in random order.
fn pieces(rng: &mut Prng, bytes: u64, piece: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..bytes / piece).map(|at| at * piece).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    order
}

#[test]
fn what_was_reserved_is_written_whatever_others_took() {
    for (seed, props, piece, in_order) in [
        (1, ("compression", "lz4"), 128 << 10, true),
        (2, ("compression", "lz4"), 4 << 10, true),
        (3, ("compression", "lz4"), 16 << 10, false),
        (4, ("compression", "off"), 16 << 10, false),
        (5, ("recordsize", "4K"), 4 << 10, false),
        (6, ("recordsize", "256K"), 64 << 10, false),
    ] {
        let mut m = Machine::sized(seed, &[props], 96, 1 << 20);
        let mut rng = Prng::new(seed);
        let size = 20 * MIB;
        let names = ["one", "two"];
        let files = names.map(|name| m.fs().file(m.fs().root(), name).ino);
        m.fs().fallocate(files[0], 0, 0, size).unwrap();
        m.fs().fallocate(files[1], FALLOC_KEEP_SIZE, 0, size).unwrap();
        assert_eq!(
            [m.fs().getattr(files[0]).unwrap().size, m.fs().getattr(files[1]).unwrap().size],
            [size, 0]
        );
        let filled = fill(m.fs(), &mut rng, "fill");
        assert!(filled > 10 * MIB, "{filled}");
        let content = rng.random_bytes(size as usize);
        let order = if in_order {
            (0..size / piece).map(|at| at * piece).collect()
        } else {
            pieces(&mut rng, size, piece)
        };
        for (step, at) in order.iter().enumerate() {
            for name in names {
                let ino = m.fs().ino(m.fs().root(), name).unwrap();
                put(m.fs(), ino, *at, &content[*at as usize..(at + piece) as usize]);
            }
            if step == order.len() / 3 + 1 {
                // An import learns the record size with its first commit.
                m.fs().sync().unwrap();
            }
            if step % (order.len() / 8) == 0 {
                // Other writers continue, and find no space.
                let more = fill(m.fs(), &mut rng, &format!("more{step}"));
                assert!(more < 2 * MIB, "{props:?} {piece}: others found {more} bytes at step {step}");
            }
            if step == order.len() / 3 {
                m.remount();
            }
            if step == order.len() / 2 {
                m.fs().sync().unwrap();
                m.crash();
            }
            if step == order.len() / 4 * 3 {
                m.fs().sync().unwrap();
                m.die(&[]);
            }
        }
        assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default(), "{props:?} {piece}: all is written");
        m.remount();
        for name in names {
            let ino = m.fs().ino(m.fs().root(), name).unwrap();
            assert!(m.fs().bytes(ino) == content, "{name}");
        }
        assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default());
        m.fs().unlink(m.fs().root(), b"fill").unwrap();
    }
}

#[test]
fn reserved_space_counts_as_used_until_released() {
    let mut m = Machine::sized(7, &[], 64, 1 << 20);
    let root = m.fs().root();
    let (empty, blocks) = (free(&m), m.fs().statfs().blocks);
    let file = m.fs().file(root, "f").ino;
    m.fs().fallocate(file, FALLOC_KEEP_SIZE, 0, 16 * MIB).unwrap();
    let slack = MIB;
    let shows = |m: &Machine, bytes: u64, when: &str| {
        let found = empty - free(m).min(empty);
        assert!(found + slack > bytes && found < bytes + slack, "{when}: {found} bytes of {bytes}");
        let ReservedBytes { by_pool, by_files: sum } = m.fs().reserved_bytes();
        assert_eq!(by_pool, sum, "{when}");
    };
    shows(&m, 16 * MIB, "reserved");
    assert_eq!(m.fs().getattr(file).unwrap().blocks, 16 * MIB / 512, "as other file systems count");
    assert!(m.fs().statfs().blocks.abs_diff(blocks) < 256, "the size of the file system stays");
    m.fs().fallocate(file, 0, 0, 16 * MIB).unwrap();
    shows(&m, 16 * MIB, "once more");
    m.remount();
    let file = m.fs().ino(root, "f").unwrap();
    shows(&m, 16 * MIB, "mounted again");
    m.fs().fallocate(file, PUNCH, 2 * MIB, 2 * MIB).unwrap();
    shows(&m, 14 * MIB, "punched");
    put(m.fs(), file, 0, &Prng::new(1).random_bytes(MIB as usize));
    m.fs().sync().unwrap();
    shows(&m, 14 * MIB, "written in part");
    m.fs().fallocate(file, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, 0, 4 * MIB).unwrap();
    m.fs().sync().unwrap();
    shows(&m, 16 * MIB, "zeros are reserved too");
    m.fs().size(file, 8 * MIB).unwrap();
    shows(&m, 8 * MIB, "cut");
    m.crash();
    let file = m.fs().lookup(root, b"f").unwrap().ino;
    shows(&m, 16 * MIB, "the cut was not committed");
    m.fs().unlink(root, b"f").unwrap();
    shows(&m, 16 * MIB, "unlinked and open");
    m.fs().forget(file, 1);
    shows(&m, 0, "destroyed");
    m.remount();
    assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default());
    let file = m.fs().file(root, "g").ino;
    m.fs().fallocate(file, 0, 0, MIB).unwrap();
    m.fs().size(file, 0).unwrap();
    assert_eq!(
        (m.fs().reserved_bytes(), m.fs().getattr(file).unwrap().blocks),
        (ReservedBytes::default(), 0),
        "cut to nothing"
    );
}

#[test]
fn more_than_there_is_reserves_nothing() {
    let m = Machine::sized(8, &[], 64, 1 << 20);
    let mut rng = Prng::new(8);
    let root = m.fs().root();
    let file = m.fs().file(root, "f").ino;
    let all = free(&m);
    for bytes in [all + MIB, 1 << 40, 1 << 62] {
        assert_eq!(m.fs().fallocate(file, 0, 0, bytes), Err(Errno::ENOSPC));
        assert_eq!(
            (m.fs().reserved_bytes(), m.fs().getattr(file).unwrap().size),
            (ReservedBytes::default(), 0)
        );
    }
    m.fs().fallocate(file, 0, 0, all / 2).unwrap();
    let other = m.fs().file(root, "g").ino;
    assert_eq!(m.fs().fallocate(other, 0, 0, all / 2 + MIB), Err(Errno::ENOSPC), "there is half of it");
    let filled = fill(m.fs(), &mut rng, "fill");
    assert!(filled < all / 2, "{filled} of {all}");
    assert_eq!(m.fs().fallocate(other, 0, 0, MIB), Err(Errno::ENOSPC));
    m.fs().unlink(root, b"f").unwrap();
    m.fs().forget(file, 1);
    assert!(m.fs().fallocate(other, 0, 0, all / 4).is_ok());
    assert_eq!(m.fs().fallocate(other, FALLOC_ZERO_RANGE, 0, all / 4), Ok(()), "of what it has");
    assert_eq!(m.fs().fallocate(other, FALLOC_ZERO_RANGE, 0, all), Err(Errno::ENOSPC));
    // Existing data needs no reservation.
    let fill = m.fs().ino(root, "fill").unwrap();
    let before = m.fs().reserved_bytes().by_pool;
    m.fs().fallocate(fill, 0, 0, filled).unwrap();
    assert_eq!(m.fs().reserved_bytes().by_pool, before);
}

#[test]
fn overwrites_need_free_space() {
    let m = Machine::sized(12, &[], 64, 1 << 20);
    let mut rng = Prng::new(12);
    let root = m.fs().root();
    let (file, zeros) = (m.fs().file(root, "f").ino, m.fs().file(root, "zeros").ino);
    for ino in [file, zeros] {
        m.fs().fallocate(ino, 0, 0, MIB).unwrap();
    }
    put(m.fs(), zeros, 0, &vec![0; MIB as usize]);
    put(m.fs(), file, 0, &rng.random_bytes(MIB as usize / 2));
    assert!(m.fs().reserved_bytes().by_pool < MIB, "zeros count as written");
    fill(m.fs(), &mut rng, "fill");
    let again = |at| m.fs().write(file, at, &[7; 4096], WriteFlags::default());
    // While something is left, writes may use part of the GC reserve.
    assert_eq!(again(0), Ok(4096));
    put(m.fs(), file, MIB / 2, &rng.random_bytes(MIB as usize / 2));
    // The space reserved for its metadata is not needed any more.
    fill(m.fs(), &mut rng, "more");
    assert_eq!((again(4096), m.fs().reserved_bytes()), (Err(Errno::ENOSPC), ReservedBytes::default()));
    let back = WriteFlags { writes_back: true, ..WriteFlags::default() };
    assert_eq!(m.fs().write(file, 4096, &[7; 4096], back), Ok(4096), "the kernel finds some");
}

/// Other threads write, are refused, delete and write again, all the time.
#[test]
fn reserved_writes_never_fail_beside_other_writers() {
    let m = Machine::sized_with_threads(11, 96, 1 << 20);
    let root = m.fs().root();
    let size = 12 * MIB;
    let files = ["one", "two"].map(|name| m.fs().file(root, name).ino);
    for file in files {
        m.fs().fallocate(file, 0, 0, size).unwrap();
    }
    let (over, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for other in 0..3 {
            let (fs, over, refused) = (m.fs(), &over, &refused);
            scope.spawn(move || {
                let mut rng = Prng::new(100 + other);
                let piece = rng.random_bytes(256 << 10);
                for round in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("other{other}-{round}");
                    let Ok(file) = fs.create(root, name.as_bytes(), 0o644, &USER) else { continue };
                    let mut at = 0;
                    while !over.load(Ordering::Relaxed) && at < 40 * MIB {
                        match fs.write(file.ino, at, &piece, WriteFlags::default()) {
                            Ok(bytes) => at += u64::from(bytes),
                            Err(errno) => {
                                assert_eq!(errno, Errno::ENOSPC);
                                refused.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                        }
                    }
                    fs.forget(file.ino, 1);
                    if rng.below(3) == 0 {
                        fs.unlink(root, name.as_bytes()).unwrap();
                    }
                }
            });
        }
        let writers: Vec<_> = files
            .into_iter()
            .enumerate()
            .map(|(number, file)| {
                let (fs, refused) = (m.fs(), &refused);
                scope.spawn(move || {
                    // Starts when the pool is full.
                    let since = Instant::now();
                    while refused.load(Ordering::Relaxed) < 3 && since.elapsed() < Duration::from_secs(60) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let mut rng = Prng::new(number as u64);
                    let content = rng.random_bytes(size as usize);
                    for at in pieces(&mut rng, size, 64 << 10) {
                        put(fs, file, at, &content[at as usize..at as usize + (64 << 10)]);
                    }
                    content
                })
            })
            .collect();
        let contents: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        for (file, content) in files.iter().zip(contents) {
            assert!(m.fs().bytes(*file) == content.unwrap());
        }
    });
    assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default());
    assert!(refused.into_inner() >= 3, "the pool was never full");
}

#[test]
fn a_reservation_survives_a_new_record_size() {
    let m = Machine::sized(9, &[("recordsize", "4K")], 64, 1 << 20);
    let mut rng = Prng::new(9);
    let root = m.fs().root();
    let file = m.fs().file(root, "f").ino;
    let size = 8 * MIB;
    m.fs().fallocate(file, 0, 0, size).unwrap();
    let content = rng.random_bytes(size as usize);
    for at in (0..size).step_by(32 << 10) {
        put(m.fs(), file, at, &content[at as usize..at as usize + (8 << 10)]);
    }
    let spec = RewriteSpec { root: file, recursive: false, compression: None, record_size: Some(64 << 10) };
    m.fs().rewrite().begin(&spec).unwrap();
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    assert_eq!(m.fs().getattr(file).unwrap().blksize, 64 << 10);
    fill(m.fs(), &mut rng, "fill");
    for at in (0..size).step_by(32 << 10) {
        put(m.fs(), file, at + (8 << 10), &content[at as usize + (8 << 10)..at as usize + (32 << 10)]);
    }
    assert!(m.fs().bytes(file) == content);
    assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default());
}

#[test]
fn stale_and_oversized_reservations_are_ignored() {
    let mut m = Machine::sized(10, &[], 64, 1 << 20);
    let root = m.fs().root();
    let file = m.fs().file(root, "f").ino;
    m.fs().fallocate(file, 0, 0, MIB).unwrap();
    let reserved = m.fs().reserved_bytes();
    assert!(reserved.by_pool > MIB && reserved.by_pool < 2 * MIB);
    let name = format!("{file:x}");
    let change = |m: &mut Machine, change: &dyn Fn(&mut Vec<u64>)| {
        m.remount();
        let dataset = m.fs().dataset();
        let number = dataset.master().unwrap().lookup_u64(b"RESERVED".as_slice()).unwrap().unwrap();
        let mut zap = dataset.open_zap(ObjectId(number)).unwrap();
        let mut words = zap.lookup(name.as_bytes()).unwrap().unwrap().ints();
        let before = words.clone();
        let mut put = |words: &[u64]| {
            let cost = Cost { meta_blocks: 20, ..Cost::NOTHING };
            let tx = dataset.object_set().begin(cost).unwrap();
            zap.update(&tx, name.as_bytes(), ValueRef::U64s(words)).unwrap();
        };
        change(&mut words);
        put(&words);
        m.fs().sync().unwrap();
        let stored = m.fs().reserved_bytes();
        m.crash();
        let found = m.fs().reserved_bytes();
        // Restores the entry.
        let dataset = m.fs().dataset();
        let mut zap = dataset.open_zap(ObjectId(number)).unwrap();
        let tx = dataset.object_set().begin(Cost { meta_blocks: 20, ..Cost::NOTHING }).unwrap();
        zap.update(&tx, name.as_bytes(), ValueRef::U64s(&before)).unwrap();
        drop(tx);
        (stored, found)
    };
    assert_eq!(change(&mut m, &|_| {}), (reserved, reserved));
    assert_eq!(
        change(&mut m, &|words| words[0] += 1).1,
        ReservedBytes::default(),
        "of another file with this number"
    );
    assert_eq!(
        change(&mut m, &|words| (words[2], words[5]) = (1 << 50, 1 << 50)).1,
        ReservedBytes::default(),
        "more than there is"
    );
    assert_eq!(change(&mut m, &|words| words.truncate(5)).1, ReservedBytes::default(), "half a range");
    assert_eq!(
        change(&mut m, &|words| words[3] = u64::MAX).1,
        ReservedBytes::default(),
        "a sum that is none"
    );
    m.remount();
    assert_eq!(m.fs().reserved_bytes(), reserved);
    // It can be reserved, written and removed normally.
    m.fs().fallocate(file, 0, 0, 2 * MIB).unwrap();
    m.fs().unlink(root, b"f").unwrap();
    assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default());
}

/// Like a program that reserves more than it needs, and truncates the file in the end.
#[test]
fn a_file_cut_at_its_written_end_keeps_no_reservation() {
    let m = Machine::sized(14, &[("compression", "lz4")], 64, 1 << 20);
    let (root, mut rng) = (m.fs().root(), Prng::new(14));
    for (number, (mode, written)) in [
        (FALLOC_KEEP_SIZE, 1000),
        (0, 1000),
        (FALLOC_KEEP_SIZE, MIB + 1000),
        (0, 2 * MIB + 70_000),
        (0, 3 * MIB),
    ]
    .into_iter()
    .enumerate()
    {
        let file = m.fs().file(root, &format!("f{number}")).ino;
        m.fs().fallocate(file, mode, 0, 4 * MIB).unwrap();
        put(m.fs(), file, 0, &rng.random_bytes(written as usize));
        m.fs().size(file, written).unwrap();
        assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default(), "{mode} {written}");
        // Truncated in an unwritten part: only the space before the new end stays reserved.
        let file = m.fs().file(root, &format!("g{number}")).ino;
        m.fs().fallocate(file, 0, 0, 4 * MIB).unwrap();
        m.fs().size(file, written).unwrap();
        assert_eq!(m.fs().getattr(file).unwrap().blocks, written.div_ceil(512), "{mode} {written}");
        put(m.fs(), file, 0, &rng.random_bytes(written as usize));
        assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default(), "{mode} {written}");
        m.fs().sync().unwrap();
    }
}

/// Whatever happens to files, the pool's reserved bytes are the sum of their reservations, and end with them.
#[test]
fn the_pools_reserved_bytes_are_the_sum_over_files() {
    for seed in 0..12 {
        let mut m = Machine::sized(seed, &[], 64, 1 << 20);
        let mut rng = Prng::new(seed);
        let root = m.fs().root();
        let name = |number: u64| format!("f{number}");
        for step in 0..300 {
            let fs = m.fs();
            let file = name(rng.below(5));
            let ino = match fs.ino(root, &file) {
                Ok(ino) => ino,
                Err(_) => match fs.create(root, file.as_bytes(), 0o644, &USER) {
                    Ok(attr) => {
                        fs.forget(attr.ino, 1);
                        attr.ino
                    }
                    Err(errno) => panic!("{errno}"),
                },
            };
            let scale = *rng.one_of(&[3000, 300_000, 6_000_000]);
            let (at, len) = (rng.below(scale), 1 + rng.below(scale / 2));
            let outcome = match rng.below(20) {
                0..6 => fs.fallocate(ino, *rng.one_of(&[0, FALLOC_KEEP_SIZE]), at, len),
                6..8 => fs.fallocate(ino, PUNCH, at, len),
                8 => fs.fallocate(ino, FALLOC_ZERO_RANGE, at, len),
                9..15 => {
                    let data = rng.random_bytes(len.min(200_000) as usize);
                    fs.write(ino, at, &data, WriteFlags::default()).map(drop)
                }
                15..17 => fs.size(ino, at).map(drop),
                17 => fs.unlink(root, file.as_bytes()),
                18 => fs.sync(),
                _ => {
                    if rng.below(2) == 0 {
                        m.remount()
                    } else {
                        m.crash()
                    }
                    Ok(())
                }
            };
            assert!(matches!(outcome, Ok(()) | Err(Errno::ENOSPC)), "seed {seed} step {step}: {outcome:?}");
            let ReservedBytes { by_pool, by_files: sum } = m.fs().reserved_bytes();
            assert_eq!(by_pool, sum, "seed {seed} step {step}");
        }
        let before = m.fs().reserved_bytes();
        m.remount();
        assert!(m.fs().reserved_bytes().by_pool <= before.by_pool + (8 << 20), "seed {seed}: {before:?}");
        for number in 0..5 {
            let _ = m.fs().unlink(root, name(number).as_bytes());
        }
        assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default(), "seed {seed}");
        m.remount();
        assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default(), "seed {seed}");
    }
}

#[test]
fn invalid_reservations_reserve_nothing_and_fail_no_mount() {
    let mut m = Machine::sized(21, &[], 64, 1 << 20);
    let file = m.fs().file(m.fs().root(), "f").ino;
    let generation = m.fs().getattr(file).unwrap().generation;
    let name = format!("{file:x}");
    {
        let dataset = m.fs().dataset();
        let cost = Cost { meta_blocks: 64, objects: 4, ..Cost::NOTHING };
        let tx = dataset.object_set().begin(cost).unwrap();
        let mut zap = dataset.new_zap(&tx, terrane_object::ObjectKind::Zap).unwrap();
        let whole = |generation| [generation, 4096, 1 << 40, 0, 0, 1 << 40];
        for (name, words) in [
            (&*name, whole(generation).as_slice()),
            ("7777", &whole(1)),
            ("x", &whole(1)),
            ("", &[]),
            ("1", &[1; 600]),
        ] {
            let _ = zap.add(&tx, name.as_bytes(), ValueRef::U64s(words));
        }
        zap.add(&tx, b"2", ValueRef::U8s(b"text")).unwrap();
        let mut master = dataset.master().unwrap();
        master.add_u64(&tx, b"RESERVED", zap.object().id().0).unwrap();
    }
    m.fs().sync().unwrap();
    let empty = free(&m);
    m.remount();
    assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default(), "a tebibyte is more than the pool has");
    assert!(free(&m) + MIB > empty);
    let file = m.fs().ino(m.fs().root(), "f").unwrap();
    m.fs().fallocate(file, 0, 0, MIB).unwrap();
    put(m.fs(), file, 0, &[7; MIB as usize]);
    assert_eq!(m.fs().reserved_bytes(), ReservedBytes::default());
}
