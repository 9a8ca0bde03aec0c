//! One test per rule about names, links and renames.

use crate::support::{Machine, ROOT_CRED, Short, USER};
use terrane_posix::{Attr, Cred, Errno, Fs, RENAME_EXCHANGE, RENAME_NOREPLACE, SetAttr, mode};
use terrane_wire::Prng;

fn machine() -> Machine {
    Machine::new(1, &[])
}

fn nlink(fs: &Fs, ino: u64) -> u32 {
    fs.getattr(ino).unwrap().nlink
}

#[test]
fn a_new_file_system_is_an_empty_directory() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let attr = fs.getattr(root).unwrap();
    assert_eq!((attr.mode, attr.nlink, attr.size, attr.uid), (0o040_755, 2, 2, 0));
    assert_eq!(fs.names(root), Vec::<String>::new());
    assert_eq!(fs.ino(root, ".."), Ok(root));
    assert_eq!(fs.ino(root, "."), Ok(root));
    assert_eq!(fs.ino(root, "x"), Err(Errno::ENOENT));
}

#[test]
fn names_are_1_to_255_bytes_without_slash_and_nul() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let long = "n".repeat(255);
    fs.file(root, &long);
    fs.dir(root, &"d".repeat(255));
    assert!(fs.ino(root, &long).is_ok());
    let too_long = "n".repeat(256);
    assert_eq!(fs.create(root, too_long.as_bytes(), 0o644, &USER), Err(Errno::ENAMETOOLONG));
    assert_eq!(fs.lookup(root, too_long.as_bytes()), Err(Errno::ENAMETOOLONG));
    assert_eq!(fs.rename(root, long.as_bytes(), root, too_long.as_bytes(), 0), Err(Errno::ENAMETOOLONG));
    assert_eq!(fs.unlink(root, too_long.as_bytes()), Err(Errno::ENAMETOOLONG));
    assert_eq!(fs.create(root, b"", 0o644, &USER), Err(Errno::ENOENT));
    assert_eq!(fs.create(root, b"a/b", 0o644, &USER), Err(Errno::EINVAL));
    assert_eq!(fs.mkdir(root, b"a\0b", 0o644, &USER), Err(Errno::EINVAL));
    assert_eq!(fs.mkdir(root, b"..", 0o755, &USER), Err(Errno::EEXIST));
}

#[test]
fn existing_names_are_not_created_again() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f");
    assert_eq!(fs.create(root, b"f", 0o644, &USER), Err(Errno::EEXIST));
    assert_eq!(fs.mkdir(root, b"f", 0o755, &USER), Err(Errno::EEXIST));
    assert_eq!(fs.symlink(root, b"f", b"x", &USER), Err(Errno::EEXIST));
    assert_eq!(fs.mknod(root, b"f", 0o010_644, 0, &USER), Err(Errno::EEXIST));
    assert_eq!(fs.link(file.ino, root, b"f"), Err(Errno::EEXIST));
}

#[test]
fn a_file_is_no_directory() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    assert_eq!(fs.lookup(file, b"x"), Err(Errno::ENOTDIR));
    assert_eq!(fs.lookup(file, b".."), Err(Errno::ENOTDIR));
    assert_eq!(fs.create(file, b"x", 0o644, &USER), Err(Errno::ENOTDIR));
    assert_eq!(fs.readdir(file, 0, &mut |_| true), Err(Errno::ENOTDIR));
    assert_eq!(fs.rmdir(root, b"f"), Err(Errno::ENOTDIR));
    assert_eq!(fs.rename(root, b"f", file, b"x", 0), Err(Errno::ENOTDIR));
    assert_eq!(fs.tmpfile(file, 0o600, &USER), Err(Errno::ENOTDIR));
}

#[test]
fn a_directory_is_no_file() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let dir = fs.dir(root, "d").ino;
    assert_eq!(fs.unlink(root, b"d"), Err(Errno::EISDIR));
    assert_eq!(fs.link(dir, root, b"e"), Err(Errno::EPERM));
    assert_eq!(fs.size(dir, 0), Err(Errno::EISDIR));
    assert_eq!(fs.read(dir, 0, 1, &mut Vec::new()), Err(Errno::EISDIR));
    assert_eq!(fs.write(dir, 0, b"x", Default::default()), Err(Errno::EISDIR));
    assert_eq!(fs.readlink(dir), Err(Errno::EINVAL));
    assert_eq!(fs.mknod(root, b"e", 0o040_755, 0, &USER), Err(Errno::EPERM));
}

