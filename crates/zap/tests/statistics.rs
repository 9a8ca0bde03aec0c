//! Statistics of ZAPs: what is counted is what the check finds, and damage never panics.

use terrane_wire::Prng;
use terrane_zap::{Contents, FatStatistics, MemStore, NormFlags, Statistics, Store, Zap, ZapOptions};

fn filled(names: u64, change: impl FnOnce(&mut ZapOptions)) -> (Zap, MemStore) {
    let mut options =
        ZapOptions { tiny: true, fat_block_shift: 12, micro_max_bytes: 4096, ..ZapOptions::new(0x5eed) };
    change(&mut options);
    let mut store = MemStore::new();
    let mut zap = Zap::open_with(&store, options).unwrap();
    (0..names).for_each(|i| zap.add(&mut store, format!("name {i}").as_str(), &[i]).unwrap());
    (zap, store)
}

fn fat(statistics: &Statistics) -> &FatStatistics {
    match &statistics.layout {
        Contents::Fat(fat) => fat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_object_without_blocks_is_nothing() {
    let (zap, store) = filled(0, |_| {});
    let found = zap.statistics(&store).unwrap();
    assert_eq!((found.blocks, found.salt, found.layout), (0, 0, Contents::Nothing));
}

#[test]
fn slots_are_counted() {
    let (mut zap, mut store) = filled(10, |o| o.norm = NormFlags::NFC);
    zap.remove(&mut store, "name 3").unwrap();
    let found = zap.statistics(&store).unwrap();
    assert_eq!((found.block_bytes, found.blocks, found.salt), (1024, 1, 0x5eed));
    assert_eq!(found.norm, NormFlags::NFC);
    let Contents::Slots(slots) = found.layout else { panic!("{:?}", found.layout) };
    assert_eq!((slots.slot_bytes, slots.value_ints, slots.slots, slots.used), (64, 1, 15, 9));
    assert_eq!((slots.name_bytes, slots.name_bytes_max, slots.damage.count), (6, 49, 0));
}

#[test]
fn leaves_are_counted() {
    let (zap, store) = filled(5000, |o| o.fat_block_shift = 10);
    let statistics = zap.statistics(&store).unwrap();
    let (found, report) = (fat(&statistics), zap.check(&store).unwrap());
    assert_eq!((found.leaves, found.entries), (report.leaves, report.entries));
    assert_eq!((found.header_leaves, found.header_entries), (report.leaves, 5000));
    assert_eq!(found.damage.count, 0, "{:?}", found.damage.first);
    for (what, histogram) in [("depth", &found.depth), ("pointers", &found.pointers), ("fill", &found.fill)] {
        assert_eq!(histogram.values().sum::<u64>(), found.leaves, "{what}");
    }
    assert_eq!(found.leaf_entries.values().sum::<u64>(), found.leaves);
    // The pointers to all leaves are the table.
    let pointers: u64 = found.pointers.iter().map(|(log, leaves)| leaves << log).sum();
    assert_eq!(pointers, 1 << found.table_shift);
    let depth_and_pointers = found.depth.keys().zip(found.pointers.keys().rev());
    assert!(depth_and_pointers.clone().all(|(depth, log)| depth + log == u64::from(found.table_shift)));
    // Each entry has a chunk of its own, one for its name and one for its value.
    assert_eq!(found.entry_chunks.iter().collect::<Vec<_>>(), [(&3, &5000)]);
    assert_eq!(found.chunks - found.chunks_free, 3 * 5000);
    let in_chains: u64 = found.chains.iter().map(|(length, buckets)| length * buckets).sum();
    assert_eq!(in_chains, 5000);
    assert_eq!(found.chains.values().sum::<u64>(), found.leaves * 32);
    assert!(found.table_blocks > 0 && found.table_block > 0, "{found:?}");
    assert_eq!(statistics.blocks, store.block_count());
}

/// The table is copied in steps; statistics taken in between say so.
#[test]
fn a_table_that_grows_is_seen() {
    let (mut zap, mut store) = filled(0, |o| o.fat_block_shift = 9);
    let mut seen = 0;
    for i in 0..20_000u64 {
        zap.add(&mut store, format!("name {i}").as_str(), &[i]).unwrap();
        if i > 16_000 && i % 16 == 0 {
            let statistics = zap.statistics(&store).unwrap();
            let found = fat(&statistics);
            assert_eq!((found.damage.count, found.entries), (0, i + 1));
            seen += u64::from(found.next_table_block != 0);
            assert!(found.table_blocks_copied <= found.table_blocks);
        }
    }
    assert!(seen > 0, "or it says little");
}

/// Every bit may be wrong: there is an answer or an error, soon.
#[test]
fn damaged_zaps_are_looked_at_without_panic() {
    let mut random = Prng::new(17);
    for (names, shift) in [(5, 12), (300, 9), (2000, 12)] {
        let (_, store) = filled(names, |o| o.fat_block_shift = shift);
        let image = store.image();
        for _ in 0..400 {
            let mut damaged = image.clone();
            for _ in 0..=random.below(4) {
                // Half of them in block 0.
                let range = if random.below(2) == 0 { store.block_size().min(512) } else { damaged.len() };
                let at = usize::try_from(random.below(range as u64)).unwrap();
                damaged[at] = random.next_u64() as u8;
            }
            let store = MemStore::from_image(&damaged, store.block_size());
            if let Ok(zap) = Zap::open(&store) {
                let _ = zap.statistics(&store);
            }
        }
        // Leaves that are no leaves are counted.
        if names > 5 {
            let mut damaged = image.clone();
            let from = damaged.len() - store.block_size();
            damaged[from..].fill(0xa5);
            let store = MemStore::from_image(&damaged, store.block_size());
            let statistics = Zap::open(&store).unwrap().statistics(&store).unwrap();
            assert_eq!(fat(&statistics).damage.count, 1, "{:?}", fat(&statistics).damage);
        }
    }
}
