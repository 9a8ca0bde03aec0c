//! The pipeline: from the content of a block to its stored form, and back.
//!
//! Encoding compresses and checksums a block. A block of zeros becomes a hole, and a very small one is embedded in its pointer.
//! Decoding is the way back. A context names the owner of the block, which decides what its properties do not. Both are functions of
//! bytes and context, and run on any worker.
//!
//! Invariant: no other code compresses or decompresses blocks that have a pointer.

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

/// A block of at most `DENSER_BLOCK_MAX` bytes that compressed to at most `DENSER_STORED_MAX` is compressed again at this zstd level,
/// to see whether it fits its pointer. A ZAP of ten file identifiers takes 126 bytes by zstd-1. With zstd-5 four in five fit, for 4.5
/// us more. zstd-9 takes 23 us and does no better.
const DENSER_BLOCK_MAX: usize = 4 << 10;
const DENSER_STORED_MAX: usize = 160;
const DENSER_LEVEL: u8 = 5;

/// An encoded block, ready to append.
pub enum EncodedBlock {
    /// A hole: all bytes are 0.
    Zero,
    /// Small enough for its pointer.
    Embedded {
        /// The id of the compression algorithm.
        compression: u8,
        /// The compressed bytes.
        payload: Vec<u8>,
    },
    /// A block to append.
    Stored {
        /// The id of the compression algorithm.
        compression: u8,
        /// The bytes to append.
        bytes: Arc<Vec<u8>>,
        /// Checksum of `bytes`, of the kind that the context names.
        checksum: [u8; 32],
        /// CRC-32C of `bytes`.
        crc: u32,
    },
}

impl EncodedBlock {
    fn stored(context: &EncodeContext, compression: u8, bytes: Arc<Vec<u8>>) -> EncodedBlock {
        let (checksum, crc) = (compute(context.checksum, &bytes), crc32c::crc32c(&bytes));
        EncodedBlock::Stored { compression, bytes, checksum, crc }
    }

    /// Its stored bytes. `None` for a hole.
    pub fn stored_bytes(&self) -> Option<u64> {
        match self {
            EncodedBlock::Zero => None,
            EncodedBlock::Embedded { payload, .. } => Some(payload.len() as u64),
            EncodedBlock::Stored { bytes, .. } => Some(bytes.len() as u64),
        }
    }
}

/// A block that was compressed before its txg, by a thread with time to spare. The sync thread only appends it.
#[derive(Clone, Debug)]
pub struct PreEncoded {
    /// The id of the compression algorithm.
    compression: u8,
    bytes: Arc<Vec<u8>>,
}

impl PreEncoded {
    /// Compresses as a txg would. The bytes stay uncompressed if compression does not save enough.
    pub fn compress(codec: &mut Compressor, data: &Arc<Vec<u8>>, compression: Compression) -> PreEncoded {
        let mut out = Vec::new();
        match codec.compress(compression, data, max_stored(data.len()), &mut out) {
            Outcome::Compressed => PreEncoded { compression: compression.id(), bytes: Arc::new(out) },
            Outcome::Incompressible => PreEncoded { compression: Compression::Off.id(), bytes: data.clone() },
        }
    }

    /// The stored form of an existing block, to be stored again unchanged.
    pub fn already_stored(compression: u8, bytes: Vec<u8>) -> PreEncoded {
        PreEncoded { compression, bytes: Arc::new(bytes) }
    }

    /// The id of the compression algorithm.
    pub fn compression(&self) -> u8 {
        self.compression
    }

    /// Bytes after compression.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// What decides how a block is stored, apart from its content and compression.
#[derive(Clone, Copy, Debug)]
pub struct EncodeContext {
    /// The owner of the block.
    pub owner: Owner,
    /// The checksum that its pointer will hold.
    pub checksum: ChecksumKind,
    /// Whether the block may be embedded in its pointer.
    pub may_embed: bool,
}

/// What a pointer says about the stored bytes.
#[derive(Clone, Copy, Debug)]
pub struct DecodeContext {
    /// The owner of the block.
    pub owner: Owner,
    compression: u8,
    lsize: u32,
    /// `None`: embedded in the pointer.
    addr: Option<Addr>,
}

impl DecodeContext {
    /// For a block that was appended.
    pub fn stored(owner: Owner, normal: &Normal) -> DecodeContext {
        let Normal { compression, lsize, .. } = *normal;
        DecodeContext { owner, compression, lsize, addr: Some(normal.addrs[0]) }
    }

