//! Extended attributes: moves between list and directory, compared with a map; limits; space after files are
//! destroyed.

use crate::support::{Machine, ROOT_CRED, Short, USER};
use std::collections::BTreeMap;
use terrane_posix::{Errno, Fs, Ino, SetXattr, XATTR_LIST_MAX, XATTR_SIZE_MAX};
use terrane_wire::Prng;

const ANY: SetXattr = SetXattr { create: false, replace: false, kill_sgid: false };
const CREATE: SetXattr = SetXattr { create: true, ..ANY };
const REPLACE: SetXattr = SetXattr { replace: true, ..ANY };

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

fn set(fs: &Fs, ino: Ino, name: &str, value: &[u8]) -> Result<(), Errno> {
    fs.setxattr(ino, name.as_bytes(), value, ANY, &USER)
}

fn get(fs: &Fs, ino: Ino, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = Vec::new();
    fs.getxattr(ino, name.as_bytes(), &mut value).map(|()| value)
}

fn names(fs: &Fs, ino: Ino) -> Vec<String> {
    let mut raw = Vec::new();
    fs.listxattr(ino, &|| true, &mut raw).unwrap();
    let mut names: Vec<String> = raw
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8(name.to_vec()).unwrap())
        .collect();
    names.sort();
    names
}

/// All attributes of an inode, read through its list of names.
fn values(fs: &Fs, ino: Ino) -> Values {
    let all = names(fs, ino).into_iter().map(|name| {
        let value = get(fs, ino, &name).unwrap();
        (name.into_bytes(), value)
    });
    all.collect()
}

fn objects(m: &Machine) -> u64 {
    m.fs().sync().unwrap();
    m.fs().dataset().object_set().usage().objects
}

fn object(m: &Machine, ino: Ino) -> std::sync::Arc<terrane_object::Object> {
    m.fs().dataset().object_set().hold(terrane_wire::ObjectId(ino)).unwrap()
}

fn set_placement(m: &Machine, placement: &str) {
    m.fs().dataset().set("xattr", placement).unwrap();
}

#[test]
fn a_value_moves_from_bonus_to_spill_to_a_hidden_directory_and_back() {
    let mut m = Machine::new(31, &[("dnodesize", "legacy")]);
    let file = m.fs().file(m.fs().root(), "f").ino;
    let before = objects(&m);
    // Length, whether there is a spill block, and number of objects beside the file.
    let homes =
        [(100, false, 0), (300, true, 0), (32 << 10, true, 0), ((32 << 10) + 1, false, 2), (1, false, 0)];
    let mut rng = Prng::new(5);
    for (len, spill, more) in homes.into_iter().chain(homes) {
        let value = rng.random_bytes(len);
        set(m.fs(), file, "user.a", &value).unwrap();
        assert_eq!(get(m.fs(), file, "user.a").unwrap(), value, "{len} bytes at once");
        assert_eq!(objects(&m), before + more, "{len} bytes");
        assert_eq!(object(&m, file).has_spill(), spill, "{len} bytes");
        m.remount();
        assert_eq!(get(m.fs(), file, "user.a").unwrap(), value, "{len} bytes after a new mount");
        assert_eq!(names(m.fs(), file), ["user.a"]);
        m.crash();
        assert_eq!(get(m.fs(), file, "user.a").unwrap(), value, "{len} bytes after a crash");
    }
    m.fs().removexattr(file, b"user.a").unwrap();
    assert_eq!(m.fs().removexattr(file, b"user.a"), Err(Errno::ENODATA));
    assert!(names(m.fs(), file).is_empty() && !object(&m, file).has_spill());
    assert_eq!(objects(&m), before);
}

