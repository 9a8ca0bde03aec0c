use super::acls::mode_of;
use super::privileges::{chmod, chown};
use crate::checker::{CaseError, Checker, Done, directory};
use crate::describe::Bits;
use crate::person::{ANN, BOB, CREW};
use crate::xattr::{self, ACCESS, DEFAULT, Entry, acl};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chownat, mkdirat, mknodat, openat};
use rustix::io::Errno;
use rustix::process::{Gid, umask};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

fn created(path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::from_raw_mode(mode))
}

fn made(dir: &Path, name: &str, mode: u32) -> Result<PathBuf, CaseError> {
    let path = dir.join(name);
    created(&path, mode)?;
    Ok(path)
}

/// BOB has all rights, whatever the others have.
fn default(owner: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    use Entry::*;
    acl(&[Owner(owner), User(BOB.uid, 7), Group(group), Mask(mask), Other(other)])
}

pub fn inherit(j: &mut Checker, dir: &Path) -> Done {
    let d = directory(dir, "d")?;
    let given = default(7, 5, 7, 0);
    xattr::set(&d, DEFAULT, &given)?;
    umask(Mode::from_raw_mode(0o077));
    let f = made(&d, "f", 0o666)?;
    j.check("file: ACL", xattr::get(&f, ACCESS), default(6, 5, 6, 0));
    j.check("file: mode, and no umask", mode_of(&f)?, Bits(0o660));
    j.check("file: has no default", xattr::list(&f), xattr::listed(&[ACCESS]));
    let narrow = made(&d, "narrow", 0o640)?;
    j.check("file 0640: ACL", xattr::get(&narrow, ACCESS), default(6, 5, 4, 0));
    j.check("file 0640: mode", mode_of(&narrow)?, Bits(0o640));
    let none = made(&d, "none", 0)?;
    j.check("file 0: ACL", xattr::get(&none, ACCESS), default(0, 5, 0, 0));
    let sub = d.join("sub");
    mkdirat(CWD, &sub, Mode::from_raw_mode(0o777))?;
    j.check("directory: access ACL", xattr::get(&sub, ACCESS), given.clone());
    j.check("directory: default ACL", xattr::get(&sub, DEFAULT), given.clone());
    j.check("directory: mode", mode_of(&sub)?, Bits(0o770));
    let deep = made(&sub, "deep", 0o644)?;
    j.check("below: ACL", xattr::get(&deep, ACCESS), default(6, 5, 4, 0));
    let fifo = d.join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o644), 0)?;
    j.check("fifo: ACL", xattr::get(&fifo, ACCESS), default(6, 5, 4, 0));
    let device = d.join("device");
    mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o600), rustix::fs::makedev(1, 3))?;
    j.check("device: ACL", xattr::get(&device, ACCESS), default(6, 5, 0, 0));
    std::os::unix::fs::symlink("f", d.join("l"))?;
    j.check("symlink: none", xattr::llist(&d.join("l")), xattr::listed(&[]));
    let open =
        rustix::fs::open(&d, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o666))?;
    j.check("unnamed: ACL", xattr::fget(&open, ACCESS), default(6, 5, 6, 0));
    // Otherwise nothing could be remounted.
    drop(open);
    moved_and_linked(j, dir, &d)?;
    minimal(j, dir)?;
    if j.remount("rw")? {
        j.check("file, remounted", xattr::get(&f, ACCESS), default(6, 5, 6, 0));
        j.check("directory, remounted", xattr::get(&sub, DEFAULT), given);
        umask(Mode::from_raw_mode(0o077));
        j.check("remounted: inherits", xattr::get(&made(&sub, "late", 0o666)?, ACCESS), default(6, 5, 6, 0));
    }
    set_group(j, dir)
}

/// Only files created in the directory inherit.
fn moved_and_linked(j: &mut Checker, dir: &Path, d: &Path) -> Done {
    let outside = made(dir, "outside", 0o666)?;
    j.check("outside: the umask", mode_of(&outside)?, Bits(0o600));
    std::fs::hard_link(&outside, d.join("linked"))?;
    j.check("linked: none", xattr::list(&d.join("linked")), xattr::listed(&[]));
    std::fs::rename(&outside, d.join("moved"))?;
    j.check("moved: none", xattr::list(&d.join("moved")), xattr::listed(&[]));
    std::fs::rename(d.join("f"), d.join("renamed"))?;
    std::fs::rename(d.join("renamed"), d.join("f"))?;
    j.check("renamed: as before", xattr::get(&d.join("f"), ACCESS), default(6, 5, 6, 0));
    Ok(())
}

