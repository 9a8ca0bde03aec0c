//! Blocks that lie: every operation on them ends, with an answer or with damage named.

#![allow(clippy::unwrap_used, reason = "a test file; its helpers fail the test that called them")]

use proptest::prelude::*;
use terrane_wire::Corrupt;
use terrane_zap::{Cursor, Error, Flags, MemStore, Store, Zap, ZapOptions};

/// A micro ZAP and a few fat ones: small blocks, an external table, and one that is being doubled.
fn images() -> Vec<(Vec<u8>, usize)> {
    let mut images = Vec::new();
    for (flags, shift, names) in
        [(Flags::NONE, 14, 12), (Flags::HASH64, 9, 3), (Flags::HASH64, 9, 60), (Flags::HASH64, 10, 700)]
    {
        let mut store = MemStore::new();
        let options = ZapOptions { flags, fat_block_shift: shift, ..ZapOptions::new(0x5a17) };
        let mut zap = Zap::create(&mut store, options).unwrap();
        for i in 0..names {
            zap.add(&mut store, &format!("name {i}"), &[i]).unwrap();
        }
        assert!(zap.check(&store).unwrap().is_clean());
        images.push((store.image(), store.block_size()));
    }
    images
}

/// Runs everything; says whether anything was found to be wrong.
fn exercise(mut store: MemStore) -> bool {
    let mut damaged = false;
    let mut note = |outcome: Result<(), Error<Corrupt>>| damaged |= outcome.is_err();
    let Ok(mut zap) = Zap::open(&store) else { return true };
    let report = zap.check(&store).unwrap();
    note(if report.is_clean() { Ok(()) } else { Err(Error::NoInteger) });
    for name in ["name 0", "name 1", "name 2", "absent"] {
        note(zap.lookup(&store, name).map(drop));
        note(zap.length(&store, name).map(drop));
    }
    note(zap.len(&store).map(drop));
    let mut from = Cursor::START;
    for _ in 0..2000 {
        match zap.next(&store, from) {
            Ok(Some((_, after))) => {
                assert!(after > from, "a walk advances");
                from = after;
            }
            Ok(None) => break,
            Err(_) => {
                note(Err(Error::NoInteger));
                break;
            }
        }
    }
    note(zap.list(&store, Cursor::START, 2000).map(drop));
    note(zap.remove(&mut store, "name 1").map(drop));
    note(zap.remove(&mut store, "name 2").map(drop));
    let blocks_before = store.block_count();
    for i in 0..40u64 {
        note(zap.add(&mut store, &format!("more {i}"), &[i]));
        note(zap.update(&mut store, "name 0", &[i, i, i]).map(drop));
    }
    assert!(store.block_count() < 4 * blocks_before + 200, "damage does not make an object grow");
    note(zap.check(&store).map(drop));
    damaged
}

fn store_of(image: &[u8], block_size: usize) -> MemStore {
    MemStore::from_image(image, block_size)
}

#[test]
fn every_bit_flip_of_small_images_ends_in_an_answer() {
    for (image, block_size) in images().into_iter().take(2) {
        assert!(!exercise(store_of(&image, block_size)), "the image itself is good");
        for bit in 0..image.len() * 8 {
            let mut flipped = image.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            exercise(store_of(&flipped, block_size));
        }
    }
}

#[test]
fn structure_that_is_flipped_is_noticed() {
    // In a fat ZAP without free-form bytes: the whole header, and a leaf's header and buckets.
    let (image, block_size) = images().remove(1);
    for byte in (0..104).filter(|b| !(80..88).contains(b)).chain(512 + 16..512 + 48 + 32) {
        // What nobody has to read: the pad behind a leaf's flags.
        if (512 + 37..512 + 48).contains(&byte) {
            continue;
        }
        for bit in 0..8 {
            let mut flipped = image.clone();
            flipped[byte] ^= 1 << bit;
            let store = store_of(&flipped, block_size);
            let noticed = Zap::open(&store).map_or(true, |zap| !zap.check(&store).unwrap().is_clean());
            assert!(noticed, "byte {byte} bit {bit}");
        }
    }
}

