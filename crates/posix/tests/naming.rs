//! File systems that require UTF-8, normalize names, or ignore case.

use crate::support::{Machine, Short, USER};
use std::collections::BTreeMap;
use terrane_posix::{Errno, RENAME_EXCHANGE, RENAME_NOREPLACE};
use terrane_wire::Prng;

const COMPOSED: &str = "na\u{ef}ve";
const DECOMPOSED: &str = "nai\u{308}ve";

#[test]
fn case_is_ignored_and_kept() {
    let mut m = Machine::new(1, &[("casesensitivity", "insensitive")]);
    let root = m.fs().root();
    let file = m.fs().file(root, "Foo");
    let dir = m.fs().dir(root, "Dir");
    for spelling in ["Foo", "foo", "FOO"] {
        assert_eq!(m.fs().ino(root, spelling), Ok(file.ino));
        assert_eq!(m.fs().create(root, spelling.as_bytes(), 0o644, &USER), Err(Errno::EEXIST));
        assert_eq!(m.fs().mkdir(root, spelling.as_bytes(), 0o755, &USER), Err(Errno::EEXIST));
        assert_eq!(m.fs().link(file.ino, root, spelling.as_bytes()), Err(Errno::EEXIST));
        assert_eq!(m.fs().symlink(root, spelling.as_bytes(), b"x", &USER), Err(Errno::EEXIST));
    }
    assert_eq!(m.fs().names(root), ["Dir", "Foo"]);
    let inner = m.fs().file(dir.ino, "x");
    m.remount();
    let root = m.fs().root();
    assert_eq!(m.fs().ino(root, "foo"), Ok(file.ino));
    assert_eq!(m.fs().ino(dir.ino, "X"), Ok(inner.ino), "directories made later are so as well");
    assert_eq!(m.fs().rmdir(root, b"DIR"), Err(Errno::ENOTEMPTY));
    m.fs().unlink(dir.ino, b"X").unwrap();
    m.fs().rmdir(root, b"DIR").unwrap();
    m.fs().unlink(root, b"FOO").unwrap();
    assert_eq!(m.fs().names(root), Vec::<String>::new());
    assert_eq!(m.fs().getattr(root).unwrap().size, 2);
    assert_eq!(m.fs().ino(root, "Foo"), Err(Errno::ENOENT));
    // A directory that was emptied keeps its rules.
    m.fs().file(root, "again");
    assert!(m.fs().ino(root, "AGAIN").is_ok());
}

#[test]
fn a_rename_spells_the_name_as_it_says() {
    let mut m = Machine::new(2, &[("casesensitivity", "insensitive")]);
    let (fs, root) = (m.fs(), m.fs().root());
    let (foo, bar) = (fs.file(root, "foo"), fs.file(root, "bar"));
    for (to, flags) in [("Foo", 0), ("FOO", RENAME_NOREPLACE), ("FOO", 0)] {
        fs.rename(root, b"foo", root, to.as_bytes(), flags).unwrap();
        assert_eq!(fs.names(root), [to.to_string(), "bar".to_string()]);
        assert_eq!((fs.ino(root, "foo"), fs.getattr(foo.ino).unwrap().nlink), (Ok(foo.ino), 1));
        assert_eq!(fs.getattr(root).unwrap().size, 4);
    }
    assert_eq!(fs.rename(root, b"bar", root, b"foo", RENAME_NOREPLACE), Err(Errno::EEXIST));
    fs.rename(root, b"BAR", root, b"foo", RENAME_EXCHANGE).unwrap();
    assert_eq!(fs.names(root), ["FOO", "bar"], "an exchange changes no name");
    assert_eq!((fs.ino(root, "foo"), fs.ino(root, "bar")), (Ok(bar.ino), Ok(foo.ino)));
    // The moved name replaces the target and its spelling.
    fs.rename(root, b"BAR", root, b"fOO", 0).unwrap();
    assert_eq!(fs.names(root), ["fOO"]);
    assert_eq!(fs.ino(root, "FOO"), Ok(foo.ino));
    let sub = fs.dir(root, "Sub");
    fs.rename(root, b"foo", root, b"SUB/".strip_suffix(b"/").unwrap(), 0).unwrap_err();
    fs.rename(root, b"foo", sub.ino, b"Foo", 0).unwrap();
    // Two names of one file stay separate.
    fs.link(foo.ino, sub.ino, b"other").unwrap();
    fs.rename(sub.ino, b"FOO", sub.ino, b"OTHER", 0).unwrap();
    assert_eq!(fs.names(sub.ino), ["Foo", "other"]);
    assert_eq!(fs.names(root), ["Sub"]);
    m.remount();
    assert_eq!(m.fs().names(sub.ino), ["Foo", "other"]);
}

#[test]
fn mixed_keeps_names_apart_that_differ_in_case() {
    let m = Machine::new(3, &[("casesensitivity", "mixed"), ("normalization", "formD")]);
    let (fs, root) = (m.fs(), m.fs().root());
    let (foo, shouted) = (fs.file(root, "foo"), fs.file(root, "FOO"));
    assert_eq!((fs.ino(root, "foo"), fs.ino(root, "FOO")), (Ok(foo.ino), Ok(shouted.ino)));
    assert_eq!(fs.ino(root, "Foo"), Err(Errno::ENOENT));
    let naive = fs.file(root, COMPOSED);
    assert_eq!(fs.ino(root, DECOMPOSED), Ok(naive.ino), "forms are one name still");
    fs.unlink(root, b"foo").unwrap();
    assert_eq!((fs.ino(root, "foo"), fs.ino(root, "FOO")), (Err(Errno::ENOENT), Ok(shouted.ino)));
    assert!(fs.has_one_spelling(b"foo") && !fs.has_one_spelling(COMPOSED.as_bytes()));
}

