use crate::checker::{Checker, Done, directory, file};
use crate::xattr::{self, random_bytes};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file, and its expected attributes.
struct ExpectedAttrs {
    path: PathBuf,
    values: BTreeMap<String, Vec<u8>>,
}

impl ExpectedAttrs {
    fn new(path: PathBuf) -> ExpectedAttrs {
        ExpectedAttrs { path, values: BTreeMap::new() }
    }

    /// Sets one, and records it if that succeeded.
    fn set(&mut self, name: &str, len: usize) -> Result<(), Errno> {
        let value = random_bytes((self.values.len() * 1_000_003 + len) as u64, len);
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
pub fn homes(j: &mut Checker, dir: &Path) -> Done {
    let (f, d) = (file(dir, "f")?, directory(dir, "d")?);
    std::fs::write(&f, b"contents stay")?;
    for (kind, path) in [("file", f.clone()), ("directory", d)] {
        let mut attrs = ExpectedAttrs::new(path);
        attrs.set("user.before", 50)?;
        j.check(format!("{kind}: new"), attrs.set("user.moving", 20), ());
        attrs.set("user.behind", 60)?;
        let lens = [
            100, 300, 900, 2000, 20_000, 40_000, 65_536, 30_000, 3000, 500, 10, 0, 65_000, 64, 35_000, 33_000,
        ];
        for len in lens {
            j.check(format!("{kind}: to {len}"), attrs.set("user.moving", len), ());
            j.check(format!("{kind}: at {len}"), attrs.state(), RIGHT);
        }
        if j.remount("rw")? {
            j.check(format!("{kind}: large, remounted"), attrs.state(), RIGHT);
        }
        j.check(format!("{kind}: small again"), attrs.set("user.moving", 30), ());
        if j.remount("rw")? {
            j.check(format!("{kind}: small, remounted"), attrs.state(), RIGHT);
        }
        j.check(format!("{kind}: large once more"), attrs.set("user.moving", 50_000), ());
        j.check(format!("{kind}: removed"), attrs.remove("user.moving"), ());
        j.check(format!("{kind}: without it"), attrs.state(), RIGHT);
        if j.remount("rw")? {
            j.check(format!("{kind}: removed, remounted"), attrs.state(), RIGHT);
        }
    }
    j.check("contents", std::fs::read(&f)?, b"contents stay".to_vec());
    many_then_few(j, dir)
}

fn many_then_few(j: &mut Checker, dir: &Path) -> Done {
    let mut attrs = ExpectedAttrs::new(file(dir, "many")?);
    let grown = (0..60).try_for_each(|at| attrs.set(&format!("user.{at:02}"), at * 37 % 1200));
    j.check("60 names, one after the other", grown, ());
    j.check("60 names", attrs.state(), RIGHT);
    let names: Vec<String> = attrs.values.keys().cloned().collect();
    for name in names.iter().skip(2) {
        attrs.remove(name)?;
    }
    j.check("2 names", attrs.state(), RIGHT);
    j.check("20 names again", (20..38).try_for_each(|at| attrs.set(&format!("user.{at:02}"), 40)), ());
    if j.remount("rw")? {
        j.check("20 names, remounted", attrs.state(), RIGHT);
    }
    Ok(())
}

/// More in one file than any single list can hold.
pub fn large_beside(j: &mut Checker, dir: &Path) -> Done {
    let mut attrs = ExpectedAttrs::new(file(dir, "f")?);
    let names: Vec<String> = (0..12).map(|at| format!("user.large-{at}")).collect();
    j.check("twelve values of 30000", names.iter().try_for_each(|name| attrs.set(name, 30_000)), ());
    j.check("twelve: all there", attrs.state(), RIGHT);
    j.check("a small one beside", attrs.set("user.small", 10), ());
    j.check("four of 65536 instead", names.iter().take(4).try_for_each(|name| attrs.set(name, 65_536)), ());
    j.check("four: all there", attrs.state(), RIGHT);
    if j.remount("rw")? {
        j.check("four, remounted", attrs.state(), RIGHT);
    }
    j.check("create what is there", xattr::create(&attrs.path, names[5].as_str(), b"x"), Errno::EXIST);
    j.check("replace what is there", xattr::replace(&attrs.path, names[5].as_str(), b"x"), ());
    attrs.values.insert(names[5].clone(), b"x".to_vec());
    j.check("all shrink to 5", names.iter().try_for_each(|name| attrs.set(name, 5)), ());
    j.check("shrunk: all there", attrs.state(), RIGHT);
    if j.remount("rw")? {
        j.check("shrunk, remounted", attrs.state(), RIGHT);
    }
    j.check("all go", names.iter().try_for_each(|name| attrs.remove(name)), ());
    j.check("the small one is left", attrs.state(), RIGHT);
    // Files that are removed with all their attributes, one of them while it is open.
    names.iter().try_for_each(|name| attrs.set(name, 33_000))?;
    let open = std::fs::File::open(&attrs.path)?;
    std::fs::remove_file(&attrs.path)?;
    j.check("without a name", xattr::fget(&open, names[3].as_str()), attrs.values[&names[3]].clone());
    j.check("without a name: remove", xattr::fremove(&open, names[3].as_str()), ());
    Ok(())
}
