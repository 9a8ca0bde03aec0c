//! Clones that fill a pool. A free reserves nothing, and here each changes another leaf of the table of shared blocks.

use terrane_object::shared::SharedTotals;
use terrane_posix::{Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, WriteFlags};
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_sim::seeds::number;
use terrane_wire::Prng;

const RECORD: u64 = 4096;
/// Records of a file.
const FILE_RECORDS: u64 = 500;

/// `None`: the pool is full.
fn create(fs: &Fs, name: &str) -> Option<Ino> {
    match fs.create(fs.root(), name.as_bytes(), 0o644, &USER) {
        Ok(attr) => Some(attr.ino),
        Err(errno) => {
            assert_eq!(errno, Errno::ENOSPC, "{name}");
            None
        }
    }
}

/// Records that compress to few granules, but do not fit their pointers.
fn content(seed: u64) -> Vec<u8> {
    let (mut rng, mut data) = (Prng::new(seed), vec![0; (FILE_RECORDS * RECORD) as usize]);
    data.chunks_mut(RECORD as usize).for_each(|record| record[..160].copy_from_slice(&rng.random_bytes(160)));
    data
}

/// Fills the pool to the last record.
fn fill(fs: &Fs, names: &mut Vec<String>) {
    let noise = Prng::new(7).random_bytes(1 << 18);
    let Some(filler) = create(fs, "filler") else { return };
    names.push("filler".to_owned());
    let (mut at, mut len) = (0, noise.len());
    while len >= RECORD as usize {
        match fs.write(filler, at, &noise[..len], WriteFlags::default()) {
            Ok(written) => at += u64::from(written),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                len /= 2;
            }
        }
    }
    fs.forget(filler, 1);
}

#[test]
fn clones_that_fill_a_pool_can_be_deleted_in_any_order() {
    let records = number("TERRANE_RECORDS").unwrap_or(60_000) / FILE_RECORDS * FILE_RECORDS;
    for seed in [1, 2] {
        // A device of each type.
        let props = vec![("recordsize", "4K"), ("compression", "lz4"), ("atime", "off")];
        let zones = 64 + (records / 1000) as u32;
        let mut m = Machine::create(&Plan { zones, props, ..Plan::small(seed) }).unwrap();
        let mut rng = Prng::new(seed);
        let (mut names, mut sources) = (Vec::new(), Vec::new());
        for file in 0..records / FILE_RECORDS {
            names.push(format!("source {file}"));
            let ino = create(m.fs(), names.last().unwrap()).unwrap();
            m.fs().write(ino, 0, &content(file), WriteFlags::default()).unwrap();
            sources.push(ino);
        }
        m.fs().sync().unwrap();
        // Each record once, in random order: neighbours in a file are never neighbours in the table.
        let mut order: Vec<u64> = (0..records).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, rng.below(at as u64 + 1) as usize));
        for (file, records) in order.chunks(FILE_RECORDS as usize).enumerate() {
            names.push(format!("clone {file}"));
            let to = create(m.fs(), names.last().unwrap()).unwrap();
            for (at, record) in (0..).zip(records) {
                let from = sources[(record / FILE_RECORDS) as usize];
                let done = m.fs().clone_range(from, record % FILE_RECORDS * RECORD, to, at * RECORD, RECORD);
                assert_eq!(done.map(|done| done.shared_bytes), Ok(RECORD));
            }
            m.fs().forget(to, 1);
        }
        m.fs().sync().unwrap();
        assert_eq!(m.objects.shared().totals().references, records);
        // Clones of clones, until there is no space for pointers.
        for copy in 0.. {
            let name = format!("copy {copy}");
            let Some(to) = create(m.fs(), &name) else { break };
            names.push(name);
            let from = format!("clone {}", copy % (records / FILE_RECORDS));
            let from = m.fs().lookup(m.fs().root(), from.as_bytes()).unwrap();
            let done = m.fs().clone_range(from.ino, 0, to, 0, u64::MAX);
            m.fs().forget(to, 1);
            m.fs().forget(from.ino, 1);
            if done.is_err() {
                assert_eq!(done, Err(Errno::ENOSPC));
                break;
            }
        }
        fill(m.fs(), &mut names);
        m.fs().sync().unwrap();
        sources.iter().for_each(|ino| m.fs().forget(*ino, 1));
        println!(
            "{:?}, {} leaves, {:?}",
            m.objects.shared().totals(),
            m.objects.shared().leaf_count(),
            m.pool.space()
        );
        // A full pool can be imported again.
        m = Machine::import(&m.abandon().after_power_loss(seed), seed, false).unwrap();
        m.mount().unwrap();
        let root = m.fs().root();
        (1..names.len()).rev().for_each(|at| names.swap(at, rng.below(at as u64 + 1) as usize));
        for (at, name) in names.iter().enumerate() {
            let ino = m.fs().lookup(root, name.as_bytes()).unwrap().ino;
            if at % 4 == 0 {
                let record = rng.below(FILE_RECORDS) * RECORD;
                let mode = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
                m.fs()
                    .fallocate(ino, mode, record, RECORD)
                    .unwrap_or_else(|errno| panic!("punch {name}: {errno}"));
            }
            m.fs().forget(ino, 1);
            m.fs().unlink(root, name.as_bytes()).unwrap_or_else(|errno| panic!("unlink {name}: {errno}"));
            if at % 16 == 0 {
                m.fs().sync().unwrap();
            }
        }
        for _ in 0..records / 8192 + 8 {
            m.pool.commit_txg(m.pool.open_txg()).unwrap();
        }
        assert_eq!(m.objects.shared().totals(), SharedTotals::default());
        assert_eq!(m.objects.shared().leaf_count(), 0);
        m.check().unwrap();
        let (_, live, available) = m.pool.space();
        assert!(live * 50 < available, "{live} bytes live of {available}");
    }
}