#[test]
fn forms_are_one_name_and_case_is_not() {
    for form in ["formC", "formD", "formKC", "formKD"] {
        let m = Machine::new(4, &[("normalization", form)]);
        let (fs, root) = (m.fs(), m.fs().root());
        let file = fs.file(root, DECOMPOSED);
        assert_eq!(fs.ino(root, COMPOSED), Ok(file.ino));
        assert_eq!(fs.create(root, COMPOSED.as_bytes(), 0o644, &USER), Err(Errno::EEXIST));
        assert_eq!(fs.ino(root, &COMPOSED.to_uppercase()), Err(Errno::ENOENT));
        assert_eq!(fs.names(root), [DECOMPOSED], "{form}: stored as it was given");
        fs.rename(root, COMPOSED.as_bytes(), root, COMPOSED.as_bytes(), 0).unwrap();
        fs.rename(root, DECOMPOSED.as_bytes(), root, COMPOSED.as_bytes(), 0).unwrap();
        assert_eq!(fs.names(root), [COMPOSED]);
        let compatible = fs.ino(root, "na\u{ef}\u{ff56}e") == Ok(file.ino);
        assert_eq!(compatible, form.starts_with("formK"));
    }
}

#[test]
fn what_is_no_utf8_cannot_be_made_and_is_not_there() {
    for props in [("utf8only", "on"), ("normalization", "formC")] {
        let m = Machine::new(5, &[props]);
        let (fs, root) = (m.fs(), m.fs().root());
        let (bad, file) = (b"bad\xff", fs.file(root, "good"));
        assert_eq!(fs.create(root, bad, 0o644, &USER), Err(Errno::EILSEQ));
        assert_eq!(fs.mkdir(root, bad, 0o755, &USER), Err(Errno::EILSEQ));
        assert_eq!(fs.mknod(root, bad, 0o010_644, 0, &USER), Err(Errno::EILSEQ));
        assert_eq!(fs.symlink(root, bad, b"x", &USER), Err(Errno::EILSEQ));
        assert_eq!(fs.link(file.ino, root, bad), Err(Errno::EILSEQ));
        assert_eq!(fs.rename(root, b"good", root, bad, 0), Err(Errno::EILSEQ));
        assert_eq!(fs.lookup(root, bad), Err(Errno::ENOENT));
        assert_eq!(fs.unlink(root, bad), Err(Errno::ENOENT));
        assert_eq!(fs.rename(root, b"good", root, bad, RENAME_EXCHANGE), Err(Errno::ENOENT));
        fs.symlink(root, b"link", bad, &USER).unwrap();
        assert_eq!(fs.names(root), ["good", "link"], "what a symbolic link says is no name");
    }
    let m = Machine::new(6, &[("casesensitivity", "insensitive")]);
    let made = m.fs().create(m.fs().root(), b"bad\xff", 0o644, &USER).unwrap();
    assert_eq!(m.fs().lookup(m.fs().root(), b"BAD\xff").map(|attr| attr.ino), Ok(made.ino));
}

#[test]
fn directories_of_any_size_are_maps_of_normalized_names() {
    let mut m = Machine::new(7, &[("casesensitivity", "insensitive"), ("normalization", "formC")]);
    let (root, mut rng, mut model) = (m.fs().root(), Prng::new(7), BTreeMap::new());
    let spelled = |word: u64, spelling: u64| match spelling {
        0 => format!("name {word} \u{e9}"),
        1 => format!("NAME {word} \u{c9}"),
        _ => format!("Name {word} e\u{301}"),
    };
    for round in 0..3 {
        // The kernel holds a lookup: the directory stays in memory with its index.
        m.fs().lookup(root, b".").unwrap();
        for _ in 0..4000 {
            let (fs, word) = (m.fs(), rng.below(3000));
            let name = spelled(word, rng.below(3));
            match rng.below(5) {
                0 => assert_eq!(fs.unlink(root, name.as_bytes()).is_ok(), model.remove(&word).is_some()),
                1 => {
                    let moved = fs.rename(root, name.as_bytes(), root, spelled(word, 1).as_bytes(), 0);
                    assert_eq!(moved.is_ok(), model.contains_key(&word));
                    // A rename to the same bytes changes nothing.
                    if name != spelled(word, 1) {
                        model.entry(word).and_modify(|stored| *stored = spelled(word, 1));
                    }
                }
                2 => {
                    let stored = fs.lookup(root, name.as_bytes()).is_ok();
                    assert_eq!(stored, model.contains_key(&word));
                }
                _ => {
                    let made = fs.create(root, name.as_bytes(), 0o644, &USER);
                    assert_eq!(made.is_ok(), !model.contains_key(&word), "{name}");
                    model.entry(word).or_insert(name);
                }
            }
        }
        let mut stored: Vec<String> = model.values().cloned().collect();
        stored.sort();
        for _ in 0..2 {
            let listed = m.fs().names(root);
            let differs = listed.iter().zip(&stored).find(|(listed, stored)| listed != stored);
            assert_eq!((listed.len(), differs), (stored.len(), None), "round {round}");
            m.remount();
        }
    }
}
