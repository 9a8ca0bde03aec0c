//! State of garbage collection: the victims that are being emptied, and the choice of the next one.

use crate::unread::UnreadableZones;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_device::AlignedBuf;
use terrane_format::directory::Part;
use terrane_format::rows::Phase;
use terrane_space::account::{CollectionGains, Yield};
use terrane_space::policy::{Age, Candidates, Clock, Heat, HotLifetime, Placement, VictimPolicy};
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
const INITIAL_RATE: u64 = 400 << 20;

/// The memory of the relocation index is measured each time this many bytes have moved. A small pool measures
/// after a 64th of its size. Measuring takes time in proportion to the rows.
pub const INDEX_CHECK_BYTES: u64 = 256 << 20;

/// State of GC between txgs.
pub struct Collector {
    /// The victim that is emptied to gain space.
    pub victim: VictimState,
    /// Zones that are emptied without a gain of space.
    pub evacuation: Evacuation,
    /// Copy rate and read buffers.
    pub copying: Copying,
    /// Zones that were emptied and not yet reset, with the bytes that their reset gives.
    pub finished: Vec<(ZoneSeq, u64)>,
    /// Full zones that may become victims.
    pub candidates: Candidates,
    /// Zones that wait until the table sections were rewritten.
    pub awaiting_sections: AwaitingSections,
    /// Full zones that take no more writes. Their live data can be read, but their garbage is not free space.
    pub unwritable: BTreeSet<ZoneSeq>,
    /// Zones that could not be read.
    pub unread: UnreadableZones,
    /// Suspect zones that must be checked again.
    pub to_recheck: BTreeSet<ZoneSeq>,
    /// Ages and lifetimes of blocks.
    pub ages: Ages,
    /// How the next victim is chosen.
    pub policy: VictimPolicy,
    /// More space was wanted, and no victim could give any.
    pub is_stuck: bool,
    /// Memory of the relocation index.
    pub index: IndexMemory,
}

/// The victim that is emptied to gain space.
#[derive(Default)]
pub enum VictimState {
    /// There is no victim.
    #[default]
    None,
    /// Part of the victim has moved, and the next piece continues.
    Paused(Progress),
    /// A piece of the victim is being moved. The mover holds the progress; this is what the victim gives and
    /// costs.
    Moving(VictimCost),
}

impl VictimState {
    /// The paused victim. `None` also while a piece of it is being moved.
    pub fn paused(&self) -> Option<&Progress> {
        match self {
            VictimState::Paused(progress) => Some(progress),
            VictimState::None | VictimState::Moving(_) => None,
        }
    }

    /// Takes the paused victim, to continue it or to give it up.
    pub fn take_paused(&mut self) -> Option<Progress> {
        self.take_paused_if(|_| true)
    }

    fn take_paused_if(&mut self, is_meant: impl FnOnce(&Progress) -> bool) -> Option<Progress> {
        if !self.paused().is_some_and(is_meant) {
            return None;
        }
        match std::mem::take(self) {
            VictimState::Paused(progress) => Some(progress),
            VictimState::None | VictimState::Moving(_) => None,
        }
    }

    /// Ends a piece: no victim is being moved.
    pub fn stop_moving(&mut self) {
        if matches!(self, VictimState::Moving(_)) {
            *self = VictimState::None;
        }
    }

    fn cost(&self) -> Option<VictimCost> {
        match self {
            VictimState::None => None,
            VictimState::Paused(progress) => Some(progress.cost),
            VictimState::Moving(cost) => Some(*cost),
        }
    }
}

/// Zones that are emptied although that gives no space.
#[derive(Default)]
pub struct Evacuation {
    /// The zone that is emptied because its device leaves, or because the zone is unwritable.
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
pub struct AwaitingSections {
    zones: Vec<ZoneSeq>,
    since: Txg,
}

impl AwaitingSections {
    /// Whether the zone waits.
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
    hot_lifetime: HotLifetime,
    /// Zones of data that should die soon, with the time at which they were opened.
    hot: BTreeMap<ZoneSeq, u64>,
}

impl Ages {
    /// How soon a new block is expected to die.
    pub fn heat(&self, placement: &Placement) -> Heat {
        let replaced = Some(placement.replaced_birth).filter(|txg| txg.0 > 0);
        let previous_age = replaced.and_then(|txg| self.clock.age_bytes(txg));
        self.hot_lifetime.heat(previous_age, placement.hint, placement.expected_life_bytes)
    }

