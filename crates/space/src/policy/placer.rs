//! Which open zone a block goes to.
//!
//! Open zones are *slots*. Each is open for one or more *roles*: first and second copies of metadata, survivors of collection by age,
//! data. A zone that is open has on average half its room unused and cannot be collected, so a small pool has few, whose roles share
//! them, and a drive that limits open zones may leave no more. With room for more, what dies at different times is kept apart.
//!
//! Among the data slots a *lane* says what they take: files whose like live about as long, what a hint calls alike, or what replaces
//! what died soon. A zone's lane is that of its first block, until it is forgotten. A file stays where it last was while it can;
//! different files get different slots while enough are not open; small files follow each other into the one that was used last; all
//! others take the one that was not used for longest. What fits nowhere goes to the nearest lane. A file that brings a good part of a
//! zone at once begins with a fresh one rather than with the scrap that is left of the last, while there are zones enough: then its
//! end leaves a whole zone.
//!
//! Invariant: the two roles of metadata never share a slot.

use crate::policy::{Age, Heat, Hint, Match, Placement};
use std::ops::Range;
use terrane_format::record::Class;
use terrane_wire::Txg;

/// What a data slot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// What somebody said, or did not.
    Said(Hint),
    /// Nobody said anything, but the versions that such blocks replace died so soon; never [`Heat::Cold`].
    Heat(Heat),
    /// Files like these live for about 2^n bytes that users write.
    Life(u32),
}

impl Lane {
    /// Where a block belongs. How files like it fared goes before what somebody said of it, for that is known to a factor of two; and of
    /// a block that replaces another, that other one tells more than files like its own.
    fn of(placement: &Placement, heat: Heat) -> Lane {
        let is_new = placement.replaces == Txg(0);
        match placement.expected_life_bytes {
            // That none of its like has died yet says less than somebody who says something.
            Some(u64::MAX) if placement.hint.is_said() => Lane::Said(placement.hint),
            Some(life) if is_new => Lane::Life(life.max(1).ilog2()),
            _ if placement.hint.is_said() => Lane::Said(placement.hint),
            _ if heat < Heat::Cold => Lane::Heat(heat),
            _ => Lane::Said(placement.hint),
        }
    }

    /// Whether somebody said how long what it takes will live.
    fn is_said(self) -> bool {
        matches!(self, Lane::Said(hint) if hint.is_said())
    }

    fn suits(self, other: Lane) -> Match {
        match (self, other) {
            (Lane::Heat(zone), Lane::Heat(data)) if zone == data => Match::Good,
            (Lane::Life(zone), Lane::Life(data)) => match zone.abs_diff(data) {
                0 => Match::Good,
                1 => Match::Acceptable,
                _ => Match::Any,
            },
            (Lane::Heat(Heat::Hot), Lane::Said(Hint::Short))
            | (Lane::Said(Hint::Short), Lane::Heat(Heat::Hot)) => Match::Acceptable,
            (Lane::Said(zone), Lane::Said(data)) => zone.suits(data),
            _ => Match::Any,
        }
    }

    /// How far from one another, among those that do not suit: factors of two between lives, and more than any such where one is not
    /// known.
    fn distance(self, other: Lane) -> u32 {
        match (self, other) {
            (Lane::Life(a), Lane::Life(b)) => a.abs_diff(b),
            (Lane::Heat(a), Lane::Heat(b)) => (a as u32).abs_diff(b as u32),
            (Lane::Heat(heat), Lane::Said(Hint::NotSet)) | (Lane::Said(Hint::NotSet), Lane::Heat(heat)) => {
                Heat::Cold as u32 - heat as u32
            }
            (Lane::Heat(Heat::Hot), Lane::Said(Hint::Short))
            | (Lane::Said(Hint::Short), Lane::Heat(Heat::Hot)) => 1,
            _ if self == other => 0,
            // Nobody spoils the zones of those who said that theirs dies soon.
            (Lane::Life(_), Lane::Said(hint)) | (Lane::Said(hint), Lane::Life(_))
                if !matches!(hint, Hint::Short | Hint::Medium) =>
            {
                63
            }
            _ => 64,
        }
    }
}

/// Which slot serves which role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: usize,
    meta: [usize; 2],
    survivors: [usize; Age::ALL.len()],
    first_data: usize,
}

