//! Faults of a device other than power loss.
//!
//! Each fault has a switch ([`SimDevice::inject`](super::SimDevice::inject) and the methods below) and a counter. A
//! test that shows that a fault is noticed first asserts that it *fired*; otherwise it proves nothing (a *canary*).
//!
//! Scheduled faults count from their injection. Faults that change the medium at once (rot, pointers, dead zones)
//! first make the zone's content durable, so that a later crash cannot undo the fault.

use super::{Medium, SimDevice, io_error};
use crate::zone::{DeviceError, ZoneState};
use std::sync::Arc;
use terrane_wire::ZoneIdx;

/// A fault that waits for its occasion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads of the zone (of any zone, if `None`) fail once in `one_in` times, by the device's seed; 1 is always.
    ReadError {
        /// The zone whose reads fail; `None` for any zone of this device and its companions.
        zone: Option<ZoneIdx>,
        /// Inverse of the chance of each read; 0 is never.
        one_in: u32,
    },
    /// The same for writes.
    WriteError {
        /// The zone whose writes fail; `None` for any zone of this device and its companions.
        zone: Option<ZoneIdx>,
        /// Inverse of the chance of each write; 0 is never.
        one_in: u32,
        /// A random prefix of whole write units is written, and the pointer moves over it before the write fails. If
        /// false, nothing is written.
        partial: bool,
    },
    /// The `nth` write (1 is the next) succeeds and moves the pointer, but its bytes never reach the medium.
    LostWrite {
        /// Position among the writes of this device after the injection; refused ones do not count.
        nth: u64,
    },
    /// The bytes of the `nth` write land at `offset` in zone `to` instead, and overwrite its content.
    MisdirectedWrite {
        /// Position among the writes of this device after the injection; refused ones do not count.
        nth: u64,
        /// The zone whose content is overwritten. Its pointer stays.
        to: ZoneIdx,
        /// Where in zone `to` the bytes land, in bytes. Those beyond its capacity are lost.
        offset: u64,
    },
    /// The `nth` flush succeeds and makes nothing durable. A later one does.
    LostFlush {
        /// Position among the flushes of this device after the injection; 1 is the next.
        nth: u64,
    },
    /// The `nth` flush fails. The data that it should have made durable never will be, even by a later flush that
    /// succeeds. Kernels do so to pages whose write-back failed. A reset ends that for its zone.
    FailingFlush {
        /// Position among the flushes of this device after the injection; 1 is the next.
        nth: u64,
    },
    /// Resets of the zone (of any zone, if `None`) fail once in `one_in` times and change nothing.
    ResetError {
        /// The zone whose resets fail; `None` for any zone of this device and its companions.
        zone: Option<ZoneIdx>,
        /// Inverse of the chance of each reset; 0 is never.
        one_in: u32,
    },
    /// Resets succeed, but once in `one_in` times the acknowledgement is false. Until a flush, a crash may bring back
    /// the old content and pointer.
    LostReset {
        /// Inverse of the chance of each reset; 1 is always, 0 is never.
        one_in: u32,
    },
    /// After `after_ops` more writes, resets, finishes and flushes, the zone is read-only.
    BecomesReadOnly {
        /// The zone that can no longer be written. Its content is made durable first.
        zone: ZoneIdx,
        /// Operations of all devices on the power supply until then; 0 means before the next one.
        after_ops: u64,
    },
    /// After as many, the zone is offline.
    BecomesOffline {
        /// The zone that can no longer be read or written.
        zone: ZoneIdx,
        /// Operations of all devices on the power supply until then; 0 means before the next one.
        after_ops: u64,
    },
}

impl Fault {
    fn applies_to_companions(&self) -> bool {
        matches!(
            self,
            Fault::ReadError { zone: None, .. }
                | Fault::WriteError { zone: None, .. }
                | Fault::ResetError { zone: None, .. }
                | Fault::LostReset { .. }
        )
    }
}

/// Identifies an injected fault on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultId(pub(super) usize);

#[derive(Clone, Debug)]
pub(super) struct ArmedFault {
    pub(super) fault: Fault,
    pub(super) enabled: bool,
    /// Operations of the device before the injection.
    pub(super) ops_at_injection: u64,
    /// Occasions on which it could have fired.
    pub(super) occasions: u64,
    pub(super) fired: u64,
}

impl ArmedFault {
    fn fires(&mut self, due: impl FnOnce(u64) -> bool) -> bool {
        if !self.enabled {
            return false;
        }
        self.occasions += 1;
        let due = due(self.occasions);
        self.fired += u64::from(due);
        due
    }
}

/// The outcome of a write.
pub(super) enum WriteOutcome {
    Done,
    Lost,
    Misdirected(ZoneIdx, u64),
    /// Fails after this many bytes.
    Failed(u64),
}

/// The outcome of a reset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResetOutcome {
    Done,
    /// It is acknowledged, and a crash may show that it did not happen.
    Lost,
    Failed,
}

