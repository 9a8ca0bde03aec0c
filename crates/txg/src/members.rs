//! The devices of a pool in figures.

use terrane_format::label::{Role, Stay};
use terrane_wire::DeviceIdx;

/// A device of a pool, in figures.
#[derive(Clone, Debug)]
pub struct Member {
    pub index: DeviceIdx,
    pub id: u64,
    /// The path, or another name a person would recognise.
    pub name: String,
    pub role: Role,
    pub stay: Stay,
    /// In bytes.
    pub zone_size: u64,
    /// Without the anchors.
    pub zones: u64,
    /// Of them, those that can be written at once.
    pub zones_empty: u64,
    /// Of them, those that hold something.
    pub zones_used: u64,
    /// Bytes that live on it.
    pub live_bytes: u64,
    /// Why it did not take the last uberblock, if it did not.
    pub trouble: Option<String>,
}

/// What only the syncing thread knows of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceSummary {
    pub device: DeviceIdx,
    pub zones_empty: u64,
    pub trouble: Option<String>,
}
