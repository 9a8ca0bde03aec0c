//! Hint rules of directories: precedence, inheritance, renames, persistence, and damage.

use crate::support::{Machine, ROOT_CRED, Short, USER};
use std::collections::BTreeMap;
use terrane_posix::{
    Errno, Fs, HINT_RULES, HINT_RULES_BYTES_MAX, HintOrigin, Ino, RENAME_EXCHANGE, SetXattr, WRITE_HINT,
};
use terrane_space::policy::Hint;
use terrane_wire::{ObjectId, Prng};

fn put_rules(fs: &Fs, dir: Ino, text: &str) -> Result<(), Errno> {
    fs.setxattr(dir, HINT_RULES, text.as_bytes(), SetXattr::default(), &USER)
}

fn rules(fs: &Fs, dir: Ino) -> Result<String, Errno> {
    let mut value = Vec::new();
    fs.getxattr(dir, HINT_RULES, &mut value)?;
    Ok(String::from_utf8(value).unwrap())
}

fn hint_dir(fs: &Fs, ino: Ino, word: &str) {
    fs.setxattr(ino, WRITE_HINT, word.as_bytes(), SetXattr::default(), &USER).unwrap();
}

fn create(fs: &Fs, dir: Ino, name: &str) -> Ino {
    fs.create(dir, name.as_bytes(), 0o644, &USER).unwrap().ino
}

fn hint(fs: &Fs, ino: Ino) -> (Hint, HintOrigin) {
    fs.write_hint_origin(ino).unwrap()
}

/// The hint with which the file's blocks are placed now.
fn placed_by(fs: &Fs, ino: Ino) -> Hint {
    fs.put(ino, 0, b"bytes");
    fs.dataset().object_set().hold(ObjectId(ino)).unwrap().hint()
}

#[test]
fn a_rule_beats_the_directory_and_a_file_beats_both() {
    for placement in ["sa", "dir"] {
        let mut m = Machine::new(61, &[("xattr", placement)]);
        let dir = m.fs().dir(m.fs().root(), "db").ino;
        put_rules(m.fs(), dir, "*.sst=medium\n*.log=short").unwrap();
        hint_dir(m.fs(), dir, "long");
        let made: BTreeMap<&str, Ino> =
            ["1.sst", "2.log", "LOCK", "3.sst"].map(|name| (name, create(m.fs(), dir, name))).into();
        m.fs().set_write_hint(made["3.sst"], Hint::Extreme).unwrap();
        m.fs().sync().unwrap();
        for step in 0..3 {
            for (name, expected) in [
                ("1.sst", (Hint::Medium, HintOrigin::Rule)),
                ("2.log", (Hint::Short, HintOrigin::Rule)),
                ("LOCK", (Hint::Long, HintOrigin::Directory)),
                ("3.sst", (Hint::Extreme, HintOrigin::File)),
            ] {
                let found = (hint(m.fs(), made[name]), placed_by(m.fs(), made[name]));
                assert_eq!(found, (expected, expected.0), "step {step} {name}");
            }
            assert_eq!(rules(m.fs(), dir).unwrap(), "*.sst=medium\n*.log=short");
            if step == 0 { m.crash() } else { m.remount() }
        }
        // Without rules, files take the directory's hint again. Those that exist keep theirs.
        m.fs().removexattr(dir, HINT_RULES).unwrap();
        assert_eq!(rules(m.fs(), dir), Err(Errno::ENODATA));
        assert_eq!(hint(m.fs(), create(m.fs(), dir, "4.sst")), (Hint::Long, HintOrigin::Directory));
        assert_eq!(hint(m.fs(), made["1.sst"]), (Hint::Medium, HintOrigin::Rule));
    }
}

#[test]
fn new_directories_inherit_the_rules_beside_acls() {
    let mut m = Machine::new(62, &[]);
    let root = m.fs().root();
    let default_acl = [
        &2u32.to_le_bytes()[..],
        &[1, 0, 7, 0, 255, 255, 255, 255],
        &[2, 0, 6, 0, 0xe9, 3, 0, 0],
        &[4, 0, 5, 0, 255, 255, 255, 255],
        &[16, 0, 7, 0, 255, 255, 255, 255],
        &[32, 0, 5, 0, 255, 255, 255, 255],
    ]
    .concat();
    let long_rules = (0..32).map(|at| format!("{at:026}=long")).collect::<Vec<_>>().join("\n");
    assert!(long_rules.len() <= HINT_RULES_BYTES_MAX);
    for (name, text, has_acl) in
        [("a", "*.sst=medium", false), ("b", "*.sst=medium", true), ("c", &long_rules, true)]
    {
        let top = m.fs().dir(root, name).ino;
        put_rules(m.fs(), top, text).unwrap();
        if has_acl {
            m.fs()
                .setxattr(top, terrane_posix::ACL_DEFAULT, &default_acl, SetXattr::default(), &ROOT_CRED)
                .unwrap();
        }
        let below = m.fs().dir(top, "below").ino;
        let deep = m.fs().dir(below, "deep").ino;
        m.fs().sync().unwrap();
        m.crash();
        for dir in [top, below, deep] {
            assert_eq!(rules(m.fs(), dir).as_deref(), Ok(text));
            let mut acl = Vec::new();
            let found = m.fs().getxattr(dir, terrane_posix::ACL_DEFAULT, &mut acl);
            assert_eq!((found.is_ok(), acl == default_acl), (has_acl, has_acl), "{name}");
        }
        let matched = if text.contains("sst") { Hint::Medium } else { Hint::NotSet };
        assert_eq!(hint(m.fs(), create(m.fs(), deep, "1.sst")).0, matched);
        // A change applies to directories that are made later.
        put_rules(m.fs(), top, "*.sst=short").unwrap();
        assert_eq!(rules(m.fs(), below).as_deref(), Ok(text));
        let later = m.fs().dir(top, "later").ino;
        assert_eq!(hint(m.fs(), create(m.fs(), later, "1.sst")), (Hint::Short, HintOrigin::Rule));
    }
}

