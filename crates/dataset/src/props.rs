//! Properties: one table of names, defaults, and values.
//!
//! A property is stored as one number. So the properties of a data set fit a micro ZAP, and old software can
//! show the raw number of a value it does not know. Everything about a property, default included, is in its
//! row of [`PROPERTIES`]. Only properties that have an effect are in the table, and `mountpoint` and `canmount`, which
//! no command obeys yet.
//!
//! Two kinds of values are text: a path as `mountpoint`, and *user properties*. The name of a user property
//! contains a colon. Terrane only stores, inherits and shows it.
//!
//! [`Props`] holds the properties that one data set stores. [`Props::effective`] computes a value and its [`Source`]
//! from them and those of the parents.

mod bytes;
mod inherit;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use bytes::print_bytes as print_size;
pub use inherit::{Ancestor, Effective, Key, Props, Stored};
pub(crate) use inherit::{copy, load_creation, store, store_creation, unstore};
pub use table::PROPERTIES;

use crate::error::DatasetError;
use crate::naming::{NORMALIZATION, UTF8_ONLY};
use Accepted::{Alias, Form, Word};
use std::fmt;
use terrane_codec::CompressionPolicy;
use terrane_format::Feature;
use terrane_space::policy::{IdleWindow, VictimPolicy};
use terrane_store::read_retry::FailMode;

/// Smallest record size in bytes.
pub const RECORD_SIZE_MIN: u64 = 512;
/// Largest record size in bytes, in pools that support such blocks.
pub const RECORD_SIZE_MAX: u64 = 16 << 20;

pub(crate) const COMPRESSION: &str = "compression";
pub(crate) const RECORD_SIZE: &str = "recordsize";
pub(crate) const WRITE_HINT: &str = "write_hint";
pub(crate) const GC_POLICY: &str = "gc_policy";
pub(crate) const OPEN_ZONES_MAX: &str = "max_open_zones";
pub(crate) const FAIL_MODE: &str = "failmode";
pub(crate) const RETAIN: &str = "retain";
pub(crate) const REQUEST_BUDGET: &str = "request_budget";
pub(crate) const GC_IDLE: &str = "gc_idle";
pub(crate) const RECOMPRESS: &str = "recompress";
pub(crate) const MOUNTPOINT: &str = "mountpoint";
pub(crate) const READ_ONLY: &str = "readonly";
pub(crate) const SNAPDIR: &str = "snapdir";
pub(crate) const SYNC: &str = "sync";
pub(crate) const CAN_MOUNT: &str = "canmount";
pub(crate) const QUOTA: &str = "quota";
pub(crate) const REF_QUOTA: &str = "refquota";
pub(crate) const RESERVATION: &str = "reservation";
pub(crate) const REF_RESERVATION: &str = "refreservation";
/// Values of `retain` without a word, in seconds.
const RETAIN_DEFAULT: u64 = 3600;
const RETAIN_MAX: u64 = 30 * 24 * 3600;
/// Largest value of `request_budget`. 0: none.
const REQUEST_BUDGET_MAX: u64 = 1_000_000;
/// Days that `recompress=idle` means without a number.
const RECOMPRESS_DAYS: u64 = 7;
const RECOMPRESS_DAYS_MAX: u64 = 3650;

/// A property, and the conversion between its words and the stored number.
pub struct Property {
    /// The name for users, and in the properties ZAP.
    pub name: &'static str,
    /// In the order of the help.
    values: &'static [Accepted],
    /// The stored number that applies while none is set.
    pub default: u64,
    /// Which data sets have it, and whether children inherit it.
    pub scope: Scope,
    /// Whether a text that is no word of the table is a valid value. `None`: all values are numbers.
    text: Option<fn(&str) -> bool>,
    /// `None`: the value is invalid.
    parse: fn(&str) -> Option<u64>,
    /// `None`: this version does not know that number.
    print: fn(u64) -> Option<String>,
}

