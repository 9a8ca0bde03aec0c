//! Parses bytes into a [`Request`].
//!
//! Strings in requests end with a zero byte, structures have a fixed layout, data is as long as a field says.
//! All of it is checked here, once. Code that has a `Request` may trust its shape, though not yet its
//! meaning.

use super::layouts::*;
use super::{Dialect, Opcode, fattr};
use std::fmt;
use terrane_wire::Reader;

/// Contents of more bytes take long to copy.
const SOON_ANSWERED_BYTES_MAX: u32 = 32 << 10;

/// The header of a request: operation, node and caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation's number, also if it is unknown.
    pub opcode: u32,
    /// Identifies the request; its reply carries the same number.
    pub unique: u64,
    /// The node that the request is about.
    pub nodeid: u64,
    /// User id of the caller, or [`NO_USER`](super::NO_USER).
    pub uid: u32,
    /// Group id of the caller.
    pub gid: u32,
    /// 0 if the caller is not visible from our process namespace.
    pub pid: u32,
}

/// Why bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// No header, so no reply can be addressed.
    NoHeader {
        /// Bytes that were received.
        len: usize,
    },
    /// The header announces another length than was received.
    Length {
        /// Bytes that the header announces.
        announced: u32,
        /// Bytes that were received.
        found: usize,
    },
    /// An unknown operation: ENOSYS, and the kernel does not ask again.
    UnknownOpcode(u32),
    /// The body does not hold what its operation needs: EINVAL.
    Body {
        /// The operation.
        opcode: Opcode,
        /// What is wrong with its body.
        what: &'static str,
    },
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::NoHeader { len } => {
                write!(f, "request malformed: expected at least {} bytes, found {len}", InHeader::SIZE)
            }
            ParseError::Length { announced, found } => {
                write!(f, "request malformed: expected {announced} bytes as announced, found {found}")
            }
            ParseError::UnknownOpcode(number) => write!(f, "request refused: unknown operation {number}"),
            ParseError::Body { opcode, what } => write!(f, "request {opcode:?} malformed: {what}"),
        }
    }
}

impl std::error::Error for ParseError {}

/// CREATE's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateIn {
    /// The caller's open flags.
    pub flags: u32,
    /// Includes the file type.
    pub mode: u32,
    /// To be applied to `mode` where [`super::init::DONT_MASK`] was negotiated; else the kernel has applied
    /// it.
    pub umask: u32,
    /// Bits of [`super::open`].
    pub open_flags: u32,
}

/// WRITE's fields and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteIn<'a> {
    /// Offset in bytes.
    pub offset: u64,
    /// Bits of [`super::write`].
    pub write_flags: u32,
    /// The caller's open flags; a guess for a write-back from the page cache.
    pub flags: u32,
    /// As many bytes as the request announced.
    pub data: &'a [u8],
}

/// SETXATTR in both forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattrIn<'a> {
    /// Name of the attribute, with its namespace.
    pub name: &'a [u8],
    /// The new value.
    pub value: &'a [u8],
    /// XATTR_CREATE 1, XATTR_REPLACE 2.
    pub flags: u32,
    /// 0 in the short form.
    pub setxattr_flags: u32,
}

/// BATCH_FORGET's pairs of node and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgetList<'a> {
    raw: &'a [u8],
}

impl ForgetList<'_> {
    /// All pairs, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = ForgetOne> + '_ {
        self.raw.chunks_exact(ForgetOne::SIZE).filter_map(ForgetOne::decode)
    }
}

