//! The system calls for mounting that the standard library does not have.

#![expect(
    unsafe_code,
    reason = "mount(2) and its relatives, umount2(2), descriptor passing and pre-exec have no safe form in std"
)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing, touches no memory of ours and cannot fail.
    unsafe { libc::geteuid() }
}

pub fn effective_gid() -> u32 {
    // SAFETY: as `effective_uid`.
    unsafe { libc::getegid() }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: libc::c_ulong, data: &CStr) -> io::Result<()> {
    // SAFETY: the four pointers are to zero-terminated strings that outlive the call, which only reads them; FUSE takes
    // its data argument as such a string.
    checked(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    })
}

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
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the pointer is to a zero-terminated string that outlives the call, which only reads it; the other arguments are numbers.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, source.as_ptr(), flags) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us, and nothing else knows it: we own it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
    // SAFETY: both pointers are to zero-terminated strings that outlive the call, which only reads them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub fn unmount(target: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer is to a zero-terminated string that outlives the call, which only reads it.
    checked(unsafe { libc::umount2(target.as_ptr(), flags) })
}

/// Whether a file of `/proc` signals a change.
pub fn has_exceptional_event(file: &File) -> bool {
    let mut query = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
    // SAFETY: the pointer is to one pollfd that outlives the call; it waits for nothing.
    let found = unsafe { libc::poll(&raw mut query, 1, 0) };
    found > 0 && query.revents & (libc::POLLPRI | libc::POLLERR) != 0
}

/// The root of the kernel's list of FUSE connections, as a detached mount.
pub fn open_connection_list() -> io::Result<File> {
    const FSOPEN_CLOEXEC: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    const FSMOUNT_CLOEXEC: libc::c_long = 1;
    let opened = |fd: libc::c_long| match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us, and nothing else knows it: we own it.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the pointer is to a zero-terminated string that outlives the call, which only reads it.
    let context = opened(unsafe { libc::syscall(libc::SYS_fsopen, c"fusectl".as_ptr(), FSOPEN_CLOEXEC) })?;
    let fd = libc::c_long::from(context.as_raw_fd());
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes no key and no value; the null pointers say so, and no memory of ours is touched.
    let made = unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0) };
    if made == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes numbers and touches no memory of ours.
    opened(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, 0) })
}

/// Calls statfs on `path`, for the error alone.
pub fn check_statfs(path: &CStr) -> io::Result<()> {
    let mut figures = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the first pointer is to a zero-terminated string, the second to space for what the call writes;
    // both outlive it. What it wrote is not read.
    checked(unsafe { libc::statfs(path.as_ptr(), figures.as_mut_ptr()) })
}

/// Has the child that `command` starts keep `socket` open. In this process and in children that other threads
/// start meanwhile, the descriptor is closed on exec.
pub fn inherit(command: &mut Command, socket: &UnixStream) {
    let fd = socket.as_fd().as_raw_fd();
    let keep = move || {
        // SAFETY: F_SETFD takes an int and touches no memory. `fd` is open here: the caller holds the socket until the
        // child has ended, and this runs in the child, which has a copy of all descriptors.
        checked(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `keep` makes one, fcntl, which is; an error
    // made from errno allocates nothing.
    unsafe { command.pre_exec(keep) };
}

/// Space for a control message with one descriptor, aligned as its header must be.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Receives one descriptor that the other end of `socket` has sent.
pub fn receive_descriptor(socket: &UnixStream) -> io::Result<File> {
    let mut byte = [0u8; 1];
    let mut control = ControlBuffer([0; 64]);
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // SAFETY: msghdr is a plain C structure for which all zeros is a value (null pointers, no lengths).
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    loop {
        // SAFETY: `message` points to `iov`, and that to `byte`, and to `control`, with their true lengths; all are
        // alive and not otherwise borrowed during the call.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match got {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "fusermount3 ended without sending the descriptor",
                ));
            }
            _ => break,
        }
    }
    let wrong =
        || io::Error::new(io::ErrorKind::InvalidData, "fusermount3 sent a message without a descriptor");
    // SAFETY: recvmsg has set `msg_controllen` to what it wrote into `control`, which is still alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() || message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(wrong());
    }
    // SAFETY: CMSG_FIRSTHDR is not null, so a whole header lies in `control`, which is aligned for it.
    let (level, kind, len) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
    // SAFETY: CMSG_LEN only computes a length.
    let len_of_one = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as libc::c_uint) } as usize;
    if level != libc::SOL_SOCKET || kind != libc::SCM_RIGHTS || len != len_of_one {
        return Err(wrong());
    }
    // SAFETY: the message is long enough for one int after its header (checked by `len`), and the int may be unaligned.
    let fd = unsafe { libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned() };
    if fd < 0 {
        return Err(wrong());
    }
    // SAFETY: the kernel has just made this descriptor for us by SCM_RIGHTS, and nothing else knows it: we
    // own it.
    Ok(unsafe { File::from_raw_fd(fd) })
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
