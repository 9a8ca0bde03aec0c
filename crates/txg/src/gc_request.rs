//! Garbage collection on request of an administrator, or in the idle window.

use terrane_format::record::Home;
use terrane_wire::ZoneSeq;

/// Txgs without progress after which a request ends. Some are needed to reset emptied zones, and to rewrite
/// what keeps a zone from being emptied.
pub const STUCK_TXGS_MAX: u32 = 8;
/// Garbage that idle-time GC leaves, in percent of the bytes in full zones. The last garbage costs the most
/// copying.
pub const IDLE_PERCENT: u8 = 10;

/// Why GC runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcMode {
    /// GC does not run.
    #[default]
    Idle,
    /// Free space is short.
    Background,
    /// Writers wait for space.
    Urgent,
    /// An administrator requested it.
    Requested,
    /// It is the idle window of the day.
    Window,
}

impl GcMode {
    /// All modes.
    pub const ALL: [GcMode; 5] =
        [GcMode::Idle, GcMode::Background, GcMode::Urgent, GcMode::Requested, GcMode::Window];

    /// The name in status output.
    pub fn name(self) -> &'static str {
        match self {
            GcMode::Idle => "idle",
            GcMode::Background => "background",
            GcMode::Urgent => "urgent",
            GcMode::Requested => "by hand",
            GcMode::Window => "window",
        }
    }
}

/// A zone that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The zone.
    pub seq: ZoneSeq,
    /// Its first replica's place.
    pub home: Home,
    /// Live bytes when it was chosen; further bytes that its reset gives; live bytes that have moved.
    pub live_bytes: u64,
    /// Further bytes that its reset gives.
    pub garbage_bytes: u64,
    /// Live bytes that have moved.
    pub moved_bytes: u64,
}

/// Progress of a GC request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcProgress {
    /// Garbage bytes in full zones, and how many of them may stay.
    pub garbage_bytes: u64,
    /// Garbage bytes that may stay.
    pub goal_bytes: u64,
    /// Full zones with enough garbage to be worth emptying.
    pub zones_left: u64,
    /// There was no request, or it was done as far as possible.
    pub done: bool,
}

/// A GC request and its progress.
#[derive(Debug, Default)]
pub struct GcRequest {
    /// Garbage bytes that may stay; `None`: no request.
    pub wanted: Option<u64>,
    /// Goal of the last request, kept for later status queries.
    pub goal: u64,
    /// The pool itself made the request, in its idle window.
    pub for_idle: bool,
    /// Garbage bytes that the last request could not win; 0: it reached its goal. Idle-time GC begins above.
    pub idle_floor: u64,
    /// Least garbage since the request began. All ones: not measured yet.
    pub least_garbage: u64,
    /// Txgs in a row without progress. With more than [`STUCK_TXGS_MAX`] the request ends.
    pub stuck_txgs: u32,
    /// Why GC ran in the last txg, with or without a request.
    pub mode: GcMode,
    /// The zone that is being emptied.
    pub victim: Option<Victim>,
}

/// Sums over all full zones.
pub struct FullZones {
    /// Live bytes.
    pub live: u64,
    /// Bytes that resets would give.
    pub garbage: u64,
    /// Zones with enough garbage to be worth emptying.
    pub worth_emptying: u64,
}

impl FullZones {
    /// Garbage bytes that may stay. `percent` is a share of live bytes and garbage together, and the live
    /// bytes stay.
    pub fn goal(&self, percent: u8) -> u64 {
        let (part, rest) = (u128::from(percent.min(100)), u128::from(100 - percent.min(100)));
        let goal = (u128::from(self.live) * part).checked_div(rest);
        goal.map_or(self.garbage, |goal| u64::try_from(goal).unwrap_or(u64::MAX))
    }
}

impl GcRequest {
    /// Replaces the request. The status and `idle_floor` stay.
    pub fn begin(&mut self, wanted: Option<u64>, goal: u64, for_idle: bool) {
        *self = GcRequest { wanted, goal, for_idle, least_garbage: u64::MAX, stuck_txgs: 0, ..*self };
    }

    /// Notes a txg after which `garbage` bytes are left in full zones. `moved`: it moved live bytes. Ends the
    /// request if its goal is reached, or after too many txgs without progress. Only the latter sets
    /// `idle_floor`: a goal that was reached says nothing about the garbage that is left.
    pub fn note_txg(&mut self, garbage: u64, moved: bool) {
        let Some(wanted) = self.wanted else { return };
        let is_better = moved || garbage < self.least_garbage;
        self.least_garbage = self.least_garbage.min(garbage);
        self.stuck_txgs = if is_better { 0 } else { self.stuck_txgs + 1 };
        if garbage <= wanted {
            (self.wanted, self.idle_floor) = (None, 0);
        } else if self.stuck_txgs > STUCK_TXGS_MAX {
            (self.wanted, self.idle_floor) = (None, garbage);
        }
    }
}
