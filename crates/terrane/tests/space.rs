//! Space: the cost of one of many, and that every byte is accounted for.
//!
//! The bounds leave a margin over what was measured when they were written (in parentheses). They detect
//! changes that make all metadata larger, as eight random bytes in each inode once did.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;
use terrane::{Cred, Dataset, Fs, WriteFlags};
use terrane_check::usage::{Purpose, Usage, usage};
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_object::{ObjectKind, ObjectSets};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;
use terrane_wire::mix64;
use terrane_zap::ValueRef;

const OWNER: Cred = Cred { uid: 1000, gid: 100, umask: 0 };

struct Machine {
    pool: Arc<Pool>,
    objects: Arc<ObjectSets>,
    fs: Arc<Fs>,
}

impl Machine {
    /// 512 MiB in memory.
    fn new() -> Machine {
        let config = SimConfig { seed: 1, zone_count: 64, zone_size: 8 << 20, ..SimConfig::default() };
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(SimDevice::new(config).unwrap())];
        let create = CreateOptions::named("space");
        let import = ImportOptions::default();
        let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(1)), &import).unwrap();
        let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
        let dataset = Dataset::create_root(&objects, &[]).unwrap();
        Fs::format(&dataset, &OWNER).unwrap();
        let fs = Fs::open(Arc::new(dataset)).unwrap();
        Machine { pool, objects, fs }
    }

    fn committed(&self) -> Usage {
        self.fs.sync().unwrap();
        usage(&self.objects).unwrap()
    }
}

/// Live bytes added per call by `count` calls of `make`.
fn each(m: &Machine, count: usize, make: impl Fn(usize)) -> f64 {
    let before = m.committed().live();
    (0..count).for_each(make);
    (m.committed().live() - before) as f64 / count as f64
}

#[test]
fn an_empty_directory_or_file_costs_less_than_forty_bytes() {
    let m = Machine::new();
    let parents: Vec<u64> = (0..10)
        .map(|number| m.fs.mkdir(m.fs.root(), format!("d{number}").as_bytes(), 0o755, &OWNER).unwrap().ino)
        .collect();
    let parent = |number: usize| *parents.get(number / 1000).unwrap();
    let directory = each(&m, 10_000, |number| {
        let made = m.fs.mkdir(parent(number), format!("o{number:07}").as_bytes(), 0o755, &OWNER).unwrap();
        m.fs.forget(made.ino, 1);
    });
    let file = each(&m, 10_000, |number| {
        let made = m.fs.create(parent(number), format!("f{number:07}").as_bytes(), 0o644, &OWNER).unwrap();
        m.fs.forget(made.ino, 1);
    });
    assert!(directory < 40.0, "{directory} bytes for an empty directory (24.5)");
    assert!(file < 40.0, "{file} bytes for an empty file (33.7)");
}

#[test]
fn a_zap_of_ten_file_identifiers_costs_less_than_two_hundred_bytes() {
    let m = Machine::new();
    let set = m.fs.dataset().object_set();
    let zap = each(&m, 2000, |number| {
        let tx = set.begin(Cost { write_bytes: 64 << 10, meta_blocks: 16, ..Cost::NOTHING }).unwrap();
        let mut zap = m.fs.dataset().new_zap(&tx, ObjectKind::Zap).unwrap();
        for entry in 0..10 {
            // Sequence, object, version, as metadata servers store them.
            let id = number as u64 * 10 + entry;
            let value = [0x2_0000_0400 + id / 100_000, id % 100_000, 0];
            zap.add(&tx, format!("file-{id:08}").as_bytes(), ValueRef::U64s(&value)).unwrap();
        }
    });
    // Most of them are embedded in their dnodes' pointers: as blocks they would take three times that.
    assert!(zap < 200.0, "{zap} bytes for a ZAP of ten entries");
}

#[test]
fn every_byte_of_a_pool_is_accounted_for() {
    let m = Machine::new();
    let root = m.fs.root();
    let mut contents = 0;
    for number in 0..300u64 {
        let name = format!("file {number} in the root");
        let file = m.fs.create(root, name.as_bytes(), 0o644, &OWNER).unwrap().ino;
        // Incompressible content, so that its size is known.
        let bytes: Vec<u8> =
            (0..2000 + number * 16).map(|at| (mix64(number << 32 | at) & 255) as u8).collect();
        m.fs.write(file, 0, &bytes, WriteFlags::default()).unwrap();
        contents += bytes.len() as u64;
        m.fs.forget(file, 1);
    }
    let full = m.committed();
    let share = |purpose| full.shares.get(&purpose).copied().unwrap_or_default();
    let stored = share(Purpose::Contents).stored;
    assert!(stored >= contents && stored < contents + 300 * 512, "{stored} stored of {contents}");
    for purpose in [Purpose::Names, Purpose::Dnodes, Purpose::Indirect, Purpose::Headers, Purpose::Meta] {
        assert!(share(purpose).live > 0, "{}", purpose.name());
        assert_eq!(share(purpose).copies % 2, 0, "{} have two copies", purpose.name());
    }
    for number in 0..300 {
        m.fs.unlink(root, format!("file {number} in the root").as_bytes()).unwrap();
    }
    let empty = m.committed();
    assert!(!empty.shares.contains_key(&Purpose::Contents) && empty.dead >= stored);
    for usage in [&full, &empty] {
        assert_eq!(usage.live() + usage.dead + usage.overhead, usage.claimed);
    }
    assert_eq!(empty.live(), m.pool.status().live_bytes, "as the pool's own accounting says");
}
