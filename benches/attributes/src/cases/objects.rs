use crate::judge::{Done, Judge, directory, file};
use crate::words::Bits;
use crate::xattr::{self, noise};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Attributes belong to the inode, whatever path leads to it.
pub fn objects(j: &mut Judge, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let link = dir.join("link");
    std::fs::hard_link(&f, &link)?;
    xattr::set(&f, "user.a", b"one")?;
    j.is("link: shares", xattr::get(&link, "user.a"), b"one".to_vec());
    xattr::set(&link, "user.a", b"two")?;
    j.is("link: both ways", xattr::get(&f, "user.a"), b"two".to_vec());
    std::fs::remove_file(&f)?;
    j.is("link: the other name went", xattr::get(&link, "user.a"), b"two".to_vec());
    let (from, to) = (directory(dir, "from")?, directory(dir, "to")?);
    let moved = to.join("moved");
    xattr::set(&link, "user.large", &noise(3, 3000))?;
    std::fs::rename(&link, from.join("f"))?;
    std::fs::rename(from.join("f"), &moved)?;
    j.is("rename: keeps", xattr::list(&moved), xattr::listed(&["user.a", "user.large"]));
    j.is("rename: keeps the value", xattr::get(&moved, "user.large"), noise(3, 3000));
    let over = file(&to, "over")?;
    xattr::set(&over, "user.old", b"gone")?;
    std::fs::rename(&moved, &over)?;
    j.is("rename: over another", xattr::list(&over), xattr::listed(&["user.a", "user.large"]));
    xattr::set(&from, "user.dir", b"of from")?;
    std::fs::rename(&from, dir.join("renamed"))?;
    j.is("rename: of a directory", xattr::get(&dir.join("renamed"), "user.dir"), b"of from".to_vec());
    std::fs::write(&over, b"contents")?;
    j.is("write: keeps", xattr::list(&over), xattr::listed(&["user.a", "user.large"]));
    std::fs::File::create(&over)?;
    j.is("truncate: keeps", xattr::list(&over), xattr::listed(&["user.a", "user.large"]));
    std::fs::remove_file(&over)?;
    let anew = file(&to, "over")?;
    j.is("a new file has none", xattr::list(&anew), xattr::listed(&[]));
    unlinked(j, dir)?;
    unnamed(j, dir)
}

fn unlinked(j: &mut Judge, dir: &Path) -> Done {
    let f = file(dir, "open")?;
    xattr::set(&f, "user.before", b"1")?;
    let open = std::fs::File::open(&f)?;
    std::fs::remove_file(&f)?;
    j.is("unlinked: get", xattr::fget(&open, "user.before"), b"1".to_vec());
    j.is("unlinked: set", xattr::fset(&open, "user.after", &noise(4, 2000)), ());
    j.is("unlinked: get the new one", xattr::fget(&open, "user.after"), noise(4, 2000));
    j.is("unlinked: list", xattr::flist(&open), xattr::listed(&["user.before", "user.after"]));
    j.is("unlinked: remove", xattr::fremove(&open, "user.before"), ());
    j.is("unlinked: remove again", xattr::fremove(&open, "user.before"), Errno::NODATA);
    j.is("unlinked: large", xattr::fset(&open, "user.after", &noise(5, 60_000)), ());
    j.is("unlinked: get large", xattr::fget(&open, "user.after"), noise(5, 60_000));
    let gone = directory(dir, "gone")?;
    let open = std::fs::File::open(&gone)?;
    std::fs::remove_dir(&gone)?;
    j.is("unlinked directory: set", xattr::fset(&open, "user.a", b"1"), ());
    j.is("unlinked directory: get", xattr::fget(&open, "user.a"), b"1".to_vec());
    Ok(())
}

