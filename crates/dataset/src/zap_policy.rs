//! Growth limits of the ZAPs of an object set.
//!
//! The limit is a property. Whether a ZAP may be tiny depends on a feature that can be enabled while the pool
//! is open. So each change checks both, and existing ZAPs stay as they are.

use crate::zap_form::ZapForm;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_format::Feature;
use terrane_object::{Object, ObjectSet};
use terrane_pool::{Pool, Tx};
use terrane_zap::ZapOptions;

/// Shared by all ZAPs of one object set.
pub struct ZapPolicy {
    pool: Arc<Pool>,
    /// The meta object set: every version must be able to read it, so it uses the first version's encodings.
    is_meta: bool,
    /// Bytes beyond which a micro or tiny ZAP becomes fat.
    slots_bytes_max: AtomicU32,
}

impl ZapPolicy {
    /// Starts with the default limit.
    pub fn of(set: &ObjectSet) -> Arc<ZapPolicy> {
        let defaults = ZapOptions::new(1);
        let policy = ZapPolicy {
            pool: Arc::clone(set.pool()),
            is_meta: set.is_meta(),
            slots_bytes_max: AtomicU32::default(),
        };
        policy.set_slots_bytes_max(u32::try_from(defaults.micro_max_bytes).unwrap_or(u32::MAX));
        Arc::new(policy)
    }

    /// Sets the limit for later growth, bounded by the pool's block size.
    pub fn set_slots_bytes_max(&self, bytes: u32) {
        self.slots_bytes_max.store(bytes.min(self.pool.max_block()), Ordering::Relaxed);
    }

    /// The limit of the block of a micro or tiny ZAP, in bytes. A larger ZAP becomes fat.
    pub fn slots_bytes_max(&self) -> u32 {
        self.slots_bytes_max.load(Ordering::Relaxed)
    }

    /// Whether ZAPs may become tiny, which the first version does not know.
    pub fn may_be_tiny(&self) -> bool {
        !self.is_meta && self.pool.has(Feature::TinyZap)
    }

    /// The form of the ZAP in an object, as far as tiny ZAPs are counted.
    pub(crate) fn form(&self, object: &Arc<Object>) -> ZapForm {
        if self.is_meta { ZapForm::NotTiny } else { ZapForm::of(object) }
    }

    /// After a change: counts the object if it has become a tiny ZAP, or was one.
    pub(crate) fn count_change(&self, tx: &Tx, before: ZapForm, object: &Arc<Object>) {
        // A change of a destroyed object was refused, and its use was ended with it.
        if !self.is_meta && !object.is_destroyed() {
            before.change_to(ZapForm::of(object), tx);
        }
    }

    /// Whether a transaction belongs to the pool of these ZAPs.
    pub(crate) fn is_of_pool(&self, tx: &Tx) -> bool {
        Arc::ptr_eq(tx.pool(), &self.pool)
    }

    /// A salt for a ZAP that has none yet.
    pub(crate) fn new_salt(&self) -> u64 {
        // Bit 0 keeps it from being 0, which means none.
        self.pool.env().random_u64() | 1
    }

    pub(crate) fn options(&self, salt: u64) -> ZapOptions {
        ZapOptions {
            micro_max_bytes: usize::try_from(self.slots_bytes_max()).unwrap_or(usize::MAX),
            tiny: self.may_be_tiny(),
            ..ZapOptions::new(salt)
        }
    }
}
