//! Memory that directories' indexes take.
//!
//! A directory whose names are looked up one by one remembers where each is: some ten bytes a name, which a thousand directories of ten
//! thousand names make a hundred megabytes. An index is built again in a fraction of a millisecond, so the sum is bounded, and the
//! directory goes without that has had its index longest. One that is being used may exceed the bound alone.
//!
//! Invariant: `bytes` is the sum of what the shares of all inodes in memory have counted.

use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bound in bytes, unless [`Fs::keep_indexes`](crate::Fs::keep_indexes) says otherwise: four million names.
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
    pub fn note(&self, dir: Ino, share: &Share, bytes: usize) -> bool {
        if bytes == share.counted.load(Ordering::Acquire) {
            return false;
        }
        if share.count(bytes, &self.bytes) == 0 {
            self.queue.lock().push_back(dir);
        }
        self.bytes() > self.bytes_max.load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// The directory to go without, unless it is the only one.
    fn oldest(&self) -> Option<Ino> {
        let mut queue = self.queue.lock();
        if queue.len() > 1 { queue.pop_front() } else { None }
    }

    pub fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// What a directory's share has counted goes: it went without its index.
    pub fn forget(&self, share: &Share) {
        share.count(0, &self.bytes);
    }

    /// Has directories go without their index until the others fit. `forget` says whether one did; `None`: it is not in memory.
    pub fn shed(&self, forget: impl Fn(Ino) -> Option<bool>) {
        // Those that are being changed keep theirs.
        let tries = self.queue.lock().len();
        for _ in 0..tries {
            if self.bytes() <= self.bytes_max.load(Ordering::Relaxed) {
                return;
            }
            let Some(oldest) = self.oldest() else { return };
            if forget(oldest) == Some(false) {
                self.queue.lock().push_back(oldest);
            }
        }
    }
}
