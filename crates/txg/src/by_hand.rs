//! Garbage collection on request of an administrator, or in the idle window.

use terrane_format::record::Home;
use terrane_wire::ZoneSeq;

/// Txgs without progress after which a request ends. Some are needed to reset emptied zones, and to rewrite
/// what keeps a zone from being emptied.
pub const PATIENCE: u32 = 8;
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
    ByHand,
    /// It is the idle window of the day.
    Window,
}

impl GcMode {
    pub const ALL: [GcMode; 5] =
        [GcMode::Idle, GcMode::Background, GcMode::Urgent, GcMode::ByHand, GcMode::Window];

    pub fn name(self) -> &'static str {
        match self {
            GcMode::Idle => "idle",
            GcMode::Background => "background",
            GcMode::Urgent => "urgent",
            GcMode::ByHand => "by hand",
            GcMode::Window => "window",
        }
    }
}

/// A zone that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub seq: ZoneSeq,
    pub home: Home,
    /// Live bytes when it was chosen; further bytes that its reset gives; live bytes that have moved.
    pub live_bytes: u64,
    pub garbage_bytes: u64,
    pub moved_bytes: u64,
}

/// Progress of a GC request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcProgress {
    /// Garbage bytes in full zones, and how many of them may stay.
    pub garbage_bytes: u64,
    pub goal_bytes: u64,
    /// Full zones with enough garbage to be worth emptying.
    pub zones_left: u64,
    /// There was no request, or it was done as far as possible.
    pub done: bool,
}

/// A GC request and its progress.
#[derive(Debug, Default)]
pub struct ByHand {
    /// Garbage bytes that may stay; `None`: no request.
    pub wanted: Option<u64>,
    /// Goal of the last request, kept for later status queries.
    pub goal: u64,
    /// `for_idle`: the pool itself made the request, in its idle window. `settled`: the garbage at which
    /// idle-time GC found nothing more to win.
    pub for_idle: bool,
    pub settled: u64,
    pub least_garbage: u64,
    pub stuck: u32,
    pub mode: GcMode,
    pub victim: Option<Victim>,
}

/// Sums over all full zones.
pub struct FullZones {
    pub live: u64,
    pub garbage: u64,
    pub worth: u64,
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

impl ByHand {
    pub fn begin(&mut self, wanted: Option<u64>, goal: u64, for_idle: bool) {
        *self = ByHand { wanted, goal, for_idle, least_garbage: u64::MAX, stuck: 0, ..*self };
    }
}
