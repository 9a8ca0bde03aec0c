//! Algorithms and levels: the words that users type, and the numbers that are stored.
//!
//! Names, ids and level numbers are OpenZFS's, so properties and blocks mean the same in both. A block pointer holds
//! only the 7-bit id. Each level of gzip has its own id. The level of a zstd block lies in the block's own header
//! (the *cookie*), and a property holds both as `id | level << 7`.

use std::fmt;
use std::str::FromStr;

/// Stored id of a block that is not compressed.
pub const ID_OFF: u8 = 2;
/// Stored id of an lzjb block.
pub const ID_LZJB: u8 = 3;
/// Stored id of a gzip-1 block; higher levels have the next ids.
pub const ID_GZIP_1: u8 = 5;
/// Stored id of a gzip-9 block.
pub const ID_GZIP_9: u8 = 13;
/// Stored id of a zle block.
pub const ID_ZLE: u8 = 14;
/// Stored id of an lz4 block.
pub const ID_LZ4: u8 = 15;
/// Stored id of a zstd block of any level.
pub const ID_ZSTD: u8 = 16;

/// Size of the header of a stored zstd block, in bytes.
pub const ZSTD_HEADER_BYTES: usize = 8;

const ID_ON: u8 = 1;
const LEVEL_SHIFT: u32 = 7;
const LEVEL_DEFAULT: u8 = 3;
const COOKIE_FAST_1: u8 = 103;
/// A property may say "fast" or "the default" without a number; a block may not.
const COOKIE_FAST_UNNUMBERED: u8 = 102;
const COOKIE_DEFAULT: u8 = 255;
/// `zstd-fast-N` for each N, in the order of cookies from [`COOKIE_FAST_1`] on.
const FAST: [u16; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];

/// Accepted values of the property; every refusal prints them.
pub const VALID: &str = "off, on, lz4, lzjb, zle, gzip, gzip-1..9, zstd, zstd-1..19, zstd-fast, zstd-fast-1..10, zstd-fast-20..100 (by ten), zstd-fast-500, zstd-fast-1000, zstd-auto, zstd-auto:lz4-19";

/// Names of the ids from [`ID_GZIP_1`] on.
const GZIP_NAMES: [&str; 9] =
    ["gzip-1", "gzip-2", "gzip-3", "gzip-4", "gzip-5", "gzip-6", "gzip-7", "gzip-8", "gzip-9"];

/// A gzip level, 1 to 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GzipLevel(u8);

impl GzipLevel {
    /// The level of `gzip` without a number.
    pub const DEFAULT: GzipLevel = GzipLevel(6);

    /// Levels 1 to 9; `None` for others.
    pub fn new(level: u8) -> Option<Self> {
        (1..=9).contains(&level).then_some(GzipLevel(level))
    }

    /// The level whose blocks have this id.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::new(id.checked_sub(ID_GZIP_1 - 1)?)
    }

    /// zlib's level: 1 is the fastest, 9 the smallest output.
    pub fn number(self) -> u8 {
        self.0
    }
}

/// A zstd level as blocks store it: 1 to 19, or 103 to 123 for the fast ones. No other value can be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// The level of `zstd` without a number.
    pub const DEFAULT: ZstdLevel = ZstdLevel(LEVEL_DEFAULT);

    /// Levels 1 to 19; `None` for others.
    pub fn new(level: u8) -> Option<Self> {
        (1..=19).contains(&level).then_some(ZstdLevel(level))
    }

    /// `zstd-fast-1` to `zstd-fast-1000`; `None` for values without a name.
    pub fn fast(acceleration: u16) -> Option<Self> {
        let index = FAST.iter().position(|&n| n == acceleration)?;
        Some(ZstdLevel(COOKIE_FAST_1 + u8::try_from(index).ok()?))
    }

    /// The level that a block's header names.
    pub fn from_cookie(cookie: u8) -> Option<Self> {
        let level = ZstdLevel(cookie);
        (Self::new(cookie).is_some() || level.acceleration().is_some()).then_some(level)
    }

    /// The level of a stored zstd block, from its first [`ZSTD_HEADER_BYTES`] bytes.
    pub fn of_stored(head: &[u8]) -> Option<Self> {
        Self::from_cookie(*head.get(4..ZSTD_HEADER_BYTES)?.first()?)
    }

    /// The stored form of the level: 1 to 19, or 103 to 123 for the fast ones.
    pub fn cookie(self) -> u8 {
        self.0
    }

    /// The library's number: 1 to 19, or -1 to -1000.
    pub fn level(self) -> i32 {
        self.acceleration().map_or(i32::from(self.0), |n| -i32::from(n))
    }

    fn acceleration(self) -> Option<u16> {
        FAST.get(usize::from(self.0.checked_sub(COOKIE_FAST_1)?)).copied()
    }
}

