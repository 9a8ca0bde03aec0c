//! Victims: zones that are being emptied, and which one is next.

use crate::unread::Unread;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_device::AlignedBuf;
use terrane_format::directory::Part;
use terrane_format::rows::Phase;
use terrane_space::account::{Gains, Yield};
use terrane_space::policy::{Age, Candidates, Clock, Heat, Lives, Placement, VictimPolicy};
use terrane_space::zones::Tables;
use terrane_wire::{DeviceIdx, Txg, ZoneSeq};

/// Victims of one group at the most.
pub const VICTIMS_MAX: usize = 64;
/// What collection may take of a group's time.
pub const PIECE_NS: u64 = 30_000_000;
/// A group moves at most so many bytes, however fast the device is, and may move so many, however slow.
const PIECE_BYTES_MAX: u64 = 64 << 20;
const PIECE_BYTES_MIN: u64 = 1 << 20;
/// What is believed of the speed of copying before it was measured, in bytes a second.
const RATE_AT_FIRST: u64 = 400 << 20;

/// The memory of the run index is looked at when so many bytes have moved, in a small pool a 64th of it: that takes time by its rows.
pub const INDEX_LOOK_BYTES: u64 = 256 << 20;

/// Where collection stands between groups.
pub struct Collector {
    pub victim: VictimState,
    pub evacuation: Evacuation,
    pub copying: Copying,
    /// Zones that were emptied and not yet reset, with what their reset will give.
    pub finished: Vec<(ZoneSeq, u64)>,
    /// Full zones that may be emptied.
    pub candidates: Candidates,
    pub held_up: HeldUp,
    /// Full zones that take no writes any more: what they hold can be read, but their garbage is no room.
    pub dead: BTreeSet<ZoneSeq>,
    /// Zones that could not be read.
    pub unread: Unread,
    /// Suspect zones that are to be looked at again.
    pub to_explain: BTreeSet<ZoneSeq>,
    pub ages: Ages,
    pub policy: VictimPolicy,
    /// More room was wanted, and there was nothing to be won.
    pub is_stuck: bool,
    pub index: IndexMemory,
}

/// The zone that is emptied for room.
#[derive(Default)]
pub enum VictimState {
    /// There is none.
    #[default]
    None,
    /// Some of it has moved, and the next piece goes on.
    Resting(Progress),
    /// A piece of it is being moved: how far that is with whoever moves it, and this is what it is worth.
    InHand(Worth),
}

impl VictimState {
    pub fn resting(&self) -> Option<&Progress> {
        match self {
            VictimState::Resting(progress) => Some(progress),
            VictimState::None | VictimState::InHand(_) => None,
        }
    }

    /// The one that rests goes on, or is given up.
    pub fn take_resting(&mut self) -> Option<Progress> {
        self.take_resting_if(|_| true)
    }

    fn take_resting_if(&mut self, is_meant: impl FnOnce(&Progress) -> bool) -> Option<Progress> {
        if !self.resting().is_some_and(is_meant) {
            return None;
        }
        match std::mem::take(self) {
            VictimState::Resting(progress) => Some(progress),
            VictimState::None | VictimState::InHand(_) => None,
        }
    }

    /// Nothing is being moved any more.
    pub fn put_down(&mut self) {
        if matches!(self, VictimState::InHand(_)) {
            *self = VictimState::None;
        }
    }

    fn worth(&self) -> Option<Worth> {
        match self {
            VictimState::None => None,
            VictimState::Resting(progress) => Some(progress.worth),
            VictimState::InHand(worth) => Some(*worth),
        }
    }
}

/// Zones that are emptied although that gives no room.
#[derive(Default)]
pub struct Evacuation {
    /// The zone that is emptied because its device leaves, or because it died.
    pub progress: Option<Progress>,
    /// Room that it waits for, in bytes.
    pub needs: u64,
}

/// How copies are made.
pub struct Copying {
    /// Copied bytes a second, lately.
    rate: u64,
    /// Memory of reads that are over.
    pub spare: Vec<AlignedBuf>,
}

impl Copying {
    /// Bytes that one group moves at the most.
    pub fn piece_bytes(&self) -> u64 {
        let bytes = u128::from(self.rate) * u128::from(PIECE_NS) / 1_000_000_000;
        (bytes as u64).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }

    /// So many bytes moved in so long a time.
    pub fn note(&mut self, moved_bytes: u64, ns: u64) {
        if moved_bytes > PIECE_BYTES_MIN {
            let now = (u128::from(moved_bytes) * 1_000_000_000 / u128::from(ns)) as u64;
            self.rate = (3 * (self.rate / 4)).saturating_add(now / 4);
        }
    }
}

