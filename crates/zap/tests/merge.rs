//! What a fat ZAP frees when entries are removed: leaves, block numbers, its table.

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use terrane_zap::{Cursor, Entry, Flags, Kind, MemStore, Store, Zap, ZapOptions};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(path)
}

fn unpacked(path: &Path) -> Vec<u8> {
    let mut raw = Vec::new();
    GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut raw).unwrap();
    raw
}

/// A ZAP that is fat from the beginning.
struct Fat {
    zap: Zap,
    store: MemStore,
}

impl Fat {
    fn new(block_shift: u32, salt: u64) -> Fat {
        Self::with(block_shift, Flags::HASH64, salt)
    }

    fn with(fat_block_shift: u32, flags: Flags, salt: u64) -> Fat {
        let options = ZapOptions { fat_block_shift, flags, ..ZapOptions::new(salt) };
        let mut store = MemStore::new();
        Fat { zap: Zap::create(&mut store, options).unwrap(), store }
    }

    fn opened(image: &[u8], block_size: usize) -> Fat {
        let store = MemStore::from_image(image, block_size);
        Fat { zap: Zap::open(&store).unwrap(), store }
    }

    fn add(&mut self, i: u64) {
        self.zap.add(&mut self.store, &name(i), &[i, i * i, !i]).unwrap();
    }

    fn remove(&mut self, i: u64) {
        assert_eq!(self.zap.remove(&mut self.store, &name(i)), Ok(true), "{i}");
    }

    fn has(&self, i: u64) -> bool {
        self.zap.lookup_u64(&self.store, &name(i)) == Ok(Some(i))
    }

    fn entries(&self) -> Vec<Entry> {
        self.zap.list(&self.store, Cursor::START, usize::MAX).unwrap()
    }

    /// The header word at a byte offset.
    fn header(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.store.read(0).unwrap()[at..at + 8].try_into().unwrap())
    }

    #[track_caller]
    fn check(&self) {
        let report = self.zap.check(&self.store).unwrap();
        assert!(report.is_clean(), "{:?}", report.damage);
        assert_eq!(self.zap.kind(&self.store), Ok(Kind::Fat));
    }
}

const TABLE_BLK: usize = 16;
const TABLE_NUMBLKS: usize = 24;
const TABLE_NEXTBLK: usize = 40;
const FREEBLK: usize = 56;
const NUM_LEAFS: usize = 64;

fn name(i: u64) -> String {
    format!("fid-{i:07}")
}

/// A fixed sequence of numbers.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Our bytes equal the golden image; OpenZFS's image of the same entries can be changed further.
fn ours_and_theirs(id: &str, ours: &Fat) {
    let path = root("golden/zap").join(format!("{id}.bin.gz"));
    let image = ours.store.image();
    if std::env::var_os("TERRANE_WRITE_GOLDEN").is_some() {
        let mut packed = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::best());
        packed.write_all(&image).unwrap();
        packed.finish().unwrap();
    }
    assert!(image == unpacked(&path), "{id} is not what it was");
    ours.check();
    let their_image = unpacked(&root("vectors/zap").join(format!("{id}.bin.gz")));
    let mut theirs = Fat::opened(&their_image, 16384);
    assert_eq!(theirs.entries(), ours.entries(), "{id}");
    assert!(theirs.header(NUM_LEAFS) >= ours.header(NUM_LEAFS));
    let there: Vec<u64> = (0..3000).filter(|i| theirs.has(*i)).collect();
    assert_eq!(there.len(), ours.entries().len());
    (3000..4000).for_each(|i| theirs.add(i));
    theirs.check();
    there.into_iter().chain(3000..4000).for_each(|i| theirs.remove(i));
    theirs.check();
    assert!(theirs.entries().is_empty());
}

#[test]
fn what_is_left_of_three_thousand_names_takes_one_leaf() {
    let image = unpacked(&root("vectors/zap/fat_3000_u64x3.bin.gz"));
    let mut fat = Fat::opened(&image, 16384);
    assert_eq!((fat.header(NUM_LEAFS), fat.header(FREEBLK)), (32, 33));
    (0..3000).filter(|i| i % 300 != 7).for_each(|i| fat.remove(i));
    assert_eq!((fat.header(NUM_LEAFS), fat.header(FREEBLK)), (1, 2), "the reference keeps 21 leaves");
    ours_and_theirs("fat_3000_shrunk", &fat);
    (0..3000).filter(|i| i % 300 == 7).for_each(|i| fat.remove(i));
    assert_eq!(fat.store.blocks_used(), 2);
    ours_and_theirs("fat_0_emptied", &fat);
}