impl fmt::Display for ZstdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.acceleration() {
            Some(n) => write!(f, "zstd-fast-{n}"),
            None => write!(f, "zstd-{}", self.0),
        }
    }
}

/// The property `compression`.
///
/// ```
/// use terrane_codec::{Compression, ZstdLevel};
/// assert_eq!("on".parse(), Ok(Compression::Lz4));
/// assert_eq!("zstd".parse(), Ok(Compression::Zstd(ZstdLevel::DEFAULT)));
/// assert_eq!("zstd-fast-20".parse::<Compression>().map(|c| c.to_string()), Ok("zstd-fast-20".to_string()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Blocks are stored as they are. Id 2.
    Off,
    /// OpenZFS's algorithm before lz4, without levels. Id 3.
    Lzjb,
    /// A zlib stream, at levels 1 to 9. Ids 5 to 13.
    Gzip(GzipLevel),
    /// Run lengths of zero bytes; other bytes are copied. Id 14.
    Zle,
    /// A raw LZ4 block, also the meaning of `on`. Id 15.
    Lz4,
    /// A zstd frame. Id 16 for all levels; the block's own header has the level.
    Zstd(ZstdLevel),
}

impl Compression {
    /// The 7-bit id in block pointers.
    pub fn id(self) -> u8 {
        match self {
            Compression::Off => ID_OFF,
            Compression::Lzjb => ID_LZJB,
            Compression::Gzip(level) => ID_GZIP_1 - 1 + level.0,
            Compression::Zle => ID_ZLE,
            Compression::Lz4 => ID_LZ4,
            Compression::Zstd(_) => ID_ZSTD,
        }
    }

    /// The algorithm of a stored id. The level of zstd is not in it.
    pub fn name_of_id(id: u8) -> Option<&'static str> {
        match id {
            ID_OFF => Some("off"),
            ID_LZJB => Some("lzjb"),
            ID_GZIP_1..=ID_GZIP_9 => GZIP_NAMES.get(usize::from(id - ID_GZIP_1)).copied(),
            ID_ZLE => Some("zle"),
            ID_LZ4 => Some("lz4"),
            ID_ZSTD => Some("zstd"),
            _ => None,
        }
    }

    /// Whether the first versions of Terrane can read its blocks: they had `off`, `lz4` and `zstd`.
    pub fn needs_no_feature(self) -> bool {
        matches!(self, Compression::Off | Compression::Lz4 | Compression::Zstd(_))
    }

    /// The same of a stored id.
    pub fn id_needs_no_feature(id: u8) -> bool {
        matches!(id, ID_OFF | ID_LZ4 | ID_ZSTD)
    }

    /// The stored property: `id | level << 7`.
    pub fn to_property(self) -> u64 {
        let level = if let Compression::Zstd(level) = self { level.cookie() } else { 0 };
        u64::from(self.id()) | u64::from(level) << LEVEL_SHIFT
    }

    /// The inverse of [`Compression::to_property`]. It also accepts what OpenZFS stores for `on`, and for `zstd` and
    /// `zstd-fast` without a number.
    pub fn from_property(property: u64) -> Result<Self, PropertyError> {
        let unknown = || PropertyError::unknown("compression", property, VALID);
        let level = u8::try_from(property >> LEVEL_SHIFT).map_err(|_| unknown())?;
        match (u8::try_from(property & 0x7f).map_err(|_| unknown())?, level) {
            (ID_OFF, 0) => Ok(Compression::Off),
            (ID_LZJB, 0) => Ok(Compression::Lzjb),
            (id @ ID_GZIP_1..=ID_GZIP_9, 0) => {
                GzipLevel::from_id(id).map(Compression::Gzip).ok_or_else(unknown)
            }
            (ID_ZLE, 0) => Ok(Compression::Zle),
            (ID_ON | ID_LZ4, 0) => Ok(Compression::Lz4),
            (ID_ZSTD, 0 | COOKIE_DEFAULT) => Ok(Compression::Zstd(ZstdLevel::DEFAULT)),
            (ID_ZSTD, COOKIE_FAST_UNNUMBERED) => Ok(Compression::Zstd(ZstdLevel(COOKIE_FAST_1))),
            (ID_ZSTD, cookie) => ZstdLevel::from_cookie(cookie).map(Compression::Zstd).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }
}

