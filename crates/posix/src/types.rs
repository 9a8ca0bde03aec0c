//! Arguments and results of calls: attributes, credentials, directory entries.

use terrane_dataset::ENTRY_WORDS_MAX;

/// An inode number: its object's number in the data set.
pub type Ino = u64;

/// Nanosecond timestamp; `secs` counts from 1970 and may be negative, `nanos` is below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970, rounded down.
    pub secs: i64,
    /// Nanoseconds after `secs`, 0 to 999,999,999.
    pub nanos: u32,
}

impl Time {
    /// From nanoseconds since 1970.
    pub(crate) fn from_ns(ns: u64) -> Time {
        Time { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
    }
}

/// Credentials of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// User id; new files belong to it.
    pub uid: u32,
    /// Group id; new files get it, except in set-gid directories.
    pub gid: u32,
    /// Permission bits that new files do not get. A default ACL of the directory replaces it.
    pub umask: u32,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// `XATTR_CREATE`: fails if it exists (`EEXIST`).
    pub create: bool,
    /// `XATTR_REPLACE`: fails unless it exists (`ENODATA`).
    pub replace: bool,
    /// The kernel asks to clear the set-gid bit with the access ACL: the caller is not in the file's group.
    pub kill_sgid: bool,
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Distinguishes inodes that had the same number one after the other.
    pub generation: u64,
    /// Permission bits and `S_IFMT`.
    pub mode: u32,
    /// Number of hard links; for a directory its subdirectories + 2.
    pub nlink: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Linux `dev_t` in the 32-bit form FUSE carries; 0 unless it is a device.
    pub rdev: u32,
    /// Bytes; for a directory its entries + 2.
    pub size: u64,
    /// Storage in units of 512 bytes.
    pub blocks: u64,
    /// The next commit does not change `blocks`. False: a part of the inode is not stored yet.
    pub blocks_known: bool,
    /// Preferred I/O size in bytes: the file's record size, at least the property `recordsize`.
    pub blksize: u32,
    /// Last access; see [`AccessTimes`].
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
}

/// A timestamp to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// A time given by the caller.
    At(Time),
}

/// Changes of attributes; `None` keeps a field.
#[derive(Clone, Debug, Default)]
pub struct SetAttr {
    /// Permission bits; file type bits are ignored.
    pub mode: Option<u32>,
    /// New owner's user id.
    pub uid: Option<u32>,
    /// New group id.
    pub gid: Option<u32>,
    /// New size in bytes: truncates, or extends by a hole.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// Only for callers that keep their own clock; otherwise every change sets it to now.
    pub ctime: Option<Time>,
    /// The kernel asks to clear set-id bits, as an unprivileged caller changes the size.
    pub kill_suidgid: bool,
}

/// One name, borrowed during a walk.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name in bytes: no `/`, no NUL, at most [`NAME_MAX`].
    pub name: &'a [u8],
    /// Inode number of its target.
    pub ino: Ino,
    /// `DT_*`
    pub kind: u8,
    /// Offset that continues behind this entry.
    pub next: u64,
}

/// Words beside a directory entry: none, or up to [`EntryWords::MAX`]. What they mean is up to programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryWords {
    /// Words beyond `count` are 0.
    words: [u64; ENTRY_WORDS_MAX],
    count: u8,
}

impl EntryWords {
    /// Most words beside an entry.
    pub const MAX: usize = ENTRY_WORDS_MAX;
    /// An entry without words.
    pub const NONE: EntryWords = EntryWords { words: [0; ENTRY_WORDS_MAX], count: 0 };

    /// `None`: more than [`EntryWords::MAX`].
    pub fn from_slice(words: &[u64]) -> Option<EntryWords> {
        let mut all = EntryWords { count: u8::try_from(words.len()).ok()?, ..EntryWords::NONE };
        all.words.get_mut(..words.len())?.copy_from_slice(words);
        Some(all)
    }

