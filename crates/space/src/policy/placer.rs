//! Placer: which open zone a block goes to.
//!
//! Open zones are *slots*. Each slot has one or more *roles*: first and second copies of metadata, GC survivors by age, data. On
//! average half of an open zone is unused, and it cannot be collected. So a small pool has few slots, which share roles; a drive that
//! limits open zones may allow no more. With more slots, blocks that die at different times are kept apart.
//!
//! So beside the slots for which space is *kept* there are *extra* slots for data, up to the limit of the drive. They open zones only
//! while empty zones are ample. After that they take what still fits into their zones, and no space is kept for them.
//!
//! Each data slot has a *lane*: files with a similar expected life, blocks with similar hints, or blocks whose old version died soon. A
//! zone's lane is that of its first block, until it expires. A file stays in its last zone while it can. Different files get different
//! slots while slots are closed. Small files follow each other into the slot used last. All others go to the least recently used slot.
//! A block that fits nowhere goes to the nearest lane. A file that brings a large part of a zone at once begins with a fresh zone
//! instead of the rest of the last one, while zones are plenty. Its deletion then frees a whole zone.
//!
//! Invariant: the two roles of metadata never share a slot.

use crate::policy::{Age, Heat, Hint, Match, Placement};
use std::ops::Range;
use terrane_format::record::ZoneClass;
use terrane_wire::Txg;

/// The lifetime class of a data slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// By hint, set or not.
    Hint(Hint),
    /// Without a hint: by the life of the replaced version. Never [`Heat::Cold`].
    Heat(Heat),
    /// Similar files live for about 2^n user bytes.
    Life(u32),
}

impl Lane {
    /// The lane of a block. A hint with a lifetime beats all that the pool inferred: a user who states a lifetime gets its zones. For new
    /// files without one, the measured life of similar files decides. For a block that replaces another, the old version's life tells
    /// more than similar files.
    fn of(placement: &Placement, heat: Heat) -> Lane {
        let is_new = placement.replaced_birth == Txg(0);
        match placement.expected_life_bytes {
            _ if placement.hint.has_lifetime() => Lane::Hint(placement.hint),
            Some(life) if is_new => Lane::Life(life.max(1).ilog2()),
            _ if heat < Heat::Cold => Lane::Heat(heat),
            _ => Lane::Hint(placement.hint),
        }
    }

    /// Whether the lane is that of a hint with a lifetime.
    fn has_hinted_lifetime(self) -> bool {
        matches!(self, Lane::Hint(hint) if hint.has_lifetime())
    }

    fn suits(self, other: Lane) -> Match {
        match (self, other) {
            (Lane::Heat(zone), Lane::Heat(data)) if zone == data => Match::Good,
            (Lane::Life(zone), Lane::Life(data)) => match zone.abs_diff(data) {
                0 => Match::Good,
                1 => Match::Acceptable,
                _ => Match::Any,
            },
            (Lane::Heat(Heat::Hot), Lane::Hint(Hint::Short))
            | (Lane::Hint(Hint::Short), Lane::Heat(Heat::Hot)) => Match::Acceptable,
            (Lane::Hint(zone), Lane::Hint(data)) => zone.suits(data),
            _ => Match::Any,
        }
    }

    /// Distance of two lanes that do not suit each other: factors of two between lives. Larger than any of those if a life is unknown.
    fn distance(self, other: Lane) -> u32 {
        match (self, other) {
            (Lane::Life(a), Lane::Life(b)) => a.abs_diff(b),
            (Lane::Heat(a), Lane::Heat(b)) => (a as u32).abs_diff(b as u32),
            (Lane::Heat(heat), Lane::Hint(Hint::NotSet)) | (Lane::Hint(Hint::NotSet), Lane::Heat(heat)) => {
                Heat::Cold as u32 - heat as u32
            }
            (Lane::Heat(Heat::Hot), Lane::Hint(Hint::Short))
            | (Lane::Hint(Hint::Short), Lane::Heat(Heat::Hot)) => 1,
            _ if self == other => 0,
            // Other lanes stay out of zones with a short or medium hint.
            (Lane::Life(_), Lane::Hint(hint)) | (Lane::Hint(hint), Lane::Life(_))
                if !matches!(hint, Hint::Short | Hint::Medium) =>
            {
                63
            }
            _ => 64,
        }
    }
}

