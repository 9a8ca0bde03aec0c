//! Seals: checksums of self-describing structures.
//!
//! A block pointer holds the checksum of its block. Labels, uberblocks, zone headers and directory parts have no parent, so they carry
//! their own checksum. It is seeded with *where, and in which filling,* they were written. So bytes of an earlier filling of the same zone,
//! or of another pool, never validate.

use terrane_codec::{ChecksumKind, compute};
use terrane_wire::Writer;

/// Bytes of a seal.
pub const SEAL_BYTES: usize = 16;

/// Where, and in which filling, a structure was written.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    /// Id of the pool in the label.
    pub pool: u64,
    /// The zone's sequence number. For anchors, the device id and the number of the anchor.
    pub scope: u64,
    /// Offset in the zone in bytes.
    pub offset: u64,
    /// The incarnation that wrote the structure. For anchors the anchor generation, for batches of a cache device the lap.
    pub incarnation: u64,
}

/// The seal of the concatenated `pieces`, written under `seed`.
pub fn seal(seed: Seed, pieces: &[&[u8]]) -> [u8; SEAL_BYTES] {
    let mut raw = Writer::with_capacity(32 + pieces.iter().map(|piece| piece.len()).sum::<usize>());
    for word in [seed.pool, seed.scope, seed.offset, seed.incarnation] {
        raw.u64(word);
    }
    for piece in pieces {
        raw.bytes(piece);
    }
    let full = compute(ChecksumKind::Blake3, raw.as_bytes());
    let mut out = [0; SEAL_BYTES];
    out.copy_from_slice(&full[..SEAL_BYTES]);
    out
}