/// A parsed request. File handles that are never read are left out: ours are always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Finds a name in the header's node, and counts a lookup.
    Lookup {
        /// May be `.` or `..`.
        name: &'a [u8],
    },
    /// The kernel drops lookups of the node. Has no reply.
    Forget {
        /// Number of lookups.
        nlookup: u64,
    },
    /// The same for several nodes. Has no reply.
    BatchForget(ForgetList<'a>),
    /// Returns attributes.
    Getattr,
    /// Changes attributes.
    Setattr(SetattrIn),
    /// Returns the target of a symbolic link.
    Readlink,
    /// Creates a symbolic link in the header's node.
    Symlink {
        /// Name of the link.
        name: &'a [u8],
        /// Its target, which may be empty here.
        target: &'a [u8],
    },
    /// Creates a file that is neither directory nor symbolic link.
    Mknod {
        /// Name of the file.
        name: &'a [u8],
        /// File type and permission bits.
        mode: u32,
        /// As [`CreateIn::umask`].
        umask: u32,
        /// Device number, as [`AttrWire::rdev`](super::AttrWire::rdev).
        rdev: u32,
    },
    /// Creates a directory.
    Mkdir {
        /// Name of the directory.
        name: &'a [u8],
        /// Permission bits.
        mode: u32,
        /// As [`CreateIn::umask`].
        umask: u32,
    },
    /// Removes a name of a file.
    Unlink {
        /// The name, neither `.` nor `..`.
        name: &'a [u8],
    },
    /// Removes an empty directory.
    Rmdir {
        /// The name, neither `.` nor `..`.
        name: &'a [u8],
    },
    /// RENAME (flags 0) and RENAME2.
    Rename {
        /// Old name, in the header's node.
        name: &'a [u8],
        /// Node id of the new directory.
        new_dir: u64,
        /// New name.
        new_name: &'a [u8],
        /// `RENAME_*`
        flags: u32,
    },
    /// Adds a name, in the header's node.
    Link {
        /// Node that gets the name.
        nodeid: u64,
        /// The new name.
        name: &'a [u8],
    },
    /// Opens a file.
    Open(OpenIn),
    /// Reads from a file.
    Read(ReadIn),
    /// Writes to a file.
    Write(WriteIn<'a>),
    /// Returns space and number of files.
    Statfs,
    /// The last user of an open file has closed it.
    Release,
    /// Commits a file.
    Fsync {
        /// `fdatasync`
        data_only: bool,
    },
    /// Sets an extended attribute.
    Setxattr(SetXattrIn<'a>),
    /// Returns an extended attribute.
    Getxattr {
        /// Name of the attribute, with its namespace.
        name: &'a [u8],
        /// Longest value in bytes; 0 asks for its length.
        size: u32,
    },
    /// Lists the names of extended attributes.
    Listxattr {
        /// Longest list in bytes; 0 asks for its length.
        size: u32,
    },
    /// Removes an extended attribute.
    Removexattr {
        /// Name of the attribute, with its namespace.
        name: &'a [u8],
    },
    /// A program closes a descriptor.
    Flush,
    /// Begins the mount.
    Init {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
        /// Upper bound of prefetch in bytes, from the kernel.
        max_readahead: u32,
        /// Bits of [`super::init`] that the kernel offers, from both words.
        flags: u64,
    },
    /// Opens a directory.
    Opendir(OpenIn),
    /// Lists names of a directory.
    Readdir(ReadIn),
    /// Lists names with their attributes. Each node with attributes counts a lookup.
    Readdirplus(ReadIn),
    /// The last user of an open directory has closed it.
    Releasedir,
    /// Commits a directory.
    Fsyncdir {
        /// `fdatasync`
        data_only: bool,
    },
    /// Tests for a lock.
    Getlk(LkIn),
    /// Takes or releases a lock, without waiting.
    Setlk(LkIn),
    /// Takes or releases a lock, and waits for it.
    Setlkw(LkIn),
    /// Checks a permission.
    Access {
        /// `R_OK`, `W_OK` and `X_OK`.
        mask: u32,
    },
    /// Creates a file and opens it.
    Create {
        /// Name of the file.
        name: &'a [u8],
        /// Mode and open flags.
        create: CreateIn,
    },
    /// The caller of an earlier request got a signal.
    Interrupt {
        /// That request.
        unique: u64,
    },
    /// Maps a block of a file to a block of its device.
    Bmap(BmapIn),
    /// The mount ends.
    Destroy,
    /// Runs an ioctl.
    Ioctl {
        /// Its number and sizes.
        ioctl: IoctlIn,
        /// Its input, [`IoctlIn::in_size`](super::IoctlIn::in_size) bytes.
        data: &'a [u8],
    },
    /// Waits for events of a file.
    Poll(PollIn),
    /// Answers a notification that asked for cached data. Has no reply.
    NotifyReply,
    /// Reserves, zeroes or frees a range.
    Fallocate(FallocateIn),
    /// Searches data or a hole.
    Lseek {
        /// Offset in bytes from which to search.
        offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        whence: u32,
    },
    /// Copies a range of a file to another file.
    CopyFileRange {
        /// Source and target ranges; the header's node is the source.
        copy: CopyFileRangeIn,
        /// COPY_FILE_RANGE_64, whose answer counts in 64 bits.
        wide: bool,
    },
    /// Maps a file for DAX, in virtio-fs only.
    SetupMapping,
    /// Ends such a mapping.
    RemoveMapping,
    /// Commits the file system.
    Syncfs,
    /// Creates a file without a name in the header's node, and opens it.
    Tmpfile {
        /// Mode and open flags.
        create: CreateIn,
    },
    /// Returns attributes with the birth time.
    Statx {
        /// The caller's `AT_STATX_*`.
        flags: u32,
        /// Bits of [`super::statx`] that the caller wants.
        mask: u32,
    },
}

impl Header {
    /// Parses the header at the front of `raw`, if the length it announces is the length of `raw`.
    pub fn parse(raw: &[u8]) -> Result<(Header, &[u8]), ParseError> {
        let wire = InHeader::decode(raw).ok_or(ParseError::NoHeader { len: raw.len() })?;
        let length = ParseError::Length { announced: wire.len, found: raw.len() };
        if usize::try_from(wire.len) != Ok(raw.len()) {
            return Err(length);
        }
        // Extensions (security labels, groups) follow the body. We negotiate none; one that comes is cut off.
        let extension_bytes = usize::from(wire.extension_units) * 8;
        let end = raw.len().checked_sub(extension_bytes).ok_or(length)?;
        let body = raw.get(InHeader::SIZE..end).ok_or(length)?;
        let header = Header {
            opcode: wire.opcode,
            unique: wire.unique,
            nodeid: wire.nodeid,
            uid: wire.uid,
            gid: wire.gid,
            pid: wire.pid,
        };
        Ok((header, body))
    }

    /// The kernel sent this request before, and the server that was to answer may be dead.
    pub fn is_resent(&self) -> bool {
        self.unique & super::UNIQUE_RESENT != 0
    }
}

/// A cursor over a body, whose errors name the operation.
struct Body<'a> {
    reader: Reader<'a>,
    opcode: Opcode,
}

macro_rules! fixed {
    ($body:expr, $layout:ident) => {
        $body
            .reader
            .bytes($layout::SIZE)
            .ok()
            .and_then($layout::decode)
            .ok_or_else(|| $body.bad("shorter than its fixed part"))
    };
}

impl<'a> Body<'a> {
    fn bad(&self, what: &'static str) -> ParseError {
        ParseError::Body { opcode: self.opcode, what }
    }

    /// Bytes up to a zero byte, which is consumed too.
    fn string(&mut self) -> Result<&'a [u8], ParseError> {
        let rest = self.reader.clone().rest();
        let len = rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or_else(|| self.bad("a string without a zero byte at its end"))?;
        let text = self.reader.bytes(len).map_err(|_| self.bad("a string without a zero byte at its end"))?;
        self.reader.bytes(1).map_err(|_| self.bad("a string without a zero byte at its end"))?;
        Ok(text)
    }

    /// One component of a path. "." and ".." are allowed, since exported mounts look them up.
    fn name(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.string()?;
        if name.is_empty() || name.contains(&b'/') {
            return Err(self.bad("a name that is empty or a path"));
        }
        Ok(name)
    }

    /// A name to be created or removed, which "." and ".." cannot be.
    fn entry_name(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.name()?;
        if matches!(name, b"." | b"..") {
            return Err(self.bad("the name . or .. for an entry to create or remove"));
        }
        Ok(name)
    }

    fn data(&mut self, size: u32) -> Result<&'a [u8], ParseError> {
        let len = usize::try_from(size).map_err(|_| self.bad("a data size larger than memory"))?;
        self.reader.bytes(len).map_err(|_| self.bad("less data than its size field says"))
    }

    fn create(&mut self) -> Result<CreateIn, ParseError> {
        let wire = fixed!(self, CreateWire)?;
        Ok(CreateIn { flags: wire.flags, mode: wire.mode, umask: wire.umask, open_flags: wire.open_flags })
    }

    fn data_only(&mut self) -> Result<bool, ParseError> {
        Ok(fixed!(self, FsyncIn)?.fsync_flags & super::fsync::DATA_ONLY != 0)
    }

    fn init(&mut self) -> Result<Request<'a>, ParseError> {
        let fixed = fixed!(self, InitIn)?;
        let mut flags = u64::from(fixed.flags);
        if flags & super::init::INIT_EXT != 0 {
            let second =
                self.reader.u32().map_err(|_| self.bad("the announced second word of flags is missing"))?;
            flags |= u64::from(second) << 32;
        }
        Ok(Request::Init {
            major: fixed.major,
            minor: fixed.minor,
            max_readahead: fixed.max_readahead,
            flags,
        })
    }

    fn setxattr(&mut self, dialect: Dialect) -> Result<Request<'a>, ParseError> {
        let (size, flags, setxattr_flags) = if dialect.setxattr_ext {
            let wire = fixed!(self, SetxattrExtWire)?;
            (wire.size, wire.flags, wire.setxattr_flags)
        } else {
            let wire = fixed!(self, SetxattrWire)?;
            (wire.size, wire.flags, 0)
        };
        let name = self.string()?;
        let value = self.data(size)?;
        Ok(Request::Setxattr(SetXattrIn { name, value, flags, setxattr_flags }))
    }
}

