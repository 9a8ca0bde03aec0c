//! ZAPs that shrink all the way back, and do not oscillate.

use crate::faulty_store::FaultyStore;
use terrane_zap::{Cursor, Entry, Error, Flags, Kind, MemStore, NormFlags, Store, ValueRef, Zap, ZapOptions};

struct Subject {
    zap: Zap,
    store: MemStore,
}

impl Subject {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ZapOptions)) -> Self {
        let mut options = ZapOptions { tiny: true, ..ZapOptions::new(0x5eed) };
        change(&mut options);
        let store = MemStore::new();
        Subject { zap: Zap::open_with(&store, options).unwrap(), store }
    }

    fn add(&mut self, name: &str, words: &[u64]) {
        self.zap.add(&mut self.store, name, words).unwrap();
    }

    fn remove(&mut self, name: &str) {
        assert_eq!(self.zap.remove(&mut self.store, name), Ok(true));
    }

    fn all(&self) -> Vec<Entry> {
        self.zap.list(&self.store, Cursor::START, usize::MAX).unwrap()
    }

    fn kind(&self) -> Kind {
        self.zap.kind(&self.store).unwrap()
    }

    /// Shrinks if it is due; the entries must stay the same.
    #[track_caller]
    fn shrink(&mut self) -> bool {
        let before = self.all();
        let shrank = self.zap.shrink(&mut self.store).unwrap();
        assert_eq!(self.all(), before);
        let report = self.zap.check(&self.store).unwrap();
        assert!(report.is_clean(), "{:?}", report.damage);
        assert_eq!(self.zap.len(&self.store), Ok(before.len() as u64));
        let opened = Zap::open(&self.store).unwrap();
        assert_eq!(opened.list(&self.store, Cursor::START, usize::MAX).unwrap(), before);
        for entry in &before {
            assert_eq!(opened.lookup(&self.store, &entry.key).unwrap().as_ref(), Some(&entry.value));
        }
        shrank
    }
}

const fn tiny(chunk_bytes: u16, value_ints: u8) -> Kind {
    Kind::Tiny { chunk_bytes, value_ints }
}

#[test]
fn a_zap_goes_all_the_way_back() {
    let mut s = Subject::new();
    let lens = [(30, 2500), (90, 4), (200, 4)];
    let name = |len: usize, i: u64| format!("{i:0len$}");
    for (len, count) in lens {
        (0..count).for_each(|i| s.add(&name(len, i), &[i]));
    }
    assert_eq!(s.kind(), Kind::Fat);
    let cursor = s.all()[1200].cursor_after();
    (10..2500).for_each(|i| s.remove(&name(30, i)));
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size(), s.store.block_count()), (tiny(256, 1), 5120, 1));
    // A reader in the middle of a walk continues where it was.
    let rest =
        s.all().into_iter().filter(|e| Cursor { hash: e.hash, cd: e.cd } >= cursor).collect::<Vec<_>>();
    assert_eq!(s.zap.list(&s.store, cursor, 99).unwrap(), rest);
    (0..4).for_each(|i| s.remove(&name(200, i)));
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size()), (tiny(128, 1), 2048));
    (0..4).for_each(|i| s.remove(&name(90, i)));
    (0..2).for_each(|i| s.remove(&name(30, i)));
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size()), (Kind::Micro, 1024));
    (2..7).for_each(|i| s.remove(&name(30, i)));
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size()), (Kind::Micro, 512));
    (7..10).for_each(|i| s.remove(&name(30, i)));
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size(), s.store.block_count()), (Kind::Nothing, 512, 0));
    s.add("again", &[1, 2, 3]);
    assert_eq!(s.kind(), tiny(64, 3));
}

