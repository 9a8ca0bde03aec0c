//! Compares a file system with the model's tree.

use crate::failure::{Failure, ensure, failed};
use crate::model::{Content, Model, Node};
use std::collections::{BTreeMap, BTreeSet};
use terrane_posix::{Errno, Fs, Ino, mode};

/// Entries of every directory before its names: itself, and its parent.
const DOTS: u64 = 2;

impl Model {
    /// Whether the file system holds exactly this tree.
    pub fn compare(&self, fs: &Fs) -> Result<(), Failure> {
        ensure(fs.root() == self.root, || format!("root is {}, not {}", fs.root(), self.root))?;
        for (ino, node) in &self.nodes {
            self.compare_node(fs, *ino, node, &BTreeSet::new())?;
        }
        Ok(())
    }

    /// The same, but these files may be damaged: reading them may return `EIO`, never other bytes.
    pub fn compare_with_damage(&self, fs: &Fs, damaged: &BTreeSet<Ino>) -> Result<u64, Failure> {
        let mut lost = 0;
        for (ino, node) in &self.nodes {
            lost += self.compare_node(fs, *ino, node, damaged)?;
        }
        Ok(lost)
    }

    fn compare_node(&self, fs: &Fs, ino: Ino, node: &Node, damaged: &BTreeSet<Ino>) -> Result<u64, Failure> {
        let attr = fs.getattr(ino).map_err(|errno| Failure(format!("attributes of {ino}: {errno}")))?;
        ensure((attr.nlink, attr.mode) == (node.nlink, node.mode), || {
            format!(
                "inode {ino}: links and mode {} {:o}, not {} {:o}",
                attr.nlink, attr.mode, node.nlink, node.mode
            )
        })?;
        let xattrs = self.compare_xattrs_with_damage(fs, ino, damaged.contains(&ino));
        xattrs.map_err(|failure| failure.within(format_args!("inode {ino}")))?;
        match &node.content {
            Content::File(bytes) => {
                ensure(attr.size == bytes.len() as u64, || {
                    format!("file {ino}: size {}, not {}", attr.size, bytes.len())
                })?;
                let mut found = Vec::new();
                match fs.read(ino, 0, u32::try_from(attr.size).unwrap_or(u32::MAX), &mut found) {
                    Ok(()) => {}
                    Err(Errno::EIO) if damaged.contains(&ino) => return Ok(1),
                    Err(errno) => return Err(Failure(format!("file {ino}: {errno}"))),
                }
                let first = found.iter().zip(bytes.iter()).position(|(found, expected)| found != expected);
                ensure(found.len() == bytes.len() && first.is_none(), || {
                    format!("file {ino} of {} bytes differs from byte {first:?} on", bytes.len())
                })?;
            }
            Content::Link(target) => {
                let found = fs.readlink(ino).map_err(failed("readlink"))?;
                ensure(found == *target, || format!("symlink {ino}: its target differs"))?;
            }
            Content::Dir { names, parent } => {
                ensure(attr.size == names.len() as u64 + 2, || {
                    format!("directory {ino}: size {}, not {}", attr.size, names.len() + 2)
                })?;
                self.compare_names(fs, ino, names)?;
                self.compare_words(fs, ino, names)?;
                if node.nlink > 0 {
                    self.compare_paths(fs, ino, names, *parent)?;
                }
            }
        }
        Ok(0)
    }