/// The fewest slots: the two copies of metadata lie in different zones.
pub const SLOTS_MIN: u32 = 2;

impl Layout {
    /// For a pool of so many zones, of which `open_max` may be open at once beside the anchors (0: no limit). `None`: with so few
    /// open zones there is no way.
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

    /// With so many slots in all, of which `ages` (1 to 3) are for survivors if there are so many.
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

    /// With slots that take metadata and nothing else. Three are enough, which every drive allows.
    pub fn with_metadata_apart(self) -> Layout {
        if self.slots > 3 {
            return self;
        }
        Layout { slots: 3, meta: [0, 1], survivors: [2; Age::ALL.len()], first_data: 2 }
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Where the first (0) and the second copy (1) of metadata goes.
    pub fn meta(&self) -> [usize; 2] {
        self.meta
    }

    pub fn survivors(&self, age: Age) -> usize {
        self.survivors[age as usize]
    }

    pub fn data(&self) -> Range<usize> {
        let last = if self.slots <= 3 { self.first_data + 1 } else { self.slots };
        self.first_data..last
    }

    /// The class of metadata that a slot takes, if it takes no data and is no survivors' own.
    pub fn metadata_alone(&self, slot: usize) -> Option<Class> {
        if self.data().contains(&slot) || self.survivors.contains(&slot) {
            return None;
        }
        let at = self.meta.iter().position(|meta| *meta == slot)?;
        Some([Class::MetaA, Class::MetaB][at])
    }

    /// The slots in which a zone of this class may be written on after an import.
    pub fn slots_of(&self, class: Class) -> Range<usize> {
        let one = |slot: usize| slot..slot + 1;
        match class {
            Class::MetaA => one(self.meta[0]),
            Class::MetaB | Class::Log => one(self.meta[1]),
            Class::Collection => self.survivors[0]..self.survivors[Age::Old as usize] + 1,
            Class::Data => self.data(),
        }
    }
}

/// Files that a slot remembers to have been written to it lately.
const FILES_KEPT: usize = 8;
/// A file that brings more is not packed with small ones.
const SMALL_FILE_BYTES: u64 = 1 << 20;

/// A file that brings one part of so many of a zone is a big one.
const BIG_FILE_PART: u64 = 2;
/// And begins with a fresh zone where no more than one part of so many is left of the last.
const SCRAP_PART: u64 = 8;

/// Whether zones are plenty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stock {
    /// What is empty is wanted for other things than a better place.
    Short,
    /// Another zone may be opened.
    Enough,
    /// And ends of zones may stay unused.
    Plenty,
}

/// Where a block of data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub slot: usize,
    /// Not to the zone that is open there, which takes no more, but to a fresh one.
    pub is_fresh: bool,
}

/// A lane that has a slot opens another only while more than one part of so many are closed.
const KEPT_CLOSED_PART: usize = 2;

/// A slot whose lane brought nothing while this many zones' worth of data was placed may be given to another.
const FORGOTTEN_ZONES: u64 = 8;

#[derive(Clone, Debug, Default)]
struct DataSlot {
    /// `None`: no zone is open.
    lane: Option<Lane>,
    /// When it was last chosen, in bytes that were placed.
    used: u64,
    files: [u64; FILES_KEPT],
    next_file: usize,
    /// Lane and file of what was placed last.
    last: Option<(Lane, u64)>,
}