#[test]
fn the_property_decides_about_new_values_alone() {
    let mut m = Machine::new(32, &[]);
    let file = m.fs().file(m.fs().root(), "f").ino;
    let before = objects(&m);
    set(m.fs(), file, "user.list", b"in the list").unwrap();
    set_placement(&m, "dir");
    set(m.fs(), file, "user.dir", b"in a directory").unwrap();
    set(m.fs(), file, "trusted.too", b"").unwrap();
    assert_eq!(objects(&m), before + 3);
    for word in ["dir", "sa"] {
        set_placement(&m, word);
        assert_eq!(get(m.fs(), file, "user.list").unwrap(), b"in the list");
        assert_eq!(get(m.fs(), file, "user.dir").unwrap(), b"in a directory");
        assert_eq!(names(m.fs(), file), ["trusted.too", "user.dir", "user.list"]);
    }
    // When set again, it moves, and is in one place only.
    set(m.fs(), file, "user.dir", b"moved").unwrap();
    assert_eq!(objects(&m), before + 2);
    set_placement(&m, "dir");
    set(m.fs(), file, "user.list", b"moved as well").unwrap();
    assert_eq!(get(m.fs(), file, "user.dir").unwrap(), b"moved");
    assert_eq!(get(m.fs(), file, "user.list").unwrap(), b"moved as well");
    assert_eq!(names(m.fs(), file), ["trusted.too", "user.dir", "user.list"]);
    // The kernel learns only at mount whether there are any.
    set_placement(&m, "off");
    assert_eq!(get(m.fs(), file, "user.dir").unwrap(), b"moved");
    m.remount();
    assert_eq!(get(m.fs(), file, "user.dir"), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(m.fs(), file, "user.dir", b""), Err(Errno::EOPNOTSUPP));
    set_placement(&m, "sa");
    m.remount();
    for name in ["user.dir", "trusted.too", "user.list"] {
        m.fs().removexattr(file, name.as_bytes()).unwrap();
    }
    assert_eq!(objects(&m), before);
}

#[test]
fn refusals_have_the_numbers_of_linux() {
    let m = Machine::new(33, &[]);
    let fs = m.fs();
    let root = fs.root();
    let file = fs.file(root, "f").ino;
    let link = fs.symlink(root, b"l", b"f", &USER).unwrap().ino;
    let fifo = fs.mknod(root, b"p", 0o010_644, 0, &USER).unwrap().ino;
    let long = |bytes: usize| format!("user.{}", "n".repeat(bytes - 5));
    for (name, errno) in [
        ("", Errno::ERANGE),
        (&*long(256), Errno::ERANGE),
        ("user.", Errno::EINVAL),
        ("nobody.a", Errno::EOPNOTSUPP),
        ("plain", Errno::EOPNOTSUPP),
        ("system.a", Errno::EOPNOTSUPP),
    ] {
        assert_eq!(set(fs, file, name, b"v"), Err(errno), "set {name}");
        assert_eq!(get(fs, file, name), Err(errno), "get {name}");
        assert_eq!(fs.removexattr(file, name.as_bytes()), Err(errno), "remove {name}");
    }
    assert_eq!(set(fs, file, &long(255), b"v"), Ok(()));
    assert_eq!(set(fs, file, "user.big", &vec![1; XATTR_SIZE_MAX + 1]), Err(Errno::E2BIG));
    assert_eq!(set(fs, file, "user.big", &vec![1; XATTR_SIZE_MAX]), Ok(()));
    assert_eq!(get(fs, file, "user.none"), Err(Errno::ENODATA));
    assert_eq!(fs.setxattr(file, b"user.c", b"1", REPLACE, &USER), Err(Errno::ENODATA));
    assert_eq!(fs.setxattr(file, b"user.c", b"1", CREATE, &USER), Ok(()));
    let ctime = fs.getattr(file).unwrap().ctime;
    assert_eq!(fs.setxattr(file, b"user.c", b"2", CREATE, &USER), Err(Errno::EEXIST));
    assert_eq!(fs.getattr(file).unwrap().ctime, ctime, "what failed changed nothing");
    assert_eq!(fs.setxattr(file, b"user.c", b"3", REPLACE, &USER), Ok(()));
    assert!(fs.getattr(file).unwrap().ctime > ctime);
    assert_eq!(fs.getattr(file).unwrap().mtime, fs.getattr(file).unwrap().btime);
    assert_eq!(get(fs, file, "user.c").unwrap(), b"3");
    for special in [link, fifo] {
        assert_eq!(set(fs, special, "user.a", b"v"), Err(Errno::EPERM));
        assert_eq!(get(fs, special, "user.a"), Err(Errno::ENODATA));
        assert_eq!(set(fs, special, "trusted.a", b"v"), Ok(()));
        assert_eq!(names(fs, special), ["trusted.a"]);
    }
    let mut shown = Vec::new();
    fs.listxattr(link, &|| false, &mut shown).unwrap();
    assert!(shown.is_empty(), "not for everybody");
    assert_eq!(fs.readlink(link).unwrap(), b"f");
}

