//! A pool in small: writers, memory for what is dirty, groups, workers; no bytes.

use super::*;
use proptest::prelude::*;

const BLOCK: u64 = 128 << 10;
const LIMIT: f64 = (128 << 20) as f64;
/// How much smaller each step makes source code.
const RATIO: [f64; STEPS] = [
    3.57, 5.31, 5.5, 5.63, 5.7, 6.0, 6.2, 6.25, 6.3, 6.34, 6.36, 6.38, 6.5, 6.6, 6.7, 6.73, 6.75, 6.77, 6.78,
    6.79,
];

struct World {
    /// MB/s of one worker at each step, in truth.
    speeds: [f64; STEPS],
    workers: u32,
    /// MB/s that the writers would bring.
    offered: fn(f64) -> f64,
    /// Each group is waited for, and nothing is written meanwhile.
    awaited_bytes: Option<f64>,
    /// What a measurement may be off by, as a factor.
    noise: f64,
    until_s: f64,
}

#[derive(Default, Debug)]
struct Outcome {
    logical: f64,
    stored: f64,
    seconds: f64,
    /// Seconds in which writers could not go on.
    waited_s: f64,
    steps: Vec<usize>,
}

impl Outcome {
    fn ratio(&self) -> f64 {
        self.logical / self.stored
    }

    fn mb_per_s(&self) -> f64 {
        self.logical / self.seconds / 1e6
    }
}

/// xorshift64*, in 0..1.
fn dice(state: &mut u64) -> f64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
}

/// Runs `choose` and `measured` of a controller, or one step for ever.
fn run(world: &World, mut auto: Option<Auto>, fixed: usize) -> Outcome {
    let mut out = Outcome::default();
    let (mut now, mut seed) = (0.0f64, 9u64);
    let (mut open, mut syncing) = (0.0f64, 0.0f64);
    let (mut inflow, mut group_began) = (0.0, 0.0f64);
    let bring = |now: &mut f64, open: &mut f64, syncing: f64, seconds: f64, out: &mut Outcome| {
        *now += seconds;
        if world.awaited_bytes.is_none() {
            let wanted = (world.offered)(*now) * 1e6 * seconds;
            let room = (LIMIT - *open - syncing).max(0.0);
            *open += wanted.min(room);
            out.waited_s += if wanted > room { seconds * (1.0 - room / wanted) } else { 0.0 };
        }
    };
    while now < world.until_s {
        // Until there is a reason for a group.
        match world.awaited_bytes {
            Some(bytes) => {
                open = bytes;
                now += 0.002;
            }
            None => {
                while open < LIMIT * 0.3 && now - group_began < 5.0 && now < world.until_s {
                    bring(&mut now, &mut open, syncing, 0.01, &mut out);
                }
            }
        }
        let since = (now - group_began).max(1e-6);
        inflow = if inflow == 0.0 { open / since } else { inflow * 0.5 + open / since * 0.5 };
        group_began = now;
        syncing = open;
        open = 0.0;
        while syncing > 0.0 {
            let mut longest = 0.0f64;
            for _ in 0..world.workers {
                let bytes = syncing.min(BLOCK as f64);
                if bytes <= 0.0 {
                    break;
                }
                let load = Load {
                    backlog_bytes: (open + syncing) as u64,
                    limit_bytes: LIMIT as u64,
                    inflow_bytes_per_s: inflow,
                    awaited_bytes: if world.awaited_bytes.is_some() { syncing as u64 } else { 0 },
                    workers: world.workers,
                };
                let compression = auto.as_mut().map(|auto| auto.choose(&load, bytes as u64));
                let step = compression.map_or(fixed, |compression| step_of(compression).unwrap());
                let seconds = bytes / (world.speeds[step] * 1e6);
                if let (Some(auto), Some(compression)) = (&mut auto, compression) {
                    let off = world.noise.powf(dice(&mut seed) * 2.0 - 1.0);
                    auto.measured(compression, bytes as u64, (seconds * off * 1e9) as u64);
                }
                longest = longest.max(seconds);
                syncing -= bytes;
                out.logical += bytes;
                out.stored += bytes / RATIO[step];
                out.steps.push(step);
            }
            bring(&mut now, &mut open, syncing, longest, &mut out);
        }
    }
    out.seconds = now;
    out
}

fn world(offered: fn(f64) -> f64) -> World {
    World { speeds: GUESS, workers: 2, offered, awaited_bytes: None, noise: 1.5, until_s: 60.0 }
}

fn auto() -> Option<Auto> {
    Some(Auto::new(AutoRange::default()))
}

