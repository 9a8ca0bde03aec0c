//! A file that is about to be created, as a value.

use crate::errno::Errno;
use crate::types::{Cred, SYMLINK_MAX, mode};

/// A file to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewFile<'a> {
    /// File type and permissions.
    pub bits: u32,
    /// Device number; `None` unless it is a block or character device.
    pub rdev: Option<u32>,
    /// Target of a symlink; `None` for other types.
    pub target: Option<&'a [u8]>,
    /// Owner, group and umask of the new file.
    pub cred: Cred,
}

impl<'a> NewFile<'a> {
    pub fn regular(permissions: u32, cred: &Cred) -> Self {
        let bits = mode::S_IFREG | permissions & mode::PERMISSIONS;
        NewFile { bits, rdev: None, target: None, cred: *cred }
    }

    pub fn directory(permissions: u32, cred: &Cred) -> Self {
        let bits = mode::S_IFDIR | permissions & mode::PERMISSIONS;
        NewFile { bits, rdev: None, target: None, cred: *cred }
    }

    /// The whiteout that a rename leaves.
    pub fn whiteout(cred: Cred) -> Self {
        NewFile { bits: mode::S_IFCHR, rdev: Some(0), target: None, cred }
    }

    /// Any file except a directory or a symlink.
    pub fn node(bits: u32, rdev: u32, cred: &Cred) -> Result<Self, Errno> {
        // No type means a regular file, as in mknod(2).
        let file_type = if bits & mode::S_IFMT == 0 { mode::S_IFREG } else { bits & mode::S_IFMT };
        let rdev = match file_type {
            mode::S_IFBLK | mode::S_IFCHR => Some(rdev),
            mode::S_IFREG | mode::S_IFIFO | mode::S_IFSOCK => None,
            mode::S_IFDIR => return Err(Errno::EPERM),
            _ => return Err(Errno::EINVAL),
        };
        Ok(NewFile { bits: file_type | bits & mode::PERMISSIONS, rdev, target: None, cred: *cred })
    }

    pub fn symlink(target: &'a [u8], cred: &Cred) -> Result<Self, Errno> {
        match target.len() {
            0 => return Err(Errno::ENOENT),
            len if len > SYMLINK_MAX => return Err(Errno::ENAMETOOLONG),
            _ if target.contains(&0) => return Err(Errno::EINVAL),
            _ => {}
        }
        Ok(NewFile { bits: mode::S_IFLNK | 0o777, rdev: None, target: Some(target), cred: *cred })
    }

    pub fn is_dir(&self) -> bool {
        self.bits & mode::S_IFMT == mode::S_IFDIR
    }

    /// Bytes of a symlink's target.
    pub fn target_bytes(&self) -> u64 {
        self.target.map_or(0, <[u8]>::len) as u64
    }
}