/// The assignment of roles to slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: usize,
    kept: usize,
    meta: [usize; 2],
    survivors: [usize; Age::ALL.len()],
    first_data: usize,
}

/// Fewest slots: the two copies of metadata lie in different zones.
pub const SLOTS_MIN: u32 = 2;
/// Most slots for data, with the extra ones.
const DATA_SLOTS_MAX: usize = 16;

impl Layout {
    /// For a pool of `zones` zones, of which `open_max` may be open at once beside the anchors (0: no limit). `None`: the limit is
    /// below [`SLOTS_MIN`].
    pub fn new(zones: u64, open_max: u32) -> Option<Layout> {
        let open_max = if open_max == 0 { u32::MAX } else { open_max };
        let wanted = match zones {
            ..128 => 2,
            128..256 => 5,
            256..1024 => 8,
            1024.. => 12,
        };
        let slots = wanted.min(open_max);
        Layout::of_slots(
            slots,
            match slots {
                ..6 => 1,
                6..10 => 2,
                _ => 3,
            },
        )
    }

    /// With `slots` slots, of which up to `ages` (1 to 3) are for survivors.
    pub fn of_slots(slots: u32, ages: u32) -> Option<Layout> {
        // The slots for data are the last ones.
        let (meta, survivors, first_data) = match (slots, ages) {
            (..SLOTS_MIN, _) => return None,
            (2, _) => ([1, 0], [0, 0, 0], 1),
            (3, _) => ([0, 2], [1, 1, 1], 2),
            (4, _) | (_, ..2) => ([0, 1], [2, 2, 2], 3),
            (5, _) | (_, 2) => ([0, 1], [2, 3, 3], 4),
            _ => ([0, 1], [2, 3, 4], 5),
        };
        Some(Layout { slots: slots as usize, kept: slots as usize, meta, survivors, first_data })
    }

    /// With extra slots for data, so that `open_max` zones may be open at once (0: no limit).
    pub fn with_extra_slots(self, open_max: u32) -> Layout {
        let open_max = if open_max == 0 { usize::MAX } else { open_max as usize };
        let slots = (self.first_data + DATA_SLOTS_MAX).min(open_max).max(self.kept);
        Layout { slots, ..self }
    }

