//! Power fails in a pool with an intent log.
//!
//! Claims, for every moment at which power can fail:
//! * The pool can be imported without help, and its log replayed.
//! * The tree is that of the imported txg with the changes of all batches of the log that were promised, and of at most one more batch
//!   as a whole. [`world`] says which changes those are.
//! * The same holds if power fails in the replay, and in the replay of that.
//! * `check` finds nothing, and the pool stays usable.

pub mod ace;
pub mod actor;
pub mod calls;
pub mod tree;
pub mod world;

use crate::machine::{Machine, Plan};
use actor::Actor;
use terrane_device::SimDevice;
use terrane_device::sim::Survival;
use terrane_oracle::{Failure, ensure};
use terrane_wire::Prng;
use world::{Seen, Step, World};

/// A pool with a log, in one copy or in two. One device in three pools has larger write units.
pub fn logged_plan(seed: u64) -> Plan {
    let mut plan = Plan { intent_log: true, companions: (seed / 2 % 3) as u32, ..Plan::small(seed) };
    plan.props.extend((seed % 5 == 3).then_some(("xattr", "dir")));
    plan
}

/// A fresh pool.
pub fn fresh(plan: &Plan) -> Result<World, Failure> {
    World::fresh(Machine::create(plan)?)
}

fn left_by(device: &SimDevice, rng: &mut Prng) -> SimDevice {
    device.cut_power();
    match rng.below(8) {
        0 => device.restarted(Survival::Nothing),
        1 => device.restarted(Survival::Everything),
        _ => device.after_power_loss(rng.next_u64()),
    }
}

/// One random workload, cut at a random device operation three times in a row, each time also in the replay, then ended cleanly.
pub fn random_crash(seed: u64) -> Result<Seen, Failure> {
    let world = fresh(&logged_plan(seed))?;
    run_crashes(world, Actor::new(seed), seed, 150)
}

/// The same, where writes of the log fail now and then.
pub fn faulty_crash(seed: u64) -> Result<Seen, Failure> {
    let world = fresh(&logged_plan(seed))?;
    run_crashes(world, Actor { log_fails: true, ..Actor::new(seed) }, seed, 300)
}

/// The same, where log devices join, leave and fail.
pub fn log_device_crash(seed: u64) -> Result<Seen, Failure> {
    let world = fresh(&Plan { log_devices: 2, ..logged_plan(seed) })?;
    let actor = Actor { log_fails: seed.is_multiple_of(2), log_devices: true, ..Actor::new(seed) };
    run_crashes(world, actor, seed, 300)
}

/// The same with so many writes that the log goes from zone to zone. In every second life the pool becomes full, so the log gives its
/// zones back.
pub fn crowded_crash(seed: u64) -> Result<Seen, Failure> {
    let mut plan = Plan { zones: 32, ..logged_plan(seed) };
    plan.props.extend([("recordsize", "16K"), ("compression", "off")]);
    let mut world = fresh(&plan)?;
    let mut actor = Actor::new(seed);
    actor.write_bytes = 100_000;
    let alive = |step: Step| ensure(step == Step::Done, || "the power is on".into());
    alive(actor.run(&mut world, 100 + seed % 5 * 60)?)?;
    if seed.is_multiple_of(2) {
        let files = fill(&mut world)?;
        alive(actor.run(&mut world, 60)?)?;
        let root = world.tree.model.root;
        for file in files.iter().take((seed / 2 % 3) as usize * files.len() / 2) {
            world.remove(root, file, false)?;
        }
        alive(actor.run(&mut world, 30)?)?;
    }
    run_crashes(world, actor, seed, 400)
}

/// Creates files in the root directory until the pool is full. Returns their names.
fn fill(world: &mut World) -> Result<Vec<String>, Failure> {
    let root = world.tree.model.root;
    let mut names = Vec::new();
    for number in 0..1000 {
        let name = format!("fill {number}");
        let Some(ino) = world.create(root, &name)? else { break };
        let data = Prng::new(number).random_bytes(200_000);
        let len = data.len();
        world.write(ino, 0, data)?;
        names.push(name);
        let written = world.tree.model.bytes(ino).len();
        world.forget(ino)?;
        world.fsync(ino)?;
        if written < len {
            break;
        }
    }
    Ok(names)
}

