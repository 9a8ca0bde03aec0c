//! The expected tree: maps of maps.
//!
//! Nodes have the numbers that the real file system gave them. Every operation returns the correct answer,
//! errors included, and changes nothing if it fails.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use terrane_posix::{
    ACL_ACCESS, ACL_DEFAULT, Acl, Errno, Ino, RENAME_EXCHANGE, RENAME_NOREPLACE, SetXattr, mode,
};

/// What an inode holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// The bytes of a regular file.
    File(Arc<Vec<u8>>),
    /// The target of a symbolic link.
    Link(Vec<u8>),
    /// A directory.
    Dir {
        /// Its entries, without `.` and `..`.
        names: BTreeMap<String, Ino>,
        /// The directory that names it. The root is its own parent.
        parent: Ino,
    },
}

/// Extended attributes by their full names.
pub type Xattrs = BTreeMap<String, Arc<Vec<u8>>>;

/// An inode.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it holds; also says its file type.
    pub content: Content,
    /// Link count. For a directory: 2 and its subdirectories, or 0 once it is removed.
    pub nlink: u32,
    /// File type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Extended attributes. Shared until one of the holders changes them.
    pub xattrs: Arc<Xattrs>,
}

impl Node {
    /// A new, empty file.
    pub fn file(permissions: u32) -> Node {
        Node::new(Content::File(Arc::default()), 1, mode::S_IFREG | permissions)
    }

    /// A new symbolic link.
    pub fn link(target: Vec<u8>) -> Node {
        Node::new(Content::Link(target), 1, mode::S_IFLNK | 0o777)
    }

    /// A new, empty directory.
    pub fn dir(parent: Ino, permissions: u32) -> Node {
        Node::new(Content::Dir { names: BTreeMap::new(), parent }, 2, mode::S_IFDIR | permissions)
    }

    fn new(content: Content, nlink: u32, mode: u32) -> Node {
        Node { content, nlink, mode, xattrs: Arc::default() }
    }
}

/// The answer of an operation without a result.
pub type Outcome = Result<(), Errno>;

/// The expected tree.
#[derive(Clone, Debug)]
pub struct Model {
    /// The root directory.
    pub root: Ino,
    /// All inodes, also unlinked ones with lookups.
    pub nodes: BTreeMap<Ino, Node>,
    /// Lookup counts that a kernel would hold.
    pub lookups: BTreeMap<Ino, u64>,
    /// Words beside names, by directory and name. Names without words are missing.
    pub words: BTreeMap<(Ino, String), Vec<u64>>,
}

impl Model {
    /// An empty tree. Its root has the number `root`.
    pub fn new(root: Ino) -> Model {
        let nodes = BTreeMap::from([(root, Node::dir(root, 0o755))]);
        Model { root, nodes, lookups: BTreeMap::new(), words: BTreeMap::new() }
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("the model has this inode")
    }

    fn names(&mut self, dir: Ino) -> &mut BTreeMap<String, Ino> {
        match &mut self.node(dir).content {
            Content::Dir { names, .. } => names,
            _ => panic!("inode {dir} of the model is not a directory"),
        }
    }

    /// The inode of a name. `None`: there is none, or `dir` is no directory.
    pub fn find(&self, dir: Ino, name: &str) -> Option<Ino> {
        match &self.nodes.get(&dir)?.content {
            Content::Dir { names, .. } => names.get(name).copied(),
            _ => None,
        }
    }

