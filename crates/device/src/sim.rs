//! A simulated device in memory, which loses data on power loss and breaks on command.
//!
//! A file system must keep its promises when power fails at the worst moment, and when the medium does not do what it
//! says. Real devices do that rarely, and never twice in the same way. This one does it at every operation, from a
//! seed, thousands of times per second.
//!
//! It has two modes. With `hardware_pointers` it is a drive: it keeps write pointers, and after a power loss each
//! zone holds a prefix of its writes. Without them it is a file: after a power loss any unit may be missing or torn,
//! a zone that was emptied may be full again, and pointers are unknown.
//!
//! It has two images: reads see `current`, and `durable` survives. A flush makes the second equal to the first. Every
//! command since then is *pending* and kept in order, so [`after_power_loss`](SimDevice::after_power_loss) decides
//! the outcome of each one ([`crash`]). A crash leaves its device as it is and returns a new one, so one run can be
//! crashed in many ways.
//!
//! Invariants: without a fault, flushed bytes are never lost, and the same config, calls and seeds give the same
//! device.

#![expect(clippy::indexing_slicing, reason = "a simulator for tests")]

pub mod crash;
mod dump;
pub mod fault;
mod image;

pub use crash::Survival;
pub use fault::{Fault, FaultId};

use crate::rules::ZoneRules;
use crate::zone::{Device, DeviceError, DeviceInfo, DeviceKind, ZoneReport, ZoneState};
use fault::{ArmedFault, FlushOutcome, ResetOutcome, WriteOutcome};
use image::Image;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrane_wire::Prng;
use terrane_wire::ZoneIdx;

/// The configuration of a simulated device.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Its name in messages.
    pub name: String,
    /// At least 1; zones are numbered from 0.
    pub zone_count: u32,
    /// In bytes, a multiple of the write unit.
    pub zone_size: u64,
    /// In bytes, one for each zone. Each is a multiple of the write unit, from one unit to the zone size. If empty,
    /// every zone holds `zone_size`.
    pub capacities: Vec<u64>,
    /// In bytes, a power of two of at least 4096.
    pub write_unit: u32,
    /// Like a drive (true) or like a file (false).
    pub hardware_pointers: bool,
    /// Maximum number of open zones; 0 means no limit. A zone is opened by its first write, and this drive never
    /// closes one. So at the limit, a write to one more zone fails.
    pub max_open: u32,
    /// Maximum number of zones that are neither empty nor full; 0 means no limit.
    pub max_active: u32,
    /// Without hardware pointers: a reset zone still holds its old bytes, as on a disk without discard.
    pub resets_keep_bytes: bool,
    /// Seed of the random faults.
    pub seed: u64,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            name: "sim".into(),
            zone_count: 64,
            zone_size: 1 << 20,
            capacities: Vec::new(),
            write_unit: 4096,
            hardware_pointers: true,
            max_open: 0,
            max_active: 0,
            resets_keep_bytes: false,
            seed: 0,
        }
    }
}

/// A simulated device. A clone is another handle of the same device; [`snapshot`](SimDevice::snapshot) is a copy.
#[derive(Clone, Debug)]
pub struct SimDevice(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: DeviceInfo,
    /// Locked after `medium`, never before.
    rules: ZoneRules,
    resets_keep_bytes: bool,
    medium: Mutex<Medium>,
    companions: Mutex<Vec<SimDevice>>,
}

/// The durable state of one zone.
#[derive(Clone, Debug)]
struct DurableZone {
    image: Arc<Image>,
    state: ZoneState,
    pointer: u64,
}

/// The power supply that devices share.
#[derive(Debug)]
struct PowerSupply {
    /// Writes, resets, finishes and flushes that began, on all of them.
    ops: AtomicU64,
    /// All ones: never.
    cut_after: AtomicU64,
    on: AtomicBool,
}

impl PowerSupply {
    fn new(ops: u64) -> Arc<PowerSupply> {
        let cut_after = AtomicU64::new(u64::MAX);
        Arc::new(PowerSupply { ops: AtomicU64::new(ops), cut_after, on: AtomicBool::new(true) })
    }

    fn ops(&self) -> u64 {
        self.ops.load(Ordering::SeqCst)
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }
}

/// A command that no flush has covered yet.
#[derive(Clone, Debug)]
struct Pending {
    zone: ZoneIdx,
    command: Command,
}

