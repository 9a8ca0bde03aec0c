//! Nopwrite: overwrites with the same content keep all pointers, and no others do.

use crate::support;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_format::record::ZoneClass;
use terrane_format::{BlockPtr, WritePurpose};
use terrane_object::{DataPolicy, Object, ObjectKind, ObjectSet, ObjectSets, ObjectSpec};
use terrane_pool::{CreateOptions, ImportOptions, Pool, Stats};
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

const COST: Cost = Cost { write_bytes: 6 << 20, meta_blocks: 64, ..Cost::NOTHING };
const RECORD: usize = 4 << 10;
/// Several indirect blocks, the last of them not full.
const RECORDS: usize = 300;

struct World {
    device: SimDevice,
    pool: Arc<Pool>,
    _objects: Arc<ObjectSets>,
    set: Arc<ObjectSet>,
}

fn world(env: Arc<dyn Env>) -> World {
    let config = SimConfig { zone_count: 128, zone_size: 1 << 20, ..SimConfig::default() };
    let device = SimDevice::new(config).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let import = ImportOptions { cache_bytes: 4 << 20, ..ImportOptions::default() };
    let pool = Pool::create(devices, &CreateOptions::named("nopwrite"), env, &import).unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let tx = pool.begin(COST).unwrap();
    let id = objects.create_objset(&tx).unwrap();
    drop(tx);
    assert_eq!(id, ObjectId(1));
    let set = objects.open_objset(id, Arc::new(support::KeepOlder::default())).unwrap();
    World { device, pool, _objects: objects, set }
}

fn seeded() -> World {
    world(Arc::new(SeededEnv::new(7)))
}

/// Text that compresses differently with each algorithm and level.
fn text(records: usize, salt: u64) -> Vec<u8> {
    let env = SeededEnv::new(salt);
    let mut words: Vec<[u8; 6]> = Vec::new();
    let mut out = Vec::with_capacity(records * RECORD + 16);
    while out.len() < records * RECORD {
        let dice = env.random_u64();
        if words.len() < 3000 && dice.is_multiple_of(3) || words.is_empty() {
            words.push(std::array::from_fn(|at| b'a' + (dice >> (8 * at) & 3) as u8));
        }
        // Some words are far more frequent than others.
        let at = (dice >> 32) as usize % words.len() * ((dice >> 8) as usize % 100) / 100;
        out.extend_from_slice(&words[at]);
        out.push(b' ');
    }
    out.truncate(records * RECORD);
    out
}

/// Number of data blocks read from the device.
fn data_reads(stats: &Stats) -> u64 {
    let classes = ZoneClass::ALL.iter().zip(&stats.reads);
    classes.filter(|(class, _)| **class == ZoneClass::Data).map(|(_, reads)| reads.blocks).sum()
}

impl World {
    fn policy(&self, compression: &str, checksum: &str) {
        let (compression, checksum) = (compression.parse().unwrap(), checksum.parse().unwrap());
        self.set.set_policy(DataPolicy { compression, checksum, ..DataPolicy::default() });
    }

    fn file(&self) -> Arc<Object> {
        let tx = self.set.begin(COST).unwrap();
        let (kind, block_size) = (ObjectKind::File, RECORD as u32);
        let spec = ObjectSpec { kind, block_size, dnode_slots: 1, bonus: Vec::new(), spill: None };
        self.set.create(&tx, spec).unwrap()
    }

    fn write(&self, file: &Arc<Object>, offset: usize, data: &[u8]) {
        let tx = self.set.begin(COST).unwrap();
        file.write(&tx, offset as u64, data).unwrap();
    }

    fn commit(&self) {
        self.pool.commit().unwrap();
    }

    fn stored(&self, file: &Arc<Object>, data: &[u8]) {
        self.write(file, 0, data);
        self.commit();
    }

    /// Runs work in one txg; returns statistics and the number of blocks kept by nopwrite.
    fn run_txg(&self, work: impl FnOnce()) -> (Stats, u64) {
        let before = self.pool.stats().nopwrite_blocks;
        work();
        self.commit();
        let stats = self.pool.stats();
        let kept = stats.nopwrite_blocks - before;
        (stats, kept)
    }

