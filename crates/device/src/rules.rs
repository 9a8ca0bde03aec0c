//! The zone state machine in software: which command is allowed when.
//!
//! A drive refuses a write that is not at the write pointer, a reset of a read-only zone, or one open zone too many.
//! A file accepts all of that, and the bug would be found years later on a drive. So every backend without such a
//! drive asks [`ZoneRules`] first, and a file refuses exactly what a drive refuses.
//!
//! A write has two steps, because the medium is written between them. [`ZoneRules::begin_write`] checks it and marks
//! the zone busy; [`WriteTicket::wrote`] moves the pointer by the bytes that reached the medium. A dropped ticket
//! moves nothing. The zone's lock is not held in between, so a zone can be read while it is written.
//!
//! Invariants, verified by [`ZoneRules::check`]: a pointer is a multiple of the write unit and within the capacity. It
//! is 0 if the zone is empty, the capacity if it is full. `open` counts exactly the open zones that are not exempt.

use crate::zone::{DeviceError, ZoneReport, ZoneState};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use terrane_wire::ZoneIdx;

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: ZoneState,
    capacity: u64,
    pointer: u64,
    /// A write, a reset or a finish is in progress.
    busy: bool,
    /// The zone does not count against the limit of open zones: conventional zones of a drive.
    exempt: bool,
}

/// State, capacity and pointer of every zone of a device.
#[derive(Debug)]
pub struct ZoneRules {
    slots: Vec<Mutex<Slot>>,
    write_unit: u64,
    max_open: u32,
    /// Zones in state `Open`; changed only under the lock of the zone that changes.
    open: AtomicU32,
}

fn rule_error(
    zone: ZoneIdx,
    op: &'static str,
    expected: impl fmt::Display,
    found: impl fmt::Display,
) -> DeviceError {
    DeviceError::Rule { zone, op, expected: expected.to_string(), found: found.to_string() }
}

fn state_text(state: ZoneState) -> &'static str {
    match state {
        ZoneState::Empty => "an empty zone",
        ZoneState::Open => "an open zone",
        ZoneState::Full => "a full zone",
        ZoneState::ReadOnly => "a read-only zone",
        ZoneState::Offline => "an offline zone",
        ZoneState::Unknown => "a zone whose write pointer is unknown",
    }
}

impl ZoneRules {
    /// Zones with these capacities in bytes, all in `state` with the pointer at 0. `write_unit` is in bytes and not
    /// 0; capacities are multiples of it. `max_open` 0 means no limit.
    pub fn new(
        write_unit: u32,
        max_open: u32,
        capacities: impl IntoIterator<Item = u64>,
        state: ZoneState,
    ) -> Self {
        assert!(write_unit > 0, "the write unit is not 0");
        let rules = ZoneRules {
            slots: capacities
                .into_iter()
                .map(|capacity| {
                    Mutex::new(Slot {
                        state: ZoneState::Empty,
                        capacity,
                        pointer: 0,
                        busy: false,
                        exempt: false,
                    })
                })
                .collect(),
            write_unit: u64::from(write_unit),
            max_open,
            open: AtomicU32::new(0),
        };
        for zone in rules.zones() {
            rules.force(zone, state, 0);
        }
        rules
    }

    /// Exempts the zone from the limit of open zones: the drive keeps no pointer for it.
    pub fn exempt(&self, zone: ZoneIdx) {
        if let Ok(mut slot) = self.slot(zone, "exempt") {
            let (state, pointer) = (slot.state, slot.pointer);
            self.set_state(&mut slot, ZoneState::Unknown, 0);
            slot.exempt = true;
            self.set_state(&mut slot, state, pointer);
        }
    }

    /// Every zone's index, in order.
    pub fn zones(&self) -> impl Iterator<Item = ZoneIdx> + use<> {
        (0u32..).take(self.slots.len()).map(ZoneIdx)
    }

