//! Requests about snapshots, and about the directories above them.
//!
//! No request for a node with a tag reaches the live file system. A request that would change a file below `.terrane` gets
//! `EROFS`. If it also names a node of another tree it gets `EXDEV`, as between file systems. So `mv` copies from
//! a snapshot. A copy of a range from a snapshot to a live file is answered as one between live files.
//!
//! `.terrane` exists in the root of a mount while the live root directory has no entry of that name. So a user's
//! own entry stays reachable.
//!
//! Attributes, names and content of a snapshot that the kernel has cached stay valid, since a snapshot never changes. The
//! list of snapshots does change. So the kernel caches no name in it, and drops listings of it ([`crate::session`]).

use super::{Answer, Dispatch, ENOENT, ENOSYS, limit_size, reading_of, xattr};
use crate::cache_policy::CachePolicy;
use crate::proto::{self, ReadIn, Request};
use crate::reply::{DirReply, Reply, attr};
use crate::session::Call;
use crate::snapshots::tags::Tag;
use crate::snapshots::{
    CONTROL_NAME, CONTROL_NODE, LIST_NAME, LIST_NODE, OpenSnapshot, SnapshotDir, SnapshotEntry, Visibility,
};
use std::time::Duration;
use terrane_posix::{Attr, DirEntry, Errno, Ino, ReadOptions, Time, mode};

const EROFS: Errno = Errno::EROFS;
const EXDEV: Errno = Errno(libc::EXDEV);
const KIND_DIR: u8 = libc::DT_DIR;
/// Offsets in a listing: behind "..", and behind an entry that the server inserted after it.
const OFFSET_BEHIND_DOTS: u64 = 2;
const OFFSET_NAMES: u64 = 3;
/// Most snapshots in one answer of a listing. More do not fit.
const LISTED_AT_ONCE: usize = 4096;
/// How long the kernel may keep the attributes of the list, whose time is that of the last snapshot.
const LIST_ATTR: Duration = Duration::from_secs(1);

/// A directory that is no object of a data set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VirtualDir {
    Control,
    List,
}

impl VirtualDir {
    fn of(nodeid: u64) -> Option<VirtualDir> {
        match nodeid {
            CONTROL_NODE => Some(VirtualDir::Control),
            LIST_NODE => Some(VirtualDir::List),
            _ => None,
        }
    }

    fn node(self) -> u64 {
        match self {
            VirtualDir::Control => CONTROL_NODE,
            VirtualDir::List => LIST_NODE,
        }
    }
}

/// The tree of a node: its tag, and whether it is a directory above snapshots. Those directories are a tree of their own.
fn tree_of(nodeid: u64) -> (Option<Tag>, bool) {
    let is_virtual = VirtualDir::of(nodeid).is_some();
    (Tag::split(nodeid).map(|(tag, _)| tag).filter(|_| !is_virtual), is_virtual)
}

/// The offset of a snapshot in a listing. It does not depend on which other snapshots exist.
fn position(entry: &SnapshotEntry) -> u64 {
    OFFSET_NAMES + (entry.guid >> 2)
}

impl Dispatch {
    /// Answers a request that concerns snapshots. `None`: it concerns live files only.
    pub(super) fn answer_snapshots(&self, call: &Call<'_>, reply: &mut Reply) -> Option<Answer> {
        let dir = self.snapshots.as_deref()?;
        if let Request::BatchForget(list) = *call.request {
            list.iter().for_each(|one| self.forget(dir, one.nodeid, one.nlookup));
            return Some(Ok(()));
        }
        let nodeid = call.header.nodeid;
        let Some((tag, ino)) = Tag::split(nodeid) else {
            return self.answer_beside_snapshots(dir, call, reply);
        };
        if let Request::CopyFileRange { copy, .. } = *call.request
            && Tag::split(copy.nodeid_out).is_none()
            && VirtualDir::of(nodeid).is_none()
        {
            return None;
        }
        Some(match (*call.request, VirtualDir::of(nodeid)) {
            (Request::Forget { nlookup }, _) => Ok(self.forget(dir, nodeid, nlookup)),
            (_, Some(virtual_dir)) => self.answer_in_virtual(dir, virtual_dir, call, reply),
            (_, None) => self.answer_in_snapshot(dir, (tag, ino), call, reply),
        })
    }

