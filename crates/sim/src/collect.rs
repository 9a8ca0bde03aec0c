//! A pool whose GC runs all the time, and which loses power all the time.
//!
//! It is small and nearly full, and its files are overwritten, punched, truncated, replaced and removed. So
//! every txg moves the survivors of some zone, and zones are emptied, reset and rewritten while readers hold
//! others. Claims, beside those of [`crash`](crate::crash): an operation that frees space is never refused
//! for lack of space. No other operation is, while a twentieth of the pool is free.
//!
//! There are two scenarios. [`every_write`] runs one workload and examines what the device would hold had
//! power failed in each of its operations. [`seeded`] runs larger pools of many kinds through two crashes.
//! Zones die, writes and resets fail, resets are lost, and drives have [limits](Drives::Tight).

use crate::crash::{continue_workload, recover, recover_to, recover_unchecked};
use crate::machine::{Machine, Plan, USER};
use crate::workload::{OpMix, Step, Workload};
use terrane_device::Device;
use terrane_device::sim::{Fault, Survival};
use terrane_format::rows::Phase;
use terrane_oracle::{Content, Failure, Node, ensure};
use terrane_posix::{Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Ino, SetAttr, WriteFlags};
use terrane_wire::Prng;
use terrane_wire::ZoneIdx;

/// Maximum size of files on zones of 1 MiB; larger in proportion on larger zones.
pub const FILE_BYTES: u64 = 250_000;
/// Free shares of the pool, in percent, that steer the workload: above the first it writes more, below the
/// second it removes.
const FREE_HIGH_PERCENT: u64 = 8;
const FREE_LOW_PERCENT: u64 = 3;

impl Workload {
    /// One operation on a nearly full pool.
    pub(crate) fn churn(&mut self) -> Result<(), Failure> {
        // A long reader drops its hold, or is forced to.
        if self.pinned.is_some() && self.rng.one_in(12) {
            self.pinned = None;
        }
        let free = self.free_percent();
        let what = match self.rng.below(20) {
            _ if free <= FREE_LOW_PERCENT => 14 + self.rng.below(2),
            _ if free >= FREE_HIGH_PERCENT && self.rng.one_in(2) => 16,
            what => what,
        };
        match what {
            0..9 => self.overwrite(),
            9 | 10 => self.punch_one(),
            11 | 14 => self.cut(),
            12 => self.replace(),
            13 | 16 => self.make(),
            15 => self.remove_one(),
            17 => {
                let Some(ino) = self.hot_file() else { return Ok(()) };
                let found = self.machine.fs().fsync(ino, self.steps.is_multiple_of(2));
                if self.expect_same("fsync", found, Ok(()))?.is_some() {
                    self.promised = self.promised.max(self.touched.get(&ino).copied().unwrap_or(0));
                }
                Ok(())
            }
            18 => {
                // All live zones, as a send or a backup does.
                self.pinned = Some(self.machine.pool.hold_zones());
                Ok(())
            }
            _ => self.read_one(),
        }
    }

    /// The longest write: larger ones are split, and a crash may come between the pieces.
    fn write_bytes(&self) -> u64 {
        (self.file_bytes / 25 * 12).min(1 << 20)
    }

    /// Free space for users, as a share of what users can fill.
    fn free_percent(&self) -> u64 {
        let (size, live, _) = self.machine.pool.space();
        size.saturating_sub(live) * 100 / size.max(1)
    }

    /// Three of four picks are among a fifth of the files.
    fn hot_file(&mut self) -> Option<Ino> {
        let files = self.model.files();
        let hot = files.get(..files.len() / 5).filter(|hot| !hot.is_empty()).unwrap_or(&files);
        let hot = hot.to_vec();
        if self.rng.one_in(4) { self.rng.pick(&files) } else { self.rng.pick(&hot) }
    }

    /// A refusal for lack of space is correct only if there is none.
    fn check_refusal<T>(&self, what: &str, frees: bool, found: &Result<T, Errno>) -> Result<(), Failure> {
        let refused = matches!(found, Err(Errno::ENOSPC)) && self.machine.is_alive();
        let free = self.free_percent();
        ensure(!refused || (!frees && free < 5), || {
            format!("{what}: no space with {free} % free, {}", crate::crash::zone_summary(&self.machine))
        })
    }

