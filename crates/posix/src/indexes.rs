//! A memory bound for the name indexes of directories.
//!
//! A directory whose names are looked up one by one keeps an index of their positions, some 10 bytes per name.
//! A thousand directories of ten thousand names take 100 MB. Rebuilding an index takes a fraction of a
//! millisecond. So the sum is bounded, and the oldest index is dropped first. A single index in use may exceed
//! the bound.
//!
//! Invariant: [`Sum`] is the sum of the shares of all inodes in memory.

use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Default bound in bytes, for four million names. [`Fs::set_index_bytes_max`](crate::Fs::set_index_bytes_max) changes it.
const BYTES_DEFAULT: usize = 48 << 20;

/// All indexes in memory.
#[derive(Default)]
struct Sum {
    bytes: AtomicUsize,
    count: AtomicUsize,
}

impl Sum {
    /// An index that took `before` bytes takes `now`.
    fn change(&self, before: usize, now: usize) {
        match (before, now) {
            (0, 1..) => drop(self.count.fetch_add(1, Ordering::AcqRel)),
            (1.., 0) => drop(self.count.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
        if now >= before {
            self.bytes.fetch_add(now - before, Ordering::AcqRel);
        } else {
            self.bytes.fetch_sub(before - now, Ordering::AcqRel);
        }
    }
}

pub(crate) struct Indexes {
    sum: Arc<Sum>,
    bytes_max: AtomicUsize,
    /// Directories with an index, oldest index first; some may no longer exist. A leaf lock.
    queue: Mutex<VecDeque<Ino>>,
}

/// The part of the sum that one inode has counted; subtracted when it is dropped.
#[derive(Default)]
pub(crate) struct Share {
    counted: AtomicUsize,
    sum: OnceLock<Arc<Sum>>,
}

impl Share {
    /// Sets the counted bytes, and returns the previous ones.
    fn count(&self, bytes: usize, sum: &Arc<Sum>) -> usize {
        let before = self.counted.swap(bytes, Ordering::AcqRel);
        self.sum.get_or_init(|| Arc::clone(sum)).change(before, bytes);
        before
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(sum) = self.sum.get() {
            sum.change(*self.counted.get_mut(), 0);
        }
    }
}

impl Indexes {
    pub fn new() -> Self {
        Indexes { sum: Arc::default(), bytes_max: AtomicUsize::new(BYTES_DEFAULT), queue: Mutex::default() }
    }

    /// Counts a directory's current index bytes. True: the sum exceeds its bound. The caller holds the inode,
    /// and no lock.
    pub fn note(&self, dir: Ino, share: &Share, bytes: usize) -> bool {
        if bytes == share.counted.load(Ordering::Acquire) {
            return false;
        }
        if share.count(bytes, &self.sum) == 0 {
            self.queue.lock().push_back(dir);
        }
        self.bytes() > self.bytes_max.load(Ordering::Relaxed)
    }

    /// Number of indexes.
    pub fn count(&self) -> usize {
        self.sum.count.load(Ordering::Acquire)
    }

    /// Sum of all indexes in bytes.
    pub fn bytes(&self) -> usize {
        self.sum.bytes.load(Ordering::Acquire)
    }

    /// Takes the directory that loses its index next, unless it is the only one.
    fn pop_oldest(&self) -> Option<Ino> {
        let mut queue = self.queue.lock();
        if queue.len() > 1 { queue.pop_front() } else { None }
    }

    /// Sets the bound in bytes, and drops no index.
    pub fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Subtracts the share of a directory whose index was dropped.
    pub fn uncount(&self, share: &Share) {
        share.count(0, &self.sum);
    }

    /// Drops indexes until the sum fits. `drop_index` returns whether it dropped one; `None`: the directory is
    /// not in memory.
    pub fn evict(&self, drop_index: impl Fn(Ino) -> Option<bool>) {
        // Directories that are being changed keep their index.
        let tries = self.queue.lock().len();
        for _ in 0..tries {
            if self.bytes() <= self.bytes_max.load(Ordering::Relaxed) {
                return;
            }
            let Some(oldest) = self.pop_oldest() else { return };
            if drop_index(oldest) == Some(false) {
                self.queue.lock().push_back(oldest);
            }
        }
    }
}
