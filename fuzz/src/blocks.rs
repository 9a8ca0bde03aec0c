//! Inputs of the targets that decompress blocks.
//!
//! An input is the promised size (`u24`), a form, and the stored block. Bit 6 of the form allows sizes above 64 KiB, which make an
//! input slow. The two lowest bits say whether the header comes from the input or is made valid. A valid header exercises the stream
//! itself; a header from the input may lie about lengths and levels.

use terrane_codec::{BLOCK_BYTES_MAX, Compression, Compressor, GzipLevel, Outcome, ZstdLevel};

pub const LZ4: Compression = Compression::Lz4;
pub const ZLE: Compression = Compression::Zle;
pub const LZJB: Compression = Compression::Lzjb;
pub const GZIP: Compression = Compression::Gzip(GzipLevel::DEFAULT);
pub const ZSTD: Compression = Compression::Zstd(ZstdLevel::DEFAULT);

const LARGE: u8 = 1 << 6;

/// Guard bytes behind the output, to detect writes past its end.
const FENCE: [u8; 64] = [0xa5; 64];

/// Runs one input. Panics if a promise is broken.
pub fn run(algo: Compression, data: &[u8]) {
    let Some((&[a, b, c, form], stored)) = data.split_first_chunk() else { return };
    let c = if form & LARGE != 0 { c } else { 0 };
    let lsize = (u32::from_le_bytes([a, b, c, 0]) as usize).min(BLOCK_BYTES_MAX);
    let stored = if form % 4 == 0 { stored.to_vec() } else { with_header(algo, stored) };
    let mut codec = Compressor::new();
    let first = decompress(&mut codec, algo, &stored, lsize, 0);
    // Again, with a different memory fill and a used context.
    let again = decompress(&mut codec, algo, &stored, lsize, 0xff);
    assert_eq!(first.is_some(), again.is_some(), "the result depends on earlier calls");
    let Some(content) = first else { return };
    assert!(Some(&content) == again.as_ref(), "some bytes of the output were not written");
    // Decompressed content can be compressed again, and comes back.
    let mut made = Vec::new();
    if codec.compress(algo, &content, content.len(), &mut made) == Outcome::Compressed {
        assert!(made.len() <= content.len());
        assert_eq!(decompress(&mut codec, algo, &made, lsize, 7), Some(content));
    }
}

fn decompress(
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
    assert!(grown.capacity() <= lsize, "more memory than the promised size");
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

/// Builds an input from a stored block, in the layout that [`run`] expects.
pub fn input(stored: &[u8], lsize: usize) -> Vec<u8> {
    let [a, b, c, _] = (lsize as u32).to_le_bytes();
    [&[a, b, c, if c != 0 { LARGE } else { 0 }][..], stored].concat()
}

/// The target for vectors with this file name ending.
pub fn target_of(ending: &str) -> Option<&'static str> {
    ["lz4", "zstd", "gzip", "lzjb", "zle"].into_iter().find(|target| {
        ending.strip_prefix(target).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}
