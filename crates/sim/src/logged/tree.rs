//! The expected tree with all that a replay must bring back, and changes as values.
//!
//! A change can be applied to any tree that has the inodes it names. So the state after a crash is computed from that of a commit and
//! the changes that the log had.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use terrane_oracle::{Content, Failure, Model, Node, ensure, failed};
use terrane_posix::{AccessTimes, Acl, Attr, Errno, Fs, Ino, SetXattr, Time};

/// What an inode has beside the model's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// Of the inode under this number.
    pub generation: u64,
    /// Owner and group.
    pub owners: (u32, u32),
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
}

impl Stamps {
    fn of(attr: &Attr) -> Stamps {
        let Attr { generation, uid, gid, atime, mtime, ctime, btime, .. } = *attr;
        Stamps { generation, owners: (uid, gid), atime, mtime, ctime, btime }
    }

    /// Of an inode that was made at this time.
    pub fn new(generation: u64, owners: (u32, u32), now: Time) -> Stamps {
        Stamps { generation, owners, atime: now, mtime: now, ctime: now, btime: now }
    }
}

/// A change that succeeded.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are those of the calls")]
pub enum Change {
    /// A file, directory or symbolic link. Without a directory it has no name.
    Make { dir: Option<(Ino, String)>, ino: Ino, node: Node, generation: u64, owners: (u32, u32) },
    /// One more name, or the first one of a file without a name.
    Link { ino: Ino, dir: Ino, name: String },
    /// One name less.
    Remove { dir: Ino, name: String, wants_dir: bool },
    /// A rename, or an exchange.
    Rename { dir: Ino, name: String, new_dir: Ino, new_name: String, flags: u32 },
    /// Permissions.
    Chmod { ino: Ino, bits: u32 },
    /// Owner and group.
    Chown { ino: Ino, owners: (u32, u32) },
    /// Times of access and of the last change of content.
    Utimes { ino: Ino, atime: Time, mtime: Time },
    /// Sets an attribute; `None` removes it.
    Xattr { ino: Ino, name: String, value: Option<Arc<Vec<u8>>> },
    /// Sets a list; `None` removes it.
    SetAcl { ino: Ino, name: &'static [u8], acl: Option<Acl> },
    /// Words beside a name.
    Words { dir: Ino, name: String, words: Vec<u64> },
    /// Bytes of a file.
    Write { ino: Ino, at: u64, data: Arc<Vec<u8>> },
    /// A size.
    Resize { ino: Ino, size: u64 },
    /// Zeros. The size may grow.
    Zero { ino: Ino, range: Range<u64>, grows: bool },
    /// Space, with a size that may grow.
    Extend { ino: Ino, size: u64 },
}

/// The expected tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Names, contents, modes, extended attributes.
    pub model: Model,
    /// The rest, for each inode.
    pub stamps: BTreeMap<Ino, Stamps>,
}

fn impossible(change: &Change, errno: Errno) -> Failure {
    Failure(format!("{change:?} cannot be applied: {errno}"))
}

impl Tree {
    /// That of a file system with nothing but a root.
    pub fn of_new(fs: &Fs) -> Result<Tree, Failure> {
        let root = fs.getattr(fs.root()).map_err(failed("root"))?;
        let stamps = BTreeMap::from([(fs.root(), Stamps::of(&root))]);
        Ok(Tree { model: Model::new(fs.root()), stamps })
    }

    /// Without inodes that have no name.
    pub fn after_remount(&self) -> Tree {
        let model = self.model.after_remount();
        let stamps = self.stamps.iter().filter(|(ino, _)| model.nodes.contains_key(ino));
        Tree { stamps: stamps.map(|(ino, stamps)| (*ino, *stamps)).collect(), model }
    }

    /// If this is a regular file.
    pub fn is_file(&self, ino: Ino) -> bool {
        self.model.nodes.get(&ino).is_some_and(|node| matches!(node.content, Content::File(_)))
    }

    /// If this inode has a name.
    pub fn is_named(&self, ino: Ino) -> bool {
        self.model.nodes.get(&ino).is_some_and(|node| node.nlink > 0)
    }

    fn touch(&mut self, ino: Ino, now: Time) {
        if let Some(stamps) = self.stamps.get_mut(&ino) {
            stamps.ctime = now;
        }
    }

    fn touch_content(&mut self, ino: Ino, now: Time) {
        if let Some(stamps) = self.stamps.get_mut(&ino) {
            (stamps.mtime, stamps.ctime) = (now, now);
        }
    }

