//! Terrane for embedders: the one crate with a promise of stability.
//!
//! A program that wants a file system without a mount calls [`Fs`], whose methods correspond to system calls,
//! on a [`Dataset`] of an imported pool. [`check`] verifies such a pool completely.
//!
//! # What stays stable
//!
//! The names that this crate exports are listed one by one. For each of them, within one major version:
//!
//! * the name stays, and code that uses its documented functions, fields and constants continues to compile;
//! * the documented results and errors of a function stay valid; in particular, data that `fsync` or `commit`
//!   has acknowledged survives a crash;
//! * a pool that one version has written can be imported by every later one.
//!
//! Enums may gain variants and option structs may gain fields: match with a wildcard, and fill structs up
//! from their `default()`. Before version 1.0 a minor version may break the first promise, and the change log
//! says where. Everything else may change with any version: the crates below, and the types that can be
//! reached only through them. Use them at your own risk.
//!
//! ```
//! use std::sync::Arc;
//! use terrane::{Cred, Dataset, Fs, WriteFlags};
//!
//! fn greet(dataset: Arc<Dataset>) -> Result<(), Box<dyn std::error::Error>> {
//!     let fs = Fs::open(dataset)?;
//!     let file = fs.create(fs.root(), b"hello", 0o644, &Cred { uid: 0, gid: 0, umask: 0 })?;
//!     fs.write(file.ino, 0, b"world", WriteFlags::default())?;
//!     fs.fsync(file.ino, false)?;
//!     fs.forget(file.ino, 1);
//!     Ok(())
//! }
//! ```
//!
//! A program that wants names and numbers without files calls [`Zaps`]: see its module, and
//! `examples/file_ids.rs`, which opens a pool too. A metadata server that has files as well keeps its
//! identifiers beside their names ([`Fs::with_entry_words`]), as `examples/directory_ids.rs` does.

#![deny(missing_docs)]

pub use terrane_check::{Counts, Finding, Progress, Report, Stage, check};
pub use terrane_dataset::{
    AccessTime, AclType, Batch, BatchPlan, Dataset, DatasetError, DnodeSize, PROPERTIES, Property,
    PropertyValue, Source, XattrPlacement, ZapError, ZapHandle, ZapSpec, Zaps,
};
pub use terrane_device::{Device, DeviceError, FileDevice, OpenMode, SimConfig, SimDevice, ZonedDevice};
pub use terrane_object::ObjectSets;
pub use terrane_pool::{CreateOptions, ImportOptions, Pool};
pub use terrane_posix::{
    ACL_ACCESS, ACL_BYTES_MAX, ACL_DEFAULT, AccessTimes, Acl, Attr, Cred, DirEntry, EntryWords, Errno,
    FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, FILE_SIZE_MAX, Fs, Ino, InodeFlags, Job, JobStep,
    LINK_MAX, NAME_MAX, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, ReadOptions, Recompress,
    RecompressStatus, Rewrite, RewriteFigures, RewritePass, RewriteRelocated, RewriteSpec, RewriteState,
    RewriteStatus, SYMLINK_MAX, SetAttr, SetTime, SetXattr, ShrinkDirs, StatFs, Time, WRITE_HINT,
    WithEntryWords, WriteFlags, XATTR_LIST_MAX, XATTR_SIZE_MAX, mode,
};
pub use terrane_space::policy::Hint;
pub use terrane_store::PoolError;
pub use terrane_store::env::SystemEnv;
pub use terrane_wire::ObjectId;
pub use terrane_zap::{Cursor, Entry, Key, KeyRef, Value, ValueRef};