/// The outcome of a flush.
pub(super) enum FlushOutcome {
    Done,
    Lost,
    Failed,
}

impl Medium {
    pub(super) fn read_fails(&mut self, zone: ZoneIdx) -> bool {
        let prng = &mut self.prng;
        self.faults.iter_mut().any(|armed| match armed.fault {
            Fault::ReadError { zone: at, one_in } if at.is_none_or(|at| at == zone) => {
                armed.fires(|_| prng.one_in(one_in.into()))
            }
            _ => false,
        })
    }

    /// The first fault that is due decides; all count the occasion.
    pub(super) fn write_outcome(&mut self, zone: ZoneIdx, units: u64, unit: u64) -> WriteOutcome {
        let prng = &mut self.prng;
        let mut outcome = WriteOutcome::Done;
        for armed in &mut self.faults {
            let decided = match armed.fault {
                Fault::WriteError { zone: at, one_in, partial } if at.is_none_or(|at| at == zone) => armed
                    .fires(|_| prng.one_in(one_in.into()))
                    .then(|| WriteOutcome::Failed(if partial { prng.below(units) * unit } else { 0 })),
                Fault::LostWrite { nth } => {
                    armed.fires(|occasion| occasion == nth).then_some(WriteOutcome::Lost)
                }
                Fault::MisdirectedWrite { nth, to, offset } => {
                    armed.fires(|occasion| occasion == nth).then_some(WriteOutcome::Misdirected(to, offset))
                }
                _ => None,
            };
            if let (WriteOutcome::Done, Some(decided)) = (&outcome, decided) {
                outcome = decided;
            }
        }
        outcome
    }

    /// The first fault that is due decides; all count the occasion.
    pub(super) fn reset_outcome(&mut self, zone: ZoneIdx) -> ResetOutcome {
        let prng = &mut self.prng;
        let mut outcome = ResetOutcome::Done;
        for armed in &mut self.faults {
            let decided = match armed.fault {
                Fault::ResetError { zone: at, one_in } if at.is_none_or(|at| at == zone) => {
                    armed.fires(|_| prng.one_in(one_in.into())).then_some(ResetOutcome::Failed)
                }
                Fault::LostReset { one_in } => {
                    armed.fires(|_| prng.one_in(one_in.into())).then_some(ResetOutcome::Lost)
                }
                _ => None,
            };
            if let (ResetOutcome::Done, Some(decided)) = (outcome, decided) {
                outcome = decided;
            }
        }
        outcome
    }

    pub(super) fn flush_outcome(&mut self) -> FlushOutcome {
        let mut outcome = FlushOutcome::Done;
        for armed in &mut self.faults {
            let decided = match armed.fault {
                Fault::LostFlush { nth } => {
                    armed.fires(|occasion| occasion == nth).then_some(FlushOutcome::Lost)
                }
                Fault::FailingFlush { nth } => {
                    armed.fires(|occasion| occasion == nth).then_some(FlushOutcome::Failed)
                }
                _ => None,
            };
            if let (FlushOutcome::Done, Some(decided)) = (&outcome, decided) {
                outcome = decided;
            }
        }
        outcome
    }

    /// The zones that die before the next operation.
    pub(super) fn zones_to_kill(&mut self) -> Vec<(ZoneIdx, ZoneState)> {
        let ops = self.power.ops();
        let due = self.faults.iter_mut().filter_map(|armed| {
            let (zone, state, after) = match armed.fault {
                Fault::BecomesReadOnly { zone, after_ops } => (zone, ZoneState::ReadOnly, after_ops),
                Fault::BecomesOffline { zone, after_ops } => (zone, ZoneState::Offline, after_ops),
                _ => return None,
            };
            let (since, fired) = (armed.ops_at_injection, armed.fired);
            armed.fires(|_| fired == 0 && ops >= since.saturating_add(after)).then_some((zone, state))
        });
        due.collect()
    }
}

impl SimDevice {
    /// Arms a fault. One with `one_in` and without a zone is armed on this device and its companions, every other
    /// fault on this device only.
    pub fn inject(&self, fault: Fault) -> FaultId {
        // A fault has the same number on all of them.
        self.companions().iter().for_each(|device| {
            device.arm(fault, fault.applies_to_companions());
        });
        self.arm(fault, true)
    }

    fn arm(&self, fault: Fault, enabled: bool) -> FaultId {
        let mut medium = self.medium();
        let since = medium.power.ops();
        medium.faults.push(ArmedFault { fault, enabled, ops_at_injection: since, occasions: 0, fired: 0 });
        FaultId(medium.faults.len() - 1)
    }

    fn with_companions(&self) -> impl Iterator<Item = SimDevice> {
        std::iter::once(self.clone()).chain(self.companions())
    }

    /// How often the fault has happened. A canary that never fired proves nothing.
    pub fn fired(&self, id: FaultId) -> u64 {
        self.with_companions()
            .map(|device| device.medium().faults.get(id.0).map_or(0, |armed| armed.fired))
            .sum()
    }

