use super::privileges::{chmod, chown};
use crate::checker::{Checker, Done, directory, file};
use crate::describe::Bits;
use crate::person::{ANN, BOB, CAT, CREW};
use crate::xattr::{self, ACCESS, DEFAULT, Entry, acl};
use rustix::fs::{AtFlags, CWD, chownat};
use rustix::io::Errno;
use rustix::process::Gid;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// BOB has the rights `may`, the group `group`, and so the mask is both of them.
pub fn with_user(may: u16, group: u16) -> [Entry; 5] {
    use Entry::*;
    [Owner(6), User(BOB.uid, may), Group(group), Mask(may | group), Other(0)]
}

pub fn mode_of(path: &Path) -> Result<Bits, std::io::Error> {
    Ok(Bits(path.symlink_metadata()?.mode() & 0o7777))
}

pub fn acls(j: &mut Checker, dir: &Path) -> Done {
    let (f, d) = (file(dir, "f")?, directory(dir, "d")?);
    let value = acl(&with_user(6, 4));
    j.check("get: none", xattr::get(&f, ACCESS), Errno::NODATA);
    j.check("get: no default", xattr::get(&d, DEFAULT), Errno::NODATA);
    j.check("get: a file's default", xattr::get(&f, DEFAULT), Errno::NODATA);
    j.check("remove: none", xattr::remove(&f, ACCESS), ());
    j.check("remove: no default", xattr::remove(&d, DEFAULT), ());
    j.check("set", xattr::set(&f, ACCESS, &value), ());
    j.check("get", xattr::get(&f, ACCESS), value.clone());
    j.check("get: length", xattr::value_len(&f, ACCESS), value.len());
    j.check("get: a byte too short", xattr::get_into(&f, ACCESS, value.len() - 1), Errno::RANGE);
    j.check("list", xattr::list(&f), xattr::listed(&[ACCESS]));
    j.check("create says nothing", xattr::create(&f, ACCESS, &value), ());
    xattr::set(&f, "user.beside", b"1")?;
    j.check("list with another", xattr::list(&f), xattr::listed(&[ACCESS, "user.beside"]));
    j.check("set a default", xattr::set(&d, DEFAULT, &value), ());
    j.check("get a default", xattr::get(&d, DEFAULT), value.clone());
    j.check("a default is no access ACL", xattr::get(&d, ACCESS), Errno::NODATA);
    j.check("set both", xattr::set(&d, ACCESS, &value), ());
    j.check("list both", xattr::list(&d), xattr::listed(&[ACCESS, DEFAULT]));
    j.check("set a file's default", xattr::set(&f, DEFAULT, &value), Errno::ACCESS);
    j.check("remove a file's default", xattr::remove(&f, DEFAULT), ());
    std::os::unix::fs::symlink("f", dir.join("l"))?;
    j.check("set of a symlink", xattr::lset(&dir.join("l"), ACCESS, &value), Errno::OPNOTSUPP);
    j.check("set through a symlink", xattr::set(&dir.join("l"), ACCESS, &value), ());
    refused(j, &f);
    j.check("refusals changed nothing", xattr::get(&f, ACCESS), value.clone());
    chown(&f, ANN)?;
    j.check("given away: keeps it", xattr::get(&f, ACCESS), value.clone());
    j.check("owner sets", ANN.run_as(|| xattr::set(&f, ACCESS, &value)), ());
    j.check("owner gets", ANN.run_as(|| xattr::get(&f, ACCESS)), value.clone());
    j.check("stranger sets", BOB.run_as(|| xattr::set(&f, ACCESS, &value)), Errno::PERM);
    j.check("stranger removes", BOB.run_as(|| xattr::remove(&f, ACCESS)), Errno::PERM);
    j.check("stranger gets", CAT.run_as(|| xattr::get(&f, ACCESS)), value.clone());
    std::fs::rename(&f, d.join("f"))?;
    j.check("rename: keeps it", xattr::get(&d.join("f"), ACCESS), value.clone());
    let ls = std::process::Command::new("ls").arg("-ld").arg(d.join("f")).output()?;
    j.check(
        "ls says so",
        String::from_utf8_lossy(&ls.stdout).chars().take(11).collect::<String>(),
        "-rw-rw----+",
    );
    if j.remount("rw")? {
        j.check("get, remounted", xattr::get(&d.join("f"), ACCESS), value.clone());
        j.check("get a default, remounted", xattr::get(&d, DEFAULT), value.clone());
        j.check("beside it, remounted", xattr::get(&d.join("f"), "user.beside"), b"1".to_vec());
    }
    j.check("remove a default", xattr::remove(&d, DEFAULT), ());
    j.check("removed a default", xattr::get(&d, DEFAULT), Errno::NODATA);
    j.check("empty ACL removes", xattr::set(&d, ACCESS, &acl(&[])), ());
    j.check("removed by the empty ACL", xattr::list(&d), xattr::listed(&[]));
    many_entries(j, dir)
}

