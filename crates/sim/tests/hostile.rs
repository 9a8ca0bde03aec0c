//! Damage and forgery end in a named error or in what was written; never in a panic, and always within a time
//! limit.

use terrane_sim::hostile::{
    FixedForgery, Image, Verdict, bit_flip, fixed_forgery, lies, sealed_forgery, tell,
};
use terrane_sim::seeds::{number, seeds};
use terrane_wire::Prng;

#[test]
fn an_image_that_nobody_touched_is_whole() {
    for seed in 0..3 {
        let image = Image::new(seed).unwrap();
        assert_eq!(terrane_sim::hostile::examine(&image.copy(), Some(&image.model)), Ok(Verdict::Intact));
    }
}

#[test]
fn no_flipped_bit_gives_wrong_bytes() {
    let image = Image::new(3).unwrap();
    let used = image.written_ranges().unwrap();
    let total: u64 = used.iter().map(|(_, bytes)| bytes * 8).sum();
    let flips = number("TERRANE_FLIPS").unwrap_or(500).min(total);
    let mut rng = Prng::new(seeds(1)[0]);
    let mut counts = [0u64; 3];
    for flip in 0..flips {
        // All of them in order, or as many at random.
        let mut at = if flips == total { flip } else { rng.below(total) };
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
fn no_sealed_forgery_panics_or_hangs() {
    let image = Image::new(5).unwrap();
    let mut counts = [0u64; 4];
    let mut failures = Vec::new();
    for seed in seeds(number("TERRANE_LIES").unwrap_or(500)) {
        match sealed_forgery(&image, seed) {
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
fn forged_counts_neither_panic_nor_hang() {
    // Counting one more or one less overflowed when something was changed.
    let image = Image::new(5).unwrap();
    let forgeries = [FixedForgery::Objects(0), FixedForgery::Objects(u64::MAX)];
    let forgeries =
        forgeries.into_iter().chain([FixedForgery::Used(u64::MAX), FixedForgery::Birth(u64::MAX)]);
    for (fixed, seed) in forgeries.flat_map(|fixed| (0..12).map(move |seed| (fixed, seed))) {
        let was_forged = fixed_forgery(&image, seed, fixed);
        assert!(
            was_forged.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")),
            "{fixed:?} was not told"
        );
    }
}

/// Every field of the structures of data sets, snapshots and dead lists. One in many is told: `TERRANE_LIES` says how many.
#[test]
fn no_lie_about_data_sets_panics_or_hangs() {
    let image = Image::new(5).unwrap();
    let all = lies(&image).unwrap();
    let wanted = number("TERRANE_LIES").unwrap_or(500).min(all.len() as u64);
    let mut counts = [0u64; 3];
    let mut failures = Vec::new();
    let first = seeds(1)[0];
    for at in 0..wanted {
        let at = (first.wrapping_add(at * all.len() as u64 / wanted.max(1))) % all.len() as u64;
        match tell(&image, &all[at as usize]) {
            Ok(verdict) => counts[verdict as usize] += 1,
            Err(failure) => failures.push(failure),
        }
    }
    println!("{wanted} of {} lies; refused, damaged, whole: {counts:?}", all.len());
    for failure in failures.iter().take(40) {
        println!("{failure}");
    }
    assert!(failures.is_empty(), "{} lies failed; the first: {}", failures.len(), failures[0]);
}

/// The peak memory of this process, as Linux counts it; 0 elsewhere.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
