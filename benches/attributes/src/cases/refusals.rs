use crate::checker::{Checker, Done, file};
use crate::xattr;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::path::Path;

pub fn refusals(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    j.check("get: none", xattr::get(&f, "user.a"), Errno::NODATA);
    j.check("get: length of none", xattr::value_len(&f, "user.a"), Errno::NODATA);
    j.check("remove: none", xattr::remove(&f, "user.a"), Errno::NODATA);
    j.check("list: none", xattr::list(&f), xattr::listed(&[]));
    j.check("list: length of none", xattr::list_len(&f), 0);
    j.check("replace: none", xattr::replace(&f, "user.a", b"1"), Errno::NODATA);
    j.check("replace: left none", xattr::get(&f, "user.a"), Errno::NODATA);
    j.check("create: new", xattr::create(&f, "user.a", b"first"), ());
    j.check("create: again", xattr::create(&f, "user.a", b"second"), Errno::EXIST);
    j.check("create: left the first", xattr::get(&f, "user.a"), b"first".to_vec());
    j.check("replace: there", xattr::replace(&f, "user.a", b"third"), ());
    j.check("replace: took it", xattr::get(&f, "user.a"), b"third".to_vec());
    j.check("set: there", xattr::set(&f, "user.a", b"fourth"), ());
    flags(j, &f)?;
    lengths(j, &f);
    spaces(j, &f);
    paths(j, dir, &f)?;
    j.check("remove: there", xattr::remove(&f, "user.a"), ());
    j.check("remove: again", xattr::remove(&f, "user.a"), Errno::NODATA);
    j.check("list: empty again", xattr::list(&f), xattr::listed(&[]));
    Ok(())
}

fn flags(j: &mut Checker, f: &Path) -> Done {
    let set = |name: &str, flags| rustix::fs::setxattr(f, name, b"x", flags);
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    j.check("flags: unknown", set("user.a", XattrFlags::from_bits_retain(4)), Errno::INVAL);
    j.check("flags: both, there", set("user.a", both), Errno::EXIST);
    j.check("flags: both, not there", set("user.none", both), Errno::NODATA);
    j.check("flags: both left none", xattr::get(f, "user.none"), Errno::NODATA);
    Ok(())
}

fn lengths(j: &mut Checker, f: &Path) {
    // "fourth" is 6 bytes, the list "user.a" and a NUL 7.
    j.check("get: length", xattr::value_len(f, "user.a"), 6);
    j.check("get: buffer of 1 byte", xattr::get_into(f, "user.a", 1), Errno::RANGE);
    j.check("get: a byte too short", xattr::get_into(f, "user.a", 5), Errno::RANGE);
    j.check("get: just fits", xattr::get_into(f, "user.a", 6), b"fourth".to_vec());
    j.check("list: length", xattr::list_len(f), 7);
    j.check("list: buffer of 1 byte", xattr::list_into(f, 1), Errno::RANGE);
    j.check("list: a byte too short", xattr::list_into(f, 6), Errno::RANGE);
    j.check("list: just fits", xattr::list_into(f, 7), 7);
    j.check("set: value of 65537", xattr::set(f, "user.a", &[0; xattr::VALUE_MAX + 1]), Errno::TOOBIG);
    j.check("set: too long a value changed nothing", xattr::get(f, "user.a"), b"fourth".to_vec());
    let name = format!("user.{}", "n".repeat(251));
    j.check("set: name of 256", xattr::set(f, &name, b"x"), Errno::RANGE);
    j.check("get: name of 256", xattr::get(f, &name), Errno::RANGE);
    j.check("remove: name of 256", xattr::remove(f, &name), Errno::RANGE);
    j.check("set: no name", xattr::set(f, "", b"x"), Errno::RANGE);
    j.check("get: no name", xattr::get(f, ""), Errno::RANGE);
    j.check("remove: no name", xattr::remove(f, ""), Errno::RANGE);
}

