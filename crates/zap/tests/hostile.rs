//! Hostile blocks: every operation on them ends, with a result or with named damage.

use crate::oracle;
use crate::swapped;
use oracle::Verdict;
use proptest::prelude::*;
use terrane_wire::Corrupt;
use terrane_zap::{Cursor, Error, Flags, MemStore, Store, Zap, ZapOptions};

/// Images of every kind, each with the names "name 0", "name 1" and so on.
struct Images {
    micro: Image,
    /// In slots of 64, 128 and 256 bytes.
    tiny: [Image; 3],
    /// One leaf, in small blocks, so that most damage is met.
    fat: Image,
    /// An external table, and one that is being doubled.
    large: [Image; 2],
}

#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
    block_size: usize,
}

impl Image {
    fn new(options: ZapOptions, names: u64, value: &[u64]) -> Image {
        let mut store = MemStore::new();
        let mut zap = Zap::create(&mut store, options).unwrap();
        for i in 0..names {
            zap.add(&mut store, &format!("name {i}"), value).unwrap();
        }
        Image { bytes: store.image(), block_size: store.block_size() }
    }

    fn store(&self) -> MemStore {
        MemStore::from_image(&self.bytes, self.block_size)
    }
}

fn images() -> Images {
    let options = ZapOptions { tiny: true, ..ZapOptions::new(0x5a17) };
    let fat = |shift| ZapOptions { flags: Flags::HASH64, fat_block_shift: shift, ..options };
    Images {
        micro: Image::new(options, 6, &[1]),
        tiny: [(6, 3), (3, 12), (1, 25)].map(|(names, ints)| Image::new(options, names, &vec![7; ints])),
        fat: Image::new(fat(9), 3, &[1]),
        large: [Image::new(fat(9), 60, &[1]), Image::new(fat(10), 700, &[1])],
    }
}

/// Changes of every kind that [`oracle::exercise`] makes: of present and other names, short and long, with one
/// integer and with many.
const PROGRAM: [[u8; 4]; 26] = [
    [6, 128, 0, 0],
    [4, 129, 0, 0],
    [0, 0, 4, 3],
    [2, 1, 15, 1],
    [1, 128, 4, 9],
    [3, 128, 15, 1],
    [4, 130, 0, 0],
    [0, 65, 4, 1],
    [2, 34, 31, 1],
    [0, 114, 4, 1],
    [7, 0, 0, 0],
    [0, 2, 4, 3],
    [0, 3, 4, 3],
    [2, 100, 95, 3],
    [3, 128, 159, 3],
    [4, 128, 0, 0],
    [2, 20, 153, 3],
    [5, 1, 0, 0],
    [0, 5, 4, 3],
    [0, 6, 4, 3],
    [4, 128, 0, 0],
    [4, 129, 0, 0],
    [4, 130, 0, 0],
    [4, 131, 0, 0],
    [7, 128, 0, 0],
    [0, 7, 4, 3],
];

/// Returns whether anything wrong was found. A store without findings must be a map in every respect.
fn exercise(store: MemStore) -> bool {
    let options =
        ZapOptions { tiny: true, micro_max_bytes: 2048, fat_block_shift: 10, ..ZapOptions::new(0x5a17) };
    oracle::exercise(store, options, PROGRAM.as_flattened()) != Verdict::Clean
}

/// Flips every bit of an image. Only flips in bytes without structure may stay unnoticed.
fn flip_every_bit(image: &Image) {
    assert!(!exercise(image.store()), "the image itself is good");
    for bit in 0..image.bytes.len() * 8 {
        let mut flipped = image.clone();
        flipped.bytes[bit / 8] ^= 1 << (bit % 8);
        exercise(flipped.store());
    }
}

#[test]
fn every_bit_flip_of_a_micro_zap_ends_in_an_answer() {
    flip_every_bit(&images().micro);
}

#[test]
fn every_bit_flip_of_tiny_zaps_ends_in_an_answer() {
    images().tiny.iter().for_each(flip_every_bit);
}

#[test]
fn every_bit_flip_of_a_fat_zap_ends_in_an_answer() {
    flip_every_bit(&images().fat);
}