    /// The file that a range is copied from, of a snapshot. `None`: it is a live one.
    pub(super) fn snapshot_source(&self, nodeid: u64) -> Result<Option<(OpenSnapshot, Ino)>, Errno> {
        let (Some(dir), Some((tag, ino))) = (self.snapshots.as_deref(), Tag::split(nodeid)) else {
            return Ok(None);
        };
        Ok(Some((dir.resolve(tag)?, ino)))
    }

    fn forget(&self, dir: &SnapshotDir, nodeid: u64, count: u64) {
        match Tag::split(nodeid) {
            Some((tag, ino)) => dir.forget(tag, ino, count),
            None => self.fs.forget(self.ino(nodeid), count),
        }
    }

    /// Answers a request about a live node if it also names a node of a snapshot, or a directory above snapshots.
    fn answer_beside_snapshots(
        &self,
        dir: &SnapshotDir,
        call: &Call<'_>,
        reply: &mut Reply,
    ) -> Option<Answer> {
        let is_tagged = |nodeid| Tag::split(nodeid).is_some();
        let node = self.ino(call.header.nodeid);
        let is_root = node == self.fs.root();
        match *call.request {
            Request::Link { nodeid, .. } if is_tagged(nodeid) => Some(Err(EXDEV)),
            Request::CopyFileRange { copy, .. } if is_tagged(copy.nodeid_out) => Some(Err(EXDEV)),
            Request::Rename { new_dir, .. } if is_tagged(new_dir) => Some(Err(EXDEV)),
            Request::Rename { name, new_dir, new_name, .. } => {
                let is_control = (is_root && name == CONTROL_NAME)
                    || (self.ino(new_dir) == self.fs.root() && new_name == CONTROL_NAME);
                (is_control && self.has_control(dir)).then_some(Err(EROFS))
            }
            _ if !is_root => None,
            Request::Lookup { name: CONTROL_NAME } if self.has_control(dir) => {
                let entry = self.virtual_entry(dir, VirtualDir::Control, Duration::ZERO);
                Some(Ok(reply.bytes(&entry.encode())))
            }
            // Not cached as missing: it may appear without a change that the kernel sees.
            Request::Lookup { name: CONTROL_NAME } if !self.has_own_entry() => Some(Err(ENOENT)),
            Request::Unlink { name: CONTROL_NAME } | Request::Rmdir { name: CONTROL_NAME }
                if self.has_control(dir) =>
            {
                Some(Err(EROFS))
            }
            Request::Mkdir { name: CONTROL_NAME, .. }
            | Request::Mknod { name: CONTROL_NAME, .. }
            | Request::Symlink { name: CONTROL_NAME, .. }
            | Request::Link { name: CONTROL_NAME, .. }
            | Request::Create { name: CONTROL_NAME, .. }
                if self.has_control(dir) =>
            {
                Some(Err(Errno::EEXIST))
            }
            Request::Readdir(read) | Request::Readdirplus(read) if read.offset <= OFFSET_BEHIND_DOTS => {
                let is_shown = dir.visibility() == Visibility::Visible && self.has_control(dir);
                let plus = matches!(call.request, Request::Readdirplus(_));
                is_shown.then(|| self.list_root(call, &read, plus, reply))
            }
            _ => None,
        }
    }

    /// Whether the live root directory has an entry of the name.
    fn has_own_entry(&self) -> bool {
        match self.fs.lookup(self.fs.root(), CONTROL_NAME) {
            Ok(own) => {
                // The kernel did not do this lookup, so it is not counted.
                self.fs.forget(own.ino, 1);
                true
            }
            Err(errno) => errno != ENOENT,
        }
    }

    fn has_control(&self, dir: &SnapshotDir) -> bool {
        dir.visibility() != Visibility::Disabled && !self.has_own_entry()
    }