fn run_crashes(mut world: World, mut actor: Actor, seed: u64, ops: u64) -> Result<Seen, Failure> {
    let mut rng = Prng::new(seed ^ 0x106);
    for round in 0..3 {
        let within = |failure: Failure| failure.within(format_args!("crash {round}"));
        let device = world.machine.device.clone();
        device.crash_after(device.ops_done() + rng.below(ops));
        actor.run(&mut world, 250).map_err(within)?;
        let left = left_by(&device, &mut rng);
        world.machine.pool.abandon();
        let cuts = [rng.below(60), rng.below(60)];
        let depth = rng.below(3) as usize;
        world.check_without_log_devices(&left, seed + round).map_err(within)?;
        world.recover_cut(&left, cuts.get(..depth).unwrap_or(&[]), seed + round).map_err(within)?;
        world = world.recover(&left, seed + round).map_err(within)?;
    }
    finish(world, actor, seed)
}

/// More calls, a sync, a clean check, an export, an import.
pub fn finish(mut world: World, mut actor: Actor, seed: u64) -> Result<Seen, Failure> {
    ensure(actor.run(&mut world, 40)? == Step::Done, || "the power is on".into())?;
    world.sync()?;
    let World { machine, tree, seen, .. } = world;
    machine.fs().forget_all();
    ensure(machine.fs().sync().is_ok(), || "sync failed".into())?;
    machine.check()?;
    let device = machine.export()?;
    let (machine, _, replayed) = world::import(&device, seed)?;
    ensure(replayed == 0, || format!("{replayed} records were replayed after an export"))?;
    tree.after_remount().compare(machine.fs()).map_err(|failure| failure.within("after export"))?;
    Ok(seen)
}

/// A small, reproducible workload.
#[derive(Clone, Copy, Debug)]
pub struct SmallScenario {
    /// Seed of the pool and of the workload.
    pub seed: u64,
    /// Like a zoned drive, or like a file.
    pub drive: bool,
    /// A second device has the second copy of the log.
    pub two_copies: bool,
    /// Two log devices join, leave and fail.
    pub log_devices: bool,
    /// Calls of the workload.
    pub steps: u64,
}

/// Cut in one device operation, counted from the first call.
fn run_small(scenario: SmallScenario, cut: Option<u64>) -> Result<(World, u64), Failure> {
    let SmallScenario { seed, drive, two_copies, log_devices, steps } = scenario;
    let companions = two_copies.into();
    let on_log = if log_devices { 2 } else { 0 };
    let plan = Plan { drive, companions, log_devices: on_log, intent_log: true, ..Plan::small(seed) };
    let mut world = fresh(&plan)?;
    let device = world.machine.device.clone();
    let first = device.ops_done();
    if let Some(cut) = cut {
        device.crash_after(first + cut);
    }
    let mut actor = Actor::new(seed);
    actor.write_bytes = 6000;
    actor.log_devices = log_devices;
    actor.run(&mut world, steps)?;
    Ok((world, device.ops_done() - first))
}

/// The number of device operations of the small workload.
pub fn count_small_ops(scenario: SmallScenario) -> Result<u64, Failure> {
    run_small(scenario, None).map(|(_, ops)| ops)
}

/// The small workload, cut at one device operation, with `chances` outcomes of what the devices kept.
pub fn cut_at(scenario: SmallScenario, cut: u64, chances: u64) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    for chance in 0..chances {
        let (mut world, _) = run_small(scenario, Some(cut))?;
        let device = world.machine.device.clone();
        device.cut_power();
        world.machine.pool.abandon();
        let left = device.restarted(match chance {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Seeded(cut * 1000 + chance),
        });
        let within =
            |failure: Failure| failure.within(format_args!("cut at {cut}, outcome {chance}, {scenario:?}"));
        world = world.recover(&left, scenario.seed + chance).map_err(within)?;
        seen.add(&world.seen);
    }
    Ok(seen)
}

/// The small workload, cut at one device operation, with the power cut in every `stride`-th operation of the replay, and in every
/// operation of the replay of that, whose number divides by `stride` as well.
pub fn cut_replays_at(scenario: SmallScenario, cut: u64, stride: u64) -> Result<Seen, Failure> {
    let (mut world, _) = run_small(scenario, Some(cut))?;
    let left = left_by(&world.machine.device.clone(), &mut Prng::new(cut));
    world.machine.pool.abandon();
    let within = |failure: Failure| failure.within(format_args!("cut at {cut}, {scenario:?}"));
    for first in (0..).step_by(stride as usize) {
        if world.recover_cut(&left, &[first], first).map_err(within)?.is_none() {
            break;
        }
        for second in (0..).step_by(stride as usize) {
            if world.recover_cut(&left, &[first, second], first).map_err(within)?.is_none() {
                break;
            }
        }
    }
    Ok(world.seen)
}
