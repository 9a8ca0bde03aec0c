//! Blocks of slots with a damaged header: every operation names the damage and changes nothing.

use terrane_wire::Corrupt;
use terrane_zap::{Cursor, Error, Kind, MemStore, Store, Zap, ZapOptions};

/// A tiny ZAP with three entries of `ints` words in slots of `chunk` bytes.
fn tiny(ints: usize, chunk: usize) -> Vec<u8> {
    let mut store = MemStore::new();
    let options = ZapOptions { tiny: true, ..ZapOptions::new(0x5a17) };
    let mut zap = Zap::create(&mut store, options).unwrap();
    let name_bytes = chunk / 2 - 8 * ints / 2;
    for i in 0..3 {
        zap.add(&mut store, &format!("{i:0name_bytes$}"), &vec![i; ints]).unwrap();
    }
    let kind = Kind::Tiny { chunk_bytes: chunk as u16, value_ints: ints as u8 };
    assert_eq!(zap.kind(&store), Ok(kind));
    store.image()
}

fn micro() -> Vec<u8> {
    let mut store = MemStore::new();
    let mut zap = Zap::create(&mut store, ZapOptions::new(0x5a17)).unwrap();
    (0..3).for_each(|i| zap.add(&mut store, &format!("name {i}"), &[i]).unwrap());
    store.image()
}

/// Every operation names this damage: an open, and operations of a ZAP that was opened before the block was damaged.
#[track_caller]
fn refused(raw: &[u8], block_size: usize, what: &str, expected: &str, found: &str) {
    let mut store = MemStore::from_image(raw, block_size);
    let before = store.image();
    let named = |outcome: Result<(), Error<Corrupt>>| match outcome {
        Err(Error::Store(damage)) => {
            assert_eq!(
                (damage.what, &damage.expected[..], &damage.found[..], &damage.at[..]),
                (what, expected, found, "block 0")
            );
        }
        other => panic!("{what}: {other:?}"),
    };
    named(Zap::open(&store).map(drop));
    let mut zap = Zap::open_with(&MemStore::new(), ZapOptions { tiny: true, ..ZapOptions::new(1) }).unwrap();
    named(zap.kind(&store).map(drop));
    named(zap.len(&store).map(drop));
    named(zap.lookup(&store, "name 0").map(drop));
    named(zap.lookup_u64(&store, "name 0").map(drop));
    named(zap.shape(&store, "name 0").map(drop));
    named(zap.next(&store, Cursor::START).map(drop));
    named(zap.list(&store, Cursor::START, 9).map(drop));
    named(zap.visit(&store, Cursor::START, &mut |_| true).map(drop));
    named(zap.add(&mut store, "new", &[1]));
    named(zap.update(&mut store, "new", &[1, 2]).map(drop));
    named(zap.remove(&mut store, "name 0").map(drop));
    let report = zap.check(&store).unwrap();
    assert_eq!((report.damage_count, report.damage[0].what), (1, what));
    assert_eq!(store.image(), before, "{what}: nothing was changed");
}

#[test]
fn shapes_that_are_none_are_named() {
    let table = "one of chunk shift 6 with 2 to 7 integers, 7 with 1 to 15, 8 with 1 to 31";
    let good = tiny(2, 64);
    for (shift, ints) in [
        (6, 0),
        (6, 1),
        (6, 8),
        (7, 0),
        (7, 16),
        (8, 0),
        (8, 32),
        (0, 0),
        (5, 2),
        (9, 2),
        (63, 2),
        (64, 2),
        (255, 255),
    ] {
        let mut raw = good.clone();
        raw[24..27].copy_from_slice(&[1, shift, ints]);
        let found = format!("chunk shift {shift}, {ints} integers");
        refused(&raw, raw.len(), "shape of tiny slots", table, &found);
    }
}

#[test]
fn a_shape_without_the_flag_and_unknown_flags_are_named() {
    for good in [micro(), tiny(2, 64), tiny(16, 256)] {
        for flags in (0..8).map(|bit| 1 << bit).filter(|flags| *flags != 1u8).chain([3, 0xff]) {
            let mut raw = good.clone();
            raw[24] = flags;
            refused(&raw, raw.len(), "flags of a block of slots", "0 or 1", &format!("{flags:#x}"));
        }
    }
    for (shift, ints) in [(6, 2), (7, 0), (0, 1)] {
        let mut raw = tiny(2, 64);
        raw[24..27].copy_from_slice(&[0, shift, ints]);
        let found = format!("chunk shift {shift}, {ints} integers");
        refused(&raw, raw.len(), "shape of slots without the tiny flag", "chunk shift 0, 0 integers", &found);
    }
}

#[test]
fn bytes_where_nothing_belongs_are_named() {
    for good in [micro(), tiny(2, 64)] {
        for byte in 27..64 {
            let mut raw = good.clone();
            raw[byte] = 0x40;
            refused(&raw, raw.len(), "bytes 27 to 63", "0", "1 nonzero bytes");
        }
        let mut raw = good.clone();
        raw[8..16].fill(0);
        refused(&raw, raw.len(), "salt", "not 0", "0");
    }
}

