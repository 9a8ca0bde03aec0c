//! Effects of ACLs on files, compared with ext4, and how ACLs are stored and lost.

#[allow(dead_code, reason = "its main is run by hand")]
#[path = "../examples/acl_vectors.rs"]
mod acl_vectors;

use crate::support::{Machine, ROOT_CRED, USER};
use acl_vectors::{Kind, List, Outcome, Seen, Subject};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_posix::{ACL_ACCESS, ACL_DEFAULT, Attr, Cred, Errno, Fs, Ino, SetAttr, SetXattr, Time};

fn set(fs: &Fs, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    fs.setxattr(ino, name, value, SetXattr::default(), &ROOT_CRED)
}

fn get(fs: &Fs, ino: Ino, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    match fs.getxattr(ino, name, &mut value) {
        Ok(()) => Some(value),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => None,
        Err(errno) => panic!("{errno}"),
    }
}

fn seen(fs: &Fs, ino: Ino) -> Seen {
    let Attr { mode, ctime: Time { secs, nanos }, .. } = fs.getattr(ino).unwrap();
    let (access, default) = (get(fs, ino, ACL_ACCESS), get(fs, ino, ACL_DEFAULT));
    Seen { mode: mode & 0o7777, access, default, ctime: (secs, nanos) }
}

fn make(fs: &Fs, dir: Ino, name: &[u8], kind: Kind, mode: u32, umask: u32) -> Result<Attr, Errno> {
    let cred = Cred { umask, ..ROOT_CRED };
    match kind {
        Kind::File => fs.create(dir, name, mode, &cred),
        Kind::Dir => fs.mkdir(dir, name, mode, &cred),
        Kind::Fifo => fs.mknod(dir, name, 0o010_000 | mode, 0, &cred),
        Kind::Symlink => fs.symlink(dir, name, b"target", &cred),
        Kind::Tmp => fs.tmpfile(dir, mode, &cred),
    }
}

fn remove(fs: &Fs, dir: Ino, name: &[u8]) {
    match fs.unlink(dir, name) {
        Err(Errno::EISDIR) => fs.rmdir(dir, name).unwrap(),
        other => other.unwrap(),
    }
}

fn chmod(fs: &Fs, ino: Ino, mode: u32) -> Result<(), Errno> {
    fs.setattr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() }, &ROOT_CRED).map(drop)
}

/// A file in the root directory.
struct InProcess {
    machine: Machine,
    file: Option<Ino>,
    /// Remounts after each change, so that everything is read back from the device.
    remounts: bool,
}

impl InProcess {
    fn changed(&mut self) {
        if self.remounts {
            self.machine.remount();
        }
    }
}

impl Subject for InProcess {
    fn begin(&mut self, kind: Kind, mode: u32) {
        let fs = self.machine.fs();
        if self.file.is_some() {
            remove(fs, fs.root(), b"file");
        }
        self.file = Some(make(fs, fs.root(), b"file", kind, mode, 0).unwrap().ino);
        self.changed();
    }

    fn set(&mut self, list: List, value: Option<&[u8]>) -> Outcome<()> {
        let (fs, ino, name) = (self.machine.fs(), self.file.unwrap(), list.name().as_bytes());
        let outcome = match value {
            Some(value) => set(fs, ino, name, value),
            None => fs.removexattr(ino, name),
        };
        self.changed();
        outcome.map_err(|errno| errno.0)
    }

    fn chmod(&mut self, mode: u32) -> Outcome<()> {
        let outcome = chmod(self.machine.fs(), self.file.unwrap(), mode);
        self.changed();
        outcome.map_err(|errno| errno.0)
    }

    fn make(&mut self, kind: Kind, mode: u32, umask: u32) -> Outcome<Seen> {
        let (dir, name) = (self.file.unwrap(), b"made");
        let made = make(self.machine.fs(), dir, name, kind, mode, umask).map_err(|errno| errno.0)?;
        if kind != Kind::Tmp {
            self.changed();
        }
        let fs = self.machine.fs();
        let seen = seen(fs, made.ino);
        if kind == Kind::Tmp {
            fs.forget(made.ino, 1);
        } else {
            remove(fs, dir, name);
        }
        Ok(seen)
    }

    fn seen(&mut self) -> Seen {
        seen(self.machine.fs(), self.file.unwrap())
    }
}