    fn overwrite(&mut self) -> Result<(), Failure> {
        let Some(ino) = self.hot_file() else { return Ok(()) };
        let size = self.model.bytes(ino).len() as u64;
        // Mostly inside the file: overwriting frees as much as it writes.
        let at = self.rng.below(size.max(1));
        let len = 1 + self
            .rng
            .below(self.write_bytes().min((self.file_bytes - at.min(self.file_bytes - 1)).max(1)));
        let data = self.rng.sample_bytes(len as usize);
        let found = self.machine.fs().write(ino, at, &data, WriteFlags::default());
        self.check_refusal("write", false, &found)?;
        if let Some(written) = self.expect_same("write", found, Ok(()))? {
            self.model.write(ino, at, &data[..written as usize]);
            self.touch(ino);
        }
        Ok(())
    }

    fn punch_one(&mut self) -> Result<(), Failure> {
        let Some(ino) = self.hot_file() else { return Ok(()) };
        let size = self.model.bytes(ino).len();
        let at = self.rng.below(size.max(1) as u64);
        let len = 1 + self.rng.below(self.write_bytes());
        let found = self.machine.fs().fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, at, len);
        self.check_refusal("punch", true, &found)?;
        let mut model = self.model.clone();
        let expected = model.punch(ino, at..at + len);
        if self.expect_same("punch", found, expected)?.is_some() {
            self.model = model;
            self.touch(ino);
        }
        Ok(())
    }

    fn cut(&mut self) -> Result<(), Failure> {
        let Some(ino) = self.hot_file() else { return Ok(()) };
        let size = self.rng.below(1 + self.model.bytes(ino).len() as u64);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let found = self.machine.fs().setattr(ino, &set, &USER);
        self.check_refusal("truncate", true, &found)?;
        if self.expect_same("truncate", found, Ok(()))?.is_some() {
            self.model.resize(ino, size);
            self.touch(ino);
        }
        Ok(())
    }

    /// Creates a file under one of few names, or appends to an existing one.
    fn make(&mut self) -> Result<(), Failure> {
        let name = format!("new {}", self.rng.below(4));
        let root = self.model.root;
        if let Some(ino) = self.model.find(root, &name) {
            if self.model.bytes(ino).len() as u64 > self.file_bytes / 2 {
                return self.replace();
            }
            let len = 1 + self.rng.below(self.write_bytes()) as usize;
            let data = self.rng.sample_bytes(len);
            let flags = WriteFlags { append: true, ..WriteFlags::default() };
            let found = self.machine.fs().write(ino, 0, &data, flags);
            self.check_refusal("append", false, &found)?;
            if let Some(written) = self.expect_same("append", found, Ok(()))? {
                self.model.append(ino, &data[..written as usize]);
                self.touch(ino);
            }
            return Ok(());
        }
        let made = self.machine.fs().create(root, name.as_bytes(), 0o644, &USER);
        self.check_refusal("create", false, &made)?;
        if let Some(attr) = self.expect_same("create", made, Ok(()))? {
            self.model.add_node(root, &name, attr.ino, Node::file(0o644));
            self.machine.fs().forget(attr.ino, 1);
            self.model.forget(attr.ino);
            self.touch(attr.ino);
        }
        Ok(())
    }

    /// One of the new files replaces an older one, or gets a new name.
    fn replace(&mut self) -> Result<(), Failure> {
        let root = self.model.root;
        let from = (0..4).map(|at| format!("new {at}")).find(|name| self.model.find(root, name).is_some());
        let Some(from) = from else { return Ok(()) };
        let to = match self.rng.below(3) {
            0 => format!("kept {}", self.rng.below(200)),
            _ => self.any_kept_name().unwrap_or_else(|| "kept 0".into()),
        };
        let mut model = self.model.clone();
        let expected = model.rename(root, &from, root, &to, 0);
        let found = self.machine.fs().rename(root, from.as_bytes(), root, to.as_bytes(), 0);
        self.check_refusal("rename", false, &found)?;
        if self.expect_same(&format!("rename {from} to {to}"), found, expected)?.is_some() {
            self.model = model;
        }
        Ok(())
    }

    fn any_kept_name(&mut self) -> Option<String> {
        let at = self.rng.next_u64() as usize;
        match self.model.nodes.get(&self.model.root).map(|node| &node.content) {
            Some(Content::Dir { names, .. }) => names.keys().nth(at % names.len().max(1)).cloned(),
            _ => None,
        }
    }

    fn remove_one(&mut self) -> Result<(), Failure> {
        let Some(name) = self.any_kept_name() else { return Ok(()) };
        let root = self.model.root;
        let mut model = self.model.clone();
        let expected = model.remove(root, &name, false);
        let found = self.machine.fs().unlink(root, name.as_bytes());
        self.check_refusal("unlink", true, &found)?;
        if self.expect_same(&format!("unlink {name}"), found, expected)?.is_some() {
            self.model = model;
        }
        Ok(())
    }

    /// From the device, not from memory.
    fn read_one(&mut self) -> Result<(), Failure> {
        let Some(ino) = self.hot_file() else { return Ok(()) };
        self.machine.pool.drop_cache();
        let expected = self.model.bytes(ino);
        let mut found = Vec::new();
        let read =
            self.machine.fs().read(ino, 0, u32::try_from(expected.len()).unwrap_or(u32::MAX), &mut found);
        if self.expect_same("read", read, Ok(()))?.is_some() {
            ensure(found == *expected, || format!("file {ino} of {} bytes differs", expected.len()))?;
        }
        Ok(())
    }
}

