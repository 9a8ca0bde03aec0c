//! What decides whether a block of a data set is freed.
//!
//! A block that leaves the live trees of a data set may still belong to a snapshot. The object set asks here, once for each such block
//! ([`FreePolicy`]). There are no snapshots yet, so the answer is always that nothing refers to it.
//!
//! Invariant: object sets of data sets are opened by [`open_set`] and by nothing else, so each of their frees is judged here.

use std::sync::Arc;
use terrane_format::BlockPtr;
use terrane_object::{FreePolicy, ObjectError, ObjectSet, Objects, Verdict};
use terrane_wire::{ObjectId, Txg};

/// The policy of a data set without snapshots.
struct NoSnapshots;

impl FreePolicy for NoSnapshots {
    fn verdict(&self, _: &BlockPtr, _: Txg) -> Verdict {
        Verdict::Free
    }
}

/// Opens the object set of a data set; `id` is the object of the meta object set that holds its root.
///
/// # Errors
/// The object, or what its bonus names, cannot be read.
pub fn open_set(objects: &Objects, id: ObjectId) -> Result<Arc<ObjectSet>, ObjectError> {
    objects.open_objset(id, Arc::new(NoSnapshots))
}
