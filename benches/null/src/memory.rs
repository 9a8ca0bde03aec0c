//! The handler: one request, one change of nodes.

use crate::node::{Body, Dir, NamedEntry, Node, Nodes};
use crate::xattr;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use terrane_fuse::MountOptions;
use terrane_fuse::cache_policy::CachePolicy;
use terrane_fuse::proto::{ReadIn, Request, SetattrIn, WriteIn, WriteOut, fattr};
use terrane_fuse::reply::{DirReply, Reply, attr};
use terrane_fuse::session::{Call, Handler};
use terrane_posix::{Attr, Errno, RENAME_EXCHANGE, RENAME_NOREPLACE, StatFs, Time, mode};

type Answer = Result<(), Errno>;

const ENOSYS: Errno = Errno(libc::ENOSYS);
const S_IFMT: u32 = mode::S_IFMT;
const ROOT: u64 = 1;

/// A file system in memory, lost when the process exits.
pub struct Memory {
    nodes: Nodes,
    policy: CachePolicy,
    /// Listings come without attributes.
    names_only: bool,
}

/// A write to a file drops its set-id bits, if the kernel asks for it.
fn clear_set_ids(attr: &mut Attr) {
    let group = if attr.mode & mode::S_IXGRP != 0 { mode::S_ISGID } else { 0 };
    attr.mode &= !(mode::S_ISUID | group);
}

fn resize(node: &Node, size: u64) -> Answer {
    let Body::File(data) = &node.body else { return Err(Errno::EINVAL) };
    let len = usize::try_from(size).map_err(|_| Errno(libc::EFBIG))?;
    let mut data = data.write();
    data.resize(len, 0);
    data.shrink_to(len);
    Ok(())
}

fn dir(node: &Node) -> Result<&RwLock<Dir>, Errno> {
    match &node.body {
        Body::Dir(dir) => Ok(dir),
        _ => Err(Errno(libc::ENOTDIR)),
    }
}

fn kind(bits: u32) -> u8 {
    ((bits & S_IFMT) >> 12) as u8
}

impl Memory {
    pub fn new(options: &MountOptions) -> Self {
        Memory { nodes: Nodes::new(), policy: options.cache, names_only: false }
    }

    /// Listings come without attributes, as Terrane sends them to callers that look no name up.
    pub fn show_names_only(&mut self) {
        self.names_only = true;
    }

    /// Fills the root with directories, each followed by its empty files, without requests: as `terrane-walk
    /// make` does.
    pub fn make_tree(&self, dirs: usize, names: usize) {
        let Some(root) = self.nodes.get(ROOT) else { return };
        let named = |dir: &Node, name: String, ino, bits| {
            self.name(dir, name.as_bytes(), ino, kind(bits)).expect("it was made as a directory");
        };
        for dir in 0..dirs {
            let (bits, body) = (mode::S_IFDIR | 0o755, Body::Dir(RwLock::new(Dir::new(ROOT))));
            let made = self.nodes.add(bits, (0, 0), body);
            named(&root, format!("dir{dir:05}"), made.attr().ino, bits);
            for name in 0..names {
                let bits = mode::S_IFREG | 0o644;
                let file = self.nodes.add(bits, (0, 0), self.file(bits));
                named(&made, format!("file{name:05}"), file.attr().ino, bits);
            }
        }
    }

