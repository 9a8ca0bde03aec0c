//! ZAPs compared with a map.
//!
//! Blocks are small here, so a few hundred operations go through every conversion, split, table doubling and merge.
//! After each step all invariants are checked.

use crate::faulty_store::FaultyStore;
use proptest::prelude::*;
use std::collections::{BTreeMap, btree_map::Entry};
use terrane_wire::Corrupt;
use terrane_zap::{Cursor, Error, Flags, Kind, MemStore, Store, ValueRef, Zap, ZapOptions};

#[derive(Clone, Debug)]
enum Op {
    Add(u16, u64),
    AddWide(u16, u8, Vec<u64>),
    Update(u16, u64),
    UpdateWide(u16, u8, Vec<u64>),
    Remove(u16),
    /// Removes all remaining names, so that leaves merge.
    RemoveAll,
    Lookup(u16),
    List(u64, usize),
    Forget,
    Listed,
    AddMany(u16, u16),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let name = || 0u16..200;
    let wide = || (name(), 0u8..4, prop::collection::vec(any::<u64>(), 0..12));
    let op = prop_oneof![
        12 => (name(), any::<u64>()).prop_map(|(n, v)| Op::Add(n, v)),
        1 => wide().prop_map(|(n, s, v)| Op::AddWide(n, s, v)),
        4 => (name(), any::<u64>()).prop_map(|(n, v)| Op::Update(n, v)),
        1 => wide().prop_map(|(n, s, v)| Op::UpdateWide(n, s, v)),
        8 => name().prop_map(Op::Remove),
        1 => Just(Op::RemoveAll),
        4 => name().prop_map(Op::Lookup),
        2 => (any::<u64>(), 0usize..20).prop_map(|(c, m)| Op::List(c, m)),
        1 => Just(Op::Forget),
        1 => Just(Op::Listed),
        2 => (name(), 1u16..60).prop_map(|(n, c)| Op::AddMany(n, c)),
    ];
    prop::collection::vec(op, 1..60)
}

/// Mostly short names; some too long for a micro ZAP.
fn name(n: u16) -> Vec<u8> {
    let mut name = format!("name{n}").into_bytes();
    if n % 37 == 36 {
        name.resize(60 + usize::from(n) % 190, b'x');
    }
    name
}

fn narrow(size: u8, ints: &[u64]) -> (u8, Vec<u64>) {
    let size = 1 << size;
    (size, ints.iter().map(|i| if size == 8 { *i } else { i & ((1 << (8 * u32::from(size))) - 1) }).collect())
}

