use crate::checker::{Checker, Done, directory, file};
use crate::describe::Bits;
use crate::xattr::{self, random_bytes};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Attributes belong to the inode, whatever path leads to it.
pub fn objects(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let link = dir.join("link");
    std::fs::hard_link(&f, &link)?;
    xattr::set(&f, "user.a", b"one")?;
    j.check("link: shares", xattr::get(&link, "user.a"), b"one".to_vec());
    xattr::set(&link, "user.a", b"two")?;
    j.check("link: both ways", xattr::get(&f, "user.a"), b"two".to_vec());
    std::fs::remove_file(&f)?;
    j.check("link: the other name went", xattr::get(&link, "user.a"), b"two".to_vec());
    let (from, to) = (directory(dir, "from")?, directory(dir, "to")?);
    let moved = to.join("moved");
    xattr::set(&link, "user.large", &random_bytes(3, 3000))?;
    std::fs::rename(&link, from.join("f"))?;
    std::fs::rename(from.join("f"), &moved)?;
    j.check("rename: keeps", xattr::list(&moved), xattr::listed(&["user.a", "user.large"]));
    j.check("rename: keeps the value", xattr::get(&moved, "user.large"), random_bytes(3, 3000));
    let over = file(&to, "over")?;
    xattr::set(&over, "user.old", b"gone")?;
    std::fs::rename(&moved, &over)?;
    j.check("rename: over another", xattr::list(&over), xattr::listed(&["user.a", "user.large"]));
    xattr::set(&from, "user.dir", b"of from")?;
    std::fs::rename(&from, dir.join("renamed"))?;
    j.check("rename: of a directory", xattr::get(&dir.join("renamed"), "user.dir"), b"of from".to_vec());
    std::fs::write(&over, b"contents")?;
    j.check("write: keeps", xattr::list(&over), xattr::listed(&["user.a", "user.large"]));
    std::fs::File::create(&over)?;
    j.check("truncate: keeps", xattr::list(&over), xattr::listed(&["user.a", "user.large"]));
    std::fs::remove_file(&over)?;
    let anew = file(&to, "over")?;
    j.check("a new file has none", xattr::list(&anew), xattr::listed(&[]));
    unlinked(j, dir)?;
    unnamed(j, dir)
}

fn unlinked(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "open")?;
    xattr::set(&f, "user.before", b"1")?;
    let open = std::fs::File::open(&f)?;
    std::fs::remove_file(&f)?;
    j.check("unlinked: get", xattr::fget(&open, "user.before"), b"1".to_vec());
    j.check("unlinked: set", xattr::fset(&open, "user.after", &random_bytes(4, 2000)), ());
    j.check("unlinked: get the new one", xattr::fget(&open, "user.after"), random_bytes(4, 2000));
    j.check("unlinked: list", xattr::flist(&open), xattr::listed(&["user.before", "user.after"]));
    j.check("unlinked: remove", xattr::fremove(&open, "user.before"), ());
    j.check("unlinked: remove again", xattr::fremove(&open, "user.before"), Errno::NODATA);
    j.check("unlinked: large", xattr::fset(&open, "user.after", &random_bytes(5, 60_000)), ());
    j.check("unlinked: get large", xattr::fget(&open, "user.after"), random_bytes(5, 60_000));
    let gone = directory(dir, "gone")?;
    let open = std::fs::File::open(&gone)?;
    std::fs::remove_dir(&gone)?;
    j.check("unlinked directory: set", xattr::fset(&open, "user.a", b"1"), ());
    j.check("unlinked directory: get", xattr::fget(&open, "user.a"), b"1".to_vec());
    Ok(())
}

/// A file that gets its attributes before its name, as programs that save carefully do.
fn unnamed(j: &mut Checker, dir: &Path) -> Done {
    let mode = Mode::from_raw_mode(0o600);
    let open = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)?;
    j.check("unnamed: set", xattr::fset(&open, "user.a", b"early"), ());
    j.check("unnamed: set large", xattr::fset(&open, "user.b", &random_bytes(6, 2500)), ());
    let named = dir.join("named");
    let handle = format!("/proc/self/fd/{}", open.as_raw_fd());
    rustix::fs::linkat(CWD, handle.as_str(), CWD, &named, AtFlags::SYMLINK_FOLLOW)?;
    drop(open);
    j.check("unnamed: named", xattr::get(&named, "user.a"), b"early".to_vec());
    if j.remount("rw")? {
        j.check("unnamed: remounted", xattr::get(&named, "user.b"), random_bytes(6, 2500));
        j.check("unnamed: its mode", Bits(named.metadata()?.mode() & 0o7777), Bits(0o600));
    }
    Ok(())
}

