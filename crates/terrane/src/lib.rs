//! Terrane for embedders: the one crate with a promise of stability.
//!
//! A program that wants a file system without a mount calls [`Fs`], whose methods are what system calls do, on a [`Dataset`] of an
//! imported pool. [`check`] verifies such a pool whole. The crates below may change from version to version.
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
//! One that wants names and numbers without files calls [`Zaps`]: see its module, and `examples/file_ids.rs`, which opens a pool too.

pub use terrane_check as check;
pub use terrane_dataset::{
    AccessTime, AclType, DnodeSize, PROPERTIES, Property, PropertyValue, Source, XattrHome,
};
pub use terrane_dataset::{Batch, Work, ZapError, ZapHandle, ZapSpec, Zaps, object, zap, zaps};
pub use terrane_posix::*;