/// Compares a page with ext4's. A failure names the first line that differs.
fn compare(page: &str) {
    compare_with(include_str!("golden/acls_of_ext4"), page);
}

fn compare_with(wanted: &str, page: &str) {
    let mut file = "";
    for (at, (wanted, found)) in wanted.lines().zip(page.lines()).enumerate() {
        if !wanted.starts_with(' ') {
            file = wanted;
        }
        assert_eq!(found, wanted, "line {}, {file}", at + 1);
    }
    assert_eq!(page.lines().count(), wanted.lines().count());
}

#[test]
fn lists_and_modes_do_what_they_do_on_ext4() {
    compare(&acl_vectors::page(&mut InProcess {
        machine: Machine::new(1, &[]),
        file: None,
        remounts: false,
    }));
}

#[test]
fn lists_and_modes_on_the_device_are_those_in_memory() {
    let page =
        acl_vectors::page(&mut InProcess { machine: Machine::new(2, &[]), file: None, remounts: true });
    // The clock of a test restarts with each mount.
    let timeless = |page: &str| page.replace(" ctime same", "").replace(" ctime changed", "");
    compare_with(&timeless(include_str!("golden/acls_of_ext4")), &timeless(&page));
}

#[test]
fn where_other_attributes_go_makes_no_difference() {
    for (seed, props) in [(3, ("xattr", "dir")), (4, ("dnodesize", "legacy"))] {
        let machine = Machine::new(seed, &[props]);
        compare(&acl_vectors::page(&mut InProcess { machine, file: None, remounts: false }));
    }
}

type Row = (u16, u16, u32);

const N: u32 = u32::MAX;
/// user::rw- user:1000:rwx group::r-- mask::rwx other::---
const LIST: [Row; 5] = [(1, 6, N), (2, 7, 1000), (4, 4, N), (16, 7, N), (32, 0, N)];

fn value(rows: &[Row]) -> Vec<u8> {
    let mut raw = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in rows {
        raw.extend(tag.to_le_bytes());
        raw.extend(permissions.to_le_bytes());
        raw.extend(id.to_le_bytes());
    }
    raw
}

fn list() -> Vec<u8> {
    value(&LIST)
}

/// `LIST` with another mask and others.
fn list_with(owner: u16, mask: u16, other: u16) -> Vec<u8> {
    let mut rows = LIST;
    (rows[0].1, rows[3].1, rows[4].1) = (owner, mask, other);
    value(&rows)
}

/// An ACL of 4092 bytes, the largest that can be set.
fn long_list() -> Vec<u8> {
    let mut rows = LIST.to_vec();
    rows.splice(1..2, (0..507).map(|id| (2, 5, 2000 + id)));
    value(&rows)
}

fn names(fs: &Fs, ino: Ino) -> String {
    let mut names = Vec::new();
    fs.listxattr(ino, &|| true, &mut names).unwrap();
    String::from_utf8(names).unwrap().replace('\0', " ")
}

fn dir(fs: &Fs, name: &[u8]) -> Ino {
    fs.mkdir(fs.root(), name, 0o755, &ROOT_CRED).unwrap().ino
}

fn file(fs: &Fs, name: &[u8]) -> Ino {
    fs.create(fs.root(), name, 0o640, &ROOT_CRED).unwrap().ino
}

#[test]
fn lists_are_attributes_with_names() {
    let m = Machine::new(5, &[]);
    let fs = m.fs();
    let dir = dir(fs, b"d");
    set(fs, dir, b"user.a", b"1").unwrap();
    set(fs, dir, ACL_ACCESS, &list()).unwrap();
    set(fs, dir, ACL_DEFAULT, &list()).unwrap();
    assert_eq!(names(fs, dir), "user.a system.posix_acl_access system.posix_acl_default ");
    assert_eq!(get(fs, dir, ACL_ACCESS), Some(list()));
    assert_eq!(set(fs, dir, b"system.posix_acl_other", &list()), Err(Errno::EOPNOTSUPP));
    let link = fs.symlink(fs.root(), b"l", b"d", &ROOT_CRED).unwrap().ino;
    assert_eq!(fs.getxattr(link, ACL_ACCESS, &mut Vec::new()), Err(Errno::EOPNOTSUPP));
    assert_eq!(fs.getxattr(fs.root(), ACL_ACCESS, &mut Vec::new()), Err(Errno::ENODATA));
    fs.removexattr(dir, ACL_ACCESS).unwrap();
    fs.removexattr(dir, ACL_ACCESS).unwrap();
    assert_eq!(names(fs, dir), "user.a system.posix_acl_default ");
}

