//! State of garbage collection: the victims that are being emptied, and the choice of the next one.

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

/// Maximum number of victims in one txg.
pub const VICTIMS_MAX: usize = 64;
/// Time that GC may take of one txg, in nanoseconds.
pub const PIECE_NS: u64 = 30_000_000;
/// Bounds of the bytes that one txg moves, however fast or slow the device is.
const PIECE_BYTES_MAX: u64 = 64 << 20;
const PIECE_BYTES_MIN: u64 = 1 << 20;
/// Copy rate that is assumed before the first measurement, in bytes per second.
const RATE_AT_FIRST: u64 = 400 << 20;

/// The memory of the relocation index is measured each time this many bytes have moved. A small pool measures
/// after a 64th of its size. Measuring takes time in proportion to the rows.
pub const INDEX_LOOK_BYTES: u64 = 256 << 20;

/// State of GC between txgs.
pub struct Collector {
    pub victim: VictimState,
    pub evacuation: Evacuation,
    pub copying: Copying,
    /// Zones that were emptied and not yet reset, with the bytes that their reset gives.
    pub finished: Vec<(ZoneSeq, u64)>,
    /// Full zones that may become victims.
    pub candidates: Candidates,
    pub held_up: HeldUp,
    /// Full zones that take no more writes. Their live data can be read, but their garbage is not free space.
    pub dead: BTreeSet<ZoneSeq>,
    /// Zones that could not be read.
    pub unread: Unread,
    /// Suspect zones that must be checked again.
    pub to_explain: BTreeSet<ZoneSeq>,
    pub ages: Ages,
    pub policy: VictimPolicy,
    /// More space was wanted, and no victim could give any.
    pub is_stuck: bool,
    pub index: IndexMemory,
}

/// The victim that is emptied to gain space.
#[derive(Default)]
pub enum VictimState {
    /// There is no victim.
    #[default]
    None,
    /// Part of the victim has moved, and the next piece continues.
    Resting(Progress),
    /// A piece of the victim is being moved. The mover holds the progress; this is what the victim gives and
    /// costs.
    InHand(Worth),
}

impl VictimState {
    pub fn resting(&self) -> Option<&Progress> {
        match self {
            VictimState::Resting(progress) => Some(progress),
            VictimState::None | VictimState::InHand(_) => None,
        }
    }

    /// Takes the resting victim, to continue it or to give it up.
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

    /// Ends a piece: no victim is being moved.
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

/// Zones that are emptied although that gives no space.
#[derive(Default)]
pub struct Evacuation {
    /// The zone that is emptied because its device leaves, or because the zone died.
    pub progress: Option<Progress>,
    /// Free space that the evacuation waits for, in bytes.
    pub needs: u64,
}

/// Copy rate and read buffers of GC.
pub struct Copying {
    /// Recent copy rate, in bytes per second.
    rate: u64,
    /// Buffers of finished reads, for reuse.
    pub spare: Vec<AlignedBuf>,
}

impl Copying {
    /// Maximum number of bytes that one txg moves.
    pub fn piece_bytes(&self) -> u64 {
        let bytes = u128::from(self.rate) * u128::from(PIECE_NS) / 1_000_000_000;
        (bytes as u64).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }

    /// Records that `moved_bytes` moved in `ns`.
    pub fn note(&mut self, moved_bytes: u64, ns: u64) {
        if moved_bytes > PIECE_BYTES_MIN {
            let now = (u128::from(moved_bytes) * 1_000_000_000 / u128::from(ns)) as u64;
            self.rate = (3 * (self.rate / 4)).saturating_add(now / 4);
        }
    }
}

/// Zones in which only bootstrap blocks are left. They become victims only after all sections include every
/// change up to txg `since`.
#[derive(Default)]
pub struct HeldUp {
    zones: Vec<ZoneSeq>,
    since: Txg,
}

impl HeldUp {
    pub fn contains(&self, seq: ZoneSeq) -> bool {
        self.zones.contains(&seq)
    }

    /// Adds a zone whose bootstrap blocks belong to what was committed with txg `since`.
    pub fn add(&mut self, seq: ZoneSeq, since: Txg) {
        self.since = since;
        if !self.zones.contains(&seq) {
            self.zones.push(seq);
        }
    }
}

/// Ages and lifetimes of blocks.
pub struct Ages {
    /// Bytes that users have written, by txg. This is the clock of all ages.
    pub clock: Clock,
    lives: Lives,
    /// Zones of data that should die soon, with the time at which they were opened.
    hot: BTreeMap<ZoneSeq, u64>,
}

impl Ages {
    /// How soon a new block is expected to die.
    pub fn heat(&self, placement: &Placement) -> Heat {
        let replaced = Some(placement.replaces).filter(|txg| txg.0 > 0);
        let previous_age = replaced.and_then(|txg| self.clock.age_bytes(txg));
        self.lives.heat(previous_age, placement.hint, placement.expected_life_bytes)
    }

    /// Age class of survivors from a zone that was last written in this txg.
    pub fn age(&self, last_write: Txg) -> Age {
        self.lives.age(self.clock.age_bytes(last_write))
    }

    /// Hot data was placed in a zone.
    pub fn note_hot(&mut self, seq: ZoneSeq) {
        self.hot.entry(seq).or_insert(self.clock.now());
    }