#[test]
fn a_long_target_moves_over_for_attributes() {
    let mut m = Machine::new(34, &[("dnodesize", "legacy")]);
    let target = [b't'; 160];
    let link = m.fs().symlink(m.fs().root(), b"l", &target, &USER).unwrap().ino;
    set(m.fs(), link, "trusted.a", &[7; 50]).unwrap();
    assert!(object(&m, link).has_spill());
    assert_eq!(m.fs().readlink(link).unwrap(), target);
    m.remount();
    assert_eq!(m.fs().readlink(link).unwrap(), target);
    m.fs().removexattr(link, b"trusted.a").unwrap();
    assert!(!object(&m, link).has_spill());
    assert_eq!(m.fs().readlink(link).unwrap(), target);
}

#[test]
fn the_list_of_names_is_bounded_and_all_of_them_are_listed() {
    let m = Machine::new(35, &[]);
    let file = m.fs().file(m.fs().root(), "f").ino;
    let before = objects(&m);
    let name = |at: usize| format!("user.{at:0250}");
    let most = XATTR_LIST_MAX / 256;
    for at in 0..most {
        set(m.fs(), file, &name(at), format!("value {at}").as_bytes()).unwrap();
    }
    assert_eq!(set(m.fs(), file, "user.one", b""), Err(Errno::ENOSPC));
    assert_eq!(set(m.fs(), file, &name(3), b"another value"), Ok(()), "no name is added");
    let mut raw = Vec::new();
    m.fs().listxattr(file, &|| true, &mut raw).unwrap();
    assert_eq!(raw.len(), XATTR_LIST_MAX);
    assert!(objects(&m) > before + 1, "they need both homes");
    assert_eq!(get(m.fs(), file, &name(3)).unwrap(), b"another value");
    for at in 0..most {
        m.fs().removexattr(file, name(at).as_bytes()).unwrap();
    }
    assert!(names(m.fs(), file).is_empty());
    assert_eq!(objects(&m), before);
}

#[test]
fn destroying_a_file_frees_its_xattrs() {
    let mut m = Machine::new(36, &[("xattr", "dir")]);
    let root = m.fs().root();
    let before = objects(&m);
    for (count, name) in [(1, "few"), (100, "many")] {
        let file = m.fs().file(root, name).ino;
        for at in 0..count {
            set(m.fs(), file, &format!("user.{at}"), &[1; 600]).unwrap();
        }
        assert_eq!(objects(&m), before + 2 + count);
        m.fs().unlink(root, name.as_bytes()).unwrap();
        assert_eq!(get(m.fs(), file, "user.0").unwrap(), [1; 600], "open files keep theirs");
        m.fs().forget(file, 1);
        assert_eq!(objects(&m), before, "{name}");
    }
    // Unlinked, then the power fails: the next mount frees its space.
    let file = m.fs().file(root, "open").ino;
    for at in 0..40 {
        set(m.fs(), file, &format!("user.{at}"), &[1; 600]).unwrap();
    }
    m.fs().unlink(root, b"open").unwrap();
    m.fs().sync().unwrap();
    m.crash();
    while m.fs().drain_unlinked().unwrap() {}
    assert_eq!(objects(&m), before);
}

#[test]
fn hidden_objects_cannot_be_opened_by_number() {
    let m = Machine::new(37, &[("xattr", "dir")]);
    let file = m.fs().file(m.fs().root(), "f").ino;
    set(m.fs(), file, "user.a", b"value").unwrap();
    let hidden: Vec<Ino> = (1..file + 64)
        .filter(|ino| {
            *ino != file && m.fs().dataset().object_set().hold(terrane_wire::ObjectId(*ino)).is_ok()
        })
        .filter(|ino| m.fs().getattr(*ino).is_ok_and(|attr| attr.ino != m.fs().root()))
        .collect();
    assert_eq!(hidden, []);
}

