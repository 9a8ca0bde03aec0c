//! gzip: a zlib stream, at one of nine levels.
//!
//! The compressed bytes depend on the library, so tests compare only the content with OpenZFS's. The stream marks its
//! own end, and has a checksum of the content.

use super::algorithm::GzipLevel;
use super::corrupt;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use terrane_wire::Corrupt;

/// Contexts, made on first use: a quarter of a megabyte for each level in use.
#[derive(Default)]
pub struct Contexts {
    levels: [Option<Compress>; 9],
    decompressor: Option<Decompress>,
}

impl Contexts {
    /// Compresses `src` into `out`, whose content is replaced. `None` if it takes more than `max_out` bytes.
    pub fn compress(
        &mut self,
        level: GzipLevel,
        src: &[u8],
        max_out: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let context = self.levels.get_mut(usize::from(level.number()) - 1)?;
        let context = context
            .get_or_insert_with(|| Compress::new(flate2::Compression::new(level.number().into()), true));
        context.reset();
        // Not cleared first, so a reused buffer is not zeroed only to be overwritten.
        out.resize(max_out.min(src.len()), 0);
        // Stops before the end of the input as soon as the output is full.
        let status = context.compress(src, out, FlushCompress::Finish).ok()?;
        out.truncate(usize::try_from(context.total_out()).ok()?);
        (status == Status::StreamEnd).then_some(())
    }

    /// Decompresses into `out`, which must be filled exactly, and returns the bytes after the stream.
    pub fn decompress<'a>(&mut self, stream: &'a [u8], out: &mut [u8]) -> Result<&'a [u8], Corrupt> {
        let context = self.decompressor.get_or_insert_with(|| Decompress::new(true));
        context.reset(true);
        let status = context.decompress(stream, out, FlushDecompress::Finish);
        let status = status.map_err(|error| corrupt("gzip stream", "valid", error))?;
        let produced = context.total_out();
        if status != Status::StreamEnd || produced != out.len() as u64 {
            let found = format_args!(
                "{produced} and {}",
                if status == Status::StreamEnd { "its end mark" } else { "no end mark" }
            );
            return Err(corrupt("gzip stream", format_args!("{} bytes and its end mark", out.len()), found));
        }
        let end = usize::try_from(context.total_in()).ok();
        end.and_then(|end| stream.get(end..))
            .ok_or_else(|| corrupt("end of the gzip stream", "inside the block", "beyond it"))
    }
}
