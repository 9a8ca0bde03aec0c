//! Tests of the table of properties.

use super::*;
use crate::attributes::{ACL_TYPE, ACL_WORDS, DNODE_SIZE, DNODE_WORDS, XATTR, XATTR_WORDS};
use crate::naming::{CASE, CASE_WORDS, FORM_WORDS};
use terrane_space::policy::Hint;

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
    let tables: [(&str, &[(&str, u64)]); 13] = [
        ("atime", &ATIME_WORDS),
        (XATTR, &XATTR_WORDS),
        (ACL_TYPE, &ACL_WORDS),
        (DNODE_SIZE, &DNODE_WORDS),
        (GC_POLICY, &GC_WORDS),
        (FAIL_MODE, &FAIL_MODE_WORDS),
        (UTF8_ONLY, &SWITCH_WORDS),
        (NORMALIZATION, &FORM_WORDS),
        (CASE, &CASE_WORDS),
        (MOUNTPOINT, &MOUNTPOINT_WORDS),
        (CAN_MOUNT, &CAN_MOUNT_WORDS),
        (READ_ONLY, &SWITCH_WORDS),
        (SNAPDIR, &SNAPDIR_WORDS),
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
        ("retain", "off", "off"),
        ("retain", "90m", "90m"),
        ("retain", "3600s", "1h"),
        ("retain", "30d", "30d"),
        ("request_budget", "none", "none"),
        ("request_budget", "1000000", "1000000"),
        ("gc_idle", "off", "off"),
        ("gc_idle", "22:30-06:00", "22:30-06:00"),
        ("gc_idle", "00:00-00:01", "00:00-00:01"),
        ("gc_idle", "23:59-00:00", "23:59-00:00"),
        ("utf8only", "on", "on"),
        ("normalization", "formKC", "formKC"),
        ("casesensitivity", "mixed", "mixed"),
        ("mountpoint", "legacy", "legacy"),
        ("canmount", "noauto", "noauto"),
        ("readonly", "on", "on"),
        ("snapdir", "visible", "visible"),
        ("quota", "none", "none"),
        ("quota", "0", "none"),
        ("quota", "1.5G", "1536M"),
        ("refquota", "10t", "10T"),
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
        ("request_budget", "0"),
        ("request_budget", "1000001"),
        ("request_budget", "+5"),
        ("retain", "0"),
        ("retain", "0s"),
        ("retain", "60"),
        ("retain", "31d"),
        ("retain", "h"),
        ("retain", "+1h"),
        ("retain", "99999999999999999999d"),
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
        ("mountpoint", "relative/path"),
        ("canmount", "yes"),
        ("readonly", "rw"),
        ("snapdir", "shown"),
        ("quota", "all"),
        ("quota", "8E"),
        ("refquota", "-1"),
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
