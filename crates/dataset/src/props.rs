//! Properties: one table of names, defaults, and values.
//!
//! A property is stored as one number. So the properties of a data set fit a micro ZAP, and old software can
//! show the raw number of a value it does not know. Everything about a property, default included, is in its
//! row of [`PROPERTIES`]. Only properties that have an effect are in the table.

use crate::attributes::{ACL_TYPE, ACL_WORDS, DNODE_SIZE, DNODE_WORDS, XATTR, XATTR_WORDS};
use crate::error::DatasetError;
use crate::naming::{CASE, CASE_WORDS, FORM_WORDS, NORMALIZATION, UTF8_ONLY};
use Accepted::{Alias, Form, Word};
use std::fmt;
use terrane_codec::{ChecksumKind, CompressionPolicy};
use terrane_format::Feature;
use terrane_space::policy::{Hint, IdleWindow, VictimPolicy};
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
pub(crate) const GC_IDLE: &str = "gc_idle";
pub(crate) const RECOMPRESS: &str = "recompress";
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
    /// Set when a data set is created, and then unchangeable.
    pub fixed: bool,
    /// `None`: the value is invalid.
    parse: fn(&str) -> Option<u64>,
    /// `None`: this version does not know that number.
    print: fn(u64) -> Option<String>,
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

/// All properties, in the order in which they are listed.
pub static PROPERTIES: &[Property] = &[
    Property {
        name: COMPRESSION,
        values: &[
            Word("off"),
            Word("on"),
            Word("lz4"),
            Word("lzjb"),
            Word("zle"),
            Word("gzip"),
            Form("gzip-1..9"),
            Word("zstd"),
            Form("zstd-1..19"),
            Word("zstd-fast"),
            Form("zstd-fast-1..10"),
            Form("zstd-fast-20..100 (by ten)"),
            Word("zstd-fast-500"),
            Word("zstd-fast-1000"),
            Word("zstd-auto"),
            Form("zstd-auto:LOWEST-HIGHEST (lz4, 1..19)"),
        ],
        // lz4, as numbered in block pointers.
        default: 15,
        fixed: false,
        parse: |word| word.parse::<CompressionPolicy>().ok().map(CompressionPolicy::to_property),
        print: |stored| CompressionPolicy::from_property(stored).ok().map(|policy| policy.to_string()),
    },
    Property {
        name: RECORD_SIZE,
        values: &[Form("a power of two from 512 to 16M, at most a quarter of a zone (suffixes K and M)")],
        default: 128 << 10,
        fixed: false,
        parse: |word| parse_size(word).filter(is_record_size),
        print: |stored| Some(stored).filter(is_record_size).map(print_size),
    },
    Property {
        name: "zapsize",
        values: &[Form("a multiple of 512 from 512 to 1M (suffixes K and M)")],
        // As in OpenZFS.
        default: 128 << 10,
        fixed: false,
        parse: |word| parse_size(word).filter(is_zap_size),
        print: |stored| Some(stored).filter(is_zap_size).map(print_size),
    },
    Property {
        name: "checksum",
        values: &[Word("on"), Word("blake3"), Word("sha256"), Word("fletcher4")],
        // blake3, as numbered in block pointers.
        default: 14,
        fixed: false,
        parse: |word| word.parse::<ChecksumKind>().ok().map(|kind| u64::from(kind.id())),
        print: |stored| {
            u8::try_from(stored).ok().and_then(ChecksumKind::from_id).map(|kind| kind.to_string())
        },
    },
    Property {
        name: "atime",
        values: &[Word("off"), Word("on"), Word("relatime")],
        default: 2,
        fixed: false,
        parse: |word| number_of(&ATIME_WORDS, word),
        print: |stored| word_of(&ATIME_WORDS, stored),
    },
    Property {
        name: XATTR,
        values: &[Word("sa"), Word("dir"), Word("off"), Alias("on", "sa")],
        default: 2,
        fixed: false,
        parse: |word| number_of(&XATTR_WORDS, word),
        print: |stored| word_of(&XATTR_WORDS, stored),
    },
    Property {
        name: ACL_TYPE,
        values: &[Word("posix"), Word("off"), Alias("posixacl", "posix")],
        default: 2,
        fixed: false,
        parse: |word| number_of(&ACL_WORDS, word),
        print: |stored| word_of(&ACL_WORDS, stored),
    },
    Property {
        name: DNODE_SIZE,
        values: &[Word("auto"), Word("legacy"), Word("1k"), Word("2k"), Word("4k"), Word("8k"), Word("16k")],
        default: 1,
        fixed: false,
        parse: |word| number_of(&DNODE_WORDS, word),
        print: |stored| word_of(&DNODE_WORDS, stored),
    },
    Property {
        name: RECOMPRESS,
        values: &[Word("off"), Word("idle"), Form("idle:DAYS (0 to 3650; idle alone is 7)")],
        default: 0,
        fixed: false,
        parse: |word| match word {
            "off" => Some(0),
            "idle" => Some(RECOMPRESS_DAYS + 1),
            _ => {
                let digits = word.strip_prefix("idle:")?;
                let days = digits.parse::<u64>().ok().filter(|days| days.to_string() == digits)?;
                (days <= RECOMPRESS_DAYS_MAX).then_some(days + 1)
            }
        },
        print: |stored| match stored.checked_sub(1) {
            None => Some("off".to_string()),
            Some(RECOMPRESS_DAYS) => Some("idle".to_string()),
            Some(days) => (days <= RECOMPRESS_DAYS_MAX).then(|| format!("idle:{days}")),
        },
    },
    Property {
        name: WRITE_HINT,
        values: &[
            Word("not-set"),
            Word("none"),
            Word("short"),
            Word("medium"),
            Word("long"),
            Word("extreme"),
        ],
        default: Hint::NotSet as u64,
        fixed: false,
        parse: |word| Hint::from_name(word).map(|hint| hint as u64),
        print: |stored| Hint::from_id(stored).map(|hint| hint.name().to_string()),
    },
    Property {
        name: GC_POLICY,
        values: &[Word("cost-benefit"), Word("greedy")],
        default: 0,
        fixed: false,
        parse: |word| number_of(&GC_WORDS, word),
        print: |stored| word_of(&GC_WORDS, stored),
    },
    Property {
        name: GC_IDLE,
        values: &[Word("off"), Form("or HH:MM-HH:MM in local time (22:00-06:00 crosses midnight)")],
        default: 0,
        fixed: false,
        parse: parse_idle,
        print: |stored| {
            if stored == 0 { Some("off".to_string()) } else { idle_window(stored).map(print_idle) }
        },
    },
    Property {
        name: OPEN_ZONES_MAX,
        values: &[Word("auto"), Form("4 to 4096")],
        default: 0,
        fixed: false,
        parse: |word| match word {
            "auto" => Some(0),
            digits => digits
                .parse::<u64>()
                .ok()
                .filter(|zones| open_zones(*zones).is_some() && zones.to_string() == digits),
        },
        print: |stored| match stored {
            0 => Some("auto".to_string()),
            zones => open_zones(zones).map(|zones| zones.to_string()),
        },
    },
    Property {
        name: FAIL_MODE,
        values: &[Word("wait"), Word("continue")],
        default: 0,
        fixed: false,
        parse: |word| number_of(&FAIL_MODE_WORDS, word),
        print: |stored| word_of(&FAIL_MODE_WORDS, stored),
    },
    Property {
        name: UTF8_ONLY,
        values: &[Word("off"), Word("on")],
        default: 0,
        fixed: true,
        parse: |word| number_of(&SWITCH_WORDS, word),
        print: |stored| word_of(&SWITCH_WORDS, stored),
    },
    Property {
        name: NORMALIZATION,
        values: &[Word("none"), Word("formC"), Word("formD"), Word("formKC"), Word("formKD")],
        default: 0,
        fixed: true,
        parse: |word| number_of(&FORM_WORDS, word),
        print: |stored| word_of(&FORM_WORDS, stored),
    },
    Property {
        name: CASE,
        values: &[Word("sensitive"), Word("insensitive"), Word("mixed")],
        default: 0,
        fixed: true,
        parse: |word| number_of(&CASE_WORDS, word),
        print: |stored| word_of(&CASE_WORDS, stored),
    },
];

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Not set: the default applies.
    Default,
    /// Set on this data set.
    Local,
    /// Set by a mount option, until the unmount.
    Temporary,
    /// Set when the data set was created, for good.
    Creation,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Default => "default",
            Source::Local => "local",
            Source::Temporary => "temporary",
            Source::Creation => "creation",
        })
    }
}

