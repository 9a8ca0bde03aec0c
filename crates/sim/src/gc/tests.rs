use super::trace::files::{self, Files};
use super::trace::lsm::Lsm;
use super::trace::{Overwrite, Pick, database::Database};
use super::*;

const MIB: u64 = 1 << 20;
/// 320 zones of 512 blocks: enough for theory to hold, and few enough for a test.
const ZONES: u32 = 320;
const ZONE_BYTES: u64 = 2 * MIB;

fn small(policy: &str) -> Setting {
    let txg_bytes = ZONE_BYTES / 4;
    Setting { txg_bytes, slots: 8, ages: 3, ..Setting::new(ZONES, ZONE_BYTES) }.with_policy(policy).unwrap()
}

fn overwrite(pick: Pick, fill: f64, policy: &str) -> Report {
    let setting = small(policy);
    let live = (setting.pool_bytes() as f64 * fill) as u64;
    let measure = Measure { seed: 5, warm_up: 3.0, measured: 2.0 };
    run(setting, &mut Overwrite::new(pick, live, 4096), measure).unwrap()
}

/// The live share v of a victim when greedy GC of uniform overwrites is steady at utilisation u: -ln v = (1 -
/// v) / u.
fn live_share_of_victims(u: f64) -> f64 {
    // The left side falls faster than the right up to the root, which lies under u.
    let (mut low, mut high) = (1e-9, u);
    for _ in 0..200 {
        let v = f64::midpoint(low, high);
        if -v.ln() > (1.0 - v) / u { low = v } else { high = v }
    }
    low
}

#[test]
fn the_theory_gives_its_published_figures() {
    for (u, amplification) in [(0.5, 1.26), (0.7, 1.88), (0.8, 2.69), (0.9, 5.18), (0.95, 10.17)] {
        let found = 1.0 / (1.0 - live_share_of_victims(u));
        assert!((found / amplification - 1.0f64).abs() < 0.005, "{u}: {found}, not {amplification}");
    }
}

#[test]
fn uniform_overwrites_cost_what_theory_says_they_must() {
    for (policy, fill) in [("greedy", 0.8), ("cost-benefit", 0.6)] {
        let report = overwrite(Pick::Uniform, fill, policy);
        let theory = 1.0 / (1.0 - live_share_of_victims(report.utilisation));
        let off = report.amplification / theory - 1.0;
        assert!(off.abs() < 0.05, "{policy} at {fill}: theory {theory:.3}, off by {off:.3}: {report:?}");
    }
}

#[test]
fn inferred_lifetimes_halve_the_copying_of_skewed_overwrites() {
    let greedy = overwrite(Pick::Hot { writes: 0.95, blocks: 0.05 }, 0.85, "greedy").amplification;
    let inferred = overwrite(Pick::Hot { writes: 0.95, blocks: 0.05 }, 0.85, "inferred").amplification;
    assert!(greedy > 2.0 * inferred, "{greedy}, {inferred}");
}

#[test]
fn inferred_lifetimes_beat_partial_hints() {
    let wa = |setting: Setting, policy: &str, trace: &mut dyn Trace| {
        let measure = Measure { seed: 5, warm_up: 3.0, measured: 2.0 };
        run(setting.with_policy(policy).unwrap(), trace, measure).unwrap().amplification
    };
    let live = |setting: &Setting| setting.pool_bytes() / 100 * 85;
    let farm = |policy| {
        let setting = Setting { txg_bytes: 4 * MIB, ..Setting::new(256, 16 * MIB) };
        wa(setting, policy, &mut Files::new(files::build_farm(), 8, live(&setting), 128 << 10))
    };
    // On 256 zones both cost the same, but for a percent: slots for lifetimes take space there.
    let database = |policy| {
        let setting = Setting::new(1024, 4 * MIB);
        wa(setting, policy, &mut Database::new(live(&setting), 32 << 10))
    };
    for (name, hints, inferred, both) in [
        ("build farm", farm("hints"), farm("inferred"), farm("both")),
        ("database", database("hints"), database("inferred"), database("both")),
    ] {
        // Where both tell something the hint is obeyed, so both together may cost a little more than one.
        assert!(
            inferred < 1.01 * hints && both < 1.05 * hints,
            "{name}: hints {hints}, inferred {inferred}, both {both}"
        );
    }
}

