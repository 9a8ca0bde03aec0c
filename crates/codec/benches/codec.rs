//! Prints throughput in MB/s of one core, for each algorithm over a text-like and a random sample, and each checksum.
//! `cargo bench -p terrane-codec`. Best of several short rounds, so that a busy machine disturbs less.

use std::hint::black_box;
use std::time::Instant;
use terrane_codec::{ChecksumKind, Compression, Compressor, Outcome, compute, is_zero, max_stored};

const ROUNDS: usize = 5;
const ROUND_BYTES: usize = 8 << 20;

/// MB/s of `work` over blocks of `bytes`.
fn speed(bytes: usize, slow: bool, mut work: impl FnMut()) -> f64 {
    let count = (if slow { ROUND_BYTES / 16 } else { ROUND_BYTES } / bytes).max(1);
    let mut best = f64::INFINITY;
    for _ in 0..if slow { 2 } else { ROUNDS } {
        let start = Instant::now();
        for _ in 0..count {
            work();
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    (count * bytes) as f64 / best / 1e6
}

/// xorshift64*, so that a run can be repeated.
fn random(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

/// Words of skewed frequency: about the ratios of source code.
fn text(len: usize) -> Vec<u8> {
    let dice = random(len);
    let words: Vec<String> =
        dice.chunks(9).take(400).map(|c| c.iter().map(|b| char::from(b'a' + b % 26)).collect()).collect();
    let mut out = Vec::with_capacity(len + 16);
    for pair in dice.chunks(2).cycle() {
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

fn main() {
    let mut compressor = Compressor::new();
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    for (bytes, samples) in [(4096, "4K"), (131072, "128K")] {
        println!("{samples:<16} {:>10} {:>10} {:>8} {:>12}", "compress", "expand", "ratio", "random");
        let (text, random) = (text(bytes), random(bytes));
        let words = [
            "lz4",
            "zstd-fast-100",
            "zstd-fast-10",
            "zstd-fast-1",
            "zstd-1",
            "zstd-2",
            "zstd-3",
            "zstd-5",
            "zstd-6",
            "zstd-9",
            "zstd-12",
            "zstd-15",
            "zstd-19",
        ];
        for word in words {
            let Ok(algo) = word.parse::<Compression>() else { continue };
            let slow = matches!(word, "zstd-9" | "zstd-12" | "zstd-15" | "zstd-19");
            let max = max_stored(bytes);
            let mut outcome = Outcome::Incompressible;
            let compress = speed(bytes, slow, || {
                outcome = compressor.compress(algo, black_box(&text), max, &mut stored)
            });
            let ratio = if outcome == Outcome::Compressed { bytes as f64 / stored.len() as f64 } else { 1.0 };
            let block = stored.clone();
            let expand = if outcome == Outcome::Compressed {
                speed(bytes, false, || {
                    let _ = black_box(compressor.decompress(algo.id(), black_box(&block), bytes, &mut back));
                })
            } else {
                0.0
            };
            let hopeless = speed(bytes, slow, || {
                let _ = compressor.compress(algo, black_box(&random), max, &mut stored);
            });
            println!("{word:<16} {compress:>10.0} {expand:>10.0} {ratio:>8.2} {hopeless:>12.0}");
        }
        for kind in [ChecksumKind::Blake3, ChecksumKind::Sha256, ChecksumKind::Fletcher4] {
            println!(
                "{:<16} {:>10.0}",
                kind.to_string(),
                speed(bytes, false, || {
                    black_box(compute(kind, black_box(&random)));
                })
            );
        }
        let zero = vec![0; bytes];
        println!(
            "{:<16} {:>10.0}",
            "is_zero",
            speed(bytes, false, || {
                black_box(is_zero(black_box(&zero)));
            })
        );
    }
}
