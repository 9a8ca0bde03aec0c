//! What a path names, and which file or device that is whatever path leads there.

use crate::holders;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    Regular,
    Block,
    Directory,
    /// A character device, pipe or socket.
    Other,
}

/// Which file or device something is, whatever path leads there: a copy of an image is another one. A loop device that shows all of a
/// file is that file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The number of the file system that the file is on; of a block device its own number.
    pub device: u64,
    /// 0 for a block device.
    pub inode: u64,
}

impl Identity {
    /// Of what is at the path. Nothing is opened.
    ///
    /// # Errors
    /// When the path cannot be looked at.
    pub fn of(path: impl AsRef<Path>) -> io::Result<Identity> {
        Ok(Identity::of_meta(&fs::metadata(path)?))
    }

    /// Of what is open.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn of_file(file: &File) -> io::Result<Identity> {
        Ok(Identity::of_meta(&file.metadata()?))
    }

    /// With an open file, which keeps it what it is whatever becomes of the path. Nothing is locked.
    ///
    /// # Errors
    /// When the path cannot be opened for reading.
    pub fn hold(path: impl AsRef<Path>) -> io::Result<(Identity, File)> {
        let (file, meta) = open_to_look(path.as_ref())?;
        Ok((Identity::of_meta(&meta), file))
    }

    pub(crate) fn of_meta(meta: &Metadata) -> Identity {
        let mut meta = meta.clone();
        // A loop device can stand on another one; the kernel allows no cycle, and the bound is for names that lie.
        for _ in 0..LOOPS_MAX {
            if kind_of(&meta) != PathKind::Block {
                return Identity { device: meta.dev(), inode: meta.ino() };
            }
            let below = holders::below_loop(meta.rdev()).filter(|below| below.is_whole);
            match below.and_then(|below| fs::metadata(below.path).ok()) {
                Some(next) => meta = next,
                None => break,
            }
        }
        Identity { device: meta.rdev(), inode: 0 }
    }
}

/// The most loop devices that are looked through.
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

/// What is there may have been put in another's place a moment ago: to open a pipe does not wait, and a terminal does not become ours.
pub(crate) fn open_to_look(path: &Path) -> io::Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let meta = file.metadata()?;
    Ok((file, meta))
}