#[test]
fn circles_and_pointers_to_nowhere_are_named() {
    let (image, block_size) = images().remove(1);
    let lie = |at: usize, bytes: &[u8]| {
        let mut image = image.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        store_of(&image, block_size)
    };
    // The whole embedded table leads to block 0, then to a block far away.
    for target in [0u64, 0x00ff_ffff_ffff] {
        let store = lie(256, &target.to_le_bytes().repeat(32));
        let zap = Zap::open(&store).unwrap();
        let Err(Error::Store(damage)) = zap.lookup(&store, "name 0") else { panic!("not noticed") };
        assert_eq!((damage.what, damage.expected.as_str()), ("leaf block", "1 to 1"));
    }
    // Every entry's link leads to itself: chunk k is at 512 + 48 + 32 + 24 k.
    let mut circles = image.clone();
    for chunk in 0..18u16 {
        let at = 512 + 48 + 32 + 24 * usize::from(chunk);
        if circles[at] == 252 {
            circles[at + 2..at + 4].copy_from_slice(&chunk.to_le_bytes());
        }
    }
    let store = store_of(&circles, block_size);
    let zap = Zap::open(&store).unwrap();
    let outcomes = (0..3).map(|i| zap.list(&store, Cursor { hash: i << 62, cd: 0 }, 9));
    let named = |o: &Result<_, Error<Corrupt>>| matches!(o, Err(Error::Store(d)) if d.what == "bucket chain");
    assert!(outcomes.into_iter().any(|o| named(&o.map(drop))));
    let damage = zap.check(&store).unwrap().damage;
    assert!(damage.iter().any(|d| d.what == "ENTRY chunk" && d.at.contains("block 1")), "{damage:?}");
}

/// Where leaf 1 of the second image has its fields: 16 buckets, then 18 chunks.
const LEAF: usize = 512;
const CHUNKS: usize = LEAF + 48 + 32;

fn chunk_of_kind(image: &[u8], kind: u8) -> usize {
    (0..18).map(|k| CHUNKS + 24 * k).find(|at| image[*at] == kind).unwrap()
}

