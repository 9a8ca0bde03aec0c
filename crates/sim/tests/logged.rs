//! No crash point loses what an `fsync` has promised.

use terrane_oracle::Failure;
use terrane_sim::logged::world::Seen;
use terrane_sim::logged::{
    SmallScenario, count_small_ops, crowded_crash, cut_at, cut_replays_at, faulty_crash, log_device_crash,
    random_crash,
};
use terrane_sim::seeds::{number, seeds};

/// Runs a scenario with each seed, and sums up what was seen.
fn all(seeds: impl IntoIterator<Item = u64>, words: &str, run: fn(u64) -> Result<Seen, Failure>) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds {
        let again = |failure| panic!("{failure}\nterrane-sim replay --logged {words}--seed {seed}");
        seen.add(&run(seed).unwrap_or_else(again));
    }
    assert!(seen.logged > 0 && seen.committed > 0 && seen.replayed > 0, "{seen:?}");
    seen
}

#[test]
fn random_workloads_cut_at_random_come_back_with_all_that_was_promised() {
    let seen = all(seeds(60), "", random_crash);
    assert!(seen.logged > seen.committed, "{seen:?}");
    assert!(seen.cut_replays > 0 && seen.kept_unpromised > 0 && seen.lost_unpromised > 0, "{seen:?}");
}

#[test]
fn a_log_whose_writes_fail_loses_nothing() {
    let seen = all(seeds(30), "--faulty ", faulty_crash);
    assert!(seen.failed_writes > seen.committed / 10, "{seen:?}");
}

#[test]
fn log_devices_that_join_leave_and_fail_lose_nothing() {
    let seen = all(seeds(40), "--log-devices ", log_device_crash);
    assert!(seen.joined > 40 && seen.left > 40 && seen.retried > 0 && seen.missed > 10, "{seen:?}");
    assert!(seen.failed_writes > 0 && seen.logged > seen.committed / 2, "{seen:?}");
}

#[test]
fn a_log_that_goes_from_zone_to_zone_loses_nothing() {
    let seen = all(seeds(5), "--crowded ", crowded_crash);
    assert!(seen.moved > 0, "{seen:?}");
}

#[test]
fn a_log_that_gives_its_zones_back_loses_nothing() {
    // It is rare that nothing is logged when zones become short.
    let seen = all([0, 44], "--crowded ", crowded_crash);
    assert!(seen.returned > 0, "{seen:?}");
}

const SCENARIOS: [SmallScenario; 6] = [
    SmallScenario { seed: 7, drive: true, two_copies: false, log_devices: false, steps: 120 },
    SmallScenario { seed: 8, drive: false, two_copies: false, log_devices: false, steps: 120 },
    SmallScenario { seed: 9, drive: true, two_copies: true, log_devices: false, steps: 120 },
    SmallScenario { seed: 10, drive: false, two_copies: true, log_devices: false, steps: 120 },
    SmallScenario { seed: 11, drive: true, two_copies: false, log_devices: true, steps: 120 },
    SmallScenario { seed: 12, drive: false, two_copies: true, log_devices: true, steps: 120 },
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
    assert!(seen.logged > seen.committed && seen.kept_unpromised > 0 && seen.lost_unpromised > 0, "{seen:?}");
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
    assert!(seen.cut_replays > 50 && seen.replayed > 100, "{seen:?}");
}
