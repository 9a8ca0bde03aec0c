//! Requests in, replies out.
//!
//! The kernel turns system calls on a mount into FUSE requests, which a file system in user space reads from
//! `/dev/fuse` and answers there. This crate is that conversation for one mount, in ABI 7.45, and nothing more: what a
//! request *means* is decided in `posix`.
//!
//! Rooms, in reading order:
//! * [`proto`]: the bytes of requests and replies; untrusted bytes become a [`proto::Request`] or a refusal, never a panic.
//! * [`reply`]: the buffer one answer is built in.
//! * [`transport`]: how requests arrive and answers leave; `/dev/fuse` today, rings later.
//! * [`mount`]: how the mount comes and goes, and the options a person may give.
//! * [`session`]: the threads between both, and which of them may wait.
//! * [`handover`]: what outlives a process, so that the next one can go on with the mount; [`socket`]: sockets at paths of any length.
//! * [`notify`]: telling the kernel to forget.
//! * [`forget`]: the process that waits until it has.
//! * [`launder`]: having it write back what programs stored through mappings.
//! * [`cache_policy`]: what the kernel may remember, and for how long.
//! * [`metrics`]: what all of it has done so far.
//! * [`dispatch`]: one request, one call of [`terrane_posix::Fs`].
//!
//! Invariant: node ids are inode numbers (1 stands for the root directory) and file handles are always 0, so a process
//! that takes over a mount needs no table of its predecessor.

pub mod cache_policy;
pub mod dispatch;
pub mod forget;
pub mod handover;
pub mod launder;
pub mod metrics;
pub mod mount;
pub mod notify;
pub mod process;
pub mod proto;
pub mod reply;
pub mod session;
pub mod socket;
pub mod transport;

pub use dispatch::Dispatch;
pub use launder::Launderer;
pub use metrics::{Metrics, MountStats};
pub use mount::{Mount, MountOptions, UnmountHandle};
pub use notify::Notifier;
pub use session::{Session, SessionConfig};
