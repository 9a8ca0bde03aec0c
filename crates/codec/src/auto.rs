//! `zstd-auto`: the highest compression level that keeps up with writers.
//!
//! A higher level is free as long as no caller waits for it. Writers that bring more than the workers compress fill
//! memory and are then slowed down. So the level must fall before memory is full. Writers that bring little could
//! have the best level at no cost. For every block, [`Auto`] asks how many bytes per second the workers must compress
//! now. It moves on a ladder from lz4 to zstd-19: down at once to the first step that is fast enough, up only after a
//! delay and with headroom. The headroom keeps it from oscillating.
//!
//! Writers, and the server that serves them, need processors themselves. So a flood need not fill memory: if writers
//! are as slow as the workers let them be, the input is as little as can be compressed, at any level. But then the
//! workers wait for a processor at times, which they never do for each other. That share of their time is the price
//! of a higher level.
//!
//! The speed of a step, on this machine and data, is learned from blocks that it compressed. The speed of an untried
//! step is estimated from the others. There are no steps of zstd-fast, because lz4 is as small and faster:
//!
//! | source code | MB/s | ratio |
//! |---|---|---|
//! | zstd-fast-5 | 627 | 3.60 |
//! | lz4 | 705 | 3.57 |
//! | zstd-1 | 579 | 5.31 |
//!
//! Invariant: no clock and no I/O. Times come from the caller, and the same calls give the same answers.

#![expect(clippy::indexing_slicing, reason = "a step is below the number of steps")]

use crate::compress::algorithm::{Compression, ID_ZSTD, PropertyError, VALID, ZstdLevel};
use std::fmt;
use std::str::FromStr;

mod inflow;

pub use inflow::Inflow;

/// lz4, and zstd-1 to zstd-19.
pub const STEPS: usize = 20;
/// MB/s of one worker at each step before any measurement: source code in records of 128 KiB.
const INITIAL_SPEEDS: [f64; STEPS] = [
    705.0, 579.0, 530.0, 493.0, 400.0, 230.0, 139.0, 125.0, 105.0, 89.0, 65.0, 50.0, 40.0, 18.0, 14.0, 9.0,
    7.0, 5.0, 3.0, 2.0,
];
/// Dirty bytes should be drained within so many seconds. The fuller memory is, the shorter that time.
const DRAIN_S: f64 = 2.0;
/// At this share of its limit, memory counts as full. Writers are slowed down soon after.
const FULL_SHARE: f64 = 0.5;
/// If a caller waits for the txg, at most so many seconds may be spent on all awaited bytes.
const AWAITED_DRAIN_S: f64 = 0.005;
/// The workers must be so many times faster than the input, because the writers need processors too. That holds while
/// workers get a processor when they want one. If they wait, the factor grows with the square of the share of their
/// time that they wait. It is 5 for a third, and 10 for a half.
const MARGIN: f64 = 2.0;
const MARGIN_WAITED: f64 = 30.0;
/// Time constant of that share, in seconds of the workers.
const WAITED_S: f64 = 0.05;
/// A higher step must be faster than that by this factor.
const HEADROOM: f64 = 1.3;
/// If a higher step is this many times faster than needed, the steps between are skipped.
const SKIP_FACTOR: f64 = 3.0;
/// Bytes at one step before the next higher one: at least these, and at least the input of so many seconds.
const DWELL_BYTES: u64 = 1 << 20;
const DWELL_S: f64 = 0.1;
/// Smaller blocks say nothing about speed.
const MEASURED_BYTES_MIN: u64 = 16 << 10;
/// Weight of a measurement of [`WEIGHT_BYTES`] in the speed of its own step, and in the estimates of the others.
const WEIGHT: f64 = 0.2;
const WEIGHT_OTHERS: f64 = 0.05;
const WEIGHT_BYTES: f64 = 128.0 * 1024.0;

/// The steps that may be used, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AutoRange {
    /// 0 is lz4, others the level of zstd.
    lowest: u8,
    highest: u8,
}

impl Default for AutoRange {
    /// lz4 to zstd-9: above it a tenth of the speed saves another 2 %.
    fn default() -> Self {
        AutoRange { lowest: 0, highest: 9 }
    }
}

impl AutoRange {
    /// 0 is lz4, 1 to 19 are the levels of zstd. `None` if there is no such step, or if `lowest` is above `highest`.
    pub fn new(lowest: u8, highest: u8) -> Option<Self> {
        (lowest <= highest && usize::from(highest) < STEPS).then_some(AutoRange { lowest, highest })
    }

    /// The step for a flood of input, below which [`Auto`] does not go: 0 is lz4, 1 to 19 are levels of zstd.
    pub fn lowest(self) -> u8 {
        self.lowest
    }

    /// The step for little input, above which [`Auto`] does not go: 0 is lz4, 1 to 19 are levels of zstd.
    pub fn highest(self) -> u8 {
        self.highest
    }
}

