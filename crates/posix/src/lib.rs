//! What the manual pages promise.
//!
//! The floor below has objects and transactions; the kernel above wants files. [`Fs`] is one mounted data set,
//! and its methods are the requests of a kernel, in the kernel's terms: inode numbers, lookup counts, `errno`.
//!
//! What is kept in memory lies below [`Fs`], and its operations above:
//!
//! | module | what it is about |
//! |---|---|
//! | `types`, `errno` | what callers hand in and get back |
//! | `attr`, `layouts` | attributes as bytes and as a struct, and which inodes have |
//! | `acl`, `perm` | access control lists as values; what the kernel leaves of permissions |
//! | `claims` | what an operation reserves before it begins |
//! | `inode` | inodes in memory, their locks and their order; the names of a directory |
//! | `indexes` | what directories remember of their names, within a bound |
//! | `ahead`, `widths` | which directories a walk comes to next; how large new dnodes are |
//! | `master` | words in the master ZAP |
//! | `delete_queue`, `reservations`, `losses` | objects without a name; room kept for files; what a dead server lost |
//! | `jobs` | work that goes on beside requests, as it is remembered |
//! | **`fs`** | all that together: one mounted data set |
//! | `begin`, `hold` | how operations join a group, and hold inodes |
//! | `operation` | changes as values, and how they are carried out |
//! | `mount`, `sync` | made, opened, ended; durable |
//! | `setattr`, `further` | attributes shown and changed, and those that are no numbers |
//! | `dir`, `make`, `link`, `rename` | finding and listing names; new files; more, fewer, moved names |
//! | `file`, `write`, `reserved` | bytes read, written and cut; room that `fallocate` keeps |
//! | `xattr`, `hidden`, `acl_files` | extended attributes: in a list, or in objects of their own; access control lists of files |
//! | `hint`, `siblings` | what users said about life times, and what those of other files tell |
//! | `inode_flags` | what chattr(1) forbids |
//! | `unlinked`, `loss` | objects without a name destroyed; who is told of losses |
//! | `rewrite` | records stored otherwise or elsewhere, and directories made smaller, while programs see no difference |
//!
//! Every change follows one order: hold the inodes (which may read), begin the transaction (which may wait),
//! lock in ascending order, judge again, change, and let go in reverse. So nobody waits for space or for a
//! group while he holds a lock that somebody in the group needs.

mod acl;
mod acl_files;
mod ahead;
mod attr;
mod begin;
mod claims;
mod delete_queue;
mod dir;
mod errno;
mod file;
mod fs;
mod further;
mod hidden;
mod hint;
mod hold;
mod indexes;
mod inode;
mod inode_flags;
mod jobs;
mod layouts;
mod link;
mod loss;
mod losses;
mod make;
mod master;
mod mount;
mod operation;
mod perm;
mod rename;
mod reservations;
mod reserved;
mod rewrite;
mod setattr;
mod siblings;
mod sync;
mod types;
mod unlinked;
mod widths;
mod write;
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
pub use jobs::{
    Job, JobStep, RecompressStatus, RewriteFigures, RewritePass, RewriteSpec, RewriteState, RewriteStatus,
};
pub use losses::Loss;
pub use reservations::is_reservation;
pub use reserved::Promised;
pub use rewrite::{Rebirth, Recompress, Rewrite, Settle};
pub use types::*;
