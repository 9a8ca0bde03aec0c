//! What collection is told, and what is told of it: by administrators, `check`, and whoever bounds memory.

use crate::by_hand::ByHand;
use crate::unread::GcRest;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_space::policy::CollectionOptions;

pub struct CollectionControl {
    options: Mutex<CollectionOptions>,
    by_hand: Mutex<ByHand>,
    /// Suspect zones are to be looked at again.
    explains_afresh: AtomicBool,
    /// Devices on which collection rests, as of the last group.
    rests: Mutex<Vec<GcRest>>,
    /// What the zone tables should take at most, in bytes of memory.
    index_bytes_max: AtomicU64,
    /// That changed, and nobody has looked yet.
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

    /// Whether a group should follow although nobody changes anything.
    pub fn collects_by_hand(&self) -> bool {
        self.by_hand.lock().wanted.is_some()
    }

    /// The next group looks at suspect zones again.
    pub fn explain_afresh(&self) {
        self.explains_afresh.store(true, Ordering::Relaxed);
    }

    /// Whether it is to do that; asked once.
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

    /// Bounds the zone tables anew. False: that was the bound before.
    pub fn bound_index(&self, bytes: u64) -> bool {
        let is_new = self.index_bytes_max.swap(bytes, Ordering::Relaxed) != bytes;
        if is_new {
            self.index_bound_is_new.store(true, Ordering::Relaxed);
        }
        is_new
    }

    /// Whether the bound is new; asked once.
    pub fn take_new_bound(&self) -> bool {
        self.index_bound_is_new.swap(false, Ordering::Relaxed)
    }
}
