//! Counts blocks that compression gave up: they are stored uncompressed.
//!
//! A *probe* gives a block up before its level is tried (early abort). Otherwise the *encoder* gives up when its output
//! exceeds the limit. Fast levels of zstd notice that early themselves, and need no probe.

use super::algorithm::{Compression, ID_GZIP_1, ID_LZ4, ID_LZJB, ID_ZLE, ID_ZSTD};
use terrane_wire::meter::Counter;

/// Algorithms that give blocks up, levels taken together.
const CODECS: [(&str, u8); 5] =
    [("lzjb", ID_LZJB), ("gzip", ID_GZIP_1), ("zle", ID_ZLE), ("lz4", ID_LZ4), ("zstd", ID_ZSTD)];

/// Which step gave a block up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// The probes, before the level was tried.
    Probe = 0,
    /// The encoder, at its output limit.
    Encoder = 1,
}

impl GaveUp {
    /// Both, in the order of [`GivenUpCodec::by_step`].
    pub const ALL: [GaveUp; 2] = [GaveUp::Probe, GaveUp::Encoder];

    /// The name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            GaveUp::Probe => "probe",
            GaveUp::Encoder => "encoder",
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    blocks: Counter,
    bytes: Counter,
}

/// Counters of blocks that were given up, shared by compressors.
#[derive(Debug, Default)]
pub struct GivenUp {
    by_codec: [[Counters; GaveUp::ALL.len()]; CODECS.len()],
}

/// Blocks that one algorithm gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUpCodec {
    /// The algorithm, without its level.
    pub codec: &'static str,
    /// Number of blocks and their bytes, by [`GaveUp::ALL`].
    pub by_step: [(u64, u64); GaveUp::ALL.len()],
}

impl GivenUp {
    /// Counts a block of this many bytes.
    pub fn count(&self, algo: Compression, by: GaveUp, bytes: usize) {
        let id = match algo {
            Compression::Gzip(_) => ID_GZIP_1,
            other => other.id(),
        };
        for ((_, of), by_step) in CODECS.iter().zip(&self.by_codec) {
            let [probe, encoder] = by_step;
            let counters = if by == GaveUp::Probe { probe } else { encoder };
            if *of == id {
                counters.blocks.add(1);
                counters.bytes.add(bytes as u64);
            }
        }
    }

    /// The numbers so far, by algorithm.
    pub fn snapshot(&self) -> [GivenUpCodec; CODECS.len()] {
        let mut all = CODECS.map(|(codec, _)| GivenUpCodec { codec, by_step: [(0, 0); GaveUp::ALL.len()] });
        for (row, counters) in all.iter_mut().zip(&self.by_codec) {
            row.by_step = counters.each_ref().map(|counters| (counters.blocks.get(), counters.bytes.get()));
        }
        all
    }
}
