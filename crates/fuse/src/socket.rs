//! Sockets at paths of any length, and descriptors that arrive through sockets.
//!
//! A socket address holds a path of at most 107 bytes. A state directory in a deep home, or a long name of a
//! pool, makes a longer one. The kernel takes any path that leads to the same inode, and `/proc/self/fd` has
//! short ones for open files.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a path in an address, without the zero at its end.
const ADDRESS_BYTES_MAX: usize = 107;
/// Space for the descriptors of one message. We expect one; the kernel closes those for which there is no space.
const FILES_MAX: usize = 8;

fn fits(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() <= ADDRESS_BYTES_MAX
}

/// A descriptor with O_PATH, since a socket cannot be opened.
fn handle(path: &Path) -> io::Result<(File, PathBuf)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, short))
}

fn connected<T>(path: &Path, connect: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if fits(path) {
        return connect(path);
    }
    let (_open, short) = handle(path)?;
    connect(&short)
}

fn bound<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if fits(path) {
        return bind(path);
    }
    static NAMED: AtomicU64 = AtomicU64::new(0);
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let (_open, short) = handle(dir)?;
    // The last component may be too long as well, so the socket is bound under a short name and renamed.
    let name = format!(".{}-{}", std::process::id(), NAMED.fetch_add(1, Ordering::Relaxed));
    let _ = fs::remove_file(dir.join(&name));
    let socket = bind(&short.join(&name))?;
    fs::rename(dir.join(&name), path)?;
    Ok(socket)
}

/// As [`UnixStream::connect`].
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    connected(path, |path| UnixStream::connect(path))
}

/// As [`UnixDatagram::connect`].
pub fn connect_datagram(socket: &UnixDatagram, path: &Path) -> io::Result<()> {
    connected(path, |path| socket.connect(path))
}

/// As [`UnixListener::bind`]. Nothing may exist at the path.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    bound(path, |path| UnixListener::bind(path))
}

/// As [`UnixDatagram::bind`]. Nothing may exist at the path.
pub fn bind_datagram(path: &Path) -> io::Result<UnixDatagram> {
    bound(path, |path| UnixDatagram::bind(path))
}

/// Receives a message, and the descriptor that came with it. With several it is unclear which one is meant, so all are
/// closed, and the result is `None`.
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<File>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    let is_whole = !got.flags.contains(ReturnFlags::CTRUNC);
    let file = files.pop().filter(|_| files.is_empty() && is_whole);
    Ok((got.bytes, file.map(File::from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn sockets_work_at_paths_of_any_length() {
        let top = std::env::temp_dir().join(format!("terrane-socket-{}", std::process::id()));
        for dir in [top.clone(), top.join("d".repeat(200)).join("e".repeat(200))] {
            fs::create_dir_all(&dir).unwrap();
            for name in ["short".to_owned(), "n".repeat(250)] {
                let path = dir.join(name);
                let listener = listen(&path).unwrap();
                connect(&path).unwrap().write_all(b"heard").unwrap();
                let mut received = String::new();
                listener.accept().unwrap().0.read_to_string(&mut received).unwrap();
                assert_eq!(received, "heard");
                fs::remove_file(&path).unwrap();
                assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
                let ours = bind_datagram(&path).unwrap();
                let theirs = UnixDatagram::unbound().unwrap();
                connect_datagram(&theirs, &path).unwrap();
                theirs.send(b"heard").unwrap();
                assert_eq!(ours.recv(&mut [0; 9]).unwrap(), 5);
                fs::remove_file(&path).unwrap();
            }
            assert_eq!(
                fs::read_dir(&dir).unwrap().filter(|row| row.as_ref().unwrap().path().is_file()).count(),
                0
            );
        }
        fs::remove_dir_all(&top).unwrap();
    }
}
