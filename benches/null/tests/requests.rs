//! How many requests a system call costs.
//!
//! This is the kernel's behaviour under our policy, and the basis of every benchmark result. A table that
//! changes with a new kernel is news; one that changes with a commit of ours is mostly a mistake. Where
//! `/dev/fuse` cannot be used the test says so.
//!
//! * GETATTR of a directory follows each change in it. The kernel checks permissions (`default_permissions`)
//!   and invalidates the directory's attributes, because no answer carries them.
//! * LOOKUP precedes each CREATE and MKDIR of a name that the kernel has not cached as missing.
//! * GETXATTR of `security.capability` precedes the first write after every answer that carried the file's
//!   attributes, and every truncation: the kernel must know whether there are capabilities to drop.
//!
//! Only the kernel could save all three; a server without any extended attributes (`ENOSYS`) is spared the
//! last.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use support::Running;
use terrane_fuse::proto::Opcode::{self, *};

#[test]
fn system_calls_cost_as_few_requests_as_the_kernel_allows() {
    let Some(running) = Running::start("requests", "") else { return };
    let at = |name: &str| running.dir.join(name);
    let mut wrong = Vec::new();
    let mut cost = |what: &str, call: &mut dyn FnMut(), expected: &[Opcode]| {
        let ((), asked) = running.asked(call);
        if asked != expected {
            wrong.push(format!("{what}: should cost {expected:?}, found {asked:?}"));
        }
    };
    // Requests that come once per mount, because the answer is ENOSYS.
    fs::create_dir(at("d")).unwrap();
    fs::create_dir(at("e")).unwrap();
    fs::write(at("first"), b"x").unwrap();
    fs::read(at("first")).unwrap();
    fs::read_dir(&running.dir).unwrap().for_each(drop);
    let stat = |name: &str| drop(fs::metadata(at(name)));
    stat("first");
    ["d", "e"].into_iter().for_each(stat);

    cost("the first file", &mut || drop(File::create(at("d/a")).unwrap()), &[Lookup, Create]);
    cost("the next one", &mut || drop(File::create(at("d/b")).unwrap()), &[Getattr, Lookup, Create]);
    cost("stat of a new file, and of its directory", &mut || stat("d/a"), &[Getattr]);
    cost("stat of it again", &mut || stat("d/a"), &[]);
    cost("a small file", &mut || fs::write(at("d/w"), b"data").unwrap(), &[Lookup, Create, Getxattr, Write]);
    cost("stat after a write, and of its directory", &mut || stat("d/w"), &[Getattr, Getattr]);
    cost("reading it", &mut || assert_eq!(fs::read(at("d/w")).unwrap(), b"data"), &[Read]);
    cost(
        "reading it again, by its size",
        &mut || assert_eq!(fs::read(at("d/w")).unwrap(), b"data"),
        &[Getattr],
    );
    cost(
        "writing it anew",
        &mut || fs::write(at("d/w"), b"other").unwrap(),
        &[Getxattr, Setattr, Getxattr, Write],
    );
    let mut append = || OpenOptions::new().append(true).open(at("d/w")).unwrap().write_all(b"x").unwrap();
    cost("appending", &mut append, &[Write]);
    cost("chmod", &mut || fs::set_permissions(at("d/w"), Permissions::from_mode(0o600)).unwrap(), &[Setattr]);
    cost("a name that is not there", &mut || stat("d/no"), &[Lookup]);
    cost("the same name again", &mut || stat("d/no"), &[]);
    cost("a file in its place", &mut || drop(File::create(at("d/no")).unwrap()), &[Create]);
    stat("d");

    cost("rename", &mut || fs::rename(at("d/a"), at("d/r")).unwrap(), &[Lookup, Rename]);
    stat("d");
    cost("rename elsewhere", &mut || fs::rename(at("d/r"), at("e/r")).unwrap(), &[Lookup, Rename]);
    ["d", "e"].into_iter().for_each(stat);
    cost("rename over another", &mut || fs::rename(at("d/b"), at("e/r")).unwrap(), &[Lookup, Rename]);
    ["d", "e"].into_iter().for_each(stat);
    cost("link", &mut || fs::hard_link(at("d/w"), at("e/l")).unwrap(), &[Lookup, Link]);
    stat("e");
    cost("symlink", &mut || symlink("target", at("e/s")).unwrap(), &[Lookup, Symlink]);
    stat("e");
    let mut readlink = || assert_eq!(fs::read_link(at("e/s")).unwrap().as_os_str(), "target");
    cost("readlink", &mut readlink, &[Readlink]);
    cost("readlink again", &mut readlink, &[]);
    cost("unlink", &mut || fs::remove_file(at("e/r")).unwrap(), &[Unlink]);
    cost("another unlink", &mut || fs::remove_file(at("e/l")).unwrap(), &[Getattr, Unlink]);
    stat("e");
    cost("mkdir", &mut || fs::create_dir(at("e/dir")).unwrap(), &[Lookup, Mkdir]);
    stat("e");
    cost("rmdir", &mut || fs::remove_dir(at("e/dir")).unwrap(), &[Rmdir]);
    stat("d");
    let mut list = || assert_eq!(fs::read_dir(at("d")).unwrap().count(), 2);
    cost("listing", &mut list, &[Readdirplus, Readdir]);
    cost("listing again: its time of access has changed", &mut list, &[Getattr]);
    cost("and once more", &mut list, &[]);

    let mut value = [0; 9];
    let mut set = || setxattr(at("d/w"), "user.a", b"value", XattrFlags::empty()).unwrap();
    cost("an extended attribute", &mut set, &[Setxattr]);
    let mut get = || assert_eq!(getxattr(at("d/w"), "user.a", &mut value).unwrap(), 5);
    cost("reading it", &mut get, &[Getxattr]);
    cost("reading it again", &mut get, &[Getxattr]);
    cost("their names", &mut || assert_eq!(listxattr(at("d/w"), &mut [0; 9]).unwrap(), 7), &[Listxattr]);

    let mut file = File::options().read(true).write(true).open(at("d/w")).unwrap();
    cost("open and close", &mut || drop(File::open(at("d/w")).unwrap()), &[]);
    cost(
        "a long write",
        &mut || file.write_all(&vec![1; 3 << 20]).unwrap(),
        &[Getxattr, Write, Write, Write],
    );
    cost("fsync", &mut || file.sync_all().unwrap(), &[Fsync]);
    cost("ftruncate", &mut || file.set_len(10).unwrap(), &[Setattr]);
    let mut text = Vec::new();
    cost("read at the end", &mut || assert_eq!(file.read_to_end(&mut text).unwrap(), 0), &[]);
    drop(file);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    running.end();
}

#[test]
fn a_time_of_birth_is_shown_where_it_is_wished_for() {
    for (words, shown) in [("", false), ("birth_times", true)] {
        let Some(running) = Running::start("birth", words) else { return };
        let path = running.dir.join("file");
        File::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().created().is_ok(), shown);
        running.end();
    }
}
