//! Blocks that had to go.

use super::held::{Held, Packed};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use terrane_format::block_ptr::Key;

/// Their memory, at most.
const BYTES_MAX: usize = 16 << 20;
/// What one of them takes beside its bytes.
const ENTRY_BYTES: usize = 64;

/// They are kept for who may want them; what nobody takes in time is dropped.
#[derive(Default)]
pub(super) struct Leaving {
    /// Of blocks that were read ahead and that nobody has asked for, as long as they are here.
    unread_bytes: AtomicUsize,
    /// Such that went.
    wasted: AtomicU64,
    is_wanted: AtomicBool,
    bytes_max: AtomicUsize,
    /// And their bytes.
    blocks: Mutex<(Vec<(Key, Packed)>, usize)>,
}

impl Leaving {
    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes.load(Ordering::Relaxed)
    }

    /// A block was read ahead.
    pub fn count_unread(&self, bytes: usize) {
        self.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Somebody asked for it, or it is forgotten.
    pub fn count_read(&self, bytes: usize) {
        self.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How many went that nobody had asked for.
    pub fn wasted(&self) -> u64 {
        self.wasted.load(Ordering::Relaxed)
    }

    /// For a cache of so many bytes.
    pub fn bound(&self, budget: usize) {
        self.bytes_max.store((budget / 8).min(BYTES_MAX), Ordering::Relaxed);
    }

    pub fn keep(&self, is_wanted: bool) {
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// Those that went since it was asked last.
    pub fn take(&self) -> Vec<(Key, Packed)> {
        std::mem::take(&mut *self.blocks.lock()).0
    }

    pub fn put(&self, held: Held) {
        if held.is_ahead {
            self.count_read(held.bytes());
            self.wasted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Held { key, packed, .. } = held;
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let bytes = packed.memory() + ENTRY_BYTES;
        let mut blocks = self.blocks.lock();
        if blocks.1 + bytes <= self.bytes_max.load(Ordering::Relaxed) {
            blocks.1 += bytes;
            blocks.0.push((key, packed));
        }
    }
}