/// Whether both ids belong to one algorithm, at any level.
pub fn is_same_algorithm(a: u8, b: u8) -> bool {
    let is_gzip = |id: u8| (ID_GZIP_1..=ID_GZIP_9).contains(&id);
    a == b || is_gzip(a) && is_gzip(b)
}

impl FromStr for Compression {
    type Err = PropertyError;

    fn from_str(word: &str) -> Result<Self, PropertyError> {
        // Only one spelling each: "zstd-03" or "zstd-+3" would be printed differently from what was typed.
        fn number<N: FromStr + ToString>(digits: &str) -> Option<N> {
            digits.parse().ok().filter(|n: &N| n.to_string() == digits)
        }
        let level = match word {
            "off" => return Ok(Compression::Off),
            "on" | "lz4" => return Ok(Compression::Lz4),
            "lzjb" => return Ok(Compression::Lzjb),
            "zle" => return Ok(Compression::Zle),
            "gzip" => return Ok(Compression::Gzip(GzipLevel::DEFAULT)),
            "zstd" => Some(ZstdLevel::DEFAULT),
            "zstd-fast" => ZstdLevel::fast(1),
            _ => match word.strip_prefix("zstd-fast-") {
                Some(digits) => number(digits).and_then(ZstdLevel::fast),
                None => word.strip_prefix("zstd-").and_then(number).and_then(ZstdLevel::new),
            },
        };
        if let Some(level) = level {
            return Ok(Compression::Zstd(level));
        }
        if let Some(level) = word.strip_prefix("gzip-").and_then(number).and_then(GzipLevel::new) {
            return Ok(Compression::Gzip(level));
        }
        Err(PropertyError::unknown("compression", word, VALID))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::Off => f.write_str("off"),
            Compression::Lzjb => f.write_str("lzjb"),
            Compression::Gzip(level) => write!(f, "gzip-{}", level.0),
            Compression::Zle => f.write_str("zle"),
            Compression::Lz4 => f.write_str("lz4"),
            Compression::Zstd(level) => level.fmt(f),
        }
    }
}

/// A refused property value. The message lists the accepted ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyError {
    /// The value is not in the list of accepted ones.
    Unknown {
        /// The property: `compression` or `checksum`.
        name: &'static str,
        /// The refused word, or the stored number in decimal.
        value: String,
        /// The accepted words, for the message.
        valid: &'static str,
    },
}

impl PropertyError {
    pub(crate) fn unknown(name: &'static str, value: impl fmt::Display, valid: &'static str) -> Self {
        PropertyError::Unknown { name, value: value.to_string(), valid }
    }
}

impl fmt::Display for PropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PropertyError::Unknown { name, value, valid } => {
                write!(f, "{name}: invalid value \"{value}\"; use one of: {valid}")
            }
        }
    }
}

