//! What the kernel is told to remember.

use super::replay::tests::{ask, served_with};
use super::*;
use std::sync::Arc;

/// Seconds for which the answer to a lookup may be believed, and whether there is such a name. `None`: not at all, and there is not.
fn believed(dispatch: &Dispatch, name: &[u8]) -> Option<(u64, bool)> {
    let entry = ask(dispatch, false, Request::Lookup { name }).ok()?;
    let word =
        |at: usize| entry.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |raw| u64::from_le_bytes(*raw));
    Some((word(16), word(0) != 0))
}

#[test]
fn a_name_with_several_spellings_is_believed_for_no_time() {
    let for_ever = CachePolicy::default().entry.as_secs();
    let insensitive = [("casesensitivity", "insensitive")];
    for (props, spelled) in
        [(&[][..], for_ever), (&insensitive[..], 0), (&[("normalization", "formC")][..], for_ever)]
    {
        let (dispatch, fs) = served_with(props);
        for name in [&b"foo"[..], b"2026", "na\u{ef}ve".as_bytes()] {
            fs.create(fs.root(), name, 0o644, &Cred::default()).unwrap();
        }
        assert_eq!(believed(&dispatch, b"foo"), Some((spelled, true)), "{props:?}");
        assert_eq!(believed(&dispatch, b"2026"), Some((for_ever, true)), "{props:?}");
        let accented = if props.is_empty() { for_ever } else { 0 };
        assert_eq!(believed(&dispatch, "na\u{ef}ve".as_bytes()), Some((accented, true)), "{props:?}");
        // The same for names that are missing: one day they are made under another spelling.
        assert_eq!(believed(&dispatch, b"2027"), Some((for_ever, false)), "{props:?}");
        assert_eq!(believed(&dispatch, b"bar"), (spelled > 0).then_some((for_ever, false)), "{props:?}");
    }
}

#[test]
fn the_root_directory_stays_in_memory_while_it_is_served() {
    let (dispatch, fs) = served_with(&[]);
    assert_eq!(fs.cached_inodes(), 1);
    assert!(believed(&dispatch, b"missing").is_some());
    assert_eq!(fs.cached_inodes(), 1);
    Handler::end(&dispatch);
    assert_eq!(Arc::clone(&fs).cached_inodes(), 0);
}