/// A pool that is full but for a few percent, with garbage in every zone.
fn nearly_full_pool(plan: &Plan) -> Result<Workload, Failure> {
    let mut workload = Workload::fresh(Machine::create(plan)?, plan.seed);
    workload.file_bytes = FILE_BYTES * (plan.capacity >> 20).max(1);
    for round in 0..2 {
        let files = workload.fill(round)?;
        workload.sync()?;
        for file in files.iter().step_by(if round == 0 { 2 } else { 12 }) {
            workload.unlink(file)?;
        }
        workload.sync()?;
    }
    workload.mix = OpMix::Churn;
    Ok(workload)
}

/// A pool of 40 zones after this many operations of a workload with GC, committed.
pub fn pool_after_gc(seed: u64, steps: u64) -> Result<Workload, Failure> {
    let mut workload = nearly_full_pool(&Plan { zones: 40, props: props(seed), ..Plan::small(seed) })?;
    for step in 0..steps {
        let ended = if step % 4 == 3 { workload.sync()? } else { workload.step()? };
        ensure(ended == Step::Done, || "the pool stopped without an error".into())?;
    }
    workload.pinned = None;
    workload.sync()?;
    Ok(workload)
}

fn props(seed: u64) -> Vec<(&'static str, &'static str)> {
    vec![("recordsize", ["8K", "16K", "4K"][(seed % 3) as usize]), ("compression", "off")]
}

/// The workload of a small pool, to be cut everywhere.
#[derive(Clone, Copy, Debug)]
pub struct GcScenario {
    /// Seed of the pool and of the workload.
    pub seed: u64,
    /// Like a zoned drive, or like a file.
    pub drive: bool,
    /// Operations of the workload, its syncs included.
    pub steps: u64,
}

/// What was counted in a workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct GcCrashStats {
    /// Device operations in which power failed.
    pub cuts: u64,
    /// Zones whose survivors were moved.
    pub collected: u64,
    /// Bytes that GC moved.
    pub moved_bytes: u64,
    /// Bytes that were rewritten at new addresses because the relocation index had no memory.
    pub rewritten_bytes: u64,
}

impl GcCrashStats {
    /// Adds the counts of another workload.
    pub fn add(&mut self, other: GcCrashStats) {
        self.cuts += other.cuts;
        self.collected += other.collected;
        self.moved_bytes += other.moved_bytes;
        self.rewritten_bytes += other.rewritten_bytes;
    }
}

/// One workload on 32 zones of 1 MiB, cut at every `stride`th of its device operations with `chances`
/// outcomes each.
pub fn every_write(scenario: GcScenario, stride: u64, chances: u64) -> Result<GcCrashStats, Failure> {
    let GcScenario { seed, drive, steps } = scenario;
    let mut workload = nearly_full_pool(&Plan { zones: 32, drive, props: props(seed), ..Plan::small(seed) })?;
    let before = workload.machine.pool.stats();
    let device = workload.machine.device.clone();
    device.record_power_cuts();
    let (mut ops, mut cuts) = (0u64, 0u64);
    for step in 0..steps {
        let promised = workload.promised();
        let ended = if step % 4 == 3 { workload.sync()? } else { workload.step()? };
        ensure(ended == Step::Done, || {
            let status = workload.machine.pool.status();
            format!(
                "the pool stopped at step {step}: {:?}, {}",
                status.failed,
                crate::crash::zone_summary(&workload.machine)
            )
        })?;
        for cut_copy in device.take_cut_copies() {
            ops += 1;
            if !ops.is_multiple_of(stride) {
                continue;
            }
            cuts += 1;
            for chance in 0..chances {
                let survival = match chance {
                    0 => Survival::Nothing,
                    1 => Survival::Everything,
                    _ => Survival::Seeded(ops * 1000 + chance),
                };
                let left = cut_copy.restarted(survival);
                let found =
                    recover_to(&workload, promised, &left, seed + chance).and_then(|mut recovered| {
                        (recovered.mix, recovered.file_bytes) = (OpMix::Churn, workload.file_bytes);
                        if chance == 2 { continue_workload(recovered, 12, seed) } else { Ok(()) }
                    });
                found.map_err(|failure| {
                    failure.within(format_args!("cut at operation {ops}, outcome {chance}, step {step}"))
                })?;
            }
        }
    }
    let after = workload.machine.pool.stats();
    Ok(GcCrashStats {
        cuts,
        collected: after.collected_zones - before.collected_zones,
        moved_bytes: after.collected_bytes - before.collected_bytes,
        rewritten_bytes: after.rewritten_bytes - before.rewritten_bytes,
    })
}

