//! A model of a pool: writers, a limit of dirty bytes, txgs and workers, but no data.

use super::*;
use proptest::prelude::*;

const BLOCK: u64 = 128 << 10;
const LIMIT: f64 = (128 << 20) as f64;
/// Compression ratio of each step on source code.
const RATIO: [f64; STEPS] = [
    3.57, 5.31, 5.5, 5.63, 5.7, 6.0, 6.2, 6.25, 6.3, 6.34, 6.36, 6.38, 6.5, 6.6, 6.7, 6.73, 6.75, 6.77, 6.78,
    6.79,
];

struct World {
    /// True MB/s of one worker at each step while it has a processor.
    speeds: [f64; STEPS],
    workers: u32,
    /// Processors for workers, writers and the server; they share them fairly.
    processors: u32,
    /// Processor seconds that writers and server need per MB. They alternate, so they never use more than one
    /// processor.
    serve_s: f64,
    /// MB/s that the writers would bring.
    offered: fn(f64) -> f64,
    /// If set, a caller waits for each txg, and nothing is written meanwhile.
    awaited_bytes: Option<f64>,
    /// The largest error of a measurement, as a factor.
    noise: f64,
    until_s: f64,
}

#[derive(Default, Debug)]
struct Outcome {
    logical: f64,
    stored: f64,
    seconds: f64,
    /// Seconds in which writers were blocked.
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
fn random(state: &mut u64) -> f64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
}

/// A block that a worker compresses.
struct Job {
    step: usize,
    bytes: f64,
    left_s: f64,
    took_s: f64,
    had_s: f64,
}

/// Runs the model with a controller, or with one fixed step.
fn run(world: &World, auto: Option<Auto>, fixed: usize) -> Outcome {
    let mut state = State {
        world,
        auto,
        fixed,
        out: Outcome::default(),
        now: 0.0,
        seed: 9,
        inflow: Inflow::default(),
        open: 0.0,
        syncing: 0.0,
        jobs: (0..world.workers).map(|_| None).collect(),
    };
    let mut group_began = 0.0f64;
    while state.now < world.until_s {
        // Fill the open txg until there is a reason to sync it.
        match world.awaited_bytes {
            Some(bytes) => {
                state.arrive(bytes);
                state.now += 0.002;
            }
            None => {
                while state.open < LIMIT * 0.3 && state.now - group_began < 5.0 && state.now < world.until_s {
                    state.bring(0.001, 1.0);
                }
            }
        }
        group_began = state.now;
        state.syncing = std::mem::take(&mut state.open);
        while state.syncing > 0.0 {
            state.compress();
        }
    }
    state.out.seconds = state.now;
    state.out
}

/// Seconds between two decisions of the scheduler.
const SLICE_S: f64 = 0.000_1;

struct State<'a> {
    world: &'a World,
    auto: Option<Auto>,
    fixed: usize,
    out: Outcome,
    now: f64,
    seed: u64,
    inflow: Inflow,
    open: f64,
    /// Bytes of the syncing txg that are not compressed.
    syncing: f64,
    jobs: Vec<Option<Job>>,
}