    fn slot(&self, zone: ZoneIdx, op: &'static str) -> Result<MutexGuard<'_, Slot>, DeviceError> {
        let slot = usize::try_from(zone.0).ok().and_then(|at| self.slots.get(at));
        let slot = slot
            .ok_or_else(|| rule_error(zone, op, format_args!("a zone below {}", self.slots.len()), zone))?;
        // A panic of another thread leaves a slot consistent: every change of one is a single assignment.
        Ok(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The only function that changes a state, so the count of open zones cannot drift.
    fn set_state(&self, slot: &mut Slot, state: ZoneState, pointer: u64) {
        let (was_open, is_open) = (slot.state == ZoneState::Open, state == ZoneState::Open);
        if slot.exempt {
            // Not counted.
        } else if was_open && !is_open {
            self.open.fetch_sub(1, Ordering::Relaxed);
        } else if is_open && !was_open {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
        slot.state = state;
        slot.pointer = pointer;
    }

    /// Makes a zone open if the limit allows one more.
    fn set_open(
        &self,
        slot: &mut Slot,
        zone: ZoneIdx,
        op: &'static str,
        pointer: u64,
    ) -> Result<(), DeviceError> {
        if slot.state != ZoneState::Open && !slot.exempt {
            let limit = if self.max_open == 0 { u32::MAX } else { self.max_open };
            let more = |open: u32| if open < limit { open.checked_add(1) } else { None };
            if let Err(open) = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
                return Err(rule_error(
                    zone,
                    op,
                    format_args!("at most {limit} open zones"),
                    format_args!("{open} open"),
                ));
            }
        }
        slot.state = ZoneState::Open;
        slot.pointer = pointer;
        Ok(())
    }

    /// The number of open zones.
    pub(crate) fn open_zones(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// The state of a zone, without any command to the medium.
    pub fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        let slot = self.slot(zone, "report")?;
        Ok(ZoneReport { state: slot.state, capacity: slot.capacity, pointer: slot.pointer })
    }

    /// Whether `len` bytes at `offset` may be read: the range must lie within the capacity, and the zone must not be
    /// offline. The pointer does not matter: bytes above it are undefined.
    pub fn check_read(&self, zone: ZoneIdx, offset: u64, len: usize) -> Result<(), DeviceError> {
        let slot = self.slot(zone, "read")?;
        if slot.state == ZoneState::Offline {
            return Err(rule_error(zone, "read", "a zone that is not offline", state_text(slot.state)));
        }
        match range_end(offset, len) {
            Some(end) if end <= slot.capacity => Ok(()),
            _ => Err(rule_error(
                zone,
                "read",
                format_args!("an end within the capacity {}", slot.capacity),
                format_args!("{len} bytes at {offset}"),
            )),
        }
    }

    /// Checks a write of `len` bytes at `offset`, and marks the zone busy until the ticket is dropped.
    pub fn begin_write(
        &self,
        zone: ZoneIdx,
        offset: u64,
        len: usize,
    ) -> Result<WriteTicket<'_>, DeviceError> {
        const OP: &str = "write";
        let mut slot = self.slot(zone, OP)?;
        let old_state = slot.state;
        if !matches!(old_state, ZoneState::Empty | ZoneState::Open) {
            return Err(rule_error(zone, OP, "an empty or open zone", state_text(old_state)));
        }
        if slot.busy {
            return Err(rule_error(zone, OP, "one command at a time", "another command in progress"));
        }
        if offset != slot.pointer {
            return Err(rule_error(
                zone,
                OP,
                format_args!("offset {}, the write pointer", slot.pointer),
                offset,
            ));
        }
        let unit = self.write_unit;
        let end = range_end(offset, len).unwrap_or(u64::MAX);
        if len == 0 || !end.is_multiple_of(unit) {
            return Err(rule_error(zone, OP, format_args!("a length in units of {unit} bytes"), len));
        }
        if end > slot.capacity {
            let found = format_args!("{len} bytes at {offset}").to_string();
            return Err(rule_error(
                zone,
                OP,
                format_args!("an end within the capacity {}", slot.capacity),
                found,
            ));
        }
        self.set_open(&mut slot, zone, OP, offset)?;
        slot.busy = true;
        Ok(WriteTicket { rules: self, zone, old_state, start: offset, end, written: 0 })
    }

    /// Checks a reset, and marks the zone busy until the ticket is dropped.
    pub fn begin_reset(&self, zone: ZoneIdx) -> Result<ChangeTicket<'_>, DeviceError> {
        self.begin_change(zone, "reset", ZoneState::Empty)
    }

    /// Checks a finish, and marks the zone busy until the ticket is dropped. A zone in state unknown may be finished
    /// too, because full needs no pointer. `None` if the zone is full already.
    pub fn begin_finish(&self, zone: ZoneIdx) -> Result<Option<ChangeTicket<'_>>, DeviceError> {
        let ticket = self.begin_change(zone, "finish", ZoneState::Full)?;
        let is_full = self.report(zone)?.state == ZoneState::Full;
        Ok((!is_full).then_some(ticket))
    }

