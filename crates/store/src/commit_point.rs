//! Where a pool says which group is its newest.
//!
//! A commit ends with one uberblock, and import begins with the newest one. Between them stands whatever the devices below are good at:
//! [`Anchors`](crate::anchors::Anchors) append to zones that are used in turn; a store of objects would make objects that can be made
//! once. A commit asks for no more than this.
//!
//! Invariant: at every moment an import finds the uberblock that was appended before the last flush, or a later one, under the label that
//! it was appended with, or a later one.

use crate::PoolError;
use terrane_device::Device;
use terrane_format::label::Label;
use terrane_format::uberblock::Uberblock;
use terrane_wire::DeviceIdx;

/// The end of each commit.
pub trait CommitPoint: Send {
    /// Appends the uberblock of the newest group. Durable once all devices were flushed.
    ///
    /// # Errors
    /// When no import would find it.
    fn append(&mut self, label: &Label, uber: &Uberblock) -> Result<(), PoolError>;

    /// Appends the uberblock of an older group behind that of the newest. Without it nothing is lost but the way back to that group.
    fn append_older(&mut self, label: &Label, uber: &Uberblock);

    /// Appends the uberblock of the newest group, and what leads an import to another label is gone when this returns. With it goes what
    /// was told of older groups.
    fn relabel(
        &mut self,
        label: &Label,
        uber: &Uberblock,
        flush: &mut dyn FnMut() -> Result<(), PoolError>,
    ) -> Result<(), PoolError>;

    /// A device joins, as the label says that no other has yet. On it the uberblock is durable when this returns.
    fn join(
        &mut self,
        index: DeviceIdx,
        device: &dyn Device,
        label: &Label,
        uber: &Uberblock,
    ) -> Result<(), PoolError>;

    /// A device takes no uberblocks any more.
    fn leave(&mut self, index: DeviceIdx);

    /// Makes a device unrecognisable as one of a pool, durably.
    fn reset(&self, device: &dyn Device) -> Result<(), PoolError>;

    /// The devices that take uberblocks, and why one did not take the last.
    fn devices(&self) -> Vec<(DeviceIdx, Option<String>)>;
}
