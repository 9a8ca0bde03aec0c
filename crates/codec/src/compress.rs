//! Compressed blocks: their stored form, and the only encoder and decoder.
//!
//! | algorithm | stored bytes |
//! |---|---|
//! | off | the content |
//! | lzjb, zle | a stream of tokens that ends when the block is full |
//! | gzip | a zlib stream |
//! | lz4 | `u32` *n*, then *n* bytes of a raw LZ4 block |
//! | zstd | `u32` *n*, `u32` level cookie << 24 \| library version, then *n* bytes of a zstd frame (see below) |
//!
//! The zstd frame has no magic number, content size, checksum or dictionary id. Numbers in headers are big-endian, as
//! in OpenZFS. Zeros may follow the stream: OpenZFS pads to its allocation unit, Terrane stores the exact size.
//! Anything else there is damage. A reader ignores the library version; it is stored so that a block can be
//! reproduced bit for bit.
//!
//! Not read: zstd blocks of historic big-endian OpenZFS writers, which put the level in the last byte.

pub mod accept;
pub mod algorithm;
mod entropy;
pub mod given_up;
mod gzip;
mod lzjb;
mod zle;

use algorithm::{
    Compression, ID_GZIP_1, ID_GZIP_9, ID_LZ4, ID_LZJB, ID_OFF, ID_ZLE, ID_ZSTD, ZSTD_HEADER_BYTES, ZstdLevel,
};
use given_up::{GaveUp, GivenUp};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::sync::Arc;
use terrane_wire::Corrupt;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

/// Maximum logical size of a block. A pointer that claims more is damaged. This bounds what a decoder allocates.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Maximum input of one compression. Blocks that a pool writes for itself may be longer than blocks of a file.
pub const INPUT_BYTES_MAX: usize = 64 << 20;

const LZ4_HEADER_BYTES: usize = 4;

/// Blocks from this size on are probed before an expensive level is spent on them. Without a probe, incompressible
/// records of 16 KiB went through zstd-19 at 22 MB/s, gzip-9 at 66, lzjb at 420.
pub const PROBE_BYTES_MIN: usize = 4 << 10;
/// The lowest zstd level that is worth a probe. OpenZFS probes from 3.
///
/// Below 10, the library itself gives up on random data at 4-9 GB/s, as soon as its output limit is reached. There a
/// probe costs a third of the time of a block that does compress. From 12 on, random data costs 15-600 MB/s without
/// the probe, and 5600 with it.
///
/// | 128 KiB, zstd-3 | without the probe | with it |
/// |---|---|---|
/// | text, MB/s | 187 | 110 |
/// | random, MB/s | 8561 | 5552 |
pub const PROBE_LEVEL_MIN: i32 = 10;

/// The highest zstd level for content that is coded already but repeats enough to be worth storing compressed. In a
/// JPEG and a file of zstd frames, 1 in 100 records of 128 KiB is such a one. zstd-19 takes 13 to 24 ms for it.
/// zstd-12 takes 2 to 4 ms, for 0.2 to 1.7 % more bytes.
pub const CODED_LEVEL_MAX: i32 = 12;

/// Whether the compressed block is worth storing.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `out` holds the stored bytes.
    Compressed,
    /// The stored form exceeds the limit: store the content uncompressed. `out` is empty.
    Incompressible,
}

/// The compression contexts and scratch memory of one worker.
///
/// To make a zstd context costs 2-7 % of a 128 KiB block and 18 % of an 8 KiB block, so each worker keeps one.
///
/// ```
/// use terrane_codec::{Compression, Compressor, Outcome, max_stored};
/// let (block, mut stored, mut back) = (vec![7u8; 4096], Vec::new(), Vec::new());
/// let mut compressor = Compressor::new();
/// assert_eq!(compressor.compress(Compression::Lz4, &block, max_stored(4096), &mut stored), Outcome::Compressed);
/// compressor.decompress(Compression::Lz4.id(), &stored, 4096, &mut back)?;
/// assert_eq!(back, block);
/// # Ok::<(), terrane_wire::Corrupt>(())
/// ```
pub struct Compressor {
    cctx: Option<CCtx<'static>>,
    dctx: Option<DCtx<'static>>,
    // Two tables: a table that was widened for a large block stays wide. The same small block would then be
    // compressed to other bytes than before.
    lz4_small: Box<CompressTable>,
    lz4_large: Box<CompressTable>,
    lzjb: Box<lzjb::Table>,
    gzip: gzip::Contexts,
    /// Output of lz4 and of probes, at its worst-case size: the encoder takes no limit.
    scratch: Vec<u8>,
    given_up: Arc<GivenUp>,
}

