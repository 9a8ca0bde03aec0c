//! Changes between two states of a data set: two snapshots, or a snapshot and the head.
//!
//! Two things are read: dnode blocks that were written since the older state, and directories in which names were created, removed or
//! renamed. A file is the same in both states if number and generation are the same. Files without a name are not reported.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::{Attr, Ino, ReadOptions};
use std::collections::{BTreeMap, HashMap};
use terrane_wire::Txg;

/// What happened to a file, directory, symbolic link or special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It exists only in the older state.
    Removed,
    /// It exists only in the newer state.
    Created,
    /// It has another name or lies in another directory. It may have been modified too.
    Renamed,
    /// Its content or attributes changed. Of a directory: its entries.
    Modified,
}

/// A change between two states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Path in the newer state, or in the older one if it was removed.
    pub path: Vec<u8>,
    /// What happened.
    pub kind: ChangeKind,
    /// Path in the older state, if it was renamed.
    pub old_path: Option<Vec<u8>>,
    /// Its attributes in the newer state, or in the older one if it was removed.
    pub attr: Attr,
}

/// Names of the files in a directory, by inode number.
type Names = HashMap<Ino, Vec<u8>>;

/// One of the two states.
struct Side<'f> {
    fs: &'f Fs,
    names: BTreeMap<Ino, Names>,
    paths: BTreeMap<Ino, Option<Vec<u8>>>,
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    parent: Ino,
    name: Vec<u8>,
}

impl<'f> Side<'f> {
    fn new(fs: &'f Fs) -> Self {
        Side { fs, names: BTreeMap::new(), paths: BTreeMap::new() }
    }

    fn attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        match self.fs.getattr(ino) {
            // An unlinked file may still be open.
            Ok(attr) => Ok(Some(attr).filter(|attr| attr.nlink > 0)),
            Err(Errno::ESTALE) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn parent(&self, ino: Ino) -> Result<Ino, Errno> {
        Ok(self.fs.hold(ino)?.read().attrs.zpl.parent)
    }

    /// The place of a file. `hint`: the name that it probably has.
    fn place(&mut self, ino: Ino, hint: Option<&[u8]>) -> Result<Option<Place>, Errno> {
        let parent = self.parent(ino)?;
        if let Some(name) = hint
            && self.fs.lookup(parent, name).is_ok_and(|attr| attr.ino == ino)
        {
            return Ok(Some(Place { parent, name: name.to_vec() }));
        }
        if !self.names.contains_key(&parent) {
            let mut names = Names::new();
            let options = ReadOptions { keeps_atime: true, no_prefetch: false };
            self.fs.readdir_as(parent, 2, options, &mut |entry| {
                names.insert(entry.ino, entry.name.to_vec());
                true
            })?;
            self.names.insert(parent, names);
        }
        let name = self.names.get(&parent).and_then(|names| names.get(&ino));
        Ok(name.map(|name| Place { parent, name: name.clone() }))
    }

    /// The path of a directory. `None`: it or a directory above it has no name.
    fn dir_path(&mut self, ino: Ino, depth: u32) -> Result<Option<Vec<u8>>, Errno> {
        if ino == self.fs.root() {
            return Ok(Some(Vec::new()));
        }
        if let Some(known) = self.paths.get(&ino) {
            return Ok(known.clone());
        }
        // A damaged parent may lead in circles.
        let place = if depth > 4096 { None } else { self.place(ino, None)? };
        let path = match place {
            Some(place) => self.path_below(&place, depth + 1)?,
            None => None,
        };
        self.paths.insert(ino, path.clone());
        Ok(path)
    }

    fn path_below(&mut self, place: &Place, depth: u32) -> Result<Option<Vec<u8>>, Errno> {
        let parent = self.dir_path(place.parent, depth)?;
        Ok(parent.map(|parent| [&parent[..], b"/", &place.name].concat()))
    }

    fn path(&mut self, ino: Ino, place: Option<&Place>) -> Result<Option<Vec<u8>>, Errno> {
        match place {
            _ if ino == self.fs.root() => Ok(Some(b"/".to_vec())),
            Some(place) => self.path_below(place, 0),
            None => Ok(None),
        }
    }
}

/// Calls `each` for every change that was made after txg `since`, which `old` shows, until the last commit of `new`. The order is that of
/// inode numbers.
pub fn diff(old: &Fs, new: &Fs, since: Txg, each: &mut dyn FnMut(Change)) -> Result<(), Errno> {
    let mut numbers = Vec::new();
    new.set.objects_changed_since(&old.set, since, &mut |id| numbers.push(id.0))?;
    let (mut old, mut new) = (Side::new(old), Side::new(new));
    for ino in numbers {
        let (before, after) = (old.attr(ino)?, new.attr(ino)?);
        let is_same = matches!((&before, &after), (Some(a), Some(b)) if a.generation == b.generation);
        let old_place = before.is_some().then(|| old.place(ino, None)).transpose()?.flatten();
        if let Some(attr) = before.as_ref().filter(|_| !is_same)
            && let Some(path) = old.path(ino, old_place.as_ref())?
        {
            each(Change { path, kind: ChangeKind::Removed, old_path: None, attr: *attr });
        }
        let Some(attr) = after else { continue };
        let hint = old_place.as_ref().filter(|_| is_same).map(|place| place.name.as_slice());
        let place = new.place(ino, hint)?;
        let Some(path) = new.path(ino, place.as_ref())? else { continue };
        let is_moved = is_same && old_place != place;
        let is_changed =
            |a: &Attr| (a.mtime, a.ctime, a.size, a.mode) != (attr.mtime, attr.ctime, attr.size, attr.mode);
        let kind = match &before {
            Some(_) if is_moved => ChangeKind::Renamed,
            // Only its access time changed, or its stored form.
            Some(before) if is_same && !is_changed(before) => continue,
            Some(_) if is_same => ChangeKind::Modified,
            _ => ChangeKind::Created,
        };
        let old_path = if is_moved { old.path(ino, old_place.as_ref())? } else { None };
        each(Change { path, kind, old_path, attr });
    }
    Ok(())
}