    /// GC takes the zone, or nothing in it is live any more.
    pub fn ended(&mut self, seq: ZoneSeq) {
        if let Some(opened) = self.hot.remove(&seq) {
            self.lives.note_hot_zone(self.clock.now().saturating_sub(opened));
        }
    }
}

/// Memory of the relocation index, as last measured.
pub struct IndexMemory {
    /// Bytes that moved since the last measurement.
    pub moved_bytes: u64,
    /// The index is near its bound, so survivors are written in larger batches.
    pub is_coarse: bool,
}

/// A victim that is being emptied.
pub struct Progress {
    pub victim: ZoneSeq,
    pub parts: Vec<Arc<Part>>,
    /// Index of the next directory part to process.
    pub part: usize,
    pub worth: Worth,
    /// `whole`: no block had to stay. `unread`: blocks that stay because they could not be read.
    pub whole: bool,
    pub unread: u32,
}

impl Progress {
    /// The largest remaining batch, in bytes.
    pub fn part_bytes_max(&self) -> u64 {
        let left = self.parts.get(self.part..).unwrap_or_default();
        left.iter().map(|part| part.end - part.batch_start).max().unwrap_or(0)
    }
}

/// What a victim gives and costs.
#[derive(Clone, Copy)]
pub struct Worth {
    /// `live`: live bytes when it was chosen. `garbage`: further bytes that its reset gives. `moved`: live
    /// bytes that have moved.
    pub live: u64,
    pub garbage: u64,
    pub moved: u64,
}

impl Collector {
    /// State for a pool of `pool_bytes`, before anything was measured.
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

    /// Space that victims have won and that is not yet free. It includes zones that wait for their reset. The
    /// current victim counts its garbage in proportion to the bytes that have moved.
    ///
    /// Its copies take space until it is emptied. If it turns out to be damaged, there is space for another
    /// victim.
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

    /// All sections include every change up to txg `oldest`. Zones held up by bootstrap blocks become
    /// candidates now, or with the next txg.
    pub fn released(&mut self, tables: &Tables, zone_yield: Yield, oldest: Txg) {
        if oldest >= self.held_up.since {
            for seq in std::mem::take(&mut self.held_up.zones) {
                self.changed(tables, seq, zone_yield);
            }
        }
    }

    /// The txg is durable. Returns finished victims in which a block still lives that their directory does
    /// not list. No space can be expected from them.
    pub fn settle(&mut self, tables: &Tables) -> Vec<ZoneSeq> {
        let lives =
            |(seq, _): &(ZoneSeq, u64)| tables.zones.get(seq).is_some_and(|zone| zone.phase == Phase::Full);
        let unexplained: Vec<ZoneSeq> = self.finished.iter().filter(|of| lives(of)).map(|of| of.0).collect();
        unexplained.iter().for_each(|seq| self.reset(*seq));
        unexplained
    }

    /// A device leaves: its zones give no free space.
    pub fn device_leaves(&mut self, tables: &Tables, device: DeviceIdx) {
        let is_there = |seq: ZoneSeq| tables.zones.get(&seq).is_some_and(|zone| zone.is_on(device));
        self.victim.take_resting_if(|progress| is_there(progress.victim));
        self.finished.retain(|(seq, _)| !is_there(*seq));
        self.dead.retain(|seq| !is_there(*seq));
    }

    /// Drops the expected gain of a victim, which may be chosen again.
    pub fn forget(&mut self, victim: ZoneSeq) {
        self.victim.take_resting_if(|progress| progress.victim == victim);
        self.finished.retain(|(finished, _)| *finished != victim);
    }

    /// The zone was reset, or never will be.
    pub fn reset(&mut self, seq: ZoneSeq) {
        self.victim.take_resting_if(|progress| progress.victim == seq);
        self.finished.retain(|(finished, _)| *finished != seq);
        self.candidates.remove(seq);
        self.unread.forget(seq);
        self.dead.remove(&seq);
    }

    /// Adds the full zones at import, and queues suspect zones for another check. Zones that the clock does
    /// not cover count as old.
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
                // The victim may be empty before its last part was processed. From now on it counts as its
                // reset does, and only once.
                if let Some(progress) = self.victim.take_resting_if(|progress| progress.victim == seq) {
                    self.finished.push((seq, progress.worth.whole()));
                }
                if tables.zones.get(&seq).is_none_or(|zone| zone.phase != Phase::Open) {
                    self.ages.ended(seq);
                }
                // A suspect zone without live blocks has nothing that could be damaged.
                if tables.zones.get(&seq).is_some_and(|zone| zone.phase == Phase::Suspect && zone.live == 0) {
                    self.to_explain.insert(seq);
                }
            }
        }
    }
}

impl Worth {
    /// Bytes that a reset gives.
    pub fn whole(&self) -> u64 {
        self.live + self.garbage
    }

    /// Bytes that must still be copied.
    pub fn left(&self) -> u64 {
        self.live.saturating_sub(self.moved)
    }

    /// Garbage bytes that are won by what has moved so far.
    pub fn gain(&self) -> u64 {
        // A zone without live blocks needs no copies, so all its garbage is won.
        if self.live == 0 {
            return self.garbage;
        }
        (u128::from(self.garbage) * u128::from(self.moved.min(self.live)) / u128::from(self.live)) as u64
    }
}

impl Collector {
    /// Full zones that take no more writes. Their blocks live on, and become no free space when they die.
    pub fn dead(&self) -> impl Iterator<Item = ZoneSeq> {
        self.dead.iter().copied()
    }

    pub fn is_dead(&self, seq: ZoneSeq) -> bool {
        self.dead.contains(&seq)
    }
}

#[cfg(test)]
mod tests;
