//! Checksums: is this the block that the pointer names, and is it whole?
//!
//! A block's checksum lies in the pointer to it, never beside the block. So a misdirected or lost write is found as
//! surely as damage. All kinds have 32 bytes.
//!
//! The default for data and metadata is BLAKE3, by measurement (`cargo bench -p terrane-codec`, see the table at
//! [`ChecksumKind`]; a shared two-core AVX-512 Xeon, MB/s of one core). It is cryptographic, so equal checksums mean
//! equal content (`nopwrite`, deduplication, shared blocks). It costs a few percent of compressing the same block
//! with zstd-3. fletcher4 finds accidents, not forgeries.

use crate::compress::algorithm::PropertyError;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Accepted values of the property `checksum`. There is no `off`: every read is verified.
pub const VALID: &str = "on, blake3, sha256, fletcher4";

/// The property `checksum`, and the id in block pointers (OpenZFS's numbers).
///
/// | MB/s of one core | 4 KiB | 128 KiB |
/// |---|---|---|
/// | blake3 | 3084 | 5771 |
/// | sha256 | 1342 | 1350 |
/// | fletcher4 | 7350 | 7125 |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    /// BLAKE3 without a key, 32 bytes of output: cryptographic. Id 14.
    #[default]
    Blake3,
    /// SHA-256 (FIPS 180-4): cryptographic. Id 8.
    Sha256,
    /// Four 64-bit running sums over 32-bit words: not cryptographic, finds accidents only. Id 7.
    Fletcher4,
}

impl ChecksumKind {
    /// The id in block pointers.
    pub fn id(self) -> u8 {
        match self {
            ChecksumKind::Fletcher4 => 7,
            ChecksumKind::Sha256 => 8,
            ChecksumKind::Blake3 => 14,
        }
    }

    /// The kind of a block pointer's id: 7, 8 or 14; `None` for others.
    pub fn from_id(id: u8) -> Option<Self> {
        [ChecksumKind::Fletcher4, ChecksumKind::Sha256, ChecksumKind::Blake3]
            .into_iter()
            .find(|kind| kind.id() == id)
    }

    /// Whether equal checksums mean equal content, even against an attacker who wants a collision.
    pub fn is_cryptographic(self) -> bool {
        match self {
            ChecksumKind::Blake3 | ChecksumKind::Sha256 => true,
            ChecksumKind::Fletcher4 => false,
        }
    }
}

impl FromStr for ChecksumKind {
    type Err = PropertyError;

    fn from_str(word: &str) -> Result<Self, PropertyError> {
        match word {
            "on" => Ok(ChecksumKind::default()),
            "blake3" => Ok(ChecksumKind::Blake3),
            "sha256" => Ok(ChecksumKind::Sha256),
            "fletcher4" => Ok(ChecksumKind::Fletcher4),
            _ => Err(PropertyError::unknown("checksum", word, VALID)),
        }
    }
}

impl fmt::Display for ChecksumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChecksumKind::Blake3 => "blake3",
            ChecksumKind::Sha256 => "sha256",
            ChecksumKind::Fletcher4 => "fletcher4",
        })
    }
}

/// The checksum of `raw` in its stored form.
pub fn compute(kind: ChecksumKind, raw: &[u8]) -> [u8; 32] {
    match kind {
        ChecksumKind::Blake3 => *blake3::hash(raw).as_bytes(),
        ChecksumKind::Sha256 => Sha256::digest(raw).into(),
        ChecksumKind::Fletcher4 => fletcher4(raw),
    }
}

/// Four running sums over little-endian 32-bit words, each the sum of the one before, modulo 2^64. A last word that
/// is cut short is padded with zeros: OpenZFS's blocks are whole sectors, ours are as long as their content. The sums
/// are stored little-endian, in order.
///
/// Source: J. Fletcher, "An arithmetic checksum for serial transmissions", 1982, with four sums as in ZFS.
fn fletcher4(raw: &[u8]) -> [u8; 32] {
    let mut sums = [0u64; 4];
    let mut add = |word: u32| {
        let [a, b, c, d] = &mut sums;
        *a = a.wrapping_add(u64::from(word));
        *b = b.wrapping_add(*a);
        *c = c.wrapping_add(*b);
        *d = d.wrapping_add(*c);
    };
    let (words, tail) = raw.as_chunks::<4>();
    for word in words {
        add(u32::from_le_bytes(*word));
    }
    if !tail.is_empty() {
        add(tail.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)));
    }
    let mut stored = [0; 32];
    for (place, sum) in stored.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
        *place = sum.to_le_bytes();
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [ChecksumKind; 3] = [ChecksumKind::Blake3, ChecksumKind::Sha256, ChecksumKind::Fletcher4];

    fn hex(raw: [u8; 32]) -> String {
        raw.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn known_sums_of_abc() {
        assert_eq!(
            hex(compute(ChecksumKind::Sha256, b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(compute(ChecksumKind::Blake3, b"abc")),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
        let word = u64::from(u32::from_le_bytes(*b"abc\0"));
        let expected: Vec<u8> = [word; 4].iter().flat_map(|sum| sum.to_le_bytes()).collect();
        assert_eq!(compute(ChecksumKind::Fletcher4, b"abc"), *expected);
    }

    #[test]
    fn names_and_ids_come_back() {
        for kind in ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(ChecksumKind::from_id(kind.id()), Some(kind));
        }
        assert_eq!("on".parse(), Ok(ChecksumKind::Blake3));
        assert_eq!((0..=255).filter(|&id| ChecksumKind::from_id(id).is_some()).count(), 3);
        let refusal = "off".parse::<ChecksumKind>().unwrap_err();
        assert!(refusal.to_string().contains("fletcher4"), "{refusal}");
    }

    proptest! {
        /// The closed form: word i of n counts 1, n-i, C(n-i+1, 2) and C(n-i+2, 3) times.
        #[test]
        fn fletcher4_is_its_definition(raw in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut padded = raw.clone();
            padded.resize(raw.len().next_multiple_of(4), 0);
            let n = padded.len() as u128 / 4;
            let mut sums = [0u128; 4];
            for (i, word) in padded.chunks(4).enumerate() {
                let (w, k) = (u128::from(u32::from_le_bytes(word.try_into().unwrap())), n - i as u128);
                for (sum, times) in sums.iter_mut().zip([1, k, k * (k + 1) / 2, k * (k + 1) * (k + 2) / 6]) {
                    *sum += w * times;
                }
            }
            let expected: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()[..8].to_vec()).collect();
            prop_assert_eq!(&compute(ChecksumKind::Fletcher4, &raw)[..], &expected[..]);
        }

        #[test]
        fn one_flipped_bit_changes_every_kind(raw in prop::collection::vec(any::<u8>(), 1..300), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut damaged = raw.clone();
            damaged[at.index(raw.len())] ^= 1 << bit;
            for kind in ALL {
                prop_assert_ne!(compute(kind, &raw), compute(kind, &damaged));
            }
        }
    }
}
