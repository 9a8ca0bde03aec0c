//! Full entropy: blocks for which an entropy code saves nothing.
//!
//! zstd-1 first replaces repeats, then codes the remaining bytes (literals) by their frequency. For random bytes
//! (keys, hashes, compressed values) that saves nothing and is most of the work: 4.4 us of 6.4 for 340 bytes. The
//! library looks for this itself, but misses it in small blocks. For content that is compressed already, the code
//! saves a little, which is found to be too little only at the block's end. A sample shows that before.

#![expect(clippy::indexing_slicing, reason = "evaluated when compiled")]

use std::num::NonZero;

/// From here on, the code costs about as much as this check, and the library's own check works.
pub const CHECKED_BYTES_MAX: usize = 8 << 10;
/// The library does not code fewer bytes.
pub const CHECKED_BYTES_MIN: usize = 64;

/// Binary logarithm in units of 1/256, rounded down.
const fn log2_256ths(number: NonZero<u32>) -> u32 {
    let whole = number.ilog2();
    // A number from 1 to 2 as fixed point with 30 fraction bits. Its square is at least 2 if the next bit is set.
    let mut rest = ((number.get() as u64) << 30) >> whole;
    let (mut bits, mut done) = (whole, 0);
    while done < 8 {
        rest = (rest * rest) >> 30;
        bits <<= 1;
        if rest >= 2 << 30 {
            rest >>= 1;
            bits += 1;
        }
        done += 1;
    }
    bits
}

const LOG2_TABLE: [u32; CHECKED_BYTES_MAX / 32] = {
    let mut logs = [0; CHECKED_BYTES_MAX / 32];
    let mut at = 1;
    while at < logs.len() {
        if let Some(number) = NonZero::new(at as u32) {
            logs[at] = log2_256ths(number);
        }
        at += 1;
    }
    logs
};

fn log2(count: u32) -> u32 {
    match LOG2_TABLE.get(count as usize) {
        Some(log) => *log,
        None => NonZero::new(count).map_or(0, log2_256ths),
    }
}

/// The sample: pieces spread evenly over the block, a sixteenth of it within these bounds.
const PIECE_BYTES: usize = 512;
const PIECES_MIN: usize = 4;
const PIECES_MAX: usize = 16;

/// A byte histogram, and the length of the best code for the counted bytes.
struct ByteHistogram {
    counts: [u32; 256],
    len: u32,
}

impl ByteHistogram {
    fn new() -> ByteHistogram {
        ByteHistogram { counts: [0; 256], len: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(count) = self.counts.get_mut(usize::from(*byte)) {
                *count += 1;
            }
        }
        self.len += bytes.len() as u32;
    }

    fn distinct(&self) -> usize {
        self.counts.iter().filter(|count| **count > 0).count()
    }

    fn code_bits_256ths(&self) -> u64 {
        let known =
            self.counts.iter().filter(|count| **count > 0).map(|count| u64::from(count * log2(*count)));
        u64::from(self.len) * u64::from(log2(self.len)) - known.sum::<u64>()
    }
}

/// Whether the entropy of a sample leaves more than `max_out` bytes. Then only repeats could make the block fit. True
/// for random bytes, a JPEG, a zstd frame; false where a third is text.
pub fn is_entropy_coded(src: &[u8], max_out: usize) -> bool {
    let pieces = (src.len() / 16 / PIECE_BYTES).clamp(PIECES_MIN, PIECES_MAX);
    let mut census = ByteHistogram::new();
    let starts = (0..pieces).map(|piece| src.len() / pieces * piece);
    starts.for_each(|at| census.add(src.get(at..at + PIECE_BYTES).unwrap_or(&[])));
    let code_bytes = census.code_bits_256ths() / 256 / 8;
    // The limit, scaled to the length of the sample.
    let allowed = u64::from(census.len) * max_out as u64 / (src.len() as u64).max(1);
    code_bytes > allowed
}