#[test]
fn refusals() {
    let mut m = Machine::new(63, &[]);
    let root = m.fs().root();
    let dir = m.fs().dir(root, "d").ino;
    let file = create(m.fs(), root, "f");
    for text in ["", "x", "*=ever", "*=not-set", "a/b=long", "*=long\n", "*=long\n*=short"] {
        assert_eq!(put_rules(m.fs(), dir, text), Err(Errno::EINVAL), "{text:?}");
    }
    let too_long = format!("{}\n", "*=long\n".repeat(HINT_RULES_BYTES_MAX / 7));
    assert_eq!(put_rules(m.fs(), dir, &too_long), Err(Errno::EINVAL));
    assert_eq!(put_rules(m.fs(), file, "*=long"), Err(Errno::EINVAL));
    assert_eq!((rules(m.fs(), dir), rules(m.fs(), file)), (Err(Errno::ENODATA), Err(Errno::ENODATA)));
    assert_eq!(hint(m.fs(), create(m.fs(), dir, "x")), (Hint::NotSet, HintOrigin::File));
    put_rules(m.fs(), dir, "*=long").unwrap();
    let how = SetXattr { create: true, ..SetXattr::default() };
    assert_eq!(m.fs().setxattr(dir, HINT_RULES, b"*=short", how, &USER), Err(Errno::EEXIST));
    assert_eq!(hint(m.fs(), create(m.fs(), dir, "y")), (Hint::Long, HintOrigin::Rule));
    // Without extended attributes there are no rules.
    m.fs().dataset().set("xattr", "off").unwrap();
    m.remount();
    assert_eq!(put_rules(m.fs(), dir, "*=short"), Err(Errno::EOPNOTSUPP));
    assert_eq!(hint(m.fs(), create(m.fs(), dir, "z")), (Hint::NotSet, HintOrigin::File));
    let below = m.fs().dir(dir, "below").ino;
    m.fs().dataset().set("xattr", "sa").unwrap();
    m.remount();
    assert_eq!(rules(m.fs(), below), Err(Errno::ENODATA));
    assert_eq!(hint(m.fs(), create(m.fs(), dir, "zz")), (Hint::Long, HintOrigin::Rule));
}

#[test]
fn a_file_without_a_name_is_matched_when_it_gets_one() {
    let m = Machine::new(65, &[]);
    let dir = m.fs().dir(m.fs().root(), "d").ino;
    put_rules(m.fs(), dir, "*.sst=medium").unwrap();
    hint_dir(m.fs(), dir, "short");
    let nameless = || m.fs().tmpfile(dir, 0o600, &ROOT_CRED).unwrap().ino;
    let (table, other, stated) = (nameless(), nameless(), nameless());
    m.fs().set_write_hint(stated, Hint::Extreme).unwrap();
    for (ino, name, expected) in [
        (table, "1.sst", (Hint::Medium, HintOrigin::Rule)),
        (other, "other", (Hint::Short, HintOrigin::Directory)),
        (stated, "2.sst", (Hint::Extreme, HintOrigin::File)),
    ] {
        m.fs().link(ino, dir, name.as_bytes()).unwrap();
        assert_eq!(hint(m.fs(), ino), expected, "{name}");
    }
    // A second name changes nothing.
    m.fs().link(other, dir, b"3.sst").unwrap();
    assert_eq!(hint(m.fs(), other), (Hint::Short, HintOrigin::Directory));
}

