//! Identity of a pool: its label in memory, the features in force, and the published figures of its devices.
//!
//! Invariant: a feature is in force only after every label from which the pool could be imported names it
//! durably.

use crate::members::DeviceSummary;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_format::Feature;
use terrane_format::label::Label;

/// The label in memory, the features in force, and figures of the devices.
pub struct Membership {
    label: Mutex<Label>,
    /// Features that may be used now, as a mask of their bits.
    active_features: AtomicU32,
    summaries: Mutex<Vec<DeviceSummary>>,
}

impl Membership {
    /// No feature is in force yet.
    pub fn new(label: Label) -> Membership {
        Membership {
            label: Mutex::new(label),
            active_features: AtomicU32::new(0),
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

    /// Puts features in force, once every label names them durably. They stay until the pool is closed.
    pub fn activate(&self, features: impl Iterator<Item = Feature>) {
        let bits = features.fold(0, |bits, feature| bits | feature.bit());
        self.active_features.fetch_or(bits, Ordering::Release);
    }

    /// Whether structures of this feature may be written.
    pub fn has(&self, feature: Feature) -> bool {
        self.active_features.load(Ordering::Acquire) & feature.bit() != 0
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
