//! Power fails, and returns.
//!
//! Claims, for every moment at which power can fail:
//! * The pool can be imported without help.
//! * The tree is exactly what it was at the end of a committed txg.
//! * That txg holds everything that a sync promised.
//! * `check` finds nothing, and the pool stays usable.

use crate::machine::{Machine, Plan};
use crate::workload::{Acts, RECORDED, Step, Workload};
use terrane_device::SimDevice;
use terrane_device::sim::{Fault, Kept};
use terrane_format::rows::Phase;
use terrane_oracle::{Failure, ensure};
use terrane_wire::Dice;

/// Imports what a crash left, and compares it with the allowed states. Returns the machine with the matching
/// model.
pub fn recover(before: &Workload, device: &SimDevice, seed: u64) -> Result<Workload, Failure> {
    recover_to(before, before.promised(), &after_a_troubled_import(device, seed), seed)
}

/// An import that does not complete does no harm: its reads fail, or power fails again in the middle of it.
fn after_a_troubled_import(device: &SimDevice, seed: u64) -> SimDevice {
    let mut dice = Dice::new(seed ^ 0x1a9047);
    match dice.below(3) {
        0 => {
            let fault = device.inject(Fault::ReadError { zone: None, one_in: 1 + dice.below(200) as u32 });
            drop(Machine::import(device, seed, false));
            device.disarm(fault);
            device.clone()
        }
        1 => {
            device.crash_after(device.ops_done() + dice.below(8));
            drop(Machine::import(device, seed, false));
            device.cut_power();
            device.after_power_loss(dice.word())
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
    let group = machine.group().0;
    machine.check().map_err(|failure| failure.within(format_args!("group {group}")))?;
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
    let group = machine.group().0;
    let states = before.states(group);
    ensure(!states.is_empty(), || format!("group {group} was found, which never ended"))?;
    ensure(states.iter().any(|state| state.steps >= promised), || {
        let newest = states.iter().map(|state| state.steps).max();
        format!("group {group} of operation {newest:?} was found, {promised} was promised")
    })?;
    machine.mount()?;
    let logged = machine.pool.errors().files;
    for operation in before.recorded(promised) {
        ensure(logged.contains_key(&(RECORDED, operation)), || {
            format!("group {group}: the error log has forgotten operation {operation} of {promised}")
        })?;
    }
    let mut last = None;
    for state in states.iter().filter(|state| state.steps >= promised) {
        let model = state.model.closed();
        match model.compare(machine.fs()) {
            Ok(()) => return Ok(Workload::new(machine, model, seed ^ 0xa11_11fe)),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or(Failure("no state".into())).within(format_args!("tree of group {group}")))
}

fn stopped(workload: &Workload) -> String {
    format!("the pool stopped after a crash: {:?}", workload.machine.pool.status().failed)
}

/// Continues after a crash: more operations, a sync, a clean check, an export, an import.
pub fn live_on(mut workload: Workload, steps: u64, seed: u64) -> Result<(), Failure> {
    for _ in 0..steps {
        let step = workload.step()?;
        ensure(step == Step::Done, || stopped(&workload))?;
    }
    let step = workload.sync()?;
    ensure(step == Step::Done, || stopped(&workload))?;
    let Workload { machine, model, .. } = workload;
    machine.fs().forget_all();
    ensure(machine.fs().sync().is_ok(), || "sync".into())?;
    machine.check()?;
    let device = machine.export()?;
    let mut machine = Machine::import(&device, seed, true)?;
    machine.check().map_err(|failure| failure.within("after export"))?;
    machine.mount()?;
    model.closed().compare(machine.fs()).map_err(|failure| failure.within("after export"))
}

/// One pool in three has two devices, one has three.
fn several(seed: u64) -> Plan {
    Plan { companions: (seed / 2 % 3) as u32, ..Plan::small(seed) }
}

/// One random workload, cut at a random device operation, twice in a row, then ended cleanly.
pub fn random_crash(seed: u64) -> Result<(), Failure> {
    let machine = Machine::create(&several(seed))?;
    lives(Workload::fresh(machine, seed), seed, 120)
}

/// The same, while files are rewritten. Returns the most that one of the rewrites changed before the first
/// crash.
pub fn rewriting_crash(seed: u64) -> Result<u64, Failure> {
    let mut workload = Workload::fresh(Machine::create(&several(seed))?, seed);
    workload.rewrites = true;
    workload.file_bytes = 60_000;
    for _ in 0..100 {
        ensure(workload.step()? == Step::Done, || stopped(&workload))?;
    }
    let rewritten = workload.rewritten;
    lives(workload, seed, 400).map(|()| rewritten)
}

/// The same on a nearly full pool, with files so large that GC has work. Returns the number of runs before
/// the first crash.
pub fn crowded_crash(seed: u64) -> Result<u64, Failure> {
    let rounds = 1 + seed % 5;
    let props = vec![("recordsize", "16K"), ("compression", "off")];
    let machine = Machine::create(&Plan { zones: 32, props, ..several(seed) })?;
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
            format!("the pool stopped: {:?}, {}", status.failed, zones(&workload.machine))
        })?;
    }
    workload.sync()?;
    let runs = workload.machine.pool.status().runs;
    lives(workload, seed, 400).map(|()| runs)
}

