//! From the content of a block to what is stored of it, and back.
//!
//! Encoding compresses and checksums a block, or finds it zero or small enough for its pointer. Decoding is the way back. Each is told
//! by a context whose block it is: what the owner's object set decides beside the properties belongs there. Both are functions of bytes
//! and context, and run on any worker.
//!
//! Invariant: nothing else compresses or decompresses blocks that have a pointer.

use crate::env::Env;
use crate::workers::Workers;
use std::sync::Arc;
use terrane_codec::{
    ChecksumKind, Compression, Compressor, Outcome, ZstdLevel, compute, is_zero, max_stored,
};
use terrane_format::addr::Addr;
use terrane_format::block_ptr::{EMBEDDED_BYTES_MAX, Embedded, Normal};
use terrane_format::directory::Owner;
use terrane_wire::Corrupt;

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
    fn stored(context: &EncodeContext, compression: u8, bytes: Arc<Vec<u8>>) -> Ready {
        let (checksum, crc) = (compute(context.checksum, &bytes), crc32c::crc32c(&bytes));
        Ready::Stored { compression, bytes, checksum, crc }
    }

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
}

/// What decides how a block is stored, beside its content and how it is compressed.
#[derive(Clone, Copy, Debug)]
pub struct EncodeContext {
    /// Whose block it is.
    pub owner: Owner,
    pub checksum: ChecksumKind,
    /// It may be embedded in its pointer.
    pub may_embed: bool,
}

/// What a pointer says of the stored bytes.
#[derive(Clone, Copy, Debug)]
pub struct DecodeContext {
    /// Whose block it is.
    pub owner: Owner,
    compression: u8,
    lsize: u32,
    /// `None`: in the pointer itself.
    addr: Option<Addr>,
}

impl DecodeContext {
    pub fn stored(owner: Owner, normal: &Normal) -> DecodeContext {
        let Normal { compression, lsize, .. } = *normal;
        DecodeContext { owner, compression, lsize, addr: Some(normal.addrs[0]) }
    }

    pub fn embedded(owner: Owner, embedded: &Embedded) -> DecodeContext {
        let Embedded { compression, lsize, .. } = *embedded;
        DecodeContext { owner, compression, lsize, addr: None }
    }

    fn name(&self, corrupt: Corrupt) -> Corrupt {
        match self.addr {
            Some(addr) => corrupt.within(addr),
            None => corrupt.within("embedded block"),
        }
    }
}

/// The one way between content and stored bytes.
pub struct Pipeline {
    workers: Workers,
}

impl Pipeline {
    /// With as many workers as the environment says.
    pub fn new(env: &Arc<dyn Env>) -> Pipeline {
        Pipeline { workers: Workers::new(env) }
    }

    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Compresses a block in this thread, for a group to come.
    pub fn make(&self, data: &Arc<Vec<u8>>, compression: Compression) -> Made {
        self.workers.here(|codec| Made::of(codec, data, compression))
    }

    /// Compresses, embeds or finds zero, and checksums; with a worker's codec.
    pub fn encode(
        context: &EncodeContext,
        codec: &mut Compressor,
        data: &Arc<Vec<u8>>,
        compression: Compression,
    ) -> Ready {
        if is_zero(data) {
            return Ready::Zero;
        }
        let may_embed = context.may_embed;
        let mut out = Vec::new();
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
                return Ready::stored(context, compression.id(), Arc::new(out));
            }
        }
        if may_embed && data.len() <= EMBEDDED_BYTES_MAX {
            return Ready::Embedded { compression: Compression::Off.id(), payload: data.to_vec() };
        }
        Ready::stored(context, Compression::Off.id(), data.clone())
    }

    /// The same of a block that is compressed already. What fits its pointer lies there, as it would if it had been written this way at
    /// first.
    pub fn encode_made(context: &EncodeContext, made: Made) -> Ready {
        if context.may_embed && made.bytes.len() <= EMBEDDED_BYTES_MAX {
            return Ready::Embedded { compression: made.compression, payload: made.bytes.to_vec() };
        }
        Ready::stored(context, made.compression, made.bytes)
    }

    /// The content of stored bytes, which were verified.
    pub fn decode(&self, context: &DecodeContext, stored: &[u8]) -> Result<Vec<u8>, Corrupt> {
        let mut out = Vec::new();
        let decoded = self
            .workers
            .here(|codec| codec.decompress(context.compression, stored, context.lsize as usize, &mut out));
        decoded.map(|()| out).map_err(|corrupt| context.name(corrupt))
    }

    /// The same into memory of the content's size.
    pub fn decode_into(&self, context: &DecodeContext, stored: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
        let decoded = self.workers.here(|codec| codec.decompress_into(context.compression, stored, out));
        decoded.map_err(|corrupt| context.name(corrupt))
    }
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
