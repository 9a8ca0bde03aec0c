//! What the kernel is told to cache.

use super::replay::tests::{ask, served_with};
use super::*;
use std::sync::Arc;
use terrane_wire::ObjectId;

/// Lifetime of the answer to a lookup, in seconds, and whether the name exists. `None`: not cached and does
/// not exist.
fn lookup_lifetime(dispatch: &Dispatch, name: &[u8]) -> Option<(u64, bool)> {
    let entry = ask(dispatch, false, Request::Lookup { name }).ok()?;
    let word =
        |at: usize| entry.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |raw| u64::from_le_bytes(*raw));
    Some((word(16), word(0) != 0))
}

#[test]
fn a_name_with_several_spellings_has_no_lifetime() {
    let for_ever = CachePolicy::default().entry.as_secs();
    let insensitive = [("casesensitivity", "insensitive")];
    for (props, spelled) in
        [(&[][..], for_ever), (&insensitive[..], 0), (&[("normalization", "formC")][..], for_ever)]
    {
        let (dispatch, fs) = served_with(props);
        for name in [&b"foo"[..], b"2026", "na\u{ef}ve".as_bytes()] {
            fs.create(fs.root(), name, 0o644, &Cred::default()).unwrap();
        }
        assert_eq!(lookup_lifetime(&dispatch, b"foo"), Some((spelled, true)), "{props:?}");
        assert_eq!(lookup_lifetime(&dispatch, b"2026"), Some((for_ever, true)), "{props:?}");
        let accented = if props.is_empty() { for_ever } else { 0 };
        assert_eq!(lookup_lifetime(&dispatch, "na\u{ef}ve".as_bytes()), Some((accented, true)), "{props:?}");
        // Missing names likewise: they may be created later under another spelling.
        assert_eq!(lookup_lifetime(&dispatch, b"2027"), Some((for_ever, false)), "{props:?}");
        assert_eq!(
            lookup_lifetime(&dispatch, b"bar"),
            (spelled > 0).then_some((for_ever, false)),
            "{props:?}"
        );
    }
}

#[test]
fn the_root_directory_stays_in_memory_while_it_is_served() {
    let (dispatch, fs) = served_with(&[]);
    assert_eq!(fs.cached_inodes(), 1);
    assert!(lookup_lifetime(&dispatch, b"missing").is_some());
    assert_eq!(fs.cached_inodes(), 1);
    Handler::on_unmounted(&dispatch);
    assert_eq!(Arc::clone(&fs).cached_inodes(), 0);
}

/// A node id with another tree number never leads to a node of the live tree.
#[test]
fn a_node_of_another_tree_is_not_taken_for_one_of_this() {
    let (dispatch, fs) = served_with(&[]);
    let file = fs.create(fs.root(), b"file", 0o644, &Cred::default()).unwrap().ino;
    assert!(file <= ObjectId::MASK);
    for (tag, passes) in [(0, true), (1, false), (u64::from(u16::MAX), false)] {
        let attr = fs.getattr(dispatch.ino(tag << ObjectId::BITS | file));
        assert_eq!(attr.map(|attr| attr.ino), if passes { Ok(file) } else { Err(Errno::ESTALE) });
    }
}

/// The names that a READDIR at this offset shows, each with the offset behind it.
fn listed(dispatch: &Dispatch, offset: u64, plus: bool) -> Vec<(Vec<u8>, u64)> {
    let read = ReadIn { fh: 0, offset, size: 32 << 10, read_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
    let request = if plus { Request::Readdirplus(read) } else { Request::Readdir(read) };
    let raw = ask(dispatch, false, request).unwrap();
    let (mut names, mut at) = (Vec::new(), 0);
    while at < raw.len() {
        at += if plus { proto::EntryOut::SIZE } else { 0 };
        let dirent = proto::Dirent::decode(&raw[at..at + proto::Dirent::SIZE]).unwrap();
        let name = &raw[at + proto::Dirent::SIZE..][..dirent.namelen as usize];
        names.push((name.to_vec(), dirent.off));
        at = (at + proto::Dirent::SIZE + name.len()).next_multiple_of(8);
    }
    names
}

#[test]
fn a_seek_in_a_listing_is_answered_with_few_names_and_loses_none() {
    let (dispatch, fs) = served_with(&[]);
    let names = 3000;
    for number in 0..names {
        // The longest names that there are, among others.
        let name = format!("{number:0width$}", width = if number % 100 == 0 { 255 } else { 12 });
        fs.create(fs.root(), name.as_bytes(), 0o644, &Cred::default()).unwrap();
    }
    for plus in [false, true] {
        let (mut all, mut offset, mut answers) = (Vec::new(), 0, 0);
        loop {
            let answer = listed(&dispatch, offset, plus);
            let Some((_, end)) = answer.last() else { break };
            offset = *end;
            answers += 1;
            all.extend(answer);
        }
        assert_eq!(all.len(), names + 2);
        assert!(answers < 5 + 15 * usize::from(plus), "{answers} answers to a program that reads in order");
        // A server that has just started knows no ends, as after any seek.
        for at in [1, 100, 1500, 2990, 3000] {
            let later = Dispatch::new(Arc::clone(&fs), &MountOptions::default(), Arc::default());
            let first = listed(&later, all[at].1, plus);
            assert_eq!(first[..], all[at + 1..][..first.len()]);
            assert!((1..60).contains(&first.len()), "{} names after a seek", first.len());
            if at < 2900 {
                let next = listed(&later, first.last().unwrap().1, plus);
                assert!(next.len() > 100, "{} names behind them", next.len());
            }
        }
    }
}