fn refused(j: &mut Checker, f: &Path) {
    use Entry::*;
    let mut set = |what: &str, value: &[u8], errno| {
        j.check(format!("malformed: {what}"), xattr::set(f, ACCESS, value), errno)
    };
    let good = acl(&with_user(6, 4));
    let with = |at: usize, byte: u8| {
        let mut value = good.clone();
        value[at] = byte;
        value
    };
    set("3 bytes", &good[..3], Errno::INVAL);
    set("half an entry", &good[..good.len() - 4], Errno::INVAL);
    set("a byte too many", &[&good[..], &[0]].concat(), Errno::INVAL);
    set("version 1", &with(0, 1), Errno::OPNOTSUPP);
    set("unknown tag", &with(4, 0x40), Errno::INVAL);
    set("unknown permission", &with(6, 8), Errno::INVAL);
    set("no owner", &acl(&[Group(4), Other(0)]), Errno::INVAL);
    set("no group", &acl(&[Owner(6), Other(0)]), Errno::INVAL);
    set("no other", &acl(&[Owner(6), Group(4)]), Errno::INVAL);
    set("a user, no mask", &acl(&[Owner(6), User(1, 4), Group(4), Other(0)]), Errno::INVAL);
    set("two owners", &acl(&[Owner(6), Owner(6), Group(4), Other(0)]), Errno::INVAL);
    set("two masks", &acl(&[Owner(6), Group(4), Mask(4), Mask(4), Other(0)]), Errno::INVAL);
    set("out of order", &acl(&[Group(4), Owner(6), Other(0)]), Errno::INVAL);
    set(
        "user without an id",
        &acl(&[Owner(6), User(u32::MAX, 4), Group(4), Mask(4), Other(0)]),
        Errno::INVAL,
    );
}

/// 511 entries are the most of a page; Linux has no limit of its own below 64 KiB.
fn many_entries(j: &mut Checker, dir: &Path) -> Done {
    use Entry::*;
    let of = |users: u32| {
        let named = (0..users).map(|at| User(1000 + at, 4));
        let all = [Owner(6)].into_iter().chain(named).chain([Group(4), Mask(4), Other(0)]);
        acl(&all.collect::<Vec<_>>())
    };
    for users in [20, 400, 507, 508, 2000] {
        let f = file(dir, &format!("many-{users}"))?;
        let set = xattr::set(&f, ACCESS, &of(users));
        j.check(format!("{users} users: set"), set, ());
        if set.is_ok() {
            j.check(format!("{users} users: get"), xattr::get(&f, ACCESS), of(users));
        }
    }
    Ok(())
}