impl State<'_> {
    fn arrive(&mut self, bytes: f64) {
        self.open += bytes;
        self.inflow.add((self.now * 1e9) as u64, bytes as u64);
    }

    /// Lets writers run for `seconds`, with this share of a processor.
    fn bring(&mut self, seconds: f64, share: f64) {
        self.now += seconds;
        if self.world.awaited_bytes.is_some() {
            return;
        }
        let wanted = (self.world.offered)(self.now) * 1e6 * seconds;
        let able = wanted.min(share * seconds / self.world.serve_s * 1e6);
        let room = (LIMIT - self.open - self.syncing).max(0.0);
        self.arrive(able.min(room));
        self.out.waited_s += if able > room { seconds * (1.0 - room / able) } else { 0.0 };
    }

    /// Lets workers and writers run for one slice.
    fn compress(&mut self) {
        let world = self.world;
        let unclaimed = self.syncing - self.jobs.iter().flatten().map(|job| job.bytes).sum::<f64>();
        let idle = self.jobs.iter().filter(|job| job.is_none()).count() as f64;
        let working = world.workers as f64 - (idle - (unclaimed / BLOCK as f64).ceil()).max(0.0);
        let serving = ((world.offered)(self.now) * world.serve_s).min(1.0);
        let serving = if world.awaited_bytes.is_some() { 0.0 } else { serving };
        let share = (f64::from(world.processors) / (working + serving)).min(1.0);
        for worker in 0..self.jobs.len() {
            let mut left_s = SLICE_S * share;
            while left_s > 0.0 {
                let Some(mut job) = self.jobs[worker].take().or_else(|| self.next_job()) else { break };
                let had_s = left_s.min(job.left_s);
                left_s -= had_s;
                job.left_s -= had_s;
                job.had_s += had_s;
                job.took_s += had_s / share;
                if job.left_s > 0.0 {
                    self.jobs[worker] = Some(job);
                } else {
                    self.finish(job);
                }
            }
        }
        self.bring(SLICE_S, share);
    }

    fn next_job(&mut self) -> Option<Job> {
        let claimed: f64 = self.jobs.iter().flatten().map(|job| job.bytes).sum();
        let bytes = (self.syncing - claimed).min(BLOCK as f64);
        if bytes < 1.0 {
            // A remainder of rounding.
            self.syncing = claimed;
            return None;
        }
        let load = Load {
            backlog_bytes: (self.open + self.syncing) as u64,
            limit_bytes: LIMIT as u64,
            inflow_bytes_per_s: self.inflow.bytes_per_s((self.now * 1e9) as u64),
            awaited_bytes: if self.world.awaited_bytes.is_some() { self.syncing as u64 } else { 0 },
            workers: self.world.workers,
        };
        let compression = self.auto.as_mut().map(|auto| auto.choose(&load, bytes as u64));
        let step = compression.map_or(self.fixed, |compression| step_of(compression).unwrap());
        let left_s = bytes / (self.world.speeds[step] * 1e6);
        Some(Job { step, bytes, left_s, took_s: 0.0, had_s: 0.0 })
    }

    fn finish(&mut self, job: Job) {
        let off = self.world.noise.powf(random(&mut self.seed) * 2.0 - 1.0);
        let ns = |seconds: f64| (seconds * off * 1e9) as u64;
        if let Some(auto) = &mut self.auto {
            let took = BlockTime { wall_ns: ns(job.took_s), processor_ns: ns(job.had_s) };
            auto.record_time(compression_of(job.step), job.bytes as u64, took);
        }
        self.syncing -= job.bytes;
        self.out.logical += job.bytes;
        self.out.stored += job.bytes / RATIO[job.step];
        self.out.steps.push(job.step);
    }
}

fn world(offered: fn(f64) -> f64) -> World {
    World {
        speeds: INITIAL_SPEEDS,
        workers: 2,
        processors: 2,
        serve_s: 0.001_3,
        offered,
        awaited_bytes: None,
        noise: 1.5,
        until_s: 60.0,
    }
}

fn auto() -> Option<Auto> {
    Some(Auto::new(AutoRange::default()))
}

#[test]
fn heavy_input_is_compressed_as_fast_as_by_lz4() {
    // Writers that could fill memory at once, and writers that the server of a mount slows down.
    for serve_s in [0.000_01, 0.001_3, 0.003] {
        for (processors, factor) in [(1, 1.0), (2, 1.0), (8, 1.0), (2, 0.1), (2, 4.0)] {
            let mut world = world(|_| 1e5);
            (world.workers, world.processors, world.serve_s) = (processors, processors, serve_s);
            world.speeds = world.speeds.map(|speed| speed * factor);
            world.until_s = 10.0;
            let (found, lz4) = (run(&world, auto(), 0).mb_per_s(), run(&world, None, 0).mb_per_s());
            let what = format!("{processors} processors, speed x {factor}, {serve_s} s for a MB");
            assert!(found >= 0.95 * lz4, "{what}: {found} of {lz4} MB/s");
        }
    }
}