    /// With slots that take only metadata. Three slots suffice, and every drive allows them.
    pub fn with_metadata_slots(self) -> Layout {
        if self.kept > 3 {
            return self;
        }
        Layout {
            slots: self.slots.max(3),
            kept: 3,
            meta: [0, 1],
            survivors: [2; Age::ALL.len()],
            first_data: 2,
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Number of slots for which space is kept.
    pub fn kept_slots(&self) -> usize {
        self.kept
    }

    /// Number of slots for data for which space is kept.
    pub fn kept_data_slots(&self) -> usize {
        self.kept - self.first_data
    }

    /// The slots of the first (0) and the second copy (1) of metadata.
    pub fn meta(&self) -> [usize; 2] {
        self.meta
    }

    /// The slot of the survivors of this age.
    pub fn survivors(&self, age: Age) -> usize {
        self.survivors[age as usize]
    }

    /// The slots that take data.
    pub fn data(&self) -> Range<usize> {
        self.first_data..self.slots
    }

    /// The slots that open zones only while empty zones are ample.
    pub fn extra(&self) -> Range<usize> {
        self.kept..self.slots
    }

    /// The metadata class of a slot that takes neither data nor survivors.
    pub fn metadata_only_class(&self, slot: usize) -> Option<ZoneClass> {
        if self.data().contains(&slot) || self.survivors.contains(&slot) {
            return None;
        }
        let at = self.meta.iter().position(|meta| *meta == slot)?;
        Some([ZoneClass::MetaA, ZoneClass::MetaB][at])
    }

    /// The slots in which an open zone of this class may continue after import.
    pub fn slots_of(&self, class: ZoneClass) -> Range<usize> {
        let one = |slot: usize| slot..slot + 1;
        match class {
            ZoneClass::MetaA => one(self.meta[0]),
            ZoneClass::MetaB | ZoneClass::Log => one(self.meta[1]),
            ZoneClass::Collection => self.survivors[0]..self.survivors[Age::Old as usize] + 1,
            ZoneClass::Data => self.data(),
        }
    }
}

/// Recent files that a slot remembers.
const RECENT_FILES: usize = 8;
/// A file that brings more is not packed with small ones.
const SMALL_FILE_BYTES: u64 = 1 << 20;
/// The same for a file that had content before. While space is short a txg brings little of each file.
const SMALL_GROWTH_BYTES: u64 = 128 << 10;

/// A file is big if it brings this fraction of a zone.
const BIG_FILE_DIVISOR: u64 = 2;
/// A big file begins with a fresh zone if at most this fraction of the last zone is left.
const SCRAP_DIVISOR: u64 = 8;
/// And if that is less than this many times what the file brings in its first txg.
const SCRAP_BURSTS: u64 = 2;

/// How plentiful empty zones are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneSupply {
    /// Empty zones are needed for other purposes than placement.
    Short,
    /// Another zone may be opened.
    Enough,
    /// Also, the ends of zones that a file has nearly filled may stay unused.
    Ample,
    /// Also, larger ends of zones may stay unused.
    Plenty,
}

/// What placement may do with empty zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// How plentiful they are.
    pub zones: ZoneSupply,
    /// How many extra slots may have an open zone.
    pub extra_slots: usize,
}

#[derive(Clone, Copy, Default)]
struct ExtraState {
    /// Another one may open a zone.
    may_open: bool,
    /// Those that have one may open the next.
    may_continue: bool,
}

/// Where a data block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The slot whose open zone takes the block.
    pub slot: usize,
    /// Close the open zone of the slot, and use a fresh one.
    pub is_fresh: bool,
}

/// Without extra slots, a lane that already has a slot opens another only while more than this fraction of the slots are closed.
const CLOSED_SLOTS_DIVISOR: usize = 2;

/// A lane expires after this many zones' worth of other data, or as many as there are slots. Its slot may then be given to
/// another lane.
const LANE_EXPIRY_ZONES: u64 = 8;

#[derive(Clone, Debug, Default)]
struct DataSlot {
    /// `None`: no zone is open.
    lane: Option<Lane>,
    /// Position of its last use, in bytes placed.
    used: u64,
    /// The txg of its last use.
    used_txg: Txg,
    files: [u64; RECENT_FILES],
    next_file: usize,
    /// The zone was opened for a small file.
    is_small: bool,
    /// Lane and file of the last block placed, and whether the file was small.
    last: Option<(Lane, u64, bool)>,
}

impl DataSlot {
    fn note(&mut self, lane: Lane, file: u64, is_small: bool) {
        if self.lane.is_none() {
            (self.lane, self.is_small) = (Some(lane), is_small);
        }
        self.last = Some((lane, file, is_small));
        // A small file may grow, and then does not stay with small ones.
        let file = if is_small { 0 } else { file };
        if file != 0 && !self.files.contains(&file) {
            self.files[self.next_file] = file;
            self.next_file = (self.next_file + 1) % RECENT_FILES;
        }
    }
}

/// Chooses among the data slots.
#[derive(Clone, Debug)]
pub struct Placer {
    layout: Layout,
    zone_bytes: u64,
    data: Vec<DataSlot>,
    placed_bytes: u64,
    /// The newest txg.
    txg: Txg,
    /// Files that got data lately and are not small, as many as there are slots, with the txg.
    active: Vec<(u64, Txg)>,
    /// Most extra slots with an open zone.
    extra_max: usize,
}

