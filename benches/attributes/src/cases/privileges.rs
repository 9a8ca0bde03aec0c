use crate::judge::{Done, Judge, directory, file};
use crate::person::{ANN, BOB, Person};
use crate::xattr;
use rustix::fs::{Mode, chmodat, chownat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::path::Path;

/// Changes the owner of a file.
pub fn give(path: &Path, to: Person) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(to.uid), Gid::from_raw(to.gid));
    chownat(rustix::fs::CWD, path, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
}

pub fn chmod(path: &Path, mode: u32) -> Result<(), Errno> {
    chmodat(rustix::fs::CWD, path, Mode::from_raw_mode(mode), rustix::fs::AtFlags::empty())
}

pub fn spaces(j: &mut Judge, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    give(&f, ANN)?;
    for space in ["user", "trusted", "security"] {
        j.is(format!("root sets {space}"), xattr::set(&f, format!("{space}.root"), b"1"), ());
        j.is(format!("root gets {space}"), xattr::get(&f, format!("{space}.root")), b"1".to_vec());
    }
    let all = xattr::listed(&["user.root", "trusted.root", "security.root"]);
    j.is("root lists all", xattr::list(&f), all.clone());
    let seen = xattr::listed(&["user.root", "security.root"]);
    let seen_len = seen.iter().map(|name| name.len() + 1).sum::<usize>();
    // The owner, without privileges.
    j.is("owner sets user", ANN.asks(|| xattr::set(&f, "user.own", b"2")), ());
    j.is("owner gets user", ANN.asks(|| xattr::get(&f, "user.own")), b"2".to_vec());
    j.is("owner removes user", ANN.asks(|| xattr::remove(&f, "user.own")), ());
    j.is("owner lists without trusted", ANN.asks(|| xattr::list(&f)), seen.clone());
    j.is("owner is told a length without trusted", ANN.asks(|| xattr::list_len(&f)), seen_len);
    j.is("owner needs no more for a list", ANN.asks(|| xattr::list_into(&f, seen_len)), seen_len);
    j.is("owner sets trusted", ANN.asks(|| xattr::set(&f, "trusted.own", b"2")), Errno::PERM);
    j.is("owner gets trusted", ANN.asks(|| xattr::get(&f, "trusted.root")), Errno::NODATA);
    j.is("owner removes trusted", ANN.asks(|| xattr::remove(&f, "trusted.root")), Errno::PERM);
    j.is("owner sets security", ANN.asks(|| xattr::set(&f, "security.own", b"2")), Errno::PERM);
    j.is("owner changes security", ANN.asks(|| xattr::set(&f, "security.root", b"2")), Errno::PERM);
    j.is("owner gets security", ANN.asks(|| xattr::get(&f, "security.root")), b"1".to_vec());
    j.is("owner removes security", ANN.asks(|| xattr::remove(&f, "security.root")), Errno::PERM);
    strangers(j, &f)?;
    j.is("all is there still", xattr::list(&f), all);
    if j.remount("rw")? {
        j.is("trusted is stored", xattr::get(&f, "trusted.root"), b"1".to_vec());
        j.is("security is stored", xattr::get(&f, "security.root"), b"1".to_vec());
        j.is("owner lists without trusted, mounted anew", ANN.asks(|| xattr::list(&f)), seen);
    }
    j.is("root removes trusted", xattr::remove(&f, "trusted.root"), ());
    j.is("root removes security", xattr::remove(&f, "security.root"), ());
    Ok(())
}

/// Another user needs read and write permission on the file for `user.*`; no permission gives access to the
/// rest.
fn strangers(j: &mut Judge, f: &Path) -> Done {
    chmod(f, 0o644)?;
    j.is("0644: stranger gets", BOB.asks(|| xattr::get(f, "user.root")), b"1".to_vec());
    j.is("0644: stranger sets", BOB.asks(|| xattr::set(f, "user.bob", b"3")), Errno::ACCESS);
    j.is("0644: stranger removes", BOB.asks(|| xattr::remove(f, "user.root")), Errno::ACCESS);
    chmod(f, 0o600)?;
    j.is("0600: stranger gets", BOB.asks(|| xattr::get(f, "user.root")), Errno::ACCESS);
    j.is("0600: stranger lists", BOB.asks(|| xattr::list(f)), xattr::listed(&["user.root", "security.root"]));
    j.is("0600: stranger gets security", BOB.asks(|| xattr::get(f, "security.root")), b"1".to_vec());
    j.is("0600: stranger gets trusted", BOB.asks(|| xattr::get(f, "trusted.root")), Errno::NODATA);
    chmod(f, 0o602)?;
    j.is("0602: stranger sets", BOB.asks(|| xattr::set(f, "user.bob", b"3")), ());
    j.is("0602: stranger gets", BOB.asks(|| xattr::get(f, "user.bob")), Errno::ACCESS);
    j.is("0602: stranger removes", BOB.asks(|| xattr::remove(f, "user.bob")), ());
    chmod(f, 0o400)?;
    j.is("0400: owner sets", ANN.asks(|| xattr::set(f, "user.own", b"2")), Errno::ACCESS);
    j.is("0400: root sets", xattr::set(f, "user.own", b"2"), ());
    j.is("0400: root removes", xattr::remove(f, "user.own"), ());
    Ok(())
}