#[test]
fn directories_count_their_subdirectories_and_entries() {
    let mut m = machine();
    let root = m.fs().root();
    let dir = m.fs().dir(root, "d").ino;
    for i in 0..3 {
        m.fs().dir(dir, &format!("s{i}"));
        m.fs().file(dir, &format!("f{i}"));
    }
    for _ in 0..2 {
        let attr = m.fs().getattr(dir).unwrap();
        assert_eq!((attr.nlink, attr.size), (5, 8));
        assert_eq!(nlink(m.fs(), root), 3);
        m.remount();
    }
    let fs = m.fs();
    fs.rmdir(dir, b"s0").unwrap();
    fs.unlink(dir, b"f0").unwrap();
    fs.rename(dir, b"s1", root, b"s1", 0).unwrap();
    let attr = fs.getattr(dir).unwrap();
    assert_eq!((attr.nlink, attr.size), (3, 5));
    assert_eq!(nlink(fs, root), 4);
}

#[test]
fn only_empty_directories_go() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let dir = fs.dir(root, "d").ino;
    fs.file(dir, "f");
    assert_eq!(fs.rmdir(root, b"d"), Err(Errno::ENOTEMPTY));
    assert_eq!(fs.rmdir(root, b"."), Err(Errno::EINVAL));
    assert_eq!(fs.rmdir(dir, b".."), Err(Errno::ENOTEMPTY));
    assert_eq!(fs.rmdir(root, b"x"), Err(Errno::ENOENT));
    fs.unlink(dir, b"f").unwrap();
    fs.rmdir(root, b"d").unwrap();
    assert_eq!(fs.names(root), Vec::<String>::new());
}

#[test]
fn nothing_is_made_in_a_removed_directory() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let (dir, file) = (fs.dir(root, "d").ino, fs.file(root, "f").ino);
    fs.rmdir(root, b"d").unwrap();
    assert_eq!(nlink(fs, dir), 0);
    assert_eq!(fs.create(dir, b"x", 0o644, &USER), Err(Errno::ENOENT));
    assert_eq!(fs.mkdir(dir, b"x", 0o755, &USER), Err(Errno::ENOENT));
    assert_eq!(fs.link(file, dir, b"x"), Err(Errno::ENOENT));
    assert_eq!(fs.rename(root, b"f", dir, b"x", 0), Err(Errno::ENOENT));
    assert_eq!(fs.tmpfile(dir, 0o600, &USER), Err(Errno::ENOENT));
    fs.forget(dir, 1);
    assert_eq!(fs.getattr(dir), Err(Errno::ESTALE));
}

#[test]
fn an_empty_directory_has_no_block() {
    let mut m = machine();
    let root = m.fs().root();
    let dir = m.fs().dir(root, "d").ino;
    for i in 0..3000 {
        m.fs().file(dir, &format!("a file with a name {i}"));
    }
    m.remount();
    assert!(m.fs().getattr(dir).unwrap().blocks > 0);
    for i in 0..3000 {
        m.fs().unlink(dir, format!("a file with a name {i}").as_bytes()).unwrap();
    }
    m.remount();
    let attr = m.fs().getattr(dir).unwrap();
    assert_eq!((attr.blocks, attr.size), (0, 2));
    m.fs().file(dir, "again");
    assert_eq!(m.fs().names(dir), ["again"]);
}

#[test]
fn an_unlinked_file_lives_until_it_is_forgotten() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    assert_eq!(fs.ino(root, "f"), Ok(file));
    fs.put(file, 0, b"still here");
    fs.unlink(root, b"f").unwrap();
    assert_eq!(nlink(fs, file), 0);
    assert_eq!(fs.bytes(file), b"still here");
    fs.put(file, 10, b" and written");
    assert_eq!(fs.bytes(file).len(), 22);
    assert_eq!(fs.link(file, root, b"g"), Err(Errno::ENOENT), "it had a name, and lost it");
    assert_eq!(fs.unlinked_count(), Ok(1));
    let objects = m.fs().statfs().files - m.fs().statfs().files_free;
    fs.forget(file, 1);
    assert_eq!(fs.unlinked_count(), Ok(0));
    assert_eq!(fs.getattr(file), Err(Errno::ESTALE));
    assert_eq!(m.fs().statfs().files - m.fs().statfs().files_free, objects - 1);
    assert_eq!(fs.cached_inodes(), 0);
}

