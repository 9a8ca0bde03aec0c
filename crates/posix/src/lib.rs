//! What the manual pages promise.
//!
//! The floor below has objects and transactions; the kernel above wants files. [`Fs`] is one mounted data set,
//! and its methods are the requests of a kernel, in the kernel's terms: inode numbers, lookup counts, `errno`.
//!
//! | room | what it is about |
//! |---|---|
//! | `types`, `errno` | what callers hand in and get back |
//! | `fs` | making and opening a file system, attributes, sync |
//! | `inode` | inodes in memory, their locks and their order |
//! | `indexes` | what directories remember of their names, within a bound |
//! | `attr` | attributes as bytes and as a struct |
//! | `claims` | what an operation reserves before it begins |
//! | `dir` | finding, listing and making names |
//! | `ahead` | which directories a walk comes to next |
//! | `file` | bytes, holes, sizes |
//! | `reserved` | room that is kept for what a file does not hold yet |
//! | `link`, `rename` | more names, fewer names, moved names |
//! | `loss` | what a dead server lost and who was told; what the kernel's cache could not write back |
//! | `settle` | what directories give back when they lost names |
//! | `unlinked` | objects without a name, and what a crash left of them |
//! | `acl` | access control lists: judged, kept one with the mode, inherited |
//! | `layouts`, `further` | which attributes inodes have, and those that are no numbers |
//! | `xattr`, `hidden` | extended attributes: in a list, or in objects of their own |
//! | `rewrite`, `rebirth` | records stored otherwise, or elsewhere, while nobody sees a difference |
//! | `hint`, `siblings` | what somebody said about life times, and what those of other files tell |
//! | `widths` | how large new dnodes are |
//! | `inode_flags` | what chattr(1) forbids |
//! | `perm` | what the kernel leaves of permissions |
//!
//! Every change follows one order: hold the inodes (which may read), begin the transaction (which may wait),
//! lock in ascending order, judge again, change, and let go in reverse. So nobody waits for space or for a
//! group while he holds a lock that somebody in the group needs.

mod acl;
mod ahead;
mod attr;
mod claims;
mod dir;
mod errno;
mod file;
mod fs;
mod further;
mod hidden;
mod hint;
mod indexes;
mod inode;
mod inode_flags;
mod layouts;
mod link;
mod loss;
mod perm;
mod rebirth;
mod rename;
mod reserved;
mod rewrite;
mod settle;
mod siblings;
mod types;
mod unlinked;
mod widths;
mod xattr;

// The pool in memory that the tests of the whole crate have: they know this crate by its name.
#[cfg(test)]
extern crate self as terrane_posix;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub use acl::{ACL_ACCESS, ACL_BYTES_MAX, ACL_DEFAULT, Acl};
pub use attr::FLAG_XATTR;
pub use errno::Errno;
pub use fs::{Fs, Ledger};
pub use hint::WRITE_HINT;
pub use inode_flags::InodeFlags;
pub use loss::Loss;
pub use reserved::is_reservation;
pub use rewrite::{
    RecompressStatus, RewriteFigures, RewritePass, RewriteSpec, RewriteState, RewriteStatus, RewriteStep,
};
pub use terrane_dataset::{AclType, Dataset, DatasetError, XattrHome};
pub use terrane_object::Hint;
pub use terrane_object::errors::LossCause;
pub use types::*;