/// Which data sets have a property, and the source of its value if it is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The value of the nearest parent that has one.
    Inherited,
    /// Each data set has a value of its own, else the default.
    Own,
    /// The whole pool has one value, set on the root data set.
    Pool,
    /// Set when a data set is created, and then unchangeable.
    Creation,
}

/// One value that a property accepts, or values that have a form in common.
#[derive(Clone, Copy)]
enum Accepted {
    Word(&'static str),
    /// A word, and another word that means the same.
    Alias(&'static str, &'static str),
    /// Many values, described for people.
    Form(&'static str),
}

/// When a read updates the access time: the property `atime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTime {
    /// Never.
    Off,
    /// On every read.
    On,
    /// If it is not later than the last change, or a day old. That shows whether a file was read since it was
    /// written.
    Relative,
}

const SWITCH_WORDS: [(&str, u64); 2] = [("off", 0), ("on", 1)];
/// Values of properties of the whole pool.
const GC_WORDS: [(&str, u64); 2] = [("cost-benefit", 0), ("greedy", 1)];
const FAIL_MODE_WORDS: [(&str, u64); 2] = [("wait", 0), ("continue", 1)];
const ATIME_WORDS: [(&str, u64); 3] = [("off", 0), ("on", 1), ("relatime", 2)];
const MOUNTPOINT_WORDS: [(&str, u64); 2] = [("none", 0), ("legacy", 1)];
const CAN_MOUNT_WORDS: [(&str, u64); 3] = [("off", 0), ("on", 1), ("noauto", 2)];
const SNAPDIR_WORDS: [(&str, u64); 3] = [("hidden", 0), ("visible", 1), ("disabled", 2)];
const SYNC_WORDS: [(&str, u64); 3] = [("standard", 0), ("always", 1), ("disabled", 2)];

/// When changes become durable: the property `sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// When a program asks for it, by `fsync` or by the flags of an open file.
    Standard,
    /// Before the call that makes them returns.
    Always,
    /// With the next commit. What programs ask for has no effect.
    Disabled,
}

impl SyncMode {
    /// A number that this version does not know promises what POSIX does.
    pub(crate) fn from_stored(stored: u64) -> Self {
        match stored {
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        }
    }
}

/// How a mount shows snapshots: the property `snapdir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapDir {
    /// Under a name that listings leave out.
    Hidden,
    /// Under a name that listings show.
    Visible,
    /// Nowhere.
    Disabled,
}

impl SnapDir {
    pub(crate) fn from_stored(stored: u64) -> Self {
        match stored {
            0 => SnapDir::Hidden,
            1 => SnapDir::Visible,
            _ => SnapDir::Disabled,
        }
    }
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Not set: the default applies.
    Default,
    /// Set on this data set.
    Local,
    /// Received with the data set.
    Received,
    /// Set on the parent with this path below the pool; empty: the root data set.
    Inherited(String),
    /// Set by a mount option, until the unmount.
    Temporary,
    /// Set when the data set was created, for good.
    Creation,
}

impl Source {
    /// In words, where the root data set is called `pool`.
    pub fn text(&self, pool: &str) -> String {
        match self {
            Source::Default => "default".to_string(),
            Source::Local => "local".to_string(),
            Source::Received => "received".to_string(),
            Source::Inherited(path) if path.is_empty() => format!("inherited from {pool}"),
            Source::Inherited(path) => format!("inherited from {pool}/{path}"),
            Source::Temporary => "temporary".to_string(),
            Source::Creation => "creation".to_string(),
        }
    }
}

/// A property with its value, as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyValue {
    /// The name for users.
    pub name: String,
    /// The value in words.
    pub value: String,
    /// Where the value comes from.
    pub source: Source,
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word(word) => f.write_str(word),
            Alias(word, same) => write!(f, "{word} (same as {same})"),
            Form(text) => f.write_str(text),
        }
    }
}

