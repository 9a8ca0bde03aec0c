//! Compression ratios of a file in Terrane and in OpenZFS, from the same compressed blocks.
//!
//! OpenZFS must save an eighth in whole sectors of 4 KiB, and stores whole sectors. Terrane must save a sixteenth,
//! and stores granules of 16 bytes. The zstd blocks of both are the same byte for byte.
//! `cargo bench -p terrane-codec --bench ratio -- FILE`; without a file it measures this program.

use clap::Parser;
use std::path::PathBuf;
use terrane_codec::compress::accept::{GRANULE_BYTES, max_stored_openzfs};
use terrane_codec::{Compression, Compressor, Outcome, is_zero, max_stored};

/// Upper bound of the sample, which is spread over the file.
const SAMPLE_BYTES: usize = 32 << 20;
const SECTOR_BYTES: usize = 4096;
/// Content that fits into a block pointer.
const EMBEDDED_BYTES_MAX: usize = 112;

/// Compression ratios of a file in Terrane and in OpenZFS
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane-codec --bench ratio --")]
struct Options {
    /// File to compress; this program if it is not given
    file: Option<PathBuf>,
}

fn main() {
    // `cargo bench` adds the word.
    let options = Options::parse_from(std::env::args_os().filter(|word| word != "--bench"));
    let path = options.file.unwrap_or_else(|| std::env::current_exe().expect("a program has a path"));
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut compressor = Compressor::new();
    let mut stored = Vec::new();
    println!("{:<12} {:>6} {:>9} {:>9} {:>9}", "", "record", "OpenZFS", "Terrane", "ahead");
    for record in [16 << 10, 128 << 10, 1 << 20] {
        let step = (file.len() / SAMPLE_BYTES.min(file.len()).max(1)).max(1);
        for word in
            ["lzjb", "lz4", "gzip-6", "gzip-9", "zstd-fast-1", "zstd-1", "zstd-3", "zstd-9", "zstd-19"]
        {
            let algo: Compression = word.parse().expect("a word of the property");
            // The slowest level measures a quarter of the sample, which is enough.
            let step = if word == "zstd-19" { step * 4 } else { step };
            let (mut all, mut theirs, mut ours) = (0, 0, 0);
            for block in file.chunks_exact(record).step_by(step) {
                all += record;
                if is_zero(block) {
                    continue;
                }
                let done = compressor.compress(algo, block, record - 1, &mut stored) == Outcome::Compressed;
                let len = if done { stored.len() } else { record };
                let fits = |max: usize| done && len <= max;
                theirs += match len {
                    _ if !fits(max_stored_openzfs(record, SECTOR_BYTES)) => record,
                    len if len <= EMBEDDED_BYTES_MAX => 0,
                    len => len.next_multiple_of(SECTOR_BYTES),
                };
                ours += match len {
                    _ if !fits(max_stored(record)) => record,
                    len if len <= EMBEDDED_BYTES_MAX => 0,
                    len => len.next_multiple_of(GRANULE_BYTES),
                };
            }
            let ratio = |stored: usize| all as f64 / stored.max(1) as f64;
            let ahead = (ratio(ours) / ratio(theirs) - 1.0) * 100.0;
            println!(
                "{word:<12} {:>5}K {:>9.3} {:>9.3} {ahead:>7.1} %",
                record >> 10,
                ratio(theirs),
                ratio(ours)
            );
        }
    }
}
