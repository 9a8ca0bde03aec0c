//! Power fails, and returns.
//!
//! Claims, for every moment at which power can fail:
//! * The pool can be imported without help.
//! * The tree is exactly what it was at the end of a committed txg.
//! * That txg holds everything that a sync promised.
//! * `check` finds nothing, and the pool stays usable.

use crate::machine::{Machine, Plan};
use crate::workload::{ERROR_LOG_OBJSET, OpMix, Step, Workload};
use terrane_device::SimDevice;
use terrane_device::sim::{Fault, Survival};
use terrane_format::rows::Phase;
use terrane_oracle::{Failure, ensure};
use terrane_wire::Prng;

/// Imports what a crash left, and compares it with the allowed states. Returns the machine with the matching
/// model.
pub fn recover(before: &Workload, device: &SimDevice, seed: u64) -> Result<Workload, Failure> {
    recover_to(before, before.promised(), &interrupt_import(device, seed), seed)
}

/// An import that does not complete does no harm: its reads fail, or power fails again in the middle of it.
fn interrupt_import(device: &SimDevice, seed: u64) -> SimDevice {
    let mut rng = Prng::new(seed ^ 0x1a9047);
    match rng.below(3) {
        0 => {
            let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 + rng.below(200) as u32 });
            drop(Machine::import(device, seed, false));
            device.disarm(fault);
            device.clone()
        }
        1 => {
            device.crash_after(device.ops_done() + rng.below(8));
            drop(Machine::import(device, seed, false));
            device.cut_power();
            device.after_power_loss(rng.next_u64())
        }
        _ => device.clone(),
    }
}

/// The same, for a crash at which only this had been promised.
pub(crate) fn recover_to(
    before: &Workload,
    promised: u64,
    device: &SimDevice,
    seed: u64,
) -> Result<Workload, Failure> {
    let machine = Machine::import(device, seed, false)?;
    let txg = machine.durable_txg().0;
    machine.check().map_err(|failure| failure.within(format_args!("txg {txg}")))?;
    compare(before, promised, machine, seed)
}

/// The same, whatever `check` says of where blocks lie.
pub(crate) fn recover_unchecked(
    before: &Workload,
    device: &SimDevice,
    seed: u64,
) -> Result<Workload, Failure> {
    compare(before, before.promised(), Machine::import(device, seed, false)?, seed)
}