impl Placer {
    /// For zones of `zone_bytes` bytes.
    pub fn new(layout: Layout, zone_bytes: u64) -> Placer {
        Placer {
            layout,
            zone_bytes,
            data: vec![DataSlot::default(); layout.data().len()],
            placed_bytes: 0,
            txg: Txg(0),
            active: Vec::new(),
            extra_max: usize::MAX,
        }
    }

    /// With another layout, and all slots closed.
    pub fn with_layout(&self, layout: Layout) -> Placer {
        Placer { txg: self.txg, extra_max: self.extra_max, ..Placer::new(layout, self.zone_bytes) }
    }

    /// From now on at most this many zones are open, those for which space is kept in any case. `None`: no limit.
    pub fn set_open_max(&mut self, open_max: Option<u32>) {
        self.extra_max =
            open_max.map_or(usize::MAX, |max| (max as usize).saturating_sub(self.layout.kept_slots()));
    }

    /// The assignment of roles to slots.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of a zone.
    pub fn zone_bytes(&self) -> u64 {
        self.zone_bytes
    }

    /// The place for a data block of `bytes` bytes. `free_bytes`: those of a slot's open zone.
    pub fn choose(
        &self,
        placement: &Placement,
        (heat, bytes): (Heat, u64),
        supply: Supply,
        free_bytes: impl Fn(usize) -> u64,
    ) -> Choice {
        let first = self.layout.first_data;
        let lane = self.lane_of(placement, heat);
        let choice = self.choose_among(placement, (lane, bytes), supply, |at| free_bytes(first + at));
        Choice { slot: first + choice.slot, ..choice }
    }

    /// Notes that a block of `bytes` bytes goes to the chosen place.
    pub fn note_placed(&mut self, choice: Choice, placement: &Placement, heat: Heat, bytes: u64) {
        self.placed_bytes += bytes;
        let slot = choice.slot - self.layout.first_data;
        let is_expired = self.is_expired(&self.data[slot]);
        let lane = self.lane_of(placement, heat);
        let is_small = self.is_small(placement);
        let chosen = &mut self.data[slot];
        chosen.used = self.placed_bytes;
        chosen.used_txg = self.txg;
        // An expired lane must not hold the slot, or others would find none.
        chosen.lane = chosen.lane.filter(|_| !is_expired);
        chosen.note(lane, placement.file, is_small);
        if !is_small && placement.replaced_birth == Txg(0) {
            self.note_active(placement.file);
        }
    }

    fn note_active(&mut self, file: u64) {
        // The newest is the first one.
        if self.active.first() == Some(&(file, self.txg)) {
            return;
        }
        self.active.retain(|(active, _)| *active != file);
        self.active.truncate(self.layout.slots() - 1);
        self.active.insert(0, (file, self.txg));
    }

    /// With few slots, a separate class saves less than one more open zone costs.
    fn lane_of(&self, placement: &Placement, heat: Heat) -> Lane {
        let coldest = match self.layout.kept_data_slots() {
            ..3 => Heat::Hot,
            3..5 => Heat::Warm,
            _ => Heat::Tepid,
        };
        Lane::of(placement, if heat > coldest { Heat::Cold } else { heat })
    }

    fn is_expired(&self, slot: &DataSlot) -> bool {
        let zones = LANE_EXPIRY_ZONES.max(self.data.len() as u64);
        self.placed_bytes - slot.used > zones * self.zone_bytes
    }

