//! Control and status of garbage collection, shared with administrators, `check`, and the code that bounds
//! memory.

use crate::gc_request::GcRequest;
use crate::unread::GcRest;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_space::policy::CollectionOptions;

/// Options, request and status of GC.
pub struct CollectionControl {
    options: Mutex<CollectionOptions>,
    request: Mutex<GcRequest>,
    /// Suspect zones must be checked again.
    recheck_wanted: AtomicBool,
    /// Devices on which GC rests, as of the last txg.
    rests: Mutex<Vec<GcRest>>,
    /// Bound for the memory of the zone tables, in bytes.
    index_bytes_max: AtomicU64,
    /// The bound has changed, and the sync thread has not yet applied it.
    index_bound_is_new: AtomicBool,
}

impl CollectionControl {
    /// Default options, no request. `index_bytes_max` bounds the memory of the zone tables.
    pub fn new(index_bytes_max: u64) -> CollectionControl {
        CollectionControl {
            options: Mutex::default(),
            request: Mutex::default(),
            recheck_wanted: AtomicBool::new(false),
            rests: Mutex::default(),
            index_bytes_max: AtomicU64::new(index_bytes_max),
            index_bound_is_new: AtomicBool::new(false),
        }
    }

    /// The options in force.
    pub fn options(&self) -> CollectionOptions {
        *self.options.lock()
    }

    /// Replaces the options, for GC from the next txg on.
    pub fn set_options(&self, options: CollectionOptions) {
        *self.options.lock() = options;
    }

    /// Locks the request of an administrator or of the idle window, and the status of GC.
    pub fn request(&self) -> MutexGuard<'_, GcRequest> {
        self.request.lock()
    }

    /// Whether GC was requested. Then another txg should follow although no operation changes anything.
    pub fn has_request(&self) -> bool {
        self.request.lock().wanted.is_some()
    }

    /// Makes the next txg check suspect zones again.
    pub fn recheck_suspects(&self) {
        self.recheck_wanted.store(true, Ordering::Relaxed);
    }

    /// Whether suspect zones must be checked again. Clears the request.
    pub fn take_recheck(&self) -> bool {
        self.recheck_wanted.swap(false, Ordering::Relaxed)
    }

    /// Publishes the devices on which GC rests, so that status queries do not wait for the sync thread.
    pub fn set_rests(&self, rests: Vec<GcRest>) {
        *self.rests.lock() = rests;
    }

    /// Devices on which GC rests, as last published.
    pub fn rests(&self) -> Vec<GcRest> {
        self.rests.lock().clone()
    }

    /// Bound for the memory of the zone tables, in bytes.
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
