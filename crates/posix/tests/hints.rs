//! Write hints: all ways to set one, inheritance, and persistence.

use crate::support::{Machine, ROOT_CRED, Short, USER};
use terrane_posix::{Errno, Fs, Ino, SetXattr, WRITE_HINT, XATTR_LIST_MAX};
use terrane_space::policy::Hint;
use terrane_wire::ObjectId;

const ANY: SetXattr = SetXattr { create: false, replace: false, kill_sgid: false };

fn set(fs: &Fs, ino: Ino, word: &str) -> Result<(), Errno> {
    fs.setxattr(ino, WRITE_HINT, word.as_bytes(), ANY, &USER)
}

fn get(fs: &Fs, ino: Ino) -> Result<String, Errno> {
    let mut value = Vec::new();
    fs.getxattr(ino, WRITE_HINT, &mut value)?;
    Ok(String::from_utf8(value).unwrap())
}

fn listed(fs: &Fs, ino: Ino) -> String {
    let mut names = Vec::new();
    fs.listxattr(ino, &|| true, &mut names).unwrap();
    String::from_utf8(names).unwrap().replace('\0', " ")
}

/// The hint with which the file's blocks are placed now.
fn stored_with(m: &Machine, ino: Ino) -> Hint {
    m.fs().put(ino, 0, b"bytes");
    m.fs().dataset().object_set().hold(ObjectId(ino)).unwrap().hint()
}

#[test]
fn a_hint_is_an_extended_attribute_wherever_those_lie() {
    for placement in ["sa", "dir"] {
        let mut m = Machine::new(51, &[("xattr", placement)]);
        let file = m.fs().file(m.fs().root(), "f").ino;
        let objects = m.fs().dataset().object_set().usage().objects;
        assert_eq!(get(m.fs(), file), Err(Errno::ENODATA));
        assert_eq!(m.fs().removexattr(file, WRITE_HINT), Err(Errno::ENODATA));
        assert_eq!(listed(m.fs(), file), "");
        for hint in Hint::ALL.into_iter().filter(|hint| *hint != Hint::NotSet) {
            set(m.fs(), file, hint.name()).unwrap();
            assert_eq!((get(m.fs(), file).as_deref(), stored_with(&m, file)), (Ok(hint.name()), hint));
        }
        for word in ["", "SHORT", "short\n", "short\0", "6", "ever", "\u{fe}"] {
            assert_eq!(set(m.fs(), file, word), Err(Errno::EINVAL), "{word:?}");
        }
        assert_eq!(get(m.fs(), file).unwrap(), "extreme", "what was refused changed nothing");
        m.fs().setxattr(file, b"user.other", b"1", ANY, &USER).unwrap();
        assert_eq!(listed(m.fs(), file), "user.terrane.write_hint user.other ");
        m.fs().removexattr(file, b"user.other").unwrap();
        m.remount();
        assert_eq!((get(m.fs(), file).unwrap().as_str(), stored_with(&m, file)), ("extreme", Hint::Extreme));
        m.fs().sync().unwrap();
        m.crash();
        assert_eq!(get(m.fs(), file).unwrap(), "extreme");
        assert_eq!(m.fs().dataset().object_set().usage().objects, objects, "it takes no object");
        m.fs().removexattr(file, WRITE_HINT).unwrap();
        assert_eq!((get(m.fs(), file), stored_with(&m, file)), (Err(Errno::ENODATA), Hint::NotSet));
        set(m.fs(), file, "long").unwrap();
        set(m.fs(), file, "not-set").unwrap();
        assert_eq!((get(m.fs(), file), listed(m.fs(), file).as_str()), (Err(Errno::ENODATA), ""));
    }
}

#[test]
fn refusals_are_those_of_other_attributes() {
    let mut m = Machine::new(52, &[]);
    let root = m.fs().root();
    let file = m.fs().file(root, "f").ino;
    let how = |create, replace| SetXattr { create, replace, ..ANY };
    let put = |m: &Machine, create, replace| {
        m.fs().setxattr(file, WRITE_HINT, b"short", how(create, replace), &USER)
    };
    assert_eq!(put(&m, false, true), Err(Errno::ENODATA));
    assert_eq!(put(&m, true, false), Ok(()));
    let before = m.fs().getattr(file).unwrap();
    assert_eq!(put(&m, true, false), Err(Errno::EEXIST));
    assert_eq!(m.fs().getattr(file).unwrap(), before);
    assert_eq!(put(&m, false, true), Ok(()));
    let after = m.fs().getattr(file).unwrap();
    assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    let link = m.fs().symlink(root, b"l", b"f", &USER).unwrap().ino;
    let fifo = m.fs().mknod(root, b"p", 0o010_644, 0, &USER).unwrap().ino;
    for special in [link, fifo] {
        assert_eq!(
            (set(m.fs(), special, "short"), get(m.fs(), special)),
            (Err(Errno::EPERM), Err(Errno::ENODATA))
        );
        assert_eq!(m.fs().set_write_hint(special, Hint::Short), Err(Errno::EINVAL));
        assert_eq!(m.fs().write_hint(special), Err(Errno::EINVAL));
    }
    // Without extended attributes, the call still works.
    m.fs().dataset().set("xattr", "off").unwrap();
    m.remount();
    assert_eq!(
        (set(m.fs(), file, "long"), get(m.fs(), file)),
        (Err(Errno::EOPNOTSUPP), Err(Errno::EOPNOTSUPP))
    );
    assert_eq!(m.fs().write_hint(file), Ok(Hint::Short));
    assert_eq!(m.fs().set_write_hint(file, Hint::Medium), Ok(()));
    assert_eq!(stored_with(&m, file), Hint::Medium);
}