/// Zones in which only bootstrap blocks are left: they are no victims before all sections tell of everything up to a group.
#[derive(Default)]
pub struct HeldUp {
    zones: Vec<ZoneSeq>,
    since: Txg,
}

impl HeldUp {
    pub fn contains(&self, seq: ZoneSeq) -> bool {
        self.zones.contains(&seq)
    }

    /// One more, by what was committed with group `since`.
    pub fn add(&mut self, seq: ZoneSeq, since: Txg) {
        self.since = since;
        if !self.zones.contains(&seq) {
            self.zones.push(seq);
        }
    }
}

/// How old blocks are, and how long they live.
pub struct Ages {
    /// What users have written, by group.
    pub clock: Clock,
    lives: Lives,
    /// Zones of data that should die soon, with the time they were opened.
    hot: BTreeMap<ZoneSeq, u64>,
}

impl Ages {
    /// How soon a new block may die.
    pub fn heat(&self, placement: &Placement) -> Heat {
        let replaced = Some(placement.replaces).filter(|txg| txg.0 > 0);
        let previous_age = replaced.and_then(|txg| self.clock.age_bytes(txg));
        self.lives.heat(previous_age, placement.hint, placement.expected_life_bytes)
    }

    /// Of survivors from a zone that was last written with this group.
    pub fn age(&self, last_write: Txg) -> Age {
        self.lives.age(self.clock.age_bytes(last_write))
    }

    /// Hot data went to a zone.
    pub fn note_hot(&mut self, seq: ZoneSeq) {
        self.hot.entry(seq).or_insert(self.clock.now());
    }

    /// Collection takes the zone, or nothing lives in it any more.
    pub fn ended(&mut self, seq: ZoneSeq) {
        if let Some(opened) = self.hot.remove(&seq) {
            self.lives.note_hot_zone(self.clock.now().saturating_sub(opened));
        }
    }
}

/// The memory of the run index, as it was looked at last.
pub struct IndexMemory {
    /// Bytes that moved since then.
    pub moved_bytes: u64,
    /// There was too little of it.
    pub is_coarse: bool,
}

/// A victim that is being emptied.
pub struct Progress {
    pub victim: ZoneSeq,
    pub parts: Vec<Arc<Part>>,
    /// The next part to look at.
    pub part: usize,
    pub worth: Worth,
    /// Nothing had to stay. And blocks that had to because they could not be read.
    pub whole: bool,
    pub unread: u32,
}

impl Progress {
    /// The largest batch that is still to be looked through, in bytes.
    pub fn part_bytes_max(&self) -> u64 {
        let left = self.parts.get(self.part..).unwrap_or_default();
        left.iter().map(|part| part.end - part.batch_start).max().unwrap_or(0)
    }
}

/// What a victim gives and costs.
#[derive(Clone, Copy)]
pub struct Worth {
    /// Live bytes when it was chosen, what a reset will give beside those, and what has moved.
    pub live: u64,
    pub garbage: u64,
    pub moved: u64,
}

impl Collector {
    /// Of a pool of so many bytes, of which nothing is known yet.
    pub fn new(pool_bytes: u64) -> Collector {
        Collector {
            victim: VictimState::default(),
            evacuation: Evacuation::default(),
            copying: Copying { rate: RATE_AT_FIRST, spare: Vec::new() },
            finished: Vec::new(),
            candidates: Candidates::default(),
            held_up: HeldUp::default(),
            dead: BTreeSet::new(),
            unread: Unread::default(),
            to_explain: BTreeSet::new(),
            ages: Ages { clock: Clock::default(), lives: Lives::new(pool_bytes), hot: BTreeMap::new() },
            policy: VictimPolicy::default(),
            is_stuck: false,
            index: IndexMemory { moved_bytes: INDEX_LOOK_BYTES, is_coarse: false },
        }
    }

    /// What victims have given that is not there yet: those that wait to be reset, and the garbage of the one in progress in the measure
    /// of what has moved. Its copies take room until it is emptied; should it turn out to be damaged, there is room for another.
    pub fn gains(&self, tables: &Tables) -> Gains {
        let worth = self.victim.worth();
        let will_come = |seq: &ZoneSeq| tables.zones.get(seq).is_some_and(|zone| zone.comes_back());
        let finished = self.finished.iter().filter(|(seq, _)| will_come(seq));
        Gains {
            moving: worth.map(|worth| worth.gain()),
            rest: worth.map_or(0, |worth| worth.garbage.saturating_sub(worth.gain())),
            remaining: worth.map_or(0, |worth| worth.left()),
            coming: finished.map(|(_, bytes)| bytes).sum(),
        }
    }

    /// All sections tell of everything up to group `oldest`: what held zones up is free, or will be with the next group.
    pub fn released(&mut self, tables: &Tables, zone_yield: Yield, oldest: Txg) {
        if oldest >= self.held_up.since {
            for seq in std::mem::take(&mut self.held_up.zones) {
                self.changed(tables, seq, zone_yield);
            }
        }
    }