    fn data_bytes(&self) -> u64 {
        self.pool.stats().totals_now.written_for(WritePurpose::Data)
    }

    fn reads(&self, file: &Arc<Object>, expected: &[u8]) {
        for again in 0..2 {
            let mut found = vec![0xee; expected.len()];
            file.read(0, &mut found).unwrap();
            assert!(found == expected, "read {again} differs");
            self.pool.drop_cache();
        }
        assert_eq!(self.pool.check_tables(), vec![]);
        assert_eq!(self.pool.errors().findings, Vec::<String>::new());
    }

    /// Writes `data` again; returns the number of blocks kept.
    fn kept_by(&self, file: &Arc<Object>, data: &[u8]) -> u64 {
        let (root, account, stored) = (file.dnode().root, self.set.account(), self.data_bytes());
        let (_, kept) = self.run_txg(|| self.write(file, 0, data));
        if kept as usize * RECORD == data.len() {
            // Indirect blocks are kept too.
            assert_eq!(file.dnode().root, root);
            assert_eq!(self.data_bytes(), stored);
            assert_eq!(self.set.account(), account);
        }
        self.reads(file, data);
        kept
    }
}

#[test]
fn overwriting_with_equal_content_keeps_all_blocks() {
    for checksum in ["blake3", "sha256"] {
        for compression in ["off", "lzjb", "zle", "gzip-6", "lz4", "zstd-fast-10", "zstd-3", "zstd-auto"] {
            let world = seeded();
            world.policy(compression, checksum);
            let (file, data) = (world.file(), text(RECORDS, 1));
            world.stored(&file, &data);
            assert_eq!(world.kept_by(&file, &data), RECORDS as u64, "{compression} {checksum}");
            // Also if only parts of records are written at a time.
            let root = file.dnode().root;
            world.run_txg(|| {
                for (at, piece) in data.chunks(5000).enumerate() {
                    world.write(&file, at * 5000, piece);
                }
            });
            assert_eq!(file.dnode().root, root, "{compression} {checksum}");
        }
    }
}

#[test]
fn nopwrite_works_with_worker_threads() {
    let env = SystemEnv::new();
    if env.workers() < 2 {
        eprintln!("skipped: a machine of one processor compresses in the thread that asks");
        return;
    }
    let world = world(Arc::new(env));
    world.policy("zstd-3", "blake3");
    let (file, data) = (world.file(), text(RECORDS, 2));
    world.stored(&file, &data);
    assert_eq!(world.kept_by(&file, &data), RECORDS as u64);
    world.policy("zstd-9", "blake3");
    assert_eq!(world.kept_by(&file, &data), RECORDS as u64);
    assert_eq!(world.kept_by(&file, &data), RECORDS as u64);
    assert_eq!(world.kept_by(&file, &text(RECORDS, 3)), 0);
}

#[test]
fn weak_or_different_checksums_disable_nopwrite() {
    for (before, after) in
        [("fletcher4", "fletcher4"), ("fletcher4", "blake3"), ("blake3", "fletcher4"), ("blake3", "sha256")]
    {
        for compression in ["off", "zstd-3"] {
            let world = seeded();
            world.policy(compression, before);
            let (file, data) = (world.file(), text(8, 1));
            world.stored(&file, &data);
            world.policy(compression, after);
            assert_eq!(world.kept_by(&file, &data), 0, "{before} {after}");
            world.policy(if compression == "off" { "off" } else { "zstd-9" }, after);
            let expected = if after == "fletcher4" { 0 } else { 8 };
            assert_eq!(world.kept_by(&file, &data), expected, "{before} {after}, then another level");
        }
    }
}

