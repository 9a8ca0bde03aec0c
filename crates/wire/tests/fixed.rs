//! Structures of fixed layout, unit types, and findings of damage.

use proptest::prelude::*;
use terrane_wire::{BlockNo, Corrupt, DeviceIdx, Field, ObjectId, Row, Txg, ZoneIdx, ZoneSeq, layout};

layout! {
    /// Every kind of field.
    Sample, 40 bytes {
        0 magic: [u8; 4],
        4 small: u16,
        6 tiny: u8,
        7 flag: u8,
        8 signed: i64,
        16 txg: Txg,
        24 zone: ZoneIdx,
        28 pairs: [[u16; 2]; 3],
    }
}

layout! {
    /// A structure in a structure.
    Outer, 48 bytes {
        0 number: u64,
        8 inner: Sample,
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    (
        any::<[u8; 4]>(),
        any::<u16>(),
        any::<u8>(),
        any::<u8>(),
        any::<i64>(),
        any::<u64>(),
        any::<u32>(),
        any::<[[u16; 2]; 3]>(),
    )
        .prop_map(|(magic, small, tiny, flag, signed, txg, zone, pairs)| Sample {
            magic,
            small,
            tiny,
            flag,
            signed,
            txg: Txg(txg),
            zone: ZoneIdx(zone),
            pairs,
        })
}

proptest! {
    #[test]
    fn structures_come_back(inner in sample(), number in any::<u64>()) {
        prop_assert_eq!(Sample::decode(&inner.encode()), Some(inner));
        let outer = Outer { number, inner };
        let raw = outer.encode();
        prop_assert_eq!(Outer::decode(&raw), Some(outer));
        prop_assert_eq!(&raw[8..], &inner.encode()[..]);
        prop_assert_eq!(&raw[..8], &number.to_le_bytes()[..]);
    }

    /// No byte is lost or read twice.
    #[test]
    fn all_bytes_come_back(raw in any::<[u8; 40]>(), at in 0usize..40, mask in 1u8..) {
        let before = Sample::decode(&raw).expect("enough bytes");
        prop_assert_eq!(before.encode(), raw);
        let mut changed = raw;
        changed[at] ^= mask;
        prop_assert_ne!(Sample::decode(&changed), Some(before));
    }
}

#[test]
fn a_structure_is_stored_at_its_offsets_in_little_endian() {
    let sample = Sample {
        magic: *b"ABCD",
        small: 0x0201,
        tiny: 3,
        flag: 4,
        signed: -2,
        txg: Txg(5),
        zone: ZoneIdx(6),
        pairs: [[7, 8], [9, 10], [11, 0x0d0c]],
    };
    let mut expected = b"ABCD\x01\x02\x03\x04".to_vec();
    expected.extend([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    expected.extend([5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0]);
    expected.extend([7, 0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 13]);
    assert_eq!(sample.encode()[..], expected);
}

#[test]
fn rows_tell_offset_size_name_and_type() {
    let row = |offset, size, name, kind| Row { offset, size, name, kind };
    let expected = [
        row(0, 4, "magic", "[u8; 4]"),
        row(4, 2, "small", "u16"),
        row(6, 1, "tiny", "u8"),
        row(7, 1, "flag", "u8"),
        row(8, 8, "signed", "i64"),
        row(16, 8, "txg", "Txg"),
        row(24, 4, "zone", "ZoneIdx"),
        row(28, 12, "pairs", "[[u16; 2]; 3]"),
    ];
    assert_eq!(Sample::ROWS, expected);
    assert_eq!((Sample::SIZE, <Sample as Field>::SIZE, Outer::ROWS[1].size), (40, 40, 40));
}

#[test]
fn decoding_takes_a_prefix_and_a_field_all_bytes() {
    let raw = [9; 41];
    assert_eq!(Sample::decode(&raw), Sample::decode(&raw[..40]));
    assert!(Sample::decode(&raw).is_some());
    assert_eq!(Sample::decode(&raw[..39]), None);
    assert_eq!(Sample::decode(&[]), None);
    assert_eq!(<Sample as Field>::get(&raw), None);
    assert_eq!((u32::get(&raw[..3]), u32::get(&raw[..5])), (None, None));
    assert_eq!(u32::get(&raw[..4]), Some(0x0909_0909));
    assert_eq!(<[u16; 2]>::get(&raw[..5]), None);
}

#[test]
fn a_place_of_another_length_is_not_written() {
    let sample = Sample::decode(&[9; 40]).expect("enough bytes");
    for len in [0, 1, 3, 5, 39, 41] {
        let mut place = vec![1; len];
        sample.put(&mut place);
        0x0909_0909u32.put(&mut place);
        [0x0909u16; 2].put(&mut place);
        Txg(9).put(&mut place);
        assert!(place.iter().all(|byte| *byte == 1), "{len} bytes");
    }
}

#[test]
fn units_are_stored_and_printed_as_their_numbers() {
    let mut raw = [0; 8];
    ZoneSeq(0x0102_0304_0506_0708).put(&mut raw);
    assert_eq!(raw, [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(ZoneSeq::get(&raw), Some(ZoneSeq(0x0102_0304_0506_0708)));
    assert_eq!((<ZoneIdx as Field>::SIZE, <DeviceIdx as Field>::SIZE, <BlockNo as Field>::SIZE), (4, 2, 8));
    assert_eq!(format!("{} {:>4} {:03}", Txg(7), ZoneIdx(12), ObjectId(5)), "7   12 005");
    assert!(Txg(9) < Txg(10) && Txg::default() == Txg(0));
}

#[test]
fn txgs_do_not_go_below_the_first() {
    assert_eq!((Txg(7).next(), Txg(7).minus(3), Txg(7).minus(7)), (Txg(8), Txg(4), Txg(0)));
    assert_eq!((Txg(7).minus(8), Txg(0).minus(u64::MAX)), (Txg(0), Txg(0)));
}

#[test]
fn the_mask_of_object_numbers_leaves_sixteen_bits() {
    assert_eq!(ObjectId::MASK, 0x0000_ffff_ffff_ffff);
    assert_eq!((ObjectId::MASK + 1).trailing_zeros(), ObjectId::BITS);
}

#[test]
fn a_finding_names_its_places_from_the_outside_in() {
    let inner = Corrupt::new("", "psize", "at most 16384", 70_000);
    let block = inner.within("granule 80");
    assert_eq!(block.at, "granule 80");
    let zone = block.within(format_args!("device {} zone {}", DeviceIdx(0), ZoneIdx(12)));
    assert_eq!(zone.to_string(), "device 0 zone 12, granule 80: psize should be at most 16384, found 70000");
}