/// The states of a pool's zones, as text.
pub(crate) fn zones(machine: &Machine) -> String {
    let status = machine.pool.status();
    let suspect = machine.pool.zones().iter().filter(|zone| zone.phase == Phase::Suspect).count();
    format!(
        "{} of {} zones empty, {} waiting, {suspect} suspect, {} of {} bytes live",
        status.zones_empty, status.zones, status.zones_waiting, status.live_bytes, status.size_bytes
    )
}

fn lives(mut workload: Workload, seed: u64, ops: u64) -> Result<(), Failure> {
    let mut dice = Dice::new(seed ^ 0xc0a5);
    let (file_bytes, rewrites) = (workload.file_bytes, workload.rewrites);
    for life in 0..2 {
        workload.reads_fail = true;
        let device = workload.machine.device.clone();
        device.crash_after(device.ops_done() + dice.below(ops));
        for _ in 0..250 {
            if workload.step()? == Step::Dead {
                break;
            }
        }
        let stopped = workload.machine.pool.status().failed;
        ensure(stopped.is_none() || !device.is_powered(), || {
            format!("life {life}: the pool stopped by itself: {stopped:?}, {}", zones(&workload.machine))
        })?;
        // Power may still have been on: then it fails between two operations.
        device.cut_power();
        let left = match dice.below(8) {
            0 => device.restarted(Kept::Nothing),
            1 => device.restarted(Kept::Everything),
            _ => device.after_power_loss(dice.word()),
        };
        workload.machine.pool.abandon();
        let recovered = recover(&workload, &left, seed + life);
        workload = recovered.map_err(|failure| failure.within(format_args!("life {life}")))?;
        (workload.file_bytes, workload.rewrites) = (file_bytes, rewrites);
    }
    live_on(workload, 40, seed)
}

/// A small, reproducible workload.
#[derive(Clone, Copy, Debug)]
pub struct SmallLife {
    pub seed: u64,
    /// Like a zoned drive, or like a file.
    pub drive: bool,
    pub steps: u64,
    pub acts: Acts,
}

/// On a fresh machine.
fn small_life(life: SmallLife, cut: Option<u64>) -> Result<(Workload, u64), Failure> {
    let SmallLife { seed, drive, steps, acts } = life;
    let mut plan = Plan { drive, ..Plan::small(seed) };
    // A directory that soon outgrows slots.
    plan.props.extend((acts == Acts::Names).then_some(("zapsize", "3K")));
    let mut workload = Workload::fresh(Machine::create(&plan)?, seed);
    workload.file_bytes = 6000;
    workload.acts = acts;
    let device = workload.machine.device.clone();
    let first = device.ops_done();
    if let Some(cut) = cut {
        device.crash_after(first + cut);
    }
    for step in 0..steps {
        // Many small txgs: their ends are the critical moments of a crash.
        let dead = workload.step()? == Step::Dead || step % 2 == 1 && workload.sync()? == Step::Dead;
        if dead {
            return Ok((workload, device.ops_done() - first));
        }
    }
    workload.sync()?;
    Ok((workload, device.ops_done() - first))
}

/// The number of device operations of the small workload.
pub fn small_ops(life: SmallLife) -> Result<u64, Failure> {
    small_life(life, None).map(|(_, ops)| ops)
}

/// The small workload, cut at one device operation, with `chances` outcomes of what the device kept.
pub fn cut_at(life: SmallLife, cut: u64, chances: u64) -> Result<(), Failure> {
    let (workload, _) = small_life(life, Some(cut))?;
    let device = workload.machine.device.clone();
    device.cut_power();
    workload.machine.pool.abandon();
    for chance in 0..chances {
        let kept = match chance {
            0 => Kept::Nothing,
            1 => Kept::Everything,
            _ => Kept::Seeded(cut * 1000 + chance),
        };
        let left = device.restarted(kept);
        let found = recover(&workload, &left, life.seed + chance);
        let found =
            found.and_then(|workload| if chance == 2 { live_on(workload, 10, life.seed) } else { Ok(()) });
        found.map_err(|failure| failure.within(format_args!("cut at {cut}, outcome {chance}")))?;
    }
    Ok(())
}
