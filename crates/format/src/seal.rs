//! Checksums of structures that describe themselves.
//!
//! Block pointers hold the checksum of what they point at. Labels, uberblocks, zone headers and directory parts have no
//! parent: they carry their own checksum, seeded with everything that says *where and in which life* they were
//! written, so that bytes of an earlier life of the same zone, or of another pool, never validate.

use terrane_codec::{ChecksumKind, compute};
use terrane_wire::Writer;

/// Bytes of a seal.
pub const SEAL_BYTES: usize = 16;

/// Where and in which life a structure was written.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    pub pool: u64,
    /// The zone's sequence number; for anchors the device number and which anchor it is.
    pub life: u64,
    /// Offset in the zone in bytes.
    pub offset: u64,
    pub incarnation: u64,
}

/// The seal of `parts`, one after the other, written under `seed`.
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