/// `lz4-9`, `3-19`.
impl FromStr for AutoRange {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let step = |word: &str| match word {
            "lz4" => Some(0),
            _ => word.parse::<u8>().ok().filter(|level| *level > 0 && level.to_string() == word),
        };
        let (lowest, highest) = word.split_once('-').ok_or(())?;
        AutoRange::new(step(lowest).ok_or(())?, step(highest).ok_or(())?).ok_or(())
    }
}

impl fmt::Display for AutoRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, behind) in [(self.lowest, "-"), (self.highest, "")] {
            match step {
                0 => write!(f, "lz4{behind}")?,
                level => write!(f, "{level}{behind}")?,
            }
        }
        Ok(())
    }
}

/// The property `compression`: a fixed algorithm, or a choice per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressionPolicy {
    /// One algorithm and level for every block.
    Fixed(Compression),
    /// `zstd-auto`: [`Auto`] chooses a step of this range for each block.
    Auto(AutoRange),
}

/// The cookie of `zstd-auto`, in place of a zstd level. OpenZFS does not use this value.
const COOKIE_AUTO: u64 = 251;
/// Bounds other than the default: the lowest step, and the highest plus one.
const LOWEST_SHIFT: u32 = 16;
const HIGHEST_SHIFT: u32 = 24;

impl CompressionPolicy {
    /// The stored property: [`Compression::to_property`], or zstd's id, cookie 251 and the bounds.
    pub fn to_property(self) -> u64 {
        let auto = u64::from(ID_ZSTD) | COOKIE_AUTO << 7;
        match self {
            CompressionPolicy::Fixed(compression) => compression.to_property(),
            CompressionPolicy::Auto(range) if range == AutoRange::default() => auto,
            CompressionPolicy::Auto(AutoRange { lowest, highest }) => {
                auto | u64::from(lowest) << LOWEST_SHIFT | (u64::from(highest) + 1) << HIGHEST_SHIFT
            }
        }
    }

    /// The inverse of [`CompressionPolicy::to_property`].
    ///
    /// # Errors
    /// A number that no version of Terrane writes.
    pub fn from_property(property: u64) -> Result<Self, PropertyError> {
        let auto = u64::from(ID_ZSTD) | COOKIE_AUTO << 7;
        if property & 0xffff != auto {
            return Compression::from_property(property).map(CompressionPolicy::Fixed);
        }
        let bounds = property >> LOWEST_SHIFT;
        let byte = |at: u32| u8::try_from(bounds >> at & 0xff).ok();
        let range = match bounds {
            0 => Some(AutoRange::default()),
            bounds if bounds >> 16 != 0 => None,
            _ => byte(0)
                .zip(byte(HIGHEST_SHIFT - LOWEST_SHIFT))
                .and_then(|(lowest, above)| AutoRange::new(lowest, above.checked_sub(1)?)),
        };
        let unknown = || PropertyError::unknown("compression", property, VALID);
        range.map(CompressionPolicy::Auto).ok_or_else(unknown)
    }

    /// Whether the first versions of Terrane can read its blocks.
    pub fn needs_no_feature(self) -> bool {
        match self {
            CompressionPolicy::Fixed(compression) => compression.needs_no_feature(),
            CompressionPolicy::Auto(_) => true,
        }
    }
}

impl From<Compression> for CompressionPolicy {
    fn from(compression: Compression) -> Self {
        CompressionPolicy::Fixed(compression)
    }
}

impl FromStr for CompressionPolicy {
    type Err = PropertyError;

    fn from_str(word: &str) -> Result<Self, PropertyError> {
        let range = match word.strip_prefix("zstd-auto") {
            Some("") => Ok(AutoRange::default()),
            Some(bounds) => bounds.strip_prefix(':').ok_or(()).and_then(str::parse),
            None => return word.parse().map(CompressionPolicy::Fixed),
        };
        range.map(CompressionPolicy::Auto).map_err(|()| PropertyError::unknown("compression", word, VALID))
    }
}

impl fmt::Display for CompressionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompressionPolicy::Fixed(compression) => compression.fmt(f),
            CompressionPolicy::Auto(range) if *range == AutoRange::default() => f.write_str("zstd-auto"),
            CompressionPolicy::Auto(range) => write!(f, "zstd-auto:{range}"),
        }
    }
}

/// The load that the workers must cope with now.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Dirty bytes of file content that are not compressed yet.
    pub backlog_bytes: u64,
    /// The bound on them; at 60 % of it, writers begin to be slowed down.
    pub limit_bytes: u64,
    /// Recent input from writers in bytes per second: [`Inflow`].
    pub inflow_bytes_per_s: f64,
    /// Dirty bytes that a caller waits for.
    pub awaited_bytes: u64,
    /// Threads that compress.
    pub workers: u32,
}