#[test]
fn flooded_it_is_as_quick_as_lz4() {
    for (workers, factor) in [(1, 1.0), (2, 1.0), (8, 1.0), (2, 0.1), (2, 4.0)] {
        let mut world = world(|_| 1e5);
        world.workers = workers;
        world.speeds = world.speeds.map(|speed| speed * factor);
        world.until_s = 10.0;
        let (found, lz4) = (run(&world, auto(), 0).mb_per_s(), run(&world, None, 0).mb_per_s());
        assert!(found >= 0.95 * lz4, "{workers} workers, speed x {factor}: {found} of {lz4} MB/s");
    }
}

#[test]
fn trickled_it_saves_what_zstd_9_saves_and_nobody_waits() {
    for offered in
        [|_| 0.3, |_| 2.0, |_| 10.0, (|now: f64| if now % 7.0 < 0.5 { 30.0 } else { 0.2 }) as fn(f64) -> f64]
    {
        let mut world = world(offered);
        world.until_s = 600.0;
        let (found, nine) = (run(&world, auto(), 0), run(&world, None, 9));
        assert!(found.ratio() >= 0.95 * nine.ratio(), "{} of {}", found.ratio(), nine.ratio());
        assert_eq!(found.waited_s, 0.0);
    }
}

#[test]
fn with_little_to_do_it_reaches_the_highest_step_that_keeps_up() {
    let range = AutoRange::new(0, 19).unwrap();
    // Two workers do 4 MB/s by zstd-19, 18 by zstd-15, 178 by zstd-9.
    for (offered, least) in [((|_| 0.2) as fn(f64) -> f64, 19), (|_| 1.0, 16), (|_| 6.0, 12), (|_| 40.0, 6)] {
        let mut world = world(offered);
        world.until_s = 400.0;
        let found = run(&world, Some(Auto::new(range)), 0);
        let end = &found.steps[found.steps.len() * 3 / 4..];
        let mean = end.iter().sum::<usize>() as f64 / end.len() as f64;
        assert!(mean >= f64::from(least), "{} MB/s: {mean}", offered(0.0));
        assert_eq!(found.waited_s, 0.0, "{} MB/s", offered(0.0));
    }
}

#[test]
fn writers_that_lz4_would_not_stop_are_not_stopped() {
    for offered in [
        |_| 50.0,
        |_| 150.0,
        |_| 300.0,
        (|now: f64| if now % 10.0 < 3.0 { 600.0 } else { 1.0 }) as fn(f64) -> f64,
    ] {
        let world = world(offered);
        let (found, lz4) = (run(&world, auto(), 0), run(&world, None, 0));
        assert!(
            found.waited_s <= lz4.waited_s + 0.01 * found.seconds,
            "{} MB/s: {} s",
            offered(0.0),
            found.waited_s
        );
        assert!(found.logical >= 0.99 * lz4.logical);
    }
}

/// A load is a step's in one world and another's in the next: guesses are made for a machine that there may not be.
#[test]
fn how_quick_a_step_is_is_learned_and_half_of_the_workers_is_left_to_others() {
    for (factor, offered, least, most) in [
        (0.3, (|_| 100.0) as fn(f64) -> f64, 1.0, 2.5),
        (1.0, |_| 100.0, 4.0, 5.5),
        (4.0, |_| 100.0, 8.5, 9.0),
        (1.0, |_| 300.0, 2.5, 3.5),
    ] {
        let mut world = world(offered);
        world.speeds = world.speeds.map(|speed| speed * factor);
        let steps = run(&world, auto(), 0).steps;
        let end = &steps[steps.len() / 2..];
        let mean = end.iter().sum::<usize>() as f64 / end.len() as f64;
        assert!((least..=most).contains(&mean), "speed x {factor}, {} MB/s: {mean}", offered(0.0));
    }
}

#[test]
fn a_flood_out_of_a_calm_finds_no_high_level() {
    let world = world(|now| if now % 10.0 < 1.0 { 1500.0 } else { 1.0 });
    let (found, lz4) = (run(&world, auto(), 0), run(&world, None, 0));
    assert!(found.waited_s <= lz4.waited_s + 0.1, "{} and {} s", found.waited_s, lz4.waited_s);
}

/// How far the level moves. A controller that oscillates moves with every other block, or over half the
/// ladder again and again.
#[test]
fn a_steady_load_has_a_steady_level() {
    // The guess is far off: steeper, and flat.
    let steep: [f64; STEPS] = std::array::from_fn(|step| GUESS[step] / (1.0 + step as f64 / 4.0));
    let flat: [f64; STEPS] = std::array::from_fn(|step| GUESS[0] / (1.0 + step as f64 / 8.0));
    for speeds in [GUESS, steep, flat] {
        for offered in [|_| 5.0, |_| 20.0, |_| 60.0, |_| 100.0, (|_| 200.0) as fn(f64) -> f64] {
            let mut world = world(offered);
            world.speeds = speeds;
            world.until_s = 120.0;
            let found = run(&world, auto(), 0);
            let end = &found.steps[found.steps.len() / 2..];
            let travel: usize = end.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
            // In steps for each group of 38 MB.
            let groups = (end.len() as f64 * BLOCK as f64 / LIMIT / 0.3).max(1.0);
            assert!(
                travel as f64 / groups < 6.0,
                "{} MB/s: {} steps a group",
                offered(0.0),
                travel as f64 / groups
            );
        }
    }
}

