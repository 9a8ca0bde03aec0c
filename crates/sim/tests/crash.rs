//! No crash point loses a promise.

use terrane_device::Kept;
use terrane_sim::crash::{crowded_crash, cut_at, random_crash, small_ops};
use terrane_sim::machine::{Machine, Plan};
use terrane_sim::seeds::{number, seeds};

#[test]
fn random_lives_cut_at_random_come_back_as_a_committed_group() {
    for seed in seeds(60) {
        random_crash(seed)
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}\nterrane-sim replay --seed {seed}"));
    }
}

#[test]
fn a_crash_while_the_collector_runs_loses_nothing() {
    let mut runs = 0;
    for seed in seeds(10) {
        runs += crowded_crash(seed).unwrap_or_else(|failure| {
            panic!("seed {seed}: {failure}\nterrane-sim replay --crowded --seed {seed}")
        });
    }
    assert!(runs > 0, "the collector had nothing to do");
}

#[test]
fn no_crash_point_of_a_small_life_loses_a_promised_group() {
    let stride = number("TERRANE_STRIDE").unwrap_or(8);
    for drive in [true, false] {
        let ops = small_ops(7, drive, 110).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(7, drive, 110, cut, 4)
                .unwrap_or_else(|failure| panic!("drive {drive} of {ops}: {failure}"));
        }
    }
}

#[test]
fn a_zone_that_was_reset_just_before_a_crash_comes_back() {
    // Found by `terrane-sim crash --crowded`: the reset zone was suspected for ever, and at last the pool ran out of zones.
    for seed in [16, 43, 48, 90, 93] {
        crowded_crash(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn old_bytes_in_emptied_zones_are_never_taken_for_new_ones() {
    // Seeds of this form get a device that carried another pool and whose resets keep what was there.
    for seed in seeds(12).into_iter().map(|seed| seed / 4 * 4 + 1) {
        assert!(Plan::small(seed).stale);
        let crashed = random_crash(seed).and_then(|()| crowded_crash(seed));
        crashed.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    let ops = small_ops(5, false, 110).unwrap();
    for cut in (0..ops).step_by(16) {
        cut_at(5, false, 110, cut, 4).unwrap_or_else(|failure| panic!("{cut} of {ops}: {failure}"));
    }
}

#[test]
fn a_pool_made_on_old_bytes_is_found_and_not_the_older_one() {
    let machine = Machine::create(&Plan { drive: false, stale: true, ..Plan::small(1) }).unwrap();
    let (pool, device) = (machine.pool.id(), machine.abandon());
    for kept in [Kept::Nothing, Kept::Everything, Kept::Seeded(3)] {
        assert_eq!(Machine::import(&device.restarted(kept), 9, true).unwrap().pool.id(), pool);
    }
}
