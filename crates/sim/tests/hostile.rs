//! Damage and forgery end in a named error or in what was written; never in a panic, and always within a time
//! limit.

use terrane_sim::hostile::{Certain, Image, Verdict, bit_flip, certain_lie, sealed_lie};
use terrane_sim::seeds::{number, seeds};
use terrane_wire::Dice;

#[test]
fn an_image_that_nobody_touched_is_whole() {
    for seed in 0..3 {
        let image = Image::new(seed).unwrap();
        assert_eq!(terrane_sim::hostile::look(&image.copy(), Some(&image.model)), Ok(Verdict::Whole));
    }
}

#[test]
fn no_flipped_bit_gives_wrong_bytes() {
    let image = Image::new(3).unwrap();
    let used = image.used().unwrap();
    let total: u64 = used.iter().map(|(_, bytes)| bytes * 8).sum();
    let flips = number("TERRANE_FLIPS").unwrap_or(500).min(total);
    let mut dice = Dice::new(seeds(1)[0]);
    let mut counts = [0u64; 3];
    for flip in 0..flips {
        // All of them in order, or as many at random.
        let mut at = if flips == total { flip } else { dice.below(total) };
        for (zone, bytes) in &used {
            if at < bytes * 8 {
                counts[bit_flip(&image, *zone, at).unwrap_or_else(|failure| panic!("{failure}")) as usize] +=
                    1;
                break;
            }
            at -= bytes * 8;
        }
    }
    println!("{total} bits; refused, damaged, whole: {counts:?}");
    assert!(counts[1] > 0);
}

#[test]
fn no_sealed_lie_panics_or_hangs() {
    let image = Image::new(5).unwrap();
    let mut counts = [0u64; 4];
    let mut failures = Vec::new();
    for seed in seeds(number("TERRANE_LIES").unwrap_or(500)) {
        match sealed_lie(&image, seed) {
            Ok(verdict) => counts[verdict.map_or(3, |(verdict, _)| verdict as usize)] += 1,
            Err(failure) => failures.push(failure),
        }
    }
    println!("refused, damaged, whole, none: {counts:?}");
    for failure in failures.iter().take(20) {
        println!("{failure}");
    }
    assert!(memory_peak_kib() < 512 << 10, "{} KiB were used at the peak", memory_peak_kib());
    assert!(failures.is_empty(), "{} lies failed; the first: {}", failures.len(), failures[0]);
}

#[test]
fn counts_that_lie_are_counted_on() {
    // Counting one more or one less overflowed when something was changed.
    let image = Image::new(5).unwrap();
    let lies = [Certain::Objects(0), Certain::Objects(u64::MAX)];
    let lies = lies.into_iter().chain([Certain::Used(u64::MAX), Certain::Birth(u64::MAX)]);
    for (certain, seed) in lies.flat_map(|certain| (0..12).map(move |seed| (certain, seed))) {
        let told = certain_lie(&image, seed, certain);
        assert!(told.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")), "{certain:?} was not told");
    }
}

/// The peak memory of this process, as Linux counts it; 0 elsewhere.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
