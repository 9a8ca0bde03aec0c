//! How the ZAPs of an object set may grow.
//!
//! The limit is a property, and whether a ZAP may be tiny is a feature of the pool that can come while it is open. So both are asked for
//! by each change, and what was written before stays as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_format::Feature;
use terrane_object::ObjectSet;
use terrane_pool::{Pool, Tx};
use terrane_zap::ZapOptions;

/// Shared by all ZAPs of one object set.
pub struct ZapPolicy {
    pool: Arc<Pool>,
    /// The meta object set: read by whatever opens the pool, so it keeps to the forms of the first version.
    is_meta: bool,
    /// Bytes beyond which a block of slots becomes a fat ZAP.
    slots_bytes_max: AtomicU32,
}

impl ZapPolicy {
    /// With the default limit.
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

    /// For all growth from now on. No block is larger than the pool takes.
    pub fn set_slots_bytes_max(&self, bytes: u32) {
        self.slots_bytes_max.store(bytes.min(self.pool.max_block()), Ordering::Relaxed);
    }

    pub fn slots_bytes_max(&self) -> u32 {
        self.slots_bytes_max.load(Ordering::Relaxed)
    }

    /// Whether blocks of slots may have other slots than the first version knew.
    pub fn may_be_tiny(&self) -> bool {
        !self.is_meta && self.pool.has(Feature::TinyZap)
    }

    /// Whether a transaction's group is one of the pool that these ZAPs are in.
    pub(crate) fn is_of_pool(&self, tx: &Tx) -> bool {
        Arc::ptr_eq(tx.pool(), &self.pool)
    }

    /// For a ZAP that has no salt of its own yet.
    pub(crate) fn new_salt(&self) -> u64 {
        // Bit 0 keeps it from being 0, which means that there is none.
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
