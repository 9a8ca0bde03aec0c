//! Making blocks ready: compressed, checksummed, or small enough for their pointer.
//!
//! All of it is a function of the bytes and the properties, and runs on any worker.

use std::sync::Arc;
use terrane_codec::{
    ChecksumKind, Compression, Compressor, Outcome, ZstdLevel, compute, is_zero, max_stored,
};
use terrane_format::block_ptr::EMBEDDED_BYTES_MAX;
use terrane_wire::Writer;

/// A block of at most so many bytes that was stored in at most so many is tried once more, by this level of zstd, to see whether it fits
/// its pointer. A ZAP of ten file identifiers takes 126 bytes by zstd-1: four in five fit by zstd-5, in 4.5 us more; zstd-9 takes 23 and
/// does no better.
const DENSER_BLOCK_MAX: usize = 4 << 10;
const DENSER_STORED_MAX: usize = 160;
const DENSER_LEVEL: u8 = 5;

/// A block made ready by a worker.
pub enum Ready {
    Zero,
    Embedded { compression: u8, payload: Vec<u8> },
    Stored { compression: u8, bytes: Arc<Vec<u8>>, checksum: [u8; 32], crc: u32 },
}

impl Ready {
    /// What it takes, if it is not nothing.
    pub fn stored_bytes(&self) -> Option<u64> {
        match self {
            Ready::Zero => None,
            Ready::Embedded { payload, .. } => Some(payload.len() as u64),
            Ready::Stored { bytes, .. } => Some(bytes.len() as u64),
        }
    }
}

/// A block that was compressed before its group: whoever has time makes it, and the group has only to append it.
#[derive(Clone, Debug)]
pub struct Made {
    /// The algorithm's id.
    compression: u8,
    bytes: Arc<Vec<u8>>,
}

impl Made {
    /// As a group would store these bytes: as they are where compression does not save enough.
    pub fn of(codec: &mut Compressor, data: &Arc<Vec<u8>>, compression: Compression) -> Made {
        let mut out = Vec::new();
        match codec.compress(compression, data, max_stored(data.len()), &mut out) {
            Outcome::Compressed => Made { compression: compression.id(), bytes: Arc::new(out) },
            Outcome::Incompressible => Made { compression: Compression::Off.id(), bytes: data.clone() },
        }
    }

    /// What was stored, once more.
    pub fn as_it_was(compression: u8, bytes: Vec<u8>) -> Made {
        Made { compression, bytes: Arc::new(bytes) }
    }

    /// The algorithm's id.
    pub fn compression(&self) -> u8 {
        self.compression
    }

    pub fn stored_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// What is left to do for the group. What fits its pointer lies there, as it would if it had been written this way at first.
    pub fn ready(self, checksum: ChecksumKind, may_embed: bool) -> Ready {
        if may_embed && self.bytes.len() <= EMBEDDED_BYTES_MAX {
            return Ready::Embedded { compression: self.compression, payload: self.bytes.to_vec() };
        }
        let (checksum, crc) = (compute(checksum, &self.bytes), crc32c::crc32c(&self.bytes));
        Ready::Stored { compression: self.compression, bytes: self.bytes, checksum, crc }
    }
}

/// Compresses, embeds or finds zero, and checksums.
pub fn prepare(
    codec: &mut Compressor,
    data: &Arc<Vec<u8>>,
    compression: Compression,
    checksum: ChecksumKind,
    may_embed: bool,
) -> Ready {
    if is_zero(data) {
        return Ready::Zero;
    }
    let mut out = Vec::new();
    let embeddable = may_embed && data.len() <= EMBEDDED_BYTES_MAX;
    let limit =
        max_stored(data.len()).max(if may_embed { EMBEDDED_BYTES_MAX.min(data.len() - 1) } else { 0 });
    if codec.compress(compression, data, limit, &mut out) == Outcome::Compressed {
        if may_embed && out.len() <= EMBEDDED_BYTES_MAX {
            return Ready::Embedded { compression: compression.id(), payload: out };
        }
        if may_embed && let Some(payload) = embed_denser(codec, data, compression, out.len()) {
            return Ready::Embedded { compression: compression.id(), payload };
        }
        if out.len() <= max_stored(data.len()) {
            let (checksum, crc) = (compute(checksum, &out), crc32c::crc32c(&out));
            return Ready::Stored { compression: compression.id(), bytes: Arc::new(out), checksum, crc };
        }
    }
    if embeddable {
        return Ready::Embedded { compression: Compression::Off.id(), payload: data.to_vec() };
    }
    let (checksum, crc) = (compute(checksum, data), crc32c::crc32c(data));
    Ready::Stored { compression: Compression::Off.id(), bytes: data.clone(), checksum, crc }
}

/// A second try, by a higher level, for a small block that missed its pointer by a little: in the pointer it costs neither a checksum
/// nor an address, and what is like its neighbours' is compressed once more, with the block that the pointer stands in.
fn embed_denser(
    codec: &mut Compressor,
    data: &[u8],
    compression: Compression,
    stored_bytes: usize,
) -> Option<Vec<u8>> {
    let lower = matches!(compression, Compression::Zstd(level) if level.cookie() < DENSER_LEVEL);
    if !lower || data.len() > DENSER_BLOCK_MAX || stored_bytes > DENSER_STORED_MAX {
        return None;
    }
    let denser = Compression::Zstd(ZstdLevel::new(DENSER_LEVEL).expect("5 is a level"));
    let mut out = Vec::new();
    // The library needs more room than what it makes takes in the end.
    let fits = codec.compress(denser, data, data.len() - 1, &mut out) == Outcome::Compressed;
    (fits && out.len() <= EMBEDDED_BYTES_MAX).then_some(out)
}

/// A bootstrap block: compression id, logical size, payload.
pub fn boot_encode(codec: &mut Compressor, raw: &[u8]) -> Vec<u8> {
    let zstd = Compression::Zstd(ZstdLevel::new(3).expect("3 is a level"));
    let mut packed = Vec::new();
    let outcome = codec.compress(zstd, raw, max_stored(raw.len()), &mut packed);
    let (id, body) = if outcome == Outcome::Compressed {
        (zstd.id(), packed.as_slice())
    } else {
        (Compression::Off.id(), raw)
    };
    let mut out = Writer::with_capacity(body.len() + 8);
    out.u32(u32::from(id));
    out.u32(raw.len() as u32);
    out.bytes(body);
    out.into_bytes()
}
