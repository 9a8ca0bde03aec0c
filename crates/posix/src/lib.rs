//! POSIX semantics over object sets: inodes, names, permissions, extended attributes, ACLs.
//!
//! The layer below offers objects and transactions; the kernel above wants files. [`Fs`] is one mounted data
//! set. Its methods are the requests of a kernel, in the kernel's terms: inode numbers, lookup counts, `errno`.
//!
//! State in memory lies below [`Fs`] in this table, operations above it:
//!
//! | module | what it is about |
//! |---|---|
//! | `types`, `errno` | arguments and results of calls |
//! | `attr`, `layouts` | attributes as bytes and as a struct, and their layouts |
//! | `acl`, `perm` | access control lists as values; the permission checks that the kernel leaves to us |
//! | `claims` | what an operation reserves before it begins |
//! | `inode` | inodes in memory, their locks and lock order; the names of a directory |
//! | `indexes` | a memory bound for the name indexes of directories |
//! | `dir_prefetch`, `dnode_sizing` | prefetch of directories in tree walks; sizes of new dnodes |
//! | `master` | entries of the master ZAP |
//! | `delete_queue`, `reservations`, `losses` | unlinked objects; space reserved for files; what a dead server lost |
//! | `jobs` | background work, as it is stored |
//! | **`fs`** | all of the above in one mounted data set |
//! | `begin`, `hold` | how operations join a txg, and hold inodes |
//! | `operation` | changes as values, and how they are carried out |
//! | `mount`, `sync` | create, mount and unmount; durability |
//! | `setattr`, `spill_attrs` | attributes read and changed; attributes that are not numbers |
//! | `dir`, `create`, `link`, `rename` | finding and listing names; new files; adding, removing and moving names |
//! | `entry_words` | words of programs beside names |
//! | `file`, `write`, `reserve` | read, write, truncate; space that `fallocate` reserves |
//! | `clone` | copies that share blocks |
//! | `xattr`, `xattr_dir`, `acl_files` | extended attributes, in a list or in objects of their own; ACLs of files |
//! | `hint`, `hint_rules`, `lifetimes` | lifetime hints given by users, for a file or by its name; lifetimes inferred from other files |
//! | `inode_flags` | the flags of chattr(1) |
//! | `unlinked`, `loss` | destroying unlinked objects; reporting losses to callers |
//! | `rewrite` | online rewrite of records and shrinking of directories, invisible to programs |
//!
//! Every change follows one order. It holds the inodes (which may read) and begins the transaction (which may
//! wait). It locks the inodes in ascending order, checks again and changes them. Then it releases in reverse
//! order. So no thread waits for space or for a txg while it holds a lock that a thread in that txg needs.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]
#![deny(missing_docs)]

mod acl;
mod acl_files;
mod attr;
mod begin;
mod claims;
mod clone;
mod create;
mod delete_queue;
mod diff;
mod dir;
mod dir_prefetch;
mod dnode_sizing;
mod entry_words;
mod errno;
mod file;
mod fs;
mod hint;
mod hint_rules;
mod hold;
mod indexes;
mod inode;
mod inode_flags;
mod intents;
mod jobs;
mod layouts;
mod lifetimes;
mod link;
mod loss;
mod losses;
mod master;
mod mount;
mod new_file;
mod operation;
mod perm;
mod project;
mod record;
mod rename;
mod replay;
mod replay_pool;
mod reservations;
mod reserve;
mod rewrite;
mod setattr;
mod shown;
mod spill_attrs;
mod sync;
mod types;
mod undone;
mod unlinked;
mod write;
mod xattr;
mod xattr_dir;

// The in-memory pool of the integration tests, shared with unit tests. It names this crate from outside.
#[cfg(test)]
extern crate self as terrane_posix;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub use acl::{ACL_ACCESS, ACL_BYTES_MAX, ACL_DEFAULT, Acl};
pub use attr::FLAG_XATTR;
pub use diff::{Change, ChangeKind, diff};
pub use entry_words::WithEntryWords;
pub use errno::Errno;
pub use fs::{Fs, Ledger};
pub use hint::WRITE_HINT;
pub use hint_rules::{HINT_RULES, HINT_RULES_BYTES_MAX, HINT_RULES_MAX, HintRule, HintRules, HintRulesError};
pub use inode_flags::InodeFlags;
pub use intents::ChangeKeeper;
pub use jobs::{
    Job, JobStep, RecompressStatus, RewriteFigures, RewritePass, RewriteSpec, RewriteState, RewriteStatus,
};
pub use losses::Loss;
pub use replay::{ReplayCause, ReplayError, Replayed, inodes_of_record, rewritten_record};
pub use replay_pool::{ReplayFailure, ReplayGuide, WholeReplay, replay_pool};
pub use reservations::is_reservation;
pub use reserve::ReservedBytes;
pub use rewrite::{Recompress, Rewrite, RewriteRelocated, ShrinkDirs};
pub use shown::ShownInodes;
pub use sync::PendingSync;
pub use types::*;
pub use undone::{Undone, find_undone};