pub fn mode(j: &mut Checker, dir: &Path) -> Done {
    use Entry::*;
    let f = file(dir, "f")?;
    chmod(&f, 0o604)?;
    let full =
        |owner, mask, other| acl(&[Owner(owner), User(BOB.uid, 7), Group(5), Mask(mask), Other(other)]);
    j.check("minimal: set", xattr::set(&f, ACCESS, &acl(&[Owner(7), Group(4), Other(1)])), ());
    j.check("minimal: is the mode", mode_of(&f)?, Bits(0o741));
    j.check("minimal: is not stored", xattr::get(&f, ACCESS), Errno::NODATA);
    j.check("minimal: is not listed", xattr::list(&f), xattr::listed(&[]));
    j.check("full: set", xattr::set(&f, ACCESS, &full(6, 3, 4)), ());
    j.check("full: the mask is the group's bits", mode_of(&f)?, Bits(0o634));
    chmod(&f, 0o750)?;
    j.check("chmod: changes owner, mask, other", xattr::get(&f, ACCESS), full(7, 5, 0));
    j.check("chmod: and the mode", mode_of(&f)?, Bits(0o750));
    chmod(&f, 0o4701)?;
    j.check("chmod: also to none", xattr::get(&f, ACCESS), full(7, 0, 1));
    j.check("chmod: setuid", mode_of(&f)?, Bits(0o4701));
    j.check("set: with setuid", xattr::set(&f, ACCESS, &full(6, 6, 0)), ());
    j.check("set: keeps setuid", mode_of(&f)?, Bits(0o4660));
    if j.remount("rw")? {
        j.check("remounted: mode", mode_of(&f)?, Bits(0o4660));
        j.check("remounted: ACL", xattr::get(&f, ACCESS), full(6, 6, 0));
    }
    j.check("remove", xattr::remove(&f, ACCESS), ());
    j.check("remove: the mode stays", mode_of(&f)?, Bits(0o4660));
    chmod(&f, 0o640)?;
    j.check(
        "mask without users: set",
        xattr::set(&f, ACCESS, &acl(&[Owner(6), Group(6), Mask(4), Other(0)])),
        (),
    );
    j.check(
        "mask without users: stays",
        xattr::get(&f, ACCESS),
        acl(&[Owner(6), Group(6), Mask(4), Other(0)]),
    );
    j.check("mask without users: mode", mode_of(&f)?, Bits(0o640));
    xattr::set(&f, ACCESS, &acl(&[Owner(6), Group(4), Other(4)]))?;
    j.check("minimal again: not stored", xattr::list(&f), xattr::listed(&[]));
    let d = directory(dir, "d")?;
    xattr::set(&d, DEFAULT, &full(7, 7, 0))?;
    j.check("default: the mode stays", mode_of(&d)?, Bits(0o755));
    chmod(&d, 0o700)?;
    j.check("default: chmod leaves it", xattr::get(&d, DEFAULT), full(7, 7, 0));
    let handle = std::fs::File::open(&f)?;
    xattr::fset(&handle, ACCESS, &full(6, 6, 0))?;
    rustix::fs::fchmod(&handle, rustix::fs::Mode::from_raw_mode(0o640))?;
    j.check("fchmod", xattr::fget(&handle, ACCESS), full(6, 4, 0));
    Ok(())
}

pub fn setgid(j: &mut Checker, dir: &Path) -> Done {
    let value = acl(&with_user(6, 5));
    let crew = Gid::from_raw(CREW);
    let of_crew =
        |name: &str, owner: crate::person::Person| -> Result<std::path::PathBuf, crate::checker::CaseError> {
            let path = file(dir, name)?;
            chown(&path, owner)?;
            chownat(CWD, &path, None, Some(crew), AtFlags::empty())?;
            chmod(&path, 0o2755)?;
            Ok(path)
        };
    let (root, ann, cat) = (of_crew("root", ANN)?, of_crew("ann", ANN)?, of_crew("cat", CAT)?);
    j.check("root sets", xattr::set(&root, ACCESS, &value), ());
    j.check("root: stays", mode_of(&root)?, Bits(0o2670));
    j.check("member sets", CAT.run_as(|| xattr::set(&cat, ACCESS, &value)), ());
    j.check("member: stays", mode_of(&cat)?, Bits(0o2670));
    j.check("stranger to the group sets", ANN.run_as(|| xattr::set(&ann, ACCESS, &value)), ());
    j.check("stranger to the group: goes", mode_of(&ann)?, Bits(0o670));
    chmod(&ann, 0o2750)?;
    let minimal = acl(&[Entry::Owner(7), Entry::Group(5), Entry::Other(0)]);
    j.check("minimal, too: set", ANN.run_as(|| xattr::set(&ann, ACCESS, &minimal)), ());
    j.check("minimal, too: goes", mode_of(&ann)?, Bits(0o750));
    chmod(&ann, 0o2750)?;
    j.check("another attribute: set", ANN.run_as(|| xattr::set(&ann, "user.a", b"1")), ());
    j.check("another attribute: stays", mode_of(&ann)?, Bits(0o2750));
    Ok(())
}