impl DataSlot {
    fn note(&mut self, lane: Lane, file: u64) {
        self.lane.get_or_insert(lane);
        self.last = Some((lane, file));
        if file != 0 && !self.files.contains(&file) {
            self.files[self.next_file] = file;
            self.next_file = (self.next_file + 1) % FILES_KEPT;
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
    /// For zones that take so many bytes.
    pub fn new(layout: Layout, zone_bytes: u64) -> Placer {
        Placer { layout, zone_bytes, data: vec![DataSlot::default(); layout.data().len()], placed_bytes: 0 }
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn zone_bytes(&self) -> u64 {
        self.zone_bytes
    }

    /// The place for a block of data. `room`: what the open zone of a slot still takes, in bytes.
    pub fn choose(
        &self,
        placement: &Placement,
        heat: Heat,
        stock: Stock,
        room: impl Fn(usize) -> u64,
    ) -> Choice {
        let first = self.layout.first_data;
        let choice =
            self.choose_among(placement, self.lane_of(placement, heat), stock, |at| room(first + at));
        Choice { slot: first + choice.slot, ..choice }
    }

    /// A block of so many bytes goes where it was chosen to.
    pub fn chosen(&mut self, choice: Choice, placement: &Placement, heat: Heat, bytes: u64) {
        self.placed_bytes += bytes;
        let slot = choice.slot - self.layout.first_data;
        let is_forgotten = self.is_forgotten(&self.data[slot]);
        let lane = self.lane_of(placement, heat);
        let chosen = &mut self.data[slot];
        chosen.used = self.placed_bytes;
        // Others would find no slot as long as zones wait for what comes no more.
        chosen.lane = chosen.lane.filter(|_| !is_forgotten);
        chosen.note(lane, placement.file);
    }

    /// With few slots, what a class of its own would save is less than the room of one more open zone.
    fn lane_of(&self, placement: &Placement, heat: Heat) -> Lane {
        let coldest = match self.data.len() {
            ..3 => Heat::Hot,
            3..5 => Heat::Warm,
            _ => Heat::Tepid,
        };
        Lane::of(placement, if heat > coldest { Heat::Cold } else { heat })
    }

    fn is_forgotten(&self, slot: &DataSlot) -> bool {
        self.placed_bytes - slot.used > FORGOTTEN_ZONES * self.zone_bytes
    }

    fn choose_among(
        &self,
        placement: &Placement,
        lane: Lane,
        stock: Stock,
        room: impl Fn(usize) -> u64,
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
        let is_big = placement.burst_bytes >= self.zone_bytes / BIG_FILE_PART;
        let is_small = !is_big && placement.burst_bytes <= SMALL_FILE_BYTES;
        if is_small && let Some((at, ..)) = fitting.clone().max_by_key(|(_, slot, _)| slot.used) {
            return old(at);
        }
        // Some slots stay closed for lanes that have none yet.
        let mut closed = self.data.iter().enumerate().filter(|(_, slot)| slot.lane.is_none());
        let spare = closed.clone().count();
        let is_spare = spare * KEPT_CLOSED_PART > self.data.len();
        let closed = closed.next().map(|(at, _)| at);
        let may_open = stock > Stock::Short && (is_spare || fitting.clone().next().is_none());
        if let Some(at) = closed.filter(|_| may_open) {
            return old(at);
        }
        // A slot that waits for what comes no more costs room and serves nobody. Where somebody said that it dies soon it stays alone.
        let idle = open().filter(|(_, slot, of)| self.is_forgotten(slot) && !of.is_said());
        if (spare + idle.clone().count()) * KEPT_CLOSED_PART > self.data.len()
            && let Some((at, ..)) = idle.min_by_key(|(_, slot, _)| slot.used)
        {
            return old(at);
        }
        if is_big {
            let is_scrap = |at: usize| room(at) < placement.burst_bytes.min(self.zone_bytes / SCRAP_PART);
            // It would not fit, and what is lost is little.
            let scrap = fitting.clone().filter(|_| stock == Stock::Plenty).find(|(at, ..)| is_scrap(*at));
            if let Some((slot, ..)) = scrap {
                return Choice { slot, is_fresh: true };
            }
        }
        if let Some((at, ..)) = fitting.min_by_key(|(_, slot, _)| slot.used) {
            return old(at);
        }
        // Nothing suits: one more zone, or one whose lane seems to be forgotten, or the nearest.
        let stranger =
            open().min_by_key(|(_, slot, of)| (!self.is_forgotten(slot), of.distance(lane), slot.used));
        // Even at the edge: where nothing suits, sharing costs more than the room of one more open zone. Where collection keeps empty zones
        // at their floor it would mix all lanes for ever.
        old(closed.or(stranger.map(|(at, ..)| at)).unwrap_or(0))
    }

    /// The zone of a slot takes no more.
    pub fn closed(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at)) {
            *slot = DataSlot { used: slot.used, last: slot.last, ..DataSlot::default() };
        }
    }

    /// A zone was opened in a slot, or goes on after an import. If the one before took no more, it is for the block that was placed last,
    /// and for what comes after that: its file, and its like.
    pub fn opened(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at))
            && slot.lane.is_none()
        {
            match slot.last {
                Some((lane, file)) => slot.note(lane, file),
                // Nobody knows what it holds.
                None => slot.lane = Some(Lane::Said(Hint::NotSet)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
