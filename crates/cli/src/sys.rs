//! The user of this process.

use std::io;
use std::os::unix::fs::MetadataExt;

/// Effective user and group of a process.
pub struct ProcessUser {
    pub uid: u32,
    pub gid: u32,
}

/// This process: the owner of its entry in `/proc`.
pub fn process_user() -> io::Result<ProcessUser> {
    let own = std::fs::metadata("/proc/self")?;
    Ok(ProcessUser { uid: own.uid(), gid: own.gid() })
}
