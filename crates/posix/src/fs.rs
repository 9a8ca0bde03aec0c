//! One mounted data set: the state that all operations share.
//!
//! Invariant: this module defines state in memory, and no operation. Operations are methods of [`Fs`] in
//! modules above.

use crate::claims::{Claims, PointerBlock};
use crate::delete_queue::UnlinkedSet;
use crate::dir_prefetch::{DirPrefetch, PrefetchedDirs};
use crate::dnode_sizing::DnodeSizing;
use crate::errno::Errno;
use crate::indexes::Indexes;
use crate::inode::{Inode, InodeCache};
use crate::intents::{ChangeKeeper, Intents};
use crate::jobs::{RelocatedQueue, Rewriting, ShrinkQueue};
use crate::layouts::Layouts;
use crate::losses::{Loss, Losses};
use crate::master::Master;
use crate::reservations::Reservations;
use crate::shown::ShownInodes;
use crate::types::{AccessTimes, Ino, Time};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_dataset::{ClaimedBlocks, Dataset, DnodeBlocks, Naming};
use terrane_object::ObjectSet;

/// Inodes that wait for [`Fs::take_restored`]. Of more, a kernel shows old numbers of blocks until it drops them.
const RESTORED_MAX: usize = 64 << 10;

/// A mounted data set. It is shared by threads; every method takes its own locks.
///
/// Each operation that changes something is one transaction: after a crash all of it exists, or nothing.
pub struct Fs {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) set: Arc<ObjectSet>,
    pub(crate) layouts: Layouts,
    pub(crate) dnode_sizing: DnodeSizing,
    pub(crate) naming: Naming,
    pub(crate) inodes: InodeCache,
    pub(crate) indexes: Indexes,
    pub(crate) unlinked: Arc<UnlinkedSet>,
    pub(crate) shrink_queue: ShrinkQueue,
    pub(crate) rewriting: Arc<Rewriting>,
    pub(crate) master: Master,
    pub(crate) reservations: Arc<Reservations>,
    /// Inodes whose stored bytes a background job has changed, while the kernel has their number of blocks.
    pub(crate) restored: Mutex<Vec<Ino>>,
    pub(crate) relocated_queue: Mutex<RelocatedQueue>,
    pub(crate) dnode_blocks: DnodeBlocks,
    pub(crate) pointer_blocks: ClaimedBlocks<PointerBlock>,
    pub(crate) claims_of_new: Claims,
    /// Held while a directory moves to another parent, so that no concurrent move can put a directory under
    /// itself. Taken before the transaction begins.
    pub(crate) directory_moves: Mutex<()>,
    pub(crate) ledger: OnceLock<Box<dyn Ledger>>,
    /// An [`AccessTimes`].
    pub(crate) access_times: AtomicU8,
    /// Number of the object set's losses that [`sync`](Fs::sync) has reported.
    pub(crate) losses_reported: AtomicU64,
    pub(crate) dir_prefetch: Mutex<DirPrefetch>,
    pub(crate) prefetched_dirs: PrefetchedDirs,
    /// Losses of a predecessor that died while the mount stayed.
    pub(crate) losses: Option<Losses>,
    /// What an `fsync` logs instead of a commit.
    pub(crate) intents: Intents,
    /// Changes are made again that were made before a crash. No program uses it.
    pub(crate) is_replaying: bool,
    /// Inodes that the kernel knows, also by earlier states: another process changes the data set.
    pub(crate) shown: Option<Arc<ShownInodes>>,
    /// There were access control lists when the change was made that is made again.
    pub(crate) had_acls: AtomicBool,
    pub(crate) root: Ino,
    /// Destroys the object of an unlinked inode when its last reference is dropped.
    pub(crate) destroy_unlinked: fn(&Fs, Ino) -> Result<(), Errno>,
}

/// Notes the first change of an inode in each txg, so that a successor server knows what a crash lost.
pub trait Ledger: Send + Sync {
    /// Notes that this txg changes the inode. The changing thread calls it while its transaction is open.
    fn note_change(&self, txg: u64, ino: Ino);

    /// Notes which calls have reported this inode's loss; a later successor does not report it again. `None`: no
    /// call is to report it any more.
    fn note_reported(&self, _ino: Ino, _loss: Option<Loss>) {}
}

impl Fs {
    /// Notes the first change of every inode per txg in `ledger` from now on.
    pub fn set_ledger(&self, ledger: Box<dyn Ledger>) {
        // The first ledger stays: a second one would lack the earlier notes.
        let _ = self.ledger.set(ledger);
    }

    /// Keeps all changes in `keeper` from now on, until they are durable.
    pub fn set_keeper(&self, keeper: Box<dyn ChangeKeeper>) {
        self.intents.set_keeper(keeper);
    }

    pub(crate) fn is_successor(&self) -> bool {
        self.losses.is_some()
    }

    /// Whether this is a snapshot: each change fails with `EROFS`.
    pub fn is_read_only(&self) -> bool {
        self.set.is_read_only()
    }

    /// Closes the snapshot, which is about to be destroyed. Every later call fails with `ESTALE`.
    ///
    /// # Panics
    /// If this is no snapshot.
    pub fn close(&self) {
        self.set.close();
    }

    /// Whether [`close`](Fs::close) was called, on this `Fs` or another one of the same data set.
    pub fn is_closed(&self) -> bool {
        self.set.is_closed()
    }

    pub(crate) fn check_changeable(&self) -> Result<(), Errno> {
        if self.is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Sets the mount option for access times.
    pub fn set_access_times(&self, times: AccessTimes) {
        self.access_times.store(times as u8, Ordering::Relaxed);
    }

    pub(crate) fn access_times(&self) -> AccessTimes {
        use AccessTimes::{Always, AsProperty, Never, NeverForDirectories};
        let stored = self.access_times.load(Ordering::Relaxed);
        [AsProperty, Never, NeverForDirectories, Always]
            .into_iter()
            .find(|times| *times as u8 == stored)
            .unwrap_or_default()
    }

    /// A background job has changed how an inode is stored, in a transaction that is still open or has just ended.
    pub(crate) fn note_restored(&self, inode: &Inode) {
        if inode.forget_told_blocks() {
            let mut restored = self.restored.lock();
            if restored.len() < RESTORED_MAX {
                restored.push(inode.ino);
            }
        }
    }

    /// Inodes whose [`blocks`](crate::Attr::blocks) background jobs have changed since the last call. Kernels that
    /// cache attributes must be notified.
    pub fn take_restored(&self) -> Vec<Ino> {
        std::mem::take(&mut *self.restored.lock())
    }

    /// Inode number of the root directory.
    pub fn root(&self) -> Ino {
        self.root
    }

    /// The mounted data set.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_ns(self.set.pool().env().wall_ns())
    }

    /// The pool's monotonic clock in nanoseconds. Cheaper than the kernel's clock where that takes a system
    /// call.
    pub fn monotonic_ns(&self) -> u64 {
        self.set.pool().env().monotonic_ns()
    }
}