/// A property with its value, as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyValue {
    /// The name for users.
    pub name: &'static str,
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

    /// The accepted values in words, for messages and help.
    pub fn values_text(&self) -> String {
        let values: Vec<String> = self.values.iter().map(Accepted::to_string).collect();
        values.join(", ") + if self.fixed { "; only at pool creation" } else { "" }
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
        if self.fixed { Err(DatasetError::Fixed { name: self.name }) } else { Ok(()) }
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

/// `512`, `16K`, `1M`; also with `KB`/`KiB`, and in lower case.
fn parse_size(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match word.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

pub(crate) fn print_size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_values_that_users_may_write() {
        for property in PROPERTIES {
            let word = property.print(property.default).unwrap();
            assert_eq!(property.parse(&word).unwrap(), property.default, "{}", property.name);
        }
    }

    #[test]
    fn every_word_is_listed_and_every_listed_word_is_accepted() {
        for property in PROPERTIES {
            for value in property.values {
                match *value {
                    Word(word) => assert!(property.parse(word).is_ok(), "{}={word}", property.name),
                    Alias(word, same) => {
                        assert_eq!(property.parse(word).unwrap(), property.parse(same).unwrap())
                    }
                    Form(text) => {
                        assert!(property.parse(text).is_err(), "{}={text} is a word", property.name)
                    }
                }
            }
        }
        let tables: [(&str, &[(&str, u64)]); 9] = [
            ("atime", &ATIME_WORDS),
            (XATTR, &XATTR_WORDS),
            (ACL_TYPE, &ACL_WORDS),
            (DNODE_SIZE, &DNODE_WORDS),
            (GC_POLICY, &GC_WORDS),
            (FAIL_MODE, &FAIL_MODE_WORDS),
            (UTF8_ONLY, &SWITCH_WORDS),
            (NORMALIZATION, &FORM_WORDS),
            (CASE, &CASE_WORDS),
        ];
        assert!(Property::find(WRITE_HINT).unwrap().value_words().eq(Hint::ALL.map(Hint::name)));
        for (name, words) in tables {
            let mut listed: Vec<&str> = Property::find(name).unwrap().value_words().collect();
            let mut accepted: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            listed.sort_unstable();
            accepted.sort_unstable();
            assert_eq!(listed, accepted, "{name}");
        }
    }

    #[test]
    fn values_round_trip() {
        for (name, written, shown) in [
            ("compression", "on", "lz4"),
            ("compression", "zstd-fast-20", "zstd-fast-20"),
            ("compression", "gzip", "gzip-6"),
            ("compression", "zle", "zle"),
            ("compression", "zstd-auto:lz4-9", "zstd-auto"),
            ("compression", "zstd-auto:3-19", "zstd-auto:3-19"),
            ("recordsize", "16k", "16K"),
            ("recordsize", "1048576", "1M"),
            ("recordsize", "16M", "16M"),
            ("recordsize", "512", "512"),
            ("zapsize", "1M", "1M"),
            ("zapsize", "1536", "1536"),
            ("zapsize", "96K", "96K"),
            ("checksum", "sha256", "sha256"),
            ("atime", "off", "off"),
            ("xattr", "on", "sa"),
            ("xattr", "dir", "dir"),
            ("acltype", "posixacl", "posix"),
            ("dnodesize", "16k", "16k"),
            ("write_hint", "extreme", "extreme"),
            ("recompress", "idle", "idle"),
            ("recompress", "idle:7", "idle"),
            ("recompress", "idle:0", "idle:0"),
            ("recompress", "idle:3650", "idle:3650"),
            ("gc_policy", "greedy", "greedy"),
            ("max_open_zones", "auto", "auto"),
            ("max_open_zones", "4", "4"),
            ("max_open_zones", "4096", "4096"),
            ("gc_idle", "off", "off"),
            ("gc_idle", "22:30-06:00", "22:30-06:00"),
            ("gc_idle", "00:00-00:01", "00:00-00:01"),
            ("gc_idle", "23:59-00:00", "23:59-00:00"),
            ("utf8only", "on", "on"),
            ("normalization", "formKC", "formKC"),
            ("casesensitivity", "mixed", "mixed"),
        ] {
            let property = Property::find(name).unwrap();
            assert_eq!(property.print(property.parse(written).unwrap()).unwrap(), shown);
        }
    }

    #[test]
    fn refusals_list_the_valid_values() {
        for (name, word) in [
            ("recordsize", "3K"),
            ("recordsize", "32M"),
            ("recordsize", "3M"),
            ("recordsize", "256"),
            ("recordsize", ""),
            ("recordsize", "K"),
            ("recordsize", "99999999999999999999M"),
            ("zapsize", "0"),
            ("zapsize", "1000"),
            ("zapsize", "1025K"),
            ("compression", "zip"),
            ("checksum", "off"),
            ("atime", "yes"),
            ("xattr", "yes"),
            ("acltype", "nfsv4"),
            ("dnodesize", "512"),
            ("write_hint", "2"),
            ("recompress", "on"),
            ("recompress", "idle:"),
            ("recompress", "idle:07"),
            ("recompress", "idle:3651"),
            ("gc_policy", "fifo"),
            ("max_open_zones", "0"),
            ("max_open_zones", "3"),
            ("max_open_zones", "04"),
            ("max_open_zones", "4097"),
            ("gc_idle", "on"),
            ("gc_idle", "1:00-2:00"),
            ("gc_idle", "01:00-01:00"),
            ("gc_idle", "24:00-01:00"),
            ("gc_idle", "01:60-02:00"),
            ("gc_idle", "+1:00-02:00"),
            ("gc_idle", "01:00"),
            ("utf8only", "yes"),
            ("normalization", "formc"),
            ("casesensitivity", "off"),
        ] {
            let property = Property::find(name).unwrap();
            let message = property.parse(word).unwrap_err().to_string();
            assert!(message.contains(&property.values_text()) && message.contains(name), "{message}");
        }
        let message = Property::find("colour").err().unwrap().to_string();
        assert!(PROPERTIES.iter().all(|property| message.contains(property.name)), "{message}");
    }

    #[test]
    fn unknown_stored_numbers_are_refused() {
        for property in PROPERTIES {
            assert!(property.print(u64::MAX - 5).is_err(), "{}", property.name);
        }
    }
}