#[test]
fn another_level_of_the_same_algorithm_leaves_blocks_as_they_are() {
    for (before, after) in [
        ("zstd-3", "zstd-9"),
        ("zstd-9", "zstd-fast-10"),
        ("gzip-1", "gzip-9"),
        ("zstd-7", "zstd-auto"),
        ("lz4", "zstd-auto:3-5"),
    ] {
        let world = seeded();
        let data = text(RECORDS, 4);
        let sizes = [before, after].map(|compression| {
            world.policy(compression, "blake3");
            let other = world.file();
            world.stored(&other, &data);
            other.dnode().used
        });
        assert_ne!(sizes[0], sizes[1], "{before} and {after} make the same: the test tests nothing");
        let file = world.file();
        world.policy(before, "blake3");
        world.stored(&file, &data);
        world.policy(after, "blake3");
        assert_eq!(world.kept_by(&file, &data), RECORDS as u64, "{before}, then {after}");
        // Changed records are written with the new level, and the others are still recognized.
        let mut other = data.clone();
        for record in [0, 5, 200, RECORDS - 1] {
            other[record * RECORD + 77] ^= 1;
        }
        assert_eq!(world.kept_by(&file, &other), RECORDS as u64 - 4, "{before}, then {after}");
    }
}

#[test]
fn another_algorithm_disables_nopwrite() {
    for (before, after) in
        [("lz4", "zstd-3"), ("off", "lz4"), ("zstd-3", "off"), ("gzip-1", "zstd-1"), ("gzip-6", "zstd-auto")]
    {
        let world = seeded();
        world.policy(before, "blake3");
        let (file, data) = (world.file(), text(20, 5));
        world.stored(&file, &data);
        let used = file.dnode().used;
        world.policy(after, "blake3");
        assert_eq!(world.kept_by(&file, &data), 0, "{before}, then {after}");
        assert_ne!(file.dnode().used, used);
        assert_eq!(world.kept_by(&file, &data), 20);
    }
}

