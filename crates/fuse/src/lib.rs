//! The FUSE front end of one mount.
//!
//! The kernel turns system calls on a mount into FUSE requests. A file system in user space reads them from
//! `/dev/fuse` and answers them there. This crate does that for one mount, in ABI 7.45, and nothing more:
//! what a request *means* is decided in `posix`.
//!
//! Modules, in reading order:
//! * [`proto`]: the bytes of requests and replies. Untrusted bytes become a [`proto::Request`] or a refusal,
//!   never a panic.
//! * [`reply`]: the buffer in which an answer is built.
//! * [`transport`]: how requests arrive and answers leave: `/dev/fuse`, or rings.
//! * [`mount`]: mounting, unmounting and mount options.
//! * [`session`]: the threads between transport and handler, and which of them may wait.
//! * [`handover`]: what outlives a process, so that the next one can serve the mount; [`socket`]: sockets at
//!   paths of any length.
//! * [`notify`]: notifications that make the kernel drop caches.
//! * [`forget`]: the helper process that waits for those notifications.
//! * [`launder`]: has the kernel write back stores through mappings.
//! * [`cache_policy`]: what the kernel may cache, and for how long.
//! * [`metrics`]: counters and latencies of a mount.
//! * [`snapshots`]: snapshots inside a mount, and their tags in node ids.
//! * [`entry_words`]: calls about words beside directory entries, both sides.
//! * [`dispatch`]: one request, one call of [`terrane_posix::Fs`]. [`following`]: of one after another.
//!
//! Invariant: node ids are inode numbers (1 is the root directory) and file handles are always 0. So a
//! process that takes over a mount needs no table of its predecessor except the tags of snapshots ([`snapshots`]).

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod cache_policy;
pub mod dispatch;
pub mod entry_words;
pub mod following;
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
pub mod snapshots;
pub mod socket;
pub mod transport;

pub use dispatch::Dispatch;
pub use following::Following;
pub use launder::Launderer;
pub use metrics::{Metrics, MountStats};
pub use mount::{Mount, MountOptions, UnmountHandle};
pub use notify::Notifier;
pub use session::{Session, SessionConfig};
pub use snapshots::{SnapshotDir, SnapshotEntry, Snapshots, Visibility};
