//! Flag bits of the protocol, one module for each field that carries them.

/// INIT: what kernel and file system support. Bits from 32 on travel in the second word.
pub mod init {
    /// Several READs of one file may be in flight.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// The server keeps POSIX locks; else the kernel does.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// OPEN truncates with `O_TRUNC`; else a SETATTR does.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// The server looks up `.` and `..`, which NFS exports need.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// WRITEs may be longer than 4 KiB.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The kernel leaves the umask to the server.
    pub const DONT_MASK: u64 = 1 << 6;
    /// The server keeps `flock` locks; else the kernel does.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// The kernel drops cached pages if size or modification time change.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// READDIRPLUS is supported.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS, by how names are used.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// O_DIRECT requests may be asynchronous.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Writes stay in the page cache, and sizes and times are the kernel's.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// ENOSYS for an OPEN makes the kernel send no OPEN and no RELEASE any more.
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// Lookups and listings of one directory may run in parallel.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The server clears set-id bits and capabilities on write, chown and truncate.
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    /// The kernel checks access control lists.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// After an abort, reading `/dev/fuse` fails with ECONNABORTED.
    pub const ABORT_ERROR: u64 = 1 << 21;
    /// [`InitOut::max_pages`](crate::proto::InitOut::max_pages) is valid.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel caches targets of symbolic links.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// ENOSYS for an OPENDIR makes the kernel send no OPENDIR and no RELEASEDIR any more.
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// The kernel drops cached pages only on request of the server.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// As `HANDLE_KILLPRIV`, but the kernel says when, by `KILL_SUIDGID` in SETATTR, OPEN and WRITE.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has its longer form.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// INIT has a second word of flags.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests that create inodes carry a security label.
    pub const SECURITY_CTX: u64 = 1 << 32;
    /// Requests that create inodes carry a supplementary group.
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    /// A name can be made to expire instead of being dropped.
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    /// Shared mappings are allowed in spite of [`fopen::DIRECT_IO`](super::fopen::DIRECT_IO).
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel may read and write a backing file itself.
    pub const PASSTHROUGH: u64 = 1 << 37;
    /// The mount cannot be exported by NFS.
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    /// The kernel can resend requests; see [`UNIQUE_RESENT`](super::UNIQUE_RESENT).
    pub const HAS_RESEND: u64 = 1 << 39;
    /// Idmapped mounts are allowed.
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    /// Requests may come through io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
    /// [`InitOut::request_timeout_s`](crate::proto::InitOut::request_timeout_s) is valid.
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// SETATTR: which fields are set.
pub mod fattr {
    /// Permission bits.
    pub const MODE: u32 = 1 << 0;
    /// Owner.
    pub const UID: u32 = 1 << 1;
    /// Group.
    pub const GID: u32 = 1 << 2;
    /// Size.
    pub const SIZE: u32 = 1 << 3;
    /// Access time.
    pub const ATIME: u32 = 1 << 4;
    /// Modification time.
    pub const MTIME: u32 = 1 << 5;
    /// The file handle is valid; it sets nothing.
    pub const FH: u32 = 1 << 6;
    /// The access time is set to the server's clock. Comes with `ATIME`.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The modification time is set to the server's clock. Comes with `MTIME`.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// The lock owner is valid; it sets nothing.
    pub const LOCKOWNER: u32 = 1 << 9;
    /// Change time.
    pub const CTIME: u32 = 1 << 10;
    /// Set-id bits are to be cleared, as an unprivileged caller changes the size.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Replies to OPEN, OPENDIR and CREATE.
pub mod fopen {
    /// Reads and writes bypass the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Cached data stays valid across opens.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The file cannot be seeked.
    pub const NONSEEKABLE: u32 = 1 << 2;
    /// The kernel may cache the names of the directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The kernel writes back nothing on close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// With `DIRECT_IO`, WRITEs of one file may be in flight at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// OPEN and CREATE: what the kernel asks for beside the caller's flags.
pub mod open {
    /// Set-id bits are to be cleared by `O_TRUNC`, as the caller is unprivileged.
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// WRITE.
pub mod write {
    /// From the page cache: the handle and the caller's flags are guesses.
    pub const CACHE: u32 = 1 << 0;
    /// The lock owner is valid.
    pub const LOCKOWNER: u32 = 1 << 1;
    /// Set-id bits are to be cleared, as the caller is unprivileged.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// SETXATTR: the caller's flags.
pub mod xattr {
    /// Fails if the attribute exists.
    pub const CREATE: u32 = 1 << 0;
    /// Fails if the attribute does not exist.
    pub const REPLACE: u32 = 1 << 1;
}

/// SETXATTR in its longer form: what the kernel asks for beside the caller's flags.
pub mod setxattr {
    /// The access ACL changes, and the caller may not keep the set-group-ID bit.
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}

/// FSYNC and FSYNCDIR.
pub mod fsync {
    /// `fdatasync`: attributes that reading the data does not need may stay in memory.
    pub const DATA_ONLY: u32 = 1 << 0;
}

/// STATX: which fields of the answer are valid.
pub mod statx {
    /// Everything that `stat` has.
    pub const BASIC: u32 = 0x7ff;
    /// The birth time.
    pub const BTIME: u32 = 0x800;
}

/// Codes of notifications, which take the place of a reply's error.
pub mod notify {
    /// The kernel drops attributes and pages: [`NotifyInvalInodeOut`](crate::proto::NotifyInvalInodeOut).
    pub const INVAL_INODE: i32 = 2;
    /// The kernel drops a name: [`NotifyInvalEntryOut`](crate::proto::NotifyInvalEntryOut).
    pub const INVAL_ENTRY: i32 = 3;
    /// The kernel sends every request again that was read and not answered.
    pub const RESEND: i32 = 7;
    /// Every name cached until now is looked up again.
    pub const INC_EPOCH: i32 = 8;
}

/// Set in `unique` of a request that is resent, because a predecessor of this process may have left it
/// undone.
pub const UNIQUE_RESENT: u64 = 1 << 63;