/// A file that gets its attributes before its name, as programs that save carefully do.
fn unnamed(j: &mut Judge, dir: &Path) -> Done {
    let mode = Mode::from_raw_mode(0o600);
    let open = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)?;
    j.is("unnamed: set", xattr::fset(&open, "user.a", b"early"), ());
    j.is("unnamed: set large", xattr::fset(&open, "user.b", &noise(6, 2500)), ());
    let named = dir.join("named");
    let handle = format!("/proc/self/fd/{}", open.as_raw_fd());
    rustix::fs::linkat(CWD, handle.as_str(), CWD, &named, AtFlags::SYMLINK_FOLLOW)?;
    drop(open);
    j.is("unnamed: named", xattr::get(&named, "user.a"), b"early".to_vec());
    if j.remount("rw")? {
        j.is("unnamed: mounted anew", xattr::get(&named, "user.b"), noise(6, 2500));
        j.is("unnamed: its mode", Bits(named.metadata()?.mode() & 0o7777), Bits(0o600));
    }
    Ok(())
}

/// Change time of the inode and modification time of the contents, in nanoseconds.
fn changed(path: &Path) -> Result<(i128, i128), std::io::Error> {
    let stat = path.symlink_metadata()?;
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    Ok((nanos(stat.ctime(), stat.ctime_nsec()), nanos(stat.mtime(), stat.mtime_nsec())))
}

pub fn times(j: &mut Judge, dir: &Path) -> Done {
    let (f, d) = (file(dir, "f")?, directory(dir, "d")?);
    let acl = xattr::acl(&super::acls::with_user(6, 4));
    type Act<'a> = (&'a str, &'a Path, &'a dyn Fn() -> Result<(), Errno>);
    let acts: [Act<'_>; 8] = [
        ("set", &f, &|| xattr::set(&f, "user.a", b"1")),
        ("set again", &f, &|| xattr::set(&f, "user.a", b"2")),
        ("set large", &f, &|| xattr::set(&f, "user.b", &noise(1, 2000))),
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
        j.is(format!("{what}: ctime moves"), after.0 > before.0, true);
        j.is(format!("{what}: mtime stays"), after.1 == before.1, true);
    }
    let before = changed(&f)?;
    std::thread::sleep(Duration::from_millis(12));
    xattr::get(&f, "user.b")?;
    xattr::list(&f)?;
    let refused = (xattr::replace(&f, "user.none", b"x"), xattr::remove(&f, "user.none"));
    j.is(
        "get, list and refusals: ctime stays",
        changed(&f)? == before && refused.0.is_err() && refused.1.is_err(),
        true,
    );
    if j.remount("rw")? {
        j.is("mounted anew: both stay", changed(&f)? == before, true);
    }
    Ok(())
}

pub fn together(j: &mut Judge, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let name = |who: usize, at: usize| format!("user.{who}-{at:02}");
    std::thread::scope(|scope| {
        for who in 0..4 {
            let f = &f;
            scope.spawn(move || (0..12).try_for_each(|at| xattr::set(f, name(who, at), &[who as u8; 9])));
        }
    });
    j.is("no update is lost", xattr::list(&f).map(|found| found.len()), 48);
    let right = |who: usize| (0..12).all(|at| xattr::get(&f, name(who, at)) == Ok(vec![who as u8; 9]));
    j.is("each value is its writer's", (0..4).all(right), true);
    std::thread::scope(|scope| {
        for who in 0..4 {
            let f = &f;
            scope.spawn(move || (0..12).step_by(2).try_for_each(|at| xattr::remove(f, name(who, at))));
        }
    });
    j.is("no removal is lost", xattr::list(&f).map(|found| found.len()), 24);
    // One replaces the other repeatedly: no reader sees half of it, or nothing.
    for (one, other) in [(700, 1900), (20, 40_000), (40_000, 60_000)] {
        let (one, other) = (noise(1, one), noise(2, other));
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
        j.is(format!("{what}: written"), wrote, ());
        j.is(format!("{what}: seen"), seen, true);
        j.is(format!("{what}: listed"), listed, true);
    }
    Ok(())
}