#[test]
fn unlinked_and_never_forgotten_files_are_destroyed_at_the_next_mount() {
    let mut m = machine();
    let root = m.fs().root();
    let objects = m.fs().statfs().files - m.fs().statfs().files_free;
    let file = m.fs().file(root, "f").ino;
    m.fs().put(file, 0, &[1; 5000]);
    m.fs().unlink(root, b"f").unwrap();
    m.remount_unforgotten();
    assert_eq!(m.fs().getattr(file), Err(Errno::ESTALE));
    assert_eq!(m.fs().statfs().files - m.fs().statfs().files_free, objects);
}

#[test]
fn a_crash_destroys_what_had_no_name() {
    let mut m = machine();
    let root = m.fs().root();
    let file = m.fs().file(root, "f").ino;
    let temporary = m.fs().tmpfile(root, 0o600, &USER).unwrap().ino;
    let dir = m.fs().dir(root, "d").ino;
    m.fs().put(file, 0, &[1; 5000]);
    m.fs().unlink(root, b"f").unwrap();
    m.fs().rmdir(root, b"d").unwrap();
    m.fs().sync().unwrap();
    assert_eq!(m.fs().unlinked_count(), Ok(3));
    m.crash();
    assert_eq!(m.fs().unlinked_count(), Ok(0));
    for ino in [file, temporary, dir] {
        assert_eq!(m.fs().getattr(ino), Err(Errno::ESTALE));
    }
}

#[test]
fn draining_skips_objects_in_use() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    fs.unlink(root, b"f").unwrap();
    while fs.drain_unlinked().unwrap() {}
    assert_eq!(nlink(fs, file), 0);
    assert_eq!(fs.unlinked_count(), Ok(1));
}

#[test]
fn a_thousand_unlinked_files_are_drained_in_steps() {
    let mut m = machine();
    let root = m.fs().root();
    for _ in 0..1000 {
        m.fs().tmpfile(root, 0o600, &USER).unwrap();
    }
    m.fs().sync().unwrap();
    m.crash();
    assert_eq!(m.fs().unlinked_count(), Ok(1000 - 256));
    while m.fs().drain_unlinked().unwrap() {}
    assert_eq!(m.fs().unlinked_count(), Ok(0));
}

#[test]
fn a_temporary_file_can_be_given_a_name() {
    let mut m = machine();
    let root = m.fs().root();
    let file = m.fs().tmpfile(root, 0o640, &USER).unwrap();
    assert_eq!((file.nlink, file.mode), (0, 0o100_640));
    m.fs().put(file.ino, 0, b"data");
    assert_eq!(m.fs().link(file.ino, root, b"named").unwrap().nlink, 1);
    assert_eq!(m.fs().unlinked_count(), Ok(0));
    m.remount();
    assert_eq!(m.fs().ino(root, "named"), Ok(file.ino));
    assert_eq!(m.fs().bytes(file.ino), b"data");
}

#[test]
fn hard_links_share_everything() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let dir = fs.dir(root, "d").ino;
    let before = fs.file(root, "f");
    let after = fs.link(before.ino, dir, b"g").unwrap();
    assert_eq!((after.ino, after.nlink), (before.ino, 2));
    assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    fs.unlink(root, b"f").unwrap();
    assert_eq!(nlink(fs, before.ino), 1);
    assert_eq!(fs.ino(dir, "g"), Ok(before.ino));
    let link = fs.symlink(root, b"s", b"d", &USER).unwrap();
    assert_eq!(fs.link(link.ino, root, b"t").unwrap().nlink, 2);
}

/// More than 65,000, the limit of other file systems.
#[test]
fn a_file_can_have_more_names_than_16_bits_count() {
    let mut m = machine();
    let file = m.fs().file(m.fs().root(), "f").ino;
    for i in 0..66_000 {
        m.fs().link(file, m.fs().root(), format!("l{i}").as_bytes()).unwrap();
        m.fs().forget(file, 1);
    }
    assert_eq!(nlink(m.fs(), file), 66_001);
    m.remount();
    assert_eq!(nlink(m.fs(), file), 66_001);
}

