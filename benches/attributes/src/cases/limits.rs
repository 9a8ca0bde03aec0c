use crate::checker::{Checker, Done, file};
use crate::xattr::{self, VALUE_MAX, random_bytes};
use rustix::io::Errno;
use std::path::Path;

/// Around each length at which a file system may change a value's home.
const LENS: [usize; 26] = [
    0, 1, 2, 7, 8, 31, 32, 100, 184, 185, 255, 256, 320, 321, 511, 832, 833, 1024, 3000, 4096, 8192, 16192,
    32768, 32769, 65535, 65536,
];

pub fn values(j: &mut Checker, dir: &Path) -> Done {
    let mut kept = Vec::new();
    for len in LENS {
        let f = file(dir, &len.to_string())?;
        let value = random_bytes(len as u64, len);
        let set = xattr::set(&f, "user.value", &value);
        j.check(format!("set {len}"), set, ());
        if set.is_ok() {
            j.check(format!("get {len}"), xattr::get(&f, "user.value"), value.clone());
            j.check(format!("length {len}"), xattr::value_len(&f, "user.value"), len);
            kept.push((f, value));
        }
    }
    if j.remount("rw")? {
        for (f, value) in &kept {
            j.check(format!("get {} remounted", value.len()), xattr::get(f, "user.value"), value.clone());
        }
    }
    for (f, value) in &kept {
        let removed = xattr::remove(f, "user.value").and_then(|()| xattr::list(f));
        j.check(format!("remove {}", value.len()), removed, xattr::listed(&[]));
    }
    let short = file(dir, "short")?;
    j.check(
        "a byte too long",
        xattr::set(&short, "user.value", &random_bytes(1, VALUE_MAX + 1)),
        Errno::TOOBIG,
    );
    j.check("zeros are no end", xattr::set(&short, "user.value", &[0; 300]), ());
    j.check("zeros come back", xattr::get(&short, "user.value"), vec![0; 300]);
    Ok(())
}

pub fn long_names(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let name = |len: usize| format!("user.{}", "n".repeat(len - 5));
    for len in [6, 7, 8, 9, 100, 127, 128, 200, 254, 255] {
        j.check(format!("set {len}"), xattr::set(&f, name(len), len.to_string().as_bytes()), ());
    }
    for len in [6, 7, 8, 9, 100, 127, 128, 200, 254, 255] {
        j.check(format!("get {len}"), xattr::get(&f, name(len)), len.to_string().into_bytes());
    }
    let names: Vec<String> = [6, 7, 8, 9, 100, 127, 128, 200, 254, 255].map(name).to_vec();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    j.check("list", xattr::list(&f), xattr::listed(&names));
    j.check("large value under a long name", xattr::set(&f, name(255), &random_bytes(255, 40_000)), ());
    if j.remount("rw")? {
        j.check("list, remounted", xattr::list(&f), xattr::listed(&names));
        j.check("large value, remounted", xattr::get(&f, name(255)), random_bytes(255, 40_000));
    }
    Ok(())
}

/// How many of `count` numbered names could be set, and the error of the next one.
fn set_many(f: &Path, count: usize, name: impl Fn(usize) -> String) -> (usize, Result<(), Errno>) {
    for at in 0..count {
        let set = xattr::set(f, name(at), format!("value {at:06}").as_bytes());
        if set.is_err() {
            return (at, set);
        }
    }
    (count, Ok(()))
}

pub fn many(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let name = |at: usize| format!("user.number-{at:04}");
    let (count, last) = set_many(&f, 1000, name);
    j.check("set", last, ());
    j.check("so many", count, 1000);
    let names: Vec<Vec<u8>> = (0..count).map(|at| name(at).into_bytes()).collect();
    let right = |at: &usize| xattr::get(&f, name(*at)) == Ok(format!("value {at:06}").into_bytes());
    j.check("list", xattr::list(&f).map(|found| found == names), true);
    j.check("length of the list", xattr::list_len(&f).map(|len| len == count * 17), true);
    j.check("each value", (0..count).all(|at| right(&at)), true);
    if j.remount("rw")? {
        j.check("list, remounted", xattr::list(&f).map(|found| found == names), true);
        j.check("each value, remounted", (0..count).all(|at| right(&at)), true);
    }
    let odd = (1..count).step_by(2).try_for_each(|at| xattr::remove(&f, name(at)));
    j.check("remove every other", odd, ());
    let even = names.iter().step_by(2).cloned().collect::<Vec<_>>();
    j.check("list the others", xattr::list(&f).map(|found| found == even), true);
    j.check("their values", (0..count).step_by(2).all(|at| right(&at)), true);
    j.check("remove the others", (0..count).step_by(2).try_for_each(|at| xattr::remove(&f, name(at))), ());
    j.check("list none", xattr::list(&f), xattr::listed(&[]));
    j.check(
        "and one again",
        xattr::set(&f, "user.again", b"x").and_then(|()| xattr::get(&f, "user.again")),
        b"x".to_vec(),
    );
    Ok(())
}

pub fn full_list(j: &mut Checker, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    // 255 bytes and a NUL: 256 of them are 64 KiB to the byte.
    let name = |at: usize| format!("user.{at:0250}");
    let (count, last) = set_many(&f, 257, name);
    j.check("the next name", last, Errno::NOSPC);
    j.check("so many fit", count, 256);
    j.check("length of the list", xattr::list_len(&f).map(|len| len == count * 256), true);
    j.check("the whole list", xattr::list(&f).map(|found| found.len() == count), true);
    j.check("a small one neither", xattr::set(&f, "user.b", b"x"), Errno::NOSPC);
    j.check("what is there can change", xattr::set(&f, name(7), b"changed"), ());
    if j.remount("rw")? {
        j.check("the whole list, remounted", xattr::list(&f).map(|found| found.len() == count), true);
        j.check("changed, remounted", xattr::get(&f, name(7)), b"changed".to_vec());
    }
    j.check("one goes", xattr::remove(&f, name(0)), ());
    j.check("another fits", xattr::set(&f, name(1000), b"value"), ());
    j.check("list with a short buffer", xattr::list_into(&f, 100), Errno::RANGE);
    // All attributes are removed with the file.
    j.check("the file goes", std::fs::remove_file(&f).is_ok(), true);
    Ok(())
}
