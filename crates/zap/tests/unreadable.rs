//! Fat ZAPs in a store that behaves like an object of a pool: blocks may be unreadable, and it ends with its last
//! block.

use crate::faulty_store::FaultyStore;
use terrane_wire::Corrupt;
use terrane_zap::{Cursor, Flags, Store, Zap, ZapOptions};

struct Fat {
    zap: Zap,
    store: FaultyStore,
}

impl Fat {
    fn new() -> Fat {
        let options = ZapOptions { fat_block_shift: 9, flags: Flags::HASH64, ..ZapOptions::new(0x0b5e) };
        let mut store = FaultyStore::new();
        Fat { zap: Zap::create(&mut store, options).unwrap(), store }
    }

    fn add(&mut self, i: u64) -> Result<(), terrane_zap::Error<Corrupt>> {
        self.zap.add(&mut self.store, &name(i), &[i])
    }

    fn header(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.store.inner.read(0).unwrap()[at..at + 8].try_into().unwrap())
    }

    /// The entries of the blocks, for a reader without any state in memory.
    #[track_caller]
    fn holds(&self, there: &[u64]) {
        let store = &self.store.inner;
        let zap = Zap::open(store).unwrap();
        let report = zap.check(store).unwrap();
        assert!(report.is_clean(), "{:?}", report.damage);
        let mut listed: Vec<u64> = zap
            .list(store, Cursor::START, usize::MAX)
            .unwrap()
            .iter()
            .filter_map(|e| e.value.first_integer())
            .collect();
        listed.sort_unstable();
        assert_eq!(listed, there);
    }
}

const TABLE_BLK: usize = 16;
const TABLE_NUMBLKS: usize = 24;
const TABLE_NEXTBLK: usize = 40;

fn name(i: u64) -> String {
    format!("name-{i:05}")
}

#[test]
fn a_table_of_any_size_comes_back() {
    for growing in [false, true] {
        let mut fat = Fat::new();
        let blocks_wanted = 512;
        let mut count = 0;
        while fat.header(TABLE_NUMBLKS) < blocks_wanted || growing != (fat.header(TABLE_NEXTBLK) != 0) {
            fat.add(count).unwrap();
            count += 1;
        }
        for i in 0..count {
            assert_eq!(fat.zap.remove(&mut fat.store, &name(i)), Ok(true), "{i} of {count}");
        }
        assert_eq!(fat.header(TABLE_BLK), 0);
        fat.holds(&[]);
    }
}

/// Whichever block cannot be read: a change that fails changed nothing, and one that succeeds is complete.
#[test]
fn a_change_that_meets_an_unreadable_block_is_made_or_not_made() {
    let mut fat = Fat::new();
    let (mut failures, mut there) = (0, Vec::new());
    for i in 0..1000 {
        let is_of_interest = |block: &u64| {
            let (table, blocks) = (fat.header(TABLE_BLK), fat.header(TABLE_NUMBLKS));
            let next = fat.header(TABLE_NEXTBLK);
            let in_table = (table..table + blocks).contains(block);
            in_table || next != 0 && (next..next + 2 * blocks).contains(block)
        };
        let growing = fat.header(TABLE_NEXTBLK) != 0;
        let all = (1..fat.store.block_count()).filter(is_of_interest);
        let blocks: Vec<u64> = all.filter(|block| (block + i) % if growing { 2 } else { 40 } == 0).collect();
        for block in blocks {
            let mut store = fat.store.clone();
            store.unreadable = Some(block);
            let mut hurt = Fat { zap: Zap::open(&store).unwrap(), store };
            let outcome = hurt.add(i);
            failures += u32::from(outcome.is_err());
            if outcome.is_ok() {
                there.push(i);
            }
            hurt.holds(&there);
            there.retain(|k| *k != i);
        }
        fat.add(i).unwrap();
        there.push(i);
    }
    assert!(failures > 20, "{failures}");
    while let Some(i) = there.first().copied() {
        for block in (1 + i % 67..fat.store.block_count()).step_by(67) {
            let mut store = fat.store.clone();
            store.unreadable = Some(block);
            let mut hurt = Fat { zap: Zap::open(&store).unwrap(), store };
            let left = match hurt.zap.remove(&mut hurt.store, &name(i)) {
                Ok(removed) => {
                    assert!(removed);
                    &there[1..]
                }
                Err(_) => &there[..],
            };
            hurt.holds(left);
        }
        fat.zap.remove(&mut fat.store, &name(i)).unwrap();
        there.remove(0);
    }
}

/// A transient error in the middle of an operation is reported. Every other name is still found by a reader without
/// any state in memory.
#[test]
fn one_refused_change_costs_no_other_name() {
    let mut fat = Fat::new();
    let count = 700;
    let mut refused = 0;
    let mut at_each_change = |fat: &mut Fat, i: u64, adds: bool, others: &[u64]| {
        for nth in 0.. {
            let mut store = fat.store.clone();
            store.refused_once = Some(nth);
            let mut hurt = Fat { zap: Zap::open(&store).unwrap(), store };
            let outcome = match adds {
                true => hurt.add(i).map(|()| true),
                false => hurt.zap.remove(&mut hurt.store, &name(i)),
            };
            if hurt.store.refused_once.is_some() {
                assert_eq!(outcome, Ok(true));
                break;
            }
            refused += 1;
            let zap = Zap::open(&hurt.store).unwrap_or_else(|error| panic!("{i}, change {nth}: {error}"));
            for other in others {
                let found = zap.lookup_u64(&hurt.store, &name(*other));
                assert_eq!(found, Ok(Some(*other)), "{i}, change {nth}, adds {adds}");
            }
            // Operations succeed again from there.
            hurt.zap = zap;
            hurt.add(count + i).unwrap_or_else(|error| panic!("{i}, change {nth}, adds {adds}: {error}"));
        }
    };
    let others: Vec<u64> = (0..count).collect();
    for i in 0..count {
        at_each_change(&mut fat, i, true, &others[..i as usize]);
        fat.add(i).unwrap();
    }
    assert!(fat.header(TABLE_NUMBLKS) > 0, "the canary: the table moved out");
    for i in 0..count {
        at_each_change(&mut fat, i, false, &others[i as usize + 1..]);
        assert_eq!(fat.zap.remove(&mut fat.store, &name(i)), Ok(true));
    }
    assert!(refused > 2 * count, "{refused}");
    fat.holds(&[]);
}

/// A damaged count must not lead to the loss of entries.
#[test]
fn a_zap_with_entries_is_not_empty_whatever_it_counts() {
    let options = ZapOptions { tiny: true, ..ZapOptions::new(0x0b5e) };
    let mut store = FaultyStore::new();
    let mut zap = Zap::create(&mut store, options).unwrap();
    zap.add(&mut store, "wide", &[1; 40]).unwrap();
    zap.add(&mut store, "goes", &[1]).unwrap();
    // The header counts one entry less than there are.
    store.inner.modify(0, &mut |raw| raw[72] -= 1).unwrap();
    zap.remove(&mut store, "goes").unwrap();
    assert_eq!(zap.is_empty(&store), Ok(false));
    zap.shrink(&mut store).unwrap();
    assert_eq!(zap.lookup_u64(&store, "wide"), Ok(Some(1)));
}