#[test]
fn renames_move_and_replace() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let (a, b) = (fs.dir(root, "a").ino, fs.dir(root, "b").ino);
    let (file, other) = (fs.file(a, "f").ino, fs.file(b, "g").ino);
    fs.rename(a, b"f", b, b"f", 0).unwrap();
    assert_eq!((fs.names(a), fs.names(b)), (vec![], vec!["f".to_string(), "g".to_string()]));
    fs.rename(b, b"f", b, b"g", 0).unwrap();
    assert_eq!((fs.names(b), fs.ino(b, "g")), (vec!["g".to_string()], Ok(file)));
    assert_eq!((nlink(fs, other), nlink(fs, file)), (0, 1));
    assert_eq!(fs.getattr(b).unwrap().size, 3);
    assert_eq!(fs.rename(a, b"none", b, b"x", 0), Err(Errno::ENOENT));
    assert_eq!(fs.rename(b, b"g", b, b"h", 4), Err(Errno::EINVAL));
    assert_eq!(fs.rename(b, b".", b, b"h", 0), Err(Errno::EBUSY));
    fs.rename(b, b"g", b, b"g", 0).unwrap();
    assert_eq!(fs.names(b), ["g"]);
}

#[test]
fn a_rename_can_leave_a_whiteout() {
    let mut m = machine();
    let (a, b, file) = {
        let fs = m.fs();
        let (a, b) = (fs.dir(fs.root(), "a").ino, fs.dir(fs.root(), "b").ino);
        (a, b, fs.file(a, "f").ino)
    };
    let cred = Cred { uid: 5, gid: 6, umask: 0o777 };
    let fs = m.fs();
    let rename = |fs: &Fs, from, name: &str, to, new_name: &str, flags| {
        fs.rename_with_whiteout(from, name.as_bytes(), to, new_name.as_bytes(), flags, &cred)
    };
    let is_whiteout = |fs: &Fs, dir, name: &str| {
        let there = fs.lookup(dir, name.as_bytes()).unwrap();
        (there.mode, there.rdev, there.nlink, there.uid) == (mode::S_IFCHR, 0, 1, 5)
    };
    fs.put(file, 0, b"moves");
    let replaced = fs.file(b, "replaced").ino;
    rename(fs, a, "f", b, "replaced", 0).unwrap();
    assert!(is_whiteout(fs, a, "f"));
    assert_eq!(
        (fs.names(a), fs.names(b), fs.ino(b, "replaced")),
        (vec!["f".into()], vec!["replaced".into()], Ok(file))
    );
    fs.forget(replaced, 1);
    // Within a directory, and moving a directory.
    let dir = fs.dir(b, "d").ino;
    rename(fs, b, "d", b, "e", RENAME_NOREPLACE).unwrap();
    rename(fs, b, "e", a, "d", 0).unwrap();
    assert_eq!((fs.ino(a, "d"), fs.ino(dir, "..")), (Ok(dir), Ok(a)));
    assert!(is_whiteout(fs, b, "d") && is_whiteout(fs, b, "e"));
    assert_eq!([a, b].map(|dir| (nlink(fs, dir), fs.getattr(dir).unwrap().size)), [(3, 4), (2, 5)]);
    // A refused rename leaves nothing behind.
    fs.file(dir, "full");
    fs.dir(b, "empty");
    assert_eq!(rename(fs, b, "empty", a, "d", 0), Err(Errno::ENOTEMPTY));
    assert_eq!(rename(fs, b, "replaced", a, "d", RENAME_NOREPLACE), Err(Errno::EEXIST));
    assert_eq!(rename(fs, b, "replaced", a, "d", RENAME_EXCHANGE), Err(Errno::EINVAL));
    assert_eq!(rename(fs, b, "none", a, "x", 0), Err(Errno::ENOENT));
    assert_eq!(fs.ino(b, "empty").map(|_| ()), Ok(()));
    let objects = m.fs().dataset().object_set().usage().objects;
    m.remount();
    let fs = m.fs();
    assert!(is_whiteout(fs, a, "f") && is_whiteout(fs, b, "e"));
    assert_eq!(fs.bytes(fs.ino(b, "replaced").unwrap()), b"moves");
    assert_eq!(m.fs().dataset().object_set().usage().objects, objects);
    fs.unlink(a, b"f").unwrap();
    assert_eq!(fs.names(a), ["d"]);
}

