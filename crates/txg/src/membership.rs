//! Identity of a pool: its label in memory, the features in force, and the published figures of its devices.
//!
//! A feature is in force while it is enabled or active: its structures may be written. A txg that uses a
//! feature that is merely enabled makes it active before it commits.
//!
//! Invariant: a feature is in force only after every label from which the pool could be imported names it
//! durably.

use crate::feature_uses::{FeatureUses, ImportedUses};
use crate::members::DeviceSummary;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_format::Feature;
use terrane_format::features::FeatureState;
use terrane_format::label::Label;
use terrane_wire::Txg;

/// The label in memory, the features in force, and figures of the devices.
pub struct Membership {
    label: Mutex<Label>,
    /// Features that may be used now, as a mask of their bits.
    in_force: AtomicU32,
    /// Uses of features by what is stored.
    pub uses: FeatureUses,
    summaries: Mutex<Vec<DeviceSummary>>,
}

impl Membership {
    /// No feature is in force yet. Commits will be of `incarnation`. `imported`: the imported txg, and the
    /// incarnation of its commit record; `None` in a new pool.
    pub fn new(label: Label, incarnation: u64, imported: Option<(Txg, u64)>) -> Membership {
        let imported = ImportedUses {
            record_incarnation: imported.map_or(incarnation, |(_, incarnation)| incarnation),
            active: imported.map_or(0, |_| active_bits(&label)),
            txg: imported.map_or(Txg(0), |(txg, _)| txg),
        };
        Membership {
            label: Mutex::new(label),
            in_force: AtomicU32::new(0),
            uses: FeatureUses::new(imported, incarnation),
            summaries: Mutex::default(),
        }
    }

    /// The pool's name.
    pub fn name(&self) -> String {
        self.label.lock().name.clone()
    }

    /// A copy of the label.
    pub fn label(&self) -> Label {
        self.label.lock().clone()
    }

    /// The largest stored block, in bytes.
    pub fn max_block(&self) -> u32 {
        self.label.lock().max_block
    }

    /// The label, to be changed in memory. A change is durable once the pool was relabelled.
    pub fn label_mut(&self) -> MutexGuard<'_, Label> {
        self.label.lock()
    }

    /// Puts features in force, once every label names them durably.
    pub fn put_in_force(&self, features: impl Iterator<Item = Feature>) {
        let bits = features.fold(0, |bits, feature| bits | feature.bit());
        self.in_force.fetch_or(bits, Ordering::Release);
    }

    /// No operation that begins now uses the feature. Earlier ones may.
    pub fn end_force(&self, feature: Feature) {
        self.in_force.fetch_and(!feature.bit(), Ordering::Release);
    }

    /// The state of a feature in the label in memory.
    pub fn state(&self, feature: Feature) -> FeatureState {
        self.label.lock().features.state(feature)
    }

    /// Bits of the features that are active in the label in memory.
    pub fn active(&self) -> u32 {
        active_bits(&self.label.lock())
    }

    /// Whether structures of this feature may be written.
    pub fn has(&self, feature: Feature) -> bool {
        self.in_force.load(Ordering::Acquire) & feature.bit() != 0
    }

    /// Publishes what only the sync thread knows of the devices, so that status queries do not wait for it.
    pub fn set_summaries(&self, summaries: Vec<DeviceSummary>) {
        *self.summaries.lock() = summaries;
    }

    /// The figures as last published.
    pub fn summaries(&self) -> Vec<DeviceSummary> {
        self.summaries.lock().clone()
    }
}

fn active_bits(label: &Label) -> u32 {
    label
        .features
        .known()
        .filter(|feature| label.features.is_active(*feature))
        .fold(0, |bits, feature| bits | feature.bit())
}
