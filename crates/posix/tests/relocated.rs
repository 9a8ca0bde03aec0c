//! A relocation index above its bound: old blocks are rewritten until it fits, and programs see no difference.

use crate::support::{Machine, Short, USER};
use std::collections::{BTreeMap, BTreeSet};
use terrane_format::BlockPtr;
use terrane_pool::{MemoryBounds, Pool, RewriteCursor};
use terrane_posix::{Ino, Job, JobStep, RewriteSpec, SetXattr};
use terrane_wire::{ObjectId, Prng};

const RECORD: u64 = 4096;
const RECORDS: u64 = 9000;

fn bound(pool: &Pool, index_bytes: u64) {
    pool.set_bounds(MemoryBounds { cache_bytes: 16 << 20, dirty_bytes: 64 << 20, index_bytes });
}

fn index_bytes(m: &Machine) -> u64 {
    let stats = m.pool().stats();
    stats.run_index_bytes + stats.dead_set_bytes
}

/// A file whose records are overwritten at random.
struct Churned {
    ino: Ino,
    versions: Vec<u64>,
    rng: Prng,
}

impl Churned {
    fn new(m: &Machine, seed: u64) -> Churned {
        let ino = m.fs().file(m.fs().root(), "file").ino;
        let mut churned = Churned { ino, versions: vec![0; RECORDS as usize], rng: Prng::new(seed) };
        (0..RECORDS).for_each(|at| churned.put(m, at));
        m.fs().sync().unwrap();
        churned
    }