#[test]
fn entries_of_several_words_go_back_to_slots() {
    let mut s = Subject::new();
    for i in 0..3000u64 {
        s.add(&format!("fid-{i:07}"), &[i, i * i, !i]);
    }
    assert_eq!(s.kind(), Kind::Fat);
    (0..3000).filter(|i| i % 300 != 7).for_each(|i| s.remove(&format!("fid-{i:07}")));
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size(), s.store.block_count()), (tiny(64, 3), 1024, 1));
    assert_eq!(s.zap.lookup(&s.store, "fid-0000007").unwrap().unwrap().ints(), [7, 49, !7]);
    let image = s.store.image();
    // The same slots as if the entries had been added in cursor order.
    let order = s.all();
    let mut fresh = Subject::new();
    for entry in &order {
        let name = std::str::from_utf8(entry.key.name().unwrap()).unwrap();
        fresh.add(name, &entry.value.ints());
    }
    assert_eq!(image, fresh.store.image());
}

/// However many names were removed, the remaining ones must have space to double.
#[test]
fn a_fat_zap_goes_back_when_half_of_the_limit_is_enough() {
    let mut s = Subject::with(|o| o.micro_max_bytes = 8192);
    (0..200).for_each(|i| s.add(&format!("{i}"), &[i]));
    assert_eq!(s.kind(), Kind::Fat);
    // 8192 bytes have 127 slots.
    (64..200).for_each(|i| s.remove(&format!("{i}")));
    assert!(!s.zap.shrink_due(&s.store).unwrap());
    s.remove("63");
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size()), (Kind::Micro, 4096));
    // Larger slots have space for half as many.
    let long = "n".repeat(60);
    s.add(&long, &[0]);
    (64..200).for_each(|i| s.add(&format!("{i}"), &[i]));
    assert_eq!(s.kind(), Kind::Fat);
    (31..63).chain(64..200).for_each(|i| s.remove(&format!("{i}")));
    s.zap = Zap::open_with(&s.store, *s.zap.options()).unwrap();
    s.add("one more", &[0]);
    s.remove("one more");
    assert_eq!(s.zap.len(&s.store), Ok(32));
    assert!(s.zap.shrink_due(&s.store).unwrap());
    assert!(!s.shrink(), "63 slots of 128 bytes, and a half of them");
    s.zap = Zap::open_with(&s.store, *s.zap.options()).unwrap();
    s.remove("30");
    assert!(s.shrink());
    assert_eq!((s.kind(), s.store.block_size()), (tiny(128, 1), 4096));
}

/// Adds and removes one name across the limit, many times, and tries to shrink each time.
#[test]
fn one_entry_over_a_line_does_not_make_a_zap_flap() {
    for (few, long) in [(2047, "one more".to_string()), (20, "n".repeat(60)), (20, "n".repeat(250))] {
        let mut s = Subject::new();
        (0..few).for_each(|i| s.add(&format!("{i}"), &[i]));
        let (mut conversions, mut kind) = (0, s.kind());
        for _ in 0..30 {
            s.add(&long, &[1]);
            conversions += u32::from(s.kind() != kind);
            kind = s.kind();
            s.remove(&long);
            s.shrink();
            conversions += u32::from(s.kind() != kind);
            kind = s.kind();
        }
        assert!(conversions <= 6, "{few} entries and one of {} bytes: {conversions}", long.len());
    }
    // Growth of the block alone.
    for few in 1..40u64 {
        let mut s = Subject::new();
        (0..few).for_each(|i| s.add(&format!("{i}"), &[i]));
        for _ in 0..20 {
            s.add("one more", &[1]);
            s.remove("one more");
            assert!(!s.shrink(), "{few}");
        }
    }
}

