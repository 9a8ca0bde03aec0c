//! Structures of requests (`..In`) and replies (`..Out`), with the kernel's offsets.

use terrane_wire::layout;

layout! {
    /// Header of every request. `len` counts it, what follows, and `extension_units` of 8 bytes at the end.
    InHeader, 40 bytes {
        /// Bytes of the whole request.
        0 len: u32,
        /// Number of an [`Opcode`](super::Opcode).
        4 opcode: u32,
        /// Identifies the request; its reply carries the same number.
        8 unique: u64,
        /// The node that the request is about; 0 if it is about none.
        16 nodeid: u64,
        /// User id of the caller, or [`NO_USER`](super::NO_USER).
        24 uid: u32,
        /// Group id of the caller.
        28 gid: u32,
        /// Process id of the caller; 0 if it is not visible from our process namespace.
        32 pid: u32,
        /// Length of the extensions behind the body, in 8 bytes.
        36 extension_units: u16,
        /// Unused.
        38 padding: u16,
    }
}
layout! {
    /// Header of every reply. `error` is 0 or a negative errno.
    OutHeader, 16 bytes {
        /// Bytes of the whole message.
        0 len: u32,
        /// 0 or a negative errno, in two's complement; in a notification its code.
        4 error: u32,
        /// That of the request; 0 in a notification.
        8 unique: u64,
    }
}
layout! {
    /// What `stat` shows, without the birth time.
    AttrWire, 88 bytes {
        /// Inode number for `stat`.
        0 ino: u64,
        /// Size in bytes.
        8 size: u64,
        /// Storage in units of 512 bytes.
        16 blocks: u64,
        /// Access time, seconds since 1970.
        24 atime: i64,
        /// Modification time, seconds since 1970.
        32 mtime: i64,
        /// Change time, seconds since 1970.
        40 ctime: i64,
        /// Access time, nanoseconds below 10^9.
        48 atimensec: u32,
        /// Modification time, nanoseconds below 10^9.
        52 mtimensec: u32,
        /// Change time, nanoseconds below 10^9.
        56 ctimensec: u32,
        /// File type and permission bits.
        60 mode: u32,
        /// Number of hard links.
        64 nlink: u32,
        /// Owner.
        68 uid: u32,
        /// Group.
        72 gid: u32,
        /// Device number: 12 bits of major between the low 8 and the high 12 bits of minor.
        76 rdev: u32,
        /// Preferred I/O size in bytes.
        80 blksize: u32,
        /// Submount and DAX flags; we set none.
        84 flags: u32,
    }
}
layout! {
    /// Answers LOOKUP and every request that creates a name. `nodeid` 0: the name does not exist, and that
    /// may be cached.
    EntryOut, 128 bytes {
        /// Id of the node, of which this answer counts one lookup.
        0 nodeid: u64,
        /// Distinguishes nodes that had the same id one after the other.
        8 generation: u64,
        /// Lifetime of the cached name in seconds.
        16 entry_valid: u64,
        /// Lifetime of the cached attributes in seconds.
        24 attr_valid: u64,
        /// Nanoseconds of the name's lifetime, below 10^9.
        32 entry_valid_nsec: u32,
        /// Nanoseconds of the attributes' lifetime, below 10^9.
        36 attr_valid_nsec: u32,
        /// Attributes of the node.
        40 attr: AttrWire,
    }
}
layout! {
    /// Answers GETATTR and SETATTR.
    AttrOut, 104 bytes {
        /// Lifetime of the cached attributes in seconds.
        0 attr_valid: u64,
        /// Nanoseconds of the lifetime, below 10^9.
        8 attr_valid_nsec: u32,
        /// Unused.
        12 dummy: u32,
        /// Attributes of the node.
        16 attr: AttrWire,
    }
}
layout! {
    /// FORGET: the kernel drops lookups of the header's node.
    ForgetIn, 8 bytes {
        /// Number of lookups.
        0 nlookup: u64,
    }
}
layout! {
    /// One node of BATCH_FORGET.
    ForgetOne, 16 bytes {
        /// Id of the node.
        0 nodeid: u64,
        /// Number of lookups.
        8 nlookup: u64,
    }
}
layout! {
    /// BATCH_FORGET; as many [`ForgetOne`] follow.
    BatchForgetIn, 8 bytes {
        /// Number of nodes.
        0 count: u32,
        /// Unused.
        4 dummy: u32,
    }
}
layout! {
    /// GETATTR.
    GetattrIn, 16 bytes {
        /// Bit 0: `fh` is valid.
        0 flags: u32,
        /// Unused.
        4 dummy: u32,
        /// File handle, always 0.
        8 fh: u64,
    }
}
layout! {
    /// SETATTR.
    SetattrIn, 88 bytes {
        /// Bits of [`fattr`](super::fattr): fields that are set.
        0 valid: u32,
        /// Unused.
        4 padding: u32,
        /// File handle, always 0.
        8 fh: u64,
        /// New size in bytes.
        16 size: u64,
        /// Owner of locks.
        24 lock_owner: u64,
        /// Access time, seconds since 1970.
        32 atime: i64,
        /// Modification time, seconds since 1970.
        40 mtime: i64,
        /// Change time, seconds since 1970.
        48 ctime: i64,
        /// Access time, nanoseconds below 10^9.
        56 atimensec: u32,
        /// Modification time, nanoseconds below 10^9.
        60 mtimensec: u32,
        /// Change time, nanoseconds below 10^9.
        64 ctimensec: u32,
        /// Permission bits, with the file type.
        68 mode: u32,
        /// Unused.
        72 unused4: u32,
        /// New owner.
        76 uid: u32,
        /// New group.
        80 gid: u32,
        /// Unused.
        84 unused5: u32,
    }
}
layout! {
    /// MKNOD; the name follows.
    MknodIn, 16 bytes {
        /// File type and permission bits.
        0 mode: u32,
        /// Device number, as [`AttrWire::rdev`].
        4 rdev: u32,
        /// The caller's umask, as [`CreateIn::umask`](super::CreateIn::umask).
        8 umask: u32,
        /// Unused.
        12 padding: u32,
    }
}
layout! {
    /// MKDIR; the name follows.
    MkdirIn, 8 bytes {
        /// Permission bits.
        0 mode: u32,
        /// The caller's umask, as [`CreateIn::umask`](super::CreateIn::umask).
        4 umask: u32,
    }
}
layout! {
    /// RENAME; both names follow.
    RenameIn, 8 bytes {
        /// Node id of the new directory.
        0 newdir: u64,
    }
}
layout! {
    /// RENAME2; both names follow.
    Rename2In, 16 bytes {
        /// Node id of the new directory.
        0 newdir: u64,
        /// `RENAME_*`
        8 flags: u32,
        /// Unused.
        12 padding: u32,
    }
}
layout! {
    /// LINK; the new name follows.
    LinkIn, 8 bytes {
        /// Node that gets the name.
        0 oldnodeid: u64,
    }
}
layout! {
    /// OPEN and OPENDIR: `flags` are the caller's.
    OpenIn, 8 bytes {
        /// The caller's open flags (`O_*`).
        0 flags: u32,
        /// Bits of [`open`](super::open).
        4 open_flags: u32,
    }
}
layout! {
    /// CREATE and TMPFILE.
    CreateWire, 16 bytes {
        /// The caller's open flags (`O_*`).
        0 flags: u32,
        /// File type and permission bits.
        4 mode: u32,
        /// The caller's umask, as [`CreateIn::umask`](super::CreateIn::umask).
        8 umask: u32,
        /// Bits of [`open`](super::open).
        12 open_flags: u32,
    }
}
layout! {
    /// Answers OPEN and OPENDIR, and is the second part of CREATE's answer.
    OpenOut, 16 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// Bits of [`fopen`](super::fopen).
        8 open_flags: u32,
        /// For passthrough, which we do not negotiate: 0.
        12 backing_id: u32,
    }
}
layout! {
    /// RELEASE and RELEASEDIR.
    ReleaseIn, 24 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// The caller's open flags (`O_*`).
        8 flags: u32,
        /// Bit 0: flush; bit 1: drop `flock` locks.
        12 release_flags: u32,
        /// Owner of locks.
        16 lock_owner: u64,
    }
}
layout! {
    /// FLUSH.
    FlushIn, 24 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// Unused.
        8 unused: u32,
        /// Unused.
        12 padding: u32,
        /// Owner of locks.
        16 lock_owner: u64,
    }
}
layout! {
    /// READ, READDIR and READDIRPLUS.
    ReadIn, 40 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// Offset in bytes; for directories the [`Dirent::off`] of the last name, or 0.
        8 offset: u64,
        /// Longest data of the answer in bytes.
        16 size: u32,
        /// Bit 1: `lock_owner` is valid.
        20 read_flags: u32,
        /// Owner of locks.
        24 lock_owner: u64,
        /// The caller's open flags (`O_*`).
        32 flags: u32,
        /// Unused.
        36 padding: u32,
    }
}
layout! {
    /// WRITE; the data follows.
    WriteWire, 40 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// Offset in bytes.
        8 offset: u64,
        /// Length of the data in bytes.
        16 size: u32,
        /// Bits of [`write`](super::write).
        20 write_flags: u32,
        /// Owner of locks.
        24 lock_owner: u64,
        /// The caller's open flags (`O_*`); a guess for a write-back from the page cache.
        32 flags: u32,
        /// Unused.
        36 padding: u32,
    }
}
layout! {
    /// Answers WRITE and COPY_FILE_RANGE.
    WriteOut, 8 bytes {
        /// Bytes that were written. The kernel ignores it for a write-back.
        0 size: u32,
        /// Unused.
        4 padding: u32,
    }
}
layout! {
    /// Answers STATFS.
    StatfsOut, 80 bytes {
        /// All blocks of `frsize` bytes.
        0 blocks: u64,
        /// Free blocks.
        8 bfree: u64,
        /// Free blocks for unprivileged users.
        16 bavail: u64,
        /// Existing files and `ffree`.
        24 files: u64,
        /// Files that can still be created.
        32 ffree: u64,
        /// Preferred I/O size in bytes.
        40 bsize: u32,
        /// Longest name in bytes.
        44 namelen: u32,
        /// Unit of the block counts in bytes.
        48 frsize: u32,
        /// Unused.
        52 padding: u32,
        /// Unused.
        56 spare: [u32; 6],
    }
}
layout! {
    /// FSYNC and FSYNCDIR.
    FsyncIn, 16 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// Bits of [`fsync`](super::fsync).
        8 fsync_flags: u32,
        /// Unused.
        12 padding: u32,
    }
}
layout! {
    /// SETXATTR before SETXATTR_EXT.
    SetxattrWire, 8 bytes {
        /// Length of the value in bytes.
        0 size: u32,
        /// Bits of [`xattr`](super::xattr).
        4 flags: u32,
    }
}
layout! {
    /// SETXATTR with SETXATTR_EXT; the name follows, then the value.
    SetxattrExtWire, 16 bytes {
        /// Length of the value in bytes.
        0 size: u32,
        /// Bits of [`xattr`](super::xattr).
        4 flags: u32,
        /// Bits of [`setxattr`](super::setxattr).
        8 setxattr_flags: u32,
        /// Unused.
        12 padding: u32,
    }
}
layout! {
    /// GETXATTR and LISTXATTR; size 0 asks for the length of the answer.
    GetxattrIn, 8 bytes {
        /// Longest answer in bytes.
        0 size: u32,
        /// Unused.
        4 padding: u32,
    }
}
layout! {
    /// Answers GETXATTR and LISTXATTR of size 0.
    GetxattrOut, 8 bytes {
        /// Length of the value or the list in bytes.
        0 size: u32,
        /// Unused.
        4 padding: u32,
    }
}
layout! {
    /// GETLK, SETLK and SETLKW.
    LkIn, 48 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// Owner of the lock.
        8 owner: u64,
        /// First byte.
        16 start: u64,
        /// Last byte.
        24 end: u64,
        /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
        32 kind: u32,
        /// Process id of the owner.
        36 pid: u32,
        /// Bit 0: an `flock` lock.
        40 lk_flags: u32,
        /// Unused.
        44 padding: u32,
    }
}
layout! {
    /// ACCESS.
    AccessIn, 8 bytes {
        /// `R_OK`, `W_OK` and `X_OK`.
        0 mask: u32,
        /// Unused.
        4 padding: u32,
    }
}
layout! {
    /// The part of INIT that every accepted version has.
    InitIn, 16 bytes {
        /// Major version of the kernel.
        0 major: u32,
        /// Minor version of the kernel.
        4 minor: u32,
        /// Upper bound of prefetch in bytes, from the kernel.
        8 max_readahead: u32,
        /// Low 32 bits of [`init`](super::init). With `INIT_EXT` a second word follows.
        12 flags: u32,
    }
}
layout! {
    /// Answers INIT. Newer versions take their fields out of `unused`, which must therefore be zero.
    InitOut, 64 bytes {
        /// Major version, [`MAJOR`](super::MAJOR).
        0 major: u32,
        /// Minor version that both speak.
        4 minor: u32,
        /// Upper bound of prefetch in bytes, from the server.
        8 max_readahead: u32,
        /// Low 32 bits of [`init`](super::init).
        12 flags: u32,
        /// Background requests that may be in flight.
        16 max_background: u16,
        /// Background requests from which the kernel reduces prefetch.
        18 congestion_threshold: u16,
        /// Longest data of a WRITE in bytes.
        20 max_write: u32,
        /// Granularity of timestamps in nanoseconds.
        24 time_gran: u32,
        /// Longest data of a request in pages.
        28 max_pages: u16,
        /// Alignment of DAX mappings, as a power of 2; 0: none.
        30 map_alignment: u16,
        /// High 32 bits of [`init`](super::init).
        32 flags2: u32,
        /// For passthrough, which we do not negotiate: 0.
        36 max_stack_depth: u32,
        /// Seconds after which an unanswered request aborts the connection; 0: never.
        40 request_timeout_s: u16,
        /// Zero.
        42 unused: [u16; 11],
    }
}
layout! {
    /// INTERRUPT.
    InterruptIn, 8 bytes {
        /// The request that a signal interrupted.
        0 unique: u64,
    }
}
layout! {
    /// BMAP.
    BmapIn, 16 bytes {
        /// Number of the block in the file.
        0 block: u64,
        /// Size of a block in bytes.
        8 blocksize: u32,
        /// Unused.
        12 padding: u32,
    }
}
layout! {
    /// IOCTL; `in_size` bytes of data follow.
    IoctlIn, 32 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// `FUSE_IOCTL_*`
        8 flags: u32,
        /// Number of the ioctl.
        12 cmd: u32,
        /// The caller's third argument.
        16 arg: u64,
        /// Length of the data that follows, in bytes.
        24 in_size: u32,
        /// Longest data of the answer in bytes.
        28 out_size: u32,
    }
}
layout! {
    /// Answers IOCTL; data follows.
    IoctlOut, 16 bytes {
        /// What ioctl(2) returns.
        0 result: u32,
        /// `FUSE_IOCTL_*`; we set none.
        4 flags: u32,
        /// For unrestricted ioctls only: 0.
        8 in_iovs: u32,
        /// For unrestricted ioctls only: 0.
        12 out_iovs: u32,
    }
}
layout! {
    /// POLL.
    PollIn, 24 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// The kernel's handle, for a notification.
        8 kh: u64,
        /// Bit 0: a notification is requested.
        16 flags: u32,
        /// `POLL*` events that the caller asks for.
        20 events: u32,
    }
}
layout! {
    /// FALLOCATE.
    FallocateIn, 32 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// First byte of the range.
        8 offset: u64,
        /// Length of the range in bytes.
        16 length: u64,
        /// `FALLOC_FL_*`
        24 mode: u32,
        /// Unused.
        28 padding: u32,
    }
}
layout! {
    /// One name in READDIR's answer; the name follows, then zeros up to 8 bytes.
    Dirent, 24 bytes {
        /// Inode number.
        0 ino: u64,
        /// Offset that continues behind this name.
        8 off: u64,
        /// Length of the name in bytes.
        16 namelen: u32,
        /// `DT_*`
        20 kind: u32,
    }
}
layout! {
    /// LSEEK.
    LseekIn, 24 bytes {
        /// File handle, always 0.
        0 fh: u64,
        /// Offset in bytes from which to search.
        8 offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        16 whence: u32,
        /// Unused.
        20 padding: u32,
    }
}
layout! {
    /// Answers LSEEK.
    LseekOut, 8 bytes {
        /// The offset that was found, in bytes.
        0 offset: u64,
    }
}
layout! {
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64; the header's node is the source.
    CopyFileRangeIn, 56 bytes {
        /// File handle of the source, always 0.
        0 fh_in: u64,
        /// Offset in the source, in bytes.
        8 off_in: u64,
        /// Node id of the target.
        16 nodeid_out: u64,
        /// File handle of the target, always 0.
        24 fh_out: u64,
        /// Offset in the target, in bytes.
        32 off_out: u64,
        /// Bytes to copy.
        40 len: u64,
        /// No flag is defined: 0.
        48 flags: u64,
    }
}
layout! {
    /// Answers COPY_FILE_RANGE_64.
    CopyFileRangeOut, 8 bytes {
        /// Bytes that were copied.
        0 bytes_copied: u64,
    }
}
layout! {
    /// SYNCFS.
    SyncfsIn, 8 bytes {
        /// Unused.
        0 padding: u64,
    }
}
layout! {
    /// STATX.
    StatxIn, 24 bytes {
        /// As [`GetattrIn::flags`].
        0 getattr_flags: u32,
        /// Unused.
        4 reserved: u32,
        /// File handle, always 0.
        8 fh: u64,
        /// The caller's `AT_STATX_*`.
        16 sx_flags: u32,
        /// Bits of [`statx`](super::statx): fields that the caller wants.
        20 sx_mask: u32,
    }
}
layout! {
    /// A timestamp in STATX's answer.
    StatxTime, 16 bytes {
        /// Seconds since 1970.
        0 sec: i64,
        /// Nanoseconds, below 10^9.
        8 nsec: u32,
        /// Unused.
        12 reserved: u32,
    }
}
layout! {
    /// Answers STATX: lifetime, then what statx(2) returns.
    StatxOut, 288 bytes {
        /// Lifetime of the cached attributes in seconds.
        0 attr_valid: u64,
        /// Nanoseconds of the lifetime, below 10^9.
        8 attr_valid_nsec: u32,
        /// Flags of the answer; we set none.
        12 flags: u32,
        /// Unused.
        16 spare: [u64; 2],
        /// Bits of [`statx`](super::statx): fields that are valid.
        32 mask: u32,
        /// Preferred I/O size in bytes.
        36 blksize: u32,
        /// `STATX_ATTR_*` that are set, among those of `attributes_mask`.
        40 attributes: u64,
        /// Number of hard links.
        48 nlink: u32,
        /// Owner.
        52 uid: u32,
        /// Group.
        56 gid: u32,
        /// File type and permission bits.
        60 mode: u16,
        /// Unused.
        62 spare0: u16,
        /// Inode number.
        64 ino: u64,
        /// Size in bytes.
        72 size: u64,
        /// Storage in units of 512 bytes.
        80 blocks: u64,
        /// `STATX_ATTR_*` that are supported; we support none.
        88 attributes_mask: u64,
        /// Access time.
        96 atime: StatxTime,
        /// Birth time.
        112 btime: StatxTime,
        /// Change time.
        128 ctime: StatxTime,
        /// Modification time.
        144 mtime: StatxTime,
        /// Major number of the device that the inode represents.
        160 rdev_major: u32,
        /// Minor number of that device.
        164 rdev_minor: u32,
        /// Major number of the file system, which the kernel knows itself: 0.
        168 dev_major: u32,
        /// Minor number of the file system, which the kernel knows itself: 0.
        172 dev_minor: u32,
        /// Unused.
        176 spare2: [u64; 14],
    }
}
layout! {
    /// Notification: the kernel drops attributes, and data of `len` bytes from `off` (negative: no data).
    NotifyInvalInodeOut, 24 bytes {
        /// Node id.
        0 ino: u64,
        /// First byte, or negative: attributes only.
        8 off: i64,
        /// Length in bytes; 0: to the end.
        16 len: i64,
    }
}
layout! {
    /// Notification: the kernel drops a name, which follows with a zero byte at its end.
    NotifyInvalEntryOut, 16 bytes {
        /// Node id of the directory.
        0 parent: u64,
        /// Length of the name in bytes, without its zero byte.
        8 namelen: u32,
        /// Bit 0: the name only expires, and is looked up again.
        12 flags: u32,
    }
}
