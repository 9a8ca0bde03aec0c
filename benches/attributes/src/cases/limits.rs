use crate::judge::{Done, Judge, file};
use crate::xattr::{self, VALUE_MAX, noise};
use rustix::io::Errno;
use std::path::Path;

/// Around each length at which a file system may change a value's home.
const LENS: [usize; 26] = [
    0, 1, 2, 7, 8, 31, 32, 100, 184, 185, 255, 256, 320, 321, 511, 832, 833, 1024, 3000, 4096, 8192, 16192,
    32768, 32769, 65535, 65536,
];

pub fn values(j: &mut Judge, dir: &Path) -> Done {
    let mut kept = Vec::new();
    for len in LENS {
        let f = file(dir, &len.to_string())?;
        let value = noise(len as u64, len);
        let set = xattr::set(&f, "user.value", &value);
        j.is(format!("set {len}"), set, ());
        if set.is_ok() {
            j.is(format!("get {len}"), xattr::get(&f, "user.value"), value.clone());
            j.is(format!("length {len}"), xattr::value_len(&f, "user.value"), len);
            kept.push((f, value));
        }
    }
    if j.remount("rw")? {
        for (f, value) in &kept {
            j.is(format!("get {} mounted anew", value.len()), xattr::get(f, "user.value"), value.clone());
        }
    }
    for (f, value) in &kept {
        let removed = xattr::remove(f, "user.value").and_then(|()| xattr::list(f));
        j.is(format!("remove {}", value.len()), removed, xattr::listed(&[]));
    }
    let short = file(dir, "short")?;
    j.is("a byte too long", xattr::set(&short, "user.value", &noise(1, VALUE_MAX + 1)), Errno::TOOBIG);
    j.is("zeros are no end", xattr::set(&short, "user.value", &[0; 300]), ());
    j.is("zeros come back", xattr::get(&short, "user.value"), vec![0; 300]);
    Ok(())
}

pub fn long_names(j: &mut Judge, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let name = |len: usize| format!("user.{}", "n".repeat(len - 5));
    for len in [6, 7, 8, 9, 100, 127, 128, 200, 254, 255] {
        j.is(format!("set {len}"), xattr::set(&f, name(len), len.to_string().as_bytes()), ());
    }
    for len in [6, 7, 8, 9, 100, 127, 128, 200, 254, 255] {
        j.is(format!("get {len}"), xattr::get(&f, name(len)), len.to_string().into_bytes());
    }
    let names: Vec<String> = [6, 7, 8, 9, 100, 127, 128, 200, 254, 255].map(name).to_vec();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    j.is("list", xattr::list(&f), xattr::listed(&names));
    j.is("large value under a long name", xattr::set(&f, name(255), &noise(255, 40_000)), ());
    if j.remount("rw")? {
        j.is("list, mounted anew", xattr::list(&f), xattr::listed(&names));
        j.is("large value, mounted anew", xattr::get(&f, name(255)), noise(255, 40_000));
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

pub fn many(j: &mut Judge, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    let name = |at: usize| format!("user.number-{at:04}");
    let (count, last) = set_many(&f, 1000, name);
    j.is("set", last, ());
    j.is("so many", count, 1000);
    let names: Vec<Vec<u8>> = (0..count).map(|at| name(at).into_bytes()).collect();
    let right = |at: &usize| xattr::get(&f, name(*at)) == Ok(format!("value {at:06}").into_bytes());
    j.is("list", xattr::list(&f).map(|found| found == names), true);
    j.is("length of the list", xattr::list_len(&f).map(|len| len == count * 17), true);
    j.is("each value", (0..count).all(|at| right(&at)), true);
    if j.remount("rw")? {
        j.is("list, mounted anew", xattr::list(&f).map(|found| found == names), true);
        j.is("each value, mounted anew", (0..count).all(|at| right(&at)), true);
    }
    let odd = (1..count).step_by(2).try_for_each(|at| xattr::remove(&f, name(at)));
    j.is("remove every other", odd, ());
    let even = names.iter().step_by(2).cloned().collect::<Vec<_>>();
    j.is("list the others", xattr::list(&f).map(|found| found == even), true);
    j.is("their values", (0..count).step_by(2).all(|at| right(&at)), true);
    j.is("remove the others", (0..count).step_by(2).try_for_each(|at| xattr::remove(&f, name(at))), ());
    j.is("list none", xattr::list(&f), xattr::listed(&[]));
    j.is(
        "and one again",
        xattr::set(&f, "user.again", b"x").and_then(|()| xattr::get(&f, "user.again")),
        b"x".to_vec(),
    );
    Ok(())
}

pub fn full_list(j: &mut Judge, dir: &Path) -> Done {
    let f = file(dir, "f")?;
    // 255 bytes and a NUL: 256 of them are 64 KiB to the byte.
    let name = |at: usize| format!("user.{at:0250}");
    let (count, last) = set_many(&f, 257, name);
    j.is("the next name", last, Errno::NOSPC);
    j.is("so many fit", count, 256);
    j.is("length of the list", xattr::list_len(&f).map(|len| len == count * 256), true);
    j.is("the whole list", xattr::list(&f).map(|found| found.len() == count), true);
    j.is("a small one neither", xattr::set(&f, "user.b", b"x"), Errno::NOSPC);
    j.is("what is there can change", xattr::set(&f, name(7), b"changed"), ());
    if j.remount("rw")? {
        j.is("the whole list, mounted anew", xattr::list(&f).map(|found| found.len() == count), true);
        j.is("changed, mounted anew", xattr::get(&f, name(7)), b"changed".to_vec());
    }
    j.is("one goes", xattr::remove(&f, name(0)), ());
    j.is("another fits", xattr::set(&f, name(1000), b"value"), ());
    j.is("list with a short buffer", xattr::list_into(&f, 100), Errno::RANGE);
    // All attributes are removed with the file.
    j.is("the file goes", std::fs::remove_file(&f).is_ok(), true);
    Ok(())
}