    fn content(&self, at: u64) -> Vec<u8> {
        let mut rng = Prng::new(at << 20 | self.versions[at as usize]);
        (0..RECORD / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
    }

    fn put(&mut self, m: &Machine, at: u64) {
        self.versions[at as usize] += 1;
        m.fs().put(self.ino, at * RECORD, &self.content(at));
    }

    /// Overwrites `times` the file's records, three quarters of them in its first quarter.
    fn churn(&mut self, m: &Machine, times: u64, after_txg: &mut dyn FnMut(&Machine)) {
        for _ in 0..times * RECORDS / 200 {
            for _ in 0..200 {
                let among = if self.rng.below(4) == 0 { RECORDS } else { RECORDS / 4 };
                let at = self.rng.below(among);
                self.put(m, at);
            }
            m.fs().sync().unwrap();
            after_txg(m);
        }
    }

    fn churn_little(&mut self, m: &Machine) {
        for _ in 0..100 {
            let at = self.rng.below(RECORDS);
            self.put(m, at);
        }
        m.fs().sync().unwrap();
    }

    fn verify(&self, m: &Machine) {
        let found = m.fs().bytes(self.ino);
        assert_eq!(found.len() as u64, RECORDS * RECORD);
        for (at, found) in (0..).zip(found.chunks(RECORD as usize)) {
            assert!(found == self.content(at), "record {at}");
        }
    }
}

fn machine(seed: u64) -> Machine {
    Machine::sized(seed, &[("recordsize", "4K"), ("compression", "off"), ("atime", "off")], 64, 1 << 20)
}

#[test]
fn the_relocation_index_stays_within_its_bound() {
    let without = machine(1);
    bound(without.pool(), 0);
    let mut churned = Churned::new(&without, 1);
    churned.churn(&without, 8, &mut |_| {});
    let (unbounded, runs) = (index_bytes(&without), without.pool().stats().runs);
    assert!(without.pool().stats().run_index_packed && runs > 300, "{runs} runs, {unbounded} bytes");

    let mut m = machine(1);
    let most = unbounded / 2;
    bound(m.pool(), most);
    let mut churned = Churned::new(&m, 1);
    let times = m.fs().getattr(churned.ino).unwrap();
    let mut largest = 0;
    churned.churn(&m, 8, &mut |m| {
        while m.fs().rewrite_relocated().step(1).unwrap() == JobStep::Progressed {}
        m.fs().sync().unwrap();
        largest = largest.max(index_bytes(m));
    });
    assert!(largest <= most + most / 8, "{largest} bytes where {most} may be taken");
    let stats = m.pool().stats();
    assert!(stats.rewritten_bytes > 0);
    churned.verify(&m);
    assert_eq!(m.pool().check_tables(), vec![]);
    m.remount();
    churned.verify(&m);
    assert_eq!(m.fs().getattr(churned.ino).unwrap().size, times.size);
}

/// A rewrite takes any block born since it began for new data, in the form that the property demands.
#[test]
fn relocated_blocks_wait_while_files_are_rewritten() {
    let m = machine(5);
    let mut churned = Churned::new(&m, 5);
    churned.churn(&m, 2, &mut |_| {});
    m.fs().dataset().set("compression", "off").unwrap();
    let compression = Some("gzip-1".parse().unwrap());
    let spec = RewriteSpec { root: churned.ino, recursive: false, compression, record_size: None };
    m.fs().rewrite().begin(&spec).unwrap();
    bound(m.pool(), 0);
    (0..10).for_each(|_| m.pool().commit_txg(m.pool().open_txg()).unwrap());
    assert!(m.pool().stats().run_index_packed, "a new bound is obeyed at once");
    assert_eq!(
        (m.fs().rewrite_relocated().step(1), m.pool().stats().rewritten_bytes),
        (Ok(JobStep::NothingToDo), 0)
    );
    assert!(m.fs().rewrite().cancel().unwrap());
    assert_eq!(m.fs().rewrite_relocated().step(1), Ok(JobStep::Progressed));
    assert!(m.pool().stats().rewritten_bytes > 0);
}

#[test]
fn xattr_values_are_rewritten_and_unreadable_blocks_skipped() {
    let m = machine(6);
    let mut churned = Churned::new(&m, 6);
    let (root, noise) = (m.fs().root(), |seed| Prng::new(seed).random_bytes(40_000));
    let holders: Vec<Ino> = (0..40).map(|at| m.fs().file(root, &format!("{at}")).ino).collect();
    for (at, ino) in (0..).zip(&holders) {
        m.fs().setxattr(*ino, b"user.large", &noise(at), SetXattr::default(), &USER).unwrap();
        churned.churn_little(&m);
    }
    churned.churn(&m, 3, &mut |_| {});
    bound(m.pool(), 0);
    let commit = || m.pool().commit_txg(m.pool().open_txg()).unwrap();
    m.pool().gc_request(0).unwrap();
    while !m.pool().gc_progress().done {
        commit();
    }
    (0..6).for_each(|_| commit());
    m.rot(churned.ino, 7);
    let lost = m.pool().stats().lost_blocks;
    for _ in 0..50 {
        while m.fs().rewrite_relocated().step(1).unwrap() == JobStep::Progressed {}
        commit();
    }
    // Every possible block is back at its birthplace, and nothing is left to do: no directory part is read any
    // more.
    let reads = || m.pool().stats().reads.iter().map(|reads| reads.operations).sum::<u64>();
    let before = reads();
    for _ in 0..50 {
        assert_eq!(
            (m.fs().rewrite_relocated().step(1), m.fs().rewrite_relocated().progress()),
            (Ok(JobStep::NothingToDo), 0)
        );
    }
    assert_eq!(reads(), before);
    assert_eq!(m.pool().stats().lost_blocks, lost, "nobody asked for it");
    for (at, ino) in (0..).zip(&holders) {
        let mut found = Vec::new();
        m.fs().getxattr(*ino, b"user.large", &mut found).unwrap();
        assert!(found == noise(at), "{ino}");
    }
}

/// Named blocks that cannot be rewritten, as below an unreadable indirect block, are named twice. Then they
/// are not named for a while.
#[test]
fn blocks_that_cannot_be_rewritten_are_not_named_forever() {
    let m = machine(9);
    let mut churned = Churned::new(&m, 9);
    churned.churn(&m, 3, &mut |_| {});
    m.pool().gc_request(0).unwrap();
    let commit = || m.pool().commit_txg(m.pool().open_txg()).unwrap();
    while !m.pool().gc_progress().done {
        commit();
    }
    bound(m.pool(), 0);
    (0..6).for_each(|_| commit());
    let (mut cursor, mut named, mut quiet, mut longest) = (RewriteCursor::default(), BTreeMap::new(), 0, 0);
    for _ in 0..200 {
        commit();
        let mut of_txg = BTreeSet::new();
        loop {
            let blocks = m.pool().blocks_to_rewrite(&mut cursor);
            if blocks.is_empty() {
                break;
            }
            for relocated in blocks {
                assert!(of_txg.insert(relocated.addr), "named twice in one group: {relocated:?}");
                *named.entry(relocated.addr).or_insert(0) += 1;
            }
        }
        quiet = if of_txg.is_empty() { quiet + 1 } else { 0 };
        longest = longest.max(quiet);
    }
    assert!(named.len() > 300 && longest >= 60, "{} blocks, {longest} groups without any", named.len());
    // 200 txgs are three pauses and the txgs between them.
    assert!(named.values().all(|times| *times <= 8), "{named:?}");
}

/// Zones of metadata that never changes are rewritten too: ZAP blocks, indirect blocks, dnode blocks, and
/// spills.
#[test]
fn metadata_is_rewritten_until_the_relocation_index_is_empty() {
    let props = [("recordsize", "4K"), ("compression", "off"), ("atime", "off")];
    let mut m = Machine::sized(7, &props, 96, 1 << 20);
    let mut churned = Churned::new(&m, 7);
    // Written between blocks that are overwritten, so that GC empties their zones.
    let root = m.fs().root();
    let name = |at: u64| format!("a name that is long enough for some of them to fill a block, {at}");
    let large = m.fs().dir(root, "large").ino;
    let mut seen = Vec::new();
    for at in 0..120u64 {
        let dir = m.fs().dir(root, &name(at)).ino;
        let file = m.fs().file(dir, "file").ino;
        m.fs().put(file, 0, &Prng::new(at).random_bytes(60_000));
        m.fs()
            .setxattr(file, b"user.spilled", &Prng::new(at).random_bytes(3_000), SetXattr::default(), &USER)
            .unwrap();
        for file in 0..20 {
            m.fs().file(large, &name(at << 8 | file));
        }
        seen.push((dir, file));
        churned.churn_little(&m);
    }
    churned.churn(&m, 4, &mut |_| {});
    let commit = || m.pool().commit_txg(m.pool().open_txg()).unwrap();
    m.pool().gc_request(0).unwrap();
    while !m.pool().gc_progress().done {
        commit();
    }
    (0..6).for_each(|_| commit());
    let runs = m.pool().stats().runs;
    assert!(runs > 30, "{runs} runs");
    let times = seen.iter().map(|(_, file)| m.fs().getattr(*file).unwrap()).collect::<Vec<_>>();
    bound(m.pool(), 0);
    for _ in 0..400 {
        // If space is short, the rewrite waits for what the next txg frees.
        while m.fs().rewrite_relocated().step(1) == Ok(JobStep::Progressed) {}
        commit();
    }
    let left = m.pool().stats().runs;
    assert!(left <= 3, "{left} of {runs} runs are left: of the meta object set there may be some");
    assert_eq!(m.pool().check_tables(), vec![]);
    let verify = |m: &Machine| {
        churned.verify(m);
        for ((at, (dir, file)), before) in (0..).zip(&seen).zip(&times) {
            assert_eq!(m.fs().lookup(root, name(at).as_bytes()).unwrap().ino, *dir);
            let after = m.fs().getattr(*file).unwrap();
            let visible = |attr: &terrane_posix::Attr| (attr.size, attr.mtime, attr.ctime, attr.blocks);
            assert_eq!(visible(&after), visible(before));
            assert!(m.fs().bytes(*file) == Prng::new(at).random_bytes(60_000));
            let mut value = Vec::new();
            m.fs().getxattr(*file, b"user.spilled", &mut value).unwrap();
            assert!(value == Prng::new(at).random_bytes(3_000));
            for file in 0..20 {
                m.fs().lookup(large, name(at << 8 | file).as_bytes()).unwrap();
            }
        }
    };
    verify(&m);
    m.pool().drop_cache();
    verify(&m);
    m.remount();
    verify(&m);
}

#[test]
fn rewritten_blocks_keep_times_and_stored_form() {
    let props = [("recordsize", "16K"), ("compression", "zstd-9"), ("atime", "off")];
    let m = Machine::sized(3, &props, 32, 1 << 20);
    bound(m.pool(), 0);
    let fs = m.fs();
    let files: Vec<Ino> = (0..120).map(|at| fs.file(fs.root(), &format!("{at}")).ino).collect();
    let text = |ino: Ino, turn: u64| {
        let mut rng = Prng::new(ino << 8 | turn);
        (0..160_000).map(|_| b'a' + (rng.next_u64() % 12) as u8).collect::<Vec<u8>>()
    };
    files.iter().for_each(|ino| fs.put(*ino, 0, &text(*ino, 0)));
    fs.sync().unwrap();
    // Half of each file is overwritten, and GC moves the other half.
    for turn in 1..4 {
        files.iter().for_each(|ino| fs.put(*ino, 65_536, &text(*ino, turn)[65_536..]));
        fs.sync().unwrap();
    }
    m.pool().gc_request(0).unwrap();
    let commit = || m.pool().commit_txg(m.pool().open_txg()).unwrap();
    while !m.pool().gc_progress().done {
        commit();
    }
    // Emptied zones are reset when no txg needs them that could be rolled back to.
    (0..6).for_each(|_| commit());
    let visible = |ino: &Ino| {
        let attr = fs.getattr(*ino).unwrap();
        (attr.mtime, attr.ctime, attr.size, attr.blocks)
    };
    // Stored form and checksum, at any address.
    let stored = |ino: &Ino| {
        let object = fs.dataset().object_set().hold(ObjectId(*ino)).unwrap();
        let form = |block| match object.stored_pointer(block).unwrap() {
            Some(BlockPtr::Normal(normal)) => (normal.compression, normal.psize, normal.checksum),
            other => panic!("{other:?}"),
        };
        (0..object.block_count()).map(form).collect::<Vec<_>>()
    };
    let before: Vec<_> = files.iter().map(|ino| (visible(ino), stored(ino))).collect();
    let runs = m.pool().stats().runs;
    assert!(runs > 0, "nothing moved");
    // The current compression property must not matter.
    fs.dataset().set("compression", "off").unwrap();
    while fs.rewrite_relocated().step(1).unwrap() == JobStep::Progressed {
        fs.sync().unwrap();
    }
    fs.sync().unwrap();
    let rewritten = m.pool().stats().rewritten_bytes;
    assert!(rewritten > 100_000, "{rewritten} bytes");
    let after: Vec<_> = files.iter().map(|ino| (visible(ino), stored(ino))).collect();
    assert!(before == after);
    m.pool().drop_cache();
    for ino in &files {
        let expected = [&text(*ino, 0)[..65_536], &text(*ino, 3)[65_536..]].concat();
        assert!(fs.bytes(*ino) == expected, "{ino}");
    }
}
