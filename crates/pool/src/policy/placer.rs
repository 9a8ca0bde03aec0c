//! Which open zone a block goes to.
//!
//! Open zones are *slots*. Each is open for one or more *roles*: first and second copies of metadata, survivors of collection by age,
//! data. A zone that is open has on average half its room unused and cannot be collected, so a small pool has few, whose roles share
//! them, and a drive that limits open zones may leave no more. With room for more, what dies at different times is kept apart.
//!
//! Among the data slots a *lane* says what they take: what a hint calls alike, or what is expected to die soon. A zone's lane is that
//! of its first block. A file stays where it last was while it can; different files get different slots while some are not open; small
//! files that nobody writes any more follow each other into the one that was used last; all others take the one that was not used for
//! longest.
//!
//! Invariant: the two roles of metadata never share a slot.

use crate::policy::{Age, Hint, Match, Placement};
use crate::record::Class;
use std::ops::Range;

/// What a data slot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// What somebody said, or did not.
    Said(Hint),
    /// Nobody said anything, but what it replaces, or what is like it, died soon.
    Hot,
}

impl Lane {
    fn suits(self, other: Lane) -> Match {
        match (self, other) {
            (Lane::Hot, Lane::Hot) => Match::Good,
            (Lane::Hot, Lane::Said(Hint::Short)) | (Lane::Said(Hint::Short), Lane::Hot) => Match::Acceptable,
            (Lane::Said(zone), Lane::Said(data)) => zone.suits(data),
            _ => Match::Any,
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
        let (meta, survivors, first_data) = match slots {
            ..SLOTS_MIN => return None,
            2 => ([0, 1], [1, 1, 1], 0),
            3 => ([0, 1], [2, 2, 2], 1),
            4 | 5 => ([0, 1], [2, 2, 2], 3),
            6..10 => ([0, 1], [2, 3, 3], 4),
            _ => ([0, 1], [2, 3, 4], 5),
        };
        let last_data = if slots <= 3 { first_data + 1 } else { slots as usize };
        Some(Layout { slots: (slots as usize).max(last_data), meta, survivors, first_data })
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

#[derive(Clone, Debug, Default)]
struct DataSlot {
    /// `None`: no zone is open.
    lane: Option<Lane>,
    /// When it was last chosen.
    used: u64,
    files: [u64; FILES_KEPT],
    next_file: usize,
}

/// Chooses among the data slots.
#[derive(Clone, Debug)]
pub struct Placer {
    layout: Layout,
    data: Vec<DataSlot>,
    uses: u64,
}

impl Placer {
    pub fn new(layout: Layout) -> Placer {
        Placer { layout, data: vec![DataSlot::default(); layout.data().len()], uses: 0 }
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The slot for a block of data. `may_open`: there is room for another open zone.
    pub fn place(&mut self, placement: &Placement, is_hot: bool, may_open: bool) -> usize {
        let lane = match placement.hint {
            Hint::NotSet if is_hot => Lane::Hot,
            hint => Lane::Said(hint),
        };
        let slot = self.choose(placement, lane, may_open);
        self.uses += 1;
        let chosen = &mut self.data[slot];
        chosen.used = self.uses;
        chosen.lane.get_or_insert(lane);
        if placement.file != 0 && !chosen.files.contains(&placement.file) {
            chosen.files[chosen.next_file] = placement.file;
            chosen.next_file = (chosen.next_file + 1) % FILES_KEPT;
        }
        self.layout.first_data + slot
    }

    fn choose(&self, placement: &Placement, lane: Lane, may_open: bool) -> usize {
        let open = || self.data.iter().enumerate().filter_map(|(at, slot)| Some((at, slot, slot.lane?)));
        let fit = |of: Lane| if of == lane { Match::Good } else { of.suits(lane) };
        let own = open().find(|(_, slot, of)| {
            placement.file != 0 && fit(*of) >= Match::Acceptable && slot.files.contains(&placement.file)
        });
        if let Some((at, ..)) = own {
            return at;
        }
        let fitting = open().filter(|(_, _, of)| fit(*of) >= Match::Acceptable);
        let is_small = placement.burst_bytes <= SMALL_FILE_BYTES;
        if is_small && let Some((at, ..)) = fitting.clone().max_by_key(|(_, slot, _)| slot.used) {
            return at;
        }
        let in_lane = fitting.clone().count();
        let closed = self.data.iter().position(|slot| slot.lane.is_none());
        if let Some(at) = closed.filter(|_| may_open && in_lane < self.share(lane)) {
            return at;
        }
        if let Some((at, ..)) = fitting.min_by_key(|(_, slot, _)| slot.used) {
            return at;
        }
        // Nothing suits: one more zone if there may be one, or whatever was not used for longest.
        let stranger = open().min_by_key(|(_, slot, of)| (std::cmp::Reverse(fit(*of)), slot.used));
        closed.or(stranger.map(|(at, ..)| at)).unwrap_or(0)
    }

    /// How many slots a lane may open before it shares those it has: most data has no hint, and the first that has one must find a slot.
    fn share(&self, lane: Lane) -> usize {
        let slots = self.data.len();
        match lane {
            Lane::Said(Hint::NotSet | Hint::None) if slots >= 4 => slots - 3,
            Lane::Said(Hint::NotSet | Hint::None) => slots.saturating_sub(1).max(1),
            _ => 1,
        }
    }

    /// The zone of a slot takes no more.
    pub fn closed(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at)) {
            *slot = DataSlot { used: slot.used, ..DataSlot::default() };
        }
    }

    /// A zone was opened in a slot, or goes on after an import, before a block of known life time came.
    pub fn opened(&mut self, slot: usize) {
        if let Some(slot) = slot.checked_sub(self.layout.first_data).and_then(|at| self.data.get_mut(at)) {
            slot.lane.get_or_insert(Lane::Said(Hint::NotSet));
        }
    }
}

#[cfg(test)]
mod tests;