#[test]
fn the_set_group_id_bit_goes_with_the_access_list_when_the_kernel_asks() {
    let m = Machine::new(6, &[]);
    let fs = m.fs();
    let mode = |ino| fs.getattr(ino).unwrap().mode & 0o7777;
    let kill = SetXattr { kill_sgid: true, ..SetXattr::default() };
    let minimal = value(&[LIST[0], LIST[2], LIST[4]]);
    for (value, kept) in [(list(), 0o670), (minimal, 0o640)] {
        let file = file(fs, b"f");
        chmod(fs, file, 0o7777).unwrap();
        set(fs, file, ACL_ACCESS, &value).unwrap();
        assert_eq!(mode(file), 0o7000 | kept);
        fs.setxattr(file, ACL_ACCESS, &value, kill, &ROOT_CRED).unwrap();
        assert_eq!(mode(file), 0o5000 | kept, "also where nothing else changes");
        chmod(fs, file, 0o7777).unwrap();
        fs.setxattr(file, ACL_ACCESS, &[], kill, &ROOT_CRED).unwrap();
        assert_eq!(mode(file), 0o7777, "not when it is removed");
        remove(fs, fs.root(), b"f");
    }
    let dir = dir(fs, b"d");
    chmod(fs, dir, 0o2755).unwrap();
    fs.setxattr(dir, ACL_DEFAULT, &list(), kill, &ROOT_CRED).unwrap();
    assert_eq!(mode(dir), 0o2755, "nor with the default list");
}

#[test]
fn in_a_set_group_id_directory_the_group_is_inherited_as_well() {
    let m = Machine::new(7, &[]);
    let fs = m.fs();
    let parent = fs.mkdir(fs.root(), b"d", 0o755, &Cred { gid: 77, ..ROOT_CRED }).unwrap().ino;
    chmod(fs, parent, 0o2755).unwrap();
    set(fs, parent, ACL_DEFAULT, &list()).unwrap();
    let made = fs.mkdir(parent, b"sub", 0o777, &Cred { umask: 0o077, ..USER }).unwrap();
    assert_eq!((made.mode & 0o7777, made.gid), (0o2670, 77));
    assert_eq!(get(fs, made.ino, ACL_ACCESS), Some(list()));
    assert_eq!(get(fs, made.ino, ACL_DEFAULT), Some(list()));
}

#[test]
fn inherited_lists_lie_in_the_dnode() {
    for (size, slots) in [("auto", [1, 2]), ("legacy", [1, 1])] {
        let m = Machine::new(8, &[("dnodesize", size)]);
        let fs = m.fs();
        let parent = dir(fs, b"d");
        set(fs, parent, ACL_DEFAULT, &list()).unwrap();
        let made = [fs.create(parent, b"f", 0o666, &USER), fs.mkdir(parent, b"d", 0o777, &USER)];
        let objects = made.map(|made| {
            let number = terrane_wire::ObjectId(made.unwrap().ino);
            fs.dataset().object_set().hold(number).unwrap()
        });
        assert_eq!(objects.each_ref().map(|object| object.dnode().slots), slots, "{size}");
        assert_eq!(objects.map(|object| object.has_spill()), [false, size == "legacy"], "{size}");
    }
}

#[test]
fn the_longest_lists_are_kept_and_inherited() {
    let mut m = Machine::new(9, &[]);
    let long = long_list();
    let parent = dir(m.fs(), b"d");
    for list in [ACL_ACCESS, ACL_DEFAULT] {
        set(m.fs(), parent, list, &long).unwrap();
        let longer = [&long[..], &long[4..12]].concat();
        assert_eq!(set(m.fs(), parent, list, &longer), Err(Errno::E2BIG));
    }
    let sub = m.fs().mkdir(parent, b"sub", 0o777, &USER).unwrap().ino;
    let file = m.fs().create(parent, b"f", 0o777, &USER).unwrap().ino;
    m.remount();
    for (ino, default) in [(parent, Some(&long)), (sub, Some(&long)), (file, None)] {
        assert_eq!(get(m.fs(), ino, ACL_ACCESS).as_ref(), Some(&long));
        assert_eq!(get(m.fs(), ino, ACL_DEFAULT).as_ref(), default);
    }
}