#[test]
fn a_rename_between_two_links_of_a_file_does_nothing() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    fs.link(file, root, b"g").unwrap();
    fs.rename(root, b"f", root, b"g", 0).unwrap();
    assert_eq!(fs.names(root), ["f", "g"]);
    assert_eq!(nlink(fs, file), 2);
}

#[test]
fn files_do_not_replace_directories_nor_the_other_way_round() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    fs.file(root, "f");
    let full = fs.dir(root, "full").ino;
    fs.file(full, "x");
    fs.dir(root, "d");
    let empty = fs.dir(root, "empty").ino;
    assert_eq!(fs.rename(root, b"f", root, b"d", 0), Err(Errno::EISDIR));
    assert_eq!(fs.rename(root, b"d", root, b"f", 0), Err(Errno::ENOTDIR));
    assert_eq!(fs.rename(root, b"d", root, b"full", 0), Err(Errno::ENOTEMPTY));
    fs.rename(root, b"full", root, b"empty", 0).unwrap();
    assert_eq!((fs.ino(root, "empty"), nlink(fs, empty), nlink(fs, root)), (Ok(full), 0, 4));
}

#[test]
fn a_directory_is_never_below_itself() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let a = fs.dir(root, "a").ino;
    let b = fs.dir(a, "b").ino;
    let c = fs.dir(b, "c").ino;
    assert_eq!(fs.rename(root, b"a", a, b"x", 0), Err(Errno::EINVAL));
    assert_eq!(fs.rename(root, b"a", c, b"x", 0), Err(Errno::EINVAL));
    assert_eq!(fs.rename(b, b"c", root, b"a", 0), Err(Errno::ENOTEMPTY));
    assert_eq!(fs.rename(b, b"c", root, b"a", RENAME_EXCHANGE), Err(Errno::EINVAL));
    fs.rename(a, b"b", root, b"b", 0).unwrap();
    fs.rename(root, b"a", c, b"a", 0).unwrap();
    assert_eq!(fs.ino(a, ".."), Ok(c));
    assert_eq!([root, a, b, c].map(|dir| nlink(fs, dir)), [3, 2, 3, 3]);
}

#[test]
fn noreplace_does_not_replace() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    fs.file(root, "f");
    fs.file(root, "g");
    assert_eq!(fs.rename(root, b"f", root, b"g", RENAME_NOREPLACE), Err(Errno::EEXIST));
    fs.rename(root, b"f", root, b"h", RENAME_NOREPLACE).unwrap();
    assert_eq!(fs.names(root), ["g", "h"]);
    assert_eq!(fs.rename(root, b"g", root, b"h", RENAME_NOREPLACE | RENAME_EXCHANGE), Err(Errno::EINVAL));
}

#[test]
fn exchange_swaps_whatever_there_is() {
    let mut m = machine();
    let root = m.fs().root();
    let (fs, sub) = (m.fs(), m.fs().dir(root, "sub").ino);
    let (dir, file) = (fs.dir(root, "d").ino, fs.file(sub, "f").ino);
    fs.file(dir, "inside");
    assert_eq!(fs.rename(root, b"d", sub, b"none", RENAME_EXCHANGE), Err(Errno::ENOENT));
    fs.rename(root, b"d", sub, b"f", RENAME_EXCHANGE).unwrap();
    m.remount();
    let fs = m.fs();
    assert_eq!((fs.ino(root, "d"), fs.ino(sub, "f"), fs.ino(dir, "..")), (Ok(file), Ok(dir), Ok(sub)));
    assert_eq!([root, sub, dir, file].map(|ino| nlink(fs, ino)), [3, 3, 2, 1]);
    let mut kinds = Vec::new();
    fs.readdir(sub, 2, &mut |entry| {
        kinds.push((entry.ino, entry.kind));
        true
    })
    .unwrap();
    assert_eq!(kinds, [(dir, 4)]);
}