    fn choose_among(
        &self,
        placement: &Placement,
        (lane, bytes): (Lane, u64),
        supply: Supply,
        free_bytes: impl Fn(usize) -> u64,
    ) -> Choice {
        let old = |slot| Choice { slot, is_fresh: false };
        let kept = self.layout.kept_data_slots();
        // Blocks that replace others do not die by file, so a zone for each file gains nothing.
        let is_new = placement.replaced_birth == Txg(0);
        let extra = if is_new { self.extra_state(supply) } else { ExtraState::default() };
        // An extra slot that may open no zone takes what fits into the one that it has.
        let is_usable = |at: usize| at < kept || is_new && (extra.may_continue || free_bytes(at) >= bytes);
        let all_open = || self.data.iter().enumerate().filter_map(|(at, slot)| Some((at, slot, slot.lane?)));
        let open = || all_open().filter(|(at, ..)| is_usable(*at));
        let fit = |of: Lane| if of == lane { Match::Good } else { of.suits(lane) };
        let own = open().find(|(_, slot, of)| {
            placement.file != 0 && fit(*of) >= Match::Acceptable && slot.files.contains(&placement.file)
        });
        if let Some((at, ..)) = own {
            return old(at);
        }
        let fitting = || open().filter(|(_, _, of)| fit(*of) >= Match::Acceptable);
        let is_small = self.is_small(placement);
        if is_small {
            let alike = fitting().filter(|(_, slot, _)| slot.is_small);
            let of_small = alike.max_by_key(|(_, slot, _)| slot.used);
            let newest = || fitting().max_by_key(|(_, slot, _)| slot.used);
            let slot = of_small.or_else(|| if extra.may_open { None } else { newest() });
            if let Some((at, ..)) = slot {
                return old(at);
            }
        }
        // Where no file was written lately, the zone with the most space, so that the file lies in few.
        let left = || {
            let left =
                fitting().filter(|(_, slot, _)| self.is_slot_left(slot)).map(|(at, ..)| (free_bytes(at), at));
            left.filter(|(free_bytes, _)| !self.is_scrap(*free_bytes, supply)).max()
        };
        // Ends of zones are filled before empty zones become scarce.
        if extra.may_continue
            && supply.zones < ZoneSupply::Plenty
            && let Some((_, at)) = left()
        {
            return old(at);
        }
        // The file would probably not fit, and little is lost.
        let is_big = placement.burst_bytes >= self.zone_bytes / BIG_FILE_DIVISOR;
        let may_spare = extra.may_continue && supply.zones >= ZoneSupply::Ample;
        if may_spare && !is_small || is_big && supply.zones == ZoneSupply::Plenty {
            let is_scrap = |at: usize| {
                let free_bytes = free_bytes(at);
                free_bytes < SCRAP_BURSTS * placement.burst_bytes && self.is_scrap(free_bytes, supply)
            };
            let mut like_it =
                fitting().filter(|(_, slot, _)| !extra.may_continue || slot.is_small == is_small);
            if let Some((slot, ..)) = like_it.find(|(at, ..)| is_scrap(*at)) {
                return Choice { slot, is_fresh: true };
            }
        }
        // Some slots stay closed for lanes that have none yet. Extra slots come first: others may be shared with metadata.
        let may_be_opened = |at: &usize| *at < kept || extra.may_open;
        let is_closed = |at: &usize| self.data.get(*at).is_some_and(|slot| slot.lane.is_none());
        let mut closed = (0..self.data.len()).rev().filter(may_be_opened).filter(is_closed);
        let spare = closed.clone().count();
        let is_spare = |spare: usize| extra.may_open || spare > kept / CLOSED_SLOTS_DIVISOR;
        let closed = closed.next();
        let may_open = supply.zones > ZoneSupply::Short && (is_spare(spare) || fitting().next().is_none());
        if let Some(at) = closed.filter(|_| may_open) {
            return old(at);
        }
        // A slot of an expired lane only wastes space. Slots with a lifetime hint stay alone.
        let idle = || open().filter(|(_, slot, of)| self.is_expired(slot) && !of.has_hinted_lifetime());
        if is_spare(spare + idle().count())
            && let Some((at, ..)) = idle().min_by_key(|(_, slot, _)| slot.used)
        {
            return old(at);
        }
        if let Some((_, at)) = left() {
            return old(at);
        }
        let oldest = || fitting().min_by_key(|(_, slot, _)| (slot.is_small != is_small, slot.used));
        let widest = || fitting().max_by_key(|(at, slot, _)| (slot.is_small == is_small, free_bytes(*at)));
        if let Some((at, ..)) = if extra.may_continue { oldest() } else { widest() } {
            return old(at);
        }
        // A lane without a slot gets one of a lane with several, the one with the least space.
        let is_one_of_several = |lane: Lane| open().filter(|(_, _, of)| *of == lane).count() > 1;
        if extra.may_continue
            && supply.zones == ZoneSupply::Plenty
            && closed.is_none()
            && let Some((slot, ..)) =
                open().filter(|(_, _, of)| is_one_of_several(*of)).min_by_key(|(at, ..)| free_bytes(*at))
        {
            return Choice { slot, is_fresh: true };
        }
        // No lane suits: take a closed slot, an expired lane, or the nearest lane.
        let nearest =
            open().min_by_key(|(_, slot, of)| (!self.is_expired(slot), of.distance(lane), slot.used));
        // Even when zones are short. If no lane suits, sharing costs more than one more open zone. And while the collector keeps empty
        // zones at their minimum, all lanes would mix for ever.
        old(closed.or(nearest.map(|(at, ..)| at)).unwrap_or(0))
    }

