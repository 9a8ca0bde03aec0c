//! Flag bits of the protocol, one module for each field that carries them.

/// INIT: what kernel and file system support. Bits from 32 on travel in the second word.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// SETATTR: which fields are set.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Replies to OPEN, OPENDIR and CREATE.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// OPEN and CREATE: what the kernel asks for beside the caller's flags.
pub mod open {
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// WRITE.
pub mod write {
    /// From the page cache: the handle and the caller's flags are guesses.
    pub const CACHE: u32 = 1 << 0;
    pub const LOCKOWNER: u32 = 1 << 1;
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
    pub const DATA_ONLY: u32 = 1 << 0;
}

/// STATX: which fields of the answer are valid.
pub mod statx {
    /// Everything that `stat` has.
    pub const BASIC: u32 = 0x7ff;
    pub const BTIME: u32 = 0x800;
}

/// Codes of notifications, which take the place of a reply's error.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    /// The kernel sends every request again that was read and not answered.
    pub const RESEND: i32 = 7;
    /// Every name cached until now is looked up again.
    pub const INC_EPOCH: i32 = 8;
}

/// Set in `unique` of a request that is resent, because a predecessor of this process may have left it
/// undone.
pub const UNIQUE_RESENT: u64 = 1 << 63;