/// A file of 256 MB is written before the rate ever becomes steady.
#[test]
fn the_first_half_second_of_a_flood_is_compressed_by_lz4() {
    for (processors, before_s) in [(2, 0.0), (1, 0.0), (2, 30.0)] {
        let mut world =
            world(if before_s > 0.0 { |now| if now < 30.0 { 2.0 } else { 1e5 } } else { |_| 1e5 });
        (world.workers, world.processors) = (processors, processors);
        world.until_s = before_s + 0.5;
        let found = run(&world, auto(), 0);
        let calm_blocks = (before_s * 2e6 / BLOCK as f64) as usize;
        let flood = &found.steps[calm_blocks..];
        let higher = flood.iter().filter(|step| **step > 0).count();
        assert!(flood.len() > 1000 && higher * 50 < flood.len(), "{processors}: {higher} of {}", flood.len());
    }
}

/// No other thread needs these processors.
#[test]
fn idle_processors_are_used_under_heavy_input() {
    let mut world = world(|_| 1e5);
    (world.workers, world.processors, world.serve_s) = (16, 16, 0.003);
    let (found, lz4) = (run(&world, auto(), 0), run(&world, None, 0));
    assert!(
        found.mb_per_s() >= 0.95 * lz4.mb_per_s() && found.ratio() > 5.5,
        "{} {}",
        found.ratio(),
        lz4.ratio()
    );
}

#[test]
fn light_input_saves_as_much_as_zstd_9_without_waits() {
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
    // Two workers compress 4 MB/s by zstd-19, 18 by zstd-15, 178 by zstd-9.
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

/// One step fits a load in one world and another step in the next. The initial speeds are those of another machine.
#[test]
fn step_speeds_are_learned_and_half_of_the_workers_stay_idle() {
    for (factor, offered, least, most) in [
        (0.3, (|_| 100.0) as fn(f64) -> f64, 0.9, 2.5),
        (1.0, |_| 100.0, 4.0, 5.5),
        (4.0, |_| 100.0, 8.5, 9.0),
        (1.0, |_| 300.0, 0.9, 2.5),
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

/// Measures how far the level moves. A controller that oscillates moves with every other block, or over half the
/// ladder again and again.
#[test]
fn a_steady_load_has_a_steady_level() {
    // The true speeds are far from the initial guess: steeper, and flat.
    let steep: [f64; STEPS] = std::array::from_fn(|step| INITIAL_SPEEDS[step] / (1.0 + step as f64 / 4.0));
    let flat: [f64; STEPS] = std::array::from_fn(|step| INITIAL_SPEEDS[0] / (1.0 + step as f64 / 8.0));
    for speeds in [INITIAL_SPEEDS, steep, flat] {
        for offered in [|_| 5.0, |_| 20.0, |_| 60.0, |_| 100.0, (|_| 200.0) as fn(f64) -> f64] {
            let mut world = world(offered);
            world.speeds = speeds;
            world.until_s = 120.0;
            let found = run(&world, auto(), 0);
            let end = &found.steps[found.steps.len() / 2..];
            let travel: usize = end.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
            // In steps for each txg of 38 MB.
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
fn fsync_does_not_wait_for_a_high_level() {
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
    fn choices_stay_within_the_bounds(
        (lowest, highest) in (0u8..20).prop_flat_map(|lowest| (Just(lowest), lowest..20)),
        calls in prop::collection::vec((any::<u64>(), any::<u64>(), 0f64..1e12, any::<u64>(), 0u32..300, any::<u64>(), (any::<u64>(), any::<u64>())), 1..50),
    ) {
        let mut auto = Auto::new(AutoRange::new(lowest, highest).unwrap());
        for (backlog_bytes, limit_bytes, inflow_bytes_per_s, awaited_bytes, workers, bytes, (wall_ns, processor_ns)) in calls {
            let load = Load { backlog_bytes, limit_bytes, inflow_bytes_per_s, awaited_bytes, workers };
            let chosen = auto.choose(&load, bytes % (16 << 20));
            let step = step_of(chosen).unwrap();
            prop_assert!((usize::from(lowest)..=highest.into()).contains(&step));
            auto.record_time(chosen, bytes % (16 << 20), BlockTime { wall_ns, processor_ns });
            prop_assert!((0.0..=1.0).contains(&auto.waited));
        }
        prop_assert!(auto.speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0));
    }
}
