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
