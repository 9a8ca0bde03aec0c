//! Decides whether a block that leaves a data set is freed.
//!
//! A block that leaves the live trees of a data set may still belong to a snapshot. The object set asks here,
//! once per block ([`FreePolicy`]). There are no snapshots yet, so every block is freed.
//!
//! Invariant: object sets of data sets are opened only by [`open_set`], so this policy decides about all their frees.

use crate::zap_form;
use std::sync::Arc;
use terrane_format::{BlockPtr, Feature};
use terrane_object::{FreeDecision, FreePolicy, ObjectError, ObjectKind, ObjectSet, ObjectSets};
use terrane_wire::{ObjectId, Txg};

/// The policy of a data set without snapshots.
struct NoSnapshots;

impl FreePolicy for NoSnapshots {
    fn decide(&self, _: &BlockPtr, _: Txg) -> FreeDecision {
        FreeDecision::Free
    }

    fn counted_feature(&self, kind: ObjectKind) -> Option<Feature> {
        zap_form::of_kind(kind)
    }

    fn is_use(&self, block: &[u8]) -> Option<bool> {
        terrane_zap::is_tiny(block).ok()
    }
}

/// Opens the object set of a data set; `id` is the MOS object that holds its root.
///
/// # Errors
/// The object is unreadable, or what its bonus refers to.
pub fn open_set(objects: &ObjectSets, id: ObjectId) -> Result<Arc<ObjectSet>, ObjectError> {
    objects.open_objset(id, Arc::new(NoSnapshots))
}
