//! Parses bytes into a [`Request`].
//!
//! Strings in requests end with a zero byte, structures have a fixed layout, data is as long as a field says.
//! All of it is checked here, once. Code that has a `Request` may trust its shape, though not yet its
//! meaning.

use super::layouts::*;
use super::{Dialect, Opcode, fattr};
use std::fmt;
use terrane_wire::Reader;

/// The header of a request: operation, node and caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation's number, also if it is unknown.
    pub opcode: u32,
    /// Identifies the request; its reply carries the same number.
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    /// 0 if the caller is not visible from our process namespace.
    pub pid: u32,
}

/// Why bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// No header, so no reply can be addressed.
    NoHeader { len: usize },
    /// The header announces another length than was received.
    Length { announced: u32, found: usize },
    /// An unknown operation: ENOSYS, and the kernel does not ask again.
    UnknownOpcode(u32),
    /// The body does not hold what its operation needs: EINVAL.
    Body { opcode: Opcode, what: &'static str },
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::NoHeader { len } => {
                write!(f, "request: should be at least {} bytes, found {len}", InHeader::SIZE)
            }
            ParseError::Length { announced, found } => {
                write!(f, "request: length should be {announced} as announced, found {found}")
            }
            ParseError::UnknownOpcode(number) => write!(f, "request: operation {number} is not known"),
            ParseError::Body { opcode, what } => write!(f, "request {opcode:?}: {what}"),
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
    pub offset: u64,
    /// Bits of [`super::write`].
    pub write_flags: u32,
    /// The caller's open flags; a guess for a write-back from the page cache.
    pub flags: u32,
    pub data: &'a [u8],
}

/// SETXATTR in both forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattrIn<'a> {
    pub name: &'a [u8],
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
    pub fn iter(&self) -> impl Iterator<Item = ForgetOne> + '_ {
        self.raw.chunks_exact(ForgetOne::SIZE).filter_map(ForgetOne::decode)
    }
}

/// A parsed request. File handles that are never read are left out: ours are always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget(ForgetList<'a>),
    Getattr,
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        /// As [`CreateIn::umask`].
        umask: u32,
        rdev: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        /// As [`CreateIn::umask`].
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    /// RENAME (flags 0) and RENAME2.
    Rename {
        name: &'a [u8],
        new_dir: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        nodeid: u64,
        name: &'a [u8],
    },
    Open(OpenIn),
    Read(ReadIn),
    Write(WriteIn<'a>),
    Statfs,
    Release,
    Fsync {
        data_only: bool,
    },
    Setxattr(SetXattrIn<'a>),
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Flush,
    /// `flags` has both words.
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Opendir(OpenIn),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Releasedir,
    Fsyncdir {
        data_only: bool,
    },
    Getlk(LkIn),
    Setlk(LkIn),
    Setlkw(LkIn),
    Access {
        mask: u32,
    },
    Create {
        name: &'a [u8],
        create: CreateIn,
    },
    Interrupt {
        unique: u64,
    },
    Bmap(BmapIn),
    Destroy,
    Ioctl {
        ioctl: IoctlIn,
        data: &'a [u8],
    },
    Poll(PollIn),
    NotifyReply,
    Fallocate(FallocateIn),
    Lseek {
        offset: u64,
        whence: u32,
    },
    /// `wide`: COPY_FILE_RANGE_64, whose answer counts in 64 bits.
    CopyFileRange {
        copy: CopyFileRangeIn,
        wide: bool,
    },
    SetupMapping,
    RemoveMapping,
    Syncfs,
    Tmpfile {
        create: CreateIn,
    },
    Statx {
        flags: u32,
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
    pub fn resent(&self) -> bool {
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
        let len =
            rest.iter().position(|byte| *byte == 0).ok_or_else(|| self.bad("a string without its end"))?;
        let text = self.reader.bytes(len).map_err(|_| self.bad("a string without its end"))?;
        self.reader.bytes(1).map_err(|_| self.bad("a string without its end"))?;
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
            return Err(self.bad("a dot name where an entry is changed"));
        }
        Ok(name)
    }

    fn data(&mut self, size: u32) -> Result<&'a [u8], ParseError> {
        let len = usize::try_from(size).map_err(|_| self.bad("more data than memory"))?;
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
                self.reader.u32().map_err(|_| self.bad("an announced second word of flags is missing"))?;
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
    pub fn sets_past_mtime(&self) -> bool {
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
            Request::Setattr(set) => set.sets_past_mtime(),
            _ => false,
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
