//! Placer: which open zone a block goes to.
//!
//! Open zones are *slots*. Each slot has one or more *roles*: first and second copies of metadata, GC survivors by age, data. On
//! average half of an open zone is unused, and it cannot be collected. So a small pool has few slots, which share roles; a drive that
//! limits open zones may allow no more. With more slots, blocks that die at different times are kept apart.
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
    meta: [usize; 2],
    survivors: [usize; Age::ALL.len()],
    first_data: usize,
}

/// Fewest slots: the two copies of metadata lie in different zones.
pub const SLOTS_MIN: u32 = 2;

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
        let (meta, survivors, first_data) = match (slots, ages) {
            (..SLOTS_MIN, _) => return None,
            (2, _) => ([0, 1], [1, 1, 1], 0),
            (3, _) => ([0, 1], [2, 2, 2], 1),
            (4, _) | (_, ..2) => ([0, 1], [2, 2, 2], 3),
            (5, _) | (_, 2) => ([0, 1], [2, 3, 3], 4),
            _ => ([0, 1], [2, 3, 4], 5),
        };
        let last_data = if slots <= 3 { first_data + 1 } else { slots as usize };
        Some(Layout { slots: (slots as usize).max(last_data), meta, survivors, first_data })
    }

    /// With slots that take only metadata. Three slots suffice, and every drive allows them.
    pub fn with_metadata_slots(self) -> Layout {
        if self.slots > 3 {
            return self;
        }
        Layout { slots: 3, meta: [0, 1], survivors: [2; Age::ALL.len()], first_data: 2 }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
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
        let last = if self.slots <= 3 { self.first_data + 1 } else { self.slots };
        self.first_data..last
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

/// A file is big if it brings this fraction of a zone.
const BIG_FILE_DIVISOR: u64 = 2;
/// A big file begins with a fresh zone if at most this fraction of the last zone is left.
const SCRAP_DIVISOR: u64 = 8;

/// How plentiful empty zones are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneSupply {
    /// Empty zones are needed for other purposes than placement.
    Short,
    /// Another zone may be opened.
    Enough,
    /// Also, ends of zones may stay unused.
    Plenty,
}

/// Where a data block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The slot whose open zone takes the block.
    pub slot: usize,
    /// Close the open zone of the slot, and use a fresh one.
    pub is_fresh: bool,
}

/// A lane that already has a slot opens another only while more than this fraction of the slots are closed.
const CLOSED_SLOTS_DIVISOR: usize = 2;

/// A lane expires after this many zones' worth of other data. Its slot may then be given to another lane.
const LANE_EXPIRY_ZONES: u64 = 8;

#[derive(Clone, Debug, Default)]
struct DataSlot {
    /// `None`: no zone is open.
    lane: Option<Lane>,
    /// Position of its last use, in bytes placed.
    used: u64,
    files: [u64; RECENT_FILES],
    next_file: usize,
    /// Lane and file of the last block placed.
    last: Option<(Lane, u64)>,
}

impl DataSlot {
    fn note(&mut self, lane: Lane, file: u64) {
        self.lane.get_or_insert(lane);
        self.last = Some((lane, file));
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
}

impl Placer {
    /// For zones of `zone_bytes` bytes.
    pub fn new(layout: Layout, zone_bytes: u64) -> Placer {
        Placer { layout, zone_bytes, data: vec![DataSlot::default(); layout.data().len()], placed_bytes: 0 }
    }

    /// The assignment of roles to slots.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of a zone.
    pub fn zone_bytes(&self) -> u64 {
        self.zone_bytes
    }

    /// The place for a data block. `free_bytes`: those of a slot's open zone.
    pub fn choose(
        &self,
        placement: &Placement,
        heat: Heat,
        supply: ZoneSupply,
        free_bytes: impl Fn(usize) -> u64,
    ) -> Choice {
        let first = self.layout.first_data;
        let choice =
            self.choose_among(placement, self.lane_of(placement, heat), supply, |at| free_bytes(first + at));
        Choice { slot: first + choice.slot, ..choice }
    }

    /// Notes that a block of `bytes` bytes goes to the chosen place.
    pub fn note_placed(&mut self, choice: Choice, placement: &Placement, heat: Heat, bytes: u64) {
        self.placed_bytes += bytes;
        let slot = choice.slot - self.layout.first_data;
        let is_expired = self.is_expired(&self.data[slot]);
        let lane = self.lane_of(placement, heat);
        let chosen = &mut self.data[slot];
        chosen.used = self.placed_bytes;
        // An expired lane must not hold the slot, or others would find none.
        chosen.lane = chosen.lane.filter(|_| !is_expired);
        chosen.note(lane, placement.file);
    }

