use crate::checker::{Checker, Done, directory, file};
use crate::person::{ANN, BOB, Person};
use crate::xattr;
use rustix::fs::{Mode, chmodat, chownat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::path::Path;

/// Changes the owner of a file.
pub fn chown(path: &Path, to: Person) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(to.uid), Gid::from_raw(to.gid));
    chownat(rustix::fs::CWD, path, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
}

pub fn chmod(path: &Path, mode: u32) -> Result<(), Errno> {
    chmodat(rustix::fs::CWD, path, Mode::from_raw_mode(mode), rustix::fs::AtFlags::empty())
}

pub fn spaces(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    chown(&f, ANN)?;
    for space in ["user", "trusted", "security"] {
        j.check(format!("root sets {space}"), xattr::set(&f, format!("{space}.root"), b"1"), ());
        j.check(format!("root gets {space}"), xattr::get(&f, format!("{space}.root")), b"1".to_vec());
    }
    let all = xattr::listed(&["user.root", "trusted.root", "security.root"]);
    j.check("root lists all", xattr::list(&f), all.clone());
    let seen = xattr::listed(&["user.root", "security.root"]);
    let seen_len = seen.iter().map(|name| name.len() + 1).sum::<usize>();
    // The owner, without privileges.
    j.check("owner sets user", ANN.run_as(|| xattr::set(&f, "user.own", b"2")), ());
    j.check("owner gets user", ANN.run_as(|| xattr::get(&f, "user.own")), b"2".to_vec());
    j.check("owner removes user", ANN.run_as(|| xattr::remove(&f, "user.own")), ());
    j.check("owner lists without trusted", ANN.run_as(|| xattr::list(&f)), seen.clone());
    j.check("owner is told a length without trusted", ANN.run_as(|| xattr::list_len(&f)), seen_len);
    j.check("owner needs no more for a list", ANN.run_as(|| xattr::list_into(&f, seen_len)), seen_len);
    j.check("owner sets trusted", ANN.run_as(|| xattr::set(&f, "trusted.own", b"2")), Errno::PERM);
    j.check("owner gets trusted", ANN.run_as(|| xattr::get(&f, "trusted.root")), Errno::NODATA);
    j.check("owner removes trusted", ANN.run_as(|| xattr::remove(&f, "trusted.root")), Errno::PERM);
    j.check("owner sets security", ANN.run_as(|| xattr::set(&f, "security.own", b"2")), Errno::PERM);
    j.check("owner changes security", ANN.run_as(|| xattr::set(&f, "security.root", b"2")), Errno::PERM);
    j.check("owner gets security", ANN.run_as(|| xattr::get(&f, "security.root")), b"1".to_vec());
    j.check("owner removes security", ANN.run_as(|| xattr::remove(&f, "security.root")), Errno::PERM);
    strangers(j, &f)?;
    j.check("all is there still", xattr::list(&f), all);
    if j.remount("rw")? {
        j.check("trusted is stored", xattr::get(&f, "trusted.root"), b"1".to_vec());
        j.check("security is stored", xattr::get(&f, "security.root"), b"1".to_vec());
        j.check("owner lists without trusted, remounted", ANN.run_as(|| xattr::list(&f)), seen);
    }
    j.check("root removes trusted", xattr::remove(&f, "trusted.root"), ());
    j.check("root removes security", xattr::remove(&f, "security.root"), ());
    Ok(())
}

/// Another user needs read and write permission on the file for `user.*`; no permission gives access to the
/// rest.
fn strangers(j: &mut Checker, f: &Path) -> Done {
    chmod(f, 0o644)?;
    j.check("0644: stranger gets", BOB.run_as(|| xattr::get(f, "user.root")), b"1".to_vec());
    j.check("0644: stranger sets", BOB.run_as(|| xattr::set(f, "user.bob", b"3")), Errno::ACCESS);
    j.check("0644: stranger removes", BOB.run_as(|| xattr::remove(f, "user.root")), Errno::ACCESS);
    chmod(f, 0o600)?;
    j.check("0600: stranger gets", BOB.run_as(|| xattr::get(f, "user.root")), Errno::ACCESS);
    j.check(
        "0600: stranger lists",
        BOB.run_as(|| xattr::list(f)),
        xattr::listed(&["user.root", "security.root"]),
    );
    j.check("0600: stranger gets security", BOB.run_as(|| xattr::get(f, "security.root")), b"1".to_vec());
    j.check("0600: stranger gets trusted", BOB.run_as(|| xattr::get(f, "trusted.root")), Errno::NODATA);
    chmod(f, 0o602)?;
    j.check("0602: stranger sets", BOB.run_as(|| xattr::set(f, "user.bob", b"3")), ());
    j.check("0602: stranger gets", BOB.run_as(|| xattr::get(f, "user.bob")), Errno::ACCESS);
    j.check("0602: stranger removes", BOB.run_as(|| xattr::remove(f, "user.bob")), ());
    chmod(f, 0o400)?;
    j.check("0400: owner sets", ANN.run_as(|| xattr::set(f, "user.own", b"2")), Errno::ACCESS);
    j.check("0400: root sets", xattr::set(f, "user.own", b"2"), ());
    j.check("0400: root removes", xattr::remove(f, "user.own"), ());
    Ok(())
}

