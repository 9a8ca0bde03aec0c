//! No crash point loses what an `fsync` has promised.

use terrane_sim::logged::world::Seen;
use terrane_sim::logged::{
    SmallScenario, count_small_ops, crowded_crash, cut_at, cut_replays_at, random_crash,
};
use terrane_sim::seeds::{number, seeds};

#[test]
fn random_workloads_cut_at_random_come_back_with_all_that_was_promised() {
    let mut seen = Seen::default();
    for seed in seeds(40) {
        seen.add(&random_crash(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}")));
    }
    println!("{seen:?}");
}

#[test]
fn a_log_that_goes_from_zone_to_zone_loses_nothing() {
    let mut seen = Seen::default();
    for seed in seeds(8) {
        seen.add(&crowded_crash(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}")));
    }
    println!("{seen:?}");
}

const SCENARIOS: [SmallScenario; 4] = [
    SmallScenario { seed: 7, drive: true, two_copies: false, steps: 120 },
    SmallScenario { seed: 8, drive: false, two_copies: false, steps: 120 },
    SmallScenario { seed: 9, drive: true, two_copies: true, steps: 120 },
    SmallScenario { seed: 10, drive: false, two_copies: true, steps: 120 },
];

#[test]
fn no_crash_point_of_a_small_workload_loses_a_promise() {
    let stride = number("TERRANE_STRIDE").unwrap_or(16);
    let mut seen = Seen::default();
    for scenario in SCENARIOS {
        let ops = count_small_ops(scenario).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            seen.add(&cut_at(scenario, cut, 3).unwrap_or_else(|failure| panic!("{failure}")));
        }
    }
    println!("{seen:?}");
}

#[test]
fn no_crash_point_of_a_replay_loses_a_promise() {
    let stride = number("TERRANE_STRIDE").unwrap_or(16);
    let mut seen = Seen::default();
    for scenario in SCENARIOS {
        let ops = count_small_ops(scenario).unwrap();
        for cut in [ops / 3, ops * 2 / 3, ops - 1] {
            seen.add(&cut_replays_at(scenario, cut, stride).unwrap_or_else(|failure| panic!("{failure}")));
        }
    }
    println!("{seen:?}");
}
