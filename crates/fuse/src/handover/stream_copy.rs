//! Copies to memory that is not read again soon.
//!
//! A copy of a large write goes to the ring of changes, and nothing reads it unless the server dies. An ordinary copy would
//! first read the old bytes of the ring into the processor's caches, and drive out what is used. Stores that bypass the caches
//! do neither.
#![expect(unsafe_code, reason = "stores that bypass the caches have no safe form")]

/// Below this, the caches hold both sides, and ordinary stores are faster.
const STREAMED_BYTES_MIN: usize = 64 << 10;

/// Copies `from` to `to`. When it returns, later stores of this thread are visible to others only after the copy.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, which do not overlap `from` and which nothing else touches meanwhile.
pub(super) unsafe fn copy(from: &[u8], to: *mut u8) {
    if from.len() >= STREAMED_BYTES_MIN {
        // SAFETY: the same conditions.
        unsafe { copy_streamed(from, to) }
    } else {
        // SAFETY: the same conditions.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn copy_streamed(from: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    /// Bytes of one cache line, so that each line is written in whole.
    const LINE: usize = 64;
    let (head, rest) = from.split_at(to.align_offset(LINE).min(from.len()));
    let (lines, tail) = rest.as_chunks::<LINE>();
    // SAFETY: the caller vouches for all bytes of `to`. Head, lines and tail are those of `from` in order, so their offsets
    // lie within. After the head `to` is aligned to a line, as `_mm_stream_si128` demands of its target. Every x86_64 has SSE2.
    unsafe {
        to.copy_from_nonoverlapping(head.as_ptr(), head.len());
        let mut at = to.add(head.len());
        for line in lines {
            let (from, to) = (line.as_ptr().cast::<__m128i>(), at.cast::<__m128i>());
            let quarters = [0, 1, 2, 3].map(|quarter| _mm_loadu_si128(from.add(quarter)));
            for (quarter, bytes) in quarters.into_iter().enumerate() {
                _mm_stream_si128(to.add(quarter), bytes);
            }
            at = at.add(LINE);
        }
        at.copy_from_nonoverlapping(tail.as_ptr(), tail.len());
        // Such stores are ordered with later ones by this fence alone.
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_streamed(from: &[u8], to: *mut u8) {
    // SAFETY: the same conditions.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_is_copied_and_nothing_beside_it() {
        let from: Vec<u8> = (0..STREAMED_BYTES_MIN + 400).map(|at| (at * 31 + at / 251) as u8).collect();
        let mut to = vec![0xaa_u8; from.len() + 400];
        for shift in 0..70 {
            for len in [
                0,
                1,
                63,
                64,
                STREAMED_BYTES_MIN - 1,
                STREAMED_BYTES_MIN + shift,
                STREAMED_BYTES_MIN + 199 - shift,
            ] {
                let source = &from[shift * 3 % 65..][..len];
                to.fill(0xaa);
                assert!(shift + len <= to.len());
                // SAFETY: the target lies in `to` (asserted), which is borrowed here alone.
                unsafe { copy(source, to.as_mut_ptr().add(shift)) };
                assert!(to[shift..shift + len] == *source, "{shift}, {len}");
                assert!(
                    to[..shift].iter().chain(&to[shift + len..]).all(|byte| *byte == 0xaa),
                    "{shift}, {len}"
                );
            }
        }
    }
}