#[test]
fn acls_work_if_other_attributes_fill_the_list() {
    let mut m = Machine::new(10, &[]);
    let parent = dir(m.fs(), b"d");
    for name in [b"user.a", b"user.b"] {
        set(m.fs(), parent, name, &[7; 32 << 10][..(65_535 - 300) / 2]).unwrap();
    }
    let free = |m: &Machine| m.fs().dataset().object_set().usage().objects;
    let before = free(&m);
    set(m.fs(), parent, ACL_ACCESS, &long_list()).unwrap();
    set(m.fs(), parent, ACL_DEFAULT, &list()).unwrap();
    assert!(free(&m) > before, "they are objects in a hidden directory");
    chmod(m.fs(), parent, 0o710).unwrap();
    m.remount();
    let mut changed = long_list();
    let at = changed.len() - 2 * 8;
    (changed[6], changed[at + 2], changed[at + 10]) = (7, 1, 0);
    assert_eq!(get(m.fs(), parent, ACL_ACCESS), Some(changed));
    let file = m.fs().create(parent, b"f", 0o666, &Cred { umask: 0o777, ..USER }).unwrap();
    assert_eq!(get(m.fs(), file.ino, ACL_ACCESS), Some(list_with(6, 6, 0)));
    assert_eq!(file.mode & 0o777, 0o660);
    m.fs().removexattr(parent, ACL_ACCESS).unwrap();
    m.fs().removexattr(parent, ACL_DEFAULT).unwrap();
    m.fs().sync().unwrap();
    assert_eq!(names(m.fs(), parent), "user.a user.b ");
}

#[test]
fn an_acl_without_space_does_not_change_the_mode() {
    let m = Machine::new(13, &[]);
    let fs = m.fs();
    let file = file(fs, b"f");
    let mut refused = None;
    for name in 0..300 {
        refused = set(fs, file, format!("user.{name:0250}").as_bytes(), b"").err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(Errno::ENOSPC), "the list of names is full");
    let before = fs.getattr(file).unwrap();
    assert_eq!(set(fs, file, ACL_ACCESS, &list()), Err(Errno::ENOSPC));
    assert_eq!(fs.getattr(file).unwrap(), before);
    set(fs, file, ACL_ACCESS, &value(&[LIST[0], LIST[2], (32, 5, N)])).unwrap();
    assert_eq!(fs.getattr(file).unwrap().mode & 0o777, 0o645, "which needs no room");
}

#[test]
fn without_acltype_lists_are_kept_and_do_nothing() {
    for property in [("acltype", "posix"), ("xattr", "sa")] {
        let mut m = Machine::new(11, &[]);
        let (parent, other) = (dir(m.fs(), b"d"), file(m.fs(), b"f"));
        for (ino, name) in [(parent, ACL_ACCESS), (parent, ACL_DEFAULT), (other, ACL_ACCESS)] {
            set(m.fs(), ino, name, &list()).unwrap();
        }
        let mut turn = |to: &str| {
            m.fs().dataset().set(property.0, to).unwrap();
            m.remount();
            std::sync::Arc::clone(m.fs())
        };
        let fs = turn("off");
        for name in [ACL_ACCESS, ACL_DEFAULT] {
            assert_eq!(fs.getxattr(parent, name, &mut Vec::new()), Err(Errno::EOPNOTSUPP));
            assert_eq!(set(&fs, parent, name, &list()), Err(Errno::EOPNOTSUPP));
            assert_eq!(fs.removexattr(parent, name), Err(Errno::EOPNOTSUPP));
        }
        if property.0 == "acltype" {
            assert_eq!(names(&fs, parent), "");
        }
        let made = fs.create(parent, b"f", 0o666, &Cred { umask: 0o027, ..USER }).unwrap();
        assert_eq!(made.mode & 0o777, 0o640, "by the umask");
        chmod(&fs, other, 0o641).unwrap();
        drop(fs);
        let fs = turn(property.1);
        assert_eq!(get(&fs, made.ino, ACL_ACCESS), None);
        assert_eq!(get(&fs, parent, ACL_DEFAULT), Some(list()));
        assert_eq!(get(&fs, other, ACL_ACCESS), Some(list_with(6, 4, 1)), "what was closed stays closed");
    }
}

