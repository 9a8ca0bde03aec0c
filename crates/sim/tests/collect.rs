//! No crash while GC works loses a promise.

use terrane_sim::collect::{Drives, GcCrashStats, GcScenario, every_write, seeded};
use terrane_sim::seeds::{number, seeds};

#[test]
fn no_crash_point_during_gc_loses_a_promised_txg() {
    let stride = number("TERRANE_STRIDE").unwrap_or(24);
    for drive in [true, false] {
        let scenario = GcScenario { seed: 7, drive, steps: if stride == 1 { 300 } else { 160 } };
        let stats = every_write(scenario, stride, 4).unwrap_or_else(|failure| {
            panic!("{scenario:?}: {failure}\nterrane-sim every-write --collect --seed 7")
        });
        println!("{scenario:?}: {stats:?}");
        // Otherwise the cuts hit moments at which nothing happens.
        assert!(stats.collected >= 5 && stats.moved_bytes > 1 << 20, "{scenario:?}: {stats:?}");
        assert!(stats.rewritten_bytes > 0, "there is no memory for a run index: {stats:?}");
    }
}

#[test]
fn gc_on_failing_devices_recovers_to_a_committed_txg() {
    let mut all = GcCrashStats::default();
    for seed in seeds(8) {
        for (drives, tight) in [(Drives::Roomy, ""), (Drives::Tight, "--tight ")] {
            all.add(seeded(seed, drives).unwrap_or_else(|failure| {
                panic!("seed {seed}: {failure}\nterrane-sim replay --collect {tight}--seed {seed}")
            }));
        }
    }
    println!("{all:?}");
    assert!(all.collected > all.cuts, "the collector had nothing to do: {all:?}");
}

#[test]
fn zone_failures_on_a_nearly_full_pool_do_not_stop_it() {
    // Zones that turn read-only while they are empty; the only zone with free space fails under a commit
    // record; resets that fail once.
    for seed in [32, 121, 257, 313, 537] {
        seeded(seed, Drives::Roomy).unwrap_or_else(|failure| {
            panic!("seed {seed}: {failure}\nterrane-sim replay --collect --seed {seed}")
        });
    }
}

#[test]
fn a_large_zone_that_dies_costs_users_no_more_than_itself() {
    // The only emptied zone is dead, and was to take the next victim's copies. Or a zone fails during a txg,
    // and the space for its content waits for a reset.
    for seed in [20, 165, 1042] {
        seeded(seed, Drives::Large).unwrap_or_else(|failure| {
            panic!("seed {seed}: {failure}\nterrane-sim replay --collect --large --seed {seed}")
        });
    }
}

#[test]
fn large_zones_with_a_small_metadata_reserve_recover() {
    let mut all = GcCrashStats::default();
    for seed in seeds(2) {
        all.add(seeded(seed, Drives::Large).unwrap_or_else(|failure| {
            panic!("seed {seed}: {failure}\nterrane-sim replay --collect --large --seed {seed}")
        }));
    }
    println!("{all:?}");
    assert!(all.collected > all.cuts, "the collector had nothing to do: {all:?}");
}