#[test]
fn changes_leave_their_time() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let changed = |ino, change: &dyn Fn()| {
        let before = fs.getattr(ino).unwrap();
        change();
        let after = fs.getattr(ino).unwrap();
        (after.mtime > before.mtime, after.ctime > before.ctime)
    };
    let (dir, file) = (fs.dir(root, "d").ino, fs.file(root, "f").ino);
    let both = (true, true);
    assert_eq!(
        changed(dir, &|| {
            fs.file(dir, "x");
        }),
        both
    );
    assert_eq!(
        changed(dir, &|| {
            fs.dir(dir, "y");
        }),
        both
    );
    assert_eq!(
        changed(dir, &|| {
            fs.link(file, dir, b"l").unwrap();
        }),
        both
    );
    assert_eq!(changed(file, &|| fs.unlink(dir, b"l").unwrap()), (false, true));
    assert_eq!(changed(dir, &|| fs.unlink(dir, b"x").unwrap()), both);
    assert_eq!(changed(dir, &|| fs.rmdir(dir, b"y").unwrap()), both);
    assert_eq!(changed(dir, &|| fs.rename(root, b"f", dir, b"f", 0).unwrap()), both);
    assert_eq!(changed(file, &|| fs.rename(dir, b"f", root, b"f", 0).unwrap()), (false, true));
    assert_eq!(
        changed(root, &|| {
            fs.tmpfile(root, 0o600, &USER).unwrap();
        }),
        (false, false)
    );
    let fresh = fs.file(root, "new");
    assert!(fresh.btime == fresh.mtime && fresh.atime == fresh.ctime && fresh.btime == fresh.ctime);
}

#[test]
fn special_files_keep_type_and_device() {
    let mut m = machine();
    let root = m.fs().root();
    for (name, mode, rdev) in [
        ("block", 0o060_600, 0x801),
        ("char", 0o020_666, 0xfff0_0105),
        ("fifo", 0o010_644, 0),
        ("sock", 0o140_755, 0),
    ] {
        m.fs().mknod(root, name.as_bytes(), mode, rdev, &ROOT_CRED).unwrap();
    }
    assert_eq!(m.fs().mknod(root, b"plain", 0o600, 7, &USER).unwrap().mode, 0o100_600);
    assert_eq!(m.fs().mknod(root, b"bad", 0o170_600, 7, &USER), Err(Errno::EINVAL));
    m.remount();
    let seen = |name: &str| m.fs().getattr(m.fs().ino(root, name).unwrap()).map(|a| (a.mode, a.rdev));
    assert_eq!(seen("block"), Ok((0o060_600, 0x801)));
    assert_eq!(seen("char"), Ok((0o020_666, 0xfff0_0105)));
    assert_eq!(seen("fifo"), Ok((0o010_644, 0)));
    assert_eq!(seen("sock"), Ok((0o140_755, 0)));
    let mut kinds = std::collections::BTreeMap::new();
    m.fs().readdir(root, 2, &mut |e| kinds.insert(e.name.to_vec(), e.kind).is_none()).unwrap();
    assert_eq!(kinds.values().copied().collect::<Vec<_>>(), [6, 2, 1, 8, 12]);
    let fifo = m.fs().ino(root, "fifo").unwrap();
    assert_eq!(m.fs().write(fifo, 0, b"x", Default::default()), Err(Errno::EINVAL));
}

#[test]
fn symbolic_links_hold_up_to_4095_bytes() {
    let mut m = machine();
    let root = m.fs().root();
    let target = |len: usize| (0..len).map(|i| b'a' + (i % 26) as u8).collect::<Vec<u8>>();
    let lens = [1, 160, 161, 512, 4095];
    for len in lens {
        let attr = m.fs().symlink(root, format!("s{len}").as_bytes(), &target(len), &USER).unwrap();
        assert_eq!((attr.mode, attr.size), (0o120_777, len as u64));
    }
    assert_eq!(m.fs().symlink(root, b"x", &target(4096), &USER), Err(Errno::ENAMETOOLONG));
    assert_eq!(m.fs().symlink(root, b"x", b"", &USER), Err(Errno::ENOENT));
    m.remount();
    for len in lens {
        assert_eq!(m.fs().readlink(m.fs().ino(root, &format!("s{len}")).unwrap()), Ok(target(len)));
    }
    let file = m.fs().file(root, "f").ino;
    assert_eq!(m.fs().readlink(file), Err(Errno::EINVAL));
}

#[test]
fn set_gid_directories_pass_their_group_on() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let dir = fs.dir(root, "d").ino;
    let set = SetAttr { mode: Some(0o2775), gid: Some(7), ..SetAttr::default() };
    fs.setattr(dir, &set, &ROOT_CRED).unwrap();
    let shown = |attr: Attr| (attr.mode, attr.uid, attr.gid);
    assert_eq!(shown(fs.file(dir, "f")), (0o100_644, 1000, 7));
    assert_eq!(shown(fs.dir(dir, "s")), (0o042_755, 1000, 7));
    assert_eq!(shown(fs.tmpfile(dir, 0o600, &USER).unwrap()), (0o100_600, 1000, 7));
    assert_eq!(shown(fs.symlink(dir, b"l", b"t", &USER).unwrap()), (0o120_777, 1000, 7));
    assert_eq!(shown(fs.file(root, "g")), (0o100_644, 1000, 100));
}

