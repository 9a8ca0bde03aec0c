//! The commit point: where a pool records its newest txg.
//!
//! A commit ends with one uberblock, and import begins with the newest one. How it is stored depends on the devices.
//! [`Anchors`](crate::anchors::Anchors) append to two zones in turn; an object store would use create-once objects. A commit needs only
//! this trait.
//!
//! Invariant: at every moment, import finds the uberblock appended before the last flush, or a later one. It finds it under the label
//! it was appended with, or a later one.

use crate::PoolError;
use terrane_device::Device;
use terrane_format::label::Label;
use terrane_format::uberblock::Uberblock;
use terrane_wire::DeviceIdx;

/// The end of each commit.
pub trait CommitPoint: Send {
    /// Appends the uberblock of the newest txg. It is durable once all devices were flushed.
    ///
    /// # Errors
    /// If no import would find it.
    fn append(&mut self, label: &Label, uber: &Uberblock) -> Result<(), PoolError>;

    /// Appends the uberblock of an older txg behind the newest. If this fails, only the rollback to that txg is lost.
    fn append_older(&mut self, label: &Label, uber: &Uberblock);

    /// Appends the uberblock of the newest txg under a new label. When this returns, no import can find the old label. The uberblocks
    /// of older txgs are gone with it.
    fn relabel(
        &mut self,
        label: &Label,
        uber: &Uberblock,
        flush: &mut dyn FnMut() -> Result<(), PoolError>,
    ) -> Result<(), PoolError>;

    /// Adds a device that the new label names, before the other devices have that label. When this returns, the uberblock is durable on
    /// it.
    fn add_device(
        &mut self,
        index: DeviceIdx,
        device: &dyn Device,
        label: &Label,
        uber: &Uberblock,
    ) -> Result<(), PoolError>;

    /// A device takes no more uberblocks.
    fn remove_device(&mut self, index: DeviceIdx);

    /// Erases a device's labels durably, so that it does not look like part of a pool.
    fn erase_labels(&self, device: &dyn Device) -> Result<(), PoolError>;

    /// The devices that take uberblocks, and why the last write failed on a device.
    fn devices(&self) -> Vec<(DeviceIdx, Option<String>)>;
}