    fn begin_change(
        &self,
        zone: ZoneIdx,
        op: &'static str,
        to: ZoneState,
    ) -> Result<ChangeTicket<'_>, DeviceError> {
        let mut slot = self.slot(zone, op)?;
        if matches!(slot.state, ZoneState::ReadOnly | ZoneState::Offline) {
            return Err(rule_error(zone, op, "a zone that can be written", state_text(slot.state)));
        }
        if slot.busy {
            return Err(rule_error(zone, op, "one command at a time", "another command in progress"));
        }
        slot.busy = true;
        Ok(ChangeTicket { rules: self, zone, new_state: to, done: false })
    }

    /// Makes a zone full if the medium needs no command. Returns whether anything changed.
    pub fn finish(&self, zone: ZoneIdx) -> Result<bool, DeviceError> {
        Ok(self.begin_finish(zone)?.map(ChangeTicket::done).is_some())
    }

    /// Sets the pointer of a zone in state unknown. A zone whose state is known keeps its own pointer, which is
    /// returned: like a drive, it knows better.
    pub fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        const OP: &str = "resume";
        let mut slot = self.slot(zone, OP)?;
        match slot.state {
            ZoneState::Empty | ZoneState::Open | ZoneState::Full => return Ok(slot.pointer),
            ZoneState::ReadOnly | ZoneState::Offline => {
                return Err(rule_error(zone, OP, "a zone that can be written", state_text(slot.state)));
            }
            ZoneState::Unknown => {}
        }
        if slot.busy {
            return Err(rule_error(zone, OP, "one command at a time", "another command in progress"));
        }
        if pointer > slot.capacity || !pointer.is_multiple_of(self.write_unit) {
            let expected = format!("a multiple of {} up to {}", self.write_unit, slot.capacity);
            return Err(rule_error(zone, OP, expected, pointer));
        }
        if pointer == slot.capacity {
            self.set_state(&mut slot, ZoneState::Full, pointer);
        } else if pointer == 0 {
            self.set_state(&mut slot, ZoneState::Empty, 0);
        } else {
            self.set_open(&mut slot, zone, OP, pointer)?;
        }
        Ok(pointer)
    }

    /// Sets a zone's state without checks: a change that a drive makes by itself (a zone dies, a pointer moves). A
    /// zone that does not exist is ignored.
    pub fn force(&self, zone: ZoneIdx, state: ZoneState, pointer: u64) {
        if let Ok(mut slot) = self.slot(zone, "force") {
            self.set_state(&mut slot, state, pointer);
        }
    }

    /// The invariants of the module documentation; an error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut open = 0;
        for zone in self.zones() {
            let slot = *self.slot(zone, "check").map_err(|e| e.to_string())?;
            let fits = match slot.state {
                ZoneState::Empty => slot.pointer == 0,
                // During a write that began at 0, the zone counts as open already: it has its place among the open
                // ones.
                ZoneState::Open => slot.pointer < slot.capacity && (slot.pointer > 0 || slot.busy),
                ZoneState::Full => slot.pointer == slot.capacity,
                ZoneState::ReadOnly | ZoneState::Offline | ZoneState::Unknown => true,
            };
            if !fits || !slot.pointer.is_multiple_of(self.write_unit) || slot.pointer > slot.capacity {
                return Err(format!("zone {zone}: pointer does not fit the state, found {slot:?}"));
            }
            open += u32::from(slot.state == ZoneState::Open && !slot.exempt);
        }
        let counted = self.open.load(Ordering::Relaxed);
        if counted != open {
            return Err(format!("open zones should be {open}, counted {counted}"));
        }
        Ok(())
    }
}

fn range_end(offset: u64, len: usize) -> Option<u64> {
    offset.checked_add(u64::try_from(len).ok()?)
}

/// A write that was allowed and is in progress.
#[derive(Debug)]
pub struct WriteTicket<'a> {
    rules: &'a ZoneRules,
    zone: ZoneIdx,
    old_state: ZoneState,
    start: u64,
    end: u64,
    written: u64,
}

impl WriteTicket<'_> {
    /// Reports that the medium took `bytes` of the write; after an error these may be fewer. The pointer moves by the
    /// whole units in them.
    pub fn wrote(mut self, bytes: u64) {
        self.written = bytes;
    }
}

impl Drop for WriteTicket<'_> {
    fn drop(&mut self) {
        let Ok(mut slot) = self.rules.slot(self.zone, "write") else { return };
        slot.busy = false;
        // The zone may have died or been forced to another pointer during the write: that state stands.
        if slot.state != ZoneState::Open || slot.pointer != self.start {
            return;
        }
        let whole = self.written - self.written % self.rules.write_unit;
        let pointer = self.start.saturating_add(whole).min(self.end);
        let state = if pointer == slot.capacity {
            ZoneState::Full
        } else if pointer == self.start {
            self.old_state
        } else {
            ZoneState::Open
        };
        self.rules.set_state(&mut slot, state, pointer);
    }
}

/// A reset or a finish that was allowed and is in progress. Dropped without [`done`](ChangeTicket::done), it changes
/// nothing.
#[derive(Debug)]
pub struct ChangeTicket<'a> {
    rules: &'a ZoneRules,
    zone: ZoneIdx,
    new_state: ZoneState,
    done: bool,
}

impl ChangeTicket<'_> {
    /// Reports that the medium executed the command.
    pub fn done(mut self) {
        self.done = true;
    }
}

impl Drop for ChangeTicket<'_> {
    fn drop(&mut self) {
        let Ok(mut slot) = self.rules.slot(self.zone, "change") else { return };
        slot.busy = false;
        if self.done && !matches!(slot.state, ZoneState::ReadOnly | ZoneState::Offline) {
            let pointer = if self.new_state == ZoneState::Full { slot.capacity } else { 0 };
            self.rules.set_state(&mut slot, self.new_state, pointer);
        }
    }
}

#[cfg(test)]
mod tests;
