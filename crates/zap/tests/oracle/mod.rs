//! What must hold of any store that claims to be a ZAP; shared by hostile tests and fuzz targets.
//!
//! There are two promises. Whatever the blocks hold, every operation ends, within bounds, with a result or a named
//! error. And blocks that a check calls clean *are* a map: lists, lookups and counts agree, and changes behave as on
//! a `BTreeMap`. The second promise tests the check itself: damage that it overlooks shows as a different result.

#![allow(clippy::unwrap_used, reason = "a part of tests")]
#![allow(dead_code, reason = "fuzz targets include it, and do not use all of it")]

use std::collections::BTreeMap;
use terrane_wire::Corrupt;
use terrane_zap::{
    Contents, Cursor, Error, Key, MemStore, Store, Value, ValueRef, ValueShape, Zap, ZapOptions,
};

/// Integer width and integers by key.
pub type Model = BTreeMap<Key, (u8, Vec<u64>)>;

/// The result for a store that may be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Refused when it was opened.
    Refused,
    /// Opened; a check names damage.
    Damaged,
    /// It behaved as a map in all operations.
    Clean,
}

/// Reads everything, then changes it as `program` says, four bytes per change.
pub fn exercise(mut store: MemStore, options: ZapOptions, program: &[u8]) -> Verdict {
    let mut zap = match Zap::open_with(&store, options) {
        Ok(zap) => zap,
        Err(error) => {
            assert!(is_named(&error), "{error:?}");
            return Verdict::Refused;
        }
    };
    let clean = check(&zap, &store);
    let mut model = clean.then(Model::new);
    walk(&zap, &store, model.as_mut());
    let known = names(&zap, &store);
    let blocks_before = store.block_count();
    for op in program.as_chunks::<4>().0 {
        step(&mut zap, &mut store, model.as_mut(), &known, *op);
        if let Some(model) = &model {
            assert!(check(&zap, &store), "clean before {op:?}: {:?}", zap.check(&store).unwrap().damage);
            assert_eq!(zap.len(&store).unwrap(), model.len() as u64, "after {op:?}");
        }
    }
    bounded(&store, blocks_before, program.len() / 4);
    walk(&zap, &store, None);
    if let Some(model) = &model {
        assert_eq!(&listed(&zap, &store), model);
        return Verdict::Clean;
    }
    Verdict::Damaged
}

/// Damage names its place, the property, the expected and the found value; every other error is named by its variant.
fn is_named(error: &Error<Corrupt>) -> bool {
    match error {
        Error::Store(damage) => ![damage.what, &damage.at, &damage.expected, &damage.found].contains(&""),
        Error::Unsupported { what, found } => !what.is_empty() && !found.is_empty(),
        _ => true,
    }
}

fn check(zap: &Zap, store: &MemStore) -> bool {
    let report = zap.check(store).unwrap();
    for damage in &report.damage {
        assert!(is_named(&Error::Store(damage.clone())), "{damage:?}");
    }
    match zap.statistics(store).map(|statistics| statistics.layout) {
        Ok(Contents::Slots(slots)) if report.is_clean() => assert_eq!(slots.used as u64, report.entries),
        Ok(Contents::Fat(fat)) if report.is_clean() => {
            assert_eq!((fat.leaves, fat.entries, fat.damage.count), (report.leaves, report.entries, 0));
        }
        Ok(_) => {}
        Err(error) => assert!(is_named(&error) && !report.is_clean(), "{error:?}"),
    }
    report.is_clean()
}

/// Bounds the blocks that changes allocate. A change may take blocks for one leaf's splits and one step of a table.
/// Damage must not make it take more than the table of 2^17 pointers (1 MiB) that every ZAP may have, and the smaller
/// ones before it.
fn bounded(store: &MemStore, blocks_before: u64, changes: usize) {
    let table = (3 << 20) / store.block_size() as u64;
    let (now, allowed) = (store.block_count(), 4 * blocks_before + 64 * changes as u64 + 64 + table);
    assert!(now <= allowed, "{blocks_before} blocks became {now} by {changes} changes");
}

/// Walks with cursors, forward only. Fills in the model if the ZAP is clean, and compares the entries with lookups.
fn walk(zap: &Zap, store: &MemStore, model: Option<&mut Model>) {
    let clean = model.is_some();
    let mut found = Model::new();
    let mut from = Cursor::START;
    // Every entry takes at least two chunks or one slot.
    let steps_max = store.block_count() * store.block_size() as u64 / 48 + 1;
    for steps in 0.. {
        assert!(steps <= steps_max, "a walk takes more steps than there are entries");
        match zap.next(store, from) {
            Ok(Some((entry, after))) => {
                assert!(Cursor { hash: entry.hash, cd: entry.cd } >= from && after > from, "a walk advances");
                if clean {
                    assert_eq!(zap.lookup(store, &entry.key).unwrap().as_ref(), Some(&entry.value));
                    let (int_size, num_ints) = (entry.value.int_size(), entry.value.num_ints());
                    let shape = ValueShape { int_size, num_ints };
                    assert_eq!(zap.shape(store, &entry.key).unwrap(), Some(shape));
                    match entry.value.first_integer() {
                        Some(first) => assert_eq!(zap.lookup_u64(store, &entry.key), Ok(Some(first))),
                        None => assert_eq!(zap.lookup_u64(store, &entry.key), Err(Error::NoInteger)),
                    }
                    assert_eq!(found.insert(entry.key, plain(&entry.value)), None, "a key is listed once");
                } else {
                    let _ = zap.lookup(store, &entry.key).inspect_err(|e| assert!(is_named(e)));
                    let _ = zap.shape(store, &entry.key).inspect_err(|e| assert!(is_named(e)));
                }
                from = after;
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!clean, "a check overlooked {error}");
                assert!(is_named(&error), "{error:?}");
                break;
            }
        }
    }
    match zap.list(store, Cursor::START, usize::MAX) {
        Ok(entries) if clean => assert_eq!(entries.len(), found.len()),
        Ok(entries) => assert!(entries.len() as u64 <= steps_max),
        Err(error) => assert!(!clean && is_named(&error), "{error:?}"),
    }
    match zap.len(store) {
        Ok(len) => assert!(!clean || len == found.len() as u64),
        Err(error) => assert!(!clean && is_named(&error), "{error:?}"),
    }
    if let Some(model) = model {
        *model = found;
    }
}