    /// Answers the first part of a listing of the live root directory, with `.terrane` behind "..".
    fn list_root(&self, call: &Call<'_>, read: &ReadIn, plus: bool, reply: &mut Reply) -> Answer {
        let (root, how) = (self.fs.root(), reading_of(read));
        let with_attrs = plus && self.statahead.begin_listing(call.header.pid, root);
        let size = usize::try_from(limit_size(read.size, call.negotiated)).unwrap_or(0);
        let mut out = DirReply::new(reply, size);
        let name_only = attr::no_entry(Duration::ZERO);
        let mut show = |shown: Option<&proto::EntryOut>, ino, next, kind, name: &[u8]| match plus {
            true => out.entry_plus(shown.unwrap_or(&name_only), ino, next, kind, name),
            false => out.entry(ino, next, kind, name),
        };
        let dots = [(0, 1, &b"."[..]), (1, OFFSET_BEHIND_DOTS, b"..")];
        for (at, next, name) in dots {
            if read.offset <= at && !show(None, root, next, KIND_DIR, name) {
                return Ok(());
            }
        }
        if !show(None, CONTROL_NODE, OFFSET_NAMES, KIND_DIR, CONTROL_NAME) {
            return Ok(());
        }
        if !with_attrs {
            return self.fs.readdir_as(root, OFFSET_NAMES, how, &mut |entry| {
                show(None, entry.ino, entry.next, entry.kind, entry.name)
            });
        }
        self.fs.readdir_plus_as(root, OFFSET_NAMES, how, &mut |entry, attr| {
            let shown = attr.map(|attr| self.entry_of(entry.name, attr));
            let is_taken = show(shown.as_ref(), entry.ino, entry.next, entry.kind, entry.name);
            if is_taken && attr.is_some() {
                self.fs.note_named(entry.ino);
            }
            is_taken
        })
    }

