//! Inputs of the targets that expand blocks.
//!
//! One is the promised size (`u24`), a form, and the stored block. Bit 6 of the form: the size may be above 64 KiB, which makes an input
//! slow. The lowest two bits: whether the header is taken from the input or made right. A header made right lets the stream itself be
//! judged; one of the input lies about lengths and levels.

use terrane_codec::{BLOCK_BYTES_MAX, Compression, Compressor, GzipLevel, Outcome, ZstdLevel};

pub const LZ4: Compression = Compression::Lz4;
pub const ZLE: Compression = Compression::Zle;
pub const LZJB: Compression = Compression::Lzjb;
pub const GZIP: Compression = Compression::Gzip(GzipLevel::DEFAULT);
pub const ZSTD: Compression = Compression::Zstd(ZstdLevel::DEFAULT);

const LARGE: u8 = 1 << 6;

/// Behind what a decoder is given, to see whether it stays there.
const FENCE: [u8; 64] = [0xa5; 64];

/// Runs one input; a promise that is broken is a panic.
pub fn run(algo: Compression, data: &[u8]) {
    let Some((&[a, b, c, form], stored)) = data.split_first_chunk() else { return };
    let c = if form & LARGE != 0 { c } else { 0 };
    let lsize = (u32::from_le_bytes([a, b, c, 0]) as usize).min(BLOCK_BYTES_MAX);
    let stored = if form % 4 == 0 { stored.to_vec() } else { with_header(algo, stored) };
    let mut codec = Compressor::new();
    let first = expand(&mut codec, algo, &stored, lsize, 0);
    // With other memory, by a context that has done this before.
    let again = expand(&mut codec, algo, &stored, lsize, 0xff);
    assert_eq!(first.is_some(), again.is_some(), "what was expanded before decides");
    let Some(content) = first else { return };
    assert!(Some(&content) == again.as_ref(), "not every byte was written");
    // What can be expanded can be compressed, and comes back.
    let mut made = Vec::new();
    if codec.compress(algo, &content, content.len(), &mut made) == Outcome::Compressed {
        assert!(made.len() <= content.len());
        assert_eq!(expand(&mut codec, algo, &made, lsize, 7), Some(content));
    }
}

fn expand(
    codec: &mut Compressor,
    algo: Compression,
    stored: &[u8],
    lsize: usize,
    fill: u8,
) -> Option<Vec<u8>> {
    let mut out = vec![fill; lsize];
    out.extend(FENCE);
    let done = codec.decompress_into(algo.id(), stored, &mut out[..lsize]);
    assert_eq!(out[lsize..], FENCE, "written past the promised size");
    out.truncate(lsize);
    let mut grown = Vec::new();
    let also = codec.decompress(algo.id(), stored, lsize, &mut grown);
    assert_eq!(done.is_ok(), also.is_ok());
    assert!(grown.capacity() <= lsize, "more memory than was promised");
    if done.is_ok() {
        assert!(grown == out);
        return Some(out);
    }
    None
}

fn with_header(algo: Compression, stream: &[u8]) -> Vec<u8> {
    let len = (stream.len() as u32).to_be_bytes();
    match algo {
        Compression::Lz4 => [&len[..], stream].concat(),
        Compression::Zstd(_) => [&len[..], &[3, 0, 0x29, 0x0b], stream].concat(),
        _ => stream.to_vec(),
    }
}

/// An input of a stored block, as [`run`] takes it apart.
pub fn input(stored: &[u8], lsize: usize) -> Vec<u8> {
    let [a, b, c, _] = (lsize as u32).to_le_bytes();
    [&[a, b, c, if c != 0 { LARGE } else { 0 }][..], stored].concat()
}

/// The target for the vectors of this name's ending.
pub fn target_of(ending: &str) -> Option<&'static str> {
    ["lz4", "zstd", "gzip", "lzjb", "zle"].into_iter().find(|target| {
        ending.strip_prefix(target).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}
