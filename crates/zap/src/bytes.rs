//! Little-endian numbers at computed offsets of one block.
//!
//! Parsers read single fields of a 16 KiB block millions of times per second. The offsets follow from chunk numbers
//! that were checked against the block's geometry. These functions are total nevertheless: a read past the end is 0,
//! and a write past the end does nothing. So a mistake in that check can give a wrong answer, but never a panic.

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

const LOW_BITS: u64 = u64::MAX / 255;

/// Bytes before the first 0, or all bytes if there is none. It compares eight bytes at a time: seven steps for the
/// name of a micro slot, not fifty.
pub(crate) fn len_to_nul(raw: &[u8]) -> usize {
    let (words, rest) = raw.as_chunks::<8>();
    for (word, at) in words.iter().zip((0..).step_by(8)) {
        let word = u64::from_le_bytes(*word);
        // The lowest set bit belongs to the first byte that is 0; higher bits may be wrong.
        let zeros = word.wrapping_sub(LOW_BITS) & !word & (LOW_BITS << 7);
        if zeros != 0 {
            return at + zeros.trailing_zeros() as usize / 8;
        }
    }
    let before = raw.len() - rest.len();
    rest.iter().position(|byte| *byte == 0).map_or(raw.len(), |at| before + at)
}

#[cfg(test)]
mod tests {
    use super::len_to_nul;

    #[test]
    fn the_first_nul_is_found_wherever_it_is() {
        for len in 0..40 {
            for fill in [1, 0x80, 0xff] {
                let raw = vec![fill; len];
                assert_eq!(len_to_nul(&raw), len);
                for first in 0..len {
                    let mut raw = raw.clone();
                    raw[first] = 0;
                    assert_eq!(len_to_nul(&raw), first);
                    for (k, byte) in raw.iter_mut().enumerate().skip(first + 1) {
                        *byte = [0, 1, 0x80][k % 3];
                    }
                    assert_eq!(len_to_nul(&raw), first);
                }
            }
        }
    }
}
