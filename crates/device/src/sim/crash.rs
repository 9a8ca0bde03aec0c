//! The state of a device after a power loss.
//!
//! A drive with write pointers keeps a prefix of the unflushed units of each zone. Resets that it acknowledged have
//! happened, unless a fault makes the acknowledgement false. The unit after the prefix may have been torn: it then
//! holds some new bytes and garbage, past the pointer. A file keeps any subset of the units. It may tear one of them
//! in each zone, new bytes before old. A zone whose hole was punched may be full again, with new data over old.
//!
//! Half of the choices are extreme (nothing, everything): uniform chance alone rarely keeps just the one write that
//! matters.

use super::{Durable, SimDevice, What, state_at};
use crate::zone::{ZoneReport, ZoneState};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_wire::Dice;
use terrane_wire::ZoneIdx;

/// How much of the unflushed data survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All of it, whole: a clean restart.
    Everything,
    /// None of it (but a drive's acknowledged resets).
    Nothing,
    /// Random, the same for the same seed.
    Seeded(u64),
}

struct Fate {
    kept: Kept,
    dice: Dice,
}

impl Fate {
    fn coin(&mut self) -> bool {
        match self.kept {
            Kept::Everything => true,
            Kept::Nothing => false,
            Kept::Seeded(_) => self.dice.one_in(2),
        }
    }

    /// How many of `count` survive, as a prefix.
    fn prefix(&mut self, count: u64) -> u64 {
        match self.kept {
            Kept::Everything => count,
            Kept::Nothing => 0,
            Kept::Seeded(_) => match self.dice.below(4) {
                0 => 0,
                1 => count,
                _ => self.dice.below(count + 1),
            },
        }
    }

    /// How many of eight survive in this zone.
    fn eighths(&mut self) -> u64 {
        match self.kept {
            Kept::Everything => 8,
            Kept::Nothing => 0,
            Kept::Seeded(_) => [0, 8, 1, 4, 7, 4][self.dice.below(6) as usize],
        }
    }

    fn may_tear(&mut self, one_in: u64) -> bool {
        matches!(self.kept, Kept::Seeded(_)) && self.dice.one_in(one_in)
    }
}

impl SimDevice {
    /// The device after a power loss at this moment, random by `seed`. It is switched on, with no faults armed and
    /// nothing pending. This device stays as it is.
    pub fn after_power_loss(&self, seed: u64) -> SimDevice {
        self.restarted(Kept::Seeded(seed))
    }

    /// As [`after_power_loss`](Self::after_power_loss), where the caller says what survives. Devices on its power
    /// supply are restarted with it.
    pub fn restarted(&self, kept: Kept) -> SimDevice {
        let alone = self.restarted_alone(kept);
        let companion = |(nth, device): (u64, SimDevice)| {
            device.restarted_alone(match kept {
                Kept::Seeded(seed) => Kept::Seeded(seed ^ (nth + 1) << 48),
                kept => kept,
            })
        };
        alone.join((0..).zip(self.companions()).map(companion).collect());
        alone
    }

    fn restarted_alone(&self, kept: Kept) -> SimDevice {
        let medium = self.medium();
        let seed = if let Kept::Seeded(seed) = kept { seed } else { 0 };
        let mut fate = Fate { kept, dice: Dice::new(seed) };
        let mut events: BTreeMap<ZoneIdx, Vec<&What>> = BTreeMap::new();
        for pending in &medium.pending {
            events.entry(pending.zone).or_default().push(&pending.what);
        }
        let unit = u64::from(self.0.info.write_unit);
        let reports = self.reports();
        let mut zones: Vec<(u64, Durable)> = Vec::with_capacity(reports.len());
        for ((zone, report), durable) in self.0.rules.zones().zip(&reports).zip(&medium.durable) {
            let events = events.get(&zone).map_or(&[][..], Vec::as_slice);
            let mut left = durable.clone();
            if self.0.info.hardware_pointers {
                survive_drive(&mut left, report.capacity, unit, events, &mut fate);
            } else {
                survive_file(&mut left, unit, events, &mut fate);
            }
            zones.push((report.capacity, left));
        }
        if self.0.info.hardware_pointers {
            self.keep_to_limit(&mut zones, &reports, &medium.now);
        }
        Self::assemble(self.0.info.clone(), self.0.resets_keep_bytes, zones, seed ^ 0x7e44_a11e)
    }

