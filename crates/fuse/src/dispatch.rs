//! One request, one call of [`Fs`].
//!
//! This module decides only what the protocol asks of a server. The node id of the root directory is 1,
//! ENOSYS means "do not send this again", and a missing name may be cached. The kernel checks permissions
//! (`default_permissions`); everything else is decided in posix.

#![expect(
    clippy::unit_arg,
    reason = "a table of answers is read by lines, and most of them put bytes and succeed"
)]

mod admin;
mod entry_words;
mod ioctl;
mod listing_ends;
mod loss;
mod mapped;
mod replay;
mod seek;
mod snapshots;
mod statahead;
mod xattr;

use crate::cache_policy::CachePolicy;
use crate::handover::RenameNotes;
use crate::launder::Launderer;
use crate::metrics::Metrics;
use crate::mount::MountOptions;
use crate::proto::{self, CreateIn, Header, ReadIn, Request, SetattrIn, WriteIn, fattr};
use crate::reply::{DirReply, Reply, attr};
use crate::session::{Call, Handler, Negotiated, PendingAnswer};
use crate::snapshots::SnapshotDir;
use crate::snapshots::tags::Tag;
pub use ioctl::{GET_WRITE_HINT, SET_WRITE_HINT};
use listing_ends::{ListingEnds, SHORT_BYTES};
use loss::AppendTarget;
use mapped::MappedFiles;
use statahead::Statahead;
use std::sync::Arc;
use std::time::Duration;
use terrane_posix::{
    Attr, Cred, DirEntry, Errno, Fs, Ino, RENAME_WHITEOUT, ReadOptions, SetAttr, SetTime, Time, WriteFlags,
};

/// Answers the requests of one mount by calls of one file system.
pub struct Dispatch {
    fs: Arc<Fs>,
    policy: CachePolicy,
    /// Mounted with `sync`: a change of a file is committed before it is answered.
    sync: bool,
    /// Mounted with `dirsync` or `sync`: a change of a directory is committed before it is answered.
    dirsync: bool,
    metrics: Arc<Metrics>,
    statahead: Statahead,
    listing_ends: ListingEnds,
    launderer: Option<Launderer>,
    mapped: MappedFiles,
    snapshots: Option<Arc<SnapshotDir>>,
    rename_notes: Option<RenameNotes>,
}

type Answer = Result<(), Errno>;

const ENOENT: Errno = Errno(libc::ENOENT);
const EINVAL: Errno = Errno(libc::EINVAL);
/// "Not implemented": the kernel does not send the operation again, and does what it can without it.
const ENOSYS: Errno = Errno(libc::ENOSYS);
const O_TRUNC: u32 = libc::O_TRUNC.cast_unsigned();
const O_NOATIME: u32 = libc::O_NOATIME.cast_unsigned();
const O_DIRECT: u32 = libc::O_DIRECT.cast_unsigned();
const O_DSYNC: u32 = libc::O_DSYNC.cast_unsigned();
const SEEK_DATA: u32 = libc::SEEK_DATA.cast_unsigned();
const SEEK_HOLE: u32 = libc::SEEK_HOLE.cast_unsigned();

impl Handler for Dispatch {
    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Answer {
        if let Some(answer) = self.answer_snapshots(call, reply) {
            return answer;
        }
        self.refuse_replaced(call)?;
        self.refuse_change_after_loss(call)?;
        let answer =
            if call.header.is_resent() { self.answer_resent(call, reply) } else { self.answer(call, reply) };
        // Also after a refusal: a part of the request may have been done.
        self.invalidate_attributes(call, reply);
        if let Err(errno) = answer {
            self.handle_failed_write_back(call, errno);
            return Err(errno);
        }
        self.fail_write_back_after_loss(call)?;
        self.commit_if_required(call)
    }