/// What else fails in a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtraFault {
    None,
    ReadOnly,
    Offline,
    Writes,
    Resets,
    LostResets,
}

/// The devices of a seed's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drives {
    /// Files, and drives without limits whose zone capacity is their size.
    Roomy,
    /// Few zones, so large that the reserve for metadata is less than an eighth of one.
    Large,
    /// Drives with few active zones, and whose zone capacity is below their size, for many far below.
    Tight,
}

/// The kind of pool and the extra fault that belong to a seed.
fn plan(seed: u64, drives: Drives) -> (Plan, ExtraFault) {
    let mut rng = Prng::new(seed ^ 0x0c01_1ec7);
    let zones = rng.pick(&[34, 40, 56, 72]).unwrap_or(40);
    let drive = !rng.one_in(4) || drives == Drives::Tight;
    let extra_fault = rng.pick(&[
        ExtraFault::None,
        ExtraFault::ReadOnly,
        ExtraFault::ReadOnly,
        ExtraFault::Offline,
        ExtraFault::Writes,
        ExtraFault::Resets,
        ExtraFault::LostResets,
    ]);
    let stale = !drive && rng.one_in(2);
    let mut plan = Plan { zones, drive, stale, props: props(seed), ..Plan::small(seed) };
    if drives == Drives::Large {
        plan.zones = rng.pick(&[32, 36]).unwrap_or(32);
        plan.capacity = 16 << 20;
        plan.uneven = rng.one_in(3);
        plan.props =
            vec![("recordsize", ["64K", "128K", "16K"][(seed % 3) as usize]), ("compression", "off")];
    }
    if drives == Drives::Tight {
        plan.max_active = rng.pick(&[4, 4, 5, 6, 0]).unwrap_or(4);
        plan.uneven = rng.one_in(2);
        // Pools with smaller zones are refused.
        plan.capacity = rng.pick(&[5 << 18, 3 << 19]).unwrap_or(5 << 18);
    }
    if drives == Drives::Roomy {
        plan.companions = rng.pick(&[0, 0, 1]).unwrap_or(0);
    }
    (plan, extra_fault.unwrap_or(ExtraFault::None))
}