impl Property {
    /// The row of this name, or an error that lists all names.
    pub fn find(name: &str) -> Result<&'static Property, DatasetError> {
        PROPERTIES.iter().find(|property| property.name == name).ok_or_else(|| {
            let valid: Vec<&str> = PROPERTIES.iter().map(|property| property.name).collect();
            DatasetError::UnknownProperty { name: name.to_string(), valid: valid.join(", ") }
        })
    }

    /// Converts a user's word to the stored number.
    pub fn parse(&self, word: &str) -> Result<u64, DatasetError> {
        (self.parse)(word).ok_or_else(|| self.invalid_value(word))
    }

    /// Converts a stored number to a word. Fails if this version does not know it.
    pub fn print(&self, stored: u64) -> Result<String, DatasetError> {
        (self.print)(stored).ok_or_else(|| self.invalid_value(stored))
    }

    /// Converts a user's word to the stored value, which may be a text.
    pub fn parse_value(&self, word: &str) -> Result<Stored, DatasetError> {
        match ((self.parse)(word), self.text) {
            (Some(number), _) => Ok(Stored::Number(number)),
            (None, Some(is_value)) if is_value(word) => Ok(Stored::Text(word.to_string())),
            (None, _) => Err(self.invalid_value(word)),
        }
    }

    /// Converts a stored value to a word. Fails if this version does not know it.
    pub fn print_value(&self, stored: &Stored) -> Result<String, DatasetError> {
        match (stored, self.text) {
            (Stored::Number(number), _) => self.print(*number),
            (Stored::Text(text), Some(is_value)) if is_value(text) => Ok(text.clone()),
            (Stored::Text(text), _) => Err(self.invalid_value(text)),
        }
    }

    /// Whether it is set when a data set is created, and then unchangeable.
    pub fn is_fixed(&self) -> bool {
        self.scope == Scope::Creation
    }

    /// The accepted values in words, for messages and help.
    pub fn values_text(&self) -> String {
        let values: Vec<String> = self.values.iter().map(Accepted::to_string).collect();
        values.join(", ") + if self.is_fixed() { "; only at creation" } else { "" }
    }

    /// The accepted values that are words, for completion and suggestions.
    pub fn value_words(&self) -> impl Iterator<Item = &'static str> {
        self.values.iter().filter_map(|value| match *value {
            Word(word) | Alias(word, _) => Some(word),
            Form(_) => None,
        })
    }

    /// Refuses to change a fixed property.
    pub(crate) fn check_changeable(&self) -> Result<(), DatasetError> {
        if self.is_fixed() { Err(DatasetError::Fixed { name: self.name }) } else { Ok(()) }
    }

    pub(crate) fn invalid_value(&self, found: impl fmt::Display) -> DatasetError {
        DatasetError::BadValue { name: self.name, found: found.to_string(), expected: self.values_text() }
    }
}

