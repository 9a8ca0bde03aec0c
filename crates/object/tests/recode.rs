//! Records change their stored form; content and space accounting stay correct.

use crate::support::{COST, create, file_of, noise, sim, spec};
use terrane_codec::{Compression, Compressor};
use terrane_format::BlockPtr;
use terrane_object::ObjectSpec;
use terrane_store::pipeline::PreEncoded;
use terrane_txg::cost::Cost;

#[test]
fn recoded_block_keeps_its_content_until_the_next_write() {
    let device = sim(71);
    let world = create(&device, 71);
    let lines = (0..3000).map(|line| format!("what is stored in another form reads as before {line:3}; "));
    let text = lines.collect::<String>().into_bytes();
    let spec = ObjectSpec { block_size: 16 << 10, ..spec(8, None) };
    let object = {
        let tx = world.pool.begin(Cost { write_bytes: 1 << 20, ..COST }).unwrap();
        let object = world.set.create(&tx, spec).unwrap();
        object.write(&tx, 0, &text).unwrap();
        object
    };
    world.set.commit().unwrap();
    let zstd: Compression = "zstd-9".parse().unwrap();
    let id_of = |block| match object.stored_block(block).unwrap().unwrap().0 {
        BlockPtr::Normal(normal) => normal.compression,
        other => panic!("{other:?}"),
    };
    let recode = |block: u64| {
        let (ptr, content) = object.stored_block(block).unwrap().unwrap();
        let encoded = PreEncoded::compress(&mut Compressor::new(), &content, zstd);
        assert_eq!(encoded.compression(), zstd.id());
        let tx = world.pool.begin(COST).unwrap();
        object.recode_block(&tx, block, (&ptr, content), encoded).unwrap()
    };
    let lz4 = Compression::Lz4.id();
    assert_eq!([id_of(0), id_of(1), id_of(2)], [lz4; 3]);
    for block in 0..3 {
        assert!(recode(block));
        assert!(object.stored_block(block).unwrap().is_none(), "it is under way");
    }
    // In the same txg, a part of one is overwritten, and another one is freed.
    let tx = world.pool.begin(COST).unwrap();
    object.write(&tx, (16 << 10) + 5, b"WRITTEN").unwrap();
    object.free_block(&tx, 2).unwrap();
    drop(tx);
    world.set.commit().unwrap();
    assert_eq!(
        [id_of(0), id_of(1), id_of(3)],
        [zstd.id(), lz4, lz4],
        "only what was not changed has the new form"
    );
    assert!(object.stored_block(2).unwrap().is_none());
    let mut expected = text.clone();
    expected[(16 << 10) + 5..][..7].copy_from_slice(b"WRITTEN");
    expected[32 << 10..48 << 10].fill(0);
    let mut found = vec![0; text.len()];
    object.read(0, &mut found).unwrap();
    assert!(found == expected);
    // The next write follows the set's policy.
    let tx = world.pool.begin(COST).unwrap();
    object.write(&tx, 0, b"written").unwrap();
    drop(tx);
    world.set.commit().unwrap();
    assert_eq!(id_of(0), lz4);
    let account = world.set.account().unwrap();
    assert!(account.physical_bytes < account.logical_bytes);
}

#[test]
fn rewritten_large_file_reports_its_new_size() {
    let device = sim(11);
    let world = create(&device, 11);
    world.pool.commit().unwrap();
    let object = file_of(&world, 1000);
    let dnode = object.dnode();
    assert!(dnode.levels > 2, "the canary: its tree is freed at once");
    let each = dnode.used / 1000;
    let tx = world.pool.begin(COST).unwrap();
    object.truncate(&tx, 0).unwrap();
    (0..10).for_each(|record| object.write(&tx, record * 512, &noise(record, 512)).unwrap());
    drop(tx);
    world.pool.commit().unwrap();
    let used = object.dnode().used;
    assert!((10 * 512..20 * each + 16 * 1024).contains(&used), "{used} bytes for ten records of {each}");
}

#[test]
fn recoded_block_may_be_embedded() {
    let device = sim(72);
    let world = create(&device, 72);
    let text = b"abc".repeat(60_000);
    let object = {
        let tx = world.pool.begin(Cost { write_bytes: 1 << 20, ..COST }).unwrap();
        let object = world.set.create(&tx, ObjectSpec { block_size: 64 << 10, ..spec(8, None) }).unwrap();
        object.write(&tx, 0, &text).unwrap();
        object
    };
    world.set.commit().unwrap();
    for block in 0..3 {
        let (ptr, content) = object.stored_block(block).unwrap().unwrap();
        assert!(matches!(ptr, BlockPtr::Normal(_)), "lz4 takes some 270 bytes");
        let encoded = PreEncoded::compress(&mut Compressor::new(), &content, "zstd-9".parse().unwrap());
        let tx = world.pool.begin(COST).unwrap();
        assert!(object.recode_block(&tx, block, (&ptr, content), encoded).unwrap());
    }
    world.set.commit().unwrap();
    for block in 0..3 {
        assert!(object.stored_block(block).unwrap().is_none(), "no block is stored");
    }
    let mut found = vec![0; text.len()];
    object.read(0, &mut found).unwrap();
    assert!(found == text);
    assert_eq!(world.pool.check_tables(), vec![]);
}
