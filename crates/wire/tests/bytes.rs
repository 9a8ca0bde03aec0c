//! Reader and writer: what is written comes back, and nothing else is read.

use proptest::prelude::*;
use terrane_wire::{Reader, Truncated, Writer};

/// One value, as it is written.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    Varint(u64),
    Signed(i64),
    Blob(Vec<u8>),
    Bytes(Vec<u8>),
}

impl Value {
    fn write(&self, to: &mut Writer) {
        match self {
            Value::U8(value) => to.u8(*value),
            Value::U16(value) => to.u16(*value),
            Value::U32(value) => to.u32(*value),
            Value::U64(value) => to.u64(*value),
            Value::Varint(value) => to.varint(*value),
            Value::Signed(value) => to.varint_signed(*value),
            Value::Blob(value) => to.blob(value),
            Value::Bytes(value) => to.bytes(value),
        }
    }

    /// Reads a value of the same kind, and of the same length where the bytes do not tell it.
    fn read(&self, from: &mut Reader<'_>) -> Result<Value, Truncated> {
        Ok(match self {
            Value::U8(_) => Value::U8(from.u8()?),
            Value::U16(_) => Value::U16(from.u16()?),
            Value::U32(_) => Value::U32(from.u32()?),
            Value::U64(_) => Value::U64(from.u64()?),
            Value::Varint(_) => Value::Varint(from.varint()?),
            Value::Signed(_) => Value::Signed(from.varint_signed()?),
            Value::Blob(_) => Value::Blob(from.blob()?.to_vec()),
            Value::Bytes(value) => Value::Bytes(from.bytes(value.len())?.to_vec()),
        })
    }
}

/// Numbers of all lengths, not mostly long ones.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift)
}

fn value() -> impl Strategy<Value = Value> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<u16>().prop_map(Value::U16),
        any::<u32>().prop_map(Value::U32),
        any::<u64>().prop_map(Value::U64),
        number().prop_map(Value::Varint),
        number().prop_map(|number| Value::Signed(number.cast_signed())),
        bytes().prop_map(Value::Blob),
        bytes().prop_map(Value::Bytes),
    ]
}

fn written(values: &[Value]) -> Vec<u8> {
    let mut writer = Writer::new();
    values.iter().for_each(|value| value.write(&mut writer));
    writer.into_bytes()
}

proptest! {
    #[test]
    fn values_come_back(values in prop::collection::vec(value(), 0..20)) {
        let raw = written(&values);
        let mut reader = Reader::new(&raw);
        for (at, value) in values.iter().enumerate() {
            prop_assert_eq!(value.read(&mut reader), Ok(value.clone()));
            prop_assert_eq!(reader.offset(), written(&values[..=at]).len());
            prop_assert_eq!(reader.offset() + reader.remaining(), raw.len());
        }
        prop_assert!(reader.is_empty());
    }

    /// Values before the cut come back. The first one that it hits is refused, and the cursor stays before it.
    #[test]
    fn a_cut_value_is_refused(values in prop::collection::vec(value(), 1..20), cut in any::<prop::sample::Index>()) {
        let raw = written(&values);
        prop_assume!(!raw.is_empty());
        let raw = &raw[..cut.index(raw.len())];
        let hit = (0..values.len()).find(|at| written(&values[..=*at]).len() > raw.len());
        let hit = hit.expect("the cut hits a value");
        let mut reader = Reader::new(raw);
        for value in &values[..hit] {
            prop_assert_eq!(value.read(&mut reader), Ok(value.clone()));
        }
        let start = written(&values[..hit]).len();
        let refused = values[hit].read(&mut reader).expect_err("bytes are missing");
        prop_assert_eq!((refused.offset, reader.offset()), (start, start));
    }

    #[test]
    fn a_count_is_refused_unless_that_many_items_can_follow(
        count in number(),
        item_bytes in 0usize..100,
        more in 0usize..2000,
    ) {
        let mut writer = Writer::new();
        writer.varint(count);
        let start = writer.len();
        writer.bytes(&vec![7; more]);
        let raw = writer.into_bytes();
        let mut reader = Reader::new(&raw);
        let fits = u128::from(count) * item_bytes.max(1) as u128 <= more as u128;
        match reader.count(item_bytes) {
            Ok(found) => {
                prop_assert!(fits);
                prop_assert_eq!((found as u64, reader.offset()), (count, start));
            }
            Err(refused) => {
                prop_assert!(!fits);
                prop_assert_eq!((refused.offset, reader.offset()), (0, 0));
            }
        }
    }
}