    /// Applies a change that was made at this time.
    ///
    /// # Errors
    /// The tree lacks what it names, or has a name that it makes.
    pub fn apply(&mut self, change: &Change, now: Time) -> Result<(), Failure> {
        let model = &mut self.model;
        let outcome = match change {
            Change::Make { dir, ino, node, generation, owners } => {
                if model.nodes.get(ino).is_some_and(|old| old.nlink == 0) {
                    model.nodes.remove(ino);
                    model.lookups.remove(ino);
                }
                ensure(!model.nodes.contains_key(ino), || format!("number {ino} is in use"))?;
                match dir {
                    Some((dir, name)) => {
                        model.may_add(*dir, name).map_err(|errno| impossible(change, errno))?;
                        model.add_node(*dir, name, *ino, node.clone());
                        self.touch_content(*dir, now);
                    }
                    None => {
                        model.nodes.insert(*ino, Node { nlink: 0, ..node.clone() });
                        *model.lookups.entry(*ino).or_default() += 1;
                    }
                }
                self.stamps.insert(*ino, Stamps::new(*generation, *owners, now));
                Ok(())
            }
            Change::Link { ino, dir, name } => {
                let Some(node) = model.nodes.get_mut(ino) else {
                    return Err(impossible(change, Errno::ENOENT));
                };
                // The model links no file without a name.
                let nameless = node.nlink == 0;
                node.nlink += u32::from(nameless);
                let linked = model.add_link(*ino, *dir, name);
                if let Some(node) = model.nodes.get_mut(ino).filter(|_| nameless) {
                    node.nlink -= 1;
                }
                self.touch(*ino, now);
                self.touch_content(*dir, now);
                linked
            }
            Change::Remove { dir, name, wants_dir } => {
                let ino = model.find(*dir, name);
                let removed = model.remove(*dir, name, *wants_dir);
                ino.into_iter().for_each(|ino| self.touch(ino, now));
                self.touch_content(*dir, now);
                removed
            }
            Change::Rename { dir, name, new_dir, new_name, flags } => {
                let moved = [model.find(*dir, name), model.find(*new_dir, new_name)];
                let renamed = model.rename(*dir, name, *new_dir, new_name, *flags);
                moved.into_iter().flatten().for_each(|ino| self.touch(ino, now));
                self.touch_content(*dir, now);
                self.touch_content(*new_dir, now);
                renamed
            }
            Change::Words { dir, name, words } => {
                let set = model.set_words(*dir, name, words);
                self.touch_content(*dir, now);
                set
            }
            Change::Chmod { ino, .. }
            | Change::Chown { ino, .. }
            | Change::Utimes { ino, .. }
            | Change::Xattr { ino, .. }
            | Change::SetAcl { ino, .. } => self.apply_attributes(*ino, change, now),
            Change::Write { ino, .. }
            | Change::Resize { ino, .. }
            | Change::Zero { ino, .. }
            | Change::Extend { ino, .. } => self.apply_content(*ino, change, now),
        };
        outcome.map_err(|errno| impossible(change, errno))
    }

    fn apply_attributes(&mut self, ino: Ino, change: &Change, now: Time) -> Result<(), Errno> {
        let model = &mut self.model;
        if !model.nodes.contains_key(&ino) {
            return Ok(());
        }
        let stamps = self.stamps.get_mut(&ino).ok_or(Errno::ENOENT)?;
        stamps.ctime = now;
        match change {
            Change::Chmod { bits, .. } => model.chmod(ino, *bits),
            Change::Chown { owners, .. } => stamps.owners = *owners,
            Change::Utimes { atime, mtime, .. } => (stamps.atime, stamps.mtime) = (*atime, *mtime),
            Change::Xattr { name, value: Some(value), .. } => {
                model.set_xattr(ino, name, value, SetXattr::default())?;
            }
            Change::Xattr { name, value: None, .. } => model.remove_xattr(ino, name)?,
            Change::SetAcl { name, acl, .. } => model.set_acl(ino, name, acl.as_ref())?,
            _ => {}
        }
        Ok(())
    }

    fn apply_content(&mut self, ino: Ino, change: &Change, now: Time) -> Result<(), Errno> {
        let model = &mut self.model;
        if !model.nodes.contains_key(&ino) {
            return Ok(());
        }
        match change {
            Change::Write { at, data, .. } => model.write(ino, *at, data),
            Change::Resize { size, .. } => model.resize(ino, *size),
            Change::Zero { range, grows, .. } => {
                model.punch(ino, range.clone())?;
                if *grows && range.end > model.bytes(ino).len() as u64 {
                    model.resize(ino, range.end);
                }
            }
            Change::Extend { size, .. } => match *size > model.bytes(ino).len() as u64 {
                true => model.resize(ino, *size),
                false => return Ok(()),
            },
            _ => {}
        }
        self.touch_content(ino, now);
        Ok(())
    }

    /// Whether the file system has exactly this tree.
    pub fn compare(&self, fs: &Fs) -> Result<(), Failure> {
        fs.set_access_times(AccessTimes::Never);
        self.model.compare(fs)?;
        for (ino, expected) in self.stamps.iter().filter(|(ino, _)| self.model.nodes.contains_key(ino)) {
            let found = Stamps::of(&fs.getattr(*ino).map_err(failed("attributes"))?);
            ensure(found == *expected, || format!("inode {ino}: {found:?}, not {expected:?}"))?;
        }
        Ok(())
    }

    /// Regular files and directories, for random choices.
    pub fn inodes(&self, is_fitting: impl Fn(&Node) -> bool) -> Vec<Ino> {
        let fitting = self.model.nodes.iter().filter(|(_, node)| is_fitting(node));
        fitting.map(|(ino, _)| *ino).collect()
    }

    /// The names in a directory. Empty for any other inode.
    pub fn names(&self, dir: Ino) -> BTreeMap<String, Ino> {
        match self.model.nodes.get(&dir).map(|node| &node.content) {
            Some(Content::Dir { names, .. }) => names.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// Directories that have a name, or are the root.
    pub fn dirs(&self) -> Vec<Ino> {
        self.inodes(|node| matches!(node.content, Content::Dir { .. }) && node.nlink > 0)
    }

    /// Regular files, also those without names.
    pub fn files(&self) -> Vec<Ino> {
        self.inodes(|node| matches!(node.content, Content::File(_)))
    }
}