#[test]
fn a_file_created_before_a_crash_has_its_acls_or_does_not_exist() {
    let mut m = Machine::new(12, &[]);
    let parent = dir(m.fs(), b"d");
    set(m.fs(), parent, ACL_DEFAULT, &list()).unwrap();
    m.fs().sync().unwrap();
    let made = m.fs().create(parent, b"f", 0o666, &USER).unwrap();
    m.fs().fsync(made.ino, false).unwrap();
    m.fs().create(parent, b"lost", 0o666, &USER).unwrap();
    m.crash();
    assert_eq!(m.fs().lookup(parent, b"lost"), Err(Errno::ENOENT));
    let found = m.fs().lookup(parent, b"f").unwrap();
    assert_eq!((found.mode, get(m.fs(), found.ino, ACL_ACCESS)), (made.mode, Some(list_with(6, 6, 0))));
}

/// The nine mode bits of a file with this ACL: the three rows that `list_with` changes.
fn bits_of(list: &[u8]) -> u32 {
    let permissions = |row: usize| u32::from(list[4 + 8 * row + 2]);
    permissions(0) << 6 | permissions(3) << 3 | permissions(4)
}

/// Repeats: two threads run one function each at the same moment, then `check` checks the result.
fn side_by_side(rounds: u64, one: impl Fn(u64) + Sync, other: impl Fn(u64) + Sync, check: impl Fn(u64)) {
    let (arrived, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    // False: the other thread has ended or failed.
    let meet = |at: u64| {
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < 2 * at && !ended.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        arrived.load(Ordering::SeqCst) >= 2 * at
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _end = End(&ended);
            for round in 0..rounds {
                if !meet(3 * round + 1) {
                    return;
                }
                other(round);
                if !meet(3 * round + 2) || !meet(3 * round + 3) {
                    return;
                }
            }
        });
        let _end = End(&ended);
        for round in 0..rounds {
            if !meet(3 * round + 1) {
                return;
            }
            one(round);
            if !meet(3 * round + 2) {
                return;
            }
            check(round);
            if !meet(3 * round + 3) {
                return;
            }
        }
    });
}

/// Ends the waiting of the other thread, even if this one fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn mode_and_list_stay_one_while_both_are_changed() {
    let m = Machine::with_threads(14);
    let fs = m.fs();
    let parent = dir(fs, b"d");
    set(fs, parent, ACL_ACCESS, &list()).unwrap();
    let digit = |round: u64| (round % 7) as u16;
    side_by_side(
        30_000,
        |round| match round % 2 {
            0 => set(fs, parent, ACL_DEFAULT, &list_with(digit(round), 5, 5)).unwrap(),
            _ => set(fs, parent, ACL_ACCESS, &list_with(digit(round), 1, 7)).unwrap(),
        },
        |round| chmod(fs, parent, 0o111 * (round % 8) as u32).unwrap(),
        |round| {
            let bits = bits_of(&get(fs, parent, ACL_ACCESS).unwrap());
            let mode = fs.getattr(parent).unwrap().mode & 0o777;
            assert_eq!(bits, mode, "round {round}");
            let chmodded = 0o111 * (round % 8) as u32;
            assert!(mode == chmodded || round % 2 == 1, "round {round}: {mode:o}");
        },
    );
}

#[test]
fn a_file_inherits_by_umask_or_acl_despite_concurrent_changes() {
    let m = Machine::with_threads(15);
    let fs = m.fs();
    let parent = dir(fs, b"d");
    side_by_side(
        1000,
        |round| match round % 3 {
            0 => fs.removexattr(parent, ACL_DEFAULT).unwrap(),
            _ => set(fs, parent, ACL_DEFAULT, &list_with((round % 7) as u16, 7, 1)).unwrap(),
        },
        |_| {
            let made = fs.tmpfile(parent, 0o777, &Cred { umask: 0o777, ..USER }).unwrap();
            let list = get(fs, made.ino, ACL_ACCESS);
            assert_eq!(made.mode & 0o777, list.as_deref().map_or(0, bits_of));
            fs.forget(made.ino, 1);
        },
        |_| (),
    );
}