#[test]
fn who_waits_for_his_group_does_not_wait_for_a_high_level() {
    let mut world = world(|_| 0.0);
    world.until_s = 20.0;
    for bytes in [16e3, 1e6, 20e6, 100e6] {
        world.awaited_bytes = Some(bytes);
        let (found, lz4) = (run(&world, auto(), 0), run(&world, None, 0));
        let more_s = (found.seconds / found.logical - lz4.seconds / lz4.logical) * bytes;
        assert!(more_s < 0.0075, "{bytes} bytes: {more_s} s more than lz4");
    }
    world.awaited_bytes = Some(16e3);
    assert!(run(&world, auto(), 0).ratio() > 6.0, "what is little is quick at any level");
}

#[test]
fn bounds_hold_and_are_written_as_they_are_read() {
    for (word, lowest, highest) in [("lz4-9", 0, 9), ("3-19", 3, 19), ("1-1", 1, 1), ("lz4-lz4", 0, 0)] {
        let range: AutoRange = word.parse().unwrap();
        assert_eq!((range.lowest(), range.highest(), range.to_string().as_str()), (lowest, highest, word));
        for offered in [|_| 0.5, (|_| 1e4) as fn(f64) -> f64] {
            let mut world = world(offered);
            world.until_s = 5.0;
            let found = run(&world, Some(Auto::new(range)), 0);
            assert!(found.steps.iter().all(|step| (usize::from(lowest)..=highest.into()).contains(step)));
        }
    }
    for word in ["", "-", "9", "9-3", "0-3", "1-20", "03-9", "lz4", "3-", "-9", "1-+9", "1-9-"] {
        assert!(word.parse::<AutoRange>().is_err(), "{word}");
    }
    assert_eq!(AutoRange::default().to_string(), "lz4-9");
}

#[test]
fn the_property_comes_back_from_its_word_and_from_its_number() {
    for (word, property) in [
        ("zstd-auto", 16 | 251 << 7),
        ("zstd-auto:lz4-19", 16 | 251 << 7 | 20 << 24),
        ("zstd-auto:3-12", 16 | 251 << 7 | 3 << 16 | 13 << 24),
        ("zstd-3", 16 | 3 << 7),
        ("gzip-9", 13),
    ] {
        let policy: CompressionPolicy = word.parse().unwrap();
        assert_eq!((policy.to_string().as_str(), policy.to_property()), (word, property));
        assert_eq!(CompressionPolicy::from_property(property), Ok(policy));
    }
    assert_eq!("zstd-auto:lz4-9".parse(), Ok(CompressionPolicy::Auto(AutoRange::default())));
    for word in ["zstd-auto:", "zstd-auto-9", "zstd-auto:9", "zstd-auto:12-3", "zstd-auto:fast-9"] {
        assert!(word.parse::<CompressionPolicy>().unwrap_err().to_string().contains("zstd-auto"), "{word}");
    }
    let auto = 16 | 251 << 7;
    for property in
        [auto | 1 << 32, auto | 5 << 16, auto | 9 << 16 | 3 << 24, auto | 21 << 24, auto | 1 << 15]
    {
        assert!(CompressionPolicy::from_property(property).is_err(), "{property}");
    }
}

#[test]
fn the_ladder_has_lz4_and_every_level() {
    for step in 0..STEPS {
        assert_eq!(step_of(compression_of(step)), Some(step));
    }
    for word in ["off", "zle", "gzip-9", "zstd-fast-1"] {
        assert_eq!(step_of(word.parse().unwrap()), None);
    }
}

proptest! {
    #[test]
    fn whatever_is_told_the_answer_lies_within_the_bounds(
        (lowest, highest) in (0u8..20).prop_flat_map(|lowest| (Just(lowest), lowest..20)),
        calls in prop::collection::vec((any::<u64>(), any::<u64>(), 0f64..1e12, any::<u64>(), 0u32..300, any::<u64>(), any::<u64>()), 1..50),
    ) {
        let mut auto = Auto::new(AutoRange::new(lowest, highest).unwrap());
        for (backlog_bytes, limit_bytes, inflow_bytes_per_s, awaited_bytes, workers, bytes, ns) in calls {
            let load = Load { backlog_bytes, limit_bytes, inflow_bytes_per_s, awaited_bytes, workers };
            let chosen = auto.choose(&load, bytes % (16 << 20));
            let step = step_of(chosen).unwrap();
            prop_assert!((usize::from(lowest)..=highest.into()).contains(&step));
            auto.measured(chosen, bytes % (16 << 20), ns);
        }
        prop_assert!(auto.speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0));
    }
}