#[derive(Clone, Debug)]
enum Command {
    /// Without data if the bytes went to another place: the pointer still moved.
    Write {
        offset: u64,
        len: u64,
        data: Option<Arc<[u8]>>,
    },
    /// Bytes that came from another zone's write.
    MisdirectedWrite {
        offset: u64,
        data: Arc<[u8]>,
    },
    /// Not certain if the power failed before the acknowledgement, or if the acknowledgement was false.
    Reset {
        certain: bool,
    },
    Finish,
}

#[derive(Clone, Debug)]
struct Medium {
    current: Vec<Arc<Image>>,
    durable: Vec<DurableZone>,
    pending: Vec<Pending>,
    /// Zones whose content a failed flush lost: no later flush makes it durable.
    tainted: BTreeSet<ZoneIdx>,
    power: Arc<PowerSupply>,
    faults: Vec<ArmedFault>,
    prng: Prng,
    /// For each operation since the last query: the device as it would be if the power failed in that operation.
    cut_copies: Option<Vec<SimDevice>>,
}

fn io_error(
    zone: impl Into<Option<ZoneIdx>>,
    offset: u64,
    op: &'static str,
    reason: &'static str,
) -> DeviceError {
    DeviceError::Io { zone: zone.into(), offset, op, source: io::Error::other(reason) }
}

/// The state of a healthy zone with this pointer.
fn state_at(pointer: u64, capacity: u64) -> ZoneState {
    if pointer == 0 {
        ZoneState::Empty
    } else if pointer == capacity {
        ZoneState::Full
    } else {
        ZoneState::Open
    }
}

/// The limit on zones that are written and not full.
struct ZoneLimit {
    /// 0: no limit.
    zones: u32,
    /// The kernel's error for a write to one more.
    errno: i32,
}

/// The smaller of both limits: active zones are open here, as no command closes them.
fn limit_of(info: &DeviceInfo) -> ZoneLimit {
    let (open, active) = (info.max_open, info.max_active);
    if active > 0 && (open == 0 || active <= open) {
        ZoneLimit { zones: active, errno: libc::EOVERFLOW }
    } else {
        ZoneLimit { zones: open, errno: libc::ETOOMANYREFS }
    }
}

/// Whether an operation completes, or the power fails in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Completion {
    Complete,
    Cut,
}

const POWER_OFF: &str = "power is off";

impl Medium {
    fn check_power(&self, zone: Option<ZoneIdx>, offset: u64, op: &'static str) -> Result<(), DeviceError> {
        if self.power.is_on() { Ok(()) } else { Err(io_error(zone, offset, op, POWER_OFF)) }
    }

    /// Counts an operation that is allowed and about to happen.
    fn count_op(&mut self) -> Completion {
        if self.power.cut_after.load(Ordering::SeqCst) == self.power.ops() {
            self.power.on.store(false, Ordering::SeqCst);
            return Completion::Cut;
        }
        self.power.ops.fetch_add(1, Ordering::SeqCst);
        Completion::Complete
    }

    fn write_current(&mut self, zone: ZoneIdx, offset: u64, data: &[u8]) {
        if let Some(image) = self.current.get_mut(zone.0 as usize) {
            Arc::make_mut(image).write(offset, data);
        }
    }

    fn add_pending(&mut self, zone: ZoneIdx, command: Command) {
        self.pending.push(Pending { zone, command });
    }
}

impl SimDevice {
    /// A new device, all zones empty.
    ///
    /// # Errors
    /// `Refused` if the numbers are inconsistent.
    pub fn new(config: SimConfig) -> Result<Self, DeviceError> {
        let SimConfig { name, zone_count, zone_size, mut capacities, write_unit, .. } = config;
        let refused = |expected: String, found: String| {
            Err(DeviceError::Refused {
                name: name.clone(),
                expected,
                found,
                remedy: "change the simulator's config",
            })
        };
        if !write_unit.is_power_of_two() || write_unit < 4096 {
            return refused(
                "a write unit that is a power of two of at least 4096".into(),
                write_unit.to_string(),
            );
        }
        let unit = u64::from(write_unit);
        if zone_count == 0 || zone_size == 0 || !zone_size.is_multiple_of(unit) {
            return refused(
                format!("zones of a multiple of {unit} bytes"),
                format!("{zone_count} of {zone_size}"),
            );
        }
        if capacities.is_empty() {
            capacities = (0..zone_count).map(|_| zone_size).collect();
        }
        let fits = |capacity: &u64| (unit..=zone_size).contains(capacity) && capacity.is_multiple_of(unit);
        if capacities.len() != zone_count as usize || !capacities.iter().all(fits) {
            return refused(format!("{zone_count} capacities up to {zone_size}"), format!("{capacities:?}"));
        }
        let info = DeviceInfo {
            name,
            kind: DeviceKind::Simulator,
            write_unit,
            zone_count,
            zone_size,
            max_open: config.max_open,
            max_active: config.max_active,
            hardware_pointers: config.hardware_pointers,
        };
        let blank = DurableZone { image: Arc::default(), state: ZoneState::Empty, pointer: 0 };
        let zones = capacities.into_iter().map(|capacity| (capacity, blank.clone()));
        let keeps = config.resets_keep_bytes && !info.hardware_pointers;
        Ok(Self::assemble(info, keeps, zones.collect(), config.seed))
    }