    /// For a block inside its pointer.
    pub fn embedded(owner: Owner, embedded: &Embedded) -> DecodeContext {
        let Embedded { compression, lsize, .. } = *embedded;
        DecodeContext { owner, compression, lsize, addr: None }
    }

    /// Bytes of the content.
    pub(crate) fn lsize(&self) -> usize {
        self.lsize as usize
    }

    /// The content of these stored bytes.
    pub(crate) fn decompress(&self, codec: &mut Compressor, stored: &[u8]) -> Result<Vec<u8>, Corrupt> {
        let mut out = Vec::new();
        let decoded = codec.decompress(self.compression, stored, self.lsize(), &mut out);
        decoded.map(|()| out).map_err(|corrupt| self.name(corrupt))
    }

    fn name(&self, corrupt: Corrupt) -> Corrupt {
        match self.addr {
            Some(addr) => corrupt.within(addr),
            None => corrupt.within("embedded block"),
        }
    }
}

/// The only code that converts between content and stored bytes.
pub struct Pipeline {
    workers: Workers,
}

impl Pipeline {
    /// Starts as many workers as the environment says.
    pub fn new(env: &Arc<dyn Env>) -> Pipeline {
        Pipeline { workers: Workers::new(env) }
    }

    /// The threads that run the pipeline.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Compresses a block on this thread, for a later txg.
    pub fn pre_encode(&self, data: &Arc<Vec<u8>>, compression: Compression) -> PreEncoded {
        self.workers.run_inline(|codec| PreEncoded::compress(codec, data, compression))
    }

    /// Detects zeros, compresses, embeds and checksums, with a worker's codec.
    pub fn encode(
        context: &EncodeContext,
        codec: &mut Compressor,
        data: &Arc<Vec<u8>>,
        compression: Compression,
    ) -> EncodedBlock {
        if is_zero(data) {
            return EncodedBlock::Zero;
        }
        let may_embed = context.may_embed;
        let mut out = Vec::new();
        let limit =
            max_stored(data.len()).max(if may_embed { EMBEDDED_BYTES_MAX.min(data.len() - 1) } else { 0 });
        if codec.compress(compression, data, limit, &mut out) == Outcome::Compressed {
            if may_embed && out.len() <= EMBEDDED_BYTES_MAX {
                return EncodedBlock::Embedded { compression: compression.id(), payload: out };
            }
            if may_embed && let Some(payload) = embed_denser(codec, data, compression, out.len()) {
                return EncodedBlock::Embedded { compression: compression.id(), payload };
            }
            if out.len() <= max_stored(data.len()) {
                return EncodedBlock::stored(context, compression.id(), Arc::new(out));
            }
        }
        if may_embed && data.len() <= EMBEDDED_BYTES_MAX {
            return EncodedBlock::Embedded { compression: Compression::Off.id(), payload: data.to_vec() };
        }
        EncodedBlock::stored(context, Compression::Off.id(), data.clone())
    }

    /// Like [`encode`](Pipeline::encode), for a block that is compressed already. If it fits its pointer it is embedded, as a new block
    /// would be.
    pub fn finish_pre_encoded(context: &EncodeContext, pre_encoded: PreEncoded) -> EncodedBlock {
        if context.may_embed && pre_encoded.bytes.len() <= EMBEDDED_BYTES_MAX {
            return EncodedBlock::Embedded {
                compression: pre_encoded.compression,
                payload: pre_encoded.bytes.to_vec(),
            };
        }
        EncodedBlock::stored(context, pre_encoded.compression, pre_encoded.bytes)
    }

    /// Decompresses stored bytes that were verified.
    pub fn decode(&self, context: &DecodeContext, stored: &[u8]) -> Result<Vec<u8>, Corrupt> {
        self.workers.run_inline(|codec| context.decompress(codec, stored))
    }

    /// Like [`decode`](Pipeline::decode), into memory of exactly the content's size.
    pub fn decode_into(&self, context: &DecodeContext, stored: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
        let decoded =
            self.workers.run_inline(|codec| codec.decompress_into(context.compression, stored, out));
        decoded.map_err(|corrupt| context.name(corrupt))
    }
}

/// Compresses a small block again at a higher level if it nearly fits its pointer. An embedded block needs no checksum and no address.
/// What it has in common with its neighbours is compressed once more, with the indirect block that holds the pointer.
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
    // The library needs a larger buffer than its final output.
    let fits = codec.compress(denser, data, data.len() - 1, &mut out) == Outcome::Compressed;
    (fits && out.len() <= EMBEDDED_BYTES_MAX).then_some(out)
}