#[test]
fn new_files_and_directories_take_their_directorys() {
    let mut m = Machine::new(53, &[]);
    let root = m.fs().root();
    let old = m.fs().file(root, "old").ino;
    let dir = m.fs().dir(root, "dir").ino;
    set(m.fs(), dir, "short").unwrap();
    let made = |m: &Machine, dir: Ino, round: u32| {
        let name = |what: &str| format!("{what}{round}").into_bytes();
        let file = m.fs().create(dir, &name("f"), 0o644, &USER).unwrap().ino;
        let below = m.fs().mkdir(dir, &name("d"), 0o755, &USER).unwrap().ino;
        let tmp = m.fs().tmpfile(dir, 0o600, &ROOT_CRED).unwrap().ino;
        m.fs().link(tmp, dir, &name("t")).unwrap();
        let link = m.fs().symlink(dir, &name("l"), b"x", &USER).unwrap().ino;
        m.fs().put(file, 0, b"bytes");
        (file, below, tmp, link)
    };
    let (file, below, tmp, link) = made(&m, dir, 1);
    let (second, ..) = made(&m, below, 2);
    let all = [(old, Hint::NotSet), (file, Hint::Short), (tmp, Hint::Short), (second, Hint::Short)];
    m.fs().sync().unwrap();
    for step in 0..3 {
        assert_eq!(m.fs().write_hint(dir), Ok(Hint::Short));
        for (ino, hint) in all {
            assert_eq!(
                (m.fs().write_hint(ino), stored_with(&m, ino)),
                (Ok(hint), hint),
                "step {step} inode {ino}"
            );
        }
        assert_eq!(listed(m.fs(), link), "");
        if step == 0 { m.remount() } else { m.crash() }
    }
    // A change applies to files created later; a file moved in keeps its own hint.
    set(m.fs(), dir, "long").unwrap();
    m.fs().rename(root, b"old", dir, b"old", 0).unwrap();
    assert_eq!((m.fs().write_hint(file), m.fs().write_hint(old)), (Ok(Hint::Short), Ok(Hint::NotSet)));
    let (file, below, ..) = made(&m, dir, 3);
    assert_eq!((m.fs().write_hint(file), m.fs().write_hint(below)), (Ok(Hint::Long), Ok(Hint::Long)));
    m.fs().removexattr(dir, WRITE_HINT).unwrap();
    let (file, ..) = made(&m, dir, 4);
    assert_eq!(m.fs().write_hint(file), Ok(Hint::NotSet));
}

#[test]
fn a_call_says_the_same_and_leaves_times_alone() {
    let mut m = Machine::new(54, &[]);
    let file = m.fs().file(m.fs().root(), "f").ino;
    let before = m.fs().getattr(file).unwrap();
    m.fs().set_write_hint(file, Hint::Medium).unwrap();
    assert_eq!(m.fs().getattr(file).unwrap(), before);
    assert_eq!(get(m.fs(), file).unwrap(), "medium");
    m.fs().sync().unwrap();
    m.crash();
    assert_eq!(m.fs().write_hint(file), Ok(Hint::Medium));
    m.fs().set_write_hint(file, Hint::NotSet).unwrap();
    assert_eq!(get(m.fs(), file), Err(Errno::ENODATA));
}

#[test]
fn the_property_applies_to_files_without_a_hint() {
    let mut m = Machine::new(55, &[("write_hint", "long")]);
    let policy = |m: &Machine| m.fs().dataset().object_set().policy().write_hint;
    let file = m.fs().file(m.fs().root(), "f").ino;
    assert_eq!(
        (policy(&m), stored_with(&m, file), get(m.fs(), file)),
        (Hint::Long, Hint::NotSet, Err(Errno::ENODATA))
    );
    m.remount();
    assert_eq!(policy(&m), Hint::Long);
    m.fs().dataset().set("write_hint", "none").unwrap();
    assert_eq!(policy(&m), Hint::None);
    assert!(m.fs().dataset().set("write_hint", "forever").is_err());
    m.fs().dataset().reset("write_hint").unwrap();
    assert_eq!(policy(&m), Hint::NotSet);
}

#[test]
fn the_hints_name_counts_in_the_list_of_names() {
    let m = Machine::new(56, &[]);
    let file = m.fs().file(m.fs().root(), "f").ino;
    let name = |at: usize| format!("user.{at:0250}");
    let most = XATTR_LIST_MAX / 256;
    let put = |at: usize| m.fs().setxattr(file, name(at).as_bytes(), b"", ANY, &USER);
    (0..most - 1).for_each(|at| put(at).unwrap());
    set(m.fs(), file, "short").unwrap();
    assert_eq!(put(most), Err(Errno::ENOSPC));
    assert_eq!(set(m.fs(), file, "long"), Ok(()), "no name is added");
    assert_eq!(listed(m.fs(), file).len(), (most - 1) * 256 + WRITE_HINT.len() + 1);
    m.fs().removexattr(file, WRITE_HINT).unwrap();
    put(most).unwrap();
    assert_eq!(set(m.fs(), file, "short"), Err(Errno::ENOSPC));
    assert_eq!(listed(m.fs(), file).len(), XATTR_LIST_MAX);
}