/// Lies to one field, runs something that must refuse it by name, and sees that nothing was changed.
fn refuses<T: std::fmt::Debug>(
    what: &str,
    lie: impl FnOnce(&mut [u8]),
    run: impl FnOnce(&mut Zap, &mut MemStore) -> Result<T, Error<Corrupt>>,
) {
    let (mut image, block_size) = images().remove(1);
    lie(&mut image);
    let mut store = store_of(&image, block_size);
    let mut zap = Zap::open(&store).unwrap();
    match run(&mut zap, &mut store) {
        Err(Error::Store(damage)) => assert_eq!(damage.what, what, "{damage}"),
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(store.image(), image, "{what}: damage is not made worse");
    assert!(!zap.check(&store).unwrap().is_clean(), "{what}: nor overlooked by a check");
}

fn remove_all(zap: &mut Zap, store: &mut MemStore) -> Result<(), Error<Corrupt>> {
    (0..3).try_for_each(|i| zap.remove(store, &format!("name {i}")).map(drop))
}

#[test]
fn a_lie_is_found_before_anything_is_changed() {
    let name_is_value = |image: &mut [u8]| {
        for at in (0..18).map(|k| CHUNKS + 24 * k) {
            if image[at] == 252 {
                image.copy_within(at + 4..at + 6, at + 8);
            }
        }
    };
    refuses("chain of a name or value", name_is_value, remove_all);
    let free_circle = |image: &mut [u8]| {
        let first = u16::from_le_bytes([image[LEAF + 34], image[LEAF + 35]]);
        let at = CHUNKS + 24 * usize::from(first);
        image[at + 22..at + 24].copy_from_slice(&first.to_le_bytes());
    };
    refuses("free list", free_circle, |zap, store| zap.add(store, "one more", &[1]));
    // 3 entries of 3 chunks leave 9 of 18 free; 15 are the most that a leaf with 3 entries could have.
    let nfree = |image: &mut [u8]| image[LEAF + 28] = 15;
    refuses("free chunks", nfree, |zap, store| zap.remove(store, "name 1"));
    let hash = |image: &mut [u8]| {
        let at = chunk_of_kind(image, 252);
        image[at + 23] ^= 0x80;
    };
    refuses("bucket", hash, |zap, store| zap.list(store, Cursor::START, 9));
    refuses("bucket", hash, |zap, store| {
        let mut from = Cursor::START;
        while let Some((_, after)) = zap.next(store, from)? {
            from = after;
        }
        Ok(())
    });
    // What a leaf counts is compared when it is split.
    let nentries = |image: &mut [u8]| image[LEAF + 30] += 1;
    refuses("ENTRY chunks", nentries, |zap, store| {
        let mut copy = store.clone();
        (0..9).try_for_each(|i| zap.add(&mut copy, &format!("more {i}"), &[i]))
    });
}

/// A lookup of the name finds nothing there, and says so without noticing: only a check can.
#[test]
fn an_entry_in_the_wrong_bucket_is_found_by_a_check() {
    let (mut image, block_size) = images().remove(1);
    let buckets: Vec<usize> = (LEAF + 48..CHUNKS).step_by(2).collect();
    let used = *buckets.iter().find(|at| image[**at] != 0xff).unwrap();
    let free = *buckets.iter().find(|at| image[**at] == 0xff).unwrap();
    image.copy_within(used..used + 2, free);
    image[used..used + 2].fill(0xff);
    let store = store_of(&image, block_size);
    let damage = Zap::open(&store).unwrap().check(&store).unwrap().damage;
    assert_eq!(damage.iter().map(|d| d.what).collect::<Vec<_>>(), ["bucket"]);
}

/// Two leaves, of which the first has lost its last pointer to the second.
#[test]
fn a_leaf_that_lost_a_pointer_is_neither_split_nor_merged() {
    let options = ZapOptions { flags: Flags::HASH64, fat_block_shift: 9, ..ZapOptions::new(0x5a17) };
    let mut store = MemStore::new();
    let mut zap = Zap::create(&mut store, options).unwrap();
    let mut names = Vec::new();
    while store.block_count() < 3 {
        names.push(format!("name {}", names.len()));
        zap.add(&mut store, names.last().unwrap(), &[1]).unwrap();
    }
    let entries = zap.list(&store, Cursor::START, 99).unwrap();
    for entry in entries.iter().filter(|e| e.hash >> 59 == 15) {
        zap.remove(&mut store, &entry.key).unwrap();
    }
    let last = 256 + 8 * 15;
    store.modify(0, &mut |raw| raw[last..last + 8].copy_from_slice(&2u64.to_le_bytes())).unwrap();
    let mut splitting = store.clone();
    // Names that meet the lost pointer itself are refused by the leaf's prefix; a split, by the pointer.
    let refused: Vec<_> = (0..99)
        .filter_map(|i| match zap.add(&mut splitting, &format!("more {i}"), &[i]) {
            Err(Error::Store(damage)) => Some(damage.what),
            other => other.map(|()| None).unwrap(),
        })
        .collect();
    assert!(refused.contains(&"leaf block") && refused.contains(&"prefix"), "{refused:?}");
    for name in &names {
        let _ = zap.remove(&mut store, name);
    }
    assert_eq!(zap.len(&store), Ok(0));
    assert_eq!(store.blocks_used(), 3, "the second leaf is still pointed at");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn several_lies_at_once_end_in_an_answer(
        which in 0usize..4,
        lies in prop::collection::vec((any::<prop::sample::Index>(), any::<u16>(), 0u8..4), 1..12),
    ) {
        let (mut image, block_size) = images().swap_remove(which);
        for (place, value, kind) in lies {
            let at = place.index(image.len() - 8);
            match kind {
                0 => image[at] = value as u8,
                1 => image[at & !1..][..2].copy_from_slice(&(value % 40).to_le_bytes()),
                2 => image[at & !7..][..8].copy_from_slice(&u64::from(value).to_le_bytes()),
                // Header words, which chance alone seldom meets.
                _ => image[(at % 13) * 8..][..8].copy_from_slice(&u64::from(value % 64).to_le_bytes()),
            }
        }
        exercise(store_of(&image, block_size));
    }

    #[test]
    fn random_blocks_end_in_an_answer(
        mut raw in prop::collection::vec(any::<u8>(), 1536),
        fat in any::<bool>(), sane in any::<bool>(),
    ) {
        // With the right first words, or chance would never get past them.
        let micro_type = 0x8000_0000_0000_0003u64;
        raw[..8].copy_from_slice(&(if fat { micro_type - 2 } else { micro_type }).to_le_bytes());
        if sane && !fat {
            raw[16..64].fill(0);
        }
        if sane && fat {
            raw[..104].copy_from_slice(&images()[1].0[..104]);
            raw[56] = 3;
            raw[256..512].copy_from_slice(&1u64.to_le_bytes().repeat(32));
            raw[512..560].copy_from_slice(&images()[1].0[512..560]);
        }
        let block_size = if fat { 512 } else { 1536 };
        exercise(store_of(&raw, block_size));
    }
}