    /// A device that was just switched on, with these capacities and contents.
    fn assemble(
        info: DeviceInfo,
        resets_keep_bytes: bool,
        zones: Vec<(u64, DurableZone)>,
        seed: u64,
    ) -> Self {
        let (capacities, durable): (Vec<u64>, Vec<DurableZone>) = zones.into_iter().unzip();
        let rules = ZoneRules::new(info.write_unit, limit_of(&info).zones, capacities, ZoneState::Empty);
        for (zone, durable_zone) in rules.zones().zip(&durable) {
            rules.force(zone, durable_zone.state, durable_zone.pointer);
        }
        let medium = Medium {
            current: durable.iter().map(|zone| Arc::clone(&zone.image)).collect(),
            durable,
            pending: Vec::new(),
            tainted: BTreeSet::new(),
            power: PowerSupply::new(0),
            faults: Vec::new(),
            prng: Prng::new(seed),
            cut_copies: None,
        };
        SimDevice::from_parts(info, rules, resets_keep_bytes, medium)
    }

    fn from_parts(info: DeviceInfo, rules: ZoneRules, resets_keep_bytes: bool, medium: Medium) -> SimDevice {
        let companions = Mutex::default();
        SimDevice(Arc::new(Inner { info, rules, resets_keep_bytes, medium: Mutex::new(medium), companions }))
    }

    /// Puts other devices on this one's power supply. Operations are then counted together, the power of all fails at
    /// once, and a restart restarts all. Faults with `one_in` and without a zone apply to each of them.
    pub fn share_power(&self, companions: Vec<SimDevice>) {
        let power = self.medium().power.clone();
        companions.iter().for_each(|device| device.medium().power = power.clone());
        *self.0.companions.lock().unwrap_or_else(PoisonError::into_inner) = companions;
    }