/// Calls `use_it` with integers of this width.
fn with_ints<T>(size: u8, ints: &[u64], use_it: impl FnOnce(ValueRef<'_>) -> T) -> T {
    match size {
        1 => use_it(ValueRef::U8s(&ints.iter().map(|i| *i as u8).collect::<Vec<_>>())),
        2 => use_it(ValueRef::U16s(&ints.iter().map(|i| *i as u16).collect::<Vec<_>>())),
        4 => use_it(ValueRef::U32s(&ints.iter().map(|i| *i as u32).collect::<Vec<_>>())),
        _ => use_it(ValueRef::U64s(ints)),
    }
}

type Model = BTreeMap<Vec<u8>, (u8, Vec<u64>)>;

fn listed(zap: &Zap, store: &MemStore, batch: usize) -> Model {
    let (mut model, mut from) = (Model::new(), Cursor::START);
    loop {
        let entries = zap.list(store, from, batch).unwrap();
        for entry in &entries {
            assert!(Cursor { hash: entry.hash, cd: entry.cd } >= from);
            from =
                Cursor::from_u64_with(entry.cursor_after().to_u64_with(bits(zap, store)), bits(zap, store));
            let value = (entry.value.int_size(), entry.value.ints());
            let twice = model.insert(entry.key.name().unwrap().to_vec(), value);
            assert_eq!(twice, None, "a name is listed once");
        }
        if entries.len() < batch {
            return model;
        }
    }
}

fn bits(zap: &Zap, store: &MemStore) -> terrane_zap::HashBits {
    zap.hash_bits(store).unwrap()
}

fn check_all(zap: &Zap, store: &MemStore, model: &Model) -> Result<(), TestCaseError> {
    let report = zap.check(store).unwrap();
    prop_assert!(report.is_clean(), "{:?}", report.damage);
    prop_assert_eq!(report.entries, model.len() as u64);
    prop_assert_eq!(zap.len(store), Ok(model.len() as u64));
    Ok(())
}

fn run(options: ZapOptions, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let (mut store, mut model) = (MemStore::new(), Model::new());
    let mut zap = Zap::open_with(&store, options).unwrap();
    for op in ops {
        match op {
            Op::Add(n, v) => add(&mut zap, &mut store, &mut model, n, v)?,
            Op::AddMany(n, count) => {
                for n in n..n + count {
                    add(&mut zap, &mut store, &mut model, n, 7)?;
                }
            }
            Op::AddWide(n, size, ints) => {
                let (size, ints) = narrow(size, &ints);
                let outcome = with_ints(size, &ints, |v| zap.add_ints(&mut store, &name(n), v));
                added(&mut model, n, (size, ints), &outcome)?;
            }
            Op::Update(n, v) => {
                let outcome = zap.update(&mut store, &name(n), &[v]);
                if !refused(&outcome)? {
                    prop_assert_eq!(outcome, Ok(model.insert(name(n), (8, vec![v])).is_none()));
                }
            }
            Op::UpdateWide(n, size, ints) => {
                let (size, ints) = narrow(size, &ints);
                let outcome = with_ints(size, &ints, |v| zap.update_ints(&mut store, &name(n), v));
                if !refused(&outcome)? {
                    prop_assert_eq!(outcome, Ok(model.insert(name(n), (size, ints)).is_none()));
                }
            }
            Op::Remove(n) => {
                prop_assert_eq!(zap.remove(&mut store, &name(n)), Ok(model.remove(&name(n)).is_some()));
            }
            Op::RemoveAll => {
                for name in std::mem::take(&mut model).keys() {
                    prop_assert_eq!(zap.remove(&mut store, name), Ok(true));
                }
            }
            Op::Lookup(n) => {
                let found = zap.lookup(&store, &name(n)).unwrap().map(|v| (v.int_size(), v.ints()));
                prop_assert_eq!(found.as_ref(), model.get(&name(n)));
            }
            Op::List(cursor, max) => {
                let from = Cursor::from_u64(cursor);
                let some = zap.list(&store, from, max).unwrap();
                let places: Vec<_> = some.iter().map(|e| (e.hash, e.cd)).collect();
                prop_assert!(places.is_sorted() && places.iter().all(|p| *p >= (from.hash, from.cd)));
                let first = zap.next(&store, from).unwrap().map(|(entry, _)| entry);
                if max > 0 {
                    prop_assert_eq!(first.as_ref(), some.first());
                }
                let mut seen = Vec::new();
                let is_last = zap.visit(&store, from, &mut |entry| {
                    seen.push((format!("{:?}", entry.key), entry.first_integer, entry.after));
                    seen.len() < max
                });
                prop_assert!(is_last == Ok(true) || seen.len() == max.max(1));
                let of = |e: &terrane_zap::Entry| {
                    (format!("{:?}", e.key.as_ref()), e.value.first_integer(), e.cursor_after())
                };
                let listed = zap.list(&store, from, max.max(1)).unwrap();
                prop_assert_eq!(seen, listed.iter().map(of).collect::<Vec<_>>());
            }
            Op::Forget => zap.drop_state(),
            Op::Listed => zap.end_listing(),
        }
        check_all(&zap, &store, &model)?;
    }
    prop_assert_eq!(&listed(&zap, &store, 7), &model);
    let opened = Zap::open(&MemStore::from_image(&store.image(), store.block_size())).unwrap();
    prop_assert_eq!(&listed(&opened, &store, 1000), &model);
    Ok(())
}

fn add(zap: &mut Zap, store: &mut MemStore, model: &mut Model, n: u16, v: u64) -> Result<(), TestCaseError> {
    let outcome = zap.add(store, &name(n), &[v]);
    added(model, n, (8, vec![v]), &outcome)
}

fn added(
    model: &mut Model,
    n: u16,
    value: (u8, Vec<u64>),
    outcome: &Result<(), Error<Corrupt>>,
) -> Result<(), TestCaseError> {
    match model.entry(name(n)) {
        Entry::Occupied(_) => prop_assert_eq!(outcome, &Err(Error::Exists)),
        Entry::Vacant(place) => {
            if !refused(outcome)? {
                place.insert(value);
            }
        }
    }
    Ok(())
}

/// Small leaves refuse long entries; nothing else may be refused.
fn refused<T: std::fmt::Debug>(outcome: &Result<T, Error<Corrupt>>) -> Result<bool, TestCaseError> {
    match outcome {
        Ok(_) => Ok(false),
        Err(Error::EntryTooLarge { .. }) => Ok(true),
        Err(other) => Err(TestCaseError::fail(format!("{other}"))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_zap_is_a_map(ops in ops(),
        salt in 1u64..,
        micro_slots in 0usize..4, shift in 9u32..12, hash64 in any::<bool>()) {
        let mut options = ZapOptions::new(salt);
        options.micro_max_bytes = 512 + 512 * micro_slots;
        options.fat_block_shift = shift;
        options.flags = if hash64 { Flags::HASH64 } else { Flags::NONE };
        run(options, ops)?;
    }
}

fn small(shift: u32, flags: Flags) -> (MemStore, Zap) {
    let mut store = MemStore::new();
    let options =
        ZapOptions { fat_block_shift: shift, micro_max_bytes: 512, flags, ..ZapOptions::new(0xfeed_5eed) };
    let zap = Zap::create(&mut store, options).unwrap();
    (store, zap)
}

const FLOODED: u64 = 0xabcd << 48;

/// Keys that agree in their first word have one hash.
#[test]
fn a_flood_of_one_hash_is_refused_and_harms_nobody() {
    let flags = Flags::HASH64.union(Flags::UINT64_KEY).union(Flags::PRE_HASHED_KEY);
    let (mut store, mut zap) = small(12, flags);
    let mut taken = 0;
    let refused = loop {
        match zap.add(&mut store, &[FLOODED, taken][..], &[taken]) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::Full);
    // 158 chunks, 3 per entry.
    assert_eq!(taken, 52);
    assert_eq!(store.block_count(), 2, "the table did not grow in vain");
    for i in 0..500u64 {
        zap.add(&mut store, &[i << 52 | 0x1234, i][..], &[i]).unwrap();
    }
    assert_eq!(zap.add(&mut store, &[FLOODED, taken][..], &[taken]), Err(Error::Full));
    assert!(zap.remove(&mut store, &[FLOODED, 7][..]).unwrap());
    zap.add(&mut store, &[FLOODED, taken][..], &[taken]).unwrap();
    let report = zap.check(&store).unwrap();
    assert!(report.is_clean(), "{:?}", report.damage);
    // An update that makes one of them longer is refused as well, and keeps the old value.
    let longer = [1; 40];
    assert_eq!(zap.update(&mut store, &[FLOODED, 9][..], &longer), Err(Error::Full));
    assert_eq!(zap.lookup_u64(&store, &[FLOODED, 9][..]), Ok(Some(9)));
}

#[test]
fn an_object_without_blocks_is_an_empty_zap() {
    let mut store = MemStore::new();
    let mut zap = Zap::open_with(&store, ZapOptions::new(5)).unwrap();
    assert_eq!(zap.kind(&store), Ok(Kind::Nothing));
    assert_eq!(zap.lookup(&store, "a"), Ok(None));
    assert_eq!(zap.next(&store, Cursor::START), Ok(None));
    assert_eq!(zap.remove(&mut store, "a"), Ok(false));
    assert_eq!(zap.len(&store), Ok(0));
    assert_eq!(zap.add(&mut store, "", &[1]), Err(Error::NameInvalid));
    assert_eq!(store.block_count(), 0, "a refused name creates nothing");
    zap.add(&mut store, "a", &[1]).unwrap();
    assert_eq!((zap.kind(&store), store.block_size()), (Ok(Kind::Micro), 512));
    let saltless = Zap::open(&MemStore::new()).unwrap().add(&mut MemStore::new(), "a", &[1]);
    assert!(matches!(saltless, Err(Error::Refused { .. })));
}

#[test]
fn names_that_cannot_be_stored_are_refused_and_never_found() {
    for flags in [Flags::NONE, Flags::HASH64] {
        let (mut store, mut zap) = small(14, flags);
        let before = store.image();
        let long = [b'x'; 256];
        let bytes_max = 255;
        assert_eq!(zap.add(&mut store, &long, &[1]), Err(Error::NameTooLong { bytes: 256, bytes_max }));
        assert_eq!(zap.add(&mut store, "a\0b", &[1]), Err(Error::NameInvalid));
        assert_eq!(zap.add(&mut store, &[1u64][..], &[1]), Err(Error::KeyKind { expected: "names" }));
        assert!(matches!(zap.add(&mut store, "a", &[1; 1025]), Err(Error::ValueTooLong { .. })));
        for name in [&long[..], b"a\0b", b""] {
            assert_eq!(zap.lookup(&store, name), Ok(None));
            assert_eq!(zap.remove(&mut store, name), Ok(false));
        }
        assert_eq!(store.image(), before);
        zap.add(&mut store, &long[..255], &[1]).unwrap();
        assert_eq!(zap.lookup_u64(&store, &long[..255]), Ok(Some(1)));
    }
}

#[test]
fn two_hundred_thousand_names_come_and_go() {
    let (mut store, mut zap) = small(14, Flags::NONE);
    let name = |i: u64| format!("file-{i:08}.txt");
    for i in 0..200_000 {
        zap.add(&mut store, &name(i), &[i]).unwrap();
    }
    assert!(zap.check(&store).unwrap().is_clean());
    let (mut seen, mut from) = (0, Cursor::START);
    loop {
        let batch = zap.list(&store, from, 1000).unwrap();
        seen += batch.len();
        let Some(last) = batch.last() else { break };
        from = last.cursor_after();
    }
    assert_eq!(seen, 200_000);
    for i in 0..200_000 {
        assert_eq!(zap.lookup_u64(&store, &name(i)), Ok(Some(i)));
    }
    for i in 0..200_000 {
        assert_eq!(zap.remove(&mut store, &name(i)), Ok(true));
    }
    assert_eq!(zap.len(&store), Ok(0));
    assert!(zap.check(&store).unwrap().is_clean());
    assert!(store.blocks_used() <= 4, "header, table and a leaf are left, found {}", store.blocks_used());
}

/// Concurrent lookups share the index that one of them builds.
#[test]
fn lookups_run_at_once() {
    let mut store = MemStore::new();
    let mut zap = Zap::create(&mut store, ZapOptions::new(77)).unwrap();
    for i in 0..2000u64 {
        zap.add(&mut store, &format!("f{i}"), &[i]).unwrap();
    }
    zap.drop_state();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (zap, store) = (&zap, &store);
            scope.spawn(move || {
                for i in (0..2000).map(|i| (i * 7 + thread) % 2000) {
                    assert_eq!(zap.lookup_u64(store, &format!("f{i}")), Ok(Some(i)));
                }
            });
        }
    });
    let bytes = zap.index_bytes();
    assert!((16_000..=20_000).contains(&bytes), "8 to 10 bytes a name, found {bytes}");
}

