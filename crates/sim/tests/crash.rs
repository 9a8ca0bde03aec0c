//! No crash point loses a promise.

use std::collections::{BTreeMap, BTreeSet};
use terrane_device::Survival;
use terrane_sim::attributes::{XattrPlace, xattr_place};
use terrane_sim::crash::{
    SmallScenario, count_small_ops, crowded_crash, cut_at, random_crash, rewriting_crash,
};
use terrane_sim::machine::{Machine, Plan};
use terrane_sim::seeds::{number, seeds};
use terrane_sim::workload::{NAMES, OpMix, Step, Workload};
use terrane_wire::ObjectId;
use terrane_zap::Kind;

/// Name workloads that go through every kind, and their number of operations.
const NAMES_SEEDS: [u64; 2] = [8, 11];
const NAMES_STEPS: u64 = 110;
/// Attribute workloads that go through every change of home.
const ATTRIBUTE_SEEDS: [u64; 2] = [17, 18];
const ATTRIBUTE_STEPS: u64 = 110;

#[test]
fn random_workloads_cut_at_random_come_back_as_a_committed_txg() {
    for seed in seeds(60) {
        random_crash(seed)
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}\nterrane-sim replay --seed {seed}"));
    }
}

#[test]
fn a_crash_while_files_are_rewritten_loses_nothing() {
    let mut rewritten = 0;
    for seed in seeds(20) {
        rewritten += rewriting_crash(seed).unwrap_or_else(|failure| {
            panic!("seed {seed}: {failure}\nterrane-sim replay --rewriting --seed {seed}")
        });
    }
    assert!(rewritten > 0, "there was nothing to rewrite");
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
fn no_crash_point_of_a_small_workload_loses_a_promised_txg() {
    let stride = number("TERRANE_STRIDE").unwrap_or(8);
    for drive in [true, false] {
        let scenario = SmallScenario { seed: 7, drive, steps: 110, mix: OpMix::Everything };
        let ops = count_small_ops(scenario).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(scenario, cut, 4).unwrap_or_else(|failure| panic!("drive {drive} of {ops}: {failure}"));
        }
    }
}

#[test]
fn no_crash_point_of_a_directory_that_changes_its_kind_loses_a_name() {
    let stride = number("TERRANE_STRIDE").unwrap_or(16);
    for (seed, drive) in NAMES_SEEDS.into_iter().flat_map(|seed| [(seed, true), (seed, false)]) {
        let scenario = SmallScenario { seed, drive, steps: NAMES_STEPS, mix: OpMix::Names };
        let ops = count_small_ops(scenario).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(scenario, cut, 4)
                .unwrap_or_else(|failure| panic!("seed {seed}, drive {drive} of {ops}: {failure}"));
        }
    }
}

/// Otherwise the test before would cut where nothing happens.
#[test]
fn a_directory_of_that_workload_goes_through_every_kind_both_ways() {
    let mut seen = BTreeSet::new();
    // Slots by their size; fat is larger than all.
    let rank = |kind| match kind {
        Kind::Nothing => 0,
        Kind::Micro => 64,
        Kind::Tiny { chunk_bytes, .. } => chunk_bytes,
        Kind::Fat => u16::MAX,
    };
    for seed in NAMES_SEEDS {
        let plan = Plan { props: vec![("zapsize", "3K")], ..Plan::small(seed) };
        let mut workload = Workload::fresh(Machine::create(&plan).unwrap(), seed);
        workload.mix = OpMix::Names;
        let root = ObjectId(workload.model.root);
        let mut last = Kind::Nothing;
        for step in 0..NAMES_STEPS {
            assert_eq!(workload.step().unwrap(), Step::Done);
            if step % 2 == 1 {
                workload.sync().unwrap();
            }
            let kind = workload.machine.fs().dataset().open_zap(root).unwrap().kind().unwrap();
            if kind != last {
                seen.insert((rank(last), rank(kind)));
                last = kind;
            }
        }
    }
    let up = |from: u16| seen.iter().any(|(old, new)| *old == from && new > old);
    let down = |from: u16| seen.iter().any(|(old, new)| *old == from && *new > 0 && new < old);
    assert!(up(0) && up(64) && up(128) && up(256), "{seen:?}");
    assert!(down(u16::MAX) && (down(256) || down(128)), "{seen:?}");
}

#[test]
fn no_crash_point_loses_words_beside_a_name() {
    let stride = number("TERRANE_STRIDE").unwrap_or(16);
    for (seed, drive) in NAMES_SEEDS.into_iter().flat_map(|seed| [(seed, true), (seed, false)]) {
        let scenario = SmallScenario { seed, drive, steps: NAMES_STEPS, mix: OpMix::Words };
        let ops = count_small_ops(scenario).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(scenario, cut, 4)
                .unwrap_or_else(|failure| panic!("seed {seed}, drive {drive} of {ops}: {failure}"));
        }
    }
}