    /// Whether a directory lists exactly these names, each with its number and type. Listed in one go, and
    /// again from behind the dots.
    fn compare_names(&self, fs: &Fs, ino: Ino, names: &BTreeMap<String, Ino>) -> Result<(), Failure> {
        for first in [0, DOTS] {
            let mut listed = Vec::new();
            fs.readdir(ino, first, &mut |entry| {
                listed.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino, entry.kind));
                true
            })
            .map_err(|errno| Failure(format!("names of {ino}: {errno}")))?;
            let is_dot = |name: &str| name == "." || name == "..";
            let dots = listed.iter().take_while(|(name, ..)| is_dot(name)).count() as u64;
            ensure(dots == DOTS - first, || format!("directory {ino}: {dots} dots from offset {first} on"))?;
            listed.drain(..dots as usize);
            for (name, child, kind) in &listed {
                let node = self.nodes.get(child);
                let expected = node.map_or(0, |node| node.mode & mode::S_IFMT);
                ensure(u32::from(*kind) << 12 == expected, || {
                    format!("directory {ino}: {name} is of type {kind}, not of mode {expected:o}")
                })?;
            }
            let count = listed.len();
            let seen: BTreeMap<String, Ino> =
                listed.into_iter().map(|(name, child, _)| (name, child)).collect();
            ensure(&seen == names && seen.len() == count, || {
                format!("directory {ino}: {count} names {seen:?}, not {names:?}")
            })?;
        }
        Ok(())
    }

    /// Whether the names have exactly these words beside them, by the listing and one by one.
    fn compare_words(&self, fs: &Fs, ino: Ino, names: &BTreeMap<String, Ino>) -> Result<(), Failure> {
        let mut listed = BTreeMap::new();
        fs.readdir_words(ino, DOTS, &mut |entry, words| {
            listed.insert(String::from_utf8_lossy(entry.name).into_owned(), words.as_slice().to_vec());
            true
        })
        .map_err(|errno| Failure(format!("words of {ino}: {errno}")))?;
        for name in names.keys() {
            let expected = self.words.get(&(ino, name.clone()));
            let shown =
                listed.remove(name).ok_or_else(|| Failure(format!("{name} in {ino} is not listed")))?;
            let found = match fs.entry_words(ino, name.as_bytes()) {
                Err(Errno::ENODATA) => Vec::new(),
                found => found.map_err(failed("words"))?.as_slice().to_vec(),
            };
            let expected = expected.map_or(&[][..], Vec::as_slice);
            ensure(shown == expected && found == expected, || {
                format!(
                    "directory {ino}: words of {name}: listed {shown:x?}, found {found:x?}, not {expected:x?}"
                )
            })?;
        }
        ensure(listed.is_empty(), || format!("directory {ino}: {listed:x?} is listed with words only"))
    }

    /// Whether a directory's names lead to the right inodes, and its dots too.
    fn compare_paths(
        &self,
        fs: &Fs,
        ino: Ino,
        names: &BTreeMap<String, Ino>,
        parent: Ino,
    ) -> Result<(), Failure> {
        let dots = [(".", ino), ("..", parent)];
        for (name, expected) in names.iter().map(|(name, child)| (name.as_str(), *child)).chain(dots) {
            let found = fs.lookup(ino, name.as_bytes());
            let found =
                found.map_err(|errno| Failure(format!("directory {ino}: looking up {name}: {errno}")))?;
            fs.forget(found.ino, 1);
            ensure(found.ino == expected, || {
                format!("directory {ino}: {name} leads to {}, not {expected}", found.ino)
            })?;
        }
        Ok(())
    }

    /// Whether the file system keeps exactly the model's unlinked objects: none is destroyed early, none
    /// stays.
    pub fn compare_unlinked(&self, fs: &Fs) -> Result<(), Failure> {
        let found = fs.unlinked_count().map_err(failed("unlinked objects"))?;
        let expected = self.nodes.values().filter(|node| node.nlink == 0).count();
        ensure(found == expected, || format!("{found} unlinked objects, not {expected}"))
    }

    /// Whether an inode has exactly these extended attributes, by its list and one by one.
    pub fn compare_xattrs(&self, fs: &Fs, ino: Ino) -> Result<(), Failure> {
        self.compare_xattrs_with_damage(fs, ino, false)
    }

    /// The same, but they may be damaged: reading them may return `EIO`, never another value.
    fn compare_xattrs_with_damage(&self, fs: &Fs, ino: Ino, damaged: bool) -> Result<(), Failure> {
        let expected = self.xattrs(ino);
        match xattr_names(fs, ino) {
            Ok(names) => ensure(names.iter().eq(expected.keys()), || {
                format!("attributes {names:?}, not {:?}", expected.keys())
            })?,
            Err(Errno::EIO) if damaged => {}
            Err(errno) => return Err(Failure(format!("names of attributes: {errno}"))),
        }
        for (name, expected) in expected.iter() {
            let mut value = Vec::new();
            match fs.getxattr(ino, name.as_bytes(), &mut value) {
                Ok(()) => ensure(value == **expected, || {
                    format!(
                        "attribute {name}: {} bytes differ from the {} expected",
                        value.len(),
                        expected.len()
                    )
                })?,
                Err(Errno::EIO) if damaged => {}
                Err(errno) => return Err(Failure(format!("attribute {name}: {errno}"))),
            }
        }
        Ok(())
    }
}

/// The names of an inode's attributes, in alphabetical order; a name that is listed twice occurs twice.
pub fn xattr_names(fs: &Fs, ino: Ino) -> Result<Vec<String>, Errno> {
    let mut raw = Vec::new();
    fs.listxattr(ino, &|| true, &mut raw)?;
    let names = raw.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    Ok(names)
}