fn compression_context() -> CCtx<'static> {
    let mut cctx = CCtx::create();
    for parameter in [
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
    ] {
        cctx.set_parameter(parameter).expect("a fresh context takes every parameter of its own library");
    }
    cctx
}

fn decompression_context() -> DCtx<'static> {
    let mut dctx = DCtx::create();
    dctx.set_parameter(DParameter::Format(FrameFormat::Magicless))
        .expect("a fresh context takes every parameter of its own library");
    dctx
}

impl Default for Compressor {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").field("scratch_bytes", &self.scratch.len()).finish_non_exhaustive()
    }
}

impl Compressor {
    /// Allocates the tables of lz4 and lzjb. Contexts of zstd and gzip, and scratch memory, follow on first use: imports make
    /// compressors for few blocks, or for none.
    pub fn new() -> Self {
        Self::counting(Arc::default())
    }

    /// As [`Compressor::new`]. Blocks of at least [`PROBE_BYTES_MIN`] that are given up are counted in `given_up`.
    pub fn counting(given_up: Arc<GivenUp>) -> Self {
        Compressor {
            cctx: None,
            dctx: None,
            lz4_small: Box::new(CompressTable::small()),
            lz4_large: Box::new(CompressTable::large()),
            lzjb: Box::new([0; 1024]),
            gzip: gzip::Contexts::default(),
            scratch: Vec::new(),
            given_up,
        }
    }

    /// Compresses one block into `out`, whose content is replaced, if the stored form with its header has at most
    /// `max_out` bytes. `max_out` is the caller's rule, usually [`max_stored`](accept::max_stored). `Off` never
    /// compresses, nor does a block over [`INPUT_BYTES_MAX`].
    ///
    /// **Probes.** For lzjb, gzip, and zstd from level [`PROBE_LEVEL_MIN`] on, blocks of at least [`PROBE_BYTES_MIN`]
    /// are probed first. The probes are lz4 and then zstd-1, for lzjb lz4 alone. If no probe meets the limit, the
    /// level is not tried. The idea is OpenZFS's early abort. A block that only a high level brings below the limit
    /// is rare, and saves little more than the limit asks for.
    ///
    /// **Coded content.** For gzip, and for zstd from level 1 on, a sample of such a block shows whether its bytes are
    /// coded already (a JPEG, a zstd frame). Then lz4 alone decides. If it finds enough repeats, zstd works
    /// at most at [`CODED_LEVEL_MAX`], though the header names the level asked for.
    pub fn compress(&mut self, algo: Compression, src: &[u8], max_out: usize, out: &mut Vec<u8>) -> Outcome {
        let mut gave_up = GaveUp::Encoder;
        let done = match algo {
            _ if src.is_empty() || src.len() > INPUT_BYTES_MAX => None,
            Compression::Off => None,
            Compression::Zle => zle::compress(src, max_out, out),
            Compression::Lz4 => self.lz4(src, max_out, out),
            _ => match (self.probe(algo, src, max_out, out), algo) {
                (ProbeResult::Incompressible, _) => {
                    gave_up = GaveUp::Probe;
                    None
                }
                (_, Compression::Lzjb) => lzjb::compress(src, max_out, &mut self.lzjb, out),
                (_, Compression::Gzip(level)) => self.gzip.compress(level, src, max_out, out),
                (ProbeResult::RepeatsOnly, Compression::Zstd(level)) => {
                    self.zstd(level, level.level().min(CODED_LEVEL_MAX), src, max_out, out)
                }
                (_, Compression::Zstd(level)) => self.zstd(level, level.level(), src, max_out, out),
                (_, Compression::Off | Compression::Zle | Compression::Lz4) => None,
            },
        };
        match done {
            Some(()) => Outcome::Compressed,
            None => {
                if algo != Compression::Off && (PROBE_BYTES_MIN..=INPUT_BYTES_MAX).contains(&src.len()) {
                    self.given_up.count(algo, gave_up, src.len());
                }
                out.clear();
                Outcome::Incompressible
            }
        }
    }

