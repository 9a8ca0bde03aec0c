//! The devices of a pool, in figures.

use terrane_format::label::{DeviceState, Role};
use terrane_wire::DeviceIdx;

/// Figures of one device.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its index in the label.
    pub index: DeviceIdx,
    /// The id in its label row.
    pub id: u64,
    /// The path, or another name that a person would recognise.
    pub name: String,
    /// What the device holds.
    pub role: Role,
    /// Whether it is in use, or leaving.
    pub state: DeviceState,
    /// In bytes.
    pub zone_size: u64,
    /// Number of zones without the anchors.
    pub zones: u64,
    /// Those that can be written at once.
    pub zones_empty: u64,
    /// Those that hold something.
    pub zones_used: u64,
    /// Live bytes on the device.
    pub live_bytes: u64,
    /// Error of the last uberblock write to this device, if it failed.
    pub uberblock_error: Option<String>,
}

/// What only the sync thread knows of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceSummary {
    /// The device.
    pub device: DeviceIdx,
    /// Its zones that can be written at once.
    pub zones_empty: u64,
    /// Error of the last uberblock write to this device, if it failed.
    pub uberblock_error: Option<String>,
}
