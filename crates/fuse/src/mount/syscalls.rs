//! The system calls for mounting that the standard library does not have.

#![expect(unsafe_code, reason = "rustix has no wrapper for mount_setattr")]

use crate::socket;
use rustix::fs::CWD;
use rustix::io::retry_on_intr;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsmount,
    fsopen, move_mount, open_tree,
};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// All per-mount flags.
const MOUNT_ATTRS: u64 = libc::MOUNT_ATTR_RDONLY
    | libc::MOUNT_ATTR_NOSUID
    | libc::MOUNT_ATTR_NODEV
    | libc::MOUNT_ATTR_NOEXEC
    | libc::MOUNT_ATTR__ATIME
    | libc::MOUNT_ATTR_NODIRATIME
    | libc::MOUNT_ATTR_NOSYMFOLLOW;

/// A detached copy of the mount at `source`.
pub fn clone_mount(source: &CStr) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, source, flags)?)
}

/// Sets the flags of a mount (`MOUNT_ATTR_*`; it gets no others), and makes it private: later mounts below
/// its source do not propagate to it.
pub fn set_private_attributes(tree: &OwnedFd, attributes: u64) -> io::Result<()> {
    let propagation = libc::MS_PRIVATE;
    let wanted = libc::mount_attr { attr_set: attributes, attr_clr: MOUNT_ATTRS, propagation, userns_fd: 0 };
    // SAFETY: the first pointer is to a zero-terminated string, the second to a whole `mount_attr` whose true size is given; both outlive
    // the call, which only reads them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches a detached mount at `target`.
pub fn attach(tree: &OwnedFd, target: &CStr) -> io::Result<()> {
    Ok(move_mount(tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// The root of the kernel's list of FUSE connections, as a detached mount.
pub fn open_connection_list() -> io::Result<File> {
    let context = fsopen(c"fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?.into())
}

/// Receives one descriptor that the other end of `socket` has sent.
pub fn receive_descriptor(socket: &UnixStream) -> io::Result<File> {
    let (kind, text) = match retry_on_intr(|| socket::receive(socket, &mut [0]))? {
        (_, Some(file)) => return Ok(file),
        (0, None) => (io::ErrorKind::UnexpectedEof, "fusermount3 ended without sending the descriptor"),
        (_, None) => (io::ErrorKind::InvalidData, "fusermount3 sent a message without a descriptor"),
    };
    Err(io::Error::new(kind, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_sends_no_descriptor_is_refused() {
        use std::io::Write;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"x").unwrap();
        assert_eq!(receive_descriptor(&ours).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(theirs);
        assert_eq!(receive_descriptor(&ours).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
