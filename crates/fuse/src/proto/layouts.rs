//! Structures of requests (`..In`) and replies (`..Out`), with the kernel's offsets.

use terrane_wire::layout;

layout! {
    /// Header of every request. `len` counts it, what follows, and `extension_units` of 8 bytes at the end.
    InHeader, 40 bytes {
        0 len: u32,
        4 opcode: u32,
        8 unique: u64,
        16 nodeid: u64,
        24 uid: u32,
        28 gid: u32,
        32 pid: u32,
        36 extension_units: u16,
        38 padding: u16,
    }
}
layout! {
    /// Header of every reply. `error` is 0 or a negative errno.
    OutHeader, 16 bytes {
        0 len: u32,
        4 error: u32,
        8 unique: u64,
    }
}
layout! {
    /// What `stat` shows, without the birth time.
    AttrWire, 88 bytes {
        0 ino: u64,
        8 size: u64,
        16 blocks: u64,
        24 atime: i64,
        32 mtime: i64,
        40 ctime: i64,
        48 atimensec: u32,
        52 mtimensec: u32,
        56 ctimensec: u32,
        60 mode: u32,
        64 nlink: u32,
        68 uid: u32,
        72 gid: u32,
        76 rdev: u32,
        80 blksize: u32,
        84 flags: u32,
    }
}
layout! {
    /// Answers LOOKUP and every request that creates a name. `nodeid` 0: the name does not exist, and that
    /// may be cached.
    EntryOut, 128 bytes {
        0 nodeid: u64,
        8 generation: u64,
        16 entry_valid: u64,
        24 attr_valid: u64,
        32 entry_valid_nsec: u32,
        36 attr_valid_nsec: u32,
        40 attr: AttrWire,
    }
}
layout! {
    /// Answers GETATTR and SETATTR.
    AttrOut, 104 bytes {
        0 attr_valid: u64,
        8 attr_valid_nsec: u32,
        12 dummy: u32,
        16 attr: AttrWire,
    }
}
layout! {
    ForgetIn, 8 bytes { 0 nlookup: u64 }
}
layout! {
    ForgetOne, 16 bytes { 0 nodeid: u64, 8 nlookup: u64 }
}
layout! {
    BatchForgetIn, 8 bytes { 0 count: u32, 4 dummy: u32 }
}
layout! {
    GetattrIn, 16 bytes { 0 flags: u32, 4 dummy: u32, 8 fh: u64 }
}
layout! {
    SetattrIn, 88 bytes {
        0 valid: u32,
        4 padding: u32,
        8 fh: u64,
        16 size: u64,
        24 lock_owner: u64,
        32 atime: i64,
        40 mtime: i64,
        48 ctime: i64,
        56 atimensec: u32,
        60 mtimensec: u32,
        64 ctimensec: u32,
        68 mode: u32,
        72 unused4: u32,
        76 uid: u32,
        80 gid: u32,
        84 unused5: u32,
    }
}
layout! {
    MknodIn, 16 bytes { 0 mode: u32, 4 rdev: u32, 8 umask: u32, 12 padding: u32 }
}
layout! {
    MkdirIn, 8 bytes { 0 mode: u32, 4 umask: u32 }
}
layout! {
    RenameIn, 8 bytes { 0 newdir: u64 }
}
layout! {
    Rename2In, 16 bytes { 0 newdir: u64, 8 flags: u32, 12 padding: u32 }
}
layout! {
    LinkIn, 8 bytes { 0 oldnodeid: u64 }
}
layout! {
    /// OPEN and OPENDIR: `flags` are the caller's.
    OpenIn, 8 bytes { 0 flags: u32, 4 open_flags: u32 }
}
layout! {
    /// CREATE and TMPFILE.
    CreateWire, 16 bytes { 0 flags: u32, 4 mode: u32, 8 umask: u32, 12 open_flags: u32 }
}
layout! {
    OpenOut, 16 bytes { 0 fh: u64, 8 open_flags: u32, 12 backing_id: u32 }
}
layout! {
    ReleaseIn, 24 bytes { 0 fh: u64, 8 flags: u32, 12 release_flags: u32, 16 lock_owner: u64 }
}
layout! {
    FlushIn, 24 bytes { 0 fh: u64, 8 unused: u32, 12 padding: u32, 16 lock_owner: u64 }
}
layout! {
    /// READ, READDIR and READDIRPLUS.
    ReadIn, 40 bytes {
        0 fh: u64,
        8 offset: u64,
        16 size: u32,
        20 read_flags: u32,
        24 lock_owner: u64,
        32 flags: u32,
        36 padding: u32,
    }
}
layout! {
    WriteWire, 40 bytes {
        0 fh: u64,
        8 offset: u64,
        16 size: u32,
        20 write_flags: u32,
        24 lock_owner: u64,
        32 flags: u32,
        36 padding: u32,
    }
}
layout! {
    /// Answers WRITE and COPY_FILE_RANGE.
    WriteOut, 8 bytes { 0 size: u32, 4 padding: u32 }
}
layout! {
    StatfsOut, 80 bytes {
        0 blocks: u64,
        8 bfree: u64,
        16 bavail: u64,
        24 files: u64,
        32 ffree: u64,
        40 bsize: u32,
        44 namelen: u32,
        48 frsize: u32,
        52 padding: u32,
        56 spare: [u32; 6],
    }
}
layout! {
    FsyncIn, 16 bytes { 0 fh: u64, 8 fsync_flags: u32, 12 padding: u32 }
}
layout! {
    /// SETXATTR before SETXATTR_EXT.
    SetxattrWire, 8 bytes { 0 size: u32, 4 flags: u32 }
}
layout! {
    SetxattrExtWire, 16 bytes { 0 size: u32, 4 flags: u32, 8 setxattr_flags: u32, 12 padding: u32 }
}
layout! {
    /// GETXATTR and LISTXATTR; size 0 asks for the length of the answer.
    GetxattrIn, 8 bytes { 0 size: u32, 4 padding: u32 }
}
layout! {
    GetxattrOut, 8 bytes { 0 size: u32, 4 padding: u32 }
}
layout! {
    LkIn, 48 bytes {
        0 fh: u64,
        8 owner: u64,
        16 start: u64,
        24 end: u64,
        32 kind: u32,
        36 pid: u32,
        40 lk_flags: u32,
        44 padding: u32,
    }
}
layout! {
    AccessIn, 8 bytes { 0 mask: u32, 4 padding: u32 }
}
layout! {
    /// The part of INIT that every accepted version has.
    InitIn, 16 bytes { 0 major: u32, 4 minor: u32, 8 max_readahead: u32, 12 flags: u32 }
}
layout! {
    /// Answers INIT. Newer versions take their fields out of `unused`, which must therefore be zero.
    InitOut, 64 bytes {
        0 major: u32,
        4 minor: u32,
        8 max_readahead: u32,
        12 flags: u32,
        16 max_background: u16,
        18 congestion_threshold: u16,
        20 max_write: u32,
        24 time_gran: u32,
        28 max_pages: u16,
        30 map_alignment: u16,
        32 flags2: u32,
        36 max_stack_depth: u32,
        40 request_timeout_s: u16,
        42 unused: [u16; 11],
    }
}
layout! {
    InterruptIn, 8 bytes { 0 unique: u64 }
}
layout! {
    BmapIn, 16 bytes { 0 block: u64, 8 blocksize: u32, 12 padding: u32 }
}
layout! {
    IoctlIn, 32 bytes { 0 fh: u64, 8 flags: u32, 12 cmd: u32, 16 arg: u64, 24 in_size: u32, 28 out_size: u32 }
}
layout! {
    /// Answers IOCTL; data follows.
    IoctlOut, 16 bytes { 0 result: u32, 4 flags: u32, 8 in_iovs: u32, 12 out_iovs: u32 }
}
layout! {
    PollIn, 24 bytes { 0 fh: u64, 8 kh: u64, 16 flags: u32, 20 events: u32 }
}
layout! {
    FallocateIn, 32 bytes { 0 fh: u64, 8 offset: u64, 16 length: u64, 24 mode: u32, 28 padding: u32 }
}
layout! {
    /// One name in READDIR's answer; the name follows, then zeros up to 8 bytes.
    Dirent, 24 bytes { 0 ino: u64, 8 off: u64, 16 namelen: u32, 20 kind: u32 }
}
layout! {
    LseekIn, 24 bytes { 0 fh: u64, 8 offset: u64, 16 whence: u32, 20 padding: u32 }
}
layout! {
    LseekOut, 8 bytes { 0 offset: u64 }
}
layout! {
    CopyFileRangeIn, 56 bytes {
        0 fh_in: u64,
        8 off_in: u64,
        16 nodeid_out: u64,
        24 fh_out: u64,
        32 off_out: u64,
        40 len: u64,
        48 flags: u64,
    }
}
layout! {
    /// Answers COPY_FILE_RANGE_64.
    CopyFileRangeOut, 8 bytes { 0 bytes_copied: u64 }
}
layout! {
    SyncfsIn, 8 bytes { 0 padding: u64 }
}
layout! {
    StatxIn, 24 bytes { 0 getattr_flags: u32, 4 reserved: u32, 8 fh: u64, 16 sx_flags: u32, 20 sx_mask: u32 }
}
layout! {
    StatxTime, 16 bytes { 0 sec: i64, 8 nsec: u32, 12 reserved: u32 }
}
layout! {
    /// Answers STATX: lifetime, then what statx(2) returns.
    StatxOut, 288 bytes {
        0 attr_valid: u64,
        8 attr_valid_nsec: u32,
        12 flags: u32,
        16 spare: [u64; 2],
        32 mask: u32,
        36 blksize: u32,
        40 attributes: u64,
        48 nlink: u32,
        52 uid: u32,
        56 gid: u32,
        60 mode: u16,
        62 spare0: u16,
        64 ino: u64,
        72 size: u64,
        80 blocks: u64,
        88 attributes_mask: u64,
        96 atime: StatxTime,
        112 btime: StatxTime,
        128 ctime: StatxTime,
        144 mtime: StatxTime,
        160 rdev_major: u32,
        164 rdev_minor: u32,
        168 dev_major: u32,
        172 dev_minor: u32,
        176 spare2: [u64; 14],
    }
}
layout! {
    /// Notification: the kernel drops attributes, and data of `len` bytes from `off` (negative: no data).
    NotifyInvalInodeOut, 24 bytes { 0 ino: u64, 8 off: i64, 16 len: i64 }
}
layout! {
    /// Notification: the kernel drops a name, which follows with a zero byte at its end.
    NotifyInvalEntryOut, 16 bytes { 0 parent: u64, 8 namelen: u32, 12 flags: u32 }
}