#[test]
fn a_number_that_comes_again_has_another_generation() {
    let mut m = machine();
    let root = m.fs().root();
    let mut seen = std::collections::BTreeSet::new();
    let mut again = 0;
    for round in 0..60 {
        let attr = m.fs().file(root, "f");
        again += usize::from(seen.iter().any(|(ino, _)| *ino == attr.ino));
        assert!(seen.insert((attr.ino, attr.generation)), "{attr:?}");
        match round % 4 {
            // Clients that know it may still use it. Its number is reused, because it was never committed.
            0 => {
                m.crash();
                continue;
            }
            1 => m.remount(),
            2 => m.fs().sync().unwrap(),
            _ => {}
        }
        m.fs().unlink(root, b"f").unwrap();
        m.fs().forget(attr.ino, 1);
        m.fs().sync().unwrap();
    }
    assert!(again > 30, "numbers came again only {again} times");
}

#[test]
fn readdir_plus_counts_the_lookups_it_returned() {
    let mut m = Machine::new(41, &[]);
    let root = m.fs().root();
    for n in 0..40 {
        let ino = m.fs().create(root, format!("f{n}").as_bytes(), 0o640, &ROOT_CRED).unwrap().ino;
        m.fs().forget(ino, 1);
    }
    m.remount();
    let fs = m.fs();
    let mut listed = Vec::new();
    fs.readdir_plus(root, 0, &mut |entry, attr| {
        let is_dots = entry.name == b"." || entry.name == b"..";
        assert_eq!(attr.is_none(), is_dots);
        if let Some(attr) = attr {
            assert_eq!((attr.ino, attr.mode & 0o7777), (entry.ino, 0o640));
            if listed.len() == 25 {
                // Does not fit any more: not returned, and not counted.
                return false;
            }
            listed.push(attr.ino);
        }
        true
    })
    .unwrap();
    assert_eq!(listed.len(), 25);
    // Unlinked inodes live as long as the kernel knows them.
    for n in 0..40 {
        fs.unlink(root, format!("f{n}").as_bytes()).unwrap();
    }
    assert!(listed.iter().all(|ino| fs.getattr(*ino).is_ok()));
    for ino in &listed {
        fs.forget(*ino, 1);
    }
    assert_eq!((fs.cached_inodes(), fs.unlinked_count()), (0, Ok(0)), "each was counted once");
}

#[test]
fn lookups_and_forgets_balance() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    fs.lookup(root, b"f").unwrap();
    fs.link(file, root, b"g").unwrap();
    assert_eq!(fs.cached_inodes(), 1);
    fs.forget(file, 2);
    assert_eq!(fs.cached_inodes(), 1);
    fs.forget(file, 1);
    assert_eq!(fs.cached_inodes(), 0);
    fs.lookup(root, b"f").unwrap();
    fs.lookup(root, b".").unwrap();
    fs.forget_all();
    assert_eq!(fs.cached_inodes(), 0);
    assert_eq!(fs.getattr(file).unwrap().nlink, 2);
    assert_eq!(fs.cached_inodes(), 0, "a look leaves nothing behind");
}

#[test]
fn objects_that_are_no_files_are_no_inodes() {
    let m = machine();
    let root = m.fs().root();
    for ino in (0..root).chain([root + 1, u64::MAX]) {
        assert_eq!(m.fs().getattr(ino), Err(Errno::ESTALE), "{ino}");
    }
}