impl SetattrIn {
    /// Whether it sets a modification time other than now, and no size: while a size is set the kernel sends
    /// no WRITE.
    pub fn sets_explicit_mtime(&self) -> bool {
        let asked = self.valid & (fattr::MTIME | fattr::MTIME_NOW | fattr::SIZE);
        asked == fattr::MTIME
    }
}

impl<'a> Request<'a> {
    /// Parses a whole message: header and request.
    pub fn parse(raw: &'a [u8], dialect: Dialect) -> Result<(Header, Request<'a>), ParseError> {
        let (header, body) = Header::parse(raw)?;
        Ok((header, Self::parse_body(header.opcode, body, dialect)?))
    }

    /// Parses what follows a header.
    pub fn parse_body(opcode: u32, raw: &'a [u8], dialect: Dialect) -> Result<Request<'a>, ParseError> {
        let opcode = Opcode::from_number(opcode).ok_or(ParseError::UnknownOpcode(opcode))?;
        let mut body = Body { reader: Reader::new(raw), opcode };
        Ok(match opcode {
            Opcode::Lookup => Request::Lookup { name: body.name()? },
            Opcode::Forget => Request::Forget { nlookup: fixed!(body, ForgetIn)?.nlookup },
            Opcode::BatchForget => {
                let count = fixed!(body, BatchForgetIn)?.count;
                let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(ForgetOne::SIZE));
                let bytes = bytes.ok_or_else(|| body.bad("more nodes than memory"))?;
                let raw = body.reader.bytes(bytes).map_err(|_| body.bad("fewer nodes than announced"))?;
                Request::BatchForget(ForgetList { raw })
            }
            // The flags only say whether the handle is valid.
            Opcode::Getattr => fixed!(body, GetattrIn).map(|_| Request::Getattr)?,
            Opcode::Setattr => Request::Setattr(fixed!(body, SetattrIn)?),
            Opcode::Readlink => Request::Readlink,
            Opcode::Symlink => Request::Symlink { name: body.entry_name()?, target: body.string()? },
            Opcode::Mknod => {
                let MknodIn { mode, umask, rdev, .. } = fixed!(body, MknodIn)?;
                Request::Mknod { name: body.entry_name()?, mode, umask, rdev }
            }
            Opcode::Mkdir => {
                let MkdirIn { mode, umask } = fixed!(body, MkdirIn)?;
                Request::Mkdir { name: body.entry_name()?, mode, umask }
            }
            Opcode::Unlink => Request::Unlink { name: body.entry_name()? },
            Opcode::Rmdir => Request::Rmdir { name: body.entry_name()? },
            Opcode::Rename => {
                let new_dir = fixed!(body, RenameIn)?.newdir;
                Request::Rename { name: body.entry_name()?, new_dir, new_name: body.entry_name()?, flags: 0 }
            }
            Opcode::Rename2 => {
                let Rename2In { newdir: new_dir, flags, .. } = fixed!(body, Rename2In)?;
                Request::Rename { name: body.entry_name()?, new_dir, new_name: body.entry_name()?, flags }
            }
            Opcode::Link => {
                let nodeid = fixed!(body, LinkIn)?.oldnodeid;
                Request::Link { nodeid, name: body.entry_name()? }
            }
            Opcode::Open => Request::Open(fixed!(body, OpenIn)?),
            Opcode::Read => Request::Read(fixed!(body, ReadIn)?),
            Opcode::Write => {
                let WriteWire { offset, size, write_flags, flags, .. } = fixed!(body, WriteWire)?;
                Request::Write(WriteIn { offset, write_flags, flags, data: body.data(size)? })
            }
            Opcode::Statfs => Request::Statfs,
            Opcode::Release => fixed!(body, ReleaseIn).map(|_| Request::Release)?,
            Opcode::Fsync => Request::Fsync { data_only: body.data_only()? },
            Opcode::Setxattr => body.setxattr(dialect)?,
            Opcode::Getxattr => {
                let size = fixed!(body, GetxattrIn)?.size;
                Request::Getxattr { name: body.string()?, size }
            }
            Opcode::Listxattr => Request::Listxattr { size: fixed!(body, GetxattrIn)?.size },
            Opcode::Removexattr => Request::Removexattr { name: body.string()? },
            Opcode::Flush => fixed!(body, FlushIn).map(|_| Request::Flush)?,
            Opcode::Init => body.init()?,
            Opcode::Opendir => Request::Opendir(fixed!(body, OpenIn)?),
            Opcode::Readdir => Request::Readdir(fixed!(body, ReadIn)?),
            Opcode::Readdirplus => Request::Readdirplus(fixed!(body, ReadIn)?),
            Opcode::Releasedir => fixed!(body, ReleaseIn).map(|_| Request::Releasedir)?,
            Opcode::Fsyncdir => Request::Fsyncdir { data_only: body.data_only()? },
            Opcode::Getlk => Request::Getlk(fixed!(body, LkIn)?),
            Opcode::Setlk => Request::Setlk(fixed!(body, LkIn)?),
            Opcode::Setlkw => Request::Setlkw(fixed!(body, LkIn)?),
            Opcode::Access => Request::Access { mask: fixed!(body, AccessIn)?.mask },
            Opcode::Create => {
                let create = body.create()?;
                Request::Create { name: body.entry_name()?, create }
            }
            Opcode::Interrupt => Request::Interrupt { unique: fixed!(body, InterruptIn)?.unique },
            Opcode::Bmap => Request::Bmap(fixed!(body, BmapIn)?),
            Opcode::Destroy => Request::Destroy,
            Opcode::Ioctl => {
                let ioctl = fixed!(body, IoctlIn)?;
                Request::Ioctl { ioctl, data: body.data(ioctl.in_size)? }
            }
            Opcode::Poll => Request::Poll(fixed!(body, PollIn)?),
            Opcode::NotifyReply => Request::NotifyReply,
            Opcode::Fallocate => Request::Fallocate(fixed!(body, FallocateIn)?),
            Opcode::Lseek => {
                let LseekIn { offset, whence, .. } = fixed!(body, LseekIn)?;
                Request::Lseek { offset, whence }
            }
            Opcode::CopyFileRange => {
                Request::CopyFileRange { copy: fixed!(body, CopyFileRangeIn)?, wide: false }
            }
            Opcode::CopyFileRange64 => {
                Request::CopyFileRange { copy: fixed!(body, CopyFileRangeIn)?, wide: true }
            }
            Opcode::SetupMapping => Request::SetupMapping,
            Opcode::RemoveMapping => Request::RemoveMapping,
            Opcode::Syncfs => fixed!(body, SyncfsIn).map(|_| Request::Syncfs)?,
            // The name that follows is the kernel's placeholder "/".
            Opcode::Tmpfile => Request::Tmpfile { create: body.create()? },
            Opcode::Statx => {
                let StatxIn { sx_flags, sx_mask, .. } = fixed!(body, StatxIn)?;
                Request::Statx { flags: sx_flags, mask: sx_mask }
            }
        })
    }