#[test]
fn a_shrink_plan_is_void_after_a_change_and_for_another_zap() {
    let mut s = Subject::new();
    (0..100).for_each(|i| s.add(&format!("{i}"), &[i]));
    assert!(!s.zap.shrink_due(&s.store).unwrap(), "nothing was removed");
    (10..100).for_each(|i| s.remove(&format!("{i}")));
    type Change = fn(&mut Subject);
    let changes: [Change; 4] = [
        |s| s.add("new", &[1]),
        |s| s.remove("new"),
        |s| assert_eq!(s.zap.update(&mut s.store, "3", &[33]), Ok(false)),
        |s| s.zap.drop_state(),
    ];
    for change in changes {
        let plan = s.zap.plan_shrink(&s.store).unwrap().expect("it is due");
        change(&mut s);
        let image = s.store.image();
        assert_eq!(s.zap.apply_shrink(&mut s.store, plan), Ok(false));
        assert_eq!(s.store.image(), image);
    }
    let plan = s.zap.plan_shrink(&s.store).unwrap().expect("it is due");
    assert_eq!(plan.bytes(), 1024);
    // An operation that changes nothing does not void a plan.
    assert_eq!(s.zap.remove(&mut s.store, "absent"), Ok(false));
    assert_eq!(s.zap.add(&mut s.store, "3", &[1]), Err(Error::Exists));
    let mut other = s.store.clone();
    let mut opened = Zap::open(&other).unwrap();
    assert_eq!(opened.apply_shrink(&mut other, plan), Ok(false));
    let plan = s.zap.plan_shrink(&s.store).unwrap().expect("it is due");
    assert_eq!(s.zap.apply_shrink(&mut s.store, plan), Ok(true));
    assert_eq!(s.store.block_size(), 1024);
    assert_eq!(s.zap.lookup_u64(&s.store, "3"), Ok(Some(33)));
}

#[test]
fn what_only_a_fat_zap_can_be_stays_fat() {
    // Integers of another width, values of different lengths, other keys, other hashes.
    let mut s = Subject::new();
    s.add("stays", &[1]);
    s.zap.add_ints(&mut s.store, "narrow", ValueRef::U16s(&[1])).unwrap();
    (0..9).for_each(|i| s.add(&format!("{i}"), &[1; 9][..=i]));
    (0..8).for_each(|i| s.remove(&format!("{i}")));
    assert!(!s.shrink());
    s.remove("narrow");
    assert!(!s.shrink(), "one word, and nine");
    s.remove("8");
    assert!(s.shrink());
    assert_eq!(s.kind(), Kind::Micro);

    let mut s = Subject::with(|o| o.flags = Flags::HASH64);
    s.add("a", &[1]);
    s.add("b", &[1]);
    s.remove("a");
    assert!(!s.shrink());
    s.remove("b");
    assert!(!s.shrink(), "its flags would be lost");
    assert_eq!(s.kind(), Kind::Fat);
}

/// A scan of all entries that gains nothing is not repeated at every removal.
#[test]
fn a_shrink_scan_without_gain_waits_for_more_removals() {
    let mut s = Subject::new();
    (0..800).for_each(|i| s.add(&format!("{i}"), &[i]));
    s.zap.add_ints(&mut s.store, "narrow", ValueRef::U16s(&[1])).unwrap();
    let mut scans = 0;
    for i in 0..800 {
        s.remove(&format!("{i}"));
        if s.zap.shrink_due(&s.store).unwrap() {
            scans += 1;
            assert!(s.zap.plan_shrink(&s.store).unwrap().is_none());
        }
    }
    assert!((8..25).contains(&scans), "{scans}");
}

#[test]
fn without_tiny_zaps_a_fat_one_goes_back_to_micro_only() {
    let mut s = Subject::with(|o| o.tiny = false);
    s.add("long", &[1]);
    s.add(&"n".repeat(60), &[2]);
    s.add(&"n".repeat(61), &[2]);
    assert_eq!(s.kind(), Kind::Fat);
    s.remove(&"n".repeat(61));
    assert!(!s.shrink());
    s.remove(&"n".repeat(60));
    assert!(s.shrink());
    assert_eq!(s.kind(), Kind::Micro);
}

#[test]
fn names_stay_normalized() {
    let norm = |o: &mut ZapOptions| o.norm = NormFlags::TO_UPPER;
    let mut s = Subject::with(norm);
    s.add("Stays", &[1]);
    s.zap.add_ints(&mut s.store, "narrow", ValueRef::U16s(&[1])).unwrap();
    s.remove("narrow");
    assert!(s.shrink());
    let mut fresh = Subject::with(norm);
    fresh.add("Stays", &[1]);
    assert_eq!(s.store.image(), fresh.store.image());
    // Opened by a caller whose options would create another ZAP.
    s.zap = Zap::open_with(&s.store, ZapOptions::new(5)).unwrap();
    s.remove("Stays");
    assert!(!s.shrink());
    s.zap = Zap::open_with(&s.store, *fresh.zap.options()).unwrap();
    s.add("Goes", &[1]);
    s.remove("Goes");
    assert!(s.shrink());
    assert_eq!(s.kind(), Kind::Nothing);
}