/// Change time of the inode and modification time of the contents, in nanoseconds.
fn changed(path: &Path) -> Result<(i128, i128), std::io::Error> {
    let stat = path.symlink_metadata()?;
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    Ok((nanos(stat.ctime(), stat.ctime_nsec()), nanos(stat.mtime(), stat.mtime_nsec())))
}

pub fn times(j: &mut Checker, dir: &Path) -> Done {
    let (f, d) = (file(dir, "f")?, directory(dir, "d")?);
    let acl = xattr::acl(&super::acls::with_user(6, 4));
    type Act<'a> = (&'a str, &'a Path, &'a dyn Fn() -> Result<(), Errno>);
    let acts: [Act<'_>; 8] = [
        ("set", &f, &|| xattr::set(&f, "user.a", b"1")),
        ("set again", &f, &|| xattr::set(&f, "user.a", b"2")),
        ("set large", &f, &|| xattr::set(&f, "user.b", &random_bytes(1, 2000))),
        ("remove", &f, &|| xattr::remove(&f, "user.a")),
        ("set of a directory", &d, &|| xattr::set(&d, "user.a", b"1")),
        ("remove of a directory", &d, &|| xattr::remove(&d, "user.a")),
        ("set an ACL", &f, &|| xattr::set(&f, xattr::ACCESS, &acl)),
        ("remove an ACL", &f, &|| xattr::remove(&f, xattr::ACCESS)),
    ];
    for (what, path, act) in acts {
        let before = changed(path)?;
        // Longer than a tick of the coarsest clock for file times.
        std::thread::sleep(Duration::from_millis(12));
        act()?;
        let after = changed(path)?;
        j.check(format!("{what}: ctime moves"), after.0 > before.0, true);
        j.check(format!("{what}: mtime stays"), after.1 == before.1, true);
    }
    let before = changed(&f)?;
    std::thread::sleep(Duration::from_millis(12));
    xattr::get(&f, "user.b")?;
    xattr::list(&f)?;
    let refused = (xattr::replace(&f, "user.none", b"x"), xattr::remove(&f, "user.none"));
    j.check(
        "get, list and refusals: ctime stays",
        changed(&f)? == before && refused.0.is_err() && refused.1.is_err(),
        true,
    );
    if j.remount("rw")? {
        j.check("remounted: both stay", changed(&f)? == before, true);
    }
    Ok(())
}

pub fn concurrent(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let name = |who: usize, at: usize| format!("user.{who}-{at:02}");
    std::thread::scope(|scope| {
        for who in 0..4 {
            let f = &f;
            scope.spawn(move || (0..12).try_for_each(|at| xattr::set(f, name(who, at), &[who as u8; 9])));
        }
    });
    j.check("no update is lost", xattr::list(&f).map(|found| found.len()), 48);
    let right = |who: usize| (0..12).all(|at| xattr::get(&f, name(who, at)) == Ok(vec![who as u8; 9]));
    j.check("each value is its writer's", (0..4).all(right), true);
    std::thread::scope(|scope| {
        for who in 0..4 {
            let f = &f;
            scope.spawn(move || (0..12).step_by(2).try_for_each(|at| xattr::remove(f, name(who, at))));
        }
    });
    j.check("no removal is lost", xattr::list(&f).map(|found| found.len()), 24);
    // One replaces the other repeatedly: no reader sees half of it, or nothing.
    for (one, other) in [(700, 1900), (20, 40_000), (40_000, 60_000)] {
        let (one, other) = (random_bytes(1, one), random_bytes(2, other));
        xattr::set(&f, "user.flips", &one)?;
        let turn = |at| if at % 2 == 0 { &other } else { &one };
        let (seen, listed, wrote) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..300).try_for_each(|at| xattr::set(&f, "user.flips", turn(at))));
            let whole = |_| xattr::get(&f, "user.flips").is_ok_and(|value| value == one || value == other);
            let there = |_| xattr::list(&f).is_ok_and(|names| names.len() == 25);
            let seen = (0..150).all(whole);
            let listed = (0..150).all(there);
            (seen, listed, writer.join().unwrap_or(Err(Errno::IO)))
        });
        let what = format!("{} and {} in turn", one.len(), other.len());
        j.check(format!("{what}: written"), wrote, ());
        j.check(format!("{what}: seen"), seen, true);
        j.check(format!("{what}: listed"), listed, true);
    }
    Ok(())
}