    /// Age class of survivors from a zone that was last written in this txg.
    pub fn age(&self, last_write: Txg) -> Age {
        self.hot_lifetime.age(self.clock.age_bytes(last_write))
    }

    /// Hot data was placed in a zone.
    pub fn note_hot(&mut self, seq: ZoneSeq) {
        self.hot.entry(seq).or_insert(self.clock.now());
    }

    /// GC takes the zone, or nothing in it is live any more.
    pub fn end_zone(&mut self, seq: ZoneSeq) {
        if let Some(opened) = self.hot.remove(&seq) {
            self.hot_lifetime.note_hot_zone(self.clock.now().saturating_sub(opened));
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
    /// The zone.
    pub victim: ZoneSeq,
    /// Its directory parts, in the order of the zone.
    pub parts: Vec<Arc<Part>>,
    /// Index of the next directory part to process.
    pub next_part: usize,
    /// What it gives and costs, so far.
    pub cost: VictimCost,
    /// `all_moved`: no block had to stay. `unread_blocks`: blocks that stay because they could not be read.
    pub all_moved: bool,
    /// Blocks that stay because they could not be read.
    pub unread_blocks: u32,
}

impl Progress {
    /// The largest remaining batch, in bytes.
    pub fn part_bytes_max(&self) -> u64 {
        let left = self.parts.get(self.next_part..).unwrap_or_default();
        left.iter().map(|part| part.end - part.batch_start).max().unwrap_or(0)
    }
}

/// What a victim gives and costs.
#[derive(Clone, Copy)]
pub struct VictimCost {
    /// `live`: live bytes when it was chosen. `garbage`: further bytes that its reset gives. `moved`: live
    /// bytes that have moved.
    pub live: u64,
    /// Further bytes that its reset gives.
    pub garbage: u64,
    /// Live bytes that have moved.
    pub moved: u64,
}

impl Collector {
    /// State for a pool of `pool_bytes`, before anything was measured.
    pub fn new(pool_bytes: u64) -> Collector {
        Collector {
            victim: VictimState::default(),
            evacuation: Evacuation::default(),
            copying: Copying { rate: INITIAL_RATE, spare: Vec::new() },
            finished: Vec::new(),
            candidates: Candidates::default(),
            awaiting_sections: AwaitingSections::default(),
            unwritable: BTreeSet::new(),
            unread: UnreadableZones::default(),
            to_recheck: BTreeSet::new(),
            ages: Ages {
                clock: Clock::default(),
                hot_lifetime: HotLifetime::new(pool_bytes),
                hot: BTreeMap::new(),
            },
            policy: VictimPolicy::default(),
            is_stuck: false,
            index: IndexMemory { moved_bytes: INDEX_CHECK_BYTES, is_coarse: false },
        }
    }

    /// Space that victims have won and that is not yet free. It includes zones that wait for their reset. The
    /// current victim counts its garbage in proportion to the bytes that have moved.
    ///
    /// Its copies take space until it is emptied. If it turns out to be damaged, there is space for another
    /// victim.
    pub fn gains(&self, tables: &Tables) -> CollectionGains {
        let cost = self.victim.cost();
        let will_come = |seq: &ZoneSeq| tables.zones.get(seq).is_some_and(|zone| zone.is_resettable());
        let finished = self.finished.iter().filter(|(seq, _)| will_come(seq));
        CollectionGains {
            victim_freed: cost.map(|cost| cost.gain()),
            victim_to_free: cost.map_or(0, |cost| cost.garbage.saturating_sub(cost.gain())),
            victim_to_copy: cost.map_or(0, |cost| cost.remaining()),
            pending_reset_bytes: finished.map(|(_, bytes)| bytes).sum(),
        }
    }

    /// All sections include every change up to txg `oldest`. Zones with only bootstrap blocks become
    /// candidates now, or with the next txg.
    pub fn release_awaiting(&mut self, tables: &Tables, zone_yield: Yield, oldest: Txg) {
        if oldest >= self.awaiting_sections.since {
            for seq in std::mem::take(&mut self.awaiting_sections.zones) {
                self.update_zone(tables, seq, zone_yield);
            }
        }
    }

    /// The txg is durable. Returns finished victims in which a block still lives that their directory does
    /// not list. No space can be expected from them.
    pub fn end_txg(&mut self, tables: &Tables) -> Vec<ZoneSeq> {
        let has_live_blocks =
            |(seq, _): &(ZoneSeq, u64)| tables.zones.get(seq).is_some_and(|zone| zone.phase == Phase::Full);
        let unexplained: Vec<ZoneSeq> =
            self.finished.iter().filter(|of| has_live_blocks(of)).map(|of| of.0).collect();
        unexplained.iter().for_each(|seq| self.drop_zone(*seq));
        unexplained
    }

    /// A device leaves: its zones give no free space.
    pub fn drop_device(&mut self, tables: &Tables, device: DeviceIdx) {
        let is_there = |seq: ZoneSeq| tables.zones.get(&seq).is_some_and(|zone| zone.is_on(device));
        self.victim.take_paused_if(|progress| is_there(progress.victim));
        self.finished.retain(|(seq, _)| !is_there(*seq));
        self.unwritable.retain(|seq| !is_there(*seq));
    }

    /// Drops the expected gain of a victim, which may be chosen again.
    pub fn drop_victim(&mut self, victim: ZoneSeq) {
        self.victim.take_paused_if(|progress| progress.victim == victim);
        self.finished.retain(|(finished, _)| *finished != victim);
    }

    /// The zone was reset, or never will be.
    pub fn drop_zone(&mut self, seq: ZoneSeq) {
        self.victim.take_paused_if(|progress| progress.victim == seq);
        self.finished.retain(|(finished, _)| *finished != seq);
        self.candidates.remove(seq);
        self.unread.remove(seq);
        self.unwritable.remove(&seq);
    }

    /// Adds the full zones at import, and queues suspect zones for another check. Zones that the clock does
    /// not cover count as old.
    pub fn add_zones(&mut self, tables: &Tables, zone_yield: Yield) {
        tables.zones.keys().for_each(|seq| self.update_zone(tables, *seq, zone_yield));
        self.to_recheck.extend(tables.suspects().map(|(seq, _)| seq));
    }

    /// A zone's row changed, or was found at import.
    pub fn update_zone(&mut self, tables: &Tables, seq: ZoneSeq, zone_yield: Yield) {
        let zone = tables.zones.get(&seq).filter(|zone| zone.phase == Phase::Full);
        let is_chosen = self.victim.paused().is_some_and(|progress| progress.victim == seq);
        match zone {
            Some(zone) if self.candidates.contains(seq) => self.candidates.set_live(seq, zone.live),
            Some(zone)
                if !is_chosen
                    && !self.awaiting_sections.contains(seq)
                    && !self.unwritable.contains(&seq)
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
                if let Some(progress) = self.victim.take_paused_if(|progress| progress.victim == seq) {
                    self.finished.push((seq, progress.cost.reset_bytes()));
                }
                if tables.zones.get(&seq).is_none_or(|zone| zone.phase != Phase::Open) {
                    self.ages.end_zone(seq);
                }
                // A suspect zone without live blocks has nothing that could be damaged.
                if tables.zones.get(&seq).is_some_and(|zone| zone.phase == Phase::Suspect && zone.live == 0) {
                    self.to_recheck.insert(seq);
                }
            }
        }
    }
}

impl VictimCost {
    /// Bytes that a reset gives.
    pub fn reset_bytes(&self) -> u64 {
        self.live + self.garbage
    }

    /// Bytes that must still be copied.
    pub fn remaining(&self) -> u64 {
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
    pub fn unwritable(&self) -> impl Iterator<Item = ZoneSeq> {
        self.unwritable.iter().copied()
    }

    /// Whether the zone takes no more writes, even after a reset.
    pub fn is_unwritable(&self, seq: ZoneSeq) -> bool {
        self.unwritable.contains(&seq)
    }
}

#[cfg(test)]
mod tests;