fn spaces(j: &mut Checker, f: &Path) {
    for name in ["user.", "trusted.", "security."] {
        j.check(format!("set: {name} alone"), xattr::set(f, name, b"x"), Errno::INVAL);
        j.check(format!("get: {name} alone"), xattr::get(f, name), Errno::INVAL);
        j.check(format!("remove: {name} alone"), xattr::remove(f, name), Errno::INVAL);
    }
    for name in
        ["user", "plain", "unknown.a", "USER.a", ".user.a", "system.unknown", "system.posix_acl_accessory"]
    {
        j.check(format!("set: {name}"), xattr::set(f, name, b"x"), Errno::OPNOTSUPP);
        j.check(format!("get: {name}"), xattr::get(f, name), Errno::OPNOTSUPP);
        j.check(format!("remove: {name}"), xattr::remove(f, name), Errno::OPNOTSUPP);
    }
    j.check("list: refusals left nothing", xattr::list(f), xattr::listed(&["user.a"]));
}

fn paths(j: &mut Checker, dir: &Path, f: &Path) -> Done {
    let name = "user.a";
    j.check("path: not there", xattr::set(&dir.join("none"), name, b"x"), Errno::NOENT);
    j.check("path: get, not there", xattr::get(&dir.join("none"), name), Errno::NOENT);
    j.check("path: list, not there", xattr::list(&dir.join("none")), Errno::NOENT);
    j.check("path: remove, not there", xattr::remove(&dir.join("none"), name), Errno::NOENT);
    j.check("path: below a file", xattr::get(&f.join("x"), name), Errno::NOTDIR);
    j.check("path: too long a name", xattr::get(&dir.join("x".repeat(256)), name), Errno::NAMETOOLONG);
    std::os::unix::fs::symlink("loop", dir.join("loop"))?;
    j.check("path: in a circle", xattr::get(&dir.join("loop"), name), Errno::LOOP);
    let handle = rustix::fs::open(f, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    j.check("handle: O_PATH, get", xattr::fget(&handle, name), Errno::BADF);
    j.check("handle: O_PATH, set", xattr::fset(&handle, name, b"x"), Errno::BADF);
    let handle = rustix::fs::open(f, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    j.check("handle: opened for reading, set", xattr::fset(&handle, name, b"fifth"), ());
    j.check("handle: opened for reading, get", xattr::fget(&handle, name), b"fifth".to_vec());
    j.check("handle: opened for reading, list", xattr::flist(&handle), xattr::listed(&[name]));
    Ok(())
}

pub fn read_only(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let acl = xattr::acl(&super::acls::with_user(6, 4));
    xattr::set(&f, "user.a", b"stays")?;
    xattr::set(&f, xattr::ACCESS, &acl)?;
    if !j.remount("ro")? {
        return Ok(());
    }
    j.check("set", xattr::set(&f, "user.b", b"x"), Errno::ROFS);
    j.check("set again", xattr::set(&f, "user.a", b"x"), Errno::ROFS);
    j.check("remove", xattr::remove(&f, "user.a"), Errno::ROFS);
    j.check("remove none", xattr::remove(&f, "user.b"), Errno::ROFS);
    j.check("trusted", xattr::set(&f, "trusted.a", b"x"), Errno::ROFS);
    j.check("security", xattr::set(&f, "security.a", b"x"), Errno::ROFS);
    j.check("set an ACL", xattr::set(&f, xattr::ACCESS, &acl), Errno::ROFS);
    j.check("remove an ACL", xattr::remove(&f, xattr::ACCESS), Errno::ROFS);
    j.check("get", xattr::get(&f, "user.a"), b"stays".to_vec());
    j.check("get an ACL", xattr::get(&f, xattr::ACCESS), acl);
    j.check("list", xattr::list(&f), xattr::listed(&["user.a", xattr::ACCESS]));
    j.remount("rw")?;
    j.check("set afterwards", xattr::set(&f, "user.b", b"x"), ());
    Ok(())
}