/// Data that is not stored yet is placed by the final name, not by the temporary one.
#[test]
fn a_rename_changes_the_hint_of_data_that_waits() {
    let m = Machine::new(67, &[]);
    let root = m.fs().root();
    put_rules(m.fs(), root, "*.tmp=short\n*.sst=long").unwrap();
    let ino = create(m.fs(), root, "1.tmp");
    m.fs().put(ino, 0, b"bytes");
    let object = m.fs().dataset().object_set().hold(ObjectId(ino)).unwrap();
    assert_eq!(object.hint(), Hint::Short);
    m.fs().rename(root, b"1.tmp", root, b"1.sst", 0).unwrap();
    assert_eq!((object.hint(), hint(m.fs(), ino)), (Hint::Long, (Hint::Long, HintOrigin::Rule)));
    m.fs().rename(root, b"1.sst", root, b"1", 0).unwrap();
    assert_eq!((object.hint(), hint(m.fs(), ino).0), (Hint::NotSet, Hint::NotSet));
}

/// The documented precedence, beside random creations, renames, exchanges and changes of rules and hints.
#[test]
fn precedence_is_the_documented_one() {
    #[derive(Clone, Copy)]
    struct Dir {
        ino: Ino,
        /// Hints by suffix `.a` and `.b`.
        rules: Option<[Hint; 2]>,
        hint: Hint,
    }
    let by_rule = |dir: &Dir, name: &str| dir.rules.map(|rules| rules[usize::from(name.ends_with(".b"))]);
    for seed in 0..12 {
        let mut m = Machine::new(660 + seed, &[]);
        let mut rng = Prng::new(seed);
        let root = m.fs().root();
        let mut dirs = ["x", "y", "z"].map(|name| Dir {
            ino: m.fs().dir(root, name).ino,
            rules: None,
            hint: Hint::NotSet,
        });
        let mut files: BTreeMap<(usize, String), (Ino, Hint, HintOrigin)> = BTreeMap::new();
        for step in 0..300 {
            let at = rng.below(3) as usize;
            let name = format!("f{}.{}", rng.below(6), ["a", "b"][rng.below(2) as usize]);
            let known = files.get(&(at, name.clone())).copied();
            let any_hint = Hint::ALL[rng.below(6) as usize];
            match rng.below(8) {
                0 => {
                    let set = [any_hint, Hint::Short];
                    if set[0] == Hint::NotSet {
                        let _ = m.fs().removexattr(dirs[at].ino, HINT_RULES);
                        dirs[at].rules = None;
                    } else {
                        let text = format!("*.a={}\n*.b={}", set[0].name(), set[1].name());
                        put_rules(m.fs(), dirs[at].ino, &text).unwrap();
                        dirs[at].rules = Some(set);
                    }
                }
                1 => {
                    m.fs().set_write_hint(dirs[at].ino, any_hint).unwrap();
                    dirs[at].hint = any_hint;
                }
                2 if known.is_some() => {
                    let (ino, ..) = known.unwrap();
                    m.fs().set_write_hint(ino, any_hint).unwrap();
                    files.insert((at, name), (ino, any_hint, HintOrigin::File));
                }
                3 | 4 if known.is_some() => {
                    let other = rng.below(3) as usize;
                    let new = format!("f{}.{}", rng.below(6), ["a", "b"][rng.below(2) as usize]);
                    let target = files.get(&(other, new.clone())).copied();
                    let is_exchange = target.is_some() && rng.below(2) == 0;
                    let flags = if is_exchange { RENAME_EXCHANGE } else { 0 };
                    let (from, to) = (dirs[at], dirs[other]);
                    m.fs().rename(from.ino, name.as_bytes(), to.ino, new.as_bytes(), flags).unwrap();
                    if (at, &name) == (other, &new) {
                        continue;
                    }
                    let moved = |file: (Ino, Hint, HintOrigin), dir: &Dir, name: &str| {
                        let (ino, hint, origin) = file;
                        match by_rule(dir, name) {
                            _ if origin == HintOrigin::File && hint != Hint::NotSet => file,
                            Some(hint) => (ino, hint, HintOrigin::Rule),
                            None if origin == HintOrigin::Rule => (ino, dir.hint, HintOrigin::Directory),
                            None => file,
                        }
                    };
                    files.remove(&(at, name.clone()));
                    files.insert((other, new.clone()), moved(known.unwrap(), &to, &new));
                    if let Some(target) = target.filter(|_| is_exchange) {
                        files.insert((at, name.clone()), moved(target, &from, &name));
                    }
                }
                _ if known.is_none() => {
                    let ino = create(m.fs(), dirs[at].ino, &name);
                    let made = match by_rule(&dirs[at], &name) {
                        Some(hint) => (ino, hint, HintOrigin::Rule),
                        None => (ino, dirs[at].hint, HintOrigin::Directory),
                    };
                    files.insert((at, name), made);
                }
                _ if step % 50 == 0 => m.remount(),
                _ => {}
            }
            for ((_, name), (ino, word, origin)) in &files {
                let origin = if *word == Hint::NotSet { HintOrigin::File } else { *origin };
                assert_eq!(hint(m.fs(), *ino), (*word, origin), "seed {seed} step {step} {name}");
                if step % 20 == 0 {
                    assert_eq!(placed_by(m.fs(), *ino), *word, "seed {seed} step {step} {name}");
                }
            }
        }
    }
}
