//! No crash point loses a promise.

use terrane_sim::crash::{cut_at, random_crash, small_ops};
use terrane_sim::seeds::{number, seeds};

#[test]
fn random_lives_cut_at_random_come_back_as_a_committed_group() {
    for seed in seeds(60) {
        random_crash(seed)
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}\nterrane-sim replay --seed {seed}"));
    }
}

#[test]
fn no_crash_point_of_a_small_life_loses_a_promised_group() {
    let stride = number("TERRANE_STRIDE").unwrap_or(4);
    for drive in [true, false] {
        let ops = small_ops(7, drive, 60).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(7, drive, 60, cut, 4)
                .unwrap_or_else(|failure| panic!("drive {drive} of {ops}: {failure}"));
        }
    }
}