/// A block of slots is a whole ZAP at every step of its shrinking.
#[test]
fn a_store_that_fails_in_the_middle_keeps_the_entries() {
    let mut s = Subject::new();
    (0..40).for_each(|i| s.add(&format!("{i:060}"), &[i]));
    (0..20).for_each(|i| s.add(&format!("{i}"), &[i]));
    (0..40).for_each(|i| s.remove(&format!("{i:060}")));
    let before = s.all();
    let mut steps = 0;
    loop {
        let mut store = FaultyStore::from(s.store.clone());
        store.changes_left = steps;
        let plan = s.zap.plan_shrink(&s.store).unwrap().expect("it is due");
        let outcome = s.zap.apply_shrink(&mut store, plan);
        let zap = Zap::open(&store.inner).unwrap();
        assert_eq!(zap.list(&store.inner, Cursor::START, 99).unwrap(), before);
        let report = zap.check(&store.inner).unwrap();
        assert!(report.is_clean(), "after {steps} steps: {:?}", report.damage);
        if outcome.is_ok() {
            assert_eq!(zap.kind(&store.inner), Ok(Kind::Micro));
            break;
        }
        steps += 1;
        // The ZAP is as it was, and shrinking is due again.
        s.zap = Zap::open_with(&s.store, *s.zap.options()).unwrap();
        s.add("one more", &[0]);
        s.remove("one more");
    }
    assert_eq!(steps, 2);
}

/// Each value may have 8 KiB: a scan that collected all of them would take a thousand times the space of slots.
#[test]
fn a_shrink_scan_ends_at_the_first_value_that_no_slot_holds() {
    let mut s = Subject::new();
    let long = [7; 125];
    (0..400).for_each(|i| s.add(&format!("{i}"), &long));
    (0..200).for_each(|i| s.remove(&format!("{i}")));
    let store = FaultyStore::from(s.store.clone());
    assert!(store.block_count() > 20);
    assert_eq!(s.zap.shrink_due(&store), Ok(true));
    assert!(s.zap.plan_shrink(&store).unwrap().is_none());
    assert!(store.reads() < 20, "{} reads", store.reads());
}

/// A ZAP that was opened without a salt could not be created again.
#[test]
fn an_empty_zap_is_dropped_only_if_it_can_be_recreated() {
    let mut s = Subject::new();
    s.add("a", &[1, 2]);
    s.zap = Zap::open(&s.store).unwrap();
    s.remove("a");
    assert!(!s.shrink());
    assert_eq!(s.kind(), tiny(64, 2));
}

/// Without its only entry the ZAP is empty, and an empty one takes any shape.
#[test]
fn the_only_entry_may_take_another_width() {
    let salt = ZapOptions::new(0x5eed).salt;
    let tiny = |chunk_bytes, value_ints| Kind::Tiny { chunk_bytes, value_ints };
    let long = "x".repeat(100);
    for (name, before, after, kind) in [
        ("fid", 1, 2, tiny(64, 2)),
        ("fid", 1, 31, tiny(256, 31)),
        ("fid", 3, 1, Kind::Micro),
        ("fid", 31, 7, tiny(64, 7)),
        (long.as_str(), 1, 2, tiny(128, 2)),
        (long.as_str(), 2, 1, tiny(128, 1)),
    ] {
        let (old, new) = (vec![7u64; before], (1..=after as u64).collect::<Vec<_>>());
        let mut s = Subject::new();
        s.add(name, &old);
        let place = s.all()[0].clone();
        assert_eq!(s.zap.update(&mut s.store, name, &new), Ok(false), "{before} to {after}");
        assert_eq!(s.kind(), kind, "{before} to {after}");
        let all = s.all();
        assert_eq!((all.len(), all[0].hash, all[0].cd), (1, place.hash, place.cd), "cursors stay valid");
        assert!(!s.shrink());
        // Exactly what a ZAP is that had the new value from the beginning, so what OpenZFS reads.
        let mut fresh = Subject::new();
        fresh.add(name, &new);
        assert_eq!(s.store.image(), fresh.store.image(), "{before} to {after} with salt {salt:#x}");
        // It goes on like any other.
        s.add("2nd", &new);
        assert_eq!(s.kind(), kind);
        assert_eq!(s.zap.lookup(&s.store, name).unwrap().unwrap().ints(), new);
    }
}