    fn virtual_attr(&self, dir: &SnapshotDir, of: VirtualDir) -> Attr {
        let (created, size) = match of {
            VirtualDir::Control => (None, 3),
            VirtualDir::List => {
                let list = dir.list().unwrap_or_default();
                (list.iter().map(|entry| entry.created).max(), list.len() as u64 + 2)
            }
        };
        let time = created
            .or_else(|| self.fs.getattr(self.fs.root()).ok().map(|root| root.btime))
            .unwrap_or_else(Time::default);
        Attr {
            ino: of.node(),
            generation: 0,
            mode: mode::S_IFDIR | 0o555,
            // 1 means that the number of subdirectories is unknown.
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 0,
            blocks_known: true,
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }

    fn virtual_policy(&self, of: VirtualDir, entry: Duration) -> CachePolicy {
        let attr = if of == VirtualDir::List { self.policy.attr.min(LIST_ATTR) } else { self.policy.attr };
        CachePolicy { entry, attr, ..self.policy }
    }

    fn virtual_entry(&self, dir: &SnapshotDir, of: VirtualDir, lifetime: Duration) -> proto::EntryOut {
        attr::entry(&self.virtual_attr(dir, of), of.node(), &self.virtual_policy(of, lifetime))
    }

    fn answer_in_virtual(
        &self,
        dir: &SnapshotDir,
        of: VirtualDir,
        call: &Call<'_>,
        reply: &mut Reply,
    ) -> Answer {
        let (negotiated, policy) = (call.negotiated, self.virtual_policy(of, Duration::ZERO));
        match *call.request {
            Request::Lookup { name } => self.lookup_in_virtual(dir, of, name, reply),
            Request::Getattr => Ok(attr::put_attr(reply, &self.virtual_attr(dir, of), &policy)),
            Request::Statx { .. } if !policy.birth_times => Err(ENOSYS),
            Request::Statx { .. } => Ok(attr::put_statx(reply, &self.virtual_attr(dir, of), &policy)),
            Request::Opendir(_) if negotiated.stateless_opendir() => Err(ENOSYS),
            Request::Opendir(_) => Ok(attr::put_open(reply, 0)),
            Request::Releasedir | Request::Fsyncdir { .. } | Request::Syncfs => Ok(()),
            Request::Readdir(read) => {
                self.list_virtual(dir, of, (&read, limit_size(read.size, negotiated)), false, reply)
            }
            Request::Readdirplus(read) => {
                self.list_virtual(dir, of, (&read, limit_size(read.size, negotiated)), true, reply)
            }
            Request::Statfs => Ok(attr::put_statfs(reply, &self.fs.statfs())),
            Request::Getxattr { .. } if negotiated.xattrs => Err(Errno::ENODATA),
            Request::Listxattr { size } if negotiated.xattrs => xattr::fit_to_size(reply, size),
            Request::Ioctl { .. } => Err(Errno::ENOTTY),
            _ => self.refuse_change_of_snapshot(call),
        }
    }

    fn lookup_in_virtual(&self, dir: &SnapshotDir, of: VirtualDir, name: &[u8], reply: &mut Reply) -> Answer {
        let entry = match (of, name) {
            (_, b".") => self.virtual_entry(dir, of, Duration::ZERO),
            (VirtualDir::Control, b"..") => {
                return self.put_entry(name, self.fs.lookup(self.fs.root(), b".")?, reply);
            }
            (VirtualDir::List, b"..") => self.virtual_entry(dir, VirtualDir::Control, Duration::ZERO),
            (VirtualDir::Control, LIST_NAME) => self.virtual_entry(dir, VirtualDir::List, self.policy.entry),
            (VirtualDir::Control, _) => return Err(ENOENT),
            (VirtualDir::List, _) => {
                let policy = CachePolicy { entry: Duration::ZERO, ..self.policy };
                dir.enter(name, |snapshot| {
                    self.snapshot_entry(dir, snapshot, snapshot.fs.root(), b".", &policy)
                })?
            }
        };
        Ok(reply.bytes(&entry.encode()))
    }

    fn list_virtual(
        &self,
        dir: &SnapshotDir,
        of: VirtualDir,
        (read, size): (&ReadIn, u32),
        plus: bool,
        reply: &mut Reply,
    ) -> Answer {
        let mut out = DirReply::new(reply, usize::try_from(size).unwrap_or(0));
        // Without attributes: they would require to open all snapshots.
        let name_only = attr::no_entry(Duration::ZERO);
        let mut show = |node, next, name: &[u8]| match plus {
            true => out.entry_plus(&name_only, node, next, KIND_DIR, name),
            false => out.entry(node, next, KIND_DIR, name),
        };
        let parent = if of == VirtualDir::List { CONTROL_NODE } else { self.fs.root() };
        for (at, node, name) in [(0, of.node(), &b"."[..]), (1, parent, b"..")] {
            if read.offset <= at && !show(node, at + 1, name) {
                return Ok(());
            }
        }
        if of == VirtualDir::Control {
            if read.offset <= OFFSET_BEHIND_DOTS {
                show(LIST_NODE, OFFSET_NAMES, LIST_NAME);
            }
            return Ok(());
        }
        let mut rest = dir.list()?;
        // The offset is that of the last entry that was shown.
        rest.retain(|entry| read.offset <= OFFSET_BEHIND_DOTS || position(entry) > read.offset);
        if rest.len() > LISTED_AT_ONCE {
            rest.select_nth_unstable_by_key(LISTED_AT_ONCE, position);
            rest.truncate(LISTED_AT_ONCE);
        }
        rest.sort_unstable_by_key(position);
        for entry in &rest {
            if !show(dir.listed_node(entry, self.fs.root()), position(entry), entry.name.as_bytes()) {
                break;
            }
        }
        Ok(())
    }

    /// Refuses a request that would change a file below `.terrane`, and requests that the server does not implement.
    fn refuse_change_of_snapshot(&self, call: &Call<'_>) -> Answer {
        let is_other = |nodeid| tree_of(nodeid) != tree_of(call.header.nodeid);
        Err(match *call.request {
            Request::Link { nodeid: other, .. } | Request::Rename { new_dir: other, .. }
                if is_other(other) =>
            {
                EXDEV
            }
            Request::CopyFileRange { .. } => EXDEV,
            // As for live files: the kernel implements these itself, or does not need them.
            Request::Access { .. } | Request::Flush | Request::Bmap(_) | Request::Poll(_) => ENOSYS,
            Request::Getlk(_) | Request::Setlk(_) | Request::Setlkw(_) => ENOSYS,
            Request::SetupMapping | Request::RemoveMapping | Request::NotifyReply => ENOSYS,
            Request::Init { .. } | Request::Interrupt { .. } | Request::Destroy => ENOSYS,
            Request::Getxattr { .. } | Request::Listxattr { .. } => ENOSYS,
            _ => EROFS,
        })
    }

    /// The attributes that `stat` shows of an inode of a snapshot. The modification time of the root directory is the time at
    /// which the snapshot was taken.
    fn snapshot_attr(&self, dir: &SnapshotDir, snapshot: &OpenSnapshot, attr: Attr) -> Attr {
        let is_root = attr.ino == snapshot.fs.root();
        let created = if is_root { dir.created(&snapshot.tagged) } else { None };
        Attr {
            ino: snapshot.tag.node(attr.ino),
            generation: snapshot.tagged.generation(attr.generation),
            mtime: created.unwrap_or(attr.mtime),
            ..attr
        }
    }

    /// Looks up a name, and counts a lookup by the kernel.
    fn snapshot_entry(
        &self,
        dir: &SnapshotDir,
        snapshot: &OpenSnapshot,
        parent: Ino,
        name: &[u8],
        policy: &CachePolicy,
    ) -> Result<proto::EntryOut, Errno> {
        let attr = snapshot.fs.lookup(parent, name)?;
        // Lookups are counted in `tagged`, because the file system may be closed and opened again.
        snapshot.fs.forget(attr.ino, 1);
        let shown = self.snapshot_attr(dir, snapshot, attr);
        snapshot.tagged.count(attr.ino);
        Ok(attr::entry(&shown, shown.ino, policy))
    }

    fn answer_in_snapshot(
        &self,
        dir: &SnapshotDir,
        (tag, ino): (Tag, Ino),
        call: &Call<'_>,
        reply: &mut Reply,
    ) -> Answer {
        if let Request::Write(write) = *call.request
            && write.write_flags & proto::write::CACHE != 0
            && let Some(launderer) = &self.launderer
        {
            // A store through a mapping. The kernel takes it for content, so the page has to be dropped.
            let end = write.offset.saturating_add(write.data.len() as u64);
            launderer.launder_deferred(call.header.nodeid, write.offset..end);
        }
        let snapshot = dir.resolve(tag)?;
        let answer = self.answer_in_open_snapshot(dir, &snapshot, ino, call, reply);
        match answer {
            // It was destroyed meanwhile.
            Err(Errno::EIO) if snapshot.fs.is_closed() => Err(Errno::ESTALE),
            answer => answer,
        }
    }

    fn answer_in_open_snapshot(
        &self,
        dir: &SnapshotDir,
        snapshot: &OpenSnapshot,
        ino: Ino,
        call: &Call<'_>,
        reply: &mut Reply,
    ) -> Answer {
        let (fs, negotiated, policy) = (&*snapshot.fs, call.negotiated, &self.policy);
        let shown_attr = || fs.getattr(ino).map(|attr| self.snapshot_attr(dir, snapshot, attr));
        match *call.request {
            Request::Lookup { name } => self.lookup_in_snapshot(dir, snapshot, ino, name, call, reply),
            Request::Getattr => Ok(attr::put_attr(reply, &shown_attr()?, policy)),
            Request::Statx { .. } if !policy.birth_times => Err(ENOSYS),
            Request::Statx { .. } => Ok(attr::put_statx(reply, &shown_attr()?, policy)),
            Request::Readlink => Ok(reply.bytes(&fs.readlink(ino)?)),
            Request::Open(_) if negotiated.stateless_open() => Err(ENOSYS),
            Request::Open(open) => match open.flags.cast_signed() & libc::O_ACCMODE {
                libc::O_RDONLY => Ok(attr::put_open(reply, policy.file_flags())),
                _ => Err(EROFS),
            },
            Request::Opendir(_) if negotiated.stateless_opendir() => Err(ENOSYS),
            Request::Opendir(_) => Ok(attr::put_open(reply, policy.dir_flags())),
            Request::Release | Request::Releasedir => Ok(()),
            Request::Fsync { .. } | Request::Fsyncdir { .. } | Request::Syncfs => Ok(()),
            Request::Read(read) => {
                let size = limit_size(read.size, negotiated);
                fs.read_as(ino, read.offset, size, reading_of(&read), reply.raw_mut())
            }
            Request::Readdir(read) => {
                let size = limit_size(read.size, negotiated);
                let mut out = DirReply::new(reply, usize::try_from(size).unwrap_or(0));
                fs.readdir_as(ino, read.offset, reading_of(&read), &mut |entry| {
                    out.entry(listed_ino(snapshot, ino, &entry), entry.next, entry.kind, entry.name)
                })
            }
            Request::Readdirplus(read) => {
                let size = limit_size(read.size, negotiated);
                self.list_with_attrs(dir, snapshot, ino, (&read, size), call, reply)
            }
            Request::Statfs => Ok(attr::put_statfs(reply, &fs.statfs())),
            Request::Lseek { offset, whence } => {
                let offset = match whence {
                    super::SEEK_DATA => fs.seek_data(ino, offset)?,
                    super::SEEK_HOLE => fs.seek_hole(ino, offset)?,
                    _ => return Err(super::EINVAL),
                };
                Ok(reply.bytes(&proto::LseekOut { offset }.encode()))
            }
            Request::Getxattr { name, size } => self.getxattr(fs, negotiated, ino, name, size, reply),
            Request::Listxattr { size } => self.listxattr(fs, negotiated, (call.header, ino), size, reply),
            Request::Ioctl { ioctl, data } => {
                self.ioctl(fs, negotiated, call.header, ino, (&ioctl, data), reply)
            }
            _ => self.refuse_change_of_snapshot(call),
        }
    }

    fn lookup_in_snapshot(
        &self,
        dir: &SnapshotDir,
        snapshot: &OpenSnapshot,
        parent: Ino,
        name: &[u8],
        call: &Call<'_>,
        reply: &mut Reply,
    ) -> Answer {
        if name == b".." && parent == snapshot.fs.root() {
            let entry = self.virtual_entry(dir, VirtualDir::List, self.policy.entry);
            return Ok(reply.bytes(&entry.encode()));
        }
        match self.snapshot_entry(dir, snapshot, parent, name, &self.policy) {
            Ok(entry) => {
                if entry.attr.mode & mode::S_IFMT != mode::S_IFDIR {
                    self.statahead.note_lookup(call.header.pid, call.header.nodeid);
                }
                Ok(reply.bytes(&entry.encode()))
            }
            Err(ENOENT) if !self.policy.negative.is_zero() => {
                Ok(reply.bytes(&attr::no_entry(self.policy.negative).encode()))
            }
            Err(errno) => Err(errno),
        }
    }

    fn list_with_attrs(
        &self,
        dir: &SnapshotDir,
        snapshot: &OpenSnapshot,
        ino: Ino,
        (read, size): (&ReadIn, u32),
        call: &Call<'_>,
        reply: &mut Reply,
    ) -> Answer {
        let how: ReadOptions = reading_of(read);
        let fs = &*snapshot.fs;
        let mut out = DirReply::new(reply, usize::try_from(size).unwrap_or(0));
        let name_only = attr::no_entry(Duration::ZERO);
        if read.offset == 0 && !self.statahead.begin_listing(call.header.pid, call.header.nodeid) {
            return fs.readdir_as(ino, read.offset, how, &mut |entry| {
                let shown = listed_ino(snapshot, ino, &entry);
                out.entry_plus(&name_only, shown, entry.next, entry.kind, entry.name)
            });
        }
        let mut counted = Vec::new();
        let listed = fs.readdir_plus_as(ino, read.offset, how, &mut |entry, attr| {
            let of_entry = |attr: &Attr| {
                let shown = self.snapshot_attr(dir, snapshot, *attr);
                attr::entry(&shown, shown.ino, &self.policy)
            };
            let wire = attr.map_or(name_only, of_entry);
            let shown = listed_ino(snapshot, ino, &entry);
            let taken = out.entry_plus(&wire, shown, entry.next, entry.kind, entry.name);
            if let Some(attr) = attr.filter(|_| taken) {
                snapshot.tagged.count(attr.ino);
                counted.push(attr.ino);
            }
            taken
        });
        counted.into_iter().for_each(|child| fs.forget(child, 1));
        listed
    }
}

/// The inode number of an entry in a listing: the one that `stat` shows.
fn listed_ino(snapshot: &OpenSnapshot, dir: Ino, entry: &DirEntry<'_>) -> u64 {
    if entry.name == b".." && dir == snapshot.fs.root() {
        return LIST_NODE;
    }
    snapshot.tag.node(entry.ino)
}

#[cfg(test)]
mod tests;