/// Adds `utf8only=on` if `normalization` is set, which requires it. Refuses an explicit `utf8only=off`.
pub(crate) fn complete_naming(wanted: &mut Vec<(&'static Property, u64)>) -> Result<(), DatasetError> {
    let number = |name| wanted.iter().find(|(property, _)| property.name == name).map(|(_, number)| *number);
    if number(NORMALIZATION).unwrap_or(0) == 0 {
        return Ok(());
    }
    match number(UTF8_ONLY) {
        Some(0) => Err(DatasetError::BadValue {
            name: UTF8_ONLY,
            found: "off".to_string(),
            expected: format!("on, required by {NORMALIZATION}"),
        }),
        Some(_) => Ok(()),
        None => {
            wanted.push((Property::find(UTF8_ONLY)?, 1));
            Ok(())
        }
    }
}

impl AccessTime {
    pub(crate) fn from_stored(stored: u64) -> Self {
        match stored {
            0 => AccessTime::Off,
            1 => AccessTime::On,
            _ => AccessTime::Relative,
        }
    }
}

/// Whether a micro or tiny ZAP's block may have this size limit.
fn is_zap_size(bytes: &u64) -> bool {
    bytes.is_multiple_of(512) && (512..=1 << 20).contains(bytes)
}

fn number_of(words: &[(&str, u64)], word: &str) -> Option<u64> {
    words.iter().find(|(name, _)| *name == word).map(|(_, number)| *number)
}

fn word_of(words: &[(&str, u64)], stored: u64) -> Option<String> {
    words.iter().find(|(_, number)| *number == stored).map(|(name, _)| (*name).to_string())
}

fn is_record_size(bytes: &u64) -> bool {
    bytes.is_power_of_two() && (RECORD_SIZE_MIN..=RECORD_SIZE_MAX).contains(bytes)
}

/// The feature that a pool needs before it obeys this value.
pub(crate) fn feature_of(property: &Property, stored: u64) -> Option<Feature> {
    let is_new = || CompressionPolicy::from_property(stored).is_ok_and(|policy| !policy.needs_no_feature());
    (property.name == COMPRESSION && is_new()).then_some(Feature::Codecs)
}

/// The victim policy of this value of the property `gc_policy`.
pub(crate) fn victim_policy(stored: u64) -> Option<VictimPolicy> {
    word_of(&GC_WORDS, stored).and_then(|word| VictimPolicy::from_name(&word))
}

/// The behavior of commits on read errors, by this value of the property `failmode`.
pub(crate) fn fail_mode(stored: u64) -> Option<FailMode> {
    match word_of(&FAIL_MODE_WORDS, stored)?.as_str() {
        "wait" => Some(FailMode::Wait),
        _ => Some(FailMode::Continue),
    }
}

/// Units of a time: seconds, minutes, hours, days.
const TIME_UNITS: [(char, u64); 4] = [('d', 24 * 3600), ('h', 3600), ('m', 60), ('s', 1)];

/// `90m` in seconds.
fn parse_retain(word: &str) -> Option<u64> {
    if word == "off" {
        return Some(0);
    }
    let per = TIME_UNITS.iter().find(|(unit, _)| word.ends_with(*unit))?.1;
    let digits = word.get(..word.len() - 1)?;
    let number: u64 = digits.parse().ok().filter(|_| !digits.starts_with(['0', '+']))?;
    number.checked_mul(per).filter(|seconds| *seconds <= RETAIN_MAX)
}

/// In the largest unit that is exact.
fn print_retain(seconds: u64) -> Option<String> {
    match seconds {
        0 => Some("off".to_owned()),
        1..=RETAIN_MAX => {
            let (unit, per) = TIME_UNITS.iter().find(|(_, per)| seconds.is_multiple_of(*per))?;
            Some(format!("{}{unit}", seconds / per))
        }
        _ => None,
    }
}

/// The limit of open zones by this value of the property `max_open_zones`. `None`: there is none.
pub(crate) fn open_zones(stored: u64) -> Option<u32> {
    u32::try_from(stored).ok().filter(|zones| (4..=4096).contains(zones))
}

/// Decodes a window: first minute times the minutes of a day, plus the end. No window begins and ends at
/// midnight, so 0 means none.
pub(crate) fn idle_window(stored: u64) -> Option<IdleWindow> {
    let day = u64::from(IdleWindow::DAY_MINUTES);
    IdleWindow::new(u16::try_from(stored / day).ok()?, u16::try_from(stored % day).ok()?)
}

fn parse_idle(word: &str) -> Option<u64> {
    if word == "off" {
        return Some(0);
    }
    let minute = |word: &str| {
        let (hour, minute) = word.split_once(':')?;
        let two_digits = |word: &str| word.len() == 2 && word.bytes().all(|byte| byte.is_ascii_digit());
        let number = |word: &str, end| {
            Some(word).filter(|word| two_digits(word))?.parse().ok().filter(|n: &u16| *n < end)
        };
        Some(number(hour, 24)? * 60 + number(minute, 60)?)
    };
    let (first, end) = word.split_once('-')?;
    let window = IdleWindow::new(minute(first)?, minute(end)?)?;
    Some(u64::from(window.first()) * u64::from(IdleWindow::DAY_MINUTES) + u64::from(window.end()))
}

fn print_idle(window: IdleWindow) -> String {
    let time = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
    format!("{}-{}", time(window.first()), time(window.end()))
}
