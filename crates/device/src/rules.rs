//! What is allowed when: the zone state machine in software.
//!
//! A drive refuses a write that is not at the write pointer, a reset of a zone that went read-only, one open zone
//! too many. A file would take all of that without a word, and a bug would be found years later on a drive. So
//! every backend without such a drive below it asks [`ZoneRules`] first, and a file misbehaves exactly like a drive.
//!
//! A write is two steps, because the medium is written between them: [`ZoneRules::begin_write`] checks and marks the
//! zone busy, [`WriteTicket::wrote`] moves the pointer by what really reached the medium. A ticket that is dropped
//! moves nothing. The zone's lock is not held meanwhile, so reads of a zone go on while it is written.
//!
//! Invariants, run by [`ZoneRules::check`]: a pointer is a multiple of the write unit and within the capacity; 0 when
//! empty, the capacity when full; `open` counts exactly the open zones that are not exempt.

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
    /// A write, a reset or a finish is under way.
    busy: bool,
    /// Being open uses up none of what the device can keep open: conventional zones of a drive.
    exempt: bool,
}

/// State, capacity and pointer of every zone of a device, and who may do what.
#[derive(Debug)]
pub struct ZoneRules {
    slots: Vec<Mutex<Slot>>,
    write_unit: u64,
    max_open: u32,
    /// Zones in state `Open`; changed only under the lock of the zone that changes.
    open: AtomicU32,
}

fn rule(
    zone: ZoneIdx,
    op: &'static str,
    expected: impl fmt::Display,
    found: impl fmt::Display,
) -> DeviceError {
    DeviceError::Rule { zone, op, expected: expected.to_string(), found: found.to_string() }
}

fn name(state: ZoneState) -> &'static str {
    match state {
        ZoneState::Empty => "an empty zone",
        ZoneState::Open => "an open zone",
        ZoneState::Full => "a full zone",
        ZoneState::ReadOnly => "a read-only zone",
        ZoneState::Offline => "an offline zone",
        ZoneState::Unknown => "a zone whose pointer nobody told yet",
    }
}