#[test]
fn the_block_of_a_replaced_entry_keeps_its_size() {
    let mut s = Subject::new();
    (0..100).for_each(|i| s.add(&format!("{i}"), &[i]));
    (1..100).for_each(|i| s.remove(&format!("{i}")));
    let bytes = s.store.block_size();
    assert_eq!(s.zap.update(&mut s.store, "0", &[1, 2, 3]), Ok(false));
    assert_eq!((s.kind(), s.store.block_size()), (Kind::Tiny { chunk_bytes: 64, value_ints: 3 }, bytes));
    assert!(s.shrink(), "the removals still count");
    assert_eq!(s.store.block_size(), 512);
    assert_eq!(s.all()[0].value.ints(), [1, 2, 3]);
}

#[test]
fn what_other_entries_or_the_options_forbid_becomes_fat() {
    // Another entry keeps its one word.
    let mut s = Subject::new();
    s.add("stays", &[1]);
    s.add("fid", &[1]);
    assert_eq!(s.zap.update(&mut s.store, "fid", &[1, 2]), Ok(false));
    assert_eq!(s.kind(), Kind::Fat);
    assert_eq!(s.zap.lookup_u64(&s.store, "stays"), Ok(Some(1)));
    // No tiny ZAPs, integers of another width, more words than a slot has, no words at all.
    let mut s = Subject::with(|o| o.tiny = false);
    s.add("fid", &[1]);
    assert_eq!(s.zap.update(&mut s.store, "fid", &[1, 2]), Ok(false));
    assert_eq!(s.kind(), Kind::Fat);
    for value in [ValueRef::U16s(&[1]), ValueRef::U64s(&[1; 32]), ValueRef::U64s(&[])] {
        let mut s = Subject::new();
        s.add("fid", &[1]);
        assert_eq!(s.zap.update_ints(&mut s.store, "fid", value), Ok(false));
        assert_eq!(s.kind(), Kind::Fat);
    }
    // A leaf of 512 bytes holds 18 chunks; 243 bytes of name and a word need 14, so slots of 256 bytes do not fit.
    let mut s = Subject::with(|o| o.fat_block_shift = 9);
    s.add("fid", &[1]);
    assert_eq!(s.zap.update(&mut s.store, "fid", &[1; 31]), Ok(false));
    assert_eq!(s.zap.lookup(&s.store, "fid").unwrap().unwrap().ints(), [1; 31]);
    assert!(s.zap.check(&s.store).unwrap().is_clean());
}

/// Identifiers are set one after the other: at first widths are mixed, in the end they are not.
#[test]
fn values_that_have_one_width_again_go_back_to_slots() {
    for entries in [2u64, 3, 20, 300] {
        let mut s = Subject::new();
        (0..entries).for_each(|i| s.add(&format!("{i}"), &[i]));
        let mut shrank = 0;
        for i in 0..entries {
            assert_eq!(s.zap.update(&mut s.store, format!("{i}").as_str(), &[i, 1, 2]), Ok(false));
            shrank += u64::from(s.shrink());
            assert_eq!(s.kind() == Kind::Fat, i + 1 < entries, "{i} of {entries}");
        }
        assert_eq!((shrank, s.kind()), (1, Kind::Tiny { chunk_bytes: 64, value_ints: 3 }), "{entries}");
        // An update of the same width, and one in slots, earns no scan.
        assert_eq!(s.zap.update(&mut s.store, "0", &[7, 8, 9]), Ok(false));
        assert!(!s.zap.shrink_due(&s.store).unwrap());
    }
}