pub fn sticky(j: &mut Checker, dir: &Path) -> Done {
    let d = directory(dir, "d")?;
    chown(&d, ANN)?;
    chmod(&d, 0o777)?;
    j.check("open to all: stranger sets", BOB.run_as(|| xattr::set(&d, "user.bob", b"1")), ());
    chmod(&d, 0o1777)?;
    j.check("sticky: owner sets", ANN.run_as(|| xattr::set(&d, "user.ann", b"1")), ());
    j.check("sticky: stranger sets", BOB.run_as(|| xattr::set(&d, "user.bob", b"2")), Errno::PERM);
    j.check("sticky: stranger removes", BOB.run_as(|| xattr::remove(&d, "user.bob")), Errno::PERM);
    j.check("sticky: stranger gets", BOB.run_as(|| xattr::get(&d, "user.bob")), b"1".to_vec());
    j.check("sticky: root sets", xattr::set(&d, "user.root", b"1"), ());
    Ok(())
}

pub fn capability(j: &mut Checker, dir: &Path) -> Done {
    let name = xattr::CAPABILITY;
    let f = file(dir, "program")?;
    chmod(&f, 0o755)?;
    j.check("none", xattr::get(&f, name), Errno::NODATA);
    j.check("malformed: short", xattr::set(&f, name, b"short"), Errno::INVAL);
    let mut unknown = xattr::net_raw();
    unknown[3] = 9;
    j.check("malformed: unknown version", xattr::set(&f, name, &unknown), Errno::INVAL);
    j.check("set", xattr::set(&f, name, &xattr::net_raw()), ());
    j.check("get", xattr::get(&f, name), xattr::net_raw());
    j.check("listed", xattr::list(&f), xattr::listed(&[name]));
    j.check("unprivileged sets", ANN.run_as(|| xattr::set(&f, name, &xattr::net_raw())), Errno::PERM);
    j.check("unprivileged removes", ANN.run_as(|| xattr::remove(&f, name)), Errno::PERM);
    j.check("unprivileged gets", ANN.run_as(|| xattr::get(&f, name)), xattr::net_raw());
    chmod(&f, 0o711)?;
    std::fs::rename(&f, dir.join("renamed"))?;
    std::fs::rename(dir.join("renamed"), &f)?;
    std::fs::hard_link(&f, dir.join("link"))?;
    j.check("stays: chmod, rename, link", xattr::get(&f, name), xattr::net_raw());
    if j.remount("rw")? {
        j.check("stays: remounted", xattr::get(&f, name), xattr::net_raw());
    }
    let anew = || xattr::set(&f, name, &xattr::net_raw());
    std::fs::write(&f, b"#!/bin/true\n")?;
    j.check("goes: written", xattr::get(&f, name), Errno::NODATA);
    anew()?;
    std::fs::OpenOptions::new().write(true).open(&f)?.set_len(3)?;
    j.check("goes: made shorter", xattr::get(&f, name), Errno::NODATA);
    anew()?;
    chown(&f, ANN)?;
    j.check("goes: given away", xattr::get(&f, name), Errno::NODATA);
    anew()?;
    std::fs::File::options()
        .append(true)
        .open(&f)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"x"))?;
    j.check("goes: appended to", xattr::get(&f, name), Errno::NODATA);
    j.check("gone: not listed", xattr::list(&f), xattr::listed(&[]));
    if j.remount("rw")? {
        j.check("gone: remounted", xattr::get(&f, name), Errno::NODATA);
    }
    xattr::set(&f, "user.beside", b"stays")?;
    anew()?;
    std::fs::write(&f, b"again")?;
    j.check("beside it", xattr::list(&f), xattr::listed(&["user.beside"]));
    Ok(())
}
