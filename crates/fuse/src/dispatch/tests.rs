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
