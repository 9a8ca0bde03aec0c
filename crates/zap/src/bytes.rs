//! Little-endian numbers at computed offsets of one block.
//!
//! Parsers here look at single fields of a 16 KiB block millions of times a second, at offsets that follow from
//! chunk numbers which were compared with the block's geometry first. These functions are total all the same: a
//! read past the end is 0 and a write past the end does nothing, so that a mistake in that comparison can
//! become a wrong answer but never a panic.

pub(crate) fn get_u16(raw: &[u8], at: usize) -> u16 {
    raw.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_le_bytes(*b))
}

pub(crate) fn get_u32(raw: &[u8], at: usize) -> u32 {
    raw.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b))
}

pub(crate) fn get_u64(raw: &[u8], at: usize) -> u64 {
    raw.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b))
}

pub(crate) fn put(raw: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = raw.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

pub(crate) fn put_u16(raw: &mut [u8], at: usize, value: u16) {
    put(raw, at, &value.to_le_bytes());
}

pub(crate) fn put_u64(raw: &mut [u8], at: usize, value: u64) {
    put(raw, at, &value.to_le_bytes());
}