    /// The number of nodes, the root and unlinked ones included.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn node(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        self.nodes.get(ino).ok_or(Errno(libc::ESTALE))
    }

    fn entry(&self, node: &Node, reply: &mut Reply) {
        node.add_lookup();
        let attr = node.attr();
        reply.bytes(&attr::entry(&attr, attr.ino, &self.policy).encode());
    }

    fn attr(&self, node: &Node, reply: &mut Reply) {
        attr::put_attr(reply, &node.attr(), &self.policy);
    }

    fn lookup(&self, parent: u64, name: &[u8], reply: &mut Reply) -> Answer {
        let parent = self.node(parent)?;
        let found = dir(&parent)?.read().get(name).map(|named| named.ino);
        match found {
            Some(ino) => self.entry(&*self.node(ino)?, reply),
            None if self.policy.negative.is_zero() => return Err(Errno::ENOENT),
            None => reply.bytes(&attr::no_entry(self.policy.negative).encode()),
        }
        Ok(())
    }

    /// Creates a node under a new name.
    fn make(&self, call: &Call<'_>, name: &[u8], bits: u32, body: Body) -> Result<Arc<Node>, Errno> {
        let parent = self.node(call.header.nodeid)?;
        let names = dir(&parent)?;
        if names.read().get(name).is_some() {
            return Err(Errno(libc::EEXIST));
        }
        let (above, is_dir) = (parent.attr(), bits & S_IFMT == mode::S_IFDIR);
        let inherits = above.mode & mode::S_ISGID != 0;
        let gid = if inherits { above.gid } else { call.header.gid };
        let bits = if inherits && is_dir { bits | mode::S_ISGID } else { bits };
        let node = self.nodes.add(bits, (call.header.uid, gid), body);
        self.name(&parent, name, node.attr().ino, kind(bits))?;
        Ok(node)
    }

    fn name(&self, parent: &Node, name: &[u8], ino: u64, kind: u8) -> Answer {
        dir(parent)?.write().insert(NamedEntry { name: name.into(), ino, kind });
        parent.change(|attr, now| {
            attr.size += 1;
            attr.nlink += u32::from(kind == libc::DT_DIR);
            attr.mtime = now;
        });
        Ok(())
    }

    /// Removes a name; the link count of its node stays.
    fn remove_name(&self, parent: &Node, name: &[u8]) -> Result<NamedEntry, Errno> {
        let taken = dir(parent)?.write().take(name).ok_or(Errno::ENOENT)?;
        parent.change(|attr, now| {
            attr.size -= 1;
            attr.nlink -= u32::from(taken.kind == libc::DT_DIR);
            attr.mtime = now;
        });
        Ok(taken)
    }

    fn remove(&self, parent: u64, name: &[u8], directory: bool) -> Answer {
        let parent = self.node(parent)?;
        let found = dir(&parent)?.read().get(name).cloned().ok_or(Errno::ENOENT)?;
        let node = self.node(found.ino)?;
        match (&node.body, directory) {
            (Body::Dir(names), true) if !names.read().is_empty() => return Err(Errno(libc::ENOTEMPTY)),
            (Body::Dir(_), false) => return Err(Errno(libc::EISDIR)),
            (Body::Dir(_), true) | (_, false) => {}
            (_, true) => return Err(Errno(libc::ENOTDIR)),
        }
        self.remove_name(&parent, name)?;
        self.drop_link(&node);
        Ok(())
    }

    fn drop_link(&self, node: &Node) {
        let is_dir = matches!(node.body, Body::Dir(_));
        let gone = node.change(|attr, _| {
            attr.nlink = if is_dir { 0 } else { attr.nlink - 1 };
            (attr.nlink == 0).then_some(attr.ino)
        });
        // Destroyed now if the kernel never learned of it, else with the last FORGET.
        gone.into_iter().for_each(|ino| self.nodes.forget(ino, 0));
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Answer {
        let (source_dir, target_dir) = (self.node(from.0)?, self.node(to.0)?);
        let source = dir(&source_dir)?.read().get(from.1).cloned().ok_or(Errno::ENOENT)?;
        let target = dir(&target_dir)?.read().get(to.1).cloned();
        match &target {
            Some(_) if flags & RENAME_NOREPLACE != 0 => return Err(Errno(libc::EEXIST)),
            None if flags & RENAME_EXCHANGE != 0 => return Err(Errno::ENOENT),
            Some(target) if target.ino == source.ino => return Ok(()),
            Some(target) if flags & RENAME_EXCHANGE == 0 => {
                self.remove(to.0, to.1, target.kind == libc::DT_DIR)?
            }
            _ => {}
        }
        self.remove_name(&source_dir, from.1)?;
        if let Some(target) = target.filter(|_| flags & RENAME_EXCHANGE != 0) {
            self.remove_name(&target_dir, to.1)?;
            self.name(&source_dir, from.1, target.ino, target.kind)?;
            self.moved(target.ino, from.0)?;
        }
        self.name(&target_dir, to.1, source.ino, source.kind)?;
        self.moved(source.ino, to.0)
    }

    fn moved(&self, ino: u64, parent: u64) -> Answer {
        let node = self.node(ino)?;
        if let Body::Dir(names) = &node.body {
            names.write().parent = parent;
        }
        node.change(|_, _| ());
        Ok(())
    }

    fn link(&self, ino: u64, parent: u64, name: &[u8], reply: &mut Reply) -> Answer {
        let (node, parent) = (self.node(ino)?, self.node(parent)?);
        if dir(&parent)?.read().get(name).is_some() {
            return Err(Errno(libc::EEXIST));
        }
        let bits = node.change(|attr, _| {
            attr.nlink += 1;
            attr.mode
        });
        self.name(&parent, name, ino, kind(bits))?;
        self.entry(&node, reply);
        Ok(())
    }

    fn setattr(&self, node: &Node, set: &SetattrIn) -> Answer {
        let given = |bit| set.valid & bit != 0;
        if given(fattr::SIZE) {
            resize(node, set.size)?;
        }
        node.change(|attr, now| {
            let put = |at, now_at, secs, nanos, to: &mut Time| match (given(at), given(now_at)) {
                (false, _) => {}
                (true, true) => *to = now,
                (true, false) => *to = Time { secs, nanos },
            };
            put(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec, &mut attr.atime);
            put(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec, &mut attr.mtime);
            if given(fattr::SIZE) {
                (attr.size, attr.blocks, attr.mtime) = (set.size, set.size.div_ceil(512), now);
            }
            if given(fattr::MODE) {
                attr.mode = attr.mode & S_IFMT | set.mode & mode::PERMISSIONS;
            }
            attr.uid = if given(fattr::UID) { set.uid } else { attr.uid };
            attr.gid = if given(fattr::GID) { set.gid } else { attr.gid };
            if given(fattr::KILL_SUIDGID) {
                clear_set_ids(attr);
            }
        });
        Ok(())
    }

    fn read(&self, node: &Node, read: &ReadIn, reply: &mut Reply) -> Answer {
        let Body::File(data) = &node.body else { return Err(Errno(libc::EISDIR)) };
        let data = data.read();
        let start = usize::try_from(read.offset).unwrap_or(usize::MAX).min(data.len());
        let end = data.len().min(start.saturating_add(read.size as usize));
        reply.bytes(data.get(start..end).unwrap_or(&[]));
        Ok(())
    }

    fn write(&self, node: &Node, write: &WriteIn<'_>, reply: &mut Reply) -> Answer {
        let Body::File(data) = &node.body else { return Err(Errno::EINVAL) };
        let start = usize::try_from(write.offset).map_err(|_| Errno(libc::EFBIG))?;
        let end = start.checked_add(write.data.len()).ok_or(Errno(libc::EFBIG))?;
        {
            let mut data = data.write();
            if start > data.len() {
                data.resize(start, 0);
            }
            // Bytes inside are overwritten, bytes beyond are appended: no byte is written twice.
            let inside = write.data.len().min(data.len() - start);
            let (old, new) = write.data.split_at(inside);
            data[start..start + inside].copy_from_slice(old);
            data.extend_from_slice(new);
        }
        node.change(|attr, now| {
            attr.size = attr.size.max(end as u64);
            attr.blocks = attr.size.div_ceil(512);
            attr.mtime = now;
            if write.write_flags & terrane_fuse::proto::write::KILL_SUIDGID != 0 {
                clear_set_ids(attr);
            }
        });
        reply.bytes(&WriteOut { size: write.data.len() as u32, padding: 0 }.encode());
        Ok(())
    }

    fn readdir(&self, node: &Node, read: &ReadIn, plus: bool, reply: &mut Reply) -> Answer {
        let names = dir(node)?.read();
        let mut out = DirReply::new(reply, read.size as usize);
        let dots = [(&b"."[..], node.attr().ino), (b"..", names.parent)];
        let nothing = attr::no_entry(Duration::ZERO);
        for (at, (name, ino)) in dots.into_iter().enumerate().skip(read.offset as usize) {
            let next = at as u64 + 1;
            let fits = match plus {
                true => out.entry_plus(&nothing, ino, next, libc::DT_DIR, name),
                false => out.entry(ino, next, libc::DT_DIR, name),
            };
            if !fits {
                return Ok(());
            }
        }
        for (next, named) in names.list(read.offset.saturating_sub(2) as usize) {
            let next = next as u64 + 2;
            let fits = if plus && self.names_only {
                out.entry_plus(&nothing, named.ino, next, named.kind, &named.name)
            } else if plus {
                let node = self.node(named.ino)?;
                let entry = attr::entry(&node.attr(), named.ino, &self.policy);
                let fits = out.entry_plus(&entry, named.ino, next, named.kind, &named.name);
                if fits {
                    node.add_lookup();
                }
                fits
            } else {
                out.entry(named.ino, next, named.kind, &named.name)
            };
            if !fits {
                break;
            }
        }
        Ok(())
    }

    fn file(&self, bits: u32) -> Body {
        match bits & S_IFMT {
            mode::S_IFREG => Body::File(RwLock::default()),
            _ => Body::Special,
        }
    }
}

