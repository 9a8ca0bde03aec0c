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

            pub fn number(self) -> u32 {
                match self { $(Opcode::$name => $number),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    /// Has no reply.
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Readlink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Statfs = 17,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Readdir = 28,
    Releasedir = 29,
    Fsyncdir = 30,
    Getlk = 31,
    Setlk = 32,
    Setlkw = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    /// Has no reply.
    BatchForget = 42,
    Fallocate = 43,
    Readdirplus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SetupMapping = 48,
    RemoveMapping = 49,
    Syncfs = 50,
    Tmpfile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}
