//! The state of a device after a power loss.
//!
//! A drive with write pointers keeps a prefix of the unflushed units of each zone. Resets that it acknowledged have
//! happened, unless a fault makes the acknowledgement false. The unit after the prefix may have been torn: it then
//! holds some new bytes and garbage, past the pointer. A file keeps any subset of the units. It may tear one of them
//! in each zone, new bytes before old. A zone whose hole was punched may be full again, with new data over old.
//!
//! Half of the choices are extreme (nothing, everything): uniform chance alone rarely keeps just the one write that
//! matters.

use super::{Command, DurableZone, SimDevice, state_at};
use crate::zone::{ZoneReport, ZoneState};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_wire::Prng;
use terrane_wire::ZoneIdx;

/// How much of the unflushed data survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All of it, whole: a clean restart.
    Everything,
    /// None of it (but a drive's acknowledged resets).
    Nothing,
    /// Random, the same for the same seed.
    Seeded(u64),
}

struct CrashRng {
    survival: Survival,
    prng: Prng,
}

impl CrashRng {
    fn survives(&mut self) -> bool {
        match self.survival {
            Survival::Everything => true,
            Survival::Nothing => false,
            Survival::Seeded(_) => self.prng.one_in(2),
        }
    }

    /// How many of `count` survive, as a prefix.
    fn surviving_prefix(&mut self, count: u64) -> u64 {
        match self.survival {
            Survival::Everything => count,
            Survival::Nothing => 0,
            Survival::Seeded(_) => match self.prng.below(4) {
                0 => 0,
                1 => count,
                _ => self.prng.below(count + 1),
            },
        }
    }

    /// How many of eight survive in this zone.
    fn surviving_eighths(&mut self) -> u64 {
        match self.survival {
            Survival::Everything => 8,
            Survival::Nothing => 0,
            Survival::Seeded(_) => [0, 8, 1, 4, 7, 4][self.prng.below(6) as usize],
        }
    }

    fn tears(&mut self, one_in: u64) -> bool {
        matches!(self.survival, Survival::Seeded(_)) && self.prng.one_in(one_in)
    }
}

impl SimDevice {
    /// The device after a power loss at this moment, random by `seed`. It is switched on, with no faults armed and
    /// nothing pending. This device stays as it is.
    pub fn after_power_loss(&self, seed: u64) -> SimDevice {
        self.restarted(Survival::Seeded(seed))
    }

    /// As [`after_power_loss`](Self::after_power_loss), where the caller says what survives. Devices on its power
    /// supply are restarted with it.
    pub fn restarted(&self, survival: Survival) -> SimDevice {
        let alone = self.restarted_without_companions(survival);
        let companion = |(nth, device): (u64, SimDevice)| {
            device.restarted_without_companions(match survival {
                Survival::Seeded(seed) => Survival::Seeded(seed ^ (nth + 1) << 48),
                kept => kept,
            })
        };
        alone.share_power((0..).zip(self.companions()).map(companion).collect());
        alone
    }

    fn restarted_without_companions(&self, survival: Survival) -> SimDevice {
        let medium = self.medium();
        let seed = if let Survival::Seeded(seed) = survival { seed } else { 0 };
        let mut rng = CrashRng { survival, prng: Prng::new(seed) };
        let mut events: BTreeMap<ZoneIdx, Vec<&Command>> = BTreeMap::new();
        for pending in &medium.pending {
            events.entry(pending.zone).or_default().push(&pending.command);
        }
        let unit = u64::from(self.0.info.write_unit);
        let reports = self.reports();
        let mut zones: Vec<(u64, DurableZone)> = Vec::with_capacity(reports.len());
        for ((zone, report), durable) in self.0.rules.zones().zip(&reports).zip(&medium.durable) {
            let events = events.get(&zone).map_or(&[][..], Vec::as_slice);
            let mut left = durable.clone();
            if self.0.info.hardware_pointers {
                apply_drive_crash(&mut left, report.capacity, unit, events, &mut rng);
            } else {
                apply_file_crash(&mut left, unit, events, &mut rng);
            }
            zones.push((report.capacity, left));
        }
        if self.0.info.hardware_pointers {
            self.enforce_open_limit(&mut zones, &reports, &medium.current);
        }
        Self::assemble(self.0.info.clone(), self.0.resets_keep_bytes, zones, seed ^ 0x7e44_a11e)
    }

