use super::acls::mode_of;
use super::privileges::chmod;
use crate::checker::{Checker, Done, directory, file};
use crate::describe::Bits;
use crate::person::BOB;
use crate::xattr::{self, ACCESS, DEFAULT, Entry, acl, random_bytes};
use rustix::io::Errno;
use std::path::Path;

/// Values set under another value of the property are read, listed and removed like all others.
pub fn properties(j: &mut Checker, dir: &Path) -> Done {
    if !j.property("xattr=sa")? {
        j.skip("the file system has no properties");
        return Ok(());
    }
    let f = file(dir, "f")?;
    let names = ["user.sa", "user.both", "user.large"];
    xattr::set(&f, "user.sa", b"in the inode")?;
    xattr::set(&f, "user.both", b"in the inode")?;
    xattr::set(&f, "user.large", &random_bytes(1, 40_000))?;
    j.property("xattr=dir")?;
    j.check("dir: all are listed", xattr::list(&f), xattr::listed(&names));
    j.check("dir: get", xattr::get(&f, "user.sa"), b"in the inode".to_vec());
    j.check("dir: replace", xattr::replace(&f, "user.both", b"in the directory"), ());
    j.check("dir: create what is there", xattr::create(&f, "user.sa", b"x"), Errno::EXIST);
    j.check("dir: new", xattr::set(&f, "user.dir", b"in the directory"), ());
    let all = xattr::listed(&["user.sa", "user.both", "user.large", "user.dir"]);
    j.check("dir: each is listed once", xattr::list(&f), all.clone());
    j.check("dir: the newer one counts", xattr::get(&f, "user.both"), b"in the directory".to_vec());
    j.remount("rw")?;
    j.check("dir: remounted", xattr::get(&f, "user.both"), b"in the directory".to_vec());
    j.check("dir: list, remounted", xattr::list(&f), all);
    j.property("xattr=sa")?;
    j.check("sa: get", xattr::get(&f, "user.dir"), b"in the directory".to_vec());
    j.check("sa: replace", xattr::replace(&f, "user.both", b"in the inode again"), ());
    j.check("sa: the newer one counts", xattr::get(&f, "user.both"), b"in the inode again".to_vec());
    j.check("sa: remove", xattr::remove(&f, "user.both"), ());
    j.check("sa: no older one comes back", xattr::get(&f, "user.both"), Errno::NODATA);
    j.check("sa: remove from the directory", xattr::remove(&f, "user.dir"), ());
    j.check("sa: list", xattr::list(&f), xattr::listed(&["user.sa", "user.large"]));
    j.remount("rw")?;
    j.check("sa: list, remounted", xattr::list(&f), xattr::listed(&["user.sa", "user.large"]));
    j.check("sa: large", xattr::get(&f, "user.large"), random_bytes(1, 40_000));
    without_acls(j, dir)?;
    without_any(j, &f)
}

/// Attributes that a mount cannot serve are neither shown nor lost.
fn without_acls(j: &mut Checker, dir: &Path) -> Done {
    use Entry::*;
    let (f, d) = (file(dir, "with an ACL")?, directory(dir, "d")?);
    let with_mask = |mask| acl(&[Owner(6), User(BOB.uid, 6), Group(4), Mask(mask), Other(0)]);
    xattr::set(&f, ACCESS, &with_mask(6))?;
    xattr::set(&d, DEFAULT, &with_mask(6))?;
    j.property("acltype=off")?;
    j.remount("rw")?;
    j.check("no ACLs: set", xattr::set(&f, ACCESS, &with_mask(6)), Errno::OPNOTSUPP);
    j.check("no ACLs: get", xattr::get(&f, ACCESS), Errno::OPNOTSUPP);
    j.check("no ACLs: remove", xattr::remove(&f, ACCESS), Errno::OPNOTSUPP);
    j.check("no ACLs: list", xattr::list(&f), xattr::listed(&[]));
    j.check("no ACLs: others are there", xattr::set(&f, "user.a", b"1"), ());
    let inside = file(&d, "inside")?;
    j.check("no ACLs: the umask", mode_of(&inside)?, Bits(0o644));
    chmod(&f, 0o640)?;
    j.property("acltype=posix")?;
    j.remount("rw")?;
    j.check("ACLs again: kept, and chmod counts", xattr::get(&f, ACCESS), with_mask(4));
    j.check("ACLs again: default", xattr::get(&d, DEFAULT), with_mask(6));
    j.check("ACLs again: not inherited meanwhile", xattr::list(&inside), xattr::listed(&[]));
    Ok(())
}

fn without_any(j: &mut Checker, f: &Path) -> Done {
    j.property("xattr=off")?;
    j.remount("rw")?;
    j.check("none: get", xattr::get(f, "user.sa"), Errno::OPNOTSUPP);
    j.check("none: set", xattr::set(f, "user.sa", b"x"), Errno::OPNOTSUPP);
    j.check("none: remove", xattr::remove(f, "user.sa"), Errno::OPNOTSUPP);
    j.check("none: list", xattr::list(f), Errno::OPNOTSUPP);
    std::fs::write(f, b"contents")?;
    j.property("xattr=sa")?;
    j.remount("rw")?;
    j.check("all again: list", xattr::list(f), xattr::listed(&["user.sa", "user.large"]));
    j.check("all again: get", xattr::get(f, "user.large"), random_bytes(1, 40_000));
    Ok(())
}
