//! MB/s of one core for each algorithm, and for each checksum, over several kinds of content.
//!
//! `cargo bench -p terrane-codec --bench codec [-- FILE...]`. Files are further kinds, named by their extension. The
//! columns are the speed of decompressing text, its ratio (for zle: of a program), and how fast each kind is compressed
//! or given up. Times are processor times of the thread, so a busy machine disturbs less.

use clap::Parser;
use std::hint::black_box;
use std::path::PathBuf;
use terrane_codec::{ChecksumKind, Compression, Compressor, Outcome, compute, is_zero, max_stored};
use terrane_wire::Prng;

const ROUND_S: f64 = 0.06;

/// Seconds of processor time of this thread.
fn processor_s() -> f64 {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    line.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number of nanoseconds") / 1e9
}

/// MB/s of `work` over blocks of `bytes`. The kernel counts processor time in ticks of some milliseconds, so a round
/// has many of them.
fn speed(bytes: usize, mut work: impl FnMut()) -> f64 {
    let (start, mut count) = (processor_s(), 0);
    loop {
        for _ in 0..(256usize << 10).div_ceil(bytes) {
            work();
            count += 1;
        }
        let seconds = processor_s() - start;
        if seconds >= ROUND_S {
            return (count * bytes) as f64 / seconds / 1e6;
        }
    }
}

/// Random bytes, the same in each run.
fn random(len: usize) -> Vec<u8> {
    Prng::new(1).random_bytes(len)
}

/// Words of skewed frequency, with about the ratios of source code.
fn text(len: usize) -> Vec<u8> {
    let random_bytes = random(len);
    let words: Vec<String> = random_bytes
        .chunks(9)
        .take(400)
        .map(|c| c.iter().map(|b| char::from(b'a' + b % 26)).collect())
        .collect();
    let mut out = Vec::with_capacity(len + 16);
    for pair in random_bytes.chunks(2).cycle() {
        let pick = usize::from(pair[0]) * usize::from(*pair.last().unwrap_or(&0)) % 8192 * 400 / 8192;
        let word = words[pick].as_bytes();
        out.extend_from_slice(&word[..2 + pick % 7]);
        out.push(b' ');
        if out.len() >= len {
            break;
        }
    }
    out.truncate(len);
    out
}

/// One block of each kind of content: name and content. Files named on the command line are among them.
fn samples(bytes: usize, files: &[PathBuf]) -> Vec<(String, Vec<u8>)> {
    let (text, random) = (text(bytes), random(bytes));
    let packed = |word: &str| {
        let mut packed = Vec::new();
        let long = self::text(bytes * 8);
        let algo = word.parse().expect("a word of the property");
        let _ = Compressor::new().compress(algo, &long, long.len(), &mut packed);
        packed.truncate(bytes);
        packed.resize(bytes, 0);
        packed
    };
    let binary = std::env::current_exe().and_then(std::fs::read).unwrap_or_default();
    let binary = binary.get(binary.len() / 4..).and_then(|rest| rest.get(..bytes)).unwrap_or(&text).to_vec();
    let mixed = random[..bytes / 2].iter().chain(&text[..bytes - bytes / 2]).copied().collect();
    let mut samples =
        vec![("random".into(), random), ("zstd".into(), packed("zstd-3")), ("gzip".into(), packed("gzip-6"))];
    for path in files {
        let Ok(mut content) = std::fs::read(path) else { continue };
        content.resize(bytes, 0);
        let name = path.extension().unwrap_or("file".as_ref()).to_string_lossy();
        samples.push((name.into_owned(), content));
    }
    samples.extend([("text".into(), text), ("binary".into(), binary), ("mixed".into(), mixed)]);
    samples
}

const WORDS: [&str; 20] = [
    "lz4",
    "lzjb",
    "zle",
    "gzip-1",
    "gzip-6",
    "gzip-9",
    "zstd-fast-100",
    "zstd-fast-10",
    "zstd-fast-1",
    "zstd-1",
    "zstd-2",
    "zstd-3",
    "zstd-5",
    "zstd-6",
    "zstd-7",
    "zstd-9",
    "zstd-10",
    "zstd-12",
    "zstd-15",
    "zstd-19",
];

/// MB/s of one core for each algorithm and each checksum
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane-codec --bench codec --")]
struct Options {
    /// Further kinds of content, named by their extension
    files: Vec<PathBuf>,
}

fn main() {
    // `cargo bench` adds the word.
    let options = Options::parse_from(std::env::args_os().filter(|word| word != "--bench"));
    let mut compressor = Compressor::new();
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    for (bytes, size) in [(16384, "16K"), (131_072, "128K"), (1 << 20, "1M")] {
        let samples = samples(bytes, &options.files);
        print!("{size:<14} {:>9} {:>7}", "expand", "ratio");
        samples.iter().for_each(|(name, _)| print!(" {name:>9}"));
        println!();
        for word in WORDS {
            let algo: Compression = word.parse().expect("a word of the property");
            let max = max_stored(bytes);
            let text = samples.iter().find(|(name, _)| name == if word == "zle" { "binary" } else { "text" });
            let text = text.map_or(&[][..], |(_, text)| text);
            let mut line = format!("{word:<14} {:>9} {:>7}", "-", "-");
            if compressor.compress(algo, text, max, &mut stored) == Outcome::Compressed {
                let block = stored.clone();
                let expand = speed(bytes, || {
                    let _ = black_box(compressor.decompress(algo.id(), black_box(&block), bytes, &mut back));
                });
                line = format!("{word:<14} {expand:>9.0} {:>7.2}", bytes as f64 / block.len() as f64);
            }
            print!("{line}");
            for (_, sample) in &samples {
                let compress = speed(bytes, || {
                    let _ = black_box(compressor.compress(algo, black_box(sample), max, &mut stored));
                });
                print!(" {compress:>9.0}");
            }
            println!();
        }
        let random = random(bytes);
        for kind in [ChecksumKind::Blake3, ChecksumKind::Sha256, ChecksumKind::Fletcher4] {
            let each = speed(bytes, || {
                black_box(compute(kind, black_box(&random)));
            });
            println!("{:<14} {each:>9.0}", kind.to_string());
        }
        let zero = vec![0; bytes];
        let each = speed(bytes, || {
            black_box(is_zero(black_box(&zero)));
        });
        println!("{:<14} {each:>9.0}", "is_zero");
    }
}