#[test]
fn a_varint_takes_a_byte_for_each_seven_bits() {
    let len = |value| written(&[Value::Varint(value)]).len();
    assert_eq!((len(0), len(1), len(u64::MAX)), (1, 1, 10));
    for bytes in 1..10 {
        let first_longer = 1u64 << (7 * bytes);
        assert_eq!((len(first_longer - 1), len(first_longer)), (bytes, bytes + 1), "{bytes} bytes");
    }
}

#[test]
fn small_numbers_of_either_sign_are_short() {
    for (value, raw) in [(0, 0), (-1, 1), (1, 2), (-2, 3), (63, 126), (-64, 127)] {
        assert_eq!(written(&[Value::Signed(value)]), [raw], "{value}");
    }
    for value in [64, -65, i64::MAX, i64::MIN] {
        let raw = written(&[Value::Signed(value)]);
        assert!(raw.len() > 1);
        assert_eq!(Reader::new(&raw).varint_signed(), Ok(value));
    }
}

#[test]
fn numbers_are_little_endian() {
    let mut writer = Writer::with_capacity(15);
    writer.u8(1);
    writer.u16(0x0302);
    writer.u32(0x0706_0504);
    writer.u64(0x0f0e_0d0c_0b0a_0908);
    assert_eq!(writer.as_bytes(), (1..=15).collect::<Vec<u8>>());
}

#[test]
fn a_number_that_is_cut_names_its_place_and_length() {
    let raw = [0xff; 9];
    let after = |skipped: usize| {
        let mut reader = Reader::new(&raw);
        reader.bytes(skipped).expect("there are as many");
        reader
    };
    let refused = |offset, needed| Truncated { offset, needed };
    assert_eq!(after(9).u8(), Err(refused(9, 1)));
    assert_eq!(after(8).u16(), Err(refused(8, 2)));
    assert_eq!(after(6).u32(), Err(refused(6, 4)));
    assert_eq!(after(2).u64(), Err(refused(2, 8)));
    assert_eq!(after(0).array::<10>(), Err(refused(0, 10)));
    assert_eq!(after(1).u64(), Ok(u64::MAX));
    // More than any slice has.
    assert_eq!(after(3).bytes(usize::MAX), Err(refused(3, usize::MAX)));
    assert_eq!(refused(2, 8).to_string(), "truncated: 8 bytes expected at offset 2");
}

#[test]
fn a_varint_without_an_end_is_refused_where_it_begins() {
    for raw in [&[0x80][..], &[0xff; 9], &[0xff; 10], &[0xff; 40]] {
        let mut reader = Reader::new(raw);
        assert_eq!(reader.varint().map_err(|refused| refused.offset), Err(0), "{raw:?}");
        assert_eq!(reader.offset(), 0, "{raw:?}");
    }
}

#[test]
fn a_blob_longer_than_the_rest_is_refused() {
    for len in [4, 1 << 20, u64::MAX / 2, u64::MAX] {
        let mut writer = Writer::new();
        writer.varint(len);
        writer.bytes(b"abc");
        let raw = writer.into_bytes();
        let mut reader = Reader::new(&raw);
        assert!(reader.blob().is_err(), "{len}");
        assert_eq!(reader.offset(), 0, "{len}");
    }
    assert_eq!(Reader::new(b"\x03abc").blob(), Ok(&b"abc"[..]));
    assert_eq!(Reader::new(b"\x00").blob(), Ok(&b""[..]));
}

#[test]
fn the_rest_is_taken_once() {
    let mut reader = Reader::new(b"abcd");
    assert_eq!(reader.u8(), Ok(b'a'));
    assert_eq!((reader.rest(), reader.rest()), (&b"bcd"[..], &b""[..]));
    assert!(reader.is_empty() && reader.remaining() == 0 && reader.u8().is_err());
    assert_eq!(reader.bytes(0), Ok(&b""[..]));
}

#[test]
fn padding_is_of_zeros_and_only_where_it_is_needed() {
    let mut writer = Writer::new();
    writer.pad_to(512);
    assert!(writer.is_empty());
    writer.bytes(&[7; 513]);
    writer.pad_to(512);
    assert_eq!(writer.len(), 1024);
    assert!(writer.as_bytes()[513..].iter().all(|byte| *byte == 0));
    writer.pad_to(16);
    assert_eq!(writer.len(), 1024);
}