    fn is_small(&self, placement: &Placement) -> bool {
        let grows = !placement.is_closed && placement.replaced_birth == Txg(0);
        let most = if grows { SMALL_GROWTH_BYTES } else { SMALL_FILE_BYTES };
        placement.burst_bytes <= most.min(self.zone_bytes / BIG_FILE_DIVISOR)
    }

    /// What extra slots may do.
    fn extra_state(&self, supply: Supply) -> ExtraState {
        let extra = self.data.get(self.layout.kept_data_slots()..).unwrap_or_default();
        let open = extra.iter().filter(|slot| slot.lane.is_some()).count();
        let most = supply.extra_slots.min(self.extra_max);
        let is_allowed = supply.zones > ZoneSupply::Short && most > 0;
        ExtraState { may_open: is_allowed && open < most, may_continue: is_allowed && open <= most }
    }

    /// Whether extra slots may go on in another zone when theirs is full.
    pub fn extra_may_continue(&self, supply: Supply) -> bool {
        self.extra_state(supply).may_continue
    }

    /// Extra slots that would take data now if zones were plenty: files that are not small got data in this txg or the one before, and
    /// each would have a slot of its own.
    pub fn extra_wanted(&self) -> usize {
        let files = self.active.iter().filter(|(_, txg)| txg.0 + 1 >= self.txg.0).count();
        files.saturating_sub(self.layout.kept_data_slots()).min(self.layout.extra().len()).min(self.extra_max)
    }

    /// Whether nothing was placed in the slot in this txg or the one before: its files are probably whole.
    pub fn is_left(&self, slot: usize) -> bool {
        slot.checked_sub(self.layout.first_data)
            .and_then(|at| self.data.get(at))
            .is_some_and(|slot| self.is_slot_left(slot))
    }

    fn is_slot_left(&self, slot: &DataSlot) -> bool {
        slot.used_txg.0 + 1 < self.txg.0
    }

    /// Whether so little is left of a zone that a big file should not begin there.
    pub fn is_scrap(&self, free_bytes: u64, supply: Supply) -> bool {
        let divisor = if supply.zones == ZoneSupply::Plenty { SCRAP_DIVISOR } else { 2 * SCRAP_DIVISOR };
        free_bytes < self.zone_bytes / divisor
    }

    /// Blocks that are placed from now on belong to this txg.
    pub fn begin_txg(&mut self, txg: Txg) {
        self.txg = txg;
    }

    /// Notes that the zone of a slot is closed.
    pub fn note_closed(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at)) {
            let DataSlot { used, used_txg, last, .. } = *slot;
            *slot = DataSlot { used, used_txg, last, ..DataSlot::default() };
        }
    }

    /// Notes that a zone was opened in a slot, or continues after import. If the zone before was full, the new one keeps the lane and
    /// file of the last block placed.
    pub fn note_opened(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at))
            && slot.lane.is_none()
        {
            match slot.last {
                Some((lane, file, is_small)) => slot.note(lane, file, is_small),
                // The content of the zone is unknown.
                None => slot.lane = Some(Lane::Hint(Hint::NotSet)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
