use crate::judge::{Done, Judge, directory, file};
use crate::xattr::{self, noise};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file, and its expected attributes.
struct Kept {
    path: PathBuf,
    values: BTreeMap<String, Vec<u8>>,
}

impl Kept {
    fn new(path: PathBuf) -> Kept {
        Kept { path, values: BTreeMap::new() }
    }

    /// Sets one, and records it if that succeeded.
    fn set(&mut self, name: &str, len: usize) -> Result<(), Errno> {
        let value = noise((self.values.len() * 1_000_003 + len) as u64, len);
        xattr::set(&self.path, name, &value)?;
        self.values.insert(name.to_string(), value);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), Errno> {
        xattr::remove(&self.path, name)?;
        self.values.remove(name);
        Ok(())
    }

    /// `as it should be`, or the first difference.
    fn state(&self) -> String {
        let names: Vec<Vec<u8>> = self.values.keys().map(|name| name.clone().into_bytes()).collect();
        match xattr::list(&self.path) {
            Ok(found) if found == names => {}
            Ok(found) => return format!("{} names instead of {}", found.len(), names.len()),
            Err(errno) => return format!("no list: {errno}"),
        }
        let wrong = |(name, value): &(&String, &Vec<u8>)| {
            xattr::get(&self.path, name.as_str()).as_ref() != Ok(*value)
        };
        match self.values.iter().find(wrong) {
            Some((name, _)) => format!("{name} is another value"),
            None => RIGHT.to_string(),
        }
    }
}

const RIGHT: &str = "as it should be";

/// One value moves through every home there and back, between two neighbours that must not change.
pub fn homes(j: &mut Judge, dir: &Path) -> Done {
    let (f, d) = (file(dir, "f")?, directory(dir, "d")?);
    std::fs::write(&f, b"contents stay")?;
    for (kind, path) in [("file", f.clone()), ("directory", d)] {
        let mut kept = Kept::new(path);
        kept.set("user.before", 50)?;
        j.is(format!("{kind}: new"), kept.set("user.moving", 20), ());
        kept.set("user.behind", 60)?;
        let lens = [
            100, 300, 900, 2000, 20_000, 40_000, 65_536, 30_000, 3000, 500, 10, 0, 65_000, 64, 35_000, 33_000,
        ];
        for len in lens {
            j.is(format!("{kind}: to {len}"), kept.set("user.moving", len), ());
            j.is(format!("{kind}: at {len}"), kept.state(), RIGHT);
        }
        if j.remount("rw")? {
            j.is(format!("{kind}: large, mounted anew"), kept.state(), RIGHT);
        }
        j.is(format!("{kind}: small again"), kept.set("user.moving", 30), ());
        if j.remount("rw")? {
            j.is(format!("{kind}: small, mounted anew"), kept.state(), RIGHT);
        }
        j.is(format!("{kind}: large once more"), kept.set("user.moving", 50_000), ());
        j.is(format!("{kind}: removed"), kept.remove("user.moving"), ());
        j.is(format!("{kind}: without it"), kept.state(), RIGHT);
        if j.remount("rw")? {
            j.is(format!("{kind}: removed, mounted anew"), kept.state(), RIGHT);
        }
    }
    j.is("contents", std::fs::read(&f)?, b"contents stay".to_vec());
    many_then_few(j, dir)
}

fn many_then_few(j: &mut Judge, dir: &Path) -> Done {
    let mut kept = Kept::new(file(dir, "many")?);
    let grown = (0..60).try_for_each(|at| kept.set(&format!("user.{at:02}"), at * 37 % 1200));
    j.is("60 names, one after the other", grown, ());
    j.is("60 names", kept.state(), RIGHT);
    let names: Vec<String> = kept.values.keys().cloned().collect();
    for name in names.iter().skip(2) {
        kept.remove(name)?;
    }
    j.is("2 names", kept.state(), RIGHT);
    j.is("20 names again", (20..38).try_for_each(|at| kept.set(&format!("user.{at:02}"), 40)), ());
    if j.remount("rw")? {
        j.is("20 names, mounted anew", kept.state(), RIGHT);
    }
    Ok(())
}

/// More in one file than any single list can hold.
pub fn large_beside(j: &mut Judge, dir: &Path) -> Done {
    let mut kept = Kept::new(file(dir, "f")?);
    let names: Vec<String> = (0..12).map(|at| format!("user.large-{at}")).collect();
    j.is("twelve values of 30000", names.iter().try_for_each(|name| kept.set(name, 30_000)), ());
    j.is("twelve: all there", kept.state(), RIGHT);
    j.is("a small one beside", kept.set("user.small", 10), ());
    j.is("four of 65536 instead", names.iter().take(4).try_for_each(|name| kept.set(name, 65_536)), ());
    j.is("four: all there", kept.state(), RIGHT);
    if j.remount("rw")? {
        j.is("four, mounted anew", kept.state(), RIGHT);
    }
    j.is("create what is there", xattr::create(&kept.path, names[5].as_str(), b"x"), Errno::EXIST);
    j.is("replace what is there", xattr::replace(&kept.path, names[5].as_str(), b"x"), ());
    kept.values.insert(names[5].clone(), b"x".to_vec());
    j.is("all shrink to 5", names.iter().try_for_each(|name| kept.set(name, 5)), ());
    j.is("shrunk: all there", kept.state(), RIGHT);
    if j.remount("rw")? {
        j.is("shrunk, mounted anew", kept.state(), RIGHT);
    }
    j.is("all go", names.iter().try_for_each(|name| kept.remove(name)), ());
    j.is("the small one is left", kept.state(), RIGHT);
    // Files that are removed with all their attributes, one of them while it is open.
    names.iter().try_for_each(|name| kept.set(name, 33_000))?;
    let open = std::fs::File::open(&kept.path)?;
    std::fs::remove_file(&kept.path)?;
    j.is("without a name", xattr::fget(&open, names[3].as_str()), kept.values[&names[3]].clone());
    j.is("without a name: remove", xattr::fremove(&open, names[3].as_str()), ());
    Ok(())
}
