//! Programs that run as their owner, on a mount.
//!
//! A user who changes such a program must not get the identity that it runs under: neither through what is
//! stored, nor through the mode that the kernel remembers.

use crate::support::{NOBODY, TestDir, as_user, can_mount, identity, is_root};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags, copy_file_range, fallocate, getxattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Bytes behind the program's own, which can change without breaking it.
const TAIL_BYTES: usize = 65536;
const CAPABILITY: &str = "security.capability";
/// CAP_NET_RAW, permitted and effective, as `setcap` writes it.
const CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Of a file whose tail begins at this offset.
type Change = fn(&Path, u64);
const CHANGES: [(&str, Change); 11] = [
    ("write", |program, _| write(program, OFlags::empty())),
    ("write, O_SYNC", |program, _| write(program, OFlags::SYNC)),
    ("write, O_DIRECT", write_directly),
    ("truncate", |program, tail| opened(program, OFlags::empty()).set_len(tail + 10).unwrap()),
    ("O_TRUNC", |program, _| fs::write(program, fs::read(program).unwrap()).unwrap()),
    ("copy_file_range", copy),
    ("fallocate", |program, tail| allocate(program, FallocateFlags::empty(), tail)),
    ("fallocate, size kept", |program, tail| allocate(program, FallocateFlags::KEEP_SIZE, tail)),
    ("punch", |program, tail| {
        allocate(program, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, tail)
    }),
    ("zero", |program, tail| allocate(program, FallocateFlags::ZERO_RANGE, tail)),
    ("zero, size kept", |program, tail| {
        allocate(program, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, tail);
    }),
];

fn opened(program: &Path, flags: OFlags) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(program).unwrap()
}

fn write(program: &Path, flags: OFlags) {
    opened(program, flags).write_all_at(b"\x7f", 0).unwrap();
}

fn write_directly(program: &Path, _: u64) {
    let mut buf = vec![0; 8192];
    let at = buf.as_ptr().align_offset(4096);
    let page = &mut buf[at..at + 4096];
    let file = opened(program, OFlags::DIRECT);
    file.read_exact_at(page, 0).unwrap();
    file.write_all_at(page, 0).unwrap();
}

fn copy(program: &Path, tail: u64) {
    let file = opened(program, OFlags::empty());
    assert_eq!(copy_file_range(&file, Some(&mut 0), &file, Some(&mut (tail + 1000)), 100), Ok(100));
}

fn allocate(program: &Path, mode: FallocateFlags, tail: u64) {
    fallocate(opened(program, OFlags::empty()), mode, tail, 4096).unwrap();
}

fn mode(program: &Path) -> u32 {
    fs::metadata(program).unwrap().mode() & 0o7777
}

/// A copy of `id` that everybody may change, and that runs as root. Returns where its tail begins.
fn new_program(program: &Path) -> u64 {
    let tail = fs::copy("/usr/bin/id", program).unwrap();
    File::options().append(true).open(program).unwrap().write_all(&[0; TAIL_BYTES]).unwrap();
    fs::set_permissions(program, Permissions::from_mode(0o6757)).unwrap();
    File::open(program).unwrap().sync_all().unwrap();
    assert_eq!(identity(program), [0, 0], "a set-id program runs as its owner");
    tail
}

fn no_change_gives_away_the_owners_identity(name: &str, words: &str) {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run(&format!("mount tank mnt -o {words}"), 0);
    for (change, call) in CHANGES {
        let program = dir.path("mnt").join(change);
        let tail = new_program(&program);
        as_user(NOBODY, || call(&program, tail));
        assert_eq!(identity(&program), [NOBODY; 2], "{change}: the program runs as its owner");
        assert_eq!(mode(&program), 0o757, "{change}");
        setxattr(&program, CAPABILITY, &CAPABILITIES, XattrFlags::empty()).unwrap();
        as_user(NOBODY, || call(&program, tail));
        let capabilities = getxattr(&program, CAPABILITY, &mut [0; 64][..]);
        assert_eq!(capabilities, Err(Errno::NODATA), "{change}: capabilities stay");
    }
    // Stored as well.
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt", 0);
    for (change, _) in CHANGES {
        let program = dir.path("mnt").join(change);
        assert_eq!((mode(&program), identity(&program)), (0o757, [NOBODY; 2]), "{change}: after a new mount");
    }
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_program_that_another_user_changed_does_not_run_as_its_owner() {
    no_change_gives_away_the_owners_identity("set-ids", "rw");
}

#[test]
fn nor_does_one_that_was_changed_past_the_page_cache() {
    no_change_gives_away_the_owners_identity("set-ids-direct", "direct_io");
}
