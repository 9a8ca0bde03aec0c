use super::acls::mode_of;
use super::privileges::chmod;
use crate::judge::{Done, Judge, directory, file};
use crate::person::BOB;
use crate::words::Bits;
use crate::xattr::{self, ACCESS, DEFAULT, Entry, acl, noise};
use rustix::io::Errno;
use std::path::Path;

/// Values set under another value of the property are read, listed and removed like all others.
pub fn properties(j: &mut Judge, dir: &Path) -> Done {
    if !j.property("xattr=sa")? {
        j.skip("the file system has no properties");
        return Ok(());
    }
    let f = file(dir, "f")?;
    let names = ["user.sa", "user.both", "user.large"];
    xattr::set(&f, "user.sa", b"in the inode")?;
    xattr::set(&f, "user.both", b"in the inode")?;
    xattr::set(&f, "user.large", &noise(1, 40_000))?;
    j.property("xattr=dir")?;
    j.is("dir: all are listed", xattr::list(&f), xattr::listed(&names));
    j.is("dir: get", xattr::get(&f, "user.sa"), b"in the inode".to_vec());
    j.is("dir: replace", xattr::replace(&f, "user.both", b"in the directory"), ());
    j.is("dir: create what is there", xattr::create(&f, "user.sa", b"x"), Errno::EXIST);
    j.is("dir: new", xattr::set(&f, "user.dir", b"in the directory"), ());
    let all = xattr::listed(&["user.sa", "user.both", "user.large", "user.dir"]);
    j.is("dir: each is listed once", xattr::list(&f), all.clone());
    j.is("dir: the newer one counts", xattr::get(&f, "user.both"), b"in the directory".to_vec());
    j.remount("rw")?;
    j.is("dir: mounted anew", xattr::get(&f, "user.both"), b"in the directory".to_vec());
    j.is("dir: list, mounted anew", xattr::list(&f), all);
    j.property("xattr=sa")?;
    j.is("sa: get", xattr::get(&f, "user.dir"), b"in the directory".to_vec());
    j.is("sa: replace", xattr::replace(&f, "user.both", b"in the inode again"), ());
    j.is("sa: the newer one counts", xattr::get(&f, "user.both"), b"in the inode again".to_vec());
    j.is("sa: remove", xattr::remove(&f, "user.both"), ());
    j.is("sa: no older one comes back", xattr::get(&f, "user.both"), Errno::NODATA);
    j.is("sa: remove from the directory", xattr::remove(&f, "user.dir"), ());
    j.is("sa: list", xattr::list(&f), xattr::listed(&["user.sa", "user.large"]));
    j.remount("rw")?;
    j.is("sa: list, mounted anew", xattr::list(&f), xattr::listed(&["user.sa", "user.large"]));
    j.is("sa: large", xattr::get(&f, "user.large"), noise(1, 40_000));
    without_acls(j, dir)?;
    without_any(j, &f)
}

/// Attributes that a mount cannot serve are neither shown nor lost.
fn without_acls(j: &mut Judge, dir: &Path) -> Done {
    use Entry::*;
    let (f, d) = (file(dir, "with an ACL")?, directory(dir, "d")?);
    let with_mask = |mask| acl(&[Owner(6), User(BOB.uid, 6), Group(4), Mask(mask), Other(0)]);
    xattr::set(&f, ACCESS, &with_mask(6))?;
    xattr::set(&d, DEFAULT, &with_mask(6))?;
    j.property("acltype=off")?;
    j.remount("rw")?;
    j.is("no ACLs: set", xattr::set(&f, ACCESS, &with_mask(6)), Errno::OPNOTSUPP);
    j.is("no ACLs: get", xattr::get(&f, ACCESS), Errno::OPNOTSUPP);
    j.is("no ACLs: remove", xattr::remove(&f, ACCESS), Errno::OPNOTSUPP);
    j.is("no ACLs: list", xattr::list(&f), xattr::listed(&[]));
    j.is("no ACLs: others are there", xattr::set(&f, "user.a", b"1"), ());
    let inside = file(&d, "inside")?;
    j.is("no ACLs: the umask", mode_of(&inside)?, Bits(0o644));
    chmod(&f, 0o640)?;
    j.property("acltype=posix")?;
    j.remount("rw")?;
    j.is("ACLs again: kept, and chmod counts", xattr::get(&f, ACCESS), with_mask(4));
    j.is("ACLs again: default", xattr::get(&d, DEFAULT), with_mask(6));
    j.is("ACLs again: not inherited meanwhile", xattr::list(&inside), xattr::listed(&[]));
    Ok(())
}

fn without_any(j: &mut Judge, f: &Path) -> Done {
    j.property("xattr=off")?;
    j.remount("rw")?;
    j.is("none: get", xattr::get(f, "user.sa"), Errno::OPNOTSUPP);
    j.is("none: set", xattr::set(f, "user.sa", b"x"), Errno::OPNOTSUPP);
    j.is("none: remove", xattr::remove(f, "user.sa"), Errno::OPNOTSUPP);
    j.is("none: list", xattr::list(f), Errno::OPNOTSUPP);
    std::fs::write(f, b"contents")?;
    j.property("xattr=sa")?;
    j.remount("rw")?;
    j.is("all again: list", xattr::list(f), xattr::listed(&["user.sa", "user.large"]));
    j.is("all again: get", xattr::get(f, "user.large"), noise(1, 40_000));
    Ok(())
}
