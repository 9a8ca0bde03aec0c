//! Which features are in force.

use std::sync::atomic::{AtomicU32, Ordering};
use terrane_format::Feature;

/// The features that may be used now.
#[derive(Debug, Default)]
pub(crate) struct InForce(pub(crate) AtomicU32);

impl InForce {
    pub fn add(&self, features: impl Iterator<Item = Feature>) {
        let bits = features.fold(0, |bits, feature| bits | feature.bit());
        self.0.fetch_or(bits, Ordering::Release);
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.0.load(Ordering::Acquire) & feature.bit() != 0
    }
}