    /// Decompresses a stored block into `out`, which then holds exactly `lsize` bytes. `compression_id` is the
    /// pointer's.
    ///
    /// # Errors
    /// An unknown id, a wrong header, a damaged stream, a size other than `lsize`, or more than [`BLOCK_BYTES_MAX`].
    /// Then `out` is empty.
    pub fn decompress(
        &mut self,
        compression_id: u8,
        stored: &[u8],
        lsize: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let result = if lsize > BLOCK_BYTES_MAX {
            // Checked before memory is allocated.
            Err(corrupt("logical size", format_args!("at most {BLOCK_BYTES_MAX}"), lsize))
        } else {
            // Not cleared first: bytes of the last block need not be zeroed only to be overwritten. A decoder that
            // returns another size than `lsize` is an error, so no such byte is ever seen.
            if out.capacity() < lsize {
                // Fresh pages are zero already.
                *out = vec![0; lsize];
            } else {
                out.resize(lsize, 0);
            }
            self.decompress_into(compression_id, stored, out)
        };
        if result.is_err() {
            out.clear();
        }
        result
    }

    /// As [`Compressor::decompress`], into memory of exactly the logical size. After an error the content of `out` is
    /// undefined.
    pub fn decompress_into(
        &mut self,
        compression_id: u8,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        let produced = match compression_id {
            ID_OFF => {
                let (content, tail) = stored.split_at_checked(out.len()).ok_or_else(|| {
                    corrupt("stored size", format_args!("at least {}", out.len()), stored.len())
                })?;
                check_padding(tail)?;
                out.copy_from_slice(content);
                out.len()
            }
            ID_LZJB => {
                check_padding(lzjb::decompress(stored, out)?)?;
                out.len()
            }
            ID_GZIP_1..=ID_GZIP_9 => {
                check_padding(self.gzip.decompress(stored, out)?)?;
                out.len()
            }
            ID_ZLE => {
                check_padding(zle::decompress(stored, out)?)?;
                out.len()
            }
            ID_LZ4 => {
                let (n, rest) = split_be32(stored)?;
                let stream = split_stream(n, rest)?;
                decompress_into(stream, out).map_err(|e| corrupt("lz4 stream", "valid", e))?
            }
            ID_ZSTD => {
                let (n, rest) = split_be32(stored)?;
                let (word, rest) = split_be32(rest)?;
                let [cookie, ..] = word.to_be_bytes();
                ZstdLevel::from_cookie(cookie)
                    .ok_or_else(|| corrupt("zstd level", "1 to 19 or 103 to 123", cookie))?;
                let stream = split_stream(n, rest)?;
                let dctx = self.dctx.get_or_insert_with(decompression_context);
                dctx.decompress(out, stream)
                    .map_err(|code| corrupt("zstd stream", "valid", zstd_safe::get_error_name(code)))?
            }
            other => {
                return Err(corrupt(
                    "compression id",
                    "2 (off), 3 (lzjb), 5 to 13 (gzip), 14 (zle), 15 (lz4) or 16 (zstd)",
                    other,
                ));
            }
        };
        if produced != out.len() {
            return Err(corrupt("decompressed size", out.len(), produced));
        }
        Ok(())
    }

    fn lz4(&mut self, src: &[u8], max_out: usize, out: &mut Vec<u8>) -> Option<()> {
        let stream = self.lz4_stream(src)?;
        if stream.len() > max_out.checked_sub(LZ4_HEADER_BYTES)? {
            return None;
        }
        out.clear();
        out.extend_from_slice(&u32::try_from(stream.len()).ok()?.to_be_bytes());
        out.extend_from_slice(stream);
        Some(())
    }

    fn lz4_stream(&mut self, src: &[u8]) -> Option<&[u8]> {
        let worst = get_maximum_output_size(src.len());
        if self.scratch.len() < worst {
            self.scratch.resize(worst, 0);
        }
        let table = if src.len() < usize::from(u16::MAX) { &mut self.lz4_small } else { &mut self.lz4_large };
        let len = compress_into_with_table(src, &mut self.scratch, table).ok()?;
        self.scratch.get(..len)
    }

