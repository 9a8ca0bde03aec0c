//! The FUSE protocol, ABI 7.45: layouts of requests and replies.
//!
//! Numbers and layouts are facts of the kernel's user interface. They are declared with `layout!`, so that
//! the compiler refuses gaps. FUSE uses the machine's byte order and `layout!` is little-endian:
//! [`crate::mount`] refuses big-endian machines before any byte is exchanged.
//!
//! Invariant: [`Request::parse`] accepts any bytes without a panic. The kernel is trusted not to attack us,
//! but the same codec is meant to serve virtio-fs, where a guest writes the bytes.

mod flags;
mod layouts;
mod request;
#[cfg(test)]
mod tests;

pub use flags::*;
pub use layouts::*;
pub use request::{CreateIn, ForgetList, Header, ParseError, Request, SetXattrIn, WriteIn};

/// Major version of the protocol; there has been no other since 2005.
pub const MAJOR: u32 = 7;
/// The minor version we speak, where the kernel does too.
pub const MINOR: u32 = 45;
/// The oldest minor version we accept (Linux 5.4): before it, replies had other sizes.
pub const MINOR_MIN: u32 = 31;
/// The user id of a request that names no user: no user has this id.
pub const NO_USER: u32 = u32::MAX;
/// The node id of the root directory.
pub const ROOT_ID: u64 = 1;
/// Bytes of a WRITE request beside its data. The kernel refuses to hand requests to a buffer that is too
/// small for them.
pub const REQUEST_OVERHEAD_BYTES: usize = 4096;
/// The shortest read buffer that the kernel accepts.
pub const READ_BUFFER_BYTES_MIN: usize = 8192;

/// What INIT negotiated that changes how later bytes are parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR has its longer form, with flags that matter to ACLs.
    pub setxattr_ext: bool,
}

macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// The operation that a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Opcode { $($(#[$meta])* $name = $number),* }

        impl Opcode {
            /// Every operation we know.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// `None` for a number that we do not know.
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Opcode::$name),)* _ => None }
            }

            /// The number on the wire.
            pub fn number(self) -> u32 {
                match self { $(Opcode::$name => $number),* }
            }
        }
    };
}

opcodes! {
    /// Finds a name and counts a lookup of its node.
    Lookup = 1,
    /// The kernel drops lookups of a node. Has no reply.
    Forget = 2,
    /// Returns attributes.
    Getattr = 3,
    /// Changes attributes.
    Setattr = 4,
    /// Returns the target of a symbolic link.
    Readlink = 5,
    /// Creates a symbolic link.
    Symlink = 6,
    /// Creates a file that is neither directory nor symbolic link.
    Mknod = 8,
    /// Creates a directory.
    Mkdir = 9,
    /// Removes a name of a file.
    Unlink = 10,
    /// Removes an empty directory.
    Rmdir = 11,
    /// Moves a name.
    Rename = 12,
    /// Adds a name.
    Link = 13,
    /// Opens a file.
    Open = 14,
    /// Reads from a file.
    Read = 15,
    /// Writes to a file.
    Write = 16,
    /// Returns space and number of files.
    Statfs = 17,
    /// The last user of an open file has closed it.
    Release = 18,
    /// Commits a file.
    Fsync = 20,
    /// Sets an extended attribute.
    Setxattr = 21,
    /// Returns an extended attribute.
    Getxattr = 22,
    /// Lists the names of extended attributes.
    Listxattr = 23,
    /// Removes an extended attribute.
    Removexattr = 24,
    /// A program closes a descriptor.
    Flush = 25,
    /// Begins the mount; the first request.
    Init = 26,
    /// Opens a directory.
    Opendir = 27,
    /// Lists names of a directory.
    Readdir = 28,
    /// The last user of an open directory has closed it.
    Releasedir = 29,
    /// Commits a directory.
    Fsyncdir = 30,
    /// Tests for a lock.
    Getlk = 31,
    /// Takes or releases a lock, without waiting.
    Setlk = 32,
    /// Takes or releases a lock, and waits for it.
    Setlkw = 33,
    /// Checks a permission.
    Access = 34,
    /// Creates a file and opens it.
    Create = 35,
    /// The caller of an earlier request got a signal.
    Interrupt = 36,
    /// Maps a block of a file to a block of its device.
    Bmap = 37,
    /// The mount ends.
    Destroy = 38,
    /// Runs an ioctl.
    Ioctl = 39,
    /// Waits for events of a file.
    Poll = 40,
    /// Answers a notification that asked for cached data. Has no reply.
    NotifyReply = 41,
    /// The same for several nodes. Has no reply.
    BatchForget = 42,
    /// Reserves, zeroes or frees a range.
    Fallocate = 43,
    /// Lists names with their attributes.
    Readdirplus = 44,
    /// Moves a name, with flags.
    Rename2 = 45,
    /// Searches data or a hole.
    Lseek = 46,
    /// Copies a range of a file. The answer counts in 32 bits.
    CopyFileRange = 47,
    /// Maps a file for DAX, in virtio-fs only.
    SetupMapping = 48,
    /// Ends such a mapping.
    RemoveMapping = 49,
    /// Commits the file system.
    Syncfs = 50,
    /// Creates a file without a name and opens it.
    Tmpfile = 51,
    /// Returns attributes with the birth time.
    Statx = 52,
    /// Copies a range of a file. The answer counts in 64 bits.
    CopyFileRange64 = 53,
}