#[test]
fn a_walk_shows_each_name_once_while_others_come_and_go() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let mut rng = Prng::new(7);
    for round in 0..3 {
        let dir = fs.dir(root, &format!("d{round}")).ino;
        let stays: Vec<String> = (0..1500).map(|i| format!("stays-{i}")).collect();
        for name in &stays {
            fs.file(dir, name);
        }
        let (mut seen, mut offset, mut churn) = (Vec::new(), 0, 0);
        loop {
            let mut left = 1 + rng.below(40);
            let mut more = false;
            fs.readdir(dir, offset, &mut |entry| {
                if left == 0 {
                    more = true;
                    return false;
                }
                left -= 1;
                offset = entry.next;
                assert!(offset < 1 << 62);
                seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            })
            .unwrap();
            if !more {
                break;
            }
            for _ in 0..20 {
                fs.file(dir, &format!("comes-{churn}"));
                churn += 1;
            }
            for i in churn - 20..churn - 10 {
                fs.unlink(dir, format!("comes-{i}").as_bytes()).unwrap();
            }
        }
        assert_eq!(seen[..2], [".", ".."]);
        let mut shown: Vec<_> = seen.iter().filter(|name| name.starts_with("stays")).cloned().collect();
        shown.sort();
        let mut expected = stays;
        expected.sort();
        assert_eq!(shown, expected);
    }
}

#[test]
fn no_lock_is_held_while_names_are_listed() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    fs.file(root, "f");
    fs.readdir(root, 0, &mut |entry| {
        let cred = Cred::default();
        fs.create(root, format!("next-{}", entry.next % 97).as_bytes(), 0o600, &cred).is_ok()
            || fs.lookup(root, entry.name).is_ok()
    })
    .unwrap();
}

#[test]
fn indexes_of_directories_stay_within_their_bound() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let (bound, dirs, names) = (64 << 10, 30, 500);
    fs.set_index_bytes_max(bound);
    let name = |n: usize| format!("file-{n:04}").into_bytes();
    let inos: Vec<u64> =
        (0..dirs).map(|n| fs.mkdir(root, format!("d{n}").as_bytes(), 0o755, &USER).unwrap().ino).collect();
    let mut most = 0;
    for n in 0..names {
        for dir in &inos {
            let file = fs.create(*dir, &name(n), 0o644, &USER).unwrap().ino;
            fs.forget(file, 1);
            most = most.max(fs.index_bytes());
        }
    }
    let one = names * 12;
    assert!(most > bound / 2 && most <= bound + one, "{most} bytes");
    // Dropped indexes are rebuilt when useful, and others are dropped for them.
    for dir in &inos {
        for n in (0..names).chain(0..40) {
            let file = fs.lookup(*dir, &name(n)).unwrap().ino;
            fs.forget(file, 1);
            assert!(fs.index_bytes() <= bound + one, "{} bytes", fs.index_bytes());
        }
        assert!(fs.index_bytes() >= names * 8, "who is used has one");
        assert_eq!(fs.lookup(*dir, b"none"), Err(Errno::ENOENT));
    }
    fs.set_index_bytes_max(0);
    assert!(fs.index_bytes() <= one, "all but the last are gone");
    assert_eq!(fs.index_count(), 1);
    inos.iter().for_each(|dir| fs.forget(*dir, 1));
    fs.set_idle_inodes_max(0);
    fs.forget_all();
    assert_eq!((fs.index_bytes(), fs.index_count()), (0, 0), "what an inode counted goes with it");
}

#[test]
fn inodes_known_to_the_kernel_are_evicted_without_loss() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let count = 66_000u64;
    let inos: Vec<u64> =
        (0..count).map(|n| fs.create(root, format!("f{n}").as_bytes(), 0o644, &USER).unwrap().ino).collect();
    assert_eq!(fs.cached_inodes() as u64, count, "the kernel was told of all of them");
    assert!(fs.inodes_in_memory() < 40_000, "{} are in memory whole", fs.inodes_in_memory());
    fs.set_idle_inodes_max(1024);
    assert!(
        fs.inodes_in_memory() < 1100,
        "a smaller bound holds at once: {} are in memory whole",
        fs.inodes_in_memory()
    );
    for (n, ino) in inos.iter().enumerate().step_by(97) {
        assert_eq!(fs.getattr(*ino).unwrap().ino, *ino);
        fs.unlink(root, format!("f{n}").as_bytes()).unwrap();
        assert_eq!(nlink(fs, *ino), 0, "unlinked, and still known to the kernel");
    }
    for ino in &inos {
        fs.forget(*ino, 1);
    }
    assert!(fs.cached_inodes() <= 1);
    for (n, ino) in inos.iter().enumerate() {
        let unlinked = n % 97 == 0;
        assert_eq!(fs.getattr(*ino).is_err(), unlinked, "object {ino}");
    }
}