#[test]
fn every_bit_flip_of_zaps_of_the_other_byte_order_ends_in_an_answer() {
    let Images { micro, tiny: [_, tiny, _], fat, .. } = images();
    for image in [micro, tiny, fat] {
        let bytes = swapped::swapped(image.bytes, image.block_size);
        flip_every_bit(&Image { bytes, ..image });
    }
}

#[test]
fn structure_that_is_flipped_is_noticed() {
    // In a fat ZAP, the bytes that all have a structure: the whole header, and a leaf's header and buckets.
    let Image { bytes: image, block_size } = images().fat;
    for byte in (0..104).filter(|b| !(80..88).contains(b)).chain(512 + 16..512 + 48 + 32) {
        // Ignored by readers: the padding after a leaf's flags.
        if (512 + 37..512 + 48).contains(&byte) {
            continue;
        }
        for bit in 0..8 {
            let mut flipped = image.clone();
            flipped[byte] ^= 1 << bit;
            let store = MemStore::from_image(&flipped, block_size);
            let noticed = Zap::open(&store).map_or(true, |zap| !zap.check(&store).unwrap().is_clean());
            assert!(noticed, "byte {byte} bit {bit}");
        }
    }
}

/// Headers of slots with all values of three bytes: shapes of the table are accepted, all others are refused by name.
#[test]
fn every_shape_of_slots_is_taken_or_named() {
    let image = images().tiny[0].clone();
    let mut taken = 0;
    for (flags, shift, ints) in (0..=3u8)
        .chain([0x80, 0xff])
        .flat_map(|f| (0..=255u8).flat_map(move |s| (0..=255u8).map(move |i| (f, s, i))))
    {
        let mut lying = image.clone();
        lying.bytes[24..27].copy_from_slice(&[flags, shift, ints]);
        let store = lying.store();
        let in_table = match (shift, ints) {
            (6, 2..=7) | (7, 1..=15) | (8, 1..=31) => flags == 1,
            (0, 0) => flags == 0,
            _ => false,
        };
        match Zap::open(&store) {
            Ok(zap) => {
                assert!(in_table, "flags {flags}, shift {shift}, {ints} integers");
                taken += 1;
                // A shape that fits the bytes by chance is a map of other entries; nothing in the block shows that.
                let clean = zap.check(&store).unwrap().is_clean();
                assert!(clean || (flags, shift, ints) != (1, 6, 3));
            }
            Err(Error::Store(damage)) => {
                assert!(!in_table && damage.at == "block 0" && damage.what.contains("slots"), "{damage}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(taken, 6 + 15 + 31 + 1);
}

/// Wrong content of block 0: another object's block, another part of the ZAP, an older half.
#[test]
fn foreign_and_half_written_blocks_do_not_pass() {
    let Images { micro, tiny, fat, large } = images();
    let mut foreign: Vec<(&str, Vec<u8>)> = vec![
        ("zeros", vec![0; 512]),
        ("ones", vec![0xff; 512]),
        ("text", b"all work and no play makes a dull block\n".repeat(13)[..512].to_vec()),
        ("a leaf", fat.bytes[512..1024].to_vec()),
        ("a pointer table", fat.bytes[256..512].repeat(2)),
        ("the end of slots", [&micro.bytes[64..], &[0; 64]].concat()),
        ("a header moved by a byte", [&[0], &micro.bytes[..511]].concat()),
        ("a header moved by a word", [&[0; 8], &tiny[0].bytes[..504]].concat()),
    ];
    for (_, bytes) in &foreign {
        for count in [1, 2] {
            let store = MemStore::from_image(&bytes.repeat(count), 512);
            assert!(matches!(Zap::open(&store), Err(Error::Store(_))));
        }
    }
    foreign.clear();
    // The first or last half of a sector or of a block, combined with those of another ZAP.
    let all = [&micro, &tiny[0], &tiny[1], &tiny[2], &fat, &large[0], &large[1]];
    for (which, image) in all.iter().enumerate() {
        for other in all.iter().take(which) {
            for cut in [8, 16, 24, 25, 32, 64, 128, 256, 512] {
                let (head, rest) = (&image.bytes[..cut], other.bytes.get(cut..).unwrap_or(&[]));
                exercise(MemStore::from_image(&[head, rest].concat(), image.block_size));
                exercise(MemStore::from_image(&[head, rest].concat(), other.block_size));
            }
        }
        for cut in (0..image.bytes.len().min(4096)).step_by(8) {
            let mut half = Image::clone(image);
            half.bytes[cut..].fill(0);
            exercise(half.store());
        }
    }
}

/// The steps of a doubling would write pointers over leaves; until then only a check finds it.
#[test]
fn a_next_table_laid_over_leaves_is_found_by_a_check() {
    let mut image = images().large[1].clone();
    assert_ne!(image.bytes[16], 0, "the table is a block of its own");
    let next_table = 40..48;
    image.bytes[next_table].copy_from_slice(&1u64.to_le_bytes());
    let store = image.store();
    let damage = Zap::open(&store).unwrap().check(&store).unwrap().damage;
    assert!(damage.iter().any(|d| d.what == "leaf block" && d.expected.contains("next table")), "{damage:?}");
}

/// No code multiplies a damaged count without a check.
#[test]
fn a_fat_zap_that_counts_too_many_entries_shrinks_no_sooner() {
    for count in [1 << 50, u64::MAX / 64, u64::MAX - 1, u64::MAX] {
        let mut image = Image::new(ZapOptions { fat_block_shift: 9, ..ZapOptions::new(5) }, 4, &[1, 2]);
        image.bytes[72..80].copy_from_slice(&count.to_le_bytes());
        let mut store = image.store();
        let mut zap = Zap::open_with(&store, ZapOptions::new(5)).unwrap();
        assert_eq!(zap.remove(&mut store, "name 0"), Ok(true));
        assert_eq!(zap.shrink(&mut store), Ok(false));
        assert_eq!(zap.lookup(&store, "name 1").unwrap().unwrap().ints(), [1, 2]);
    }
}

/// A micro or tiny ZAP is one block, and is no larger than an index can address.
#[test]
fn slots_past_the_end_are_no_slots() {
    for image in [&images().micro, &images().tiny[1]] {
        let two = MemStore::from_image(&image.bytes.repeat(2), 512);
        let Err(Error::Store(damage)) = Zap::open(&two) else { panic!("a second block is not noticed") };
        assert!(damage.what.starts_with("block count"), "{damage}");
        for bytes in [64, 100, 511, 513, 1000, (1 << 20) + 512] {
            let mut odd = image.bytes.clone();
            odd.resize(bytes, 0);
            let Err(Error::Store(damage)) = Zap::open(&MemStore::from_image(&odd, bytes)) else {
                panic!("{bytes} bytes")
            };
            assert_eq!(damage.what, "block size", "{damage}");
        }
    }
}

#[test]
fn circles_and_pointers_to_nowhere_are_named() {
    let Image { bytes: image, block_size } = images().fat;
    let forge = |at: usize, bytes: &[u8]| {
        let mut image = image.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        MemStore::from_image(&image, block_size)
    };
    // The whole embedded table leads to block 0, then to a block far away.
    for target in [0u64, 0x00ff_ffff_ffff] {
        let store = forge(256, &target.to_le_bytes().repeat(32));
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
    let store = MemStore::from_image(&circles, block_size);
    let zap = Zap::open(&store).unwrap();
    let outcomes = (0..3).map(|i| zap.list(&store, Cursor { hash: i << 62, cd: 0 }, 9));
    let named = |o: &Result<_, Error<Corrupt>>| matches!(o, Err(Error::Store(d)) if d.what == "bucket chain");
    assert!(outcomes.into_iter().any(|o| named(&o.map(drop))));
    let damage = zap.check(&store).unwrap().damage;
    assert!(damage.iter().any(|d| d.what == "ENTRY chunk" && d.at.contains("block 1")), "{damage:?}");
}

/// Offsets of the fields of leaf 1 of the second image: 16 buckets, then 18 chunks.
const LEAF: usize = 512;
const CHUNKS: usize = LEAF + 48 + 32;

fn chunk_of_kind(image: &[u8], kind: u8) -> usize {
    (0..18).map(|k| CHUNKS + 24 * k).find(|at| image[*at] == kind).unwrap()
}

/// Damages one field, runs an operation that must refuse it by name, and verifies that nothing was changed.
fn refuses<T: std::fmt::Debug>(
    what: &str,
    forge: impl FnOnce(&mut [u8]),
    run: impl FnOnce(&mut Zap, &mut MemStore) -> Result<T, Error<Corrupt>>,
) {
    let Image { bytes: mut image, block_size } = images().fat;
    forge(&mut image);
    let mut store = MemStore::from_image(&image, block_size);
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
fn a_forged_field_is_found_before_anything_is_changed() {
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
    // 3 entries of 3 chunks leave 9 of 18 free; a leaf with 3 entries could have at most 15.
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
    // A leaf's counts are compared when it is split.
    let nentries = |image: &mut [u8]| image[LEAF + 30] += 1;
    refuses("ENTRY chunks", nentries, |zap, store| {
        let mut copy = store.clone();
        (0..9).try_for_each(|i| zap.add(&mut copy, &format!("more {i}"), &[i]))
    });
}

/// A lookup of the name finds nothing and cannot notice that: only a check can.
#[test]
fn an_entry_in_the_wrong_bucket_is_found_by_a_check() {
    let Image { bytes: mut image, block_size } = images().fat;
    let buckets: Vec<usize> = (LEAF + 48..CHUNKS).step_by(2).collect();
    let used = *buckets.iter().find(|at| image[**at] != 0xff).unwrap();
    let free = *buckets.iter().find(|at| image[**at] == 0xff).unwrap();
    image.copy_within(used..used + 2, free);
    image[used..used + 2].fill(0xff);
    let store = MemStore::from_image(&image, block_size);
    let damage = Zap::open(&store).unwrap().check(&store).unwrap().damage;
    assert_eq!(damage.iter().map(|d| d.what).collect::<Vec<_>>(), ["bucket"]);
}

/// Two leaves; the first has lost its last pointer, which leads to the second.
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
    // Names that meet the lost pointer itself are refused by the leaf's prefix, and a split by the pointer.
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
    fn several_forged_fields_at_once_end_in_an_answer(
        which in 0usize..7,
        forgeries in prop::collection::vec((any::<prop::sample::Index>(), any::<u16>(), 0u8..4), 1..12),
    ) {
        let Images { micro, tiny: [a, b, c], fat, large: [d, e] } = images();
        let Image { bytes: mut image, block_size } = [micro, a, b, c, fat, d, e][which].clone();
        for (place, value, kind) in forgeries {
            let at = place.index(image.len() - 8);
            match kind {
                0 => image[at] = value as u8,
                1 => image[at & !1..][..2].copy_from_slice(&(value % 40).to_le_bytes()),
                2 => image[at & !7..][..8].copy_from_slice(&u64::from(value).to_le_bytes()),
                // Header words, which random offsets rarely hit.
                _ => image[(at % 13) * 8..][..8].copy_from_slice(&u64::from(value % 64).to_le_bytes()),
            }
        }
        exercise(MemStore::from_image(&image, block_size));
    }

    #[test]
    fn random_blocks_end_in_an_answer(
        mut raw in prop::collection::vec(any::<u8>(), 1536),
        fat in any::<bool>(), sane in any::<bool>(),
    ) {
        // With valid first words, or random blocks would never pass them.
        let micro_type = 0x8000_0000_0000_0003u64;
        raw[..8].copy_from_slice(&(if fat { micro_type - 2 } else { micro_type }).to_le_bytes());
        if sane && !fat {
            raw[16..64].fill(0);
        }
        if sane && fat {
            raw[..104].copy_from_slice(&images().fat.bytes[..104]);
            raw[56] = 3;
            raw[256..512].copy_from_slice(&1u64.to_le_bytes().repeat(32));
            raw[512..560].copy_from_slice(&images().fat.bytes[512..560]);
        }
        let block_size = if fat { 512 } else { 1536 };
        exercise(MemStore::from_image(&raw, block_size));
    }
}
