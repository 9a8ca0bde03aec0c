use crate::checker::{Checker, Done, file};
use crate::xattr::{self, random_bytes};
use rustix::io::Errno;
use std::path::Path;

/// Any byte but NUL may be in a name. Some of these look like a path, or are not valid text.
const NAMES: [&[u8]; 18] = [
    b"user..",
    b"user...",
    b"user.a/b",
    b"user./",
    b"user./etc/passwd",
    b"user. ",
    b"user.\n",
    b"user.\xff\xfe",
    b"user.\x01\x7f\x80",
    b"user.stra\xc3\x9fe",
    b"user.STRASSE",
    b"user.strasse",
    b"user.e\xcc\x81",
    b"user.\xc3\xa9",
    b"user.user.a",
    b"user.trusted.a",
    b"user.system.posix_acl_access",
    b"user.=\"$(x)\"",
];

pub fn names(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    // Twice: small values, and values that some file systems keep in a directory, where names are file names.
    for (how, len) in [("small", 20), ("large", 34_000)] {
        let f = file(dir, how)?;
        let value = |at: usize| random_bytes(at as u64 + 1, len);
        let shown = |name: &[u8]| format!("{how} {}", name.escape_ascii());
        for (at, name) in NAMES.into_iter().enumerate() {
            j.check(format!("set {}", shown(name)), xattr::set(&f, name, &value(at)), ());
        }
        let mut all: Vec<Vec<u8>> = NAMES.iter().map(|name| name.to_vec()).collect();
        all.sort();
        j.check(format!("{how} list"), xattr::list(&f), all.clone());
        let anew = j.remount("rw")?;
        for (at, name) in NAMES.into_iter().enumerate() {
            j.check(format!("get {}", shown(name)), xattr::get(&f, name), value(at));
        }
        if anew {
            j.check(format!("{how} list, remounted"), xattr::list(&f), all);
        }
        j.check(format!("{how} no prefix of a name"), xattr::get(&f, "user.stra"), Errno::NODATA);
        j.check(format!("{how} no longer name"), xattr::get(&f, "user.strasse2"), Errno::NODATA);
        j.check(format!("{how} remove"), NAMES.iter().try_for_each(|name| xattr::remove(&f, *name)), ());
        j.check(format!("{how} list none"), xattr::list(&f), xattr::listed(&[]));
    }
    let every: Vec<u8> = (0..=255).collect();
    j.check("every byte in a value", xattr::set(&f, "user.every", &every), ());
    j.check("every byte comes back", xattr::get(&f, "user.every"), every);
    order(j, dir)
}

/// The order in which names were set is not visible.
fn order(j: &mut Checker, dir: &Path) -> Done {
    let names: Vec<String> = (0..20).map(|at| format!("user.{}", at * 7 % 20)).collect();
    let (there, back) = (file(dir, "there")?, file(dir, "back")?);
    for name in &names {
        xattr::set(&there, name.as_str(), name.as_bytes())?;
    }
    for name in names.iter().rev() {
        xattr::set(&back, name.as_str(), name.as_bytes())?;
    }
    let (one, other) = (xattr::list(&there)?, xattr::list(&back)?);
    j.check("order: the same names", one == other && one.len() == names.len(), true);
    let same = |name: &String| xattr::get(&back, name.as_str()) == Ok(name.clone().into_bytes());
    j.check("order: the same values", names.iter().all(same), true);
    Ok(())
}
