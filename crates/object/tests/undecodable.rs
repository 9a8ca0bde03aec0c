//! Records that match their checksums and cannot be decompressed: they were damaged in memory before they had one.

use crate::support::{COST, create, import, sim, spec};
use std::sync::Arc;
use terrane_codec::Compression;
use terrane_format::Owner;
use terrane_object::ObjectSpec;
use terrane_store::pipeline::PreEncoded;

const RECORD: u64 = 16 << 10;

#[test]
fn a_small_write_into_an_undecodable_record_is_reported_and_stops_nothing_else() {
    let device = sim(1);
    let world = create(&device, 1);
    let tx = world.pool.begin(COST).unwrap();
    let object = world.set.create(&tx, ObjectSpec { block_size: RECORD as u32, ..spec(0, None) }).unwrap();
    let mut bytes: Vec<u8> = (0..3 * RECORD).map(|n| (n / 40) as u8).collect();
    object.write(&tx, 0, &bytes).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    let tx = world.pool.begin(COST).unwrap();
    let (ptr, content) = object.stored_block(1).unwrap().unwrap();
    // It says that the stream is longer than the record.
    let damaged = PreEncoded::already_stored(Compression::Lz4.id(), vec![0xff; 3000]);
    assert!(object.recode_block(&tx, 1, (&ptr, content), damaged).unwrap());
    drop(tx);
    world.pool.commit().unwrap();
    world.pool.drop_cache();
    assert!(!object.has_lost_changes());

    let tx = world.pool.begin(COST).unwrap();
    for block in 0..3 {
        let at = block * RECORD + 100;
        assert!(object.write_part(&tx, at, b"new bytes").unwrap(), "record {block}");
        bytes[at as usize..][..9].copy_from_slice(b"new bytes");
    }
    // What is new can be read, the rest of the record cannot.
    let mut read = [0; 9];
    object.read(RECORD + 100, &mut read).unwrap();
    assert_eq!(&read, b"new bytes");
    let is_corrupt = |error: terrane_object::ObjectError| {
        let text = error.to_string();
        assert!(text.contains("compressed block"), "{text}");
    };
    is_corrupt(object.read(RECORD, &mut [0; 200]).unwrap_err());
    drop(tx);
    // The commit drops that write alone, and says so.
    world.pool.commit().unwrap();
    assert!(object.has_lost_changes());
    assert_eq!(world.set.lost_changes(), 1);
    let noted: Vec<_> = world.pool.errors().blocks.iter().map(|block| block.owner).collect();
    let is_record = |owner: &Owner| matches!(owner, Owner::Block { object: of, level: 0, block: 1, .. } if *of == object.id().0);
    assert!(noted.len() == 1 && noted.iter().all(is_record), "{noted:?}");

    let id = object.id();
    let compare = |object: &Arc<terrane_object::Object>| {
        for block in [0, 2] {
            let mut read = vec![0; RECORD as usize];
            object.read(block * RECORD, &mut read).unwrap();
            assert!(read == bytes[(block * RECORD) as usize..][..RECORD as usize], "record {block}");
        }
        is_corrupt(object.read(RECORD + 100, &mut [0; 9]).unwrap_err());
    };
    compare(&object);
    world.pool.export().unwrap();
    let world = import(&device, 2);
    let object = world.set.hold(id).unwrap();
    compare(&object);
    // A whole record can still be written.
    let tx = world.pool.begin(COST).unwrap();
    object.write(&tx, RECORD, &vec![7; RECORD as usize]).unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    let mut read = vec![0; RECORD as usize];
    object.read(RECORD, &mut read).unwrap();
    assert!(read == vec![7; RECORD as usize]);
}