    /// Compresses at level `effort`; the header names `level`.
    fn zstd(
        &mut self,
        level: ZstdLevel,
        effort: i32,
        src: &[u8],
        max_out: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let room = max_out.min(src.len()).checked_sub(ZSTD_HEADER_BYTES)?;
        // A block that did not fit left its session open. Parameters can only be set between sessions.
        let cctx = self.cctx.get_or_insert_with(compression_context);
        cctx.reset(ResetDirective::SessionOnly).ok()?;
        cctx.set_parameter(CParameter::CompressionLevel(effort)).ok()?;
        // With the strategy of level 1, a target length of 1 stores literals uncoded, as negative levels do. 0 is the
        // level's own value.
        let as_they_are = effort == 1 && entropy::has_full_entropy(src);
        cctx.set_parameter(CParameter::TargetLength(u32::from(as_they_are))).ok()?;
        // Not cleared first, so a reused buffer is not zeroed only to be overwritten.
        out.resize(ZSTD_HEADER_BYTES + room, 0);
        let (header, stream) = out.split_at_mut_checked(ZSTD_HEADER_BYTES)?;
        // The library stops as soon as the output is full. That makes incompressible data cheap.
        let len = cctx.compress2(stream, src).ok()?;
        let word = u32::from(level.cookie()) << 24 | zstd_safe::version_number() & 0x00ff_ffff;
        let (n, version) = header.split_at_mut_checked(4)?;
        n.copy_from_slice(&u32::try_from(len).ok()?.to_be_bytes());
        version.copy_from_slice(&word.to_be_bytes());
        out.truncate(ZSTD_HEADER_BYTES + len);
        Some(())
    }

    /// Probes with lz4, then with zstd-1. lz4 alone is used for lzjb, which finds no more than lz4, and for coded
    /// content, where only repeats can save bytes. Below [`PROBE_LEVEL_MIN`], only coded content is probed. `out` is
    /// used as scratch memory.
    fn probe(&mut self, algo: Compression, src: &[u8], max_out: usize, out: &mut Vec<u8>) -> ProbeResult {
        let level = if let Compression::Zstd(level) = algo { level.level() } else { i32::MAX };
        if level < 1 || src.len() < PROBE_BYTES_MIN {
            return ProbeResult::Promising;
        }
        let is_coded = algo != Compression::Lzjb && entropy::is_entropy_coded(src, max_out);
        if level < PROBE_LEVEL_MIN && !is_coded {
            return ProbeResult::Promising;
        }
        if self.lz4_stream(src).is_some_and(|stream| LZ4_HEADER_BYTES + stream.len() < max_out) {
            return if is_coded { ProbeResult::RepeatsOnly } else { ProbeResult::Promising };
        }
        if is_coded || algo == Compression::Lzjb {
            return ProbeResult::Incompressible;
        }
        let Some(cheapest) = ZstdLevel::new(1) else { return ProbeResult::Promising };
        match self.zstd(cheapest, cheapest.level(), src, max_out, out) {
            Some(()) => ProbeResult::Promising,
            None => ProbeResult::Incompressible,
        }
    }
}

/// Result of the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeResult {
    Incompressible,
    /// Repeats save enough, and nothing else can be saved.
    RepeatsOnly,
    Promising,
}

/// Names no place: the caller knows which block it is, and puts that in front.
fn corrupt(what: &'static str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Corrupt {
    Corrupt::new("compressed block", what, expected, found)
}

fn split_be32(raw: &[u8]) -> Result<(u32, &[u8]), Corrupt> {
    let (head, rest) = raw
        .split_first_chunk::<4>()
        .ok_or_else(|| corrupt("stored size", "large enough for the header", raw.len()))?;
    Ok((u32::from_be_bytes(*head), rest))
}

/// The stream that a header announces. All bytes after it must be zero.
fn split_stream(n: u32, rest: &[u8]) -> Result<&[u8], Corrupt> {
    let too_long = || corrupt("stream length", format_args!("at most {}", rest.len()), n);
    let n = usize::try_from(n).map_err(|_| too_long())?;
    let (stream, tail) = rest.split_at_checked(n).ok_or_else(too_long)?;
    check_padding(tail)?;
    Ok(stream)
}

fn check_padding(tail: &[u8]) -> Result<(), Corrupt> {
    if accept::is_zero(tail) { Ok(()) } else { Err(corrupt("padding", "zero", "nonzero bytes")) }
}

#[cfg(test)]
mod tests;
