//! No crash while GC works loses a promise.

use terrane_sim::collect::{Drives, Life, Seen, every_write, seeded};
use terrane_sim::seeds::{number, seeds};

#[test]
fn no_crash_point_of_a_pool_that_collects_loses_a_promised_group() {
    let stride = number("TERRANE_STRIDE").unwrap_or(24);
    for drive in [true, false] {
        let life = Life { seed: 7, drive, steps: if stride == 1 { 300 } else { 160 } };
        let seen = every_write(life, stride, 4).unwrap_or_else(|failure| {
            panic!("{life:?}: {failure}\nterrane-sim every-write --collect --seed 7")
        });
        println!("{life:?}: {seen:?}");
        // Otherwise the cuts hit moments at which nothing happens.
        assert!(seen.collected >= 5 && seen.moved_bytes > 1 << 20, "{life:?}: {seen:?}");
        assert!(seen.reborn_bytes > 0, "there is no memory for a run index: {seen:?}");
    }
}

#[test]
fn lives_on_failing_devices_that_collect_come_back_as_a_committed_group() {
    let mut all = Seen::default();
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
fn lives_in_which_zones_fail_while_room_is_short_do_not_stop_the_pool() {
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
fn lives_in_large_zones_of_which_little_is_kept_for_metadata_come_back() {
    let mut all = Seen::default();
    for seed in seeds(2) {
        all.add(seeded(seed, Drives::Large).unwrap_or_else(|failure| {
            panic!("seed {seed}: {failure}\nterrane-sim replay --collect --large --seed {seed}")
        }));
    }
    println!("{all:?}");
    assert!(all.collected > all.cuts, "the collector had nothing to do: {all:?}");
}