#[test]
fn sizes_that_no_block_of_slots_has_are_named() {
    let sizes = "a multiple of 512 up to 1 MiB";
    for good in [micro(), tiny(2, 64), tiny(1, 256)] {
        for bytes in [64, 100, 511, 513, 576, 1000, (1 << 20) + 512, 2 << 20] {
            let mut raw = good.clone();
            raw.resize(bytes, 0);
            refused(&raw, bytes, "block size", sizes, &bytes.to_string());
        }
        let mut raw = good.clone();
        raw.resize(2 * good.len(), 0);
        refused(&raw, good.len(), "block count of a micro or tiny ZAP", "1", "2");
        refused(&good[..63], 63, "block size", "at least 512", "63");
    }
}

#[test]
fn other_blocks_are_not_taken_for_a_zap() {
    let types = "0x8000000000000003 or 0x8000000000000001";
    let mut store = MemStore::new();
    let mut zap = Zap::create(&mut store, ZapOptions::new(9)).unwrap();
    zap.add(&mut store, "wide", &[1, 2]).unwrap();
    let leaf = store.read(1).unwrap();
    refused(&leaf, leaf.len(), "block type", types, "0x8000000000000000");
    refused(&[0; 512], 512, "block type", types, "0x0");
    refused(&[0xff; 1024], 1024, "block type", types, "0xffffffffffffffff");
    let text: Vec<u8> = b"some text ".iter().copied().cycle().take(512).collect();
    refused(&text, 512, "block type", types, "0x78657420656d6f73");
}

/// Torn writes: a block written over zeros of which only some words reached the medium. A listing never shows other
/// entries than the complete block has, or a check reports damage.
#[test]
fn half_written_blocks_are_not_taken_for_whole_ones() {
    for good in [micro(), tiny(2, 64), tiny(5, 128), tiny(1, 256)] {
        let whole = MemStore::from_image(&good, good.len());
        let all = Zap::open(&whole).unwrap().list(&whole, Cursor::START, 99).unwrap();
        assert_eq!(all.len(), 3);
        let mut refusals = 0;
        for cut in (0..good.len()).step_by(8) {
            let mut raw = good.clone();
            raw[cut..].fill(0);
            let store = MemStore::from_image(&raw, good.len());
            let Ok(zap) = Zap::open(&store) else {
                refusals += 1;
                continue;
            };
            let report = zap.check(&store).unwrap();
            let listed = zap.list(&store, Cursor::START, 99);
            if report.is_clean() {
                // A name can be truncated, but not the fields before it.
                let listed = listed.unwrap();
                let kept = listed.iter().filter(|entry| all.iter().any(|a| a == *entry)).count();
                assert!(kept + 1 >= listed.len(), "cut at {cut}");
            }
        }
        assert!(refusals >= 2, "without a type, a salt, or a shape it is none");
    }
}

#[test]
fn what_is_behind_the_last_slot_is_ignored_and_overwritten() {
    for (ints, chunk) in [(5, 128), (1, 256)] {
        let mut raw = tiny(ints, chunk);
        let tail = raw.len() - (raw.len() - 64) % chunk;
        assert!(tail < raw.len());
        raw[tail..].fill(b'x');
        let mut store = MemStore::from_image(&raw, raw.len());
        let mut zap = Zap::open(&store).unwrap();
        let report = zap.check(&store).unwrap();
        let found = report.damage.iter().map(|d| d.what).collect::<Vec<_>>();
        assert_eq!(found, ["nonzero bytes after the last slot"]);
        assert_eq!(zap.list(&store, Cursor::START, 99).unwrap().len(), 3);
        // The block grows: the bytes after the last slot are in a slot now.
        let mut added = 0;
        while store.block_size() == raw.len() {
            zap.add(&mut store, &format!("more {added}"), &vec![7; ints]).unwrap();
            added += 1;
        }
        assert!(zap.check(&store).unwrap().is_clean());
        assert_eq!(zap.len(&store), Ok(3 + added));

        // It also grows for an update that needs no slot.
        let mut store = MemStore::from_image(&raw, raw.len());
        let mut zap = Zap::open(&store).unwrap();
        let name = zap.next(&store, Cursor::START).unwrap().unwrap().0.key;
        let slots = (raw.len() - 64) / chunk;
        (3..slots).for_each(|i| zap.add(&mut store, &format!("more {i}"), &vec![7; ints]).unwrap());
        assert_eq!(store.block_size(), raw.len());
        assert_eq!(zap.update(&mut store, &name, &vec![8; ints]), Ok(false));
        assert_eq!(store.block_size(), raw.len() + 512);
        assert!(zap.check(&store).unwrap().is_clean());
        assert_eq!(zap.len(&store), Ok(slots as u64));
    }
}