fn plain(value: &Value) -> (u8, Vec<u64>) {
    (value.int_size(), value.ints())
}

fn listed(zap: &Zap, store: &MemStore) -> Model {
    let entries = zap.list(store, Cursor::START, usize::MAX).unwrap();
    entries.into_iter().map(|entry| (entry.key, plain(&entry.value))).collect()
}

/// Keys that can be listed, as targets of changes.
fn names(zap: &Zap, store: &MemStore) -> Vec<Key> {
    zap.list(store, Cursor::START, 256)
        .map_or_else(|_| Vec::new(), |all| all.into_iter().map(|e| e.key).collect())
}

/// A present key, or one of 16 short and long names, or words.
fn key_of(known: &[Key], which: u8) -> Key {
    if which >= 128 && !known.is_empty() {
        return known[usize::from(which - 128) % known.len()].clone();
    }
    if matches!(known.first(), Some(Key::U64s(_))) {
        let which = u64::from(which);
        return Key::U64s(vec![which << 56 | which, which]);
    }
    let mut name = format!("n{}", which % 16).into_bytes();
    name.resize([2, 30, 49, 50, 100, 115, 200, 255][usize::from(which / 16 % 8)], b'x');
    Key::Name(name)
}

/// One change or query.
fn step(zap: &mut Zap, store: &mut MemStore, model: Option<&mut Model>, known: &[Key], op: [u8; 4]) {
    let key = key_of(known, op[1]);
    let (shift, count) = (op[2] % 4, usize::from(op[2] / 4 % 40));
    let ints: Vec<u64> = (0..count as u64).map(|i| i << (u64::from(op[3]) % 8) & 0xff).collect();
    match op[0] % 8 {
        0 | 1 => put(zap, store, model, key, (8, ints[..count.min(1)].to_vec()), matches!(op[0] % 8, 0)),
        2 | 3 => put(zap, store, model, key, (1 << shift, ints), op[0] % 8 == 2),
        4 | 5 => match (zap.remove(store, &key), model) {
            (Ok(was_there), Some(model)) => assert_eq!(was_there, model.remove(&key).is_some(), "{key:?}"),
            (Err(error), Some(_)) if !is_refusal(&error) => panic!("a check overlooked {error}"),
            (Err(error), _) => assert!(is_named(&error)),
            (Ok(_), None) => {}
        },
        6 => match (zap.lookup(store, &key), model) {
            (Ok(found), Some(model)) => assert_eq!(found.as_ref().map(plain).as_ref(), model.get(&key)),
            (Err(error), Some(_)) if !is_refusal(&error) => panic!("a check overlooked {error}"),
            (Err(error), _) => assert!(is_named(&error)),
            (Ok(_), None) => {}
        },
        _ if op[1] < 128 => zap.drop_state(),
        _ => match zap.shrink(store) {
            Ok(_) => {}
            Err(error) => assert!(model.is_none() && is_named(&error), "{error:?}"),
        },
    }
}

/// Errors that a clean ZAP may return; each leaves it as it was. A fat one of the other byte order is only read.
fn is_refusal(error: &Error<Corrupt>) -> bool {
    let foreign = |what: &str| what.ends_with("of the other byte order");
    matches!(error, Error::Full | Error::EntryTooLarge { .. } | Error::KeyKind { .. })
        || matches!(error, Error::Unsupported { what, .. } if foreign(what))
}

fn put(
    zap: &mut Zap,
    store: &mut MemStore,
    model: Option<&mut Model>,
    key: Key,
    value: (u8, Vec<u64>),
    is_add: bool,
) {
    let outcome = with_ints(value.0, &value.1, |ints| match is_add {
        true => zap.add_ints(store, &key, ints).map(|()| true),
        false => zap.update_ints(store, &key, ints),
    });
    match (outcome, model) {
        (Ok(is_new), Some(model)) => {
            assert_eq!(model.insert(key, value).is_none(), is_new);
        }
        (Err(Error::Exists), Some(model)) => assert!(is_add && model.contains_key(&key)),
        (Err(error), Some(_)) if !is_refusal(&error) => panic!("a check overlooked {error}"),
        (Err(error), _) => assert!(is_named(&error)),
        (Ok(_), None) => {}
    }
}

/// Calls `use_it` with integers of this width.
pub fn with_ints<T>(size: u8, ints: &[u64], use_it: impl FnOnce(ValueRef<'_>) -> T) -> T {
    match size {
        1 => use_it(ValueRef::U8s(&ints.iter().map(|i| *i as u8).collect::<Vec<_>>())),
        2 => use_it(ValueRef::U16s(&ints.iter().map(|i| *i as u16).collect::<Vec<_>>())),
        4 => use_it(ValueRef::U32s(&ints.iter().map(|i| *i as u32).collect::<Vec<_>>())),
        _ => use_it(ValueRef::U64s(ints)),
    }
}