#[test]
fn one_entry_over_the_line_does_not_make_leaves_flap() {
    for order in [1u64, 2, 3] {
        let mut fat = Fat::new(12, 0xfeed ^ order);
        let leaves = |fat: &Fat| fat.header(NUM_LEAFS);
        let mut count = 0;
        // At each step of growing and shrinking, its entry is removed and added five times.
        let there_and_back = |fat: &mut Fat, i: u64| {
            let (mut before, mut changes) = (leaves(fat), 0);
            for _ in 0..5 {
                fat.remove(i);
                changes += u32::from(leaves(fat) != before);
                before = leaves(fat);
                fat.add(i);
                changes += u32::from(leaves(fat) != before);
                before = leaves(fat);
            }
            // Its removal may trigger a due merge; then its addition finds the leaves unchanged.
            assert!(changes <= 1, "{changes} changes of the leaves by one entry");
        };
        while leaves(&fat) < 6 {
            fat.add(count);
            there_and_back(&mut fat, count);
            count += 1;
        }
        for i in 0..count - 1 {
            fat.remove(i);
            there_and_back(&mut fat, count - 1);
        }
        assert_eq!(leaves(&fat), 1);
        fat.check();
    }
}

/// Grows and shrinks repeatedly; returns the largest `freeblk`, and the blocks in use at the largest size.
fn cycles(fat: &mut Fat, count: u32, (adds, removes): (u64, u64)) -> (Vec<u64>, u64) {
    let mut there: Vec<u64> = Vec::new();
    let (mut next, mut sequence) = (0, Sequence(7));
    let (mut freeblks, mut used_max) = (Vec::new(), 0);
    for _ in 0..count {
        for _ in 0..adds {
            fat.add(next);
            there.push(next);
            next += 1;
        }
        freeblks.push(fat.header(FREEBLK));
        used_max = used_max.max(fat.store.blocks_used() as u64);
        for _ in 0..removes.min(there.len() as u64) {
            let gone = there.swap_remove(sequence.below(there.len()));
            fat.remove(gone);
        }
        fat.check();
        let listed: BTreeSet<u64> = fat.entries().iter().map(|e| e.value.first_integer().unwrap()).collect();
        assert!(listed.into_iter().eq(there.iter().copied().collect::<BTreeSet<_>>()));
    }
    (freeblks, used_max)
}

#[test]
fn block_numbers_stay_bounded_when_a_zap_grows_and_shrinks_for_ever() {
    let (freeblks, used_max) = cycles(&mut Fat::new(14, 0x5eed), 50, (3000, 2900));
    assert!(freeblks.iter().all(|f| *f <= 2 * used_max + 20), "{used_max} used, {freeblks:?}");
    // Small blocks: the table is external, and grows and shrinks with the leaves.
    for shift in [9, 10] {
        let (freeblks, used_max) = cycles(&mut Fat::new(shift, 0x5eed), 30, (2000, 2000));
        assert!(freeblks.iter().all(|f| *f <= 2 * used_max + 20), "{used_max} used, {freeblks:?}");
        let (freeblks, used_max) = cycles(&mut Fat::new(shift, 0x5eed), 30, (2000, 1950));
        assert!(freeblks.iter().all(|f| *f <= 2 * used_max + 20), "{used_max} used, {freeblks:?}");
    }
}

#[test]
fn names_present_throughout_are_listed_once_while_leaves_merge() {
    let mut fat = Fat::new(10, 0xcafe);
    (0..2000).for_each(|i| fat.add(i));
    let leaves = fat.header(NUM_LEAFS);
    let stays = |i: &u64| i % 40 == 3;
    let mut going = (0..2000).filter(|i| !stays(i));
    let (mut seen, mut from) = (Vec::new(), Cursor::START);
    while let Some((entry, after)) = fat.zap.next(&fat.store, from).unwrap() {
        seen.push(entry.value.first_integer().unwrap());
        from = after;
        for i in going.by_ref().take(30) {
            fat.zap.remove(&mut fat.store, &name(i)).unwrap();
        }
    }
    seen.retain(stays);
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..2000).filter(stays)));
    let leaves_after = fat.header(NUM_LEAFS);
    assert!(leaves_after * 4 < leaves, "{leaves} leaves became {leaves_after}");
}

