//! Control and status of garbage collection, shared with administrators, `check`, and the code that bounds
//! memory.

use crate::by_hand::ByHand;
use crate::unread::GcRest;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_space::policy::CollectionOptions;

pub struct CollectionControl {
    options: Mutex<CollectionOptions>,
    by_hand: Mutex<ByHand>,
    /// Suspect zones must be checked again.
    explains_afresh: AtomicBool,
    /// Devices on which GC rests, as of the last txg.
    rests: Mutex<Vec<GcRest>>,
    /// Bound for the memory of the zone tables, in bytes.
    index_bytes_max: AtomicU64,
    /// The bound has changed, and the sync thread has not yet applied it.
    index_bound_is_new: AtomicBool,
}

impl CollectionControl {
    pub fn new(index_bytes_max: u64) -> CollectionControl {
        CollectionControl {
            options: Mutex::default(),
            by_hand: Mutex::default(),
            explains_afresh: AtomicBool::new(false),
            rests: Mutex::default(),
            index_bytes_max: AtomicU64::new(index_bytes_max),
            index_bound_is_new: AtomicBool::new(false),
        }
    }

    pub fn options(&self) -> CollectionOptions {
        *self.options.lock()
    }

    pub fn set_options(&self, options: CollectionOptions) {
        *self.options.lock() = options;
    }

    pub fn by_hand(&self) -> MutexGuard<'_, ByHand> {
        self.by_hand.lock()
    }

    /// Whether GC was requested. Then another txg should follow although no operation changes anything.
    pub fn collects_by_hand(&self) -> bool {
        self.by_hand.lock().wanted.is_some()
    }

    /// Makes the next txg check suspect zones again.
    pub fn explain_afresh(&self) {
        self.explains_afresh.store(true, Ordering::Relaxed);
    }

    /// Whether suspect zones must be checked again. Clears the request.
    pub fn take_explain_afresh(&self) -> bool {
        self.explains_afresh.swap(false, Ordering::Relaxed)
    }

    pub fn tell_rests(&self, rests: Vec<GcRest>) {
        *self.rests.lock() = rests;
    }

    pub fn rests(&self) -> Vec<GcRest> {
        self.rests.lock().clone()
    }

    pub fn index_bytes_max(&self) -> u64 {
        self.index_bytes_max.load(Ordering::Relaxed)
    }

    /// Sets the bound for the zone tables, in bytes. False: the bound is unchanged.
    pub fn bound_index(&self, bytes: u64) -> bool {
        let is_new = self.index_bytes_max.swap(bytes, Ordering::Relaxed) != bytes;
        if is_new {
            self.index_bound_is_new.store(true, Ordering::Relaxed);
        }
        is_new
    }

    /// Whether the bound has changed. Clears the mark.
    pub fn take_new_bound(&self) -> bool {
        self.index_bound_is_new.swap(false, Ordering::Relaxed)
    }
}