/// Whether the best code, with its table, is no shorter than the bytes. It is only computed from [`CHECKED_BYTES_MIN`]
/// to [`CHECKED_BYTES_MAX`], and false for other sizes.
pub fn has_full_entropy(src: &[u8]) -> bool {
    if !(CHECKED_BYTES_MIN..=CHECKED_BYTES_MAX).contains(&src.len()) {
        return false;
    }
    let mut census = ByteHistogram::new();
    census.add(src);
    // The table has about half a byte per distinct value.
    census.code_bits_256ths() / 256 / 8 + census.distinct() as u64 / 2 >= src.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::Prng;

    fn random(len: usize) -> Vec<u8> {
        Prng::new(len as u64).random_bytes(len)
    }

    #[test]
    fn logarithms_are_right_to_a_256th() {
        for number in (1..2000).chain([8191, 8192, 65_535, u32::MAX]) {
            let found = f64::from(log2_256ths(NonZero::new(number).unwrap())) / 256.0;
            let right = f64::from(number).log2();
            assert!((0.0..=1.0 / 256.0 + 1e-9).contains(&(right - found)), "{number}: {found}, not {right}");
        }
        assert_eq!((log2(200), log2(300)), (1956, 2106));
    }

    #[test]
    fn random_bytes_are_noise_and_what_people_write_is_not() {
        for len in [64, 100, 256, 340, 1000, 4096, 8192] {
            assert!(has_full_entropy(&random(len)), "{len}");
            let text: Vec<u8> =
                b"system_u:object_r:httpd_sys_content_t:s0 ".iter().copied().cycle().take(len).collect();
            assert!(!has_full_entropy(&text), "{len}");
            let hex: Vec<u8> =
                random(len).iter().map(|byte| b"0123456789abcdef"[usize::from(byte % 16)]).collect();
            assert!(!has_full_entropy(&hex), "{len}");
        }
        assert!(!has_full_entropy(&random(63)) && !has_full_entropy(&random(8193)), "others are not judged");
        assert!(!has_full_entropy(&[]));
    }

    #[test]
    fn a_sample_tells_what_is_coded_already() {
        let text =
            b"what people write, what people write again and again, and numbers 0123456789 ".repeat(1800);
        for len in [4096, 16 << 10, 128 << 10] {
            let (noise, max) = (random(len), len / 16 * 15);
            assert!(is_entropy_coded(&noise, max), "{len}");
            assert!(!is_entropy_coded(&text[..len], max), "{len}");
            assert!(
                !is_entropy_coded(&[noise, text[..len].to_vec()].concat(), max * 2),
                "{len}: half of it is text"
            );
            // A code of 7.4 bits per byte makes it fit, one of 7.7 does not.
            let few = |symbols: u64| -> Vec<u8> {
                let wide = random(len * 2);
                let pairs = wide.chunks_exact(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1]));
                pairs.map(|number| ((number * symbols) >> 16) as u8).collect()
            };
            assert!(!is_entropy_coded(&few(160), max) && is_entropy_coded(&few(230), max), "{len}");
        }
        assert!(!is_entropy_coded(&[], 0));
    }

    #[test]
    fn what_repeats_is_found_in_noise_too() {
        use crate::{Compression, Compressor, Outcome, compress::algorithm::ZstdLevel, max_stored};
        let (mut codec, zstd) = (Compressor::new(), Compression::Zstd(ZstdLevel::new(1).unwrap()));
        let (mut stored, mut back) = (Vec::new(), Vec::new());
        let once = random(1000);
        let twice = once.repeat(2);
        assert!(has_full_entropy(&twice));
        assert_eq!(codec.compress(zstd, &once, max_stored(1000), &mut stored), Outcome::Incompressible);
        // A block after it is compressed as if it came first.
        for block in [&twice, &b"what people write ".repeat(90), &twice] {
            assert_eq!(
                codec.compress(zstd, block, max_stored(block.len()), &mut stored),
                Outcome::Compressed
            );
            let fresh = &mut Vec::new();
            assert_eq!(
                Compressor::new().compress(zstd, block, max_stored(block.len()), fresh),
                Outcome::Compressed
            );
            assert_eq!(&stored, fresh);
            assert!(stored.len() < block.len() / 2 + 64, "{}", stored.len());
            codec.decompress(zstd.id(), &stored, block.len(), &mut back).unwrap();
            assert_eq!(&back, block);
        }
    }

    #[test]
    fn random_bytes_in_a_frame_of_others_are_noise() {
        // An nvlist with one value, as in a spill block.
        for len in [256, 1024, 4096] {
            let mut block = vec![0; 40];
            block.extend(b"user.fsbench");
            block.extend(random(len));
            block.extend([0; 12]);
            assert!(has_full_entropy(&block), "{len}");
        }
    }
}