#[test]
fn the_table_comes_back_into_block_0() {
    let (mut fat, mut doubling) = (Fat::new(10, 0x7ab1e), false);
    for round in 0..2 {
        let mut count = 0;
        // Once at rest, once during a doubling.
        while fat.header(TABLE_NUMBLKS) < 8 || (round == 1) != (fat.header(TABLE_NEXTBLK) != 0) {
            fat.add(count);
            count += 1;
        }
        doubling |= fat.header(TABLE_NEXTBLK) != 0;
        (20..count).for_each(|i| fat.remove(i));
        assert_eq!(fat.header(TABLE_BLK), 0);
        assert_eq!((fat.header(TABLE_NUMBLKS), fat.header(TABLE_NEXTBLK)), (0, 0));
        assert_eq!(fat.store.blocks_used() as u64, 1 + fat.header(NUM_LEAFS), "no block of a table is left");
        fat.check();
        (0..20).for_each(|i| fat.remove(i));
        assert_eq!((fat.store.blocks_used(), fat.header(FREEBLK)), (2, 2));
    }
    assert!(doubling);
}

/// OpenZFS forgets the table being filled when it lowers `freeblk`. It gives the table's blocks to leaves, and loses
/// the table when it is complete. Pre-hashed keys put a name at any position that a test needs.
#[test]
fn a_table_being_filled_is_not_overwritten_after_a_shrink() {
    let flags = Flags::HASH64.union(Flags::UINT64_KEY).union(Flags::PRE_HASHED_KEY);
    for seed in [1, 2, 3] {
        let mut fat = Fat::with(9, flags, 0xfeed_5eed);
        // Twelve keys that agree in four bits, in leaves with five or six: the table does not move back into block 0.
        let mut sequence = Sequence(seed);
        let far: Vec<u64> = (0..5000).map(|_| (sequence.below(1 << 31) as u64) << 33).collect();
        let key = |i: u64| if i <= 12 { i << 56 } else { far[i as usize] | i };
        let add = |fat: &mut Fat, i: u64| fat.zap.add(&mut fat.store, &[key(i)][..], &[i]).unwrap();
        (1..=12).for_each(|i| add(&mut fat, i));
        let mut last = 12;
        // Until a leaf is allocated after a table of at least 8 blocks that is being filled.
        let next_end = loop {
            last += 1;
            let before = fat.header(FREEBLK);
            add(&mut fat, last);
            let (nextblk, numblks) = (fat.header(TABLE_NEXTBLK), fat.header(TABLE_NUMBLKS));
            let now = fat.header(FREEBLK);
            if nextblk != 0 && numblks >= 4 && now != before && now > nextblk + 2 * numblks {
                break nextblk + 2 * numblks;
            }
        };
        for i in 13..=last {
            assert_eq!(fat.zap.remove(&mut fat.store, &[key(i)][..]), Ok(true));
        }
        assert_ne!(fat.header(TABLE_NEXTBLK), 0, "removals do not go on with a doubling");
        assert_eq!(fat.header(FREEBLK), next_end, "the next table's blocks are in use");
        fat.check();
        (13..=last).for_each(|i| add(&mut fat, i));
        for i in 1..=last {
            assert_eq!(fat.zap.lookup_u64(&fat.store, &[key(i)][..]), Ok(Some(i)));
        }
        fat.check();
    }
}

/// A removal needs nothing of the neighbouring leaf.
#[test]
fn a_damaged_neighbour_is_left_alone() {
    let mut fat = Fat::new(9, 0xdead);
    let mut count = 0;
    while fat.header(NUM_LEAFS) < 2 {
        fat.add(count);
        count += 1;
    }
    // The second leaf counts an entry too many: only a split or a merge would notice.
    let count_at = 512 * 2 + 30;
    let mut image = fat.store.image();
    image[count_at] += 1;
    let mut fat = Fat::opened(&image, 512);
    let beside = image[1024..1536].to_vec();
    let mine: Vec<u64> = (0..count)
        .filter(|i| {
            let key = name(*i);
            fat.entries().iter().any(|e| e.key.name() == Some(key.as_bytes()) && e.hash >> 63 == 0)
        })
        .collect();
    assert!(!mine.is_empty() && mine.len() < count as usize);
    mine.iter().for_each(|i| fat.remove(*i));
    assert_eq!(fat.header(NUM_LEAFS), 2);
    assert_eq!(fat.store.image()[1024..1536], beside, "not merged, and not changed");
    assert_eq!(fat.zap.check(&fat.store).unwrap().damage_count, 1);
}