pub fn sticky(j: &mut Judge, dir: &Path) -> Done {
    let d = directory(dir, "d")?;
    give(&d, ANN)?;
    chmod(&d, 0o777)?;
    j.is("open to all: stranger sets", BOB.asks(|| xattr::set(&d, "user.bob", b"1")), ());
    chmod(&d, 0o1777)?;
    j.is("sticky: owner sets", ANN.asks(|| xattr::set(&d, "user.ann", b"1")), ());
    j.is("sticky: stranger sets", BOB.asks(|| xattr::set(&d, "user.bob", b"2")), Errno::PERM);
    j.is("sticky: stranger removes", BOB.asks(|| xattr::remove(&d, "user.bob")), Errno::PERM);
    j.is("sticky: stranger gets", BOB.asks(|| xattr::get(&d, "user.bob")), b"1".to_vec());
    j.is("sticky: root sets", xattr::set(&d, "user.root", b"1"), ());
    Ok(())
}

pub fn capability(j: &mut Judge, dir: &Path) -> Done {
    let name = xattr::CAPABILITY;
    let f = file(dir, "program")?;
    chmod(&f, 0o755)?;
    j.is("none", xattr::get(&f, name), Errno::NODATA);
    j.is("malformed: short", xattr::set(&f, name, b"short"), Errno::INVAL);
    let mut unknown = xattr::net_raw();
    unknown[3] = 9;
    j.is("malformed: unknown version", xattr::set(&f, name, &unknown), Errno::INVAL);
    j.is("set", xattr::set(&f, name, &xattr::net_raw()), ());
    j.is("get", xattr::get(&f, name), xattr::net_raw());
    j.is("listed", xattr::list(&f), xattr::listed(&[name]));
    j.is("unprivileged sets", ANN.asks(|| xattr::set(&f, name, &xattr::net_raw())), Errno::PERM);
    j.is("unprivileged removes", ANN.asks(|| xattr::remove(&f, name)), Errno::PERM);
    j.is("unprivileged gets", ANN.asks(|| xattr::get(&f, name)), xattr::net_raw());
    chmod(&f, 0o711)?;
    std::fs::rename(&f, dir.join("renamed"))?;
    std::fs::rename(dir.join("renamed"), &f)?;
    std::fs::hard_link(&f, dir.join("link"))?;
    j.is("stays: chmod, rename, link", xattr::get(&f, name), xattr::net_raw());
    if j.remount("rw")? {
        j.is("stays: mounted anew", xattr::get(&f, name), xattr::net_raw());
    }
    let anew = || xattr::set(&f, name, &xattr::net_raw());
    std::fs::write(&f, b"#!/bin/true\n")?;
    j.is("goes: written", xattr::get(&f, name), Errno::NODATA);
    anew()?;
    std::fs::OpenOptions::new().write(true).open(&f)?.set_len(3)?;
    j.is("goes: made shorter", xattr::get(&f, name), Errno::NODATA);
    anew()?;
    give(&f, ANN)?;
    j.is("goes: given away", xattr::get(&f, name), Errno::NODATA);
    anew()?;
    std::fs::File::options()
        .append(true)
        .open(&f)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"x"))?;
    j.is("goes: appended to", xattr::get(&f, name), Errno::NODATA);
    j.is("gone: not listed", xattr::list(&f), xattr::listed(&[]));
    if j.remount("rw")? {
        j.is("gone: mounted anew", xattr::get(&f, name), Errno::NODATA);
    }
    xattr::set(&f, "user.beside", b"stays")?;
    anew()?;
    std::fs::write(&f, b"again")?;
    j.is("beside it", xattr::list(&f), xattr::listed(&["user.beside"]));
    Ok(())
}
