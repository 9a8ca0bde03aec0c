//! Many names that collide. The format's limits hold, all that it allows works, and names that no leaf can hold are
//! refused at once, without growing a table for them.
//!
//! The hash is affine, so a user who can choose names can choose their hashes, under every salt ([`colliders`]).

use crate::colliders::colliders;
use crate::faulty_store::FaultyStore;
use terrane_zap::{Cursor, Error, Kind, Store, Zap, ZapOptions};

fn zap_of(micro_max_bytes: usize) -> (FaultyStore, Zap) {
    let mut store = FaultyStore::new();
    let options = ZapOptions { tiny: true, micro_max_bytes, ..ZapOptions::new(0x5eed) };
    let zap = Zap::create(&mut store, options).unwrap();
    (store, zap)
}

fn check_all(store: &FaultyStore, zap: &Zap, entries: u64) {
    let report = zap.check(store).unwrap();
    assert!(report.is_clean(), "{:?}", report.damage);
    assert_eq!((report.entries, zap.len(store)), (entries, Ok(entries)));
    let (mut listed, mut from) = (0, Cursor::START);
    loop {
        let batch = zap.list(store, from, 1000).unwrap();
        let Some(last) = batch.last() else { break };
        (listed, from) = (listed + batch.len() as u64, last.cursor_after());
    }
    assert_eq!(listed, entries);
}

/// Header words of a fat ZAP: the table shift, and the count of leaves.
fn table(store: &FaultyStore) -> (u64, u64) {
    let block_0 = store.inner.read(0).unwrap();
    let word = |at: usize| u64::from_le_bytes(block_0[at..at + 8].try_into().unwrap());
    (1 << word(32), word(64))
}

/// The number of pointers that the leaves justify, by FORMAT.md.
fn pointers_max(store: &FaultyStore) -> u64 {
    (64 * table(store).1).max(1 << 17)
}

/// The collision limit of the format: 127 names of one hash, whatever the shape of slots and the way the name is
/// stored.
#[test]
fn slots_hold_127_names_of_one_hash_and_no_more() {
    let names: Vec<_> = colliders(28, 10).take(300).collect();
    // Wider slots have a lower limit: all their entries must fit one leaf's 638 chunks, even if every name had the
    // maximum length.
    for (value, held_max) in [(&[7][..], 128), (&[7; 2], 128), (&[7; 3], 128), (&[7; 8], 80), (&[7; 20], 46)]
    {
        for by_update in [false, true] {
            let (mut store, mut zap) = zap_of(1 << 20);
            let store_one = |zap: &mut Zap, store: &mut FaultyStore, name: &Vec<u8>| match by_update {
                true => zap.update(store, name, value).map(drop),
                false => zap.add(store, name, value),
            };
            let mut held = 0;
            for name in &names {
                store_one(&mut zap, &mut store, name).unwrap();
                held += 1;
                if zap.kind(&store) == Ok(Kind::Fat) {
                    break;
                }
            }
            assert_eq!(held, held_max, "{} integers: the last one made it fat", value.len());
            assert!(names[..held].iter().all(|name| zap.lookup_u64(&store, name) == Ok(Some(7))));
            check_all(&store, &zap, held as u64);
            assert_eq!(store.block_count(), 2, "they fit one leaf: none is lost, none needs a table");
        }
    }
}

/// A thousand names of one hash and a thousand of another. From the first one that does not fit, each is refused at
/// the cost of a lookup.
#[test]
fn a_flood_is_refused_at_once_and_harms_no_other_name() {
    let (mut store, mut zap) = zap_of(131_072);
    for i in 0..5000u64 {
        zap.add(&mut store, &format!("file-{i}"), &[i]).unwrap();
    }
    for first in [b'a', b'b'] {
        let (mut taken, mut refused) = (0, 0u64);
        for name in colliders(28, 12).take(1000).map(|name| [&[first], &name[..]].concat()) {
            let (outcome, cost) = store.cost(|store| zap.add(store, &name, &[1]));
            match outcome {
                Ok(()) => taken += 1,
                Err(error) => {
                    assert_eq!(error, Error::Full);
                    refused += 1;
                    assert!(cost <= 6, "{cost} blocks for a refusal");
                    assert_eq!(zap.lookup(&store, &name), Ok(None));
                }
            }
            assert!(cost <= 4000, "{cost} blocks for one name");
        }
        // 638 chunks per leaf, 3 per entry.
        assert!((200..=212).contains(&taken), "{taken} of one hash in a leaf");
        assert_eq!(refused, 1000 - taken);
    }
    assert!(table(&store).0 <= pointers_max(&store), "{} pointers", table(&store).0);
    for i in 0..5000u64 {
        assert_eq!(zap.lookup_u64(&store, &format!("file-{i}")), Ok(Some(i)));
        zap.add(&mut store, &format!("more-{i}"), &[i]).unwrap();
    }
}