    /// The kernel expects no reply, and would refuse one.
    pub fn has_no_reply(&self) -> bool {
        matches!(self, Request::Forget { .. } | Request::BatchForget(_) | Request::NotifyReply)
    }

    /// Whether the answer may wait until the kernel has written back dirty pages of a file, by WRITEs.
    pub fn waits_for_kernel(&self) -> bool {
        match self {
            Request::Lseek { .. } => true,
            Request::Setattr(set) => set.sets_explicit_mtime(),
            _ => false,
        }
    }

    /// Whether no program waits for the answer.
    pub fn is_unawaited(&self) -> bool {
        self.has_no_reply() || matches!(self, Request::Release | Request::Releasedir)
    }

    /// Whether it is usually answered within some microseconds: it has little content, and asks for nothing to be durable.
    pub fn is_soon_answered(&self) -> bool {
        match self {
            Request::Read(read) => read.size <= SOON_ANSWERED_BYTES_MAX,
            Request::Write(write) => write.data.len() <= SOON_ANSWERED_BYTES_MAX as usize,
            Request::Fsync { .. } | Request::Fsyncdir { .. } | Request::Syncfs => false,
            Request::Fallocate(_) | Request::CopyFileRange { .. } | Request::Ioctl { .. } => false,
            Request::Lseek { .. } | Request::Readdir(_) | Request::Readdirplus(_) => false,
            _ => true,
        }
    }