    /// Enforces the limit of open zones: a drive never starts with more. Too many can only come from full zones that
    /// lost their end while another zone was opened. So those keep their end.
    fn enforce_open_limit(
        &self,
        zones: &mut [(u64, DurableZone)],
        reports: &[ZoneReport],
        current: &[Arc<super::image::Image>],
    ) {
        let limit = super::limit_of(&self.0.info).zones as usize;
        let mut open = zones.iter().filter(|(_, left)| left.state == ZoneState::Open).count();
        for (((capacity, left), report), now) in zones.iter_mut().zip(reports).zip(current) {
            if limit == 0 || open <= limit {
                return;
            }
            if left.state == ZoneState::Open && report.state == ZoneState::Full {
                *left = DurableZone { image: Arc::clone(now), state: ZoneState::Full, pointer: *capacity };
                open -= 1;
            }
        }
    }
}

fn apply_drive_crash(
    zone: &mut DurableZone,
    capacity: u64,
    unit: u64,
    events: &[&Command],
    rng: &mut CrashRng,
) {
    let (mut first, mut end) = (0, events.len());
    for (at, what) in events.iter().enumerate() {
        let Command::Reset { certain } = what else { continue };
        if !certain && !rng.survives() {
            // The reset never happened, nor did the writes that depend on it.
            end = at;
            break;
        }
        first = at + 1;
        *zone = DurableZone { image: Arc::default(), state: ZoneState::Empty, pointer: 0 };
    }
    let events = events.get(first..end).unwrap_or(&[]);
    let written = |what: &&Command| if let Command::Write { len, .. } = what { *len } else { 0 };
    let total: u64 = events.iter().map(written).sum();
    let mut keep = rng.surviving_prefix(total / unit) * unit;
    let whole = keep == total;
    let mut prefix_ended = false;
    for what in events {
        match what {
            Command::Write { offset, len, data } if !prefix_ended => {
                let taken = keep.min(*len);
                keep -= taken;
                let data = data.as_deref().unwrap_or(&[]);
                let (kept, rest) = data.split_at_checked(taken as usize).unwrap_or((data, &[]));
                let image = Arc::make_mut(&mut zone.image);
                image.write(*offset, kept);
                if taken > 0 {
                    zone.pointer = offset + taken;
                }
                if taken < *len {
                    prefix_ended = true;
                    if rng.tears(2) {
                        image.write(offset + taken, &torn(rest, unit, &mut rng.prng));
                    }
                }
            }
            Command::Finish if whole && rng.survives() => zone.pointer = capacity,
            Command::MisdirectedWrite { offset, data } if rng.survives() => {
                Arc::make_mut(&mut zone.image).write(*offset, data)
            }
            _ => {}
        }
    }
    if !matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline) {
        zone.state = state_at(zone.pointer, capacity);
    }
}

/// A torn unit: some of its bytes, then garbage.
fn torn(data: &[u8], unit: u64, prng: &mut Prng) -> Vec<u8> {
    let mut bytes = vec![0; unit as usize];
    prng.fill(&mut bytes);
    let new = prng.below(unit) as usize;
    let new = new.min(data.len());
    bytes[..new].copy_from_slice(&data[..new]);
    bytes
}

fn apply_file_crash(zone: &mut DurableZone, unit: u64, events: &[&Command], rng: &mut CrashRng) {
    let eighths = rng.surviving_eighths();
    let mut tearable = true;
    for command in events {
        match command {
            Command::Reset { .. } if rng.survives() => zone.image = Arc::default(),
            Command::Write { offset, data: Some(data), .. } | Command::MisdirectedWrite { offset, data } => {
                let image = Arc::make_mut(&mut zone.image);
                for (at, piece) in (*offset..).step_by(unit as usize).zip(data.chunks(unit as usize)) {
                    if rng.prng.below(8) < eighths {
                        image.write(at, piece);
                    } else if tearable && rng.tears(4) {
                        tearable = false;
                        let new = rng.prng.below(unit) as usize;
                        image.write(at, piece.get(..new).unwrap_or(piece));
                    }
                }
            }
            _ => {}
        }
    }
    if !matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline) {
        zone.state = ZoneState::Unknown;
        zone.pointer = 0;
    }
}
