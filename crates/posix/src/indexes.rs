//! Memory that directories' indexes take.
//!
//! A directory whose names are looked up one by one remembers where each is: some ten bytes a name, which a thousand directories of ten
//! thousand names make a hundred megabytes. An index is built again in a fraction of a millisecond, so the sum is bounded, and the
//! directory goes without that has had its index longest. One that is being used may exceed the bound alone.
//!
//! Invariant: `bytes` is the sum of what the shares of all inodes in memory have counted.

use crate::fs::Fs;
use crate::inode::Inode;
use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bound in bytes, unless [`Fs::keep_indexes`] says otherwise: four million names.
const BYTES_DEFAULT: usize = 48 << 20;

pub(crate) struct Indexes {
    bytes: Arc<AtomicUsize>,
    bytes_max: AtomicUsize,
    /// Directories with an index, the one that has had it longest first; some may be gone. A leaf lock.
    queue: Mutex<VecDeque<Ino>>,
}

/// An inode's part of the sum, which goes with it.
#[derive(Default)]
pub(crate) struct Share {
    counted: AtomicUsize,
    sum: OnceLock<Arc<AtomicUsize>>,
}

impl Share {
    /// Says what was counted before.
    fn count(&self, bytes: usize, sum: &Arc<AtomicUsize>) -> usize {
        let before = self.counted.swap(bytes, Ordering::AcqRel);
        let sum = self.sum.get_or_init(|| Arc::clone(sum));
        if bytes >= before {
            sum.fetch_add(bytes - before, Ordering::AcqRel);
        } else {
            sum.fetch_sub(before - bytes, Ordering::AcqRel);
        }
        before
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(sum) = self.sum.get() {
            sum.fetch_sub(*self.counted.get_mut(), Ordering::AcqRel);
        }
    }
}

impl Indexes {
    pub fn new() -> Self {
        Indexes { bytes: Arc::default(), bytes_max: AtomicUsize::new(BYTES_DEFAULT), queue: Mutex::default() }
    }

    /// Counts what a directory's index takes now; true: all together take too much. The caller holds the inode, and no lock.
    pub fn note(&self, dir: &Inode) -> bool {
        // Whoever changes it now will say so.
        let Some(bytes) = dir.index_bytes() else { return false };
        if bytes == dir.index_share.counted.load(Ordering::Acquire) {
            return false;
        }
        if dir.index_share.count(bytes, &self.bytes) == 0 {
            self.queue.lock().push_back(dir.ino);
        }
        self.bytes() > self.bytes_max.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// The directory to go without, unless it is the only one.
    fn oldest(&self) -> Option<Ino> {
        let mut queue = self.queue.lock();
        if queue.len() > 1 { queue.pop_front() } else { None }
    }
}

impl Fs {
    /// Bytes that the indexes of all directories in memory may take, 48 MiB unless told; a single one may exceed it.
    pub fn keep_indexes(&self, bytes: usize) {
        self.indexes.bytes_max.store(bytes, Ordering::Relaxed);
        self.shed_indexes();
    }

    /// Bytes that the indexes of directories take.
    pub fn index_bytes(&self) -> usize {
        self.indexes.bytes()
    }

    /// Has directories go without their index until the others fit.
    pub(crate) fn shed_indexes(&self) {
        // Those that are being changed keep theirs.
        let tries = self.indexes.queue.lock().len();
        for _ in 0..tries {
            if self.indexes.bytes() <= self.indexes.bytes_max.load(Ordering::Relaxed) {
                return;
            }
            let Some(oldest) = self.indexes.oldest() else { return };
            let forgotten = self.inodes.with_live(oldest, |dir| {
                let forgotten = dir.forget_index();
                if forgotten {
                    dir.index_share.count(0, &self.indexes.bytes);
                }
                forgotten
            });
            if forgotten == Some(false) {
                self.indexes.queue.lock().push_back(oldest);
            }
        }
    }
}