/// Mounts what was imported, and compares its tree with the allowed states.
fn compare(before: &Workload, promised: u64, mut machine: Machine, seed: u64) -> Result<Workload, Failure> {
    let txg = machine.durable_txg().0;
    let states = before.states(txg);
    ensure(!states.is_empty(), || format!("txg {txg} was imported, but never committed"))?;
    ensure(states.iter().any(|state| state.steps >= promised), || {
        let newest = states.iter().map(|state| state.steps).max();
        format!("txg {txg} of operation {newest:?} was imported, expected operation {promised} or later")
    })?;
    machine.mount()?;
    let logged = machine.pool.errors().files;
    for operation in before.expected_errors(promised) {
        ensure(logged.contains_key(&(ERROR_LOG_OBJSET, operation)), || {
            format!("txg {txg}: error log lost the entry of operation {operation} of {promised}")
        })?;
    }
    let mut last = None;
    for state in states.iter().filter(|state| state.steps >= promised) {
        let model = state.model.after_remount();
        match model.compare(machine.fs()) {
            Ok(()) => return Ok(Workload::new(machine, model, seed ^ 0xa11_11fe)),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or(Failure("no state to compare".into())).within(format_args!("tree of txg {txg}")))
}

fn stopped_text(workload: &Workload) -> String {
    format!("the pool stopped after a crash: {:?}", workload.machine.pool.status().failed)
}

/// Continues after a crash: more operations, a sync, a clean check, an export, an import.
pub fn continue_workload(mut workload: Workload, steps: u64, seed: u64) -> Result<(), Failure> {
    for _ in 0..steps {
        let step = workload.step()?;
        ensure(step == Step::Done, || stopped_text(&workload))?;
    }
    let step = workload.sync()?;
    ensure(step == Step::Done, || stopped_text(&workload))?;
    let Workload { machine, model, .. } = workload;
    machine.fs().forget_all();
    ensure(machine.fs().sync().is_ok(), || "sync failed".into())?;
    machine.check()?;
    let device = machine.export()?;
    let mut machine = Machine::import(&device, seed, true)?;
    machine.check().map_err(|failure| failure.within("after export"))?;
    machine.mount()?;
    model.after_remount().compare(machine.fs()).map_err(|failure| failure.within("after export"))
}

/// One pool in three has two devices, one has three.
fn multi_device_plan(seed: u64) -> Plan {
    Plan { companions: (seed / 2 % 3) as u32, ..Plan::small(seed) }
}

/// One random workload, cut at a random device operation, twice in a row, then ended cleanly.
pub fn random_crash(seed: u64) -> Result<(), Failure> {
    let machine = Machine::create(&multi_device_plan(seed))?;
    run_crashes(Workload::fresh(machine, seed), seed, 120)
}

/// The same, while files are rewritten. Returns the most that one of the rewrites changed before the first
/// crash.
pub fn rewriting_crash(seed: u64) -> Result<u64, Failure> {
    let mut workload = Workload::fresh(Machine::create(&multi_device_plan(seed))?, seed);
    workload.rewrites = true;
    workload.file_bytes = 60_000;
    for _ in 0..100 {
        ensure(workload.step()? == Step::Done, || stopped_text(&workload))?;
    }
    let rewritten = workload.rewritten;
    run_crashes(workload, seed, 400).map(|()| rewritten)
}

/// The same on a nearly full pool, with files so large that GC has work. Returns the number of runs before
/// the first crash.
pub fn crowded_crash(seed: u64) -> Result<u64, Failure> {
    let rounds = 1 + seed % 5;
    let props = vec![("recordsize", "16K"), ("compression", "off")];
    let machine = Machine::create(&Plan { zones: 32, props, ..multi_device_plan(seed) })?;
    let mut workload = Workload::fresh(machine, seed);
    workload.file_bytes = 300_000;
    // Holes everywhere: every zone keeps some of its blocks.
    for round in 0..rounds {
        let files = workload.fill(round)?;
        workload.sync()?;
        for file in files.iter().step_by(2) {
            workload.unlink(file)?;
        }
        workload.sync()?;
    }
    for _ in 0..150 {
        ensure(workload.step()? == Step::Done, || {
            let status = workload.machine.pool.status();
            format!("the pool stopped: {:?}, {}", status.failed, zone_summary(&workload.machine))
        })?;
    }
    workload.sync()?;
    let runs = workload.machine.pool.status().runs;
    run_crashes(workload, seed, 400).map(|()| runs)
}

/// Files that share blocks, on a nearly full pool, while files are rewritten in every second life. Returns references
/// to shared blocks, and runs, before the first crash.
pub fn cloning_crash(seed: u64) -> Result<(u64, u64), Failure> {
    let props = vec![("recordsize", "4K"), ("compression", "off")];
    let machine = Machine::create(&Plan { zones: 32, props, ..multi_device_plan(seed) })?;
    let mut workload = Workload::fresh(machine, seed);
    (workload.file_bytes, workload.mix) = (100_000, OpMix::Clones);
    for round in 0..2 + seed % 3 {
        for _ in 0..15 {
            ensure(workload.step()? == Step::Done, || stopped_text(&workload))?;
        }
        let files = workload.fill(round)?;
        workload.sync()?;
        for file in &files {
            workload.unlink(file)?;
        }
        workload.sync()?;
    }
    workload.rewrites = seed.is_multiple_of(2);
    for _ in 0..100 {
        ensure(workload.step()? == Step::Done, || stopped_text(&workload))?;
    }
    workload.sync()?;
    let references = workload.machine.objects.shared().totals().references;
    let runs = workload.machine.pool.status().runs;
    run_crashes(workload, seed, 400).map(|()| (references, runs))
}

/// The states of a pool's zones, as text.
pub(crate) fn zone_summary(machine: &Machine) -> String {
    let status = machine.pool.status();
    let suspect = machine.pool.zones().iter().filter(|zone| zone.phase == Phase::Suspect).count();
    format!(
        "{} of {} zones empty, {} waiting, {suspect} suspect, {} of {} bytes live",
        status.zones_empty, status.zones, status.zones_waiting, status.live_bytes, status.size_bytes
    )
}

fn run_crashes(mut workload: Workload, seed: u64, ops: u64) -> Result<(), Failure> {
    let mut rng = Prng::new(seed ^ 0xc0a5);
    let (file_bytes, rewrites, mix) = (workload.file_bytes, workload.rewrites, workload.mix);
    for round in 0..2 {
        workload.reads_fail = true;
        let device = workload.machine.device.clone();
        device.crash_after(device.ops_done() + rng.below(ops));
        for _ in 0..250 {
            if workload.step()? == Step::Stopped {
                break;
            }
        }
        let stopped = workload.machine.pool.status().failed;
        ensure(stopped.is_none() || !device.is_powered(), || {
            format!(
                "crash {round}: the pool stopped by itself: {stopped:?}, {}",
                zone_summary(&workload.machine)
            )
        })?;
        // Power may still have been on: then it fails between two operations.
        device.cut_power();
        let left = match rng.below(8) {
            0 => device.restarted(Survival::Nothing),
            1 => device.restarted(Survival::Everything),
            _ => device.after_power_loss(rng.next_u64()),
        };
        workload.machine.pool.abandon();
        let recovered = recover(&workload, &left, seed + round);
        workload = recovered.map_err(|failure| failure.within(format_args!("crash {round}")))?;
        (workload.file_bytes, workload.rewrites, workload.mix) = (file_bytes, rewrites, mix);
    }
    continue_workload(workload, 40, seed)
}

/// A small, reproducible workload.
#[derive(Clone, Copy, Debug)]
pub struct SmallScenario {
    /// Seed of the pool and of the workload.
    pub seed: u64,
    /// Like a zoned drive, or like a file.
    pub drive: bool,
    /// Operations of the workload.
    pub steps: u64,
    /// The operations to choose from.
    pub mix: OpMix,
}

/// On a fresh machine.
fn run_small_scenario(scenario: SmallScenario, cut: Option<u64>) -> Result<(Workload, u64), Failure> {
    let SmallScenario { seed, drive, steps, mix: acts } = scenario;
    let mut plan = Plan { drive, ..Plan::small(seed) };
    // A directory that soon outgrows slots.
    plan.props.extend(matches!(acts, OpMix::Names | OpMix::Words).then_some(("zapsize", "3K")));
    let mut workload = Workload::fresh(Machine::create(&plan)?, seed);
    workload.file_bytes = 6000;
    workload.mix = acts;
    let device = workload.machine.device.clone();
    let first = device.ops_done();
    if let Some(cut) = cut {
        device.crash_after(first + cut);
    }
    for step in 0..steps {
        // Many small txgs: their ends are the critical moments of a crash.
        let dead = workload.step()? == Step::Stopped || step % 2 == 1 && workload.sync()? == Step::Stopped;
        if dead {
            return Ok((workload, device.ops_done() - first));
        }
    }
    workload.sync()?;
    Ok((workload, device.ops_done() - first))
}

/// The number of device operations of the small workload.
pub fn count_small_ops(scenario: SmallScenario) -> Result<u64, Failure> {
    run_small_scenario(scenario, None).map(|(_, ops)| ops)
}

/// The small workload, cut at one device operation, with `chances` outcomes of what the device kept.
pub fn cut_at(scenario: SmallScenario, cut: u64, chances: u64) -> Result<(), Failure> {
    let (workload, _) = run_small_scenario(scenario, Some(cut))?;
    let device = workload.machine.device.clone();
    device.cut_power();
    workload.machine.pool.abandon();
    for chance in 0..chances {
        let survival = match chance {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Seeded(cut * 1000 + chance),
        };
        let left = device.restarted(survival);
        let found = recover(&workload, &left, scenario.seed + chance);
        let found =
            found.and_then(
                |workload| if chance == 2 { continue_workload(workload, 10, scenario.seed) } else { Ok(()) },
            );
        found.map_err(|failure| failure.within(format_args!("cut at {cut}, outcome {chance}")))?;
    }
    Ok(())
}
