//! The user of this process.

use std::io;
use std::os::unix::fs::MetadataExt;

/// Effective user and group of a process.
pub struct Who {
    pub uid: u32,
    pub gid: u32,
}

/// This process: the owner of its entry in `/proc`.
pub fn who() -> io::Result<Who> {
    let own = std::fs::metadata("/proc/self")?;
    Ok(Who { uid: own.uid(), gid: own.gid() })
}