    /// The devices on this one's power supply.
    pub fn companions(&self) -> Vec<SimDevice> {
        self.0.companions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn medium(&self) -> MutexGuard<'_, Medium> {
        // A test that panicked in another thread may still inspect the device.
        self.0.medium.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reports(&self) -> Vec<ZoneReport> {
        self.0.rules.zones().filter_map(|zone| self.0.rules.report(zone).ok()).collect()
    }

    /// An independent copy of this device alone: contents, pending commands, faults, random state, the planned power
    /// cut. It costs a few words per zone and pending command.
    pub fn snapshot(&self) -> SimDevice {
        self.copy(&self.medium())
    }

    fn copy(&self, medium: &Medium) -> SimDevice {
        let reports = self.reports();
        let capacities = reports.iter().map(|report| report.capacity);
        let info = self.0.info.clone();
        let rules = ZoneRules::new(info.write_unit, limit_of(&info).zones, capacities, ZoneState::Empty);
        for (zone, report) in rules.zones().zip(&reports) {
            rules.force(zone, report.state, report.pointer);
        }
        let resets_keep_bytes = self.0.resets_keep_bytes;
        let power = PowerSupply::new(medium.power.ops());
        power.cut_after.store(medium.power.cut_after.load(Ordering::SeqCst), Ordering::SeqCst);
        power.on.store(medium.power.is_on(), Ordering::SeqCst);
        let medium = Medium { cut_copies: None, power, ..medium.clone() };
        SimDevice::from_parts(info, rules, resets_keep_bytes, medium)
    }

    /// Makes the device record, for every operation, the device as it would be if the power failed in its middle. So
    /// one run can be cut at each of its operations without a repetition. See [`take_cut_copies`](Self::take_cut_copies).
    pub fn record_power_cuts(&self) {
        self.medium().cut_copies.get_or_insert_default();
    }

    /// The devices without power, one for each operation since the last call, in order. They share their common
    /// memory.
    pub fn take_cut_copies(&self) -> Vec<SimDevice> {
        self.medium().cut_copies.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Keeps a copy with the power cut in this operation, after a call of
    /// [`record_power_cuts`](Self::record_power_cuts).
    fn record_power_cut<T>(
        &self,
        medium: &mut Medium,
        operation: impl FnOnce(&SimDevice) -> Result<T, DeviceError>,
    ) {
        if medium.cut_copies.is_none() {
            return;
        }
        let copy = self.copy(medium);
        copy.crash_after(medium.power.ops());
        // An operation that the rules refuse does not count, and leaves the power on.
        if operation(&copy).is_err() && !copy.is_powered() {
            medium.cut_copies.get_or_insert_default().push(copy);
        }
    }

    /// Writes, resets, finishes and flushes since the device was switched on. Operations that the rules refused do
    /// not count, nor does the one in which the power failed.
    pub fn ops_done(&self) -> u64 {
        self.medium().power.ops()
    }

    /// Bytes that zones hold, as reads see them: the size of a sparse file.
    pub fn stored_bytes(&self) -> u64 {
        let medium = self.medium();
        let chunks = medium.current.iter().flat_map(|image| image.chunks());
        chunks.map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Plans a power cut: when `ops_done` is `ops`, the next operation is cut off in its middle. A write may survive
    /// in part, and a reset may have happened. It fails, and so does everything after it. A number that has passed
    /// already never comes.
    pub fn crash_after(&self, ops: u64) {
        self.medium().power.cut_after.store(ops, Ordering::SeqCst);
    }

    /// Cuts the power now, between two operations.
    pub fn cut_power(&self) {
        self.medium().power.on.store(false, Ordering::SeqCst);
    }

    /// False after a planned or immediate power cut: then all reads and commands fail, on every device of this power
    /// supply.
    pub fn is_powered(&self) -> bool {
        self.medium().power.is_on()
    }

    /// Makes one zone's content durable, whatever else is pending.
    fn make_zone_durable(&self, medium: &mut Medium, zone: ZoneIdx) {
        self.make_zones_durable(medium, &BTreeSet::from([zone]));
        medium.pending.retain(|pending| pending.zone != zone);
    }

    fn make_zones_durable(&self, medium: &mut Medium, zones: &BTreeSet<ZoneIdx>) {
        for zone in zones {
            let at = zone.0 as usize;
            if let (Some(now), Some(durable), Ok(report)) =
                (medium.current.get(at), medium.durable.get_mut(at), self.0.rules.report(*zone))
            {
                *durable =
                    DurableZone { image: Arc::clone(now), state: report.state, pointer: report.pointer };
            }
        }
    }

    /// What must hold between operations; an error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let medium = self.medium();
        self.0.rules.check()?;
        let pending: BTreeSet<ZoneIdx> = medium.pending.iter().map(|pending| pending.zone).collect();
        for (zone, (now, durable)) in self.0.rules.zones().zip(medium.current.iter().zip(&medium.durable)) {
            if !pending.contains(&zone) && !Arc::ptr_eq(now, &durable.image) {
                return Err(format!("zone {zone}: content is not durable, though no command is pending"));
            }
        }
        Ok(())
    }

    /// Before an operation: kills the zones whose time has come.
    fn kill_due_zones(&self, medium: &mut Medium) {
        for (zone, state) in medium.zones_to_kill() {
            self.kill(medium, zone, state);
        }
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.medium().check_power(Some(zone), 0, "report")?;
        self.0.rules.report(zone)
    }

    fn query(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        let medium = &mut *self.medium();
        medium.check_power(Some(zone), 0, "report")?;
        self.kill_due_zones(medium);
        self.0.rules.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let mut medium = self.medium();
        medium.check_power(Some(zone), offset, "read")?;
        self.0.rules.check_read(zone, offset, buf.len())?;
        if medium.read_fails(zone) {
            return Err(io_error(zone, offset, "read", "injected read error"));
        }
        if let Some(image) = medium.current.get(zone.0 as usize) {
            image.read(offset, buf);
        }
        Ok(())
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        const OP: &str = "write";
        let medium = &mut *self.medium();
        medium.check_power(Some(zone), offset, OP)?;
        self.kill_due_zones(medium);
        self.record_power_cut(medium, |copy| copy.write(zone, offset, data));
        let ZoneLimit { zones: limit, errno } = limit_of(&self.0.info);
        let opens = self.0.rules.report(zone)?.state == ZoneState::Empty;
        if opens && limit > 0 && self.0.rules.open_zones() >= limit {
            let source = io::Error::from_raw_os_error(errno);
            return Err(DeviceError::Io { zone: Some(zone), offset, op: OP, source });
        }
        let ticket = self.0.rules.begin_write(zone, offset, data.len())?;
        let len = data.len() as u64;
        if medium.count_op() == Completion::Cut {
            medium.add_pending(zone, Command::Write { offset, len, data: Some(data.into()) });
            return Err(io_error(zone, offset, OP, POWER_OFF));
        }
        let unit = u64::from(self.0.info.write_unit);
        match medium.write_outcome(zone, len / unit, unit) {
            WriteOutcome::Done => {
                medium.write_current(zone, offset, data);
                medium.add_pending(zone, Command::Write { offset, len, data: Some(data.into()) });
                ticket.wrote(len);
            }
            WriteOutcome::Lost => {
                medium.add_pending(zone, Command::Write { offset, len, data: None });
                ticket.wrote(len);
            }
            WriteOutcome::Misdirected(to, at) => {
                medium.add_pending(zone, Command::Write { offset, len, data: None });
                // Clipped to the other zone: bytes beyond its end are lost.
                let capacity_left =
                    self.0.rules.report(to).map_or(0, |report| report.capacity.saturating_sub(at));
                let data = &data[..data.len().min(usize::try_from(capacity_left).unwrap_or(usize::MAX))];
                medium.write_current(to, at, data);
                medium.add_pending(to, Command::MisdirectedWrite { offset: at, data: data.into() });
                ticket.wrote(len);
            }
            WriteOutcome::Failed(done) => {
                let data = &data[..usize::try_from(done).unwrap_or(0)];
                if !data.is_empty() {
                    medium.write_current(zone, offset, data);
                    medium.add_pending(zone, Command::Write { offset, len: done, data: Some(data.into()) });
                }
                ticket.wrote(done);
                return Err(io_error(zone, offset, OP, "injected write error"));
            }
        }
        Ok(())
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        let medium = &mut *self.medium();
        medium.check_power(Some(zone), 0, "reset")?;
        self.kill_due_zones(medium);
        self.record_power_cut(medium, |copy| copy.reset(zone));
        let ticket = self.0.rules.begin_reset(zone)?;
        let completion = medium.count_op();
        let outcome =
            if completion == Completion::Complete { medium.reset_outcome(zone) } else { ResetOutcome::Done };
        if outcome == ResetOutcome::Failed {
            return Err(io_error(zone, 0, "reset", "injected reset error"));
        }
        let keeps = self.0.resets_keep_bytes;
        if !keeps {
            medium.add_pending(
                zone,
                Command::Reset {
                    certain: completion == Completion::Complete && outcome == ResetOutcome::Done,
                },
            );
        }
        if completion == Completion::Cut {
            return Err(io_error(zone, 0, "reset", POWER_OFF));
        }
        if let Some(image) = medium.current.get_mut(zone.0 as usize).filter(|_| !keeps) {
            *image = Arc::default();
        }
        medium.tainted.remove(&zone);
        ticket.done();
        Ok(())
    }

    /// The config decides whether a reset keeps bytes.
    fn keep_space(&self) {}

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        let medium = &mut *self.medium();
        medium.check_power(Some(zone), 0, "finish")?;
        self.kill_due_zones(medium);
        self.record_power_cut(medium, |copy| copy.finish(zone));
        if matches!(self.0.rules.report(zone)?.state, ZoneState::ReadOnly | ZoneState::Offline) {
            // The rules refuse it before the operation counts.
            return self.0.rules.finish(zone).map(drop);
        }
        let completion = medium.count_op();
        medium.add_pending(zone, Command::Finish);
        if completion == Completion::Cut {
            return Err(io_error(zone, 0, "finish", POWER_OFF));
        }
        self.0.rules.finish(zone).map(drop)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.medium().check_power(Some(zone), 0, "resume")?;
        self.0.rules.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let medium = &mut *self.medium();
        medium.check_power(None, 0, "flush")?;
        self.kill_due_zones(medium);
        self.record_power_cut(medium, Device::flush);
        if medium.count_op() == Completion::Cut {
            return Err(io_error(None, 0, "flush", POWER_OFF));
        }
        let mut zones: BTreeSet<ZoneIdx> = medium.pending.iter().map(|pending| pending.zone).collect();
        match medium.flush_outcome() {
            FlushOutcome::Done => {
                zones.retain(|zone| !medium.tainted.contains(zone));
                self.make_zones_durable(medium, &zones);
                medium.pending.retain(|pending| !zones.contains(&pending.zone));
                Ok(())
            }
            FlushOutcome::Lost => Ok(()),
            FlushOutcome::Failed => {
                medium.tainted.append(&mut zones);
                Err(io_error(None, 0, "flush", "injected flush error"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
