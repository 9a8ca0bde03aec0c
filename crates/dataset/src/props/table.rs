//! The table of properties.

use super::Accepted::{Alias, Form, Word};
use super::bytes::{parse_bytes, print_bytes};
use super::{
    ATIME_WORDS, CAN_MOUNT, CAN_MOUNT_WORDS, COMPRESSION, FAIL_MODE, FAIL_MODE_WORDS, GC_IDLE, GC_POLICY,
    GC_WORDS, MOUNTPOINT, MOUNTPOINT_WORDS, OPEN_ZONES_MAX, Property, QUOTA, READ_ONLY, RECOMPRESS,
    RECOMPRESS_DAYS, RECOMPRESS_DAYS_MAX, RECORD_SIZE, REF_QUOTA, REF_RESERVATION, REQUEST_BUDGET,
    REQUEST_BUDGET_MAX, RESERVATION, RETAIN, RETAIN_DEFAULT, SNAPDIR, SNAPDIR_WORDS, SWITCH_WORDS, SYNC,
    SYNC_WORDS, Scope, WRITE_HINT, idle_window, is_record_size, is_zap_size, number_of, open_zones,
    parse_idle, parse_retain, print_idle, print_retain, word_of,
};
use crate::attributes::{ACL_TYPE, ACL_WORDS, DNODE_SIZE, DNODE_WORDS, XATTR, XATTR_WORDS};
use crate::naming::{CASE, CASE_WORDS, FORM_WORDS, NORMALIZATION, UTF8_ONLY};
use terrane_codec::{ChecksumKind, CompressionPolicy};
use terrane_space::policy::Hint;

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
        scope: Scope::Inherited,
        text: None,
        parse: |word| word.parse::<CompressionPolicy>().ok().map(CompressionPolicy::to_property),
        print: |stored| CompressionPolicy::from_property(stored).ok().map(|policy| policy.to_string()),
    },
    Property {
        name: RECORD_SIZE,
        values: &[Form("a power of two from 512 to 16M, at most a quarter of a zone (suffixes K and M)")],
        default: 128 << 10,
        scope: Scope::Inherited,
        text: None,
        parse: |word| parse_bytes(word).filter(is_record_size),
        print: |stored| Some(stored).filter(is_record_size).map(print_bytes),
    },
    Property {
        name: "zapsize",
        values: &[Form("a multiple of 512 from 512 to 1M (suffixes K and M)")],
        // As in OpenZFS.
        default: 128 << 10,
        scope: Scope::Inherited,
        text: None,
        parse: |word| parse_bytes(word).filter(is_zap_size),
        print: |stored| Some(stored).filter(is_zap_size).map(print_bytes),
    },
    Property {
        name: "checksum",
        values: &[Word("on"), Word("blake3"), Word("sha256"), Word("fletcher4")],
        // blake3, as numbered in block pointers.
        default: 14,
        scope: Scope::Inherited,
        text: None,
        parse: |word| word.parse::<ChecksumKind>().ok().map(|kind| u64::from(kind.id())),
        print: |stored| {
            u8::try_from(stored).ok().and_then(ChecksumKind::from_id).map(|kind| kind.to_string())
        },
    },
    Property {
        name: "atime",
        values: &[Word("off"), Word("on"), Word("relatime")],
        default: 2,
        scope: Scope::Inherited,
        text: None,
        parse: |word| number_of(&ATIME_WORDS, word),
        print: |stored| word_of(&ATIME_WORDS, stored),
    },
    Property {
        name: XATTR,
        values: &[Word("sa"), Word("dir"), Word("off"), Alias("on", "sa")],
        default: 2,
        scope: Scope::Inherited,
        text: None,
        parse: |word| number_of(&XATTR_WORDS, word),
        print: |stored| word_of(&XATTR_WORDS, stored),
    },
    Property {
        name: ACL_TYPE,
        values: &[Word("posix"), Word("off"), Alias("posixacl", "posix")],
        default: 2,
        scope: Scope::Inherited,
        text: None,
        parse: |word| number_of(&ACL_WORDS, word),
        print: |stored| word_of(&ACL_WORDS, stored),
    },
    Property {
        name: DNODE_SIZE,
        values: &[Word("auto"), Word("legacy"), Word("1k"), Word("2k"), Word("4k"), Word("8k"), Word("16k")],
        default: 1,
        scope: Scope::Inherited,
        text: None,
        parse: |word| number_of(&DNODE_WORDS, word),
        print: |stored| word_of(&DNODE_WORDS, stored),
    },
    Property {
        name: RECOMPRESS,
        values: &[Word("off"), Word("idle"), Form("idle:DAYS (0 to 3650; idle alone is 7)")],
        default: 0,
        scope: Scope::Inherited,
        text: None,
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
        scope: Scope::Inherited,
        text: None,
        parse: |word| Hint::from_name(word).map(|hint| hint as u64),
        print: |stored| Hint::from_id(stored).map(|hint| hint.name().to_string()),
    },
    Property {
        name: MOUNTPOINT,
        values: &[Word("none"), Word("legacy"), Form("an absolute path; children are mounted below it")],
        default: 0,
        scope: Scope::Inherited,
        text: Some(is_mount_path),
        parse: |word| number_of(&MOUNTPOINT_WORDS, word),
        print: |stored| word_of(&MOUNTPOINT_WORDS, stored),
    },
    Property {
        name: CAN_MOUNT,
        values: &[Word("on"), Word("off"), Word("noauto")],
        default: 1,
        scope: Scope::Own,
        text: None,
        parse: |word| number_of(&CAN_MOUNT_WORDS, word),
        print: |stored| word_of(&CAN_MOUNT_WORDS, stored),
    },
    Property {
        name: READ_ONLY,
        values: &[Word("off"), Word("on")],
        default: 0,
        scope: Scope::Inherited,
        text: None,
        parse: |word| number_of(&SWITCH_WORDS, word),
        print: |stored| word_of(&SWITCH_WORDS, stored),
    },
    Property {
        name: SNAPDIR,
        values: &[Word("hidden"), Word("visible"), Word("disabled")],
        default: 0,
        scope: Scope::Inherited,
        text: None,
        parse: |word| number_of(&SNAPDIR_WORDS, word),
        print: |stored| word_of(&SNAPDIR_WORDS, stored),
    },
    Property {
        name: SYNC,
        values: &[Word("standard"), Word("always"), Word("disabled")],
        default: 0,
        scope: Scope::Inherited,
        text: None,
        parse: |word| number_of(&SYNC_WORDS, word),
        print: |stored| word_of(&SYNC_WORDS, stored),
    },
    bytes_or_none(QUOTA),
    bytes_or_none(REF_QUOTA),
    bytes_or_none(RESERVATION),
    bytes_or_none(REF_RESERVATION),
    Property {
        name: GC_POLICY,
        values: &[Word("cost-benefit"), Word("greedy")],
        default: 0,
        scope: Scope::Pool,
        text: None,
        parse: |word| number_of(&GC_WORDS, word),
        print: |stored| word_of(&GC_WORDS, stored),
    },
    Property {
        name: GC_IDLE,
        values: &[Word("off"), Form("or HH:MM-HH:MM in local time (22:00-06:00 crosses midnight)")],
        default: 0,
        scope: Scope::Pool,
        text: None,
        parse: parse_idle,
        print: |stored| {
            if stored == 0 { Some("off".to_string()) } else { idle_window(stored).map(print_idle) }
        },
    },
    Property {
        name: OPEN_ZONES_MAX,
        values: &[Word("auto"), Form("4 to 4096")],
        default: 0,
        scope: Scope::Pool,
        text: None,
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
        scope: Scope::Pool,
        text: None,
        parse: |word| number_of(&FAIL_MODE_WORDS, word),
        print: |stored| word_of(&FAIL_MODE_WORDS, stored),
    },
    Property {
        name: RETAIN,
        values: &[Word("off"), Form("1s to 30d; units s, m, h, d")],
        default: RETAIN_DEFAULT,
        scope: Scope::Pool,
        text: None,
        parse: parse_retain,
        print: print_retain,
    },
    Property {
        name: REQUEST_BUDGET,
        values: &[Word("none"), Form("1 to 1000000 in an hour")],
        default: 0,
        scope: Scope::Pool,
        text: None,
        parse: |word| match word {
            "none" => Some(0),
            digits => digits.parse().ok().filter(|count: &u64| {
                (1..=REQUEST_BUDGET_MAX).contains(count) && count.to_string() == digits
            }),
        },
        print: |stored| match stored {
            0 => Some("none".to_owned()),
            count => (count <= REQUEST_BUDGET_MAX).then(|| count.to_string()),
        },
    },
    Property {
        name: UTF8_ONLY,
        values: &[Word("off"), Word("on")],
        default: 0,
        scope: Scope::Creation,
        text: None,
        parse: |word| number_of(&SWITCH_WORDS, word),
        print: |stored| word_of(&SWITCH_WORDS, stored),
    },
    Property {
        name: NORMALIZATION,
        values: &[Word("none"), Word("formC"), Word("formD"), Word("formKC"), Word("formKD")],
        default: 0,
        scope: Scope::Creation,
        text: None,
        parse: |word| number_of(&FORM_WORDS, word),
        print: |stored| word_of(&FORM_WORDS, stored),
    },
    Property {
        name: CASE,
        values: &[Word("sensitive"), Word("insensitive"), Word("mixed")],
        default: 0,
        scope: Scope::Creation,
        text: None,
        parse: |word| number_of(&CASE_WORDS, word),
        print: |stored| word_of(&CASE_WORDS, stored),
    },
];

/// A limit or reservation in bytes of one data set; 0 means none.
const fn bytes_or_none(name: &'static str) -> Property {
    Property {
        name,
        values: &[Word("none"), Form("a number of bytes (suffixes K, M, G, T, P and E)")],
        default: 0,
        scope: Scope::Own,
        text: None,
        parse: |word| match word {
            "none" => Some(0),
            bytes => parse_bytes(bytes),
        },
        print: |stored| match stored {
            0 => Some("none".to_string()),
            bytes => (bytes < 1 << 63).then(|| print_bytes(bytes)),
        },
    }
}

/// Longest path of a mount point, in bytes.
const MOUNT_PATH_BYTES_MAX: usize = 1024;

fn is_mount_path(path: &str) -> bool {
    path.starts_with('/')
        && path.len() <= MOUNT_PATH_BYTES_MAX
        && !path.chars().any(char::is_control)
        && path.split('/').all(|name| name != "." && name != "..")
}
