use super::privileges::{chmod, give};
use crate::judge::{Done, Judge, directory, file};
use crate::person::{ANN, BOB, CAT, CREW, Person};
use crate::xattr::{self, ACCESS, DEFAULT, Entry, acl};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use rustix::io::Errno;
use std::path::Path;

fn opens(who: Person, path: &Path, flags: OFlags) -> Result<(), Errno> {
    who.asks(|| openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map(drop))
}

fn reads(who: Person, path: &Path) -> Result<(), Errno> {
    opens(who, path, OFlags::RDONLY)
}

fn writes(who: Person, path: &Path) -> Result<(), Errno> {
    opens(who, path, OFlags::WRONLY)
}

/// ANN owns everything, CAT is in CREW, BOB only in his own group.
pub fn access(j: &mut Judge, dir: &Path) -> Done {
    use Entry::*;
    let f = file(dir, "f")?;
    give(&f, ANN)?;
    chmod(&f, 0o600)?;
    j.is("mode alone: BOB reads", reads(BOB, &f), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(6), User(BOB.uid, 4), Group(0), Mask(4), Other(0)]))?;
    j.is("user r: BOB reads", reads(BOB, &f), ());
    j.is("user r: BOB writes", writes(BOB, &f), Errno::ACCESS);
    j.is("user r: CAT reads", reads(CAT, &f), Errno::ACCESS);
    j.is("user r: ANN writes", writes(ANN, &f), ());
    let may = |flag| BOB.asks(|| rustix::fs::access(&f, flag));
    j.is("user r: access(2) to read", may(rustix::fs::Access::READ_OK), ());
    j.is("user r: access(2) to write", may(rustix::fs::Access::WRITE_OK), Errno::ACCESS);
    chmod(&f, 0o600)?;
    j.is("chmod took the mask: BOB reads", reads(BOB, &f), Errno::ACCESS);
    chmod(&f, 0o660)?;
    j.is("chmod gave it back: BOB reads", reads(BOB, &f), ());
    j.is("chmod gave it back: BOB writes", writes(BOB, &f), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(6), Group(0), NamedGroup(CREW, 6), Mask(6), Other(0)]))?;
    j.is("group rw: CAT writes", writes(CAT, &f), ());
    j.is("group rw: BOB writes", writes(BOB, &f), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(6), Group(0), NamedGroup(CREW, 6), Mask(4), Other(0)]))?;
    j.is("group rw, mask r: CAT reads", reads(CAT, &f), ());
    j.is("group rw, mask r: CAT writes", writes(CAT, &f), Errno::ACCESS);
    let narrow = [Owner(6), User(CAT.uid, 0), Group(0), NamedGroup(CREW, 6), Mask(6), Other(6)];
    xattr::set(&f, ACCESS, &acl(&narrow))?;
    j.is("a user goes before its groups", reads(CAT, &f), Errno::ACCESS);
    j.is("others are others", writes(BOB, &f), ());
    let split = [Owner(6), Group(0), NamedGroup(CREW, 4), NamedGroup(CAT.gid, 2), Mask(6), Other(0)];
    xattr::set(&f, ACCESS, &acl(&split).clone())?;
    j.is("groups: one may read", reads(CAT, &f), ());
    j.is("groups: one may write", writes(CAT, &f), ());
    j.is("groups do not add up", opens(CAT, &f, OFlags::RDWR), Errno::ACCESS);
    xattr::set(&f, ACCESS, &acl(&[Owner(0), User(ANN.uid, 6), Group(0), Mask(6), Other(6)]))?;
    j.is("the owner is only the owner", reads(ANN, &f), Errno::ACCESS);
    if j.remount("rw")? {
        j.is("mounted anew: the owner", reads(ANN, &f), Errno::ACCESS);
        j.is("mounted anew: others", writes(BOB, &f), ());
    }
    xattr::set(&f, ACCESS, &acl(&[Owner(6), User(BOB.uid, 6), Group(0), Mask(6), Other(0)]))?;
    j.is("attributes: BOB sets", BOB.asks(|| xattr::set(&f, "user.bob", b"1")), ());
    j.is("attributes: CAT gets", CAT.asks(|| xattr::get(&f, "user.bob")), Errno::ACCESS);
    xattr::remove(&f, ACCESS)?;
    j.is("removed: BOB reads", reads(BOB, &f), Errno::ACCESS);
    directories(j, dir)?;
    devices(j, dir)
}

fn directories(j: &mut Judge, dir: &Path) -> Done {
    use Entry::*;
    let d = directory(dir, "d")?;
    let inside = file(&d, "inside")?;
    chmod(&d, 0o700)?;
    j.is("directory 0700: BOB looks", BOB.asks(|| inside.symlink_metadata().is_ok()), false);
    let for_bob = |may| acl(&[Owner(7), User(BOB.uid, may), Group(0), Mask(may), Other(0)]);
    xattr::set(&d, ACCESS, &for_bob(1))?;
    j.is("directory x: BOB looks", BOB.asks(|| inside.symlink_metadata().is_ok()), true);
    j.is("directory x: BOB lists", reads(BOB, &d), Errno::ACCESS);
    j.is("directory x: CAT looks", CAT.asks(|| inside.symlink_metadata().is_ok()), false);
    xattr::set(&d, ACCESS, &for_bob(5))?;
    j.is("directory rx: BOB lists", reads(BOB, &d), ());
    j.is("directory rx: BOB makes", BOB.asks(|| file(&d, "bob").is_ok()), false);
    xattr::set(&d, ACCESS, &for_bob(7))?;
    j.is("directory rwx: BOB makes", BOB.asks(|| file(&d, "bob").is_ok()), true);
    j.is("directory rwx: BOB removes", BOB.asks(|| std::fs::remove_file(&inside).is_ok()), true);
    // A default ACL grants what the mode of the directory would not.
    let shared = directory(dir, "shared")?;
    chmod(&shared, 0o777)?;
    xattr::set(&shared, DEFAULT, &acl(&[Owner(7), User(BOB.uid, 6), Group(0), Mask(6), Other(0)]))?;
    let f = shared.join("f");
    ANN.asks(|| openat(CWD, &f, OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC, 0o660.into()).map(drop))?;
    j.is("inherited: BOB writes", writes(BOB, &f), ());
    j.is("inherited: CAT reads", reads(CAT, &f), Errno::ACCESS);
    Ok(())
}

/// The ACL is checked before the existence of the device.
fn devices(j: &mut Judge, dir: &Path) -> Done {
    use Entry::*;
    let kinds = [("fifo", FileType::Fifo, 0), ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3))];
    for (name, kind, device) in kinds {
        let path = dir.join(name);
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device)?;
        j.is(format!("{name}: BOB reads"), reads(BOB, &path), Errno::ACCESS);
        let set = xattr::set(&path, ACCESS, &acl(&[Owner(6), User(BOB.uid, 6), Group(0), Mask(6), Other(0)]));
        j.is(format!("{name}: set"), set, ());
        if kind == FileType::Fifo {
            j.is("fifo: BOB reads with an ACL", reads(BOB, &path), ());
        }
        j.is(format!("{name}: CAT reads"), reads(CAT, &path), Errno::ACCESS);
    }
    Ok(())
}