impl std::error::Error for PropertyError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Compression> {
        let levels = (1..=19).map(ZstdLevel::new).chain(FAST.map(ZstdLevel::fast)).map(|l| l.unwrap());
        let gzip = (1..=9).map(|level| Compression::Gzip(GzipLevel::new(level).unwrap()));
        let plain = [Compression::Off, Compression::Lzjb, Compression::Zle, Compression::Lz4];
        plain.into_iter().chain(gzip).chain(levels.map(Compression::Zstd)).collect()
    }

    #[test]
    fn every_value_comes_back_from_its_word_and_from_its_number() {
        assert_eq!(all().len(), 4 + 9 + 19 + 21);
        for value in all() {
            assert_eq!(value.to_string().parse(), Ok(value));
            assert_eq!(Compression::from_property(value.to_property()), Ok(value));
            let name = Compression::name_of_id(value.id()).unwrap();
            assert!(value.to_string().starts_with(name), "{value} is called {name}");
        }
    }

    #[test]
    fn numbers_are_those_of_openzfs() {
        for (word, property) in [
            ("off", 2),
            ("lzjb", 3),
            ("gzip-1", 5),
            ("gzip", 10),
            ("gzip-9", 13),
            ("zle", 14),
            ("lz4", 15),
            ("zstd", 16 | 3 << 7),
            ("zstd-19", 16 | 19 << 7),
            ("zstd-fast", 16 | 103 << 7),
            ("zstd-fast-10", 16 | 112 << 7),
            ("zstd-fast-20", 16 | 113 << 7),
            ("zstd-fast-100", 16 | 121 << 7),
            ("zstd-fast-500", 16 | 122 << 7),
            ("zstd-fast-1000", 16 | 123 << 7),
        ] {
            assert_eq!(word.parse::<Compression>().unwrap().to_property(), property, "{word}");
        }
        let level = |word: &str| match word.parse() {
            Ok(Compression::Zstd(level)) => level.level(),
            other => panic!("{other:?}"),
        };
        assert_eq!([level("zstd-19"), level("zstd-fast-1000"), level("zstd-fast-30")], [19, -1000, -30]);
    }

    #[test]
    fn a_stored_block_says_its_level() {
        let text = b"a line of text that repeats\n".repeat(100);
        for level in [ZstdLevel::DEFAULT, ZstdLevel::new(19).unwrap(), ZstdLevel::fast(10).unwrap()] {
            let mut stored = Vec::new();
            let outcome =
                crate::Compressor::new().compress(Compression::Zstd(level), &text, text.len(), &mut stored);
            assert_eq!(outcome, crate::Outcome::Compressed);
            assert_eq!(ZstdLevel::of_stored(&stored), Some(level));
            assert_eq!(ZstdLevel::of_stored(&stored[..7]), None);
        }
        assert_eq!(ZstdLevel::of_stored(&[0; 8]), None);
    }

    #[test]
    fn only_forty_cookies_are_levels() {
        let valid: Vec<u8> = (0..=255).filter(|&c| ZstdLevel::from_cookie(c).is_some()).collect();
        assert_eq!(valid, (1..=19).chain(103..=123).collect::<Vec<u8>>());
    }

    #[test]
    fn refusals_name_what_would_be_accepted() {
        for word in [
            "",
            "ON",
            "zstd-0",
            "zstd-20",
            "zstd-03",
            "zstd-+3",
            "zstd-",
            "zstd-fast-11",
            "zstd-fast-",
            "lz4 ",
            "gzip-0",
            "gzip-10",
            "gzip-06",
            "zle-64",
        ] {
            let refusal = word.parse::<Compression>().unwrap_err();
            assert!(matches!(refusal, PropertyError::Unknown { .. }), "{word}");
            assert!(refusal.to_string().contains("zstd-1..19"), "{refusal}");
        }
        for property in [
            0,
            4,
            17,
            2 | 1 << 7,
            3 | 1 << 7,
            10 | 6 << 7,
            14 | 64 << 7,
            16 | 20 << 7,
            16 | 101 << 7,
            16 | 3 << 7 | 1 << 15,
            u64::MAX,
        ] {
            assert!(Compression::from_property(property).is_err(), "{property}");
        }
        assert_eq!(Compression::from_property(1), Ok(Compression::Lz4));
        assert_eq!(Compression::from_property(16), "zstd".parse());
        assert_eq!(Compression::from_property(16 | 102 << 7), "zstd-fast".parse());
    }
}
