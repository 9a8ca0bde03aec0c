//! Names made to collide: they cost a fat ZAP no more than their own space.
//!
//! Pre-hashed keys put an entry at any position that a test needs. Names of equal length can do the same under any
//! salt.

use terrane_wire::{Corrupt, mix64};
use terrane_zap::{Error, Flags, MemStore, Store, Zap, ZapOptions};

struct Fat {
    zap: Zap,
    store: MemStore,
    /// Keys added so far, in order.
    keys: Vec<[u64; 2]>,
    refused: u64,
}

impl Fat {
    fn new(hash_bits: Flags) -> Fat {
        let flags = Flags::UINT64_KEY.union(Flags::PRE_HASHED_KEY).union(hash_bits);
        let mut store = MemStore::new();
        let zap = Zap::create(&mut store, ZapOptions { flags, ..ZapOptions::new(7) }).unwrap();
        Fat { zap, store, keys: Vec::new(), refused: 0 }
    }

    fn try_add(&mut self, hash: u64, value: &[u64]) -> Result<(), Error<Corrupt>> {
        let key = [hash, self.keys.len() as u64];
        let blocks = self.store.block_count();
        let outcome = self.zap.add(&mut self.store, &key[..], value);
        match outcome {
            Ok(()) => self.keys.push(key),
            Err(_) => {
                self.refused += 1;
                assert_eq!(self.store.block_count(), blocks, "refused at once");
            }
        }
        outcome
    }

    fn header(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.store.read(0).unwrap()[at..at + 8].try_into().unwrap())
    }

    fn table_pointers(&self) -> u64 {
        1 << self.header(32)
    }

    fn leaves(&self) -> u64 {
        self.header(64)
    }

    /// The bound that `split.rs` promises, and every entry is found.
    #[track_caller]
    fn check(&self) {
        assert!(self.table_pointers() <= (1 << 17).max(64 * self.leaves()));
        assert!(self.table_pointers() <= (1 << 17).max(4 * self.keys.len() as u64));
        let report = self.zap.check(&self.store).unwrap();
        assert!(report.is_clean(), "{:?}", report.damage);
        assert_eq!(report.entries, self.keys.len() as u64);
        for (place, key) in self.keys.iter().enumerate().step_by(97) {
            assert_eq!(self.zap.lookup_u64(&self.store, &key[..]), Ok(Some(place as u64)));
        }
    }
}

#[test]
fn two_hundred_thousand_with_and_without_colliders() {
    for hash_bits in [Flags::NONE, Flags::HASH64] {
        let mut fat = Fat::new(hash_bits);
        for n in 0..200_000u64 {
            fat.try_add(mix64(n + 1), &[n, 2, 3]).unwrap();
        }
        fat.check();
        assert!(fat.table_pointers() <= 16 * fat.leaves(), "{} leaves", fat.leaves());
        // 638 chunks, 4 per entry: entries that share the leaf with them are moved away, and 159 of one hash fit.
        let (pointers, before) = (fat.table_pointers(), fat.keys.len());
        while fat.try_add(0x1234_5678 << 32, &[fat.keys.len() as u64, 2, 3]).is_ok() {}
        assert_eq!(fat.keys.len() - before, 159);
        assert!(fat.table_pointers() <= 1 << 17 && pointers <= 1 << 17);
        for _ in 0..1000 {
            assert_eq!(fat.try_add(0x1234_5678 << 32, &[1, 2, 3]), Err(Error::Full));
        }
        fat.check();
    }
}

/// The keys agree in 26 bits and differ in the next two: no table of a ZAP with 28 bits separates them.
#[test]
fn names_that_nearly_collide_are_refused_without_a_table_for_them() {
    let mut fat = Fat::new(Flags::NONE);
    let near = |n: u64| 0x0abc_def0 << 36 | (n % 4) << 36;
    for n in 0..159 {
        fat.try_add(near(n), &[n, 2, 3]).unwrap();
    }
    let (blocks, pointers) = (fat.store.block_count(), fat.table_pointers());
    for n in 0..1000 {
        assert_eq!(fat.try_add(near(n), &[1, 2, 3]), Err(Error::Full));
    }
    assert_eq!((fat.store.block_count(), fat.table_pointers()), (blocks, pointers));
    // An update that makes an entry longer is refused as well.
    let key = fat.keys[9];
    assert_eq!(fat.zap.update(&mut fat.store, &key[..], &[9; 40]), Err(Error::Full));
    // A key that does not collide is accepted.
    for n in 159..2000 {
        fat.try_add(mix64(n), &[n, 2, 3]).unwrap();
    }
    fat.check();
}

/// The worst known case: sets of keys that just exceed a leaf, each separated only by one of its last bits.
#[test]
fn no_names_bring_a_table_that_they_do_not_justify() {
    for (shared_bits, groups) in [(16, 200), (21, 200), (25, 1250)] {
        let mut fat = Fat::new(Flags::NONE);
        for group in 0..groups {
            // Eleven bits of its own, then the shared bits; every 160th key differs in the last bit.
            let own = (group << 53 | mix64(group + 1) >> 11) & !(u64::MAX >> shared_bits);
            for n in 0..160u64 {
                let place = fat.keys.len() as u64;
                let outcome = fat.try_add(own | (n / 159) << (63 - shared_bits), &[place, 2, 3]);
                assert!(matches!(outcome, Ok(()) | Err(Error::Full)));
            }
        }
        assert!(fat.keys.len() as u64 >= groups * 159);
        assert!(shared_bits > 16 || fat.refused == 0, "{} refused", fat.refused);
        fat.check();
    }
}
