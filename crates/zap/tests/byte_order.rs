//! Images of OpenZFS as a machine of the other byte order would have written them.

use crate::swapped::swapped;
use flate2::read::GzDecoder;
use serde_json::Value as Json;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use terrane_zap::{Cursor, Error, Kind, MemStore, Zap, ZapOptions};

fn unpacked(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/zap").join(name);
    let mut raw = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut raw).unwrap();
    raw
}

/// All images but the three largest: id, bytes, block size.
fn images() -> impl Iterator<Item = (String, Vec<u8>, usize)> {
    let manifest: Json = serde_json::from_slice(&unpacked("manifest.json.gz")).unwrap();
    let vectors = manifest["vectors"].as_array().unwrap().clone();
    vectors.into_iter().filter(|v| v["num_entries"].as_u64().unwrap() < 10_000).map(|v| {
        let image = unpacked(v["file"].as_str().unwrap());
        (v["id"].as_str().unwrap().to_owned(), image, v["block_size"].as_u64().unwrap() as usize)
    })
}

#[test]
fn zaps_of_the_other_byte_order_are_read() {
    let mut seen = 0;
    for (id, image, block_size) in images() {
        let ours = MemStore::from_image(&image, block_size);
        let theirs = MemStore::from_image(&swapped(image, block_size), block_size);
        let (here, there) = (Zap::open(&ours).unwrap(), Zap::open(&theirs).unwrap());
        assert_eq!(there.kind(&theirs), here.kind(&ours), "{id}");
        assert_eq!(there.hash_bits(&theirs), here.hash_bits(&ours), "{id}");
        assert_eq!(there.norm(&theirs), here.norm(&ours), "{id}");
        assert_eq!(there.len(&theirs), here.len(&ours), "{id}");
        assert_eq!(there.check(&theirs), here.check(&ours), "{id}");
        let entries = here.list(&ours, Cursor::START, usize::MAX).unwrap();
        assert_eq!(there.list(&theirs, Cursor::START, usize::MAX).as_ref(), Ok(&entries), "{id}");
        let mut visited = 0;
        let whole = there.visit(&theirs, Cursor::START, &mut |_| {
            visited += 1;
            true
        });
        assert_eq!((whole, visited), (Ok(true), entries.len()), "{id}");
        for entry in &entries {
            assert_eq!(there.lookup(&theirs, &entry.key).unwrap().as_ref(), Some(&entry.value), "{id}");
            assert_eq!(there.lookup_u64(&theirs, &entry.key), here.lookup_u64(&ours, &entry.key), "{id}");
            assert_eq!(there.shape(&theirs, &entry.key), here.shape(&ours, &entry.key), "{id}");
            let at = Cursor { hash: entry.hash, cd: entry.cd };
            assert_eq!(there.next(&theirs, at), here.next(&ours, at), "{id}");
        }
        seen += entries.len();
    }
    assert!(seen > 10_000, "{seen}");
}

#[test]
fn a_change_writes_one_block_in_our_order_and_refuses_to_begin_with_many() {
    let (mut slots, mut fat) = (0, 0);
    for (id, image, block_size) in images() {
        let mut ours = MemStore::from_image(&image, block_size);
        let mut theirs = MemStore::from_image(&swapped(image, block_size), block_size);
        let options = ZapOptions { name_bytes_max: 1024, ..ZapOptions::new(1) };
        let mut here = Zap::open_with(&ours, options).unwrap();
        let mut there = Zap::open_with(&theirs, options).unwrap();
        let before = theirs.image();
        if there.kind(&theirs) == Ok(Kind::Fat) {
            fat += 1;
            if let Some((entry, _)) = there.next(&theirs, Cursor::START).unwrap() {
                let key = entry.key;
                assert!(matches!(there.remove(&mut theirs, &key), Err(Error::Unsupported { .. })), "{id}");
                assert!(
                    matches!(there.update(&mut theirs, &key, &[1]), Err(Error::Unsupported { .. })),
                    "{id}"
                );
            }
            assert_eq!(theirs.image(), before, "{id}");
            continue;
        }
        slots += 1;
        assert_eq!(there.add(&mut theirs, "", &[1]), Err(Error::NameInvalid));
        assert_eq!(theirs.image(), before, "{id}");
        // From now on the ZAP equals the original image, byte for byte.
        assert_eq!(there.remove(&mut theirs, "absent"), Ok(false));
        assert_eq!(theirs.image(), ours.image(), "{id}");
        for (name, words) in [("one", &[1][..]), ("two", &[1, 2]), ("one", &[3])] {
            let outcome = here.update(&mut ours, name, words);
            assert_eq!(there.update(&mut theirs, name, words), outcome, "{id}");
        }
        assert_eq!(there.remove(&mut theirs, "two"), here.remove(&mut ours, "two"));
        assert_eq!(theirs.image(), ours.image(), "{id}");
        assert!(there.check(&theirs).unwrap().is_clean());
    }
    assert!(slots > 30 && fat > 10, "{slots} {fat}");
}