    /// The group is durable. Returns zones that were emptied, as their directory tells, and in which something lives all the same: nothing
    /// can be counted on from them.
    pub fn settle(&mut self, tables: &Tables) -> Vec<ZoneSeq> {
        let lives =
            |(seq, _): &(ZoneSeq, u64)| tables.zones.get(seq).is_some_and(|zone| zone.phase == Phase::Full);
        let unexplained: Vec<ZoneSeq> = self.finished.iter().filter(|of| lives(of)).map(|of| of.0).collect();
        unexplained.iter().for_each(|seq| self.reset(*seq));
        unexplained
    }

    /// What a device gives that leaves is no room.
    pub fn device_leaves(&mut self, tables: &Tables, device: DeviceIdx) {
        let is_there = |seq: ZoneSeq| tables.zones.get(&seq).is_some_and(|zone| zone.is_on(device));
        self.victim.take_resting_if(|progress| is_there(progress.victim));
        self.finished.retain(|(seq, _)| !is_there(*seq));
        self.dead.retain(|seq| !is_there(*seq));
    }

    /// What was counted on from a victim will not come from it yet; it may be chosen again.
    pub fn forget(&mut self, victim: ZoneSeq) {
        self.victim.take_resting_if(|progress| progress.victim == victim);
        self.finished.retain(|(finished, _)| *finished != victim);
    }

    /// The zone was reset, or will never be.
    pub fn reset(&mut self, seq: ZoneSeq) {
        self.victim.take_resting_if(|progress| progress.victim == seq);
        self.finished.retain(|(finished, _)| *finished != seq);
        self.candidates.remove(seq);
        self.unread.forget(seq);
        self.dead.remove(&seq);
    }

    /// Zones that were full at import: how old they are nobody knows. Suspect ones are looked at again.
    pub fn begin(&mut self, tables: &Tables, zone_yield: Yield) {
        tables.zones.keys().for_each(|seq| self.changed(tables, *seq, zone_yield));
        self.to_explain.extend(tables.suspects().map(|(seq, _)| seq));
    }

    /// A zone's row changed, or was found at import.
    pub fn changed(&mut self, tables: &Tables, seq: ZoneSeq, zone_yield: Yield) {
        let zone = tables.zones.get(&seq).filter(|zone| zone.phase == Phase::Full);
        let is_chosen = self.victim.resting().is_some_and(|progress| progress.victim == seq);
        match zone {
            Some(zone) if self.candidates.contains(seq) => self.candidates.set_live(seq, zone.live),
            Some(zone)
                if !is_chosen
                    && !self.held_up.contains(seq)
                    && !self.dead.contains(&seq)
                    && !self.unread.sleeps(seq) =>
            {
                let since = self.ages.clock.written_at(zone.last_write).unwrap_or(0);
                self.candidates.insert(seq, zone.live, zone_yield.of(zone.capacity), since);
            }
            Some(_) => {}
            None => {
                self.candidates.set_live(seq, 0);
                self.candidates.remove(seq);
                // Its end may come before its last part was looked at: from now on it gives what its reset gives, and only once.
                if let Some(progress) = self.victim.take_resting_if(|progress| progress.victim == seq) {
                    self.finished.push((seq, progress.worth.whole()));
                }
                if tables.zones.get(&seq).is_none_or(|zone| zone.phase != Phase::Open) {
                    self.ages.ended(seq);
                }
                // Where nothing lives any more nothing is damaged.
                if tables.zones.get(&seq).is_some_and(|zone| zone.phase == Phase::Suspect && zone.live == 0) {
                    self.to_explain.insert(seq);
                }
            }
        }
    }
}

impl Worth {
    /// What a reset gives.
    pub fn whole(&self) -> u64 {
        self.live + self.garbage
    }

    /// Bytes that must still be copied.
    pub fn left(&self) -> u64 {
        self.live.saturating_sub(self.moved)
    }

    /// What has moved is worth so many bytes.
    pub fn gain(&self) -> u64 {
        // Where nothing lives, nothing need move.
        if self.live == 0 {
            return self.garbage;
        }
        (u128::from(self.garbage) * u128::from(self.moved.min(self.live)) / u128::from(self.live)) as u64
    }
}

impl Collector {
    /// Zones of data that lives, and that are no room when it does not.
    pub fn dead(&self) -> impl Iterator<Item = ZoneSeq> {
        self.dead.iter().copied()
    }

    pub fn is_dead(&self, seq: ZoneSeq) -> bool {
        self.dead.contains(&seq)
    }
}

#[cfg(test)]
mod tests;