    /// Disarms one fault. Its effects and its counter stay.
    pub fn disarm(&self, id: FaultId) {
        for device in self.with_companions() {
            if let Some(armed) = device.medium().faults.get_mut(id.0) {
                armed.enabled = false;
            }
        }
    }

    /// Disarms all faults; see [`disarm`](Self::disarm).
    pub fn clear_faults(&self) {
        self.with_companions()
            .for_each(|device| device.medium().faults.iter_mut().for_each(|armed| armed.enabled = false));
    }

    /// Bit rot: flips every bit that is set in `mask`, on the medium, from `offset` on.
    ///
    /// # Errors
    /// `Rule` if the range is not within the zone's capacity.
    pub fn rot(&self, zone: ZoneIdx, offset: u64, mask: &[u8]) -> Result<(), DeviceError> {
        let mut medium = self.medium();
        self.0.rules.check_read(zone, offset, mask.len())?;
        self.make_zone_durable(&mut medium, zone);
        let mut bytes = vec![0; mask.len()];
        medium.change_both_images(zone, |image| {
            image.read(offset, &mut bytes);
            bytes.iter_mut().zip(mask).for_each(|(byte, flip)| *byte ^= flip);
            image.write(offset, &bytes);
        });
        Ok(())
    }

    /// Makes the zone read-only or offline; other states are refused.
    pub fn kill_zone(&self, zone: ZoneIdx, state: ZoneState) -> Result<(), DeviceError> {
        if !matches!(state, ZoneState::ReadOnly | ZoneState::Offline) {
            return Err(io_error(zone, 0, "kill", "state refused: expected read-only or offline"));
        }
        self.0.rules.report(zone)?;
        self.kill(&mut self.medium(), zone, state);
        Ok(())
    }

    pub(super) fn kill(&self, medium: &mut Medium, zone: ZoneIdx, state: ZoneState) {
        self.make_zone_durable(medium, zone);
        let pointer = self.0.rules.report(zone).map_or(0, |report| report.pointer);
        self.0.rules.force(zone, state, pointer);
        self.make_zone_durable(medium, zone);
    }

    /// Writes `bytes` of garbage at the write pointer, as another writer would; clipped to the capacity.
    ///
    /// # Errors
    /// `Rule` for a device without hardware pointers: there only the owner moves a pointer.
    pub fn advance_pointer(&self, zone: ZoneIdx, bytes: u64) -> Result<u64, DeviceError> {
        self.move_pointer(zone, "advance", |pointer, capacity| (pointer.saturating_add(bytes)).min(capacity))
    }

    /// The zone loses its last `bytes`, flushed or not: damage that no drive may do, and some did. They become
    /// garbage. Clipped to the zone's start.
    ///
    /// # Errors
    /// `Rule` as for [`advance_pointer`](Self::advance_pointer).
    pub fn roll_back_pointer(&self, zone: ZoneIdx, bytes: u64) -> Result<u64, DeviceError> {
        self.move_pointer(zone, "roll back", |pointer, _| pointer.saturating_sub(bytes))
    }

    /// Moves the pointer by whole units, and writes garbage between the old and the new one. Returns the new pointer.
    fn move_pointer(
        &self,
        zone: ZoneIdx,
        op: &'static str,
        to: impl FnOnce(u64, u64) -> u64,
    ) -> Result<u64, DeviceError> {
        let mut medium = self.medium();
        let report = self.0.rules.report(zone)?;
        let movable = matches!(report.state, ZoneState::Empty | ZoneState::Open | ZoneState::Full);
        if !self.0.info.hardware_pointers || !movable {
            return Err(DeviceError::Rule {
                zone,
                op,
                expected: "a writable zone with a hardware pointer".into(),
                found: format!("{:?}", report.state),
            });
        }
        self.make_zone_durable(&mut medium, zone);
        let pointer = to(report.pointer, report.capacity);
        let pointer = pointer - pointer % u64::from(self.0.info.write_unit);
        let (from, end) = (pointer.min(report.pointer), pointer.max(report.pointer));
        let mut garbage = vec![0; usize::try_from(end - from).unwrap_or(0)];
        medium.prng.fill(&mut garbage);
        medium.change_both_images(zone, |image| image.write(from, &garbage));
        self.0.rules.force(zone, super::state_at(pointer, report.capacity), pointer);
        self.make_zone_durable(&mut medium, zone);
        Ok(pointer)
    }
}

impl Medium {
    /// Changes the content that reads see, and the content that survives a crash, in the same way. The zone is made
    /// durable first.
    fn change_both_images(&mut self, zone: ZoneIdx, mut change: impl FnMut(&mut super::image::Image)) {
        if let (Some(now), Some(durable)) =
            (self.current.get_mut(zone.0 as usize), self.durable.get_mut(zone.0 as usize))
        {
            change(Arc::make_mut(now));
            durable.image = Arc::clone(now);
        }
    }
}