/// Two workloads on a larger pool, each with its extra fault and a crash at a random operation.
pub fn seeded(seed: u64, drives: Drives) -> Result<GcCrashStats, Failure> {
    let (plan, extra_fault) = plan(seed, drives);
    let at = |failure: Failure| failure.within(format_args!("{extra_fault:?}, {plan:?}"));
    let mut workload = nearly_full_pool(&plan).map_err(at)?;
    let mut rng = Prng::new(seed ^ 0x11fe);
    let mut total = GcCrashStats::default();
    for round in 0..2 {
        // The content of a zone that went offline cannot be told from a transient read error.
        workload.reads_fail = extra_fault != ExtraFault::Offline;
        let device = workload.machine.device.clone();
        let fault = make(&mut rng, extra_fault, &workload).map(|fault| device.inject(fault));
        device.crash_after(device.ops_done() + rng.below(900));
        let mut lost = false;
        let mut fired = 0;
        for step in 0..400 {
            let ended = if step % 7 == 6 { workload.sync() } else { workload.step() };
            let fires = fault.map_or(0, |fault| device.fired(fault));
            if fires > fired && extra_fault != ExtraFault::Offline && device.is_powered() {
                // The state after a txg with a fault can only be compared if it is the last one. Copies may
                // share a zone until that ends.
                fired = fires;
                let left = device.restarted(Survival::Everything);
                recover_unchecked(&workload, &left, seed).map_err(|failure| {
                    at(failure.within(format_args!("right after a fault, crash {round}, step {step}")))
                })?;
            }
            match ended {
                Ok(Step::Done) => {}
                Ok(Step::Stopped) => break,
                // The oracle cannot follow a file that lost a block.
                Err(failure) if extra_fault == ExtraFault::Offline && failure.0.contains("EIO") => {
                    lost = true;
                    break;
                }
                Err(failure) => return Err(at(failure)),
            }
        }
        let stats = workload.machine.pool.stats();
        total.collected += stats.collected_zones;
        total.moved_bytes += stats.collected_bytes;
        total.rewritten_bytes += stats.rewritten_bytes;
        total.cuts += 1;
        let stopped = workload.machine.pool.status().failed;
        let fired = fault.map_or(0, |fault| device.fired(fault));
        let may_stop = fired > 0 && matches!(extra_fault, ExtraFault::Offline | ExtraFault::Writes);
        ensure(stopped.is_none() || !device.is_powered() || may_stop, || {
            format!(
                "the pool stopped by itself: {stopped:?}, {}",
                crate::crash::zone_summary(&workload.machine)
            )
        })
        .map_err(at)?;
        device.cut_power();
        let left = match rng.below(8) {
            0 => device.restarted(Survival::Nothing),
            1 => device.restarted(Survival::Everything),
            _ => device.after_power_loss(rng.next_u64()),
        };
        workload.pinned = None;
        workload.machine.pool.abandon();
        if extra_fault == ExtraFault::Offline && fired > 0 {
            return compare_after_loss(&workload, &left, seed, lost).map_err(at).map(|()| total);
        }
        let recovered = recover(&workload, &left, seed + round);
        let file_bytes = workload.file_bytes;
        workload = recovered.map_err(|failure| at(failure.within(format_args!("crash {round}"))))?;
        (workload.mix, workload.file_bytes) = (OpMix::Churn, file_bytes);
    }
    continue_workload(workload, 60, seed).map_err(at)?;
    Ok(total)
}

fn make(rng: &mut Prng, extra_fault: ExtraFault, workload: &Workload) -> Option<Fault> {
    let zones = workload.machine.device.info().zone_count;
    let views = workload.machine.pool.zones();
    let there = views.iter().filter(|zone| zone.phase != Phase::Reclaimed && zone.home.device.0 == 0);
    let in_use: Vec<ZoneIdx> = there.map(|zone| zone.home.zone).collect();
    let any = ZoneIdx(2 + rng.below(u64::from(zones) - 2) as u32);
    let zone = if rng.one_in(3) { any } else { rng.pick(&in_use).unwrap_or(any) };
    let after_ops = rng.below(400);
    match extra_fault {
        ExtraFault::None => None,
        ExtraFault::ReadOnly => Some(Fault::BecomesReadOnly { zone, after_ops }),
        ExtraFault::Offline => Some(Fault::BecomesOffline { zone, after_ops }),
        // A write that fails costs its zone: of large ones as few as the pool can spare.
        ExtraFault::Writes => Some(Fault::WriteError {
            zone: None,
            one_in: 150 * (workload.file_bytes / FILE_BYTES).max(1) as u32,
            partial: rng.one_in(2),
        }),
        ExtraFault::Resets => Some(Fault::ResetError { zone: Some(zone), one_in: 2 }),
        ExtraFault::LostResets => Some(Fault::LostReset { one_in: 2 }),
    }
}

/// A zone is lost: names and attributes are intact, contents are correct or `EIO`, and the pool can be
/// imported and written.
fn compare_after_loss(
    before: &Workload,
    left: &terrane_device::SimDevice,
    seed: u64,
    lost: bool,
) -> Result<(), Failure> {
    let mut machine = Machine::import(left, seed, false)?;
    let txg = machine.durable_txg().0;
    machine.mount()?;
    let mut last = Failure("no promised state was found".into());
    for state in before.states(txg).iter().filter(|state| state.steps >= before.promised()) {
        let model = state.model.after_remount();
        let all = model.nodes.keys().copied().collect();
        match model.compare_with_damage(machine.fs(), &all) {
            Ok(_) => return Ok(()),
            Err(failure) => last = failure,
        }
    }
    // The operation that met the dead zone ended between two states: it cannot be compared.
    if lost { Ok(()) } else { Err(last.within(format_args!("after a zone went offline, txg {txg}"))) }
}