#[test]
fn tables_of_nearly_a_zone_leave_whole_zones_where_there_is_room() {
    let setting = Setting { txg_bytes: ZONE_BYTES, ..Setting::new(1024, ZONE_BYTES) };
    let live = setting.pool_bytes() / 100 * 78;
    let measure = Measure { seed: 1, warm_up: 2.0, measured: 2.0 };
    let trace = &mut Lsm::new(live, ZONE_BYTES / 16 * 15, 64 << 10);
    let report = run(setting.with_policy("inferred").unwrap(), trace, measure).unwrap();
    assert!(report.amplification < 1.001, "{report:?}");
}

#[test]
fn accounting_holds_and_a_seed_is_reproducible() {
    let once = || {
        let mut run = Simulation::new(Setting { metadata: 0.1, ..small("both") }).unwrap();
        let mut trace = Files::new(files::churn(), 4, run.accounting.setting.pool_bytes() / 10 * 7, 64 << 10);
        let mut rng = Prng::new(9);
        while let Some(event) = trace.fill(&mut rng) {
            run.step(event).unwrap();
        }
        for _ in 0..30_000 {
            run.step(trace.next(&mut rng).unwrap()).unwrap();
        }
        run.accounting.end_txg().unwrap();
        assert_eq!(run.accounting.tables.check(), vec![]);
        assert_eq!(run.accounting.check(), Ok(()));
        (run.accounting.totals.moved_bytes, run.accounting.index())
    };
    let first = once();
    assert!(first.0 > 0, "something was collected");
    assert_eq!(first, once());
}

#[test]
fn a_pool_that_runs_full_says_so() {
    let setting = small("both");
    let trace = &mut Overwrite::new(Pick::Uniform, setting.pool_bytes() / 100 * 99, 4096);
    assert!(run(setting, trace, Measure { seed: 1, warm_up: 1.0, measured: 1.0 }).is_none());
}

fn kept(count: &str, every_bytes: u64) -> Option<Schedule> {
    Some(Schedule { every_bytes, retention: count.parse().unwrap() })
}

#[test]
fn snapshots_hold_what_users_free_and_give_it_back() {
    let live_at = |snapshots| {
        let mut run = Simulation::new(Setting { snapshots, ..small("both") }).unwrap();
        let mut trace = Overwrite::new(Pick::Uniform, run.accounting.setting.pool_bytes() / 2, 4096);
        let mut rng = Prng::new(9);
        while let Some(event) = trace.fill(&mut rng) {
            run.step(event).unwrap();
        }
        for _ in 0..200_000 {
            run.step(trace.next(&mut rng).unwrap()).unwrap();
        }
        run.accounting.end_txg().unwrap();
        assert_eq!(run.accounting.tables.check(), vec![]);
        assert_eq!(run.accounting.check(), Ok(()));
        let head: u64 = run
            .objects
            .values()
            .flat_map(|object| &object.blocks)
            .map(|block| u64::from(block.granules))
            .sum();
        let (count, held) = run.held();
        assert_eq!(run.live_bytes(), head * GRANULE + held, "nothing is freed twice or lost");
        (count, held as f64 / (head * GRANULE) as f64)
    };
    assert_eq!(live_at(None), (0, 0.0));
    // 20 and 60 snapshots of 4 MiB each, on 320 MiB: nearly all that the newest 80 and 240 MiB of writes replaced.
    let ((few, little), (many, much)) = (live_at(kept("20", 4 * MIB)), live_at(kept("60", 4 * MIB)));
    assert_eq!((few, many), (20, 60));
    assert!((0.22..0.26).contains(&little) && (0.68..0.76).contains(&much), "{little}, {much}");
    let (both, _) = live_at(kept("4,5x10", 4 * MIB));
    assert_eq!(both, 9, "of the newest four one is a tenth");
}

#[test]
fn the_oldest_blocks_are_rewritten_at_the_bound_unless_snapshots_see_them() {
    let measure = Measure { seed: 5, warm_up: 2.0, measured: 2.0 };
    let at = |index_bytes_max, snapshots, fill: u64| {
        let setting = Setting { index_bytes_max, snapshots, ..small("inferred") };
        let live = setting.pool_bytes() / 100 * fill;
        run(setting, &mut Overwrite::new(Pick::Uniform, live, 4096), measure).unwrap()
    };
    let free = at(0, None, 80);
    let bound = free.index_largest.bytes() / 4;
    let bounded = at(bound, None, 80);
    assert!(bounded.rewritten > 0.0, "{bounded:?}");
    assert!(bounded.index_largest.bytes() < bound / 10 * 11, "{bound}: {bounded:?}");
    // Less than packing and large directory parts alone reach.
    let bound = bound / 2;
    let held = at(bound, kept("20", 8 * MIB), 50);
    assert!(
        held.index_largest.bytes() > bound && held.rewritten < 0.1 * bounded.rewritten,
        "{bound}: {held:?}"
    );
}