/// The index of a micro ZAP never outlives the failure that made it wrong.
#[test]
fn a_failing_store_leaves_a_micro_zap_that_can_be_used() {
    for (changes_left, fails_after) in (1..60).flat_map(|left| [(left, false), (left, true)]) {
        let mut store = FaultyStore::new();
        store.fails_after = fails_after;
        let mut zap = Zap::create(&mut store, ZapOptions::new(3)).unwrap();
        store.changes_left = changes_left;
        let name = |i: u64| format!("f{i}");
        let (mut i, mut there) = (0u64, Vec::new());
        let unsure = loop {
            if zap.add(&mut store, &name(i), &[i]).is_err() {
                break i;
            }
            there.push(i);
            if i % 3 == 2 && there.contains(&(i / 2)) {
                there.retain(|k| *k != i / 2);
                if zap.remove(&mut store, &name(i / 2)).is_err() {
                    break i / 2;
                }
            }
            i += 1;
        };
        store.changes_left = u32::MAX;
        zap.update(&mut store, &name(unsure), &[unsure]).unwrap();
        there.push(unsure);
        let report = zap.check(&store).unwrap();
        assert!(report.is_clean(), "{:?}", report.damage);
        assert_eq!(zap.len(&store), Ok(there.len() as u64));
        assert!(there.iter().all(|k| zap.lookup_u64(&store, &name(*k)) == Ok(Some(*k))));
    }
}