#[test]
fn only_changed_blocks_are_written() {
    let world = seeded();
    world.policy("lz4", "blake3");
    let (file, mut data) = (world.file(), text(RECORDS, 6));
    world.stored(&file, &data);
    let leaves = |file: &Arc<Object>| {
        let root = file.dnode().root;
        let raw = world.pool.read(&root, terrane_format::Owner::Pool { structure: 0 }).unwrap();
        raw.chunks_exact(BlockPtr::SIZE).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let before = leaves(&file);
    data[130 * RECORD] ^= 1;
    let stored = world.data_bytes();
    assert_eq!(world.kept_by(&file, &data), RECORDS as u64 - 1);
    assert!(world.data_bytes() - stored <= RECORD as u64);
    let after = leaves(&file);
    let differ = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert_eq!(
        (before.len() == after.len(), differ),
        (true, 1),
        "one of {} blocks of pointers",
        before.len()
    );
}

#[test]
fn nopwrite_keeps_small_blocks_and_holes() {
    let world = seeded();
    world.policy("zstd-3", "blake3");
    let file = world.file();
    // Embedded: first uncompressed, then compressed. Later with a second block behind a hole.
    for data in [b"a few bytes".to_vec(), b"1234567 ".repeat(60)] {
        world.stored(&file, &data);
        let ptr = file.dnode().root;
        assert!(matches!(ptr, BlockPtr::Embedded(_)), "{ptr:?}");
        let (_, kept) = world.run_txg(|| world.write(&file, 0, &data));
        assert_eq!((kept, file.dnode().root), (1, ptr.clone()));
        world.policy("zstd-9", "blake3");
        world.run_txg(|| world.write(&file, 0, &data));
        assert_eq!(file.dnode().root, ptr, "by another level");
        world.policy("zstd-3", "blake3");
    }
    world.stored(&file, &[5; 4 * RECORD]);
    let tx = world.set.begin(COST).unwrap();
    file.zero_range(&tx, RECORD as u64, 2 * RECORD as u64).unwrap();
    drop(tx);
    world.commit();
    let (root, txg) = (file.dnode().root, world.pool.synced_txg());
    let (_, kept) = world.run_txg(|| world.write(&file, RECORD, &[0; 2 * RECORD]));
    assert_eq!((kept, &file.dnode().root), (0, &root), "holes over holes");
    assert!(world.pool.synced_txg() > txg);
    // A hole that was never written, beyond the span of the tree.
    world.run_txg(|| world.write(&file, 1000 * RECORD, &[0; RECORD]));
    assert_eq!((file.dnode().root, file.block_count()), (root.clone(), 1001));
    // Zeros over data, and data over zeros, are changes.
    world.run_txg(|| world.write(&file, 0, &[0; RECORD]));
    assert_ne!(file.dnode().root, root);
    world.run_txg(|| world.write(&file, RECORD, &[9; RECORD]));
    let mut expected = vec![0; 4 * RECORD];
    expected[RECORD..2 * RECORD].fill(9);
    expected[3 * RECORD..].fill(5);
    world.reads(&file, &expected);
}

#[test]
fn nopwrite_skips_blocks_freed_in_between() {
    let world = seeded();
    world.policy("zstd-3", "blake3");
    let (file, data) = (world.file(), text(RECORDS, 8));
    world.stored(&file, &data);
    let used = file.dnode().used;
    let (_, kept) = world.run_txg(|| {
        let tx = world.set.begin(COST).unwrap();
        file.truncate(&tx, 10 * RECORD as u64 + 100).unwrap();
        drop(tx);
        world.write(&file, 10 * RECORD, &data[10 * RECORD..]);
    });
    // The truncated record is whole again.
    assert_eq!(kept, 1);
    assert!(file.dnode().used.abs_diff(used) < 1000, "{used} before, {} after", file.dnode().used);
    world.reads(&file, &data);
    // A record that is only truncated differs.
    let (_, kept) = world.run_txg(|| {
        let tx = world.set.begin(COST).unwrap();
        file.truncate(&tx, 10 * RECORD as u64 + 100).unwrap();
    });
    assert_eq!(kept, 0);
    let mut data = data[..10 * RECORD + 100].to_vec();
    // The last record has its stored length.
    assert_eq!(world.run_txg(|| world.write(&file, 10 * RECORD, &data[10 * RECORD..])).1, 1);
    data.resize(11 * RECORD, 0);
    assert_eq!(world.run_txg(|| world.write(&file, 10 * RECORD, &data[10 * RECORD..])).1, 0, "a longer one");
    world.reads(&file, &data);
}

#[test]
fn the_last_of_several_overwrites_counts() {
    let world = seeded();
    world.policy("zstd-3", "blake3");
    let (file, one, two) = (world.file(), text(RECORDS, 9), text(RECORDS, 10));
    world.stored(&file, &one);
    let (_, kept) = world.run_txg(|| {
        world.write(&file, 0, &two);
        world.write(&file, 0, &one);
    });
    assert_eq!(kept, RECORDS as u64);
    let (_, kept) = world.run_txg(|| {
        world.write(&file, 0, &one);
        world.write(&file, 0, &two);
    });
    assert_eq!(kept, 0);
    world.reads(&file, &two);
}

#[test]
fn a_block_that_is_known_to_be_damaged_is_mended() {
    for compression in ["zstd-3", "zstd-9"] {
        let world = seeded();
        world.policy("zstd-3", "blake3");
        let (file, data) = (world.file(), text(1, 11));
        world.stored(&file, &data);
        let BlockPtr::Normal(ptr) = file.dnode().root else { panic!("one block") };
        let (_, home, offset) = world.pool.locate(ptr.addrs[0], ptr.psize).unwrap();
        world.device.rot(home.zone, offset + 7, &[0xff]).unwrap();
        world.pool.drop_cache();
        if compression == "zstd-3" {
            assert!(file.read(0, &mut [0; 8]).is_err());
        }
        world.policy(compression, "blake3");
        // With another level, the damage is found by reading.
        let (_, kept) = world.run_txg(|| world.write(&file, 0, &data));
        assert_eq!(kept, 0);
        world.reads(&file, &data);
    }
}

#[test]
fn a_record_that_rotted_unnoticed_is_mended_by_writing_the_file_again() {
    for (compression, again) in [("off", "off"), ("zstd-3", "zstd-3"), ("zstd-3", "zstd-9"), ("lz4", "lz4")] {
        let world = seeded();
        world.policy(compression, "blake3");
        let (bad, good, data) = (world.file(), world.file(), text(1, 12));
        world.stored(&bad, &data);
        world.stored(&good, &data);
        let reads = || data_reads(&world.pool.stats());
        let write = |file| world.run_txg(|| world.write(file, 0, &data)).1;
        let before = reads();
        assert_eq!((write(&good), reads() - before), (1, 0), "what is in memory is not read");
        // No read has found the damage, or it was found before a restart.
        let BlockPtr::Normal(ptr) = bad.dnode().root else { panic!("one block") };
        let (_, home, offset) = world.pool.locate(ptr.addrs[0], ptr.psize).unwrap();
        world.device.rot(home.zone, offset + 7, &[0xff]).unwrap();
        world.pool.drop_cache();
        world.policy(again, "blake3");
        assert_eq!((write(&good), write(&bad)), (1, 0), "{compression} by {again}");
        world.pool.drop_cache();
        world.reads(&bad, &data);
        world.reads(&good, &data);
    }
}

#[test]
fn random_overwrites_are_hardly_ever_compared() {
    let world = seeded();
    world.policy("zstd-3", "blake3");
    let (file, records) = (world.file(), 1500);
    world.stored(&file, &text(records, 12));
    world.policy("zstd-1", "blake3");
    world.pool.drop_cache();
    let (before, env) = (data_reads(&world.pool.stats()), SeededEnv::new(3));
    let mut written = BTreeSet::new();
    for round in 0..10 {
        let (data, first) = (text(150, 100 + round), env.random_u64() as usize % (records - 150));
        world.stored(&file, &[]);
        world.write(&file, first * RECORD, &data);
        written.extend(first..first + 150);
        world.commit();
    }
    let reads = data_reads(&world.pool.stats()) - before;
    assert!((8..=1500 / 50).contains(&reads), "{reads} looks at {} records", written.len());
    assert_eq!(world.pool.stats().nopwrite_blocks, 0);
    // There are no statistics yet for the next level.
    let (other, data) = (world.file(), text(RECORDS, 13));
    world.stored(&other, &data);
    world.policy("zstd-5", "blake3");
    assert_eq!(world.kept_by(&other, &data), RECORDS as u64);
}

#[test]
fn gc_moves_blocks_kept_by_nopwrite() {
    let world = seeded();
    world.policy("zstd-3", "blake3");
    let env = SeededEnv::new(5);
    let noise = |len: usize| (0..len / 8).flat_map(|_| env.random_u64().to_le_bytes()).collect::<Vec<u8>>();
    // Two thirds of the users' space are overwritten in pieces. Meanwhile GC empties zones that hold the kept
    // blocks.
    let records = (world.set.usage().size_bytes * 2 / 3) as usize / RECORD;
    let (quiet, busy) = (world.file(), world.file());
    let same = text(RECORDS, 14);
    let mut contents = noise(records * RECORD);
    for (at, piece) in contents.chunks(1 << 20).enumerate() {
        world.write(&busy, at << 20, piece);
        world.write(&quiet, 0, &same[..(at + 1) * RECORD]);
    }
    world.stored(&quiet, &same);
    let root = quiet.dnode().root;
    for round in 0..60 {
        for _ in 0..64 {
            let at = env.random_u64() as usize % (records - 16) * RECORD;
            let piece = noise(16 * RECORD);
            world.write(&busy, at, &piece);
            contents[at..at + piece.len()].copy_from_slice(&piece);
        }
        world.policy(if round % 2 == 0 { "zstd-9" } else { "zstd-3" }, "blake3");
        let (_, kept) = world.run_txg(|| world.write(&quiet, 0, &same));
        assert_eq!(kept, RECORDS as u64, "round {round}");
    }
    let moved = world.pool.stats().collected_bytes;
    assert!(moved > 4 << 20, "collection moved {moved} bytes: the test tests nothing");
    assert_eq!(quiet.dnode().root, root);
    world.reads(&quiet, &same);
    world.reads(&busy, &contents);
}
