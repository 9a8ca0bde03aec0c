//! Collection that an administrator asked for.

use terrane_format::record::Home;
use terrane_wire::ZoneSeq;

/// Groups without any progress after which a request has ended: what was emptied must be reset, and what holds a zone up rewritten.
pub const PATIENCE: u32 = 8;
/// What may stay in idle time, in percent of what full zones hold: the last garbage costs most copies.
pub const IDLE_PERCENT: u8 = 10;

/// Why zones are emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcMode {
    /// They are not.
    #[default]
    Idle,
    /// Room runs short.
    Background,
    /// Writers wait for room.
    Urgent,
    /// Somebody asked for it.
    ByHand,
    /// It is the idle part of the day.
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
    /// Bytes that lived in it when it was chosen, what a reset will give beside those, and what has moved.
    pub live_bytes: u64,
    pub garbage_bytes: u64,
    pub moved_bytes: u64,
}

/// How far collection is that somebody asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcProgress {
    /// Bytes that full zones hold and nobody needs, and how many of them may stay.
    pub garbage_bytes: u64,
    pub goal_bytes: u64,
    /// Full zones with so much garbage that they are worth emptying.
    pub zones_left: u64,
    /// Nothing was asked for, or it was done as far as it can be.
    pub done: bool,
}

/// What was asked for, and what is seen of it.
#[derive(Debug, Default)]
pub struct ByHand {
    /// Bytes of garbage that may stay; `None`: nobody asks.
    pub wanted: Option<u64>,
    /// The last one, for who looks afterwards.
    pub goal: u64,
    /// Nobody but the pool asks, because it is idle time; and the garbage at which it found that no more was to be won.
    pub for_idle: bool,
    pub settled: u64,
    pub least_garbage: u64,
    pub stuck: u32,
    pub mode: GcMode,
    pub victim: Option<Victim>,
}

/// Full zones, summed up.
pub struct FullZones {
    pub live: u64,
    pub garbage: u64,
    pub worth: u64,
}

impl FullZones {
    /// The garbage that may stay: its share is of garbage and live together, and what lives stays.
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