impl ZoneRules {
    /// Zones with these capacities in bytes, all in `state` with the pointer at 0. `write_unit` in bytes, not 0;
    /// capacities are multiples of it. `max_open` 0 means no limit.
    pub fn new(
        write_unit: u32,
        max_open: u32,
        capacities: impl IntoIterator<Item = u64>,
        state: ZoneState,
    ) -> Self {
        assert!(write_unit > 0, "a write unit has bytes");
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

    /// From now on the zone does not count as open, whatever its state: the drive keeps no pointer for it.
    pub fn exempt(&self, zone: ZoneIdx) {
        if let Ok(mut slot) = self.slot(zone, "exempt") {
            let (state, pointer) = (slot.state, slot.pointer);
            self.enter(&mut slot, ZoneState::Unknown, 0);
            slot.exempt = true;
            self.enter(&mut slot, state, pointer);
        }
    }

    /// Every zone's number, in order.
    pub fn zones(&self) -> impl Iterator<Item = ZoneIdx> + use<> {
        (0u32..).take(self.slots.len()).map(ZoneIdx)
    }

    fn slot(&self, zone: ZoneIdx, op: &'static str) -> Result<MutexGuard<'_, Slot>, DeviceError> {
        let slot = usize::try_from(zone.0).ok().and_then(|at| self.slots.get(at));
        let slot =
            slot.ok_or_else(|| rule(zone, op, format_args!("a zone below {}", self.slots.len()), zone))?;
        // A panic elsewhere leaves a slot consistent: every change of one is a single assignment.
        Ok(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The only place where a state changes, so the count of open zones cannot drift.
    fn enter(&self, slot: &mut Slot, state: ZoneState, pointer: u64) {
        let (was_open, is_open) = (slot.state == ZoneState::Open, state == ZoneState::Open);
        if slot.exempt {
            // Counted nowhere.
        } else if was_open && !is_open {
            self.open.fetch_sub(1, Ordering::Relaxed);
        } else if is_open && !was_open {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
        slot.state = state;
        slot.pointer = pointer;
    }

    /// Makes a zone open if the limit allows one more.
    fn enter_open(
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
                return Err(rule(
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

    /// Zones that are open now.
    pub(crate) fn open_zones(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    pub fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        let slot = self.slot(zone, "report")?;
        Ok(ZoneReport { state: slot.state, capacity: slot.capacity, pointer: slot.pointer })
    }

    /// Whether `len` bytes at `offset` may be read: within the capacity of a zone that is not offline. The pointer
    /// does not matter: what is above it holds anything.
    pub fn may_read(&self, zone: ZoneIdx, offset: u64, len: usize) -> Result<(), DeviceError> {
        let slot = self.slot(zone, "read")?;
        if slot.state == ZoneState::Offline {
            return Err(rule(zone, "read", "a zone that is there", name(slot.state)));
        }
        match end_of(offset, len) {
            Some(end) if end <= slot.capacity => Ok(()),
            _ => Err(rule(
                zone,
                "read",
                format_args!("an end within the capacity {}", slot.capacity),
                format_args!("{len} bytes at {offset}"),
            )),
        }
    }

    /// Checks a write of `len` bytes at `offset` and marks the zone busy until the ticket is given back.
    pub fn begin_write(
        &self,
        zone: ZoneIdx,
        offset: u64,
        len: usize,
    ) -> Result<WriteTicket<'_>, DeviceError> {
        const OP: &str = "write";
        let mut slot = self.slot(zone, OP)?;
        let was = slot.state;
        if !matches!(was, ZoneState::Empty | ZoneState::Open) {
            return Err(rule(zone, OP, "an empty or open zone", name(was)));
        }
        if slot.busy {
            return Err(rule(zone, OP, "one command at a time", "another command under way"));
        }
        if offset != slot.pointer {
            return Err(rule(zone, OP, format_args!("offset {}, the write pointer", slot.pointer), offset));
        }
        let unit = self.write_unit;
        let end = end_of(offset, len).unwrap_or(u64::MAX);
        if len == 0 || !end.is_multiple_of(unit) {
            return Err(rule(zone, OP, format_args!("a length in units of {unit} bytes"), len));
        }
        if end > slot.capacity {
            let found = format_args!("{len} bytes at {offset}").to_string();
            return Err(rule(zone, OP, format_args!("an end within the capacity {}", slot.capacity), found));
        }
        self.enter_open(&mut slot, zone, OP, offset)?;
        slot.busy = true;
        Ok(WriteTicket { rules: self, zone, was, from: offset, end, done: 0 })
    }

    /// Checks a reset and marks the zone busy until the ticket is given back.
    pub fn begin_reset(&self, zone: ZoneIdx) -> Result<ChangeTicket<'_>, DeviceError> {
        self.begin_change(zone, "reset", ZoneState::Empty)
    }

    /// Checks a finish and marks the zone busy until the ticket is given back. One whose pointer nobody told may be finished too:
    /// full needs no pointer. `None`: the zone is full already.
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
            return Err(rule(zone, op, "a zone that can be written", name(slot.state)));
        }
        if slot.busy {
            return Err(rule(zone, op, "one command at a time", "another command under way"));
        }
        slot.busy = true;
        Ok(ChangeTicket { rules: self, zone, to, done: false })
    }

    /// Makes a zone full where nothing below has to be told. Returns whether anything changed.
    pub fn finish(&self, zone: ZoneIdx) -> Result<bool, DeviceError> {
        Ok(self.begin_finish(zone)?.map(ChangeTicket::done).is_some())
    }

    /// Tells a zone in unknown state where its writing goes on. A zone whose state is known keeps it, and its own
    /// pointer is returned: like a drive, it knows better.
    pub fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        const OP: &str = "resume";
        let mut slot = self.slot(zone, OP)?;
        match slot.state {
            ZoneState::Empty | ZoneState::Open | ZoneState::Full => return Ok(slot.pointer),
            ZoneState::ReadOnly | ZoneState::Offline => {
                return Err(rule(zone, OP, "a zone that can be written", name(slot.state)));
            }
            ZoneState::Unknown => {}
        }
        if slot.busy {
            return Err(rule(zone, OP, "one command at a time", "a reset under way"));
        }
        if pointer > slot.capacity || !pointer.is_multiple_of(self.write_unit) {
            let expected = format!("a multiple of {} up to {}", self.write_unit, slot.capacity);
            return Err(rule(zone, OP, expected, pointer));
        }
        if pointer == slot.capacity {
            self.enter(&mut slot, ZoneState::Full, pointer);
        } else if pointer == 0 {
            self.enter(&mut slot, ZoneState::Empty, 0);
        } else {
            self.enter_open(&mut slot, zone, OP, pointer)?;
        }
        Ok(pointer)
    }

    /// Puts a zone into a state without asking: what a drive does by itself (a zone dies, a pointer moves). A zone
    /// that does not exist is left alone.
    pub fn force(&self, zone: ZoneIdx, state: ZoneState, pointer: u64) {
        if let Ok(mut slot) = self.slot(zone, "force") {
            self.enter(&mut slot, state, pointer);
        }
    }

    /// The invariants at the top of this page; what is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut open = 0;
        for zone in self.zones() {
            let slot = *self.slot(zone, "check").map_err(|e| e.to_string())?;
            let fits = match slot.state {
                ZoneState::Empty => slot.pointer == 0,
                // Under a write that began at 0 the zone counts as open already: it has its place among the open ones.
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

fn end_of(offset: u64, len: usize) -> Option<u64> {
    offset.checked_add(u64::try_from(len).ok()?)
}

/// A write that was allowed and is under way.
#[derive(Debug)]
pub struct WriteTicket<'a> {
    rules: &'a ZoneRules,
    zone: ZoneIdx,
    was: ZoneState,
    from: u64,
    end: u64,
    done: u64,
}

impl WriteTicket<'_> {
    /// The medium took `bytes` of it, fewer than asked for after an error; the pointer moves by the whole units in that.
    pub fn wrote(mut self, bytes: u64) {
        self.done = bytes;
    }
}

impl Drop for WriteTicket<'_> {
    fn drop(&mut self) {
        let Ok(mut slot) = self.rules.slot(self.zone, "write") else { return };
        slot.busy = false;
        // The zone may have died, or been moved on, while it was written: that stands.
        if slot.state != ZoneState::Open || slot.pointer != self.from {
            return;
        }
        let whole = self.done - self.done % self.rules.write_unit;
        let pointer = self.from.saturating_add(whole).min(self.end);
        let state = if pointer == slot.capacity {
            ZoneState::Full
        } else if pointer == self.from {
            self.was
        } else {
            ZoneState::Open
        };
        self.rules.enter(&mut slot, state, pointer);
    }
}

/// A reset or a finish that was allowed and is under way; dropped without [`done`](ChangeTicket::done) it changes nothing.
#[derive(Debug)]
pub struct ChangeTicket<'a> {
    rules: &'a ZoneRules,
    zone: ZoneIdx,
    to: ZoneState,
    done: bool,
}

impl ChangeTicket<'_> {
    /// The medium did it.
    pub fn done(mut self) {
        self.done = true;
    }
}

impl Drop for ChangeTicket<'_> {
    fn drop(&mut self) {
        let Ok(mut slot) = self.rules.slot(self.zone, "change") else { return };
        slot.busy = false;
        if self.done && !matches!(slot.state, ZoneState::ReadOnly | ZoneState::Offline) {
            let pointer = if self.to == ZoneState::Full { slot.capacity } else { 0 };
            self.rules.enter(&mut slot, self.to, pointer);
        }
    }
}

#[cfg(test)]
mod tests;