/// Without users, groups and a mask: no list is stored for a file, but its mode comes from it.
fn minimal(j: &mut Checker, dir: &Path) -> Done {
    use Entry::*;
    let d = directory(dir, "minimal")?;
    let given = acl(&[Owner(7), Group(6), Other(4)]);
    xattr::set(&d, DEFAULT, &given)?;
    j.check("minimal: stored", xattr::get(&d, DEFAULT), given.clone());
    let f = made(&d, "f", 0o666)?;
    j.check("minimal: mode of a file", mode_of(&f)?, Bits(0o664));
    j.check("minimal: no ACL of a file", xattr::list(&f), xattr::listed(&[]));
    let sub = d.join("sub");
    mkdirat(CWD, &sub, Mode::from_raw_mode(0o755))?;
    j.check("minimal: mode of a directory", mode_of(&sub)?, Bits(0o744));
    j.check("minimal: default of a directory", xattr::get(&sub, DEFAULT), given);
    j.check("minimal: nothing else", xattr::list(&sub), xattr::listed(&[DEFAULT]));
    Ok(())
}

/// Group and setgid bit of a directory are inherited beside the ACL.
fn set_group(j: &mut Checker, dir: &Path) -> Done {
    let d = directory(dir, "crew")?;
    chownat(CWD, &d, None, Some(Gid::from_raw(CREW)), AtFlags::empty())?;
    chmod(&d, 0o2777)?;
    xattr::set(&d, DEFAULT, &default(7, 5, 7, 5))?;
    let sub = d.join("sub");
    ANN.run_as(|| mkdirat(CWD, &sub, Mode::from_raw_mode(0o777)))?;
    j.check("setgid: mode of a directory", mode_of(&sub)?, Bits(0o2775));
    j.check("setgid: group of a directory", sub.metadata()?.gid() as usize, CREW as usize);
    j.check("setgid: ACL of a directory", xattr::get(&sub, ACCESS), default(7, 5, 7, 5));
    let f = d.join("f");
    ANN.run_as(|| created(&f, 0o2775).map(drop))?;
    // ANN is not in the group: the bit would let others act as it.
    j.check("setgid: mode of a file", mode_of(&f)?, Bits(0o775));
    j.check("setgid: ACL of a file", xattr::get(&f, ACCESS), default(7, 5, 7, 5));
    Ok(())
}

pub fn umask_matters(j: &mut Checker, dir: &Path) -> Done {
    let d = directory(dir, "d")?;
    chmod(&d, 0o777)?;
    for mask in [0, 0o022, 0o027, 0o077, 0o777] {
        umask(Mode::from_raw_mode(mask));
        let name = format!("{mask:03o}");
        let made = [
            ("file", created(&d.join(format!("f{name}")), 0o666).map(drop), format!("f{name}"), 0o666),
            ("directory", mkdirat(CWD, d.join(format!("d{name}")), 0o777.into()), format!("d{name}"), 0o777),
            (
                "fifo",
                mknodat(CWD, d.join(format!("p{name}")), FileType::Fifo, 0o666.into(), 0),
                format!("p{name}"),
                0o666,
            ),
        ];
        for (kind, done, at, mode) in made {
            j.check(format!("{name}: {kind} made"), done, ());
            j.check(format!("{name}: {kind}"), mode_of(&d.join(at))?, Bits(mode & !mask));
        }
    }
    umask(Mode::from_raw_mode(0o027));
    let open =
        rustix::fs::open(&d, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o666))?;
    j.check("027: unnamed", Bits(rustix::fs::fstat(&open)?.st_mode & 0o7777), Bits(0o640));
    let ann = d.join("ann");
    ANN.run_as(|| created(&ann, 0o666).map(drop))?;
    j.check("027: made by a user", mode_of(&ann)?, Bits(0o640));
    chown(&ann, BOB)?;
    j.check("027: no ACL", xattr::list(&ann), xattr::listed(&[]));
    // After a default ACL is removed, the umask applies again.
    xattr::set(&d, DEFAULT, &default(7, 7, 7, 7))?;
    let with = made(&d, "with", 0o666)?;
    j.check("027: with a default ACL", mode_of(&with)?, Bits(0o666));
    xattr::remove(&d, DEFAULT)?;
    let without = made(&d, "without", 0o666)?;
    j.check("027: without it again", mode_of(&without)?, Bits(0o640));
    umask(Mode::from_raw_mode(0o022));
    Ok(())
}