/// One random change, in file system and model.
fn random_step(m: &Machine, rng: &mut Prng, file: Ino, model: &mut Values) {
    const NAMES: [&str; 6] =
        ["user.a", "user.b", "trusted.c", "security.d", "user.eeeeeeeeeeeeeeeeeeeeeeee", "user.f"];
    const LENGTHS: [u64; 8] = [0, 1, 60, 140, 700, 5000, 33_000, 65_537];
    let name = *rng.one_of(&NAMES);
    let is_there = model.contains_key(name.as_bytes());
    match rng.below(10) {
        0 => set_placement(m, "dir"),
        1 => set_placement(m, "sa"),
        2 | 3 => {
            let expected = if is_there { Ok(()) } else { Err(Errno::ENODATA) };
            assert_eq!(m.fs().removexattr(file, name.as_bytes()), expected, "{name}");
            model.remove(name.as_bytes());
        }
        _ => {
            let most = *rng.one_of(&LENGTHS);
            let len = rng.below(most + 1).min(65_536) as usize;
            let value = if rng.below(2) == 0 { vec![7; len] } else { rng.random_bytes(len) };
            let how = *rng.one_of(&[ANY, ANY, CREATE, REPLACE]);
            let expected = match is_there {
                true if how.create => Err(Errno::EEXIST),
                false if how.replace => Err(Errno::ENODATA),
                _ => Ok(()),
            };
            assert_eq!(m.fs().setxattr(file, name.as_bytes(), &value, how, &ROOT_CRED), expected, "{name}");
            if expected.is_ok() {
                model.insert(name.as_bytes().to_vec(), value);
            }
        }
    }
}

#[test]
fn random_changes_of_homes_are_those_of_a_map() {
    for seed in 0..12 {
        let width = ["legacy", "1k", "auto", "2k"][seed as usize % 4];
        let mut m = Machine::new(100 + seed, &[("dnodesize", width)]);
        let mut rng = Prng::new(seed);
        let before = objects(&m);
        let files: Vec<Ino> = (0..3).map(|at| m.fs().file(m.fs().root(), &format!("f{at}")).ino).collect();
        let mut models = vec![Values::new(); files.len()];
        let mut committed = models.clone();
        for step in 0..160 {
            let at = rng.below(files.len() as u64) as usize;
            random_step(&m, &mut rng, files[at], &mut models[at]);
            let shown = values(m.fs(), files[at]);
            assert!(
                shown == models[at],
                "seed {seed} step {step}: {:?} is not {:?}",
                shown.keys(),
                models[at].keys()
            );
            if step % 20 == 13 {
                m.fs().sync().unwrap();
                committed.clone_from(&models);
            }
            if step % 40 == 39 {
                if rng.below(2) == 0 {
                    m.remount();
                } else {
                    m.crash();
                    models.clone_from(&committed);
                }
                committed.clone_from(&models);
                for (file, model) in files.iter().zip(&models) {
                    assert!(values(m.fs(), *file) == *model, "seed {seed} step {step} after a new mount");
                }
            }
        }
        for at in 0..files.len() {
            m.fs().unlink(m.fs().root(), format!("f{at}").as_bytes()).unwrap();
        }
        m.fs().forget_all();
        while m.fs().drain_unlinked().unwrap() {}
        assert_eq!(objects(&m), before, "seed {seed}: nothing is left");
    }
}

#[test]
fn the_privilege_check_runs_without_locks() {
    let m = Machine::new(38, &[]);
    let file = m.fs().file(m.fs().root(), "f").ino;
    for name in ["user.a", "trusted.b", "user.trusted.c", "trusted.d", "security.e"] {
        set(m.fs(), file, name, b"value").unwrap();
    }
    let calls = std::cell::Cell::new(0);
    let list = |answer: bool| {
        let mut raw = b"before\0".to_vec();
        let is_admin = || {
            calls.set(calls.get() + 1);
            // This would block forever if a lock were held.
            set(m.fs(), file, "user.a", b"another value").unwrap();
            answer
        };
        m.fs().listxattr(file, &is_admin, &mut raw).unwrap();
        String::from_utf8(raw).unwrap()
    };
    let all = list(true);
    assert_eq!(all.matches('\0').count(), 6);
    assert_eq!(list(false).matches("trusted.").count(), 1, "a name of a user");
    assert!(list(false).starts_with("before\0") && list(false).matches('\0').count() == 4);
    assert_eq!(calls.get(), 4);
}