    /// With few slots, a separate class saves less than one more open zone costs.
    fn lane_of(&self, placement: &Placement, heat: Heat) -> Lane {
        let coldest = match self.data.len() {
            ..3 => Heat::Hot,
            3..5 => Heat::Warm,
            _ => Heat::Tepid,
        };
        Lane::of(placement, if heat > coldest { Heat::Cold } else { heat })
    }

    fn is_expired(&self, slot: &DataSlot) -> bool {
        self.placed_bytes - slot.used > LANE_EXPIRY_ZONES * self.zone_bytes
    }

    fn choose_among(
        &self,
        placement: &Placement,
        lane: Lane,
        supply: ZoneSupply,
        free_bytes: impl Fn(usize) -> u64,
    ) -> Choice {
        let old = |slot| Choice { slot, is_fresh: false };
        let open = || self.data.iter().enumerate().filter_map(|(at, slot)| Some((at, slot, slot.lane?)));
        let fit = |of: Lane| if of == lane { Match::Good } else { of.suits(lane) };
        let own = open().find(|(_, slot, of)| {
            placement.file != 0 && fit(*of) >= Match::Acceptable && slot.files.contains(&placement.file)
        });
        if let Some((at, ..)) = own {
            return old(at);
        }
        let fitting = open().filter(|(_, _, of)| fit(*of) >= Match::Acceptable);
        let is_big = placement.burst_bytes >= self.zone_bytes / BIG_FILE_DIVISOR;
        let is_small = !is_big && placement.burst_bytes <= SMALL_FILE_BYTES;
        if is_small && let Some((at, ..)) = fitting.clone().max_by_key(|(_, slot, _)| slot.used) {
            return old(at);
        }
        // Some slots stay closed for lanes that have none yet.
        let mut closed = self.data.iter().enumerate().filter(|(_, slot)| slot.lane.is_none());
        let spare = closed.clone().count();
        let is_spare = spare * CLOSED_SLOTS_DIVISOR > self.data.len();
        let closed = closed.next().map(|(at, _)| at);
        let may_open = supply > ZoneSupply::Short && (is_spare || fitting.clone().next().is_none());
        if let Some(at) = closed.filter(|_| may_open) {
            return old(at);
        }
        // A slot of an expired lane only wastes space. Slots with a lifetime hint stay alone.
        let idle = open().filter(|(_, slot, of)| self.is_expired(slot) && !of.has_hinted_lifetime());
        if (spare + idle.clone().count()) * CLOSED_SLOTS_DIVISOR > self.data.len()
            && let Some((at, ..)) = idle.min_by_key(|(_, slot, _)| slot.used)
        {
            return old(at);
        }
        if is_big {
            let is_scrap =
                |at: usize| free_bytes(at) < placement.burst_bytes.min(self.zone_bytes / SCRAP_DIVISOR);
            // The file would not fit anyway, and little is lost.
            let scrap =
                fitting.clone().filter(|_| supply == ZoneSupply::Plenty).find(|(at, ..)| is_scrap(*at));
            if let Some((slot, ..)) = scrap {
                return Choice { slot, is_fresh: true };
            }
        }
        if let Some((at, ..)) = fitting.min_by_key(|(_, slot, _)| slot.used) {
            return old(at);
        }
        // No lane suits: take a closed slot, an expired lane, or the nearest lane.
        let nearest =
            open().min_by_key(|(_, slot, of)| (!self.is_expired(slot), of.distance(lane), slot.used));
        // Even when zones are short. If no lane suits, sharing costs more than one more open zone. And while the collector keeps empty
        // zones at their minimum, all lanes would mix for ever.
        old(closed.or(nearest.map(|(at, ..)| at)).unwrap_or(0))
    }

    /// Notes that the zone of a slot is closed.
    pub fn note_closed(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at)) {
            *slot = DataSlot { used: slot.used, last: slot.last, ..DataSlot::default() };
        }
    }

    /// Notes that a zone was opened in a slot, or continues after import. If the zone before was full, the new one keeps the lane and
    /// file of the last block placed.
    pub fn note_opened(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at))
            && slot.lane.is_none()
        {
            match slot.last {
                Some((lane, file)) => slot.note(lane, file),
                // The content of the zone is unknown.
                None => slot.lane = Some(Lane::Hint(Hint::NotSet)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