impl Load {
    /// Bytes per second that all workers together should compress. `waited` is the share of their time in which they
    /// wait for a processor. Infinite means as many as they can.
    fn required_rate(&self, waited: f64) -> f64 {
        let backlog = self.backlog_bytes as f64;
        let fill = backlog / (self.limit_bytes.max(1) as f64 * FULL_SHARE);
        let drain_s = DRAIN_S * (1.0 - fill).max(0.0);
        let margin = MARGIN + MARGIN_WAITED * waited * waited;
        let drain_rate = margin * self.inflow_bytes_per_s + backlog / drain_s;
        drain_rate.max(self.awaited_bytes as f64 / AWAITED_DRAIN_S)
    }
}

/// The time that a worker took for a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockTime {
    /// Wall time from start to end, in nanoseconds; it includes waits for a processor.
    pub wall_ns: u64,
    /// The thread's processor time in nanoseconds. It may exceed `wall_ns`, because the clocks differ.
    pub processor_ns: u64,
}

/// The controller of one data set.
#[derive(Clone, Debug)]
pub struct Auto {
    range: AutoRange,
    /// Bytes per second that one worker compresses at each step while it has a processor.
    speeds: [f64; STEPS],
    /// Recent share of the workers' time in which they waited for a processor: 0 to 1.
    waited: f64,
    step: usize,
    /// Bytes since the last change of step.
    dwell_bytes: u64,
}

impl Auto {
    /// A controller at the lowest step, with the speeds of an assumed machine.
    pub fn new(range: AutoRange) -> Auto {
        let step = usize::from(range.lowest);
        Auto { range, speeds: INITIAL_SPEEDS.map(|mb| mb * 1e6), waited: 0.0, step, dwell_bytes: 0 }
    }

    /// Changes the bounds and keeps the learned speeds.
    pub fn set_range(&mut self, range: AutoRange) {
        self.range = range;
        self.step = self.step.clamp(range.lowest.into(), range.highest.into());
    }

    /// Chooses how the next block, of `bytes` bytes, is compressed.
    pub fn choose(&mut self, load: &Load, bytes: u64) -> Compression {
        let required = load.required_rate(self.waited);
        let dwell = DWELL_BYTES.max((load.inflow_bytes_per_s * DWELL_S) as u64);
        // A block is compressed by one worker, so few blocks keep few workers busy.
        let blocks = load.backlog_bytes.div_ceil(bytes.max(1)).clamp(1, u64::from(load.workers.max(1)));
        let keeps_up = |step: usize, times: f64| self.speeds[step] * blocks as f64 >= required * times;
        let (lowest, highest) = (usize::from(self.range.lowest), usize::from(self.range.highest));
        let mut step = self.step;
        if !keeps_up(step, 1.0) {
            step = (lowest..step).rev().find(|lower| keeps_up(*lower, 1.0)).unwrap_or(lowest);
        } else if step < highest && self.dwell_bytes >= dwell && keeps_up(step + 1, HEADROOM) {
            step =
                (step + 1..=highest).rev().find(|higher| keeps_up(*higher, SKIP_FACTOR)).unwrap_or(step + 1);
        }
        if step != self.step {
            self.step = step;
            self.dwell_bytes = 0;
        }
        self.dwell_bytes = self.dwell_bytes.saturating_add(bytes);
        compression_of(step)
    }

    /// Records the time a worker took to compress `bytes` as [`Auto::choose`] said. Small blocks, and algorithms that
    /// are not on the ladder, are ignored.
    pub fn record_time(&mut self, compression: Compression, bytes: u64, took: BlockTime) {
        let BlockTime { wall_ns, processor_ns } = took;
        let is_significant = bytes >= MEASURED_BYTES_MIN && wall_ns > 0 && processor_ns > 0;
        let Some(step) = step_of(compression).filter(|_| is_significant) else {
            return;
        };
        // The clocks differ, so processor time may exceed wall time.
        let waited = 1.0 - (processor_ns as f64 / wall_ns as f64).min(1.0);
        self.waited += (waited - self.waited) * (1.0 - (-(wall_ns as f64) / 1e9 / WAITED_S).exp());
        // A block that was given up early says little, so one measurement counts as at most a factor of 4.
        let found = bytes as f64 * 1e9 / processor_ns as f64 / self.speeds[step];
        let share = (bytes as f64 / WEIGHT_BYTES).min(1.0);
        let found = found.clamp(0.25, 4.0).ln() * share;
        for (at, speed) in self.speeds.iter_mut().enumerate() {
            let weight = if at == step { WEIGHT } else { WEIGHT_OTHERS };
            *speed = (*speed * (weight * found).exp()).clamp(1e4, 1e12);
        }
    }
}

/// The compression of a step; step 0 is the lowest.
pub fn compression_of(step: usize) -> Compression {
    let level = u8::try_from(step).ok().and_then(ZstdLevel::new);
    level.map_or(Compression::Lz4, Compression::Zstd)
}

/// The step of a compression, if the ladder has it.
pub fn step_of(compression: Compression) -> Option<usize> {
    match compression {
        Compression::Lz4 => Some(0),
        Compression::Zstd(level) => usize::try_from(level.level()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
