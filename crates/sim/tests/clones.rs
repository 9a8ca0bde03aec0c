//! Shared blocks: no crash point loses a block, frees one twice, or leaks one.

use terrane_object::shared::SharedTotals;
use terrane_sim::crash::{SmallScenario, cloning_crash, count_small_ops, cut_at};
use terrane_sim::machine::{Machine, Plan};
use terrane_sim::seeds::{number, seeds};
use terrane_sim::workload::{OpMix, Step, Workload};

#[test]
fn no_crash_point_of_a_small_life_with_clones_loses_a_block() {
    let stride = number("TERRANE_STRIDE").unwrap_or(8);
    for drive in [true, false] {
        let scenario = SmallScenario { seed: 9, drive, steps: 110, mix: OpMix::Clones };
        let ops = count_small_ops(scenario).unwrap();
        for cut in (0..ops).step_by(stride as usize) {
            cut_at(scenario, cut, 4).unwrap_or_else(|failure| panic!("drive {drive} of {ops}: {failure}"));
        }
    }
}

/// Otherwise the test before would cut where nothing is shared.
#[test]
fn that_life_has_shared_blocks_and_ends_them() {
    let mut workload = Workload::fresh(Machine::create(&Plan::small(9)).unwrap(), 9);
    (workload.mix, workload.file_bytes) = (OpMix::Clones, 6000);
    let (mut most, mut last, mut ended) = (SharedTotals::default(), 0, 0);
    for _ in 0..110 {
        assert_eq!(workload.step().unwrap(), Step::Done);
        workload.sync().unwrap();
        let totals = workload.machine.objects.shared().totals();
        ended += u64::from(totals.references < last);
        last = totals.references;
        most = if totals.references > most.references { totals } else { most };
        workload.machine.check().unwrap();
    }
    assert!(most.references > most.blocks && most.blocks > 2 && ended > 5, "{most:?}, {ended}");
}

#[test]
fn random_lives_with_clones_survive_crashes_gc_and_rewrites() {
    let (mut references, mut moved) = (0, 0);
    for seed in seeds(12) {
        let (shared, runs) = cloning_crash(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        (references, moved) = (references + shared, moved + runs);
    }
    assert!(references > 0 && moved > 0, "{references} references, {moved} runs");
}
