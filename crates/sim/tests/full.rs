//! `ENOSPC` is honest.

use terrane_sim::full::{rounds, small_files};
use terrane_sim::seeds::number;

#[test]
fn a_full_pool_gives_its_space_back_round_after_round() {
    let count = number("TERRANE_ROUNDS").unwrap_or(10);
    for seed in [1, 2] {
        let seen = rounds(seed, count).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        println!("seed {seed}: {seen:?}");
        // A few blocks of directory, queue and books may differ, and zones that are half full: 2 % of the pool.
        let tolerance = seen.available_first / 50;
        assert!(seen.available_last + tolerance >= seen.available_first, "seed {seed}: {seen:?}");
        assert!(seen.filled_least * 10 >= seen.filled_first * 8, "seed {seed}: {seen:?}");
    }
}

#[test]
fn small_files_and_their_attributes_fill_a_pool_and_go_again() {
    let sizes = [(1, "auto"), (2, "16k"), (3, "legacy"), (4, "1k")];
    let count = if number("TERRANE_ROUNDS").is_some() { sizes.len() } else { 2 };
    for (seed, dnode_size) in sizes.into_iter().take(count) {
        let made = small_files(seed, dnode_size).unwrap_or_else(|failure| panic!("{dnode_size}: {failure}"));
        println!("{dnode_size}: {made} files");
    }
}