    /// Whether answering may wait for a txg: for its commit, for space in its dirty limit, or for space in
    /// the pool. FORGET is included, because the last one of an unlinked file destroys it.
    pub fn may_wait(&self) -> bool {
        match self {
            Request::Forget { .. } | Request::BatchForget(_) => true,
            Request::Setattr(_) | Request::Symlink { .. } | Request::Mknod { .. } | Request::Mkdir { .. } => {
                true
            }
            Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::Link { .. } => true,
            // Only to truncate, and only where opens are not left to the kernel.
            Request::Open(open) => open.flags & libc::O_TRUNC.cast_unsigned() != 0,
            Request::Write(_) | Request::Fsync { .. } | Request::Fsyncdir { .. } | Request::Syncfs => true,
            Request::Setxattr(_)
            | Request::Removexattr { .. }
            | Request::Create { .. }
            | Request::Ioctl { .. } => true,
            // Waits until the kernel has written back what programs stored in a hole.
            Request::Lseek { .. } => true,
            Request::Fallocate(_) | Request::CopyFileRange { .. } | Request::Tmpfile { .. } => true,
            Request::Lookup { .. }
            | Request::Getattr
            | Request::Readlink
            | Request::Read(_)
            | Request::Statfs => false,
            Request::Release | Request::Getxattr { .. } | Request::Listxattr { .. } | Request::Flush => false,
            Request::Init { .. } | Request::Opendir(_) | Request::Readdir(_) | Request::Readdirplus(_) => {
                false
            }
            Request::Releasedir | Request::Getlk(_) | Request::Setlk(_) | Request::Setlkw(_) => false,
            Request::Access { .. } | Request::Interrupt { .. } | Request::Bmap(_) | Request::Destroy => false,
            Request::Poll(_) | Request::NotifyReply | Request::SetupMapping => false,
            Request::RemoveMapping | Request::Statx { .. } => false,
        }
    }
}