    fn begin_sync<'h>(&'h self, call: &Call<'_>) -> Result<Option<PendingAnswer<'h>>, Errno> {
        if call.header.is_resent() || Tag::split(call.header.nodeid).is_some() {
            return Ok(None);
        }
        self.refuse_replaced(call)?;
        let pending = self.fs.begin_fsync(self.ino(call.header.nodeid))?;
        Ok(pending.map(|pending| Box::new(|| pending.finish()) as PendingAnswer<'h>))
    }

    fn on_answered(&self, call: &Call<'_>, outcome: Answer, reply: &Reply, time: Duration) {
        self.metrics.record_answer(call, outcome, reply, nanoseconds(time));
    }

    fn on_sent(&self, call: &Call<'_>) {
        self.forget_rename(call);
    }

    fn monotonic_ns(&self) -> u64 {
        self.fs.monotonic_ns()
    }

    fn on_parked(&self, time: Duration) {
        self.metrics.record_parked(nanoseconds(time));
    }

    fn lost_nodes(&self) -> Vec<u64> {
        self.fs.lost_inodes().into_iter().map(|ino| self.nodeid(ino)).collect()
    }

    fn on_unmounted(&self) {
        self.fs.forget_all();
        if let Some(snapshots) = &self.snapshots {
            snapshots.forget_all();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The caller's credentials. A request that creates something carries a umask if the kernel has not applied
/// it.
fn cred_of(call: &Call<'_>) -> Cred {
    let umask = match *call.request {
        Request::Mknod { umask, .. } | Request::Mkdir { umask, .. } => umask,
        Request::Create { create, .. } | Request::Tmpfile { create } => create.umask,
        _ => 0,
    };
    let umask = if call.negotiated.umask_is_ours() { umask } else { 0 };
    // Where the request names no user, what it creates belongs to root.
    let or_root = |id: u32| if id == proto::NO_USER { 0 } else { id };
    Cred { uid: or_root(call.header.uid), gid: or_root(call.header.gid), umask }
}

/// Limits the size that a request asks for to the longest answer.
fn limit_size(size: u32, negotiated: &Negotiated) -> u32 {
    size.min(negotiated.max_write)
}

/// How to read, by the flags that the file was opened with.
fn reading_of(read: &ReadIn) -> ReadOptions {
    // A reader that bypasses the kernel's caches wants nothing put into ours.
    ReadOptions { no_prefetch: read.flags & O_DIRECT != 0, keeps_atime: read.flags & O_NOATIME != 0 }
}

fn set_attr(wire: &SetattrIn) -> SetAttr {
    let given = |bit| wire.valid & bit != 0;
    let time = |given_at, now, secs, nanos| match (given(given_at), given(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(Time { secs, nanos })),
    };
    SetAttr {
        mode: given(fattr::MODE).then_some(wire.mode),
        uid: given(fattr::UID).then_some(wire.uid),
        gid: given(fattr::GID).then_some(wire.gid),
        size: given(fattr::SIZE).then_some(wire.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, wire.atime, wire.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, wire.mtime, wire.mtimensec),
        ctime: given(fattr::CTIME).then_some(Time { secs: wire.ctime, nanos: wire.ctimensec }),
        kill_suidgid: given(fattr::KILL_SUIDGID),
    }
}

impl Dispatch {
    /// `metrics` counts every request.
    pub fn new(fs: Arc<Fs>, options: &MountOptions, metrics: Arc<Metrics>) -> Self {
        fs.set_access_times(options.atime.into());
        let dirsync = options.dirsync || options.sync;
        // The kernel knows the root without a LOOKUP. Counting one keeps the root and the index of its names
        // in memory between requests.
        if let Err(errno) = fs.lookup(fs.root(), b".") {
            log::warn!("fuse: lookup of the root directory failed: {errno}");
        }
        Dispatch {
            fs,
            policy: options.cache,
            sync: options.sync,
            dirsync,
            metrics,
            statahead: Statahead::default(),
            listing_ends: ListingEnds::default(),
            launderer: None,
            mapped: MappedFiles::default(),
            snapshots: None,
            rename_notes: None,
        }
    }

    /// Adds a way to have the kernel write back stores through mappings. Without it no range of a file is
    /// reported as a hole.
    pub fn with_launderer(self, launderer: Launderer) -> Self {
        Dispatch { launderer: Some(launderer), ..self }
    }

    /// Notes renames that a successor must not repeat. Without it such a rename that is resent is answered with `EIO`.
    pub fn with_rename_notes(self, notes: RenameNotes) -> Self {
        Dispatch { rename_notes: Some(notes), ..self }
    }

    /// Shows these snapshots below `.terrane/snapshot` in the root. Without it no such directory exists.
    pub fn with_snapshots(self, snapshots: Arc<SnapshotDir>) -> Self {
        Dispatch { snapshots: Some(snapshots), ..self }
    }

    /// Answers a request that a dead predecessor may have carried out already: see [`replay`].
    #[cold]
    fn answer_resent(&self, call: &Call<'_>, reply: &mut Reply) -> Answer {
        if self.is_noted_rename_done(call)? {
            return Ok(());
        }
        self.answer(call, reply).or_else(|errno| {
            reply.clear();
            self.answer_repeated(call, errno, reply)
        })
    }

    /// The dispatch table: which call answers which request.
    fn answer(&self, call: &Call<'_>, reply: &mut Reply) -> Answer {
        self.note_rename(call);
        let (fs, negotiated) = (&*self.fs, call.negotiated);
        let node = self.ino(call.header.nodeid);
        let cred = &cred_of(call);
        match *call.request {
            Request::Lookup { name } => self.lookup(call.header, node, name, reply),
            Request::Forget { nlookup } => Ok(fs.forget(node, nlookup)),
            Request::BatchForget(list) => {
                Ok(list.iter().for_each(|one| fs.forget(self.ino(one.nodeid), one.nlookup)))
            }
            Request::Getattr => self.put_attr(fs.getattr(node)?, reply),
            Request::Setattr(set) => {
                self.write_back_before_times(call.header.nodeid, &set);
                self.put_attr(fs.setattr(node, &set_attr(&set), cred)?, reply)
            }
            Request::Statx { .. } if !self.policy.birth_times => Err(ENOSYS),
            Request::Statx { .. } => Ok(attr::put_statx(reply, &fs.getattr(node)?, &self.policy)),
            Request::Readlink => Ok(reply.bytes(&fs.readlink(node)?)),

            Request::Symlink { name, target } => {
                self.put_entry(name, fs.symlink(node, name, target, cred)?, reply)
            }
            Request::Mknod { name, mode, rdev, .. } => {
                self.put_entry(name, fs.mknod(node, name, mode, rdev, cred)?, reply)
            }
            Request::Mkdir { name, mode, .. } => {
                self.put_entry(name, fs.mkdir(node, name, mode, cred)?, reply)
            }
            Request::Link { nodeid, name } => {
                self.put_entry(name, fs.link(self.ino(nodeid), node, name)?, reply)
            }
            Request::Create { name, create } => {
                self.put_created(name, fs.create(node, name, create.mode, cred)?, reply)
            }
            Request::Tmpfile { create: CreateIn { mode, .. } } => {
                self.put_created(b"", fs.tmpfile(node, mode, cred)?, reply)
            }
            Request::Unlink { name } => fs.unlink(node, name),
            Request::Rmdir { name } => fs.rmdir(node, name),
            Request::Rename { name, new_dir, new_name, flags } if flags & RENAME_WHITEOUT != 0 => {
                let (new_dir, flags) = (self.ino(new_dir), flags & !RENAME_WHITEOUT);
                fs.rename_with_whiteout(node, name, new_dir, new_name, flags, cred)
            }
            Request::Rename { name, new_dir, new_name, flags } => {
                fs.rename(node, name, self.ino(new_dir), new_name, flags)
            }

            Request::Open(_) if negotiated.stateless_open() => Err(ENOSYS),
            Request::Open(open) => self.open(node, open, cred, reply),
            Request::Opendir(_) if negotiated.stateless_opendir() => Err(ENOSYS),
            Request::Opendir(_) => Ok(attr::put_open(reply, self.policy.dir_flags())),
            Request::Release | Request::Releasedir => Ok(()),
            Request::Read(read) => {
                self.mapped.note_read(call.header.nodeid, &read);
                fs.read_as(
                    node,
                    read.offset,
                    limit_size(read.size, negotiated),
                    reading_of(&read),
                    reply.raw_mut(),
                )
            }
            Request::Write(write) => self.write(call.header, node, &write, reply),
            Request::Readdir(read) => self.readdir(node, &read, limit_size(read.size, negotiated), reply),
            Request::Readdirplus(read) => {
                self.readdirplus(call.header.pid, node, &read, limit_size(read.size, negotiated), reply)
            }

            Request::Fsync { data_only } | Request::Fsyncdir { data_only } => fs.fsync(node, data_only),
            Request::Syncfs => fs.sync(),
            Request::Statfs => Ok(attr::put_statfs(reply, &fs.statfs_of(node))),
            Request::Fallocate(range) => {
                self.drop_capabilities(node)?;
                fs.fallocate(node, range.mode, range.offset, range.length)
            }
            Request::Lseek { offset, whence } => {
                let offset = match whence {
                    SEEK_DATA => self.seek_data(node, offset)?,
                    SEEK_HOLE => self.seek_hole(node, offset)?,
                    _ => return Err(EINVAL),
                };
                Ok(reply.bytes(&proto::LseekOut { offset }.encode()))
            }
            Request::CopyFileRange { copy, wide } => self.copy(call.header.nodeid, &copy, wide, reply),
            Request::Ioctl { ioctl, data } => {
                self.ioctl(fs, negotiated, call.header, node, (&ioctl, data), reply)
            }

            Request::Setxattr(set) => self.setxattr(negotiated, node, &set, cred),
            Request::Getxattr { name, size } => self.getxattr(fs, negotiated, node, name, size, reply),
            Request::Listxattr { size } => self.listxattr(fs, negotiated, (call.header, node), size, reply),
            Request::Removexattr { name } => self.removexattr(negotiated, node, name),

            // The kernel itself does permissions and locks; a close has nothing to write back.
            Request::Access { .. } | Request::Flush | Request::Bmap(_) | Request::Poll(_) => Err(ENOSYS),
            Request::Getlk(_) | Request::Setlk(_) | Request::Setlkw(_) => Err(ENOSYS),
            Request::SetupMapping | Request::RemoveMapping | Request::NotifyReply => Err(ENOSYS),
            // The session answers these.
            Request::Init { .. } | Request::Interrupt { .. } | Request::Destroy => Err(ENOSYS),
        }
    }

    /// After a change: commits what the mount's options or the file's flags promise to be durable when the
    /// call returns.
    ///
    /// The kernel itself sends FSYNC after writes with O_SYNC or O_DSYNC and on `sync` mounts. It does so
    /// only for writes through its page cache, and never for directories.
    ///
    /// This function does not report what a dead server lost. A resent request has just been carried out, and
    /// its own loss may be why the node is in the list.
    fn commit_if_required(&self, call: &Call<'_>) -> Answer {
        let node = self.ino(call.header.nodeid);
        match *call.request {
            Request::Write(write)
                if self.policy.direct_io && write.write_flags & proto::write::CACHE == 0 =>
            {
                let asked = write.flags & O_DSYNC != 0;
                if asked || self.sync {
                    self.fs.make_durable(node)?;
                }
            }
            Request::Setattr(_) | Request::Fallocate(_) if self.sync => self.fs.make_durable(node)?,
            Request::Open(open) if self.sync && open.flags & O_TRUNC != 0 => self.fs.make_durable(node)?,
            Request::CopyFileRange { copy, .. } if self.sync => {
                self.fs.make_durable(self.ino(copy.nodeid_out))?;
            }
            Request::Setxattr(_) | Request::Removexattr { .. } if self.sync => self.fs.make_durable(node)?,
            Request::Symlink { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Link { .. }
                if self.dirsync =>
            {
                self.fs.make_durable(node)?;
            }
            Request::Create { .. } | Request::Unlink { .. } | Request::Rmdir { .. } if self.dirsync => {
                self.fs.make_durable(node)?;
            }
            Request::Rename { new_dir, .. } if self.dirsync => {
                self.fs.make_durable(node)?;
                self.fs.make_durable(self.ino(new_dir))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Has the kernel drop its cached attributes before it sees the answer, if the request has changed one that neither
    /// the kernel nor the answer knows of. The kernel leaves set-id bits to us (HANDLE_KILLPRIV_V2) and executes by the
    /// cached mode, but answers to these requests carry no mode.
    /// What a dead server may have done counts as done.
    fn invalidate_attributes(&self, call: &Call<'_>, reply: &mut Reply) {
        let nodeid = match *call.request {
            // Setting an extended attribute drops only the cached change time, but may take a block.
            Request::Setxattr(_) | Request::Removexattr { .. } => {
                let nodeid = call.header.nodeid;
                if self.fs.take_blocks_outdated(self.ino(nodeid)) || call.header.is_resent() {
                    reply.mark_outdated(nodeid);
                }
                return;
            }
            Request::Write(write) if write.write_flags & proto::write::KILL_SUIDGID != 0 => {
                call.header.nodeid
            }
            Request::Open(open) if open.open_flags & proto::open::KILL_SUIDGID != 0 => call.header.nodeid,
            Request::Fallocate(_) => call.header.nodeid,
            Request::CopyFileRange { copy, .. } => copy.nodeid_out,
            _ => return,
        };
        if self.fs.take_set_ids_cleared(self.ino(nodeid)) || call.header.is_resent() {
            reply.mark_outdated(nodeid);
        }
    }

    /// The inode number of a node id of the live tree. Requests for nodes of snapshots are answered before this. If the mount
    /// shows no snapshots, such an id is a number that no object has, so the answer is `ESTALE`.
    fn ino(&self, nodeid: u64) -> Ino {
        if nodeid == proto::ROOT_ID { self.fs.root() } else { nodeid }
    }

    fn nodeid(&self, ino: Ino) -> u64 {
        if ino == self.fs.root() { proto::ROOT_ID } else { ino }
    }

    /// The LOOKUP answer for a name. Where several spellings mean one name, a change of one changes all, but
    /// the kernel learns of one only. So such a name gets no lifetime and is looked up at each use.
    fn entry_of(&self, name: &[u8], attr: &Attr) -> proto::EntryOut {
        let entry = if self.fs.has_one_spelling(name) { self.policy.entry } else { Duration::ZERO };
        attr::entry(attr, self.nodeid(attr.ino), &CachePolicy { entry, ..self.policy })
    }

    fn put_attr(&self, attr: Attr, reply: &mut Reply) -> Answer {
        Ok(attr::put_attr(reply, &attr, &self.policy))
    }

    fn put_entry(&self, name: &[u8], attr: Attr, reply: &mut Reply) -> Answer {
        self.fs.note_named(attr.ino);
        Ok(reply.bytes(&self.entry_of(name, &attr).encode()))
    }

    /// The answer for a new file that is open at once.
    fn put_created(&self, name: &[u8], attr: Attr, reply: &mut Reply) -> Answer {
        self.put_entry(name, attr, reply)?;
        Ok(attr::put_open(reply, self.policy.file_flags()))
    }

    fn lookup(&self, header: &Header, dir: Ino, name: &[u8], reply: &mut Reply) -> Answer {
        match self.fs.lookup(dir, name) {
            Ok(attr) => {
                if attr.mode & libc::S_IFMT != libc::S_IFDIR {
                    self.statahead.note_lookup(header.pid, dir);
                }
                self.put_entry(name, attr, reply)
            }
            Err(ENOENT) if !self.policy.negative.is_zero() && self.fs.has_one_spelling(name) => {
                Ok(reply.bytes(&attr::no_entry(self.policy.negative).encode()))
            }
            Err(error) => Err(error),
        }
    }

    fn open(&self, node: Ino, open: proto::OpenIn, cred: &Cred, reply: &mut Reply) -> Answer {
        if open.flags & O_TRUNC != 0 {
            let kill_suidgid = open.open_flags & proto::open::KILL_SUIDGID != 0;
            self.drop_capabilities(node)?;
            self.fs.setattr(node, &SetAttr { size: Some(0), kill_suidgid, ..SetAttr::default() }, cred)?;
        }
        Ok(attr::put_open(reply, self.policy.file_flags()))
    }

    fn write(&self, header: &Header, node: Ino, write: &WriteIn<'_>, reply: &mut Reply) -> Answer {
        self.mapped.note_write(header.nodeid, write);
        // Otherwise the kernel has found the end of the file itself, under its own lock.
        let target = self.append_target(header, node, write);
        let kill_suidgid = write.write_flags & proto::write::KILL_SUIDGID != 0;
        // A kernel that caches pages drops capabilities before it writes. With `direct_io` it leaves that to
        // us.
        if self.policy.direct_io {
            self.drop_capabilities(node)?;
        }
        let writes_back = write.write_flags & proto::write::CACHE != 0;
        let flags = WriteFlags { append: target == AppendTarget::EndOfFile, kill_suidgid, writes_back };
        let size = match u32::try_from(write.data.len()) {
            Ok(size) if target == AppendTarget::AlreadyStored => size,
            _ => self.fs.write(node, write.offset, write.data, flags)?,
        };
        // The kernel ignores the byte count in the answer to a write-back, so a short write must be an error.
        if writes_back && size as usize != write.data.len() {
            return Err(Errno(libc::ENOSPC));
        }
        Ok(reply.bytes(&proto::WriteOut { size, padding: 0 }.encode()))
    }

    /// Has the kernel drop pages that it failed to write back. It treats them as clean and shows them to
    /// readers for as long as it keeps them; readers must get what is stored.
    fn handle_failed_write_back(&self, call: &Call<'_>, errno: Errno) {
        let Request::Write(write) = *call.request else { return };
        if write.write_flags & proto::write::CACHE == 0 {
            return;
        }
        self.fs.note_writeback_failure(self.ino(call.header.nodeid), errno);
        if let Some(launderer) = &self.launderer {
            let end = write.offset.saturating_add(write.data.len() as u64);
            launderer.launder_deferred(call.header.nodeid, write.offset..end);
        }
    }

    fn copy(&self, from: u64, copy: &proto::CopyFileRangeIn, wide: bool, reply: &mut Reply) -> Answer {
        if copy.flags != 0 {
            return Err(EINVAL);
        }
        // The narrow answer counts in 32 bits; after a short copy the caller continues.
        let len = if wide { copy.len } else { copy.len.min(u64::from(u32::MAX)) };
        let to = self.ino(copy.nodeid_out);
        self.drop_capabilities(to)?;
        let copied = match self.snapshot_source(from)? {
            Some((snapshot, ino)) => {
                let copied =
                    self.fs.clone_range_from(&snapshot.fs, (ino, copy.off_in), to, copy.off_out, len);
                match copied {
                    // It was destroyed meanwhile.
                    Err(Errno::EIO) if snapshot.fs.is_closed() => return Err(Errno::ESTALE),
                    copied => copied?.bytes,
                }
            }
            None => self.fs.copy_range(self.ino(from), copy.off_in, to, copy.off_out, len)?,
        };
        match u32::try_from(copied) {
            _ if wide => reply.bytes(&proto::CopyFileRangeOut { bytes_copied: copied }.encode()),
            Ok(size) => reply.bytes(&proto::WriteOut { size, padding: 0 }.encode()),
            Err(_) => return Err(Errno(libc::EIO)),
        }
        Ok(())
    }

    /// As many bytes as an answer to this READDIR should have.
    fn listing_bytes(&self, dir: Ino, read: &ReadIn, size: u32) -> usize {
        let size = usize::try_from(size).unwrap_or(0);
        if self.listing_ends.continues(dir, read.offset) { size } else { size.min(SHORT_BYTES) }
    }

    fn readdir(&self, dir: Ino, read: &ReadIn, size: u32, reply: &mut Reply) -> Answer {
        let mut out = DirReply::new(reply, self.listing_bytes(dir, read, size));
        let mut each = |entry: DirEntry<'_>| out.entry(entry.ino, entry.next, entry.kind, entry.name);
        self.fs.readdir_as(dir, read.offset, reading_of(read), &mut each)?;
        self.listing_ends.note_end(dir, out.end());
        Ok(())
    }

    fn readdirplus(&self, caller: u32, dir: Ino, read: &ReadIn, size: u32, reply: &mut Reply) -> Answer {
        let (offset, reading) = (read.offset, reading_of(read));
        let mut out = DirReply::new(reply, self.listing_bytes(dir, read, size));
        // The kernel asks for later pieces with attributes only after the caller has looked a name up.
        if offset == 0 && !self.statahead.begin_listing(caller, dir) {
            let name_only = attr::no_entry(std::time::Duration::ZERO);
            self.fs.readdir_as(dir, offset, reading, &mut |entry| {
                out.entry_plus(&name_only, entry.ino, entry.next, entry.kind, entry.name)
            })?;
        } else {
            self.fs.readdir_plus_as(dir, offset, reading, &mut |entry, attr| {
                // A name whose attributes cannot be read is still listed; the caller gets the error when it stats
                // the name.
                let nothing = || attr::no_entry(std::time::Duration::ZERO);
                let shown = attr.map_or_else(nothing, |attr| self.entry_of(entry.name, attr));
                let is_taken = out.entry_plus(&shown, entry.ino, entry.next, entry.kind, entry.name);
                if is_taken && attr.is_some() {
                    self.fs.note_named(entry.ino);
                }
                is_taken
            })?;
        }
        self.listing_ends.note_end(dir, out.end());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
