//! How requests arrive and answers leave.
//!
//! `/dev/fuse` hands out one request per read and takes one answer per write. The layers above know only
//! [`Transport`], so [`ring`] (FUSE over io_uring) can take its place, or virtio queues one day.

pub mod ring;

use crate::mount::UnmountHandle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// The result of waiting for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request is at the start of the buffer.
    Request {
        /// Bytes of the request.
        len: usize,
    },
    /// The mount is gone, and no request will ever come again.
    Ended,
}

/// A channel to and from the kernel. Any number of threads may receive and send at the same time.
pub trait Transport: Send + Sync {
    /// Waits for a request. `buf` must hold the longest one: `max_write` and
    /// [`crate::proto::REQUEST_OVERHEAD_BYTES`].
    fn receive(&self, buf: &mut [u8]) -> io::Result<Received>;

    /// Whether a request waits to be received. `None`: the transport cannot tell.
    fn is_pending(&self) -> Option<bool> {
        None
    }

    /// Sends one message as a whole.
    fn send(&self, message: &[u8]) -> io::Result<()>;

    /// Aborts the connection: threads that wait in [`Transport::receive`] return, and so do all callers, with
    /// an error.
    fn abort(&self);
}

/// The classic transport: a descriptor of `/dev/fuse` that belongs to a mount.
#[derive(Clone, Debug)]
pub struct DevFuse {
    file: Arc<File>,
    mount: UnmountHandle,
}

impl DevFuse {
    /// `file` is the opened `/dev/fuse` of the mount. [`abort`](Transport::abort) goes through `mount`.
    pub fn new(file: File, mount: UnmountHandle) -> Self {
        DevFuse { file: Arc::new(file), mount }
    }

    /// The descriptor, for callers that keep it open across a restart of this process.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Transport for DevFuse {
    fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        loop {
            match (&*self.file).read(buf) {
                // No request has length 0; reading would return it for ever.
                Ok(0) => return Ok(Received::Ended),
                Ok(len) => return Ok(Received::Request { len }),
                Err(error) => match error.raw_os_error() {
                    // A caller was killed before we saw its request, or a signal came to us: neither is an
                    // error.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(Received::Ended),
                    _ => return Err(error),
                },
            }
        }
    }

    fn is_pending(&self) -> Option<bool> {
        let mut polled = [PollFd::new(&*self.file, PollFlags::IN)];
        // An error shows when the request is read.
        Some(!matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0)))
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        loop {
            match (&*self.file).write(message) {
                Ok(sent) if sent == message.len() => return Ok(()),
                Ok(sent) => {
                    let text = format!("short write to /dev/fuse: {sent} of {} bytes", message.len());
                    return Err(io::Error::other(text));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No caller waits for this answer any more.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn abort(&self) {
        if let Err(error) = self.mount.abort() {
            log::error!("fuse: {error}");
        }
    }
}
