use super::privileges::{chmod, chown};
use crate::checker::{Checker, Done, directory, file};
use crate::person::{ANN, BOB, CAT, CREW, Person};
use crate::xattr::{self, ACCESS, DEFAULT, Entry, acl};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use rustix::io::Errno;
use std::path::Path;

fn opens(who: Person, path: &Path, flags: OFlags) -> Result<(), Errno> {
    who.run_as(|| openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map(drop))
}

fn reads(who: Person, path: &Path) -> Result<(), Errno> {
    opens(who, path, OFlags::RDONLY)
}

fn writes(who: Person, path: &Path) -> Result<(), Errno> {
    opens(who, path, OFlags::WRONLY)
}

/// ANN owns everything, CAT is in CREW, BOB only in his own group.
pub fn access(j: &mut Checker, dir: &Path) -> Done {
    use Entry::*;
    let f = file(dir, "f")?;
    chown(&f, ANN)?;
    chmod(&f, 0o600)?;
    j.check("mode alone: BOB reads", reads(BOB, &f), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(6), User(BOB.uid, 4), Group(0), Mask(4), Other(0)]))?;
    j.check("user r: BOB reads", reads(BOB, &f), ());
    j.check("user r: BOB writes", writes(BOB, &f), Errno::ACCESS);
    j.check("user r: CAT reads", reads(CAT, &f), Errno::ACCESS);
    j.check("user r: ANN writes", writes(ANN, &f), ());
    let may = |flag| BOB.run_as(|| rustix::fs::access(&f, flag));
    j.check("user r: access(2) to read", may(rustix::fs::Access::READ_OK), ());
    j.check("user r: access(2) to write", may(rustix::fs::Access::WRITE_OK), Errno::ACCESS);
    chmod(&f, 0o600)?;
    j.check("chmod took the mask: BOB reads", reads(BOB, &f), Errno::ACCESS);
    chmod(&f, 0o660)?;
    j.check("chmod gave it back: BOB reads", reads(BOB, &f), ());
    j.check("chmod gave it back: BOB writes", writes(BOB, &f), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(6), Group(0), NamedGroup(CREW, 6), Mask(6), Other(0)]))?;
    j.check("group rw: CAT writes", writes(CAT, &f), ());
    j.check("group rw: BOB writes", writes(BOB, &f), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(6), Group(0), NamedGroup(CREW, 6), Mask(4), Other(0)]))?;
    j.check("group rw, mask r: CAT reads", reads(CAT, &f), ());
    j.check("group rw, mask r: CAT writes", writes(CAT, &f), Errno::ACCESS);
    let narrow = [Owner(6), User(CAT.uid, 0), Group(0), NamedGroup(CREW, 6), Mask(6), Other(6)];
    xattr::set(&f, ACCESS, &acl(&narrow))?;
    j.check("a user goes before its groups", reads(CAT, &f), Errno::ACCESS);
    j.check("others are others", writes(BOB, &f), ());
    let split = [Owner(6), Group(0), NamedGroup(CREW, 4), NamedGroup(CAT.gid, 2), Mask(6), Other(0)];
    xattr::set(&f, ACCESS, &acl(&split).clone())?;
    j.check("groups: one may read", reads(CAT, &f), ());
    j.check("groups: one may write", writes(CAT, &f), ());
    j.check("groups do not add up", opens(CAT, &f, OFlags::RDWR), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(0), User(ANN.uid, 6), Group(0), Mask(6), Other(6)]))?;
    j.check("the owner is only the owner", reads(ANN, &f), Errno::ACCESS);
    if j.remount("rw")? {
        j.check("remounted: the owner", reads(ANN, &f), Errno::ACCESS);
        j.check("remounted: others", writes(BOB, &f), ());
    }
    xattr::set(&f, ACCESS, &acl(&[Owner(6), User(BOB.uid, 6), Group(0), Mask(6), Other(0)]))?;
    j.check("attributes: BOB sets", BOB.run_as(|| xattr::set(&f, "user.bob", b"1")), ());
    j.check("attributes: CAT gets", CAT.run_as(|| xattr::get(&f, "user.bob")), Errno::ACCESS);
    xattr::remove(&f, ACCESS)?;
    j.check("removed: BOB reads", reads(BOB, &f), Errno::ACCESS);
    directories(j, dir)?;
    devices(j, dir)
}

fn directories(j: &mut Checker, dir: &Path) -> Done {
    use Entry::*;
    let d = directory(dir, "d")?;
    let inside = file(&d, "inside")?;
    chmod(&d, 0o700)?;
    j.check("directory 0700: BOB looks", BOB.run_as(|| inside.symlink_metadata().is_ok()), false);
    let for_bob = |may| acl(&[Owner(7), User(BOB.uid, may), Group(0), Mask(may), Other(0)]);
    xattr::set(&d, ACCESS, &for_bob(1))?;
    j.check("directory x: BOB looks", BOB.run_as(|| inside.symlink_metadata().is_ok()), true);
    j.check("directory x: BOB lists", reads(BOB, &d), Errno::ACCESS);
    j.check("directory x: CAT looks", CAT.run_as(|| inside.symlink_metadata().is_ok()), false);
    xattr::set(&d, ACCESS, &for_bob(5))?;
    j.check("directory rx: BOB lists", reads(BOB, &d), ());
    j.check("directory rx: BOB makes", BOB.run_as(|| file(&d, "bob").is_ok()), false);
    xattr::set(&d, ACCESS, &for_bob(7))?;
    j.check("directory rwx: BOB makes", BOB.run_as(|| file(&d, "bob").is_ok()), true);
    j.check("directory rwx: BOB removes", BOB.run_as(|| std::fs::remove_file(&inside).is_ok()), true);
    // A default ACL grants what the mode of the directory would not.
    let shared = directory(dir, "shared")?;
    chmod(&shared, 0o777)?;
    xattr::set(&shared, DEFAULT, &acl(&[Owner(7), User(BOB.uid, 6), Group(0), Mask(6), Other(0)]))?;
    let f = shared.join("f");
    ANN.run_as(|| openat(CWD, &f, OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC, 0o660.into()).map(drop))?;
    j.check("inherited: BOB writes", writes(BOB, &f), ());
    j.check("inherited: CAT reads", reads(CAT, &f), Errno::ACCESS);
    Ok(())
}

/// The ACL is checked before the existence of the device.
fn devices(j: &mut Checker, dir: &Path) -> Done {
    use Entry::*;
    let kinds = [("fifo", FileType::Fifo, 0), ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3))];
    for (name, kind, device) in kinds {
        let path = dir.join(name);
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device)?;
        j.check(format!("{name}: BOB reads"), reads(BOB, &path), Errno::ACCESS);
        let set = xattr::set(&path, ACCESS, &acl(&[Owner(6), User(BOB.uid, 6), Group(0), Mask(6), Other(0)]));
        j.check(format!("{name}: set"), set, ());
        if kind == FileType::Fifo {
            j.check("fifo: BOB reads with an ACL", reads(BOB, &path), ());
        }
        j.check(format!("{name}: CAT reads"), reads(CAT, &path), Errno::ACCESS);
    }
    Ok(())
}