impl Handler for Memory {
    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Answer {
        let ino = call.header.nodeid;
        match *call.request {
            Request::Lookup { name } => self.lookup(ino, name, reply)?,
            Request::Forget { nlookup } => self.nodes.forget(ino, nlookup),
            Request::BatchForget(list) => {
                list.iter().for_each(|one| self.nodes.forget(one.nodeid, one.nlookup))
            }
            Request::Getattr => self.attr(&*self.node(ino)?, reply),
            Request::Statx { .. } if !self.policy.birth_times => return Err(ENOSYS),
            Request::Statx { .. } => attr::put_statx(reply, &self.node(ino)?.attr(), &self.policy),
            Request::Setattr(set) => {
                let node = self.node(ino)?;
                self.setattr(&node, &set)?;
                self.attr(&node, reply);
            }
            Request::Readlink => match &self.node(ino)?.body {
                Body::Link(target) => reply.bytes(target),
                _ => return Err(Errno::EINVAL),
            },
            Request::Symlink { name, target } => {
                let node = self.make(call, name, mode::S_IFLNK | 0o777, Body::Link(target.into()))?;
                self.entry(&node, reply);
            }
            Request::Mknod { name, mode, rdev, .. } => {
                let node = self.make(call, name, mode, self.file(mode))?;
                node.attr.lock().rdev = rdev;
                self.entry(&node, reply);
            }
            Request::Mkdir { name, mode, .. } => {
                let body = Body::Dir(RwLock::new(Dir::new(ino)));
                let node = self.make(call, name, mode & !S_IFMT | mode::S_IFDIR, body)?;
                self.entry(&node, reply);
            }
            Request::Create { name, create } => {
                let node = self.make(call, name, create.mode, self.file(create.mode))?;
                self.entry(&node, reply);
                attr::put_open(reply, self.policy.file_flags());
            }
            Request::Tmpfile { create } => {
                let owner = (call.header.uid, call.header.gid);
                let node = self.nodes.add(create.mode, owner, self.file(create.mode));
                node.attr.lock().nlink = 0;
                self.entry(&node, reply);
                attr::put_open(reply, self.policy.file_flags());
            }
            Request::Link { nodeid, name } => self.link(nodeid, ino, name, reply)?,
            Request::Unlink { name } => self.remove(ino, name, false)?,
            Request::Rmdir { name } => self.remove(ino, name, true)?,
            Request::Rename { name, new_dir, new_name, flags } => {
                self.rename((ino, name), (new_dir, new_name), flags)?;
            }

            Request::Open(_) if call.negotiated.stateless_open() => return Err(ENOSYS),
            Request::Open(open) => {
                if open.flags & libc::O_TRUNC.cast_unsigned() != 0 {
                    let node = self.node(ino)?;
                    resize(&node, 0)?;
                    node.change(|attr, now| (attr.size, attr.blocks, attr.mtime) = (0, 0, now));
                }
                attr::put_open(reply, self.policy.file_flags());
            }
            Request::Opendir(_) if call.negotiated.stateless_opendir() => return Err(ENOSYS),
            Request::Opendir(_) => attr::put_open(reply, self.policy.dir_flags()),
            Request::Release | Request::Releasedir | Request::Fsync { .. } | Request::Fsyncdir { .. } => {}
            Request::Read(read) => self.read(&*self.node(ino)?, &read, reply)?,
            Request::Write(write) => self.write(&*self.node(ino)?, &write, reply)?,
            Request::Readdir(read) => self.readdir(&*self.node(ino)?, &read, false, reply)?,
            Request::Readdirplus(read) => self.readdir(&*self.node(ino)?, &read, true, reply)?,
            Request::Setxattr(set) => {
                let node = self.node(ino)?;
                node.xattrs.write().set(set.name, set.value, set.flags)?;
                node.change(|_, _| ());
            }
            Request::Getxattr { name, size } => {
                xattr::put(reply, self.node(ino)?.xattrs.read().get(name)?, size)?;
            }
            Request::Listxattr { size } => {
                let names = self.node(ino)?.xattrs.read().names();
                xattr::put(reply, &names, size)?;
            }
            Request::Removexattr { name } => {
                let node = self.node(ino)?;
                node.xattrs.write().remove(name)?;
                node.change(|_, _| ());
            }
            Request::Statfs => {
                let blocks = 1 << 28;
                let (block_size, name_max) = (4096, 255);
                let (files, files_free) = (1 << 30, 1 << 30);
                let figures = StatFs {
                    block_size,
                    blocks,
                    free: blocks,
                    available: blocks,
                    files,
                    files_free,
                    name_max,
                };
                attr::put_statfs(reply, &figures);
            }
            _ => return Err(ENOSYS),
        }
        Ok(())
    }
}