/// Otherwise the test before would cut where nothing happens.
#[test]
fn a_directory_of_that_workload_gets_wide_slots_and_narrow_ones_again() {
    let mut seen = BTreeSet::new();
    let width = |kind| match kind {
        Kind::Nothing => 0,
        Kind::Micro => 1,
        Kind::Tiny { value_ints, .. } => value_ints,
        Kind::Fat => u8::MAX,
    };
    for seed in NAMES_SEEDS {
        let plan = Plan { props: vec![("zapsize", "3K")], ..Plan::small(seed) };
        let mut workload = Workload::fresh(Machine::create(&plan).unwrap(), seed);
        workload.mix = OpMix::Words;
        let root = ObjectId(workload.model.root);
        let mut last = Kind::Nothing;
        for step in 0..NAMES_STEPS {
            assert_eq!(workload.step().unwrap(), Step::Done);
            if step % 2 == 1 {
                workload.sync().unwrap();
            }
            let kind = workload.machine.fs().dataset().open_zap(root).unwrap().kind().unwrap();
            seen.insert((width(last), width(kind)));
            last = kind;
        }
    }
    let wide = |ints: u8| (2..=7).contains(&ints);
    let goes = |from: &dyn Fn(u8) -> bool, to: &dyn Fn(u8) -> bool| {
        seen.iter().any(|(old, new)| from(*old) && to(*new))
    };
    assert!(goes(&|old| old == 1, &wide) && goes(&wide, &|new| new == u8::MAX), "{seen:?}");
    assert!(seen.iter().any(|(old, new)| wide(*old) && wide(*new) && new > old), "{seen:?}");
    assert!(goes(&|old| old == u8::MAX, &wide) || goes(&wide, &|new| new == 1), "{seen:?}");
}

#[test]
fn no_crash_point_of_an_attribute_that_changes_its_home_loses_it() {
    let stride = number("TERRANE_STRIDE").unwrap_or(16);
    for (seed, drive) in ATTRIBUTE_SEEDS.into_iter().flat_map(|seed| [(seed, true), (seed, false)]) {
        let scenario = SmallScenario { seed, drive, steps: ATTRIBUTE_STEPS, mix: OpMix::Attributes };
        let ops = count_small_ops(scenario).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(scenario, cut, 4)
                .unwrap_or_else(|failure| panic!("seed {seed}, drive {drive} of {ops}: {failure}"));
        }
    }
}

/// Otherwise the test before would cut where nothing happens.
#[test]
fn attributes_of_that_workload_go_from_every_home_to_every_other() {
    let homes = [XattrPlace::Nowhere, XattrPlace::Bonus, XattrPlace::Spill, XattrPlace::XattrDir];
    let mut seen = BTreeSet::new();
    for seed in ATTRIBUTE_SEEDS {
        let mut workload = Workload::fresh(Machine::create(&Plan::small(seed)).unwrap(), seed);
        workload.mix = OpMix::Attributes;
        let mut last = BTreeMap::new();
        for _ in 0..ATTRIBUTE_STEPS {
            assert_eq!(workload.step().unwrap(), Step::Done);
            let inodes: Vec<u64> = workload.model.nodes.keys().copied().collect();
            for (ino, name) in inodes.iter().flat_map(|ino| NAMES.map(|name| (*ino, name))) {
                let now = xattr_place(workload.machine.fs(), ino, name).unwrap();
                let before = last.insert((ino, name), now).unwrap_or(XattrPlace::Nowhere);
                seen.insert((before, now));
            }
        }
    }
    for (from, to) in homes.into_iter().flat_map(|from| homes.map(|to| (from, to))) {
        assert!(from == to || seen.contains(&(from, to)), "never from {from:?} to {to:?}: {seen:?}");
    }
}

#[test]
fn a_zone_that_was_reset_just_before_a_crash_comes_back() {
    // Found by `terrane-sim crash --crowded`: the reset zone was suspect for ever, and finally the pool ran
    // out of zones.
    for seed in [16, 43, 48, 90, 93] {
        crowded_crash(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn old_bytes_in_emptied_zones_are_never_taken_for_new_ones() {
    // Seeds of this form get a device that carried another pool and whose resets keep old content.
    for seed in seeds(12).into_iter().map(|seed| seed / 4 * 4 + 1) {
        assert!(Plan::small(seed).stale);
        let crashed = random_crash(seed).and_then(|()| crowded_crash(seed));
        crashed.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    let scenario = SmallScenario { seed: 5, drive: false, steps: 110, mix: OpMix::Everything };
    let ops = count_small_ops(scenario).unwrap();
    for cut in (0..ops).step_by(16) {
        cut_at(scenario, cut, 4).unwrap_or_else(|failure| panic!("{cut} of {ops}: {failure}"));
    }
}

#[test]
fn a_pool_made_on_old_bytes_is_found_and_not_the_older_one() {
    let machine = Machine::create(&Plan { drive: false, stale: true, ..Plan::small(1) }).unwrap();
    let (pool, device) = (machine.pool.id(), machine.abandon());
    for kept in [Survival::Nothing, Survival::Everything, Survival::Seeded(3)] {
        assert_eq!(Machine::import(&device.restarted(kept), 9, true).unwrap().pool.id(), pool);
    }
}