    /// The words in their order.
    pub fn as_slice(&self) -> &[u64] {
        self.words.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Ignores the offset and writes at the end, atomically.
    pub append: bool,
    /// The kernel asks to clear set-id bits, as an unprivileged caller writes.
    pub kill_suidgid: bool,
    /// The kernel writes back its cache, and no program gets the error. So part of the GC reserve may be used.
    pub writes_back: bool,
}

/// How much of a range [`Fs::clone_range`](crate::Fs::clone_range) has copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cloned {
    /// All bytes.
    pub bytes: u64,
    /// Those of records that share their blocks with the source.
    pub shared_bytes: u64,
}

/// Options of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// `O_DIRECT`: no prefetch.
    pub no_prefetch: bool,
    /// `O_NOATIME`: the access time does not change.
    pub keeps_atime: bool,
}

/// Mount options for access times, beside the property `atime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The property decides.
    #[default]
    AsProperty,
    /// They never change.
    Never,
    /// The property decides for files; those of directories never change.
    NeverForDirectories,
    /// Every read updates them.
    Always,
}

/// What `statvfs` shows; blocks are in units of `block_size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Used and available blocks.
    pub blocks: u64,
    /// Blocks that can still be written.
    pub free: u64,
    /// The same for unprivileged users; always equal to `free`.
    pub available: u64,
    /// Existing objects and `files_free`.
    pub files: u64,
    /// Files that the available space could hold.
    pub files_free: u64,
    /// Longest name in bytes: [`NAME_MAX`].
    pub name_max: u32,
}

/// `RENAME_NOREPLACE`
pub const RENAME_NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE`
pub const RENAME_EXCHANGE: u32 = 2;
/// `RENAME_WHITEOUT`
pub const RENAME_WHITEOUT: u32 = 4;

/// `fallocate`: keep the size.
pub const FALLOC_KEEP_SIZE: u32 = 0x01;
/// `fallocate`: make a hole.
pub const FALLOC_PUNCH_HOLE: u32 = 0x02;
/// `fallocate`: make zeros.
pub const FALLOC_ZERO_RANGE: u32 = 0x10;

/// Longest value of an extended attribute in bytes.
pub const XATTR_SIZE_MAX: usize = 64 << 10;
/// Longest list of extended attributes' names in bytes, each with its NUL.
pub const XATTR_LIST_MAX: usize = 64 << 10;

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Most hard links a file, or subdirectories + 2 a directory, may have.
pub const LINK_MAX: u32 = 1 << 30;
/// Largest file size in bytes.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// File type and permission bits of a mode.
pub mod mode {
    /// Mask of the file type; compare it with one of the types.
    pub const S_IFMT: u32 = 0o170_000;
    /// Type: socket.
    pub const S_IFSOCK: u32 = 0o140_000;
    /// Type: symbolic link.
    pub const S_IFLNK: u32 = 0o120_000;
    /// Type: regular file.
    pub const S_IFREG: u32 = 0o100_000;
    /// Type: block device.
    pub const S_IFBLK: u32 = 0o060_000;
    /// Type: directory.
    pub const S_IFDIR: u32 = 0o040_000;
    /// Type: character device.
    pub const S_IFCHR: u32 = 0o020_000;
    /// Type: FIFO.
    pub const S_IFIFO: u32 = 0o010_000;
    /// Set-user-id: programs run with the owner's user id.
    pub const S_ISUID: u32 = 0o4000;
    /// Set-group-id: programs run with the file's group. In such a directory new files get its group.
    pub const S_ISGID: u32 = 0o2000;
    /// Sticky: in such a directory only owners delete or rename.
    pub const S_ISVTX: u32 = 0o1000;
    /// The group may execute.
    pub const S_IXGRP: u32 = 0o010;
    /// All bits that `chmod` may change.
    pub const PERMISSIONS: u32 = 0o7777;
}

/// Where a file's or directory's hint comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HintOrigin {
    /// It was stated for this file or directory.
    File = 0,
    /// It was inherited from the directory.
    Directory = 1,
    /// A rule of the directory matches the file's name.
    Rule = 2,
}

impl HintOrigin {
    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            HintOrigin::File => "file",
            HintOrigin::Directory => "directory",
            HintOrigin::Rule => "rule",
        }
    }
}