/// The largest block of slots, full: with ordinary names, and with 129 hashes of 127 names each.
#[test]
fn a_block_of_1_mib_holds_16_383_names() {
    let plain = (0..16_383u64).map(|i| format!("file-{i:05}").into_bytes()).collect::<Vec<_>>();
    let flood: Vec<_> = colliders(28, 9).take(127).collect();
    let floods: Vec<_> = (0..129)
        .flat_map(|group| flood.iter().map(move |name| [format!("{group:03}").as_bytes(), name].concat()))
        .collect();
    for (names, value) in
        [(&plain, &[1u64, 2, 3][..]), (&plain, &[1]), (&floods, &[1]), (&floods, &[1, 2, 3])]
    {
        let (mut store, mut zap) = zap_of(1 << 20);
        for (at, name) in names.iter().enumerate() {
            let (outcome, cost) = store.cost(|store| zap.add(store, name, value));
            outcome.unwrap();
            assert!(cost <= 8, "{cost} blocks for name {at}");
        }
        assert_ne!(zap.kind(&store), Ok(Kind::Fat));
        assert_eq!((store.block_count(), store.block_size()), (1, 1 << 20));
        check_all(&store, &zap, 16_383);
        for name in names {
            assert_eq!(zap.lookup_u64(&store, name), Ok(Some(1)));
        }
        zap.add(&mut store, "one more", value).unwrap();
        assert_eq!(zap.kind(&store), Ok(Kind::Fat));
        check_all(&store, &zap, 16_384);
        for name in names {
            assert_eq!(zap.remove(&mut store, name), Ok(true));
        }
        check_all(&store, &zap, 1);
    }
}

#[test]
fn two_hundred_thousand_names_with_colliders_come_and_go() {
    let flood: Vec<_> = colliders(28, 9).take(100).collect();
    let (mut store, mut zap) = zap_of(131_072);
    let name = |i: usize| [format!("{:04}", i / 100).as_bytes(), &flood[i % 100]].concat();
    for i in 0..200_000 {
        zap.add(&mut store, &name(i), &[i as u64]).unwrap();
    }
    check_all(&store, &zap, 200_000);
    assert!(table(&store).0 <= pointers_max(&store), "{} pointers", table(&store).0);
    for i in 0..200_000 {
        assert_eq!(zap.lookup_u64(&store, &name(i)), Ok(Some(i as u64)));
    }
    for i in 0..200_000 {
        assert_eq!(zap.remove(&mut store, &name(i)), Ok(true));
    }
    check_all(&store, &zap, 0);
}

/// All names of one hash: as many as a leaf holds, then refusals, and never more than two blocks.
#[test]
fn two_hundred_thousand_names_of_one_hash_are_refused_without_a_table() {
    let (mut store, mut zap) = zap_of(131_072);
    let mut taken = 0;
    for name in colliders(28, 12).take(200_000) {
        let (outcome, cost) = store.cost(|store| zap.add(store, &name, &[1]));
        match outcome {
            Ok(()) => taken += 1,
            Err(error) => assert!(error == Error::Full && cost <= 6, "{error}, {cost} blocks"),
        }
    }
    assert!((200..=212).contains(&taken), "{taken} of one hash in a leaf");
    assert_eq!(store.block_count(), 2);
    check_all(&store, &zap, taken);
}

/// Names that agree in so many bits that only a much too large table could separate them.
#[test]
fn names_that_nearly_collide_do_not_buy_a_table() {
    for bits in [27, 26, 25, 24, 20, 16, 10] {
        let (mut store, mut zap) = zap_of(131_072);
        let (mut taken, mut refused) = (0u64, 0u64);
        for name in colliders(bits, 11).take(5000) {
            match zap.add(&mut store, &name, &[1]) {
                Ok(()) => taken += 1,
                Err(error) => {
                    assert_eq!(error, Error::Full);
                    refused += 1;
                }
            }
        }
        assert!(taken >= 200, "{taken} that agree in {bits} bits");
        assert!(table(&store).0 <= pointers_max(&store), "{bits} bits: {} pointers", table(&store).0);
        // Separated by the bits that any table has, or refused.
        assert!(bits > 10 || refused == 0, "{refused} refused that agree in {bits} bits");
        check_all(&store, &zap, taken);
    }
}

/// The largest crowd of a block of slots: no 128 names agree in 17 bits, but all of them agree in nine. Their index
/// becomes a tree, and an array again when few are left.
#[test]
fn sixteen_thousand_neighbours_are_found_listed_and_removed() {
    let names: Vec<_> = colliders(9, 14).take(1 << 20).step_by(64).take(16_000).collect();
    let (mut store, mut zap) = zap_of(1 << 20);
    for (number, name) in (0..).zip(&names) {
        zap.add(&mut store, name, &[number]).unwrap();
    }
    assert_eq!(zap.kind(&store), Ok(Kind::Micro));
    check_all(&store, &zap, 16_000);
    // The array that a crowd leaves takes at most 12 bytes an entry.
    assert!(zap.index_bytes() > 16_000 * 16, "{} bytes", zap.index_bytes());
    // Built in one go, and used by another ZAP in memory.
    let mut zap =
        Zap::open_with(&store, ZapOptions { micro_max_bytes: 1 << 20, ..ZapOptions::new(1) }).unwrap();
    assert_eq!(zap.add(&mut store, &names[0], &[0]), Err(Error::Exists));
    assert!(zap.index_bytes() > 16_000 * 16, "{} bytes", zap.index_bytes());
    for (number, name) in (0..).zip(&names) {
        assert_eq!(zap.lookup_u64(&store, name), Ok(Some(number)));
    }
    for name in names.iter().skip(100) {
        assert_eq!(zap.remove(&mut store, name), Ok(true));
        assert_eq!(zap.remove(&mut store, name), Ok(false));
    }
    check_all(&store, &zap, 100);
    assert!(zap.index_bytes() <= 100 * 30, "{} bytes", zap.index_bytes());
}