    /// Whether an inode exists and is a directory.
    pub fn is_dir(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| matches!(node.content, Content::Dir { .. }))
    }

    fn is_linked_dir(&self, ino: Ino) -> bool {
        self.is_dir(ino) && self.nodes.get(&ino).is_some_and(|node| node.nlink > 0)
    }

    /// The directories, also the unlinked ones.
    pub fn dirs(&self) -> Vec<Ino> {
        self.nodes.keys().copied().filter(|ino| self.is_dir(*ino)).collect()
    }

    /// The regular files, also the unlinked ones.
    pub fn files(&self) -> Vec<Ino> {
        let is_file = |node: &Node| matches!(node.content, Content::File(_));
        self.nodes.iter().filter(|(_, node)| is_file(node)).map(|(ino, _)| *ino).collect()
    }

    /// The bytes of a file. Empty for any other inode.
    pub fn bytes(&self, ino: Ino) -> Arc<Vec<u8>> {
        match self.nodes.get(&ino).map(|node| &node.content) {
            Some(Content::File(bytes)) => Arc::clone(bytes),
            _ => Arc::default(),
        }
    }

    fn bytes_mut(&mut self, ino: Ino) -> &mut Vec<u8> {
        match &mut self.node(ino).content {
            Content::File(bytes) => Arc::make_mut(bytes),
            _ => panic!("inode {ino} of the model is not a file"),
        }
    }

    /// Writes at an offset; the gap between the end and the offset becomes zeros. Without data nothing
    /// changes.
    pub fn write(&mut self, ino: Ino, at: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let bytes = self.bytes_mut(ino);
        let range = at as usize..at as usize + data.len();
        bytes.resize(bytes.len().max(range.end), 0);
        bytes[range].copy_from_slice(data);
    }

    /// Appends to a file.
    pub fn append(&mut self, ino: Ino, data: &[u8]) {
        self.bytes_mut(ino).extend_from_slice(data);
    }

    /// Cuts a file, or extends it with zeros.
    pub fn resize(&mut self, ino: Ino, size: u64) {
        self.bytes_mut(ino).resize(size as usize, 0);
    }

    /// Punches a hole, which ends with the file.
    pub fn punch(&mut self, ino: Ino, range: Range<u64>) -> Outcome {
        if range.is_empty() {
            return Err(Errno::EINVAL);
        }
        let bytes = self.bytes_mut(ino);
        let size = bytes.len();
        bytes[size.min(range.start as usize)..size.min(range.end as usize)].fill(0);
        Ok(())
    }

    /// Copies a range of one file into another or the same one; returns how many bytes there were.
    pub fn copy(&mut self, source: Ino, range: Range<u64>, ino: Ino, into: u64) -> Result<u64, Errno> {
        if source == ino && range.start.abs_diff(into) < range.end - range.start {
            return Err(Errno::EINVAL);
        }
        let data = self.bytes(source);
        let size = data.len();
        let there = &data[size.min(range.start as usize)..size.min(range.end as usize)];
        self.write(ino, into, there);
        Ok(there.len() as u64)
    }

    /// The extended attributes of an inode. Empty if there is no such inode.
    pub fn xattrs(&self, ino: Ino) -> Arc<Xattrs> {
        self.nodes.get(&ino).map(|node| Arc::clone(&node.xattrs)).unwrap_or_default()
    }

    /// `user.` names are for files and directories.
    fn accepts_xattr_name(&self, ino: Ino, name: &str) -> bool {
        let is_link = matches!(self.nodes.get(&ino).map(|node| &node.content), Some(Content::Link(_)));
        !is_link || !name.starts_with("user.")
    }

    /// Sets an extended attribute. Errors: `EPERM` for `user.` on a link, `EEXIST` and `ENODATA` by `how`.
    pub fn set_xattr(&mut self, ino: Ino, name: &str, value: &[u8], how: SetXattr) -> Outcome {
        if !self.accepts_xattr_name(ino, name) {
            return Err(Errno::EPERM);
        }
        match self.xattrs(ino).contains_key(name) {
            true if how.create => return Err(Errno::EEXIST),
            false if how.replace => return Err(Errno::ENODATA),
            _ => {}
        }
        let xattrs = Arc::make_mut(&mut self.node(ino).xattrs);
        xattrs.insert(name.to_string(), Arc::new(value.to_vec()));
        Ok(())
    }

    /// Removes an extended attribute. Errors: `EPERM` for `user.` on a link, `ENODATA` if it is not set.
    pub fn remove_xattr(&mut self, ino: Ino, name: &str) -> Outcome {
        if !self.accepts_xattr_name(ino, name) {
            return Err(Errno::EPERM);
        }
        let removed = Arc::make_mut(&mut self.node(ino).xattrs).remove(name);
        removed.map(drop).ok_or(Errno::ENODATA)
    }

    fn acl(&self, ino: Ino, name: &[u8]) -> Option<Acl> {
        let xattrs = self.xattrs(ino);
        xattrs.get(&*String::from_utf8_lossy(name)).and_then(|raw| Acl::parse(raw).ok()?)
    }

    fn store_acl(&mut self, ino: Ino, name: &[u8], acl: Option<&Acl>) {
        let xattrs = Arc::make_mut(&mut self.node(ino).xattrs);
        let name = String::from_utf8_lossy(name).into_owned();
        match acl {
            Some(acl) => drop(xattrs.insert(name, Arc::new(acl.to_bytes()))),
            None => drop(xattrs.remove(&name)),
        }
    }

    /// `None` removes it.
    pub fn set_acl(&mut self, ino: Ino, name: &[u8], acl: Option<&Acl>) -> Outcome {
        if matches!(self.nodes.get(&ino).map(|node| &node.content), Some(Content::Link(_))) {
            return Err(Errno::EOPNOTSUPP);
        }
        if name == ACL_DEFAULT && !self.is_dir(ino) {
            return if acl.is_some() { Err(Errno::EACCES) } else { Ok(()) };
        }
        let is_access = name == ACL_ACCESS;
        if let Some(acl) = acl.filter(|_| is_access) {
            let node = self.node(ino);
            node.mode = node.mode & !0o777 | acl.permissions();
        }
        self.store_acl(ino, name, acl.filter(|acl| !is_access || !acl.is_minimal()));
        Ok(())
    }

    /// Sets the permissions (12 bits), also in the access ACL.
    pub fn chmod(&mut self, ino: Ino, bits: u32) {
        let node = self.node(ino);
        node.mode = node.mode & !0o7777 | bits;
        if let Some(mut acl) = self.acl(ino, ACL_ACCESS) {
            acl.set_permissions(bits);
            self.store_acl(ino, ACL_ACCESS, Some(&acl));
        }
    }

    /// What a new file inherits from its directory's default list.
    fn inherit(&mut self, dir: Ino, ino: Ino) {
        let Some(default) = self.acl(dir, ACL_DEFAULT) else { return };
        let is_dir = self.is_dir(ino);
        let node = self.node(ino);
        if matches!(node.content, Content::Link(_)) {
            return;
        }
        let access = default.for_new(node.mode);
        node.mode = node.mode & !0o777 | access.permissions();
        self.store_acl(ino, ACL_ACCESS, Some(&access).filter(|access| !access.is_minimal()));
        self.store_acl(ino, ACL_DEFAULT, Some(&default).filter(|_| is_dir));
    }

    /// Whether a name can be added. Errors: `ENOENT` if `dir` is no directory or was removed, `EEXIST` if the name is in use.
    pub fn may_add(&self, dir: Ino, name: &str) -> Outcome {
        match (self.is_linked_dir(dir), self.find(dir, name)) {
            (false, _) => Err(Errno::ENOENT),
            (true, Some(_)) => Err(Errno::EEXIST),
            (true, None) => Ok(()),
        }
    }

    /// Adds a new inode, which inherits from the directory's default ACL. Counts a lookup. Panics if `ino` is in use.
    pub fn add_node(&mut self, dir: Ino, name: &str, ino: Ino, node: Node) {
        assert!(self.nodes.insert(ino, node).is_none(), "number {ino} is in use");
        if self.is_dir(ino) {
            self.node(dir).nlink += 1;
        }
        self.inherit(dir, ino);
        self.names(dir).insert(name.to_string(), ino);
        *self.lookups.entry(ino).or_default() += 1;
    }

    /// Adds a name for an existing inode, and counts a lookup. Errors: those of `may_add`, `ENOENT` for an unlinked inode.
    pub fn add_link(&mut self, ino: Ino, dir: Ino, name: &str) -> Outcome {
        self.may_add(dir, name)?;
        if self.node(ino).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.node(ino).nlink += 1;
        self.names(dir).insert(name.to_string(), ino);
        *self.lookups.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Sets the words beside a name, or removes them if there are none. Errors: `ENOENT` if there is no such name,
    /// `ENODATA` if it has no words to remove.
    pub fn set_words(&mut self, dir: Ino, name: &str, words: &[u64]) -> Outcome {
        self.find(dir, name).ok_or(Errno::ENOENT)?;
        let key = (dir, name.to_string());
        if words.is_empty() {
            return self.words.remove(&key).map(drop).ok_or(Errno::ENODATA);
        }
        self.words.insert(key, words.to_vec());
        Ok(())
    }

    /// Moves the words of one name to another one, whose own words are returned.
    fn move_words(&mut self, from: (Ino, &str), to: (Ino, &str)) -> Option<Vec<u64>> {
        let to = (to.0, to.1.to_string());
        let replaced = self.words.remove(&to);
        if let Some(words) = self.words.remove(&(from.0, from.1.to_string())) {
            self.words.insert(to, words);
        }
        replaced
    }

    fn drop_link(&mut self, dir: Ino, ino: Ino) {
        if self.is_dir(ino) {
            self.node(dir).nlink -= 1;
            self.node(ino).nlink = 0;
        } else {
            self.node(ino).nlink -= 1;
        }
        self.destroy_if_unused(ino);
    }

    /// Destroys an inode that has neither a name nor a user.
    fn destroy_if_unused(&mut self, ino: Ino) {
        if self.nodes.get(&ino).is_some_and(|node| node.nlink == 0) && !self.lookups.contains_key(&ino) {
            self.nodes.remove(&ino);
        }
    }

    /// Drops all lookups of an inode. An unlinked inode is then destroyed.
    pub fn forget(&mut self, ino: Ino) {
        self.lookups.remove(&ino);
        self.destroy_if_unused(ino);
    }

    fn is_empty_dir(&mut self, ino: Ino) -> bool {
        self.names(ino).is_empty()
    }

    /// Removes a name: of a directory with `wants_dir`, else of another inode.
    pub fn remove(&mut self, dir: Ino, name: &str, wants_dir: bool) -> Outcome {
        let ino = self.find(dir, name).ok_or(Errno::ENOENT)?;
        match (self.is_dir(ino), wants_dir) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !self.is_empty_dir(ino) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.names(dir).remove(name);
        self.words.remove(&(dir, name.to_string()));
        self.drop_link(dir, ino);
        Ok(())
    }

    fn is_below(&self, dir: Ino, above: Ino) -> bool {
        let mut at = dir;
        loop {
            if at == above {
                return true;
            }
            match self.nodes.get(&at).map(|node| &node.content) {
                Some(Content::Dir { parent, .. }) if at != self.root => at = *parent,
                _ => return false,
            }
        }
    }

    fn set_parent(&mut self, ino: Ino, from: Ino, to: Ino) {
        if let Content::Dir { parent, .. } = &mut self.node(ino).content {
            *parent = to;
            self.node(from).nlink -= 1;
            self.node(to).nlink += 1;
        }
    }

    /// Renames as `renameat2` does. `flags`: 0, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`.
    pub fn rename(&mut self, dir: Ino, name: &str, new_dir: Ino, new_name: &str, flags: u32) -> Outcome {
        let source = self.find(dir, name).ok_or(Errno::ENOENT)?;
        let target = self.find(new_dir, new_name);
        if target.is_some() && flags == RENAME_NOREPLACE {
            return Err(Errno::EEXIST);
        }
        if target.is_none() && flags == RENAME_EXCHANGE {
            return Err(Errno::ENOENT);
        }
        if self.is_dir(source) && dir != new_dir && self.is_below(new_dir, source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target {
            if self.is_dir(target) && dir != new_dir && self.is_below(dir, target) {
                return Err(if flags == RENAME_EXCHANGE { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            if target == source {
                return Ok(());
            }
            if flags == RENAME_EXCHANGE {
                self.names(dir).insert(name.to_string(), target);
                self.names(new_dir).insert(new_name.to_string(), source);
                if let Some(words) = self.move_words((dir, name), (new_dir, new_name)) {
                    self.words.insert((dir, name.to_string()), words);
                }
                self.set_parent(source, dir, new_dir);
                self.set_parent(target, new_dir, dir);
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.is_empty_dir(target) => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        } else if !self.is_linked_dir(new_dir) {
            return Err(Errno::ENOENT);
        }
        self.names(dir).remove(name);
        self.names(new_dir).insert(new_name.to_string(), source);
        self.move_words((dir, name), (new_dir, new_name));
        self.set_parent(source, dir, new_dir);
        if let Some(target) = target {
            self.drop_link(new_dir, target);
        }
        Ok(())
    }

    /// The model after a remount: unlinked files are destroyed.
    pub fn after_remount(&self) -> Model {
        let nodes = self.nodes.iter().filter(|(_, node)| node.nlink > 0);
        Model {
            root: self.root,
            nodes: nodes.map(|(ino, node)| (*ino, node.clone())).collect(),
            lookups: BTreeMap::new(),
            words: self.words.clone(),
        }
    }
}
