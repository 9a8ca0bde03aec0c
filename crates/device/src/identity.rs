//! The kind and the identity of the file or device that a path names.

use crate::holders;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The kind of file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file, which may be a sparse image.
    Regular,
    /// A block device: disk, partition, loop device or zoned drive.
    Block,
    /// A directory, never a device: [`FileDevice`](crate::FileDevice) refuses it.
    Directory,
    /// A character device, pipe or socket.
    Other,
}

/// Identifies a file or device, whatever path names it; a copy of an image has another identity. A loop device that
/// shows a whole file has that file's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Device number of the file system that holds the file; for a block device its own number.
    pub device: u64,
    /// 0 for a block device.
    pub inode: u64,
}

impl Identity {
    /// The identity of what the path names. Nothing is opened.
    ///
    /// # Errors
    /// If the path has no metadata.
    pub fn of(path: impl AsRef<Path>) -> io::Result<Identity> {
        Ok(Identity::of_meta(&fs::metadata(path)?))
    }

    /// The identity of an open file.
    ///
    /// # Errors
    /// If the kernel does not return its metadata.
    pub fn of_file(file: &File) -> io::Result<Identity> {
        Ok(Identity::of_meta(&file.metadata()?))
    }

    /// The identity of what the path names, and an open file. That keeps the identity valid whatever happens to the
    /// path. Nothing is locked.
    ///
    /// # Errors
    /// If the path cannot be opened for reading.
    pub fn open(path: impl AsRef<Path>) -> io::Result<(Identity, File)> {
        let (file, meta) = open_for_inspection(path.as_ref())?;
        Ok((Identity::of_meta(&meta), file))
    }

    pub(crate) fn of_meta(meta: &Metadata) -> Identity {
        let mut meta = meta.clone();
        // A loop device can lie on another one. The kernel allows no cycle; the bound is for wrong names.
        for _ in 0..LOOPS_MAX {
            if kind_of(&meta) != PathKind::Block {
                return Identity { device: meta.dev(), inode: meta.ino() };
            }
            let loop_backing =
                holders::loop_backing(meta.rdev()).filter(|loop_backing| loop_backing.is_whole);
            match loop_backing.and_then(|loop_backing| fs::metadata(loop_backing.path).ok()) {
                Some(next) => meta = next,
                None => break,
            }
        }
        Identity { device: meta.rdev(), inode: 0 }
    }
}

/// Maximum depth of loop devices that is followed.
pub(crate) const LOOPS_MAX: usize = 8;

pub(crate) fn kind_of(meta: &Metadata) -> PathKind {
    let kind = meta.file_type();
    if kind.is_file() {
        PathKind::Regular
    } else if kind.is_block_device() {
        PathKind::Block
    } else if kind.is_dir() {
        PathKind::Directory
    } else {
        PathKind::Other
    }
}

/// Opens a path to inspect it. Another file may just have replaced it: opening a pipe must not wait, and a terminal
/// must not become ours.
pub(crate) fn open_for_inspection(path: &Path) -> io::Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let meta = file.metadata()?;
    Ok((file, meta))
}