    /// Enforces the limit of open zones: a drive never starts with more. Too many can only come from full zones that
    /// lost their end while another zone was opened. So those keep their end.
    fn keep_to_limit(
        &self,
        zones: &mut [(u64, Durable)],
        reports: &[ZoneReport],
        now: &[Arc<super::image::Image>],
    ) {
        let limit = super::limit_of(&self.0.info).zones as usize;
        let mut open = zones.iter().filter(|(_, left)| left.state == ZoneState::Open).count();
        for (((capacity, left), report), now) in zones.iter_mut().zip(reports).zip(now) {
            if limit == 0 || open <= limit {
                return;
            }
            if left.state == ZoneState::Open && report.state == ZoneState::Full {
                *left = Durable { image: Arc::clone(now), state: ZoneState::Full, pointer: *capacity };
                open -= 1;
            }
        }
    }
}

fn survive_drive(left: &mut Durable, capacity: u64, unit: u64, events: &[&What], fate: &mut Fate) {
    let (mut first, mut end) = (0, events.len());
    for (at, what) in events.iter().enumerate() {
        let What::Reset { certain } = what else { continue };
        if !certain && !fate.coin() {
            // The reset never happened, nor did the writes that depend on it.
            end = at;
            break;
        }
        first = at + 1;
        *left = Durable { image: Arc::default(), state: ZoneState::Empty, pointer: 0 };
    }
    let events = events.get(first..end).unwrap_or(&[]);
    let written = |what: &&What| if let What::Write { len, .. } = what { *len } else { 0 };
    let total: u64 = events.iter().map(written).sum();
    let mut keep = fate.prefix(total / unit) * unit;
    let whole = keep == total;
    let mut prefix_ended = false;
    for what in events {
        match what {
            What::Write { offset, len, data } if !prefix_ended => {
                let taken = keep.min(*len);
                keep -= taken;
                let data = data.as_deref().unwrap_or(&[]);
                let (kept, rest) = data.split_at_checked(taken as usize).unwrap_or((data, &[]));
                let image = Arc::make_mut(&mut left.image);
                image.write(*offset, kept);
                if taken > 0 {
                    left.pointer = offset + taken;
                }
                if taken < *len {
                    prefix_ended = true;
                    if fate.may_tear(2) {
                        image.write(offset + taken, &torn(rest, unit, &mut fate.dice));
                    }
                }
            }
            What::Finish if whole && fate.coin() => left.pointer = capacity,
            What::Stray { offset, data } if fate.coin() => {
                Arc::make_mut(&mut left.image).write(*offset, data)
            }
            _ => {}
        }
    }
    if !matches!(left.state, ZoneState::ReadOnly | ZoneState::Offline) {
        left.state = state_at(left.pointer, capacity);
    }
}

/// A torn unit: some of its bytes, then garbage.
fn torn(data: &[u8], unit: u64, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = vec![0; unit as usize];
    dice.fill(&mut bytes);
    let new = dice.below(unit) as usize;
    let new = new.min(data.len());
    bytes[..new].copy_from_slice(&data[..new]);
    bytes
}

fn survive_file(left: &mut Durable, unit: u64, events: &[&What], fate: &mut Fate) {
    let eighths = fate.eighths();
    let mut tearable = true;
    for what in events {
        match what {
            What::Reset { .. } if fate.coin() => left.image = Arc::default(),
            What::Write { offset, data: Some(data), .. } | What::Stray { offset, data } => {
                let image = Arc::make_mut(&mut left.image);
                for (at, piece) in (*offset..).step_by(unit as usize).zip(data.chunks(unit as usize)) {
                    if fate.dice.below(8) < eighths {
                        image.write(at, piece);
                    } else if tearable && fate.may_tear(4) {
                        tearable = false;
                        let new = fate.dice.below(unit) as usize;
                        image.write(at, piece.get(..new).unwrap_or(piece));
                    }
                }
            }
            _ => {}
        }
    }
    if !matches!(left.state, ZoneState::ReadOnly | ZoneState::Offline) {
        left.state = ZoneState::Unknown;
        left.pointer = 0;
    }
}
