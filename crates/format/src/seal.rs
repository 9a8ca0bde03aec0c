//! Seals: checksums of self-describing structures.
//!
//! A block pointer holds the checksum of its block. Labels, uberblocks, zone headers and directory parts have no parent, so they carry
//! their own checksum. It is seeded with *where and in which life* they were written. So bytes of an earlier filling of the same zone,
//! or of another pool, never validate.

use terrane_codec::{ChecksumKind, compute};
use terrane_wire::Writer;

/// Bytes of a seal.
pub const SEAL_BYTES: usize = 16;

/// Where and in which life a structure was written.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    pub pool: u64,
    /// The zone's sequence number. For anchors, the device id and the number of the anchor.
    pub life: u64,
    /// Offset in the zone in bytes.
    pub offset: u64,
    pub incarnation: u64,
}

/// The seal of the concatenated `parts`, written under `seed`.
pub fn seal(seed: Seed, parts: &[&[u8]]) -> [u8; SEAL_BYTES] {
    let mut raw = Writer::with_capacity(32 + parts.iter().map(|part| part.len()).sum::<usize>());
    for word in [seed.pool, seed.life, seed.offset, seed.incarnation] {
        raw.u64(word);
    }
    for part in parts {
        raw.bytes(part);
    }
    let full = compute(ChecksumKind::Blake3, raw.as_bytes());
    let mut out = [0; SEAL_BYTES];
    out.copy_from_slice(&full[..SEAL_BYTES]);
    out
}