#[test]
fn forged_blocks_of_the_other_order_are_named() {
    let image =
        |id: &str| images().find(|(found, ..)| found == id).map(|(_, image, size)| (image, size)).unwrap();
    type Forge = fn(&mut [u8]);
    let forgeries: [(&str, &str, Forge); 6] = [
        ("tiny_64_3", "shape of tiny slots", |raw| raw[25] = 9),
        ("tiny_64_3", "flags of a block of slots", |raw| raw[24] = 2),
        ("tiny_64_3", "salt", |raw| raw[8..16].fill(0)),
        ("fat_collide", "freeblk", |raw| raw[56..64].copy_from_slice(&(1u64 << 40).to_be_bytes())),
        ("fat_collide", "freeblk", |raw| raw[56..64].fill(0)),
        ("fat_collide", "table shift", |raw| raw[39] ^= 1),
    ];
    for (id, what, forge) in forgeries {
        let (image, block_size) = image(id);
        let mut raw = swapped(image, block_size);
        forge(&mut raw);
        let store = MemStore::from_image(&raw, block_size);
        match Zap::open(&store) {
            Err(Error::Store(damage)) => {
                assert_eq!((damage.what, &damage.at[..]), (what, "block 0"), "{damage}")
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    let (micro, block_size) = image("micro_1");
    let twice = MemStore::from_image(&swapped([&micro[..], &micro[..]].concat(), block_size), block_size);
    let Err(Error::Store(damage)) = Zap::open(&twice) else { panic!("two blocks") };
    assert_eq!(damage.what, "block count of a micro or tiny ZAP");
    // A little-endian leaf in a big-endian ZAP: no machine would read it.
    let (ours, block_size) = image("fat_collide");
    let mut raw = swapped(ours.clone(), block_size);
    raw[block_size..].copy_from_slice(&ours[block_size..]);
    let store = MemStore::from_image(&raw, block_size);
    let zap = Zap::open(&store).unwrap();
    assert!(matches!(zap.list(&store, Cursor::START, 9), Err(Error::Store(_))));
    assert!(!zap.check(&store).unwrap().is_clean());
}

#[test]
fn every_bit_flip_ends_in_an_answer() {
    for id in ["micro_1", "tiny_collide"] {
        let (_, image, block_size) = images().find(|(found, ..)| found == id).unwrap();
        let good = swapped(image, block_size);
        for bit in 0..good.len() * 8 {
            let mut raw = good.clone();
            raw[bit / 8] ^= 1 << (bit % 8);
            let mut store = MemStore::from_image(&raw, block_size);
            let Ok(mut zap) = Zap::open_with(&store, ZapOptions::new(1)) else { continue };
            let clean = zap.check(&store).unwrap().is_clean();
            let listed = zap.list(&store, Cursor::START, 99);
            assert!(!clean || listed.is_ok());
            let changed = zap.update(&mut store, "one more", &[1, 2]);
            assert!(!clean || changed == Ok(true), "bit {bit}: {changed:?}");
        }
    }
}
